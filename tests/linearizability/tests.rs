//! Histories that are linearizable and histories that are not. For each allowance: that it allows what it describes and no more.

use super::linearizability::{Allowances, Command, Invocation, Response, Verdict, check, check_key};

use Command::{Delete, Flush, Get, Touch};
use Response::{
    Deleted, Exists, Flushed, Miss, NotANumber, NotFound, NotStored, Number, Stored, Touched, Unknown,
};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;

fn hit(value: &str) -> Response {
    Response::Hit { value: value.into(), unique: None }
}

fn hit_with(value: &str, unique: u64) -> Response {
    Response::Hit { value: value.into(), unique: Some(unique) }
}

fn set(value: &str) -> Command {
    Command::Set(value.into())
}

fn add(value: &str) -> Command {
    Command::Add(value.into())
}

fn replace(value: &str) -> Command {
    Command::Replace(value.into())
}

fn cas(unique: u64, value: &str) -> Command {
    Command::Cas { unique, value: value.into() }
}

fn incr(delta: u64) -> Command {
    Command::Count { delta, decr: false, initial: None }
}

/// One operation from `invoked` to `responded`.
fn at(connection: usize, invoked: u64, responded: u64, command: Command, response: Response) -> Invocation {
    Invocation { connection, client: connection, invoked, responded, command, response }
}

/// Operations one after the other.
fn sequence<const N: usize>(operations: [(usize, Command, Response); N]) -> Vec<Invocation> {
    let each = (1..).zip(operations);
    each.map(|(n, (by, command, response))| at(by, 10 * n, 10 * n + 5, command, response)).collect()
}

fn is_linearizable(history: &[Invocation], allowances: &Allowances) -> bool {
    match check(history, allowances) {
        Verdict::Linearizable => true,
        Verdict::Violated { .. } => false,
        Verdict::Undecided => panic!("undecided"),
    }
}

/// Whether they are linearizable with the lost race allowed.
fn single<const N: usize>(operations: [(usize, Command, Response); N]) -> bool {
    is_linearizable(&sequence(operations), &Allowances::SINGLE)
}

fn exact<const N: usize>(operations: [(usize, Command, Response); N]) -> bool {
    is_linearizable(&sequence(operations), &Allowances::NONE)
}

#[test]
fn each_command_means_what_it_means_to_memcached() {
    let append = |more: &str| Command::Append(more.into());
    let prepend = |more: &str| Command::Prepend(more.into());
    let count = |initial| Command::Count { delta: 2, decr: false, initial: Some(initial) };
    assert!(exact([
        (A, Get, Miss),
        (B, replace("1"), NotStored),
        (B, append("1"), NotStored),
        (B, prepend("1"), NotStored),
        (B, incr(1), NotFound),
        (B, cas(7, "1"), NotFound),
        (B, Touch, NotFound),
        (B, Delete, NotFound),
        (A, add("5"), Stored),
        (B, add("6"), NotStored),
        (A, Get, hit("5")),
        (B, incr(3), Number(8)),
        (A, Command::Count { delta: 9, decr: true, initial: None }, Number(0)),
        (B, append("x"), Stored),
        (B, prepend("y"), Stored),
        (A, Get, hit("y0x")),
        (A, incr(1), NotANumber),
        (B, Touch, Touched),
        (B, Delete, Deleted),
        (A, count(40), Number(40)),
        (A, count(40), Number(42)),
        (B, replace("9"), Stored),
        (A, Get, hit("9")),
        (B, Flush, Flushed),
        (A, Get, Miss),
    ]));
    let after_5 = |command, response| exact([(A, set("5"), Stored), (B, command, response)]);
    for (command, wrong) in [
        (Get, Miss),
        (Get, hit("6")),
        (add("6"), Stored),
        (replace("6"), NotStored),
        (append("6"), NotStored),
        (prepend("6"), NotStored),
        (incr(1), NotFound),
        (incr(1), Number(7)),
        (incr(1), NotANumber),
        (cas(1, "6"), NotFound),
        (Touch, NotFound),
        (Delete, NotFound),
        (count(1), Number(1)),
        (Get, Stored),
    ] {
        assert!(!after_5(command.clone(), wrong.clone()), "{command} -> {wrong}");
    }
    let first = |command, response| exact([(A, command, response)]);
    for (command, wrong) in [
        (Get, hit("5")),
        (add("6"), NotStored),
        (replace("6"), Stored),
        (append("6"), Stored),
        (incr(1), Number(1)),
        (cas(1, "6"), Exists),
        (cas(1, "6"), Stored),
        (Touch, Touched),
        (Delete, Deleted),
        (count(1), NotFound),
    ] {
        assert!(!first(command.clone(), wrong.clone()), "{command} -> {wrong}");
    }
}

