//! Real servers, one or two sidecars, and one thread that sends and reads as scheduled.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use crate::client::Client;
use crate::linearizability::{Allowances, Invocation, Response, Verdict, check_key};
use crate::world::{Kennel, Memcached, addresses, clients_are, guarded, memcacheds, raw, sidecar_toml};

use super::schedule::{Schedule, Verb};

/// Longer than any run, so that every miss counts.
const MAX_REBUILD: u64 = 60_000_000_000;

/// The rule of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    Guarded,
    /// Guarded, with a tag.
    Tagged,
    /// The control: memcached without Kennel.
    Raw,
}

/// Where a schedule runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) rule: Rule,
    /// The number of clients with a pool each: connection n belongs to client n modulo this. `None`: each connection is a client.
    pub(super) pools: Option<usize>,
    pub(super) sidecars: usize,
    /// Nothing is allowed in addition to memcached.
    pub(super) exact: bool,
}

impl Setting {
    pub(super) const fn single(rule: Rule, sidecars: usize) -> Setting {
        Setting { rule, pools: None, sidecars, exact: false }
    }

    pub(super) fn allowances(&self) -> Allowances {
        match (self.rule, self.pools) {
            _ if self.exact => Allowances::NONE,
            (Rule::Raw, _) => Allowances::NONE,
            (_, None) => Allowances::SINGLE,
            (_, Some(_)) => Allowances::pooled(MAX_REBUILD),
        }
    }

    pub(super) fn client_of(&self, connection: usize) -> usize {
        self.pools.map_or(connection, |pools| connection % pools)
    }

    /// A client uses one sidecar.
    pub(super) fn sidecar_of(&self, connection: usize) -> usize {
        let first = if self.pools.is_some() { 2 } else { 0 };
        first + self.client_of(connection) % self.sidecars
    }
}

/// The operations of each key of one run.
#[derive(Debug, Default)]
pub(super) struct Histories(pub(super) BTreeMap<char, Vec<Invocation>>);

impl Histories {
    /// The first key with an illegal history, and why. Returns how many are undecided.
    pub(super) fn check(&self, allowances: &Allowances) -> Result<usize, String> {
        let mut undecided = 0;
        for (key, history) in &self.0 {
            let verdict = check_key(history, allowances).map_err(|why| format!("key {key}: {why}"))?;
            undecided += usize::from(verdict == Verdict::Undecided);
        }
        Ok(undecided)
    }
}

pub(super) struct World {
    _servers: Vec<Memcached>,
    pub(super) sidecars: Vec<Kennel>,
    /// By the setting's number of pools and the connection: the open connections.
    connections: HashMap<(usize, usize), Client>,
    runs: usize,
}

impl World {
    pub(super) fn start() -> World {
        let servers = memcacheds(2);
        let rules = [
            guarded("guarded", "g:*", "cold_wait = \"2ms\"\n"),
            guarded("tagged", "t:{run}:*", "cold_wait = \"2ms\"\ntags = [\"t:{run}\"]\non_tag = \"drop\"\n"),
            raw("raw", "r:*"),
        ];
        let toml = sidecar_toml(&addresses(&servers), &rules);
        // Two without a declaration of how clients use connections, and two for clients with pools.
        let of = |clients| clients_are(clients, &toml);
        let sidecars = ["auto", "auto", "pooled", "pooled"].map(|clients| Kennel::start(&of(clients)));
        let sidecars = sidecars.into_iter().collect();
        World { _servers: servers, sidecars, connections: HashMap::new(), runs: 0 }
    }

    /// New keys for every run.
    pub(super) fn new_keys(&mut self, rule: Rule) -> Keys {
        self.runs += 1;
        Keys { rule, run: self.runs }
    }

    pub(super) fn address(&self, sidecar: usize) -> SocketAddr {
        self.sidecars[sidecar].address()
    }

    /// Sends and reads as scheduled, on keys of its own. Returns what is wrong with the histories.
    pub(super) fn run(&mut self, schedule: &Schedule, setting: Setting) -> Result<usize, String> {
        let histories = self.record(schedule, setting);
        histories.check(&setting.allowances())
    }

    fn record(&mut self, schedule: &Schedule, setting: Setting) -> Histories {
        let keys = self.new_keys(setting.rule);
        let mut histories = Histories::default();
        let mut shown: HashMap<(usize, char), u64> = HashMap::new();
        // The number of each connection in the histories. A connection that was replaced has a new number.
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        let (mut now, mut made_anew) = (0, 0);
        for step in &schedule.steps {
            let mut sent = Vec::new();
            for turn in step {
                let (of, sidecar) = (self.address(setting.sidecar_of(turn.connection)), setting.sidecars);
                let place = (10 * sidecar + setting.pools.unwrap_or(0), turn.connection);
                if turn.requests.iter().any(|request| request.verb == Verb::Reconnect) {
                    self.connections.remove(&place);
                    made_anew += 1;
                    numbers.insert(turn.connection, 100 * made_anew + turn.connection);
                    continue;
                }
                let client = setting.client_of(turn.connection);
                now += 1;
                let connection = self.connections.entry(place).or_insert_with(|| Client::tcp(of));
                let mut bytes = String::new();
                let mut requests = Vec::new();
                for request in &turn.requests {
                    let unique = request.keys.first().and_then(|key| shown.get(&(client, *key)).copied());
                    bytes += &request.bytes(|letter| keys.name(letter), &keys.tag(), unique);
                    requests.push((request, request.commands(unique)));
                }
                connection.send(bytes.as_bytes());
                sent.push((turn.connection, place, now, requests));
            }
            for (connection, place, invoked, requests) in sent {
                let (client, sidecar_of) = (setting.client_of(connection), setting.sidecar_of(connection));
                let number = *numbers.get(&connection).unwrap_or(&connection);
                let wire = self.connections.get_mut(&place).expect("it has been sent to");
                for (request, commands) in requests {
                    let responses = request.responses(wire, |letter| keys.name(letter));
                    now += 1;
                    for ((key, command), response) in commands.into_iter().zip(responses) {
                        let response = request.as_classic(response);
                        if let (Some(key), Response::Hit { unique: Some(unique), .. }) = (key, &response) {
                            shown.insert((client, key), *unique);
                        }
                        let operation = Invocation {
                            connection: number,
                            // Kennel cannot tell to whose pool it belongs.
                            client: if setting.pools.is_some() { sidecar_of } else { number },
                            invoked,
                            responded: now,
                            command,
                            response,
                        };
                        let of = key.map_or_else(|| vec!['a', 'b', 'c'], |key| vec![key]);
                        for key in of {
                            histories.0.entry(key).or_default().push(operation.clone());
                        }
                    }
                }
            }
        }
        histories
    }
}

/// The keys that a schedule's letters stand for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys {
    rule: Rule,
    run: usize,
}

impl Keys {
    pub(super) fn name(&self, letter: char) -> String {
        let Keys { rule, run } = self;
        match rule {
            Rule::Guarded => format!("g:{run}:{letter}"),
            Rule::Tagged => format!("t:{run}:{letter}"),
            Rule::Raw => format!("r:{run}:{letter}"),
        }
    }

    pub(super) fn tag(&self) -> String {
        format!("t:{}", self.run)
    }
}
