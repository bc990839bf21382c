//! What applications store and change, and how each command ends.

use bytes::Bytes;
use kennel::guard::leases::{Attribution, MissToken, Owner, StoreCondition, Writer};
use kennel::guard::{
    Change, Count, Counted, Delete, Expiry, Fill, FillEnd, Inputs, Modify, ModifyEnd, NewValue, Removal, Set,
    SetEnd, Step, StubId, TagNames, Versions,
};

use super::checker::{Broken, Moving, Rebuild, RebuildId, ValueId, broken, millis};
use super::clients::{Client, Job};
use super::counting::Why;
use super::mutants::Mutant;
use super::operation::{COUNTS, Doing, Op, Purpose};
use super::plan::LARGE;
use super::tags::named;
use super::world::World;

/// The command with which a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
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
pub struct Making {
    pub key: usize,
    how: How,
    pub value: ValueId,
    ttl: u64,
    pub rebuild: Option<RebuildId>,
    /// When the read that it is based on was sent, or when it began.
    made: u64,
    /// The tags that it names in addition to those of its rule.
    extra: TagNames,
}

impl Making {
    /// Sets when the read was sent that the value is based on.
    pub fn since(self, looked: u64) -> Making {
        Making { made: looked, ..self }
    }
}

/// A store in progress.
#[derive(Debug, Clone)]
pub struct Put {
    pub client: usize,
    life: u32,
    sidecar: usize,
    owner: Owner,
    pub making: Making,
    body: Bytes,
    /// The version of one of its tags is unknown: it is stale from the start.
    pub born_stale: bool,
    /// The latest arrival of its commands.
    pub late: u64,
    /// The sidecar that granted the lease does not see that this store ends it.
    astray: bool,
    /// The miss that it fills, and the miss's connection if that is another one.
    fills: Option<(MissToken, Option<Owner>)>,
    /// The miss holds the lease.
    leads: bool,
}

/// A command in progress that changes the current value.
#[derive(Debug, Clone)]
pub struct Changing {
    client: usize,
    life: u32,
    moved: (usize, Option<usize>),
    /// The value that `ma N` would create.
    begins: Option<ValueId>,
    owner: Owner,
}

impl Put {
    /// The stub that its client missed, if any.
    pub fn stub(&self) -> Option<StubId> {
        self.fills.as_ref().and_then(|(ticket, _)| ticket.stub)
    }
}

impl World {
    fn ttl(&mut self) -> u64 {
        [1, 2, 3, 3, 0][self.below(5) as usize]
    }

    /// A value made from the source's current version.
    pub fn making(&mut self, client: usize, key: usize, how: How, rebuild: Option<RebuildId>) -> Making {
        let (ttl, extra) = (self.ttl(), self.names_with(client, key));
        let value = self.checker.value(key, ttl, false, extra.clone());
        Making { key, how, value, ttl, rebuild, made: self.now, extra: named(&extra) }
    }

    /// The same, without a miss.
    pub fn blind(&mut self, client: usize, key: usize, how: How) -> Making {
        let (ttl, extra) = (self.ttl(), self.names_with(client, key));
        let value = self.checker.value(key, ttl, true, extra.clone());
        Making { key, how, value, ttl, rebuild: None, made: self.now, extra: named(&extra) }
    }

    /// A command that is neither a read nor a fill.
    pub fn change(&mut self, client: usize, key: usize) -> Result<(), Broken> {
        let now = self.now;
        let ttl = self.ttl();
        let (x, mut begins, mut touches) = (Bytes::from_static(b"x"), None, None);
        let change = match self.below(7) {
            0 | 1 => {
                let how = if self.below(2) == 0 { How::Replace } else { How::Add };
                let making = self.blind(client, key, how);
                return self.put_next(client, vec![making]);
            }
            2 => Change::Append { more: x, compare: None, explicit: None, create: None },
            3 => Change::Prepend { more: x, compare: None, explicit: None, create: None },
            4 => {
                touches = Some(ttl);
                Change::Touch(Expiry::of(ttl as i64, self.moment(self.clients[client].sidecar)))
            }
            5 => Change::Count(Count { delta: 1, ..Count::default() }),
            _ => {
                let ttl = self.ttl();
                let value = self.checker.value(key, ttl, true, Vec::new());
                self.checker.sent(value, None, now);
                begins = Some(value);
                let lifetime = Expiry::of(ttl as i64, self.moment(self.clients[client].sidecar));
                let create = Some((lifetime, value as u64 * COUNTS));
                Change::Count(Count { delta: 1, create, ..Count::default() })
            }
        };
        let moved = self.checker.changes(key, touches, now);
        let Client { sidecar, life, .. } = self.clients[client];
        self.clients[client].job = Job::Putting(Vec::new());
        let owner = self.clients[client].owners[1];
        let told = self.told(sidecar, key, owner);
        let over = match self.sidecars[sidecar].leases.bound(&self.plan.keys[key].key, owner, told) {
            StoreCondition::Observed(base) if begins.is_some() => Some(base),
            _ => None,
        };
        let (modify, asks) = self.on_scene(sidecar, key, |scene| Modify::bound(change, over, scene));
        let changing = Changing { client, life, moved, begins, owner };
        let op = self.op(sidecar, key, Doing::Modify(modify), Purpose::Change(changing));
        self.ask(op, asks);
        Ok(())
    }

