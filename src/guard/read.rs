//! Reads a guarded key: a fresh value, a stale one, the right to rebuild, or a miss.
//!
//! ```text
//!  Reading ──fresh──────────────────────────────▶ Fresh
//!     │ stub, won ──────────────────────────────▶ Won (cold)
//!     │ free stub ──▶ Adopting ──stored───────────▶ Won (cold)
//!     │ stub, not won ──▶ Waiting ──woken, let through──▶ Reading
//!     │ stale             ▲    └──timeout──▶ stale value, or Missed
//!     ▼                   │ lock held
//!  Claiming ──────────────┘
//!     │ lock acquired, value unchanged ──▶ Marking ──▶ Won (stale)
//!     │ lock acquired, value changed ──▶ unlock, Reading
//!     └ lock held by nobody, or for a rebuild with outdated versions ──▶ TakingOver ──▶ Marking
//! ```
//!
//! A read without a value to serve that waits for a builder which has had `cold_wait` may be let through: it takes the stub
//! or the lock over by its CAS, so that in the fleet only one does. The first builder keeps its miss token, so its fill is
//! stored too (decision 0012).
//!
//! Marking gives the stale value a CAS that belongs to this win alone. A previous winner that has lost the lock since can
//! no longer store its fill and cannot be mistaken for this winner. A value that may not be served (its tag has changed
//! and the rule has `on_tag = "drop"`) is replaced by a placeholder instead: an envelope without a value, out of date from
//! the start.

use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode,
    delete, get, peek,
};
use super::envelope::{Header, Opened};
use super::expiry::sure_ms;
use super::freshness::{
    Hit, ItemState, is_newer_than, is_out_of_date, judge_after, refreshes_early, unknown_tags,
};
use super::inputs::Inputs;
use super::leases::{MissToken, Unread};
use super::machine::{Event, Machine, Step};
use super::policy::{OnInvalidate, Policy};
use super::retry::MAX_ROUNDS;
use super::stub::{Stub, StubId, stub_in_place, turn_in_place};
use super::tag_version::Versions;
use super::tags::TagRead;
use claim::{BuildId, Claim, Fallback, build_of, placeholder, take_lock};
use watched::{WatchedBuild, wait_limits};

mod claim;
mod outcome;
mod watched;

pub(super) use claim::{holds_nobody, is_outdated};
pub use outcome::{ReadEnd, ReadOptions};
pub(super) use watched::lost_ms;

/// A read of one guarded key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    options: ReadOptions,
    state: State,
    /// When the request began, on the monotonic clock in ms. All its waits together are limited from here.
    began: u64,
    rounds: u8,
    /// The build that it waits for.
    watched: Option<WatchedBuild>,
    /// Whether it may take that build over.
    let_through: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Reading the key and its tags. The first `skip` replies belong to other commands.
    Reading {
        skip: u8,
    },
    /// The item has tags that its rule does not name. They are read first.
    AddingTags {
        item: Item,
    },
    /// Some tags were missing and are being created before the item is judged.
    ReadingTags {
        item: Item,
        tag_read: Box<TagRead>,
    },
    /// The stub is free because its builder has given up: it is stored again.
    Adopting(MissToken),
    Claiming(Claim),
    TakingOver(Claim),
    /// This read holds the lock. The value is marked stale so that no other winner's fill can be stored over
    /// it.
    Marking {
        claim: Claim,
        lock: Cas,
    },
    /// The value would expire during the rebuild and let a second one begin: it is replaced by a stub.
    ReplacingWithStub(Claim),
    Waiting(Fallback),
}

impl Read {
    /// Begins a read, and returns the first commands to send.
    pub fn start(inputs: &Inputs<'_>) -> (Read, Commands) {
        Read::with_options(ReadOptions::default(), inputs)
    }

    /// Begins a read with options.
    pub fn with_options(options: ReadOptions, inputs: &Inputs<'_>) -> (Read, Commands) {
        let mut commands = Commands::new();
        let read = Read::after_first_get(options, options.began.unwrap_or(inputs.now.mono));
        read.push_all_commands(&mut commands, inputs);
        (read, commands)
    }

    /// A read whose first round trip has been made without it: [`Read::first_get`] and a get of every tag. It must
    /// be resumed with the replies. `began`: when the commands were sent, on the monotonic clock in ms.
    pub fn after_first_get(options: ReadOptions, began: u64) -> Read {
        let state = State::Reading { skip: 0 };
        Read { options, state, began, rounds: 0, watched: None, let_through: false }
    }