#[test]
fn a_unique_is_that_of_one_value() {
    assert!(exact([
        (A, set("1"), Stored),
        (A, Get, hit_with("1", 70)),
        (B, Touch, Touched),
        (B, Get, hit_with("1", 70)),
        (B, cas(70, "2"), Stored),
        (A, cas(70, "3"), Exists),
        (A, Get, hit_with("2", 71)),
    ]));
    let wrong = [
        // The same value with another unique, although it was not stored again.
        vec![(A, Get, hit_with("1", 71))],
        // Another value with the same unique.
        vec![(B, set("2"), Stored), (A, Get, hit_with("2", 70))],
        // The same value, stored again.
        vec![(B, set("1"), Stored), (A, Get, hit_with("1", 70))],
        // Compared with a value that was removed.
        vec![(B, set("1"), Stored), (A, cas(70, "3"), Stored)],
        // Refused, although it is the current value.
        vec![(A, cas(70, "3"), Exists)],
        vec![(B, cas(70, "2"), Stored), (A, cas(70, "3"), Stored)],
        vec![(B, Delete, Deleted), (A, cas(70, "3"), Exists)],
    ];
    for behind in wrong {
        let mut all = vec![(A, set("1"), Stored), (A, Get, hit_with("1", 70))];
        all.extend(behind);
        let history: Vec<Invocation> =
            (1..).zip(all).map(|(n, (by, c, a))| at(by, 10 * n, 10 * n + 5, c, a)).collect();
        assert!(!is_linearizable(&history, &Allowances::SINGLE), "{history:?}");
    }
}

#[test]
fn what_happens_at_the_same_time_may_have_any_order_and_what_does_not_has_its_own() {
    let with_get = |invoked, responded, response| {
        let history = [
            at(A, 10, 12, set("1"), Stored),
            at(A, 20, 40, set("2"), Stored),
            at(B, invoked, responded, Get, response),
        ];
        is_linearizable(&history, &Allowances::NONE)
    };
    assert!(with_get(15, 25, hit("1")) && with_get(15, 25, hit("2")));
    assert!(with_get(13, 19, hit("1")) && !with_get(13, 19, hit("2")));
    assert!(!with_get(41, 45, hit("1")) && with_get(41, 45, hit("2")));
    // What one reader has read, a later one cannot miss.
    let twice = |first: &str, second: &str| {
        let history = [
            at(A, 10, 12, set("1"), Stored),
            at(A, 20, 90, set("2"), Stored),
            at(B, 30, 40, Get, hit(first)),
            at(C, 50, 60, Get, hit(second)),
        ];
        is_linearizable(&history, &Allowances::NONE)
    };
    assert!(twice("1", "1") && twice("1", "2") && twice("2", "2") && !twice("2", "1"));
}

#[test]
fn what_one_connection_sends_takes_effect_in_its_order() {
    let pipelined = |first: &str, second: &str| {
        let history = [
            at(A, 10, 20, set("1"), Stored),
            at(A, 10, 21, Get, hit(first)),
            at(A, 10, 22, set("2"), Stored),
            at(A, 10, 23, Get, hit(second)),
        ];
        is_linearizable(&history, &Allowances::NONE)
    };
    assert!(pipelined("1", "2"));
    assert!(!pipelined("2", "2") && !pipelined("1", "1"));
}

