//! What applications store and change, and how each command ends.

use bytes::Bytes;
use kennel::guard::leases::{Attribution, MissToken, Owner, StoreCondition, Writer};
use kennel::guard::{
    Change, Count, Counted, Delete, Expiry, Fill, FillEnd, FillKind, Inputs, Modify, ModifyEnd, NewValue,
    Removal, Set, SetEnd, Step, StubId, TagNames, Versions, named_cas,
};

use super::checker::{DisruptionKind, Rebuild, RebuildId, ValueId, Violation, millis, violation};
use super::clients::{Client, Job};
use super::counting::Cause;
use super::mutants::Mutant;
use super::operation::{COUNTS, Op, Purpose, Task};
use super::plan::LARGE;
use super::tags::named;
use super::world::World;

/// The command with which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMethod {
    Set,
    Add,
    Replace,
    Cas(u64),
    /// `ms C` with the CAS of the miss. `elsewhere`: through a different sidecar from the one that returned the miss.
    MetaCas {
        cas: u64,
        elsewhere: bool,
    },
}

/// A value to be built and stored.
#[derive(Debug, Clone)]
pub struct Build {
    pub key: usize,
    method: StoreMethod,
    pub value: ValueId,
    ttl: u64,
    pub rebuild: Option<RebuildId>,
    /// When the read that it is based on was sent, or when it began.
    made: u64,
    /// The server that had its key then.
    server: usize,
    /// The tags that it names in addition to those of its rule.
    extra: TagNames,
}

impl Build {
    /// Sets when the read was sent that the value is based on, and to which server.
    pub fn since(self, last_read: u64, server: usize) -> Build {
        Build { made: last_read, server, ..self }
    }
}

/// A store in progress.
#[derive(Debug, Clone)]
pub struct PendingStore {
    pub client: usize,
    generation: u32,
    sidecar: usize,
    owner: Owner,
    pub build: Build,
    body: Bytes,
    /// The version of one of its tags is unknown: it is stale from the start.
    pub stale_from_start: bool,
    /// The latest arrival of its commands.
    pub late: u64,
    /// The sidecar that granted the lease does not see that this store ends it.
    lock_outlives_fill: bool,
    /// The miss that it fills, and the miss's connection if that is another one.
    fills: Option<(MissToken, Option<Owner>)>,
    /// The miss holds the lease.
    holds_lease: bool,
}

/// A command in progress that changes the current value.
#[derive(Debug, Clone)]
pub struct PendingChange {
    client: usize,
    generation: u32,
    disruption: (usize, Option<usize>),
    /// The value that `ma N` would create.
    creates: Option<ValueId>,
    owner: Owner,
}

impl PendingStore {
    /// The stub that its client missed, if any.
    pub fn stub(&self) -> Option<StubId> {
        self.fills.as_ref().and_then(|(token, _)| token.stub)
    }
}

impl World {
    fn ttl(&mut self) -> u64 {
        [1, 2, 3, 3, 0][self.below(5) as usize]
    }

    /// A value made from the source's current version.
    pub fn build(
        &mut self,
        client: usize,
        key: usize,
        method: StoreMethod,
        rebuild: Option<RebuildId>,
    ) -> Build {
        let (ttl, extra) = (self.ttl(), self.tags_named_with(client, key));
        let value = self.checker.value(key, ttl, false, extra.clone());
        let (made, server) = (self.now, self.place_of_key(self.clients[client].sidecar, key).server);
        Build { key, method, value, ttl, rebuild, made, server, extra: named(&extra) }
    }

    /// The same, without a miss.
    pub fn blind(&mut self, client: usize, key: usize, method: StoreMethod) -> Build {
        let (ttl, extra) = (self.ttl(), self.tags_named_with(client, key));
        let value = self.checker.value(key, ttl, true, extra.clone());
        let (made, server) = (self.now, self.place_of_key(self.clients[client].sidecar, key).server);
        Build { key, method, value, ttl, rebuild: None, made, server, extra: named(&extra) }
    }

