//! `get`, `gets`, `gat`, `gats`: all keys in one round, one reply in the order asked.

use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::calls::{Client, Footprint, LongLine, Scope};
use super::raw::{put_get, put_key, put_number};
use super::read::{GuardedRead, Shown};
use super::tag_reads::TagReads;
use super::{Proxy, Target, wire};
use crate::error::Failure;
use crate::guard::{Answer, Item, Look, What, Wish, parse_version};
use crate::metrics::Outcome;
use crate::protocol::reply::{Shape, Value, values};
use crate::upstream::OnError;
use crate::upstream::inbox::{Reply, Ticket as ReplyTicket};

/// memcached takes any length of `get`, but a `gat` only up to 2 KiB.
const MAX_GAT_LINE: usize = 1900;
/// Room for what a server is asked for in one line, at first.
const LINE_SIZE: usize = 256;

/// One request for one or more keys.
pub(super) struct Get {
    exptime: Option<i64>,
    cas: bool,
    /// What is sent for the raw keys: at most a few lines to each server.
    parts: SmallVec<[Asked; 1]>,
    keys: SmallVec<[KeyGet; 1]>,
    /// Of the guarded keys.
    tags: TagReads,
    /// How many of the keys, from the first, need no further look.
    settled: usize,
    /// This request holds a win: it must not wait for another key, or two of them could wait for each other.
    won: bool,
    /// It is a part of a long one.
    part: Option<Part>,
}

/// One of the parts in which a long get is asked and answered.
pub(super) struct Part {
    pub(super) line: Rc<LongLine>,
    /// The `END` is said behind this one.
    pub(super) last: bool,
}

struct Asked {
    pool: usize,
    place: usize,
    ticket: ReplyTicket,
    line: BytesMut,
}

#[allow(
    clippy::large_enum_variant,
    reason = "boxing would allocate for every guarded key, of which there are most"
)]
enum KeyGet {
    /// It stands in the line of its part, there.
    Raw {
        rule: usize,
        part: usize,
        at: Range<usize>,
    },
    Tag {
        key: Box<[u8]>,
        tickets: SmallVec<[ReplyTicket; 2]>,
    },
    Guarded(GuardedRead),
}

impl Get {
    /// A request for so many keys, which are still to be added.
    pub(super) fn new(exptime: Option<i64>, cas: bool, part: Option<Part>, keys: usize) -> Get {
        Get {
            exptime,
            cas,
            parts: SmallVec::new(),
            keys: SmallVec::with_capacity(keys),
            tags: TagReads::default(),
            settled: 0,
            // An earlier part may hold one.
            won: part.is_some(),
            part,
        }
    }

    /// Asks for this key too. Nothing is sent yet.
    pub(super) fn add(&mut self, key: &[u8], target: Target, proxy: &Proxy) {
        let key = match target {
            Target::Raw { pool, rule } => {
                let (part, at) = self.part(key, pool, proxy);
                KeyGet::Raw { rule, part, at }
            }
            Target::Tag(_) => KeyGet::Tag { key: key.into(), tickets: SmallVec::new() },
            Target::Guarded(of) => KeyGet::Guarded(GuardedRead::new(of)),
        };
        self.keys.push(key);
    }

    /// The keys that are not raw.
    pub(super) fn footprint(&self, proxy: &Proxy) -> Footprint {
        let hashes = self.keys.iter().filter_map(|key| match key {
            KeyGet::Raw { .. } => None,
            KeyGet::Tag { key, .. } => Some(proxy.hash(key)),
            KeyGet::Guarded(get) => Some(proxy.hash(&get.of.key)),
        });
        Footprint::of(hashes, self.exptime.is_some())
    }

