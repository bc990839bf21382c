//! What version a tag has, and how it is made to grow.
//!
//! A version is the wall-clock millisecond at which the tag last moved, as ASCII decimal under the tag's key. Versions
//! compare by equality: a tag that was lost is created anew with another number, and so counts as moved.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Failure;

use super::ask::{Answer, Ask, Asks, At, Cas, Mode, Now, Stored, What, get};
use super::{Event, Machine, Scene, Step};

/// The versions of a rule's tags, in the rule's order.
pub type Versions = SmallVec<[u64; 4]>;

/// How often a decision that lost a race is tried again before the server is called overloaded.
pub(super) const MAX_ROUNDS: u8 = 16;

/// The reading of all tags of one key, and the creation of those that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Gather {
    seen: SmallVec<[Seen; 4]>,
    creating: bool,
    rounds: u8,
    /// What those created now are created with: the answer comes at a later moment than the question.
    creates: u64,
    /// One of them was missing: whatever was sealed before has outlived it.
    pub(super) lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Seen {
    Version(u64),
    /// Not there, or not a number (then with the CAS under which it is to be replaced).
    Missing(Option<Cas>),
}

impl Gather {
    pub(super) fn new(tags: usize) -> Gather {
        Gather {
            seen: SmallVec::from_elem(Seen::Missing(None), tags),
            creating: false,
            rounds: 0,
            creates: 0,
            lost: false,
        }
    }

    /// Asks for what is not known yet: reads first, then creations, then reads of what somebody else created.
    pub(super) fn ask(&mut self, asks: &mut Asks, now: Now) {
        self.creates = now.wall;
        for (at, seen) in self.missing() {
            asks.push(match (self.creating, seen) {
                (false, _) => get(at),
                (true, None) => store(at, Mode::Add, now.wall, None),
                (true, cas) => store(at, Mode::Set, now.wall, cas),
            });
        }
    }

    /// Takes the answers to [`Gather::ask`].
    pub(super) fn absorb(&mut self, answers: &[Answer]) -> Result<(), Failure> {
        let mut answers = answers.iter();
        for seen in self.seen.iter_mut().filter(|seen| matches!(seen, Seen::Missing(_))) {
            *seen = match answers.next() {
                Some(Answer::Item(item)) => match parse(&item.value) {
                    Some(version) => Seen::Version(version),
                    None => Seen::Missing(Some(item.cas)),
                },
                Some(Answer::Stored(_)) => Seen::Version(self.creates),
                Some(Answer::Failed(failure)) => return Err(*failure),
                Some(Answer::TooLarge) | None => return Err(Failure::Refused),
                Some(_) => Seen::Missing(None),
            };
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(Failure::Overloaded);
        }
        let missing = self.missing().next().is_some();
        self.lost |= missing && !self.creating;
        self.creating = missing && !self.creating;
        Ok(())
    }

    fn missing(&self) -> impl Iterator<Item = (At, Option<Cas>)> {
        self.seen.iter().zip(0..).filter_map(|(seen, index)| match seen {
            Seen::Version(_) => None,
            Seen::Missing(cas) => Some((At::Tag(index), *cas)),
        })
    }

    /// The versions, once all are known.
    pub(super) fn versions(&self) -> Option<Versions> {
        self.seen
            .iter()
            .map(|seen| match seen {
                Seen::Version(version) => Some(*version),
                Seen::Missing(_) => None,
            })
            .collect()
    }
}

/// A tag's version as stored; `None` if it is not a number.
fn parse(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}

fn store(at: At, mode: Mode, version: u64, cas: Option<Cas>) -> Ask {
    let value = Stored::plain(Bytes::from(version.to_string()));
    Ask { at, what: What::Store { mode, value, flags: 0, exptime: 0, cas, explicit: None } }
}

/// Making the tag `At::Tag(0)` grow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bump {
    /// The version found first: once the tag is past it, somebody bumped after us and our work is done.
    first: Option<u64>,
    storing: Option<u64>,
    rounds: u8,
}

/// How a bump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BumpEnd {
    /// The tag has this version now, or a later one.
    Bumped(u64),
    /// Whether it grew is not known; it must not be acknowledged.
    Failed(Failure),
}

impl Bump {
    /// Begins.
    pub fn start() -> (Bump, Asks) {
        let bump = Bump { first: None, storing: None, rounds: 0 };
        (bump, Asks::from_iter([get(At::Tag(0))]))
    }
}

impl Machine for Bump {
    type End = BumpEnd;

    fn resume(&mut self, event: Event, scene: &Scene<'_>) -> Step<BumpEnd> {
        let (answers, now) = (event.answers(), scene.now);
        let Some(answer) = answers.into_iter().next() else {
            return Step::Done(BumpEnd::Failed(Failure::Refused));
        };
        self.rounds += 1;
        if self.rounds > 2 * MAX_ROUNDS {
            return Step::Done(BumpEnd::Failed(Failure::Overloaded));
        }
        let (mode, version, cas) = match (self.storing.take(), answer) {
            (_, Answer::Failed(failure)) => return Step::Done(BumpEnd::Failed(failure)),
            (_, Answer::TooLarge) => return Step::Done(BumpEnd::Failed(Failure::Refused)),
            (Some(version), Answer::Stored(_)) => return Step::Done(BumpEnd::Bumped(version)),
            (Some(_), _) => return Step::Ask(Asks::from_iter([get(At::Tag(0))])),
            (None, Answer::Item(item)) => {
                let version = parse(&item.value).unwrap_or(0);
                match self.first {
                    Some(first) if version > first => return Step::Done(BumpEnd::Bumped(version)),
                    _ => self.first = Some(version),
                }
                (Mode::Set, now.wall.max(version.saturating_add(1)), Some(item.cas))
            }
            (None, _) => (Mode::Add, now.wall, None),
        };
        self.storing = Some(version);
        Step::Ask(Asks::from_iter([store(At::Tag(0), mode, version, cas)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_the_version_that_was_stored_and_not_the_moment_of_the_answer() {
        let at = |wall| Now { wall, mono: 0 };
        let mut gather = Gather::new(1);
        let mut asks = Asks::new();
        gather.ask(&mut asks, at(100));
        gather.absorb(&[Answer::Absent]).unwrap();
        let mut asks = Asks::new();
        gather.ask(&mut asks, at(107));
        assert_eq!(asks[0], store(At::Tag(0), Mode::Add, 107, None));
        gather.absorb(&[Answer::Stored(Cas { number: 1, epoch: 1 })]).unwrap();
        assert_eq!(gather.versions().unwrap()[..], [107]);
        assert!(gather.lost);
    }
}
