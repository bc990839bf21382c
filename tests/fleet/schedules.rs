//! The kinds of runs, and what must hold in each.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use super::client::{Connection, random_commands};
use super::faults;
use super::linearizability::{Allowances, Command, Invocation, Response, Verdict, check_key};
use super::mutants::Mutant;
use super::world::{Outcome, Setup, World, run};

const RULES: &str = r#"
[[rules]]
name = "copied"
match = "copied:*"
kind = "raw"
copies = 2

[[rules]]
name = "guarded"
match = "guarded:*"
lock_ttl = "2s"
cold_wait = "1s"
max_rebuild = "10s"
"#;

fn fleet() -> Setup {
    Setup { sidecars: 3, servers: 3, rules: RULES, mutant: None }
}

/// What goes wrong, or changes, beside the clients of a run.
enum Fault {
    Links,
    Clocks,
    Reloads,
    Kills,
}

/// The seeds of a test: `KENNEL_FLEET_SEED` (one) or `KENNEL_FLEET_SEEDS` (a range, or so many) instead of the first `count`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    if let Ok(seed) = std::env::var("KENNEL_FLEET_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    match std::env::var("KENNEL_FLEET_SEEDS") {
        Ok(range) => match range.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => 0..number(&range),
        },
        Err(_) => 0..count,
    }
}

/// Runs the seeds, and prints what they did.
fn for_each_seed(
    count: u64,
    schedule: impl Fn(u64) -> Outcome,
    check: impl Fn(&Outcome) -> Result<(), String>,
) {
    let (mut simulated, mut commands) = (Duration::ZERO, 0);
    let seeds = seeds(count);
    for seed in seeds.clone() {
        let outcome = schedule(seed);
        simulated += outcome.took;
        commands += outcome.history.len();
        if let Err(why) = check(&outcome) {
            panic!("seed {seed}: {why}");
        }
    }
    println!("seeds {seeds:?}: {commands} commands in {} simulated seconds", simulated.as_secs());
}

/// Clients of all sidecars send random commands for a few keys, beside faults if there are any. Then a while without either, after
/// which every key can be set and read through every sidecar.
async fn random_clients(world: Rc<World>, prefix: &'static str, faults: &[Fault]) {
    clients_of(world, prefix, 3, Duration::from_millis(900), faults).await;
}

/// The same for so many keys; each client sends a command after up to `pause`.
async fn clients_of(world: Rc<World>, prefix: &str, keys: usize, pause: Duration, faults: &[Fault]) {
    let keys: Vec<String> = (0..keys).map(|n| format!("{prefix}{n}")).collect();
    let time = Duration::from_secs(30);
    let faults: Vec<_> = faults
        .iter()
        .map(|fault| match fault {
            Fault::Links => spawn_local(faults::lossless(Rc::clone(&world), time)),
            Fault::Clocks => spawn_local(faults::stepping_clocks(Rc::clone(&world), time)),
            Fault::Reloads => spawn_local(faults::reloads(Rc::clone(&world), time)),
            Fault::Kills => spawn_local(faults::killed_servers(Rc::clone(&world), time)),
        })
        .collect();
    let clients: Vec<_> =
        (0..6).map(|_| spawn_local(random_commands(Rc::clone(&world), keys.clone(), 40, pause))).collect();
    for client in clients {
        client.await.expect("no client panics");
    }
    for fault in faults {
        fault.await.expect("it does not panic");
    }
    // The fleet recovers.
    sleep(Duration::from_secs(60)).await;
    for sidecar in 0..world.setup.sidecars {
        let mut connection = Connection::open(&world, sidecar, "last");
        for key in &keys {
            let stored = connection.exchange(&format!("set {key} 0 0 4\r\nlast\r\n")).await;
            assert_eq!(stored.as_deref(), Some("STORED\r\n"), "{key} through sidecar {sidecar}");
            let read = connection.exchange(&format!("get {key}\r\n")).await;
            assert_eq!(read, Some(format!("VALUE {key} 0 4\r\nlast\r\nEND\r\n")), "sidecar {sidecar}");
        }
        assert_eq!(world.metric(sidecar, "kennel_leases_live", ""), 0.0, "leases of sidecar {sidecar}");
    }
}

