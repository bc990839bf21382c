//! All orders in which the servers may carry out the commands of a few clients: a small schedule is explored to its end.
//!
//! A server carries out the commands of one round trip in the order in which they were sent, and those of different clients in any
//! order. Once in a schedule, one thing goes wrong: a copy or an item is lost, or a client gives up, and what it has sent is carried
//! out up to some place. Each order is a run from the start, which the choices at its branches determine.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use kennel::embedded::Store;
use kennel::error::Failure;
use kennel::kinds::{
    self, Command, Inputs, ItemKey, Kind, Machine, Memory, Mode, Operation, Outcome, Replies, Reply, Request,
    Side, Step, copy_key, note,
};
use kennel::proxy::kind_wire::{self, Expected};
use kennel::upstream::pending_replies::Reply as ServerReply;

use super::mutants::Mutant;
use super::server;

/// The time of all that happens, in Unix ms.
const NOW: u64 = 1_700_000_000_000;
/// The number of a reply that no machine waits for.
const NO_REPLY: usize = usize::MAX;

/// A client's command: its key, how much of that is the structure's own, and the request. A key that ends with `@*` ends with the
/// cursor that the client received last.
#[derive(Clone, Copy)]
pub struct Ask {
    pub key: &'static str,
    pub own: usize,
    pub request: Request<'static>,
}

/// What is wrong with the outcomes of each client's commands and with those of the reads behind them. True: a server has evicted
/// what it had.
pub type Check = dyn Fn(&[Vec<Outcome>], &[Outcome], bool) -> Option<String>;

/// What is explored.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub kind: &'a Kind,
    /// Carried out before everything else, one after the other.
    pub before: &'a [Ask],
    /// The commands of each client, one after the other.
    pub clients: &'a [&'a [Ask]],
    /// Whether something goes wrong once in a schedule.
    pub fails: bool,
    pub mutant: Option<Mutant>,
    pub check: &'a Check,
    /// Carried out when everything else has been, one after the other, with this server down. A cursor is that of the last client.
    pub reads: &'a [(Ask, Option<usize>)],
}

/// The choices at the branches of a run.
#[derive(Default)]
struct Choices {
    /// Of each branch: which way, and how many there are.
    made: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, ways: usize) -> usize {
        if self.at == self.made.len() {
            self.made.push((0, ways));
        }
        let (way, of) = self.made[self.at];
        assert_eq!(of, ways, "a run is not determined by its choices");
        self.at += 1;
        way
    }

    /// Whether the branch that comes next has not been met by an earlier run.
    fn is_new(&self) -> bool {
        self.at == self.made.len()
    }

    /// Prepares the next run. False: there is none.
    fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((way, ways)) = self.made.pop() {
            if way + 1 < ways {
                self.made.push((way + 1, ways));
                return true;
            }
        }
        false
    }
}

/// Which of the servers: those of the two copies, and the one of everything else.
fn server_of(side: Option<Side>) -> usize {
    match side {
        None | Some(Side::First) => 0,
        Some(Side::Second) => 1,
    }
}

struct Client {
    machine: Option<Box<dyn Machine>>,
    key: String,
    /// What it has sent and has not been carried out, of each server, with the number of the reply.
    sent: [VecDeque<(usize, Command)>; 2],
    replies: Vec<Option<Reply>>,
    outcomes: Vec<Outcome>,
    /// It does not wait for replies any more.
    has_left: bool,
    random: u64,
}

/// A client's own command on an element of a table, which is not a store.
#[derive(Debug)]
struct OnElement(ItemKey, Operation);

impl Machine for OnElement {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        match &replies[..] {
            [] => Step::Send(vec![Command { key: self.0.clone(), operation: self.1.clone() }]),
            [Reply::Item(item)] => {
                Step::Done(Outcome::Value { data: item.data.clone(), flags: 0, cas: 0, ttl: None })
            }
            [Reply::Done] => Step::Done(Outcome::Deleted),
            _ => Step::Done(Outcome::Miss),
        }
    }
}

/// The cursor in the last answer; that of the beginning if there is none.
fn cursor(outcomes: &[Outcome]) -> String {
    let answers = outcomes.iter().rev().filter_map(|outcome| match outcome {
        Outcome::Value { data, .. } => str::from_utf8(data).ok(),
        _ => None,
    });
    answers.filter_map(|text| text.lines().next()).next().unwrap_or("0").to_owned()
}

/// One run.
struct Run {
    stores: [Store; 2],
    clients: Vec<Client>,
    memory: Memory,
    mutant: Option<Mutant>,
    keys: BTreeSet<(usize, ItemKey)>,
    is_lost: bool,
}

