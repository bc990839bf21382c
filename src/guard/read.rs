//! What a reader of a guarded key is given: a fresh value, a stale one, the right to rebuild, or a miss.
//!
//! ```text
//!  Reading ──fresh──────────────────────────────▶ Hit
//!     │ stub, ours ─────────────────────────────▶ Won (cold)
//!     │ stub, given up ──▶ Adopting ──stored──────▶ Won (cold)
//!     │ stub, another's ──▶ Waiting ──woken──▶ Reading
//!     │ stale             ▲    └──over──▶ stale value, or Missed
//!     ▼                   │ held
//!  Claiming ──────────────┘
//!     │ lock is ours, value is still the one we read ──▶ Marking ──▶ Won (stale)
//!     │ lock is ours, value moved ──▶ unlock, Reading
//!     └ lock is another's whose build cannot be valid any more ──▶ TakingOver ──▶ Marking
//! ```
//!
//! Marking gives the stale value a CAS that belongs to this win alone: whoever won it before, and lost the lock since, stores
//! nothing any more, and cannot be taken for this winner. A value that nobody is to see (its tag has moved, and the rule says
//! `on_tag = "drop"`) gives way to a placeholder instead: an envelope without a value that is out of date from the start.

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, Expiry, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply,
    StoreMode, Stored, delete, get, peek, sure_ms,
};
use super::envelope::{Envelope, Header, LockRecord, Opened, built_at};
use super::freshness::{Hit, ItemState, is_out_of_date, judge, unknown_tags};
use super::leases::MissToken;
use super::stub::{Stub, StubId, stub_in_place};
use super::tags::{MAX_ROUNDS, TagRead, Versions, version_millis};
use super::write::NEVER;
use super::{Event, Inputs, Machine, OnInvalidate, Policy, Step};

/// How a read ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadEnd {
    /// Serve this as a hit.
    Fresh(Hit),
    /// Serve this as a hit; somebody else refreshes it early.
    Refreshing(Hit),
    /// Serve this; it is stale, and somebody is rebuilding it, or nobody can now.
    Stale(Hit),
    /// The client has the right to rebuild, and is told a miss, unless it can be told more than that.
    Won {
        /// What was seen at that moment, for the fill.
        lease: MissToken,
        /// The value was still fresh: this refreshes it early.
        early: bool,
        /// What stands there, if it may be served meanwhile.
        old: Option<Hit>,
    },
    /// The client is told a miss, without that right.
    Missed {
        /// What was seen, so that a `set` that follows cannot undo an invalidation.
        seen: MissToken,
        /// Somebody else is rebuilding it.
        held: bool,
    },
    /// The key's server did not answer.
    Failed(Failure),
}

/// What a reader that speaks meta commands wants besides the value (protocol.txt, "Meta Get").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ReadOptions {
    /// `R`: to refresh the value if it is fresh for less than so many seconds.
    pub recache: Option<u32>,
    /// `N`: to be told at once that somebody else builds the value, in place of waiting for it.
    pub at_once: bool,
    /// `h l`: how it has been used.
    pub usage: bool,
    /// `u`: that this does not count as a use.
    pub unseen: bool,
}

/// A read of one guarded key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    wish: ReadOptions,
    state: State,
    /// When the request began, on the monotonic clock: all its waiting is counted from here.
    began: u64,
    rounds: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    /// Asked for the key and its tags. `skip` answers precede them, of no interest.
    Reading {
        skip: u8,
    },
    /// It has tags that its rule does not name: they are to be read first.
    Learning {
        item: Item,
    },
    /// Some tags were missing: they are being created, the item waits to be judged.
    Tagging {
        item: Item,
        gather: Box<TagRead>,
    },
    /// Whoever built the value has given it up, and left the stub: it is stored anew.
    Adopting(MissToken),
    Claiming(Claim),
    TakingOver(Claim),
    /// The lock is ours: the value is marked stale, so that no other winner's fill can be stored over it.
    Marking {
        claim: Claim,
        lock: Cas,
    },
    /// The value would vanish during the rebuild and let a second one start: a stub is put in its place.
    Clearing(Claim),
    Waiting(Fallback),
}

