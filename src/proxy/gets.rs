//! `get`, `gets`, `gat`, `gats`: all keys in one round, one reply in the order asked.

use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::calls::{AccessSet, LongGetState};
use super::client::Client;
use super::large::{LargeReply, write_reply};
use super::raw::{put_key, put_number};
use super::read::{GuardedRead, ReadOutcome};
use super::scope::CallScope;
use super::tag_reads::TagReads;
use super::{KeyClass, Proxy, wire};
use crate::error::Failure;
use crate::guard::{GetFlags, Hit, Item, Operation, ReadOptions, ServerReply, parse_version};
use crate::metrics::Outcome;
use crate::protocol::reply::{Value, values};
use crate::protocol::request::Keys;
use crate::upstream::pending_replies::{Reply, ReplyId};
use crate::upstream::pool::Pool;
use crate::upstream::{GetKind, OnError, each_with_md5};

/// One request for one or more keys.
pub(super) struct Get {
    how: GetKind,
    /// All keys, in the order asked.
    keys: SmallVec<[KeyGet; 1]>,
    /// The raw ones, one behind the other.
    raw: Vec<u8>,
    /// The servers that these are asked of.
    sides: SmallVec<[ServerRead; 4]>,
    guarded: SmallVec<[GuardedRead; 1]>,
    /// Of the guarded keys.
    tags: TagReads,
    /// How many of the guarded keys, from the first, need no further look.
    settled: usize,
    /// This request holds a win: it must not wait for another key, or two of them could wait for each other.
    won: bool,
    /// It is a part of a long one.
    part: Option<GetPart>,
}

/// One of the parts in which a long get is asked and answered.
pub(super) struct GetPart {
    pub(super) line: Rc<LongGetState>,
    /// The `END` is said behind this one.
    pub(super) last: bool,
}

/// A server, and what it was asked in: mostly one line.
struct ServerRead {
    pool: usize,
    place: usize,
    tickets: SmallVec<[ReplyId; 1]>,
}

/// What a server has answered, and in which epochs it was asked.
type ServerValues = SmallVec<[(Bytes, u32); 1]>;

enum KeyGet {
    Raw {
        /// Past the last one, like [`crate::metrics::NO_RULE`], there is none.
        rule: u32,
        side: u32,
        /// Where it stands in `raw`.
        at: Range<u32>,
    },
    /// Its place in `guarded`.
    Guarded(usize),
    Tag(Box<TagGet>),
}

/// A tag's own key, and what its version was asked in.
struct TagGet {
    key: Box<[u8]>,
    tickets: SmallVec<[ReplyId; 2]>,
}

impl Get {
    /// A request for so many keys, which are still to be added.
    pub(super) fn new(how: GetKind, part: Option<GetPart>, keys: usize) -> Get {
        Get {
            how,
            keys: SmallVec::with_capacity(keys),
            raw: Vec::new(),
            sides: SmallVec::new(),
            guarded: SmallVec::new(),
            tags: TagReads::default(),
            settled: 0,
            // An earlier part may hold one.
            won: part.is_some(),
            part,
        }
    }

    /// Asks for these keys too. Nothing is sent yet.
    pub(super) fn add_all(&mut self, keys: Keys<'_>, proxy: &Proxy) {
        if proxy.pools.iter().any(Pool::wants_md5) {
            each_with_md5(keys.iter(), |key, md5| {
                self.add(key, Some(md5), proxy.target_by(key, Some(md5)), proxy);
            });
        } else {
            keys.iter().for_each(|key| self.add(key, None, proxy.target(key), proxy));
        }
    }

    /// Asks for this key too. `md5`: the first eight bytes, if they are known.
    pub(super) fn add(&mut self, key: &[u8], md5: Option<u64>, target: KeyClass, proxy: &Proxy) {
        let to_come = self.keys.capacity() - self.keys.len();
        let key = match target {
            KeyClass::Raw { pool, rule } => {
                if self.raw.is_empty() {
                    // The others are likely to be about as long.
                    self.raw.reserve((key.len() + 2) * to_come);
                }
                let from = self.raw.len() as u32;
                self.raw.extend_from_slice(key);
                KeyGet::Raw {
                    rule: rule as u32,
                    side: self.side(key, md5, pool, proxy),
                    at: from..self.raw.len() as u32,
                }
            }
            KeyClass::Tag(_) => KeyGet::Tag(Box::new(TagGet { key: key.into(), tickets: SmallVec::new() })),
            KeyClass::Guarded(of) => {
                if self.guarded.is_empty() {
                    self.guarded.reserve(to_come);
                }
                self.guarded.push(GuardedRead::new(of));
                KeyGet::Guarded(self.guarded.len() - 1)
            }
        };
        self.keys.push(key);
    }

