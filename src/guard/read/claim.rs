//! The commands that claim a rebuild, and the result if the claim fails.

use bytes::{Bytes, BytesMut};

use crate::error::Failure;
use crate::guard::command::{Cas, Item, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Stored};
use crate::guard::envelope::{Envelope, LockRecord, built_at};
use crate::guard::expiry::Expiry;
use crate::guard::freshness::Hit;
use crate::guard::inputs::Inputs;
use crate::guard::leases::MissToken;
use crate::guard::machine::Step;
use crate::guard::policy::{OnInvalidate, millis};
use crate::guard::stub::StubId;
use crate::guard::tag_version::{CLOCK_SKEW_MS, FUTURE_MS, NEVER, Versions, version_millis};

use super::outcome::ReadEnd;

/// An attempt to acquire the right to rebuild an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) observed_cas: Cas,
    /// What a store over the item follows.
    pub(super) origin: StubId,
    /// The same of the value that this claim has marked.
    pub(super) marked: Option<StubId>,
    pub(super) ttl: Option<u32>,
    pub(super) versions: Versions,
    pub(super) fallback: Fallback,
}

impl Claim {
    /// Whether a win over this item would leave the earlier winner's fill its effect: the item is replaced by a placeholder of the
    /// same stub, not marked. Otherwise each takeover would make the fill before it vain, and none might ever be stored.
    pub(super) fn leaves_earlier_fills(&self, inputs: &Inputs<'_>) -> bool {
        inputs.policy.on_tag == OnInvalidate::Drop && self.fallback.stub().is_some()
    }
}

/// Tells one build of a value from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BuildId {
    /// Of a stub, with its turn.
    Stub(StubId, u8),
    /// Of a lock: by whom and when it was taken, by that sidecar's wall clock.
    Lock { sidecar: u64, granted_at: u64 },
}

/// The result if another client holds that right and waiting does not help.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Fallback {
    Fresh(Hit),
    Stale(Hit),
    /// A miss, with what its `set` may be stored over.
    Miss(MissToken),
}

impl Fallback {
    /// The stub identity of a value that may not be served.
    pub(super) fn stub(&self) -> Option<StubId> {
        match self {
            Fallback::Miss(seen) => seen.stub,
            Fallback::Fresh(_) | Fallback::Stale(_) => None,
        }
    }

    pub(super) fn end(self) -> ReadEnd {
        match self {
            Fallback::Fresh(hit) => ReadEnd::Refreshing(hit),
            Fallback::Stale(hit) => ReadEnd::Stale(hit),
            Fallback::Miss(seen) => ReadEnd::Missed { seen, held: true },
        }
    }

    /// The result if the server gives no answer to the claim. A miss would let its client build beside others, because no stub
    /// and no lock of a server decides who builds any more.
    pub(super) fn without_answer(self, reply: Option<ServerReply>) -> Step<ReadEnd> {
        Step::Done(match (self, reply) {
            (Fallback::Miss(_), Some(ServerReply::Failed(failure))) => ReadEnd::Failed(failure),
            (Fallback::Miss(_), _) => ReadEnd::Failed(Failure::Down),
            (fallback, _) => fallback.end(),
        })
    }

    /// The value that the winner may serve meanwhile, and whether it is fresh.
    pub(super) fn old(self) -> (bool, Option<Hit>) {
        match self {
            Fallback::Fresh(hit) => (true, Some(hit)),
            Fallback::Stale(hit) => (false, Some(hit)),
            Fallback::Miss(_) => (false, None),
        }
    }
}

/// Replaces a value that may not be served, with the same TTL. `None` if the header would be too large.
pub(super) fn placeholder(stub: StubId, claim: &Claim, inputs: &Inputs<'_>) -> Option<Operation> {
    let mut header = BytesMut::new();
    let sealed = Envelope {
        stale_for: inputs.policy.stale_seconds(),
        built_at: built_at(inputs.now.wall, stub.number()),
        rebuild: 0,
        fence: inputs.fence,
        tags: inputs.tags.iter().map(|name| (name.clone(), NEVER)).collect(),
    };
    sealed.seal(&mut header).ok()?;
    let exptime = match claim.ttl {
        Some(ttl) => Expiry::Seconds(u64::from(ttl.max(1))).exptime(0, inputs.now),
        None => 0,
    };
    let value = Stored { header: header.freeze(), body: Bytes::new() };
    Some(Operation::Store {
        mode: StoreMode::Set,
        value,
        flags: 0,
        exptime,
        cas: Some(claim.observed_cas),
        explicit: None,
    })
}

pub(super) fn take_lock(
    mode: StoreMode,
    cas: Option<Cas>,
    versions: &Versions,
    inputs: &Inputs<'_>,
) -> ServerCommand {
    let record = LockRecord {
        granted_at: inputs.now.wall,
        sidecar: inputs.sidecar,
        fence: inputs.fence,
        tags: inputs.tags.iter().cloned().zip(versions.iter().copied()).collect(),
    };
    let mut value = BytesMut::new();
    record.encode_what_fits(&mut value);
    ServerCommand {
        item: ItemRef::Lock,
        operation: Operation::Store {
            mode,
            value: Stored::plain(value.freeze()),
            flags: 0,
            exptime: i64::from(inputs.policy.lock_seconds()),
            cas,
            explicit: None,
        },
    }
}

/// The build that a lock protects. `None` if the lock does not say.
pub(super) fn build_of(lock: &Item) -> Option<BuildId> {
    let LockRecord { granted_at, sidecar, .. } = LockRecord::decode(&lock.value).ok()?;
    Some(BuildId::Lock { sidecar, granted_at })
}

/// Whether this is not the lock of a rebuild that may still be stored: it has another form than Kennel's, or is older than a rebuild
/// may take by clocks that differ as much as they may. Whoever can write to the server can store such an item.
pub(in crate::guard) fn holds_nobody(lock: &Item, inputs: &Inputs<'_>) -> bool {
    let Ok(LockRecord { granted_at, .. }) = LockRecord::decode(&lock.value) else { return true };
    let limit = millis(inputs.policy.max_rebuild) + CLOCK_SKEW_MS;
    let now = inputs.now.wall;
    now.saturating_sub(granted_at) > limit || granted_at.saturating_sub(now) > FUTURE_MS
}

/// Whether one of the tags has a newer version than the lock's rebuild began with, or the place another fence.
pub(in crate::guard) fn is_outdated(lock: &Item, versions: &Versions, inputs: &Inputs<'_>) -> bool {
    let Ok(record) = LockRecord::decode(&lock.value) else { return false };
    !inputs.counts(record.fence)
        || inputs.tags.iter().zip(versions).any(|(name, ours)| {
            record
                .tags
                .iter()
                .any(|(theirs, version)| theirs == name && version_millis(*version) < version_millis(*ours))
        })
}
