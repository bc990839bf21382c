//! Drives the guard's state machines step by step.

use std::hash::{Hash, Hasher};

use bytes::Bytes;
use kennel::error::Failure;
use kennel::guard::leases::{
    Admission, AfterHit, Attribution, Ended, KnownMiss, MissToken, MissTokenId, Owner, Writer,
};
use kennel::guard::{
    Bump, BumpEnd, Cas, Commands, Delete, DeleteEnd, Event, Expiry, Fill, FillEnd, FillKind, GetFlags,
    Inputs, Item, ItemRef, Machine, NewValue, Now, Operation, Read, ReadEnd, Replies, ServerCommand,
    ServerReply, Set, Step, TagName,
};
use kennel::proxy::wire;

use super::canon::{OWNERS, Who};
use super::mutants::mutate_replies;
use super::plan::{Invalidation, Mutant, Plan, TTL};
use super::world::{Job, MONO, Violation, World, made_from};

pub const KEY: &[u8] = b"k";

/// An operation of one sidecar: a client's, by the client's number, or a background operation.
pub type OpRef = usize;
const FIRST_BACKGROUND: OpRef = 2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Task {
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
    Release,
    /// A lease was superseded: its lock or stub is removed.
    Superseded,
    /// A lease has ended because the value was replaced: its lock is removed.
    Lost,
    Polling,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    pub task: Task,
    pub commands: Commands,
    pub replies: Vec<Option<ServerReply>>,
    /// The id of its wait.
    pub waits: Option<u64>,
    /// Whether the item was within its time when it was last read.
    in_time: bool,
    /// The CAS of the lock or stub that it holds: just granted, or about to be released. Both take far less time than the lock
    /// has left.
    pub held_cas: Option<Cas>,
    /// The item as last read, for mutants that return it again.
    pub read: Option<Item>,
}

/// A command on its way, and the operation and position to which its reply belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedCommand {
    pub server_command: ServerCommand,
    pub reply_to: Option<(OpRef, usize)>,
}

impl Hash for Op {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Its commands are on their way, or were executed.
        let Op { task, commands: _, replies, waits, in_time, held_cas, read } = self;
        let in_time = *in_time && matches!(task, Task::Read(_));
        (task, replies, waits, in_time, held_cas, read).hash(state);
    }
}

impl Hash for QueuedCommand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.server_command, self.reply_to.map(|(of, index)| (Who(of), index))).hash(state);
    }
}

enum End {
    Read(ReadEnd),
    Fill(FillEnd, MissToken, Option<Owner>),
    Set,
    Invalidation { known: bool, wakes: bool },
}

impl Op {
    fn new(task: Task) -> Op {
        Op {
            task,
            commands: Commands::new(),
            replies: Vec::new(),
            waits: None,
            in_time: false,
            held_cas: None,
            read: None,
        }
    }

    /// Whether every command of the round has its reply.
    pub fn has_all_replies(&self) -> bool {
        !self.replies.is_empty() && self.replies.iter().all(Option::is_some)
    }
}

pub fn tags() -> [TagName; 1] {
    [TagName::from_slice(b"t")]
}

