//! A state, and what must hold in it.

use std::hash::Hash;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use kennel::guard::leases::{Leases, MissToken, MissTokenId, Polled};
use kennel::guard::{Cas, ItemRef, Now, envelope::Header, envelope::Opened};

use super::canon::Who;
use super::checker::Good;
use super::operation::{Op, OpRef, QueuedCommand, Task};
use super::plan::{Mutant, Plan};
use super::server::{Entry, FIRST_CAS, Server};

/// The monotonic clock, which never advances: that a wait or a lease ends is a step.
pub const MONO: u64 = 10_000_000_000;
/// The wall clock at the start. Every invalidation and every loss of the tag advances it.
pub const WALL: u64 = 1_700_000_000_000;
/// The epoch of the first connection to the server. Epochs have their own range so that they differ from other numbers.
pub const FIRST_EPOCH: u32 = 1 << 30;

/// The description of a violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

#[derive(Clone)]
pub struct Sidecar {
    pub leases: Leases<Who>,
    /// Commands on their way to the server, in order.
    pub queue: Vec<QueuedCommand>,
    pub ops: Vec<(OpRef, Op)>,
    /// The leases that it renews, with their tokens.
    pub held_leases: Vec<(MissTokenId, MissToken)>,
    /// The poller for its waiters, with the item's CAS of its last poll.
    pub poller: Option<Option<Polled>>,
}

/// A sidecar, shared between states until it changes: most steps concern the other one.
#[derive(Clone)]
pub struct Shared(pub Arc<Sidecar>);

