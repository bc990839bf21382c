//! Explains a key to an operator: which rule applies, where the key is kept, what stands there and why, who builds it.
//!
//! Nothing is changed and no lease is taken. The servers receive `me`, and for guarded keys, locks, tags and copies `mg` with `u`, which
//! is no use of an item. `mg` has one effect: if an item is marked stale, the server's own `W` goes to the first `mg`. The guard does not
//! use that `W` of a value, but clients of raw keys may: raw keys are never read by `mg`.

use std::rc::Rc;

use bytes::BytesMut;
use smallvec::SmallVec;

use super::guarded::tag_servers::tag_version;
use super::guarded::wire;
use super::key::{GuardedKey, KeyClass, Place};
use super::pipeline::Proxy;
use crate::clock::utc;
use crate::error::Failure;
use crate::guard::envelope::{LOCK_PREFIX, lock_key};
use crate::guard::{
    GetFlags, Item, ItemRef, Operation, ServerCommand, ServerReply, TagName, explain_item, sealed_names,
};
use crate::metrics::NO_RULE;
use crate::protocol::base64;
use crate::protocol::reply::Shape;
use crate::rule::Captures;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};
use crate::upstream::{OnError, OtherKind};
use debug_reply::DebugReply;

mod copies;
mod copy_report;
mod debug_reply;
mod describe;
mod report;
mod structure;
mod text;

pub use report::{AskedBy, Explanation, NearReport, SCHEMA, shown};
use report::{
    CaptureReport, Class, EarlierRule, EarlierRules, ElsewhereReport, FoundReport, KeyReport, LocalReport,
    OtherList, PlaceReport, RuleReport, TagReport, TagServerReport, TagSource, ViewReport,
};

/// The longest key, in bytes; in base64 if it cannot be sent otherwise.
const MAX_KEY: usize = 250;
/// The most earlier rules that are named.
const MAX_EARLIER: usize = 16;

/// A read that counts as no use and leaves nothing.
const LOOK: Operation =
    Operation::Get(GetFlags { value: true, usage: true, unseen: true, vivify: None, touch: None });

/// Why there can be no item under such a key. `None`: it is valid.
pub fn key_error(key: &[u8]) -> Option<String> {
    let length = key.len();
    if length == 0 {
        return Some("the key is empty".to_owned());
    }
    let encoded = length.div_ceil(3) * 4;
    match needs_base64(key) {
        true if encoded > MAX_KEY => Some(format!(
            "the key has {length} bytes, one of which is a space, CR, LF or NUL: memcached takes such a key in base64 only, where it \
             would have {encoded} bytes of at most {MAX_KEY}"
        )),
        false if length > MAX_KEY => {
            Some(format!("the key has {length} bytes: memcached takes at most {MAX_KEY}"))
        }
        _ => None,
    }
}

fn needs_base64(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b' ' | b'\r' | b'\n' | 0))
}

/// What a server has under a guarded key.
struct Found {
    item: Result<Option<Item>, Failure>,
    debug: Result<Option<DebugReply>, Failure>,
}

/// The requests about a guarded key that are in flight.
struct Asked {
    item: ReplyId,
    debug: ReplyId,
}

/// What the servers have of a tag.
struct FoundTag {
    /// The version in each of its places.
    places: Vec<(Place, Result<Option<u64>, Failure>)>,
}

impl FoundTag {
    /// The version that counts, as a read finds it: the later one. The outer `None`: no server has answered.
    fn version(&self) -> Option<Option<u64>> {
        let answered = || self.places.iter().filter_map(|(_, found)| found.ok());
        answered().next()?;
        Some(answered().flatten().max())
    }
}