fn with_inputs<T>(plan: &Plan, s: usize, now: Now, then: impl FnOnce(&Inputs<'_>) -> T) -> T {
    then(&Inputs {
        policy: &plan.policy,
        tags: &tags(),
        added_tags: 0,
        copies: false,
        fence: 0,
        tag_fences: &[],
        inherited: 0,
        inherited_tag_fences: &[],
        sidecar: s as u64,
        max_value: 1 << 20,
        now,
        may_wait: true,
        random_unit: 1.0,
    })
}

pub fn owner(client: usize, at: usize, plan: &Plan) -> Owner {
    // Another sidecar sees it as another connection.
    Owner::from(OWNERS + (if plan.sidecar_of[client] == at { client } else { 10 + client }) as u64)
}

impl World {
    pub fn get(&mut self, client: usize, plan: &Plan) -> Result<(), Violation> {
        let s = plan.sidecar_of[client];
        let job = Job::Reading { floor: self.acked };
        self.clients[client].job = job;
        self.clients[client].disturbed = self.is_being_changed();
        let (read, commands) = with_inputs(plan, s, self.now(), Read::start);
        self.send_round(s, client, Op::new(Task::Read(read)), commands, plan)
    }

    pub fn invalidate(&mut self, how: Invalidation, at: usize, plan: &Plan) -> Result<(), Violation> {
        self.invalidations -= 1;
        self.source += 1;
        self.clients[1].job = Job::Invalidating { version: self.source, at };
        self.disturb();
        let (task, commands) = match how {
            Invalidation::Delete => {
                self.lock_before = self.server.lock.as_ref().map(|lock| lock.cas);
                self.sidecars[at].leases.invalidate(KEY, owner(1, at, plan));
                let (delete, commands) = with_inputs(plan, at, self.now(), Delete::start);
                (Task::Delete(delete), commands)
            }
            Invalidation::Bump => {
                let (bump, commands) = with_inputs(plan, at, self.now(), Bump::start);
                (Task::Bump(bump), commands)
            }
        };
        self.send_round(at, 1, Op::new(task), commands, plan)
    }

    /// Sends a round of commands.
    pub fn send_round(
        &mut self,
        s: usize,
        of: OpRef,
        mut op: Op,
        commands: Commands,
        plan: &Plan,
    ) -> Result<(), Violation> {
        op.replies = vec![None; commands.len()];
        op.commands = commands;
        if let (
            Task::Read(_),
            Some(ServerCommand { item: ItemRef::Value, operation: Operation::Store { .. } }),
        ) = (&op.task, op.commands.first())
        {
            // A stub replaces the lock, if the value is still there when it arrives.
            op.held_cas = None;
        }
        for index in 0..op.commands.len() {
            let command = self.mutated(&op, op.commands[index].clone(), plan);
            let epoch = self.epoch_at(command.item);
            let other_epoch = wire::depends_on(&command.operation).is_some_and(|seen| seen != epoch);
            if other_epoch && !plan.is(Mutant::CasOutlivesConnection) {
                op.replies[index] = Some(ServerReply::Exists);
            } else {
                self.sidecars[s]
                    .queue
                    .push(QueuedCommand { server_command: command, reply_to: Some((of, index)) });
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

    pub fn send_in_background(
        &mut self,
        s: usize,
        task: Task,
        commands: Commands,
        plan: &Plan,
    ) -> Result<(), Violation> {
        let free = (FIRST_BACKGROUND..).find(|of| self.sidecars[s].op(*of).is_none());
        self.send_round(s, free.unwrap_or(FIRST_BACKGROUND), Op::new(task), commands, plan)
    }

    /// The server executes a command.
    pub fn execute(&mut self, s: usize, command: QueuedCommand) {
        let epoch = self.epoch_at(command.server_command.item);
        let mut reply = self.server.execute(&command.server_command, epoch, Some(s));
        // As for fingerprints: the client that received a value's mark decides nothing.
        if let ServerReply::Item(item) = &mut reply {
            item.won &= item.size == 0;
        }
        let in_time = self.server.item.as_ref().is_some_and(|item| item.is_in_time());
        let Some((of, index)) = command.reply_to else { return };
        let found = self.sidecars[s].ops.iter_mut().find(|(its, _)| *its == of);
        if let Some((_, op)) = found {
            if let ServerCommand {
                item: ItemRef::Value,
                operation: Operation::Get(GetFlags { value: true, .. }),
            } = command.server_command
            {
                op.in_time = in_time;
            }
            match (&op.task, &reply) {
                _ if matches!(command.server_command.item, ItemRef::Tag(_)) => {}
                (Task::Read(_), ServerReply::Stored(cas)) => op.held_cas = Some(*cas),
                (Task::Read(_), ServerReply::Item(item)) if item.won && item.size == 0 => {
                    op.held_cas = Some(item.cas);
                }
                _ => {}
            }
            op.replies[index] = Some(reply);
        }
    }

    /// A command's reply is lost.
    pub fn fail(&mut self, s: usize, command: &QueuedCommand) {
        let Some((of, index)) = command.reply_to else { return };
        let found = self.sidecars[s].ops.iter_mut().find(|(its, _)| *its == of);
        if let Some((_, op)) = found {
            op.replies[index] = Some(ServerReply::Failed(Failure::TimedOut));
        }
    }

    /// Performs everything that happens at once.
    pub fn settle(&mut self, plan: &Plan) -> Result<(), Violation> {
        while plan.receives_at_once() {
            let answered = (0..2).find_map(|s| {
                let answered = self.sidecars[s].ops.iter().find(|(_, op)| op.has_all_replies());
                answered.map(|(of, _)| (s, *of))
            });
            match answered {
                Some((s, of)) => self.receive(s, of, plan)?,
                None => break,
            }
        }
        self.remove_ended_leases(plan);
        self.remove_irrelevant(plan);
        Ok(())
    }

    /// A sidecar processes the replies to a round.
    pub fn receive(&mut self, s: usize, of: OpRef, plan: &Plan) -> Result<(), Violation> {
        let Some(mut op) = self.remove(s, of) else { return Ok(()) };
        let mut replies: Replies = op.replies.drain(..).flatten().collect();
        match op.task {
            Task::Renewal(id) => self.renewed(s, id, &replies, plan),
            Task::Release => {
                let now = self.now();
                let waiters = self.sidecars[s].leases.release_waiters(KEY, now);
                self.wake(s, waiters, plan)
            }
            Task::Superseded => Ok(()),
            Task::Lost => {
                let waiters = self.sidecars[s].leases.wake(KEY);
                self.wake(s, waiters, plan)
            }
            Task::Polling => self.polled(s, &replies, plan),
            _ => {
                if let Some(mutant) = plan.mutant {
                    mutate_replies(mutant, &mut op, &mut replies);
                }
                self.resume(s, of, op, Event::Replies(replies), plan)
            }
        }
    }

    fn resume(
        &mut self,
        s: usize,
        of: OpRef,
        mut op: Op,
        event: Event,
        plan: &Plan,
    ) -> Result<(), Violation> {
        let now = self.now();
        let step = with_inputs(plan, s, now, |inputs| match &mut op.task {
            Task::Read(read) => step(read, event, inputs, End::Read),
            Task::Fill(fill, token, spent) => {
                let (token, spent) = (token.clone(), *spent);
                step(fill, event, inputs, |end| End::Fill(end, token, spent))
            }
            Task::Set(set) => step(set, event, inputs, |_| End::Set),
            Task::Delete(delete) => step(delete, event, inputs, |end| End::Invalidation {
                known: !matches!(end, DeleteEnd::Failed(_)),
                wakes: true,
            }),
            Task::Bump(bump) => step(bump, event, inputs, |end| End::Invalidation {
                known: !matches!(end, BumpEnd::Failed(_)),
                wakes: false,
            }),
            other => panic!("{other:?} is no machine"),
        });
        match step {
            Step::Send(commands) => self.send_round(s, of, op, commands, plan),
            Step::AddTags(_) => panic!("no value here has tags of its own"),
            Step::Wait(_) => self.wait(s, of, op, plan),
            Step::Done(End::Read(end)) => self.read_done(s, of, op.in_time, end, plan),
            Step::Done(End::Fill(end, token, spent)) => self.fill_done(s, of, end, &token, spent, plan),
            Step::Done(End::Set) => {
                let waiters = self.sidecars[s].leases.wake(KEY);
                self.wake(s, waiters, plan)?;
                self.stored(of);
                Ok(())
            }
            Step::Done(End::Invalidation { known, wakes }) => {
                if wakes {
                    let waiters = self.sidecars[s].leases.wake(KEY);
                    self.wake(s, waiters, plan)?;
                }
                self.invalidation_done(of, known || plan.is(Mutant::FailureIsAcknowledged))
            }
        }
    }

    fn wait(&mut self, s: usize, of: OpRef, mut op: Op, plan: &Plan) -> Result<(), Violation> {
        let now = self.now();
        match self.sidecars[s].leases.wait(KEY, owner(of, s, plan), now, &plan.policy, true, Who(of)) {
            Admission::Refused | Admission::Full => self.resume(s, of, op, Event::WaitEnded, plan),
            Admission::Waits { waiter, poll } => {
                op.waits = Some(waiter);
                op.held_cas = None;
                op.commands.clear();
                self.insert(s, of, op);
                if poll.is_some() {
                    self.sidecars[s].poller = Some(None);
                }
                Ok(())
            }
        }
    }

    pub fn give_up(&mut self, client: usize, plan: &Plan) -> Result<(), Violation> {
        let s = plan.sidecar_of[client];
        let Some(mut op) = self.remove(s, client) else { return Ok(()) };
        if let Some(waiter) = op.waits.take() {
            self.sidecars[s].leases.stop_waiting(KEY, waiter);
        }
        self.resume(s, client, op, Event::WaitEnded, plan)
    }

    pub fn wake(&mut self, s: usize, waiters: Vec<Who>, plan: &Plan) -> Result<(), Violation> {
        for Who(client) in waiters {
            let Some(mut op) = self.remove(s, client) else { continue };
            match (&op.task, op.waits.take()) {
                (Task::Parked, _) => {
                    let Job::Storing { version, .. } = self.clients[client].job else {
                        panic!("client {client} put nothing");
                    };
                    self.store(client, version, plan)?;
                }
                (_, Some(_)) if plan.is(Mutant::WakesAreLost) => {
                    op.waits = Some(0);
                    self.insert(s, client, op);
                }
                (_, Some(waiter)) => {
                    self.sidecars[s].leases.stop_waiting(KEY, waiter);
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
    ) -> Result<(), Violation> {
        let (now, owner) = (self.now(), owner(client, s, plan));
        let Job::Reading { floor } = self.clients[client].job else {
            panic!("client {client} has no request")
        };
        let leases = &mut self.sidecars[s].leases;
        let mut won = false;
        let missed = match end {
            ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit) => {
                let overtaken = match leases.hit(KEY, owner, hit.cas.number) {
                    AfterHit::Ended(ended) => ended,
                    AfterHit::Refreshes => Vec::new(),
                };
                for Ended { commands, .. } in overtaken.into_iter().filter(|ended| !ended.commands.is_empty())
                {
                    self.send_in_background(s, Task::Lost, commands, plan)?;
                }
                let version = made_from(&hit.payload);
                if version < Some(floor) {
                    return Err(Violation(format!(
                        "promise 2: a value of {version:?} was served as fresh to a get that began after {floor}"
                    )));
                }
                if !in_time && !plan.is(Mutant::FillWithoutCas) {
                    return Err(Violation("promise 3: an expired value was served as fresh".into()));
                }
                false
            }
            ReadEnd::Stale(_) => false,
            ReadEnd::Won { lease, .. } => {
                let (id, ended) = leases.grant(KEY, owner, lease.clone(), &plan.policy);
                self.sidecars[s].held_leases.extend(id.map(|id| (id, lease)));
                for Ended { commands, .. } in ended {
                    self.send_in_background(s, Task::Superseded, commands, plan)?;
                }
                won = true;
                true
            }
            ReadEnd::Missed { seen, .. } => {
                leases.record_miss(KEY, owner, seen, &plan.policy);
                true
            }
            ReadEnd::Failed(_) => {
                leases.record_miss(KEY, owner, MissToken::unanswered(now), &plan.policy);
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
    pub fn put(&mut self, client: usize, plan: &Plan) -> Result<(), Violation> {
        let Job::Building { version, won } = self.clients[client].job else { return Ok(()) };
        self.clients[client].job = Job::Storing { version, won };
        self.clients[client].lapsed = false;
        if !won {
            // It may be stored over the stub of a client that builds the same key, and expire before that one fills.
            self.disturb();
        }
        self.store(client, version, plan)
    }

    fn store(&mut self, client: usize, version: u64, plan: &Plan) -> Result<(), Violation> {
        let s = plan.sidecar_of[client];
        let new_value = NewValue {
            body: Bytes::from(format!("v{version}")),
            flags: 0,
            expiry: Expiry::Seconds(TTL),
            explicit: None,
            tags: Vec::new(),
        };
        // No client of the model sets without a miss.
        let writer = Writer { owner: owner(client, s, plan), known_miss: KnownMiss::Yes, pooled: false };
        let now = self.now();
        match self.sidecars[s].leases.attribute(KEY, writer, now) {
            Attribution::Renewing => {
                self.sidecars[s].leases.await_renewal(KEY, Who(client));
                self.insert(s, client, Op::new(Task::Parked));
                Ok(())
            }
            Attribution::Invalidated | Attribution::Unknown => {
                self.stored(client);
                Ok(())
            }
            Attribution::NoMiss => {
                let (set, commands) =
                    with_inputs(plan, s, self.now(), |inputs| Set::start(new_value, inputs));
                self.send_round(s, client, Op::new(Task::Set(set)), commands, plan)
            }
            Attribution::Fill { mut token, owner, lease } => {
                if plan.is(Mutant::SnapshotAtSet)
                    && let Some(tag) = &self.server.tag
                {
                    let version = std::str::from_utf8(&tag.value).ok().and_then(|text| text.parse().ok());
                    token.versions = version.into_iter().collect();
                }
                let start = |inputs: &Inputs<'_>| Fill::start(&token, new_value, FillKind::Set, inputs);
                let (fill, step) = with_inputs(plan, s, self.now(), start);
                let held = token.lock.or(token.observed_cas).filter(|_| lease);
                match step {
                    Step::Send(commands) => {
                        let op = Op { held_cas: held, ..Op::new(Task::Fill(fill, token, owner)) };
                        self.send_round(s, client, op, commands, plan)
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
        token: &MissToken,
        spent: Option<Owner>,
        plan: &Plan,
    ) -> Result<(), Violation> {
        let now = self.now();
        let leases = &mut self.sidecars[s].leases;
        let waiters = match end {
            FillEnd::Stored { cas, .. } => leases.filled(KEY, cas, token, spent),
            FillEnd::Dropped { .. } | FillEnd::Outdated => leases.wake(KEY),
            FillEnd::TooLarge | FillEnd::Failed(_) => leases.release_waiters(KEY, now),
        };
        self.wake(s, waiters, plan)?;
        self.stored(client);
        Ok(())
    }

    fn stored(&mut self, client: usize) {
        if let Job::Storing { won: false, .. } = self.clients[client].job {
            self.disturb();
        }
        self.clients[client].job = Job::Idle;
    }

    /// An invalidation has ended.
    fn invalidation_done(&mut self, client: usize, known: bool) -> Result<(), Violation> {
        let Job::Invalidating { version, .. } = self.clients[client].job else {
            panic!("nothing was invalidated")
        };
        self.clients[client].job = Job::Idle;
        self.disturb();
        let lock_before = self.lock_before.take();
        if known {
            if lock_before.is_some() && lock_before == self.server.lock.as_ref().map(|lock| lock.cas) {
                return Err(Violation(
                    "promise 7: a delete is acknowledged, but the lock of an earlier rebuild remains".into(),
                ));
            }
            if self.is_fresh_before(version) {
                return Err(Violation(format!(
                    "promise 7: the invalidation to {version} is acknowledged, and an older value is still fresh"
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
    inputs: &Inputs<'_>,
    end: impl FnOnce(M::End) -> End,
) -> Step<End> {
    match machine.resume(event, inputs) {
        Step::Send(commands) => Step::Send(commands),
        Step::AddTags(tags) => Step::AddTags(tags),
        Step::Wait(wait) => {
            assert!(wait.until > MONO);
            Step::Wait(wait)
        }
        Step::Done(done) => Step::Done(end(done)),
    }
}
