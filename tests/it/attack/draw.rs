//! Draws schedules from a seed.

use crate::linearizability::Response;

use super::run::{Rule, Setting};
use super::schedule::{Request, Schedule, Turn, Verb};

/// Commands on single keys; those that race are more frequent.
const VERBS: [Verb; 34] = [
    Verb::Get,
    Verb::Get,
    Verb::Get,
    Verb::Get,
    Verb::Get,
    Verb::Gets,
    Verb::Gets,
    Verb::Gat,
    Verb::Gats,
    Verb::MetaGet,
    Verb::MetaGetN,
    Verb::Set,
    Verb::Set,
    Verb::Set,
    Verb::Set,
    Verb::Add,
    Verb::Add,
    Verb::Add,
    Verb::Replace,
    Verb::Append,
    Verb::Prepend,
    Verb::Cas,
    Verb::Cas,
    Verb::Incr,
    Verb::Decr,
    Verb::Delete,
    Verb::Delete,
    Verb::Touch,
    Verb::MetaSet,
    Verb::MetaAdd,
    Verb::MetaCas,
    Verb::MetaIncr,
    Verb::MetaIncrN,
    Verb::MetaDelete,
];
/// Commands that end a miss.
const FILLS: [Verb; 6] = [Verb::Set, Verb::Set, Verb::Set, Verb::Add, Verb::MetaSet, Verb::MetaAdd];

/// The random generator of one seed.
pub(super) struct Draw {
    random: fastrand::Rng,
    rule: Rule,
    keys: usize,
    values: u64,
    /// It has just received a miss of this key.
    missed: Option<char>,
}

/// The setting in which a seed's schedule runs.
pub(super) fn setting(seed: u64) -> Setting {
    let mut random = fastrand::Rng::with_seed(seed);
    let rule = [Rule::Guarded, Rule::Tagged, Rule::Guarded, Rule::Tagged, Rule::Raw][random.usize(..5)];
    let pools = random.bool().then(|| random.usize(2..=4));
    Setting { rule, pools, sidecars: random.usize(1..=2), exact: false }
}

