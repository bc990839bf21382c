//! What version a tag has, and how it is made to grow.
//!
//! A version is the wall-clock millisecond at which the tag last moved, as ASCII decimal under the tag's key, and the number of
//! its *life*, which is drawn when it is created, in the item's flags. Versions compare by equality: a tag that was lost is created
//! anew with another number, and so counts as moved, and goes on counting so though a clock that is behind may one day move it to
//! a millisecond that it had before.
//!
//! Whoever looks for a tag that is not there leaves a stub, and creates it over that stub's CAS alone. A creation that is carried
//! out late, when the tag has been created, bumped and lost meanwhile, thus does nothing. Else it might bring back the very
//! number that a value was sealed with.
//!
//! With [`Inputs::copies`] two servers keep each. The larger version counts, whoever finds the other behind brings it up, and a
//! bump is acknowledged once all that can be reached have it: to lose one server invalidates nothing and resurrects nothing.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, GetFlags, Item, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Stored,
};
use super::{Event, Inputs, Machine, Step};

/// The versions of a rule's tags, in the rule's order.
pub type Versions = SmallVec<[u64; 4]>;

/// How often a decision that lost a race is tried again before the server is called overloaded.
pub(super) const MAX_ROUNDS: u8 = 16;

/// How long the stub of a tag lasts that nobody creates, in seconds: longer than any client waits for it.
const STUB_SECONDS: u32 = 30;

/// The bits of a version that are the millisecond; they last until the year 2527. Above them is the number of the life.
const MS_BITS: u32 = 44;

/// A version: this millisecond of this life.
pub fn version(ms: u64, life: u32) -> u64 {
    ms.min((1 << MS_BITS) - 1) | u64::from(life) << MS_BITS
}

/// The version that an item of a tag says; `None` if it says none.
pub fn version_of(item: &Item) -> Option<u64> {
    parse_version(&item.value).map(|ms| version(ms, item.flags))
}

/// The millisecond of a version: when the tag last moved.
pub fn version_millis(version: u64) -> u64 {
    version & ((1 << MS_BITS) - 1)
}

/// The number of the life.
pub fn incarnation_of(version: u64) -> u32 {
    (version >> MS_BITS) as u32
}

/// A tag is created at this moment. Of two copies, created by two, the larger counts: their lives must compare as the moments do.
fn born(scene: &Inputs<'_>) -> u64 {
    let lives = f64::from(1 << (u64::BITS - MS_BITS));
    let life = if scene.copies { 0 } else { (scene.chance * lives) as u32 };
    version(scene.now.wall, life)
}

/// The reading of all tags of one key, and the creation of those that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TagRead {
    seen: SmallVec<[FoundTag; 4]>,
    writing: bool,
    rounds: u8,
    /// What those created now are created with: the answer comes at a later moment than the question.
    creates: u64,
    /// One of them was missing everywhere: whatever was sealed before has outlived it.
    pub(super) lost: bool,
}

/// One tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct FoundTag {
    version: Option<u64>,
    /// Where it is missing or behind, and the CAS of what stands there in its place.
    holes: Vec<(TagServer, Cas)>,
}

/// One of the servers that keep a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TagServer {
    First,
    Copy,
}

impl TagServer {
    fn at(self, tag: u8) -> ItemRef {
        match self {
            TagServer::First => ItemRef::Tag(tag),
            TagServer::Copy => ItemRef::TagCopy(tag),
        }
    }

    /// Where tags are kept.
    fn all(copies: bool) -> &'static [TagServer] {
        if copies { &[TagServer::First, TagServer::Copy] } else { &[TagServer::First] }
    }
}

/// What stands on each side that answered.
type Found = SmallVec<[(TagServer, Option<u64>, Cas); 2]>;