impl Run {
    fn new(clients: usize, mutant: Option<Mutant>) -> Run {
        let client = |at| Client {
            machine: None,
            key: String::new(),
            sent: Default::default(),
            replies: Vec::new(),
            outcomes: Vec::new(),
            has_left: false,
            random: 1_000 * (at as u64 + 1),
        };
        Run {
            stores: [Store::new(8 << 20, NOW), Store::new(8 << 20, NOW)],
            clients: (0..clients).map(client).collect(),
            memory: Memory::default(),
            mutant,
            keys: BTreeSet::new(),
            is_lost: false,
        }
    }

    /// The client sends the first commands of its next one.
    fn begin(&mut self, at: usize, kind: &Kind, ask: &Ask) {
        let client = &mut self.clients[at];
        client.key = match ask.key.strip_suffix('*') {
            Some(key) => format!("{key}{}", cursor(&client.outcomes)),
            None => ask.key.to_owned(),
        };
        let (key, length, memory) = (client.key.as_bytes(), ask.own, &self.memory);
        let is_element = matches!(kind, Kind::Table(_)) && key.len() > length;
        let element = || key.iter().copied().collect();
        let machine: Box<dyn Machine> = match ask.request {
            Request::Delete if is_element => Box::new(OnElement(element(), Operation::Delete { cas: None })),
            Request::Get if is_element => Box::new(OnElement(element(), Operation::Get)),
            Request::Store { .. } if is_element => note(key, length).expect("it is valid"),
            request => kinds::begin(kind, key, length, request, memory, NOW).expect("it is valid"),
        };
        client.machine = Some(machine);
        self.resume(at, Replies::new());
        if let (true, Request::Store { data, .. }) = (is_element, ask.request) {
            let client = &mut self.clients[at];
            let value = Bytes::from_static(data);
            let operation = Operation::Store { mode: Mode::Set, value, flags: 0, exptime: 0, cas: None };
            let element = Command { key: client.key.bytes().collect(), operation };
            self.keys.insert((0, element.key.clone()));
            // Before the last command of the first round trip.
            let last = client.sent[0].len() - 1;
            client.sent[0].insert(last, (NO_REPLY, element));
        }
    }

    fn resume(&mut self, at: usize, replies: Replies) {
        let client = &mut self.clients[at];
        client.random += 1;
        let inputs = Inputs { now: NOW, random: client.random };
        let machine = client.machine.as_mut().expect("it has begun");
        let commands: Vec<(Option<Side>, Command)> = match machine.resume(replies, &inputs) {
            Step::Done(outcome) => {
                client.machine = None;
                return client.outcomes.push(outcome);
            }
            Step::Send(commands) => commands.into_iter().map(|command| (None, command)).collect(),
            Step::SendCopies(commands) => {
                commands.into_iter().map(|(side, command)| (Some(side), command)).collect()
            }
        };
        client.replies = vec![None; commands.len()];
        for (number, (side, mut command)) in commands.into_iter().enumerate() {
            match (self.mutant, side) {
                (Some(mutant), None) => mutant.change(&mut command),
                (Some(mutant), Some(side)) => mutant.change_copy(server_of(Some(side)), &mut command),
                (None, _) => {}
            }
            if let Some(side) = side {
                command.key = copy_key(client.key.as_bytes(), side, 1).expect("it is short");
            }
            let server = server_of(side);
            if !command.key.is_empty() {
                self.keys.insert((server, command.key.clone()));
            }
            client.sent[server].push_back((number, command));
        }
    }

    /// A server carries out the next command that the client has sent it.
    fn carry_out(&mut self, at: usize, server: usize) {
        let client = &mut self.clients[at];
        let (number, command) = client.sent[server].pop_front().expect("there is one");
        let bytes = server::execute(&mut self.stores[server], &command, NOW);
        if client.has_left {
            return;
        }
        if number == NO_REPLY {
            return;
        }
        let reply = ServerReply::Answered { bytes, epoch: 1 };
        self.answer(at, number, kind_wire::decode(Expected::of(&command.operation), reply));
    }

    fn answer(&mut self, at: usize, number: usize, reply: Reply) {
        let client = &mut self.clients[at];
        client.replies[number] = Some(reply);
        if client.replies.iter().all(Option::is_some) {
            let replies = client.replies.drain(..).flatten().collect();
            self.resume(at, replies);
        }
    }

    /// What the rest of the run depends on.
    fn state(&mut self, has_failed: bool) -> u64 {
        let mut hasher = DefaultHasher::new();
        has_failed.hash(&mut hasher);
        for (server, key) in &self.keys {
            let line = [b"mg ", &key[..], b" v c t f\r\n"].concat();
            (server, key).hash(&mut hasher);
            server::run(&mut self.stores[*server], &line, NOW).hash(&mut hasher);
        }
        for client in &self.clients {
            let Client { machine, sent, replies, outcomes, has_left, random, .. } = client;
            format!("{machine:?} {sent:?} {replies:?} {outcomes:?} {has_left} {random}").hash(&mut hasher);
        }
        format!("{:?}", self.memory).hash(&mut hasher);
        hasher.finish()
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy)]
enum Fault {
    /// A server evicts all that it has.
    Lose(usize),
    /// The client's replies do not arrive; what it has sent may be carried out all the same.
    Leave(usize),
}

