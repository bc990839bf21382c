//! A value that another placement has, stored as stale where the key is read now.
//!
//! While the servers of a pool change, the first client that misses a key in its new place finds the old value in the previous one.
//! Once it is stored here as stale, that client rebuilds it, and all others are served it meanwhile.

use bytes::BytesMut;

use super::command::{Item, ItemRef, Operation, ServerCommand, StoreMode, Stored};
use super::envelope::{Envelope, Header, Opened, built_at};
use super::inputs::Inputs;
use super::leases::MissToken;
use super::stub::StubId;
use super::tag_version::NEVER;

/// The command that stores this item of the previous placement over the stub that `miss` has won. It is stale from the start,
/// and remains for as long as it would have been served as stale in its old place, or less. `counts`: whether what was stored in its
/// old place under this fence counts there.
///
/// `None`: there is nothing that may be served.
pub fn take_over(
    item: &Item,
    counts: impl Fn(u64) -> bool,
    miss: &MissToken,
    inputs: &Inputs<'_>,
) -> Option<ServerCommand> {
    let Opened::Sealed { envelope, payload_at } = Header::open(&item.value) else { return None };
    let body = item.value.slice(payload_at..);
    let is_placeholder = body.is_empty() && envelope.tags().any(|(_, version)| version == NEVER);
    let seconds = item.ttl.unwrap_or(u32::MAX).min(envelope.stale_for).min(inputs.policy.stale_seconds());
    if !inputs.policy.serves_stale() || !counts(envelope.fence) || is_placeholder || seconds == 0 {
        return None;
    }
    let mut header = BytesMut::new();
    let sealed = Envelope {
        stale_for: inputs.policy.stale_seconds(),
        built_at: built_at(envelope.begun_at(), miss.stub.map_or(0, StubId::number)),
        fence: inputs.fence,
        ..envelope.to_owned()
    };
    sealed.seal(&mut header).ok()?;
    if header.len() + body.len() > inputs.max_value {
        return None;
    }
    let operation = Operation::Store {
        mode: StoreMode::Set,
        value: Stored { header: header.freeze(), body },
        flags: item.flags,
        exptime: i64::from(seconds),
        cas: Some(miss.observed_cas?),
        explicit: None,
    };
    Some(ServerCommand { item: ItemRef::Value, operation })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::guard::fixtures;
    use crate::guard::policy::Policy;
    use crate::guard::tag_version::Versions;

    fn sealed(stale_for: u32, fence: u64, body: &str) -> Bytes {
        let envelope = Envelope { stale_for, built_at: 5, rebuild: 3, fence, tags: [].into_iter().collect() };
        let mut bytes = BytesMut::new();
        envelope.seal(&mut bytes).expect("a small header");
        bytes.extend_from_slice(body.as_bytes());
        bytes.freeze()
    }

    #[test]
    fn a_value_is_taken_over_as_stale_and_for_no_longer_than_it_would_have_been_served() {
        let policy = Policy { stale_for: std::time::Duration::from_secs(60), ..Policy::default() };
        let inputs = Inputs { fence: 8, ..fixtures::inputs(&policy, &[]) };
        let miss = MissToken::new(Some(fixtures::cas(9)), Versions::new(), &inputs);
        for (ttl, stale_for, stored_under, exptime) in [
            (Some(600), 60, 7, Some(60)),
            (Some(20), 60, 7, Some(20)),
            (Some(600), 30, 7, Some(30)),
            (None, 60, 7, Some(60)),
            (Some(0), 60, 7, None),
            // Its old place is another one now.
            (Some(600), 60, 6, None),
        ] {
            let value = sealed(stale_for, stored_under, "old");
            let item = Item { ttl, value, flags: 42, ..fixtures::item("old", 3) };
            let stored = take_over(&item, |fence| fence == 7, &miss, &inputs);
            let found = stored.map(|command| match command.operation {
                Operation::Store { exptime, cas, flags, value, .. } => {
                    assert_eq!((cas, flags, &value.body[..]), (Some(fixtures::cas(9)), 42, &b"old"[..]));
                    let Opened::Sealed { envelope, .. } = Envelope::open(&value.header) else { panic!() };
                    assert_eq!((envelope.fence, envelope.stale_for), (8, 60));
                    exptime
                }
                other => panic!("{other:?}"),
            });
            assert_eq!(found, exptime, "ttl {ttl:?}, stale_for {stale_for}, fence {stored_under}");
        }
    }

    #[test]
    fn nothing_is_taken_over_under_a_rule_that_serves_nothing_stale_nor_what_has_no_envelope() {
        let strict = Policy { stale_for: std::time::Duration::ZERO, ..Policy::default() };
        for (policy, value) in
            [(strict, sealed(60, 0, "old")), (Policy::default(), Bytes::from_static(b"old"))]
        {
            let inputs = fixtures::inputs(&policy, &[]);
            let miss = MissToken::new(Some(fixtures::cas(9)), Versions::new(), &inputs);
            let item = Item { ttl: Some(600), value, ..fixtures::item("old", 3) };
            assert_eq!(take_over(&item, |_| true, &miss, &inputs), None);
        }
    }
}