/// Takes one answer for each side. Fails if no side answered.
fn find<'a>(copies: bool, answers: &mut impl Iterator<Item = &'a ServerReply>) -> Result<Found, Failure> {
    let mut found = Found::new();
    let mut failure = None;
    for side in TagServer::all(copies) {
        match answers.next() {
            Some(ServerReply::Item(item)) => {
                found.push((*side, version_of(item), item.cas));
            }
            Some(ServerReply::Failed(failed)) => failure = Some(*failed),
            // Not even room for a stub.
            Some(_) | None => failure = Some(Failure::Refused),
        }
    }
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

impl TagRead {
    pub(super) fn new(tags: usize) -> TagRead {
        TagRead {
            seen: SmallVec::from_elem(FoundTag::default(), tags),
            writing: false,
            rounds: 0,
            creates: 0,
            lost: false,
        }
    }

    /// For tags of which some versions are known already.
    pub(super) fn knowing(versions: impl Iterator<Item = Option<u64>>) -> TagRead {
        let seen = versions.map(|version| FoundTag { version, holes: Vec::new() }).collect();
        TagRead { seen, ..TagRead::new(0) }
    }

    /// Asks for what is not known yet: reads first, then creations and repairs, then reads of what somebody else created.
    pub(super) fn ask(&mut self, asks: &mut Commands, scene: &Inputs<'_>) {
        self.creates = born(scene);
        for (tag, seen) in (0..).zip(&self.seen) {
            if self.writing {
                let version = seen.version.unwrap_or(self.creates);
                asks.extend(seen.holes.iter().map(|(side, cas)| put(side.at(tag), version, *cas)));
            } else if seen.version.is_none() {
                asks.extend(TagServer::all(scene.copies).iter().map(|side| look(side.at(tag))));
            }
        }
    }

    /// Takes the answers to [`TagRead::ask`].
    pub(super) fn absorb(&mut self, answers: &[ServerReply], scene: &Inputs<'_>) -> Result<(), Failure> {
        let mut answers = answers.iter();
        for seen in &mut self.seen {
            if self.writing {
                let (mut stored, mut raced, mut failure) = (false, false, None);
                for (_, answer) in seen.holes.drain(..).zip(&mut answers) {
                    match answer {
                        ServerReply::Stored(_) => stored = true,
                        ServerReply::Failed(failed) => failure = Some(*failed),
                        ServerReply::TooLarge => failure = Some(Failure::Refused),
                        // Somebody else has written it.
                        _ => raced = true,
                    }
                }
                match failure {
                    Some(failure) if seen.version.is_none() && !stored && !raced => return Err(failure),
                    // What they wrote may be newer than what was read here: it is read anew.
                    _ if raced => seen.version = None,
                    _ if stored => seen.version = seen.version.or(Some(self.creates)),
                    _ => {}
                }
            } else if seen.version.is_none() {
                let found = find(scene.copies, &mut answers)?;
                seen.version = found.iter().filter_map(|(_, version, _)| *version).max();
                self.lost |= seen.version.is_none();
                let behind =
                    found.into_iter().filter(|(_, version, _)| version.is_none() || *version < seen.version);
                seen.holes = behind.map(|(side, _, cas)| (side, cas)).collect();
            }
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(Failure::Overloaded);
        }
        self.writing = !self.writing && self.seen.iter().any(|seen| !seen.holes.is_empty());
        Ok(())
    }

    /// The versions, once all are known and stand on every server that is there.
    pub(super) fn versions(&self) -> Option<Versions> {
        if self.writing { None } else { self.known() }
    }

    /// The versions, once all are known.
    pub(super) fn known(&self) -> Option<Versions> {
        self.seen.iter().map(|seen| seen.version).collect()
    }
}

/// A tag's millisecond as stored; `None` if it is not a number.
pub fn parse_version(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim_end().parse().ok()
}

/// What is asked about a tag, in order to go by its version: it is read, or a stub left where there is none.
pub fn tag_get_flags() -> GetFlags {
    GetFlags { value: true, vivify: Some(STUB_SECONDS), ..GetFlags::default() }
}

fn look(at: ItemRef) -> ServerCommand {
    ServerCommand { at, what: Operation::Get(tag_get_flags()) }
}

/// Writes a version over exactly what stands there.
fn put(at: ItemRef, version: u64, over: Cas) -> ServerCommand {
    let value = Stored::plain(Bytes::from(version_millis(version).to_string()));
    let flags = incarnation_of(version);
    ServerCommand {
        at,
        what: Operation::Store {
            mode: StoreMode::Set,
            value,
            flags,
            exptime: 0,
            cas: Some(over),
            explicit: None,
        },
    }
}

/// Making the tag `ItemRef::Tag(0)` grow, on every server that keeps it and can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bump {
    /// The version found first: where the tag is past it, somebody bumped after us and our work is done.
    first: Option<u64>,
    /// What we have tried to store: with copies, a version below it may be no bump, but a copy that was brought up.
    tried: Option<u64>,
    storing: Option<u64>,
    /// What the tag was just before that.
    from: Option<u64>,
    rounds: u8,
}