    /// The server of a raw key.
    fn side(&mut self, key: &[u8], md5: Option<u64>, pool: usize, proxy: &Proxy) -> u32 {
        let place = proxy.pools[pool].place_by(key, md5);
        let known = self.sides.iter().position(|side| (side.pool, side.place) == (pool, place));
        let at = known.unwrap_or_else(|| {
            self.sides.push(ServerRead { pool, place, tickets: SmallVec::new() });
            self.sides.len() - 1
        });
        at as u32
    }

    /// The keys that are not raw.
    pub(super) fn footprint(&self, proxy: &Proxy) -> AccessSet {
        let hashes = self.keys.iter().filter_map(|key| match key {
            KeyGet::Raw { .. } => None,
            KeyGet::Guarded(at) => Some(proxy.hash(&self.guarded[*at].of.key)),
            KeyGet::Tag(tag) => Some(proxy.hash(&tag.key)),
        });
        AccessSet::of(hashes, self.how.exptime.is_some())
    }

    /// Sends what can be sent at once.
    pub(super) fn send(&mut self, proxy: &Proxy, client: &Client) {
        let inbox = &client.inbox;
        for key in &mut self.keys {
            match key {
                KeyGet::Raw { side, at, .. } => {
                    let side = &mut self.sides[*side as usize];
                    let last = side.tickets.last().copied();
                    // If one was refused, the others need not be asked.
                    if last.is_some_and(|last| inbox.is_here(last)) {
                        continue;
                    }
                    let connection = &proxy.pools[side.pool].connections()[side.place];
                    let key = &self.raw[at.start as usize..at.end as usize];
                    let ticket = connection.get_one_of(inbox, key, self.how, last);
                    if last != Some(ticket) {
                        side.tickets.push(ticket);
                    }
                }
                KeyGet::Guarded(_) => {}
                KeyGet::Tag(tag) => {
                    let name = tag.key.strip_prefix(&proxy.plan.tag_prefix[..]).unwrap_or(&tag.key);
                    tag.tickets = proxy.ask_for_tag(name, tag_ask(), inbox);
                }
            }
        }
        let near = self.how.exptime.is_none();
        for get in &mut self.guarded {
            get.begin(ReadOptions::default(), self.how.exptime, near, &mut self.tags, proxy, client);
        }
    }

    /// How many keys it asks for.
    pub(super) fn reads(&self) -> usize {
        self.keys.len()
    }

    /// Whether no key of it is guarded or a tag's: then nothing is to be done before every answer is here.
    pub(super) fn only_waits(&self) -> bool {
        self.keys.iter().all(|key| matches!(key, KeyGet::Raw { .. }))
    }

    fn raw_key(&self, at: &Range<u32>) -> &[u8] {
        &self.raw[at.start as usize..at.end as usize]
    }