    /// The flags of the first get of the item.
    pub fn first_get(options: ReadOptions, policy: &Policy) -> GetFlags {
        let ReadOptions { usage, unseen, .. } = options;
        GetFlags { value: true, usage, unseen, vivify: Some(policy.lock_seconds()), touch: None }
    }

    fn push_all_commands(&self, commands: &mut Commands, inputs: &Inputs<'_>) {
        commands.push(ServerCommand {
            item: ItemRef::Value,
            operation: Operation::Get(Read::first_get(self.options, inputs.policy)),
        });
        TagRead::new(inputs.tags.len()).push_commands(commands, inputs);
    }

    fn read(&mut self, skip: u8, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let mut replies = replies.into_iter().skip(usize::from(skip));
        let item = match replies.next() {
            Some(ServerReply::Item(item)) => item,
            Some(ServerReply::Failed(failure)) => return Step::Done(ReadEnd::Failed(failure)),
            // The server has no memory even for a stub.
            _ => return Step::Done(ReadEnd::unread(Unread::Item(Failure::NoMemory), inputs)),
        };
        let unknown = unknown_tags(&item, inputs);
        // Tags are addressed by an 8-bit number. This can only happen to a key whose values keep changing
        // their tags.
        if inputs.tags.len() + unknown.len() > usize::from(u8::MAX) {
            let seen = MissToken::new(Some(item.cas), Versions::new(), inputs);
            return Step::Done(ReadEnd::Missed { seen, held: false });
        }
        if !unknown.is_empty() {
            self.state = State::AddingTags { item };
            return Step::AddTags(unknown);
        }
        let tags: Replies = replies.collect();
        self.tags_read(item, Box::new(TagRead::new(inputs.tags.len())), &tags, true, inputs)
    }

    fn request_tags(&mut self, item: Item, mut tag_read: Box<TagRead>, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let mut commands = Commands::new();
        tag_read.push_commands(&mut commands, inputs);
        self.state = State::ReadingTags { item, tag_read };
        Step::Send(commands)
    }

    /// `together`: the tags were read in one round trip with the item.
    fn tags_read(
        &mut self,
        item: Item,
        mut tag_read: Box<TagRead>,
        replies: &[ServerReply],
        together: bool,
        inputs: &Inputs<'_>,
    ) -> Step<ReadEnd> {
        match tag_read.absorb(replies, inputs) {
            Err(failure) => self.judge(item, Err(failure), false, inputs),
            Ok(()) => match tag_read.versions() {
                Some(versions) if together && is_newer_than(&item, &versions, inputs) => {
                    self.request_tags(item, Box::new(TagRead::new(inputs.tags.len())), inputs)
                }
                Some(versions) => self.judge(item, Ok(versions), tag_read.lost, inputs),
                None => self.request_tags(item, tag_read, inputs),
            },
        }
    }