/// The attempt to become the one who rebuilds what stands there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Claim {
    base: Cas,
    ttl: Option<u32>,
    versions: Versions,
    fallback: Fallback,
}

/// What the client is given if the claim is held by somebody else and waiting brings nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Fallback {
    Fresh(Hit),
    Stale(Hit),
    /// A miss; with what its `set` may later be stored over.
    Miss(MissToken),
}

impl Read {
    /// Begins.
    pub fn start(scene: &Inputs<'_>) -> (Read, Commands) {
        Read::with_options(ReadOptions::default(), scene)
    }

    /// Begins, for a reader that wants more than a value.
    pub fn with_options(wish: ReadOptions, scene: &Inputs<'_>) -> (Read, Commands) {
        let mut asks = Commands::new();
        let read = Read::answered(wish, scene.now.mono);
        read.ask_all(&mut asks, scene);
        (read, asks)
    }

    /// A read whose first questions have been asked and answered without it: [`Read::look`], and a look at every tag. It is to be
    /// resumed with the answers. `began`: when that was asked, on the monotonic clock.
    pub fn answered(wish: ReadOptions, began: u64) -> Read {
        Read { wish, state: State::Reading { skip: 0 }, began, rounds: 0 }
    }

    /// What it asks first about the item.
    pub fn look(wish: ReadOptions, policy: &Policy) -> GetFlags {
        let ReadOptions { usage, unseen, .. } = wish;
        GetFlags { value: true, usage, unseen, vivify: Some(policy.lock_seconds()), touch: None }
    }

    fn ask_all(&self, asks: &mut Commands, scene: &Inputs<'_>) {
        asks.push(ServerCommand {
            at: ItemRef::Value,
            what: Operation::Get(Read::look(self.wish, scene.policy)),
        });
        TagRead::new(scene.tags.len()).ask(asks, scene);
    }

    fn read(&mut self, skip: u8, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let mut answers = answers.into_iter().skip(usize::from(skip));
        let item = match answers.next() {
            Some(ServerReply::Item(item)) => item,
            Some(ServerReply::Failed(failure)) => return Step::Done(ReadEnd::Failed(failure)),
            // The server had no room even for a stub.
            _ => return Step::Done(missed(None, Versions::new(), scene, false)),
        };
        let unknown = unknown_tags(&item, scene);
        // So many that they cannot be asked for by number: only a key whose values had ever other tags comes to that.
        if scene.tags.len() + unknown.len() > usize::from(u8::MAX) {
            return Step::Done(missed(Some(item.cas), Versions::new(), scene, false));
        }
        if !unknown.is_empty() {
            self.state = State::Learning { item };
            return Step::AddTags(unknown);
        }
        let mut gather = TagRead::new(scene.tags.len());
        let tags: Replies = answers.collect();
        match gather.absorb(&tags, scene) {
            Err(_) => self.judge(item, None, false, scene),
            Ok(()) => match gather.versions() {
                Some(versions) => self.judge(item, Some(versions), gather.lost, scene),
                None => self.ask_tags(item, Box::new(gather), scene),
            },
        }
    }

    fn ask_tags(&mut self, item: Item, mut gather: Box<TagRead>, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let mut asks = Commands::new();
        gather.ask(&mut asks, scene);
        self.state = State::Tagging { item, gather };
        Step::Send(asks)
    }

    fn tagged(
        &mut self,
        item: Item,
        mut gather: Box<TagRead>,
        answers: &[ServerReply],
        scene: &Inputs<'_>,
    ) -> Step<ReadEnd> {
        match gather.absorb(answers, scene) {
            Err(_) => self.judge(item, None, false, scene),
            Ok(()) => match gather.versions() {
                Some(versions) => self.judge(item, Some(versions), gather.lost, scene),
                None => self.ask_tags(item, gather, scene),
            },
        }
    }

