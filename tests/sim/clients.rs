//! Applications: readers that rebuild what they miss, and the one who changes the source of truth.

use bytes::Bytes;
use kennel::guard::leases::{Attribution, Leases, Owner, Ticket};
use kennel::guard::{
    At, Bump, Delete, Fill, FillEnd, Lifetime, Offer, Read, ReadEnd, Scene, Set, SetEnd, Step, Versions,
};

use super::checker::{Broken, RebuildId, ValueId};
use super::operation::{Doing, OpId, Purpose};
use super::plan::{Mutant, tag_name};
use super::world::{Event, World};

pub struct Client {
    pub sidecar: usize,
    life: u32,
    /// The connections on which it reads and writes: a client with a pool has two.
    owners: [Owner; 2],
    job: Job,
}

enum Job {
    Idle,
    Getting { waits_for: usize, won: bool, missed: Vec<Making> },
    Making(Vec<Making>),
    Putting(Vec<Making>),
}

/// A value to be made and stored.
#[derive(Debug, Clone)]
pub struct Making {
    key: usize,
    value: ValueId,
    ttl: u64,
    rebuild: Option<RebuildId>,
}

/// A `set` on its way.
#[derive(Debug, Clone)]
pub struct Put {
    client: usize,
    life: u32,
    sidecar: usize,
    owner: Owner,
    making: Making,
    /// The lease that it ends, if it does.
    lease: bool,
    spent: Option<(Owner, Ticket)>,
}

/// The connection of whoever invalidates.
const INVALIDATOR: Owner = 0;

/// What is being invalidated.
#[derive(Debug, Clone)]
pub struct Invalidation {
    target: Target,
    moves: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Key(usize),
    Tag(usize),
}

impl World {
    pub fn new_client(&mut self) {
        let client = self.clients.len();
        let sidecar = match self.plan.pooled {
            true if client > 0 => 1 + client % (self.plan.sidecars - 1),
            _ => client % self.plan.sidecars,
        };
        let owners = self.new_owners(self.clients.len());
        self.clients.push(Client { sidecar, life: 0, owners, job: Job::Idle });
    }

    /// The first client has a pool, and its sidecar for itself: beside others, nobody could tell whose `set` is whose.
    fn new_owners(&mut self, client: usize) -> [Owner; 2] {
        self.next += 2;
        let pooled = self.plan.pooled && client == 0;
        [self.next, if pooled { self.next - 1 } else { self.next }]
    }

    /// Its connections close. Whatever it was at is forgotten.
    pub fn disconnect(&mut self, client: usize) {
        let Client { sidecar, owners, .. } = self.clients[client];
        let mut left = Vec::new();
        self.ops.retain(|_, op| {
            let keep = !matches!(op.purpose, Purpose::Get { client: its, .. } if its == client);
            if let (false, Some(waiter)) = (keep, op.waiting) {
                left.push((op.key, waiter));
            }
            keep
        });
        for (key, waiter) in left {
            let name = self.plan.keys[key].key.clone();
            self.sidecars[sidecar].leases.leave(&name, waiter);
        }
        let twice = if owners[0] == owners[1] { &owners[..1] } else { &owners[..] };
        for &owner in twice {
            for (name, asks) in self.sidecars[sidecar].leases.disconnect(owner) {
                let key = self.plan.keys.iter().position(|guarded| guarded.key == *name);
                if let Some(key) = key
                    && !asks.is_empty()
                {
                    self.ask_plainly(sidecar, key, asks, Purpose::Freeing);
                }
            }
        }
        self.restart_client(client);
    }

    pub fn restart_client(&mut self, client: usize) {
        let now = self.now;
        let owners = self.new_owners(client);
        let of = &mut self.clients[client];
        of.life += 1;
        of.owners = owners;
        let life = of.life;
        let (Job::Getting { missed: makings, .. } | Job::Making(makings) | Job::Putting(makings)) =
            std::mem::replace(&mut of.job, Job::Idle)
        else {
            return self.at(20, Event::Client { client, life });
        };
        for rebuild in makings.iter().filter_map(|making| making.rebuild) {
            self.checker.given_up(rebuild, now);
        }
        self.at(20, Event::Client { client, life });
    }

    pub fn is_patient(&self, purpose: &Purpose) -> bool {
        match purpose {
            Purpose::Get { client, .. } => {
                !matches!(self.clients[*client].job, Job::Getting { won: true, .. })
            }
            _ => true,
        }
    }

