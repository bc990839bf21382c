//! The commands of a list one by one, and in any order of several clients' commands.

use super::*;
use crate::kinds::item::own_length;
use crate::kinds::model::{Mutant, Random, Store, Task};

fn machine(ttl: u64, key: &str, request: Request<'_>) -> Result<Box<dyn Machine>, &'static str> {
    let settings = List { ttl: Duration::from_secs(ttl) };
    begin(&settings, key.as_bytes(), own_length(b'@', 0, key.as_bytes()), request)
}

fn append(lines: &str) -> Request<'_> {
    Request::Store { verb: Verb::Append, data: lines.as_bytes(), flags: 0, exptime: 0 }
}

/// Carries out a command on its own.
fn run(store: &mut Store, ttl: u64, key: &str, request: Request<'_>) -> (Outcome, usize) {
    Task::new(machine(ttl, key, request).unwrap()).run(store)
}

fn sorted(outcome: Outcome) -> Vec<String> {
    match outcome {
        Outcome::Value { data, .. } => {
            let text = String::from_utf8(data.to_vec()).unwrap();
            let mut elements: Vec<_> = text.lines().map(str::to_owned).collect();
            elements.sort();
            elements
        }
        Outcome::Miss => Vec::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_command_of_an_element_says_whether_the_list_has_it() {
    let store = &mut Store::new();
    let key = "k";
    assert_eq!(run(store, 0, key, Request::Get), (Outcome::Miss, 1));
    assert_eq!(run(store, 0, key, append("+ann\n+bob\n+cid\n")), (Outcome::Stored(0), 1));
    assert_eq!(run(store, 0, key, append("-bob\n+dan\n+bob\n-ann\n-eve\n")), (Outcome::Stored(0), 1));
    assert_eq!(sorted(run(store, 0, key, Request::Get).0), ["bob", "cid", "dan"]);
    let has = |store: &mut Store, asked| match run(store, 0, asked, Request::Get).0 {
        Outcome::Value { data, .. } => data == "1",
        outcome => outcome != Outcome::Miss,
    };
    assert!(has(store, "k@bob") && has(store, "k@dan") && !has(store, "k@ann") && !has(store, "k@eve"));
    assert_eq!(run(store, 0, key, Request::Delete), (Outcome::Deleted, 1));
    assert_eq!(run(store, 0, key, Request::Delete), (Outcome::NotFound, 1));
    assert_eq!(run(store, 0, key, append("-ann\n")), (Outcome::Stored(0), 1));
    assert_eq!(run(store, 0, key, Request::Get), (Outcome::Miss, 1));
}

#[test]
fn a_malformed_line_is_refused_with_all_others() {
    for bad in [
        "", "\n", "x\n", "x", "+\n", "+", "+x\n\n", "+x\ny\n", "+x\n+\n", "+x\n+", "+x\r\n", " +x\n", "*x\n",
        "+x\\\n", "+x\\\n+y", "-x\\",
    ] {
        assert_eq!(machine(0, "k", append(bad)).err(), Some(NO_LINES), "{bad:?}");
    }
    assert!(machine(0, "k", append("+ x\\y\n--\n-+\n+@\n")).is_ok());
    let lines = |length| format!("+{}\n", "x".repeat(length));
    assert!(machine(0, "k", append(&lines(MAX_ASKED - 1))).is_ok());
    assert_eq!(machine(0, "k", append(&lines(MAX_ASKED))).err(), Some(ELEMENT_TOO_LONG));
    let full = "+123456789abcde\n".repeat(MAX_APPEND / 16);
    assert!(machine(0, "k", append(&full)).is_ok());
    assert_eq!(machine(0, "k", append(&(full + "-x\n"))).err(), Some(TOO_MANY_LINES));
}

#[test]
fn the_last_line_may_lack_its_line_feed() {
    let store = &mut Store::new();
    for lines in ["+ann", "+bob\n+cid", "-bob"] {
        assert_eq!(run(store, 0, "k", append(lines)).0, Outcome::Stored(0));
    }
    assert_eq!(sorted(run(store, 0, "k", Request::Get).0), ["ann", "cid"]);
}

#[test]
fn what_a_list_does_not_have_is_refused() {
    let store = |verb| Request::Store { verb, data: b"+x\n", flags: 0, exptime: 0 };
    for request in [store(Verb::Set), store(Verb::Add), store(Verb::Other), Request::Other] {
        assert_eq!(machine(0, "k", request).err(), Some(COMMANDS));
    }
    for request in [append("+x\n"), Request::Delete] {
        assert_eq!(machine(0, "k@x", request).err(), Some(NO_AT));
    }
    assert_eq!(machine(0, "k@", Request::Get).err(), Some(NO_ELEMENT));
}

/// Names of elements that are in the same item.
fn of_one_shard(count: usize) -> Vec<String> {
    let names = (0..).map(|n| format!("name{n}"));
    names.filter(|name| shard_of(name.as_bytes()) == 3).take(count).collect()
}

#[test]
fn a_reader_folds_an_item_with_more_dead_lines_than_elements_and_no_other() {
    let store = &mut Store::new();
    let names = of_one_shard(5);
    let lines =
        |sign: &str, names: &[String]| names.iter().map(|name| format!("{sign}{name}\n")).collect::<String>();
    run(store, 0, "k", append(&lines("+", &names)));
    run(store, 0, "k", append(&lines("-", &names[..1])));
    let before: usize = store.sizes().sum();
    assert_eq!(run(store, 0, "k", Request::Get).1, 1);
    assert_eq!(store.sizes().sum::<usize>(), before);
    run(store, 0, "k", append(&lines("-", &names[1..3])));
    // Also a reader of one element.
    let asked = format!("k@{}", names[4]);
    assert_eq!(run(store, 0, &asked, Request::Get).1, 2);
    assert_eq!(store.data(b"k@kennel:e3").unwrap(), lines("+", &names[3..]));
    assert_eq!(run(store, 0, "k", Request::Get).1, 1);
    // Nothing is left of what has no elements.
    run(store, 0, "k", append(&lines("-", &names)));
    assert_eq!(run(store, 0, "k", Request::Get), (Outcome::Miss, 2));
    assert_eq!(store.sizes().count(), 0);
}

#[test]
fn a_list_that_nobody_reads_is_folded_by_its_writers() {
    let store = &mut Store::new();
    let mut trips = 0;
    for _ in 0..20_000 {
        trips += run(store, 0, "k", append("+name\n-name\n+other\n")).1;
        assert!(store.sizes().all(|size| size < 8192 + 64));
    }
    assert!(trips < 20_400, "{trips}");
}

#[test]
fn a_full_item_is_folded_and_one_full_of_elements_refuses_more_and_keeps_what_it_has() {
    let store = &mut Store::new();
    store.max_value = 60;
    let names = of_one_shard(12);
    run(store, 0, "k", append(&format!("+{}\n", names[0])));
    for name in &names[..3] {
        for _ in 0..10 {
            let (outcome, _) = run(store, 0, "k", append(&format!("-{name}\n+{name}\n")));
            assert_eq!(outcome, Outcome::Stored(0));
        }
    }
    let mut kept = names[..3].to_vec();
    let mut refused = 0;
    for name in &names[3..] {
        match run(store, 0, "k", append(&format!("+{name}\n"))).0 {
            Outcome::Stored(_) => kept.push(name.clone()),
            outcome => {
                assert_eq!(outcome, Outcome::Refused(FULL));
                refused += 1;
            }
        }
    }
    kept.sort();
    assert!(refused > 0 && kept.len() > 3, "{kept:?}");
    assert_eq!(sorted(run(store, 0, "k", Request::Get).0), kept);
    // Removing is possible.
    assert_eq!(run(store, 0, "k", append(&format!("-{}\n", kept[0]))).0, Outcome::Stored(0));
    assert_eq!(sorted(run(store, 0, "k", Request::Get).0), kept[1..]);
}

#[test]
fn a_listing_above_its_limit_says_so_and_its_elements_can_be_asked_for() {
    let store = &mut Store::new();
    let names = (0..).map(|n| format!("{n:015}"));
    let names: Vec<_> =
        names.filter(|name| shard_of(name.as_bytes()) == 0).take(MAX_ANSWER / 16 + 1).collect();
    let lines = |count: usize| names[..count].iter().map(|name| format!("+{name}\n")).collect::<String>();
    store.put(b"k@kennel:e0", lines(MAX_ANSWER / 16).as_bytes());
    assert_eq!(sorted(run(store, 0, "k", Request::Get).0).len(), MAX_ANSWER / 16);
    store.put(b"k@kennel:e0", lines(MAX_ANSWER / 16 + 1).as_bytes());
    assert_eq!(run(store, 0, "k", Request::Get).0, Outcome::Failed(Failure::TooLarge));
    assert!(matches!(run(store, 0, &format!("k@{}", names[7]), Request::Get).0, Outcome::Value { .. }));
}

#[test]
fn all_elements_live_as_long_as_the_last_append_says() {
    let store = &mut Store::new();
    run(store, 60, "k", append("+ann\n+cid\n"));
    store.now += 50;
    assert_eq!(run(store, 60, "k", append("+x\n-x\n+bob\n")), (Outcome::Stored(0), 1));
    store.now += 50;
    // The reader folds an item, and with it all others begin anew.
    assert_eq!(sorted(run(store, 60, "k", Request::Get).0), ["ann", "bob", "cid"]);
    store.now += 59;
    assert_eq!(sorted(run(store, 60, "k", Request::Get).0), ["ann", "bob", "cid"]);
    store.now += 1;
    assert_eq!(run(store, 60, "k", Request::Get).0, Outcome::Miss);
}

#[test]
fn an_append_to_a_list_that_is_deleted_all_the_time_ends_with_an_error() {
    let store = &mut Store::new();
    let mut task = Task::new(machine(0, "k", append("+ann\n")).unwrap());
    let mut sent = 0;
    let outcome = loop {
        if let Some(outcome) = task.step(store, Some) {
            break outcome;
        }
        store.evict(b"k@kennel:e1");
        sent += 1;
    };
    assert_eq!((outcome, sent), (Outcome::Failed(Failure::Overloaded), 4 * usize::from(MAX_ROUNDS)));
}

/// A command on one element that a client has sent, with the steps and seconds of its begin and end.
#[derive(Debug, Clone, Copy)]
struct Sent {
    element: usize,
    adds: bool,
    steps: (usize, usize),
    seconds: (u64, u64),
}

const ELEMENTS: usize = 6;
const TTL: u64 = 20;

/// Runs writers and readers in a random order. Returns what the promise does not allow.
fn interleave(seed: u64, ttl: u64, mutant: Mutant) -> Result<(), String> {
    let (mut random, mut store) = (Random(seed), Store::new());
    store.max_value = [100, 1_000_000][random.below(2)];
    let names = of_one_shard(ELEMENTS - 1);
    let names: Vec<_> = names.into_iter().chain(["elsewhere".to_owned()]).collect();
    let mut history: Vec<Sent> = Vec::new();
    let mut tasks: Vec<(Task, Vec<usize>, usize, u64)> = Vec::new();
    for step in 1..400 {
        if ttl > 0 && random.below(12) == 0 {
            store.now += 3;
        }
        if tasks.len() < 5 && random.below(4) == 0 {
            let (request, sent): (String, Vec<_>) = match random.below(3) {
                0 => (String::new(), Vec::new()),
                _ => (0..=random.below(2))
                    .map(|_| (random.below(ELEMENTS), random.below(2) == 0))
                    .map(|(element, adds)| {
                        let sign = if adds { '+' } else { '-' };
                        (format!("{sign}{}\n", names[element]), (element, adds))
                    })
                    .unzip(),
            };
            let request = if sent.is_empty() { Request::Get } else { append(&request) };
            let task = Task::new(machine(ttl, "k", request).unwrap());
            let at = history.len();
            let new = sent.iter().enumerate().filter(|(at, (element, _))| {
                // Of two commands on one element the last counts.
                !sent[at + 1..].iter().any(|(later, _)| later == element)
            });
            history.extend(new.map(|(_, &(element, adds))| Sent {
                element,
                adds,
                steps: (step, usize::MAX),
                seconds: (store.now, u64::MAX),
            }));
            tasks.push((task, (at..history.len()).collect(), step, store.now));
        }
        if tasks.is_empty() {
            continue;
        }
        let at = random.below(tasks.len());
        let Some(outcome) = tasks[at].0.step(&mut store, mutant) else { continue };
        let (_, sent, begun, _) = tasks.swap_remove(at);
        match outcome {
            Outcome::Stored(_) => sent.iter().for_each(|at| {
                history[*at].steps.1 = step;
                history[*at].seconds.1 = store.now;
            }),
            Outcome::Refused(FULL) | Outcome::Failed(Failure::Overloaded) => {}
            outcome => {
                let found = sorted(outcome);
                for (element, name) in names.iter().enumerate() {
                    check(&history, element, found.contains(name), begun, store.now, ttl)
                        .map_err(|problem| format!("seed {seed}, step {step}, {name}: {problem}"))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether a read that began at this step and ends now may have found the element, or not have found it.
fn check(
    history: &[Sent],
    element: usize,
    found: bool,
    begun: usize,
    now: u64,
    ttl: u64,
) -> Result<(), String> {
    let of_it = || history.iter().filter(|sent| sent.element == element);
    let is_over = |sent: &Sent| of_it().any(|later| later.steps.0 > sent.steps.1 && later.steps.1 < begun);
    let mut last = of_it().filter(|sent| !is_over(sent));
    let is_known = of_it().any(|sent| sent.steps.1 < begun);
    match found {
        true if last.any(|sent| sent.adds) => Ok(()),
        true => Err("it was removed".to_owned()),
        false if !is_known || last.clone().any(|sent| !sent.adds) => Ok(()),
        false => {
            // Each acknowledged append makes the whole list live on.
            let added = last.map(|sent| sent.seconds.0).min().unwrap_or(0);
            let mut end = added + ttl;
            let mut others: Vec<_> = history.iter().filter(|sent| sent.seconds.1 != u64::MAX).collect();
            others.sort_by_key(|sent| sent.seconds.0);
            for sent in others {
                if sent.seconds.0 >= added && sent.seconds.1 < end {
                    end = end.max(sent.seconds.0 + ttl);
                }
            }
            if ttl > 0 && now >= end { Ok(()) } else { Err("it was added".to_owned()) }
        }
    }
}

#[test]
fn an_element_whose_last_acknowledged_command_added_it_is_shown_in_any_order_of_commands() {
    for seed in 0..300 {
        for ttl in [0, TTL] {
            interleave(seed, ttl, Some).unwrap();
        }
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
    let without_renewal: Mutant = |mut command| {
        if let Operation::Size { exptime } = &mut command.operation {
            *exptime = None;
        }
        Some(command)
    };
    let without_creation: Mutant = |command| {
        let is_empty = matches!(&command.operation, Operation::Store { mode: Mode::Add, .. });
        (!is_empty).then_some(command)
    };
    for (mutant, ttl) in [(without_cas, 0), (without_renewal, TTL)] {
        let caught = (0..200).filter(|seed| interleave(*seed, ttl, mutant).is_err()).count();
        assert!(caught >= 5, "{caught} of 200");
    }
    let store = &mut Store::new();
    let mut task = Task::new(machine(0, "k", append("+ann\n")).unwrap());
    let outcome = std::iter::repeat_with(|| task.step(store, without_creation)).flatten().next();
    assert_eq!(outcome, Some(Outcome::Failed(Failure::Overloaded)));
}
