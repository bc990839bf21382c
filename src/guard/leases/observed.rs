//! What a miss saw, and whether it is still unchanged.

use crate::guard::command::{Cas, Item};
use crate::guard::envelope::{Header, Opened};
use crate::guard::freshness::is_out_of_date;
use crate::guard::inputs::Inputs;
use crate::guard::stub::{Stub, StubId};
use crate::guard::tag_version::{Versions, version_millis};

/// What a miss saw. A later store of its client may replace only this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observed {
    /// The CAS of the item.
    pub cas: Cas,
    /// The stub, if the item was one, or the stub over which it was stored, if it may not be served.
    pub stub: Option<StubId>,
    /// Identifies what a store over it follows. See [`StubId::of_item`].
    pub origin: Option<StubId>,
    /// The fence of the place where it was seen.
    pub fence: u64,
    /// The [`Policy::plan`](crate::guard::Policy::plan) under which it was seen.
    pub plan: u64,
    /// The versions of the rule's tags, possibly followed by those of others.
    pub versions: Versions,
}

impl Observed {
    /// Nothing was observed: matches no item.
    pub fn none() -> Observed {
        Observed { cas: Cas::NONE, stub: None, origin: None, fence: 0, plan: 0, versions: Versions::new() }
    }

    /// Whether the item is still the one that was seen. A restarted server counts CAS numbers from one again,
    /// so a stub must have been read in the same epoch.
    pub(in crate::guard) fn is_same(&self, item: &Item) -> bool {
        let stub = self.stub.zip(Stub::of(item)).is_some_and(|(seen, stub)| seen == stub.id);
        item.cas == self.cas || (stub && item.cas.epoch == self.cas.epoch)
    }

    /// Whether the item was stored over the stub of the miss, a tag of it had changed before that miss, and
    /// none has changed since. Then the item is out of date, and its writer or winner has deleted nothing.
    /// `now`: the versions of the inputs' tags.
    ///
    /// Every delete removes a stub, so nothing was deleted between that stub and the item stored over it. Nor
    /// was anything deleted since: a delete that keeps the value marks it stale.
    pub(in crate::guard) fn may_replace(&self, item: &Item, now: &Versions, inputs: &Inputs<'_>) -> bool {
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return false };
        let is_same = self.stub.is_some() && self.stub == StubId::of_value(&item.value);
        if !is_same || item.stale || item.cas.epoch != self.cas.epoch {
            return false;
        }
        self.is_current(now, inputs) && is_out_of_date(&envelope, now, inputs)
    }

    /// Whether the item is a value that was stored since the miss, over what that saw, and nothing was invalidated in between:
    /// neither the key, nor, as far as these versions show, a tag that the value was sealed with. `now`: the versions of the
    /// inputs' tags.
    pub(in crate::guard) fn is_followed_by(&self, item: &Item, now: &Versions, inputs: &Inputs<'_>) -> bool {
        if !self.is_origin_of(item) {
            return false;
        }
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return true };
        let known = |name: &[u8]| inputs.tags.iter().zip(now).find(|(tag, _)| tag[..] == *name);
        let is_behind = |(name, sealed): (&[u8], u64)| {
            known(name).is_some_and(|(_, now)| version_millis(*now) < version_millis(sealed))
        };
        !envelope.tags().any(is_behind)
    }

    /// Whether the item is a value that was stored over what the miss saw, and the key was not invalidated in between.
    fn is_origin_of(&self, item: &Item) -> bool {
        item.size > 0 && item.cas.epoch == self.cas.epoch && self.origin == Some(StubId::of_item(item))
    }

    /// Whether the item is such a value and past its soft expiry, so that it needs the rebuild of what it has replaced.
    pub(super) fn is_still_to_build(&self, item: &Item) -> bool {
        let is_past = |envelope: &Header<'_>| item.ttl.is_some_and(|ttl| ttl <= envelope.stale_for);
        let opened = Header::open(&item.value);
        self.is_origin_of(item) && matches!(opened, Opened::Sealed { envelope, .. } if is_past(&envelope))
    }

    /// Whether the rule's tags have the versions of the miss.
    pub(in crate::guard) fn is_current(&self, now: &Versions, inputs: &Inputs<'_>) -> bool {
        let own = inputs.rule_tags().len();
        now.get(..own).is_some_and(|now| self.versions.get(..own) == Some(now))
    }
}
