//! Commands that are delayed beyond their timeout and executed later: decision 0007.

use kennel::guard::{GetFlags, Operation};

use super::operation::Purpose;
use super::plan::{Plan, tag_name};
use super::world::{Event, TIMEOUT, World};

/// A connection is replaced after this many timeouts without a reply.
const STALLED: u64 = 4;

impl Plan {
    /// Whether a command may arrive after its timeout.
    pub fn holds_back(&self) -> bool {
        self.faults.stall + self.faults.stop > 0
    }
}

impl World {
    /// When every command sent until now has arrived, except those that time out before.
    pub fn arrives_by(&self) -> u64 {
        self.now + if self.plan.holds_back() { TIMEOUT } else { self.plan.trip() }
    }

    /// A random delay that ends with the start of the quiet period at the latest.
    fn delay(&mut self) -> u64 {
        (200 + self.below(self.plan.longest)).min(self.plan.quiet.saturating_sub(self.now))
    }

    /// Delays everything that this sidecar sends to this server; the order is kept.
    pub fn stall(&mut self, sidecar: usize, server: usize) {
        let delay = self.delay();
        self.hold_back(sidecar, server, delay);
    }

    /// Suspends a server: every command sent to it waits.
    pub fn stop(&mut self, server: usize) {
        let delay = self.delay();
        self.stopped[server] = self.stopped[server].max(self.now + delay);
        for sidecar in 0..self.plan.sidecars {
            // Waiting commands are executed first, the connections in any order.
            let after = delay + 1 + self.below(20);
            self.hold_back(sidecar, server, after);
        }
    }

    fn hold_back(&mut self, sidecar: usize, server: usize, delay: u64) {
        let (link, _) = self.sidecars[sidecar].links[server];
        let until = self.now + delay;
        self.links[link].last_arrival = self.links[link].last_arrival.max(until);
        if delay > STALLED * TIMEOUT {
            self.at(STALLED * TIMEOUT, Event::Remake { sidecar, server, link });
        }
    }

    /// Replaces a connection. What was sent on it still arrives.
    pub fn remake(&mut self, sidecar: usize, server: usize, link: usize) {
        if self.sidecars[sidecar].links[server].0 == link {
            self.reconnect(sidecar, server);
        }
    }

    /// A command has reached a suspended server.
    pub fn wait_for_resume(&mut self, arrives: Event, server: usize) {
        let waits = self.stopped[server] - self.now;
        if let (Event::Arrive { op: id, index, round, link, .. }, true) = (&arrives, waits > TIMEOUT) {
            let (id, index, round, link) = (*id, *index, *round, *link);
            let until = self.stopped[server];
            self.is_late(id, until);
            let reply = kennel::guard::ServerReply::Failed(kennel::error::Failure::TimedOut);
            self.at(TIMEOUT, Event::Reply { op: id, index, round, reply, link });
        }
        self.at(waits, arrives);
    }

    /// A command of this operation times out and arrives at `until`.
    fn is_late(&mut self, id: u64, until: u64) {
        let Some(op) = self.ops.get_mut(&id) else { return };
        op.late = op.late.max(until);
        let (key, renews) = (op.key, matches!(op.purpose, Purpose::Renewal(_)));
        if renews {
            self.renewal_late(key, until);
        }
    }

    /// A late renewal may have no effect, or extend a lock or stub that has no owner.
    pub fn renewal_late(&mut self, key: usize, until: u64) {
        let waits = until - self.now;
        self.lost(key, waits + self.runs_out(key));
    }

    /// A command was executed after its timeout. Its effect counts as one loss for each key concerned: a lock or stub without an
    /// owner or a missing one, a delete, a bump.
    pub fn executed_late(&mut self, operation: &Operation, key: &[u8], reply: &[u8]) {
        if let Operation::Get(look) = operation
            && (look.touch.is_none() || !reply.starts_with(b"HD"))
            && !(look.vivify.is_some() && reply.windows(2).any(|flag| flag == b" W"))
        {
            return;
        }
        if !reply.starts_with(b"HD") && !reply.starts_with(b"VA") && !reply.starts_with(b"SERVER_ERROR") {
            return;
        }
        self.checker.coverage.late += 1;
        let guarded = (0..self.plan.keys.len())
            .find(|at| self.plan.keys[*at].key == key || self.plan.keys[*at].lock == key);
        match guarded {
            Some(at) => {
                match operation {
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