    /// Sends what can be sent at once.
    pub(super) fn send(&mut self, proxy: &Proxy, client: &Client) {
        for key in &mut self.keys {
            if let KeyGet::Tag { key, tickets } = key {
                let name = key.strip_prefix(&proxy.plan.tag_prefix[..]).unwrap_or(key);
                *tickets = proxy.ask_for_tag(name, tag_ask(), &client.inbox);
            }
        }
        for part in &mut self.parts {
            let connection = &proxy.pools[part.pool].connections()[part.place];
            part.ticket = connection.send(&client.inbox, Shape::Values, None, |out| {
                out.extend_from_slice(&part.line);
                out.extend_from_slice(b"\r\n");
            });
        }
        let near = self.exptime.is_none();
        for key in &mut self.keys {
            if let KeyGet::Guarded(get) = key {
                get.begin(Wish::default(), self.exptime, near, &mut self.tags, proxy, client);
            }
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

    /// Puts a raw key on the line to its server: which part that is, and where in its line the key stands.
    fn part(&mut self, key: &[u8], pool: usize, proxy: &Proxy) -> (usize, Range<usize>) {
        let place = proxy.pools[pool].place(key);
        let fits = |part: &Asked| self.exptime.is_none() || part.line.len() + key.len() < MAX_GAT_LINE;
        let known =
            self.parts.iter().rposition(|part| (part.pool, part.place) == (pool, place) && fits(part));
        let at = known.unwrap_or_else(|| {
            let mut line = BytesMut::with_capacity(LINE_SIZE);
            put_get(&mut line, self.exptime, self.cas);
            self.parts.push(Asked { pool, place, ticket: 0, line });
            self.parts.len() - 1
        });
        let line = &mut self.parts[at].line;
        put_key(line, key);
        (at, line.len() - key.len()..line.len())
    }

    pub(super) fn poll(&mut self, scope: &Scope<'_>, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        loop {
            let won = self.won;
            for at in self.settled..self.keys.len() {
                let patient = scope.patient && !self.won;
                let done = match &mut self.keys[at] {
                    KeyGet::Guarded(get) => {
                        get.poll(self.exptime, &mut self.tags, patient, &mut self.won, scope, cx)
                    }
                    KeyGet::Raw { .. } | KeyGet::Tag { .. } => true,
                };
                self.settled += usize::from(done && self.settled == at);
            }
            // A win ends the waiting of the keys before it.
            if won == self.won {
                if self.settled < self.keys.len() {
                    return Poll::Pending;
                }
                break;
            }
        }
        let inbox = &scope.client.inbox;
        let parts = self.parts.iter().map(|part| part.ticket);
        let tags = self.keys.iter().flat_map(|key| match key {
            KeyGet::Tag { tickets, .. } => &tickets[..],
            _ => &[],
        });
        if !parts.chain(tags.copied()).all(|ticket| inbox.is_here(ticket)) {
            return Poll::Pending;
        }
        // If a part before it fails, this one says nothing.
        if self.part.is_some() && !scope.first {
            return Poll::Pending;
        }
        self.answer(scope, out);
        Poll::Ready(())
    }

    fn answer(&self, scope: &Scope<'_>, out: &mut BytesMut) {
        let inbox = &scope.client.inbox;
        let start = out.len();
        let mut trouble: Option<Failure> = None;
        let fails = |pool: usize| scope.proxy.pools[pool].on_error() == OnError::Error;
        let replies: SmallVec<[Option<(Bytes, u32)>; 4]> = self
            .parts
            .iter()
            .map(|part| match inbox.take(part.ticket) {
                Some(Reply::Answered { bytes, epoch }) => Some((bytes, epoch)),
                Some(Reply::Failed(failure)) if fails(part.pool) => {
                    trouble = Some(failure);
                    None
                }
                _ => None,
            })
            .collect();
        // Each server answers in the order asked, and leaves out what it does not have.
        let texts = replies.iter().map(|reply| reply.as_ref().map_or(&b""[..], |(bytes, _)| bytes));
        let mut parts: SmallVec<[_; 4]> = texts.map(|text| values(text).peekable()).collect();
        for key in &self.keys {
            match key {
                KeyGet::Raw { rule, part, at } => {
                    let key = &self.parts[*part].line[at.clone()];
                    let value: Option<Value<'_>> = parts[*part].next_if(|value| value.key == key);
                    if let Some(value) = &value {
                        out.extend_from_slice(value.raw);
                    }
                    scope.count(*rule, if value.is_some() { Outcome::Hit } else { Outcome::Miss });
                }
                KeyGet::Tag { key, tickets } => {
                    let ask = What::Get(tag_ask());
                    // The larger version counts; a server that does not answer only if no other does.
                    let (mut item, mut failed) = (None, None);
                    for reply in tickets.iter().filter_map(|ticket| inbox.take(*ticket)) {
                        match wire::answer(&ask, reply) {
                            // Nothing stands there but what somebody looking for it has left.
                            Answer::Item(found) if found.size == 0 => {}
                            Answer::Item(found) => {
                                let larger =
                                    |item: &Item| parse_version(&item.value) >= parse_version(&found.value);
                                item = item.filter(larger).or(Some(found));
                            }
                            Answer::Failed(failure) => failed = Some(failure),
                            _ => {}
                        }
                    }
                    if item.is_none() && fails(scope.proxy.plan.tag_pool) {
                        trouble = trouble.or(failed);
                    }
                    if let Some(item) = &item {
                        put_value(out, key, 0, self.cas.then_some(item.cas.number), &item.value);
                    }
                    let outcome = if item.is_some() { Outcome::Hit } else { Outcome::Miss };
                    scope.count(crate::metrics::NO_RULE, outcome);
                }
                KeyGet::Guarded(get) => match get.shown() {
                    Some(Shown::Value(hit, _)) => {
                        let cas = self.cas.then_some(hit.cas.number);
                        put_value(out, &get.of.key, hit.flags, cas, &hit.payload);
                    }
                    Some(Shown::Failed(failure)) => trouble = Some(*failure),
                    _ => {}
                },
            }
        }
        // What is left over answers something that was not asked.
        for ((part, reply), left) in self.parts.iter().zip(&replies).zip(&mut parts) {
            if let (Some(_), Some((_, epoch))) = (left.next(), reply) {
                scope.proxy.pools[part.pool].connections()[part.place].distrust(*epoch);
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
fn tag_ask() -> Look {
    Look { value: true, ..Look::default() }
}

fn put_value(out: &mut BytesMut, key: &[u8], flags: u32, cas: Option<u64>, data: &[u8]) {
    out.reserve(key.len() + data.len() + 64);
    out.extend_from_slice(b"VALUE");
    put_key(out, key);
    put_number(out, flags);
    put_number(out, data.len());
    if let Some(cas) = cas {
        put_number(out, cas);
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}
