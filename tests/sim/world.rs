//! Time, the network and the event queue: one thread, one queue and one random generator.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use kennel::error::Failure;
use kennel::failover::View;
use kennel::guard::leases::Polled;
use kennel::guard::{
    Cas, Item, ItemRef, Now, Operation, ServerCommand, ServerReply, TagName, Usage, incarnation_of, read_tag,
    tag_value,
};
use kennel::proxy::wire;
use kennel::random::Random;
use kennel::upstream::pending_replies::Reply;

use super::checker::{Checker, Coverage, Violation};
use super::clients::Client;
use super::commands::CommandClient;
use super::counting::Cause;
use super::faults::Fault;
use super::invalidators::Invalidation;
use super::linearizability::Invocation;
use super::mutants::Mutant;
use super::operation::{Op, OpId, Task};
use super::places::Place;
use super::plan::{Plan, tag_of};
use super::server::Server;
use super::sidecar::Sidecar;

/// The servers' wall clock at the start, in Unix ms.
const START: u64 = 1_700_000_000_000;
/// The timeout of a command, in ms.
pub const TIMEOUT: u64 = 300;

#[derive(Debug)]
pub enum Event {
    /// A command reaches its server.
    Arrive {
        op: OpId,
        index: usize,
        round: u32,
        command: ServerCommand,
        key: Bytes,
        link: usize,
        epoch: u32,
        late: bool,
    },
    /// A reply reaches its sidecar.
    Reply { op: OpId, index: usize, round: u32, reply: ServerReply, link: usize },
    /// A reply comes from the tag cache.
    Known { op: OpId, index: usize, round: u32, reply: ServerReply },
    /// A waiter is woken.
    Wake(OpId),
    /// The time limit of a wait is reached.
    WaitEnded { op: OpId, wait: u32 },
    /// A waiting reader asks to be let through.
    LetThrough { op: OpId, wait: u32 },
    /// A lease must be renewed or has expired.
    Due { sidecar: usize, generation: u32, key: usize, id: u64, place: Place },
    /// A key is polled for its waiters.
    Poll { sidecar: usize, generation: u32, key: usize, pause: u64, before: Option<Polled>, place: Place },
    /// A sidecar removes expired entries.
    Sweep { sidecar: usize },
    /// A reader that uses a near value, or waits for another reader's result, checks whether it is available.
    SharedRead(OpId),
    /// A client continues.
    Client { client: usize, generation: u32 },
    /// A request is pipelined behind the client's current one.
    Pipelined { client: usize, generation: u32 },
    /// A client of [`Plan::commands`] sends its next command.
    Command { which: usize },
    /// A `flush_all` reaches a server or, with `which`, its client receives the reply.
    Flush { server: usize, which: Option<usize> },
    /// An invalidator continues.
    Invalidate { which: usize },
    /// A connection without replies for too long is replaced.
    Remake { sidecar: usize, server: usize, link: usize },
    /// A sidecar learns where the keys of a server are, or that it is not known.
    View { sidecar: usize, server: usize, view: Option<View> },
    /// A fault occurs.
    Fault(Fault),
}

/// A connection from a sidecar to a server.
#[derive(Debug, Clone, Default)]
pub struct Link {
    pub server: usize,
    pub last_arrival: u64,
    last_reply: u64,
    /// Connection attempts fail before this moment.
    pub opens: u64,
    pub closed: bool,
    /// The server's process has ended: commands on their way are never executed.
    pub cut: bool,
}

pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub now: u64,
    pub servers: Vec<Server>,
    pub links: Vec<Link>,
    pub sidecars: Vec<Sidecar>,
    pub clients: Vec<Client>,
    pub command_clients: Vec<CommandClient>,
    /// The commands sent and their responses, by key.
    pub histories: Vec<Vec<Invocation>>,
    pub invalidations: Vec<Option<Invalidation>>,
    /// When each server was last restarted.
    pub restarted: Vec<u64>,
    /// Until when each server is suspended.
    pub stopped: Vec<u64>,
    pub ops: BTreeMap<OpId, Box<Op>>,
    pub checker: Checker,
    /// Of each sidecar: where the keys of each server are.
    pub views: Vec<Vec<Option<View>>>,
    /// The last fence.
    pub fence: u64,
    /// Until when each server's keys are moving.
    pub moving: Vec<u64>,
    pub next: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    /// Unused slots in `events`.
    free: Vec<usize>,
    pub tag_keys: Vec<Bytes>,
    /// Which tags have been created in this run.
    pub created: Vec<bool>,
    trace: Option<Vec<String>>,
}

