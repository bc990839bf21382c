//! Servers and the connections to them, with their faults: the embedded store, spoken to in the commands of `kinds`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use kennel::embedded::Store;
use kennel::error::Failure;
use kennel::kinds::{Command, ItemKey, Operation, Reply};
use kennel::proxy::kind_wire::{self, Expected};
use kennel::upstream::pending_replies::Reply as ServerReply;

use super::executor::{Executor, Slot};
use super::mutants::Mutant;
use super::places::{HOMES, Place, STANDBY};
use super::plan::Plan;
use super::server;

/// The wall clock at the start, in Unix ms.
const START: u64 = 1_700_000_000_000;
/// The timeout of a command, in ms.
pub const TIMEOUT: u64 = 300;
/// A connection is replaced after so long without a reply.
const STALLED: u64 = 4 * TIMEOUT;

/// How many items are the last ones.
const LAST: usize = 4;

/// Which of its lives an item has: another one after it was evicted or its server restarted.
pub type Life = (u64, u64);

/// What was lost.
pub enum Loss {
    /// All items of a server.
    Server(usize),
    /// An item of a server.
    Item(usize, ItemKey),
    /// A copy, because it is looked for in another place, which is this one.
    Moved(usize, Place),
}

pub struct Network {
    pub executor: Executor,
    pub plan: Plan,
    servers: RefCell<Vec<Server>>,
    links: RefCell<Vec<Link>>,
    /// Of each sidecar: the connection to each server.
    current: RefCell<Vec<Vec<usize>>>,
    /// What was lost, and when.
    pub losses: RefCell<Vec<(u64, Loss)>>,
    pub faults: Cell<u64>,
    pub commands: Cell<u64>,
}

struct Server {
    store: Store,
    life: u64,
    evictions: BTreeMap<ItemKey, u64>,
    /// The keys of all items that it has had.
    keys: BTreeSet<ItemKey>,
    /// It executes nothing before this time.
    stopped: u64,
    /// It accepts no connection before this time.
    down: u64,
}

struct Link {
    server: usize,
    epoch: u32,
    last_arrival: u64,
    last_reply: u64,
    /// Its replies are not read any more.
    closed: bool,
    /// What is on its way is never executed: the server's process has ended, or reads nothing of it any more.
    cut: bool,
    waiting: Vec<Slot<Reply>>,
}

impl Network {
    pub fn new(executor: Executor, plan: Plan) -> Rc<Network> {
        let server = || Server {
            store: Store::new(64 << 20, START),
            life: 1,
            evictions: BTreeMap::new(),
            keys: BTreeSet::new(),
            stopped: 0,
            down: 0,
        };
        let network = Network {
            servers: RefCell::new((0..plan.servers).map(|_| server()).collect()),
            links: RefCell::default(),
            current: RefCell::default(),
            losses: RefCell::default(),
            faults: Cell::new(0),
            commands: Cell::new(0),
            executor,
            plan,
        };
        for _ in 0..network.plan.sidecars {
            let links = (0..network.plan.servers).map(|server| network.connect(server, 1)).collect();
            network.current.borrow_mut().push(links);
        }
        Rc::new(network)
    }

    /// The servers' clock, in Unix ms.
    pub fn wall(&self) -> u64 {
        START + self.executor.now()
    }

    fn connect(&self, server: usize, epoch: u32) -> usize {
        let mut links = self.links.borrow_mut();
        let waiting = Vec::new();
        links.push(Link {
            server,
            epoch,
            last_arrival: 0,
            last_reply: 0,
            closed: false,
            cut: false,
            waiting,
        });
        links.len() - 1
    }

    fn latency(&self) -> u64 {
        1 + self.executor.below(self.plan.latency)
    }