    pub fn change_done(&mut self, changing: Changing, op: &Op, end: ModifyEnd) -> Result<(), Broken> {
        let Changing { client, life, moved, begins, owner } = changing;
        let by = op.late.max(self.now);
        let end = self.modified(op.sidecar, op.key, owner, end);
        self.checker.changed(moved, by);
        if let Some(value) = begins {
            match end {
                ModifyEnd::Failed(_) => self.checker.ended(value, self.now, by),
                _ => self.checker.acked(value, self.now),
            }
        }
        if let ModifyEnd::Counted(counted) = end {
            let (value, count) = World::value_of(counted.number.to_string().as_bytes())?;
            self.checker.counted(value, count)?;
        }
        self.goes_on_putting(client, life)
    }

    pub fn goes_on_putting(&mut self, client: usize, life: u32) -> Result<(), Broken> {
        let of = &mut self.clients[client];
        if of.life != life {
            return Ok(());
        }
        match std::mem::replace(&mut of.job, Job::Idle) {
            Job::Putting(rest) => self.put_next(client, rest),
            _ => panic!("client {client} put nothing"),
        }
    }

    pub fn put_next(&mut self, client: usize, mut makings: Vec<Making>) -> Result<(), Broken> {
        let Some(making) = makings.pop() else {
            self.make(client, Vec::new());
            return Ok(());
        };
        let Client { mut sidecar, life, owners, .. } = self.clients[client];
        self.clients[client].job = Job::Putting(makings);
        let names = matches!(making.how, How::MetaCas { .. } | How::Cas(_));
        if names && self.restarted[making.key % self.plan.servers] >= making.made {
            // A restarted memcached may give the same CAS to another item. Clients cannot detect this, so the value is not
            // stored.
            if let Some(rebuild) = making.rebuild {
                self.give_up(rebuild);
            }
            return self.goes_on_putting(client, life);
        }
        if let (How::MetaCas { cas, elsewhere: false }, Some(rebuild)) = (making.how, making.rebuild)
            && self.below(20) == 0
        {
            return self.give_up_win(client, making.key, cas, rebuild);
        }
        let mut body = format!("{}", making.value as u64 * COUNTS);
        if self.plan.room < 1 << 20 && self.below(4) == 0 {
            body.extend(std::iter::repeat_n('.', LARGE));
        }
        if body.len() > LARGE {
            let until = self.now + 3 * self.plan.trip() + 2 * self.checker.grace();
            self.checker.takes_away(making.key, self.now, until);
        }
        self.checker.sent(making.value, making.rebuild, self.now);
        if let How::MetaCas { elsewhere: true, .. } = making.how {
            sidecar = (sidecar + 1) % self.plan.sidecars;
            self.checker.disturbs(making.value, self.now);
        }
        let body = Bytes::from(body);
        self.put(Put {
            client,
            life,
            sidecar,
            owner: owners[1],
            making,
            body,
            born_stale: false,
            late: 0,
            astray: false,
            fills: None,
            leads: false,
        })
    }

    /// A meta client that will not rebuild releases its win: `md C` with the CAS of the win.
    fn give_up_win(&mut self, client: usize, key: usize, cas: u64, rebuild: RebuildId) -> Result<(), Broken> {
        self.give_up(rebuild);
        self.remove_named(client, key, cas);
        Ok(())
    }

