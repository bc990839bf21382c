//! Commands that look at a guarded key before they write it: `add`, `replace`, `append`, `prepend`, `cas`, `incr`, `decr`,
//! `touch` and `gat`. Each means what memcached says it means about the *logical* item (a stub or stale one is absent),
//! through a loop over the item's CAS.

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use crate::error::Failure;
use crate::protocol::number::c_uint64;

use super::command::{
    Cas, Commands, Expiry, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply,
    StoreMode, Stored, Usage, delete, get, peek, value_or_stub,
};
use super::envelope::{Header, LockRecord, Opened, TagName};
use super::freshness::{Hit, ItemState, judge, unknown_tags};
use super::leases::Observed;
use super::stub::Stub;
use super::tags::{TagRead, Versions};
use super::write::{NEVER, NewValue, may_have_moved, version_of};
use super::{Event, Inputs, Machine, Step, TagNames};

mod change;

pub use change::{Change, Count, Counted};

/// For how long a write that others keep overtaking is tried again, in ms.
pub(super) const PATIENCE_MS: u64 = 2_000;

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModifyEnd {
    /// Stored, under this CAS; [`Cas::NONE`] if it ended with this very command.
    Stored(Cas),
    /// `append`, `prepend`: stored.
    Extended {
        /// The item's CAS.
        cas: Cas,
        /// How many bytes the value has now.
        size: usize,
        /// There was no item.
        created: bool,
    },
    /// The condition did not hold.
    NotStored,
    /// `replace`: there is an item, and it is newer than the miss that the client was told. The value is dropped, and the client is
    /// told that it was stored.
    Dropped,
    /// `cas`: the item is another by now.
    Exists,
    /// There is no logical item.
    NotFound,
    /// `incr`, `decr`, `ma`: the new number.
    Counted(Counted),
    /// `incr`, `decr`: the value is not a number.
    NotANumber,
    /// `touch`, `gat`: what was there, with its new lifetime.
    Touched(Hit),
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it was done is not known.
    Failed(Failure),
}

/// A command that looks before it writes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Modify {
    change: Change,
    /// What its client was told a miss of, if it was.
    over: Option<Observed>,
    /// Its look leaves a stub.
    creates: bool,
    state: State,
    /// The lock, if a win may be filled: which may be another sidecar's.
    lock: Option<Item>,
    /// On the monotonic clock.
    began: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Looking,
    /// The item has tags that its rule does not name: they are to be read first.
    Learning {
        item: Option<Item>,
    },
    Tagging {
        item: Option<Item>,
        gather: Box<TagRead>,
    },
    /// `used`: the seconds that the old item had left when it was read, if the new one is to end with it.
    Writing {
        counted: Counted,
        used: Option<u32>,
    },
    /// It was written in a later second than it was read in, and so would end too late: its end is being put back.
    /// `None`: what stood there by then was another's, which is given its own end back.
    Settling {
        counted: Counted,
        used: Option<u32>,
    },
    Touching {
        was: Hit,
    },
    Untouching,
}

impl Modify {
    /// Whether it is to store a value where there is none, and says so where it does not.
    pub fn creates_value(&self) -> bool {
        matches!(
            self.change,
            Change::Count(Count { create: Some(_), .. })
                | Change::Append { create: Some(_), .. }
                | Change::Prepend { create: Some(_), .. }
        )
    }

    /// Begins.
    pub fn start(change: Change, scene: &Inputs<'_>) -> (Modify, Commands) {
        Modify::bound(change, None, scene)
    }

    /// Begins one that stores over nothing but this, where it is a `replace`, or a count that finds no item: else it is not stored.
    pub fn bound(change: Change, over: Option<Observed>, scene: &Inputs<'_>) -> (Modify, Commands) {
        let mut modify =
            Modify { change, over, creates: false, state: State::Looking, lock: None, began: scene.now.mono };
        let asks = modify.look(scene);
        (modify, asks)
    }

