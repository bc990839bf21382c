//! The processes, the servers, and what is on the wire between them, in simulated time.

use std::collections::HashMap;

use kennel::failover::{self, Agreement, Moment, Reply, Timing, Wish};
use kennel::random::Random;

use super::mutants::Mutant;
use super::operation::{self, Op};
use super::server::{Action, Answer, Content, Key, Server};

/// What a seed draws.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub mutant: Option<Mutant>,
    processes: usize,
    /// The window of each process, in ms.
    windows: Vec<u32>,
    steps: u32,
    /// The key is on a server that never fails; only its tag is not.
    pub apart: bool,
    /// One in so many messages is slow.
    slow: u64,
    /// One in so many steps has a fault.
    fault: u64,
    /// The faults that happen.
    kinds: Vec<Fault>,
    /// Only the server hangs, and only its witnesses have the other faults.
    evicts_witnesses: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A server dies; it comes back empty.
    Kill,
    /// A server stops, and goes on later with what it has and what it was sent.
    Hang,
    /// A process cannot reach a server.
    Cut,
    /// A server is flushed, or all are.
    Flush,
    /// A record is evicted.
    Evict,
    /// A record is evicted at once and several times more. Only in plans of its own.
    EvictOften,
    /// A process starts anew.
    Restart,
    /// A process stands still.
    Pause,
    /// A connection is made anew while the former one is still read by the server.
    Reconnect,
    /// A process is asked to drain the server, or to let its keys return. Only in plans of its own.
    Wish,
}

const FAULTS: [Fault; 8] = [
    Fault::Kill,
    Fault::Hang,
    Fault::Cut,
    Fault::Flush,
    Fault::Evict,
    Fault::Restart,
    Fault::Pause,
    Fault::Reconnect,
];

impl Plan {
    pub fn drawn(seed: u64, mutant: Option<Mutant>) -> Plan {
        let mut random = Random::seeded(seed);
        let processes = 2 + random.below(2) as usize;
        let window = |random: &mut Random| [400, 1000][random.below(2) as usize];
        let one = window(&mut random);
        let differ = random.below(4) == 0;
        let windows = (0..processes).map(|_| if differ { window(&mut random) } else { one }).collect();
        let kinds: Vec<_> = FAULTS.into_iter().filter(|_| random.below(3) > 0).collect();
        let steps = 800 + random.below(800) as u32;
        let (slow, fault) = (5 + random.below(60), 10 + random.below(60));
        let apart = random.below(4) == 0;
        let plan = Plan {
            seed,
            mutant,
            processes,
            windows,
            steps,
            apart,
            slow,
            fault,
            kinds,
            evicts_witnesses: false,
        };
        // What the mutants break is on the server whose place is agreed on.
        Plan { apart: plan.apart && mutant.is_none(), ..plan }
    }

    /// The server hangs, and the witnesses lose their records again and again while they are cut off from single processes.
    pub fn with_evictions(self) -> Plan {
        let windows = vec![400; self.processes];
        let kinds =
            [Fault::Hang, Fault::Hang, Fault::Cut, Fault::EvictOften, Fault::EvictOften, Fault::EvictOften];
        let kinds = kinds.to_vec();
        Plan { windows, fault: 25, evicts_witnesses: true, kinds, ..self }
    }
}

impl Plan {
    /// The server is drained and returns again and again.
    pub fn with_drains(mut self) -> Plan {
        self.kinds.extend([Fault::Wish; 6]);
        Plan { fault: self.fault.min(40), ..self }
    }
}

/// How often what is to be tested has happened.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub fresh: u64,
    pub fills: u64,
    pub acknowledged: u64,
    pub moves: u64,
    pub returns: u64,
    pub on_standby: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.fresh += other.fresh;
        self.fills += other.fills;
        self.acknowledged += other.acknowledged;
        self.moves += other.moves;
        self.returns += other.returns;
        self.on_standby += other.on_standby;
    }

    pub fn check(&self) {
        let all = [self.fresh, self.fills, self.acknowledged, self.moves, self.returns, self.on_standby];
        assert!(all.iter().all(|count| *count > 100), "too little has happened: {self:?}");
    }
}

