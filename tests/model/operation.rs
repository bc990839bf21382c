//! Drives the guard's state machines step by step.

use std::hash::{Hash, Hasher};

use bytes::Bytes;
use kennel::error::Failure;
use kennel::guard::leases::{
    Admission, AfterHit, Attribution, Ended, KnownMiss, MissToken, MissTokenId, Owner, Writer,
};
use kennel::guard::{
    Bump, BumpEnd, Cas, Commands, Delete, DeleteEnd, Event, Expiry, Fill, FillEnd, GetFlags, Inputs, Item,
    ItemRef, Machine, NewValue, Now, Operation, Read, ReadEnd, Replies, ServerCommand, ServerReply, Set,
    Step, TagName,
};
use kennel::proxy::wire;

use super::canon::{OWNERS, Who};
use super::mutants::mutate_answers;
use super::plan::{Move, Mutant, Plan, TTL};
use super::world::{Broken, Job, MONO, World, made_from};

pub const KEY: &[u8] = b"k";

/// An operation of one sidecar: a client's, by the client's number, or a background operation.
pub type OpRef = usize;
const FIRST_BEHIND: OpRef = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Doing {
    Read(Read),
    /// With the miss that it fills, and the miss's connection if that is another one.
    Fill(Fill, MissToken, Option<Owner>),
    Set(Set),
    Delete(Delete),
    Bump(Bump),
    /// A `set` that waits for the renewal of its lease.
    Parked,
    Renewal(MissTokenId),
    /// A lease has ended without a value.
    Freeing,
    /// A lease was superseded: its lock or stub is removed.
    Superseded,
    /// A lease has ended because the value was replaced: its lock is removed.
    Lost,
    Polling,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    pub doing: Doing,
    pub asks: Commands,
    pub answers: Vec<Option<ServerReply>>,
    /// The id of its wait.
    pub waits: Option<u64>,
    /// Whether the item was within its time when it was last read.
    in_time: bool,
    /// The CAS of the lock or stub that it holds: just granted, or about to be released. Both take far less time than the lock
    /// has left.
    pub gained: Option<Cas>,
    /// The item as last read, for mutants that return it again.
    pub read: Option<Item>,
}

/// A command on its way, and the operation and position to which its reply belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub ask: ServerCommand,
    pub owed: Option<(OpRef, usize)>,
}

impl Hash for Op {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Its commands are on their way, or were executed.
        let Op { doing, asks: _, answers, waits, in_time, gained, read } = self;
        let in_time = *in_time && matches!(doing, Doing::Read(_));
        (doing, answers, waits, in_time, gained, read).hash(state);
    }
}

impl Hash for Command {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.ask, self.owed.map(|(of, index)| (Who(of), index))).hash(state);
    }
}

enum End {
    Read(ReadEnd),
    Fill(FillEnd, MissToken, Option<Owner>),
    Set,
    Moved { known: bool, wakes: bool },
}

impl Op {
    fn new(doing: Doing) -> Op {
        Op {
            doing,
            asks: Commands::new(),
            answers: Vec::new(),
            waits: None,
            in_time: false,
            gained: None,
            read: None,
        }
    }

    /// Whether every command of the round has its reply.
    pub fn is_answered(&self) -> bool {
        !self.answers.is_empty() && self.answers.iter().all(Option::is_some)
    }
}

pub fn tags() -> [TagName; 1] {
    [TagName::from_slice(b"t")]
}