/// The result of a run: its coverage, or the violation and the trace.
pub type Outcome = Result<Coverage, (Violation, Vec<String>)>;

impl World {
    pub fn run(plan: Plan, traced: bool) -> Outcome {
        let faulty = plan.faults_matter();
        let mut world = World {
            random: Random::seeded(plan.seed ^ 0x5eed),
            now: 1000,
            servers: (0..plan.servers).map(|_| Server::start(START)).collect(),
            links: Vec::new(),
            sidecars: Vec::new(),
            clients: Vec::new(),
            command_clients: Vec::new(),
            histories: vec![Vec::new(); plan.keys.len()],
            invalidations: Vec::new(),
            restarted: vec![0; plan.servers],
            stopped: vec![0; plan.servers],
            ops: BTreeMap::new(),
            checker: Checker::new(&plan),
            views: vec![Vec::new(); plan.sidecars],
            fence: 0,
            moving: Vec::new(),
            next: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            created: vec![plan.aged; plan.all_tags()],
            tag_keys: (0..plan.all_tags()).map(|tag| format!("@tag:t{tag}").into()).collect(),
            trace: traced.then(Vec::new),
            plan,
        };
        let result = world
            .run_events()
            .and_then(|()| world.check_histories())
            .and_then(|()| world.checker.finish(faulty));
        match result {
            Ok(()) => Ok(world.checker.coverage),
            Err(violation) => Err((violation, world.trace.unwrap_or_default())),
        }
    }

