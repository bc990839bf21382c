//! The steps that lead from a state.

use kennel::guard::leases::{MissToken, MissTokenId};
use kennel::guard::{ItemRef, Operation, ServerCommand};

use super::canon::Who;
use super::operation::{OpRef, QueuedCommand, Task};
use super::plan::{Fault, Invalidation, Mutant, Plan};
use super::server::{SPOILT, Term};
use super::world::{First, Job, MONO, Violation, World};

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    Get(usize),
    Store(usize),
    Invalidate(Invalidation, usize),
    /// A sidecar's next command is executed.
    Execute(usize),
    /// The same for commands of ended sidecars.
    ExecuteOrphan(usize),
    /// A sidecar processes the replies to a round.
    Receive(usize, OpRef),
    /// A reader's wait ends.
    GiveUp(usize),
    Renew(usize, MissTokenId),
    /// The value under a lease is about to expire.
    Clear(usize, MissTokenId),
    Poll(usize),
    Ages,
    Vanishes,
    StubEnds,
    LockEnds,
    Evict(ItemRef),
    Spoil,
    /// The first CAS after the restart may be one that is still remembered.
    Restart(Option<u64>),
    Lose(usize, usize),
    /// This many of the commands that it has sent arrive.
    Kill(usize, usize),
    Leave(usize),
    TooSlow(usize, MissTokenId),
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Step = 0,
    /// The value comes closer to its expiry.
    Aging = 1,
    /// A reader's wait ends.
    Patience = 2,
    /// A fault or an invalidation.
    Wrong = 3,
}

impl Label {
    pub fn kind(self) -> Kind {
        match self {
            Label::Ages | Label::Vanishes => Kind::Aging,
            Label::GiveUp(_) => Kind::Patience,
            Label::Invalidate(..) | Label::Evict(_) | Label::Restart(_) | Label::Lose(..) => Kind::Wrong,
            Label::Spoil | Label::Kill(..) | Label::Leave(_) | Label::TooSlow(..) => Kind::Wrong,
            _ => Kind::Step,
        }
    }

    /// Whether it happens in this sidecar, to its client, or to both sides.
    fn is_of(self, s: usize, plan: &Plan) -> bool {
        match self {
            Label::Get(c) | Label::Store(c) | Label::GiveUp(c) | Label::Leave(c) => plan.sidecar_of[c] == s,
            Label::Execute(at) | Label::Receive(at, _) | Label::Poll(at) => at == s,
            Label::Renew(at, _) | Label::Clear(at, _) | Label::TooSlow(at, _) => at == s,
            Label::Lose(at, _) | Label::Kill(at, _) => at == s,
            Label::Restart(_) => true,
            Label::Invalidate(..) | Label::ExecuteOrphan(_) | Label::Evict(_) | Label::Spoil => false,
            Label::Ages | Label::Vanishes | Label::StubEnds | Label::LockEnds => false,
        }
    }

    /// Whether this sidecar sends something on its own initiative.
    fn begins(self, s: usize, plan: &Plan) -> bool {
        match self {
            Label::Get(_) | Label::Store(_) | Label::Leave(_) | Label::Poll(_) => self.is_of(s, plan),
            Label::Renew(..) | Label::Clear(..) | Label::TooSlow(..) => self.is_of(s, plan),
            _ => false,
        }
    }
}

