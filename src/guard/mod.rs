//! What guarding a key means: the decisions.
//!
//! **Architecture invariant:** nothing in here does I/O, reads a clock or draws a random number. Each client operation is a
//! small machine that says what to ask of the servers ([`Step::Send`]), is given their answers together with the moment
//! ([`Inputs`]), and ends with what the client is to be told. The same machines run in production, in simulation and under a
//! model checker.
//!
//! What several operations in one process know of each other (who holds a lease, who waits for it) is in [`leases`].

use std::time::Duration;

mod command;
pub mod envelope;
mod stub;
mod freshness;
mod tags;
mod read;
pub mod near;
mod write;
mod modify;
mod delete;
pub mod leases;

pub use command::{
    Cas, Commands, Expiry, GetFlags, Item, ItemRef, Now, Operation, Replies, ServerCommand, ServerReply,
    StoreMode, Stored, Usage,
};
pub use delete::{Delete, DeleteEnd, Removal};
pub use envelope::TagName;
pub use freshness::{Hit, fresh_hit};
pub use modify::{Change, Count, Counted, Modify, ModifyEnd};
pub use read::{Read, ReadEnd, ReadOptions};
pub use stub::StubId;
pub use tags::{
    Bump, BumpEnd, Versions, incarnation_of, parse_version, tag_get_flags, version, version_millis,
    version_of,
};
pub use write::{Fill, FillEnd, NewValue, Set, SetEnd};

/// Names of tags.
pub type TagNames = Vec<TagName>;

/// What a machine wants next.
#[allow(clippy::large_enum_variant, reason = "asked on every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<End> {
    /// One round trip.
    Send(Commands),
    /// These are tags of the item too, though not of its rule: from now on they stand behind the others in [`Inputs::tags`]. Goes
    /// on with [`Event::TagsAdded`].
    AddTags(TagNames),
    /// To be woken when the key may have changed, at the latest at this moment of the monotonic clock.
    Wait(u64),
    /// Nothing any more.
    Done(End),
}

/// What a waiting or asking machine is told.
#[allow(clippy::large_enum_variant, reason = "answered on every round: boxing would allocate each time")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The answers to what it asked.
    Replies(Replies),
    /// The scene has the tags now.
    TagsAdded,
    /// The key may have changed.
    Woken,
    /// The wait must end: its time is over, or somebody would wait behind it.
    WaitEnded,
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
    fn own(&self) -> &[TagName] {
        &self.tags[..self.tags.len().saturating_sub(self.learnt)]
    }

    /// Those of the names that the scene does not know yet.
    fn unknown<'n>(&self, names: impl IntoIterator<Item = &'n [u8]>) -> TagNames {
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
    fn refuses(&self, length: usize) -> bool {
        length > self.room.saturating_add(SPARE)
    }
}

/// What [`Inputs::room`] leaves free of `item_size_max`, beside the key, for what memcached itself needs.
const SPARE: usize = 512;

/// How long a guarded key's rule lets things last, and what it does when they end.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// How long after its expiry a value may still be served. Whole seconds.
    pub stale_for: Duration,
    /// How long a dead sidecar's lock lasts. Whole seconds, at least one.
    pub lock_ttl: Duration,
    /// How long a winner may take: renewal ends here and a later fill is dropped.
    pub max_rebuild: Duration,
    /// How long a reader waits for the fresh value before it is served the stale one.
    pub stale_wait: Duration,
    /// How long a reader without a value to serve waits for the winner before it is told a miss.
    pub cold_wait: Duration,
    /// What a bumped tag leaves.
    pub on_tag: OnInvalidate,
    /// What a delete leaves.
    pub on_delete: OnInvalidate,
    /// XFetch's β: above zero, a fresh value is refreshed early by one client at a time.
    pub early_beta: f64,
    /// The longest soft expiry, and the one of items stored with exptime 0. Zero: none.
    pub max_ttl: Duration,
    /// For how long a hit may be served again without asking its server. Zero: not at all.
    pub near: Duration,
}

impl Default for Policy {
    /// What a rule says that says nothing.
    fn default() -> Self {
        Policy {
            stale_for: Duration::from_secs(60),
            lock_ttl: Duration::from_secs(5),
            max_rebuild: Duration::from_secs(60),
            stale_wait: Duration::ZERO,
            cold_wait: Duration::from_secs(2),
            on_tag: OnInvalidate::Stale,
            on_delete: OnInvalidate::Drop,
            early_beta: 0.0,
            max_ttl: Duration::ZERO,
            near: Duration::ZERO,
        }
    }
}

impl Policy {
    /// `stale_for` as memcached counts.
    pub fn stale_seconds(&self) -> u32 {
        u32::try_from(self.stale_for.as_secs()).unwrap_or(u32::MAX)
    }

    /// `near` in milliseconds.
    pub fn near_ms(&self) -> u64 {
        u64::try_from(self.near.as_millis()).unwrap_or(u64::MAX)
    }

    /// The TTL of a lock or stub: one more than `lock_ttl`, because a TTL of n may end after n−1 seconds.
    pub fn lock_seconds(&self) -> u32 {
        u32::try_from(self.lock_ttl.as_secs().saturating_add(1)).unwrap_or(u32::MAX)
    }
}

/// What an invalidation leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnInvalidate {
    /// The old value, servable as stale.
    Stale,
    /// Nothing.
    Drop,
}

impl Event {
    /// The answers, for machines that never wait.
    fn answers(self) -> Replies {
        match self {
            Event::Replies(answers) => answers,
            Event::TagsAdded | Event::Woken | Event::WaitEnded => Replies::new(),
        }
    }
}

/// A client operation on one guarded key, step by step.
pub trait Machine {
    /// How it ends.
    type End;

    /// Whether it may change what its key holds, or its tag.
    const CHANGES: bool = true;

    /// Whether its tag has left every version that was read before: made to grow by it, or found grown by somebody else.
    fn bumped(_end: &Self::End) -> bool {
        false
    }

    /// Goes on: with the answers to what it asked last, or after a wait.
    fn resume(&mut self, event: Event, scene: &Inputs<'_>) -> Step<Self::End>;
}
