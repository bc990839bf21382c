//! Explains the key of a structure: its kind, where it is kept, and which of its items are there. Of a value with copies,
//! both are read; of the others, no value is.

use std::rc::Rc;

use super::copies;
use super::debug_reply;
use super::describe;
use super::report::{Class, Explanation, ItemsReport, StructureReport};
use crate::error::Failure;
use crate::kinds::{self, ItemKey, Side, copy_key};
use crate::proxy::key::{Place, StructureKey};
use crate::proxy::pipeline::Proxy;
use crate::proxy::plan::StructurePlan;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

impl Proxy {
    pub(super) async fn explain_structure(
        self: &Rc<Proxy>,
        key: &StructureKey,
        explanation: &mut Explanation,
        pending: &Rc<PendingReplies>,
    ) {
        let StructurePlan { kind, pool, rule, .. } = self.structure(key);
        let (word, own) = (kind.word(), key.own_key());
        // An element of a table with copies is a value.
        let is_value = kinds::is_value_with_copies(kind, &key.key, key.length);
        let items = if is_value { Vec::new() } else { kinds::items_below(kind, own, self.now().wall) };
        let asked = self.ask_items(key, &items, pending);
        // A structure does not follow its keys to a standby server.
        self.explain_raw(own, *pool, *rule, false, explanation, pending).await;
        explanation.class = Class::Structure;
        explanation.notes = vec![describe::structure_note(word)];
        let mut report = StructureReport { kind: word, items: None, copies: Vec::new() };
        if kind.is_copied() {
            (explanation.place, explanation.item, explanation.elsewhere) = (None, None, None);
            if items.is_empty() {
                report.copies = self.look_at_copies(*pool, own, &key.key, pending).await;
                explanation.notes = vec![copies::comparison(&report.copies).to_owned()];
            } else {
                explanation.notes.push(describe::COPIED_ITEMS.to_owned());
            }
        }
        if !asked.is_empty() {
            let mut items = ItemsReport { all: asked.len(), ..ItemsReport::default() };
            for id in asked {
                let debug = match id {
                    Some(id) => debug_reply::decode(pending.receive(id).await),
                    None => Err(Failure::NoView),
                };
                match debug {
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

    /// Asks for each item, or for both copies of each. `None`: where a copy is, is not known.
    fn ask_items(
        &self,
        key: &StructureKey,
        items: &[ItemKey],
        pending: &Rc<PendingReplies>,
    ) -> Vec<Option<ReplyId>> {
        let StructurePlan { kind, pool, .. } = self.structure(key);
        if !kind.is_copied() {
            let connection = self.structure_connection(key);
            return items.iter().map(|item| Some(self.ask_debug(connection, item, pending))).collect();
        }
        let places = self.places_of_copies(*pool, key.own_key());
        let connections = self.pools[*pool].connections();
        let ask = |item: &ItemKey, (side, place): (Side, &Place)| {
            let key = copy_key(item, side, place.fence?).ok()?;
            Some(self.ask_debug(&connections[place.server], &key, pending))
        };
        let both =
            |item| [Side::First, Side::Second].into_iter().zip(&places).map(move |copy| ask(item, copy));
        items.iter().flat_map(both).collect()
    }
}