    /// Whether what stands there is not what alone it may be stored over.
    fn is_beyond(&self, stands: Option<&Item>, versions: &Versions, scene: &Inputs<'_>) -> bool {
        let is_over = |over: &Observed| {
            stands.is_some_and(|item| over.is(item) || over.outlives(item, versions, scene))
        };
        self.over.as_ref().is_some_and(|over| !is_over(over))
    }

    fn look(&mut self, scene: &Inputs<'_>) -> Commands {
        self.state = State::Looking;
        self.creates = self.may_create(scene);
        let mut asks: Commands =
            smallvec![if self.creates { value_or_stub(scene) } else { get(ItemRef::Value) }];
        TagRead::new(scene.tags.len()).ask(&mut asks, scene);
        if self.may_fill() {
            asks.push(get(ItemRef::Lock));
        }
        asks
    }

    fn may_fill(&self) -> bool {
        matches!(self.change, Change::Cas { sees_stale: true, .. })
    }

    /// Whether an absent item would be stored. Then the look leaves a stub to be stored over, for the reason that a
    /// [`Set`](super::Set) does. What is gone at once, or too large with its header, leaves none; nor does what may be stored
    /// over something else alone.
    fn may_create(&self, scene: &Inputs<'_>) -> bool {
        let created = match &self.change {
            Change::Add(offer) => offered(offer, StoreMode::Add, None, |_| NEVER, scene),
            Change::Count(Count { create: Some((lifetime, initial)), explicit, .. })
                if self.over.is_none() =>
            {
                offered(&begun(*lifetime, *initial, *explicit), StoreMode::Add, None, |_| NEVER, scene)
            }
            change => match change.create() {
                Some(offer) if self.over.is_none() => offered(offer, StoreMode::Add, None, |_| NEVER, scene),
                _ => return false,
            },
        };
        // A header is as long whatever the versions are.
        matches!(created.what, Operation::Store { value, exptime: 0.., .. } if !scene.refuses(value.len()))
    }

    fn gathered(
        &mut self,
        item: Option<Item>,
        mut gather: Box<TagRead>,
        answers: &[ServerReply],
        scene: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let unknown = item.as_ref().map_or_else(TagNames::new, |item| unknown_tags(item, scene));
        if !unknown.is_empty() {
            self.state = State::Learning { item };
            return Step::AddTags(unknown);
        }
        match gather.absorb(answers, scene) {
            Err(failure) => Step::Done(ModifyEnd::Failed(failure)),
            Ok(()) => match gather.versions() {
                Some(versions) => self.write(item, &versions, scene),
                None => {
                    let mut asks = Commands::new();
                    gather.ask(&mut asks, scene);
                    self.state = State::Tagging { item, gather };
                    Step::Send(asks)
                }
            },
        }
    }

