//! A sidecar: its lease table and its background work.

use std::collections::BTreeSet;
use std::time::Duration;

use kennel::guard::leases::{AfterHit, Due, Ended, KnownMiss, Leases, Owner, PollResult};
use kennel::guard::{BumpEnd, Commands, DeleteEnd, Now, Replies, TagName};
use kennel::metrics::LeaseEnd;
use kennel::proxy::TagCache;

use super::checker::{Asked, Broken};
use super::mutants::Mutant;
use super::near::Shelf;
use super::operation::{Doing, End, Op, OpId, Purpose};
use super::world::{Event, World};

pub struct Sidecar {
    pub leases: Leases<OpId>,
    /// The connections with an outstanding miss, by key: none of them has set, deleted or read the key since.
    pub told: BTreeSet<(Owner, usize)>,
    /// Of those, the ones whose `add` was refused.
    pub refused: BTreeSet<(Owner, usize)>,
    /// Random number drawn at the start.
    pub number: u64,
    /// The offset of its wall clock, in ms.
    pub offset: i64,
    /// How often it was restarted.
    pub life: u32,
    /// To each server: the connection and its epoch.
    pub links: Vec<(usize, u32)>,
    pub tag_cache: TagCache,
    pub shelf: Shelf,
}

impl Sidecar {
    /// Caches a tag's version. `writes`: the tag's write count when the read was sent.
    pub fn note_tag(&self, name: &TagName, version: Option<u64>, asked: Now, writes: u64) {
        if let Some(version) = version {
            self.tag_cache.put_unless_written(name, version, asked.mono, writes);
        }
    }
}

impl World {
    pub fn new_sidecar(&mut self, life: u32) -> Sidecar {
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
        let (leases, told, refused, shelf) = Default::default();
        Sidecar { leases, told, refused, number, offset, life, links, tag_cache, shelf }
    }