    /// `versions` is `None` when a tag could not be read: then nothing is fresh, and nothing may be rebuilt, because what
    /// is built could not be sealed.
    fn judge(
        &mut self,
        item: Item,
        versions: Option<Versions>,
        lost: bool,
        scene: &Inputs<'_>,
    ) -> Step<ReadEnd> {
        let standing = match judge(&item, versions.as_ref(), scene) {
            // A tag created anew may by chance get a number that it had before.
            ItemState::Fresh(hit) if lost && !hit.header.is_empty() => match scene.policy.on_tag {
                OnInvalidate::Stale => ItemState::Stale(Hit { ttl: Some(0), ..hit }),
                OnInvalidate::Drop => ItemState::Unservable,
            },
            standing => standing,
        };
        let Some(versions) = versions else {
            return Step::Done(match standing {
                ItemState::Stale(hit) | ItemState::Fresh(hit) => ReadEnd::Stale(hit),
                ItemState::Unservable | ItemState::Stub(_) => missed(None, Versions::new(), scene, false),
            });
        };
        let fallback = match standing {
            ItemState::Stub(stub) => {
                let seen = MissToken::of_stub(item.cas, stub.id, versions, scene);
                return match stub.is_free {
                    true => self.adopt(seen, stub, scene),
                    false if item.won => Step::Done(ReadEnd::Won { lease: seen, early: false, old: None }),
                    false => self.held(Fallback::Miss(seen), stub.age + lost_ms(&item, scene), None, scene),
                };
            }
            ItemState::Fresh(hit) if self.recaches(&hit) || refreshes_early(&hit, scene) => {
                Fallback::Fresh(hit)
            }
            ItemState::Fresh(hit) => return Step::Done(ReadEnd::Fresh(hit)),
            ItemState::Stale(hit) => Fallback::Stale(hit),
            ItemState::Unservable => {
                let stub = match Header::open(&item.value) {
                    Opened::Sealed { envelope, .. } if is_out_of_date(&envelope, &versions, scene) => {
                        StubId::of_unseen(&item)
                    }
                    _ => None,
                };
                Fallback::Miss(MissToken { stub, ..MissToken::seen(Some(item.cas), versions.clone(), scene) })
            }
        };
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(fallback.end());
        }
        let claim = Claim { base: item.cas, ttl: item.ttl, versions, fallback };
        let mut asks: Commands = smallvec![
            take_lock(StoreMode::Add, None, &claim.versions, scene),
            // The double check: behind the lock, so that what it sees is what the lock protects.
            peek(ItemRef::Value),
        ];
        if !scene.tags.is_empty() {
            asks.push(get(ItemRef::Lock));
        }
        self.state = State::Claiming(claim);
        Step::Send(asks)
    }

    /// Takes a stub that is free: of all who try, one finds it as it was.
    fn adopt(&mut self, seen: MissToken, stub: Stub, scene: &Inputs<'_>) -> Step<ReadEnd> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Step::Done(Fallback::Miss(seen).end());
        }
        let ask = Stub { is_free: false, age: 0, ..stub }.ask(seen.base, scene.policy.lock_seconds());
        self.state = State::Adopting(seen);
        Step::Send(smallvec![ask])
    }

    fn adopted(&mut self, seen: MissToken, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        match answers.into_iter().next() {
            Some(ServerReply::Stored(cas)) => {
                let lease = MissToken { base: Some(cas), ..seen };
                Step::Done(ReadEnd::Won { lease, early: false, old: None })
            }
            Some(ServerReply::Failed(_)) | None => Step::Done(Fallback::Miss(seen).end()),
            Some(_) => self.again(Commands::new(), scene),
        }
    }

    fn claimed(&mut self, claim: Claim, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let mut answers = answers.into_iter();
        match (answers.next(), answers.next()) {
            (Some(ServerReply::Stored(lock)), Some(ServerReply::Item(item))) if item.cas == claim.base => {
                match claim.fallback {
                    // All who won it while it was fresh saw the same versions, so their fills need not be told apart.
                    Fallback::Fresh(_) => self.won(claim, lock, item.ttl, scene),
                    // The stub that takes its place has a CAS of its own.
                    _ if item.ttl.map(sure_ms) == Some(0) => self.won(claim, lock, item.ttl, scene),
                    _ => self.mark(claim, lock, scene),
                }
            }
            // Somebody filled or deleted it between our read and our lock.
            (Some(ServerReply::Stored(lock)), _) => {
                self.again(smallvec![delete(ItemRef::Lock, Some(lock))], scene)
            }
            (Some(ServerReply::Failed(_)) | None, _) => Step::Done(claim.fallback.end()),
            (Some(_), _) => match answers.next() {
                Some(ServerReply::Item(lock)) if is_doomed(&lock, &claim.versions, scene) => {
                    self.take_over(claim, lock.cas, scene)
                }
                _ => self.held(claim.fallback, 0, claim.ttl, scene),
            },
        }
    }

    fn won(&mut self, claim: Claim, lock: Cas, ttl: Option<u32>, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let stands = ttl.map(sure_ms);
        if stands == Some(0) {
            let stub = stub_in_place(claim.fallback.stub(), Some(claim.base), scene.policy);
            self.state = State::Clearing(claim);
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
                vanishes: stands.map(|stands| scene.now.mono + stands),
                ..MissToken::seen(Some(claim.base), claim.versions, scene)
            },
        })
    }

    fn cleared(&mut self, claim: Claim, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        match answers.into_iter().next() {
            Some(ServerReply::Stored(base)) => {
                let stub = claim.fallback.stub().unwrap_or(StubId::of(base.number));
                let (early, old) = claim.fallback.old();
                let lease = MissToken::of_stub(base, stub, claim.versions, scene);
                Step::Done(ReadEnd::Won { lease, early, old })
            }
            Some(ServerReply::Failed(_)) | None => Step::Done(claim.fallback.end()),
            Some(_) => self.again(Commands::new(), scene),
        }
    }

    /// The lock's holder builds with versions that have moved since: what it stores will be stale at once, so nobody need
    /// wait for it.
    fn take_over(&mut self, claim: Claim, lock: Cas, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let ask = take_lock(StoreMode::Set, Some(lock), &claim.versions, scene);
        self.state = State::TakingOver(claim);
        Step::Send(smallvec![ask])
    }

    fn taken_over(&mut self, claim: Claim, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        match answers.into_iter().next() {
            Some(ServerReply::Stored(lock)) => self.mark(claim, lock, scene),
            Some(ServerReply::Failed(_)) | None => Step::Done(claim.fallback.end()),
            // Somebody else took it over first, or it was given up.
            Some(_) => self.again(Commands::new(), scene),
        }
    }

    /// The fill of whoever won it before must fail, or it would undo ours: marking the value stale moves the CAS it counts on.
    /// Not before the lock is ours: if the old holder has given it up, the mark would hit the next one, who builds something
    /// valid.
    ///
    /// A value that nobody is to see gives way to one that is out of date from the start and is known by the same stub: by
    /// that its losers know that it has not been deleted, which a mark would not tell.
    fn mark(&mut self, claim: Claim, lock: Cas, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let drops = scene.policy.on_tag == OnInvalidate::Drop;
        let stub = claim.fallback.stub().filter(|_| drops);
        let placeholder = stub.and_then(|stub| placeholder(stub, &claim, scene));
        let stale = Operation::MarkStale { seconds: None, cas: Some(claim.base), explicit: None };
        let mark = placeholder.unwrap_or(stale);
        self.state = State::Marking { claim, lock };
        Step::Send(smallvec![
            ServerCommand { at: ItemRef::Value, what: mark },
            peek(ItemRef::Value),
            peek(ItemRef::Lock)
        ])
    }

    fn marked(&mut self, claim: Claim, lock: Cas, answers: Replies, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let mut answers = answers.into_iter();
        let (marked, stands, held) = (answers.next(), answers.next(), answers.next());
        let is_mine = matches!(held, Some(ServerReply::Item(held)) if held.cas == lock);
        // What was marked meanwhile has another number.
        let may_mark_again = claim.fallback.stub().is_none();
        match (marked, stands) {
            // Still marked, so it was not filled since.
            (Some(ServerReply::Done), Some(ServerReply::Item(item))) if item.stale && is_mine => {
                self.won(Claim { base: item.cas, ..claim }, lock, item.ttl, scene)
            }
            (Some(ServerReply::Stored(cas)), Some(ServerReply::Item(item))) if item.cas == cas && is_mine => {
                self.won(Claim { base: cas, ..claim }, lock, item.ttl, scene)
            }
            (Some(ServerReply::Failed(_)) | None, _) => Step::Done(claim.fallback.end()),
            // Whoever had the lock before us, or has taken it from us since, has marked it. They count on that CAS: if the lock
            // is still ours, it has to move once more, and that is what storing it anew will tell.
            (_, Some(ServerReply::Item(item)))
                if item.stale && may_mark_again && self.rounds <= MAX_ROUNDS =>
            {
                self.rounds += 1;
                self.take_over(Claim { base: item.cas, ..claim }, lock, scene)
            }
            _ => self.again(smallvec![delete(ItemRef::Lock, Some(lock))], scene),
        }
    }

    /// Whether the reader asked to refresh it (`R`).
    fn recaches(&self, hit: &Hit) -> bool {
        matches!((self.wish.recache, hit.ttl), (Some(recache), Some(ttl)) if ttl < recache)
    }

    /// Somebody else rebuilds it: wait if that is allowed and promising. `age` is how long they have at least, `ttl` what is
    /// left of the value that is served if waiting brings nothing.
    fn held(&mut self, fallback: Fallback, age: u64, ttl: Option<u32>, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let cold_wait = as_millis(scene.policy.cold_wait);
        let (limit, too_old) = match &fallback {
            Fallback::Fresh(_) => (0, false),
            Fallback::Stale(_) => (as_millis(scene.policy.stale_wait), false),
            Fallback::Miss(_) => (cold_wait, age >= cold_wait),
        };
        // What is served after the wait must not have ended during it; a miss does not end.
        let stands = match (&fallback, ttl) {
            (Fallback::Stale(_), Some(ttl)) => scene.now.mono.saturating_add(sure_ms(ttl)),
            _ => u64::MAX,
        };
        let until = self.began.saturating_add(limit).min(stands);
        let impatient = !scene.patient || self.wish.at_once;
        if impatient || too_old || scene.now.mono >= until {
            return Step::Done(fallback.end());
        }
        self.state = State::Waiting(fallback);
        Step::Wait(until)
    }

    /// Reads the key anew, behind what `asks` holds already.
    fn again(&mut self, mut asks: Commands, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let skip = u8::try_from(asks.len()).unwrap_or(u8::MAX);
        self.ask_all(&mut asks, scene);
        self.rounds += 1;
        self.state = State::Reading { skip };
        Step::Send(asks)
    }
}

