//! Runs a kind's state machine for one command of a client: sends its commands to the server of the key, and passes the replies
//! back.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::error::Failure;
use crate::kinds::{
    self, Command, Commands, Inputs, Kind, Machine, Outcome, Replies, Reply, Request, Side, Step, copy_key,
};
use crate::proxy::client::Client;
use crate::proxy::copy_servers::CopyServers;
use crate::proxy::held_locks::LockServers;
use crate::proxy::key::{Place, StructureKey};
use crate::proxy::kind_wire::{self, Expected};
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::Standing;
use crate::proxy::plan::StructurePlan;
use crate::proxy::scope::AccessSet;
use crate::rule::Captures;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::ReplyId;

/// A command of a client that is carried out.
pub(crate) struct StructureRun {
    key: StructureKey,
    machine: Box<dyn Machine>,
    /// Where the copies are, if everything of this kind has two.
    places: Option<Box<[Place; 2]>>,
    /// The commands of the last round trip.
    sent: SmallVec<[Sent; 2]>,
    outcome: Option<Outcome>,
}

/// A command of a round trip.
struct Sent {
    expected: Expected,
    /// `None`: it was not sent, because the place of its copy is not known.
    id: Option<ReplyId>,
    /// Which copy it is for.
    side: Option<Side>,
}

impl StructureRun {
    /// Begins a command, and sends the commands of its first round trip. The error is a line with its CRLF.
    pub(crate) fn begin(
        request: Request<'_>,
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
    ) -> Result<StructureRun, &'static str> {
        let StructurePlan { kind, memory, pool, .. } = proxy.structure(&key);
        let inputs = proxy.kind_inputs();
        let machine = kinds::begin(kind, &key.key, key.length, request, memory, inputs.now)?;
        let places = kind.is_copied().then(|| Box::new(proxy.places_of_copies(*pool, key.own_key())));
        let mut run = StructureRun { key, machine, places, sent: SmallVec::new(), outcome: None };
        run.resume(Replies::new(), &inputs, proxy, client);
        Ok(run)
    }

    /// Begins to note the name of an element, and sends the commands of the first round trip. `store`, which is called between
    /// them, sends the command that stores the element. The error is a line with its CRLF.
    pub(crate) fn note<T>(
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
        store: impl FnOnce() -> T,
    ) -> Result<(StructureRun, T), &'static str> {
        let mut machine = kinds::note(&key.key, key.length)?;
        let first = machine.resume(Replies::new(), &proxy.kind_inputs());
        let mut run = StructureRun { key, machine, places: None, sent: SmallVec::new(), outcome: None };
        let mut last = match first {
            Step::Send(commands) => commands,
            Step::Done(outcome) => {
                run.outcome = Some(outcome);
                Commands::new()
            }
            // The elements of a table with copies are no items of their own: see `begin`.
            Step::SendCopies(_) => Commands::new(),
        };
        let behind = last.split_off(last.len().saturating_sub(1));
        run.send(last, proxy, client);
        let stored = store();
        run.send(behind, proxy, client);
        Ok((run, stored))
    }

    fn send(&mut self, commands: Commands, proxy: &Proxy, client: &Client) {
        let connection = proxy.structure_connection(&self.key);
        let send = |command: Command| {
            let (expected, id) = send(&command, connection, client);
            Sent { expected, id: Some(id), side: None }
        };
        self.sent.extend(commands.into_iter().map(send));
    }

    fn resume(&mut self, replies: Replies, inputs: &Inputs, proxy: &Proxy, client: &Client) {
        match self.machine.resume(replies, inputs) {
            Step::Done(outcome) => {
                self.outcome = Some(outcome);
                let unfinished = self.machine.unfinished();
                if !unfinished.is_empty() {
                    proxy.complete_later(&self.key, unfinished);
                }
            }
            Step::Send(commands) => self.send(commands, proxy, client),
            Step::SendCopies(commands) => {
                let send = |(side, command)| self.send_to_copy(side, command, proxy, client);
                self.sent = commands.into_iter().map(send).collect();
            }
        }
    }

    fn send_to_copy(&self, side: Side, command: Command, proxy: &Proxy, client: &Client) -> Sent {
        let place = self.place(Some(side));
        let pool = proxy.structure(&self.key).pool;
        let key = place.and_then(|place| copy_key(&command.key, side, place.fence?).ok());
        let (Some(at), Some(key)) = (place.filter(|at| is_valid(proxy, pool, at)), key) else {
            return Sent { expected: Expected::of(&command.operation), id: None, side: Some(side) };
        };
        let command = Command { key, ..command };
        let (expected, id) = send(&command, &proxy.pools[pool].connections()[at.server], client);
        Sent { expected, id: Some(id), side: Some(side) }
    }

    /// Where this copy is.
    fn place(&self, side: Option<Side>) -> Option<Place> {
        let places = self.places.as_deref()?;
        Some(places[usize::from(side? == Side::Second)])
    }

    /// Runs as far as the replies that have arrived allow. Whether it is done.
    pub(crate) fn poll(&mut self, proxy: &Proxy, client: &Client) -> bool {
        while self.outcome.is_none() {
            if !self.sent.iter().filter_map(|sent| sent.id).all(|id| client.pending.has_arrived(id)) {
                return false;
            }
            let pool = proxy.structure(&self.key).pool;
            let take = |sent: &Sent| match sent.id.and_then(|id| client.pending.take(id)) {
                // What was done in a place that has ended is not known by whoever uses the new one.
                Some(_) if self.place(sent.side).is_some_and(|place| !is_valid(proxy, pool, &place)) => {
                    Reply::Failed(Failure::Down)
                }
                Some(reply) => {
                    let reply = kind_wire::decode(sent.expected, reply);
                    if reply == Reply::Failed(Failure::NoMemory) {
                        let server = self.place(sent.side).map_or(self.key.server, |place| place.server);
                        proxy.pools[pool].connections()[server].server().note_full();
                    }
                    reply
                }
                None => Reply::Failed(Failure::Down),
            };
            let replies = self.sent.iter().map(take).collect();
            self.sent.clear();
            self.resume(replies, &proxy.kind_inputs(), proxy, client);
        }
        true
    }

    /// The key that the client sent.
    pub(crate) fn key(&self) -> &StructureKey {
        &self.key
    }

    /// The outcome, once it is done.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }
}

