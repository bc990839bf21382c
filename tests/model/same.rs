//! The fingerprint of a state, and what is not part of it because no step depends on it.

use std::hash::Hash;
use std::sync::Arc;

use kennel::guard::leases::{Due, Polled};
use kennel::guard::{Cas, ItemRef, Operation, ServerCommand, ServerReply};

use super::canon::{Canon, Who};
use super::operation::{Op, QueuedCommand, Task};
use super::plan::{Fault, Plan};
use super::server::Server;
use super::world::{Client, First, Job, Sidecar, World};

impl World {
    /// The fingerprint, and whether it is that of the state with both sides exchanged.
    pub fn fingerprint(&self, plan: &Plan) -> (u128, bool) {
        let print = self.print(false, plan);
        // Without its invalidations the second client is like the first.
        let moves = matches!(self.clients[1].job, Job::Invalidating { .. });
        if plan.has_two_alike() && self.invalidations == 0 && !moves {
            let other = self.print(true, plan);
            return (print.min(other), other < print);
        }
        (print, false)
    }

    pub fn print(&self, flipped: bool, plan: &Plan) -> u128 {
        let World { server, clients, orphans, source, acked, faults, invalidations, expiries, .. } = self;
        let mut canon = Canon::new([self.epoch, self.epoch_of_tags], flipped);
        (&server.item, &server.lock, &server.tag, server.again).hash(&mut canon);
        if self.compares_only_with_stored(plan) {
            let entries = [&server.item, &server.lock, &server.tag].into_iter().flatten();
            canon.only(entries.map(|entry| entry.cas).chain(self.partial_replies()));
        }
        let order = if flipped { [1, 0] } else { [0, 1] };
        for s in order {
            let Sidecar { leases, queue, ops, held_leases, poller } = &*self.sidecars[s];
            canon.sidecar();
            canon.table(leases);
            (held_leases, queue, poller, ops.len()).hash(&mut canon);
            for (of, op) in ops {
                (Who(*of), op).hash(&mut canon);
            }
            if !plan.receives_at_once() {
                // Two wins may arrive in either order; the lease table needs to know which one is later.
                let rights = |cas: Cas| (cas.epoch, cas.number);
                let mut all: Vec<_> = ops.iter().filter_map(|(_, op)| op.held_cas).map(rights).collect();
                all.extend(
                    held_leases.iter().filter_map(|(_, its)| its.lock.or(its.observed_cas)).map(rights),
                );
                canon.order(&all);
            }
        }
        canon.outside();
        (orphans, order.map(|c| clients[c]), source, acked, faults, invalidations, expiries).hash(&mut canon);
        (self.reason, self.undisturbed, self.last_winner.map(Who), self.needless).hash(&mut canon);
        (self.lock_before, self.first, self.now().wall).hash(&mut canon);
        canon.end()
    }

    /// The fingerprint without the fields that only the checks use.
    pub fn without_checks(&self, plan: &Plan) -> u128 {
        let mut world = self.clone();
        (world.reason, world.undisturbed, world.last_winner, world.needless) = (true, true, None, 0);
        world.first = First::Neither;
        for client in &mut world.clients {
            (client.disturbed, client.lapsed) = (false, false);
            if let Job::Reading { floor } = &mut client.job {
                *floor = 0;
            }
        }
        world.fingerprint(plan).0
    }

    /// Whether a CAS that is not stored, and is in no reply that waits for others of its round, is like any other. It is not if a
    /// restart may assign it again.
    pub fn compares_only_with_stored(&self, plan: &Plan) -> bool {
        plan.receives_at_once() && !self.may_restart(plan) && self.server.again.is_none()
    }

    /// The CASes in replies that wait for the others of their round.
    fn partial_replies(&self) -> impl Iterator<Item = u64> {
        let ops = self.sidecars.iter().flat_map(|sidecar| &sidecar.ops);
        ops.flat_map(|(_, op)| op.replies.iter().flatten()).filter_map(|reply| match reply {
            ServerReply::Item(item) => Some(item.cas.number),
            ServerReply::Stored(cas) => Some(cas.number),
            _ => None,
        })
    }

