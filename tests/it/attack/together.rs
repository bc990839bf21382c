//! The same commands by concurrent clients. A failure does not replay; its history is printed.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::client::Client;
use crate::linearizability::{Invocation, Response};

use super::draw::Draw;
use super::run::{Histories, Keys, Setting, World};

/// The number of turns of each client in one round.
const TURNS: usize = 18;

/// The clients of all rounds of one setting, each with its connections.
pub(super) struct Clients {
    pub(super) setting: Setting,
    connections: Vec<Vec<Client>>,
}

impl Clients {
    /// The number of clients; with pools, each has three connections.
    pub(super) fn connect(setting: Setting, clients: usize, world: &World) -> Clients {
        let each = if setting.pools.is_some() { 3 } else { 1 };
        let open = |client: usize| {
            let address = world.address(setting.sidecar_of(client));
            (0..each).map(|_| Client::tcp(address)).collect()
        };
        Clients { setting, connections: (0..clients).map(open).collect() }
    }

    /// One round on new keys. Returns what is wrong with the responses.
    pub(super) fn round(&mut self, seed: u64, world: &mut World) -> Result<usize, String> {
        let setting = self.setting;
        let keys = world.new_keys(setting.rule);
        let start = Instant::now();
        let each = self.connections.len();
        let mut histories = Histories::default();
        std::thread::scope(|scope| {
            let mut actors = Vec::new();
            for (number, connections) in self.connections.iter_mut().enumerate() {
                let letters = 1 + (seed % 3) as usize;
                let draw = Draw::new(seed, number as u64, setting.rule, letters);
                actors.push(scope.spawn(move || act(number, each, connections, draw, keys, start, setting)));
            }
            for actor in actors {
                for (key, operation) in actor.join().expect("no client panics") {
                    histories.0.entry(key).or_default().push(operation);
                }
            }
        });
        histories.check(&setting.allowances())
    }
}

/// One client: sends, reads, and records the responses.
fn act(
    number: usize,
    clients: usize,
    connections: &mut [Client],
    mut draw: Draw,
    keys: Keys,
    start: Instant,
    setting: Setting,
) -> Vec<(char, Invocation)> {
    let now = || start.elapsed().as_nanos() as u64;
    let mut shown: HashMap<char, u64> = HashMap::new();
    let mut operations = Vec::new();
    for _ in 0..TURNS {
        let request = draw.next();
        let which = draw.below(connections.len());
        let unique = request.keys.first().and_then(|key| shown.get(key).copied());
        let bytes = request.bytes(|letter| keys.name(letter), &keys.tag(), unique);
        let invoked = now();
        connections[which].send(bytes.as_bytes());
        let responses = request.responses(&mut connections[which], |letter| keys.name(letter));
        let answered = now();
        let connection = number + clients * which;
        // Kennel cannot tell to whose pool it belongs.
        let client = if setting.pools.is_some() { setting.sidecar_of(number) } else { connection };
        for ((key, command), response) in request.commands(unique).into_iter().zip(responses) {
            let response = request.as_classic(response);
            draw.note_response(key, &response);
            if let (Some(key), Response::Hit { unique: Some(unique), .. }) = (key, &response) {
                shown.insert(key, *unique);
            }
            let of = key.map_or_else(|| vec!['a', 'b', 'c'], |key| vec![key]);
            for key in of {
                let (command, response) = (command.clone(), response.clone());
                operations.push((
                    key,
                    Invocation { connection, client, invoked, responded: answered, command, response },
                ));
            }
        }
    }
    operations
}
