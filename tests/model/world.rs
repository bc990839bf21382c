//! A state, and the steps that lead from it.

use std::hash::Hash;

use kennel::guard::leases::{Due, Leases, Ticket, TicketId};
use kennel::guard::{Ask, At, Now, What, envelope::Header, envelope::Opened};

use super::canon::Canon;
use super::checker::Good;
use super::operation::{Command, Doing, Op, OpRef};
use super::plan::{Fault, Move, Mutant, Plan};
use super::server::{Entry, FIRST_CAS, Server, Term};

/// Where the clock that measures waits stands, for ever: that a wait or a lease ends is something that happens to it.
pub const MONO: u64 = 10_000_000_000;
/// Where the wall clocks start. Every invalidation and every loss of the tag finds them later, and no two sidecars ever see the same millisecond.
const WALL: u64 = 1_700_000_000_000;

/// A promise, broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

#[derive(Clone)]
pub struct Sidecar {
    pub leases: Leases<usize>,
    /// What is on its way to the server, the first first.
    pub queue: Vec<Command>,
    pub ops: Vec<(OpRef, Op)>,
    /// The leases that it renews, with what it knows of them.
    pub keeps: Vec<(TicketId, Ticket)>,
    /// It looks now and then for those who wait; with the item's CAS when it last did.
    pub poller: Option<Option<u64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    Idle,
    /// A get, begun when this version of the source had been acknowledged.
    Getting {
        floor: u64,
    },
    /// A value is made from this version of the source.
    Building {
        version: u64,
        won: bool,
    },
    Putting {
        version: u64,
        won: bool,
    },
    Moving {
        version: u64,
        at: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Client {
    pub job: Job,
    /// Something was being invalidated since its get began.
    pub disturbed: bool,
    /// What it rebuilds has overlapped with another rebuild, and that was counted.
    pub lapsed: bool,
}

#[derive(Clone)]
pub struct World {
    pub server: Server,
    /// How often the server has been connected to.
    pub epoch: u32,
    pub sidecars: [Sidecar; 2],
    pub clients: [Client; 2],
    /// What dead sidecars have sent.
    pub orphans: Vec<Command>,
    /// The source of truth.
    pub source: u64,
    /// Its version whose invalidation was acknowledged last.
    pub acked: u64,
    /// How often the tag was lost. That takes time, too.
    losses: u64,
    pub faults: u32,
    pub invalidations: u32,
    /// How often a value may still come to its soft end.
    pub expiries: u32,
    /// The value has come to its soft end, or there was none, and nobody has been told to rebuild it since.
    pub reason: bool,
    /// Since the last win's get began nothing was invalidated.
    pub undisturbed: bool,
    pub last_winner: Option<usize>,
    /// Wins without a reason.
    pub needless: u32,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label {
    Get(usize),
    Put(usize),
    Invalidate(Move, usize),
    /// A sidecar's next command is carried out.
    Execute(usize),
    /// The same for those of dead sidecars.
    ExecuteOrphan,
    /// A sidecar hears the answers to a round.
    Hear(usize, OpRef),
    /// A reader waits no longer.
    GiveUp(usize),
    Renew(usize, TicketId),
    /// The value under a lease is about to vanish.
    Clear(usize, TicketId),
    Look(usize),
    Ages,
    Vanishes,
    StubEnds,
    LockEnds,
    Evict(At),
    /// `true`: the first CAS number after it is one that somebody remembers.
    Restart(bool),
    Lose(usize, usize),
    /// So many of what it has sent arrive.
    Kill(usize, usize),
    Leave(usize),
    TooSlow(usize, TicketId),
}

/// What kind of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Step = 0,
    /// The value comes nearer to its end.
    Aging = 1,
    /// A reader's patience ends.
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
            Label::Kill(..) | Label::Leave(_) | Label::TooSlow(..) => Kind::Wrong,
            _ => Kind::Step,
        }
    }
}

impl Sidecar {
    fn start() -> Sidecar {
        Sidecar {
            leases: Leases::default(),
            queue: Vec::new(),
            ops: Vec::new(),
            keeps: Vec::new(),
            poller: None,
        }
    }

    pub fn op(&self, of: OpRef) -> Option<&Op> {
        self.ops.iter().find(|(its, _)| *its == of).map(|(_, op)| op)
    }

