//! The kinds of runs, and what must hold in each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;
use tokio::time::sleep;

use super::client::{Client, Connection, random_commands};
use super::dialect::value_of;
use super::faults;
use super::guarded::{self, Program, cache_aside};
use super::linearizability::{Allowances, Command, Invocation, Response, Verdict, check_key};
use super::mixed;
use super::mixed_commands::{RULES as MIXED_RULES, Sent};
use super::mutants::Mutant;
use super::seeds::{for_each_seed, pause};
use super::structures;
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

pub fn fleet() -> Setup {
    Setup { sidecars: 3, servers: 3, rules: RULES, pause: pause(900), mutant: None }
}

/// What goes wrong, or changes, beside the clients of a run.
pub enum Fault {
    Links,
    Clocks,
    Reloads,
    Kills,
    Restarts,
    Rules,
}

/// Clients of all sidecars send random commands for a few keys, beside faults if there are any. Then a while without either, after
/// which every key can be set and read through every sidecar.
async fn random_clients(world: Rc<World>, prefix: &'static str, faults: &[Fault]) {
    clients_of(world, prefix, 3, faults).await;
}

/// The same for so many keys.
async fn clients_of(world: Rc<World>, prefix: &str, keys: usize, faults: &[Fault]) {
    let keys: Vec<String> = (0..keys).map(|n| format!("{prefix}{n}")).collect();
    among(&world, faults, |world| random_commands(world, keys.clone(), 40)).await;
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

/// Six clients run this program beside the faults. Then the fleet recovers.
pub async fn among<F: Future<Output = ()> + 'static>(
    world: &Rc<World>,
    faults: &[Fault],
    client: impl Fn(Rc<World>) -> F,
) {
    let time = Duration::from_secs(30);
    let begin = |fault: &Fault| match fault {
        Fault::Links => spawn_local(faults::lossless(Rc::clone(world), time)),
        Fault::Clocks => spawn_local(faults::stepping_clocks(Rc::clone(world), time)),
        Fault::Reloads => spawn_local(faults::reloads(Rc::clone(world), time)),
        Fault::Kills => spawn_local(faults::killed_servers(Rc::clone(world), time)),
        Fault::Restarts => spawn_local(faults::rolling_restarts(Rc::clone(world), time)),
        Fault::Rules => spawn_local(faults::rule_changes(Rc::clone(world), time)),
    };
    let faults: Vec<_> = faults.iter().map(begin).collect();
    let clients: Vec<_> = (0..6).map(|_| spawn_local(client(Rc::clone(world)))).collect();
    for task in clients.into_iter().chain(faults) {
        task.await.expect("it does not panic");
    }
    sleep(Duration::from_secs(60)).await;
}

/// Every key's history is one of memcached.
pub fn linearizable(outcome: &Outcome, allowances: &Allowances) -> Result<(), String> {
    is_linearizable(&outcome.history, allowances)
}

fn is_linearizable(history: &[(String, Invocation)], allowances: &Allowances) -> Result<(), String> {
    let mut histories: BTreeMap<&String, Vec<Invocation>> = BTreeMap::new();
    for (key, invocation) in history {
        histories.entry(key).or_default().push(invocation.clone());
    }
    for (key, history) in histories {
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
    for_each_seed(8, schedule, |outcome| linearizable(outcome, &Allowances::COPIED));
}

/// The history of a run in which copies are lost: with each one that is stored again, the CAS of its value changes.
fn without_cas(outcome: &Outcome) -> Vec<(String, Invocation)> {
    let without = |(key, told): &(String, Invocation)| {
        let mut told = told.clone();
        if let Response::Hit { unique, .. } = &mut told.response {
            *unique = None;
        }
        told.command = match (told.command, &told.response) {
            (Command::Cas { .. }, Response::Exists) => return None,
            (Command::Cas { value, .. }, Response::Stored) => Command::Replace(value),
            (Command::Cas { .. }, Response::NotFound) => Command::Touch,
            (Command::Cas { value, .. }, _) => Command::Set(value),
            (command, _) => command,
        };
        Some((key.clone(), told))
    };
    outcome.history.iter().filter_map(without).collect()
}

/// Most keys are neither read nor changed between two restarts, and nothing is forgotten, or comes back.
#[test]
fn copied_keys_are_memcacheds_while_servers_restart_empty_in_turn() {
    let faults = &[Fault::Restarts];
    let schedule = |seed| run(seed, fleet(), |world| clients_of(world, "copied:", 24, faults));
    for_each_seed(6, schedule, |outcome| is_linearizable(&without_cas(outcome), &Allowances::COPIED));
}

#[test]
fn copied_keys_are_memcacheds_while_clocks_step_and_configurations_change() {
    let faults = &[Fault::Clocks, Fault::Reloads];
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "copied:", faults));
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::COPIED));
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