    /// `versions` is an error if a tag could not be read. Then nothing is fresh, and nothing may be rebuilt,
    /// because the result could not be sealed.
    fn judge(
        &mut self,
        item: Item,
        versions: Result<Versions, Failure>,
        lost: bool,
        inputs: &Inputs<'_>,
    ) -> Step<ReadEnd> {
        let item_state = judge_after(lost, &item, versions.as_ref().ok(), inputs);
        let versions = match versions {
            Ok(versions) => versions,
            Err(failure) => {
                return Step::Done(match item_state {
                    ItemState::Stale(hit) | ItemState::Fresh(hit) => ReadEnd::Stale(hit),
                    ItemState::Unservable | ItemState::Stub(_) => {
                        ReadEnd::unread(Unread::Tag(failure), inputs)
                    }
                });
            }
        };
        let fallback = match item_state {
            ItemState::Stub(stub) => {
                let seen = MissToken::of_stub(item.cas, (stub.id, stub.turn), versions, inputs);
                return match stub.is_free {
                    true => self.adopt(seen, stub, inputs),
                    false if item.won => Step::Done(ReadEnd::Won { lease: seen, early: false, old: None }),
                    false => {
                        let age = stub.age + lost_ms(&item, inputs);
                        let (build, stored) =
                            (BuildId::Stub(stub.id, stub.turn), (item.cas.number, stub.age));
                        match self.may_take_over(build, age, stored, inputs) {
                            true => self.adopt(seen, stub, inputs),
                            false => self.wait_or_fall_back(Fallback::Miss(seen), None, inputs),
                        }
                    }
                };
            }
            ItemState::Fresh(hit) if self.wants_recache(&hit) || refreshes_early(&hit, inputs) => {
                Fallback::Fresh(hit)
            }
            ItemState::Fresh(hit) => return Step::Done(ReadEnd::Fresh(hit)),
            ItemState::Stale(hit) => Fallback::Stale(hit),
            ItemState::Unservable => {
                let stub = match Header::open(&item.value) {
                    Opened::Sealed { envelope, .. } if is_out_of_date(&envelope, &versions, inputs) => {
                        StubId::of_unservable(&item)
                    }
                    _ => None,
                };
                Fallback::Miss(MissToken { stub, ..MissToken::new(Some(item.cas), versions.clone(), inputs) })
            }
        };
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(fallback.end());
        }
        let origin = StubId::of_item(&item);
        let claim = Claim { observed_cas: item.cas, origin, marked: None, ttl: item.ttl, versions, fallback };
        let commands = smallvec![
            take_lock(StoreMode::Add, None, &claim.versions, inputs),
            // This get follows the lock, so it sees the value that the lock protects.
            peek(ItemRef::Value),
            get(ItemRef::Lock),
        ];
        self.state = State::Claiming(claim);
        Step::Send(commands)
    }

    /// Takes a stub that is free, or whose builder has had `cold_wait`. The store is conditional: only one of all
    /// readers succeeds.
    fn adopt(&mut self, seen: MissToken, stub: Stub, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(Fallback::Miss(seen).end());
        }
        let taken = stub.taken();
        let command = taken.store_command(seen.observed_cas, inputs.policy.lock_seconds());
        self.state = State::Adopting(MissToken { turn: taken.turn, ..seen });
        Step::Send(smallvec![command])
    }

    fn adopted(&mut self, seen: MissToken, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        match replies.into_iter().next() {
            Some(ServerReply::Stored(cas)) => {
                let lease = MissToken { observed_cas: Some(cas), ..seen };
                Step::Done(ReadEnd::Won { lease, early: false, old: None })
            }
            failed @ (Some(ServerReply::Failed(_)) | None) => Fallback::Miss(seen).without_answer(failed),
            Some(_) => self.restart(Commands::new(), inputs),
        }
    }

    fn claimed(&mut self, claim: Claim, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let mut replies = replies.into_iter();
        match (replies.next(), replies.next()) {
            (Some(ServerReply::Stored(lock)), Some(ServerReply::Item(item)))
                if item.cas == claim.observed_cas =>
            {
                match claim.fallback {
                    // All winners of a fresh value saw the same versions, so their fills are equivalent.
                    Fallback::Fresh(_) => self.won(claim, lock, item.ttl, inputs),
                    // The stub that replaces the value has a CAS of its own.
                    _ if item.ttl.map(sure_ms) == Some(0) => self.won(claim, lock, item.ttl, inputs),
                    _ => self.mark(claim, lock, inputs),
                }
            }
            // The value was filled or deleted between the read and the lock.
            (Some(ServerReply::Stored(lock)), _) => {
                self.restart(smallvec![delete(ItemRef::Lock, Some(lock))], inputs)
            }
            (failed @ (Some(ServerReply::Failed(_)) | None), _) => claim.fallback.without_answer(failed),
            (Some(_), _) => match replies.next() {
                Some(ServerReply::Item(lock))
                    if holds_nobody(&lock, inputs) || is_outdated(&lock, &claim.versions, inputs) =>
                {
                    self.take_over(claim, lock.cas, inputs)
                }
                Some(ServerReply::Item(lock))
                    if claim.leaves_earlier_fills(inputs)
                        && build_of(&lock)
                            .is_some_and(|build| self.may_take_over(build, 0, (0, 0), inputs)) =>
                {
                    self.take_over(claim, lock.cas, inputs)
                }
                _ => self.wait_or_fall_back(claim.fallback, claim.ttl, inputs),
            },
        }
    }

    fn won(&mut self, claim: Claim, lock: Cas, ttl: Option<u32>, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let remaining_ms = ttl.map(sure_ms);
        if remaining_ms == Some(0) {
            let stub = stub_in_place(claim.fallback.stub(), Some(claim.observed_cas), inputs.policy);
            self.state = State::ReplacingWithStub(claim);
            return Step::Send(smallvec![stub, delete(ItemRef::Lock, Some(lock))]);
        }
        let stub = claim.fallback.stub();
        let (early, old) = claim.fallback.old();
        Step::Done(ReadEnd::Won {
            early,
            old,
            lease: MissToken {
                lock: Some(lock),
                stub,
                origin: Some(claim.origin),
                marked: claim.marked,
                expires_at: remaining_ms.map(|remaining| inputs.now.mono + remaining),
                ..MissToken::new(Some(claim.observed_cas), claim.versions, inputs)
            },
        })
    }

    fn replaced_with_stub(&mut self, claim: Claim, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        match replies.into_iter().next() {
            Some(ServerReply::Stored(observed_cas)) => {
                let turn = turn_in_place(claim.fallback.stub());
                let stub = claim.fallback.stub().unwrap_or(StubId::of(observed_cas.number));
                let (early, old) = claim.fallback.old();
                let lease = MissToken::of_stub(observed_cas, (stub, turn), claim.versions, inputs);
                Step::Done(ReadEnd::Won { lease, early, old })
            }
            failed @ (Some(ServerReply::Failed(_)) | None) => claim.fallback.without_answer(failed),
            Some(_) => self.restart(Commands::new(), inputs),
        }
    }

    /// Stores the lock over its CAS. It holds nobody, or its holder has had `cold_wait`, or builds with outdated versions or
    /// under another fence: then its value will be stale at once, so waiting for it is pointless.
    fn take_over(&mut self, claim: Claim, lock: Cas, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let command = take_lock(StoreMode::Set, Some(lock), &claim.versions, inputs);
        self.state = State::TakingOver(claim);
        Step::Send(smallvec![command])
    }

    fn taken_over(&mut self, claim: Claim, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        match replies.into_iter().next() {
            Some(ServerReply::Stored(lock)) => self.mark(claim, lock, inputs),
            failed @ (Some(ServerReply::Failed(_)) | None) => claim.fallback.without_answer(failed),
            // Another read took it over first, or it was released.
            Some(_) => self.restart(Commands::new(), inputs),
        }
    }

    /// Makes the fill of a previous winner fail by changing the CAS that it requires: it would undo this
    /// rebuild. This must not happen before this read holds the lock. If the previous holder has released it,
    /// the mark would hit the next winner, whose rebuild is valid.
    ///
    /// A value that may not be served is replaced by a placeholder that is out of date from the start and has
    /// the same stub identity. This shows other readers that the key has not been deleted, which a mark would
    /// not.
    fn mark(&mut self, claim: Claim, lock: Cas, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let drops = inputs.policy.on_tag == OnInvalidate::Drop;
        let stub = claim.fallback.stub().filter(|_| drops);
        let placeholder = stub.and_then(|stub| placeholder(stub, &claim, inputs));
        let stale = Operation::MarkStale { seconds: None, cas: Some(claim.observed_cas), explicit: None };
        let mark = placeholder.unwrap_or(stale);
        self.state = State::Marking { claim, lock };
        Step::Send(smallvec![
            ServerCommand { item: ItemRef::Value, operation: mark },
            peek(ItemRef::Value),
            peek(ItemRef::Lock)
        ])
    }

    fn marked(&mut self, claim: Claim, lock: Cas, replies: Replies, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let mut replies = replies.into_iter();
        let (marked, current, held_lock) = (replies.next(), replies.next(), replies.next());
        let is_ours = matches!(held_lock, Some(ServerReply::Item(held)) if held.cas == lock);
        // A value that was marked in between has another identity.
        let may_mark_again = claim.fallback.stub().is_none();
        match (marked, current) {
            // Still marked, so it has not been filled since.
            (Some(ServerReply::Done), Some(ServerReply::Item(item))) if item.stale && is_ours => {
                let (origin, marked) = (StubId::of(item.cas.number), Some(claim.origin));
                self.won(Claim { observed_cas: item.cas, origin, marked, ..claim }, lock, item.ttl, inputs)
            }
            (Some(ServerReply::Stored(cas)), Some(ServerReply::Item(item))) if item.cas == cas && is_ours => {
                self.won(Claim { observed_cas: cas, ..claim }, lock, item.ttl, inputs)
            }
            (failed @ (Some(ServerReply::Failed(_)) | None), _) => claim.fallback.without_answer(failed),
            // A previous or later holder of the lock has marked the value and relies on that CAS. If this
            // read still holds the lock, it must change the CAS once more; storing the lock again shows
            // whether it does.
            (_, Some(ServerReply::Item(item)))
                if item.stale && may_mark_again && self.rounds <= MAX_ROUNDS =>
            {
                self.rounds += 1;
                // That mark may be a delete.
                let (origin, marked) = (StubId::of(item.cas.number), None);
                self.take_over(Claim { observed_cas: item.cas, origin, marked, ..claim }, lock, inputs)
            }
            _ => self.restart(smallvec![delete(ItemRef::Lock, Some(lock))], inputs),
        }
    }

    /// Whether the client requested a refresh (`R`).
    fn wants_recache(&self, hit: &Hit) -> bool {
        matches!((self.options.recache, hit.ttl), (Some(recache), Some(ttl)) if ttl < recache)
    }

    /// Whether this read may become another builder of a value that is being built. See [`WatchedBuild::seen`].
    fn may_take_over(&mut self, build: BuildId, age: u64, stored: (u64, u64), inputs: &Inputs<'_>) -> bool {
        let watched = WatchedBuild::seen(self.watched, build, age, stored, inputs.now.mono);
        self.watched = Some(watched);
        self.let_through && inputs.now.mono >= watched.let_through_at(inputs.policy)
    }

    /// Another client rebuilds the value: wait if that is permitted and may help. `ttl`: the remaining TTL of the
    /// value that is served otherwise, in seconds.
    fn wait_or_fall_back(
        &mut self,
        fallback: Fallback,
        ttl: Option<u32>,
        inputs: &Inputs<'_>,
    ) -> Step<ReadEnd> {
        self.let_through = false;
        let limits = wait_limits(&fallback, self.watched, self.began, ttl, inputs);
        let must_not_wait = !inputs.may_wait || self.options.at_once;
        if must_not_wait || inputs.now.mono >= limits.until {
            return Step::Done(fallback.end());
        }
        self.state = State::Waiting(fallback);
        Step::Wait(limits)
    }

    /// Reads the key again, after the given commands.
    fn restart(&mut self, mut commands: Commands, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let skip = u8::try_from(commands.len()).unwrap_or(u8::MAX);
        self.push_all_commands(&mut commands, inputs);
        self.rounds += 1;
        self.state = State::Reading { skip };
        Step::Send(commands)
    }
}