    pub fn remove_named(&mut self, client: usize, key: usize, cas: u64) {
        let Client { sidecar, life, owners, .. } = self.clients[client];
        let name = self.plan.keys[key].key.clone();
        let mut removal = Removal { compare: Some(cas), ..Removal::default() };
        match self.sidecars[sidecar].leases.attribute_by_cas(&name, cas, owners[1], true) {
            Attribution::Fill { ticket, .. } => removal.compare = ticket.base.map(|base| base.number),
            Attribution::Renewing => {
                let purpose = Purpose::GivingBack { client, life, cas };
                let op = self.op(sidecar, key, Doing::Parked, purpose);
                self.sidecars[sidecar].leases.await_renewal(&name, op.id);
                self.ops.insert(op.id, op);
                return;
            }
            Attribution::NoMiss | Attribution::Invalidated | Attribution::Unknown => {}
        }
        let until = self.now + 6 * self.plan.trip() + 2 * self.checker.grace();
        self.checker.takes_away(key, self.now, until);
        let (delete, asks) = self.on_scene(sidecar, key, |scene| Delete::with_removal(removal, scene));
        let op = self.op(sidecar, key, Doing::Delete(delete), Purpose::GivingBack { client, life, cas });
        self.ask(op, asks);
    }

    /// A sidecar receives a value, or may proceed after a wait.
    pub fn put(&mut self, mut put: Put) -> Result<(), Broken> {
        let (sidecar, key) = (put.sidecar, put.making.key);
        let name = self.plan.keys[key].key.clone();
        let (owner, told, now) = (put.owner, self.told(sidecar, key, put.owner), self.moment(sidecar));
        let leases = &mut self.sidecars[sidecar].leases;
        let fills = match put.making.how {
            How::MetaCas { cas, .. } => leases.is_cas_of_miss(&name, cas, owner),
            how => how == How::Set,
        };
        let attribution = match put.making.how {
            How::Replace if leases.bound(&name, owner, told) == StoreCondition::Renewing => {
                Attribution::Renewing
            }
            How::Replace | How::Cas(_) => Attribution::NoMiss,
            How::MetaCas { cas, .. } => {
                self.checker.seen.named += 1;
                leases.attribute_by_cas(&name, cas, put.owner, false)
            }
            How::Set | How::Add => {
                let pooled = self.plan.pooled;
                leases.attribute(&name, Writer { owner, told, pooled }, now)
            }
        };

        if fills && attribution != Attribution::Renewing {
            self.sidecars[sidecar].told.remove(&(owner, key));
        }
        self.trace(|| {
            format!("put v{} {:?} by {:?}: {attribution:?}", put.making.value, put.making.how, put.owner)
        });
        put.astray = match put.making.how {
            How::MetaCas { elsewhere, .. } => elsewhere || attribution == Attribution::NoMiss,
            _ => false,
        };
        let offer = NewValue {
            body: put.body.clone(),
            flags: 0,
            lifetime: Expiry::of(put.making.ttl as i64, self.moment(sidecar)),
            explicit: None,
            tags: put.making.extra.clone(),
        };
        let extra = put.making.extra.clone();
        match attribution {
            Attribution::Renewing => {
                let op = self.op(sidecar, key, Doing::Parked, Purpose::Put(put));
                self.sidecars[sidecar].leases.await_renewal(&name, op.id);
                self.ops.insert(op.id, op);
                Ok(())
            }
            Attribution::Invalidated => self.dropped(put, true),
            Attribution::Unknown => panic!("{put:?} has a miss that is known, or none"),
            Attribution::Fill { ticket, owner: whose, .. } if put.making.how == How::Add && ticket.filled => {
                if whose.is_none() {
                    let policy = self.plan.keys[key].policy.clone();
                    self.sidecars[sidecar].leases.record_miss(&name, owner, ticket, &policy);
                }
                self.not_stored(&put, false);
                self.stored(put, true)
            }
            Attribution::NoMiss => {
                let change = match put.making.how {
                    How::Set => {
                        let start = |scene: &Inputs<'_>| Set::start(offer, scene);
                        let (set, asks) = self.on_scene_with(sidecar, key, &extra, start);
                        let mut op = self.op(sidecar, key, Doing::Set(set), Purpose::Put(put));
                        op.learn(extra);
                        self.ask(op, asks);
                        return Ok(());
                    }
                    How::Add => Change::Add(offer),
                    How::Replace => Change::Replace(offer),
                    How::Cas(number) => Change::Cas { number, offer, sees_stale: false, invalidate: false },
                    How::MetaCas { cas: number, .. } => {
                        Change::Cas { number, offer, sees_stale: true, invalidate: false }
                    }
                };
                let over = match self.sidecars[sidecar].leases.bound(&name, owner, told) {
                    StoreCondition::Observed(base) if put.making.how == How::Replace => Some(base),
                    _ => None,
                };
                let start = |scene: &Inputs<'_>| Modify::bound(change, over, scene);
                let (modify, asks) = self.on_scene_with(sidecar, key, &extra, start);
                let mut op = self.op(sidecar, key, Doing::Modify(modify), Purpose::Put(put));
                op.learn(extra);
                self.ask(op, asks);
                Ok(())
            }
            Attribution::Fill { mut ticket, lease, owner } => {
                if self.plan.is(Mutant::SnapshotAtSet) {
                    let names = [&self.plan.keys[key].tags[..], &ticket.learnt].concat();
                    let tags: Option<Versions> = self.peek_tags(&names).into_iter().collect();
                    ticket.versions = tags.unwrap_or(ticket.versions);
                }
                let adds = put.making.how == How::Add;
                let start = |scene: &Inputs<'_>| Fill::start(&ticket, offer, adds, scene);
                let (fill, step) = self.on_scene_with(sidecar, key, &extra, start);
                let named = matches!(put.making.how, How::MetaCas { .. });
                put.astray |= named && !lease && put.making.rebuild.is_some();
                put.leads = lease;
                put.fills = Some((ticket, owner));
                match step {
                    Step::Send(asks) => {
                        let mut op = self.op(sidecar, key, Doing::Fill(fill), Purpose::Put(put));
                        op.learn(extra);
                        self.ask(op, asks);
                        Ok(())
                    }
                    Step::Done(end) => self.fill_done(put, end),
                    Step::AddTags(_) | Step::Wait(_) => panic!("a fill neither learns nor waits"),
                }
            }
        }
    }

