//! From what was found to what is reported.

use super::copy_report::{CopyReport, CopyState};
use super::debug_reply::DebugReply;
use super::report::{
    AskedBy, Class, Explanation, HeaderReport, ItemReport, ItemState, LeaseReport, LocalReport, LockReport,
    OutageReport, StubReport, TagReport, TagServerReport, TagSource, TagStatus, VersionReport, ViewReport,
    shown,
};
use super::{Found, hex};
use crate::clock::utc;
use crate::error::Failure;
use crate::guard::leases::{KeyLook, LeaseLook};
use crate::guard::outage::OutageLook;
use crate::guard::{
    Inputs, Item, ItemExplanation, StaleReasons, TagName, Unservable, Verdict, explain_lock, incarnation_of,
    version_millis,
};
use crate::metrics::StaleReason;
use crate::proxy::key::Place;

/// Why less is known of a raw key.
pub(super) const RAW_NOTE: &str = "the value of a raw key is not read, because that could take the W of an item that a client has marked stale; its flags and \
     its length are therefore unknown";

/// What the items of a structure with copies are.
pub(super) const COPIED_ITEMS: &str =
    "each item has two copies, which count as two items here. What was deleted counts for a minute";

/// What is not told of a structure.
pub(super) fn structure_note(kind: &str) -> String {
    format!("the key is that of a {kind}: docs/structures.md tells what its commands do. Values are not read")
}

/// Why a server did not tell.
pub(super) fn failure(failure: Failure) -> String {
    match failure {
        Failure::Down => "the server cannot be reached, or is too slow to be used",
        Failure::TimedOut => "the server did not reply in time",
        Failure::Refused => "the server returned an error or an invalid reply",
        Failure::NoMemory => "the server is out of memory",
        Failure::Lost => "the server lost an item",
        Failure::Foreign => "the item was stored past Kennel",
        Failure::Overloaded => "too many commands wait for the server",
        Failure::TooLarge => "the answer is larger than 1 MiB",
        Failure::NoView => "there is no valid view: where the keys of this server are is unknown",
        Failure::Unguarded => "the server cannot guard keys; kennel check --connect gives the reason",
    }
    .to_owned()
}

/// An item of which only `me` was asked.
pub(super) fn debugged(found: Result<Option<DebugReply>, Failure>) -> ItemReport {
    match found {
        Err(why) => ItemReport { failure: Some(failure(why)), ..ItemReport::default() },
        Ok(None) => ItemReport { state: ItemState::Nothing, ..ItemReport::default() },
        Ok(Some(debug)) => ItemReport {
            state: ItemState::Present,
            ttl_s: debug.ttl,
            memory_bytes: Some(debug.size),
            cas: Some(debug.cas),
            last_access_s: Some(debug.last_access),
            fetched: Some(debug.fetched),
            ..ItemReport::default()
        },
    }
}

/// A guarded item. `explained` is its explanation, if there is an item.
pub(super) fn item(
    found: &Found,
    explained: Option<&ItemExplanation>,
    tags: &[TagReport],
    inputs: &Inputs<'_>,
) -> ItemReport {
    let item = match &found.item {
        Err(why) => return ItemReport { failure: Some(failure(*why)), ..ItemReport::default() },
        Ok(None) => return ItemReport { state: ItemState::Nothing, ..ItemReport::default() },
        Ok(Some(item)) => item,
    };
    let mut report = ItemReport {
        ttl_s: item.ttl,
        stored_bytes: Some(item.size),
        memory_bytes: found.debug.ok().flatten().map(|debug| debug.size),
        flags: Some(item.flags),
        cas: Some(item.cas.number),
        last_access_s: Some(item.usage.idle.into()),
        fetched: Some(item.usage.hit),
        marked: Some(item.stale),
        ..ItemReport::default()
    };
    let Some(ItemExplanation { verdict, header, payload }) = explained else { return report };
    report.value_bytes = Some(*payload);
    report.header = header.as_ref().map(|header| HeaderReport {
        bytes: header.length,
        stale_for_s: header.stale_for,
        build_began: Some(header.begun_at).filter(|ms| *ms != 0).and_then(utc),
        build_took_ms: header.rebuild,
        fence: Some(header.fence).filter(|fence| *fence != 0).map(hex),
        fence_counts: header.fence_counts,
    });
    match *verdict {
        Verdict::Fresh(fresh_for) => (report.state, report.fresh_for_s) = (ItemState::Fresh, fresh_for),
        Verdict::Stale { why, expired_ms } => {
            report.state = ItemState::Stale;
            let since;
            (report.reasons, report.why, since) = reasons(why, expired_ms, tags, inputs);
            report.stale_since = since.and_then(utc);
        }
        Verdict::Unservable(why) => {
            report.state = ItemState::Hidden;
            (report.reasons, report.why) = match why {
                Unservable::Placeholder => {
                    let why =
                        "on_tag = \"drop\" hides the value that this replaces, while a client rebuilds it";
                    (vec!["placeholder"], vec![why.to_owned()])
                }
                Unservable::Unreadable(why) => {
                    (vec!["unreadable"], vec![format!("its header cannot be read: {why}")])
                }
                Unservable::Dropped(why) => {
                    let (reasons, why, _) = reasons(why, 0, tags, inputs);
                    (reasons, why)
                }
            };
        }
        Verdict::Stub { is_free, age_ms, turn } => {
            report.state = if is_free { ItemState::FreeStub } else { ItemState::Stub };
            // Its flags are not a client's.
            (report.flags, report.value_bytes) = (None, None);
            let renewed_s = renewed(item, inputs).filter(|_| !is_free);
            report.stub = Some(StubReport { building_for_ms: age_ms, turn, renewed_s });
        }
    }
    report
}

