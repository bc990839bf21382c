//! The commands of a table one by one, and in any order of several clients' commands.

use super::*;
use crate::kinds::item::INFIX;
use crate::kinds::model::{Mutant, Random, Store, Task};

fn run(store: &mut Store, request: Request<'_>) -> (Outcome, usize) {
    Task::new(begin(b"k", request).unwrap()).run(store)
}

/// A client's `set` of an element, with its name.
fn set(name: &str) -> Task {
    let key = format!("k/{name}");
    let machine = note(key.as_bytes(), 1).unwrap();
    let value = Bytes::from_static(b"v");
    let operation = Operation::Store { mode: Mode::Set, value, flags: 0, exptime: 0, cas: None };
    Task::around(machine, Command { key: ItemKey::from_slice(key.as_bytes()), operation })
}

fn sorted(outcome: Outcome) -> Vec<String> {
    match outcome {
        Outcome::Value { data, .. } => {
            let text = String::from_utf8(data.to_vec()).unwrap();
            let mut names: Vec<_> = text.lines().map(str::to_owned).collect();
            names.sort();
            names
        }
        Outcome::Miss => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// The item that has the names of these elements.
const NAMES: [&str; 4] = ["ann", "b", "user:1", "e2"];
const ITEM: &[u8] = b"k@kennel:n1";

#[test]
fn a_listing_has_the_elements_that_are_there() {
    assert!(NAMES.iter().all(|name| shard_of(name.as_bytes()) == 1));
    let store = &mut Store::new();
    assert_eq!(run(store, Request::Get), (Outcome::Miss, 1));
    for name in ["ann", "bob", "cid/1", "ann"] {
        assert_eq!(set(name).run(store), (Outcome::Stored(0), 1));
    }
    assert_eq!(store.data(b"k/ann").unwrap(), "v");
    assert_eq!(run(store, Request::Get).1, 2);
    store.evict(b"k/bob");
    assert_eq!(sorted(run(store, Request::Get).0), ["ann", "cid/1"]);
    assert_eq!(run(store, Request::Delete).0, Outcome::Deleted);
    assert_eq!(store.sizes().count(), 0);
    assert_eq!(run(store, Request::Delete), (Outcome::NotFound, 1));
    assert_eq!(run(store, Request::Get), (Outcome::Miss, 1));
}

#[test]
fn a_name_goes_when_its_element_was_absent_twice() {
    let store = &mut Store::new();
    for name in &NAMES[..3] {
        set(name).run(store);
    }
    NAMES[..2].iter().for_each(|name| store.evict(format!("k/{name}").as_bytes()));
    assert_eq!(sorted(run(store, Request::Get).0), ["user:1"]);
    assert_eq!(store.data(ITEM).unwrap(), "?ann\n?b\n+user:1\n");
    set("b").run(store);
    assert_eq!(sorted(run(store, Request::Get).0), ["b", "user:1"]);
    assert_eq!(store.data(ITEM).unwrap(), "?ann\n?b\n+user:1\n+b\n");
    store.evict(b"k/b");
    run(store, Request::Get);
    assert_eq!(store.data(ITEM).unwrap(), "?b\n+user:1\n");
}

#[test]
fn an_element_that_is_stored_again_and_again_has_its_name_a_few_times_only() {
    let store = &mut Store::new();
    let mut trips = 0;
    for _ in 0..10_000 {
        trips += set("a-name-of-some-length").run(store).1;
    }
    assert!(store.sizes().all(|size| size < 8_192) && trips < 10_200, "{trips}");
    assert_eq!(run(store, Request::Get).1, 3);
    assert_eq!(store.sizes().sum::<usize>(), "v+a-name-of-some-length\n".len());
}

#[test]
fn a_name_that_was_removed_between_the_name_and_the_element_is_appended_once_more() {
    let store = &mut Store::new();
    let mut task = set("ann");
    // The name is appended, and then deleted.
    (0..3).for_each(|_| assert_eq!(task.step(store, Some), None));
    store.evict(ITEM);
    assert_eq!(task.run(store).0, Outcome::Stored(0));
    assert_eq!(sorted(run(store, Request::Get).0), ["ann"]);
    // Again and again.
    let mut task = set("ann");
    let outcome = std::iter::from_fn(|| {
        store.evict(ITEM);
        Some(task.step(store, Some))
    });
    assert_eq!(outcome.take(1_000).flatten().next(), Some(Outcome::Refused(FULL)));
    assert_eq!(store.data(b"k/ann"), None);
}

#[test]
fn an_element_whose_name_has_no_room_is_not_kept() {
    let store = &mut Store::new();
    store.max_value = 18;
    for name in &NAMES[..3] {
        assert_eq!(set(name).run(store).0, Outcome::Stored(0));
    }
    let full = "SERVER_ERROR the names of the table are full: the element is not stored\r\n";
    assert_eq!(set(NAMES[3]).run(store).0, Outcome::Refused(full));
    // The names that are there are no problem.
    assert_eq!(set(NAMES[0]).run(store).0, Outcome::Stored(0));
    assert_eq!(sorted(run(store, Request::Get).0), ["ann", "b", "user:1"]);
    assert_eq!(store.data(b"k/e2"), None);
}

#[test]
fn what_is_no_name_is_refused_and_no_part_of_a_command() {
    for key in ["k/", "k/a b", "k/\x7f", "k/a\r\nflush_all"] {
        assert_eq!(note(key.as_bytes(), 1).err(), Some(NO_NAME), "{key:?}");
    }
    assert_eq!(begin(b"k", Request::Other).err(), Some(COMMANDS));
    let long = vec![b'k'; MAX_KEY - INFIX.len() - 1];
    assert!(begin(&long, Request::Get).is_err() && begin(&long[1..], Request::Get).is_ok());
    let store = &mut Store::new();
    store.put(ITEM, format!("+a b\n+\nx\n+{}\n+ann\n", "x".repeat(249)).as_bytes());
    store.put(b"k/ann", b"v");
    assert_eq!(sorted(run(store, Request::Get).0), ["ann"]);
}

#[test]
fn a_listing_above_its_limit_says_so_and_one_of_many_names_takes_more_round_trips() {
    let store = &mut Store::new();
    let names: Vec<_> = (0..MAX_ANSWER / 200 + 1).map(|n| format!("{n:0>199}")).collect();
    let lines = |names: &[String]| names.iter().map(|name| format!("+{name}\n")).collect::<String>();
    names.iter().for_each(|name| store.put(format!("k/{name}").as_bytes(), b"v"));
    store.put(ITEM, lines(&names[1..]).as_bytes());
    let (outcome, trips) = run(store, Request::Get);
    assert_eq!((sorted(outcome).len(), trips), (names.len() - 1, 1 + names.len().div_ceil(BATCH)));
    store.put(ITEM, lines(&names).as_bytes());
    assert_eq!(run(store, Request::Get).0, Outcome::Failed(Failure::TooLarge));
    assert_eq!(run(store, Request::Delete).0, Outcome::Deleted);
    assert_eq!(store.sizes().count(), 0);
}

/// Runs writers, of which some die, readers and deletes in a random order. Returns what the promise does not allow.
fn interleave(seed: u64, mutant: Mutant) -> Result<(), String> {
    let (mut random, mut store) = (Random(seed), Store::new());
    let mut tasks: Vec<(Task, Option<usize>, usize, bool)> = Vec::new();
    // For each name the step in which its last set was acknowledged, and whether anything may have removed it since.
    let mut stored: [Option<usize>; 4] = [None; 4];
    let mut removed = [0; 4];
    for step in 1..600 {
        if tasks.len() < 5 && random.below(3) == 0 && step < 500 {
            let name = random.below(NAMES.len());
            match random.below(8) {
                0..4 => tasks.push((set(NAMES[name]), Some(name), step, false)),
                4 => {
                    (stored[name], removed[name]) = (None, step);
                    store.evict(format!("k/{}", NAMES[name]).as_bytes());
                }
                5 => {
                    stored = [None; 4];
                    let task = Task::new(begin(b"k", Request::Delete).unwrap());
                    tasks.push((task, None, step, true));
                }
                6 => {
                    // A writer that dies: the server executes what it has received of the first round trip at once.
                    let mut task = set(NAMES[name]);
                    for _ in 0..=random.below(4) {
                        task.step(&mut store, mutant);
                    }
                }
                _ => tasks.push((Task::new(begin(b"k", Request::Get).unwrap()), None, step, false)),
            }
        }
        if tasks.is_empty() {
            continue;
        }
        let at = random.below(tasks.len());
        let Some(outcome) = tasks[at].0.step(&mut store, mutant) else { continue };
        let (_, name, begun, is_delete) = tasks.swap_remove(at);
        let is_delete_running = tasks.iter().any(|(_, _, _, is_delete)| *is_delete);
        match (name, is_delete) {
            // A set at the same time as a delete may be deleted.
            (Some(name), _)
                if outcome == Outcome::Stored(0) && begun > removed[name] && !is_delete_running =>
            {
                stored[name] = Some(step);
            }
            (None, true) => removed = [step; 4],
            (None, false) => {
                let found = sorted(outcome);
                for (at, name) in NAMES.iter().enumerate() {
                    if stored[at].is_some_and(|at| at < begun) && !found.contains(&(*name).to_owned()) {
                        return Err(format!("seed {seed}, step {step}: {name} is not listed"));
                    }
                }
            }
            _ => {}
        }
    }
    // Whatever has happened, listings and elements agree, also after the names have been folded.
    for (task, ..) in tasks {
        task.run(&mut store);
    }
    for round in 0..3 {
        let found = sorted(run(&mut store, Request::Get).0);
        for name in NAMES {
            let is_there = store.data(format!("k/{name}").as_bytes()).is_some();
            if is_there != found.contains(&name.to_owned()) {
                return Err(format!("seed {seed}, listing {round}: {name} is there: {is_there}"));
            }
        }
    }
    Ok(())
}

#[test]
fn listings_and_elements_agree_in_any_order_of_commands_and_with_writers_that_die() {
    for seed in 0..600 {
        interleave(seed, Some).unwrap();
    }
}

#[test]
fn each_defence_is_missed_when_it_is_gone() {
    let without_cas: Mutant = |mut command| {
        match &mut command.operation {
            Operation::Store { cas, .. } | Operation::Delete { cas } => *cas = None,
            _ => {}
        }
        Some(command)
    };
    let without_name: Mutant = |command| {
        let is_name = matches!(&command.operation, Operation::Store { mode: Mode::Append, .. });
        (!is_name).then_some(command)
    };
    for mutant in [without_cas, without_name] {
        let caught = (0..300).filter(|seed| interleave(*seed, mutant).is_err()).count();
        assert!(caught >= 5, "{caught} of 300");
    }
}
