//! A sidecar: its lease table and its background work.

use std::collections::BTreeSet;
use std::time::Duration;

use kennel::guard::leases::{AfterHit, Due, Ended, KnownMiss, Leases, Owner, PollResult};
use kennel::guard::{BumpEnd, Commands, DeleteEnd, Now, Replies, TagName};
use kennel::metrics::LeaseEnd;
use kennel::proxy::TagCache;

use super::checker::{Request, Violation};
use super::mutants::Mutant;
use super::near::NearState;
use super::operation::{End, Op, OpId, Purpose, Task};
use super::places::Place;
use super::world::{Event, World};

pub struct Sidecar {
    pub leases: Leases<OpId>,
    /// The connections with an outstanding miss, by key: none of them has set, deleted or read the key since.
    pub known_misses: BTreeSet<(Owner, usize)>,
    /// Of those, the ones whose `add` was refused.
    pub refused_adds: BTreeSet<(Owner, usize)>,
    /// Random number drawn at the start.
    pub number: u64,
    /// The offset of its wall clock, in ms.
    pub offset: i64,
    /// How often it was restarted.
    pub generation: u32,
    /// To each server: the connection and its epoch.
    pub links: Vec<(usize, u32)>,
    pub tag_cache: TagCache,
    pub near_state: NearState,
}

impl Sidecar {
    /// Caches a tag's version. `writes`: the tag's write count when the read was sent.
    pub fn note_tag(&self, name: &TagName, version: Option<u64>, fences: u64, sent_at: Now, writes: u64) {
        if let Some(version) = version {
            self.tag_cache.put_unless_written(name, version, fences, sent_at.mono, writes);
        }
    }
}

impl World {
    pub fn new_sidecar(&mut self, generation: u32) -> Sidecar {
        let number = self.below(u64::MAX);
        let spread = self.plan.faults.offset;
        let offset = self.below(2 * spread + 1) as i64 - spread as i64;
        let keep = if self.plan.is(Mutant::CacheForever) && self.plan.tag_cache > 0 {
            Duration::from_secs(3600)
        } else {
            Duration::from_millis(self.plan.tag_cache)
        };
        let tag_cache = TagCache::new(keep);
        let links = (0..self.plan.servers).map(|server| (self.connect(server), 1)).collect();
        let (leases, known_misses, refused_adds, near_state) = Default::default();
        Sidecar {
            leases,
            known_misses,
            refused_adds,
            number,
            offset,
            generation,
            links,
            tag_cache,
            near_state,
        }
    }

    /// Ends a sidecar without notice and starts another in its place.
    pub fn kill(&mut self, sidecar: usize) {
        let (sidecar_at, mut dead, mut unanswered) = (sidecar, Vec::new(), Vec::new());
        let mut stored = Vec::new();
        self.ops.retain(|_, op| {
            let keep = op.sidecar != sidecar_at;
            match &op.purpose {
                Purpose::Invalidation(which) if !keep => dead.push((*which, op.late)),
                Purpose::Store(put) if !keep => {
                    unanswered.extend(put.build.rebuild);
                    stored.push((put.build.value, op.late));
                }
                _ => {}
            }
            keep
        });
        for rebuild in unanswered {
            self.give_up(rebuild);
        }
        let arrives = self.arrives_by();
        // Its clients' connections close. Commands on their way may still arrive.
        for (value, late) in stored {
            self.checker.ended(value, self.now, late.max(arrives));
        }
        for (which, late) in dead {
            // Commands on their way may still arrive.
            self.attempt_ended(which, late.max(arrives));
            self.at(50, Event::Invalidate { which });
        }
        let generation = self.sidecars[sidecar].generation + 1;
        self.sidecars[sidecar] = self.new_sidecar(generation);
        for client in 0..self.clients.len() {
            if self.clients[client].sidecar == sidecar {
                self.restart_client(client);
            }
        }
    }

    /// Removes expired entries of the lease table.
    pub fn sweep(&mut self, sidecar: usize) {
        let now = self.local_now(sidecar);
        self.sidecars[sidecar].leases.sweep(now);
        let pause = 1000 + self.below(9000);
        self.at(pause, Event::Sweep { sidecar });
    }