/// Seconds since a lock or stub was stored, if its TTL was that of this policy.
fn renewed(item: &Item, inputs: &Inputs<'_>) -> Option<u32> {
    inputs.policy.lock_seconds().checked_sub(item.ttl?)
}

/// Each reason as a word and as text, and since when, in Unix milliseconds, as far as that is known.
fn reasons(
    why: StaleReasons,
    expired_ms: u64,
    tags: &[TagReport],
    inputs: &Inputs<'_>,
) -> (Vec<&'static str>, Vec<String>, Option<u64>) {
    let (mut all, mut since) = (Vec::new(), Vec::new());
    let words = [
        (why.fence, StaleReason::Fence),
        (why.tag, StaleReason::Tag),
        (why.tag_unread, StaleReason::TagUnread),
        (why.expired, StaleReason::Expired),
        (why.marked, StaleReason::Marked),
    ];
    let words = words.into_iter().filter(|(holds, _)| *holds).map(|(_, reason)| reason.word()).collect();
    if why.fence {
        all.push("fence: it was stored in another place, before its server failed over or back".to_owned());
    }
    if why.tag {
        for tag in tags {
            let name = &tag.name;
            let moved =
                tag.version.as_ref().map(|version| (version.ms, version.moved.clone().unwrap_or_default()));
            match (tag.status, moved) {
                (TagStatus::Moved, Some((ms, at))) => {
                    since.push(ms);
                    all.push(format!("tag: {name} moved at {at}"));
                }
                (TagStatus::Moved | TagStatus::Missing, _) => {
                    all.push(format!("tag: {name} has no version: it was lost"));
                }
                (TagStatus::NotSealed, _) => {
                    all.push(format!("tag: its rule names {name}, which it was stored without"));
                }
                _ => {}
            }
        }
    }
    if why.tag_unread {
        all.push("tag_unread: the version of a tag cannot be read".to_owned());
    }
    if why.expired {
        let at = inputs.now.wall.saturating_sub(expired_ms);
        since.push(at);
        all.push(format!("expired: its soft expiry was at {}", utc(at).unwrap_or_default()));
    }
    if why.marked {
        all.push(
            "marked: a delete under on_delete = \"stale\", md … I, or the client that rebuilds it has marked it".to_owned(),
        );
    }
    (words, all, since.into_iter().min())
}

/// The lock of a guarded key. `this`: the sidecar that asks.
pub(super) fn lock(
    found: &Result<Option<Item>, Failure>,
    versions: Option<&[Option<u64>]>,
    this: Option<u64>,
    inputs: &Inputs<'_>,
) -> LockReport {
    let item = match found {
        Err(why) => return LockReport { failure: Some(failure(*why)), ..LockReport::default() },
        Ok(None) => return LockReport { held: Some(false), ..LockReport::default() },
        Ok(Some(item)) => item,
    };
    let explained = explain_lock(item, versions, inputs);
    let report = LockReport {
        held: Some(true),
        ttl_s: item.ttl,
        renewed_s: renewed(item, inputs),
        outdated: explained.is_outdated,
        ..LockReport::default()
    };
    match explained.record {
        Err(why) => LockReport { failure: Some(format!("the lock cannot be read: {why}")), ..report },
        Ok(record) => LockReport {
            holder: Some(hex(record.sidecar)),
            holder_is_this: this.map(|this| this == record.sidecar),
            since: utc(record.granted_at),
            ..report
        },
    }
}