    pub fn fill_done(&mut self, mut put: Put, end: FillEnd) -> Result<(), Broken> {
        let (key, now) = (put.making.key, self.moment(put.sidecar));
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let leases = &mut self.sidecars[put.sidecar].leases;
        match end {
            FillEnd::Stored { cas, .. } => {
                self.sidecars[put.sidecar].told.remove(&(put.owner, key));
                let leases = &mut self.sidecars[put.sidecar].leases;
                let (ticket, spent) = put.fills.take().expect("it fills a miss");
                let bells = leases.filled(&name, cas, &ticket, spent);
                if !self.plan.is(Mutant::FillWakesNobody) {
                    self.wake_all(bells);
                }
                // Other clients that rebuild the same key can no longer store theirs.
                let rebuilds = self.checker.rebuilds.iter().enumerate();
                let mut others = rebuilds.filter(|(at, _)| Some(*at) != put.making.rebuild);
                if others.any(|(_, other)| other.key == key && other.end.is_none()) {
                    let sent = self.sent(&put).unwrap_or(self.now);
                    self.checker.ledger.note(key, Why::Replaced, sent, Some(self.now));
                }
                self.checker.stored[key] = Some(self.now);
                match put.born_stale {
                    true => self.not_stored(&put, false),
                    false => self.checker.filled(key, put.making.value, put.sidecar, self.now),
                }
                self.stored(put, true)
            }
            FillEnd::Dropped { .. } => {
                self.wake_key(put.sidecar, key);
                self.dropped(put, false)
            }
            FillEnd::Outdated => {
                if let Some((ticket, _)) = put.fills.take().filter(|_| put.leads) {
                    self.ask_plainly(put.sidecar, key, ticket.release(&policy), Purpose::Superseded);
                }
                self.wake_key(put.sidecar, key);
                self.dropped(put, false)
            }
            FillEnd::TooLarge | FillEnd::Failed(_) => {
                if let (FillEnd::Failed(_), Some((ticket, None))) = (&end, put.fills.take()) {
                    leases.record_miss(&name, put.owner, ticket, &policy);
                    self.sidecars[put.sidecar].told.insert((put.owner, key));
                }
                let leases = &mut self.sidecars[put.sidecar].leases;
                let bells = leases.release_waiters(&name, now);
                self.wake_all(bells);
                self.not_stored(&put, end == FillEnd::TooLarge);
                self.stored(put, end == FillEnd::TooLarge)
            }
        }
    }

    /// The value was not stored, but its client received success: allowed only if something has happened to the key since its
    /// miss.
    fn dropped(&mut self, put: Put, doomed: bool) -> Result<(), Broken> {
        self.checker.seen.dropped += 1;
        // In a storm, a renewal may be overtaken by the end of its lease.
        let exact = !(self.plan.faults_matter() || self.plan.is_storm() || self.plan.pooled || put.astray);
        match put.making.rebuild {
            Some(rebuild) if exact && !self.is_overtaken(rebuild) => {
                let (key, looked) = (put.making.key, self.checker.rebuilds[rebuild].looked);
                // With cached versions, a client may take over a lock that was claimed with equally old versions of another tag.
                let from = looked.saturating_sub(self.plan.tag_cache);
                let now = self.now;
                let moves = self.checker.moves.iter().filter(|moved| {
                    moved.key == key && moved.begin <= now && moved.acked.is_none_or(|acked| acked >= from)
                });
                // Another client that missed the same stub may have filled it, with tags that were bumped meanwhile.
                let is_stored = self.checker.is_stored_since(key, looked);
                if moves.count() == 0 && !is_stored {
                    let what = if doomed { "doomed" } else { "dropped" };
                    return broken(format!("nothing happened to key {key}, and a fill was {what}: {put:?}"));
                }
            }
            _ => self.not_stored(&put, false),
        }
        self.stored(put, true)
    }