/// Every key's history is one of memcached.
fn linearizable(outcome: &Outcome, allowances: &Allowances) -> Result<(), String> {
    let mut keys: Vec<&String> = outcome.history.iter().map(|(key, _)| key).collect();
    keys.sort();
    keys.dedup();
    for key in keys {
        let of_key = outcome.history.iter().filter(|(of, _)| of == key);
        let history: Vec<Invocation> = of_key.map(|(_, invocation)| invocation.clone()).collect();
        match check_key(&history, allowances) {
            Ok(Verdict::Violated { .. }) => unreachable!("it is an error"),
            Ok(Verdict::Undecided) => println!("{key}: undecided"),
            Ok(_) => {}
            Err(why) => return Err(format!("{key}: {why}")),
        }
    }
    Ok(())
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let trace = |seed| {
        run(seed, fleet(), |world| {
            random_clients(world, "guarded:", &[Fault::Links, Fault::Reloads, Fault::Kills])
        })
        .trace
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn raw_keys_without_faults_are_memcacheds() {
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "raw:", &[]));
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::NONE));
}

#[test]
fn guarded_keys_without_faults_are_memcacheds_with_leases() {
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "guarded:", &[]));
    for_each_seed(8, schedule, |outcome| linearizable(outcome, &Allowances::SINGLE));
}

#[test]
fn copied_keys_are_memcacheds_under_faults() {
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "copied:", &[Fault::Links]));
    for_each_seed(8, schedule, |outcome| linearizable(outcome, &Allowances::NONE));
}

#[test]
fn copied_keys_are_memcacheds_while_clocks_step_and_configurations_change() {
    let faults = &[Fault::Clocks, Fault::Reloads];
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "copied:", faults));
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::NONE));
}

#[test]
fn guarded_keys_are_memcacheds_with_leases_while_clocks_step_and_configurations_change() {
    let faults = &[Fault::Clocks, Fault::Reloads];
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "guarded:", faults));
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::SINGLE));
}

/// Every value that is read was sent for that key, whole, or is made of such values. Whatever fails.
#[test]
fn no_client_reads_what_nobody_wrote_while_servers_are_killed() {
    for prefix in ["raw:", "copied:", "guarded:"] {
        let faults = &[Fault::Links, Fault::Kills, Fault::Reloads];
        let schedule = |seed| run(seed, fleet(), |world| random_clients(world, prefix, faults));
        for_each_seed(3, schedule, nothing_invented);
    }
}

fn nothing_invented(outcome: &Outcome) -> Result<(), String> {
    for (key, invocation) in &outcome.history {
        let Response::Hit { value, .. } = &invocation.response else { continue };
        let sent = |part: &str| {
            outcome.history.iter().any(|(of, other)| {
                let value = match &other.command {
                    Command::Set(value)
                    | Command::Add(value)
                    | Command::Replace(value)
                    | Command::Append(value)
                    | Command::Prepend(value)
                    | Command::Cas { value, .. } => value,
                    _ => return false,
                };
                of == key && value == part && other.invoked <= invocation.responded
            })
        };
        if let Some(part) = value.split_inclusive(';').find(|part| !sent(part)) {
            return Err(format!("{key} is {value:?}, and nobody has sent {part:?}"));
        }
    }
    Ok(())
}

/// The first of so many seeds that notices that this is taken away.
fn is_caught(mutant: Mutant, prefix: &'static str, allowances: &Allowances) -> Option<u64> {
    (0..16).find(|seed| {
        let setup = Setup { mutant: Some(mutant), ..fleet() };
        // The last reads and writes of the run may notice it too.
        let outcome = std::panic::catch_unwind(|| {
            // Commands for one key overlap.
            let schedule = |world| clients_of(world, prefix, 1, Duration::from_millis(10), &[]);
            linearizable(&run(*seed, setup, schedule), allowances)
        });
        !matches!(outcome, Ok(Ok(())))
    })
}

#[test]
fn stores_that_compare_nothing_are_caught() {
    assert_ne!(is_caught(Mutant::StoresCompareNothing, "guarded:", &Allowances::SINGLE), None);
    assert_ne!(is_caught(Mutant::StoresCompareNothing, "copied:", &Allowances::NONE), None);
}

#[test]
fn deletes_that_are_lost_are_caught() {
    assert_ne!(is_caught(Mutant::DeletesAreLost, "guarded:", &Allowances::SINGLE), None);
}

#[test]
fn misses_that_leave_no_stub_are_caught() {
    assert_ne!(is_caught(Mutant::MissesLeaveNoStub, "guarded:", &Allowances::SINGLE), None);
}