impl Proxy {
    /// Explains a key, for which [`key_error`] has no error. Takes a few round trips to its servers.
    pub async fn explain(self: &Rc<Proxy>, key: &[u8], asked_by: AskedBy) -> Explanation {
        let (rule, earlier_rules) = self.rule_report(key);
        let mut explanation = Explanation {
            schema: SCHEMA,
            at: utc(self.now().wall).unwrap_or_default(),
            asked_by,
            sidecar: (asked_by == AskedBy::Sidecar).then(|| hex(self.sidecar)),
            key: key_report(key),
            class: Class::Raw,
            summary: String::new(),
            rule,
            earlier_rules,
            place: None,
            item: None,
            structure: None,
            lock: None,
            tags: Vec::new(),
            elsewhere: None,
            found: Vec::new(),
            local: None,
            notes: Vec::new(),
        };
        let pending = Rc::new(PendingReplies::default());
        match self.class(key) {
            KeyClass::Tag(name) => {
                (explanation.class, explanation.rule) = (Class::Tag, None);
                explanation.earlier_rules = EarlierRules::default();
                explanation.tags = self.explain_tag(&name, &pending).await;
            }
            KeyClass::Raw { pool, rule } => {
                let follows = self.pools[pool].on_error() == OnError::Standby;
                self.explain_raw(key, pool, rule, follows, &mut explanation, &pending).await
            }
            KeyClass::Structure(of) => {
                self.explain_structure(&of, &mut explanation, &pending).await;
            }
            KeyClass::Reserved(_) => {
                explanation.class = Class::Reserved;
                explanation.found = self.find_everywhere(key, &pending).await;
            }
            KeyClass::Guarded(guarded) => {
                explanation.class = Class::Guarded;
                self.explain_guarded(guarded, &mut explanation, &pending).await;
            }
        }
        if asked_by == AskedBy::Sidecar {
            explanation.local = Some(self.local(key));
        }
        explanation.summary = describe::summary(&explanation);
        explanation
    }

    /// For how many milliseconds this worker may serve the key without asking a server. `None`: it does not keep it.
    pub fn near_for(&self, key: &[u8]) -> Option<u64> {
        let key = self.guarded(key).filter(|key| key.has_view() && self.near.may_keep())?;
        let values = self.near.values.borrow();
        values.look(&key.key, key.fences(), self.now(), &self.near.changes)
    }

    /// What all workers of this process know of a key.
    fn local(&self, key: &[u8]) -> LocalReport {
        let now = self.now();
        let leases = self.leases.shard(key).look(key, now);
        let outage = self.outages.look(key, now);
        describe::local(&leases, outage)
    }

    /// The rule of a key, and those before it.
    fn rule_report(&self, key: &[u8]) -> (Option<RuleReport>, EarlierRules) {
        let mut captures = Captures::default();
        let (plan, found) = (&self.plan, self.plan.rules.find(key, &mut captures));
        let name = |index: usize| plan.rule_plans[index].name.clone();
        let count = found.unwrap_or(plan.rule_plans.len());
        let earlier = |index| EarlierRule {
            name: name(index),
            index,
            pattern: plan.rules.pattern(index).text().to_owned(),
        };
        let last = (count.saturating_sub(MAX_EARLIER)..count).map(earlier).collect();
        let rule = found.map(|index| {
            let pattern = plan.rules.pattern(index);
            let capture = |(at, name): (usize, &String)| CaptureReport {
                name: name.clone(),
                value: shown(captures.get(key, at).unwrap_or_default()),
            };
            let captures = pattern.names().iter().enumerate().map(capture).collect();
            RuleReport { name: name(index), index, pattern: pattern.text().to_owned(), captures }
        });
        (rule, EarlierRules { count, last })
    }

    /// `follows`: whether such keys follow their server's place.
    fn place_report(&self, pool: usize, key: &[u8], place: &Place, follows: bool) -> PlaceReport {
        let label = |index: usize| self.pools[pool].connections()[index].server().label().to_owned();
        let fails_over = follows && self.fails_over(pool);
        let view = match place.fence {
            _ if !fails_over => ViewReport::Fixed,
            None => ViewReport::None,
            Some(_) if place.is_standby() => ViewReport::Standby,
            Some(_) => ViewReport::Own,
        };
        PlaceReport {
            pool: self.pools[pool].name().to_owned(),
            server: label(place.server),
            home: label(place.home),
            standby: fails_over.then(|| label(self.pools[pool].standby_index(key, place.home))),
            view,
            fence: place.fence.filter(|fence| *fence != 0).map(hex),
        }
    }