    pub fn client_goes_on(&mut self, client: usize, life: u32) -> Result<(), Broken> {
        if self.clients[client].life != life {
            return Ok(());
        }
        match std::mem::replace(&mut self.clients[client].job, Job::Idle) {
            Job::Making(makings) => return self.put_next(client, makings),
            Job::Idle => {}
            busy => panic!(
                "client {client} is busy{}",
                if matches!(busy, Job::Putting(_)) { " putting" } else { "" }
            ),
        }
        let keys = self.plan.keys.len() as u64;
        let key = self.below(keys) as usize;
        match self.below(40) {
            // Beside a client with a pool, a blind set may pass for the fill of its miss, and that for a blind one.
            0 if !self.plan.pooled => {
                let version = self.checker.source[key];
                let ttl = self.ttl();
                let value = self.checker.value(key, version, ttl, true);
                self.put_next(client, vec![Making { key, value, ttl, rebuild: None }])
            }
            1 => {
                self.get(client, &(0..keys as usize).collect::<Vec<_>>());
                Ok(())
            }
            _ => {
                self.get(client, &[key]);
                Ok(())
            }
        }
    }

    fn ttl(&mut self) -> u64 {
        [1, 2, 3, 3, 0][self.below(5) as usize]
    }

    fn get(&mut self, client: usize, keys: &[usize]) {
        self.clients[client].job = Job::Getting { waits_for: keys.len(), won: false, missed: Vec::new() };
        for (slot, &key) in keys.iter().enumerate() {
            let sidecar = self.clients[client].sidecar;
            let began = self.now;
            let (read, asks) = self.on_scene(sidecar, key, Read::start);
            let op = self.op(sidecar, key, Doing::Read(read), Purpose::Get { client, slot, began });
            self.ask(op, asks);
        }
    }

    pub fn on_scene<T>(&self, sidecar: usize, key: usize, then: impl FnOnce(&Scene<'_>) -> T) -> T {
        let guarded = &self.plan.keys[key];
        then(&Scene {
            policy: &guarded.policy,
            tags: &guarded.tags,
            sidecar: self.sidecars[sidecar].number,
            room: 1 << 20,
            learnt: 0,
            copies: false,
            now: self.moment(sidecar),
            patient: true,
            chance: 1.0,
        })
    }

    pub fn read_done(
        &mut self,
        sidecar: usize,
        key: usize,
        client: usize,
        _slot: usize,
        began: u64,
        end: ReadEnd,
    ) -> Result<(), Broken> {
        let (now, moment) = (self.now, self.moment(sidecar));
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let owner = self.clients[client].owners[0];
        let life = self.sidecars[sidecar].life;
        let multi = matches!(self.clients[client].job, Job::Getting { waits_for: 2.., .. });
        let leases = &mut self.sidecars[sidecar].leases;
        let mut rebuild = None;
        let miss = match end {
            ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit) => {
                leases.hit(&name, owner);
                self.checker.fresh(key, World::value_of(&hit.payload)?, began, now)?;
                false
            }
            ReadEnd::Stale(hit) => {
                self.checker.stale(key, World::value_of(&hit.payload)?, began, now)?;
                false
            }
            ReadEnd::Won { lease, early, .. } => {
                let due = Leases::<OpId>::next_due(&lease, &policy, moment);
                if let (Some(id), _) = leases.grant(&name, owner, lease, &policy) {
                    self.at(due - now, Event::Due { sidecar, life, key, id });
                    rebuild = Some(self.checker.rebuild(key, began, now, early));
                }
                true
            }
            ReadEnd::Missed { seen, .. } => {
                leases.saw(&name, owner, seen, &policy);
                self.checker.missed(key, began, now);
                true
            }
            ReadEnd::Failed(_) => {
                // The client may be told a miss, and its `set` must undo nothing.
                let seen = Ticket::nothing(moment);
                leases.saw(&name, owner, seen, &policy);
                self.checker.seen.failed += 1;
                true
            }
        };
        self.checker.answered(key, began, now)?;
        let making = miss.then(|| {
            let version = self.checker.source[key];
            let ttl = self.ttl();
            Making { key, value: self.checker.value(key, version, ttl, false), ttl, rebuild }
        });
        let Job::Getting { waits_for, won, missed } = &mut self.clients[client].job else {
            panic!("client {client} asked nothing");
        };
        *waits_for -= 1;
        *won |= rebuild.is_some();
        missed.extend(making);
        if *waits_for == 0 {
            let missed = std::mem::take(missed);
            self.make(client, missed);
        } else if rebuild.is_some() && multi {
            self.hurry(client);
        }
        Ok(())
    }