impl Machine for Read {
    type End = ReadEnd;
    const CHANGES: bool = false;

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<ReadEnd> {
        let state = std::mem::replace(&mut self.state, State::Reading { skip: 0 });
        match (state, event) {
            (State::Reading { skip }, Event::Replies(answers)) => self.read(skip, answers, scene),
            (State::Learning { item }, Event::TagsAdded | Event::Replies(_)) => {
                self.ask_tags(item, Box::new(TagRead::new(scene.tags.len())), scene)
            }
            (State::Tagging { item, gather }, Event::Replies(answers)) => {
                self.tagged(item, gather, &answers, scene)
            }
            (State::Adopting(seen), Event::Replies(answers)) => self.adopted(seen, answers, scene),
            (State::Claiming(claim), Event::Replies(answers)) => self.claimed(claim, answers, scene),
            (State::TakingOver(claim), Event::Replies(answers)) => self.taken_over(claim, answers, scene),
            (State::Marking { claim, lock }, Event::Replies(answers)) => {
                self.marked(claim, lock, answers, scene)
            }
            (State::Clearing(claim), Event::Replies(answers)) => self.cleared(claim, answers, scene),
            (State::Waiting(_), Event::Woken) => {
                self.rounds = 0;
                self.again(Commands::new(), scene)
            }
            (State::Waiting(fallback), _) => Step::Done(fallback.end()),
            // A wait can only be ended in Waiting: whoever says so elsewhere is told to go on with what was asked.
            (state, _) => {
                self.state = state;
                Step::Send(Commands::new())
            }
        }
    }
}