fn on_scene<T>(plan: &Plan, s: usize, now: Now, then: impl FnOnce(&Inputs<'_>) -> T) -> T {
    then(&Inputs {
        policy: &plan.policy,
        tags: &tags(),
        learnt: 0,
        copies: false,
        sidecar: s as u64,
        room: 1 << 20,
        now,
        patient: true,
        chance: 1.0,
    })
}

pub fn owner(client: usize, at: usize, plan: &Plan) -> Owner {
    // Another sidecar sees it as another connection.
    Owner::from(OWNERS + (if plan.placed[client] == at { client } else { 10 + client }) as u64)
}

impl World {
    pub fn get(&mut self, client: usize, plan: &Plan) -> Result<(), Broken> {
        let s = plan.placed[client];
        let job = Job::Getting { floor: self.acked };
        self.clients[client].job = job;
        self.clients[client].disturbed = self.is_being_changed();
        let (read, asks) = on_scene(plan, s, self.now(), Read::start);
        self.ask(s, client, Op::new(Doing::Read(read)), asks, plan)
    }

    pub fn invalidate(&mut self, how: Move, at: usize, plan: &Plan) -> Result<(), Broken> {
        self.invalidations -= 1;
        self.source += 1;
        self.clients[1].job = Job::Moving { version: self.source, at };
        self.disturb();
        let (doing, asks) = match how {
            Move::Delete => {
                self.lock_before = self.server.lock.as_ref().map(|lock| lock.cas);
                self.sidecars[at].leases.invalidate(KEY, owner(1, at, plan));
                let (delete, asks) = on_scene(plan, at, self.now(), Delete::start);
                (Doing::Delete(delete), asks)
            }
            Move::Bump => {
                let (bump, asks) = on_scene(plan, at, self.now(), Bump::start);
                (Doing::Bump(bump), asks)
            }
        };
        self.ask(at, 1, Op::new(doing), asks, plan)
    }

    /// Sends a round of commands.
    pub fn ask(
        &mut self,
        s: usize,
        of: OpRef,
        mut op: Op,
        asks: Commands,
        plan: &Plan,
    ) -> Result<(), Broken> {
        op.answers = vec![None; asks.len()];
        op.asks = asks;
        if let (Doing::Read(_), Some(ServerCommand { at: ItemRef::Value, what: Operation::Store { .. } })) =
            (&op.doing, op.asks.first())
        {
            // A stub replaces the lock, if the value is still there when it arrives.
            op.gained = None;
        }
        for index in 0..op.asks.len() {
            let ask = self.mutated(&op, op.asks[index].clone(), plan);
            let epoch = self.epoch_at(ask.at);
            let other_epoch = wire::depends_on(&ask.what).is_some_and(|seen| seen != epoch);
            if other_epoch && !plan.is(Mutant::CasOutlivesConnection) {
                op.answers[index] = Some(ServerReply::Exists);
            } else {
                self.sidecars[s].queue.push(Command { ask, owed: Some((of, index)) });
            }
        }
        self.insert(s, of, op);
        Ok(())
    }

    pub fn insert(&mut self, s: usize, of: OpRef, op: Op) {
        let ops = &mut self.sidecars[s].ops;
        let at = ops.iter().position(|(other, _)| *other > of).unwrap_or(ops.len());
        ops.insert(at, (of, op));
    }

    pub fn remove(&mut self, s: usize, of: OpRef) -> Option<Op> {
        let ops = &mut self.sidecars[s].ops;
        let at = ops.iter().position(|(other, _)| *other == of)?;
        Some(ops.remove(at).1)
    }

    pub fn ask_behind(&mut self, s: usize, doing: Doing, asks: Commands, plan: &Plan) -> Result<(), Broken> {
        let free = (FIRST_BEHIND..).find(|of| self.sidecars[s].op(*of).is_none());
        self.ask(s, free.unwrap_or(FIRST_BEHIND), Op::new(doing), asks, plan)
    }

    /// The server executes a command.
    pub fn execute(&mut self, s: usize, command: Command) {
        let epoch = self.epoch_at(command.ask.at);
        let mut answer = self.server.execute(&command.ask, epoch, Some(s));
        // As for fingerprints: the client that received a value's mark decides nothing.
        if let ServerReply::Item(item) = &mut answer {
            item.won &= item.size == 0;
        }
        let in_time = self.server.item.as_ref().is_some_and(|item| item.is_in_time());
        let Some((of, index)) = command.owed else { return };
        let found = self.sidecars[s].ops.iter_mut().find(|(its, _)| *its == of);
        if let Some((_, op)) = found {
            if let ServerCommand { at: ItemRef::Value, what: Operation::Get(GetFlags { value: true, .. }) } =
                command.ask
            {
                op.in_time = in_time;
            }
            match (&op.doing, &answer) {
                _ if matches!(command.ask.at, ItemRef::Tag(_)) => {}
                (Doing::Read(_), ServerReply::Stored(cas)) => op.gained = Some(*cas),
                (Doing::Read(_), ServerReply::Item(item)) if item.won && item.size == 0 => {
                    op.gained = Some(item.cas);
                }
                _ => {}
            }
            op.answers[index] = Some(answer);
        }
    }

    /// A command's reply is lost.
    pub fn fail(&mut self, s: usize, command: &Command) {
        let Some((of, index)) = command.owed else { return };
        let found = self.sidecars[s].ops.iter_mut().find(|(its, _)| *its == of);
        if let Some((_, op)) = found {
            op.answers[index] = Some(ServerReply::Failed(Failure::TimedOut));
        }
    }

    /// Performs everything that happens at once.
    pub fn settle(&mut self, plan: &Plan) -> Result<(), Broken> {
        while plan.hears_at_once() {
            let answered = (0..2).find_map(|s| {
                let answered = self.sidecars[s].ops.iter().find(|(_, op)| op.is_answered());
                answered.map(|(of, _)| (s, *of))
            });
            match answered {
                Some((s, of)) => self.hear(s, of, plan)?,
                None => break,
            }
        }
        self.forget_ended(plan);
        self.forget_what_cannot_matter(plan);
        Ok(())
    }

    /// A sidecar processes the replies to a round.
    pub fn hear(&mut self, s: usize, of: OpRef, plan: &Plan) -> Result<(), Broken> {
        let Some(mut op) = self.remove(s, of) else { return Ok(()) };
        let mut answers: Replies = op.answers.drain(..).flatten().collect();
        match op.doing {
            Doing::Renewal(id) => self.renewed(s, id, &answers, plan),
            Doing::Freeing => {
                let now = self.now();
                let bells = self.sidecars[s].leases.release_waiters(KEY, now);
                self.wake(s, bells, plan)
            }
            Doing::Superseded => Ok(()),
            Doing::Lost => {
                let bells = self.sidecars[s].leases.wake(KEY);
                self.wake(s, bells, plan)
            }
            Doing::Polling => self.polled(s, &answers, plan),
            _ => {
                if let Some(mutant) = plan.mutant {
                    mutate_answers(mutant, &mut op, &mut answers);
                }
                self.resume(s, of, op, Event::Replies(answers), plan)
            }
        }
    }

    fn resume(&mut self, s: usize, of: OpRef, mut op: Op, event: Event, plan: &Plan) -> Result<(), Broken> {
        let now = self.now();
        let step = on_scene(plan, s, now, |scene| match &mut op.doing {
            Doing::Read(read) => step(read, event, scene, End::Read),
            Doing::Fill(fill, ticket, spent) => {
                let (ticket, spent) = (ticket.clone(), *spent);
                step(fill, event, scene, |end| End::Fill(end, ticket, spent))
            }
            Doing::Set(set) => step(set, event, scene, |_| End::Set),
            Doing::Delete(delete) => step(delete, event, scene, |end| End::Moved {
                known: !matches!(end, DeleteEnd::Failed(_)),
                wakes: true,
            }),
            Doing::Bump(bump) => step(bump, event, scene, |end| End::Moved {
                known: !matches!(end, BumpEnd::Failed(_)),
                wakes: false,
            }),
            other => panic!("{other:?} is no machine"),
        });
        match step {
            Step::Send(asks) => self.ask(s, of, op, asks, plan),
            Step::AddTags(_) => panic!("no value here has tags of its own"),
            Step::Wait(_) => self.wait(s, of, op, plan),
            Step::Done(End::Read(end)) => self.read_done(s, of, op.in_time, end, plan),
            Step::Done(End::Fill(end, ticket, spent)) => self.fill_done(s, of, end, &ticket, spent, plan),
            Step::Done(End::Set) => {
                let bells = self.sidecars[s].leases.wake(KEY);
                self.wake(s, bells, plan)?;
                self.stored(of);
                Ok(())
            }
            Step::Done(End::Moved { known, wakes }) => {
                if wakes {
                    let bells = self.sidecars[s].leases.wake(KEY);
                    self.wake(s, bells, plan)?;
                }
                self.moved(of, known || plan.is(Mutant::FailureIsAcknowledged))
            }
        }
    }

    fn wait(&mut self, s: usize, of: OpRef, mut op: Op, plan: &Plan) -> Result<(), Broken> {
        let now = self.now();
        match self.sidecars[s].leases.wait(KEY, owner(of, s, plan), now, &plan.policy, Who(of)) {
            Admission::Refused | Admission::Full => self.resume(s, of, op, Event::WaitEnded, plan),
            Admission::Waits { waiter, poll } => {
                op.waits = Some(waiter);
                op.gained = None;
                op.asks.clear();
                self.insert(s, of, op);
                if poll.is_some() {
                    self.sidecars[s].poller = Some(None);
                }
                Ok(())
            }
        }
    }

    pub fn give_up(&mut self, client: usize, plan: &Plan) -> Result<(), Broken> {
        let s = plan.placed[client];
        let Some(mut op) = self.remove(s, client) else { return Ok(()) };
        if let Some(waiter) = op.waits.take() {
            self.sidecars[s].leases.leave(KEY, waiter);
        }
        self.resume(s, client, op, Event::WaitEnded, plan)
    }

    pub fn wake(&mut self, s: usize, bells: Vec<Who>, plan: &Plan) -> Result<(), Broken> {
        for Who(client) in bells {
            let Some(mut op) = self.remove(s, client) else { continue };
            match (&op.doing, op.waits.take()) {
                (Doing::Parked, _) => {
                    let Job::Putting { version, .. } = self.clients[client].job else {
                        panic!("client {client} put nothing");
                    };
                    self.store(client, version, plan)?;
                }
                (_, Some(_)) if plan.is(Mutant::BellsAreLost) => {
                    op.waits = Some(0);
                    self.insert(s, client, op);
                }
                (_, Some(waiter)) => {
                    self.sidecars[s].leases.leave(KEY, waiter);
                    self.resume(s, client, op, Event::Woken, plan)?;
                }
                (_, None) => self.insert(s, client, op),
            }
        }
        Ok(())
    }

    fn read_done(
        &mut self,
        s: usize,
        client: usize,
        in_time: bool,
        end: ReadEnd,
        plan: &Plan,
    ) -> Result<(), Broken> {
        let (now, owner) = (self.now(), owner(client, s, plan));
        let Job::Getting { floor } = self.clients[client].job else {
            panic!("client {client} asked nothing")
        };
        let leases = &mut self.sidecars[s].leases;
        let mut won = false;
        let missed = match end {
            ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit) => {
                let overtaken = match leases.hit(KEY, owner, hit.cas.number) {
                    AfterHit::Over(ended) => ended,
                    AfterHit::Refreshes => Vec::new(),
                };
                for Ended { asks, .. } in overtaken.into_iter().filter(|ended| !ended.asks.is_empty()) {
                    self.ask_behind(s, Doing::Lost, asks, plan)?;
                }
                let version = made_from(&hit.payload);
                if version < Some(floor) {
                    return Err(Broken(format!(
                        "promise 2: a value of {version:?} was served as fresh to a get that began after {floor}"
                    )));
                }
                if !in_time && !plan.is(Mutant::FillWithoutCas) {
                    return Err(Broken("promise 3: a value past its end was served as fresh".into()));
                }
                false
            }
            ReadEnd::Stale(_) => false,
            ReadEnd::Won { lease, .. } => {
                let (id, ended) = leases.grant(KEY, owner, lease.clone(), &plan.policy);
                self.sidecars[s].keeps.extend(id.map(|id| (id, lease)));
                for Ended { asks, .. } in ended {
                    self.ask_behind(s, Doing::Superseded, asks, plan)?;
                }
                won = true;
                true
            }
            ReadEnd::Missed { seen, .. } => {
                leases.record_miss(KEY, owner, seen, &plan.policy);
                true
            }
            ReadEnd::Failed(_) => {
                leases.record_miss(KEY, owner, MissToken::nothing(now), &plan.policy);
                true
            }
        };
        self.clients[client].lapsed = false;
        if won {
            self.won(client, plan)?;
        }
        let version = self.source;
        self.clients[client].job = if missed { Job::Building { version, won } } else { Job::Idle };
        self.clients[client].disturbed = false;
        Ok(())
    }

    /// A client has made its value and sends it.
    pub fn put(&mut self, client: usize, plan: &Plan) -> Result<(), Broken> {
        let Job::Building { version, won } = self.clients[client].job else { return Ok(()) };
        self.clients[client].job = Job::Putting { version, won };
        self.clients[client].lapsed = false;
        if !won {
            // It may be stored over the stub of a client that builds the same key, and expire before that one fills.
            self.disturb();
        }
        self.store(client, version, plan)
    }

    fn store(&mut self, client: usize, version: u64, plan: &Plan) -> Result<(), Broken> {
        let s = plan.placed[client];
        let offer = NewValue {
            body: Bytes::from(format!("v{version}")),
            flags: 0,
            lifetime: Expiry::Seconds(TTL),
            explicit: None,
            tags: Vec::new(),
        };
        // No client of the model sets without a miss.
        let setter = Writer { owner: owner(client, s, plan), told: KnownMiss::Yes, pooled: false };
        let now = self.now();
        match self.sidecars[s].leases.attribute(KEY, setter, now) {
            Attribution::Renewing => {
                self.sidecars[s].leases.await_renewal(KEY, Who(client));
                self.insert(s, client, Op::new(Doing::Parked));
                Ok(())
            }
            Attribution::Invalidated | Attribution::Unknown => {
                self.stored(client);
                Ok(())
            }
            Attribution::NoMiss => {
                let (set, asks) = on_scene(plan, s, self.now(), |scene| Set::start(offer, scene));
                self.ask(s, client, Op::new(Doing::Set(set)), asks, plan)
            }
            Attribution::Fill { mut ticket, owner, lease } => {
                if plan.is(Mutant::SnapshotAtSet)
                    && let Some(tag) = &self.server.tag
                {
                    let version = std::str::from_utf8(&tag.value).ok().and_then(|text| text.parse().ok());
                    ticket.versions = version.into_iter().collect();
                }
                let start = |scene: &Inputs<'_>| Fill::start(&ticket, offer, false, scene);
                let (fill, step) = on_scene(plan, s, self.now(), start);
                let held = ticket.lock.or(ticket.base).filter(|_| lease);
                match step {
                    Step::Send(asks) => {
                        let op = Op { gained: held, ..Op::new(Doing::Fill(fill, ticket, owner)) };
                        self.ask(s, client, op, asks, plan)
                    }
                    // It is unknown what it would be stored over.
                    _ => {
                        self.stored(client);
                        Ok(())
                    }
                }
            }
        }
    }

    fn fill_done(
        &mut self,
        s: usize,
        client: usize,
        end: FillEnd,
        ticket: &MissToken,
        spent: Option<Owner>,
        plan: &Plan,
    ) -> Result<(), Broken> {
        let now = self.now();
        let leases = &mut self.sidecars[s].leases;
        let bells = match end {
            FillEnd::Stored { cas, .. } => leases.filled(KEY, cas, ticket, spent),
            FillEnd::Dropped { .. } | FillEnd::Outdated => leases.wake(KEY),
            FillEnd::TooLarge | FillEnd::Failed(_) => leases.release_waiters(KEY, now),
        };
        self.wake(s, bells, plan)?;
        self.stored(client);
        Ok(())
    }

    fn stored(&mut self, client: usize) {
        if let Job::Putting { won: false, .. } = self.clients[client].job {
            self.disturb();
        }
        self.clients[client].job = Job::Idle;
    }

    /// An invalidation has ended.
    fn moved(&mut self, client: usize, known: bool) -> Result<(), Broken> {
        let Job::Moving { version, .. } = self.clients[client].job else { panic!("nothing was invalidated") };
        self.clients[client].job = Job::Idle;
        self.disturb();
        let lock_before = self.lock_before.take();
        if known {
            if lock_before.is_some() && lock_before == self.server.lock.as_ref().map(|lock| lock.cas) {
                return Err(Broken(
                    "promise 7: a delete is acknowledged, and whoever built before it has the lock".into(),
                ));
            }
            if self.stands_fresh_before(version) {
                return Err(Broken(format!(
                    "promise 7: the invalidation to {version} is acknowledged, and an older value stands there as fresh"
                )));
            }
            self.acked = version;
        }
        Ok(())
    }
}

fn step<M: Machine>(
    machine: &mut M,
    event: Event,
    scene: &Inputs<'_>,
    end: impl FnOnce(M::End) -> End,
) -> Step<End> {
    match machine.resume(event, scene) {
        Step::Send(asks) => Step::Send(asks),
        Step::AddTags(tags) => Step::AddTags(tags),
        Step::Wait(until) => {
            assert!(until > MONO);
            Step::Wait(until)
        }
        Step::Done(done) => Step::Done(end(done)),
    }
}