    /// A command that is neither a read nor a fill.
    pub fn change(&mut self, client: usize, key: usize) -> Result<(), Violation> {
        let now = self.now;
        let ttl = self.ttl();
        let (x, mut creates, mut touches) = (Bytes::from_static(b"x"), None, None);
        let change = match self.below(7) {
            0 | 1 => {
                let method = if self.below(2) == 0 { StoreMethod::Replace } else { StoreMethod::Add };
                let build = self.blind(client, key, method);
                return self.store_next(client, vec![build]);
            }
            2 => Change::Append { more: x, compare: None, explicit: None, create: None },
            3 => Change::Prepend { more: x, compare: None, explicit: None, create: None },
            4 => {
                touches = Some(ttl);
                Change::Touch(Expiry::of(ttl as i64, self.local_now(self.clients[client].sidecar)))
            }
            5 => Change::Count(Count { delta: 1, ..Count::default() }),
            _ => {
                let ttl = self.ttl();
                let value = self.checker.value(key, ttl, true, Vec::new());
                self.checker.sent(value, None, now);
                creates = Some(value);
                let expiry = Expiry::of(ttl as i64, self.local_now(self.clients[client].sidecar));
                let create = Some((expiry, value as u64 * COUNTS));
                Change::Count(Count { delta: 1, create, ..Count::default() })
            }
        };
        let disruption = self.checker.changes(key, touches, now);
        let Client { sidecar, generation, .. } = self.clients[client];
        self.clients[client].job = Job::Storing(Vec::new());
        let owner = self.clients[client].owners[1];
        let known_miss = self.known_miss(sidecar, key, owner);
        let condition = match self.sidecars[sidecar].leases.store_condition(
            &self.plan.keys[key].key,
            owner,
            known_miss,
        ) {
            StoreCondition::Observed(observed) if creates.is_some() => Some(observed),
            _ => None,
        };
        let (modify, commands) =
            self.with_inputs(sidecar, key, |inputs| Modify::with_condition(change, condition, inputs));
        let pending = PendingChange { client, generation, disruption, creates, owner };
        let op = self.op(sidecar, key, Task::Modify(modify), Purpose::Change(pending));
        self.send_round(op, commands);
        Ok(())
    }

    pub fn change_done(&mut self, pending: PendingChange, op: &Op, end: ModifyEnd) -> Result<(), Violation> {
        let PendingChange { client, generation, disruption, creates, owner } = pending;
        let by = op.late.max(self.now);
        let end = self.modified(op.sidecar, op.key, owner, end);
        self.checker.changed(disruption, by);
        if let Some(value) = creates {
            match end {
                ModifyEnd::Failed(_) => self.checker.ended(value, self.now, by),
                _ => self.checker.acked(value, self.now),
            }
        }
        if let ModifyEnd::Counted(counted) = end {
            let (value, count) = World::value_of(counted.number.to_string().as_bytes())?;
            self.checker.counted(value, count)?;
        }
        self.continue_storing(client, generation)
    }

    pub fn continue_storing(&mut self, client: usize, generation: u32) -> Result<(), Violation> {
        let of = &mut self.clients[client];
        if of.generation != generation {
            return Ok(());
        }
        match std::mem::replace(&mut of.job, Job::Idle) {
            Job::Storing(rest) => self.store_next(client, rest),
            _ => panic!("client {client} has no store in progress"),
        }
    }

    pub fn store_next(&mut self, client: usize, mut builds: Vec<Build>) -> Result<(), Violation> {
        let Some(build) = builds.pop() else {
            self.make(client, Vec::new());
            return Ok(());
        };
        let Client { mut sidecar, generation, owners, .. } = self.clients[client];
        self.clients[client].job = Job::Storing(builds);
        let names = matches!(build.method, StoreMethod::MetaCas { .. } | StoreMethod::Cas(_));
        if names && self.restarted[build.server] >= build.made {
            // A restarted memcached may give the same CAS to another item. Clients cannot detect this, so the value is not
            // stored.
            if let Some(rebuild) = build.rebuild {
                self.give_up(rebuild);
            }
            return self.continue_storing(client, generation);
        }
        if let (StoreMethod::MetaCas { cas, elsewhere: false }, Some(rebuild)) = (build.method, build.rebuild)
            && self.below(20) == 0
        {
            return self.release_win(client, build.key, cas, rebuild);
        }
        let mut body = format!("{}", build.value as u64 * COUNTS);
        if self.plan.max_value < 1 << 20 && self.below(4) == 0 {
            body.extend(std::iter::repeat_n('.', LARGE));
        }
        if body.len() > LARGE {
            let until = self.now + 3 * self.plan.trip() + 2 * self.checker.grace();
            self.checker.may_remove(build.key, self.now, until);
        }
        self.checker.sent(build.value, build.rebuild, self.now);
        if let StoreMethod::MetaCas { elsewhere: true, .. } = build.method {
            sidecar = (sidecar + 1) % self.plan.sidecars;
            self.checker.may_replace(build.value, self.now);
        }
        let body = Bytes::from(body);
        self.put(PendingStore {
            client,
            generation,
            sidecar,
            owner: owners[1],
            build,
            body,
            stale_from_start: false,
            late: 0,
            lock_outlives_fill: false,
            fills: None,
            holds_lease: false,
        })
    }

