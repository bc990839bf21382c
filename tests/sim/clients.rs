//! Applications that read, and rebuild what they miss.

use kennel::guard::leases::{Leases, MissToken, Owner};
use kennel::guard::{Inputs, Read, ReadEnd, ReadOptions, TagName, shown_cas};

use super::checker::{RebuildId, Request, Violation, millis};
use super::mutants::Mutant;
use super::operation::{OpId, Purpose, Task};
use super::world::{Event, World};
use super::writes::{Build, StoreMethod};

pub struct Client {
    pub sidecar: usize,
    pub generation: u32,
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
    Reading {
        waits_for: usize,
        /// Since when its request must not wait: it holds a win, or another request is pipelined behind it.
        no_wait_since: Option<u64>,
        missed: Vec<Build>,
    },
    Building(Vec<Build>),
    Storing(Vec<Build>),
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
        self.clients.push(Client { sidecar, generation: 0, owners, meta, names, job: Job::Idle });
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
                Purpose::Store(put) => put.client != client || !op.is_parked(),
                _ => true,
            };
            if let (false, Purpose::Store(put)) = (keep, &op.purpose) {
                unanswered.extend(put.build.rebuild);
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
            self.sidecars[sidecar].leases.stop_waiting(&name, waiter);
        }
        let copied_tags = if owners[0] == owners[1] { &owners[..1] } else { &owners[..] };
        for &owner in copied_tags {
            let ended = self.sidecars[sidecar].leases.disconnect(owner);
            self.sidecars[sidecar].known_misses.retain(|(its, _)| *its != owner);
            self.remove_ended(sidecar, ended, &Purpose::Release);
        }
        self.restart_client(client);
    }

    pub fn restart_client(&mut self, client: usize) {
        let owners = self.new_owners(client, self.clients[client].meta);
        let of = &mut self.clients[client];
        of.generation += 1;
        of.owners = owners;
        let generation = of.generation;
        self.at(20, Event::Client { client, generation });
        if let Job::Reading { missed: builds, .. } | Job::Building(builds) | Job::Storing(builds) =
            std::mem::replace(&mut self.clients[client].job, Job::Idle)
        {
            for rebuild in builds.iter().filter_map(|build| build.rebuild) {
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
            Purpose::Get { client, .. } => self.no_wait_since(*client).is_none() || self.waits_on(),
            _ => true,
        }
    }

    /// A mutant waits although it must not.
    fn waits_on(&self) -> bool {
        matches!(self.plan.mutant, Some(Mutant::WaitsWithWin | Mutant::WaitsThoughPipelined))
    }

    /// Since when its request must not wait.
    pub fn no_wait_since(&self, client: usize) -> Option<u64> {
        match self.clients[client].job {
            Job::Reading { no_wait_since, .. } => no_wait_since,
            _ => None,
        }
    }

    pub fn client_step(&mut self, client: usize, generation: u32) -> Result<(), Violation> {
        if self.clients[client].generation != generation {
            return Ok(());
        }
        match std::mem::replace(&mut self.clients[client].job, Job::Idle) {
            Job::Building(builds) => return self.store_next(client, builds),
            Job::Idle => {}
            _ => panic!("client {client} is busy"),
        }
        let keys = self.plan.keys.len() as u64;
        let key = self.below(keys) as usize;
        // With pools, a `set` without a miss could be attributed to a miss, and a fill could not be.
        let [reads, writes] = self.clients[client].owners;
        let alone = !self.plan.pooled && reads == writes;
        if self.below(self.plan.blind) == 0 && alone {
            let build = self.blind(client, key, StoreMethod::Set);
            return self.store_next(client, vec![build]);
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
        self.clients[client].job =
            Job::Reading { waits_for: keys.len(), no_wait_since: None, missed: Vec::new() };
        if self.below(8) == 0 {
            let (behind, generation) = (1 + self.below(1000), self.clients[client].generation);
            self.at(behind, Event::Pipelined { client, generation });
        }
        for &key in keys {
            let Client { sidecar, meta, .. } = self.clients[client];
            let began = self.now;
            let mut options = ReadOptions::default();
            if meta {
                options.recache = (self.below(4) == 0).then(|| 1 + self.random.below(3) as u32);
                options.at_once = self.below(4) == 0;
            }
            let purpose = Purpose::Get { client, began, at_once: options.at_once };
            if self.start_near_read(client, key, options, purpose.clone()) {
                continue;
            }
            let (read, commands) =
                self.with_inputs(sidecar, key, |inputs| Read::with_options(options, inputs));
            let mut op = self.op(sidecar, key, Task::Read(read), purpose);
            op.first_round = options.recache.is_none();
            self.send_round(op, commands);
        }
    }

    pub fn with_inputs<T>(&self, sidecar: usize, key: usize, then: impl FnOnce(&Inputs<'_>) -> T) -> T {
        self.with_inputs_and_tags(sidecar, key, &[], then)
    }

    /// With tags that a value names.
    pub fn with_inputs_and_tags<T>(
        &self,
        sidecar: usize,
        key: usize,
        extra: &[TagName],
        then: impl FnOnce(&Inputs<'_>) -> T,
    ) -> T {
        let guarded = &self.plan.keys[key];
        let tags = [&guarded.tags, extra].concat();
        then(&Inputs {
            policy: &guarded.policy,
            tags: &tags,
            sidecar: self.sidecars[sidecar].number,
            max_value: self.plan.max_value,
            added_tags: extra.len(),
            copies: self.plan.copies,
            fence: self.place_of_key(sidecar, key).fence(),
            tag_fences: &self.tag_fences(sidecar, &tags),
            inherited: 0,
            inherited_tag_fences: &[],
            now: self.local_now(sidecar),
            may_wait: true,
            random_unit: 1.0,
        })
    }

    pub fn read_done(
        &mut self,
        client: usize,
        key: usize,
        last_read: u64,
        request: Request,
        end: ReadEnd,
    ) -> Result<(), Violation> {
        let Request { sidecar, now, place, .. } = request;
        let fence = if self.plan.shares_numbers() { 0 } else { place.fence() };
        let moment = self.local_now(sidecar);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let Client { owners: [owner, _], meta, .. } = self.clients[client];
        let generation = self.sidecars[sidecar].generation;
        let forgets = |mutant| self.plan.is(mutant);
        let (loser_forgets, unknown_forgets) =
            (forgets(Mutant::LoserLeavesNoToken), forgets(Mutant::UnknownLeavesNoToken));
        self.checker.answered(key, request)?;
        let mut build = None;
        match end {
            ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit) => {
                self.note_hit(sidecar, key, owner, hit.cas.number);
                let (value, _) = World::value_of(&hit.payload)?;
                self.checker.fresh(key, value, request)?;
                if self.plan.changes && !self.plan.pooled && self.below(10) == 0 {
                    build = Some(self.build(
                        client,
                        key,
                        StoreMethod::Cas(shown_cas(hit.cas.number, fence)),
                        None,
                    ));
                }
            }
            ReadEnd::Stale(hit) => {
                let (value, _) = World::value_of(&hit.payload)?;
                self.checker.stale(key, value, request, false)?;
            }
            ReadEnd::Won { lease, early, old } => {
                // As under `meta_winner = "stale"`, which returns most.
                let cold = old.is_none();
                if let (true, Some(hit)) = (meta, &old) {
                    let (value, _) = World::value_of(&hit.payload)?;
                    match early {
                        true => self.checker.fresh(key, value, request)?,
                        false => self.checker.stale(key, value, request, true)?,
                    }
                }
                let due = Leases::<OpId>::next_due(&lease, &policy, moment);
                let shown = lease.observed_cas.map(|cas| shown_cas(cas.number, fence));
                self.note_miss(sidecar, key, owner);
                let (id, ended) = self.sidecars[sidecar].leases.grant(&name, owner, lease, &policy);
                self.remove_ended(sidecar, ended, &Purpose::Superseded);
                if let Some(id) = id {
                    self.at(due - now, Event::Due { sidecar, generation, key, id, place });
                    let rebuild = self.checker.rebuild(key, last_read, request.served, now, (early, cold));
                    let method = self.fill_method(client, shown);
                    build = method.map(|method| self.build(client, key, method, Some(rebuild)));
                }
            }
            ReadEnd::Missed { seen, held } => {
                let shown = seen.observed_cas.filter(|_| held).map(|cas| shown_cas(cas.number, fence));
                if !loser_forgets {
                    self.note_miss(sidecar, key, owner);
                    self.sidecars[sidecar].leases.record_miss(&name, owner, seen, &policy);
                }
                self.checker.missed(key, request, held)?;
                // The reply showed a meta client that another client rebuilds; it seldom rebuilds too.
                if !meta || shown.is_none() || self.below(4) == 0 {
                    let method = self.fill_method(client, shown);
                    build = method.map(|method| self.build(client, key, method, None));
                }
            }
            ReadEnd::Failed(_) => {
                // The client may receive a miss, and its `set` must not overwrite anything newer.
                let seen = MissToken::unanswered(moment);
                if !unknown_forgets {
                    self.note_miss(sidecar, key, owner);
                    self.sidecars[sidecar].leases.record_miss(&name, owner, seen, &policy);
                }
                self.checker.coverage.failed += 1;
                let method = self.fill_method(client, None);
                build = method.map(|method| self.build(client, key, method, None));
            }
        }
        let won = build.as_ref().is_some_and(|build| build.rebuild.is_some());
        let Job::Reading { waits_for, missed, .. } = &mut self.clients[client].job else {
            panic!("client {client} has no read in progress");
        };
        *waits_for -= 1;
        missed.extend(build.map(|build| build.since(last_read, place.server)));
        if *waits_for == 0 {
            let missed = std::mem::take(missed);
            self.make(client, missed);
        } else if won {
            self.forbid_waiting(client, self.plan.is(Mutant::WaitsWithWin));
        }
        Ok(())
    }

    /// A classic client can only `set` or `add`. A meta client may pass the CAS that it received with its miss. With a pool it
    /// must, otherwise its `set` could be attributed to another connection's miss.
    fn fill_method(&mut self, client: usize, shown: Option<u64>) -> Option<StoreMethod> {
        let Client { owners: [reads, writes], meta, .. } = self.clients[client];
        match (meta, shown) {
            (true, Some(cas)) if reads != writes || self.below(3) > 0 => {
                let elsewhere = self.plan.elsewhere && self.below(5) == 0;
                Some(StoreMethod::MetaCas { cas, elsewhere })
            }
            (true, None) if reads != writes => None,
            _ if self.plan.changes && self.below(4) == 0 => Some(StoreMethod::Add),
            _ => Some(StoreMethod::Set),
        }
    }

    /// A request is pipelined behind the client's current one.
    pub fn behind(&mut self, client: usize, generation: u32) {
        if self.clients[client].generation == generation {
            self.forbid_waiting(client, self.plan.is(Mutant::WaitsThoughPipelined));
        }
    }

    /// The client's request must not wait from now on.
    fn forbid_waiting(&mut self, client: usize, waits_all_the_same: bool) {
        let now = self.now;
        if let Job::Reading { no_wait_since, .. } = &mut self.clients[client].job {
            no_wait_since.get_or_insert(now);
        }
        let over: Vec<Event> = self
            .ops
            .values()
            .filter(|op| matches!(op.purpose, Purpose::Get { client: its, .. } if its == client))
            .filter_map(|op| op.end_of_wait())
            .collect();
        for event in over.into_iter().filter(|_| !waits_all_the_same) {
            self.at(0, event);
        }
    }

    pub fn make(&mut self, client: usize, mut missed: Vec<Build>) {
        let generation = self.clients[client].generation;
        let slow_winner = self.plan.faults.slow_winner;
        let mut think = 1 + self.below(self.plan.think);
        if !missed.is_empty() && slow_winner > 0 && self.now < self.plan.quiet && self.below(slow_winner) == 0
        {
            let Client { owners, meta, names, .. } = &self.clients[client];
            // A pooled `set` after `max_rebuild` on another connection counts as one without a miss unless it carries the CAS of
            // its miss.
            let counts_as_new = owners[0] != owners[1] && !(*meta && *names);
            match self.below(2) {
                0 if !counts_as_new => {
                    // Longer than `max_rebuild`: misses without a lease have expired from the lease table by then.
                    missed.retain(|build| build.rebuild.is_some());
                    think += 5000;
                }
                _ => {
                    for build in missed.drain(..) {
                        let max_rebuild = millis(self.plan.keys[build.key].policy.max_rebuild);
                        if let Some(rebuild) = build.rebuild {
                            self.checker.given_up(rebuild, self.now, max_rebuild + self.plan.trip());
                        }
                    }
                }
            }
        }
        if missed.is_empty() {
            self.clients[client].job = Job::Idle;
            let pause = 1 + self.below(self.plan.pause);
            return self.at(pause, Event::Client { client, generation });
        }
        self.clients[client].job = Job::Building(missed);
        self.at(think, Event::Client { client, generation });
    }
}
