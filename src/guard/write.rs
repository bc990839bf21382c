//! How a value gets under a guarded key: as the fill that ends a rebuild, or blindly.

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, Expiry, Item, ItemRef, Now, Operation, ServerCommand, ServerReply, StoreMode, Stored,
    delete, get, look_or_stub, peek,
};
use super::envelope::{Envelope, Header, Opened, TagName, Tags, built_at};
use super::leases::{MissToken, Observed};
use super::modify::PATIENCE_MS;
use super::stub::{Stub, StubId};
use super::tags::{MAX_ROUNDS, TagRead, Versions, version_millis};
use super::{Event, Inputs, Machine, Step, TagNames};

/// A value as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewValue {
    /// Its bytes.
    pub body: Bytes,
    /// The client's flags.
    pub flags: u32,
    /// How long it is fresh. Never [`Expiry::Expired`]: that is a delete.
    pub lifetime: Expiry,
    /// `E`: the CAS that the client wants it to have.
    pub explicit: Option<u64>,
    /// The tags that came with it, beside those of the rule. The scene knows them, as if they had been learnt.
    pub tags: TagNames,
}

/// How far apart the clocks of two sidecars are trusted to be at most, in ms: a tag that moved so shortly before a miss may have
/// moved after it.
const CLOCK_SKEW_MS: u64 = 10_000;

/// A version that no tag ever has: what is sealed with it is stale from the start.
pub(super) const NEVER: u64 = 0;

impl NewValue {
    /// The same, to be stored as stale.
    pub(super) fn stale(&self) -> NewValue {
        // Its fresh seconds are over, and those of `stale_for` begin.
        NewValue { lifetime: Expiry::Seconds(0), ..self.clone() }
    }

    /// The tags it is sealed with: the rule's and its own. `version` says which version of each.
    pub(super) fn tags(&self, scene: &Inputs<'_>, version: impl Fn(&TagName) -> u64) -> Tags {
        let own = scene.own();
        let names = own.iter().chain(self.tags.iter().filter(|name| !own.contains(name)));
        names.map(|name| (name.clone(), version(name))).collect()
    }

    /// The command that stores it, wrapped and sealed with the versions that were read before it was built. `stub`: over which it is
    /// stored, if that is known.
    ///
    /// A value that would be too large once wrapped is stored plain, if it has no tags that a plain value would outlive.
    pub(super) fn store(
        self,
        mode: StoreMode,
        cas: Option<Cas>,
        tags: Tags,
        built: (Now, u64),
        stub: Option<StubId>,
        scene: &Inputs<'_>,
    ) -> (ServerCommand, bool) {
        let (began, rebuild) = built;
        let lifetime = self.lifetime.at_most(scene.policy.max_ttl.as_secs());
        let mut header = BytesMut::new();
        let untagged = tags.is_empty();
        let sealed = Envelope {
            stale_for: scene.policy.stale_seconds(),
            built_at: built_at(began.wall, stub.map_or(0, StubId::number)),
            rebuild: u32::try_from(rebuild).unwrap_or(u32::MAX),
            tags,
        }
        .seal(&mut header);
        let plain = untagged && (sealed.is_err() || header.len() + self.body.len() > scene.room);
        let (header, extra) =
            if plain { (Bytes::new(), 0) } else { (header.freeze(), scene.policy.stale_seconds()) };
        let exptime = lifetime.exptime(extra, scene.now);
        let value = Stored { header, body: self.body };
        let what = Operation::Store { mode, value, flags: self.flags, exptime, cas, explicit: self.explicit };
        (ServerCommand { at: ItemRef::Value, what }, plain)
    }
}

