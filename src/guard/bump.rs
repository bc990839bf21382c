//! Increments the version of a tag on every server that keeps it.

use crate::error::Failure;

use super::command::{Commands, ServerReply};
use super::inputs::Inputs;
use super::machine::{Event, Machine, Step};
use super::retry::MAX_ROUNDS;
use super::tag_version::{bumped_version, version_millis};
use super::tags::{find_copies, get_copies, store_version};

/// A bump of the tag `ItemRef::Tag(0)`, on every reachable server that keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bump {
    /// The version found first. A larger one means that another sidecar has bumped the tag since: nothing is left to do.
    first: Option<u64>,
    /// The version that this bump last tried to store. With two copies a version below it may be no bump but a copy
    /// that was updated.
    tried: Option<u64>,
    storing: Option<u64>,
    /// The tag's version just before `tried`.
    from: Option<u64>,
    rounds: u8,
}

/// How a bump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BumpEnd {
    /// The tag's version is this millisecond or a later one.
    Bumped(u64),
    /// It is unknown whether the version changed. The bump must not be acknowledged.
    Failed(Failure),
}

impl Bump {
    /// Begins a bump, and returns the first commands to send.
    pub fn start(inputs: &Inputs<'_>) -> (Bump, Commands) {
        let bump = Bump { first: None, tried: None, storing: None, from: None, rounds: 0 };
        (bump, get_copies(0, inputs.copies).collect())
    }

    /// The versions before and after this bump. `None` if another sidecar has bumped the tag, or if it was missing.
    pub fn step(&self) -> Option<(u64, u64)> {
        self.from.zip(self.tried).filter(|(from, to)| from < to)
    }

    fn read(&mut self, replies: &[ServerReply], inputs: &Inputs<'_>) -> Step<BumpEnd> {
        let found = match find_copies(0, inputs, &mut replies.iter()) {
            Ok(found) => found,
            Err(failure) => return Step::Done(BumpEnd::Failed(failure)),
        };
        // A server that is reachable but returns an error would keep the old version.
        let refusal = replies.iter().find_map(|reply| match reply {
            ServerReply::Failed(Failure::Down | Failure::TimedOut) if !needs_all(inputs) => None,
            ServerReply::Failed(failure) => Some(*failure),
            _ => None,
        });
        if let Some(failure) = refusal {
            return Step::Done(BumpEnd::Failed(failure));
        }
        let now = found.iter().map(|(_, version, _)| *version).max().flatten();
        let enough = if inputs.copies { self.tried } else { self.first.map(|first| first.saturating_add(1)) };
        let version = match (now, enough) {
            (Some(now), Some(enough)) if now >= enough => now,
            _ => match bumped_version(now, inputs) {
                Some(version) => version,
                None => return Step::Done(BumpEnd::Failed(Failure::Refused)),
            },
        };
        self.first = self.first.or(now);
        let outdated = found.iter().filter(|(_, stored, _)| *stored < Some(version));
        let commands: Commands =
            outdated.map(|(server, _, cas)| store_version(*server, 0, version, *cas, inputs)).collect();
        if commands.is_empty() {
            self.from = None;
            return Step::Done(BumpEnd::Bumped(version_millis(version)));
        }
        (self.storing, self.tried, self.from) = (Some(version), Some(version), now);
        Step::Send(commands)
    }
}

/// Whether a copy that does not answer prevents the bump. With failover it must: the other copy may be lost next, by a change of
/// its place, and this one would then be the tag.
fn needs_all(inputs: &Inputs<'_>) -> bool {
    !inputs.tag_fences.is_empty()
}

impl Machine for Bump {
    type End = BumpEnd;

    fn failed(failure: Failure) -> Option<BumpEnd> {
        Some(BumpEnd::Failed(failure))
    }

    fn bumped(end: &BumpEnd) -> bool {
        matches!(end, BumpEnd::Bumped(_))
    }

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<BumpEnd> {
        let replies = event.replies();
        self.rounds += 1;
        if self.rounds > 2 * MAX_ROUNDS {
            return Step::Done(BumpEnd::Failed(Failure::Overloaded));
        }
        let Some(version) = self.storing.take() else { return self.read(&replies, inputs) };
        let (mut stored, mut failure) = (false, None);
        for reply in &replies {
            match reply {
                ServerReply::Stored(_) => stored = true,
                ServerReply::Failed(failed @ (Failure::Down | Failure::TimedOut)) if !needs_all(inputs) => {
                    failure = Some(*failed)
                }
                ServerReply::Failed(failed) => return Step::Done(BumpEnd::Failed(*failed)),
                ServerReply::TooLarge => return Step::Done(BumpEnd::Failed(Failure::Refused)),
                _ => return Step::Send(get_copies(0, inputs.copies).collect()),
            }
        }
        Step::Done(match failure {
            Some(failure) if !stored => BumpEnd::Failed(failure),
            _ => BumpEnd::Bumped(version_millis(version)),
        })
    }
}

#[cfg(test)]
mod tests;