    /// A meta client that will not rebuild releases its win: `md C` with the CAS of the win.
    fn release_win(
        &mut self,
        client: usize,
        key: usize,
        cas: u64,
        rebuild: RebuildId,
    ) -> Result<(), Violation> {
        self.give_up(rebuild);
        self.remove_won(client, key, cas);
        Ok(())
    }

    /// The fence under which a sidecar reads the CAS number that a client sends.
    fn fence_of_numbers(&self, sidecar: usize, key: usize) -> u64 {
        if self.plan.shares_numbers() { 0 } else { self.place_of_key(sidecar, key).fence() }
    }

    pub fn remove_won(&mut self, client: usize, key: usize, cas: u64) {
        let Client { sidecar, generation, owners, .. } = self.clients[client];
        let name = self.plan.keys[key].key.clone();
        let number = named_cas(cas, self.fence_of_numbers(sidecar, key));
        let mut removal = Removal { compare: Some(number), ..Removal::default() };
        match self.sidecars[sidecar].leases.attribute_by_cas(&name, number, owners[1], true) {
            Attribution::Fill { token, .. } if token.fence == self.place_of_key(sidecar, key).fence() => {
                removal.compare = token.observed_cas.map(|observed_cas| observed_cas.number)
            }
            Attribution::Fill { .. } => {}
            Attribution::Renewing => {
                let purpose = Purpose::ReleaseWin { client, generation, cas };
                let op = self.op(sidecar, key, Task::Parked, purpose);
                self.sidecars[sidecar].leases.await_renewal(&name, op.id);
                self.ops.insert(op.id, op);
                return;
            }
            Attribution::NoMiss | Attribution::Invalidated | Attribution::Unknown => {}
        }
        let until = self.now + 6 * self.plan.trip() + 2 * self.checker.grace();
        self.checker.may_remove(key, self.now, until);
        let (delete, commands) =
            self.with_inputs(sidecar, key, |inputs| Delete::with_removal(removal, inputs));
        let op = self.op(sidecar, key, Task::Delete(delete), Purpose::ReleaseWin { client, generation, cas });
        self.send_round(op, commands);
    }

