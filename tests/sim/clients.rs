//! Applications that read, and rebuild what they miss.

use kennel::guard::leases::{Leases, MissToken, Owner};
use kennel::guard::{Inputs, Read, ReadEnd, ReadOptions, TagName};

use super::checker::{Asked, Broken, RebuildId, millis};
use super::mutants::Mutant;
use super::operation::{Doing, OpId, Purpose};
use super::world::{Event, World};
use super::writes::{How, Making};

pub struct Client {
    pub sidecar: usize,
    pub life: u32,
    /// The connections on which it reads and writes. They differ if the client has a pool.
    pub owners: [Owner; 2],
    /// It sends meta commands.
    pub meta: bool,
    /// It names tags with its values.
    pub names: bool,
    pub job: Job,
}

pub enum Job {
    Idle,
    Getting {
        waits_for: usize,
        /// Since when its request must not wait: it holds a win, or another request is pipelined behind it.
        hurried: Option<u64>,
        missed: Vec<Making>,
    },
    Making(Vec<Making>),
    Putting(Vec<Making>),
}

impl World {
    pub fn new_client(&mut self) {
        let client = self.clients.len();
        let sidecar = match self.plan.pooled {
            true if client > 0 => 1 + client % (self.plan.sidecars - 1),
            _ => client % self.plan.sidecars,
        };
        let meta = self.plan.metas && self.below(2) == 0;
        let names = self.below(3) > 0;
        let owners = self.new_owners(client, meta);
        self.clients.push(Client { sidecar, life: 0, owners, meta, names, job: Job::Idle });
    }

    /// The first client has a pool and a sidecar of its own, because a pooled client's `set` could be attributed to another
    /// client's miss. A meta client identifies its misses by CAS, so any of them may have a pool.
    fn new_owners(&mut self, client: usize, meta: bool) -> [Owner; 2] {
        self.next += 2;
        let pooled = (self.plan.pooled && client == 0) || (meta && client % 2 == 1);
        [self.next, if pooled { self.next - 1 } else { self.next }].map(Owner::from)
    }

    /// Closes the client's connections and discards its state.
    pub fn disconnect(&mut self, client: usize) {
        let Client { sidecar, owners, .. } = self.clients[client];
        let (mut left, mut unanswered) = (Vec::new(), Vec::new());
        self.ops.retain(|_, op| {
            let keep = match &op.purpose {
                Purpose::Get { client: its, .. } => *its != client,
                // A sidecar completes a store that it has received before it removes the connection; this one has not been
                // received.
                Purpose::Put(put) => put.client != client || !op.is_parked(),
                _ => true,
            };
            if let (false, Purpose::Put(put)) = (keep, &op.purpose) {
                unanswered.extend(put.making.rebuild);
            }
            if let (false, Some(waiter)) = (keep, op.waiting) {
                left.push((op.key, waiter));
            }
            keep
        });
        for rebuild in unanswered {
            self.give_up(rebuild);
        }
        for (key, waiter) in left {
            let name = self.plan.keys[key].key.clone();
            self.sidecars[sidecar].leases.leave(&name, waiter);
        }
        let twice = if owners[0] == owners[1] { &owners[..1] } else { &owners[..] };
        for &owner in twice {
            let ended = self.sidecars[sidecar].leases.disconnect(owner);
            self.sidecars[sidecar].told.retain(|(its, _)| *its != owner);
            self.give_back(sidecar, ended, &Purpose::Freeing);
        }
        self.restart_client(client);
    }

    pub fn restart_client(&mut self, client: usize) {
        let owners = self.new_owners(client, self.clients[client].meta);
        let of = &mut self.clients[client];
        of.life += 1;
        of.owners = owners;
        let life = of.life;
        self.at(20, Event::Client { client, life });
        if let Job::Getting { missed: makings, .. } | Job::Making(makings) | Job::Putting(makings) =
            std::mem::replace(&mut self.clients[client].job, Job::Idle)
        {
            for rebuild in makings.iter().filter_map(|making| making.rebuild) {
                self.give_up(rebuild);
            }
        }
    }

    /// The rebuild is abandoned; its lock or stub expires by itself.
    pub fn give_up(&mut self, rebuild: RebuildId) {
        let policy = &self.plan.keys[self.checker.rebuilds[rebuild].key].policy;
        let hold = 1000 * u64::from(policy.lock_seconds()) + self.plan.trip();
        self.checker.given_up(rebuild, self.now, hold);
    }

    pub fn is_patient(&self, purpose: &Purpose) -> bool {
        match purpose {
            Purpose::Get { client, .. } => self.hurried(*client).is_none() || self.waits_on(),
            _ => true,
        }
    }

    /// A mutant waits although it must not.
    fn waits_on(&self) -> bool {
        matches!(self.plan.mutant, Some(Mutant::WaitsWithWin | Mutant::WaitsThoughPipelined))
    }

