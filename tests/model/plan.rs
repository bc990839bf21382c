//! What is explored: who is where, what may happen to them, and what a mutant breaks.

use std::time::Duration;

use kennel::guard::{OnInvalidate, Policy};

/// An invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    Delete,
    Bump,
}

/// What may go wrong. Each costs one of the plan's faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Whatever stands under the key: a stub or a value.
    EvictItem,
    EvictLock,
    EvictTag,
    /// The server comes back empty; what was on its way has failed.
    Restart,
    /// A reply is lost, or its command comes so late that nobody waits for the reply any more.
    Lose,
    /// A sidecar ends without a word; of what it has sent, any part still arrives.
    Kill,
    /// A client leaves while it rebuilds.
    Leave,
    /// A client rebuilds for longer than `max_rebuild`.
    Slow,
}

pub const EVERY_FAULT: &[Fault] = &[
    Fault::EvictItem,
    Fault::EvictLock,
    Fault::EvictTag,
    Fault::Restart,
    Fault::Lose,
    Fault::Kill,
    Fault::Leave,
    Fault::Slow,
];

pub const EVICTIONS: &[Fault] = &[Fault::EvictItem, Fault::EvictLock, Fault::EvictTag];

/// What is broken on purpose, between the guard and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A fill stores whatever stands there.
    FillWithoutCas,
    /// The look behind the lock sees what the read saw, and the mark is put on whatever stands there.
    NoDoubleCheck,
    /// A lock is deleted whoever holds it.
    UnlockWithoutCompare,
    /// A lost tag answers with the version that the value was sealed with.
    LostTagIsUnmoved,
    /// A fill is sealed with the versions of its own moment.
    SnapshotAtSet,
    /// No lease is ever renewed.
    NoRenewal,
    /// A delete leaves alone what it does not find worth a `DELETED`: the stub.
    DeleteSparesStub,
    /// Everybody gets the lock.
    LockIsShared,
    /// An invalidation whose outcome is not known is acknowledged.
    FailureIsAcknowledged,
    /// Whoever waits is not told of a fill.
    BellsAreLost,
    /// A lock has no end of its own.
    LocksNeverEnd,
    /// A value is fresh for as long as it stands there.
    StaleIsFresh,
    /// A delete leaves the lock to its holder.
    DeleteSparesLock,
    /// A CAS is sent though it was read on a connection that has ended.
    CasOutlivesConnection,
}

/// One exploration.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    /// Each client's sidecar.
    pub placed: [usize; 2],
    /// Through which sidecars the second client invalidates.
    pub invalidates_through: &'static [usize],
    pub moves: &'static [Move],
    /// How many of them at most.
    pub invalidations: u32,
    /// How often a value comes to its soft end, at most.
    pub expiries: u32,
    /// The commands of a round reach the server together, and nothing comes between them.
    pub whole_rounds: bool,
    pub kinds: &'static [Fault],
    /// How many of them at most.
    pub faults: u32,
    /// Whether leases are renewed while their end is far.
    pub renews: bool,
    pub policy: Policy,
    pub mutant: Option<Mutant>,
    /// Tags are kept by another server, which is never restarted.
    pub tags_elsewhere: bool,
    /// What only one sidecar knows of is done when somebody else can learn of it, and states that differ by an exchange of
    /// both sides are one. Less is explored, and no less found.
    pub reduced: bool,
    /// How many threads explore it.
    pub workers: usize,
    /// It goes to the end and takes minutes: memory matters more than the shortest trace.
    pub long: bool,
    /// Only about so many states are explored, the nearest first; what must be reachable in the end is not asked then.
    pub most: Option<usize>,
}

/// Seconds that a value is fresh. No number of a ticket or waiter.
pub const TTL: u64 = 5_000;

pub fn policy() -> Policy {
    Policy {
        stale_for: Duration::from_secs(20),
        lock_ttl: Duration::from_secs(5),
        max_rebuild: Duration::from_secs(100_000),
        stale_wait: Duration::ZERO,
        cold_wait: Duration::from_secs(2),
        on_tag: OnInvalidate::Stale,
        on_delete: OnInvalidate::Drop,
        early_beta: 0.0,
        max_ttl: Duration::ZERO,
        near: Duration::ZERO,
    }
}

impl Plan {
    /// Each client has a sidecar of its own.
    pub fn apart(name: &'static str, invalidations: u32, faults: u32) -> Plan {
        Plan {
            name,
            placed: [0, 1],
            invalidates_through: &[1],
            moves: &[Move::Delete, Move::Bump],
            invalidations,
            expiries: 1,
            whole_rounds: false,
            kinds: EVERY_FAULT,
            faults,
            renews: true,
            policy: policy(),
            mutant: None,
            tags_elsewhere: false,
            reduced: true,
            workers: 1,
            long: false,
            most: None,
        }
    }

    /// Both clients share one sidecar, and invalidations come through either.
    pub fn together(name: &'static str, invalidations: u32, faults: u32) -> Plan {
        Plan { placed: [0, 0], invalidates_through: &[0, 1], ..Plan::apart(name, invalidations, faults) }
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether the two sides are alike, but for the second client's invalidations.
    pub fn has_two_alike(&self) -> bool {
        self.reduced && self.placed == [0, 1]
    }

    /// Whether a reply may as well be heard as soon as it is given: nobody else's doings in that sidecar can come between.
    pub fn hears_at_once(&self) -> bool {
        self.placed[0] != self.placed[1] && self.invalidates_through.iter().all(|at| *at == self.placed[1])
    }
}