/// Sidecars without the rule serve what others have stored under it without a header.
#[test]
fn no_client_is_served_a_header_while_some_sidecars_have_no_rule() {
    let faults = &[Fault::Links, Fault::Rules];
    let schedule = |seed| run(seed, fleet(), |world| random_clients(world, "guarded:", faults));
    for_each_seed(6, schedule, nothing_invented);
}

/// Sidecars of which each has other rules for the same keys.
fn mixed_rules(seed: u64, setup: Setup) -> Outcome {
    let setup = Setup { sidecars: 4, rules: "", pause: Duration::from_millis(10), ..setup };
    run(seed, setup, |world| async move {
        for (sidecar, rules) in MIXED_RULES.iter().enumerate().take(world.setup.sidecars) {
            world.reload(sidecar, rules).await;
        }
        let sent = Sent::default();
        let reloads = spawn_local(mixed::reloads(Rc::clone(&world), Duration::from_secs(1)));
        let client = |_| spawn_local(mixed::mixed(Rc::clone(&world), Sent::clone(&sent), 120));
        let clients: Vec<_> = (0..12).map(client).collect();
        for task in clients.into_iter().chain([reloads]) {
            task.await.expect("it does not panic");
        }
    })
}

#[test]
fn every_client_reads_what_clients_have_stored_in_a_fleet_whose_rules_differ_and_change() {
    for_each_seed(4, |seed| mixed_rules(seed, fleet()), |_| Ok(()));
}

fn nothing_invented(outcome: &Outcome) -> Result<(), String> {
    for (key, invocation) in &outcome.history {
        let Response::Hit { value, .. } = &invocation.response else { continue };
        let sent = |part: &str| {
            outcome.history.iter().any(|(of, other)| {
                let value = value_of(&other.command);
                of == key && value == Some(part) && other.invoked <= invocation.responded
            })
        };
        // Numbers are counted, and so nobody has sent them as they are.
        let mut parts =
            value.split_inclusive(';').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        if let Some(part) = parts.find(|part| !part.is_empty() && !sent(part)) {
            return Err(format!("{key} is {value:?}, and nobody has sent {part:?}"));
        }
    }
    Ok(())
}

/// Clients of structures with two copies, beside faults.
fn of_structures<F: Future<Output = ()> + 'static>(
    seed: u64,
    faults: &[Fault],
    client: fn(Rc<World>) -> F,
) -> Outcome {
    structures_of(seed, fleet(), faults, client)
}

fn structures_of<F: Future<Output = ()> + 'static>(
    seed: u64,
    setup: Setup,
    faults: &[Fault],
    client: fn(Rc<World>) -> F,
) -> Outcome {
    run(seed, Setup { rules: structures::RULES, ..setup }, |world| async move {
        among(&world, faults, client).await
    })
}

#[test]
fn elements_of_copied_lists_are_there_after_they_are_added_and_not_after_they_are_removed() {
    let faults = &[Fault::Links, Fault::Reloads, Fault::Clocks];
    let schedule = |seed| of_structures(seed, faults, structures::lists);
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::NONE));
}

#[test]
fn elements_of_copied_tables_are_memcacheds_and_listings_have_them() {
    let faults = &[Fault::Links, Fault::Reloads, Fault::Clocks];
    let schedule = |seed| of_structures(seed, faults, structures::tables);
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::COPIED));
}

#[test]
fn entries_of_copied_logs_are_there_once_and_tails_see_each_once() {
    let faults = &[Fault::Links, Fault::Reloads];
    let schedule = |seed| of_structures(seed, faults, structures::logs);
    for_each_seed(4, schedule, |outcome| linearizable(outcome, &Allowances::NONE));
}

#[test]
fn sums_of_copied_windows_have_every_acknowledged_count() {
    let faults = &[Fault::Links, Fault::Reloads];
    let schedule = |seed| of_structures(seed, faults, structures::windows);
    for_each_seed(4, schedule, structures::sums);
}

