//! What a miss token holds, and the commands that release it.

use std::time::Duration;

use crate::guard::command::{Cas, Commands, ItemRef, delete};
use crate::guard::envelope::{TagName, TagNames};
use crate::guard::inputs::{Inputs, Now};
use crate::guard::policy::Policy;
use crate::guard::stub::{Stub, StubId};
use crate::guard::tag_version::Versions;

use super::observed::Observed;

/// What was seen when a client was told a miss.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MissToken {
    /// The CAS of what stood there; `None`: nothing is known, so nothing may be stored on the strength of it.
    pub base: Option<Cas>,
    /// Which stub it was, if it was one: renewals give a stub another CAS. Where a value stood that nobody is to see: by which number
    /// all know it again ([`StubId::of_unseen`]).
    pub stub: Option<StubId>,
    /// The base is a value that was stored since the miss, over the very stub that was seen.
    pub filled: bool,
    /// The lock's CAS, when the right to rebuild is a lock and not the stub itself.
    pub lock: Option<Cas>,
    /// Versions of the rule's tags, and behind them of those in `learnt`. The fill is sealed with these, so that a bump that
    /// lands during the rebuild still kills it.
    pub versions: Versions,
    /// The tags that the old value had beyond those of the rule.
    pub learnt: TagNames,
    /// The moment.
    pub at: Now,
    /// Until when (monotonic ms) the stale value is sure to stand. After it another client would find nothing there and
    /// begin a second rebuild, so before it the lease puts a stub in its place.
    pub vanishes: Option<u64>,
}

impl MissToken {
    /// What is seen at the scene.
    pub fn seen(base: Option<Cas>, versions: Versions, inputs: &Inputs<'_>) -> MissToken {
        let learnt =
            inputs.tags.iter().take(versions.len()).skip(inputs.rule_tags().len()).cloned().collect();
        MissToken { base, versions, learnt, ..MissToken::nothing(inputs.now) }
    }

    /// The same, where a stub stood.
    pub(in crate::guard) fn of_stub(
        base: Cas,
        stub: StubId,
        versions: Versions,
        inputs: &Inputs<'_>,
    ) -> MissToken {
        MissToken { stub: Some(stub), ..MissToken::seen(Some(base), versions, inputs) }
    }

    /// No server answered.
    pub fn nothing(at: Now) -> MissToken {
        let (versions, learnt) = (Versions::new(), TagNames::new());
        let (base, stub, lock, vanishes) = (None, None, None, None);
        MissToken { base, stub, filled: false, lock, versions, learnt, at, vanishes }
    }

    /// Of a lease whose right is a stub.
    pub(super) fn stub_id(&self) -> Option<StubId> {
        self.stub.or_else(|| Some(StubId::of(self.base?.number)))
    }

    /// What gives the lease back that it is.
    pub fn release(&self, policy: &Policy) -> Commands {
        self.release_within(millis(policy.max_rebuild))
    }

    /// The lock is deleted if it is still this one. A stub is marked as free for whoever reads it next, and stays for as long as anybody
    /// who was told a miss over it may build: so they can tell that nothing has been stored or deleted since.
    pub(super) fn release_within(&self, max_rebuild: u64) -> Commands {
        if self.lock.is_some() {
            return self.unlock();
        }
        let seconds = u32::try_from(max_rebuild.div_ceil(1000)).unwrap_or(u32::MAX).max(1);
        let stub = self.stub_id().map(|id| Stub { id, age: 0, is_free: true });
        stub.map(|stub| stub.store_command(self.base, seconds)).into_iter().collect()
    }

    /// What may be stored over on the strength of it.
    pub(in crate::guard) fn observed(&self) -> Observed {
        Observed { cas: self.base.unwrap_or(Cas::NONE), stub: self.stub, versions: self.versions.clone() }
    }

    /// The version that a tag had when this was seen.
    pub(in crate::guard) fn version_of(&self, name: &TagName, inputs: &Inputs<'_>) -> Option<u64> {
        let names = inputs.rule_tags().iter().chain(&self.learnt);
        names.zip(&self.versions).find(|(tag, _)| *tag == name).map(|(_, version)| *version)
    }

    /// Deletes the lock of a lease whose value another client has stored.
    pub(super) fn unlock(&self) -> Commands {
        self.lock.map(|lock| delete(ItemRef::Lock, Some(lock))).into_iter().collect()
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
