//! A sidecar's background work: it renews and releases leases, and polls for waiters.

use kennel::guard::leases::{Due, Ended, MissTokenId, PollResult};
use kennel::guard::{Now, Replies};
use kennel::metrics::LeaseEnd;

use super::operation::{KEY, Task, owner, tags};
use super::plan::Plan;
use super::world::{Job, MONO, Violation, World};

impl World {
    /// A lease must be renewed or has expired.
    pub fn due(&mut self, s: usize, id: MissTokenId, mono: u64, plan: &Plan) -> Result<(), Violation> {
        let now = Now { mono, ..self.now() };
        match self.sidecars[s].leases.due(KEY, id, now, &plan.policy, &tags(), s as u64) {
            Due::Nothing => Ok(()),
            Due::Renew(commands) => self.send_in_background(s, Task::Renewal(id), commands, plan),
            Due::Expire(commands) => self.send_in_background(s, Task::Release, commands, plan),
        }
    }

    pub fn renewed(
        &mut self,
        s: usize,
        id: MissTokenId,
        replies: &Replies,
        plan: &Plan,
    ) -> Result<(), Violation> {
        let sidecar = &mut self.sidecars[s];
        let renewed = sidecar.leases.renewed(KEY, id, replies, MONO);
        let fills = sidecar.leases.renewal_ended(KEY);
        if let (Ok(token), Some((_, kept))) =
            (&renewed, sidecar.held_leases.iter_mut().find(|(kept, _)| *kept == id))
        {
            *kept = token.clone();
        }
        self.wake(s, fills, plan)?;
        match renewed {
            Ok(_) => Ok(()),
            Err((_, commands)) if commands.is_empty() => {
                let waiters = self.sidecars[s].leases.wake(KEY);
                self.wake(s, waiters, plan)
            }
            Err((Some(LeaseEnd::Lost), commands)) => self.send_in_background(s, Task::Lost, commands, plan),
            Err((_, commands)) => self.send_in_background(s, Task::Release, commands, plan),
        }
    }

    /// The poller reads the item, if there are waiters.
    pub fn start_poll(&mut self, s: usize, plan: &Plan) -> Result<(), Violation> {
        if !self.sidecars[s].leases.has_waiters(KEY) {
            self.sidecars[s].poller = None;
            return Ok(());
        }
        self.send_in_background(s, Task::Polling, PollResult::commands(), plan)
    }

    pub fn polled(&mut self, s: usize, replies: &Replies, plan: &Plan) -> Result<(), Violation> {
        let now = self.now();
        let sidecar = &mut self.sidecars[s];
        let mut before = sidecar.poller.flatten();
        let found = PollResult::from_replies(replies, &mut before);
        let waiters = sidecar.leases.polled(KEY, found, now);
        sidecar.poller = (found == PollResult::Unchanged).then_some(before);
        self.wake(s, waiters, plan)
    }

    /// A client's connection closes.
    pub fn leave(&mut self, client: usize, plan: &Plan) -> Result<(), Violation> {
        let s = plan.sidecar_of[client];
        self.clients[client].job = Job::Idle;
        self.clients[client].lapsed = false;
        for Ended { commands, .. } in self.sidecars[s].leases.disconnect(owner(client, s, plan)) {
            if !commands.is_empty() {
                self.send_in_background(s, Task::Release, commands, plan)?;
            }
        }
        Ok(())
    }
}