    fn renews(&self, id: TicketId) -> bool {
        self.ops.iter().any(|(_, op)| op.doing == Doing::Renewal(id))
    }

    /// Whether it holds, or is about to learn that it holds, the lock or stub with this CAS.
    fn holds(&self, cas: u64) -> bool {
        let kept = self.keeps.iter().any(|(id, ticket)| {
            let holds = ticket.lock.or(ticket.base).is_some_and(|held| held.number == cas);
            holds || self.renews(*id)
        });
        kept || self.ops.iter().any(|(_, op)| op.gained == Some(cas))
    }
}

impl World {
    pub fn start(plan: &Plan) -> World {
        World {
            server: Server::start(),
            epoch: 1,
            sidecars: [Sidecar::start(), Sidecar::start()],
            clients: [Client { job: Job::Idle, disturbed: false, lapsed: false }; 2],
            orphans: Vec::new(),
            source: 1,
            acked: 1,
            losses: 0,
            faults: plan.faults,
            invalidations: plan.invalidations,
            expiries: plan.expiries,
            reason: true,
            undisturbed: true,
            last_winner: None,
            needless: 0,
        }
    }

    /// The moment, as this sidecar sees it.
    pub fn now(&self, s: usize) -> Now {
        Now { wall: WALL + 2 * (self.source + self.losses) + s as u64, mono: MONO }
    }

    pub fn fingerprint(&self) -> u64 {
        let World { server, epoch, sidecars, clients, orphans, source, acked, faults, invalidations, .. } =
            self;
        let mut canon = Canon::default();
        (&server.item, &server.lock, &server.tag).hash(&mut canon);
        for Sidecar { leases, queue, ops, keeps, poller } in sidecars {
            canon.sidecar();
            canon.table(leases);
            (keeps, ops, queue, poller).hash(&mut canon);
        }
        (orphans, clients, source, acked, epoch, faults, invalidations).hash(&mut canon);
        (self.expiries, self.losses, self.reason, self.undisturbed, self.last_winner, self.needless)
            .hash(&mut canon);
        // What is given out next is new to everybody, unless the server has begun to count anew.
        canon.known(server.last + 1).hash(&mut canon);
        std::hash::Hasher::finish(&canon)
    }

    pub fn is(&self, good: Good) -> bool {
        match good {
            Good::Fresh => self.server.item.as_ref().is_some_and(|item| {
                item.is_in_time() && self.is_sealed_with_what_is(item) && version_of(item) >= Some(self.acked)
            }),
            Good::Answered(client) => {
                matches!(self.clients[client].job, Job::Idle | Job::Building { .. })
            }
        }
    }