    /// A sidecar receives a value, or may proceed after a wait.
    pub fn put(&mut self, mut put: PendingStore) -> Result<(), Violation> {
        let (sidecar, key) = (put.sidecar, put.build.key);
        let name = self.plan.keys[key].key.clone();
        let (owner, known_miss, now) =
            (put.owner, self.known_miss(sidecar, key, put.owner), self.local_now(sidecar));
        let fence = self.fence_of_numbers(sidecar, key);
        let leases = &mut self.sidecars[sidecar].leases;
        let fills = match put.build.method {
            StoreMethod::MetaCas { cas, .. } => leases.is_cas_of_miss(&name, named_cas(cas, fence), owner),
            method => method == StoreMethod::Set,
        };
        let attribution = match put.build.method {
            StoreMethod::Replace
                if leases.store_condition(&name, owner, known_miss) == StoreCondition::Renewing =>
            {
                Attribution::Renewing
            }
            StoreMethod::Replace | StoreMethod::Cas(_) => Attribution::NoMiss,
            StoreMethod::MetaCas { cas, .. } => {
                self.checker.coverage.named += 1;
                leases.attribute_by_cas(&name, named_cas(cas, fence), put.owner, false)
            }
            StoreMethod::Set | StoreMethod::Add => {
                let pooled = self.plan.pooled;
                leases.attribute(&name, Writer { owner, known_miss, pooled }, now)
            }
        };

        if fills && attribution != Attribution::Renewing {
            self.sidecars[sidecar].known_misses.remove(&(owner, key));
        }
        self.trace(|| {
            format!("put v{} {:?} by {:?}: {attribution:?}", put.build.value, put.build.method, put.owner)
        });
        put.lock_outlives_fill = match put.build.method {
            StoreMethod::MetaCas { elsewhere, .. } => elsewhere || attribution == Attribution::NoMiss,
            _ => false,
        };
        let new_value = NewValue {
            body: put.body.clone(),
            flags: 0,
            expiry: Expiry::of(put.build.ttl as i64, self.local_now(sidecar)),
            explicit: None,
            tags: put.build.extra.clone(),
        };
        let extra = put.build.extra.clone();
        match attribution {
            Attribution::Renewing => {
                let op = self.op(sidecar, key, Task::Parked, Purpose::Store(put));
                self.sidecars[sidecar].leases.await_renewal(&name, op.id);
                self.ops.insert(op.id, op);
                Ok(())
            }
            Attribution::Invalidated => self.dropped(put, true),
            Attribution::Unknown => panic!("{put:?} has a miss that was discarded"),
            Attribution::Fill { token, owner: miss_owner, .. }
                if put.build.method == StoreMethod::Add && token.filled =>
            {
                if miss_owner.is_none() {
                    let policy = self.plan.keys[key].policy.clone();
                    self.sidecars[sidecar].leases.record_miss(&name, owner, token, &policy);
                }
                self.not_stored(&put, false);
                self.stored(put, true)
            }
            Attribution::NoMiss => {
                let change = match put.build.method {
                    StoreMethod::Set => {
                        let start = |inputs: &Inputs<'_>| Set::start(new_value, inputs);
                        let (set, commands) = self.with_inputs_and_tags(sidecar, key, &extra, start);
                        let mut op = self.op(sidecar, key, Task::Set(set), Purpose::Store(put));
                        let places = extra.iter().map(|tag| self.places_of_tag(sidecar, tag)).collect();
                        op.learn(extra, places);
                        self.send_round(op, commands);
                        return Ok(());
                    }
                    StoreMethod::Add => Change::Add(new_value),
                    StoreMethod::Replace => Change::Replace(new_value),
                    StoreMethod::Cas(cas) => {
                        let number = named_cas(cas, fence);
                        Change::Cas { number, new_value, sees_stale: false, invalidate: false }
                    }
                    StoreMethod::MetaCas { cas, .. } => {
                        let number = named_cas(cas, fence);
                        Change::Cas { number, new_value, sees_stale: true, invalidate: false }
                    }
                };
                let condition = match self.sidecars[sidecar].leases.store_condition(&name, owner, known_miss)
                {
                    StoreCondition::Observed(observed) if put.build.method == StoreMethod::Replace => {
                        Some(observed)
                    }
                    _ => None,
                };
                let start = |inputs: &Inputs<'_>| Modify::with_condition(change, condition, inputs);
                let (modify, commands) = self.with_inputs_and_tags(sidecar, key, &extra, start);
                let mut op = self.op(sidecar, key, Task::Modify(modify), Purpose::Store(put));
                let places = extra.iter().map(|tag| self.places_of_tag(sidecar, tag)).collect();
                op.learn(extra, places);
                self.send_round(op, commands);
                Ok(())
            }
            Attribution::Fill { mut token, lease, owner } => {
                if self.plan.is(Mutant::FillUnderAnotherFence) {
                    token.fence = self.place_of_key(sidecar, key).fence();
                }
                if self.plan.is(Mutant::SnapshotAtSet) {
                    let names = [&self.plan.keys[key].tags[..], &token.added_tags].concat();
                    let tags: Option<Versions> = self.peek_tags(&names).into_iter().collect();
                    token.versions = tags.unwrap_or(token.versions);
                }
                let kind = match put.build.method {
                    StoreMethod::Add => FillKind::Add,
                    StoreMethod::MetaCas { .. } | StoreMethod::Cas(_) => FillKind::Compare,
                    StoreMethod::Set | StoreMethod::Replace => FillKind::Set,
                };
                let start = |inputs: &Inputs<'_>| Fill::start(&token, new_value, kind, inputs);
                let (fill, step) = self.with_inputs_and_tags(sidecar, key, &extra, start);
                let named = matches!(put.build.method, StoreMethod::MetaCas { .. });
                put.lock_outlives_fill |= named && !lease && put.build.rebuild.is_some();
                put.holds_lease = lease;
                put.fills = Some((token, owner));
                match step {
                    Step::Send(commands) => {
                        let mut op = self.op(sidecar, key, Task::Fill(fill), Purpose::Store(put));
                        let places = extra.iter().map(|tag| self.places_of_tag(sidecar, tag)).collect();
                        op.learn(extra, places);
                        self.send_round(op, commands);
                        Ok(())
                    }
                    Step::Done(end) => self.fill_done(put, end),
                    Step::AddTags(_) | Step::Wait(_) => panic!("a fill neither adds tags nor waits"),
                }
            }
        }
    }

