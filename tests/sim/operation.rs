//! Drives one state machine of the guard: sends its commands to the servers and passes it their replies.

use bytes::Bytes;
use kennel::guard::leases::{Admission, PollRate, Polled};
use kennel::guard::near::NearRead;
use kennel::guard::{
    Bump, BumpEnd, Commands, Delete, DeleteEnd, Event as GuardEvent, Fill, FillEnd, GetFlags, Hit, Inputs,
    Item, ItemRef, Machine, Modify, ModifyEnd, Now, Operation, Read, ReadEnd, Replies, ServerCommand,
    ServerReply, Set, SetEnd, Step, TagName, TagNames, Wait, fresh_hit, read_tag, version_of,
};

use super::checker::{ValueId, Violation, violation};
use super::commands::PendingCommand;
use super::counting::Cause;
use super::mutants::Mutant;
use super::near::{ResultSender, SharedRead};
use super::places::Place;
use super::world::{Event, World};
use super::writes::{PendingChange, PendingStore};

pub type OpId = u64;

#[derive(Debug)]
pub enum Task {
    Read(Read),
    Fill(Fill),
    Set(Set),
    Modify(Modify),
    Delete(Delete),
    Bump(Bump),
    /// Commands sent without a state machine.
    Direct,
    /// A `set` that waits for the renewal of its lease.
    Parked,
    /// A read that uses another reader's result.
    SharedRead(SharedRead),
}

#[derive(Debug)]
pub enum End {
    Read(ReadEnd),
    Fill(FillEnd),
    Set(SetEnd),
    Modify(ModifyEnd),
    Delete(DeleteEnd),
    Bump(BumpEnd),
    Direct(Replies),
}

/// Why an operation runs.
#[allow(clippy::large_enum_variant, reason = "one an operation, and operations are few")]
#[derive(Debug, Clone)]
pub enum Purpose {
    Get {
        client: usize,
        began: u64,
        /// It must not wait for another client's fill.
        at_once: bool,
    },
    Store(PendingStore),
    Change(PendingChange),
    /// A command of a client of [`super::plan::Plan::commands`].
    Command(PendingCommand),
    /// A meta client releases its win.
    ReleaseWin {
        client: usize,
        generation: u32,
        cas: u64,
    },
    Invalidation(usize),
    Renewal(u64),
    /// A lease has ended without a value.
    Release,
    /// A lease was superseded: its lock or stub is removed.
    Superseded,
    /// A lease has ended because the value was replaced: its lock is removed.
    Lost,
    Polling {
        pause: u64,
        before: Option<Polled>,
    },
}

#[derive(Debug)]
pub struct Op {
    pub id: OpId,
    pub sidecar: usize,
    pub key: usize,
    pub tags: Vec<TagName>,
    /// Where the key and the tags are kept.
    pub place: Place,
    pub tag_places: Vec<[Place; 2]>,
    /// How many of `tags` its rule does not name.
    pub added_tags: usize,
    /// No command has been sent except those of the first round, which production sends before it creates a state machine.
    pub first_round: bool,
    pub doing: Task,
    pub purpose: Purpose,
    pub commands: Commands,
    /// The write count of each tag among `commands` when they were sent.
    writes: Vec<u64>,
    /// The replies, and for each whether it came from the tag cache.
    replies: Vec<Option<(ServerReply, bool)>>,
    pub round: u32,
    /// When the last round of commands was sent.
    pub sent_at: Now,
    /// The number of this wait; `waiting` is its id in the lease table.
    wait: u32,
    pub waiting: Option<u64>,
    /// The item as last read with its value.
    pub read: Option<Item>,
    /// When that read was sent.
    pub last_read: u64,
    /// When a server last executed a command on its key.
    pub served: u64,
    /// The near read that this read serves, and when it was sent.
    pub reading: Option<(NearRead<ResultSender>, u64)>,
    /// The latest arrival of those of its commands that were delayed beyond their timeout.
    pub late: u64,
    /// The last replies show that a client of another fence holds the lock.
    pub held_under_another_fence: bool,
}

impl Op {
    /// Adds tags that the value names and the rule does not, with their places.
    pub fn learn(&mut self, tags: TagNames, places: Vec<[Place; 2]>) {
        self.tag_places.extend(places);
        self.added_tags += tags.len();
        self.tags.extend(tags);
    }