    /// This request holds a win now: nothing else of it waits.
    fn hurry(&mut self, client: usize) {
        let over: Vec<Event> = self
            .ops
            .values()
            .filter(|op| matches!(op.purpose, Purpose::Get { client: its, .. } if its == client))
            .filter_map(|op| op.over_now())
            .collect();
        for event in over {
            self.at(0, event);
        }
    }

    fn make(&mut self, client: usize, mut missed: Vec<Making>) {
        let life = self.clients[client].life;
        let sloth = self.plan.faults.sloth;
        let mut think = 1 + self.below(self.plan.think);
        if !missed.is_empty() && sloth > 0 && self.now < self.plan.quiet && self.below(sloth) == 0 {
            match self.below(2) {
                0 => think += 5000,
                _ => {
                    for rebuild in missed.drain(..).filter_map(|making| making.rebuild) {
                        self.checker.given_up(rebuild, self.now);
                    }
                }
            }
        }
        if missed.is_empty() {
            self.clients[client].job = Job::Idle;
            let pause = 1 + self.below(self.plan.pause);
            return self.at(pause, Event::Client { client, life });
        }
        self.clients[client].job = Job::Making(missed);
        self.at(think, Event::Client { client, life });
    }

    fn put_next(&mut self, client: usize, mut makings: Vec<Making>) -> Result<(), Broken> {
        let Some(making) = makings.pop() else {
            self.make(client, Vec::new());
            return Ok(());
        };
        let Client { sidecar, life, owners, .. } = self.clients[client];
        self.clients[client].job = Job::Putting(makings);
        self.checker.sent(making.value, making.rebuild, self.now);
        self.put(Put { client, life, sidecar, owner: owners[1], making, lease: false, spent: None })
    }

    /// A `set` arrives at its sidecar, or may go on there.
    pub fn put(&mut self, mut put: Put) -> Result<(), Broken> {
        let (sidecar, key) = (put.sidecar, put.making.key);
        let name = self.plan.keys[key].key.clone();
        let attribution = self.sidecars[sidecar].leases.attribute(&name, put.owner);
        self.trace(|| format!("put v{} by {}: {attribution:?}", put.making.value, put.owner));
        let offer = Offer {
            body: Bytes::from(format!("v{}", put.making.value)),
            flags: 0,
            lifetime: Lifetime::of(put.making.ttl as i64, self.moment(sidecar)),
            explicit: None,
            tags: Default::default(),
        };
        match attribution {
            Attribution::Renewing => {
                let op = self.op(sidecar, key, Doing::Parked, Purpose::Put(put));
                self.sidecars[sidecar].leases.await_renewal(&name, op.id);
                self.ops.insert(op.id, op);
                Ok(())
            }
            Attribution::Doomed => {
                self.checker.seen.dropped += 1;
                self.stored(put, true)
            }
            Attribution::Blind => {
                let (set, asks) = self.on_scene(sidecar, key, |scene| Set::start(offer, scene));
                let op = self.op(sidecar, key, Doing::Set(set), Purpose::Put(put));
                self.ask(op, asks);
                Ok(())
            }
            Attribution::Fill { mut ticket, lease, owner, wary } => {
                if self.plan.is(Mutant::SnapshotAtSet) {
                    let tags: Option<Versions> =
                        self.peek_tags(&self.plan.keys[key].tags).into_iter().collect();
                    ticket.versions = tags.unwrap_or(ticket.versions);
                }
                let (fill, step) =
                    self.on_scene(sidecar, key, |scene| Fill::start(&ticket, wary, offer, scene));
                put.lease = lease;
                if wary {
                    self.checker.disturbs(put.making.value, self.now);
                }
                put.spent = owner.map(|owner| (owner, ticket));
                match step {
                    Step::Ask(asks) => {
                        let op = self.op(sidecar, key, Doing::Fill(fill), Purpose::Put(put));
                        self.ask(op, asks);
                        Ok(())
                    }
                    Step::Done(end) => self.fill_done(put, end),
                    Step::Learn(_) | Step::Wait(_) => panic!("a fill neither learns nor waits"),
                }
            }
        }
    }