#[test]
fn a_command_with_an_error_may_take_effect_later_or_never() {
    let with = |response: Response| {
        exact([(A, set("1"), Stored), (B, set("2"), Unknown), (A, Get, hit("1")), (A, Get, response)])
    };
    assert!(with(hit("1")) && with(hit("2")));
    assert!(!with(Miss) && !with(hit("3")));
    // It takes effect once.
    assert!(!exact([(B, set("2"), Unknown), (A, Get, hit("2")), (A, set("1"), Stored), (A, Get, hit("2")),]));
    assert!(exact([(A, set("1"), Stored), (B, Delete, Unknown), (A, Get, hit("1")), (A, Get, Miss)]));
    assert!(exact([(B, incr(1), Unknown), (A, set("1"), Stored), (A, Get, hit("2"))]));
}

#[test]
fn a_set_behind_a_miss_may_lose_against_a_change_by_another_connection() {
    for change in [(B, Delete, NotFound), (B, Flush, Flushed)] {
        let history = [(A, Get, Miss), change, (A, set("1"), Stored), (C, Get, Miss)];
        assert!(single(history.clone()), "{history:?}");
        assert!(!exact(history));
    }
    for store in [(B, set("2"), Stored), (B, add("2"), Stored)] {
        let with = |response| [(A, Get, Miss), store.clone(), (A, set("1"), Stored), (C, Get, response)];
        assert!(single(with(hit("2"))) && single(with(hit("1"))));
        assert!(!exact(with(hit("2"))) && exact(with(hit("1"))));
        assert!(!single(with(Miss)), "what was stored meanwhile is not removed");
    }
    let replaced = [(A, Get, Miss), (B, set("2"), Stored), (A, replace("1"), Stored), (C, Get, hit("2"))];
    assert!(single(replaced));
}

#[test]
fn a_set_that_lost_no_race_is_kept() {
    let wrong = [
        // There was no change.
        vec![(A, Get, Miss), (A, set("1"), Stored), (C, Get, Miss)],
        // It received no miss.
        vec![(B, Delete, NotFound), (A, set("1"), Stored), (C, Get, Miss)],
        // Another connection received the miss.
        vec![(A, Get, Miss), (B, Flush, Flushed), (B, set("1"), Stored), (B, Get, Miss)],
        // The change came before the miss.
        vec![(B, Delete, NotFound), (A, Get, Miss), (A, set("1"), Stored), (C, Get, Miss)],
        // The change was its own.
        vec![(A, Get, Miss), (A, Delete, NotFound), (A, set("1"), Stored), (C, Get, Miss)],
        // The miss has ended: by a set, effective or lost,
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (A, set("1"), Stored),
            (A, set("2"), Stored),
            (C, Get, Miss),
        ],
        // by a delete or flush_all of its own,
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (A, Delete, NotFound),
            (A, set("1"), Stored),
            (C, Get, Miss),
        ],
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (A, Flush, Flushed),
            (A, set("1"), Stored),
            (C, Get, Miss),
        ],
        // or by a read of the value.
        vec![
            (A, Get, Miss),
            (B, set("1"), Stored),
            (A, Get, hit("1")),
            (A, set("2"), Stored),
            (C, Get, hit("1")),
        ],
        // Reads and failed stores change nothing.
        vec![
            (A, Get, Miss),
            (B, Get, Miss),
            (B, replace("2"), NotStored),
            (B, Touch, NotFound),
            (A, set("1"), Stored),
            (C, Get, Miss),
        ],
        // A later miss is a new one.
        vec![(A, Get, Miss), (B, Delete, NotFound), (A, Get, Miss), (A, set("1"), Stored), (C, Get, Miss)],
        // A lost store has changed nothing, so the next one cannot have lost against it.
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (C, Get, Miss),
            (A, set("1"), Stored),
            (C, set("2"), Stored),
            (D, Get, Miss),
        ],
        // Five misses do not make the sets of others vanish.
        vec![(A, Get, Miss), (B, Get, Miss), (C, Delete, NotFound), (D, set("1"), Stored), (D, Get, Miss)],
        // Only set and replace may return STORED without an effect.
        vec![(A, Get, Miss), (B, Delete, NotFound), (A, add("1"), Stored), (C, Get, Miss)],
        vec![
            (A, Get, Miss),
            (B, set("1"), Stored),
            (A, Command::Append("x".into()), Stored),
            (C, Get, hit("1")),
        ],
        vec![(A, Get, Miss), (B, set("1"), Stored), (A, incr(1), Number(2)), (C, Get, hit("1"))],
        vec![(A, Get, Miss), (B, set("1"), Stored), (A, Delete, Deleted), (C, Get, hit("1"))],
        vec![(A, Get, Miss), (B, set("1"), Stored), (A, Flush, Flushed), (C, Get, hit("1"))],
    ];
    for all in wrong {
        let each = (1..).zip(all);
        let history: Vec<Invocation> = each.map(|(n, (by, c, a))| at(by, 10 * n, 10 * n + 5, c, a)).collect();
        assert!(!is_linearizable(&history, &Allowances::SINGLE), "{history:#?}");
    }
}