    /// Sends a command. The answer arrives later. `executed` is told the life of the item once the command is executed.
    pub fn send(
        self: &Rc<Self>,
        sidecar: usize,
        server: usize,
        command: Command,
        executed: Rc<Cell<Option<Life>>>,
    ) -> Slot<Reply> {
        let slot = Slot::new(&self.executor);
        let link = self.current.borrow()[sidecar][server];
        let now = self.executor.now();
        let is_down = self.servers.borrow()[server].down > now;
        let mut links = self.links.borrow_mut();
        let to = &mut links[link];
        let epoch = to.epoch;
        let compares = !self.plan.is(Mutant::NoEpochCheck);
        if compares && command.operation.epoch().is_some_and(|seen| seen != epoch) {
            slot.fill(Reply::Exists);
            return slot;
        }
        if is_down {
            slot.fill(Reply::Failed(Failure::Down));
            return slot;
        }
        self.commands.set(self.commands.get() + 1);
        let late =
            if self.executor.one_in(self.plan.late_commands) { self.executor.below(TIMEOUT) } else { 0 };
        to.last_arrival = to.last_arrival.max(now + late + self.latency());
        let arrives = to.last_arrival;
        to.waiting.retain(|waiting| !waiting.is_filled());
        to.waiting.push(slot.clone());
        let (network, reply) = (Rc::clone(self), slot.clone());
        self.executor.spawn(async move {
            network.executor.sleep_until(arrives).await;
            network.deliver(link, server, command, epoch, reply, executed).await;
        });
        slot
    }

    /// Waits for the answer to a command that was sent at `sent`.
    pub async fn receive(&self, slot: Slot<Reply>, sent: u64) -> Reply {
        slot.wait_until(sent + TIMEOUT).await.unwrap_or_else(|| Reply::Failed(Failure::TimedOut))
    }

    async fn deliver(
        &self,
        link: usize,
        server: usize,
        command: Command,
        epoch: u32,
        slot: Slot<Reply>,
        executed: Rc<Cell<Option<Life>>>,
    ) {
        loop {
            let until = self.servers.borrow()[server].stopped;
            if until <= self.executor.now() {
                break;
            }
            self.executor.sleep_until(until).await;
        }
        {
            // A server reads what was sent on a connection up to some place, and nothing behind it.
            let mut links = self.links.borrow_mut();
            let from = &mut links[link];
            from.cut |= from.closed && self.executor.one_in(2);
            if from.cut {
                return slot.fill(Reply::Failed(Failure::Down));
            }
        }
        let wall = self.wall();
        let answer = {
            let mut servers = self.servers.borrow_mut();
            let to = &mut servers[server];
            let bytes = to.execute(&command, wall);
            let life = to.life_of(&command.key);
            executed.set(Some(life));
            kind_wire::decode(Expected::of(&command.operation), ServerReply::Answered { bytes, epoch })
        };
        let back = {
            let mut links = self.links.borrow_mut();
            let from = &mut links[link];
            let slow = if self.executor.one_in(self.plan.slow_replies) { 2 * TIMEOUT } else { 0 };
            from.last_reply = from.last_reply.max(self.executor.now() + self.latency() + slow);
            from.last_reply
        };
        self.executor.sleep_until(back).await;
        let closed = self.links.borrow()[link].closed;
        // The reply may have been read just before.
        let answer = if closed && self.executor.one_in(2) { Reply::Failed(Failure::Down) } else { answer };
        slot.fill(answer);
    }

    /// Replaces a connection. What was sent on it may still arrive.
    fn remake(&self, sidecar: usize, server: usize) {
        let link = self.current.borrow()[sidecar][server];
        let (epoch, waiting) = {
            let from = &mut self.links.borrow_mut()[link];
            from.closed = true;
            (from.epoch, std::mem::take(&mut from.waiting))
        };
        self.current.borrow_mut()[sidecar][server] = self.connect(server, epoch + 1);
        for slot in waiting {
            if self.executor.one_in(2) {
                slot.fill(Reply::Failed(Failure::Down));
            }
        }
    }

