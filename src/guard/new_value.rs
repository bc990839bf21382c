//! A value that a client sends, and the command that stores it in an envelope.

use bytes::{Bytes, BytesMut};

use super::command::{Cas, ItemRef, Operation, ServerCommand, StoreMode, Stored};
use super::envelope::{Envelope, TagName, TagNames, Tags, built_at};
use super::expiry::Expiry;
use super::inputs::{Inputs, Now};
use super::stub::StubId;

/// A value as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewValue {
    /// Its bytes.
    pub body: Bytes,
    /// The client's flags.
    pub flags: u32,
    /// How long it is fresh. Never [`Expiry::Expired`]: that is a delete.
    pub lifetime: Expiry,
    /// `E`: the CAS that the client wants it to have.
    pub explicit: Option<u64>,
    /// The tags that came with it, beside those of the rule. The scene knows them, as if they had been learnt.
    pub tags: TagNames,
}

impl NewValue {
    /// The same, to be stored as stale.
    pub(super) fn stale(&self) -> NewValue {
        // Its fresh seconds are over, and those of `stale_for` begin.
        NewValue { lifetime: Expiry::Seconds(0), ..self.clone() }
    }

    /// The tags it is sealed with: the rule's and its own. `version` says which version of each.
    pub(super) fn tags(&self, inputs: &Inputs<'_>, version: impl Fn(&TagName) -> u64) -> Tags {
        let own = inputs.rule_tags();
        let names = own.iter().chain(self.tags.iter().filter(|name| !own.contains(name)));
        names.map(|name| (name.clone(), version(name))).collect()
    }

    /// The command that stores it, wrapped and sealed with the versions that were read before it was built. `stub`: over which it is
    /// stored, if that is known.
    ///
    /// A value that would be too large once wrapped is stored plain, if it has no tags that a plain value would outlive.
    pub(super) fn store(
        self,
        mode: StoreMode,
        cas: Option<Cas>,
        tags: Tags,
        built: (Now, u64),
        stub: Option<StubId>,
        inputs: &Inputs<'_>,
    ) -> (ServerCommand, bool) {
        let (began, rebuild) = built;
        let lifetime = self.lifetime.at_most(inputs.policy.max_ttl.as_secs());
        let mut header = BytesMut::new();
        let untagged = tags.is_empty();
        let sealed = Envelope {
            stale_for: inputs.policy.stale_seconds(),
            built_at: built_at(began.wall, stub.map_or(0, StubId::number)),
            rebuild: u32::try_from(rebuild).unwrap_or(u32::MAX),
            tags,
        }
        .seal(&mut header);
        let plain = untagged && (sealed.is_err() || header.len() + self.body.len() > inputs.room);
        let (header, extra) =
            if plain { (Bytes::new(), 0) } else { (header.freeze(), inputs.policy.stale_seconds()) };
        let exptime = lifetime.exptime(extra, inputs.now);
        let value = Stored { header, body: self.body };
        let what = Operation::Store { mode, value, flags: self.flags, exptime, cas, explicit: self.explicit };
        (ServerCommand { at: ItemRef::Value, what }, plain)
    }
}