    /// `follows`: whether the key follows its server's place.
    async fn explain_raw(
        self: &Rc<Proxy>,
        key: &[u8],
        pool: usize,
        rule: usize,
        follows: bool,
        explanation: &mut Explanation,
        pending: &Rc<PendingReplies>,
    ) {
        // An element of a table is on the server of its table.
        let placed = self.element(key).map_or(key.len(), |element| element.length);
        let placed = &key[..placed];
        let home = self.pools[pool].server_index(placed);
        let place = if follows { self.place_of_key(pool, key, home) } else { Place::fixed(home) };
        let debug = self.ask_debug(&self.pools[pool].connections()[place.server], key, pending);
        let elsewhere = self.other(pool).map(|(other, kind)| {
            let place = Place::fixed(other.pools[pool].server_index(placed));
            (
                other,
                kind,
                place,
                other.ask_debug(&other.pools[pool].connections()[place.server], key, pending),
            )
        });
        let found = debug_reply::decode(pending.receive(debug).await);
        explanation.item = Some(describe::debugged(found));
        explanation.place = Some(self.place_report(pool, key, &place, follows));
        if let Some((other, kind, there, asked)) = elsewhere {
            let found = debug_reply::decode(pending.receive(asked).await);
            let same_server = self.is_same_server(pool, &place, &there);
            explanation.elsewhere = Some(ElsewhereReport {
                list: other_list(kind),
                same_server,
                place: other.place_report(pool, key, &there, false),
                item: (!same_server).then(|| describe::debugged(found)),
            });
        }
        explanation.notes.push(describe::RAW_NOTE.to_owned());
        if rule == NO_RULE {
            explanation.notes.push("no rule matches, so the key is raw, in the pool \"main\"".to_owned());
        }
        if let Some(share) = self.plan.rule_plans.get(rule).and_then(|plan| plan.share) {
            explanation
                .notes
                .push(format!("the key is not in the {share} of the rule's keys that are guarded"));
        }
    }

    async fn explain_guarded(
        self: &Rc<Proxy>,
        mut key: GuardedKey,
        explanation: &mut Explanation,
        pending: &Rc<PendingReplies>,
    ) {
        let pool = self.plan.guards[key.guard].pool;
        let connection = self.connection_of(&key);
        let asked = self.ask_item(connection, &key.key, pending);
        let lock = self.ask(connection, &lock_key(&key.key), pending);
        let of_rule: Vec<_> = key.tags.iter().map(|tag| self.ask_tag(tag, pending)).collect();
        let elsewhere = self.elsewhere(&key).map(|there| {
            let kind = self.other(pool).map(|(_, kind)| kind);
            let other = self.other(pool).map_or(self, |(other, _)| other);
            let asked = other.ask_item(other.connection_of(&there), &there.key, pending);
            (other, kind, there, asked)
        });
        let found = self.found_item(asked, pending).await;
        let lock = received(pending.receive(lock).await);
        let mut tags = Vec::new();
        for asked in of_rule {
            tags.push(self.found_tag(asked, pending).await);
        }
        let rule_tags = key.tags.len();
        let further = match &found.item {
            Ok(Some(item)) => sealed_names(item),
            _ => Vec::new(),
        };
        // A header has at most 64.
        let further: Vec<TagName> = further.into_iter().filter(|name| !key.tags.contains(name)).collect();
        if !further.is_empty() {
            let asked: Vec<_> = further.iter().map(|tag| self.ask_tag(tag, pending)).collect();
            for asked in asked {
                tags.push(self.found_tag(asked, pending).await);
            }
            key = self.with_tags(&key, further);
        }
        let versions: Option<Vec<Option<u64>>> = tags.iter().map(FoundTag::version).collect();
        let inputs = self.inputs(&key, self.policy_of(&key), self.now(), false);
        let explained = match &found.item {
            Ok(Some(item)) => Some(explain_item(item, versions.as_deref(), &inputs)),
            _ => None,
        };
        let sealed =
            explained.as_ref().and_then(|explained| explained.header.as_ref()).map(|header| &header.tags);
        for (at, (name, tag)) in key.tags.iter().zip(&tags).enumerate() {
            let from = if at < rule_tags { TagSource::Rule } else { TagSource::Value };
            let elsewhere = self.tag_elsewhere(name, pending).await;
            let sealed = sealed
                .map(|sealed| sealed.iter().find(|(sealed, _)| sealed == name).map(|(_, version)| *version));
            explanation.tags.push(describe::tag(
                self.tag_servers_report(tag),
                (name, from),
                tag.version(),
                sealed,
                elsewhere,
            ));
        }
        explanation.item = Some(describe::item(&found, explained.as_ref(), &explanation.tags, &inputs));
        let this = explanation.sidecar.is_some().then_some(self.sidecar);
        explanation.lock = Some(describe::lock(&lock, versions.as_deref(), this, &inputs));
        explanation.place = Some(self.place_report(pool, &key.key, &key.place, true));
        if let Some((other, Some(kind), there, asked)) = elsewhere {
            let found = other.found_item(asked, pending).await;
            let same_server = self.is_same_server(pool, &key.place, &there.place);
            // The tags are those of the list that is read.
            let there = GuardedKey { place: there.place, ..key.clone() };
            let inputs = other.inputs(&there, other.policy_of(&there), other.now(), false);
            let explained = match &found.item {
                Ok(Some(item)) => Some(explain_item(item, versions.as_deref(), &inputs)),
                _ => None,
            };
            let item = describe::item(&found, explained.as_ref(), &explanation.tags, &inputs);
            explanation.elsewhere = Some(ElsewhereReport {
                list: other_list(kind),
                same_server,
                place: other.place_report(pool, &there.key, &there.place, true),
                item: (!same_server).then_some(item),
            });
        }
        if self.tag_cache.is_on() && !key.tags.is_empty() {
            explanation.notes.push(
                "tags.cache is on: a worker may use an older version of a tag until that time has passed"
                    .to_owned(),
            );
        }
    }