    pub fn fill_done(&mut self, mut put: PendingStore, end: FillEnd) -> Result<(), Violation> {
        let (key, now) = (put.build.key, self.local_now(put.sidecar));
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let leases = &mut self.sidecars[put.sidecar].leases;
        match end {
            FillEnd::Stored { cas, .. } => {
                self.sidecars[put.sidecar].known_misses.remove(&(put.owner, key));
                let leases = &mut self.sidecars[put.sidecar].leases;
                let (token, spent) = put.fills.take().expect("it fills a miss");
                let waiters = leases.filled(&name, cas, &token, spent);
                if !self.plan.is(Mutant::FillWakesNoWaiter) {
                    self.wake_all(waiters);
                }
                // Other clients that rebuild the same key can no longer store theirs.
                let rebuilds = self.checker.rebuilds.iter().enumerate();
                let mut others = rebuilds.filter(|(at, _)| Some(*at) != put.build.rebuild);
                if others.any(|(_, other)| other.key == key && other.end.is_none()) {
                    let sent = self.sent_at(&put).unwrap_or(self.now);
                    self.checker.reasons.note(key, Cause::Replaced, sent, Some(self.now));
                }
                self.checker.stored[key] = Some(self.now);
                match put.stale_from_start {
                    true => self.not_stored(&put, false),
                    false => self.checker.filled(key, put.build.value, put.sidecar, self.now),
                }
                self.stored(put, true)
            }
            FillEnd::Dropped { .. } => {
                self.wake_key(put.sidecar, key);
                self.dropped(put, false)
            }
            FillEnd::Outdated => {
                if let Some((token, _)) = put.fills.take().filter(|_| put.holds_lease) {
                    self.send_direct(put.sidecar, key, token.release(&policy), Purpose::Superseded);
                }
                self.wake_key(put.sidecar, key);
                self.dropped(put, false)
            }
            FillEnd::TooLarge | FillEnd::Failed(_) => {
                if let (FillEnd::Failed(_), Some((token, None))) = (&end, put.fills.take()) {
                    leases.record_miss(&name, put.owner, token, &policy);
                    self.sidecars[put.sidecar].known_misses.insert((put.owner, key));
                }
                let leases = &mut self.sidecars[put.sidecar].leases;
                let waiters = leases.release_waiters(&name, now);
                self.wake_all(waiters);
                self.not_stored(&put, end == FillEnd::TooLarge);
                self.stored(put, end == FillEnd::TooLarge)
            }
        }
    }

    /// The value was not stored, but its client received success: allowed only if something has happened to the key since its
    /// miss.
    fn dropped(&mut self, put: PendingStore, invalidated: bool) -> Result<(), Violation> {
        self.checker.coverage.dropped += 1;
        // In a storm, a renewal may be overtaken by the end of its lease.
        let exact = !(self.plan.faults_matter()
            || self.plan.checks_only_freshness()
            || self.plan.pooled
            || put.lock_outlives_fill);
        match put.build.rebuild {
            Some(rebuild) if exact && !self.is_overtaken(rebuild) => {
                let (key, last_read) = (put.build.key, self.checker.rebuilds[rebuild].last_read);
                // With cached versions, a client may take over a lock that was claimed with equally old versions of another tag.
                let from = last_read.saturating_sub(self.plan.tag_cache);
                let now = self.now;
                let disruptions = self.checker.disruptions.iter().filter(|disruption| {
                    disruption.key == key
                        && disruption.begin <= now
                        && disruption.acked.is_none_or(|acked| acked >= from)
                });
                // Another client that missed the same stub may have filled it, with tags that were bumped meanwhile.
                let is_stored = self.checker.is_stored_since(key, last_read);
                // Another client was let through, which changes the CAS, and a value that is out of date is not stored then.
                let later = |other: &Rebuild| other.key == key && other.won > last_read;
                let let_through = put.stale_from_start && self.checker.rebuilds.iter().any(later);
                if disruptions.count() == 0 && !is_stored && !let_through {
                    let what = if invalidated { "invalidated" } else { "dropped" };
                    return violation(format!(
                        "nothing happened to key {key}, but a fill was {what}: {put:?}"
                    ));
                }
            }
            _ => self.not_stored(&put, false),
        }
        self.stored(put, true)
    }