    /// Since when its request must not wait.
    pub fn hurried(&self, client: usize) -> Option<u64> {
        match self.clients[client].job {
            Job::Getting { hurried, .. } => hurried,
            _ => None,
        }
    }

    pub fn client_goes_on(&mut self, client: usize, life: u32) -> Result<(), Broken> {
        if self.clients[client].life != life {
            return Ok(());
        }
        match std::mem::replace(&mut self.clients[client].job, Job::Idle) {
            Job::Making(makings) => return self.put_next(client, makings),
            Job::Idle => {}
            _ => panic!("client {client} is busy"),
        }
        let keys = self.plan.keys.len() as u64;
        let key = self.below(keys) as usize;
        // With pools, a `set` without a miss could be attributed to a miss, and a fill could not be.
        let [reads, writes] = self.clients[client].owners;
        let alone = !self.plan.pooled && reads == writes;
        if self.below(self.plan.blind) == 0 && alone {
            let making = self.blind(client, key, How::Set);
            return self.put_next(client, vec![making]);
        }
        match self.below(40) {
            0 => {
                self.get(client, &(0..keys as usize).collect::<Vec<_>>());
                Ok(())
            }
            1..=4 if self.plan.changes && alone => self.change(client, key),
            _ => {
                self.get(client, &[key]);
                Ok(())
            }
        }
    }

    fn get(&mut self, client: usize, keys: &[usize]) {
        self.clients[client].job = Job::Getting { waits_for: keys.len(), hurried: None, missed: Vec::new() };
        if self.below(8) == 0 {
            let (behind, life) = (1 + self.below(1000), self.clients[client].life);
            self.at(behind, Event::Behind { client, life });
        }
        for &key in keys {
            let Client { sidecar, meta, .. } = self.clients[client];
            let began = self.now;
            let mut wish = ReadOptions::default();
            if meta {
                wish.recache = (self.below(4) == 0).then(|| 1 + self.chance.below(3) as u32);
                wish.at_once = self.below(4) == 0;
            }
            let purpose = Purpose::Get { client, began, at_once: wish.at_once };
            if self.look_near(client, key, wish, purpose.clone()) {
                continue;
            }
            let (read, asks) = self.on_scene(sidecar, key, |scene| Read::with_options(wish, scene));
            let mut op = self.op(sidecar, key, Doing::Read(read), purpose);
            op.glances = wish.recache.is_none();
            self.ask(op, asks);
        }
    }