/// In place of a value that nobody is to see, for as long as that has. `None`: its header has no room for that.
fn placeholder(stub: StubId, claim: &Claim, scene: &Inputs<'_>) -> Option<Operation> {
    let mut header = BytesMut::new();
    let sealed = Envelope {
        stale_for: scene.policy.stale_seconds(),
        built_at: built_at(scene.now.wall, stub.number()),
        rebuild: 0,
        tags: scene.tags.iter().map(|name| (name.clone(), NEVER)).collect(),
    };
    sealed.seal(&mut header).ok()?;
    let exptime = match claim.ttl {
        Some(ttl) => Expiry::Seconds(u64::from(ttl.max(1))).exptime(0, scene.now),
        None => 0,
    };
    let value = Stored { header: header.freeze(), body: Bytes::new() };
    Some(Operation::Store {
        mode: StoreMode::Set,
        value,
        flags: 0,
        exptime,
        cas: Some(claim.base),
        explicit: None,
    })
}

impl Fallback {
    /// Which stub the value was stored over, where all who see it are told a miss.
    fn stub(&self) -> Option<StubId> {
        match self {
            Fallback::Miss(seen) => seen.stub,
            Fallback::Fresh(_) | Fallback::Stale(_) => None,
        }
    }

    fn end(self) -> ReadEnd {
        match self {
            Fallback::Fresh(hit) => ReadEnd::Refreshing(hit),
            Fallback::Stale(hit) => ReadEnd::Stale(hit),
            Fallback::Miss(seen) => ReadEnd::Missed { seen, held: true },
        }
    }