    /// Whether it waits for the renewal of its lease.
    pub fn is_parked(&self) -> bool {
        matches!(self.doing, Task::Parked)
    }

    /// The event that ends its wait at once, if it waits.
    pub fn end_of_wait(&self) -> Option<Event> {
        self.waiting.map(|_| Event::WaitEnded { op: self.id, wait: self.wait })
    }
}

impl World {
    pub fn op(&mut self, sidecar: usize, key: usize, doing: Task, purpose: Purpose) -> Box<Op> {
        self.next += 1;
        let sent_at = self.local_now(sidecar);
        let tags = self.plan.keys[key].tags.clone();
        Box::new(Op {
            id: self.next,
            sidecar,
            key,
            place: self.place_of_key(sidecar, key),
            tag_places: tags.iter().map(|tag| self.places_of_tag(sidecar, tag)).collect(),
            tags,
            added_tags: 0,
            first_round: false,
            doing,
            purpose,
            commands: Commands::new(),
            writes: Vec::new(),
            replies: Vec::new(),
            round: 0,
            sent_at,
            wait: 0,
            waiting: None,
            read: None,
            last_read: self.now,
            served: self.now,
            reading: None,
            late: 0,
            held_under_another_fence: false,
        })
    }

    /// Sends a round of commands.
    pub fn send_round(&mut self, mut op: Box<Op>, commands: Commands) {
        assert!(!commands.is_empty(), "{op:?} sends nothing");
        op.sent_at = self.local_now(op.sidecar);
        op.round += 1;
        if op.round == 1 {
            self.near_changed(&op, false);
        }
        op.replies = vec![None; commands.len()];
        let cache = &self.sidecars[op.sidecar].tag_cache;
        let writes = |command: &ServerCommand| match command.item {
            ItemRef::Tag(tag) | ItemRef::TagCopy(tag) => cache.writes(&op.tags[usize::from(tag)]),
            ItemRef::Value | ItemRef::Lock => 0,
        };
        op.writes = commands.iter().map(writes).collect();
        op.commands = commands;
        let reads_value = |command: &ServerCommand| {
            matches!(
                command,
                ServerCommand {
                    item: ItemRef::Value,
                    operation: Operation::Get(GetFlags { value: true, .. })
                }
            )
        };
        if op.commands.iter().any(reads_value) {
            op.last_read = self.now;
        }
        if let (Task::Delete(_), 1..) = (&op.doing, op.round - 1) {
            // A delete that leaves the old value as stale marks it, then removes the lock, and repeats both until the mark holds,
            // because a claim may come between.
            let until = self.now + 2 * self.plan.trip() + self.checker.grace();
            self.checker.reasons.note(op.key, Cause::Invalidated, self.now, Some(until));
        }
        for index in 0..op.commands.len() {
            let command = self.mutate_command(&op, op.commands[index].clone());
            self.trace_command(&op, &command);
            if let (Purpose::Store(put), ItemRef::Value, Operation::Store { value, .. }) =
                (&mut op.purpose, command.item, &command.operation)
            {
                put.check_seal(value, op.added_tags > 0, &mut self.checker.coverage);
            }
            if let Some(arrives) = self.send(&op, index, command) {
                op.late = op.late.max(arrives);
                if matches!(op.purpose, Purpose::Renewal(_)) {
                    self.renewal_late(op.key, arrives);
                }
            }
        }
        self.ops.insert(op.id, op);
    }

    fn trace_command(&mut self, op: &Op, command: &ServerCommand) {
        let (id, sidecar, key) = (op.id, op.sidecar, op.key);
        self.trace(|| {
            format!("op {id} (s{sidecar} k{key}) sends {:?} {:?}", command.item, command.operation)
        });
    }