/// A lock that was asked for by its own key.
pub(super) fn reserved_lock(found: &Result<Option<Item>, Failure>) -> LockReport {
    use crate::guard::envelope::LockRecord;
    let item = match found {
        Err(why) => return LockReport { failure: Some(failure(*why)), ..LockReport::default() },
        Ok(None) => return LockReport { held: Some(false), ..LockReport::default() },
        Ok(Some(item)) => item,
    };
    let report = LockReport { held: Some(true), ttl_s: item.ttl, ..LockReport::default() };
    match LockRecord::decode(&item.value) {
        Err(why) => LockReport { failure: Some(format!("the lock cannot be read: {why}")), ..report },
        Ok(record) => {
            LockReport { holder: Some(hex(record.sidecar)), since: utc(record.granted_at), ..report }
        }
    }
}

/// What one server has of a tag.
pub(super) fn tag_server(
    server: String,
    place: &Place,
    found: Result<Option<u64>, Failure>,
) -> TagServerReport {
    TagServerReport {
        server,
        standby: place.is_standby(),
        ms: found.ok().flatten().map(version_millis),
        failure: found.err().map(failure),
    }
}

/// A tag. `now`: its version; the outer `None` if it could not be read. `sealed`: the version in the value's header; the outer `None` if
/// there is no header, the inner one if the value was sealed without the tag.
pub(super) fn tag(
    servers: Vec<TagServerReport>,
    (name, from): (&TagName, TagSource),
    now: Option<Option<u64>>,
    sealed: Option<Option<u64>>,
    elsewhere: Vec<TagServerReport>,
) -> TagReport {
    let status = match (now, sealed) {
        (None, _) => TagStatus::Unread,
        (Some(None), _) => TagStatus::Missing,
        (_, None) => TagStatus::NoValue,
        (_, Some(None)) => TagStatus::NotSealed,
        (Some(Some(now)), Some(Some(sealed))) if now == sealed => TagStatus::Unchanged,
        _ => TagStatus::Moved,
    };
    TagReport {
        name: shown(name),
        from,
        version: now.flatten().map(version),
        sealed: sealed.flatten().map(version),
        status,
        servers,
        elsewhere,
    }
}

fn version(version: u64) -> VersionReport {
    let ms = version_millis(version);
    VersionReport { ms, moved: utc(ms), incarnation: incarnation_of(version) }
}

/// What the sidecar knows.
pub(super) fn local(leases: &KeyLook, outage: Option<OutageLook>) -> LocalReport {
    let lease = |lease: &LeaseLook| LeaseReport {
        connection: lease.connection,
        since: utc(lease.since),
        ends_in_ms: lease.ends_in_ms,
        renewing: lease.renewing,
        orphan: lease.orphan,
    };
    LocalReport {
        leases: leases.leases.iter().map(lease).collect(),
        misses: leases.misses,
        waiters: leases.waiters,
        unfilled: leases.unfilled,
        no_wait_ms: leases.no_wait_ms,
        near: Vec::new(),
        outage: outage.map(|outage| OutageReport {
            builders: outage.builders,
            waiters: outage.waiters,
            kept_ms: outage.kept.map(|(ms, _)| ms),
            kept_bytes: outage.kept.map(|(_, bytes)| bytes),
        }),
    }
}