/// Which of a scene's tags has which version.
pub(super) fn version_of(name: &TagName, versions: &Versions, scene: &Inputs<'_>) -> Option<u64> {
    scene.tags.iter().zip(versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
}

/// Whether a tag may have moved at this moment of the wall clock or after it.
pub(super) fn may_have_moved(version: u64, since: u64) -> bool {
    version_millis(version) + CLOCK_SKEW_MS >= since
}

/// The `set` that ends a rebuild: stored only if nothing has happened to the key since the miss was answered.
///
/// What stands there may have another CAS though nothing has happened to the key: the stub may have been renewed, or another's fill may
/// stand in its place that was out of date before it was stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fill {
    plain: bool,
    state: FillState,
    rounds: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FillState {
    /// It comes with tags that were not looked at when the miss was answered, or is to be stored only if no tag has moved since.
    Tagging(Box<Tagging>),
    Storing(Box<Storing>),
    /// What it was to be stored over has another CAS.
    Looking(Box<Storing>),
    /// It is stored under this CAS, in place of what another builds anew.
    Unlocking(Cas),
    Done,
}

/// What is to be stored, and the stub that it is to be stored over, whatever CAS that has by now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Storing {
    ask: ServerCommand,
    over: Option<Observed>,
    /// The lock of whoever builds what it replaces: nobody is to wait for that any more.
    lock: Option<Cas>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tagging {
    lease: MissToken,
    offer: NewValue,
    adds: bool,
    gather: TagRead,
}

/// How a fill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillEnd {
    /// It is stored, under this CAS.
    Stored {
        /// Its CAS.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// The key was deleted, overwritten or lost since the miss: the value is dropped, and the client is told that it was
    /// stored, because "stored, then invalidated" looks exactly like this.
    Dropped {
        /// Something else stands there now.
        exists: bool,
    },
    /// It is an `add`, and a tag has moved since the miss: nothing is stored. What the miss saw may stand there yet.
    Outdated,
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it is stored is not known.
    Failed(Failure),
}

impl MissToken {
    /// The version that a tag had when this was seen.
    fn version(&self, name: &TagName, scene: &Inputs<'_>) -> Option<u64> {
        let names = scene.own().iter().chain(&self.learnt);
        names.zip(&self.versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
    }
}

impl Fill {
    /// Begins. `adds`: it is told whether it was stored, so it is not if a tag has moved since the miss; else it may be
    /// stored as a value that is stale from the start.
    pub fn start(
        lease: &MissToken,
        offer: NewValue,
        adds: bool,
        scene: &Inputs<'_>,
    ) -> (Fill, Step<FillEnd>) {
        let mut fill = Fill { plain: false, state: FillState::Done, rounds: 0 };
        if lease.base.is_none() {
            return (fill, Step::Done(FillEnd::Dropped { exists: false }));
        }
        let checks = |name: &TagName| adds && scene.own().contains(name);
        let knows = |name: &TagName| lease.version(name, scene).is_some();
        if offer.tags.iter().all(knows) && !scene.own().iter().any(checks) {
            let tags = offer.tags(scene, |name| lease.version(name, scene).unwrap_or(NEVER));
            let step = fill.store(lease, offer, tags, scene);
            return (fill, step);
        }
        let known = scene.tags.iter().map(|name| lease.version(name, scene).filter(|_| !checks(name)));
        let mut tagging = Tagging { lease: lease.clone(), offer, adds, gather: TagRead::knowing(known) };
        let mut asks = Commands::new();
        tagging.gather.ask(&mut asks, scene);
        fill.state = FillState::Tagging(Box::new(tagging));
        (fill, Step::Send(asks))
    }

    fn store(&mut self, lease: &MissToken, offer: NewValue, tags: Tags, scene: &Inputs<'_>) -> Step<FillEnd> {
        let rebuild = scene.now.mono.saturating_sub(lease.at.mono);
        let built = (lease.at, rebuild);
        let (ask, plain) = offer.store(StoreMode::Set, lease.base, tags, built, lease.stub, scene);
        self.plain = plain;
        let mut asks: Commands = smallvec![ask.clone()];
        if let Some(lock) = lease.lock {
            asks.push(delete(ItemRef::Lock, Some(lock)));
        }
        let over = (lease.stub.is_some() && !lease.filled).then(|| lease.over());
        self.state = FillState::Storing(Box::new(Storing { ask, over, lock: None }));
        Step::Send(asks)
    }

    /// Looks at what stands there, and with tags at whether that is out of date.
    fn look(&mut self, storing: Box<Storing>, scene: &Inputs<'_>) -> Step<FillEnd> {
        let mut asks: Commands =
            smallvec![if scene.own().is_empty() { peek(ItemRef::Value) } else { get(ItemRef::Value) }];
        asks.push(peek(ItemRef::Lock));
        TagRead::new(scene.tags.len()).ask(&mut asks, scene);
        self.rounds += 1;
        self.state = FillState::Looking(storing);
        Step::Send(asks)
    }

    /// What stands there has another CAS. If it is still the stub of the miss, nothing has been stored or deleted since.
    fn looked(
        &mut self,
        mut storing: Box<Storing>,
        answers: &[ServerReply],
        scene: &Inputs<'_>,
    ) -> Step<FillEnd> {
        let (item, lock, tags) = match answers {
            [ServerReply::Item(item), lock, tags @ ..] => (item, lock, tags),
            [ServerReply::Failed(failure), ..] => return Step::Done(FillEnd::Failed(*failure)),
            _ => return Step::Done(FillEnd::Dropped { exists: false }),
        };
        storing.lock = match lock {
            ServerReply::Item(lock) => Some(lock.cas),
            _ => None,
        };
        let mut gather = TagRead::new(scene.tags.len());
        let now = gather.absorb(tags, scene).ok().and_then(|()| gather.known());
        // What is out of date before it is stored would only be in the way of whoever builds it anew.
        let is_current = now.as_ref().is_none_or(|now| storing.is_current(now, scene));
        let outlives = |over: &Observed| now.as_ref().is_some_and(|now| over.outlives(item, now, scene));
        let is_over = storing.over.as_ref().is_some_and(|over| over.is(item) || outlives(over));
        if self.rounds > MAX_ROUNDS || !is_over || !is_current {
            return Step::Done(FillEnd::Dropped { exists: true });
        }
        if let Operation::Store { cas, .. } = &mut storing.ask.what {
            *cas = Some(item.cas);
        }
        let ask = storing.ask.clone();
        self.state = FillState::Storing(storing);
        Step::Send(smallvec![ask])
    }

    /// A tag that is named only now may have moved during the rebuild, unless its version says that it has not.
    fn tagged(
        &mut self,
        mut tagging: Box<Tagging>,
        answers: &[ServerReply],
        scene: &Inputs<'_>,
    ) -> Step<FillEnd> {
        if let Err(failure) = tagging.gather.absorb(answers, scene) {
            return Step::Done(FillEnd::Failed(failure));
        }
        let Some(versions) = tagging.gather.versions() else {
            let mut asks = Commands::new();
            tagging.gather.ask(&mut asks, scene);
            self.state = FillState::Tagging(tagging);
            return Step::Send(asks);
        };
        let Tagging { lease, offer, adds, .. } = *tagging;
        let has_moved = |name| version_of(name, &versions, scene) != lease.version(name, scene);
        if adds && scene.own().iter().any(has_moved) {
            return Step::Done(FillEnd::Outdated);
        }
        let tags = offer.tags(scene, |name| match lease.version(name, scene) {
            Some(version) => version,
            None => version_of(name, &versions, scene)
                .filter(|version| !may_have_moved(*version, lease.at.wall))
                .unwrap_or(NEVER),
        });
        self.store(&lease, offer, tags, scene)
    }
}

impl Storing {
    /// Whether it is sealed with these versions of the scene's tags, or with none.
    fn is_current(&self, now: &Versions, scene: &Inputs<'_>) -> bool {
        let Operation::Store { value, .. } = &self.ask.what else { return false };
        let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { return true };
        envelope
            .tags()
            .all(|(name, sealed)| version_of(&TagName::from_slice(name), now, scene) == Some(sealed))
    }
}

impl Machine for Fill {
    type End = FillEnd;

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<FillEnd> {
        let answers = event.answers();
        let storing = match std::mem::replace(&mut self.state, FillState::Done) {
            FillState::Tagging(tagging) => return self.tagged(tagging, &answers, scene),
            FillState::Looking(storing) => return self.looked(storing, &answers, scene),
            FillState::Storing(storing) => storing,
            FillState::Unlocking(cas) => return Step::Done(FillEnd::Stored { cas, plain: self.plain }),
            FillState::Done => return Step::Done(FillEnd::Failed(Failure::Refused)),
        };
        Step::Done(match answers.into_iter().next() {
            Some(ServerReply::Stored(cas)) => {
                if storing.lock.is_some() {
                    self.state = FillState::Unlocking(cas);
                    return Step::Send(smallvec![delete(ItemRef::Lock, storing.lock)]);
                }
                FillEnd::Stored { cas, plain: self.plain }
            }
            Some(ServerReply::Exists) if storing.over.is_some() => return self.look(storing, scene),
            Some(ServerReply::Exists) => FillEnd::Dropped { exists: true },
            Some(ServerReply::Absent | ServerReply::NotStored) => FillEnd::Dropped { exists: false },
            Some(ServerReply::TooLarge) => FillEnd::TooLarge,
            Some(ServerReply::Failed(failure)) => FillEnd::Failed(failure),
            _ => FillEnd::Failed(Failure::Refused),
        })
    }
}

/// A `set` that ends no rebuild: stored over whatever stands there, and so it defeats a fill in flight.
///
/// It looks first, and stores over exactly what it saw, or over the stub that it left where nothing stood. A command that was
/// given up may yet be carried out, once its server comes back; one without a condition would then overwrite what is newer,
/// or bring back what a delete has taken away. The tags' versions are read in the same round.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    offer: NewValue,
    gather: TagRead,
    /// The tags' versions at the first look.
    first: Option<Versions>,
    state: Setting,
    plain: bool,
    /// The stub that it saw.
    stub: Option<StubId>,
    /// On the monotonic clock.
    began: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Setting {
    /// Asked for the key, and at first for its tags.
    Looking,
    /// Some tags were missing: they are being created.
    Tagging(Cas),
    Storing,
    /// Takes its own stub away.
    Leaving,
}

/// How a blind set ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetEnd {
    /// It is stored, under this CAS.
    Stored {
        /// Its CAS.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// Others were quicker, and a tag has moved meanwhile: the value is dropped, and the client is told that it was stored, because
    /// "stored, then invalidated" looks exactly like this.
    Dropped,
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it is stored is not known.
    Failed(Failure),
}

impl Set {
    /// Begins.
    pub fn start(offer: NewValue, scene: &Inputs<'_>) -> (Set, Commands) {
        let gather = TagRead::new(scene.tags.len());
        let (first, state, began) = (None, Setting::Looking, scene.now.mono);
        let mut set = Set { offer, gather, first, state, plain: false, stub: None, began };
        let mut asks: Commands = smallvec![look_or_stub(scene)];
        set.gather.ask(&mut asks, scene);
        (set, asks)
    }

    /// What was sent before a bump is no newer for having been overtaken: it must not replace what has been stored since.
    fn looked(&mut self, item: &Item, tags: &[ServerReply], scene: &Inputs<'_>) -> Step<SetEnd> {
        self.stub = Stub::of(item).map(|stub| stub.id);
        let Some(before) = self.first.clone() else { return self.seen(item.cas, tags, scene) };
        let mut now = TagRead::new(scene.tags.len());
        if let Err(failure) = now.absorb(tags, scene) {
            return Step::Done(SetEnd::Failed(failure));
        }
        if now.known() == Some(before) {
            return self.store(item.cas, scene);
        }
        match item.won && item.size == 0 {
            true => {
                self.state = Setting::Leaving;
                Step::Send(smallvec![delete(ItemRef::Value, Some(item.cas))])
            }
            false => Step::Done(SetEnd::Dropped),
        }
    }

    fn seen(&mut self, base: Cas, tags: &[ServerReply], scene: &Inputs<'_>) -> Step<SetEnd> {
        if let Err(failure) = self.gather.absorb(tags, scene) {
            return Step::Done(SetEnd::Failed(failure));
        }
        self.first = self.gather.versions();
        self.store(base, scene)
    }

    fn store(&mut self, base: Cas, scene: &Inputs<'_>) -> Step<SetEnd> {
        let mut asks = Commands::new();
        match self.first.clone() {
            Some(versions) => {
                let built = (scene.now, 0);
                let version = |name: &TagName| version_of(name, &versions, scene).unwrap_or(NEVER);
                let tags = self.offer.tags(scene, version);
                let offer = self.offer.clone();
                let (ask, plain) = offer.store(StoreMode::Set, Some(base), tags, built, self.stub, scene);
                (self.state, self.plain) = (Setting::Storing, plain);
                asks.push(ask);
            }
            None => {
                self.state = Setting::Tagging(base);
                self.gather.ask(&mut asks, scene);
            }
        }
        Step::Send(asks)
    }
}

impl Machine for Set {
    type End = SetEnd;

    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<SetEnd> {
        let answers = event.answers();
        match (self.state, &answers[..]) {
            (Setting::Looking, [ServerReply::Item(item), tags @ ..]) => self.looked(item, tags, scene),
            (Setting::Leaving, _) => Step::Done(SetEnd::Dropped),
            (Setting::Tagging(base), tags) => self.seen(base, tags, scene),
            (_, [ServerReply::Failed(failure), ..]) => Step::Done(SetEnd::Failed(*failure)),
            (Setting::Storing, [ServerReply::Stored(cas)]) => {
                Step::Done(SetEnd::Stored { cas: *cas, plain: self.plain })
            }
            (Setting::Storing, [ServerReply::TooLarge]) => Step::Done(SetEnd::TooLarge),
            // Somebody was here between the look and the store.
            (Setting::Storing, [ServerReply::Exists | ServerReply::Absent | ServerReply::NotStored]) => {
                if scene.now.mono >= self.began.saturating_add(PATIENCE_MS) {
                    return Step::Done(SetEnd::Failed(Failure::Overloaded));
                }
                self.state = Setting::Looking;
                let mut asks: Commands = smallvec![look_or_stub(scene)];
                TagRead::new(scene.tags.len()).ask(&mut asks, scene);
                Step::Send(asks)
            }
            _ => Step::Done(SetEnd::Failed(Failure::Refused)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Count, Item, Modify, Policy, Replies, Usage, modify::Change};

    fn on<T>(mono: u64, run: impl FnOnce(&Inputs<'_>) -> T) -> T {
        let now = Now { wall: 1_700_000_000_000 + mono, mono };
        let policy = Policy::default();
        let tags = [b"tag".as_slice().into()];
        let (sidecar, room, copies, patient, chance) = (1, 1 << 20, false, false, 1.0);
        run(&Inputs { policy: &policy, tags: &tags, learnt: 0, sidecar, room, copies, now, patient, chance })
    }

    fn item(value: &'static str, number: u64) -> ServerReply {
        let value = Bytes::from_static(value.as_bytes());
        let (size, cas, usage) = (value.len(), Cas { number, epoch: 1 }, Usage::default());
        ServerReply::Item(Item { value, size, flags: 0, cas, ttl: None, won: false, stale: false, usage })
    }

    fn offer() -> NewValue {
        NewValue {
            body: Bytes::from_static(b"7"),
            flags: 0,
            lifetime: Expiry::Seconds(60),
            explicit: None,
            tags: Vec::new(),
        }
    }

    /// The only store among these commands: its mode, its condition, and the version that its envelope was sealed with.
    fn store(asks: &Commands) -> (StoreMode, Option<u64>, Option<u64>) {
        let [ServerCommand { at: ItemRef::Value, what: Operation::Store { mode, value, cas, .. } }] =
            &asks[..]
        else {
            panic!("not a store: {asks:?}")
        };
        let header = crate::guard::envelope::Header::open(&value.header);
        let crate::guard::envelope::Opened::Sealed { envelope, .. } = header else { panic!("{value:?}") };
        (*mode, cas.map(|cas| cas.number), envelope.tags().next().map(|(_, version)| version))
    }

    #[test]
    fn a_set_stores_over_nothing_but_what_it_saw_unless_a_tag_has_moved_since_it_looked_first() {
        let (mut set, asks) = on(0, |scene| Set::start(offer(), scene));
        assert_eq!(asks[0], on(0, look_or_stub));
        let mut answered = |mono, answers: &[ServerReply]| {
            let answers = Event::Replies(answers.iter().cloned().collect());
            on(mono, |scene| set.resume(answers, scene))
        };
        let Step::Send(asks) = answered(1, &[item("", 11), item("50", 3)]) else { panic!("it goes on") };
        assert_eq!(store(&asks), (StoreMode::Set, Some(11), Some(50)));
        // Overtaken, for as long as it has patience.
        for (mono, lost) in [(2, ServerReply::Exists), (3, ServerReply::Absent)] {
            let Step::Send(asks) = answered(mono, &[lost]) else { panic!("it looks again") };
            assert_eq!((asks.len(), &asks[0]), (2, &on(mono, look_or_stub)));
            let again = answered(mono, &[item("another's", 12), item("50", 3)]);
            let Step::Send(asks) = again else { panic!("it goes on") };
            assert_eq!(store(&asks), (StoreMode::Set, Some(12), Some(50)));
        }
        answered(4, &[ServerReply::Exists]);
        let moved = answered(4, &[item("another's", 13), item("51", 4)]);
        assert_eq!(moved, Step::Done(SetEnd::Dropped), "it would be stale where that is fresh");
    }

    #[test]
    fn a_set_that_is_overtaken_again_and_again_gives_up_and_one_that_is_dropped_leaves_no_stub() {
        let (mut set, _) = on(0, |scene| Set::start(offer(), scene));
        let mut answered = |mono, answers: &[ServerReply]| {
            let answers = Event::Replies(answers.iter().cloned().collect());
            on(mono, |scene| set.resume(answers, scene))
        };
        answered(1, &[item("", 11), item("50", 3)]);
        answered(1, &[ServerReply::Exists]);
        let ServerReply::Item(stub) = item("", 12) else { panic!("an item") };
        let cas = stub.cas;
        let own = ServerReply::Item(Item { won: true, ..stub });
        let left = answered(2, &[own, item("51", 4)]);
        assert_eq!(left, Step::Send(smallvec![delete(ItemRef::Value, Some(cas))]));
        assert_eq!(answered(3, &[ServerReply::Done]), Step::Done(SetEnd::Dropped));
        let (mut set, _) = on(0, |scene| Set::start(offer(), scene));
        let mut answered = |mono, answers: &[ServerReply]| {
            let answers = Event::Replies(answers.iter().cloned().collect());
            on(mono, |scene| set.resume(answers, scene))
        };
        answered(1, &[item("", 11), item("50", 3)]);
        let end = Step::Done(SetEnd::Failed(Failure::Overloaded));
        assert_eq!(answered(PATIENCE_MS, &[ServerReply::Exists]), end);
    }

    const SEEN: Cas = Cas { number: 11, epoch: 1 };

    /// Of whoever was told a miss over the stub 11, while the tag was at 50.
    fn ticket() -> MissToken {
        on(0, |scene| MissToken::of_stub(SEEN, StubId::of(SEEN.number), smallvec![50], scene))
    }

    /// A value that stands there, sealed at this version over the stub with this number.
    fn stands(version: u64, stub: u64, stale: bool) -> ServerReply {
        let tags = [(TagName::from_slice(b"tag"), version)].into_iter().collect();
        let built_at = built_at(7, StubId::of(stub).number());
        let mut value = BytesMut::new();
        Envelope { stale_for: 60, built_at, rebuild: 0, tags }.seal(&mut value).unwrap();
        let ServerReply::Item(item) = item("", 20) else { panic!("an item") };
        ServerReply::Item(Item { size: value.len(), value: value.freeze(), stale, ..item })
    }

    /// The same, in a server that has been restarted.
    fn of_another_life(stands: ServerReply) -> ServerReply {
        let ServerReply::Item(item) = stands else { panic!("an item") };
        ServerReply::Item(Item { cas: Cas { epoch: 2, ..item.cas }, ..item })
    }

    #[test]
    fn a_fill_replaces_what_was_out_of_date_before_its_miss_and_was_stored_over_the_same_stub() {
        let cases = [
            (stands(49, 11, false), "50", true),
            (stands(50, 11, false), "50", false),
            (stands(49, 11, false), "51", false),
            (stands(49, 12, false), "50", false),
            (stands(49, 0, false), "50", false),
            // Whoever stored it knew of a move that this reader has not heard of.
            (stands(51, 11, false), "50", false),
            (stands(49, 11, true), "50", false),
            (of_another_life(stands(49, 11, false)), "50", false),
        ];
        for (stands, tag, replaces) in cases {
            let (mut fill, step) = on(0, |scene| Fill::start(&ticket(), offer(), false, scene));
            let Step::Send(asks) = step else { panic!("{step:?}") };
            assert_eq!(store(&asks), (StoreMode::Set, Some(11), Some(50)));
            let mut answered = |answers: Replies| on(1, |scene| fill.resume(Event::Replies(answers), scene));
            let Step::Send(asks) = answered(smallvec![ServerReply::Exists]) else { panic!("it looks") };
            assert_eq!(asks[0], get(ItemRef::Value));
            let end = answered(smallvec![stands.clone(), ServerReply::Absent, item(tag, 3)]);
            match (replaces, end) {
                (true, Step::Send(asks)) => assert_eq!(store(&asks), (StoreMode::Set, Some(20), Some(50))),
                (false, end) => assert_eq!(end, Step::Done(FillEnd::Dropped { exists: true }), "{stands:?}"),
                (true, end) => panic!("{end:?}"),
            }
        }
    }

    #[test]
    fn a_fill_that_is_out_of_date_by_now_does_not_take_the_place_of_a_renewed_stub() {
        for (tag, stored) in [("50", true), ("51", false)] {
            let (mut fill, _) = on(0, |scene| Fill::start(&ticket(), offer(), false, scene));
            let mut answered = |answers: Replies| on(1, |scene| fill.resume(Event::Replies(answers), scene));
            answered(smallvec![ServerReply::Exists]);
            let ServerReply::Item(renewed) = item("", 12) else { panic!("an item") };
            let renewed = ServerReply::Item(Item { flags: StubId::of(SEEN.number).flags(), ..renewed });
            let end = answered(smallvec![renewed, ServerReply::Absent, item(tag, 3)]);
            assert_eq!(matches!(end, Step::Send(_)), stored, "{end:?}");
        }
    }

    #[test]
    fn a_value_without_room_for_a_header_is_stored_over_its_stub_though_that_was_renewed() {
        let run = |mono, run: &mut dyn FnMut(&Inputs<'_>) -> Step<FillEnd>| {
            on(mono, |scene| run(&Inputs { tags: &[], room: 1, ..*scene }))
        };
        let seen = MissToken { versions: Versions::new(), ..ticket() };
        let mut fill = None;
        let step = run(0, &mut |scene| {
            let (started, step) = Fill::start(&seen, offer(), false, scene);
            fill = Some(started);
            step
        });
        assert!(matches!(step, Step::Send(_)), "{step:?}");
        let mut fill = fill.unwrap();
        let mut answered =
            |answers: Replies| run(1, &mut |scene| fill.resume(Event::Replies(answers.clone()), scene));
        answered(smallvec![ServerReply::Exists]);
        let ServerReply::Item(renewed) = item("", 12) else { panic!("an item") };
        let renewed = ServerReply::Item(Item { flags: StubId::of(SEEN.number).flags(), ..renewed });
        let Step::Send(asks) = answered(smallvec![renewed, ServerReply::Absent]) else {
            panic!("it is stored")
        };
        let Operation::Store { value, cas, .. } = &asks[0].what else { panic!("{asks:?}") };
        assert_eq!((value.header.len(), cas.map(|cas| cas.number)), (0, Some(12)));
    }

    #[test]
    fn a_fill_that_replaces_what_another_builds_anew_takes_the_lock_away_once_it_is_stored() {
        let (mut fill, _) = on(0, |scene| Fill::start(&ticket(), offer(), false, scene));
        let mut answered = |answers: Replies| on(1, |scene| fill.resume(Event::Replies(answers), scene));
        answered(smallvec![ServerReply::Exists]);
        let Step::Send(asks) = answered(smallvec![stands(49, 11, false), item("lock", 9), item("50", 3)])
        else {
            panic!("it stores")
        };
        assert_eq!(store(&asks), (StoreMode::Set, Some(20), Some(50)));
        let cas = Cas { number: 30, epoch: 1 };
        let unlock = answered(smallvec![ServerReply::Stored(cas)]);
        let lock = Some(Cas { number: 9, epoch: 1 });
        assert_eq!(unlock, Step::Send(smallvec![delete(ItemRef::Lock, lock)]));
        let end = answered(smallvec![ServerReply::Done]);
        assert_eq!(end, Step::Done(FillEnd::Stored { cas, plain: false }));
    }

    #[test]
    fn an_add_is_stored_only_if_no_tag_has_moved_since_its_miss() {
        for (tag, stored) in [("50", true), ("51", false)] {
            let (mut fill, step) = on(0, |scene| Fill::start(&ticket(), offer(), true, scene));
            let Step::Send(asks) = step else { panic!("{step:?}") };
            assert!(asks.iter().all(|ask| ask.at == ItemRef::Tag(0)), "{asks:?}");
            let answers = Event::Replies(smallvec![item(tag, 3)]);
            match on(1, |scene| fill.resume(answers, scene)) {
                Step::Send(asks) if stored => assert_eq!(store(&asks), (StoreMode::Set, Some(11), Some(50))),
                end => assert_eq!((end, stored), (Step::Done(FillEnd::Outdated), false)),
            }
        }
    }

    #[test]
    fn what_creates_an_item_stores_over_a_stub() {
        let create = Some((Expiry::Seconds(60), 5));
        for change in [Change::Add(offer()), Change::Count(Count { create, ..Count::default() })] {
            let (mut modify, asks) = on(0, |scene| Modify::start(change, scene));
            assert!(
                matches!(
                    asks[0].what,
                    Operation::Get(super::super::command::GetFlags { vivify: Some(6), .. })
                ),
                "{asks:?}"
            );
            let answers = Event::Replies(smallvec![item("", 11), item("50", 3)]);
            let Step::Send(asks) = on(1, |scene| modify.resume(answers, scene)) else { panic!("it goes on") };
            assert_eq!(store(&asks), (StoreMode::Set, Some(11), Some(50)));
        }
    }
}