    /// `cached`: the reply comes from the tag cache.
    pub fn replied(
        &mut self,
        id: OpId,
        index: usize,
        round: u32,
        reply: ServerReply,
        known: bool,
    ) -> Result<(), Violation> {
        let Some(op) = self.ops.get_mut(&id) else { return Ok(()) };
        // The operation timed out, or this is a late reply of an earlier round.
        if op.round != round || !matches!(op.replies.get(index), Some(None)) {
            return Ok(());
        }
        op.replies[index] = Some((reply, known));
        if op.replies.iter().any(Option::is_none) {
            return Ok(());
        }
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        for ((command, writes), reply) in op.commands.iter().zip(&op.writes).zip(op.replies.iter().flatten())
        {
            let (ItemRef::Tag(tag) | ItemRef::TagCopy(tag), (reply, false)) = (command.item, reply) else {
                continue;
            };
            let (name, sidecar) = (&op.tags[usize::from(tag)], &self.sidecars[op.sidecar]);
            match (&command.operation, reply) {
                // As in production, only the first round's reads enter the tag cache.
                (Operation::Get(_), ServerReply::Item(item)) if op.first_round => {
                    let fences = self.fences_of_tag(&op, usize::from(tag));
                    let version =
                        version_of(item, op.place_of(command.item).fence(), self.local_now(op.sidecar));
                    sidecar.note_tag(name, version, fences, op.sent_at, *writes);
                }
                (Operation::Store { .. }, ServerReply::Stored(_)) => sidecar.tag_cache.written(name),
                _ => {}
            }
            // A version that was stored to repair a copy was read earlier: it is not the current version.
            if let (Operation::Store { value, flags, .. }, ServerReply::Stored(_)) =
                (&command.operation, reply)
                && self.plan.is(Mutant::RepairIsReused)
            {
                let now = self.local_now(op.sidecar);
                let version = read_tag(&value.body, *flags, now).ok().map(|(version, _)| version);
                let fences = self.fences_of_tag(&op, usize::from(tag));
                sidecar.note_tag(name, version, fences, op.sent_at, sidecar.tag_cache.writes(name));
            }
        }
        let mut replies: Replies = op.replies.drain(..).flatten().map(|(reply, _)| reply).collect();
        op.held_under_another_fence = op.finds_lock_of_another_fence(&replies);
        self.mutate_replies(&op, &mut replies);
        for (command, reply) in op.commands.iter().zip(&replies) {
            if let (
                ServerCommand {
                    item: ItemRef::Value,
                    operation: Operation::Get(GetFlags { value: true, .. }),
                },
                ServerReply::Item(item),
            ) = (command, reply)
            {
                op.read = Some(item.clone());
            }
        }
        self.resume(op, GuardEvent::Replies(replies))
    }