impl World {
    /// Every possible step.
    pub fn labels(&self, plan: &Plan) -> Vec<Label> {
        let mut labels = Vec::new();
        for (c, client) in self.clients.iter().enumerate() {
            match client.job {
                Job::Idle => labels.push(Label::Get(c)),
                Job::Building { .. } => labels.push(Label::Store(c)),
                _ => {}
            }
            let waits = self.sidecars[plan.sidecar_of[c]].op(c).is_some_and(|op| op.waits.is_some());
            if matches!(client.job, Job::Reading { .. }) && waits {
                labels.push(Label::GiveUp(c));
            }
        }
        if self.clients[1].job == Job::Idle && self.invalidations > 0 {
            for how in plan.invalidation_kinds {
                labels.extend(plan.invalidates_through.iter().map(|at| Label::Invalidate(*how, *at)));
            }
        }
        labels.extend((0..self.orphans.len()).map(Label::ExecuteOrphan));
        for (s, sidecar) in self.sidecars.iter().enumerate() {
            if !sidecar.queue.is_empty() {
                labels.push(Label::Execute(s));
            }
            labels.extend(
                sidecar
                    .ops
                    .iter()
                    .filter(|(_, op)| op.has_all_replies())
                    .map(|(of, _)| Label::Receive(s, *of)),
            );
            let polls = sidecar.ops.iter().any(|(_, op)| op.task == Task::Polling);
            if sidecar.poller.is_some() && !polls {
                labels.push(Label::Poll(s));
            }
            for (id, token) in sidecar.held_leases.iter().filter(|(id, _)| !sidecar.renews(*id)) {
                if plan.is(Mutant::NoRenewal) {
                    continue;
                }
                if plan.renews {
                    labels.push(Label::Renew(s, *id));
                }
                let ends = self.server.item.as_ref().is_some_and(|item| item.term == Term::Last);
                if token.expires_at.is_some() && ends {
                    labels.push(Label::Clear(s, *id));
                }
            }
        }
        self.ends(plan, &mut labels);
        if self.faults > 0 {
            for kind in plan.kinds {
                self.faulty(*kind, &mut labels);
            }
        }
        self.restrict_to_first(plan, &mut labels);
        labels
    }

    /// Removes steps that could as well have happened before.
    ///
    /// If a sidecar has nothing in flight and sends a round of its own accord, then until some of it arrives, gets lost, or the sidecar
    /// dies, only steps in that sidecar or of its client are explored. Nothing that it sent, and no decision elsewhere, depends on
    /// what the others do meanwhile, so those steps may as well have happened before it began. What a get must return only becomes
    /// stricter: more is acknowledged when it begins, and less is excused. A restart affects the rounds of both sidecars, so both may
    /// have begun one. An invalidation changes the source before it is sent, so it does not go first. This needs *apart* plans, where
    /// a reply is received as soon as it is sent.
    pub fn restrict_to_first(&self, plan: &Plan, labels: &mut Vec<Label>) {
        match self.first {
            First::Neither => {}
            First::One(Who(s)) => {
                // But a restart ends what both have begun.
                let both = self.may_restart(plan) && self.sidecars[1 - s].queue.is_empty();
                labels.retain(|label| label.is_of(s, plan) || (both && label.begins(1 - s, plan)));
            }
            First::Both => labels.retain(|label| matches!(label, Label::Execute(_) | Label::Restart(_))),
        }
    }

    /// The steps by which time ends something.
    pub fn ends(&self, plan: &Plan, labels: &mut Vec<Label>) {
        let lock_is_kept = self.server.lock.as_ref().is_some_and(|lock| self.is_kept(lock, plan));
        if let Some(lock) = &self.server.lock
            && lock.term == Term::Hold
            && !lock_is_kept
        {
            labels.push(Label::LockEnds);
        }
        match &self.server.item {
            Some(item) if item.is_stub() && !self.is_kept(item, plan) => labels.push(Label::StubEnds),
            Some(item) if item.term == Term::Fresh && self.expiries > 0 => labels.push(Label::Ages),
            Some(item) if item.term == Term::Stale => labels.push(Label::Ages),
            // The lock's holder stores a stub in its place before it expires.
            Some(item) if item.term == Term::Last && !lock_is_kept => labels.push(Label::Vanishes),
            _ => {}
        }
    }

    /// The state after a step.
    pub fn after(&self, label: Label, plan: &Plan) -> Result<World, Violation> {
        let mut world = self.clone();
        world.take(label, plan)?;
        let goes_on = |s: usize| self.sidecars[s].queue.is_empty() && !world.sidecars[s].queue.is_empty();
        // An invalidation begins with the change of the source, which the other side sees at once.
        let may_begin = !matches!(label, Label::Invalidate(..) | Label::Lose(..));
        let begins = |s: &usize| may_begin && label.is_of(*s, plan) && goes_on(*s);
        world.first = match (self.first, label, (0..2).find(begins)) {
            _ if !plan.reduced || !plan.receives_at_once() => First::Neither,
            (First::Both, Label::Execute(s), _) => First::One(Who(1 - s)),
            (First::One(first), _, None) if !label.is_of(first.0, plan) => self.first,
            (First::One(first), _, Some(s)) if s != first.0 => First::Both,
            (First::Neither, _, Some(s)) => First::One(Who(s)),
            _ => First::Neither,
        };
        world.settle(plan)?;
        Ok(world)
    }