#[test]
fn a_change_counts_from_the_invocation_of_the_miss() {
    // The delete was executed before the miss, and after the miss was invoked.
    let history = |deleted: (u64, u64), found: (u64, u64)| {
        let history = [
            at(D, 1, 2, set("0"), Stored),
            at(B, deleted.0, deleted.1, Delete, Deleted),
            at(A, found.0, found.1, Get, Miss),
            at(A, 50, 55, set("1"), Stored),
            at(C, 60, 65, Get, Miss),
        ];
        is_linearizable(&history, &Allowances::SINGLE)
    };
    assert!(history((10, 30), (20, 40)));
    assert!(history((20, 30), (10, 40)));
    assert!(!history((10, 18), (20, 40)));
    // A read returned a miss before the relevant miss was invoked: the delete had been executed by then.
    let seen_before = [
        at(D, 1, 2, set("0"), Stored),
        at(B, 10, 30, Delete, Deleted),
        at(C, 12, 14, Get, Miss),
        at(A, 20, 40, Get, Miss),
        at(A, 50, 55, set("1"), Stored),
        at(C, 60, 65, Get, Miss),
    ];
    assert!(!is_linearizable(&seen_before, &Allowances::SINGLE));
    // At the same time as the set, it may come before or after it.
    let late = |response| {
        let set = at(A, 20, 40, set("1"), Stored);
        [at(A, 10, 15, Get, Miss), set, at(B, 30, 50, Delete, response), at(C, 60, 65, Get, Miss)]
    };
    assert!(is_linearizable(&late(NotFound), &Allowances::SINGLE));
    assert!(!is_linearizable(&late(NotFound), &Allowances::NONE));
    assert!(is_linearizable(&late(Deleted), &Allowances::NONE));
}

#[test]
fn an_add_is_exclusive_and_may_lose_a_race_with_not_stored_alone() {
    let both = [(A, Get, Miss), (B, Get, Miss), (A, add("1"), Stored), (B, add("2"), Stored)];
    assert!(!single(both));
    let at_once = [at(A, 10, 30, add("1"), Stored), at(B, 20, 40, add("2"), Stored)];
    assert!(!is_linearizable(&at_once, &Allowances::SINGLE));
    let between =
        [at(A, 10, 30, add("1"), Stored), at(C, 15, 45, Delete, Deleted), at(B, 20, 40, add("2"), Stored)];
    assert!(is_linearizable(&between, &Allowances::NONE));
    assert!(single([(A, Get, Miss), (B, Delete, NotFound), (A, add("1"), NotStored), (C, Get, Miss)]));
    assert!(!exact([(A, Get, Miss), (B, Delete, NotFound), (A, add("1"), NotStored), (C, Get, Miss)]));
    assert!(!single([(A, Get, Miss), (A, add("1"), NotStored), (C, Get, Miss)]));
    assert!(!single([(A, Get, Miss), (B, Delete, NotFound), (C, add("1"), NotStored)]));
}

#[test]
fn an_ma_that_lost_a_race_may_be_refused_and_no_other_is_nor_is_a_replace() {
    let begin = || Command::Count { delta: 1, decr: false, initial: Some(7) };
    let without = Allowances { refusal: false, ..Allowances::SINGLE };
    let refused = [(A, Get, Miss), (B, Delete, NotFound), (A, begin(), NotStored), (C, Get, Miss)];
    assert!(single(refused.clone()) && !is_linearizable(&sequence(refused), &without));
    // There was no change; it received no miss; it is refused although it could have incremented the value.
    assert!(!single([(A, Get, Miss), (A, begin(), NotStored)]));
    assert!(!single([(A, Get, Miss), (B, set("1"), Stored), (A, replace("2"), NotStored)]));
    assert!(!single([(A, Get, Miss), (B, set("1"), Stored), (A, begin(), NotStored)]));
    assert!(!single([(B, Delete, NotFound), (A, begin(), NotStored)]));
}

