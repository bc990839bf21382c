//! Judges whether an item may be served, and as what.

use bytes::{Buf, Bytes};

use super::command::{Cas, Item, Usage};
use super::envelope::{Header, MAX_EXPLICIT_TAGS, Opened, TagName, TagNames};
use super::inputs::Inputs;
use super::policy::{OnInvalidate, Policy};
use super::stub::Stub;
use super::tag_version::{NEVER, Versions, version_millis};
use crate::metrics::StaleReason;

/// A value that may be served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hit {
    /// Value without its header.
    pub payload: Bytes,
    /// Client flags of the value.
    pub flags: u32,
    /// CAS number of the item.
    pub cas: Cas,
    /// Whole seconds until its soft expiry; `None` if it has none. Zero if stale.
    pub ttl: Option<u32>,
    /// Milliseconds since its soft expiry.
    pub stale_ms: u64,
    /// Why it is stale; nothing if it is fresh.
    pub stale: StaleReasons,
    /// Duration of its last rebuild in milliseconds.
    pub rebuild: u32,
    /// How it has been used, if that was requested.
    pub usage: Usage,
    /// The envelope's header as stored, so that a changed value can be stored with the same one.
    pub header: Bytes,
}

impl Hit {
    /// Represents an item that expired with the command that touched it, and one without bytes or TTL.
    pub fn nothing() -> Hit {
        let (payload, header) = (Bytes::new(), Bytes::new());
        let usage = Usage::default();
        let stale = StaleReasons::default();
        Hit { payload, flags: 0, cas: Cas::NONE, ttl: None, stale_ms: 0, stale, rebuild: 0, usage, header }
    }
}

/// Why a value is not fresh. Several reasons may hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct StaleReasons {
    /// Its soft expiry has passed.
    pub expired: bool,
    /// A tag has another version than the one it was sealed with, or it lacks a tag that its rule names.
    pub tag: bool,
    /// The version of a tag could not be read.
    pub tag_unread: bool,
    /// It was stored under a fence that does not count.
    pub fence: bool,
    /// The server has it marked: by a delete under `on_delete = "stale"`, by `md … I`, or by the client that rebuilds it.
    pub marked: bool,
}

impl StaleReasons {
    /// Whether the value is stale for at least one reason.
    pub fn any(self) -> bool {
        self.expired || self.tag || self.tag_unread || self.fence || self.marked
    }

    /// The one that metrics count. An invalidation comes before the expiry. A mark comes last, because the client that rebuilds a
    /// stale value marks it.
    pub fn counted(self) -> Option<StaleReason> {
        let all = [
            (self.fence, StaleReason::Fence),
            (self.tag, StaleReason::Tag),
            (self.tag_unread, StaleReason::TagUnread),
            (self.expired, StaleReason::Expired),
            (self.marked, StaleReason::Marked),
        ];
        all.into_iter().find(|(holds, _)| *holds).map(|(_, reason)| reason)
    }
}

/// The longest `stale_for` that a rule may have, in seconds.
const MAX_STALE_FOR: u32 = 30 * 24 * 60 * 60;

/// The state of a guarded key's item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ItemState {
    /// May be served as a hit.
    Fresh(Hit),
    /// Past its soft expiry, marked stale, or with a changed tag; may still be served.
    Stale(Hit),
    /// There is an item, but it may not be served.
    Unservable,
    /// Zero bytes: its value is being built for the first time.
    Stub(Stub),
}

