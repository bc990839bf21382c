//! The inputs of a decision besides the replies of the servers.

use super::envelope::{TagName, TagNames};
use super::policy::Policy;

/// The moment a decision is made, as the caller read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Now {
    /// Wall clock, Unix milliseconds: names tag versions and dates envelopes. May step.
    pub wall: u64,
    /// A clock that never steps, milliseconds from anywhere: measures waits and leases.
    pub mono: u64,
}

/// What a decision is made on, besides the answers.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The rule's.
    pub policy: &'a Policy,
    /// The names of the rule's tags for this key, and behind them those that a machine has told with [`Step::AddTags`].
    pub tags: &'a [TagName],
    /// How many of them were so learnt.
    pub learnt: usize,
    /// This sidecar: a number that it drew at its start.
    pub sidecar: u64,
    /// The largest value in bytes, header included, that the key's server has room for.
    pub room: usize,
    /// Whether two servers keep each tag.
    pub copies: bool,
    /// The moment.
    pub now: Now,
    /// Whether this request may wait at all: nothing is pipelined behind it and it holds no win.
    pub patient: bool,
    /// A number drawn evenly from (0, 1].
    pub chance: f64,
}

impl Inputs<'_> {
    /// The rule's own tags.
    pub(super) fn rule_tags(&self) -> &[TagName] {
        &self.tags[..self.tags.len().saturating_sub(self.learnt)]
    }

    /// Those of the names that the scene does not know yet.
    pub(super) fn unknown_of<'n>(&self, names: impl IntoIterator<Item = &'n [u8]>) -> TagNames {
        let mut unknown = TagNames::new();
        for name in names {
            let known = |tags: &[TagName]| tags.iter().any(|tag| &tag[..] == name);
            if !known(self.tags) && !known(&unknown) {
                unknown.push(TagName::from_slice(name));
            }
        }
        unknown
    }

    /// Whether the key's server is sure to refuse a value of so many bytes, header included. Then it is not sent: with the
    /// refusal of an `ms`, memcached drops what stood there, and of its classic commands only `set` does that.
    pub(super) fn refuses(&self, length: usize) -> bool {
        length > self.room.saturating_add(SPARE)
    }
}

/// What [`Inputs::room`] leaves free of `item_size_max`, beside the key, for what memcached itself needs.
const SPARE: usize = 512;
