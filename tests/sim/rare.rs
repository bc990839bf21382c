//! Runs in which a schedule that is rare elsewhere is frequent, for the mutants that only such schedules reveal.

use std::time::Duration;

use super::mutants::Mutant;
use super::near::{plan_near, with_near_in_some};
use super::places::plan_places;
use super::plan::{Faults, Guarded, Plan, tag_name};
use super::seeds::MakePlan;

/// All of them.
pub const ALL: [MakePlan; 8] =
    [changing, overtaken, lost_tags, late_sets, late_repairs, lost_leases, slow_clients, far_servers];

/// Clients send little but `incr`, `append`, `touch` …
pub fn changing(seed: u64, mutant: Option<Mutant>) -> Plan {
    Plan { changes: true, ..with_near_in_some(Plan::new(seed, false, mutant)) }
}

/// Bumps overtake each other, of tags whose versions are cached.
pub fn overtaken(seed: u64, mutant: Option<Mutant>) -> Plan {
    Plan { tag_cache: 200, faults: Faults::default(), ..Plan::storm(seed, mutant) }
}

/// All keys have the same tag, which is lost while values remain that were sealed before its last bump.
pub fn lost_tags(seed: u64, mutant: Option<Mutant>) -> Plan {
    let faults = Faults { evict_tag: 250, ..Faults::default() };
    let plan = Plan { think: 600, invalidators: (2, 600), faults, ..Plan::new(seed, true, mutant) };
    with_one_tag(Plan { copies: false, faulty_server: None, ..plan })
}

/// A program that bypasses Kennel stores things under the keys of tags: of one that all keys have, or of tags with two copies.
pub fn spoilt_tags(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = if seed.is_multiple_of(2) { lost_tags(seed, mutant) } else { Plan::copied_tags(seed, mutant) };
    Plan { faults: Faults { evict_tag: 0, spoil_tag: 250, ..plan.faults }, ..plan }
}

/// Every second request is a `set` without a miss, and commands are often delayed between its read and its store.
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

/// One of the two copies of a tag is lost all the time, on a server that is suspended for about as long as a bump waits for it.
/// The tag is then read before the bump and repaired after it, by a client that read one copy before the bump and the other one
/// after it.
pub fn late_repairs(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::copied_tags(seed, mutant);
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

/// Copies of tags are lost all the time, on servers whose places change and that are suspended.
fn late_repairs_of_places(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = plan_places(seed, mutant);
    with_one_tag(Plan {
        copies: true,
        tag_cache: 0,
        moves: 200,
        longest: 300,
        delay: 10,
        pause: 20,
        think: 100,
        invalidators: (2, 400),
        faults: Faults { evict_tag: 300, stop: 1000, ..Faults::default() },
        ..plan
    })
}

/// Seeds that have found a violation.
const FOUND: [(MakePlan, u64); 4] = [
    // A copy of a tag was restored from the other, whose place had ended meanwhile, after a bump in both places. Both were on one
    // server, because the two others were away.
    (late_repairs_of_places, 5366),
    // The same, in an earlier revision.
    (plan_places, 477_318),
    // A winner reads the tags after a bump, and the stub before it. A client that lost fills by the same CAS on another connection.
    (plan_places, 367_126),
    // A winner reads its key again after a bump. A client that lost, before the bump and through another sidecar, fills by the same
    // CAS.
    (plan_places, 3_038_189),
];

/// How many there are.
pub const ALL_FOUND: u64 = FOUND.len() as u64;

/// Each of them.
pub fn found(seed: u64, mutant: Option<Mutant>) -> Plan {
    let (planned, seed) = FOUND[(seed % ALL_FOUND) as usize];
    planned(seed, mutant)
}

/// Keys are invalidated while they are built, and the clients that build them disconnect.
pub fn lost_leases(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::new(seed, true, mutant);
    let (sidecars, faults) = (plan.sidecars.max(2), Faults { disconnect: 100, ..Faults::default() });
    let (copies, faulty_server) = (false, None);
    Plan { sidecars, copies, faulty_server, think: 600, pause: 50, invalidators: (2, 600), faults, ..plan }
}

/// Every third rebuild takes longer than `max_rebuild`, or never ends.
pub fn slow_clients(seed: u64, mutant: Option<Mutant>) -> Plan {
    let plan = Plan::new(seed, true, mutant);
    let (copies, faulty_server, faults) = (false, None, Faults { slow_winner: 3, ..Faults::default() });
    Plan { copies, faulty_server, think: 100, pause: 300, invalidators: (2, 600), faults, ..plan }
}

/// The latency is so long and `near` so short that it matters from when the age of a near value counts.
pub fn far_servers(seed: u64, mutant: Option<Mutant>) -> Plan {
    let mut plan = plan_near(seed, mutant);
    for guarded in &mut plan.keys {
        guarded.policy.near = Duration::from_millis(60);
    }
    Plan { delay: 140, pause: 50, think: 100, invalidators: (2, 2000), ..plan }
}

/// The rules of all keys have the same tag and no other.
fn with_one_tag(plan: Plan) -> Plan {
    let tagged =
        |guarded: &Guarded| Guarded { tags: vec![tag_name(0)], extra: Vec::new(), ..guarded.clone() };
    Plan { tags: 1, extra: 0, keys: plan.keys.iter().map(tagged).collect(), ..plan }
}
