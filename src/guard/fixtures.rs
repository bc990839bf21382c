//! Values that the unit tests of several files use.

use bytes::{Bytes, BytesMut};

use super::command::{Cas, Commands, Item, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Usage};
use super::envelope::{Envelope, Header, Opened, TagName, TagNames};
use super::expiry::Expiry;
use super::inputs::{Inputs, Now};
use super::new_value::NewValue;
use super::policy::Policy;
use super::tags::{self, TagServer};

/// The Unix time of the tests, in milliseconds.
pub(super) const WALL: u64 = 1_700_000_000_000;

/// Inputs for a server with room for values of 1 MiB, tags on one server, and a request that may wait.
pub(super) fn inputs<'a>(policy: &'a Policy, tags: &'a [TagName]) -> Inputs<'a> {
    let now = Now { wall: WALL, mono: 0 };
    Inputs {
        policy,
        tags,
        added_tags: 0,
        sidecar: 1,
        max_value: 1 << 20,
        copies: false,
        fence: 0,
        tag_fences: &[],
        inherited: 0,
        inherited_tag_fences: &[],
        now,
        may_wait: true,
        random_unit: 1.0,
    }
}

pub(super) const fn cas(number: u64) -> Cas {
    Cas { number, epoch: 1 }
}

/// An item that never expires.
pub(super) fn item(value: impl Into<Bytes>, number: u64) -> Item {
    let (value, cas) = (value.into(), cas(number));
    let size = value.len();
    Item { value, size, flags: 0, cas, ttl: None, won: false, stale: false, usage: Usage::default() }
}

/// The reply to a get that finds an item.
pub(super) fn found(value: impl Into<Bytes>, number: u64) -> ServerReply {
    ServerReply::Item(item(value, number))
}

/// A value that was sealed with this version of the tag `tag`.
pub(super) fn sealed(version: u64, number: u64) -> Item {
    let mut value = BytesMut::new();
    let tags = [(TagName::from_slice(b"tag"), version)].into_iter().collect();
    Envelope { stale_for: 60, built_at: 5, rebuild: 0, fence: 0, tags }
        .seal(&mut value)
        .expect("it is short");
    value.extend_from_slice(b"v");
    item(value.freeze(), number)
}

/// Runs a closure with the inputs of a rule without tags, at this wall time, with tags on one server or on two.
pub(super) fn on<T>(wall: u64, copies: bool, run: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let policy = Policy::default();
    run(&Inputs { now: Now { wall, mono: 0 }, copies, ..inputs(&policy, &[]) })
}

/// Runs a closure with the inputs of a rule that has one tag, `tag`, at this time on the monotonic clock.
pub(super) fn at<T>(mono: u64, run: impl FnOnce(&Inputs<'_>) -> T) -> T {
    let (policy, tags) = (Policy::default(), [TagName::from_slice(b"tag")]);
    run(&Inputs { now: Now { wall: WALL + mono, mono }, ..inputs(&policy, &tags) })
}

/// A value that is fresh for 60 s.
pub(super) fn new_value(body: impl Into<Bytes>) -> NewValue {
    let (body, expiry) = (body.into(), Expiry::Seconds(60));
    NewValue { body, flags: 0, expiry, explicit: None, tags: TagNames::new() }
}

/// Of the only command, a store of an envelope: its mode, the CAS that it requires, and the version of its first tag.
pub(super) fn sealed_store(commands: &Commands) -> (StoreMode, Option<u64>, Option<u64>) {
    let [ServerCommand { item: ItemRef::Value, operation: Operation::Store { mode, value, cas, .. } }] =
        &commands[..]
    else {
        panic!("not one store: {commands:?}")
    };
    let Opened::Sealed { envelope, .. } = Header::open(&value.header) else { panic!("{value:?}") };
    (*mode, cas.map(|cas| cas.number), envelope.tags().next().map(|(_, version)| version))
}

/// The command that stores a version of the first tag without a fence, over the item with this CAS.
pub(super) fn store_version(at: ItemRef, version: u64, over: Cas) -> ServerCommand {
    let server = if at == ItemRef::TagCopy(0) { TagServer::Copy } else { TagServer::First };
    on(0, true, |inputs| tags::store_version(server, 0, version, over, inputs))
}