impl Draw {
    /// `stream` distinguishes the clients of one seed.
    pub(super) fn new(seed: u64, stream: u64, rule: Rule, keys: usize) -> Draw {
        let random = fastrand::Rng::with_seed(seed ^ (stream + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Draw { random, rule, keys, values: 1000 * stream, missed: None }
    }

    /// Who sends what, and in which order.
    pub(super) fn schedule(seed: u64) -> Schedule {
        let Setting { rule, pools, .. } = setting(seed);
        let keys = 1 + (seed % 3) as usize;
        let mut draw = Draw::new(seed, 0, rule, keys);
        let connections = draw.random.usize(4..=20);
        let clients = pools.unwrap_or(connections);
        // Some clients get and never set.
        let readers = draw.random.usize(0..=clients / 3);
        // What a client does after a miss.
        let mut fills: Vec<(usize, usize, char)> = Vec::new();
        let mut steps = Vec::new();
        for _ in 0..draw.random.usize(8..=36) {
            let many = [1, 1, 1, 1, 1, 1, 2, 2, 3, 4][draw.random.usize(..10)];
            let mut step: Vec<Turn> = Vec::new();
            for _ in 0..many {
                let fill = (draw.random.usize(..3) == 0 && !fills.is_empty())
                    .then(|| fills.swap_remove(draw.random.usize(..fills.len())));
                let client = fill.map_or_else(|| draw.random.usize(..clients), |(client, ..)| client);
                if step.iter().any(|turn| turn.connection % clients == client) {
                    continue;
                }
                let of = (client..connections).step_by(clients);
                // A client with a pool uses any of its connections.
                let at_random = draw.random.usize(..of.len());
                let connection = of.clone().nth(at_random).expect("each client has a connection");
                let turn = match fill {
                    Some((_, _, key)) => vec![draw.fill(key)],
                    None if client >= clients - readers => vec![draw.read()],
                    None => draw.turn(),
                };
                for key in turn.iter().filter(|request| is_read(request.verb)).flat_map(|read| &read.keys) {
                    if client < clients - readers && draw.random.bool() {
                        fills.push((client, connection, *key));
                    }
                }
                step.push(Turn { connection, requests: turn });
            }
            steps.push(step);
        }
        Schedule { steps }
    }

    /// What a connection sends in one piece.
    fn turn(&mut self) -> Vec<Request> {
        if self.random.usize(..40) == 0 {
            return vec![Request { verb: Verb::Reconnect, keys: Vec::new(), word: String::new() }];
        }
        let many = if self.random.usize(..8) == 0 { self.random.usize(2..=3) } else { 1 };
        (0..many).map(|_| self.request()).collect()
    }

    /// What a client sends after a miss: often a command that ends it.
    pub(super) fn next(&mut self) -> Request {
        match self.missed.take().filter(|_| self.random.bool()) {
            Some(key) => self.fill(key),
            None => self.request(),
        }
    }

    pub(super) fn note_response(&mut self, key: Option<char>, answer: &Response) {
        if *answer == Response::Miss {
            self.missed = key;
        }
    }

    /// A number below `n`.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.random.usize(..n)
    }

    /// Any command.
    fn request(&mut self) -> Request {
        let verb = match self.random.usize(..60) {
            // With tags, it removes tags and keys at different moments.
            0 | 1 if self.rule != Rule::Tagged => Verb::Flush,
            2 if self.rule == Rule::Tagged => Verb::Bump,
            3 => Verb::MetaReplace,
            4 => Verb::MetaAppend,
            5 => Verb::MetaPrepend,
            _ => VERBS[self.random.usize(..VERBS.len())],
        };
        // To memcached it is a way to store an empty value.
        let verb = if verb == Verb::MetaGetN && self.rule == Rule::Raw { Verb::MetaGet } else { verb };
        // It reads what a bump has left, which classic commands do not see (docs/commands.md).
        let verb = if verb == Verb::MetaCas && self.rule == Rule::Tagged { Verb::Cas } else { verb };
        let keys = match verb {
            Verb::Flush | Verb::Bump => Vec::new(),
            verb if is_classic_read(verb) && self.random.usize(..5) == 0 => self.several(),
            _ => vec![self.key()],
        };
        Request { verb, keys, word: self.word(verb) }
    }

    fn read(&mut self) -> Request {
        let verbs = [Verb::Get, Verb::Gets, Verb::Gat, Verb::MetaGet];
        Request { verb: verbs[self.random.usize(..4)], keys: vec![self.key()], word: String::new() }
    }

    fn fill(&mut self, key: char) -> Request {
        let verb = FILLS[self.random.usize(..FILLS.len())];
        Request { verb, keys: vec![key], word: self.word(verb) }
    }

    /// No key twice: one reply would stand for two.
    fn several(&mut self) -> Vec<char> {
        let mut keys: Vec<char> = ('a'..).take(self.keys).collect();
        self.random.shuffle(&mut keys);
        keys
    }

    fn key(&mut self) -> char {
        ('a'..).nth(self.random.usize(..self.keys)).expect("one of the first letters")
    }

    /// Numbers, so that they can be incremented; no two are equal, nor become equal by a few increments.
    fn word(&mut self, verb: Verb) -> String {
        let mut value = || {
            self.values += 1;
            self.values * 100
        };
        match verb {
            Verb::Set | Verb::Add | Verb::Replace | Verb::Cas | Verb::MetaIncrN => value().to_string(),
            Verb::MetaSet | Verb::MetaAdd | Verb::MetaReplace | Verb::MetaCas => value().to_string(),
            // No longer a number.
            Verb::Append | Verb::MetaAppend => format!("x{}", value()),
            Verb::Prepend | Verb::MetaPrepend => format!("{}y", value()),
            Verb::Incr | Verb::Decr | Verb::MetaIncr => self.random.usize(1..=3).to_string(),
            _ => String::new(),
        }
    }
}

fn is_read(verb: Verb) -> bool {
    is_classic_read(verb) || matches!(verb, Verb::MetaGet | Verb::MetaGetN)
}

fn is_classic_read(verb: Verb) -> bool {
    matches!(verb, Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats)
}