pub struct Process {
    pub agreement: Agreement,
    life: u64,
    /// It does nothing until then.
    paused_until: u64,
    /// The number of connections made to each server.
    epochs: [u32; 4],
    connected: [bool; 4],
    round: Option<Round>,
    place: Option<(u64, bool)>,
}

struct Round {
    id: u64,
    replies: Vec<Option<Reply>>,
    /// What its reads have found; empty if these are the reads.
    found: Vec<Reply>,
    deadline: u64,
}

struct Request {
    process: usize,
    life: u64,
    op: Op,
    answers: Vec<Option<Option<Answer>>>,
    deadline: u64,
}

struct Message {
    process: usize,
    life: u64,
    server: usize,
    epoch: u32,
    id: u64,
    slot: usize,
    at: u64,
    what: What,
}

enum What {
    Command(Key, Action),
    Answer(Option<Answer>, bool),
}

pub struct World {
    pub plan: Plan,
    pub now: u64,
    pub processes: Vec<Process>,
    /// The version of the source.
    pub source: u64,
    /// The latest version whose invalidation was acknowledged.
    pub acknowledged: u64,
    /// The number of tag versions drawn.
    pub tags: u64,
    pub seen: Seen,
    pub trace: bool,
    servers: [Server; 4],
    messages: Vec<Message>,
    requests: HashMap<u64, Request>,
    ids: u64,
    /// The arrival of the last command on each connection.
    last: HashMap<(usize, usize, u32), u64>,
    cut: HashMap<(usize, usize), u64>,
    /// Until when each server loses its record again and again.
    evicted_until: [u64; 4],
    random: Random,
}

impl World {
    pub fn new(plan: Plan) -> World {
        let processes =
            (0..plan.processes).map(|at| process_at(timing(plan.windows[at]), 1000 * at as u64)).collect();
        World {
            now: 10_000,
            processes,
            source: 1,
            acknowledged: 0,
            tags: 0,
            seen: Seen::default(),
            trace: false,
            servers: std::array::from_fn(|_| Server::started()),
            messages: Vec::new(),
            requests: HashMap::new(),
            ids: 0,
            last: HashMap::new(),
            cut: HashMap::new(),
            evicted_until: [0; 4],
            random: Random::seeded(plan.seed ^ 0x5EED),
            plan,
        }
    }

    /// The monotonic clock of a process.
    pub fn time_of(&self, process: usize) -> u64 {
        self.now + 1000 * process as u64
    }

