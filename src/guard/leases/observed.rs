//! What a miss saw, and whether it is still unchanged.

use crate::guard::command::{Cas, Item};
use crate::guard::envelope::{Header, Opened};
use crate::guard::freshness::is_out_of_date;
use crate::guard::inputs::Inputs;
use crate::guard::stub::{Stub, StubId};
use crate::guard::tag_version::Versions;

/// What a miss saw, to be stored over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Observed {
    /// Its CAS.
    pub cas: Cas,
    /// Which stub it was, if it was one, or was stored over, if nobody was to see it.
    pub stub: Option<StubId>,
    /// The versions of the rule's tags, and perhaps of others behind them.
    pub versions: Versions,
}

impl Observed {
    /// Nothing is this.
    pub fn none() -> Observed {
        Observed { cas: Cas::NONE, stub: None, versions: Versions::new() }
    }

    /// Whether an item is still what was seen. A restarted server counts its CASes anew, so a stub must have been read in the same
    /// life of the connection.
    pub(in crate::guard) fn is_same(&self, item: &Item) -> bool {
        let stub = self.stub.zip(Stub::of(item)).is_some_and(|(seen, stub)| seen == stub.id);
        item.cas == self.cas || (stub && item.cas.epoch == self.cas.epoch)
    }

    /// Whether what stands there was stored over the very stub of the miss, but a tag of it had moved before that miss, and none has
    /// since. Then it counts for nothing, and whoever stored or won it has deleted nothing. `now`: the versions of the scene's tags.
    ///
    /// A stub ends with every delete, so nothing was deleted between that stub and what was stored over it; nor since, for a delete
    /// that leaves the value marks it stale.
    pub(in crate::guard) fn may_replace(&self, item: &Item, now: &Versions, inputs: &Inputs<'_>) -> bool {
        let Opened::Sealed { envelope, .. } = Header::open(&item.value) else { return false };
        let is_same = self.stub.is_some() && self.stub == StubId::of_value(&item.value);
        if !is_same || item.stale || item.cas.epoch != self.cas.epoch {
            return false;
        }
        let own = inputs.rule_tags();
        let is_current = now.get(..own.len()).is_some_and(|now| self.versions.get(..own.len()) == Some(now));
        is_current && is_out_of_date(&envelope, now, inputs)
    }
}