    /// Whether a connection has an outstanding miss of a key.
    pub fn known_miss(&self, sidecar: usize, key: usize, owner: Owner) -> KnownMiss {
        if self.plan.is(Mutant::ForgottenMissIsNone) {
            return KnownMiss::No;
        }
        match self.sidecars[sidecar].known_misses.contains(&(owner, key)) {
            true => KnownMiss::Yes,
            false => KnownMiss::No,
        }
    }

    /// Records that a connection received a miss.
    pub fn note_miss(&mut self, sidecar: usize, key: usize, owner: Owner) {
        self.sidecars[sidecar].known_misses.insert((owner, key));
        self.sidecars[sidecar].refused_adds.remove(&(owner, key));
    }

    /// Whether an `add` was refused for the connection's outstanding miss.
    pub fn is_add_refused(&self, sidecar: usize, key: usize, owner: Owner) -> bool {
        let of = &self.sidecars[sidecar];
        of.known_misses.contains(&(owner, key)) && of.refused_adds.contains(&(owner, key))
    }

    /// Records that a connection received a fresh value.
    pub fn note_hit(&mut self, sidecar: usize, key: usize, owner: Owner, cas: u64) {
        let name = &self.plan.keys[key].key;
        let of = &mut self.sidecars[sidecar];
        if of.known_misses.contains(&(owner, key))
            && let AfterHit::Ended(ended) = of.leases.hit(name, owner, cas)
        {
            of.known_misses.remove(&(owner, key));
            self.remove_ended(sidecar, ended, &Purpose::Lost);
        }
    }

    /// Sends the commands that remove what ended leases left in memcached.
    pub fn remove_ended(&mut self, sidecar: usize, ended: Vec<Ended>, purpose: &Purpose) {
        for Ended { key, commands, fence, .. } in ended {
            let key = self.plan.keys.iter().position(|guarded| guarded.key[..] == *key);
            if let Some(key) = key
                && !commands.is_empty()
                && self.place_of_key(sidecar, key).fence() == fence
            {
                self.send_direct(sidecar, key, commands, purpose.clone());
            }
        }
    }

    pub fn wake_all(&mut self, waiters: Vec<OpId>) {
        for sender in waiters {
            self.at(0, Event::Wake(sender));
        }
    }

    pub fn wake_key(&mut self, sidecar: usize, key: usize) {
        let name = &self.plan.keys[key].key;
        let waiters = self.sidecars[sidecar].leases.wake(name);
        self.wake_all(waiters);
    }

    /// Sends commands that belong to no client's request.
    pub fn send_direct(&mut self, sidecar: usize, key: usize, commands: Commands, purpose: Purpose) {
        self.send_to(self.place_of_key(sidecar, key), sidecar, key, commands, purpose);
    }

    /// The same, for an item in this place.
    fn send_to(&mut self, place: Place, sidecar: usize, key: usize, commands: Commands, purpose: Purpose) {
        let mut op = self.op(sidecar, key, Task::Direct, purpose);
        op.place = place;
        self.send_round(op, commands);
    }

    pub fn lease_due(&mut self, sidecar: usize, generation: u32, key: usize, id: u64, place: Place) {
        if self.sidecars[sidecar].generation != generation || self.plan.is(Mutant::NoRenewal) {
            return;
        }
        let now = self.local_now(sidecar);
        let guarded = self.plan.keys[key].clone();
        let Sidecar { leases, number, .. } = &mut self.sidecars[sidecar];
        match leases.due(&guarded.key, id, now, &guarded.policy, &guarded.tags, *number) {
            Due::Nothing => {}
            Due::Expire(commands) => self.send_to(place, sidecar, key, commands, Purpose::Release),
            Due::Renew(commands) => self.send_to(place, sidecar, key, commands, Purpose::Renewal(id)),
        }
    }

    pub fn poll(
        &mut self,
        sidecar: usize,
        generation: u32,
        key: usize,
        pause: u64,
        before: Option<u64>,
        place: Place,
    ) {
        let name = self.plan.keys[key].key.clone();
        if self.sidecars[sidecar].generation != generation
            || !self.sidecars[sidecar].leases.has_waiters(&name)
        {
            return;
        }
        self.send_to(place, sidecar, key, PollResult::commands(), Purpose::Polling { pause, before });
    }