/// Explores all orders. Returns how many runs there were, and how many of them came to an end of their own; or what is wrong with the
/// first that breaks a promise.
pub fn explore(case: &Case<'_>) -> Result<(u64, u64), String> {
    let (mut choices, mut seen, mut runs, mut ends) = (Choices::default(), HashSet::new(), 0, 0);
    loop {
        runs += 1;
        ends += u64::from(run(case, &mut choices, &mut seen)?);
        if !choices.next() {
            return Ok((runs, ends));
        }
    }
}

/// Carries out one command alone, while a server may be down. `outcomes`: what its client has received before.
fn alone(run: &mut Run, kind: &Kind, (ask, down): (&Ask, Option<usize>), outcomes: &[Outcome]) -> Outcome {
    let mut other = Run::new(1, None);
    std::mem::swap(&mut run.stores, &mut other.stores);
    other.clients[0].random = 900_000 + run.keys.len() as u64;
    other.clients[0].outcomes = outcomes.to_vec();
    other.begin(0, kind, ask);
    while other.clients[0].machine.is_some() {
        let server = (0..2).find(|server| !other.clients[0].sent[*server].is_empty()).expect("it waits");
        if down == Some(server) {
            let (number, _) = other.clients[0].sent[server].pop_front().expect("there is one");
            other.answer(0, number, Reply::Failed(Failure::Down));
        } else {
            other.carry_out(0, server);
        }
    }
    std::mem::swap(&mut run.stores, &mut other.stores);
    run.keys.append(&mut other.keys);
    other.clients[0].outcomes.pop().expect("it is done")
}

/// One run. False: it came to where another one has been.
fn run(case: &Case<'_>, choices: &mut Choices, seen: &mut HashSet<u64>) -> Result<bool, String> {
    let mut run = Run::new(case.clients.len(), case.mutant);
    for ask in case.before {
        alone(&mut run, case.kind, (ask, None), &[]);
    }
    let (mut begun, mut has_failed) = (vec![0; case.clients.len()], !case.fails);
    loop {
        for (at, asks) in case.clients.iter().enumerate() {
            let is_free = run.clients[at].machine.is_none() && !run.clients[at].has_left;
            if let (true, Some(ask)) = (is_free, asks.get(begun[at])) {
                begun[at] += 1;
                run.begin(at, case.kind, ask);
            }
        }
        let both = |at| [(at, 0), (at, 1)];
        let ready = (0..run.clients.len()).flat_map(both);
        let ready: Vec<(usize, usize)> =
            ready.filter(|(at, server)| !run.clients[*at].sent[*server].is_empty()).collect();
        let mut faults = Vec::new();
        if !has_failed {
            faults.extend((0..2).map(Fault::Lose));
            let waits = |at: &usize| run.clients[*at].machine.is_some();
            faults.extend((0..run.clients.len()).filter(waits).map(Fault::Leave));
        }
        let is_over = (0..run.clients.len()).all(|at| run.clients[at].machine.is_none());
        // Of one that has left, what was sent may never be carried out.
        if is_over && ready.is_empty() {
            break;
        }
        if choices.is_new() && !seen.insert(run.state(has_failed)) {
            return Ok(false);
        }
        let ways = ready.len() + faults.len() + usize::from(is_over);
        let way = choices.choose(ways);
        if let Some((at, server)) = ready.get(way) {
            run.carry_out(*at, *server);
            continue;
        }
        let Some(fault) = faults.get(way - ready.len()) else { break };
        has_failed = true;
        match fault {
            Fault::Lose(server) => {
                run.is_lost = true;
                for (_, key) in run.keys.iter().filter(|(of, _)| of == server) {
                    server::run(&mut run.stores[*server], &[b"md ", &key[..], b"\r\n"].concat(), NOW);
                }
            }
            Fault::Leave(at) => {
                let client = &mut run.clients[*at];
                client.has_left = true;
                client.machine = None;
                client.outcomes.push(Outcome::Failed(Failure::TimedOut));
            }
        }
    }
    let outcomes: Vec<Vec<Outcome>> = run.clients.iter().map(|client| client.outcomes.clone()).collect();
    let last = outcomes.last().cloned().unwrap_or_default();
    let reads: Vec<Outcome> =
        case.reads.iter().map(|(ask, down)| alone(&mut run, case.kind, (ask, *down), &last)).collect();
    match (case.check)(&outcomes, &reads, run.is_lost) {
        None => Ok(true),
        Some(why) => Err(format!("{why}: {outcomes:?}, then {reads:?}, in the order {:?}", choices.made)),
    }
}