#[test]
fn a_delete_may_answer_for_any_moment_at_which_it_ran_and_for_no_other() {
    let without = Allowances { delete_reads_first: false, ..Allowances::SINGLE };
    let added = |deleted: (u64, u64)| {
        [
            at(A, 10, 30, add("1"), Stored),
            at(B, deleted.0, deleted.1, Delete, NotFound),
            at(A, 50, 55, Get, Miss),
        ]
    };
    assert!(is_linearizable(&added((20, 40)), &Allowances::SINGLE));
    assert!(!is_linearizable(&added((20, 40)), &without));
    assert!(!is_linearizable(&added((31, 40)), &Allowances::SINGLE));
    let twice = |deleted: (u64, u64)| {
        [
            at(A, 1, 5, set("1"), Stored),
            at(A, 10, 30, Delete, Deleted),
            at(B, deleted.0, deleted.1, Delete, Deleted),
        ]
    };
    assert!(is_linearizable(&twice((20, 40)), &Allowances::SINGLE));
    assert!(!is_linearizable(&twice((20, 40)), &without));
    assert!(!is_linearizable(&twice((31, 40)), &Allowances::SINGLE));
    // A read returned the value before it began.
    let seen = [
        at(A, 10, 30, add("1"), Stored),
        at(C, 12, 15, Get, hit("1")),
        at(B, 20, 40, Delete, NotFound),
        at(A, 50, 55, Get, Miss),
    ];
    assert!(!is_linearizable(&seen, &Allowances::SINGLE));
}

#[test]
fn a_present_value_is_found_by_every_reader() {
    assert!(!single([(A, Get, Miss), (B, set("1"), Stored), (A, Get, Miss)]));
    assert!(!single([(A, set("1"), Stored), (B, Get, Miss)]));
}

/// Operations of clients that use another connection each time.
fn pooled<const N: usize>(operations: [(usize, usize, Command, Response); N]) -> Vec<Invocation> {
    let each = (1..).zip(operations).map(|(n, (client, connection, command, response))| Invocation {
        client,
        ..at(connection, 10 * n, 10 * n + 5, command, response)
    });
    each.collect()
}

#[test]
fn a_pools_set_may_be_counted_for_its_oldest_miss_once_and_for_no_other_pools() {
    let (p, q) = (100, 200);
    let one = [(p, 1, Get, Miss), (q, 2, Delete, NotFound), (p, 3, set("1"), Stored), (q, 2, Get, Miss)];
    assert!(is_linearizable(&pooled(one.clone()), &Allowances::pooled(1000)));
    assert!(!is_linearizable(&pooled(one.clone()), &Allowances::SINGLE));
    assert!(!is_linearizable(&pooled(one), &Allowances::pooled(10)), "max_rebuild is over");
    let twice = [
        (p, 1, Get, Miss),
        (q, 2, Delete, NotFound),
        (p, 3, set("1"), Stored),
        (p, 4, set("2"), Stored),
        (q, 2, Get, Miss),
    ];
    assert!(!is_linearizable(&pooled(twice), &Allowances::pooled(1000)), "one miss is one set");
    let others = [(p, 1, Get, Miss), (q, 2, Delete, NotFound), (q, 3, set("1"), Stored), (q, 2, Get, Miss)];
    assert!(!is_linearizable(&pooled(others), &Allowances::pooled(1000)));
    let shown = [
        (p, 1, Get, Miss),
        (p, 1, set("0"), Stored),
        (q, 2, Delete, Deleted),
        (p, 3, set("1"), Stored),
        (q, 2, Get, Miss),
    ];
    assert!(!is_linearizable(&pooled(shown), &Allowances::pooled(1000)), "the miss has ended");
}