    pub fn woken(&mut self, id: OpId) -> Result<(), Violation> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        if let (Task::Parked, Purpose::Store(put)) = (&op.doing, &op.purpose) {
            let put = put.clone();
            return self.put(put);
        }
        if let (Task::Parked, Purpose::Command(sent)) = (&op.doing, &op.purpose) {
            let sent = sent.clone();
            return self.start_command(sent);
        }
        if let (Task::Parked, Purpose::ReleaseWin { client, generation, cas }) = (&op.doing, &op.purpose) {
            if self.clients[*client].generation == *generation {
                self.remove_won(*client, op.key, *cas);
            }
            return Ok(());
        }
        let Some(waiter) = op.waiting.take() else {
            self.ops.insert(id, op);
            return Ok(());
        };
        self.stop_waiting(&op, waiter);
        self.resume(op, GuardEvent::Woken)
    }

    pub fn wait_ended(&mut self, id: OpId, wait: u32) -> Result<(), Violation> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        match op.waiting.take() {
            Some(waiter) if op.wait == wait => {
                self.stop_waiting(&op, waiter);
                self.resume(op, GuardEvent::WaitEnded)
            }
            waiting => {
                op.waiting = waiting;
                self.ops.insert(id, op);
                Ok(())
            }
        }
    }

    pub fn ask_to_be_let_through(&mut self, id: OpId, wait: u32) -> Result<(), Violation> {
        let Some(mut op) = self.ops.remove(&id) else { return Ok(()) };
        if op.wait != wait || op.waiting.is_none_or(|waiter| waiter == 0) {
            self.ops.insert(id, op);
            return Ok(());
        }
        let now = self.local_now(op.sidecar);
        let guarded = self.plan.keys[op.key].clone();
        match self.sidecars[op.sidecar].leases.let_through(&guarded.key, now, &guarded.policy) {
            Ok(()) => {
                let waiter = op.waiting.take().unwrap_or_default();
                self.stop_waiting(&op, waiter);
                if self.plan.is(Mutant::EveryWaiterIsToldAMiss) {
                    return self.resume(op, GuardEvent::WaitEnded);
                }
                self.resume(op, GuardEvent::LetThrough)
            }
            Err(again) => {
                self.at(again.saturating_sub(self.now), Event::LetThrough { op: id, wait });
                self.ops.insert(id, op);
                Ok(())
            }
        }
    }

    pub fn stop_waiting(&mut self, op: &Op, waiter: u64) {
        let key = self.plan.keys[op.key].key.clone();
        self.sidecars[op.sidecar].leases.stop_waiting(&key, waiter);
    }

    fn resume(&mut self, mut op: Box<Op>, event: GuardEvent) -> Result<(), Violation> {
        let now = self.local_now(op.sidecar);
        let policy = self.plan.keys[op.key].policy.clone();
        let may_wait = self.is_patient(&op.purpose);
        let random_unit = self.random.unit();
        let tags = std::mem::take(&mut op.tags);
        let tag_fences: Vec<[u64; 2]> = match self.plan.moves {
            0 => Vec::new(),
            _ => op.tag_places.iter().map(|places| places.map(|place| place.fence())).collect(),
        };
        let inputs = Inputs {
            policy: &policy,
            tags: &tags,
            sidecar: self.sidecars[op.sidecar].number,
            max_value: self.plan.max_value,
            added_tags: op.added_tags,
            copies: self.plan.copies,
            fence: op.place.fence(),
            tag_fences: &tag_fences,
            inherited: 0,
            inherited_tag_fences: &[],
            now,
            may_wait,
            random_unit,
        };
        let expected = expected_fresh_hit(&op, &event, &inputs);
        op.first_round = false;
        let step = match &mut op.doing {
            Task::Read(machine) => step(machine, event, &inputs, End::Read),
            Task::Fill(machine) => step(machine, event, &inputs, End::Fill),
            Task::Set(machine) => step(machine, event, &inputs, End::Set),
            Task::Modify(machine) => step(machine, event, &inputs, End::Modify),
            Task::Delete(machine) => step(machine, event, &inputs, End::Delete),
            Task::Bump(machine) => step(machine, event, &inputs, End::Bump),
            Task::Direct | Task::Parked | Task::SharedRead(_) => match event {
                GuardEvent::Replies(replies) => Step::Done(End::Direct(replies)),
                _ => return Ok(()),
            },
        };
        op.tags = tags;
        if std::mem::take(&mut op.held_under_another_fence) && matches!(step, Step::Wait(_) | Step::Done(_)) {
            // What the holder builds is stale once it is stored.
            return violation("promise 4: a reader leaves the rebuild to a client of another place".into());
        }
        if let Some(expected) = expected {
            self.checker.coverage.fresh_hits += 1;
            match &step {
                Step::Done(End::Read(ReadEnd::Fresh(hit))) if without_header(hit) == expected => {}
                _ => return violation(format!("a expected saw {expected:?}, and the machine {step:?}")),
            }
        }
        match step {
            Step::Send(commands) => {
                self.send_round(op, commands);
                Ok(())
            }
            Step::AddTags(tags) => {
                self.checker.coverage.added_tags += 1;
                let places = tags.iter().map(|tag| self.places_of_tag(op.sidecar, tag)).collect();
                op.learn(tags, places);
                self.resume(op, GuardEvent::TagsAdded)
            }
            Step::Wait(limits) => {
                self.wait(op, limits);
                Ok(())
            }
            Step::Done(end) => {
                let (id, end) = (op.id, self.confirmed(&op, end));
                self.trace(|| format!("op {id} ends {end:?}"));
                if let End::Bump(BumpEnd::Bumped(_)) = end {
                    self.sidecars[op.sidecar].tag_cache.written(&op.tags[0]);
                }
                self.near_changed(&op, true);
                if let End::Read(end) = &end {
                    self.near_read(&mut op, Some(end));
                }
                self.done(op, end)
            }
        }
    }

    fn wait(&mut self, mut op: Box<Op>, limits: Wait) {
        self.near_read(&mut op, None);
        let now = self.local_now(op.sidecar);
        let guarded = self.plan.keys[op.key].clone();
        let reader = match &op.purpose {
            Purpose::Get { client, .. } => self.clients[*client].owners[0],
            Purpose::Command(sent) => sent.owner,
            _ => panic!("only readers wait: {op:?}"),
        };
        let sidecar = &mut self.sidecars[op.sidecar];
        let generation = sidecar.generation;
        op.wait += 1;
        let cold = limits.let_through_at.is_some();
        let admission = sidecar.leases.wait(&guarded.key, reader, now, &guarded.policy, cold, op.id);
        let (delay, poll) = match admission {
            Admission::Refused | Admission::Full => {
                op.waiting = Some(0);
                (0, None)
            }
            Admission::Waits { waiter, poll } => {
                op.waiting = Some(waiter);
                (limits.until.saturating_sub(self.now), poll)
            }
        };
        let id = op.id;
        self.trace(|| format!("op {id} waits {limits:?}, poll {poll:?}"));
        self.at(delay, Event::WaitEnded { op: op.id, wait: op.wait });
        if let Some(at) = limits.let_through_at {
            self.at(at.saturating_sub(self.now), Event::LetThrough { op: op.id, wait: op.wait });
        }
        if let Some(pace) = poll {
            let pause = if pace == PollRate::Fast { 10 } else { 100 };
            let (sidecar, key, place) = (op.sidecar, op.key, op.place);
            self.at(pause, Event::Poll { sidecar, generation, key, pause, before: None, place });
        }
        self.ops.insert(op.id, op);
    }

    /// The number of the value in this payload, and how often it was incremented. Appended and prepended bytes are ignored.
    pub fn value_of(payload: &[u8]) -> Result<(ValueId, u64), Violation> {
        let text = std::str::from_utf8(payload).unwrap_or_default();
        let number: Option<u64> = text.trim_matches(|around| matches!(around, 'x' | '.' | ' ')).parse().ok();
        match number {
            Some(number) => Ok(((number / COUNTS) as ValueId, number % COUNTS)),
            None => Err(Violation(format!("no client stored {}", payload.escape_ascii()))),
        }
    }
}

