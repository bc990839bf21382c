//! Decides what guarding a key means: which commands are sent to servers, and what the client receives.
//!
//! **Architecture invariant:** nothing here performs I/O, reads a clock or draws a random number. Each client
//! operation is a state machine ([`Machine`]). It returns the commands to send ([`Step::Send`]), receives the replies
//! together with the current time and other [`Inputs`], and ends with a result for the client. Production, the
//! simulation and the model checker run the same state machines.
//!
//! The files, from the bottom up:
//!
//! - `envelope`: the stored form of a guarded value and of a lock
//! - `policy`, `inputs`, `expiry`: what a decision depends on
//! - `command`: what is sent to servers and what they reply
//! - `machine`: the interface of the state machines; `retry`: how often they repeat a lost race
//! - `stub`, `tag_version`: what the flags of a stub and the item of a tag mean
//! - `raw_view`: what a client of a raw key is shown of all this
//! - `tags`, `bump`: reads, creates and increments the versions of tags
//! - `freshness`: whether an item may be served
//! - [`leases`]: which operations of this process share a key: leases, misses, waiting readers
//! - `read`; `new_value`, `set`, `fill`; `modify`; `delete`: the operations
//! - [`near`]: hits that may be served again without a read
//! - [`outage`]: keys whose server gives no answer
//! - `explanation`: what a read would make of an item, for operators
//! - `client_cas`: the CAS numbers that clients are shown

pub mod envelope;
mod policy;
mod inputs;
mod expiry;
mod command;
mod machine;
mod retry;
mod stub;
mod tag_version;
mod raw_view;
mod tags;
mod bump;
mod freshness;
pub mod leases;
mod read;
mod new_value;
mod set;
mod fill;
mod modify;
mod delete;
pub mod near;
pub mod outage;
mod explanation;
mod take_over;
mod forget;
mod client_cas;

pub use bump::{Bump, BumpEnd};
pub use client_cas::{named_cas, shown_cas};
pub use command::{
    Cas, Commands, GetFlags, Item, ItemRef, Operation, Replies, ServerCommand, ServerReply, StoreMode,
    Stored, Usage,
};
pub use delete::{Delete, DeleteEnd, Removal};
pub use envelope::{TagName, TagNames};
pub use expiry::Expiry;
pub use explanation::{
    HeaderExplanation, ItemExplanation, LockExplanation, Unservable, Verdict, explain_item, explain_lock,
    sealed_names,
};
pub use fill::{Fill, FillEnd, FillKind};
pub use forget::{Forget, ForgetEnd};
pub use freshness::{Hit, StaleReasons, fresh_hit};
pub use inputs::{Inputs, Now};
pub use machine::{Event, Machine, Step, Wait};
pub use modify::{Change, Count, Counted, Modify, ModifyEnd};
pub use new_value::NewValue;
pub use policy::{OnInvalidate, Policy};
pub use raw_view::{LONGEST_STUB, RawView, is_stub};
pub use read::{Read, ReadEnd, ReadOptions};
pub use retry::MAX_ROUNDS;
pub use set::{Set, SetEnd};
pub use stub::StubId;
pub use tag_version::{
    TagFault, Versions, incarnation_of, read_tag, tag_fault, tag_value, version, version_millis, version_of,
};
pub use tags::{store_version_under, tag_get_flags};
pub use take_over::take_over;

#[cfg(test)]
mod fixtures;