    /// Handles the replies to commands that belong to no client's request.
    pub fn direct_done(&mut self, op: &Op, replies: &Replies) {
        let (sidecar, key) = (op.sidecar, op.key);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let now = self.local_now(sidecar);
        let generation = self.sidecars[sidecar].generation;
        let sent_at = op.sent_at.mono;
        let leases = &mut self.sidecars[sidecar].leases;
        match op.purpose {
            Purpose::Superseded => {}
            Purpose::Lost => {
                let waiters = leases.wake(&name);
                self.wake_all(waiters);
            }
            Purpose::Release => {
                let waiters = leases.release_waiters(&name, now);
                self.wake_all(waiters);
            }
            Purpose::Renewal(id) => {
                let renewed = leases.renewed(&name, id, replies, sent_at);
                let mut waiters = leases.renewal_ended(&name);
                match renewed {
                    Ok(token) => {
                        let due = Leases::<OpId>::due_after(&token, replies, &policy, now);
                        self.at(due - self.now, Event::Due { sidecar, generation, key, id, place: op.place });
                    }
                    Err((_, commands)) if commands.is_empty() => waiters.extend(leases.wake(&name)),
                    Err((Some(LeaseEnd::Lost), commands)) => {
                        self.send_to(op.place, sidecar, key, commands, Purpose::Lost)
                    }
                    Err((_, commands)) => self.send_to(op.place, sidecar, key, commands, Purpose::Release),
                }
                self.wake_all(waiters);
            }
            Purpose::Polling { pause, mut before } => {
                let found = match self.is_replaced(sidecar, op.place) {
                    true => PollResult::Freed,
                    false => PollResult::from_replies(replies, &mut before),
                };
                let leases = &mut self.sidecars[sidecar].leases;
                let waiters = leases.polled(&name, found, now);
                if self.plan.is(Mutant::PollerNeverWakes) {
                    return;
                }
                self.wake_all(waiters);
                if found == PollResult::Unchanged {
                    let pause = (pause * 2).min(100);
                    let jittered = pause - self.below(pause / 2);
                    self.at(
                        jittered,
                        Event::Poll { sidecar, generation, key, pause, before, place: op.place },
                    );
                }
            }
            _ => {}
        }
    }

    pub fn done(&mut self, op: Box<Op>, end: End) -> Result<(), Violation> {
        match (end, op.purpose.clone()) {
            (End::Direct(replies), _) => {
                self.direct_done(&op, &replies);
                Ok(())
            }
            (end, Purpose::Command(sent)) => self.command_done(op.sidecar, sent, end),
            (End::Read(end), Purpose::Get { client, began, at_once }) => {
                let (sidecar, key, last_read) = (op.sidecar, op.key, op.last_read);
                let no_wait_since = if at_once { Some(began) } else { self.no_wait_since(client) };
                let rounds = u64::from(op.round);
                let (now, served, place) = (self.now, op.served, op.place);
                let request = Request { sidecar, began, now, no_wait_since, served, rounds, place };
                self.read_done(client, key, last_read, request, end)
            }
            (End::Fill(end), Purpose::Store(put)) => self.fill_done(put.with_latest_arrival(op.late), end),
            (End::Set(end), Purpose::Store(put)) => self.set_done(put.with_latest_arrival(op.late), end),
            (End::Modify(end), Purpose::Store(put)) => {
                self.modify_done(put.with_latest_arrival(op.late), end)
            }
            (End::Modify(end), Purpose::Change(pending)) => self.change_done(pending, &op, end),
            (End::Delete(_), Purpose::ReleaseWin { client, generation, .. }) => {
                self.wake_key(op.sidecar, op.key);
                self.continue_storing(client, generation)
            }
            (End::Delete(end), Purpose::Invalidation(which)) => {
                self.invalidation_done(which, op.sidecar, !matches!(end, DeleteEnd::Failed(_)))
            }
            (End::Bump(end), Purpose::Invalidation(which)) => {
                self.invalidation_done(which, op.sidecar, !matches!(end, BumpEnd::Failed(_)))
            }
            (end, purpose) => panic!("{purpose:?} cannot end with {end:?}"),
        }
    }
}
