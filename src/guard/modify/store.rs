//! The commands that write a changed item, and the versions they seal it with.

use bytes::{Bytes, BytesMut};

use crate::guard::command::{GetFlags, Item, ItemRef, Operation, ServerCommand, StoreMode, Stored, delete};
use crate::guard::envelope::{Envelope, Header, MAGIC, Opened, TagName, TagNames, Tags};
use crate::guard::expiry::Expiry;
use crate::guard::freshness::Hit;
use crate::guard::inputs::Inputs;
use crate::guard::new_value::NewValue;
use crate::guard::stub::StubId;
use crate::guard::tag_version::{NEVER, Versions, known_version, may_have_moved};
use crate::protocol::number::c_uint64;

pub(super) fn initial_value(expiry: Expiry, initial: u64, explicit: Option<u64>) -> NewValue {
    let body = Bytes::from(initial.to_string());
    NewValue { body, flags: 0, expiry, explicit, tags: TagNames::new() }
}

/// Stores a value over this item. `version` returns the version of each tag to seal it with.
pub(super) fn store_value(
    new_value: &NewValue,
    mode: StoreMode,
    item: Option<&Item>,
    version: impl Fn(&TagName) -> u64,
    inputs: &Inputs<'_>,
) -> ServerCommand {
    let cas = item.map(|item| item.cas);
    match (new_value.expiry, cas) {
        (Expiry::Expired, Some(cas)) => delete(ItemRef::Value, Some(cas)),
        _ => {
            let (tags, began) = (new_value.tags(inputs, version), (inputs.now, 0));
            new_value.clone().store(mode, cas, tags, began, item.map(StubId::of_item), inputs).0
        }
    }
}

/// Stores a value where there is no logical item: over the existing stub or stale item, if any.
pub(super) fn store_absent(
    new_value: &NewValue,
    item: Option<&Item>,
    version: impl Fn(&TagName) -> u64,
    inputs: &Inputs<'_>,
) -> ServerCommand {
    let mode = if item.is_some() { StoreMode::Set } else { StoreMode::Add };
    store_value(new_value, mode, item, version, inputs)
}

/// Stores another body with the same header and client flags. If there was no header and the body begins as one does, it gets one that
/// changes nothing else.
pub(super) fn store_changed(
    hit: &Hit,
    body: Bytes,
    exptime: i64,
    explicit: Option<u64>,
    fence: u64,
) -> ServerCommand {
    let mut header = hit.header.clone();
    if header.is_empty() && body.starts_with(&MAGIC) {
        let mut sealed = BytesMut::new();
        let envelope = Envelope { stale_for: 0, built_at: 0, rebuild: 0, fence, tags: Tags::new() };
        // Without tags, nothing is too large.
        let _ = envelope.seal(&mut sealed);
        header = sealed.freeze();
    }
    let value = Stored { header, body };
    let operation = Operation::Store {
        mode: StoreMode::Set,
        value,
        flags: hit.flags,
        exptime,
        cas: Some(hit.cas),
        explicit,
    };
    ServerCommand { item: ItemRef::Value, operation }
}

/// Sets this TTL in seconds. The reply has the previous one.
pub(super) fn touch(seconds: u32, inputs: &Inputs<'_>) -> ServerCommand {
    let touch = Some(Expiry::Seconds(u64::from(seconds.max(1))).exptime(0, inputs.now));
    ServerCommand {
        item: ItemRef::Value,
        operation: Operation::Get(GetFlags { touch, ..GetFlags::default() }),
    }
}

/// The exptime of a touched or changed item, whose envelope stays as it is. An item without one has no soft expiry.
pub(super) fn changed_exptime(expiry: Expiry, hit: &Hit, inputs: &Inputs<'_>) -> i64 {
    let extra = match Header::open(&hit.header) {
        Opened::Sealed { envelope, .. } => envelope.stale_for,
        Opened::Plain | Opened::Unreadable(_) => 0,
    };
    expiry.at_most(inputs.policy.max_ttl.as_secs()).exptime(extra, inputs.now)
}

/// The version to seal a value with that was derived from this item: the one that the item was sealed with.
/// For a tag that it was not sealed with, the current version counts only if the tag has not changed since
/// the item was built, because the client may have read its data then.
pub(super) fn sealed_version(
    name: &TagName,
    hit: &Hit,
    versions: Option<&Versions>,
    inputs: &Inputs<'_>,
) -> u64 {
    let Opened::Sealed { envelope, .. } = Header::open(&hit.header) else {
        // It is unknown when the item was built. A tag that the rule does not name was not checked when it
        // was read.
        let now = versions.filter(|_| inputs.rule_tags().contains(name));
        return now.and_then(|versions| known_version(name, versions, inputs)).unwrap_or(NEVER);
    };
    let sealed = envelope.tags().find(|(sealed, _)| *sealed == &name[..]).map(|(_, version)| version);
    let unmoved = |version: &u64| !may_have_moved(*version, envelope.begun_at());
    let now = || versions.and_then(|versions| known_version(name, versions, inputs)).filter(unmoved);
    sealed.or_else(now).unwrap_or(NEVER)
}

/// Applies `incr` or `decr`: returns the number and its text, padded with spaces to the old length if it is
/// shorter (protocol.txt, "Increment/Decrement"). A value is a number if C's `strtoull` accepts it, as in
/// memcached.
pub(super) fn count(payload: &[u8], decr: bool, delta: u64) -> Option<(u64, Bytes)> {
    let text = payload.split(|&byte| byte == 0).next()?;
    let value = c_uint64(text)?;
    let counted = if decr { value.saturating_sub(delta) } else { value.wrapping_add(delta) };
    let mut body = BytesMut::from(counted.to_string().as_bytes());
    if body.len() < payload.len() {
        body.resize(payload.len(), b' ');
    }
    Some((counted, body.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::fixtures;
    use crate::guard::policy::Policy;

    #[test]
    fn a_value_is_a_number_if_memcached_accepts_it_as_one() {
        for (value, counted) in [
            ("10", Some((11, "11"))),
            (" 7", Some((8, "8 "))),
            ("+4", Some((5, "5 "))),
            ("5 x", Some((6, "6  "))),
            ("995 -3", Some((996, "996   "))),
            ("5\0x", Some((6, "6  "))),
            ("0000000000000000000000007", Some((8, "8                        "))),
            ("18446744073709551615", Some((0, "0                   "))),
            ("18446744073709551616", None),
            ("-3", None),
            ("5x", None),
            ("", None),
        ] {
            let counted = counted.map(|(number, text): (u64, &'static str)| (number, Bytes::from(text)));
            assert_eq!(count(value.as_bytes(), false, 1), counted, "{value:?}");
        }
    }

    #[test]
    fn a_cas_over_a_plain_value_proves_nothing_about_a_tag_that_it_adds() {
        let policy = Policy::default();
        let tags = [b"own".as_slice().into(), b"named".as_slice().into()];
        let inputs = Inputs { added_tags: 1, ..fixtures::inputs(&policy, &tags) };
        let hit = Hit { header: Bytes::new(), payload: Bytes::from_static(b"large"), ..Hit::nothing() };
        // Both have changed since the plain value was read. Only for the first was it known that the value
        // lacks it.
        let versions = Versions::from_slice(&[7, 1_700_000_000_000]);
        let sealed = |name: &TagName| sealed_version(name, &hit, Some(&versions), &inputs);
        assert_eq!([sealed(&tags[0]), sealed(&tags[1])], [7, NEVER]);
    }
}
