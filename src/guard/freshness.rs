//! Whether an item may be served, and as what.

use bytes::Bytes;

use super::Scene;
use super::ask::{Cas, Item, Usage};
use super::envelope::{Header, Opened, TagName};
use super::{Leaves, TagNames, tags::Versions};

/// A value that may be served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hit {
    /// The client's bytes.
    pub payload: Bytes,
    /// The client's flags.
    pub flags: u32,
    /// The item's CAS.
    pub cas: Cas,
    /// Whole seconds until its soft expiry; `None`: it has none. Zero when stale.
    pub ttl: Option<u32>,
    /// For how many milliseconds it has been past its soft expiry.
    pub stale_ms: u64,
    /// How many milliseconds its last rebuild took.
    pub rebuild: u32,
    /// How it has been used, if that was asked.
    pub usage: Usage,
    /// The envelope's header as stored, so that a changed value can be put behind the same one.
    pub header: Bytes,
}

/// What stands under a guarded key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// May be served as a hit.
    Fresh(Hit),
    /// Outlived its soft expiry, was marked stale, or a tag of it moved; may still be served.
    Stale(Hit),
    /// There is an item, but nothing of it may be served.
    Unservable,
    /// Zero bytes: its value is being built for the first time.
    Stub,
}

/// The tags that an item was sealed with and the scene does not know.
pub(super) fn unknown_tags(item: &Item, scene: &Scene<'_>) -> TagNames {
    match Header::open(&item.value) {
        Opened::Sealed { envelope, .. } => scene.unknown(envelope.tags().map(|(name, _)| name)),
        Opened::Plain | Opened::Unreadable(_) => TagNames::new(),
    }
}

/// Judges an item. `versions` are the versions of the rule's tags; `None` if they could not be read, which proves nothing
/// fresh.
pub(super) fn judge(item: &Item, versions: Option<&Versions>, scene: &Scene<'_>) -> Standing {
    if item.size == 0 {
        return Standing::Stub;
    }
    let mut hit = Hit {
        payload: item.value.clone(),
        flags: item.flags,
        cas: item.cas,
        ttl: item.ttl,
        stale_ms: 0,
        rebuild: 0,
        usage: item.usage,
        header: Bytes::new(),
    };
    let (envelope, payload_at) = match Header::open(&item.value) {
        // Someone stored it directly, or it was too large to wrap: it has no soft expiry and no tags.
        Opened::Plain if item.stale => return Standing::Stale(hit),
        Opened::Plain => return Standing::Fresh(hit),
        Opened::Unreadable(_) => return Standing::Unservable,
        Opened::Sealed { envelope, payload_at } => (envelope, payload_at),
    };
    hit.payload = item.value.slice(payload_at..);
    hit.header = item.value.slice(..payload_at);
    hit.rebuild = envelope.rebuild;
    let moved = match versions {
        None => true,
        Some(versions) => {
            let now = |name: &[u8]| scene.tags.iter().zip(versions).find(|(tag, _)| tag[..] == *name);
            let sealed = |name: &TagName| envelope.tags().any(|(sealed, _)| *sealed == name[..]);
            // What neither the rule nor the scene knows is not looked at: whoever wants to be sure learns it first.
            !scene.own().iter().all(sealed)
                || !envelope.tags().all(|(name, version)| now(name).is_none_or(|(_, now)| *now == version))
        }
    };
    if moved && scene.policy.on_tag == Leaves::Nothing {
        return Standing::Unservable;
    }
    let expired = item.ttl.is_some_and(|ttl| ttl <= envelope.stale_for);
    if expired {
        hit.stale_ms = u64::from(envelope.stale_for - item.ttl.unwrap_or(0)) * 1000;
    }
    if expired || item.stale || moved {
        hit.ttl = Some(0);
        Standing::Stale(hit)
    } else {
        hit.ttl = item.ttl.map(|ttl| ttl - envelope.stale_for);
        Standing::Fresh(hit)
    }
}
