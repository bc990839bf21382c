//! Asking the other processes whether a server answers them.
//!
//! A process without an answer from a server leaves a number with both witnesses. Whoever has an answer repeats that number beside
//! it. Only if nobody does within a window, the place is moved. Nothing here is needed for safety: a lost or late item moves a
//! place too early or too late.

use super::command::{Command, Item, Operation, Reply};
use super::moment::Moment;
use super::record::fence;

/// The copies that carry the items: the witnesses.
const WITNESSES: [usize; 2] = [1, 2];

/// What one process asks about one server, and has answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Suspicion {
    /// The number that is waited for, and since when it has been seen, in ms of the monotonic clock.
    tracked: Option<(u64, u64)>,
    /// The number that this process answered last.
    answered: u64,
    /// The number of the question that another process answered last.
    refuted: u64,
    /// Whether another process has answered the latest question.
    pub(super) alone: bool,
}

impl Suspicion {
    /// The reads of a round.
    pub(super) fn reads(suspects: bool) -> impl Iterator<Item = Command> {
        let items = if suspects { &[Item::Suspicion, Item::Alive][..] } else { &[Item::Suspicion] };
        items
            .iter()
            .flat_map(|item| WITNESSES.map(|copy| Command { copy, item: *item, operation: Operation::Read }))
    }

    /// Takes the replies to [`Suspicion::reads`], and answers a question of another process if this one has an answer of the server.
    pub(super) fn note(
        &mut self,
        replies: &[Reply],
        now: Moment,
        has_answer: bool,
        window: u64,
    ) -> Vec<Command> {
        let number = |reply: &Reply| match reply {
            Reply::Found(value, _) => std::str::from_utf8(value).ok()?.parse::<u64>().ok(),
            _ => None,
        };
        let (suspicions, alive) = replies.split_at(replies.len().min(WITNESSES.len()));
        let Some(asked) = suspicions.iter().filter_map(number).max() else {
            self.tracked = None;
            return Vec::new();
        };
        // Whoever has not read the answers does not know yet that there are none.
        if alive.is_empty() || self.tracked.is_none_or(|(tracked, _)| tracked != asked) {
            self.tracked = Some((asked, now.mono));
        }
        if alive.iter().filter_map(number).any(|answered| answered == asked) {
            self.refuted = asked;
        }
        if !has_answer || self.answered == asked {
            return Vec::new();
        }
        self.answered = asked;
        // It does not end before the question.
        set(Item::Alive, asked, window)
    }

    /// Asks whether another process has an answer, if this one `suspects` the server. Returns true once nobody has had one for a
    /// window.
    pub(super) fn ask(
        &mut self,
        suspects: bool,
        now: Moment,
        random: u64,
        window: u64,
        commands: &mut Vec<Command>,
    ) -> bool {
        if !suspects {
            self.alone = false;
            return false;
        }
        match self.tracked {
            None => commands.extend(set(Item::Suspicion, fence(now.wall, random), window)),
            Some((asked, _)) if asked == self.refuted => {
                self.alone = true;
                // Asked again after a while.
                if self.until(window).is_some_and(|until| until <= now.mono) {
                    commands.extend(set(Item::Suspicion, fence(now.wall, random), window));
                }
            }
            Some((_, since)) => return since + window <= now.mono,
        }
        false
    }

    /// When the question that is waited for is decided, in ms of the monotonic clock.
    pub(super) fn until(&self, window: u64) -> Option<u64> {
        self.tracked.map(|(_, since)| since + window)
    }
}

/// Stores a number with both witnesses, for longer than three windows.
fn set(item: Item, number: u64, window: u64) -> Vec<Command> {
    let seconds = u32::try_from(window * 3 / 1000 + 5).unwrap_or(u32::MAX);
    let value = number.to_string().into_bytes();
    WITNESSES.map(|copy| Command { copy, item, operation: Operation::Set(value.clone(), seconds) }).into()
}