#[test]
fn copied_locks_have_one_holder() {
    let faults = &[Fault::Links, Fault::Reloads];
    let schedule = |seed| of_structures(seed, faults, structures::locks);
    for_each_seed(4, schedule, structures::one_holder);
}

/// Two clients of a sidecar flush the servers at about the same time. Then the places are polled, and every key is written.
async fn flushes_at_once(world: Rc<World>) {
    let mut clients = [0; 2].map(|_| Connection::open(&world, 0, "flushing"));
    for round in 0..4 {
        let [one, other] = &mut clients;
        let later = world.fork().below(8);
        let (first, second) = tokio::join!(one.exchange("flush_all\r\n"), async {
            sleep(Duration::from_millis(later)).await;
            other.exchange("flush_all\r\n").await
        });
        assert_eq!([first.as_deref(), second.as_deref()], [Some("OK\r\n"); 2]);
        for n in 0..40 {
            let stored = clients[0].exchange(&format!("set guarded:{n} 0 0 1\r\nv\r\n")).await;
            assert_eq!(stored.as_deref(), Some("STORED\r\n"), "round {round}, guarded:{n}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[test]
fn flushes_at_once_through_one_sidecar_make_it_refuse_no_write() {
    for_each_seed(8, |seed| run(seed, fleet(), flushes_at_once), |_| Ok(()));
}

/// Clients that keep what a database has in the cache.
pub fn of_a_database(seed: u64, faults: &[Fault], program: Program) -> Outcome {
    let pause = pause(400);
    database_of(seed, Setup { pause, ..fleet() }, faults, program)
}

fn database_of(seed: u64, setup: Setup, faults: &[Fault], program: Program) -> Outcome {
    let setup = Setup { rules: guarded::RULES, ..setup };
    let database = Rc::new(RefCell::default());
    run(seed, setup, |world| async move {
        among(&world, faults, |world| cache_aside(world, Rc::clone(&database), program)).await;
    })
}

#[test]
fn nothing_older_than_an_acknowledged_invalidation_is_read_whatever_fails() {
    let all: [&[Fault]; 3] = [
        &[Fault::Links, Fault::Reloads],
        &[Fault::Links, Fault::Kills],
        &[Fault::Links, Fault::Clocks, Fault::Kills, Fault::Reloads],
    ];
    for faults in all {
        for_each_seed(3, |seed| of_a_database(seed, faults, Program::Invalidate), |_| Ok(()));
    }
}

/// Clocks do not step: docs/guarantees.md says by how much they may differ.
#[test]
fn one_client_builds_a_key_at_a_time_while_configurations_change() {
    for_each_seed(3, |seed| of_a_database(seed, &[Fault::Reloads], Program::Read), |_| Ok(()));
}

/// A change of a copied value while the connections to all servers end after so many bytes of commands, or of replies. Then reads. Each
/// third number of bytes from this one on, with the commands in turn.
async fn cut_from(first: usize, world: Rc<World>) {
    let mut client = Client::new(Rc::clone(&world));
    let mut reader = Client::new(Rc::clone(&world));
    for bytes in 0..160 {
        let key = format!("copied:{}", bytes % 20);
        for server in 0..world.setup.servers {
            world.net.cut_after(client.sidecar, server, bytes % 2, first + bytes / 2 * 3);
        }
        let value = format!("v{bytes};");
        let command = match bytes / 2 % 4 {
            0 => Command::Set(value),
            1 => Command::Append(value),
            2 => Command::Delete,
            _ => Command::Add(value),
        };
        client.call(&key, command).await;
        reader.call(&key, Command::Get).await;
        sleep(Duration::from_secs(3)).await;
        world.net.cut_nothing_later();
        client.call(&key, Command::Get).await;
        reader.call(&key, Command::Get).await;
    }
}

#[test]
fn copied_keys_are_memcacheds_when_connections_end_at_every_byte() {
    let schedule = |seed: u64| run(seed, fleet(), |world| cut_from(seed as usize % 3, world));
    for_each_seed(3, schedule, |outcome| linearizable(outcome, &Allowances::COPIED));
}

/// A run of which one defence is taken away, and what is checked in it.
type Mutated = fn(u64, Setup) -> Result<(), String>;

/// Commands for one key overlap.
fn one_key(seed: u64, setup: Setup, prefix: &'static str, allowances: &Allowances) -> Result<(), String> {
    linearizable(&run(seed, setup, |world| clients_of(world, prefix, 1, &[])), allowances)
}

const RAW: Mutated = |seed, setup| one_key(seed, setup, "raw:", &Allowances::NONE);
const GUARDED: Mutated = |seed, setup| one_key(seed, setup, "guarded:", &Allowances::SINGLE);
const COPIED: Mutated = |seed, setup| one_key(seed, setup, "copied:", &Allowances::COPIED);
const LISTS: Mutated =
    |seed, setup| linearizable(&structures_of(seed, setup, &[], structures::lists), &Allowances::NONE);
const TABLES: Mutated =
    |seed, setup| linearizable(&structures_of(seed, setup, &[], structures::tables), &Allowances::COPIED);
const LOGS: Mutated =
    |seed, setup| linearizable(&structures_of(seed, setup, &[], structures::logs), &Allowances::NONE);
const WINDOWS: Mutated =
    |seed, setup| structures::sums(&structures_of(seed, setup, &[], structures::windows));
const LOCKS: Mutated =
    |seed, setup| structures::one_holder(&structures_of(seed, setup, &[], structures::locks));
const INVALIDATED: Mutated = |seed, setup| {
    database_of(seed, setup, &[], Program::Invalidate);
    Ok(())
};
const ONE_BUILDER: Mutated = |seed, setup| {
    database_of(seed, setup, &[], Program::Read);
    Ok(())
};
const MIXED: Mutated = |seed, setup| {
    mixed_rules(seed, setup);
    Ok(())
};
/// Each mutant, the runs that notice it, and within how many seeds.
const MUTANTS: [(Mutant, &str, Mutated, u64); 22] = [
    (Mutant::StoresCompareNothing, "guarded", GUARDED, 8),
    (Mutant::StoresCompareNothing, "copied", COPIED, 8),
    (Mutant::StoresCompareNothing, "lists", LISTS, 8),
    (Mutant::StoresCompareNothing, "tables", TABLES, 8),
    (Mutant::StoresCompareNothing, "logs", LOGS, 8),
    (Mutant::StoresCompareNothing, "windows", WINDOWS, 8),
    (Mutant::StoresCompareNothing, "locks", LOCKS, 8),
    (Mutant::AddsReplace, "raw", RAW, 8),
    (Mutant::DeletesAreLost, "guarded", GUARDED, 8),
    (Mutant::DeletesAreLost, "invalidated", INVALIDATED, 8),
    (Mutant::MissesLeaveNoStub, "guarded", GUARDED, 8),
    (Mutant::MissesLeaveNoStub, "one builder", ONE_BUILDER, 8),
    (Mutant::BumpsAreLost, "invalidated", INVALIDATED, 8),
    (Mutant::AppendsReplace, "raw", RAW, 8),
    (Mutant::CountsAreDoubled, "raw", RAW, 8),
    (Mutant::RefusalsAreSuccesses, "copied", COPIED, 8),
    (Mutant::StubsAreNotHeld, "mixed", MIXED, 4),
    (Mutant::LongStubsAreNotHeld, "mixed", MIXED, 4),
    (Mutant::StubsHaveNoFlags, "mixed", MIXED, 4),
    (Mutant::ChangesAreUnseen, "mixed", MIXED, 4),
    (Mutant::MarksCompareNothing, "mixed", MIXED, 4),
    (Mutant::PrependsCompareNothing, "mixed", MIXED, 8),
];

#[test]
fn every_mutant_is_caught_within_its_seeds() {
    let mut missed = Vec::new();
    for (mutant, name, mutated, within) in MUTANTS {
        let notices = |seed, mutant| {
            let setup = Setup { mutant, pause: Duration::from_millis(10), ..fleet() };
            !matches!(std::panic::catch_unwind(|| mutated(seed, setup)), Ok(Ok(())))
        };
        let caught = (0..within).find(|seed| notices(*seed, Some(mutant)));
        assert!(caught.is_none_or(|seed| !notices(seed, None)), "{name} fails without {mutant:?} too");
        println!("{mutant:?} is caught in {name} by seed {caught:?} of {within}");
        if caught.is_none() {
            missed.push((mutant, name));
        }
    }
    assert_eq!(missed, [], "nothing has caught these");
}