/// The state of the key in one sentence.
pub(super) fn summary(explanation: &Explanation) -> String {
    match explanation.class {
        Class::Tag => return tag_summary(explanation),
        Class::Reserved => return reserved_summary(explanation),
        Class::Guarded | Class::Raw | Class::Structure => {}
    }
    if explanation.class == Class::Guarded
        && explanation.place.as_ref().is_some_and(|place| place.view == ViewReport::None)
    {
        return "not served: there is no valid view, so where the keys of its server are is unknown"
            .to_owned();
    }
    if let Some(items) = explanation.structure.as_ref().and_then(|structure| structure.items.as_ref()) {
        return match &items.failure {
            Some(why) => format!("unknown: {why}"),
            None if items.found == 0 => "nothing is stored".to_owned(),
            None => format!("stored: {} of {} items are there", items.found, items.all),
        };
    }
    if let Some(structure) = explanation.structure.as_ref().filter(|structure| !structure.copies.is_empty()) {
        return copies_summary(&structure.copies);
    }
    let Some(item) = &explanation.item else { return "unknown".to_owned() };
    let builder = builder(explanation);
    let first = || item.why.first().map_or("", String::as_str);
    match item.state {
        ItemState::Unknown => format!("unknown: {}", item.failure.as_deref().unwrap_or("no answer")),
        ItemState::Nothing if explanation.class != Class::Guarded => "nothing is stored".to_owned(),
        ItemState::Nothing => "nothing is stored: the next reader builds the value".to_owned(),
        ItemState::Present if explanation.class == Class::Structure => "stored".to_owned(),
        ItemState::Present => "stored, as the client sent it".to_owned(),
        ItemState::Fresh if item.header.is_none() => {
            "a plain value without a header, served as fresh".to_owned()
        }
        ItemState::Fresh => match item.fresh_for_s {
            Some(seconds) => format!("fresh for {seconds} s"),
            None => "fresh, without a soft expiry".to_owned(),
        },
        ItemState::Stale => format!("stale ({}); {builder}", first()),
        ItemState::Hidden => format!("not served ({}); {builder}", first()),
        ItemState::Stub => {
            let ms = item.stub.as_ref().map_or(0, |stub| stub.building_for_ms);
            format!("being built for the first time{}", for_at_least(ms))
        }
        ItemState::FreeStub => "its builder has given up: the next reader builds the value".to_owned(),
    }
}

/// How long a build lasts at least. That is known once its lease has been renewed, or from its TTL, which is in whole seconds.
pub(super) fn for_at_least(ms: u64) -> String {
    match ms {
        0 => String::new(),
        ms => format!(", for {ms} ms at least"),
    }
}

fn copies_summary(copies: &[CopyReport]) -> String {
    let present = copies.iter().filter(|copy| copy.state == CopyState::Present).count();
    match (present, copies.iter().find_map(|copy| copy.failure.as_ref())) {
        (0, Some(why)) => format!("unknown: {why}"),
        (0, None) => "nothing is stored".to_owned(),
        _ => format!("stored: {present} of {} copies are there", copies.len()),
    }
}

/// Who rebuilds a value.
fn builder(explanation: &Explanation) -> String {
    let Some(lock) = explanation.lock.as_ref().filter(|lock| lock.held == Some(true)) else {
        return "nobody rebuilds it: the next reader does".to_owned();
    };
    let by = match (lock.holder_is_this, &lock.holder) {
        (Some(true), _) => "a client of this sidecar".to_owned(),
        (_, Some(holder)) => format!("a client of sidecar {holder}"),
        (_, None) => "a client of an unknown sidecar".to_owned(),
    };
    let since = lock.since.as_ref().map_or(String::new(), |since| format!(" since {since}"));
    match lock.outdated {
        true => {
            format!("{by} rebuilds it{since}, from versions that are out of date: the next reader takes over")
        }
        false => format!("{by} rebuilds it{since}"),
    }
}

fn tag_summary(explanation: &Explanation) -> String {
    match explanation.tags.first().map(|tag| (tag.status, &tag.version)) {
        Some((_, Some(version))) => {
            format!("a tag that last moved at {}", version.moved.as_deref().unwrap_or("an unknown time"))
        }
        Some((TagStatus::Unread, None)) => "a tag whose version cannot be read".to_owned(),
        _ => "a tag without a version: it was never used, or it was lost".to_owned(),
    }
}

fn reserved_summary(explanation: &Explanation) -> String {
    let locks = explanation.found.iter().filter_map(|found| found.lock.as_ref());
    let held = locks.filter(|lock| lock.held == Some(true)).count();
    let here = explanation.found.len();
    match (here, held) {
        (0, _) => "one of Kennel's own keys; no server has it".to_owned(),
        (_, 0) => format!("one of Kennel's own keys; servers that have it: {here}"),
        (_, _) => "the lock of a key".to_owned(),
    }
}

/// Who asked, for the last line of the text.
pub(super) fn asked_by(explanation: &Explanation) -> String {
    match (explanation.asked_by, &explanation.sidecar) {
        (AskedBy::Sidecar, Some(sidecar)) => format!("asked by sidecar {sidecar}"),
        _ => "asked by the command itself, without a sidecar: leases, waiters and near values are unknown"
            .to_owned(),
    }
}