    async fn explain_tag(self: &Rc<Proxy>, name: &TagName, pending: &Rc<PendingReplies>) -> Vec<TagReport> {
        let found = self.found_tag(self.ask_tag(name, pending), pending).await;
        let elsewhere = self.tag_elsewhere(name, pending).await;
        let servers = self.tag_servers_report(&found);
        vec![describe::tag(servers, (name, TagSource::Key), found.version(), None, elsewhere)]
    }

    /// A tag in the other list of servers of its pool.
    async fn tag_elsewhere(&self, name: &TagName, pending: &Rc<PendingReplies>) -> Vec<TagServerReport> {
        let Some((other, _)) = self.other(self.plan.tag_pool) else { return Vec::new() };
        let found = other.found_tag(other.ask_tag(name, pending), pending).await;
        other.tag_servers_report(&found)
    }

    fn tag_servers_report(&self, tag: &FoundTag) -> Vec<TagServerReport> {
        let report = |(place, found): &(Place, Result<Option<u64>, Failure>)| {
            let server = self.tag_connection(place).server().label().to_owned();
            describe::tag_server(server, place, *found)
        };
        tag.places.iter().map(report).collect()
    }

    /// Asks each server of each pool for a reserved key.
    async fn find_everywhere(&self, key: &[u8], pending: &Rc<PendingReplies>) -> Vec<FoundReport> {
        let is_lock = key.starts_with(LOCK_PREFIX);
        let ask = |pool: usize| {
            let of_pool = self.pools[pool].all_connections();
            of_pool.map(move |connection| {
                let debug = self.ask_debug(connection, key, pending);
                let lock = is_lock.then(|| self.ask(connection, key, pending));
                (pool, connection, debug, lock)
            })
        };
        let asked: Vec<_> = (0..self.pools.len()).flat_map(ask).collect();
        let mut found = Vec::new();
        for (pool, connection, debug, lock) in asked {
            let item = describe::debugged(debug_reply::decode(pending.receive(debug).await));
            let lock = match lock {
                Some(lock) => Some(describe::reserved_lock(&received(pending.receive(lock).await))),
                None => None,
            };
            if item.state != report::ItemState::Nothing {
                let (pool, server) =
                    (self.pools[pool].name().to_owned(), connection.server().label().to_owned());
                found.push(FoundReport { pool, server, item, lock });
            }
        }
        found
    }

