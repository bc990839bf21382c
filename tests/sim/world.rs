//! Time, the network, and what goes wrong. One thread, one queue of events, one stream of chance.

use std::collections::BTreeMap;

use bytes::Bytes;
use kennel::chance::Chance;
use kennel::error::Failure;
use kennel::guard::{Answer, Ask, At, Cas, Item, Now, TagName, Usage, What, envelope::lock_key};
use kennel::proxy::wire;
use kennel::upstream::inbox::Reply;

use super::checker::{Broken, Checker, Seen};
use super::clients::Client;
use super::faults::Fault;
use super::invalidators::Invalidation;
use super::mutants::Mutant;
use super::operation::{Doing, Op, OpId};
use super::plan::Plan;
use super::server::Server;
use super::sidecar::Sidecar;

/// Where the servers' wall clocks start.
const START: u64 = 1_700_000_000_000;
/// After this a lost reply is given up, in ms.
pub const TIMEOUT: u64 = 300;

#[derive(Debug)]
pub enum Event {
    /// A command reaches its server.
    Arrive { op: OpId, index: usize, round: u32, ask: Ask, key: Vec<u8>, link: usize, epoch: u32 },
    /// A reply reaches its sidecar.
    Reply { op: OpId, index: usize, round: u32, answer: Answer, link: usize },
    /// An answer is known without asking.
    Known { op: OpId, index: usize, round: u32, answer: Answer },
    /// A waiter is woken.
    Wake(OpId),
    /// A wait is over.
    Over { op: OpId, wait: u32 },
    /// A lease is to be looked at.
    Due { sidecar: usize, life: u32, key: usize, id: u64 },
    /// A poller looks.
    Poll { sidecar: usize, life: u32, key: usize, pause: u64, before: Option<u64> },
    /// A sidecar forgets what is too old.
    Sweep { sidecar: usize },
    /// One that shares what another has read looks for it.
    Near(OpId),
    /// A client goes on.
    Client { client: usize, life: u32 },
    /// Something is pipelined behind a client's request.
    Behind { client: usize, life: u32 },
    /// An invalidator goes on.
    Invalidate { which: usize },
    /// Something goes wrong.
    Fault(Fault),
}

/// One connection from a sidecar to a server.
#[derive(Debug, Clone, Default)]
pub struct Link {
    pub server: usize,
    last_there: u64,
    last_back: u64,
    pub closed: bool,
    /// What was on its way is lost for certain: the server's process is gone.
    pub cut: bool,
}

pub struct World {
    pub plan: Plan,
    pub chance: Chance,
    pub now: u64,
    pub servers: Vec<Server>,
    pub links: Vec<Link>,
    pub sidecars: Vec<Sidecar>,
    pub clients: Vec<Client>,
    pub invalidations: Vec<Option<Invalidation>>,
    /// When each server was last restarted.
    pub restarted: Vec<u64>,
    pub ops: BTreeMap<OpId, Box<Op>>,
    pub checker: Checker,
    pub next: u64,
    queue: BTreeMap<(u64, u64), Box<Event>>,
    trace: Option<Vec<String>>,
}

/// What a run showed.
pub type Outcome = Result<Seen, (Broken, Vec<String>)>;

impl World {
    pub fn run(plan: Plan, traced: bool) -> Outcome {
        let faulty = plan.faults_matter();
        let mut world = World {
            chance: Chance::seeded(plan.seed ^ 0x5eed),
            now: 1000,
            servers: (0..plan.servers).map(|_| Server::start(START)).collect(),
            links: Vec::new(),
            sidecars: Vec::new(),
            clients: Vec::new(),
            invalidations: Vec::new(),
            restarted: vec![0; plan.servers],
            ops: BTreeMap::new(),
            checker: Checker::new(&plan),
            next: 0,
            queue: BTreeMap::new(),
            trace: traced.then(Vec::new),
            plan,
        };
        let result = world.play().and_then(|()| world.checker.finish(faulty));
        match result {
            Ok(()) => Ok(world.checker.seen),
            Err(broken) => Err((broken, world.trace.unwrap_or_default())),
        }
    }

    fn play(&mut self) -> Result<(), Broken> {
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
            self.at(client_at, Event::Client { client, life: 0 });
        }
        for which in 0..self.plan.invalidators.0 {
            self.invalidations.push(None);
            let first = self.below(1500) + 1;
            self.at(first, Event::Invalidate { which });
        }
        self.plan_faults();
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > self.plan.end {
                break;
            }
            self.now = at;
            self.happen(*event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Arrive { op, index, round, ask, key, link, epoch } => {
                self.arrive(op, index, round, ask, key, link, epoch);
                Ok(())
            }
            Event::Reply { op, index, round, answer, link } => {
                let answer = if self.links[link].closed { Answer::Failed(Failure::Down) } else { answer };
                self.trace(|| format!("op {op} <- {index} {answer:?}"));
                self.replied(op, index, round, answer, false)
            }
            Event::Known { op, index, round, answer } => self.replied(op, index, round, answer, true),
            Event::Wake(op) => self.woken(op),
            Event::Over { op, wait } => self.over(op, wait),
            Event::Due { sidecar, life, key, id } => {
                self.lease_due(sidecar, life, key, id);
                Ok(())
            }
            Event::Poll { sidecar, life, key, pause, before } => {
                self.poll(sidecar, life, key, pause, before);
                Ok(())
            }
            Event::Sweep { sidecar } => {
                self.sweep(sidecar);
                Ok(())
            }
            Event::Behind { client, life } => {
                self.behind(client, life);
                Ok(())
            }
            Event::Near(op) => self.shares(op),
            Event::Client { client, life } => self.client_goes_on(client, life),
            Event::Invalidate { which } => self.invalidate(which),
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

    /// A number in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.chance.below(n)
    }

