//! Small schedules of the kinds that compare and swap, each explored to its end: two or three clients with one or two commands each, in
//! every order in which servers may carry out what was sent, with one fault at any point: a server evicts all that it has, or a client
//! gives up and what it has sent is carried out up to some place, or never. Not explored: `lock`, whose renewal depends on time, moving
//! clocks, and more than one fault.

use std::time::Duration;

use kennel::kinds::{Copied, Counter, Kind, List, Log, Outcome, Request, Table, Verb, Window};

use super::mutants::Mutant;
use super::orders::{self, Ask, Case};

const COUNT: Request<'_> = Request::Count { decr: false, delta: 1, initial: None };

fn ask(key: &'static str, own: usize, request: Request<'static>) -> Ask {
    Ask { key, own, request }
}

fn store(key: &'static str, own: usize, verb: Verb, data: &'static str) -> Ask {
    ask(key, own, Request::Store { verb, data: data.as_bytes(), flags: 0, exptime: 0 })
}

/// Explores a schedule in all orders, without and with each of these mutants.
fn explore(name: &str, case: Case<'_>, mutants: &[Mutant]) {
    let (runs, ends) = orders::explore(&case).unwrap_or_else(|why| panic!("{name}: {why}"));
    println!("{name}: {runs} runs, {ends} of them to the end");
    assert!(ends > 10, "{name}: hardly anything happened");
    for mutant in mutants {
        let caught = orders::explore(&Case { mutant: Some(*mutant), ..case });
        assert!(caught.is_err(), "{name}: {mutant:?} was not caught");
    }
}

fn text(outcome: &Outcome) -> Option<String> {
    match outcome {
        Outcome::Value { data, .. } => Some(String::from_utf8_lossy(data).into_owned()),
        Outcome::Miss => Some(String::new()),
        _ => None,
    }
}

fn is_acknowledged(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stored(_) | Outcome::Counted(..) | Outcome::Deleted)
}

/// A read of both copies, and one of either alone.
fn reads_of_copies() -> [(Ask, Option<usize>); 3] {
    let get = ask("c", 1, Request::Get);
    [(get, Some(1)), (get, Some(0)), (get, None)]
}

#[test]
fn a_counter_with_two_copies_lacks_no_acknowledged_count_whatever_the_order() {
    let kind = Kind::Copied(Copied { of: Some(Box::new(Kind::Counter(Counter { ttl: Duration::ZERO }))) });
    let count = ask("c", 1, COUNT);
    let check = |before: u64| {
        move |outcomes: &[Vec<Outcome>], reads: &[Outcome], _: bool| {
            let all = outcomes.iter().flatten();
            let least = before + all.clone().filter(|outcome| is_acknowledged(outcome)).count() as u64;
            let most = before + all.count() as u64;
            let bad = reads.iter().enumerate().find(|(at, read)| match text(read) {
                Some(number) => !(least..=most).contains(&number.parse().unwrap_or(0)),
                None => *at == 2,
            });
            bad.map(|(at, _)| format!("read {at} is not from {least} to {most}"))
        }
    };
    for (name, before) in [("a new counter", &[][..]), ("a counter", &[count])] {
        let case = Case {
            kind: &kind,
            before,
            clients: &[&[count], &[count]],
            fails: true,
            mutant: None,
            check: &check(before.len() as u64),
            reads: &reads_of_copies(),
        };
        explore(name, case, &[Mutant::FirstWithoutCompare, Mutant::SecondWithoutCompare]);
    }
}

#[test]
fn a_session_with_two_copies_is_one_that_was_stored_whatever_the_order() {
    let kind = Kind::Copied(Copied { of: None });
    let case = Case {
        kind: &kind,
        before: &[store("c", 1, Verb::Set, "old")],
        clients: &[&[store("c", 1, Verb::Set, "a")], &[store("c", 1, Verb::Set, "b")]],
        fails: true,
        mutant: None,
        check: &|outcomes, reads, _| {
            let is_old = !outcomes.iter().flatten().any(is_acknowledged);
            let is_right = |read: &str| ["a", "b"].contains(&read) || is_old && read == "old";
            let bad = reads.iter().enumerate().find(|(at, read)| match text(read) {
                Some(read) => !is_right(&read),
                None => *at == 2,
            });
            bad.map(|(at, _)| format!("read {at} is wrong"))
        },
        reads: &reads_of_copies(),
    };
    explore("sessions", case, &[]);
}

#[test]
fn a_list_that_is_folded_loses_no_element_whatever_the_order() {
    let kind = Kind::List(List { ttl: Duration::ZERO });
    // These elements are in the same item.
    let append = |lines| store("l", 1, Verb::Append, lines);
    let get = ask("l", 1, Request::Get);
    let case = Case {
        kind: &kind,
        before: &[append("+ann\n-ann\n+user:1\n")],
        clients: &[&[append("+b\n")], &[append("-user:1\n")], &[get, get]],
        fails: true,
        mutant: None,
        check: &|outcomes, reads, is_lost| {
            let listed = text(&reads[0]).unwrap_or_else(|| "none".to_owned());
            let has = |element: &str| listed.lines().any(|line| line == element);
            let is_done = |client: usize| is_acknowledged(&outcomes[client][0]);
            let is_wrong = !is_lost && is_done(0) && !has("b") || is_done(1) && has("user:1") || has("ann");
            is_wrong.then(|| format!("the list has {listed:?}"))
        },
        reads: &[(get, None)],
    };
    explore("a list", case, &[Mutant::FoldWithoutCompare]);
}