impl Deref for Shared {
    type Target = Sidecar;
    fn deref(&self) -> &Sidecar {
        &self.0
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut Sidecar {
        Arc::make_mut(&mut self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Job {
    Idle,
    /// A get that began when this version of the source had been acknowledged.
    Reading {
        floor: u64,
    },
    /// A value is made from this version of the source.
    Building {
        version: u64,
        won: bool,
    },
    Storing {
        version: u64,
        won: bool,
    },
    Invalidating {
        version: u64,
        at: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Client {
    pub job: Job,
    /// An invalidation was in progress at some time since its get began.
    pub disturbed: bool,
    /// Its rebuild has overlapped with another one, and that was counted.
    pub lapsed: bool,
}

#[derive(Clone)]
pub struct World {
    pub server: Server,
    /// The epoch of the connection to the server.
    pub epoch: u32,
    /// The epoch of the connection to the tags' server, which may be another.
    pub epoch_of_tags: u32,
    pub sidecars: [Shared; 2],
    pub clients: [Client; 2],
    /// What ended sidecars have sent, per connection.
    pub orphans: Vec<Vec<QueuedCommand>>,
    /// The source of truth.
    pub source: u64,
    /// The version of the source whose invalidation was acknowledged last.
    pub acked: u64,
    /// How often the tag was lost. That takes time, too.
    pub losses: u64,
    pub faults: u32,
    pub invalidations: u32,
    /// How many soft expiries of a value remain.
    pub expiries: u32,
    /// The value has expired, or there was none, and no client has won since.
    pub reason: bool,
    /// There was no invalidation since the get of the last win began.
    pub undisturbed: bool,
    pub last_winner: Option<usize>,
    /// Wins without a reason.
    pub needless: u32,
    /// The lock that existed when a delete began.
    pub lock_before: Option<u64>,
    /// Which side proceeds before all others.
    pub first: First,
}

/// The side that has begun something of which the other cannot know, because none of it has arrived. All other steps may as well
/// have happened before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum First {
    Neither,
    One(Who),
    Both,
}

impl Sidecar {
    pub fn start() -> Sidecar {
        Sidecar {
            leases: Leases::default(),
            queue: Vec::new(),
            ops: Vec::new(),
            held_leases: Vec::new(),
            poller: None,
        }
    }

    pub fn op(&self, of: OpRef) -> Option<&Op> {
        self.ops.iter().find(|(its, _)| *its == of).map(|(_, op)| op)
    }

    pub fn renews(&self, id: MissTokenId) -> bool {
        self.ops.iter().any(|(_, op)| op.task == Task::Renewal(id))
    }

    /// Whether it holds, or is about to learn that it holds, the lock or stub with this CAS.
    pub fn holds(&self, cas: Cas) -> bool {
        let kept = self
            .held_leases
            .iter()
            .any(|(id, token)| token.lock.or(token.observed_cas) == Some(cas) || self.renews(*id));
        kept || self.ops.iter().any(|(_, op)| op.held_cas == Some(cas))
    }
}

impl World {
    pub fn start(plan: &Plan) -> World {
        World {
            server: Server::start(),
            epoch: FIRST_EPOCH,
            epoch_of_tags: FIRST_EPOCH,
            sidecars: [(); 2].map(|()| Shared(Arc::new(Sidecar::start()))),
            clients: [Client { job: Job::Idle, disturbed: false, lapsed: false }; 2],
            orphans: Vec::new(),
            source: 1,
            acked: 1,
            losses: 0,
            faults: plan.faults,
            invalidations: plan.invalidations,
            expiries: plan.expiries,
            reason: true,
            undisturbed: true,
            last_winner: None,
            needless: 0,
            lock_before: None,
            first: First::Neither,
        }
    }

    /// The time, the same for all.
    pub fn now(&self) -> Now {
        Now { wall: WALL + 2 * (self.source + self.losses), mono: MONO }
    }

    /// The epoch of the connection to this target's server.
    pub fn epoch_at(&self, at: ItemRef) -> u32 {
        match at {
            ItemRef::Value | ItemRef::Lock => self.epoch,
            ItemRef::Tag(_) | ItemRef::TagCopy(_) => self.epoch_of_tags,
        }
    }

    /// How many external steps remain. The number never increases.
    pub fn remaining_steps(&self) -> usize {
        (self.faults + self.invalidations + self.expiries) as usize
    }

    /// Whether nothing is on its way.
    pub fn is_at_rest(&self) -> bool {
        self.orphans.is_empty() && self.sidecars.iter().all(|sidecar| sidecar.queue.is_empty())
    }

    pub fn is(&self, good: Good) -> bool {
        match good {
            Good::Fresh => self.server.item.as_ref().is_some_and(|item| {
                item.is_in_time()
                    && self.is_sealed_with_current_tags(item)
                    && version_of(item) >= Some(self.acked)
            }),
            Good::Answered(client) => {
                matches!(self.clients[client].job, Job::Idle | Job::Building { .. })
            }
        }
    }

    pub fn is_sealed_with_current_tags(&self, item: &Entry) -> bool {
        let Some(tag) = &self.server.tag else { return false };
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return false };
        envelope.tags().all(|(_, version)| version.to_string().as_bytes() == &tag.value[..])
    }

    /// Whether the item would be served as fresh although its version is older than this.
    pub fn is_fresh_before(&self, version: u64) -> bool {
        self.server.item.as_ref().is_some_and(|item| {
            item.is_in_time() && self.is_sealed_with_current_tags(item) && version_of(item) < Some(version)
        })
    }

    /// Whether a stub or lock has a holder that keeps it from expiring.
    pub fn is_kept(&self, entry: &Entry, plan: &Plan) -> bool {
        let cas = Cas { number: entry.cas, epoch: self.epoch };
        let held = entry.by.is_some_and(|by| self.sidecars[by].holds(cas));
        (held && !plan.is(Mutant::NoRenewal)) || plan.is(Mutant::LocksNeverEnd)
    }

    /// Something has been, or may have been, invalidated: what is won now may be won again.
    pub fn disturb(&mut self) {
        self.undisturbed = false;
        for client in &mut self.clients {
            client.disturbed |= matches!(client.job, Job::Reading { .. });
        }
    }

    pub fn is_being_changed(&self) -> bool {
        let moves = |job: Job| matches!(job, Job::Invalidating { .. } | Job::Storing { won: false, .. });
        self.clients.iter().any(|client| moves(client.job))
    }

    /// A client without a get has observed nothing.
    pub fn reset_idle_clients(&mut self) {
        for client in &mut self.clients {
            client.disturbed &= matches!(client.job, Job::Reading { .. });
            client.lapsed &= matches!(client.job, Job::Building { .. });
        }
    }

    /// A client wins.
    pub fn won(&mut self, client: usize, plan: &Plan) -> Result<(), Violation> {
        let builds = |other: &Client| matches!(other.job, Job::Building { won: true, .. }) && !other.lapsed;
        let overlaps = self.last_winner.is_some_and(|other| other != client && builds(&self.clients[other]));
        if self.undisturbed && !self.clients[client].disturbed && (overlaps || !self.reason) {
            self.needless += 1;
            for (c, its) in self.clients.iter_mut().enumerate() {
                its.lapsed |= c == client || matches!(its.job, Job::Building { .. });
            }
            let faults = plan.faults - self.faults;
            if self.needless > faults {
                let how = if overlaps { "overlapping" } else { "needless" };
                return Err(Violation(format!(
                    "promise 1: {how} rebuild: {} of them after {faults} faults",
                    self.needless
                )));
            }
        }
        self.reason = false;
        self.undisturbed = !self.clients[client].disturbed;
        self.last_winner = Some(client);
        Ok(())
    }

    pub fn summary(&self) -> String {
        let entry = |entry: &Option<Entry>| match entry {
            None => "-".to_owned(),
            Some(entry) => {
                let what = match (entry.is_stub(), version_of(entry)) {
                    (true, _) => "stub".to_owned(),
                    (_, Some(version)) => format!("v{version}"),
                    _ => "held".to_owned(),
                };
                let stale = if entry.stale { " marked" } else { "" };
                format!("{what} {:?}{stale} c{} by {:?}", entry.term, entry.cas - FIRST_CAS, entry.by)
            }
        };
        let Server { item, lock, tag, .. } = &self.server;
        let tag = tag.as_ref().map_or("-".into(), |tag| tag.value.escape_ascii().to_string());
        let jobs = self.clients.map(|client| format!("{:?}", client.job)).join(", ");
        format!(
            "item {} | lock {} | tag {tag} | {jobs} | acked {} reason {} undisturbed {} needless {}",
            entry(item),
            entry(lock),
            self.acked,
            self.reason,
            self.undisturbed,
            self.needless
        )
    }
}

/// The version of the source from which the value was made.
pub fn version_of(entry: &Entry) -> Option<u64> {
    let Opened::Sealed { payload_at, .. } = Header::open(&entry.value) else { return None };
    made_from(&entry.value[payload_at..])
}

/// The version of the source that is part of the value.
pub fn made_from(payload: &[u8]) -> Option<u64> {
    std::str::from_utf8(payload).ok()?.strip_prefix('v')?.parse().ok()
}