/// How often a value can be incremented before it equals the next value.
pub const COUNTS: u64 = 1_000_000;

fn step<M: Machine>(
    machine: &mut M,
    event: GuardEvent,
    inputs: &Inputs<'_>,
    end: fn(M::End) -> End,
) -> Step<End> {
    match machine.resume(event, inputs) {
        Step::Send(commands) => Step::Send(commands),
        Step::AddTags(tags) => Step::AddTags(tags),
        Step::Wait(limits) => Step::Wait(limits),
        Step::Done(done) => Step::Done(end(done)),
    }
}

/// The fresh value that production serves from the first round without a state machine.
fn expected_fresh_hit(op: &Op, event: &GuardEvent, inputs: &Inputs<'_>) -> Option<Hit> {
    let (true, GuardEvent::Replies(replies)) = (op.first_round, event) else { return None };
    let [ServerReply::Item(item), tags @ ..] = &replies[..] else { return None };
    let version = |tag: usize, copy: usize, reply: &ServerReply| match reply {
        ServerReply::Item(item) => {
            version_of(item, inputs.tag_fences.get(tag).map_or(0, |fences| fences[copy]), inputs.now)
        }
        _ => None,
    };
    let copies = 1 + usize::from(inputs.copies);
    let versions: Option<Vec<u64>> = tags
        .chunks(copies)
        .enumerate()
        .map(|(tag, copies_of_tag)| {
            let versions = (0..).zip(copies_of_tag).map(|(copy, reply)| version(tag, copy, reply));
            let first = version(tag, 0, &copies_of_tag[0]);
            first.filter(|first| versions.clone().all(|version| version == Some(*first)))
        })
        .collect();
    let names = inputs.tags.iter().map(|name| &name[..]);
    fresh_hit(&mut item.clone(), names.zip(versions?), inputs.fence, inputs.policy)
}

fn without_header(hit: &Hit) -> Hit {
    Hit { header: Bytes::new(), ..hit.clone() }
}