    fn write(&mut self, item: Option<Item>, versions: &Versions, scene: &Inputs<'_>) -> Step<ModifyEnd> {
        // memcached looks at the size before it looks at what is there.
        if scene.refuses(self.change.sent()) {
            return Step::Done(ModifyEnd::TooLarge);
        }
        let standing = item.as_ref().map(|item| judge(item, Some(versions), scene));
        let present = match standing {
            Some(ItemState::Fresh(hit)) => Some(hit),
            _ => None,
        };
        let physical = item.as_ref().map(|item| item.cas);
        // How long the item stands in memcached, so that what replaces it stands no longer.
        let exptime = match item.as_ref().and_then(|item| item.ttl) {
            Some(ttl) => Expiry::Seconds(u64::from(ttl)).exptime(0, scene.now),
            None => 0,
        };
        let used = item.as_ref().and_then(|item| item.ttl);
        self.state = State::Writing { counted: Counted::NOTHING, used: None };
        let now = |name: &TagName| version_of(name, versions, scene).unwrap_or(NEVER);
        let ask = match (&self.change, present) {
            (Change::Add(_), Some(_)) => return Step::Done(ModifyEnd::NotStored),
            // What is gone at once takes no place, and nothing from whoever builds the value.
            (Change::Add(offer), None) if offer.lifetime == Expiry::Expired => {
                return Step::Done(ModifyEnd::Stored(Cas::NONE));
            }
            (Change::Add(offer), None) => created(offer, item.as_ref(), now, scene),
            (
                Change::Append { create: Some(offer), .. } | Change::Prepend { create: Some(offer), .. },
                None,
            ) => {
                let counted = extended(offer.body.len(), true);
                self.state = State::Writing { counted, used: None };
                if self.is_beyond(item.as_ref(), versions, scene) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                // What is gone at once takes no place.
                if offer.lifetime == Expiry::Expired {
                    return Step::Done(self.done(counted));
                }
                created(offer, item.as_ref(), now, scene)
            }
            (Change::Replace(_) | Change::Append { .. } | Change::Prepend { .. }, None) => {
                return Step::Done(ModifyEnd::NotStored);
            }
            (Change::Cas { number, offer, sees_stale: true, invalidate }, None) => {
                match (&item, self.over_stale(*number, offer, *invalidate, item.as_ref(), scene)) {
                    (_, Some(ask)) => ask,
                    (Some(item), None) if item.size > 0 => return Step::Done(ModifyEnd::Exists),
                    (_, None) => return Step::Done(ModifyEnd::NotFound),
                }
            }
            (Change::Count(Count { create: Some((lifetime, initial)), explicit, .. }), None) => {
                let (lifetime, explicit) = (*lifetime, *explicit);
                let counted = Counted { number: *initial, cas: Cas::NONE, ttl: None, created: true };
                self.state = State::Writing { counted, used: None };
                if self.is_beyond(item.as_ref(), versions, scene) {
                    return Step::Done(ModifyEnd::NotStored);
                }
                let offer = begun(lifetime, *initial, explicit);
                match lifetime {
                    Expiry::Expired => offered(&offer, StoreMode::Set, physical, now, scene),
                    _ => created(&offer, item.as_ref(), now, scene),
                }
            }
            (Change::Cas { .. } | Change::Count(_) | Change::Touch(_) | Change::Empty { .. }, None) => {
                return Step::Done(ModifyEnd::NotFound);
            }
            // memcached looks for a number behind the CAS, but for bytes before it.
            (Change::Count(_), Some(hit)) if hit.payload.is_empty() => {
                return Step::Done(ModifyEnd::NotANumber);
            }
            (
                Change::Append { compare: Some(compare), .. }
                | Change::Prepend { compare: Some(compare), .. }
                | Change::Count(Count { compare: Some(compare), .. })
                | Change::Empty { compare: Some(compare), .. },
                Some(hit),
            ) if *compare != hit.cas.number => return Step::Done(ModifyEnd::Exists),
            (Change::Replace(_), Some(_)) if self.is_beyond(item.as_ref(), versions, scene) => {
                return Step::Done(ModifyEnd::Dropped);
            }
            (Change::Replace(offer), Some(hit)) => offered(offer, StoreMode::Set, Some(hit.cas), now, scene),
            (Change::Cas { number, offer, invalidate: true, .. }, Some(hit)) if *number < hit.cas.number => {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), scene);
                offered(&offer.stale(), StoreMode::Set, Some(hit.cas), sealed, scene)
            }
            (Change::Cas { number, .. }, Some(hit)) if hit.cas.number != *number => {
                return Step::Done(ModifyEnd::Exists);
            }
            // The new value was made from the one that `gets` returned, and is no newer than that one's tags: it goes behind
            // the versions that one was sealed with.
            (Change::Cas { offer, .. }, Some(hit)) if offer.lifetime != Expiry::Expired => {
                let sealed = |name: &TagName| sealed_version(name, &hit, Some(versions), scene);
                offered(offer, StoreMode::Set, Some(hit.cas), sealed, scene)
            }
            (Change::Cas { .. }, Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            // Without a header it would be a stub.
            (Change::Empty { lifetime, explicit, .. }, Some(hit)) if hit.header.is_empty() => {
                let (body, tags) = (Bytes::new(), TagNames::new());
                let offer = NewValue { body, flags: 0, lifetime: *lifetime, explicit: *explicit, tags };
                offered(&offer, StoreMode::Set, Some(hit.cas), now, scene)
            }
            (Change::Empty { lifetime, explicit, .. }, Some(hit)) => {
                let emptied = Hit { flags: 0, ..hit.clone() };
                changed(&emptied, Bytes::new(), soft(*lifetime, &hit, scene), *explicit)
            }
            (Change::Append { more, explicit, .. }, Some(hit)) => {
                // The header stands before the payload, so memcached's own append is right, and moves only the new bytes.
                let (mode, value, cas) = (StoreMode::Append, Stored::plain(more.clone()), Some(hit.cas));
                let what = Operation::Store { mode, value, flags: 0, exptime: 0, cas, explicit: *explicit };
                let counted = extended(hit.payload.len() + more.len(), false);
                self.state = State::Writing { counted, used: None };
                ServerCommand { at: ItemRef::Value, what }
            }
            (Change::Prepend { more, explicit, .. }, Some(hit)) => {
                let body = Bytes::from([&more[..], &hit.payload[..]].concat());
                self.state = State::Writing { counted: extended(body.len(), false), used };
                changed(&hit, body, exptime, *explicit)
            }
            (Change::Count(Count { decr, delta, lifetime, explicit, .. }), Some(hit)) => {
                let Some((number, body)) = count(&hit.payload, *decr, *delta) else {
                    return Step::Done(ModifyEnd::NotANumber);
                };
                let counted = Counted { number, cas: Cas::NONE, ttl: hit.ttl, created: false };
                let ask = match lifetime {
                    Some(Expiry::Expired) => delete(ItemRef::Value, Some(hit.cas)),
                    Some(lifetime) => changed(&hit, body, soft(*lifetime, &hit, scene), *explicit),
                    None => changed(&hit, body, exptime, *explicit),
                };
                let used = used.filter(|_| lifetime.is_none());
                self.state = State::Writing { counted, used };
                ask
            }
            (Change::Touch(Expiry::Expired), Some(hit)) => delete(ItemRef::Value, Some(hit.cas)),
            (Change::Touch(lifetime), Some(hit)) => {
                let touch = Some(soft(*lifetime, &hit, scene));
                self.state = State::Touching { was: hit };
                ServerCommand {
                    at: ItemRef::Value,
                    what: Operation::Get(GetFlags { touch, ..GetFlags::default() }),
                }
            }
        };
        let creates = matches!(self.state, State::Writing { counted: Counted { created: true, .. }, .. });
        if let Operation::Store { value, .. } = &ask.what {
            match &self.change {
                _ if creates && scene.refuses(value.len()) => return Step::Done(ModifyEnd::TooLarge),
                _ if creates => {}
                Change::Append { .. } if scene.refuses(item.map_or(0, |item| item.size) + value.len()) => {
                    return Step::Done(ModifyEnd::NotStored);
                }
                Change::Prepend { .. } if scene.refuses(value.len()) => {
                    return Step::Done(ModifyEnd::NotStored);
                }
                _ if scene.refuses(value.len()) => return Step::Done(ModifyEnd::TooLarge),
                _ => {}
            }
        }
        let mut asks: Commands = smallvec![ask];
        if let Some(lock) = physical.and_then(|cas| self.lock_before(cas.number)) {
            asks.push(delete(ItemRef::Lock, Some(lock.cas)));
        }
        if matches!(self.state, State::Writing { used: Some(_), .. }) {
            asks.insert(0, peek(ItemRef::Value));
        }
        Step::Send(asks)
    }

    fn written(
        &mut self,
        counted: Counted,
        used: Option<u32>,
        answers: Replies,
        scene: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        let mut answers = answers.into_iter();
        let left = used.and_then(|_| answers.next());
        Step::Done(match answers.next() {
            Some(stored @ (ServerReply::Stored(_) | ServerReply::Done)) => {
                let cas = if let ServerReply::Stored(cas) = stored { cas } else { Cas::NONE };
                let counted = Counted { cas, ..counted };
                // The server's clock counts whole seconds: one may have passed between the read and the write.
                if let (Some(used), Some(ServerReply::Item(Item { ttl: Some(left), .. }))) = (used, left)
                    && left < used
                {
                    self.state = State::Settling { counted, used: Some(used) };
                    return Step::Send(smallvec![touch(left, scene)]);
                }
                self.done(counted)
            }
            // Both together are too large, or what was to be appended to is gone: memcached says the same of either.
            Some(ServerReply::NotStored)
                if matches!(self.change, Change::Append { .. }) && !counted.created =>
            {
                ModifyEnd::NotStored
            }
            Some(ServerReply::TooLarge)
                if matches!(self.change, Change::Prepend { .. }) && !counted.created =>
            {
                ModifyEnd::NotStored
            }
            Some(ServerReply::TooLarge) => ModifyEnd::TooLarge,
            Some(ServerReply::Failed(failure)) => ModifyEnd::Failed(failure),
            None => ModifyEnd::Failed(Failure::Refused),
            Some(_) => {
                // Each round one of all who write it wins: how many rounds it takes depends on how many there are.
                if scene.now.mono < self.began.saturating_add(PATIENCE_MS) {
                    return Step::Send(self.look(scene));
                }
                ModifyEnd::Failed(Failure::Overloaded)
            }
        })
    }

    fn done(&self, counted: Counted) -> ModifyEnd {
        match &self.change {
            Change::Count(_) => ModifyEnd::Counted(counted),
            Change::Touch(_) => ModifyEnd::Touched(Hit::nothing()),
            Change::Append { .. } | Change::Prepend { .. } => {
                let size = usize::try_from(counted.number).unwrap_or(usize::MAX);
                ModifyEnd::Extended { cas: counted.cas, size, created: counted.created }
            }
            _ => ModifyEnd::Stored(counted.cas),
        }
    }

    /// The lock of whoever was the first to be shown this CAS number: it is older than the number, for a win marks the value
    /// behind its lock. (A renewal makes it younger.) What it records was read before anybody was shown the number.
    fn lock_before(&self, number: u64) -> Option<&Item> {
        self.lock.as_ref().filter(|lock| lock.cas.number < number)
    }

    /// What stores over a stub or stale item whose CAS number a meta client has named. Whoever was given that number with a win
    /// through another sidecar comes here too: what the tags were at that moment its lock may tell; else they were no older
    /// than what stands there was sealed with.
    fn over_stale(
        &self,
        number: u64,
        offer: &NewValue,
        invalidate: bool,
        item: Option<&Item>,
        scene: &Inputs<'_>,
    ) -> Option<ServerCommand> {
        let item = item?;
        let offer = match () {
            () if number == item.cas.number => offer.clone(),
            () if invalidate && number < item.cas.number && item.size > 0 => offer.stale(),
            () => return None,
        };
        let stands = match judge(item, None, scene) {
            ItemState::Stale(hit) => Some(hit),
            _ => None,
        };
        let record = self.lock_before(item.cas.number).and_then(|lock| LockRecord::decode(&lock.value).ok());
        let locked = |name: &TagName| {
            let record = record.as_ref()?.tags.iter().find(|(locked, _)| locked == name);
            record.map(|(_, version)| *version)
        };
        let sealed = |name: &TagName| {
            let stood = || stands.as_ref().map_or(NEVER, |hit| sealed_version(name, hit, None, scene));
            locked(name).unwrap_or_else(stood)
        };
        Some(offered(&offer, StoreMode::Set, Some(item.cas), sealed, scene))
    }

    /// What stood there when its end was put back was ours, or made from ours and as late; else that end was right.
    fn settled(
        &mut self,
        counted: Counted,
        used: Option<u32>,
        answers: Replies,
        scene: &Inputs<'_>,
    ) -> Step<ModifyEnd> {
        match (used, answers.into_iter().next()) {
            (Some(used), Some(ServerReply::Item(Item { ttl: Some(ttl), .. })))
                if ttl != used && ttl + 1 != used =>
            {
                self.state = State::Settling { counted, used: None };
                Step::Send(smallvec![touch(ttl, scene)])
            }
            _ => Step::Done(self.done(counted)),
        }
    }

    /// `mg T` cannot be made conditional. If another item stood there by then, and one whose end must not move, its end is
    /// put back, unless that has gone too.
    fn touched(&mut self, was: Hit, answers: Replies, scene: &Inputs<'_>) -> Step<ModifyEnd> {
        let back = match answers.into_iter().next() {
            Some(ServerReply::Item(item)) => match Stub::of(&item) {
                Some(stub) => stub.ask(Some(item.cas), scene.policy.lock_seconds()),
                None if item.stale => {
                    let seconds = Some(item.ttl.unwrap_or(0).max(1));
                    let what = Operation::MarkStale { seconds, cas: Some(item.cas), explicit: None };
                    ServerCommand { at: ItemRef::Value, what }
                }
                None => return Step::Done(ModifyEnd::Touched(was)),
            },
            Some(ServerReply::Failed(failure)) => return Step::Done(ModifyEnd::Failed(failure)),
            _ => return Step::Done(ModifyEnd::NotFound),
        };
        self.state = State::Untouching;
        Step::Send(smallvec![back])
    }
}