    pub fn fill_done(&mut self, mut put: Put, end: FillEnd) -> Result<(), Broken> {
        let name = self.plan.keys[put.making.key].key.clone();
        let policy = self.plan.keys[put.making.key].policy.clone();
        let leases = &mut self.sidecars[put.sidecar].leases;
        let bells = match end {
            FillEnd::Stored { cas, .. } => leases.filled(&name, cas, put.spent.take(), &policy),
            _ => leases.wake(&name),
        };
        self.wake_all(bells);
        if matches!(end, FillEnd::Stored { .. }) {
            self.checker.filled(put.making.key, self.now);
        }
        self.checker.seen.dropped += u64::from(matches!(end, FillEnd::Dropped { .. }));
        self.stored(put, !matches!(end, FillEnd::Failed(_)))
    }

    pub fn set_done(&mut self, put: Put, end: SetEnd) -> Result<(), Broken> {
        let name = self.plan.keys[put.making.key].key.clone();
        let bells = self.sidecars[put.sidecar].leases.wake(&name);
        self.wake_all(bells);
        self.stored(put, !matches!(end, SetEnd::Failed(_)))
    }

    fn stored(&mut self, put: Put, known: bool) -> Result<(), Broken> {
        if known {
            self.checker.acked(put.making.value, self.now);
        }
        let of = &mut self.clients[put.client];
        if of.life != put.life {
            return Ok(());
        }
        match std::mem::replace(&mut of.job, Job::Idle) {
            Job::Putting(rest) => self.put_next(put.client, rest),
            _ => panic!("client {} put nothing", put.client),
        }
    }

    /// Changes the source of truth, then tells it to the caches until it is acknowledged.
    pub fn invalidate(&mut self, which: usize) -> Result<(), Broken> {
        if self.invalidations[which].is_none() {
            if self.now >= self.plan.quiet {
                return Ok(());
            }
            let keys = self.plan.keys.len();
            let at = self.below((keys + self.plan.tags) as u64) as usize;
            let target = if at < keys { Target::Key(at) } else { Target::Tag(at - keys) };
            let all: Vec<usize> = match target {
                Target::Key(key) => vec![key],
                Target::Tag(tag) => {
                    (0..keys).filter(|key| self.plan.keys[*key].tags.contains(&tag_name(tag))).collect()
                }
            };
            let moves = self.checker.invalidation(&all, self.now);
            self.trace(|| format!("invalidator {which}: {target:?}"));
            self.invalidations[which] = Some(Invalidation { target, moves });
        }
        let Some(Invalidation { target, .. }) = self.invalidations[which] else { return Ok(()) };
        let sidecar = self.below(self.plan.sidecars as u64) as usize;
        match target {
            Target::Key(key) => {
                let name = self.plan.keys[key].key.clone();
                self.sidecars[sidecar].leases.invalidate(&name, INVALIDATOR);
                let (delete, asks) = self.on_scene(sidecar, key, Delete::start);
                let op = self.op(sidecar, key, Doing::Delete(delete), Purpose::Invalidation(which));
                self.ask(op, asks);
            }
            Target::Tag(tag) => {
                let (bump, asks) = self.on_scene(sidecar, 0, Bump::start);
                let mut op = self.op(sidecar, 0, Doing::Bump(bump), Purpose::Invalidation(which));
                op.tags = vec![tag_name(tag)];
                assert!(asks.iter().all(|ask| ask.at == At::Tag(0)));
                self.ask(op, asks);
            }
        }
        Ok(())
    }

    pub fn invalidation_done(&mut self, which: usize, sidecar: usize, done: bool) -> Result<(), Broken> {
        if !done {
            self.at(20, Event::Invalidate { which });
            return Ok(());
        }
        if let Some(Invalidation { target, moves }) = self.invalidations[which].take() {
            self.checker.invalidated(&moves, self.now);
            if let Target::Key(key) = target {
                let name = self.plan.keys[key].key.clone();
                let bells = self.sidecars[sidecar].leases.wake(&name);
                self.wake_all(bells);
            }
        }
        let pause = 1 + self.below(1200);
        self.at(pause, Event::Invalidate { which });
        Ok(())
    }
}