    /// Ends a sidecar without notice and starts another in its place.
    pub fn kill(&mut self, sidecar: usize) {
        let (sidecar_at, mut dead, mut unanswered) = (sidecar, Vec::new(), Vec::new());
        let mut stored = Vec::new();
        self.ops.retain(|_, op| {
            let keep = op.sidecar != sidecar_at;
            match &op.purpose {
                Purpose::Invalidation(which) if !keep => dead.push((*which, op.late)),
                Purpose::Put(put) if !keep => {
                    unanswered.extend(put.making.rebuild);
                    stored.push((put.making.value, op.late));
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
        let life = self.sidecars[sidecar].life + 1;
        self.sidecars[sidecar] = self.new_sidecar(life);
        for client in 0..self.clients.len() {
            if self.clients[client].sidecar == sidecar {
                self.restart_client(client);
            }
        }
    }

    /// Removes expired entries of the lease table.
    pub fn sweep(&mut self, sidecar: usize) {
        let now = self.moment(sidecar);
        self.sidecars[sidecar].leases.sweep(now);
        let pause = 1000 + self.below(9000);
        self.at(pause, Event::Sweep { sidecar });
    }

    /// Whether a connection has an outstanding miss of a key.
    pub fn told(&self, sidecar: usize, key: usize, owner: Owner) -> KnownMiss {
        if self.plan.is(Mutant::ForgottenMissIsNone) {
            return KnownMiss::No;
        }
        match self.sidecars[sidecar].told.contains(&(owner, key)) {
            true => KnownMiss::Yes,
            false => KnownMiss::No,
        }
    }

    /// Records that a connection received a miss.
    pub fn is_told_a_miss(&mut self, sidecar: usize, key: usize, owner: Owner) {
        self.sidecars[sidecar].told.insert((owner, key));
        self.sidecars[sidecar].refused.remove(&(owner, key));
    }

    /// Whether an `add` was refused for the connection's outstanding miss.
    pub fn is_refused(&self, sidecar: usize, key: usize, owner: Owner) -> bool {
        let of = &self.sidecars[sidecar];
        of.told.contains(&(owner, key)) && of.refused.contains(&(owner, key))
    }

    /// Records that a connection received a fresh value.
    pub fn has_seen(&mut self, sidecar: usize, key: usize, owner: Owner, cas: u64) {
        let name = &self.plan.keys[key].key;
        let of = &mut self.sidecars[sidecar];
        if of.told.contains(&(owner, key))
            && let AfterHit::Over(ended) = of.leases.hit(name, owner, cas)
        {
            of.told.remove(&(owner, key));
            self.give_back(sidecar, ended, &Purpose::Lost);
        }
    }

    /// Sends the commands that remove what ended leases left in memcached.
    pub fn give_back(&mut self, sidecar: usize, ended: Vec<Ended>, purpose: &Purpose) {
        for Ended { key, asks, .. } in ended {
            let key = self.plan.keys.iter().position(|guarded| guarded.key[..] == *key);
            if let Some(key) = key
                && !asks.is_empty()
            {
                self.ask_plainly(sidecar, key, asks, purpose.clone());
            }
        }
    }

    pub fn wake_all(&mut self, bells: Vec<OpId>) {
        for bell in bells {
            self.at(0, Event::Wake(bell));
        }
    }

    pub fn wake_key(&mut self, sidecar: usize, key: usize) {
        let name = &self.plan.keys[key].key;
        let bells = self.sidecars[sidecar].leases.wake(name);
        self.wake_all(bells);
    }

    /// Sends commands that belong to no client's request.
    pub fn ask_plainly(&mut self, sidecar: usize, key: usize, asks: Commands, purpose: Purpose) {
        let op = self.op(sidecar, key, Doing::Plain, purpose);
        self.ask(op, asks);
    }

    pub fn lease_due(&mut self, sidecar: usize, life: u32, key: usize, id: u64) {
        if self.sidecars[sidecar].life != life || self.plan.is(Mutant::NoRenewal) {
            return;
        }
        let now = self.moment(sidecar);
        let guarded = self.plan.keys[key].clone();
        let Sidecar { leases, number, .. } = &mut self.sidecars[sidecar];
        match leases.due(&guarded.key, id, now, &guarded.policy, &guarded.tags, *number) {
            Due::Nothing => {}
            Due::Expire(asks) => self.ask_plainly(sidecar, key, asks, Purpose::Freeing),
            Due::Renew(asks) => self.ask_plainly(sidecar, key, asks, Purpose::Renewal(id)),
        }
    }

    pub fn poll(&mut self, sidecar: usize, life: u32, key: usize, pause: u64, before: Option<u64>) {
        let name = self.plan.keys[key].key.clone();
        if self.sidecars[sidecar].life != life || !self.sidecars[sidecar].leases.has_waiters(&name) {
            return;
        }
        self.ask_plainly(sidecar, key, PollResult::asks(), Purpose::Polling { pause, before });
    }

    /// Handles the replies to commands that belong to no client's request.
    pub fn plain_done(&mut self, op: &Op, answers: &Replies) {
        let (sidecar, key) = (op.sidecar, op.key);
        let name = self.plan.keys[key].key.clone();
        let policy = self.plan.keys[key].policy.clone();
        let now = self.moment(sidecar);
        let life = self.sidecars[sidecar].life;
        let asked = op.asked.mono;
        let leases = &mut self.sidecars[sidecar].leases;
        match op.purpose {
            Purpose::Superseded => {}
            Purpose::Lost => {
                let bells = leases.wake(&name);
                self.wake_all(bells);
            }
            Purpose::Freeing => {
                let bells = leases.release_waiters(&name, now);
                self.wake_all(bells);
            }
            Purpose::Renewal(id) => {
                let renewed = leases.renewed(&name, id, answers, asked);
                let mut bells = leases.renewal_ended(&name);
                match renewed {
                    Ok(ticket) => {
                        let due = Leases::<OpId>::due_after(&ticket, answers, &policy, now);
                        self.at(due - self.now, Event::Due { sidecar, life, key, id });
                    }
                    Err((_, asks)) if asks.is_empty() => bells.extend(leases.wake(&name)),
                    Err((Some(LeaseEnd::Lost), asks)) => self.ask_plainly(sidecar, key, asks, Purpose::Lost),
                    Err((_, asks)) => self.ask_plainly(sidecar, key, asks, Purpose::Freeing),
                }
                self.wake_all(bells);
            }
            Purpose::Polling { pause, mut before } => {
                let found = PollResult::found(answers, &mut before);
                let bells = leases.polled(&name, found, now);
                if self.plan.is(Mutant::PollerNeverWakes) {
                    return;
                }
                self.wake_all(bells);
                if found == PollResult::Unchanged {
                    let pause = (pause * 2).min(100);
                    let jittered = pause - self.below(pause / 2);
                    self.at(jittered, Event::Poll { sidecar, life, key, pause, before });
                }
            }
            _ => {}
        }
    }

    pub fn done(&mut self, op: Box<Op>, end: End) -> Result<(), Broken> {
        match (end, op.purpose.clone()) {
            (End::Plain(answers), _) => {
                self.plain_done(&op, &answers);
                Ok(())
            }
            (end, Purpose::Command(sent)) => self.command_done(op.sidecar, sent, end),
            (End::Read(end), Purpose::Get { client, began, at_once }) => {
                let (sidecar, key, looked) = (op.sidecar, op.key, op.looked);
                let hurried = if at_once { Some(began) } else { self.hurried(client) };
                let rounds = u64::from(op.round);
                let asked = Asked { sidecar, began, now: self.now, hurried, served: op.served, rounds };
                self.read_done(client, key, looked, asked, end)
            }
            (End::Fill(end), Purpose::Put(put)) => self.fill_done(put.with_late(op.late), end),
            (End::Set(end), Purpose::Put(put)) => self.set_done(put.with_late(op.late), end),
            (End::Modify(end), Purpose::Put(put)) => self.modify_done(put.with_late(op.late), end),
            (End::Modify(end), Purpose::Change(changing)) => self.change_done(changing, &op, end),
            (End::Delete(_), Purpose::GivingBack { client, life, .. }) => {
                self.wake_key(op.sidecar, op.key);
                self.goes_on_putting(client, life)
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
