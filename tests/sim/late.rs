//! Commands that are held back until nobody waits for them any more, and are carried out then: decision 0013.

use kennel::guard::{GetFlags, Operation};

use super::operation::Purpose;
use super::plan::{Plan, tag_name};
use super::world::{Event, TIMEOUT, World};

/// After so many time-outs in which nothing comes, a connection is remade.
const STALLED: u64 = 4;

impl Plan {
    /// Whether a command may arrive after it was given up.
    pub fn holds_back(&self) -> bool {
        self.faults.stall + self.faults.stop > 0
    }
}

impl World {
    /// By when everything has arrived that was sent until now, but for what is given up before.
    pub fn arrives_by(&self) -> u64 {
        self.now + if self.plan.holds_back() { TIMEOUT } else { self.plan.trip() }
    }

    /// How long something is held back from now on: nothing beyond the quiet.
    fn holds(&mut self) -> u64 {
        (200 + self.below(self.plan.longest)).min(self.plan.quiet.saturating_sub(self.now))
    }

    /// What this sidecar sends to this server arrives in order, and much later.
    pub fn stall(&mut self, sidecar: usize, server: usize) {
        let holds = self.holds();
        self.hold_back(sidecar, server, holds);
    }

    /// A server is stopped: what is sent to it, by whomever, waits for it.
    pub fn stop(&mut self, server: usize) {
        let holds = self.holds();
        self.stopped[server] = self.stopped[server].max(self.now + holds);
        for sidecar in 0..self.plan.sidecars {
            // What waits already comes first; of several connections any.
            let after = holds + 1 + self.below(20);
            self.hold_back(sidecar, server, after);
        }
    }

    fn hold_back(&mut self, sidecar: usize, server: usize, holds: u64) {
        let (link, _) = self.sidecars[sidecar].links[server];
        let until = self.now + holds;
        self.links[link].last_there = self.links[link].last_there.max(until);
        if holds > STALLED * TIMEOUT {
            self.at(STALLED * TIMEOUT, Event::Remake { sidecar, server, link });
        }
    }

    /// A connection is given up, with what has been sent on it still on its way.
    pub fn remake(&mut self, sidecar: usize, server: usize, link: usize) {
        if self.sidecars[sidecar].links[server].0 == link {
            self.reconnect(sidecar, server);
        }
    }

    /// A command has reached a server that does nothing.
    pub fn wait_for_server(&mut self, arrives: Event, server: usize) {
        let waits = self.stopped[server] - self.now;
        if let (Event::Arrive { op: id, index, round, link, .. }, true) = (&arrives, waits > TIMEOUT) {
            let (id, index, round, link) = (*id, *index, *round, *link);
            let until = self.stopped[server];
            self.is_late(id, until);
            let answer = kennel::guard::ServerReply::Failed(kennel::error::Failure::TimedOut);
            self.at(TIMEOUT, Event::Reply { op: id, index, round, answer, link });
        }
        self.at(waits, arrives);
    }

    /// A command of this operation arrives only then, and is given up before.
    fn is_late(&mut self, id: u64, until: u64) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.late = op.late.max(until);
        let (key, renews) = (op.key, matches!(op.purpose, Purpose::Renewal(_)));
        if renews {
            self.renewal_late(key, until);
        }
    }

    /// A renewal that is carried out late may do nothing by then, or leave what nobody counts on.
    pub fn renewal_late(&mut self, key: usize, until: u64) {
        let waits = until - self.now;
        self.lost(key, waits + self.runs_out(key));
    }

    /// A command that was given up has been carried out all the same. What it did is one loss for each key that it concerns: a lock
    /// or stub that nobody holds or that is gone, a delete, a bump.
    pub fn came_late(&mut self, what: &Operation, key: &[u8], reply: &[u8]) {
        if let Operation::Get(look) = what
            && (look.touch.is_none() || !reply.starts_with(b"HD"))
            && !(look.vivify.is_some() && reply.windows(2).any(|flag| flag == b" W"))
        {
            return;
        }
        if !reply.starts_with(b"HD") && !reply.starts_with(b"VA") && !reply.starts_with(b"SERVER_ERROR") {
            return;
        }
        self.checker.seen.late += 1;
        let guarded = (0..self.plan.keys.len())
            .find(|at| self.plan.keys[*at].key == key || self.plan.keys[*at].lock == key);
        match guarded {
            Some(at) => {
                match what {
                    Operation::Get(GetFlags { touch: Some(seconds), .. }) => {
                        self.checker.put_off(at, *seconds, self.now);
                    }
                    Operation::MarkStale { seconds: Some(seconds), .. } => {
                        self.checker.put_off(at, i64::from(*seconds), self.now);
                    }
                    _ => {}
                }
                self.lost(at, self.runs_out(at));
            }
            None => {
                let tag = (0..self.plan.all_tags()).find(|tag| self.tag_key(&tag_name(*tag)) == key);
                if let Some(tag) = tag {
                    self.tag_lost(tag);
                }
            }
        }
    }
}