impl Machine for Read {
    type End = ReadEnd;
    const CHANGES: bool = false;

    fn resume(&mut self, event: Event, inputs: &Inputs<'_>) -> Step<ReadEnd> {
        let state = std::mem::replace(&mut self.state, State::Reading { skip: 0 });
        match (state, event) {
            (State::Reading { skip }, Event::Replies(replies)) => self.read(skip, replies, inputs),
            (State::AddingTags { item }, Event::TagsAdded | Event::Replies(_)) => {
                self.request_tags(item, Box::new(TagRead::new(inputs.tags.len())), inputs)
            }
            (State::ReadingTags { item, tag_read }, Event::Replies(replies)) => {
                self.tags_read(item, tag_read, &replies, false, inputs)
            }
            (State::Adopting(seen), Event::Replies(replies)) => self.adopted(seen, replies, inputs),
            (State::Claiming(claim), Event::Replies(replies)) => self.claimed(claim, replies, inputs),
            (State::TakingOver(claim), Event::Replies(replies)) => self.taken_over(claim, replies, inputs),
            (State::Marking { claim, lock }, Event::Replies(replies)) => {
                self.marked(claim, lock, replies, inputs)
            }
            (State::ReplacingWithStub(claim), Event::Replies(replies)) => {
                self.replaced_with_stub(claim, replies, inputs)
            }
            (State::Waiting(_), event @ (Event::Woken | Event::LetThrough)) => {
                self.let_through = event == Event::LetThrough;
                self.rounds = 0;
                self.restart(Commands::new(), inputs)
            }
            (State::Waiting(fallback), _) => Step::Done(fallback.end()),
            // Only `Waiting` expects such an event. In other states the replies are still awaited.
            (state, _) => {
                self.state = state;
                Step::Send(Commands::new())
            }
        }
    }
}

#[cfg(test)]
mod tests;