    /// Sends `me`.
    fn ask_debug(&self, connection: &Connection, key: &[u8], pending: &Rc<PendingReplies>) -> ReplyId {
        connection.send(pending, Shape::Meta, |out: &mut BytesMut| {
            out.extend_from_slice(b"me ");
            if needs_base64(key) {
                let mut text = Vec::new();
                base64::encode(key, &mut text);
                out.extend_from_slice(&text);
                out.extend_from_slice(b" b\r\n");
            } else {
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
        })
    }

    /// Sends a read that is no use.
    fn ask(&self, connection: &Connection, key: &[u8], pending: &Rc<PendingReplies>) -> ReplyId {
        connection.send_guard(pending, None, |out| wire::encode(&LOOK, key, out))
    }

    fn ask_item(&self, connection: &Connection, key: &[u8], pending: &Rc<PendingReplies>) -> Asked {
        Asked { debug: self.ask_debug(connection, key, pending), item: self.ask(connection, key, pending) }
    }

    async fn found_item(&self, asked: Asked, pending: &PendingReplies) -> Found {
        let debug = debug_reply::decode(pending.receive(asked.debug).await);
        let item = received(pending.receive(asked.item).await);
        Found { item, debug }
    }

    fn ask_tag(&self, name: &TagName, pending: &Rc<PendingReplies>) -> SmallVec<[(Place, ReplyId); 2]> {
        let key = self.key_of_tag(name);
        let places = self.places_of_tag(&key);
        places
            .into_iter()
            .map(|place| (place, self.ask(self.tag_connection(&place), &key, pending)))
            .collect()
    }

    async fn found_tag(&self, asked: SmallVec<[(Place, ReplyId); 2]>, pending: &PendingReplies) -> FoundTag {
        let mut places = Vec::new();
        for (place, id) in asked {
            let found = match received(pending.receive(id).await) {
                _ if place.fence.is_none() => Err(Failure::NoView),
                Ok(item) => Ok(item.and_then(|item| tag_version(&item, &place, self.now()))),
                Err(failure) => Err(failure),
            };
            places.push((place, found));
        }
        FoundTag { places }
    }
}

/// The item in the reply to [`LOOK`].
fn received(reply: Reply) -> Result<Option<Item>, Failure> {
    let command = ServerCommand { item: ItemRef::Value, operation: LOOK };
    match wire::decode(&command, reply) {
        ServerReply::Item(item) => Ok(Some(item)),
        ServerReply::Absent => Ok(None),
        ServerReply::Failed(failure) => Err(failure),
        _ => Err(Failure::Refused),
    }
}

fn other_list(kind: OtherKind) -> OtherList {
    match kind {
        OtherKind::Next => OtherList::Next,
        OtherKind::Previous { .. } => OtherList::Previous,
    }
}

fn key_report(key: &[u8]) -> KeyReport {
    let mut text = Vec::new();
    base64::encode(key, &mut text);
    let base64 = String::from_utf8(text).unwrap_or_default();
    KeyReport { text: shown(key), base64, bytes: key.len() }
}

/// A number as locks and fences are shown.
fn hex(number: u64) -> String {
    format!("{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_memcached_cannot_have_is_refused_with_the_reason() {
        for key in [&b"k"[..], &[b'x'; 250], b"a b", &[b' '; 186], "é\u{1}".as_bytes()] {
            assert_eq!(key_error(key), None, "{key:?}");
        }
        assert_eq!(key_error(b"").as_deref(), Some("the key is empty"));
        assert_eq!(
            key_error(&[b'x'; 251]).as_deref(),
            Some("the key has 251 bytes: memcached takes at most 250")
        );
        let spaced = key_error(&[b' '; 187]).unwrap();
        assert!(spaced.contains("187 bytes") && spaced.contains("252 bytes of at most 250"), "{spaced}");
    }
}