/// Sends a command over this connection.
fn send(command: &Command, connection: &Connection, client: &Client) -> (Expected, ReplyId) {
    let (expected, epoch) = (Expected::of(&command.operation), command.operation.epoch());
    let encode = |out: &mut _| kind_wire::encode(command, out);
    (expected, connection.send_guard_shaped(&client.pending, expected.shape(), epoch, encode))
}

fn is_valid(proxy: &Proxy, pool: usize, place: &Place) -> bool {
    proxy.standing(pool, place) == Standing::Valid
}

impl Proxy {
    /// What applies to the keys of this structure's rule.
    pub(crate) fn structure(&self, key: &StructureKey) -> &StructurePlan {
        &self.plan.structures[key.structure]
    }

    /// The same key for a command with a value.
    pub(crate) fn structure_key_to_store(&self, key: StructureKey) -> StructureKey {
        let StructurePlan { kind, pool, .. } = self.structure(&key);
        match kinds::split_store(kind, key.length, &key.key) {
            length if length == key.length => key,
            length => {
                let server = self.pools[*pool].server_index(&key.key[..length]);
                StructureKey { server, length, ..key }
            }
        }
    }

    /// The element of a table that has this key, if one has.
    pub(crate) fn element(&self, key: &[u8]) -> Option<StructureKey> {
        if !self.plan.has_tables {
            return None;
        }
        let rule = self.plan.rules.find(key, &mut Captures::default())?;
        let structure = self.plan.rule_plans[rule].structure?;
        let StructurePlan { kind: kind @ Kind::Table(_), prefix, pool, .. } =
            &self.plan.structures[structure]
        else {
            return None;
        };
        let length = kinds::split(kind, *prefix, key);
        let server = self.pools[*pool].server_index(&key[..length]);
        (length < key.len()).then(|| StructureKey {
            structure,
            server,
            key: SmallVec::from_slice(key),
            length,
        })
    }

    /// The hash that stands for the table of an element in what a command accesses.
    pub(crate) fn element_access_hash(&self, key: &[u8]) -> Option<u64> {
        self.element(key).and_then(|element| self.structure_access_hash(&element))
    }

    fn kind_inputs(&self) -> Inputs {
        Inputs { now: self.clock.now_ms(), random: self.random.borrow_mut().any() }
    }

    /// The connection to the server of a structure.
    pub(crate) fn structure_connection(&self, key: &StructureKey) -> &Rc<Connection> {
        &self.pools[self.structure(key).pool].connections()[key.server]
    }

    /// The servers that have the lock with this key.
    pub(crate) fn lock_servers(&self, key: &StructureKey) -> LockServers {
        let StructurePlan { kind, pool, .. } = self.structure(key);
        let two = kind.is_copied().then(|| CopyServers::new(self, *pool, key.own_key())).flatten();
        match two {
            Some(servers) => LockServers::Two(Box::new(servers)),
            None => LockServers::One(Rc::clone(self.structure_connection(key))),
        }
    }

    /// What a command on this key accesses. Commands of one round trip with one command to the server are in order by themselves.
    pub(crate) fn structure_access(&self, key: &StructureKey, write: bool) -> AccessSet {
        AccessSet::of(self.structure_access_hash(key), write)
    }

    /// The hash that stands for the key in what a command accesses.
    pub(crate) fn structure_access_hash(&self, key: &StructureKey) -> Option<u64> {
        (!self.structure(key).kind.is_one_command()).then(|| self.hash(key.own_key()))
    }
}
