//! A sidecar's background work: it renews and releases leases, and polls for waiters.

use kennel::guard::leases::{Due, Ended, MissTokenId, PollResult};
use kennel::guard::{Now, Replies};
use kennel::metrics::LeaseEnd;

use super::operation::{Doing, KEY, owner, tags};
use super::plan::Plan;
use super::world::{Broken, Job, MONO, World};

impl World {
    /// A lease must be renewed or has expired.
    pub fn due(&mut self, s: usize, id: MissTokenId, mono: u64, plan: &Plan) -> Result<(), Broken> {
        let now = Now { mono, ..self.now() };
        match self.sidecars[s].leases.due(KEY, id, now, &plan.policy, &tags(), s as u64) {
            Due::Nothing => Ok(()),
            Due::Renew(asks) => self.ask_behind(s, Doing::Renewal(id), asks, plan),
            Due::Expire(asks) => self.ask_behind(s, Doing::Freeing, asks, plan),
        }
    }

    pub fn renewed(
        &mut self,
        s: usize,
        id: MissTokenId,
        answers: &Replies,
        plan: &Plan,
    ) -> Result<(), Broken> {
        let sidecar = &mut self.sidecars[s];
        let renewed = sidecar.leases.renewed(KEY, id, answers, MONO);
        let fills = sidecar.leases.renewal_ended(KEY);
        if let (Ok(ticket), Some((_, kept))) =
            (&renewed, sidecar.keeps.iter_mut().find(|(kept, _)| *kept == id))
        {
            *kept = ticket.clone();
        }
        self.wake(s, fills, plan)?;
        match renewed {
            Ok(_) => Ok(()),
            Err((_, asks)) if asks.is_empty() => {
                let bells = self.sidecars[s].leases.wake(KEY);
                self.wake(s, bells, plan)
            }
            Err((Some(LeaseEnd::Lost), asks)) => self.ask_behind(s, Doing::Lost, asks, plan),
            Err((_, asks)) => self.ask_behind(s, Doing::Freeing, asks, plan),
        }
    }

    /// The poller reads the item, if there are waiters.
    pub fn look(&mut self, s: usize, plan: &Plan) -> Result<(), Broken> {
        if !self.sidecars[s].leases.has_waiters(KEY) {
            self.sidecars[s].poller = None;
            return Ok(());
        }
        self.ask_behind(s, Doing::Polling, PollResult::asks(), plan)
    }

    pub fn polled(&mut self, s: usize, answers: &Replies, plan: &Plan) -> Result<(), Broken> {
        let now = self.now();
        let sidecar = &mut self.sidecars[s];
        let mut before = sidecar.poller.flatten();
        let found = PollResult::found(answers, &mut before);
        let bells = sidecar.leases.polled(KEY, found, now);
        sidecar.poller = (found == PollResult::Unchanged).then_some(before);
        self.wake(s, bells, plan)
    }

    /// A client's connection closes.
    pub fn leave(&mut self, client: usize, plan: &Plan) -> Result<(), Broken> {
        let s = plan.placed[client];
        self.clients[client].job = Job::Idle;
        self.clients[client].lapsed = false;
        for Ended { asks, .. } in self.sidecars[s].leases.disconnect(owner(client, s, plan)) {
            if !asks.is_empty() {
                self.ask_behind(s, Doing::Freeing, asks, plan)?;
            }
        }
        Ok(())
    }
}