#[test]
fn a_listing_of_a_table_lacks_no_stored_element_whatever_the_order() {
    let kind = Kind::Table(Table { ttl: Duration::ZERO });
    // These names are in the same item.
    let get = ask("t", 1, Request::Get);
    let set = |key| store(key, 1, Verb::Set, "v");
    let delete = |key| ask(key, 1, Request::Delete);
    let case = Case {
        kind: &kind,
        before: &[set("t/ann"), delete("t/ann"), set("t/user:1")],
        clients: &[&[set("t/b")], &[delete("t/user:1")], &[get], &[get]],
        fails: false,
        mutant: None,
        check: &|outcomes, reads, is_lost| {
            let listed = text(&reads[0]).unwrap_or_else(|| "none".to_owned());
            let has = |name: &str| listed.lines().any(|line| line == name);
            let is_done = |client: usize| is_acknowledged(&outcomes[client][0]);
            let is_wrong = !is_lost && is_done(0) && !has("b") || is_done(1) && has("user:1") || has("ann");
            is_wrong.then(|| format!("the table has {listed:?}"))
        },
        reads: &[(get, None)],
    };
    let check_b = |outcomes: &[Vec<Outcome>], reads: &[Outcome], is_lost: bool| {
        let listed = text(&reads[0]).unwrap_or_else(|| "none".to_owned());
        let is_wrong =
            !is_lost && is_acknowledged(&outcomes[0][0]) && !listed.lines().any(|line| line == "b");
        is_wrong.then(|| format!("the table has {listed:?}"))
    };
    let deleted = Case {
        clients: &[&[set("t/b")], &[ask("t", 1, Request::Delete)]],
        fails: true,
        // A client that leaves may leave the element without its name, which the delete has removed.
        check: &|outcomes, reads, is_lost| {
            let is_lost = is_lost || !is_acknowledged(&outcomes[0][0]);
            let listed = text(&reads[0]).unwrap_or_else(|| "none".to_owned());
            let is_there = text(&reads[1]).is_some_and(|value| value == "v");
            let is_listed = listed.lines().any(|line| line == "b");
            (!is_lost && is_listed != is_there)
                .then(|| format!("the table has {listed:?}, and b: {is_there}"))
        },
        reads: &[(get, None), (ask("t/b", 1, Request::Get), None)],
        ..case
    };
    explore("a table that is deleted", deleted, &[Mutant::FoldWithoutCompare]);
    let left = Case { clients: &[&[set("t/b")], &[get, get]], fails: true, check: &check_b, ..case };
    explore("a table, and one client that leaves", left, &[]);
    explore("a table", case, &[Mutant::FoldWithoutCompare]);
}

#[test]
fn a_log_has_each_entry_once_and_so_has_a_tail_whatever_the_order() {
    let kind = Kind::Log(Log { window: Duration::from_secs(60), slot: Duration::from_secs(10) });
    let append = |entry| store("g", 1, Verb::Append, entry);
    let tail = ask("g@*", 1, Request::Get);
    let case = Case {
        kind: &kind,
        before: &[],
        clients: &[&[append("a\n"), append("b\n")], &[append("c\n")], &[tail, tail]],
        fails: true,
        mutant: None,
        check: &|outcomes, reads, is_lost| {
            let lines = |outcome: &Outcome, skip: usize| -> Vec<String> {
                text(outcome).unwrap_or_default().lines().skip(skip).map(str::to_owned).collect()
            };
            let whole = lines(&reads[0], 0);
            let mut seen: Vec<String> = outcomes[2].iter().flat_map(|answer| lines(answer, 1)).collect();
            seen.extend(lines(&reads[1], 1));
            let times = |all: &[String], entry: &str| all.iter().filter(|line| *line == entry).count();
            let all = [("a", outcomes[0].first()), ("b", outcomes[0].get(1)), ("c", outcomes[1].first())];
            let is_right = all.iter().all(|(entry, outcome)| {
                let least = usize::from(outcome.is_some_and(is_acknowledged));
                [&whole, &seen].iter().all(|lines| (least..=1).contains(&times(lines, entry)))
            });
            let place = |entry: &str| whole.iter().position(|line| line == entry);
            let is_in_order = times(&whole, "b") == 0 || place("a") < place("b");
            // Behind a loss, a cursor is of no use.
            (!(is_lost || is_right && is_in_order))
                .then(|| format!("the log has {whole:?}, and the tail has seen {seen:?}"))
        },
        reads: &[(ask("g", 1, Request::Get), None), (tail, None)],
    };
    explore("a log", case, &[]);
}

#[test]
fn a_visitor_counts_once_whatever_the_order() {
    let window = Window { window: Duration::from_secs(60), slots: 3, smooth: false, unique: true };
    let add = store("w:ann", 1, Verb::Add, "");
    let case = Case {
        kind: &Kind::Window(window),
        before: &[],
        clients: &[&[add], &[add], &[add]],
        fails: true,
        mutant: None,
        check: &|outcomes, reads, is_lost| {
            let is_counted = outcomes.iter().flatten().any(is_acknowledged);
            let sum = text(&reads[0]).unwrap_or_default();
            // A client that leaves may have marked the visitor without a count.
            let has_left = outcomes.iter().flatten().any(|outcome| matches!(outcome, Outcome::Failed(_)));
            let is_right = is_lost || sum == "1" || !is_counted && has_left && ["", "0"].contains(&&*sum);
            (!is_right).then(|| format!("the sum is {sum:?}"))
        },
        reads: &[(ask("w", 1, Request::Get), None)],
    };
    explore("a visitor", case, &[Mutant::SetForAdd]);
}