/// How a bump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BumpEnd {
    /// The tag moved at this millisecond, or later.
    Bumped(u64),
    /// Whether it grew is not known; it must not be acknowledged.
    Failed(Failure),
}

impl Bump {
    /// Begins.
    pub fn start(scene: &Inputs<'_>) -> (Bump, Commands) {
        let bump = Bump { first: None, tried: None, storing: None, from: None, rounds: 0 };
        (bump, look_at_all(scene))
    }

    /// From which version to which it has moved the tag, once it has; `None`: somebody else has, or there was none.
    pub fn step(&self) -> Option<(u64, u64)> {
        self.from.zip(self.tried).filter(|(from, to)| from < to)
    }

    fn read(&mut self, answers: &[ServerReply], scene: &Inputs<'_>) -> Step<BumpEnd> {
        let found = match find(scene.copies, &mut answers.iter()) {
            Ok(found) => found,
            Err(failure) => return Step::Done(BumpEnd::Failed(failure)),
        };
        // A server that is there but does not answer sensibly would keep the old version.
        let refusal = answers.iter().find_map(|answer| match answer {
            ServerReply::Failed(failure @ (Failure::Refused | Failure::Overloaded | Failure::Unguarded)) => {
                Some(*failure)
            }
            _ => None,
        });
        if let Some(failure) = refusal {
            return Step::Done(BumpEnd::Failed(failure));
        }
        let now = found.iter().map(|(_, version, _)| *version).max().flatten();
        let past = if scene.copies { self.tried } else { self.first.map(|first| first.saturating_add(1)) };
        let version = match (now, past) {
            (Some(now), Some(past)) if now >= past => now,
            (None, _) => born(scene),
            (Some(now), _) => version(scene.now.wall.max(version_millis(now) + 1), incarnation_of(now)),
        };
        self.first = self.first.or(now);
        let behind = found.iter().filter(|(_, there, _)| *there < Some(version));
        let asks: Commands = behind.map(|(side, _, cas)| put(side.at(0), version, *cas)).collect();
        if asks.is_empty() {
            self.from = None;
            return Step::Done(BumpEnd::Bumped(version_millis(version)));
        }
        (self.storing, self.tried, self.from) = (Some(version), Some(version), now);
        Step::Send(asks)
    }
}

impl Machine for Bump {
    type End = BumpEnd;

    fn bumped(end: &BumpEnd) -> bool {
        matches!(end, BumpEnd::Bumped(_))
    }

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<BumpEnd> {
        let answers = event.answers();
        self.rounds += 1;
        if self.rounds > 2 * MAX_ROUNDS {
            return Step::Done(BumpEnd::Failed(Failure::Overloaded));
        }
        let Some(version) = self.storing.take() else { return self.read(&answers, scene) };
        let (mut stored, mut failure) = (false, None);
        for answer in &answers {
            match answer {
                ServerReply::Stored(_) => stored = true,
                ServerReply::Failed(failed @ (Failure::Down | Failure::TimedOut)) => failure = Some(*failed),
                ServerReply::Failed(failed) => return Step::Done(BumpEnd::Failed(*failed)),
                ServerReply::TooLarge => return Step::Done(BumpEnd::Failed(Failure::Refused)),
                _ => return Step::Send(look_at_all(scene)),
            }
        }
        Step::Done(match failure {
            Some(failure) if !stored => BumpEnd::Failed(failure),
            _ => BumpEnd::Bumped(version_millis(version)),
        })
    }
}

