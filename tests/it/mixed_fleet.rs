//! Four sidecars in front of the same servers, with different rules that change under load, and clients of all of them: each is told only
//! what clients have sent.

use std::panic::resume_unwind;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use kennel::random::Random;

use crate::mixed_commands::{RULES, Sent, Talker};
use crate::world::{Kennel, Memcached, addresses, memcacheds, sidecar_toml, without_failover};

const CLIENTS: usize = 12;
/// The commands of each client.
const COMMANDS: usize = 250;
/// After so many commands of all clients, a sidecar takes another configuration.
const RELOAD: usize = 200;
const SEED: u64 = 28;

fn toml(servers: &[Memcached], rules: &str) -> String {
    without_failover(&sidecar_toml(&addresses(servers), &[rules.to_owned()]))
}

/// One client's commands. `done` is told of each.
fn talk(number: usize, sidecars: &[Kennel], sent: Sent, done: &Sender<()>) {
    let mut client = sidecars[number % sidecars.len()].client();
    let mut talker = Talker::new(number / sidecars.len(), Random::seeded(SEED + number as u64), sent);
    let mut last = None;
    for _ in 0..COMMANDS {
        let request = talker.next(last.as_ref().map(|(request, told)| (request, told)));
        client.send(&request.bytes);
        let mut reply = Vec::new();
        while talker.complete(&reply).is_none() {
            reply.extend(client.bytes(1));
        }
        done.send(()).expect("the test waits for it");
        let told = talker.told(&request, &reply).unwrap_or_else(|why| panic!("{why}"));
        last = Some((request, told));
    }
}

#[test]
fn every_client_reads_what_clients_have_stored_in_a_fleet_whose_rules_differ_and_change() {
    let (servers, sent, (done, of_all)) = (memcacheds(2), Sent::default(), channel());
    let sidecars: Vec<Kennel> =
        RULES[..4].iter().map(|rules| Kennel::start(&toml(&servers, rules))).collect();
    thread::scope(|scope| {
        let sidecars = &sidecars[..];
        let client = |number| {
            let (sent, done) = (Sent::clone(&sent), done.clone());
            scope.spawn(move || talk(number, sidecars, sent, &done))
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        drop(done);
        for (count, ()) in of_all.iter().enumerate().filter(|(count, ())| count % RELOAD == RELOAD - 1) {
            let round = count / RELOAD;
            let rules = RULES[(round + round / 4) % RULES.len()];
            let (status, text) = sidecars[round % sidecars.len()].force(&toml(&servers, rules));
            assert_eq!(status, 200, "{text}");
        }
        for client in clients {
            client.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}