    /// Has something happen in so many ms.
    pub fn at(&mut self, delay: u64, event: Event) {
        self.next += 1;
        self.queue.insert((self.now + delay, self.next), Box::new(event));
    }

    pub fn moment(&self, sidecar: usize) -> Now {
        let offset = self.sidecars[sidecar].offset;
        Now { wall: (START + self.now).saturating_add_signed(offset), mono: self.now }
    }

    pub fn wall(&self) -> u64 {
        START + self.now
    }

    pub fn connect(&mut self, server: usize) -> usize {
        self.links.push(Link { server, ..Link::default() });
        self.links.len() - 1
    }

    fn travel(&mut self) -> u64 {
        // In a storm one message in twenty is overtaken by whole bumps of others.
        match self.plan.is_storm() && self.below(20) > 0 {
            true => 1 + self.below(4),
            false => 1 + self.below(self.plan.delay),
        }
    }

    pub fn lock_of(&self, key: usize) -> Vec<u8> {
        lock_key(&self.plan.keys[key].key).to_vec()
    }

    pub fn tag_key(name: &TagName) -> Vec<u8> {
        [b"@tag:", &name[..]].concat()
    }

    pub fn tag_server(&self, name: &TagName) -> usize {
        usize::from(name[name.len() - 1]) % self.plan.servers
    }

    /// Sends one command of an operation to its server.
    pub fn send(&mut self, op: &Op, index: usize, ask: Ask) {
        let (server, key) = match ask.at {
            At::Item => (op.key % self.plan.servers, self.plan.keys[op.key].key.clone()),
            At::Lock => (op.key % self.plan.servers, self.lock_of(op.key)),
            At::Tag(tag) => {
                let name = &op.tags[usize::from(tag)];
                (self.tag_server(name), World::tag_key(name))
            }
            At::Copy(tag) => {
                let name = &op.tags[usize::from(tag)];
                ((self.tag_server(name) + 1) % self.plan.servers, World::tag_key(name))
            }
        };
        if let Some(answer) = self.cached(op, &ask) {
            self.checker.seen.cached += 1;
            let (op, round) = (op.id, op.round);
            return self.at(0, Event::Known { op, index, round, answer });
        }
        self.checker.seen.asks += 1;
        let (link, epoch) = self.sidecars[op.sidecar].links[server];
        let (op, round) = (op.id, op.round);
        let checks = !self.plan.is(Mutant::NoEpochCheck);
        if checks && wire::depends_on(&ask.what).is_some_and(|seen| seen != epoch) {
            self.at(0, Event::Reply { op, index, round, answer: Answer::Exists, link });
            return;
        }
        let arrives = (self.now + self.travel()).max(self.links[link].last_there);
        self.links[link].last_there = arrives;
        self.at(arrives - self.now, Event::Arrive { op, index, round, ask, key, link, epoch });
    }

    /// The version of a tag, if this sidecar has read it a moment ago. A bump counts on what is stored now.
    fn cached(&self, op: &Op, ask: &Ask) -> Option<Answer> {
        let (At::Tag(tag), What::Get(_)) = (ask.at, &ask.what) else { return None };
        if matches!(op.doing, Doing::Bump(_)) {
            return None;
        }
        let cache = &self.sidecars[op.sidecar].tag_cache;
        let version = cache.get(&op.tags[usize::from(tag)], self.moment(op.sidecar))?;
        let value = Bytes::from(version.to_string());
        let (size, usage) = (value.len(), Usage::default());
        let cas = Cas { number: 0, epoch: 0 };
        Some(Answer::Item(Item { value, size, flags: 0, cas, ttl: None, won: false, stale: false, usage }))
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one event")]
    fn arrive(
        &mut self,
        op: OpId,
        index: usize,
        round: u32,
        ask: Ask,
        key: Vec<u8>,
        link: usize,
        epoch: u32,
    ) {
        let Link { server, closed, cut, .. } = self.links[link];
        if cut || (closed && self.below(2) == 0) {
            let answer = Answer::Failed(Failure::Down);
            return self.at(0, Event::Reply { op, index, round, answer, link });
        }
        let wall = self.wall();
        let bytes = self.servers[server].execute(&ask, &key, self.plan.room, wall);
        self.trace(|| format!("op {op} {} {:?} -> {}", key.escape_ascii(), ask.what, bytes.escape_ascii()));
        let mut answer = wire::decode(&ask, Reply::Answered { bytes, epoch });
        let mut back = (self.now + self.travel()).max(self.links[link].last_back);
        if self.now < self.plan.quiet && self.plan.faults.lost > 0 && self.below(self.plan.faults.lost) == 0 {
            answer = Answer::Failed(Failure::TimedOut);
            self.reply_lost(op);
            back = self.now + TIMEOUT;
        } else {
            self.links[link].last_back = back;
        }
        self.at(back - self.now, Event::Reply { op, index, round, answer, link });
    }

    /// The versions that the tags have on the servers at this moment.
    pub fn peek_tags(&self, tags: &[TagName]) -> Vec<Option<u64>> {
        let version = |bytes: Bytes| std::str::from_utf8(&bytes).ok()?.parse().ok();
        tags.iter()
            .map(|name| {
                self.servers[self.tag_server(name)].peek(&World::tag_key(name), self.wall()).and_then(version)
            })
            .collect()
    }

    pub fn stands_a_stub(&self, key: usize) -> bool {
        let item = self.servers[key % self.plan.servers].peek(&self.plan.keys[key].key, self.wall());
        item.is_some_and(|value| value.is_empty())
    }
}