/// Recognizes the most common result of a read without a state machine: a fresh value that was sealed with
/// exactly these tags in this order under this fence, or, without a fence, that has no envelope. [`super::Read`] would return
/// the same hit. For any other item this returns `None` and leaves the item as it is. The hit has no [`Hit::header`], which only
/// commands that change the value need.
pub fn fresh_hit<'a>(
    item: &mut Item,
    mut tags: impl Iterator<Item = (&'a [u8], u64)>,
    fence: u64,
    policy: &Policy,
) -> Option<Hit> {
    let mut is_next =
        |(name, version): (&[u8], u64)| tags.next().is_some_and(|(tag, now)| tag == name && now == version);
    if item.size == 0 || item.stale || policy.early_beta > 0.0 {
        return None;
    }
    let (stale_for, rebuild, payload_at) = match Header::open(&item.value) {
        Opened::Plain if fence == 0 => (0, 0, 0),
        Opened::Sealed { envelope, payload_at }
            if envelope.fence == fence
                && envelope.stale_for <= MAX_STALE_FOR
                && envelope.tags().all(&mut is_next) =>
        {
            if tags.next().is_some() {
                return None;
            }
            (envelope.stale_for, envelope.rebuild, payload_at)
        }
        _ => return None,
    };
    // A plain value has no soft expiry.
    if payload_at > 0 && item.ttl.is_some_and(|ttl| ttl <= stale_for) {
        return None;
    }
    let mut payload = std::mem::take(&mut item.value);
    payload.advance(payload_at);
    let Item { flags, cas, usage, .. } = *item;
    let ttl = item.ttl.map(|ttl| ttl - stale_for);
    let stale = StaleReasons::default();
    Some(Hit { payload, flags, cas, ttl, stale_ms: 0, stale, rebuild, usage, header: Bytes::new() })
}

/// Reads an item, and checks its header against the rule: a client may have stored bytes that look like one, and what they claim must
/// not cost more than a header that Kennel writes.
pub(super) fn open<'a>(item: &'a Item, inputs: &Inputs<'_>) -> Opened<Header<'a>> {
    match Header::open(&item.value) {
        Opened::Sealed { envelope, .. }
            if envelope.tags().count() > inputs.rule_tags().len() + MAX_EXPLICIT_TAGS =>
        {
            Opened::Unreadable("header has more tags than a value of this rule can have")
        }
        Opened::Sealed { envelope, .. } if envelope.stale_for > MAX_STALE_FOR => {
            Opened::Unreadable("header has a longer stale_for than any rule")
        }
        opened => opened,
    }
}

/// The tags that an item was sealed with and that are not among the inputs.
pub(super) fn unknown_tags(item: &Item, inputs: &Inputs<'_>) -> TagNames {
    match open(item, inputs) {
        Opened::Sealed { envelope, .. } => inputs.unknown_of(envelope.tags().map(|(name, _)| name)),
        Opened::Plain | Opened::Unreadable(_) => TagNames::new(),
    }
}

/// Whether a tag of the rule has changed since a value was sealed with it, and none has an older version now
/// than then: versions from a cache may be older than those of the item. `now`: the versions of the inputs'
/// tags.
pub(super) fn is_out_of_date(envelope: &Header<'_>, now: &Versions, inputs: &Inputs<'_>) -> bool {
    let version = |name: &[u8]| inputs.rule_tags().iter().zip(now).find(|(own, _)| own[..] == *name);
    let versions = || envelope.tags().filter_map(|(name, sealed)| Some((sealed, *version(name)?.1)));
    let is_behind = |(sealed, now)| version_millis(sealed) < version_millis(now);
    versions().any(is_behind) && versions().all(|(sealed, now)| sealed == now || is_behind((sealed, now)))
}

/// Whether the item was sealed with a newer version of a tag than these. The servers of a key and of its tags carry a round trip out at
/// different moments: then the tags were read before the item was stored, and prove nothing about it until they have been read again.
pub(super) fn is_newer_than(item: &Item, versions: &Versions, inputs: &Inputs<'_>) -> bool {
    let Opened::Sealed { envelope, .. } = open(item, inputs) else { return false };
    let read = |name: &[u8]| inputs.tags.iter().zip(versions).find(|(tag, _)| tag[..] == *name);
    envelope.tags().any(|(name, sealed)| {
        read(name).is_some_and(|(_, read)| version_millis(*read) < version_millis(sealed))
    })
}