impl Machine for Modify {
    type End = ModifyEnd;

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<ModifyEnd> {
        let answers = event.answers();
        match std::mem::replace(&mut self.state, State::Looking) {
            State::Looking => {
                let mut answers = answers.into_iter();
                let item = match answers.next() {
                    Some(ServerReply::Item(item)) => Some(item),
                    Some(ServerReply::Failed(failure)) => return Step::Done(ModifyEnd::Failed(failure)),
                    // The server had no room even for a stub.
                    _ if self.creates => return Step::Done(ModifyEnd::Failed(Failure::Refused)),
                    _ => None,
                };
                let mut tags: Replies = answers.collect();
                if self.may_fill() {
                    self.lock = match tags.pop() {
                        Some(ServerReply::Item(lock)) => Some(lock),
                        _ => None,
                    };
                }
                self.gathered(item, Box::new(TagRead::new(scene.tags.len())), &tags, scene)
            }
            State::Learning { item } => {
                let mut gather = Box::new(TagRead::new(scene.tags.len()));
                let mut asks = Commands::new();
                gather.ask(&mut asks, scene);
                self.state = State::Tagging { item, gather };
                Step::Send(asks)
            }
            State::Tagging { item, gather } => self.gathered(item, gather, &answers, scene),
            State::Writing { counted, used } => self.written(counted, used, answers, scene),
            State::Settling { counted, used } => self.settled(counted, used, answers, scene),
            State::Touching { was } => self.touched(was, answers, scene),
            State::Untouching => Step::Done(match answers.into_iter().next() {
                Some(ServerReply::Failed(failure)) => ModifyEnd::Failed(failure),
                _ => ModifyEnd::NotFound,
            }),
        }
    }
}