    pub fn on_scene<T>(&self, sidecar: usize, key: usize, then: impl FnOnce(&Inputs<'_>) -> T) -> T {
        self.on_scene_with(sidecar, key, &[], then)
    }

    /// With tags that a value names.
    pub fn on_scene_with<T>(
        &self,
        sidecar: usize,
        key: usize,
        extra: &[TagName],
        then: impl FnOnce(&Inputs<'_>) -> T,
    ) -> T {
        let guarded = &self.plan.keys[key];
        then(&Inputs {
            policy: &guarded.policy,
            tags: &[&guarded.tags, extra].concat(),
            sidecar: self.sidecars[sidecar].number,
            room: self.plan.room,
            learnt: extra.len(),
            copies: self.plan.copies,
            now: self.moment(sidecar),
            patient: true,
            chance: 1.0,
        })
    }

    pub fn read_done(
        &mut self,
        client: usize,
        key: usize,
        looked: u64,
        asked: Asked,
        end: ReadEnd,
    ) -> Result<(), Broken> {
        let Asked { sidecar, now, .. } = asked;
        let moment = self.moment(sidecar);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let Client { owners: [owner, _], meta, .. } = self.clients[client];
        let life = self.sidecars[sidecar].life;
        let forgets = |mutant| self.plan.is(mutant);
        let (loser_forgets, unknown_forgets) =
            (forgets(Mutant::LoserLeavesNoTicket), forgets(Mutant::UnknownLeavesNoTicket));
        self.checker.answered(key, asked)?;
        let mut making = None;
        match end {
            ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit) => {
                self.has_seen(sidecar, key, owner, hit.cas.number);
                let (value, _) = World::value_of(&hit.payload)?;
                self.checker.fresh(key, value, asked)?;
                if self.plan.changes && !self.plan.pooled && self.below(10) == 0 {
                    making = Some(self.making(client, key, How::Cas(hit.cas.number), None));
                }
            }
            ReadEnd::Stale(hit) => {
                let (value, _) = World::value_of(&hit.payload)?;
                self.checker.stale(key, value, asked, false)?;
            }
            ReadEnd::Won { lease, early, old } => {
                // As under `meta_winner = "stale"`, which returns most.
                if let (true, Some(hit)) = (meta, &old) {
                    let (value, _) = World::value_of(&hit.payload)?;
                    match early {
                        true => self.checker.fresh(key, value, asked)?,
                        false => self.checker.stale(key, value, asked, true)?,
                    }
                }
                let due = Leases::<OpId>::next_due(&lease, &policy, moment);
                let shown = lease.base.map(|base| base.number);
                self.is_told_a_miss(sidecar, key, owner);
                let (id, ended) = self.sidecars[sidecar].leases.grant(&name, owner, lease, &policy);
                self.give_back(sidecar, ended, &Purpose::Superseded);
                if let Some(id) = id {
                    self.at(due - now, Event::Due { sidecar, life, key, id });
                    let rebuild = self.checker.rebuild(key, looked, asked.served, now, early);
                    let how = self.how_to_fill(client, shown);
                    making = how.map(|how| self.making(client, key, how, Some(rebuild)));
                }
            }
            ReadEnd::Missed { seen, held } => {
                let shown = seen.base.filter(|_| held).map(|base| base.number);
                if !loser_forgets {
                    self.is_told_a_miss(sidecar, key, owner);
                    self.sidecars[sidecar].leases.record_miss(&name, owner, seen, &policy);
                }
                self.checker.missed(key, asked);
                // The reply showed a meta client that another client rebuilds; it seldom rebuilds too.
                if !meta || shown.is_none() || self.below(4) == 0 {
                    let how = self.how_to_fill(client, shown);
                    making = how.map(|how| self.making(client, key, how, None));
                }
            }
            ReadEnd::Failed(_) => {
                // The client may receive a miss, and its `set` must not overwrite anything newer.
                let seen = MissToken::nothing(moment);
                if !unknown_forgets {
                    self.is_told_a_miss(sidecar, key, owner);
                    self.sidecars[sidecar].leases.record_miss(&name, owner, seen, &policy);
                }
                self.checker.seen.failed += 1;
                let how = self.how_to_fill(client, None);
                making = how.map(|how| self.making(client, key, how, None));
            }
        }
        let won = making.as_ref().is_some_and(|making| making.rebuild.is_some());
        let Job::Getting { waits_for, missed, .. } = &mut self.clients[client].job else {
            panic!("client {client} asked nothing");
        };
        *waits_for -= 1;
        missed.extend(making.map(|making| making.since(looked)));
        if *waits_for == 0 {
            let missed = std::mem::take(missed);
            self.make(client, missed);
        } else if won {
            self.hurry(client, self.plan.is(Mutant::WaitsWithWin));
        }
        Ok(())
    }

    /// A classic client can only `set` or `add`. A meta client may pass the CAS that it received with its miss. With a pool it
    /// must, otherwise its `set` could be attributed to another connection's miss.
    fn how_to_fill(&mut self, client: usize, shown: Option<u64>) -> Option<How> {
        let Client { owners: [reads, writes], meta, .. } = self.clients[client];
        match (meta, shown) {
            (true, Some(cas)) if reads != writes || self.below(3) > 0 => {
                let elsewhere = self.plan.elsewhere && self.below(5) == 0;
                Some(How::MetaCas { cas, elsewhere })
            }
            (true, None) if reads != writes => None,
            _ if self.plan.changes && self.below(4) == 0 => Some(How::Add),
            _ => Some(How::Set),
        }
    }

    /// A request is pipelined behind the client's current one.
    pub fn behind(&mut self, client: usize, life: u32) {
        if self.clients[client].life == life {
            self.hurry(client, self.plan.is(Mutant::WaitsThoughPipelined));
        }
    }

    /// The client's request must not wait from now on.
    fn hurry(&mut self, client: usize, waits_all_the_same: bool) {
        let now = self.now;
        if let Job::Getting { hurried, .. } = &mut self.clients[client].job {
            hurried.get_or_insert(now);
        }
        let over: Vec<Event> = self
            .ops
            .values()
            .filter(|op| matches!(op.purpose, Purpose::Get { client: its, .. } if its == client))
            .filter_map(|op| op.over_now())
            .collect();
        for event in over.into_iter().filter(|_| !waits_all_the_same) {
            self.at(0, event);
        }
    }

    pub fn make(&mut self, client: usize, mut missed: Vec<Making>) {
        let life = self.clients[client].life;
        let sloth = self.plan.faults.sloth;
        let mut think = 1 + self.below(self.plan.think);
        if !missed.is_empty() && sloth > 0 && self.now < self.plan.quiet && self.below(sloth) == 0 {
            let Client { owners, meta, names, .. } = &self.clients[client];
            // A pooled `set` after `max_rebuild` on another connection counts as one without a miss unless it carries the CAS of
            // its miss.
            let counts_as_new = owners[0] != owners[1] && !(*meta && *names);
            match self.below(2) {
                0 if !counts_as_new => {
                    // Longer than `max_rebuild`: misses without a lease have expired from the lease table by then.
                    missed.retain(|making| making.rebuild.is_some());
                    think += 5000;
                }
                _ => {
                    for making in missed.drain(..) {
                        let max_rebuild = millis(self.plan.keys[making.key].policy.max_rebuild);
                        if let Some(rebuild) = making.rebuild {
                            self.checker.given_up(rebuild, self.now, max_rebuild + self.plan.trip());
                        }
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
}
