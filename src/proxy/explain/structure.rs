//! Explains the key of a structure: its kind, where it is kept, and which of its items are there. Of a value with copies,
//! both are read; of the others, no value is.

use std::rc::Rc;

use super::copies;
use super::debug_reply;
use super::describe;
use super::report::{Class, Explanation, ItemsReport, StructureReport};
use crate::kinds::{self, Kind};
use crate::proxy::key::StructureKey;
use crate::proxy::pipeline::Proxy;
use crate::upstream::pending_replies::PendingReplies;

impl Proxy {
    pub(super) async fn explain_structure(
        self: &Rc<Proxy>,
        key: &StructureKey,
        explanation: &mut Explanation,
        pending: &Rc<PendingReplies>,
    ) {
        let plan = self.structure(key);
        let (kind, own) = (plan.kind.word(), key.own_key());
        let items = kinds::items_below(&plan.kind, own, self.now().wall);
        let connection = self.structure_connection(key);
        let asked: Vec<_> = items.iter().map(|item| self.ask_debug(connection, item, pending)).collect();
        // A structure does not follow its keys to a standby server.
        self.explain_raw(own, plan.pool, plan.rule, false, explanation, pending).await;
        explanation.class = Class::Structure;
        explanation.notes = vec![describe::structure_note(kind)];
        let mut report = StructureReport { kind, items: None, copies: Vec::new() };
        if let Kind::Copied(_) = plan.kind {
            report.copies = self.look_at_copies(plan.pool, own, pending).await;
            explanation.notes = vec![copies::comparison(&report.copies).to_owned()];
            (explanation.place, explanation.item, explanation.elsewhere) = (None, None, None);
        }
        if !asked.is_empty() {
            let mut items = ItemsReport { all: asked.len(), ..ItemsReport::default() };
            for id in asked {
                match debug_reply::decode(pending.receive(id).await) {
                    Ok(None) => {}
                    Ok(Some(debug)) => {
                        items.found += 1;
                        items.memory_bytes += debug.size;
                        items.gone_in_s = items.gone_in_s.max(debug.ttl);
                    }
                    Err(why) => items.failure = Some(describe::failure(why)),
                }
            }
            report.items = Some(items);
            // There is never an item under the key itself.
            explanation.item = None;
            if let Some(elsewhere) = &mut explanation.elsewhere {
                elsewhere.item = None;
            }
        }
        explanation.structure = Some(report);
    }
}