impl Hit {
    /// Stands for an item that ended with the command that touched it, and for one without bytes or time.
    pub fn nothing() -> Hit {
        let (payload, header) = (Bytes::new(), Bytes::new());
        let usage = Usage::default();
        Hit { payload, flags: 0, cas: Cas::NONE, ttl: None, stale_ms: 0, rebuild: 0, usage, header }
    }
}

impl Counted {
    const NOTHING: Counted = Counted { number: 0, cas: Cas::NONE, ttl: None, created: false };
}

/// What an append has made: its number is the value's size.
fn extended(size: usize, created: bool) -> Counted {
    Counted { number: size as u64, created, ..Counted::NOTHING }
}

fn begun(lifetime: Expiry, initial: u64, explicit: Option<u64>) -> NewValue {
    let body = Bytes::from(initial.to_string());
    NewValue { body, flags: 0, lifetime, explicit, tags: TagNames::new() }
}

/// Stores an offer in place of what has this CAS. `version` says with which version of each tag it is sealed.
fn offered(
    offer: &NewValue,
    mode: StoreMode,
    cas: Option<Cas>,
    version: impl Fn(&TagName) -> u64,
    scene: &Inputs<'_>,
) -> ServerCommand {
    match (offer.lifetime, cas) {
        (Expiry::Expired, Some(cas)) => delete(ItemRef::Value, Some(cas)),
        _ => {
            let (tags, began) = (offer.tags(scene, version), (scene.now, 0));
            offer.clone().store(mode, cas, tags, began, None, scene).0
        }
    }
}