    pub fn may_restart(&self, plan: &Plan) -> bool {
        self.faults > 0 && plan.kinds.contains(&Fault::Restart)
    }

    /// Leases that have ended need no renewal.
    pub fn remove_ended_leases(&mut self, plan: &Plan) {
        let now = self.now();
        for sidecar in &mut self.sidecars {
            // An unchanged sidecar has nothing to remove.
            let Some(sidecar) = Arc::get_mut(&mut sidecar.0) else { continue };
            // An empty table is the same whether it was ever used or not.
            sidecar.leases.sweep(now);
            if sidecar.held_leases.is_empty() {
                continue;
            }
            let mut probe = sidecar.leases.clone();
            let renewed: Vec<bool> = sidecar.held_leases.iter().map(|(id, _)| sidecar.renews(*id)).collect();
            let mut renewed = renewed.into_iter();
            sidecar.held_leases.retain(|(id, _)| {
                let due = probe.due(super::operation::KEY, *id, now, &plan.policy, &[], 0);
                renewed.next() == Some(true) || due != Due::Nothing
            });
        }
    }

    /// Removes commands whose reply is not awaited and that can have no effect any more, and the last winner if its lease is
    /// over.
    pub fn remove_irrelevant(&mut self, plan: &Plan) {
        for s in 0..2 {
            let is_vain = |world: &World, command: &QueuedCommand| {
                command.reply_to.is_none() && !world.may_matter(&command.server_command)
            };
            if self.sidecars[s].queue.iter().any(|command| is_vain(self, command)) {
                let mut queue = std::mem::take(&mut self.sidecars[s].queue);
                queue.retain(|command| !is_vain(self, command));
                self.sidecars[s].queue = queue;
            }
            // The CAS that a poller remembers may only recur after a restart, or with a reply that has already been sent.
            let stored = self.server.item.as_ref().map(|item| item.cas);
            let half_polled =
                |(_, op): &(_, Op)| op.task == Task::Polling && op.replies.iter().any(Option::is_some);
            if let Some(Some(Polled { cas, .. })) = self.sidecars[s].poller
                && stored != Some(cas)
                && !self.sidecars[s].ops.iter().any(half_polled)
                && !self.may_restart(plan)
                && self.server.again.is_none()
            {
                self.sidecars[s].poller = Some(None);
            }
        }
        if !self.orphans.is_empty() {
            let mut orphans = std::mem::take(&mut self.orphans);
            orphans.iter_mut().for_each(|its| its.retain(|command| self.may_matter(&command.server_command)));
            orphans.retain(|its| !its.is_empty());
            self.orphans = orphans;
        }
        for at in [ItemRef::Value, ItemRef::Lock, ItemRef::Tag(0)] {
            let (sidecars, epoch) = (&self.sidecars, self.epoch);
            if let Some(entry) = self.server.at(at) {
                let cas = Cas { number: entry.cas, epoch };
                entry.by = entry.by.filter(|by| sidecars[*by].holds(cas));
            }
        }
        let builds =
            |client: &Client| matches!(client.job, Job::Building { won: true, .. }) && !client.lapsed;
        self.last_winner = self.last_winner.filter(|winner| builds(&self.clients[*winner]));
    }

    /// Whether a command may change what the server stores, now or later. No CAS recurs until the server restarts, and nothing
    /// that was sent before the restart arrives after it.
    pub fn may_matter(&self, command: &ServerCommand) -> bool {
        let Server { item, lock, tag, .. } = &self.server;
        let stored = match command.item {
            ItemRef::Value => item,
            ItemRef::Lock => lock,
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => tag,
        };
        match &command.operation {
            Operation::Get(look) => look.vivify.is_some(),
            Operation::Store { cas: Some(cas), .. }
            | Operation::Delete { cas: Some(cas) }
            | Operation::MarkStale { cas: Some(cas), .. } => {
                stored.as_ref().is_some_and(|stored| stored.cas == cas.number)
            }
            Operation::Store { .. } | Operation::Delete { .. } | Operation::MarkStale { .. } => true,
        }
    }
}