    pub fn take(&mut self, label: Label, plan: &Plan) -> Result<(), Violation> {
        if label.kind() == Kind::Wrong && !matches!(label, Label::Invalidate(..)) {
            self.faults -= 1;
        }
        match label {
            Label::Get(client) => return self.get(client, plan),
            Label::Store(client) => return self.put(client, plan),
            Label::Invalidate(how, at) => return self.invalidate(how, at, plan),
            Label::Execute(s) => {
                let command = self.sidecars[s].queue.remove(0);
                let of = command.reply_to.map(|(of, _)| of);
                self.execute(s, command);
                // All commands of a round at once.
                while plan.whole_rounds
                    && of.is_some()
                    && let Some(QueuedCommand { reply_to: Some((next, _)), .. }) =
                        self.sidecars[s].queue.first()
                    && Some(*next) == of
                {
                    let command = self.sidecars[s].queue.remove(0);
                    self.execute(s, command);
                }
                // A read of something that can no longer change may as well come at once.
                while self.tag_is_settled(plan)
                    && let Some(QueuedCommand {
                        server_command: ServerCommand { item: ItemRef::Tag(_), operation: Operation::Get(_) },
                        ..
                    }) = self.sidecars[s].queue.first()
                {
                    let command = self.sidecars[s].queue.remove(0);
                    self.execute(s, command);
                }
            }
            Label::ExecuteOrphan(n) => {
                let command = self.orphans[n].remove(0);
                let epoch = self.epoch_at(command.server_command.item);
                self.server.execute(&command.server_command, epoch, None);
            }
            Label::Receive(s, of) => return self.receive(s, of, plan),
            Label::GiveUp(client) => return self.give_up(client, plan),
            Label::Renew(s, id) => return self.due(s, id, MONO, plan),
            Label::Clear(s, id) => {
                let expires_at = self.token(s, id).and_then(|token| token.expires_at);
                return self.due(s, id, expires_at.unwrap_or(MONO), plan);
            }
            Label::TooSlow(s, id) => {
                return self.due(s, id, MONO + plan.policy.max_rebuild.as_millis() as u64, plan);
            }
            Label::Poll(s) => return self.start_poll(s, plan),
            Label::Ages => {
                let Some(item) = &mut self.server.item else { return Ok(()) };
                self.reason |= item.is_in_time();
                item.term = match item.term {
                    Term::Fresh => {
                        self.expiries -= 1;
                        Term::Stale
                    }
                    _ => Term::Last,
                };
            }
            Label::Vanishes | Label::StubEnds => {
                self.server.item = None;
            }
            Label::LockEnds => self.server.lock = None,
            Label::Evict(at) => {
                *self.server.at(at) = None;
                if let ItemRef::Tag(_) = at {
                    self.lose_tag();
                }
            }
            Label::Spoil => {
                self.server.spoil_tag();
                self.lose_tag();
            }
            Label::Restart(again) => self.restart(again, plan),
            Label::Lose(s, n) => self.lose(s, n),
            Label::Kill(s, kept) => self.kill(s, kept, plan),
            Label::Leave(client) => return self.leave(client, plan),
        }
        Ok(())
    }

    /// Whether the tag keeps its version for good.
    pub fn tag_is_settled(&self, plan: &Plan) -> bool {
        let is_lost = |fault: &Fault| matches!(fault, Fault::EvictTag | Fault::SpoilTag | Fault::Restart);
        let may_be_lost = self.faults > 0 && plan.kinds.iter().any(is_lost);
        let moves = self.clients.iter().any(|client| matches!(client.job, Job::Invalidating { .. }));
        let orphaned = self
            .orphans
            .iter()
            .flatten()
            .any(|command| matches!(command.server_command.item, ItemRef::Tag(_)));
        let late = |command: &QueuedCommand| {
            command.reply_to.is_none() && matches!(command.server_command.item, ItemRef::Tag(_))
        };
        let late = self.sidecars.iter().any(|sidecar| sidecar.queue.iter().any(late));
        let stored = self.server.tag.as_ref().is_some_and(|tag| !tag.is_stub() && tag.value != SPOILT);
        stored && self.invalidations == 0 && !(may_be_lost || moves || orphaned || late)
    }

    pub fn token(&self, s: usize, id: MissTokenId) -> Option<&MissToken> {
        self.sidecars[s].held_leases.iter().find(|(kept, _)| *kept == id).map(|(_, token)| token)
    }
}
