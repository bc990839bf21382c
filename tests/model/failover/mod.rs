//! The agreement on a server's place under the model checker: the production machine (`Agreement`) in every state that two sidecars
//! and the three copies of one record can reach, within the faults of a plan (`plan.rs`). Time advances in ticks, of which a window has
//! two, and four in the schedule of a flush. Ages saturate at a window, so time has no end.
//!
//! In each state, no two sidecars have views of different fences, no fence is used after another one, and nothing built before an
//! acknowledged invalidation is served as fresh. From each state, one in which both sidecars have a view can be reached without
//! another fault.
//!
//! - Nobody answers the question of a sidecar that is refused, so one that alone cannot reach the server moves its place, and one that
//!   alone can returns it: more than happens in a fleet. `suspicion` has the questions and answers: either sidecar loses the server
//!   and reaches it again without end, but no more often than every three ticks, without losses, failures or a third sidecar.
//! - A server that hangs, is unreachable, or returns with old contents differs for the machine only in which of its replies fail.
//! - *Split* plans carry out each read at a time of its own; the others the three reads of a round at one time. Writes are always
//!   carried out one at a time, and those of a sidecar that restarts are delayed.
//! - With a guarded key or a tag, the server keeps their items whatever it loses of the record, so it returns with old contents.
//! - Two states are the same if they differ only in the names of fences, in CASes that no item has, in ages beyond a window, in when the
//!   next round is due (it may begin at any time), or in the version of a record, on which no decision depends.
//!
//! What a search does not end with in the suite, random walks visit.

mod plan;
mod world;
mod guarded;
mod suspicion;
mod canon;
mod search;
mod traces;

use plan::{Left, Mutant, Plan};
use search::{explore, walk};

use crate::checker::Explored;

fn keeps_the_promises(plan: &Plan) {
    let began = tokio::time::Instant::now();
    match explore(plan) {
        Ok(Explored { states, steps }) => {
            println!(
                "{}: {states} states, {steps} steps in {:?}; {}",
                plan.name,
                began.elapsed(),
                crate::memory()
            );
        }
        Err(found) => panic!(
            "{}\n\n{}: {} (found among {} states)",
            found.trace.join("\n"),
            plan.name,
            found.broken.0,
            found.states
        ),
    }
}

const NOTHING: Left =
    Left { failures: 0, refusals: 0, delays: 0, losses: 0, flushes: 0, restarts: 0, wishes: 0 };

/// Each copy is read at a time of its own.
fn split(name: &'static str, left: Left) -> Plan {
    Plan { whole_reads: false, ..Plan::new(name, left) }
}

#[test]
fn places_do_not_overlap_however_copies_are_read() {
    keeps_the_promises(&split("split", NOTHING));
    keeps_the_promises(&split("split, a failure", Left { failures: 1, ..NOTHING }));
    keeps_the_promises(&split("split, a loss", Left { losses: 1, ..NOTHING }));
    keeps_the_promises(&split("split, a restart", Left { restarts: 1, ..NOTHING }));
}

#[test]
fn places_do_not_overlap_in_a_new_pool() {
    keeps_the_promises(&Plan { is_new: true, ..Plan::new("new", NOTHING) });
}

#[test]
fn places_do_not_overlap_when_a_server_fails_and_returns() {
    keeps_the_promises(&Plan::new("a refusal", Left { refusals: 1, ..NOTHING }));
}

#[test]
fn places_do_not_overlap_when_a_server_is_drained() {
    keeps_the_promises(&Plan::new("drained", Left { wishes: 1, ..NOTHING }));
    keeps_the_promises(&Plan::new("drained, back", Left { wishes: 2, ..NOTHING }));
}

#[test]
fn places_need_an_announced_move_to_wait_for_views() {
    let plan = Plan { windows: [4; 2], ..Plan::new("small", Left { wishes: 1, ..NOTHING }) };
    is_caught(Mutant::MovesAtOnce, plan);
}

#[test]
fn places_do_not_overlap_after_a_flush() {
    keeps_the_promises(&Plan::new("a flush", Left { flushes: 1, ..NOTHING }));
}

/// Whoever loses the server and reaches it again, as often as may be: while one sidecar reaches it, its place does not move. Once
/// nobody does, it can.
#[test]
fn places_move_only_if_no_sidecar_reaches_the_server() {
    let plan = Plan { asks: true, ..Plan::new("suspicion", NOTHING) };
    keeps_the_promises(&plan);
    // With two sidecars, whoever has lost the server is answered by the other one, which has not answered this question.
    keeps_the_promises(&Plan { mutant: Some(Mutant::AnswersEndFirst), name: "answers end first", ..plan });
}

#[test]
fn places_need_questions_and_answers() {
    for mutant in [Mutant::AnswersNotRead, Mutant::DoesNotAnswer] {
        let plan = Plan { asks: true, mutant: Some(mutant), ..Plan::new("suspicion", NOTHING) };
        match explore(&plan) {
            Err(found) => {
                println!("{mutant:?}: {} after {} states", found.broken.0, found.states);
                assert!(found.broken.0.starts_with("promise 11"), "{}", found.broken.0);
            }
            Ok(explored) => panic!("{mutant:?} was not caught in {explored:?}"),
        }
    }
}

/// Walks with more faults than a search can end with.
#[test]
fn places_do_not_overlap_on_random_walks() {
    let left = Left { failures: 6, refusals: 4, delays: 3, losses: 3, flushes: 1, restarts: 2, wishes: 3 };
    for guarded in [None, Some(false), Some(true)] {
        for whole_reads in [true, false] {
            let slow = if whole_reads { 0 } else { 3 };
            let plan = Plan { guarded, whole_reads, slow, ..Plan::new("walks", left) };
            if let Some((seed, broken, trace)) = walk(&plan, walks(), 300) {
                panic!("{}\n\n{guarded:?}, {whole_reads}, walk {seed}: {}", trace.join("\n"), broken.0);
            }
        }
    }
}