    fn run_events(&mut self) -> Result<(), Violation> {
        if self.plan.moves > 0 {
            self.first_views();
        }
        self.create_aged_tags();
        for _ in 0..self.plan.sidecars {
            let sidecar = self.new_sidecar(0);
            self.sidecars.push(sidecar);
        }
        for sidecar in 0..self.plan.sidecars {
            let first = self.below(9000);
            self.at(first, Event::Sweep { sidecar });
        }
        for client in 0..self.plan.readers {
            let client_at = self.below(self.plan.pause) + 1;
            self.new_client();
            self.at(client_at, Event::Client { client, generation: 0 });
        }
        for _ in 0..self.plan.command_clients {
            self.new_command_client();
        }
        for which in 0..self.plan.invalidators.0 {
            self.invalidations.push(None);
            let first = self.below(1500) + 1;
            self.at(first, Event::Invalidate { which });
        }
        self.plan_faults();
        while let Some(Reverse((at, _, place))) = self.queue.pop() {
            if at > self.plan.end {
                break;
            }
            self.now = at;
            self.free.push(place);
            if let Some(event) = self.events[place].take() {
                self.handle(event)?;
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrive { op, index, round, command, key, link, epoch, late } => {
                self.arrive(op, index, round, command, key, link, epoch, late);
                Ok(())
            }
            Event::Reply { op, index, round, reply, link } => {
                let reply = if self.links[link].closed { ServerReply::Failed(Failure::Down) } else { reply };
                self.trace(|| format!("op {op} <- {index} {reply:?}"));
                self.replied(op, index, round, reply, false)
            }
            Event::Known { op, index, round, reply } => self.replied(op, index, round, reply, true),
            Event::Wake(op) => self.woken(op),
            Event::WaitEnded { op, wait } => self.wait_ended(op, wait),
            Event::LetThrough { op, wait } => self.ask_to_be_let_through(op, wait),
            Event::View { sidecar, server, view } => {
                self.views[sidecar][server] = view;
                Ok(())
            }
            Event::Due { sidecar, generation, key, id, place } => {
                self.lease_due(sidecar, generation, key, id, place);
                Ok(())
            }
            Event::Poll { sidecar, generation, key, pause, before, place } => {
                self.poll(sidecar, generation, key, pause, before, place);
                Ok(())
            }
            Event::Sweep { sidecar } => {
                self.sweep(sidecar);
                Ok(())
            }
            Event::Pipelined { client, generation } => {
                self.behind(client, generation);
                Ok(())
            }
            Event::SharedRead(op) => self.poll_shared(op),
            Event::Client { client, generation } => self.client_step(client, generation),
            Event::Command { which } => self.next_command(which),
            Event::Flush { server, which } => {
                self.flush_step(server, which);
                Ok(())
            }
            Event::Invalidate { which } => self.invalidate(which),
            Event::Remake { sidecar, server, link } => {
                self.remake(sidecar, server, link);
                Ok(())
            }
            Event::Fault(fault) => {
                self.fault(fault);
                Ok(())
            }
        }
    }

    pub fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} {}", self.now, line()));
        }
    }

    /// A random number in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    /// Schedules an event in `delay` ms.
    pub fn at(&mut self, delay: u64, event: Event) {
        self.next += 1;
        let place = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(place) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.queue.push(Reverse((self.now + delay, self.next, place)));
    }

    pub fn local_now(&self, sidecar: usize) -> Now {
        let offset = self.sidecars[sidecar].offset;
        Now { wall: (START + self.now).saturating_add_signed(offset), mono: self.now }
    }

    pub fn wall(&self) -> u64 {
        START + self.now
    }

    pub fn connect(&mut self, server: usize) -> usize {
        self.links.push(Link { server, opens: self.stopped[server], ..Link::default() });
        self.links.len() - 1
    }

    fn latency(&mut self) -> u64 {
        // In a storm, one message in twenty has the full latency, so that many bumps overtake it.
        match self.plan.is_storm() && self.below(20) > 0 {
            true => 1 + self.below(4),
            false => 1 + self.below(self.plan.delay),
        }
    }

    pub fn tag_key(&self, name: &TagName) -> Bytes {
        self.tag_keys[tag_of(name)].clone()
    }

    /// Sends one command of an operation to its server. Returns when it arrives if that is after its timeout.
    pub fn send(&mut self, op: &Op, index: usize, command: ServerCommand) -> Option<u64> {
        let key = match command.item {
            ItemRef::Value => self.plan.keys[op.key].key.clone(),
            ItemRef::Lock => self.plan.keys[op.key].lock.clone(),
            ItemRef::Tag(tag) | ItemRef::TagCopy(tag) => self.tag_key(&op.tags[usize::from(tag)]),
        };
        let server = op.place_of(command.item).server;
        if let Some(reply) = self.cached(op, &command) {
            self.checker.coverage.cached += 1;
            let (op, round) = (op.id, op.round);
            self.at(0, Event::Known { op, index, round, reply });
            return None;
        }
        if let Some(reply) = self.refusal(op, command.item, &command.operation) {
            self.checker.coverage.refused += 1;
            let (op, round) = (op.id, op.round);
            self.at(0, Event::Known { op, index, round, reply });
            return None;
        }
        self.checker.coverage.server_commands += 1;
        let (link, epoch) = self.sidecars[op.sidecar].links[server];
        let (key_of, op, round) = (op.key, op.id, op.round);
        let checks = !self.plan.is(Mutant::NoEpochCheck);
        if checks && wire::depends_on(&command.operation).is_some_and(|seen| seen != epoch) {
            self.at(0, Event::Reply { op, index, round, reply: ServerReply::Exists, link });
            return None;
        }
        if self.now < self.links[link].opens {
            let reply = ServerReply::Failed(Failure::Down);
            self.at(1, Event::Reply { op, index, round, reply, link });
            return None;
        }
        let arrives = (self.now + self.latency()).max(self.links[link].last_arrival);
        self.links[link].last_arrival = arrives;
        let late = self.plan.holds_back() && arrives > self.now + TIMEOUT;
        if !late && arrives > self.now + self.plan.trip() {
            // The key and its tags are read at moments far apart: the value may be sealed with old versions.
            self.checker.reasons.note(key_of, Cause::Lost, arrives, Some(arrives));
        }
        self.at(arrives - self.now, Event::Arrive { op, index, round, command, key, link, epoch, late });
        if late {
            let reply = ServerReply::Failed(Failure::TimedOut);
            self.at(TIMEOUT, Event::Reply { op, index, round, reply, link });
        }
        late.then_some(arrives)
    }

    /// The version of a tag if this sidecar has read it recently. A bump always reads the server.
    fn cached(&self, op: &Op, command: &ServerCommand) -> Option<ServerReply> {
        let (ItemRef::Tag(tag) | ItemRef::TagCopy(tag), Operation::Get(_)) =
            (command.item, &command.operation)
        else {
            return None;
        };
        if matches!(op.doing, Task::Bump(_)) {
            return None;
        }
        let cache = &self.sidecars[op.sidecar].tag_cache;
        let fences = self.fences_of_tag(op, usize::from(tag));
        let version = cache.get(&op.tags[usize::from(tag)], fences, self.local_now(op.sidecar).mono)?;
        let value = tag_value(version, op.place_of(command.item).fence());
        let (size, usage) = (value.len(), Usage::default());
        let cas = Cas { number: 0, epoch: 0 };
        let flags = incarnation_of(version);
        Some(ServerReply::Item(Item { value, size, flags, cas, ttl: None, won: false, stale: false, usage }))
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one event")]
    fn arrive(
        &mut self,
        op: OpId,
        index: usize,
        round: u32,
        command: ServerCommand,
        key: Bytes,
        link: usize,
        epoch: u32,
        late: bool,
    ) {
        let Link { server, closed, cut, .. } = self.links[link];
        if !cut && self.now < self.stopped[server] {
            return self.wait_for_resume(
                Event::Arrive { op, index, round, command, key, link, epoch, late: true },
                server,
            );
        }
        if cut || (closed && !late && self.below(2) == 0) {
            let reply = ServerReply::Failed(Failure::Down);
            return self.at(0, Event::Reply { op, index, round, reply, link });
        }
        let wall = self.wall();
        let bytes = self.servers[server].execute(&command, &key, self.plan.max_value, wall);
        self.trace(|| {
            format!("op {op} {} {:?} -> {}", key.escape_ascii(), command.operation, bytes.escape_ascii())
        });
        self.may_create(&command, &key);
        if let (ItemRef::Value | ItemRef::Lock, Some(op)) = (command.item, self.ops.get_mut(&op)) {
            op.served = self.now;
        }
        if late {
            self.executed_late(&command.operation, &key, &bytes);
        }
        let mut reply = wire::decode(&command, Reply::Answered { bytes, epoch });
        let mut back = (self.now + self.latency()).max(self.links[link].last_reply);
        let may_be_lost = self.plan.faulty_server.is_none_or(|faulty_server| faulty_server == server)
            && self.now < self.plan.quiet;
        if may_be_lost && self.plan.faults.lost > 0 && self.below(self.plan.faults.lost) == 0 {
            reply = ServerReply::Failed(Failure::TimedOut);
            self.reply_lost(op);
            back = self.now + TIMEOUT;
        } else {
            self.links[link].last_reply = back;
        }
        self.at(back - self.now, Event::Reply { op, index, round, reply, link });
    }

    /// The current versions of the tags on the servers.
    pub fn peek_tags(&self, tags: &[TagName]) -> Vec<Option<u64>> {
        let on = |server: usize, name: &TagName| {
            let (value, flags) = self.servers[server].peek(&self.tag_key(name), self.wall())?;
            read_tag(&value, flags, Now { wall: self.wall(), mono: self.now })
                .ok()
                .map(|(version, _)| version)
        };
        let largest =
            |name| self.plan.tag_servers(name).into_iter().filter_map(|server| on(server, name)).max();
        tags.iter().map(largest).collect()
    }

    pub fn has_stub(&self, key: usize) -> bool {
        let item = self.servers[key % self.plan.servers].peek(&self.plan.keys[key].key, self.wall());
        item.is_some_and(|(value, _)| value.is_empty())
    }
}