    /// Whether a rebuild that began before a bump had not ended when this one began. Its client may take the lock over, find the
    /// value marked again and release the lock. It then still holds a CAS with which it can store in place of the next rebuild.
    fn is_overtaken(&self, rebuild: RebuildId) -> bool {
        let Rebuild { key, last_read, .. } = self.checker.rebuilds[rebuild];
        let bumped = |since: u64| {
            let tags = self.checker.disruptions.iter().filter(|disruption| {
                disruption.key == key && matches!(disruption.kind, DisruptionKind::Tag { .. })
            });
            tags.filter(|disruption| disruption.begin <= self.now)
                .any(|disruption| disruption.acked.is_none_or(|acked| acked >= since))
        };
        self.checker.rebuilds.iter().enumerate().any(|(at, other)| {
            at != rebuild
                && other.key == key
                && other.end.is_none_or(|end| end >= last_read)
                && bumped(other.last_read)
        })
    }

    fn sent_at(&self, put: &PendingStore) -> Option<u64> {
        self.checker.values[put.build.value].sent
    }

    /// The value was not stored, or may not have been. `removed`: the previous value is not there either.
    fn not_stored(&mut self, put: &PendingStore, removed: bool) {
        let key = put.build.key;
        let hold = 1000 * u64::from(self.plan.keys[key].policy.lock_seconds()) + self.plan.trip();
        let sent = self.sent_at(put).unwrap_or(self.now);
        self.checker.reasons.note(key, Cause::GivenUp, sent, Some(self.now + hold));
        if removed {
            self.checker.coverage.large += 1;
            // A lock may remain until it expires.
            self.checker.may_remove(key, sent, self.now + hold);
        }
    }

    pub fn set_done(&mut self, put: PendingStore, end: SetEnd) -> Result<(), Violation> {
        match end {
            SetEnd::Stored { .. } => {
                self.wake_key(put.sidecar, put.build.key);
                if put.stale_from_start {
                    self.not_stored(&put, false);
                }
            }
            end => self.not_stored(&put, end == SetEnd::TooLarge),
        }
        self.stored(put, !matches!(end, SetEnd::Failed(_)))
    }

    /// A client that changes a value has read it; one that creates a value has ended its own miss.
    pub fn modified(&mut self, sidecar: usize, key: usize, owner: Owner, end: ModifyEnd) -> ModifyEnd {
        match &end {
            ModifyEnd::Counted(Counted { created: true, .. }) | ModifyEnd::Extended { created: true, .. } => {
                let name = &self.plan.keys[key].key;
                self.sidecars[sidecar].known_misses.remove(&(owner, key));
                let (_, waiters) = self.sidecars[sidecar].leases.created(name, owner);
                self.wake_all(waiters);
            }
            ModifyEnd::Counted(counted) => self.note_hit(sidecar, key, owner, counted.cas.number),
            ModifyEnd::Stored(cas) => self.note_hit(sidecar, key, owner, cas.number),
            ModifyEnd::Dropped => self.note_hit(sidecar, key, owner, 0),
            ModifyEnd::Extended { cas, .. } => self.note_hit(sidecar, key, owner, cas.number),
            _ => {}
        }
        end
    }

    /// A command that reads before it writes has ended; its value was stored or not.
    pub fn modify_done(&mut self, put: PendingStore, end: ModifyEnd) -> Result<(), Violation> {
        let known = !matches!(end, ModifyEnd::Failed(_));
        let end = self.modified(put.sidecar, put.build.key, put.owner, end);
        if !matches!(end, ModifyEnd::Stored(_)) {
            self.not_stored(&put, end == ModifyEnd::TooLarge);
        } else if put.stale_from_start || matches!(put.build.method, StoreMethod::MetaCas { .. }) {
            self.not_stored(&put, false);
        }
        self.stored(put, known)
    }

    fn stored(&mut self, put: PendingStore, known: bool) -> Result<(), Violation> {
        match known {
            true => self.checker.acked(put.build.value, self.now),
            false => self.checker.ended(put.build.value, self.now, put.late.max(self.now)),
        }
        if let (true, Some(rebuild)) = (put.lock_outlives_fill, put.build.rebuild) {
            // The sidecar that granted the lease does not see that it has ended.
            self.checker.coverage.elsewhere += 1;
            self.checker.rebuilds[rebuild].acked = None;
            let key = put.build.key;
            let until = self.now + millis(self.plan.keys[key].policy.max_rebuild);
            self.checker.lock_outlives_fill[key] = Some(until);
            self.checker.reasons.note(key, Cause::GivenUp, self.now, Some(until));
        }
        self.continue_storing(put.client, put.generation)
    }
}