    /// What its winner may serve meanwhile, and whether that is fresh.
    fn old(self) -> (bool, Option<Hit>) {
        match self {
            Fallback::Fresh(hit) => (true, Some(hit)),
            Fallback::Stale(hit) => (false, Some(hit)),
            Fallback::Miss(_) => (false, None),
        }
    }
}

fn missed(base: Option<Cas>, versions: Versions, scene: &Inputs<'_>, held: bool) -> ReadEnd {
    let seen = MissToken::seen(base, versions, scene);
    ReadEnd::Missed { seen, held }
}

fn take_lock(mode: StoreMode, cas: Option<Cas>, versions: &Versions, scene: &Inputs<'_>) -> ServerCommand {
    let record = LockRecord {
        granted_at: scene.now.wall,
        sidecar: scene.sidecar,
        tags: scene.tags.iter().cloned().zip(versions.iter().copied()).collect(),
    };
    let mut value = BytesMut::new();
    // A rule has far fewer tags than a record may hold; one that did not fit would be a lock without versions, which holds
    // all the same.
    let _ = record.encode(&mut value);
    ServerCommand {
        at: ItemRef::Lock,
        what: Operation::Store {
            mode,
            value: Stored::plain(value.freeze()),
            flags: 0,
            exptime: i64::from(scene.policy.lock_seconds()),
            cas,
            explicit: None,
        },
    }
}

/// Whether one of our versions is newer than what the lock's holder began with.
fn is_doomed(lock: &Item, versions: &Versions, scene: &Inputs<'_>) -> bool {
    let Ok(record) = LockRecord::decode(&lock.value) else { return false };
    scene.tags.iter().zip(versions).any(|(name, ours)| {
        record
            .tags
            .iter()
            .any(|(theirs, version)| theirs == name && version_millis(*version) < version_millis(*ours))
    })
}

/// For how many ms, at least, a stub has stood since it was stored: what its TTL has lost.
fn lost_ms(item: &Item, scene: &Inputs<'_>) -> u64 {
    let lost = scene.policy.lock_seconds().saturating_sub(item.ttl.unwrap_or(0));
    u64::from(lost) * 1000
}

/// XFetch (Vattani, Chierichetti and Lowenstein, 2015): the nearer the expiry and the longer the last rebuild, the likelier.
fn refreshes_early(hit: &Hit, scene: &Inputs<'_>) -> bool {
    let beta = scene.policy.early_beta;
    match hit.ttl {
        Some(ttl) if beta > 0.0 => {
            -f64::from(hit.rebuild) * beta * scene.chance.ln() >= f64::from(ttl) * 1000.0
        }
        _ => false,
    }
}

fn as_millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