/// Judges an item. `versions` are those of the inputs' tags; `None` if they could not be read, in which case
/// no sealed value counts as fresh.
pub(super) fn judge(item: &Item, versions: Option<&Versions>, inputs: &Inputs<'_>) -> ItemState {
    if let Some(stub) = Stub::of(item) {
        return ItemState::Stub(stub);
    }
    let opened = open(item, inputs);
    let reasons = stale_reasons(item, &opened, versions, inputs);
    let mut hit = Hit {
        payload: item.value.clone(),
        flags: item.flags,
        cas: item.cas,
        ttl: item.ttl,
        stale_ms: 0,
        stale: reasons,
        rebuild: 0,
        usage: item.usage,
        header: Bytes::new(),
    };
    let drops = inputs.policy.on_tag == OnInvalidate::Drop;
    // Under another fence it may have been invalidated any time ago.
    let drops_of_other_fence = !inputs.policy.serves_stale();
    let (envelope, payload_at) = match opened {
        Opened::Plain if reasons.fence && drops_of_other_fence => return ItemState::Unservable,
        Opened::Plain if reasons.any() => return ItemState::Stale(hit),
        Opened::Plain => return ItemState::Fresh(hit),
        Opened::Unreadable(_) => return ItemState::Unservable,
        Opened::Sealed { envelope, payload_at } => (envelope, payload_at),
    };
    hit.payload = item.value.slice(payload_at..);
    hit.header = item.value.slice(..payload_at);
    hit.rebuild = envelope.rebuild;
    if is_placeholder(&envelope, payload_at, item) {
        return ItemState::Unservable;
    }
    // It may have missed a delete or a bump, which was carried out in another place.
    let moved = reasons.tag || reasons.tag_unread || reasons.fence;
    if moved && drops || reasons.fence && drops_of_other_fence {
        return ItemState::Unservable;
    }
    if reasons.expired {
        let stale_for = envelope.stale_for - item.ttl.unwrap_or(0);
        // The rule may have had a longer one when the value was stored.
        if stale_for > inputs.policy.stale_seconds() {
            return ItemState::Unservable;
        }
        hit.stale_ms = u64::from(stale_for) * 1000;
    }
    if reasons.any() {
        hit.ttl = Some(0);
        ItemState::Stale(hit)
    } else {
        hit.ttl = item.ttl.map(|ttl| ttl - envelope.stale_for);
        ItemState::Fresh(hit)
    }
}

/// Judges an item after its tags have been read. `lost`: one of them was missing and has just been created, so that it proves
/// nothing: by chance it may get a version that it had before.
pub(super) fn judge_after(
    lost: bool,
    item: &Item,
    versions: Option<&Versions>,
    inputs: &Inputs<'_>,
) -> ItemState {
    match judge(item, versions, inputs) {
        ItemState::Fresh(hit) if lost && !hit.header.is_empty() => match inputs.policy.on_tag {
            OnInvalidate::Stale => {
                let stale = StaleReasons { tag: true, ..hit.stale };
                ItemState::Stale(Hit { ttl: Some(0), stale, ..hit })
            }
            OnInvalidate::Drop => ItemState::Unservable,
        },
        item_state => item_state,
    }
}

/// Why an item that is no stub is not fresh.
pub(super) fn stale_reasons(
    item: &Item,
    opened: &Opened<Header<'_>>,
    versions: Option<&Versions>,
    inputs: &Inputs<'_>,
) -> StaleReasons {
    let mut reasons = StaleReasons { marked: item.stale, ..StaleReasons::default() };
    match opened {
        // Stored without Kennel, or too large for an envelope: it has no soft expiry and no tags. Nor has it a fence, so nobody
        // knows in which place it was stored.
        Opened::Plain => reasons.fence = inputs.fence != 0,
        Opened::Unreadable(_) => {}
        Opened::Sealed { envelope, .. } => {
            reasons.expired = item.ttl.is_some_and(|ttl| ttl <= envelope.stale_for);
            reasons.fence = !inputs.counts(envelope.fence);
            match versions {
                None => reasons.tag_unread = true,
                Some(versions) => {
                    let now =
                        |name: &[u8]| inputs.tags.iter().zip(versions).find(|(tag, _)| tag[..] == *name);
                    let sealed = |name: &TagName| envelope.tags().any(|(sealed, _)| *sealed == name[..]);
                    // A tag that is not among the inputs is ignored. A caller that must know about it adds it first.
                    reasons.tag = !inputs.rule_tags().iter().all(sealed)
                        || !envelope
                            .tags()
                            .all(|(name, version)| now(name).is_none_or(|(_, now)| *now == version));
                }
            }
        }
    }
    reasons
}