/// Stores an offer where there is no logical item, in place of what stands there.
fn created(
    offer: &NewValue,
    item: Option<&Item>,
    version: impl Fn(&TagName) -> u64,
    scene: &Inputs<'_>,
) -> ServerCommand {
    let (mode, cas) = match item {
        None => (StoreMode::Add, None),
        Some(item) => (StoreMode::Set, Some(item.cas)),
    };
    let (tags, began) = (offer.tags(scene, version), (scene.now, 0));
    let stub = item.and_then(Stub::of).map(|stub| stub.id);
    offer.clone().store(mode, cas, tags, began, stub, scene).0
}

/// Gives the item so many seconds, and asks what it had.
fn touch(seconds: u32, scene: &Inputs<'_>) -> ServerCommand {
    let touch = Some(Expiry::Seconds(u64::from(seconds.max(1))).exptime(0, scene.now));
    ServerCommand { at: ItemRef::Value, what: Operation::Get(GetFlags { touch, ..GetFlags::default() }) }
}

/// The exptime of an item that is to be fresh for so long. One without an envelope has no soft expiry.
fn soft(lifetime: Expiry, hit: &Hit, scene: &Inputs<'_>) -> i64 {
    let extra = if hit.header.is_empty() { 0 } else { scene.policy.stale_seconds() };
    lifetime.at_most(scene.policy.max_ttl.as_secs()).exptime(extra, scene.now)
}