#[test]
fn what_a_pool_stores_on_another_connection_may_be_older_than_its_own_bump() {
    for (store, response) in [(add("1"), NotStored), (set("1"), Stored)] {
        let stored_by = |connection| {
            [
                (7, 1, Get, Miss),
                (7, 1, Command::Bump, Flushed),
                (7, connection, store.clone(), response.clone()),
                (8, 2, Get, Miss),
            ]
        };
        assert!(is_linearizable(&pooled(stored_by(3)), &Allowances::pooled(1000)), "{store:?}");
        assert!(!is_linearizable(&pooled(stored_by(3)), &Allowances::SINGLE), "{store:?}");
        assert!(
            !is_linearizable(&pooled(stored_by(1)), &Allowances::pooled(1000)),
            "{store:?}: its own is newer"
        );
    }
}

#[test]
fn a_value_from_before_a_delete_is_not_served_after_it() {
    let resurrects = |history: &[Invocation]| check_key(history, &Allowances::SINGLE).is_err();
    let stale = [(A, Get, Miss), (B, Delete, NotFound), (A, set("1"), Stored), (C, Get, hit("1"))];
    assert!(single(stale.clone()) && resurrects(&sequence(stale)));
    let fine = [
        vec![(A, Get, Miss), (B, Delete, NotFound), (A, set("1"), Stored), (C, Get, Miss)],
        // It followed its own delete, its own set, or a miss after the delete.
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (A, Delete, NotFound),
            (A, set("1"), Stored),
            (C, Get, hit("1")),
        ],
        vec![
            (A, Get, Miss),
            (A, set("0"), Stored),
            (B, Delete, Deleted),
            (A, set("1"), Stored),
            (C, Get, hit("1")),
        ],
        vec![
            (A, Get, Miss),
            (B, Delete, NotFound),
            (A, Get, Miss),
            (A, set("1"), Stored),
            (C, Get, hit("1")),
        ],
        // There was no miss.
        vec![(B, Delete, NotFound), (A, set("1"), Stored), (C, Get, hit("1"))],
    ];
    for all in fine {
        let each = (1..).zip(all);
        let history: Vec<Invocation> = each.map(|(n, (by, c, a))| at(by, 10 * n, 10 * n + 5, c, a)).collect();
        assert_eq!(check_key(&history, &Allowances::SINGLE), Ok(Verdict::Linearizable));
    }
    // Not acknowledged when the read began.
    let unacknowledged = [
        at(A, 10, 15, Get, Miss),
        at(B, 20, 60, Delete, NotFound),
        at(A, 30, 35, set("1"), Stored),
        at(C, 50, 55, Get, hit("1")),
    ];
    assert!(!resurrects(&unacknowledged));
    // Eighty misses, and the first client fills after the delete.
    let mut eighty: Vec<Invocation> = (0..80).map(|n| at(n, 10, 20, Get, Miss)).collect();
    eighty.push(at(80, 30, 35, Delete, NotFound));
    eighty.push(at(0, 40, 45, set("1"), Stored));
    assert!(!resurrects(&eighty));
    eighty.push(at(81, 50, 55, Get, hit("1")));
    assert!(resurrects(&eighty));
}

#[test]
fn a_failure_shows_the_history_and_what_found_no_place() {
    let history = sequence([(A, set("1"), Stored), (B, Get, Miss)]);
    let why = check_key(&history, &Allowances::SINGLE).expect_err("a present value was not found");
    assert!(why.contains("0: set 1 -> STORED"), "{why}");
    assert!(why.lines().any(|line| line.starts_with('!') && line.ends_with("1: get -> END")), "{why}");
}

#[test]
fn a_long_history_of_many_at_once_is_decided() {
    // Six connections that each set and read in turn, all at the same time.
    let mut history = Vec::new();
    for round in 0..60 {
        for by in 0..6 {
            let from = 100 * round + by as u64;
            history.push(at(by, from, from + 60, set(&format!("{round}x{by}")), Stored));
        }
        let last = format!("{round}x{}", round % 6);
        for by in 0..6 {
            let from = 100 * round + 75 + by as u64;
            history.push(at(by, from, from + 10, Get, hit(&last)));
        }
    }
    assert!(is_linearizable(&history, &Allowances::SINGLE));
    history.push(at(3, 60 * 100, 60 * 100 + 1, Get, hit("0x0")));
    assert!(!is_linearizable(&history, &Allowances::SINGLE));
}
