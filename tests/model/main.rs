//! The guard under a model checker: every state that two sidecars, two clients, one key and one tag can come to, and what
//! must hold of them. docs/model.md says what is modelled, what is left out, and what that took.
//!
//! `KENNEL_MODEL=full` explores what takes minutes, and wants an optimised build.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod plan;
mod server;
mod canon;
mod operation;
mod world;
mod checker;

use checker::explore;
use plan::{Mutant, Plan};

fn keeps_the_promises(plan: &Plan) {
    let began = tokio::time::Instant::now();
    match explore(plan) {
        Ok(explored) => println!("{}: {explored:?} in {:?}", plan.name, began.elapsed()),
        Err(found) => {
            panic!(
                "{}\n\n{}: {} (found among {} states)",
                found.trace.join("\n"),
                plan.name,
                found.broken.0,
                found.states
            )
        }
    }
}

/// What is broken on purpose shows, as the breaking of this promise.
fn is_caught(mutant: Mutant, plan: Plan, as_breaking: &str) {
    let plan = Plan { mutant: Some(mutant), ..plan };
    match explore(&plan) {
        Err(found) => {
            println!("{mutant:?}: {} after {} states", found.broken.0, found.states);
            assert!(
                found.broken.0.starts_with(as_breaking),
                "{}\n{mutant:?}: {}",
                found.trace.join("\n"),
                found.broken.0
            );
        }
        Ok(explored) => panic!("{mutant:?} was not caught in {explored:?}"),
    }
}

#[test]
fn probe() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (i, f) = (number("I"), number("F"));
    let mut plan = if number("T") == 1 { Plan::together("probe", i, f) } else { Plan::apart("probe", i, f) };
    plan.renews = number("R") == 1;
    plan.whole_rounds = number("W") == 1;
    plan.expiries = number("A");
    keeps_the_promises(&plan);
}
