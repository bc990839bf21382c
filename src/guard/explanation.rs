//! Describes an item as a read would judge it, without the commands that a read sends: for operators.

use super::command::Item;
use super::envelope::{Header, LockRecord, Opened, TagName, Tags};
use super::freshness::{ItemState, StaleReasons, is_placeholder, judge_after, open, stale_reasons};
use super::inputs::Inputs;
use super::read::{holds_nobody, is_outdated, lost_ms};
use super::stub::Stub;
use super::tag_version::{Versions, created_version};

/// What a read of a guarded key would find in its item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemExplanation {
    /// How a read would judge it.
    pub verdict: Verdict,
    /// Its header; `None` if it has none that can be read.
    pub header: Option<HeaderExplanation>,
    /// The bytes that a client would receive.
    pub payload: usize,
}

/// How a read judges an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// A hit, for this many whole seconds; `None`: it has no soft expiry.
    Fresh(Option<u32>),
    /// Served while one client rebuilds it.
    Stale {
        /// All reasons for which it is stale.
        why: StaleReasons,
        /// Milliseconds since its soft expiry; 0 if that has not passed.
        expired_ms: u64,
    },
    /// Not served: a miss.
    Unservable(Unservable),
    /// Its value is being built for the first time, or the client that built it has given up.
    Stub {
        /// The next reader may build the value.
        is_free: bool,
        /// How long the build has lasted at least, in milliseconds.
        age_ms: u64,
        /// How often the right to build has passed on, modulo 4.
        turn: u8,
    },
}

/// Why an item is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unservable {
    /// It replaces a value that `on_tag = "drop"` hides while a client rebuilds it.
    Placeholder,
    /// Its header cannot be read, for this reason.
    Unreadable(&'static str),
    /// It is stale, and the rule serves nothing that is stale for these reasons.
    Dropped(StaleReasons),
}

/// The header of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderExplanation {
    /// Its length in bytes.
    pub length: usize,
    /// How many of the item's last seconds count as stale.
    pub stale_for: u32,
    /// The wall-clock millisecond at which the build of the value began; 0 if unknown.
    pub begun_at: u64,
    /// How long the build took, in milliseconds; 0 if unknown.
    pub rebuild: u32,
    /// The fence; 0 in a pool without failover.
    pub fence: u64,
    /// Whether what was stored under this fence counts.
    pub fence_counts: bool,
    /// The tags that it was sealed with, with their versions then.
    pub tags: Tags,
}

/// The lock of a guarded key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockExplanation {
    /// What it records; the error says why that cannot be read.
    pub record: Result<LockRecord, &'static str>,
    /// The next reader takes it over: it holds nobody, or its build began with tag versions or under a fence that no longer count.
    pub is_outdated: bool,
}

/// The tags that an item was sealed with, without their versions.
pub fn sealed_names(item: &Item) -> Vec<TagName> {
    match Header::open(&item.value) {
        Opened::Sealed { envelope, .. } => {
            envelope.tags().map(|(name, _)| TagName::from_slice(name)).collect()
        }
        Opened::Plain | Opened::Unreadable(_) => Vec::new(),
    }
}

/// Describes an item. `found`: the version of each of the inputs' tags, with `None` for one that has none; `None` if they could not be
/// read.
pub fn explain_item(item: &Item, found: Option<&[Option<u64>]>, inputs: &Inputs<'_>) -> ItemExplanation {
    // A read creates a tag that is missing.
    let lost = found.is_some_and(|found| found.iter().any(Option::is_none));
    let created = created_version(inputs);
    let versions: Option<Versions> =
        found.map(|found| found.iter().map(|version| version.unwrap_or(created)).collect());
    let opened = open(item, inputs);
    let (header, payload) = match opened {
        Opened::Sealed { envelope, payload_at } => {
            (Some(HeaderExplanation::of(&envelope, payload_at, inputs)), item.value.len() - payload_at)
        }
        Opened::Plain | Opened::Unreadable(_) => (None, item.value.len()),
    };
    let verdict = match judge_after(lost, item, versions.as_ref(), inputs) {
        ItemState::Fresh(hit) => Verdict::Fresh(hit.ttl),
        ItemState::Stale(hit) => Verdict::Stale { why: hit.stale, expired_ms: hit.stale_ms },
        ItemState::Stub(Stub { is_free, age, turn, .. }) => {
            Verdict::Stub { is_free, age_ms: age + if is_free { 0 } else { lost_ms(item, inputs) }, turn }
        }
        ItemState::Unservable => Verdict::Unservable(match opened {
            Opened::Unreadable(why) => Unservable::Unreadable(why),
            Opened::Sealed { envelope, payload_at } if is_placeholder(&envelope, payload_at, item) => {
                Unservable::Placeholder
            }
            Opened::Sealed { .. } | Opened::Plain => {
                let why = stale_reasons(item, &opened, versions.as_ref(), inputs);
                Unservable::Dropped(StaleReasons { tag: why.tag || lost, ..why })
            }
        }),
    };
    ItemExplanation { verdict, header, payload }
}

/// Describes a lock. `found` as for [`explain_item`].
pub fn explain_lock(lock: &Item, found: Option<&[Option<u64>]>, inputs: &Inputs<'_>) -> LockExplanation {
    let known: Versions = found.into_iter().flatten().map(|version| version.unwrap_or(0)).collect();
    LockExplanation {
        record: LockRecord::decode(&lock.value),
        is_outdated: holds_nobody(lock, inputs) || is_outdated(lock, &known, inputs),
    }
}