    /// Whether a rebuild that began before a bump had not ended when this one began. Its client may take the lock over, find the
    /// value marked again and release the lock. It then still holds a CAS with which it can store in place of the next rebuild.
    fn is_overtaken(&self, rebuild: RebuildId) -> bool {
        let Rebuild { key, looked, .. } = self.checker.rebuilds[rebuild];
        let bumped = |since: u64| {
            let tags = self
                .checker
                .moves
                .iter()
                .filter(|moved| moved.key == key && matches!(moved.what, Moving::Tag { .. }));
            tags.filter(|moved| moved.begin <= self.now)
                .any(|moved| moved.acked.is_none_or(|acked| acked >= since))
        };
        self.checker.rebuilds.iter().enumerate().any(|(at, other)| {
            at != rebuild
                && other.key == key
                && other.end.is_none_or(|end| end >= looked)
                && bumped(other.looked)
        })
    }

    fn sent(&self, put: &Put) -> Option<u64> {
        self.checker.values[put.making.value].sent
    }

    /// The value was not stored, or may not have been. `removed`: the previous value is not there either.
    fn not_stored(&mut self, put: &Put, gone: bool) {
        let key = put.making.key;
        let hold = 1000 * u64::from(self.plan.keys[key].policy.lock_seconds()) + self.plan.trip();
        let sent = self.sent(put).unwrap_or(self.now);
        self.checker.ledger.note(key, Why::GivenUp, sent, Some(self.now + hold));
        if gone {
            self.checker.seen.large += 1;
            // A lock may remain until it expires.
            self.checker.takes_away(key, sent, self.now + hold);
        }
    }

    pub fn set_done(&mut self, put: Put, end: SetEnd) -> Result<(), Broken> {
        match end {
            SetEnd::Stored { .. } => {
                self.wake_key(put.sidecar, put.making.key);
                if put.born_stale {
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
                self.sidecars[sidecar].told.remove(&(owner, key));
                let (_, bells) = self.sidecars[sidecar].leases.created(name, owner);
                self.wake_all(bells);
            }
            ModifyEnd::Counted(counted) => self.has_seen(sidecar, key, owner, counted.cas.number),
            ModifyEnd::Stored(cas) => self.has_seen(sidecar, key, owner, cas.number),
            ModifyEnd::Dropped => self.has_seen(sidecar, key, owner, 0),
            ModifyEnd::Extended { cas, .. } => self.has_seen(sidecar, key, owner, cas.number),
            _ => {}
        }
        end
    }

    /// A command that reads before it writes has ended; its value was stored or not.
    pub fn modify_done(&mut self, put: Put, end: ModifyEnd) -> Result<(), Broken> {
        let known = !matches!(end, ModifyEnd::Failed(_));
        let end = self.modified(put.sidecar, put.making.key, put.owner, end);
        if !matches!(end, ModifyEnd::Stored(_)) {
            self.not_stored(&put, end == ModifyEnd::TooLarge);
        } else if put.born_stale || matches!(put.making.how, How::MetaCas { .. }) {
            self.not_stored(&put, false);
        }
        self.stored(put, known)
    }

    fn stored(&mut self, put: Put, known: bool) -> Result<(), Broken> {
        match known {
            true => self.checker.acked(put.making.value, self.now),
            false => self.checker.ended(put.making.value, self.now, put.late.max(self.now)),
        }
        if let (true, Some(rebuild)) = (put.astray, put.making.rebuild) {
            // The sidecar that granted the lease does not see that it has ended.
            self.checker.seen.elsewhere += 1;
            self.checker.rebuilds[rebuild].acked = None;
            let key = put.making.key;
            let until = self.now + millis(self.plan.keys[key].policy.max_rebuild);
            self.checker.astray[key] = Some(until);
            self.checker.ledger.note(key, Why::GivenUp, self.now, Some(until));
        }
        self.goes_on_putting(put.client, put.life)
    }
}
