//! What is explored: which client uses which sidecar, what may happen, and what a mutant removes.

use std::time::Duration;

use kennel::guard::{OnInvalidate, Policy};

/// An invalidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Invalidation {
    Delete,
    Bump,
}

/// Faults. Each counts against the plan's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Whatever is stored under the key: a stub or a value.
    EvictItem,
    EvictLock,
    EvictTag,
    /// A program that bypasses Kennel stores the largest version under the key of the tag.
    SpoilTag,
    /// The server restarts empty; commands on their way have failed.
    Restart,
    /// A reply is lost, or its command arrives after its timeout.
    Lose,
    /// A sidecar ends without notice; any prefix of what it has sent still arrives.
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
    Fault::SpoilTag,
    Fault::Restart,
    Fault::Lose,
    Fault::Kill,
    Fault::Leave,
    Fault::Slow,
];

pub const EVICTIONS: &[Fault] = &[Fault::EvictItem, Fault::EvictLock, Fault::EvictTag];

/// Mutants: each removes one defence, between the guard and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A fill is stored without comparing the CAS.
    FillWithoutCas,
    /// The read after the lock returns what the first read returned, and the mark is set without comparing the CAS.
    NoDoubleCheck,
    /// A lock is deleted without comparing the CAS.
    UnlockWithoutCompare,
    /// A lost tag has the version that the value was sealed with.
    LostTagIsUnmoved,
    /// A fill is sealed with the versions at the time of the `set`.
    SnapshotAtSet,
    /// Leases are never renewed.
    NoRenewal,
    /// A delete does not remove a stub.
    DeleteSparesStub,
    /// Every client gets the lock.
    LockIsShared,
    /// An invalidation with an unknown outcome is acknowledged.
    FailureIsAcknowledged,
    /// A fill wakes no waiter.
    WakesAreLost,
    /// A lock does not expire.
    LocksNeverEnd,
    /// A value is fresh for as long as it is stored.
    StaleIsFresh,
    /// A delete leaves the lock. No other promise than 7 breaks: the old holder's fill fails by its CAS, and the next value, once
    /// stale, is not rebuilt before that holder ends.
    DeleteSparesLock,
    /// A CAS from a connection that has ended is still sent. This does no harm where a restart loses the tags too: what is stored by it
    /// is then sealed with versions that no longer exist.
    CasOutlivesConnection,
}

/// The parameters of one exploration.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: &'static str,
    /// Each client's sidecar.
    pub sidecar_of: [usize; 2],
    /// The sidecars through which the second client invalidates.
    pub invalidates_through: &'static [usize],
    pub invalidation_kinds: &'static [Invalidation],
    /// The maximum number of invalidations.
    pub invalidations: u32,
    /// The maximum number of soft expiries of a value.
    pub expiries: u32,
    /// The commands of a round reach the server together, with nothing in between.
    pub whole_rounds: bool,
    pub kinds: &'static [Fault],
    /// The maximum number of faults.
    pub faults: u32,
    /// Whether leases are renewed long before they expire.
    pub renews: bool,
    pub policy: Policy,
    pub mutant: Option<Mutant>,
    /// Tags are stored on another server, which is never restarted.
    pub tags_elsewhere: bool,
    /// Steps of which only one sidecar knows are taken when another one can learn of them, and states that differ by an exchange
    /// of both sides are one. Fewer states are explored, without missing a violation.
    pub reduced: bool,
    /// The number of threads.
    pub workers: usize,
    /// It runs to the end and takes minutes: memory matters more than the shortest trace.
    pub long: bool,
    /// Only about this many states are explored, the nearest first; liveness is not checked then.
    pub most: Option<usize>,
}

/// How long a value is fresh, in seconds. It differs from any id of a token or waiter.
pub const TTL: u64 = 5_000;

pub fn policy() -> Policy {
    Policy {
        stale_for: Duration::from_secs(20),
        lock_ttl: Duration::from_secs(5),
        max_rebuild: Duration::from_secs(100_000),
        stale_wait: Duration::ZERO,
        cold_wait: Duration::from_secs(2),
        cold_limit: Duration::from_secs(10),
        outage_ttl: Duration::ZERO,
        on_tag: OnInvalidate::Stale,
        on_delete: OnInvalidate::Drop,
        stale_before_expiry: false,
        early_beta: 0.0,
        max_ttl: Duration::ZERO,
        near: Duration::ZERO,
        plan: 0,
    }
}

impl Plan {
    /// Each client has a sidecar of its own.
    pub fn apart(name: &'static str, invalidations: u32, faults: u32) -> Plan {
        Plan {
            name,
            sidecar_of: [0, 1],
            invalidates_through: &[1],
            invalidation_kinds: &[Invalidation::Delete, Invalidation::Bump],
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

    /// Both clients share one sidecar, and invalidations come through either sidecar.
    pub fn together(name: &'static str, invalidations: u32, faults: u32) -> Plan {
        Plan { sidecar_of: [0, 0], invalidates_through: &[0, 1], ..Plan::apart(name, invalidations, faults) }
    }

    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether the two sides are alike, except for the second client's invalidations.
    pub fn has_two_alike(&self) -> bool {
        self.reduced && self.sidecar_of == [0, 1]
    }

    /// Whether a reply may be processed as soon as it is sent: no other operation of that sidecar can come between.
    pub fn receives_at_once(&self) -> bool {
        self.sidecar_of[0] != self.sidecar_of[1]
            && self.invalidates_through.iter().all(|at| *at == self.sidecar_of[1])
    }
}