fn look_at_all(scene: &Inputs<'_>) -> Commands {
    TagServer::all(scene.copies).iter().map(|side| look(side.at(0))).collect()
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::guard::{Item, Now, Policy, Usage};

    fn on<T>(wall: u64, copies: bool, run: impl FnOnce(&Inputs<'_>) -> T) -> T {
        let now = Now { wall, mono: 0 };
        let policy = Policy::default();
        let (tags, sidecar, room, patient, chance) = (&[][..], 1, 1 << 20, false, 1.0);
        run(&Inputs { policy: &policy, tags, learnt: 0, sidecar, room, copies, now, patient, chance })
    }

    fn item(version: &'static str, number: u64) -> ServerReply {
        let value = Bytes::from_static(version.as_bytes());
        let (size, cas) = (value.len(), Cas { number, epoch: 1 });
        let usage = Usage::default();
        ServerReply::Item(Item { value, size, flags: 0, cas, ttl: None, won: false, stale: false, usage })
    }

    fn seen(number: u64) -> Cas {
        Cas { number, epoch: 1 }
    }

    const CAS: Cas = Cas { number: 1, epoch: 1 };
    const DOWN: ServerReply = ServerReply::Failed(Failure::Down);

    /// Gathers one tag: for each round, what is asked, and what is then answered.
    fn gather(copies: bool, rounds: &[(&[ServerCommand], &[ServerReply])]) -> Result<TagRead, Failure> {
        let mut gather = TagRead::new(1);
        for (wall, (asked, answered)) in (100..).zip(rounds) {
            let mut asks = Commands::new();
            on(wall, copies, |scene| gather.ask(&mut asks, scene));
            assert_eq!(&asks[..], *asked);
            on(wall, copies, |scene| gather.absorb(answered, scene))?;
        }
        Ok(gather)
    }

    const fn tag() -> ItemRef {
        ItemRef::Tag(0)
    }

    #[test]
    fn a_tag_that_was_lost_never_has_a_version_again_that_it_had_though_a_clock_is_behind() {
        let at = |wall, chance, copies, run: &mut dyn FnMut(&Inputs<'_>) -> Commands| {
            on(wall, copies, |scene| run(&Inputs { chance, ..*scene }))
        };
        let bumped = |wall, chance, copies, stands: Item| {
            let asks = at(wall, chance, copies, &mut |scene| {
                let (mut bump, _) = Bump::start(scene);
                let answers =
                    TagServer::all(copies).iter().map(|_| ServerReply::Item(stands.clone())).collect();
                let Step::Send(asks) = bump.resume(Event::Replies(answers), scene) else {
                    panic!("it stores")
                };
                asks
            });
            let Operation::Store { value, flags, .. } = &asks[0].what else { panic!("{asks:?}") };
            let ServerReply::Item(item) = item("", 9) else { unreachable!() };
            Item { value: value.body.clone(), flags: *flags, ..item }
        };
        let ServerReply::Item(nothing) = item("", 1) else { unreachable!() };
        for (copies, lives) in [(false, true), (true, false)] {
            let first = bumped(2_000, 0.3, copies, nothing.clone());
            let moved = bumped(2_500, 0.9, copies, first.clone());
            assert_eq!((&moved.value[..], moved.flags, moved.flags > 0), (&b"2500"[..], first.flags, lives));
            // Lost, created by a clock that is behind, and moved to the same millisecond.
            let again = bumped(2_500, 0.1, copies, bumped(1_000, 0.7, copies, nothing.clone()));
            assert_eq!(again.value, moved.value);
            assert_eq!(version_of(&again) != version_of(&moved), lives);
            assert_eq!(version_of(&again).map(version_millis), Some(2_500));
        }
        let versions = [version(5, u32::MAX), version(u64::MAX, 0)];
        assert_eq!(versions.map(version_millis), [5, (1 << MS_BITS) - 1]);
        assert_eq!(versions.map(incarnation_of), [(1 << 20) - 1, 0]);
    }

    #[test]
    fn a_tag_has_the_version_that_was_stored_and_not_the_moment_of_the_answer() {
        let rounds: &[(&[ServerCommand], &[ServerReply])] =
            &[(&[look(tag())], &[item("", 7)]), (&[put(tag(), 101, seen(7))], &[ServerReply::Stored(CAS)])];
        let gathered = gather(false, rounds).unwrap();
        assert_eq!(gathered.versions().unwrap()[..], [101]);
        assert!(gathered.lost);
    }

    #[test]
    fn of_two_copies_the_larger_counts_and_the_other_is_brought_up() {
        let reads = &[look(tag()), look(ItemRef::TagCopy(0))];
        for (answers, repair) in [
            ([item("50", 7), item("60", 8)], Some(put(tag(), 60, seen(7)))),
            ([item("60", 8), item("50", 7)], Some(put(ItemRef::TagCopy(0), 60, seen(7)))),
            ([item("", 7), item("60", 8)], Some(put(tag(), 60, seen(7)))),
            ([item("60", 8), item("x", 7)], Some(put(ItemRef::TagCopy(0), 60, seen(7)))),
            ([item("60", 8), item("60", 7)], None),
            ([DOWN, item("60", 7)], None),
            ([item("60", 7), DOWN], None),
        ] {
            let gathered = gather(true, &[(reads, &answers)]).unwrap();
            assert_eq!(gathered.known().unwrap()[..], [60]);
            assert!(!gathered.lost);
            assert_eq!(gathered.versions().is_none(), repair.is_some());
            if let Some(repair) = repair {
                for answer in [ServerReply::Stored(CAS), DOWN] {
                    let repaired =
                        gather(true, &[(reads, &answers), (std::slice::from_ref(&repair), &[answer])])
                            .unwrap();
                    assert_eq!(repaired.versions().unwrap()[..], [60]);
                }
                // Somebody was quicker, and may have written more than that.
                let repaired = (std::slice::from_ref(&repair), &[ServerReply::Exists][..]);
                assert!(gather(true, &[(reads, &answers), repaired]).unwrap().known().is_none());
                let newer = [item("70", 9), item("70", 10)];
                let again = gather(true, &[(reads, &answers), repaired, (reads, &newer)]).unwrap();
                assert_eq!(again.versions().unwrap()[..], [70]);
            }
        }
        assert_eq!(gather(true, &[(reads, &[DOWN, DOWN])]).unwrap_err(), Failure::Down);
    }

    #[test]
    fn a_tag_that_no_reachable_server_has_is_lost_and_created_on_all_of_them() {
        let reads = &[look(tag()), look(ItemRef::TagCopy(0))];
        let both = [put(tag(), 101, seen(3)), put(ItemRef::TagCopy(0), 101, seen(4))];
        let missing = &[item("", 3), item("", 4)];
        let created =
            gather(true, &[(reads, missing), (&both, &[ServerReply::Stored(CAS), ServerReply::Stored(CAS)])]);
        let created = created.unwrap();
        assert!(created.lost && created.versions().unwrap()[..] == [101]);
        let raced = gather(
            true,
            &[
                (reads, missing),
                (&both, &[ServerReply::Stored(CAS), ServerReply::Exists]),
                (reads, &[item("101", 2), item("99", 7)]),
                (&[put(ItemRef::TagCopy(0), 101, seen(7))], &[ServerReply::Stored(CAS)]),
            ],
        );
        assert_eq!(raced.unwrap().versions().unwrap()[..], [101]);
        let alone = gather(true, &[(reads, &[item("", 3), DOWN]), (&both[..1], &[ServerReply::Stored(CAS)])]);
        assert!(alone.unwrap().lost);
    }

    fn bump(rounds: &[(&[ServerCommand], &[ServerReply])]) -> Option<BumpEnd> {
        let (mut bump, mut asks) = on(100, true, Bump::start);
        for (wall, (asked, answered)) in (100..).zip(rounds) {
            assert_eq!(&asks[..], *asked);
            let answers = Event::Replies(answered.iter().cloned().collect());
            match on(wall, true, |scene| bump.resume(answers, scene)) {
                Step::Send(more) => asks = more,
                Step::Done(end) => return Some(end),
                Step::AddTags(_) | Step::Wait(_) => panic!("a bump neither learns nor waits"),
            }
        }
        None
    }

    #[test]
    fn a_bump_is_done_once_every_copy_that_can_be_reached_has_it() {
        let reads: &[ServerCommand] = &[look(tag()), look(ItemRef::TagCopy(0))];
        let found: &[ServerReply] = &[item("50", 7), item("70", 8)];
        let both: &[ServerCommand] = &[put(tag(), 100, seen(7)), put(ItemRef::TagCopy(0), 100, seen(8))];
        let stored = || ServerReply::Stored(CAS);
        assert_eq!(bump(&[(reads, found), (both, &[stored(), stored()])]), Some(BumpEnd::Bumped(100)));
        assert_eq!(bump(&[(reads, found), (both, &[DOWN, stored()])]), Some(BumpEnd::Bumped(100)));
        assert_eq!(bump(&[(reads, found), (both, &[DOWN, DOWN])]), Some(BumpEnd::Failed(Failure::Down)));
        let refused = ServerReply::Failed(Failure::Refused);
        let failed = Some(BumpEnd::Failed(Failure::Refused));
        assert_eq!(bump(&[(reads, found), (both, &[stored(), refused.clone()])]), failed);
        assert_eq!(bump(&[(reads, &[item("50", 7), refused])]), failed);
        let one: &[ServerCommand] = &[put(tag(), 100, seen(7))];
        assert_eq!(bump(&[(reads, &[item("50", 7), DOWN]), (one, &[stored()])]), Some(BumpEnd::Bumped(100)));
        // Somebody has bumped behind us, but only one copy knows it yet.
        let again: &[ServerReply] = &[item("120", 9), item("70", 8)];
        let rest: &[ServerCommand] = &[put(ItemRef::TagCopy(0), 120, seen(8))];
        let end = bump(&[
            (reads, found),
            (both, &[ServerReply::Exists, ServerReply::Exists]),
            (reads, again),
            (rest, &[stored()]),
        ]);
        assert_eq!(end, Some(BumpEnd::Bumped(120)));
        // A reader has brought up the copy that was behind: that is no bump.
        let repaired: &[ServerReply] = &[item("70", 9), item("70", 8)];
        let anew: &[ServerCommand] = &[put(tag(), 102, seen(9)), put(ItemRef::TagCopy(0), 102, seen(8))];
        let end = bump(&[
            (reads, found),
            (both, &[ServerReply::Exists, ServerReply::Exists]),
            (reads, repaired),
            (anew, &[stored(), stored()]),
        ]);
        assert_eq!(end, Some(BumpEnd::Bumped(102)));
        let there: &[ServerReply] = &[item("120", 9), item("120", 8)];
        let end =
            bump(&[(reads, found), (both, &[ServerReply::Exists, ServerReply::Exists]), (reads, there)]);
        assert_eq!(end, Some(BumpEnd::Bumped(120)));
    }

    #[test]
    fn a_bump_that_others_keep_overtaking_is_not_acknowledged() {
        // Each time somebody has written what moves nothing: between the reading and the storing, with another CAS.
        let (mut bump, mut asks) = on(100, false, Bump::start);
        for round in 0..2 * u64::from(MAX_ROUNDS) {
            let reads = round % 2 == 0;
            assert!(
                matches!(
                    (&asks[0].what, reads),
                    (Operation::Get(_), true) | (Operation::Store { .. }, false)
                ),
                "{asks:?}"
            );
            let answer = if reads { item("50", 7 + round) } else { ServerReply::Exists };
            let step = on(100, false, |scene| bump.resume(Event::Replies(smallvec![answer]), scene));
            let Step::Send(more) = step else { panic!("round {round}: {step:?}") };
            asks = more;
        }
        let answer = Event::Replies(smallvec![item("50", 99)]);
        let end = on(100, false, |scene| bump.resume(answer, scene));
        assert_eq!(end, Step::Done(BumpEnd::Failed(Failure::Overloaded)));
    }
}