    fn is_sealed_with_what_is(&self, item: &Entry) -> bool {
        let Some(tag) = &self.server.tag else { return false };
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return false };
        envelope.tags().all(|(_, version)| version.to_string().as_bytes() == &tag.value[..])
    }

    /// Whether the item would be served as fresh though it is older than that.
    pub fn stands_fresh_before(&self, version: u64) -> bool {
        self.server.item.as_ref().is_some_and(|item| {
            item.is_in_time() && self.is_sealed_with_what_is(item) && version_of(item) < Some(version)
        })
    }

    /// Whether a stub or lock is held by somebody who keeps it from ending.
    fn is_kept(&self, entry: &Entry, plan: &Plan) -> bool {
        let held = entry.by.is_some_and(|by| self.sidecars[by].holds(entry.cas));
        (held && !plan.is(Mutant::NoRenewal)) || plan.is(Mutant::LocksNeverEnd)
    }

    /// Everything that may happen now.
    pub fn labels(&self, plan: &Plan) -> Vec<Label> {
        let mut labels = Vec::new();
        for (c, client) in self.clients.iter().enumerate() {
            match client.job {
                Job::Idle => labels.push(Label::Get(c)),
                Job::Building { .. } => labels.push(Label::Put(c)),
                _ => {}
            }
            let waits = self.sidecars[plan.placed[c]].op(c).is_some_and(|op| op.waits.is_some());
            if matches!(client.job, Job::Getting { .. }) && waits {
                labels.push(Label::GiveUp(c));
            }
        }
        if self.clients[1].job == Job::Idle && self.invalidations > 0 {
            for how in plan.moves {
                labels.extend(plan.invalidates_through.iter().map(|at| Label::Invalidate(*how, *at)));
            }
        }
        if !self.orphans.is_empty() {
            labels.push(Label::ExecuteOrphan);
        }
        for (s, sidecar) in self.sidecars.iter().enumerate() {
            if !sidecar.queue.is_empty() {
                labels.push(Label::Execute(s));
            }
            labels.extend(
                sidecar.ops.iter().filter(|(_, op)| op.is_answered()).map(|(of, _)| Label::Hear(s, *of)),
            );
            let polls = sidecar.ops.iter().any(|(_, op)| op.doing == Doing::Polling);
            if sidecar.poller.is_some() && !polls {
                labels.push(Label::Look(s));
            }
            for (id, ticket) in sidecar.keeps.iter().filter(|(id, _)| !sidecar.renews(*id)) {
                if plan.is(Mutant::NoRenewal) {
                    continue;
                }
                if plan.renews {
                    labels.push(Label::Renew(s, *id));
                }
                let ends = self.server.item.as_ref().is_some_and(|item| item.term == Term::Last);
                if ticket.vanishes.is_some() && ends {
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
        labels
    }

    /// What time may end.
    fn ends(&self, plan: &Plan, labels: &mut Vec<Label>) {
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
            // Whoever holds its lock puts a stub in its place before.
            Some(item) if item.term == Term::Last && !lock_is_kept => labels.push(Label::Vanishes),
            _ => {}
        }
    }

    fn faulty(&self, kind: Fault, labels: &mut Vec<Label>) {
        let Server { item, lock, tag, .. } = &self.server;
        match kind {
            Fault::EvictItem => labels.extend(item.as_ref().map(|_| Label::Evict(At::Item))),
            Fault::EvictLock => labels.extend(lock.as_ref().map(|_| Label::Evict(At::Lock))),
            Fault::EvictTag => labels.extend(tag.as_ref().map(|_| Label::Evict(At::Tag(0)))),
            Fault::Restart => {
                labels.push(Label::Restart(false));
                labels.extend(self.remembered().map(|_| Label::Restart(true)));
            }
            Fault::Lose => {
                for (s, sidecar) in self.sidecars.iter().enumerate() {
                    let owed = sidecar.queue.iter().enumerate().filter(|(_, command)| command.owed.is_some());
                    labels.extend(owed.map(|(n, _)| Label::Lose(s, n)));
                }
            }
            Fault::Kill => {
                for (s, sidecar) in self.sidecars.iter().enumerate().filter(|(_, sidecar)| {
                    // There is nothing to lose.
                    !sidecar.ops.is_empty() || !sidecar.keeps.is_empty()
                }) {
                    labels.extend((0..=sidecar.queue.len()).map(|kept| Label::Kill(s, kept)));
                }
            }
            Fault::Leave => {
                let builds = |c: &usize| matches!(self.clients[*c].job, Job::Building { won: true, .. });
                labels.extend([0, 1].into_iter().filter(builds).map(Label::Leave));
            }
            Fault::Slow => {
                for (s, sidecar) in self.sidecars.iter().enumerate() {
                    let kept = sidecar.keeps.iter().filter(|(id, _)| !sidecar.renews(*id));
                    labels.extend(kept.map(|(id, _)| Label::TooSlow(s, *id)));
                }
            }
        }
    }

    /// The lowest CAS number on which somebody's right to rebuild rests.
    fn remembered(&self) -> Option<u64> {
        let tickets = self.sidecars.iter().flat_map(|sidecar| &sidecar.keeps);
        tickets.flat_map(|(_, ticket)| [ticket.base, ticket.lock]).flatten().map(|cas| cas.number).min()
    }

    /// The state after a step.
    pub fn after(&self, label: Label, plan: &Plan) -> Result<World, Broken> {
        let mut world = self.clone();
        world.take(label, plan)?;
        world.settle(plan)?;
        Ok(world)
    }

    fn take(&mut self, label: Label, plan: &Plan) -> Result<(), Broken> {
        if label.kind() == Kind::Wrong && !matches!(label, Label::Invalidate(..)) {
            self.faults -= 1;
        }
        match label {
            Label::Get(client) => return self.get(client, plan),
            Label::Put(client) => return self.put(client, plan),
            Label::Invalidate(how, at) => return self.invalidate(how, at, plan),
            Label::Execute(s) => {
                let command = self.sidecars[s].queue.remove(0);
                let of = command.owed.map(|(of, _)| of);
                self.execute(s, command);
                // All of a round at once.
                while plan.whole_rounds
                    && of.is_some()
                    && let Some(Command { owed: Some((next, _)), .. }) = self.sidecars[s].queue.first()
                    && Some(*next) == of
                {
                    let command = self.sidecars[s].queue.remove(0);
                    self.execute(s, command);
                }
                // A look at what nothing can change any more may as well come at once.
                while self.tag_is_settled(plan)
                    && let Some(Command { ask: Ask { at: At::Tag(_), what: What::Get(_) }, .. }) =
                        self.sidecars[s].queue.first()
                {
                    let command = self.sidecars[s].queue.remove(0);
                    self.execute(s, command);
                }
            }
            Label::ExecuteOrphan => {
                let command = self.orphans.remove(0);
                self.server.execute(&command.ask, self.epoch, None);
            }
            Label::Hear(s, of) => return self.hear(s, of, plan),
            Label::GiveUp(client) => return self.give_up(client, plan),
            Label::Renew(s, id) => return self.due(s, id, MONO, plan),
            Label::Clear(s, id) => {
                let vanishes = self.ticket(s, id).and_then(|ticket| ticket.vanishes);
                return self.due(s, id, vanishes.unwrap_or(MONO), plan);
            }
            Label::TooSlow(s, id) => {
                return self.due(s, id, MONO + plan.policy.max_rebuild.as_millis() as u64, plan);
            }
            Label::Look(s) => return self.look(s, plan),
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
                if let At::Tag(_) = at {
                    self.lose_tag();
                }
            }
            Label::Restart(collides) => self.restart(collides),
            Label::Lose(s, n) => self.lose(s, n),
            Label::Kill(s, kept) => self.kill(s, kept, plan),
            Label::Leave(client) => return self.leave(client, plan),
        }
        Ok(())
    }

    /// Whether the tag keeps its version for ever.
    fn tag_is_settled(&self, plan: &Plan) -> bool {
        let is_lost = |fault: &Fault| matches!(fault, Fault::EvictTag | Fault::Restart);
        let may_be_lost = self.faults > 0 && plan.kinds.iter().any(is_lost);
        let moves = self.clients.iter().any(|client| matches!(client.job, Job::Moving { .. }));
        let orphaned = self.orphans.iter().any(|command| matches!(command.ask.at, At::Tag(_)));
        let late = |command: &Command| command.owed.is_none() && matches!(command.ask.at, At::Tag(_));
        let late = self.sidecars.iter().any(|sidecar| sidecar.queue.iter().any(late));
        let stands = self.server.tag.as_ref().is_some_and(|tag| !tag.is_stub());
        stands && self.invalidations == 0 && !(may_be_lost || moves || orphaned || late)
    }

    pub fn ticket(&self, s: usize, id: TicketId) -> Option<&Ticket> {
        self.sidecars[s].keeps.iter().find(|(kept, _)| *kept == id).map(|(_, ticket)| ticket)
    }

    fn restart(&mut self, collides: bool) {
        let last = match self.remembered().filter(|_| collides) {
            Some(remembered) => remembered - 1,
            // Whatever anybody remembers is below.
            None => self.server.last,
        };
        assert!(last >= FIRST_CAS);
        self.server = Server { last, ..Server::start() };
        self.epoch += 1;
        self.lose_tag();
        self.orphans.clear();
        for s in 0..2 {
            for command in std::mem::take(&mut self.sidecars[s].queue) {
                self.fail(s, &command);
            }
        }
    }

    /// That invalidates whatever carries it.
    fn lose_tag(&mut self) {
        self.losses += 1;
        self.disturb();
    }

    fn lose(&mut self, s: usize, n: usize) {
        let command = self.sidecars[s].queue[n].clone();
        self.fail(s, &command);
        self.sidecars[s].queue[n].owed = None;
    }

    fn kill(&mut self, s: usize, kept: usize, plan: &Plan) {
        let dead = std::mem::replace(&mut self.sidecars[s], Sidecar::start());
        let orphan = |command: Command| Command { owed: None, ..command };
        self.orphans.extend(dead.queue.into_iter().take(kept).map(orphan));
        for (c, client) in self.clients.iter_mut().enumerate() {
            let moves_here = matches!(client.job, Job::Moving { at, .. } if at == s);
            let moves_elsewhere = matches!(client.job, Job::Moving { at, .. } if at != s);
            if moves_here || (plan.placed[c] == s && !moves_elsewhere) {
                client.job = Job::Idle;
                client.disturbed = false;
            }
        }
        for entry in
            [&mut self.server.item, &mut self.server.lock, &mut self.server.tag].into_iter().flatten()
        {
            entry.by = entry.by.filter(|by| *by != s);
        }
        self.quiet_down();
    }

    /// Something has been, or may have been, invalidated: what is won now may well be won again.
    pub fn disturb(&mut self) {
        self.undisturbed = false;
        for client in &mut self.clients {
            client.disturbed |= matches!(client.job, Job::Getting { .. });
        }
    }

    pub fn is_being_changed(&self) -> bool {
        let moves = |job: Job| matches!(job, Job::Moving { .. } | Job::Putting { won: false, .. });
        self.clients.iter().any(|client| moves(client.job))
    }

    /// Who is not in a get has seen nothing.
    fn quiet_down(&mut self) {
        for client in &mut self.clients {
            client.disturbed &= matches!(client.job, Job::Getting { .. });
            client.lapsed &= matches!(client.job, Job::Building { .. });
        }
    }

    /// A client is told to rebuild.
    pub fn won(&mut self, client: usize, plan: &Plan) -> Result<(), Broken> {
        let builds = |other: &Client| matches!(other.job, Job::Building { won: true, .. }) && !other.lapsed;
        let overlaps = self.last_winner.is_some_and(|other| other != client && builds(&self.clients[other]));
        if self.undisturbed && !self.clients[client].disturbed && (overlaps || !self.reason) {
            self.needless += 1;
            for (c, its) in self.clients.iter_mut().enumerate() {
                its.lapsed |= c == client || matches!(its.job, Job::Building { .. });
            }
            let faults = plan.faults - self.faults;
            if self.needless > faults {
                let how = if overlaps { "overlapping" } else { "needless" };
                return Err(Broken(format!(
                    "promise 1: {how} rebuild: {} of them after {faults} faults",
                    self.needless
                )));
            }
        }
        self.reason = false;
        self.undisturbed = !self.clients[client].disturbed;
        self.last_winner = Some(client);
        Ok(())
    }

    /// Leases that have ended need no keeper.
    pub fn forget_ended(&mut self, plan: &Plan) {
        let now = self.now(0);
        for sidecar in &mut self.sidecars {
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

    pub fn summary(&self) -> String {
        let entry = |entry: &Option<Entry>| match entry {
            None => "-".to_owned(),
            Some(entry) => {
                let what = match (entry.is_stub(), version_of(entry)) {
                    (true, _) => "stub".to_owned(),
                    (_, Some(version)) => format!("v{version}"),
                    _ => "held".to_owned(),
                };
                let stale = if entry.stale { " marked" } else { "" };
                format!("{what} {:?}{stale} c{} by {:?}", entry.term, entry.cas - FIRST_CAS, entry.by)
            }
        };
        let Server { item, lock, tag, .. } = &self.server;
        let tag = tag.as_ref().map_or("-".into(), |tag| tag.value.escape_ascii().to_string());
        let jobs = self.clients.map(|client| format!("{:?}", client.job)).join(", ");
        format!(
            "item {} | lock {} | tag {tag} | {jobs} | acked {} reason {} undisturbed {} needless {}",
            entry(item),
            entry(lock),
            self.acked,
            self.reason,
            self.undisturbed,
            self.needless
        )
    }
}

/// Of the source, when the value was made.
pub fn version_of(entry: &Entry) -> Option<u64> {
    let Opened::Sealed { payload_at, .. } = Header::open(&entry.value) else { return None };
    made_from(&entry.value[payload_at..])
}

/// A value says which version of the source it was made from.
pub fn made_from(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload).ok()?.strip_prefix('v')?.parse().ok()
}