    pub(super) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        loop {
            let won = self.won;
            for (at, get) in self.guarded.iter_mut().enumerate().skip(self.settled) {
                let patient = scope.turn.patient && !self.won;
                let done = get.poll(self.how.exptime, &mut self.tags, patient, &mut self.won, scope, cx);
                self.settled += usize::from(done && self.settled == at);
            }
            // A win ends the waiting of the keys before it.
            if won == self.won {
                if self.settled < self.guarded.len() {
                    return Poll::Pending;
                }
                break;
            }
        }
        let inbox = &scope.client.inbox;
        let raw = self.sides.iter().flat_map(|side| &side.tickets);
        let tags = self.keys.iter().flat_map(|key| match key {
            KeyGet::Tag(tag) => &tag.tickets[..],
            _ => &[],
        });
        if !raw.chain(tags).all(|ticket| inbox.is_here(*ticket)) {
            return Poll::Pending;
        }
        // If a part before it fails, this one says nothing.
        if self.part.is_some() && !scope.turn.first {
            return Poll::Pending;
        }
        if let ([KeyGet::Guarded(_)], [get], None) = (&self.keys[..], &self.guarded[..], &self.part)
            && let Some(ReadOutcome::Value(hit, _)) = get.shown()
        {
            self.put_value_line(out, get, hit);
            return Poll::Ready(write_reply(&hit.payload, b"\r\nEND\r\n", out));
        }
        self.answer(scope, out);
        Poll::Ready(None)
    }

    /// What stands before a guarded value.
    fn put_value_line(&self, out: &mut BytesMut, get: &GuardedRead, hit: &Hit) {
        let cas = self.how.cas.then_some(hit.cas.number);
        put_value_line(out, &get.of.key, hit.flags, cas, hit.payload.len());
    }

    fn answer(&self, scope: &CallScope<'_>, out: &mut BytesMut) {
        let inbox = &scope.client.inbox;
        let start = out.len();
        let mut trouble: Option<Failure> = None;
        let fails = |pool: usize| scope.proxy.pools[pool].on_error() == OnError::Error;
        let mut replies: SmallVec<[ServerValues; 4]> = SmallVec::new();
        for side in &self.sides {
            let mut said = ServerValues::new();
            for ticket in &side.tickets {
                match inbox.take(*ticket) {
                    Some(Reply::Answered { bytes, epoch } | Reply::Part { bytes, epoch }) => {
                        said.push((bytes, epoch))
                    }
                    Some(Reply::Failed(failure)) if fails(side.pool) => trouble = Some(failure),
                    _ => {}
                }
            }
            replies.push(said);
        }
        // Each server answers in the order asked, and leaves out what it does not have.
        let texts = replies.iter().map(|said| said.iter().flat_map(|(bytes, _)| values(bytes)));
        let mut texts: SmallVec<[_; 4]> = texts.map(Iterator::peekable).collect();
        for key in &self.keys {
            match key {
                KeyGet::Raw { rule, side, at } => {
                    let key = self.raw_key(at);
                    let value: Option<Value<'_>> = texts[*side as usize].next_if(|value| value.key == key);
                    if let Some(value) = &value {
                        out.extend_from_slice(value.raw);
                    }
                    scope.count(*rule as usize, if value.is_some() { Outcome::Hit } else { Outcome::Miss });
                }
                KeyGet::Tag(tag) => {
                    let ask = Operation::Get(tag_ask());
                    // The larger version counts; a server that does not answer only if no other does.
                    let (mut item, mut failed) = (None, None);
                    for reply in tag.tickets.iter().filter_map(|ticket| inbox.take(*ticket)) {
                        match wire::answer(&ask, reply) {
                            // Nothing stands there but what somebody looking for it has left.
                            ServerReply::Item(found) if found.size == 0 => {}
                            ServerReply::Item(found) => {
                                let larger =
                                    |item: &Item| parse_version(&item.value) >= parse_version(&found.value);
                                item = item.filter(larger).or(Some(found));
                            }
                            ServerReply::Failed(failure) => failed = Some(failure),
                            _ => {}
                        }
                    }
                    if item.is_none() && fails(scope.proxy.plan.tag_pool) {
                        trouble = trouble.or(failed);
                    }
                    if let Some(item) = &item {
                        let cas = self.how.cas.then_some(item.cas.number);
                        put_value_line(out, &tag.key, 0, cas, item.value.len());
                        out.extend_from_slice(&item.value);
                        out.extend_from_slice(b"\r\n");
                    }
                    let outcome = if item.is_some() { Outcome::Hit } else { Outcome::Miss };
                    scope.count(crate::metrics::NO_RULE, outcome);
                }
                KeyGet::Guarded(at) => {
                    let get = &self.guarded[*at];
                    match get.shown() {
                        Some(ReadOutcome::Value(hit, _)) => {
                            self.put_value_line(out, get, hit);
                            out.extend_from_slice(&hit.payload);
                            out.extend_from_slice(b"\r\n");
                        }
                        Some(ReadOutcome::Failed(failure)) => trouble = Some(*failure),
                        _ => {}
                    }
                }
            }
        }
        // What is left over answers something that was not asked.
        for ((side, said), left) in self.sides.iter().zip(&replies).zip(&mut texts) {
            if let (Some(_), Some((_, epoch))) = (left.next(), said.last()) {
                scope.proxy.pools[side.pool].connections()[side.place].distrust(*epoch);
            }
        }
        let part = self.part.as_ref();
        match trouble {
            // The error stands in place of all that would follow.
            _ if part.is_some_and(|part| part.line.is_over()) => out.truncate(start),
            None if part.is_some_and(|part| !part.last) => {}
            None => out.extend_from_slice(b"END\r\n"),
            Some(failure) => {
                out.truncate(start);
                out.extend_from_slice(failure.line());
                if let Some(part) = part {
                    part.line.fail();
                }
            }
        }
    }
}

/// A tag's version is read as it is stored: its key is reserved, so nothing else stands there.
fn tag_ask() -> GetFlags {
    GetFlags { value: true, ..GetFlags::default() }
}

fn put_value_line(out: &mut BytesMut, key: &[u8], flags: u32, cas: Option<u64>, length: usize) {
    out.reserve(key.len() + 64);
    out.extend_from_slice(b"VALUE");
    put_key(out, key);
    put_number(out, flags);
    put_number(out, length);
    if let Some(cas) = cas {
        put_number(out, cas);
    }
    out.extend_from_slice(b"\r\n");
}