impl HeaderExplanation {
    fn of(envelope: &Header<'_>, length: usize, inputs: &Inputs<'_>) -> HeaderExplanation {
        HeaderExplanation {
            length,
            stale_for: envelope.stale_for,
            begun_at: envelope.begun_at(),
            rebuild: envelope.rebuild,
            fence: envelope.fence,
            fence_counts: inputs.counts(envelope.fence),
            tags: envelope.to_owned().tags,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::guard::command::{Replies, ServerReply};
    use crate::guard::envelope::Envelope;
    use crate::guard::fixtures;
    use crate::guard::machine::{Event, Machine, Step};
    use crate::guard::policy::{OnInvalidate, Policy};
    use crate::guard::read::{Read, ReadEnd, ReadOptions};

    fn sealed(payload: &[u8], version: u64, ttl: Option<u32>) -> Item {
        let mut value = BytesMut::new();
        let tags = [(TagName::from_slice(b"posts"), version)].into_iter().collect();
        Envelope { stale_for: 60, built_at: 5, rebuild: 7, fence: 0, tags }.seal(&mut value).unwrap();
        value.extend_from_slice(payload);
        Item { ttl, ..fixtures::item(value.freeze(), 9) }
    }

    #[test]
    fn an_item_is_described_as_a_read_judges_it() {
        let tags = [TagName::from_slice(b"posts")];
        let mut seen = [0; 3];
        for on_tag in [OnInvalidate::Stale, OnInvalidate::Drop] {
            let policy = Policy { on_tag, ..Policy::default() };
            let inputs = fixtures::inputs(&policy, &tags);
            let plain = fixtures::item("plain", 9);
            let broken = fixtures::item(sealed(b"v", 100, None).value.slice(..9), 9);
            let valid = [None, Some(0), Some(60), Some(61)]
                .into_iter()
                .flat_map(|ttl| [sealed(b"v", 100, ttl), sealed(b"v", 99, ttl), sealed(b"", 0, ttl)]);
            for item in valid.chain([
                plain,
                broken.clone(),
                Item { value: broken.value.slice(..0), size: 0, ..broken },
            ]) {
                for item in [item.clone(), Item { stale: true, ..item }] {
                    let version = fixtures::item("100", 8);
                    let replies =
                        Replies::from_iter([ServerReply::Item(item.clone()), ServerReply::Item(version)]);
                    let step = Read::after_first_get(ReadOptions::default(), 0)
                        .resume(Event::Replies(replies), &inputs);
                    let described = explain_item(&item, Some(&[Some(100)]), &inputs);
                    let is_fresh = matches!(step, Step::Done(ReadEnd::Fresh(_)));
                    assert_eq!(matches!(described.verdict, Verdict::Fresh(_)), is_fresh, "{item:?}");
                    seen[match described.verdict {
                        Verdict::Fresh(_) => 0,
                        Verdict::Stale { .. } => 1,
                        Verdict::Unservable(_) | Verdict::Stub { .. } => 2,
                    }] += 1;
                }
            }
        }
        assert!(seen.into_iter().all(|count| count > 3), "{seen:?}");
    }

    #[test]
    fn a_tag_that_is_missing_or_unread_makes_no_value_fresh() {
        let (policy, tags) = (Policy::default(), [TagName::from_slice(b"posts")]);
        let inputs = fixtures::inputs(&policy, &tags);
        let item = sealed(b"v", 100, Some(90));
        let why = |found: Option<&[Option<u64>]>| match explain_item(&item, found, &inputs).verdict {
            Verdict::Stale { why, .. } => why,
            verdict => panic!("{verdict:?}"),
        };
        assert_eq!(why(Some(&[None])), StaleReasons { tag: true, ..StaleReasons::default() });
        assert_eq!(why(None), StaleReasons { tag_unread: true, ..StaleReasons::default() });
        let hidden = Policy { on_tag: OnInvalidate::Drop, ..Policy::default() };
        let inputs = fixtures::inputs(&hidden, &tags);
        let verdict = explain_item(&item, Some(&[None]), &inputs).verdict;
        let expected = StaleReasons { tag: true, ..StaleReasons::default() };
        assert_eq!(verdict, Verdict::Unservable(Unservable::Dropped(expected)));
    }

    #[test]
    fn a_lock_shows_its_holder_and_whether_its_build_is_in_vain() {
        let (policy, tags) = (Policy::default(), [TagName::from_slice(b"posts")]);
        let inputs = fixtures::inputs(&policy, &tags);
        let sealed = [(tags[0].clone(), 100)].into_iter().collect();
        let record = LockRecord { granted_at: fixtures::WALL, sidecar: 3, fence: 0, tags: sealed };
        let mut value = BytesMut::new();
        record.encode(&mut value).unwrap();
        let lock = fixtures::item(value.freeze(), 1);
        let described = explain_lock(&lock, Some(&[Some(100)]), &inputs);
        assert_eq!(described, LockExplanation { record: Ok(record), is_outdated: false });
        assert!(explain_lock(&lock, Some(&[Some(101)]), &inputs).is_outdated);
        assert!(explain_lock(&fixtures::item("", 1), None, &inputs).record.is_err());
    }
}