/// The same item with another body: behind the same header, with the same flags and end.
fn changed(hit: &Hit, body: Bytes, exptime: i64, explicit: Option<u64>) -> ServerCommand {
    let value = Stored { header: hit.header.clone(), body };
    let what = Operation::Store {
        mode: StoreMode::Set,
        value,
        flags: hit.flags,
        exptime,
        cas: Some(hit.cas),
        explicit,
    };
    ServerCommand { at: ItemRef::Value, what }
}

/// The version that an item was sealed with. A tag that it was not sealed with counts only if it has not moved since the item
/// was built: whoever made a new value from this one may have read the data then.
fn sealed_version(name: &TagName, hit: &Hit, versions: Option<&Versions>, scene: &Inputs<'_>) -> u64 {
    let Opened::Sealed { envelope, .. } = Header::open(&hit.header) else {
        // When it was built nobody knows, and of a tag that its rule does not name nobody looked when it was read.
        let now = versions.filter(|_| scene.own().contains(name));
        return now.and_then(|versions| version_of(name, versions, scene)).unwrap_or(NEVER);
    };
    let sealed = envelope.tags().find(|(sealed, _)| *sealed == &name[..]).map(|(_, version)| version);
    let unmoved = |version: &u64| !may_have_moved(*version, envelope.begun_at());
    let now = || versions.and_then(|versions| version_of(name, versions, scene)).filter(unmoved);
    sealed.or_else(now).unwrap_or(NEVER)
}

/// What `incr` and `decr` make of a value: the number, and its text, which keeps the old length by trailing spaces if it got
/// shorter (protocol.txt, "Increment/Decrement"). A value is a number when C's `strtoull` says so, as in memcached.
fn count(payload: &[u8], decr: bool, delta: u64) -> Option<(u64, Bytes)> {
    let text = payload.split(|&byte| byte == 0).next()?;
    let value = c_uint64(text)?;
    let counted = if decr { value.saturating_sub(delta) } else { value.wrapping_add(delta) };
    let mut body = BytesMut::from(counted.to_string().as_bytes());
    if body.len() < payload.len() {
        body.resize(payload.len(), b' ');
    }
    Some((counted, body.freeze()))
}

#[cfg(test)]
mod tests;
