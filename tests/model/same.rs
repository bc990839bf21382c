//! What a state is known by, and what is no part of it because nobody can tell.

use std::hash::Hash;
use std::sync::Arc;

use kennel::guard::leases::Due;
use kennel::guard::{Cas, ItemRef, Operation, ServerCommand, ServerReply};

use super::canon::{Canon, Who};
use super::operation::{Command, Doing, Op};
use super::plan::{Fault, Plan};
use super::server::Server;
use super::world::{Client, First, Job, Sidecar, World};

impl World {
    /// By which it is known, and whether that is what it looks like with both sides exchanged.
    pub fn fingerprint(&self, plan: &Plan) -> (u128, bool) {
        let print = self.print(false, plan);
        // Without its invalidations the second client is like the first.
        let moves = matches!(self.clients[1].job, Job::Moving { .. });
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
        if self.compares_only_with_what_stands(plan) {
            let entries = [&server.item, &server.lock, &server.tag].into_iter().flatten();
            canon.only(entries.map(|entry| entry.cas).chain(self.half_heard()));
        }
        let order = if flipped { [1, 0] } else { [0, 1] };
        for s in order {
            let Sidecar { leases, queue, ops, keeps, poller } = &*self.sidecars[s];
            canon.sidecar();
            canon.table(leases);
            (keeps, queue, poller, ops.len()).hash(&mut canon);
            for (of, op) in ops {
                (Who(*of), op).hash(&mut canon);
            }
            if !plan.hears_at_once() {
                // Of two wins that are heard of in any order, the table asks which is the later.
                let rights = |cas: Cas| (cas.epoch, cas.number);
                let mut all: Vec<_> = ops.iter().filter_map(|(_, op)| op.gained).map(rights).collect();
                all.extend(keeps.iter().filter_map(|(_, its)| its.lock.or(its.base)).map(rights));
                canon.order(&all);
            }
        }
        canon.outside();
        (orphans, order.map(|c| clients[c]), source, acked, faults, invalidations, expiries).hash(&mut canon);
        (self.reason, self.undisturbed, self.last_winner.map(Who), self.needless).hash(&mut canon);
        (self.lock_before, self.first, self.now().wall).hash(&mut canon);
        canon.end()
    }

    /// The same without what is only kept to tell whether a promise is broken.
    pub fn unwatched(&self, plan: &Plan) -> u128 {
        let mut world = self.clone();
        (world.reason, world.undisturbed, world.last_winner, world.needless) = (true, true, None, 0);
        world.first = First::Nobody;
        for client in &mut world.clients {
            (client.disturbed, client.lapsed) = (false, false);
            if let Job::Getting { floor } = &mut client.job {
                *floor = 0;
            }
        }
        world.fingerprint(plan).0
    }

    /// Whether a CAS that stands nowhere, and is in no answer that is kept until others come, is like any other. Not if a restart
    /// may bring it back.
    pub fn compares_only_with_what_stands(&self, plan: &Plan) -> bool {
        plan.hears_at_once() && !self.may_restart(plan) && self.server.again.is_none()
    }

    /// The CASes in answers that are kept until the others of their round come.
    fn half_heard(&self) -> impl Iterator<Item = u64> {
        let ops = self.sidecars.iter().flat_map(|sidecar| &sidecar.ops);
        ops.flat_map(|(_, op)| op.answers.iter().flatten()).filter_map(|answer| match answer {
            ServerReply::Item(item) => Some(item.cas.number),
            ServerReply::Stored(cas) => Some(cas.number),
            _ => None,
        })
    }

    pub fn may_restart(&self, plan: &Plan) -> bool {
        self.faults > 0 && plan.kinds.contains(&Fault::Restart)
    }

    /// Leases that have ended need no keeper.
    pub fn forget_ended(&mut self, plan: &Plan) {
        let now = self.now();
        for sidecar in &mut self.sidecars {
            // To whom nothing has happened there is nothing to forget.
            let Some(sidecar) = Arc::get_mut(&mut sidecar.0) else { continue };
            // What is empty looks the same whether it was ever used or not.
            sidecar.leases.sweep(now);
            if sidecar.keeps.is_empty() {
                continue;
            }
            let mut probe = sidecar.leases.clone();
            let renewed: Vec<bool> = sidecar.keeps.iter().map(|(id, _)| sidecar.renews(*id)).collect();
            let mut renewed = renewed.into_iter();
            sidecar.keeps.retain(|(id, _)| {
                let due = probe.due(super::operation::KEY, *id, now, &plan.policy, &[], 0);
                renewed.next() == Some(true) || due != Due::Nothing
            });
        }
    }

    /// Commands whose answer nobody waits for and that can do nothing any more; and who won last, if that is over.
    pub fn forget_what_cannot_matter(&mut self, plan: &Plan) {
        for s in 0..2 {
            let is_vain =
                |world: &World, command: &Command| command.owed.is_none() && !world.may_matter(&command.ask);
            if self.sidecars[s].queue.iter().any(|command| is_vain(self, command)) {
                let mut queue = std::mem::take(&mut self.sidecars[s].queue);
                queue.retain(|command| !is_vain(self, command));
                self.sidecars[s].queue = queue;
            }
            // The CAS that a poller remembers may come again only behind a restart, or with an answer that is here already.
            let stands = self.server.item.as_ref().map(|item| item.cas);
            let half_looked =
                |(_, op): &(_, Op)| op.doing == Doing::Polling && op.answers.iter().any(Option::is_some);
            if let Some(Some(cas)) = self.sidecars[s].poller
                && stands != Some(cas)
                && !self.sidecars[s].ops.iter().any(half_looked)
                && !self.may_restart(plan)
                && self.server.again.is_none()
            {
                self.sidecars[s].poller = Some(None);
            }
        }
        if !self.orphans.is_empty() {
            let mut orphans = std::mem::take(&mut self.orphans);
            orphans.iter_mut().for_each(|its| its.retain(|command| self.may_matter(&command.ask)));
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

    /// Whether a command may change what stands on the server, now or later. No CAS comes again in a server's life, and behind
    /// its end nothing arrives that was sent before.
    pub fn may_matter(&self, ask: &ServerCommand) -> bool {
        let Server { item, lock, tag, .. } = &self.server;
        let stands = match ask.at {
            ItemRef::Value => item,
            ItemRef::Lock => lock,
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => tag,
        };
        match &ask.what {
            Operation::Get(look) => look.vivify.is_some(),
            Operation::Store { cas: Some(cas), .. }
            | Operation::Delete { cas: Some(cas) }
            | Operation::MarkStale { cas: Some(cas), .. } => {
                stands.as_ref().is_some_and(|stands| stands.cas == cas.number)
            }
            Operation::Store { .. } | Operation::Delete { .. } | Operation::MarkStale { .. } => true,
        }
    }
}