/// `KENNEL_MODEL_WALKS`, or 150.
fn walks() -> u64 {
    let configured = std::env::var("KENNEL_MODEL_WALKS").ok();
    configured.map_or(150, |text| text.parse().expect("KENNEL_MODEL_WALKS is a number"))
}

/// Explores a plan that takes minutes: to the end only if `KENNEL_MODEL=full`.
fn in_full(plan: Plan) {
    let most = if crate::in_full() { None } else { Some(1_000) };
    keeps_the_promises(&Plan { most, ..plan });
}

#[test]
fn in_full_places_split_and_a_refusal() {
    in_full(split("split, a refusal", Left { refusals: 1, ..NOTHING }));
}

#[test]
fn in_full_places_split_and_a_flush() {
    in_full(split("split, a flush", Left { flushes: 1, ..NOTHING }));
}

#[test]
fn in_full_places_of_a_guarded_key() {
    let plan = Plan::new("a refusal, a guarded key", Left { refusals: 1, ..NOTHING });
    in_full(Plan { guarded: Some(false), ..plan });
}

#[test]
fn in_full_places_of_a_tag() {
    let plan = Plan::new("a refusal, a tag elsewhere", Left { refusals: 1, ..NOTHING });
    in_full(Plan { guarded: Some(true), ..plan });
}

/// The server fails once, and something else happens once, at any time: `guarded` as in a plan.
fn in_full_guarded(guarded: bool, names: [&'static str; 5]) {
    let with = [
        Left { losses: 1, ..NOTHING },
        Left { failures: 1, ..NOTHING },
        Left { flushes: 1, ..NOTHING },
        Left { delays: 1, ..NOTHING },
        Left { restarts: 1, ..NOTHING },
    ];
    for (name, left) in names.into_iter().zip(with) {
        in_full(Plan { guarded: Some(guarded), ..Plan::new(name, Left { refusals: 1, ..left }) });
    }
}

#[test]
fn in_full_places_of_a_guarded_key_with_another_fault() {
    let names = [
        "a guarded key, a refusal, a loss",
        "a guarded key, a refusal, a failure",
        "a guarded key, a refusal, a flush",
        "a guarded key, a refusal, a delay",
        "a guarded key, a refusal, a restart",
    ];
    in_full_guarded(false, names);
}

#[test]
fn in_full_places_of_a_tag_with_another_fault() {
    let names = [
        "a tag elsewhere, a refusal, a loss",
        "a tag elsewhere, a refusal, a failure",
        "a tag elsewhere, a refusal, a flush",
        "a tag elsewhere, a refusal, a delay",
        "a tag elsewhere, a refusal, a restart",
    ];
    in_full_guarded(true, names);
}

#[test]
fn in_full_places_split_with_another_fault() {
    for (name, left) in [
        ("split, a refusal, a loss", Left { losses: 1, ..NOTHING }),
        ("split, a refusal, a failure", Left { failures: 1, ..NOTHING }),
        ("split, a refusal, a flush", Left { flushes: 1, ..NOTHING }),
        ("split, a refusal, a delay", Left { delays: 1, ..NOTHING }),
        ("split, a refusal, a restart", Left { restarts: 1, ..NOTHING }),
    ] {
        in_full(split(name, Left { refusals: 1, ..left }));
    }
}

#[test]
fn in_full_places_with_a_refusal_and_a_failure() {
    in_full(Plan::new("a refusal, a failure", Left { refusals: 1, failures: 1, ..NOTHING }));
}

#[test]
fn in_full_places_with_a_flush_and_a_restart() {
    in_full(Plan::new("a flush, a restart", Left { flushes: 1, restarts: 1, ..NOTHING }));
}

#[test]
fn in_full_places_of_a_new_pool_with_a_failure_and_a_loss() {
    let plan = Plan::new("a new pool, a failure, a loss", Left { failures: 1, losses: 1, ..NOTHING });
    in_full(Plan { is_new: true, ..plan });
}

#[test]
fn in_full_places_with_a_refusal_and_a_loss() {
    in_full(Plan::new("a refusal, a loss", Left { refusals: 1, losses: 1, ..NOTHING }));
}

/// The search reports a mutant.
fn is_caught(mutant: Mutant, plan: Plan) {
    match explore(&Plan { mutant: Some(mutant), ..plan }) {
        Err(found) => {
            println!("{mutant:?}: {} after {} states", found.broken.0, found.states);
            assert!(found.broken.0.starts_with("overlap"), "{}", found.broken.0);
        }
        Ok(explored) => panic!("{mutant:?} was not caught in {explored:?}"),
    }
}

#[test]
fn places_need_a_grace() {
    is_caught(Mutant::NoGrace, Plan::new("small", Left { refusals: 1, ..NOTHING }));
}

#[test]
fn places_need_a_grace_where_only_the_fence_changes() {
    let plan = Plan::new("small", Left { flushes: 1, ..NOTHING });
    is_caught(Mutant::GraceOnlyWhereThePlaceChanges, plan);
}

#[test]
fn places_need_one_window_for_all() {
    let plan = Plan::new("small", Left { refusals: 1, ..NOTHING });
    is_caught(Mutant::WindowsDiffer, Plan { windows: [2, 4], ..plan });
}

#[test]
fn places_need_a_grace_after_a_flush() {
    let left = Left { refusals: 1, flushes: 1, ..NOTHING };
    is_caught(Mutant::SettlesEmptyCopies, Plan::new("small", left));
}