/// Whether the item replaces a value that may not be served.
pub(super) fn is_placeholder(envelope: &Header<'_>, payload_at: usize, item: &Item) -> bool {
    let is_empty = payload_at == item.value.len() && envelope.tags().next().is_some();
    is_empty && envelope.tags().all(|(_, version)| version == NEVER)
}

/// XFetch (Vattani, Chierichetti and Lowenstein, 2015): the probability rises towards the expiry and with the
/// duration of the last rebuild.
pub(super) fn refreshes_early(hit: &Hit, inputs: &Inputs<'_>) -> bool {
    let beta = inputs.policy.early_beta;
    match hit.ttl {
        Some(ttl) if beta > 0.0 => {
            -f64::from(hit.rebuild) * beta * inputs.random_unit.ln() >= f64::from(ttl) * 1000.0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::BytesMut;
    use smallvec::SmallVec;

    use super::*;
    use crate::guard::command::{Replies, ServerReply};
    use crate::guard::envelope::{Envelope, Tags};
    use crate::guard::fixtures;
    use crate::guard::machine::{Event, Machine, Step};
    use crate::guard::read::{Read, ReadEnd, ReadOptions};

    const NAMES: [&[u8]; 3] = [b"blog:7", b"posts", b"users"];

    /// An item as it may exist under a key whose rule has the first `tags` of [`NAMES`], all at version 100.
    fn random_item(tags: usize, random: &mut fastrand::Rng) -> Item {
        let named = |at: usize| (TagName::from_slice(NAMES[at]), 100);
        let mut sealed: Tags = (0..tags).map(named).collect();
        match random.u8(0..10) {
            0 => sealed.push(named(2)),
            1 => drop(sealed.pop()),
            2 => sealed.iter_mut().for_each(|(_, version)| *version += random.u64(0..2)),
            3 => sealed.reverse(),
            _ => {}
        }
        let envelope =
            Envelope { stale_for: 60, built_at: 5, rebuild: random.u32(0..9), fence: 0, tags: sealed };
        let mut value = BytesMut::new();
        if random.u8(0..5) > 0 {
            envelope.seal(&mut value).unwrap();
        }
        value.extend_from_slice(&b"payload"[..random.usize(0..7)]);
        if random.u8(0..20) == 0 {
            value.truncate(random.usize(0..=value.len()));
        }
        let value = value.freeze();
        let (size, cas) = (value.len(), Cas { number: random.u64(1..9), epoch: 1 });
        let ttl = [None, Some(0), Some(59), Some(60), Some(61), Some(90)][random.usize(0..6)];
        let (won, stale) = (random.u8(0..20) == 0, random.u8(0..20) == 0);
        Item { value, size, flags: random.u32(..), cas, ttl, won, stale, usage: Usage::default() }
    }

    #[test]
    fn a_header_that_the_rule_cannot_have_written_is_not_served_and_costs_no_read_of_tags() {
        let policy = Policy { stale_for: Duration::from_secs(60), ..Policy::default() };
        let own = [TagName::from_slice(NAMES[0])];
        let inputs = fixtures::inputs(&policy, &own);
        let item = |stale_for, tags: usize, ttl| {
            let named = |n: usize| (TagName::from_slice(format!("t{n}").as_bytes()), 100);
            let tags = [(own[0].clone(), 100)].into_iter().chain((1..tags).map(named)).collect();
            let mut value = BytesMut::new();
            Envelope { stale_for, built_at: 5, rebuild: 0, fence: 0, tags }.seal(&mut value).unwrap();
            value.extend_from_slice(b"payload");
            Item { ttl: Some(ttl), ..fixtures::item(value.freeze(), 7) }
        };
        let versions = Versions::from_slice(&[100]);
        let judged = |item: &Item| judge(item, Some(&versions), &inputs);
        assert_eq!(unknown_tags(&item(60, 17, 90), &inputs).len(), 16);
        assert_eq!(unknown_tags(&item(60, 18, 90), &inputs).len(), 0);
        assert!(matches!(judged(&item(60, 17, 90)), ItemState::Fresh(_)));
        assert_eq!(judged(&item(60, 18, 90)), ItemState::Unservable);
        assert_eq!(judged(&item(MAX_STALE_FOR + 1, 1, 90)), ItemState::Unservable);
        // The rule had a longer one before. Of it, only what the rule has now counts.
        assert!(matches!(judged(&item(3600, 1, 3541)), ItemState::Stale(Hit { stale_ms: 59_000, .. })));
        assert_eq!(judged(&item(3600, 1, 3539)), ItemState::Unservable);
    }

    #[test]
    fn a_fresh_hit_is_found_only_where_a_read_would_serve_the_same() {
        let random = &mut fastrand::Rng::with_seed(3);
        let (mut seen, mut fresh) = (0, 0);
        for _ in 0..20_000 {
            let tags: SmallVec<[TagName; 2]> =
                NAMES[..random.usize(0..3)].iter().map(|name| TagName::from_slice(name)).collect();
            let item = random_item(tags.len(), random);
            let on_tag = if random.bool() { OnInvalidate::Stale } else { OnInvalidate::Drop };
            let policy = Policy { on_tag, ..Policy::default() };
            let inputs = fixtures::inputs(&policy, &tags);
            let version = fixtures::item("100", item.cas.number);
            let mut replies = Replies::from_iter([ServerReply::Item(item.clone())]);
            replies.extend(tags.iter().map(|_| ServerReply::Item(version.clone())));
            let step =
                Read::after_first_get(ReadOptions::default(), 0).resume(Event::Replies(replies), &inputs);
            let known = tags.iter().map(|name| (&name[..], 100));
            let found = fresh_hit(&mut item.clone(), known, inputs.fence, inputs.policy);
            let plain = |hit: Hit| Hit { header: Bytes::new(), ..hit };
            match (step, found) {
                (Step::Done(ReadEnd::Fresh(hit)), Some(seen_hit)) => {
                    assert_eq!(plain(hit), seen_hit);
                    (seen, fresh) = (seen + 1, fresh + 1);
                }
                (Step::Done(ReadEnd::Fresh(_)), None) => fresh += 1,
                (_, None) => {}
                (step, Some(hit)) => panic!("{hit:?} of {item:?}, which is {step:?}"),
            }
        }
        // Among the fresh values it misses only those whose tags are in another order.
        assert!(seen > 5_000 && fresh < seen * 11 / 10, "{seen} of {fresh}");
    }

    #[test]
    fn a_value_of_another_fence_is_stale_and_not_served_by_a_rule_that_serves_nothing_stale() {
        let sealed = |fence| {
            let mut value = BytesMut::new();
            let envelope = Envelope { stale_for: 60, built_at: 5, rebuild: 1, fence, tags: Tags::new() };
            envelope.seal(&mut value).unwrap();
            value.extend_from_slice(b"v");
            fixtures::item(value.freeze(), 7)
        };
        for (item, stored_under) in [(sealed(0), 0), (sealed(7), 7), (fixtures::item("plain", 7), 0)] {
            for fence in [0, 7, 8] {
                for (on_tag, stale_for, serves) in [
                    (OnInvalidate::Stale, 60, true),
                    (OnInvalidate::Stale, 0, false),
                    (OnInvalidate::Drop, 60, false),
                ] {
                    let policy =
                        Policy { on_tag, stale_for: Duration::from_secs(stale_for), ..Policy::default() };
                    let inputs = Inputs { fence, ..fixtures::inputs(&policy, &[]) };
                    let state = judge(&item, Some(&Versions::new()), &inputs);
                    let hit = fresh_hit(&mut item.clone(), [].into_iter(), fence, &policy);
                    let (is_fresh, is_stale) =
                        (matches!(state, ItemState::Fresh(_)), matches!(state, ItemState::Stale(_)));
                    assert_eq!(is_fresh, fence == stored_under);
                    assert_eq!(hit.is_some(), is_fresh);
                    assert_eq!(is_stale, !is_fresh && serves);
                }
            }
        }
    }

    #[test]
    fn a_fresh_hit_is_left_to_the_read_if_it_may_be_refreshed_early() {
        let random = &mut fastrand::Rng::with_seed(3);
        let policy = Policy { early_beta: 1.0, ..Policy::default() };
        assert!(
            (0..100).all(|_| fresh_hit(&mut random_item(0, random), [].into_iter(), 0, &policy).is_none())
        );
    }

    #[test]
    fn each_reason_for_staleness_is_named_and_an_invalidation_is_counted_before_the_expiry() {
        let sealed = |fence, version| {
            let mut value = BytesMut::new();
            let tags = [(TagName::from_slice(b"posts"), version)].into_iter().collect();
            let envelope = Envelope { stale_for: 60, built_at: 5, rebuild: 1, fence, tags };
            envelope.seal(&mut value).unwrap();
            value.extend_from_slice(b"v");
            fixtures::item(value.freeze(), 7)
        };
        let (policy, tags) = (Policy::default(), [TagName::from_slice(b"posts")]);
        let inputs = Inputs { fence: 7, ..fixtures::inputs(&policy, &tags) };
        let versions = Versions::from_iter([100]);
        let of = |item: Item, versions: Option<&Versions>| match judge(&item, versions, &inputs) {
            ItemState::Fresh(hit) | ItemState::Stale(hit) => hit.stale,
            state => panic!("{state:?}"),
        };
        let none = StaleReasons::default();
        let fresh = Item { ttl: Some(61), ..sealed(7, 100) };
        let expired = Item { ttl: Some(60), ..fresh.clone() };
        assert_eq!((of(fresh.clone(), Some(&versions)), none.any()), (none, false));
        let only = |stale: StaleReasons, reason| {
            assert_eq!(stale.counted(), Some(reason));
            stale
        };
        let expected = StaleReasons { expired: true, ..none };
        assert_eq!(only(of(expired.clone(), Some(&versions)), StaleReason::Expired), expected);
        let marked = Item { stale: true, ..fresh.clone() };
        let expected = StaleReasons { marked: true, ..none };
        assert_eq!(only(of(marked, Some(&versions)), StaleReason::Marked), expected);
        // The client that rebuilds it has marked it.
        let rebuilt = Item { stale: true, ..expired.clone() };
        assert_eq!(of(rebuilt, Some(&versions)).counted(), Some(StaleReason::Expired));
        let moved = Item { ttl: Some(60), ..sealed(7, 99) };
        let expected = StaleReasons { expired: true, tag: true, ..none };
        assert_eq!(only(of(moved, Some(&versions)), StaleReason::Tag), expected);
        assert_eq!(only(of(fresh, None), StaleReason::TagUnread), StaleReasons { tag_unread: true, ..none });
        let elsewhere = Item { ttl: Some(61), ..sealed(8, 99) };
        let expected = StaleReasons { fence: true, tag: true, ..none };
        assert_eq!(only(of(elsewhere, Some(&versions)), StaleReason::Fence), expected);
    }
}