    pub fn build_time(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.below(3000),
            _ => self.random.below(100),
        }
    }

    /// Whether this defence is removed.
    pub fn is(&self, mutant: Mutant) -> bool {
        self.plan.mutant == Some(mutant)
    }

    fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>8} {}", self.now, text());
        }
    }

    pub fn run(&mut self) -> Result<(), String> {
        for _ in 0..self.plan.steps {
            self.now += 1 + self.random.below(40);
            self.evict_again();
            self.deliver();
            for at in 0..self.processes.len() {
                if self.processes[at].paused_until > self.now {
                    continue;
                }
                self.run_round(at);
                self.note_place(at);
                self.run_requests(at)?;
                if self.random.below(5) == 0 {
                    let dice = self.random.below(u64::MAX);
                    if let Some((op, commands)) = operation::begin(self, at, dice) {
                        self.request(at, op, commands);
                    }
                }
            }
            if self.random.below(self.plan.fault) == 0 && !self.plan.kinds.is_empty() {
                let kind = self.plan.kinds[self.random.below(self.plan.kinds.len() as u64) as usize];
                self.fault(kind);
            }
            self.recover();
        }
        Ok(())
    }

    fn evict_again(&mut self) {
        for (server, until) in self.evicted_until.into_iter().enumerate() {
            if until > self.now {
                self.servers[server].evict(Key::Place(failover::Item::Record));
            }
        }
    }

    fn note_place(&mut self, at: usize) {
        let view =
            self.processes[at].agreement.view(self.time_of(at)).map(|(view, _)| (view.fence, view.standby));
        let before = self.processes[at].place;
        if view.is_some() && view != before {
            self.log(|| format!("process {at} uses {view:?}"));
            match (before.is_some_and(|(_, standby)| standby), view.is_some_and(|(_, standby)| standby)) {
                (false, true) => self.seen.moves += 1,
                (true, false) => self.seen.returns += 1,
                _ => {}
            }
            self.processes[at].place = view;
        }
        self.seen.on_standby += u64::from(view.is_some_and(|(_, standby)| standby));
    }

    fn run_round(&mut self, at: usize) {
        let now = self.time_of(at);
        let moment = Moment { mono: now, wall: 1_000_000 + self.now + 77 * at as u64 };
        let Some(round) = &mut self.processes[at].round else {
            if now >= self.processes[at].agreement.due() {
                let commands = self.processes[at].agreement.begin(now);
                self.send_round(at, commands, Vec::new());
            }
            return;
        };
        if round.replies.iter().any(Option::is_none) && self.now < round.deadline {
            return;
        }
        let Some(round) = self.processes[at].round.take() else { return };
        let failed = || Reply::Failed { refused: false };
        let mut replies: Vec<Reply> =
            round.replies.into_iter().map(|reply| reply.unwrap_or_else(failed)).collect();
        let found = if round.found.is_empty() { replies[..3].to_vec() } else { round.found.clone() };
        if let (Some(mutant), true) = (self.plan.mutant, round.found.is_empty()) {
            mutant.replies(&mut replies);
        }
        let random = self.random.below(u64::MAX);
        let mut commands = self.processes[at].agreement.resume(&replies, moment, random);
        if let Some(mutant) = self.plan.mutant {
            mutant.commands(&mut commands, &found);
        }
        if !commands.is_empty() {
            self.send_round(at, commands, found);
        }
    }

    fn send_round(&mut self, at: usize, commands: Vec<failover::Command>, found: Vec<Reply>) {
        self.ids += 1;
        let id = self.ids;
        let window = u64::from(self.plan.windows[at]);
        let deadline = self.now + window / 4;
        let replies = commands.iter().map(|_| None).collect();
        self.processes[at].round = Some(Round { id, replies, found, deadline });
        for (slot, command) in commands.into_iter().enumerate() {
            let key = Key::Place(command.item);
            let bytes = Content::Bytes;
            let (action, epoch) = match command.operation {
                failover::Operation::Read => (Action::Get { stub: false }, None),
                failover::Operation::ReadOrStub(_) => (Action::Get { stub: true }, None),
                failover::Operation::Set(value, seconds) => {
                    (Action::Store { content: bytes(value), cas: None, seconds }, None)
                }
                failover::Operation::Replace(value, cas) => (
                    Action::Store { content: bytes(value), cas: Some(cas.number), seconds: 0 },
                    Some(cas.epoch),
                ),
            };
            self.send(at, command.copy, id, slot, key, action, epoch);
        }
    }

    fn request(&mut self, at: usize, op: Op, commands: Vec<(usize, Key, Action)>) {
        self.ids += 1;
        let id = self.ids;
        let answers = commands.iter().map(|_| None).collect();
        let life = self.processes[at].life;
        let deadline = match op {
            Op::Build { until, .. } => until,
            _ => self.now + 300,
        };
        self.requests.insert(id, Request { process: at, life, op, answers, deadline });
        for (slot, (server, key, action)) in commands.into_iter().enumerate() {
            self.send(at, server, id, slot, key, action, None);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "a message has as many parts")]
    fn send(
        &mut self,
        at: usize,
        server: usize,
        id: u64,
        slot: usize,
        key: Key,
        action: Action,
        epoch: Option<u32>,
    ) {
        let delay = self.delay();
        let process = &mut self.processes[at];
        let life = process.life;
        if !process.connected[server] && self.servers[server].up {
            process.connected[server] = true;
            process.epochs[server] += 1;
        }
        let current = process.epochs[server];
        let answer = |what| Message { process: at, life, server, epoch: current, id, slot, at: 0, what };
        if !process.connected[server] {
            let refused = What::Answer(None, true);
            let at = self.now + 1;
            return self.messages.push(Message { at, ..answer(refused) });
        }
        if epoch.is_some_and(|epoch| current > epoch) {
            let at = self.now + 1;
            return self.messages.push(Message { at, ..answer(What::Answer(Some(Answer::Conflict), false)) });
        }
        let last = self.last.entry((at, server, current)).or_default();
        *last = (*last).max(self.now + delay);
        let arrives = *last;
        self.messages.push(Message { at: arrives, ..answer(What::Command(key, action)) });
    }

    fn delay(&mut self) -> u64 {
        match self.random.below(self.plan.slow) {
            0 => self.random.below(2500),
            _ => self.random.below(30),
        }
    }

    fn deliver(&mut self) {
        let (now, cut, servers) = (self.now, &self.cut, &self.servers);
        let is_due = |message: &mut Message| {
            let is_cut = cut.get(&(message.process, message.server)).is_some_and(|until| *until > now);
            let hung = servers[message.server].hung && matches!(message.what, What::Command(..));
            message.at <= now && !is_cut && !hung
        };
        let mut due: Vec<Message> = self.messages.extract_if(.., is_due).collect();
        // Those of one connection have ascending times, and are in the order in which they were sent.
        due.sort_by_key(|message| message.at);
        for message in due {
            match message.what {
                What::Command(key, action) => {
                    let server = &mut self.servers[message.server];
                    if !server.up {
                        continue;
                    }
                    let text = if self.trace { format!("{action:?}") } else { String::new() };
                    let answer = server.execute(key, action, now);
                    let Message { process, server, .. } = message;
                    self.log(|| format!("{process} -> {server} {key:?} {text}: {answer:?}"));
                    let at = now + self.delay();
                    self.messages.push(Message { at, what: What::Answer(Some(answer), false), ..message });
                }
                What::Answer(answer, refused) => {
                    let Message { process, life, epoch, id, slot, server, .. } = message;
                    let stale = epoch < self.processes[process].epochs[server];
                    if self.processes[process].life == life {
                        self.receive((process, id, slot), epoch, stale, answer, refused);
                    }
                }
            }
        }
    }

    fn receive(
        &mut self,
        (process, id, slot): (usize, u64, usize),
        epoch: u32,
        stale: bool,
        answer: Option<Answer>,
        refused: bool,
    ) {
        if let Some(request) = self.requests.get_mut(&id) {
            // A CAS of an earlier connection is not compared over a later one: the request is given up.
            request.answers[slot] = Some(answer.filter(|_| !stale));
            return;
        }
        let Some(round) = self.processes[process].round.as_mut().filter(|round| round.id == id) else {
            return;
        };
        round.replies[slot] = Some(match answer {
            Some(Answer::Found(Content::Bytes(value), number)) => {
                Reply::Found(value, failover::Cas { number, epoch })
            }
            Some(Answer::Found(..) | Answer::Done) => Reply::Failed { refused: false },
            Some(Answer::Absent) => Reply::Absent,
            Some(Answer::Stored) => Reply::Stored,
            Some(Answer::Conflict) => Reply::Conflict,
            None => Reply::Failed { refused },
        });
    }

    fn run_requests(&mut self, at: usize) -> Result<(), String> {
        let (now, life) = (self.now, self.processes[at].life);
        let ready = |request: &Request| {
            let building = matches!(request.op, Op::Build { .. });
            let answered = !building && request.answers.iter().all(Option::is_some);
            request.process == at && (answered || now >= request.deadline)
        };
        let mut ids: Vec<u64> =
            self.requests.iter().filter(|(_, request)| ready(request)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            let Some(request) = self.requests.remove(&id) else { continue };
            if request.life != life {
                continue;
            }
            let answers: Vec<_> = request.answers.into_iter().map(Option::flatten).collect();
            if let Some((op, commands)) = operation::resume(self, at, request.op, &answers)? {
                // A fill is sent only over the connection that read its CAS; this world's requests do not outlive one.
                self.request(at, op, commands);
            }
        }
        Ok(())
    }

    fn fault(&mut self, kind: Fault) {
        // The server whose place is agreed on fails more often than its witnesses.
        let server = match (self.plan.evicts_witnesses, kind) {
            (false, _) => [0, 0, 0, 1, 2][self.random.below(5) as usize],
            (true, Fault::Hang) => 0,
            (true, _) => 1 + self.random.below(2) as usize,
        };
        let process = self.random.below(self.processes.len() as u64) as usize;
        self.log(|| format!("{kind:?} of server {server}, process {process}"));
        match kind {
            Fault::Kill => {
                let next = self.servers[server].up;
                self.servers[server] = if next { Server::default() } else { Server::started() };
                self.messages
                    .retain(|message| message.server != server || matches!(message.what, What::Answer(..)));
                self.processes.iter_mut().for_each(|process| process.connected[server] = false);
                self.requests.retain(|_, request| !uses_cas(&request.op));
            }
            Fault::Hang => {
                self.servers[server].hung = self.plan.evicts_witnesses || !self.servers[server].hung
            }
            Fault::Cut => {
                let until = self.now + self.random.below(8000);
                self.cut.insert((process, server), until);
            }
            Fault::Flush => match self.random.below(2) {
                0 => self.servers[server].flush(),
                _ => self.servers[..3].iter_mut().for_each(Server::flush),
            },
            Fault::Evict => self.servers[server].evict(Key::Place(failover::Item::Record)),
            Fault::EvictOften => self.evicted_until[server] = self.now + self.random.below(200),
            Fault::Restart => {
                let life = self.processes[process].life + 1;
                let epochs = self.processes[process].epochs;
                let now = self.time_of(process);
                let timing = timing(self.plan.windows[process]);
                self.processes[process] = Process { life, epochs, ..process_at(timing, now) };
            }
            Fault::Pause => self.processes[process].paused_until = self.now + self.random.below(3000),
            Fault::Wish => {
                let wish = [Some(Wish::Drain), Some(Wish::Return), None][self.random.below(3) as usize];
                self.processes[process].agreement.wish(wish);
            }
            Fault::Reconnect => {
                self.processes[process].connected[server] = false;
                self.requests.retain(|_, request| request.process != process || !uses_cas(&request.op));
            }
        }
    }

    /// Faults end after a while.
    fn recover(&mut self) {
        for server in &mut self.servers {
            if server.hung && self.random.below(120) == 0 {
                server.hung = false;
            }
            if !server.up && self.random.below(120) == 0 {
                *server = Server::started();
            }
        }
    }
}

fn uses_cas(op: &Op) -> bool {
    matches!(op, Op::Build { .. } | Op::Create { .. } | Op::Bump { .. })
}

fn timing(window: u32) -> Timing {
    Timing { window, moving: window / 4, fail_after: 800, recover_after: 1500, recover_at_most: 3000 }
}

fn process_at(timing: Timing, now: u64) -> Process {
    Process {
        agreement: Agreement::new(timing, now),
        life: 0,
        paused_until: 0,
        epochs: [0; 4],
        connected: [false; 4],
        round: None,
        place: None,
    }
}
