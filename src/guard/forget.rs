//! Removes the version of a tag, on all servers that keep it.

use crate::error::Failure;

use super::command::{Commands, ServerReply, delete};
use super::inputs::Inputs;
use super::machine::{Event, Machine, Step};
use super::tags::get_copies;

/// Removes the version of the tag `ItemRef::Tag(0)` and of its copy, and any stub over which a version that was read before may
/// be about to be stored. So whoever reads the tag next takes the version of the previous placement over, or creates one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Forget;

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetEnd {
    /// No server has the version.
    Forgotten,
    /// A server may still have it. From that one it could be restored on the others.
    Failed(Failure),
}

impl Forget {
    /// Begins. `keeps`: of the tag and of its copy, whether it stays, because the previous placement has the same item.
    pub fn start(keeps: [bool; 2], inputs: &Inputs<'_>) -> (Forget, Commands) {
        let deleted = get_copies(0, inputs.copies).zip(keeps).filter(|(_, keep)| !keep);
        (Forget, deleted.map(|(get, _)| delete(get.item, None)).collect())
    }
}

impl Machine for Forget {
    type End = ForgetEnd;

    fn failed(failure: Failure) -> Option<ForgetEnd> {
        Some(ForgetEnd::Failed(failure))
    }

    fn bumped(end: &ForgetEnd) -> bool {
        *end == ForgetEnd::Forgotten
    }

    fn resume(&mut self, event: Event, _: &Inputs<'_>) -> Step<ForgetEnd> {
        let failure = event.replies().iter().find_map(|reply| match reply {
            ServerReply::Done | ServerReply::Absent => None,
            ServerReply::Failed(failure) => Some(*failure),
            _ => Some(Failure::Refused),
        });
        Step::Done(failure.map_or(ForgetEnd::Forgotten, ForgetEnd::Failed))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::guard::command::ItemRef;
    use crate::guard::fixtures::on;

    #[test]
    fn a_version_is_forgotten_once_every_copy_is_gone() {
        let down = ServerReply::Failed(Failure::Down);
        for (second, end) in [
            (ServerReply::Done, ForgetEnd::Forgotten),
            (ServerReply::Absent, ForgetEnd::Forgotten),
            (down, ForgetEnd::Failed(Failure::Down)),
            (ServerReply::Exists, ForgetEnd::Failed(Failure::Refused)),
        ] {
            let (mut forget, commands) = on(100, true, |inputs| Forget::start([false; 2], inputs));
            assert_eq!(commands[..], [ItemRef::Tag(0), ItemRef::TagCopy(0)].map(|item| delete(item, None)));
            let replies = smallvec![ServerReply::Done, second];
            assert_eq!(
                on(100, true, |inputs| forget.resume(Event::Replies(replies.clone()), inputs)),
                Step::Done(end)
            );
        }
    }

    #[test]
    fn a_copy_that_the_previous_placement_has_too_stays() {
        for (keeps, copies, expected) in [
            ([true, false], true, &[ItemRef::TagCopy(0)][..]),
            ([false, true], true, &[ItemRef::Tag(0)]),
            ([true, true], true, &[]),
            ([false, false], false, &[ItemRef::Tag(0)]),
        ] {
            let (_, commands) = on(100, copies, |inputs| Forget::start(keeps, inputs));
            let deleted: Vec<ItemRef> = commands.iter().map(|command| command.item).collect();
            assert_eq!(deleted, expected);
        }
    }
}
