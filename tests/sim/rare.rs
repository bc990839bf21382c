//! Runs in which a schedule that is rare in others comes again and again: each for the mutants that show in nothing else.

use std::time::Duration;

use super::mutants::Mutant;
use super::near::{plan_near, sometimes};
use super::plan::{Faults, Guarded, Plan, tag_name};
use super::seeds::Planned;

/// All of them.
pub const ALL: [Planned; 8] =
    [changing, overtaken, lost_tags, late_sets, late_repairs, lost_leases, slow_clients, far_servers];

/// Clients do little else than `incr`, `append`, `touch` …
pub fn changing(seed: u64, mutant: Option<Mutant>) -> Plan {
    Plan { changes: true, ..sometimes(Plan::new(seed, false, mutant)) }
}

/// Bumps overtake each other, of tags whose versions are used again.
pub fn overtaken(seed: u64, mutant: Option<Mutant>) -> Plan {
    Plan { tag_cache: 200, faults: Faults::default(), ..Plan::storm(seed, mutant) }
}

/// Every key has the same tag, which is lost while values still stand that were sealed before it moved.
pub fn lost_tags(seed: u64, mutant: Option<Mutant>) -> Plan {
    let faults = Faults { evict_tag: 250, ..Faults::default() };
    let plan = Plan { think: 600, invalidators: (2, 600), faults, ..Plan::new(seed, true, mutant) };
    with_one_tag(Plan { copies: false, weak: None, ..plan })
}

/// Every second request is a `set` without a miss, and what a sidecar has sent is often held back between the look of one and its
/// store.
pub fn late_sets(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::late(seed, mutant);
    let (sidecars, faults) = (plan.sidecars.max(2), Faults { stall: 400, ..Faults::default() });
    Plan {
        sidecars,
        blind: 2,
        metas: false,
        elsewhere: false,
        changes: false,
        delay: 60,
        pause: 50,
        think: 100,
        invalidators: (2, 600),
        faults,
        ..plan
    }
}

/// Of two copies of a tag one is lost all the time, on a server that stops for about as long as a bump waits for it. So it is read
/// before the bump and brought up behind it, by somebody who heard of the one copy before the bump and of the other behind it.
pub fn late_repairs(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::twice(seed, mutant);
    let (sidecars, faults) =
        (plan.sidecars.max(2), Faults { evict_tag: 100, stop: 1000, ..Faults::default() });
    with_one_tag(Plan {
        sidecars,
        longest: 900,
        delay: 10,
        pause: 20,
        think: 100,
        invalidators: (2, 900),
        faults,
        ..plan
    })
}

/// Keys are invalidated while they are built, and those who build them leave.
pub fn lost_leases(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::new(seed, true, mutant);
    let (sidecars, faults) = (plan.sidecars.max(2), Faults { disconnect: 100, ..Faults::default() });
    let (copies, weak) = (false, None);
    Plan { sidecars, copies, weak, think: 600, pause: 50, invalidators: (2, 600), faults, ..plan }
}

/// Every third build takes longer than `max_rebuild`, or never ends.
pub fn slow_clients(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::new(seed, true, mutant);
    let (copies, weak, faults) = (false, None, Faults { sloth: 3, ..Faults::default() });
    Plan { copies, weak, think: 100, pause: 300, invalidators: (2, 600), faults, ..plan }
}

/// What is kept near comes from so far, and is kept so briefly, that it matters from when its age counts.
pub fn far_servers(seed: u64, mutant: Option<Mutant>) -> Plan {
    let mut plan = plan_near(seed, mutant);
    for guarded in &mut plan.keys {
        guarded.policy.near = Duration::from_millis(60);
    }
    Plan { delay: 140, pause: 50, think: 100, invalidators: (2, 2000), ..plan }
}

/// The rule of every key has one and the same tag.
fn with_one_tag(plan: Plan) -> Plan {
    let tagged =
        |guarded: &Guarded| Guarded { tags: vec![tag_name(0)], extra: Vec::new(), ..guarded.clone() };
    Plan { tags: 1, extra: 0, keys: plan.keys.iter().map(tagged).collect(), ..plan }
}