    /// Faults, until the end of the schedule.
    pub async fn fail(self: Rc<Self>) {
        loop {
            self.executor.sleep(1 + self.executor.below(2 * self.plan.between_faults)).await;
            self.faults.set(self.faults.get() + 1);
            let server = self.executor.below(self.plan.servers as u64) as usize;
            let sidecar = self.executor.below(self.plan.sidecars as u64) as usize;
            match self.executor.below(6) {
                0 if self.plan.restarts => {
                    let server = self.loser().unwrap_or(server);
                    self.restart(server, self.plan.spread + self.executor.below(1_500))
                }
                0 | 3 | 4 if self.plan.evicts_last => self.evict(self.loser().unwrap_or(server)),
                1 if self.plan.evicts => self.evict(self.loser().unwrap_or(server)),
                2 => self.remake(sidecar, server),
                3 => self.stall(sidecar, server),
                4 => self.stop(server),
                _ => {}
            }
        }
    }

    /// One of the servers that lose something, if others do not.
    fn loser(&self) -> Option<usize> {
        let home = HOMES[self.plan.loses?];
        Some(if self.executor.one_in(2) { STANDBY } else { home })
    }

    /// Ends the server's process, and starts it empty some ms later.
    pub fn restart(&self, server: usize, downtime: u64) {
        {
            let mut servers = self.servers.borrow_mut();
            let from = &mut servers[server];
            from.store = Store::new(64 << 20, self.wall());
            from.life += 1;
            from.stopped = 0;
            from.down = self.executor.now() + downtime;
        }
        self.losses.borrow_mut().push((self.executor.now(), Loss::Server(server)));
        for link in &mut *self.links.borrow_mut() {
            link.cut |= link.server == server;
        }
        for sidecar in 0..self.plan.sidecars {
            self.remake(sidecar, server);
        }
    }

    fn evict(&self, server: usize) {
        let wall = self.wall();
        let servers = &mut *self.servers.borrow_mut();
        let from = &mut servers[server];
        let all = from.keys.len();
        let last = if self.plan.evicts_last { LAST.min(all) } else { all };
        let at = all - last + self.executor.below(last as u64) as usize;
        let Some(key) = from.keys.iter().nth(at).cloned() else { return };
        if key.ends_with(b"@kennel:fence") {
            return;
        }
        self.losses.borrow_mut().push((self.executor.now(), Loss::Item(server, key.clone())));
        *from.evictions.entry(key.clone()).or_default() += 1;
        server::run(&mut from.store, &[b"md ", &key[..], b"\r\n"].concat(), wall);
    }

    /// Delays what this sidecar sends to this server. The order of one connection is kept.
    fn stall(self: &Rc<Self>, sidecar: usize, server: usize) {
        let delay = TIMEOUT / 2 + self.executor.below(self.plan.longest_delay);
        self.stall_until(sidecar, server, self.executor.now() + delay);
    }

    /// Stops the server's process for some time.
    fn stop(self: &Rc<Self>, server: usize) {
        let delay = TIMEOUT / 2 + self.executor.below(self.plan.longest_delay);
        let until = self.executor.now() + delay;
        self.servers.borrow_mut()[server].stopped = until;
        for sidecar in 0..self.plan.sidecars {
            // The connections are read in any order.
            self.stall_until(sidecar, server, until + self.executor.below(20));
        }
    }

    fn stall_until(self: &Rc<Self>, sidecar: usize, server: usize, until: u64) {
        let link = self.current.borrow()[sidecar][server];
        let last = &mut self.links.borrow_mut()[link].last_arrival;
        *last = until.max(*last);
        if until > self.executor.now() + STALLED {
            let network = Rc::clone(self);
            self.executor.spawn(async move {
                network.executor.sleep(STALLED).await;
                if network.current.borrow()[sidecar][server] == link {
                    network.remake(sidecar, server);
                }
            });
        }
    }

    /// The life that an item has now.
    pub fn life(&self, server: usize, key: &[u8]) -> Life {
        self.servers.borrow()[server].life_of(key)
    }
}

impl Server {
    fn life_of(&self, key: &[u8]) -> Life {
        (self.life, self.evictions.get(key).copied().unwrap_or(0))
    }

    fn execute(&mut self, command: &Command, wall: u64) -> Bytes {
        if !matches!(command.operation, Operation::GetMany(_)) && !self.keys.contains(&command.key) {
            self.keys.insert(command.key.clone());
        }
        server::execute(&mut self.store, command, wall)
    }
}
