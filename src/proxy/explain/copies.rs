//! Explains a value with two copies: where each is, and what each has.

use std::rc::Rc;

use super::copy_report::{CopyReport, CopyState};
use super::{describe, hex, received};
use crate::clock::utc;
use crate::error::Failure;
use crate::guard::Item;
use crate::kinds::{SeenCopy, Side, copy_key, seen_copy};
use crate::proxy::key::Place;
use crate::proxy::pipeline::Proxy;
use crate::upstream::pending_replies::PendingReplies;

impl Proxy {
    /// Looks at both copies of an item of the structure with this key, the first one first.
    pub(super) async fn look_at_copies(
        &self,
        pool: usize,
        own: &[u8],
        item: &[u8],
        pending: &Rc<PendingReplies>,
    ) -> Vec<CopyReport> {
        let places = self.places_of_copies(pool, own);
        let connections = self.pools[pool].connections();
        let ask = |(side, place): (Side, &Place)| {
            let key = copy_key(item, side, place.fence?).ok()?;
            Some(self.ask(&connections[place.server], &key, pending))
        };
        let asked = [Side::First, Side::Second].into_iter().zip(&places).map(ask);
        let asked: Vec<_> = asked.collect();
        let mut copies = Vec::new();
        for (place, asked) in places.iter().zip(asked) {
            let found = match asked {
                Some(id) => received(pending.receive(id).await),
                None => Err(Failure::NoView),
            };
            let server = connections[place.server].server().label().to_owned();
            copies.push(copy_report(server, place, found, self.now().wall));
        }
        copies
    }
}

/// `now`: Unix time in milliseconds.
fn copy_report(server: String, place: &Place, found: Result<Option<Item>, Failure>, now: u64) -> CopyReport {
    let mut copy = CopyReport {
        server,
        standby: place.is_standby(),
        fence: place.fence.map(hex),
        state: CopyState::Nothing,
        failure: None,
        life: None,
        change: None,
        ends: None,
        value_bytes: None,
        flags: None,
    };
    match found {
        Err(why) => (copy.state, copy.failure) = (CopyState::Unknown, Some(describe::failure(why))),
        Ok(None) => {}
        Ok(Some(item)) => match seen_copy(&item.value) {
            None => copy.state = CopyState::Unreadable,
            Some(SeenCopy::Stub) => {}
            Some(SeenCopy::Record { life, change, ends, value_bytes }) => {
                let value_bytes = value_bytes.filter(|_| ends == 0 || ends > now);
                copy.state = if value_bytes.is_some() { CopyState::Present } else { CopyState::Empty };
                (copy.life, copy.change) = (Some(hex(life)), Some(change));
                copy.ends = if ends > 0 { utc(ends) } else { None };
                (copy.value_bytes, copy.flags) = (value_bytes, value_bytes.map(|_| item.flags));
            }
        },
    }
    copy
}

/// What the copies tell together, in one sentence.
pub(super) fn comparison(copies: &[CopyReport]) -> &'static str {
    let [first, second] = copies else { return "there are no copies" };
    match (&first.life, &second.life) {
        _ if copies.iter().any(|copy| matches!(copy.state, CopyState::Unknown | CopyState::Unreadable)) => {
            "not both copies could be read"
        }
        (None, None) => "there is no copy",
        (None, Some(_)) => {
            "the first copy is not there: the next read or change stores it again, or the repair of the pool"
        }
        (Some(_), None) => {
            "the second copy is not there: the next read or change stores it again, or the repair of the pool"
        }
        (Some(of), Some(other)) if of != other => {
            "the copies are of two lives: the second one counts, and the next read or change makes the first like it"
        }
        _ if first.change == second.change => "both copies have the same change",
        _ => {
            "the copies have different changes: the later one is under way, or the next read or change completes it"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_are_compared_in_one_sentence() {
        let copy = |state, record: Option<(&str, u64)>| CopyReport {
            server: String::new(),
            standby: false,
            fence: None,
            state,
            failure: None,
            life: record.map(|(life, _)| life.to_owned()),
            change: record.map(|(_, change)| change),
            ends: None,
            value_bytes: None,
            flags: None,
        };
        let of = |record| copy(CopyState::Present, Some(record));
        let nothing = || copy(CopyState::Nothing, None);
        for (copies, part) in [
            ([of(("a", 2)), of(("a", 2))], "the same change"),
            ([of(("a", 3)), of(("a", 2))], "different changes"),
            ([of(("a", 2)), of(("b", 2))], "two lives"),
            ([nothing(), of(("a", 2))], "the first copy is not there"),
            ([of(("a", 2)), nothing()], "the second copy is not there"),
            ([nothing(), nothing()], "no copy"),
            ([copy(CopyState::Unreadable, None), of(("a", 2))], "not both copies"),
            ([of(("a", 2)), copy(CopyState::Unknown, None)], "not both copies"),
        ] {
            assert!(comparison(&copies).contains(part), "{copies:?}: {}", comparison(&copies));
        }
    }
}
