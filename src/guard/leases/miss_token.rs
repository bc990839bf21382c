//! What a miss token holds, and the commands that release it.

use crate::error::Failure;
use crate::guard::command::{Cas, Commands, ItemRef, delete};
use crate::guard::envelope::{TagName, TagNames};
use crate::guard::inputs::{Inputs, Now};
use crate::guard::policy::{Policy, millis};
use crate::guard::stub::{Stub, StubId};
use crate::guard::tag_version::Versions;

use super::observed::Observed;

/// Why nothing may be stored on the strength of a miss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unread {
    /// The key's server did not tell its item.
    Item(Failure),
    /// A server of a tag did not tell its version.
    Tag(Failure),
}

/// What has taken the place of the value that was won.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Replacement {
    /// Nothing.
    None,
    /// Another item, which the next renewal reads.
    Unread,
    /// A value with this CAS, which is out of date too.
    Stale(Cas),
}

/// What was stored under a key when a client missed it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MissToken {
    /// The CAS of the item. `None` if it is unknown; then nothing may be stored on the strength of this miss.
    pub observed_cas: Option<Cas>,
    /// Why it is unknown; `None` if it is not.
    pub unread: Option<Unread>,
    /// The stub, if the item was one: a renewal changes its CAS but not its identity. For a value that may
    /// not be served, the identity that every reader derives from it (`StubId::of_unservable`).
    pub stub: Option<StubId>,
    /// What a store over the item follows, if `stub` and `observed_cas` do not tell. See [`StubId::of_item`].
    pub origin: Option<StubId>,
    /// The origin of the value that this win has marked or replaced: nothing was invalidated between the two.
    pub marked: Option<StubId>,
    /// Which build of the stub's value this is. A stub with another turn has been taken over by another client.
    pub turn: u8,
    /// The item in `observed_cas` was stored after the miss, over the same stub.
    pub filled: bool,
    /// The lock's CAS, if the right to rebuild is a lock and not the stub itself.
    pub lock: Option<Cas>,
    /// What has been stored over the value since it was won.
    pub replacement: Replacement,
    /// Versions of the rule's tags, followed by those in `added_tags`. The fill is sealed with these, so that a
    /// bump during the rebuild still invalidates it.
    pub versions: Versions,
    /// The tags that the old value had besides those of the rule.
    pub added_tags: TagNames,
    /// The fence of the place where the key was missed. The token holds in that place only.
    pub fence: u64,
    /// The [`Policy::plan`] under which it was missed. The token holds under that plan only.
    pub plan: u64,
    /// The time of the miss.
    pub at: Now,
    /// Until when the stale value is certain to remain, on the monotonic clock in ms. Afterwards another
    /// client would find no item and begin a second rebuild; the lease replaces the value by a stub before
    /// that.
    pub expires_at: Option<u64>,
}

impl MissToken {
    /// A miss with these inputs.
    pub fn new(observed_cas: Option<Cas>, versions: Versions, inputs: &Inputs<'_>) -> MissToken {
        let added_tags =
            inputs.tags.iter().take(versions.len()).skip(inputs.rule_tags().len()).cloned().collect();
        let (fence, plan) = (inputs.fence, inputs.policy.plan);
        MissToken { observed_cas, versions, added_tags, fence, plan, ..MissToken::unanswered(inputs.now) }
    }

    /// A miss over a stub.
    pub(in crate::guard) fn of_stub(
        observed_cas: Cas,
        (stub, turn): (StubId, u8),
        versions: Versions,
        inputs: &Inputs<'_>,
    ) -> MissToken {
        MissToken { stub: Some(stub), turn, ..MissToken::new(Some(observed_cas), versions, inputs) }
    }

    /// A miss of which nothing is known but the time.
    pub fn unanswered(at: Now) -> MissToken {
        let (versions, added_tags) = (Versions::new(), TagNames::new());
        let (observed_cas, stub, lock, expires_at) = (None, None, None, None);
        MissToken {
            observed_cas,
            unread: None,
            stub,
            origin: None,
            marked: None,
            turn: 0,
            filled: false,
            lock,
            replacement: Replacement::None,
            versions,
            added_tags,
            fence: 0,
            plan: 0,
            at,
            expires_at,
        }
    }

    /// Whether it holds in the place with this fence, under this plan.
    pub fn holds(&self, fence: u64, plan: u64) -> bool {
        (self.fence, self.plan) == (fence, plan)
    }

    /// The stub of a lease whose right to rebuild is a stub.
    pub(super) fn stub_id(&self) -> Option<StubId> {
        self.stub.or_else(|| Some(StubId::of(self.observed_cas?.number)))
    }

    /// What a store over the item that the miss saw follows, and a value that is stored over it records.
    pub(in crate::guard) fn origin(&self) -> Option<StubId> {
        self.origin.or_else(|| self.stub_id())
    }

    /// The commands that release the lease.
    pub fn release(&self, policy: &Policy) -> Commands {
        self.release_within(millis(policy.max_rebuild))
    }

    /// Deletes the lock if it still has the same CAS. A stub is marked as free for the next reader. It
    /// remains for `max_rebuild`, in milliseconds: other clients that missed over it can then tell that
    /// nothing has been stored or deleted since.
    pub(super) fn release_within(&self, max_rebuild: u64) -> Commands {
        if self.lock.is_some() {
            return self.unlock();
        }
        let seconds = u32::try_from(max_rebuild.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        let stub = self.stub_id().map(|id| Stub { id, age: 0, is_free: true, turn: self.turn });
        stub.map(|stub| stub.store_command(self.observed_cas, seconds)).into_iter().collect()
    }

    /// What a store based on this miss may replace.
    pub(in crate::guard) fn observed(&self) -> Observed {
        Observed {
            cas: self.observed_cas.unwrap_or(Cas::NONE),
            stub: self.stub,
            origin: self.origin(),
            fence: self.fence,
            plan: self.plan,
            versions: self.versions.clone(),
        }
    }

    /// The version that a tag had at the miss.
    pub(in crate::guard) fn version_of(&self, name: &TagName, inputs: &Inputs<'_>) -> Option<u64> {
        let names = inputs.rule_tags().iter().chain(&self.added_tags);
        names.zip(&self.versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
    }

    /// Deletes the lock of a lease whose value another client has stored.
    pub(super) fn unlock(&self) -> Commands {
        self.lock.map(|lock| delete(ItemRef::Lock, Some(lock))).into_iter().collect()
    }
}
