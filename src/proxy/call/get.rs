//! `get`, `gets`, `gat`, `gats` of any keys: all of them are requested at once, and the reply has them in the order of the
//! request.

use std::ops::Range;
use std::task::{Context, Poll};

use bytes::BytesMut;
use smallvec::SmallVec;

use super::long_get::GetPart;
use crate::guard::{GetFlags, Hit, ReadOptions, shown_cas};
use crate::kinds;
use crate::metrics::Outcome;
use crate::proxy::client::Client;
use crate::proxy::guarded::read::GuardedRead;
use crate::proxy::guarded::tag_reads::TagReads;
use crate::proxy::key::{GuardedKey, KeyClass, Place, StructureKey};
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::raw::shown::may_remove;
use crate::proxy::raw::standby::RawPlace;
use crate::proxy::replies::classic::put_value_line;
use crate::proxy::replies::large::{LargeReply, write_reply};
use crate::proxy::replies::outcome::ReadOutcome;
use crate::proxy::scope::{AccessSet, CallScope};
use crate::proxy::structures::run::StructureRun;
use crate::upstream::pending_replies::ReplyId;
use crate::upstream::pool::Pool;
use crate::upstream::{GetKind, each_with_md5};

mod suspects;
mod write;
mod write_binary;
mod written;

pub(super) use write_binary::BinaryGets;
use written::Written;

/// A get in flight.
pub(super) struct Get {
    kind: GetKind,
    /// All keys, in the order of the request.
    keys: SmallVec<[KeyGet; 1]>,
    /// The raw keys, concatenated.
    raw: Vec<u8>,
    /// The servers of the raw keys.
    servers: SmallVec<[ServerRead; 4]>,
    guarded: SmallVec<[GuardedRead; 1]>,
    /// The tags of the guarded keys.
    tags: TagReads,
    structures: Vec<StructureRead>,
    /// Why nothing is read: the command does not apply to one of the keys. A line with its CRLF.
    refused: Option<&'static str>,
    /// How many guarded keys, from the first, have an outcome.
    settled: usize,
    /// Whether this request holds a lease. It must then not wait for another key, or two requests could wait for each other.
    won: bool,
    /// `Some` if it is a part of a long get.
    part: Option<GetPart>,
    /// `Some` for a binary client.
    pub(super) binary: Option<BinaryGets>,
    /// The reply, while further commands tell which of its empty values are stubs.
    written: Option<Box<Written>>,
}

/// The raw keys requested from one server, usually in one command.
struct ServerRead {
    pool: usize,
    /// The server, and the limit of TTLs there.
    place: RawPlace,
    ids: SmallVec<[ReplyId; 1]>,
}

enum KeyGet {
    Raw {
        /// Index of the rule in the metrics, or [`crate::metrics::NO_RULE`].
        rule: u32,
        server: u32,
        /// Its range in `raw`.
        at: Range<u32>,
    },
    /// Its index in `guarded`.
    Guarded(usize),
    Tag(Box<TagGet>),
    /// Its index in `structures`.
    Structure(usize),
}

/// A read of a structure, or of a part of one.
enum StructureRead {
    Unsent(StructureKey),
    /// Why a binary client, which receives a reply for each key, receives an error for this one. A line with its CRLF.
    Refused(&'static str),
    Sent(StructureRun),
}

/// The key of a tag, and the replies that contain its version.
struct TagGet {
    key: Box<[u8]>,
    /// `None`: where it is kept is not known.
    ids: Option<SmallVec<[ReplyId; 2]>>,
    /// Where it is kept.
    places: SmallVec<[Place; 2]>,
}

impl Get {
    /// A get with room for `keys` keys, which must be added.
    pub(super) fn new(kind: GetKind, part: Option<GetPart>, keys: usize) -> Get {
        Get {
            kind,
            keys: SmallVec::with_capacity(keys),
            raw: Vec::new(),
            servers: SmallVec::new(),
            guarded: SmallVec::new(),
            tags: TagReads::default(),
            structures: Vec::new(),
            refused: None,
            settled: 0,
            // An earlier part may hold a lease.
            won: part.is_some(),
            part,
            binary: None,
            written: None,
        }
    }

    /// Gets of a binary client with room for `keys` keys, which must be added. `follows`: the client reads keys before these and has
    /// not ended the sequence, so these must not wait for another client.
    pub(super) fn binary(kind: GetKind, binary: BinaryGets, follows: bool, keys: usize) -> Get {
        Get { won: follows, binary: Some(binary), ..Get::new(kind, None, keys) }
    }

    /// Adds these keys. Nothing is sent.
    pub(super) fn add_all<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>, proxy: &Proxy) {
        if proxy.pools.iter().any(Pool::wants_md5) {
            each_with_md5(keys.into_iter(), |key, md5| {
                self.add(key, Some(md5), proxy.class_by_md5(key, Some(md5)), proxy);
            });
        } else {
            keys.into_iter().for_each(|key| self.add(key, None, proxy.class(key), proxy));
        }
    }

    /// Adds a key. `md5`: the first eight bytes of its MD5, if known.
    pub(super) fn add(&mut self, key: &[u8], md5: Option<u64>, class: KeyClass, proxy: &Proxy) {
        let to_come = self.keys.capacity() - self.keys.len();
        let key = match class {
            KeyClass::Raw { pool, rule } => {
                if self.raw.is_empty() {
                    // The other keys are probably about as long.
                    self.raw.reserve((key.len() + 2) * to_come);
                }
                let from = self.raw.len() as u32;
                self.raw.extend_from_slice(key);
                KeyGet::Raw {
                    rule: rule as u32,
                    server: self.server_index(key, md5, pool, proxy),
                    at: from..self.raw.len() as u32,
                }
            }
            KeyClass::Tag(_) => KeyGet::Tag(Box::new(TagGet {
                key: key.into(),
                ids: Some(SmallVec::new()),
                places: SmallVec::new(),
            })),
            KeyClass::Structure(key) => {
                let refused = match self.kind.exptime {
                    Some(_) => {
                        let is_part = key.length < key.key.len();
                        Some(kinds::commands_of(&proxy.structure(&key).kind, is_part))
                    }
                    // Those of text clients are text.
                    None => key.refused_unless_text(),
                };
                self.structures.push(match refused {
                    Some(line) if self.binary.is_some() => StructureRead::Refused(line),
                    _ => StructureRead::Unsent(key),
                });
                self.refused = self.refused.or(refused.filter(|_| self.binary.is_none()));
                KeyGet::Structure(self.structures.len() - 1)
            }
            KeyClass::Reserved(line) if self.binary.is_some() => {
                self.structures.push(StructureRead::Refused(line));
                KeyGet::Structure(self.structures.len() - 1)
            }
            KeyClass::Reserved(line) => {
                self.refused = Some(line);
                return;
            }
            KeyClass::Guarded(guarded) => {
                if self.guarded.is_empty() {
                    self.guarded.reserve(to_come);
                }
                self.guarded.push(GuardedRead::new(guarded));
                KeyGet::Guarded(self.guarded.len() - 1)
            }
        };
        self.keys.push(key);
    }

    /// The index in `servers` of the server of a raw key.
    fn server_index(&mut self, key: &[u8], md5: Option<u64>, pool: usize, proxy: &Proxy) -> u32 {
        let place = proxy.raw_place(key, md5, pool);
        let is_it = |server: &ServerRead| server.pool == pool && server.place.is_same(&place);
        let known = self.servers.iter().position(is_it);
        let at = known.unwrap_or_else(|| {
            self.servers.push(ServerRead { pool, place, ids: SmallVec::new() });
            self.servers.len() - 1
        });
        at as u32
    }

    /// The guarded keys, tags and structures that it reads. A later command must not store an element while its table is listed.
    pub(super) fn accesses(&self, proxy: &Proxy) -> AccessSet {
        let lists = self.structures.iter().any(|read| match read {
            StructureRead::Unsent(key) => {
                // Those of a table with copies have their keys in the set themselves.
                matches!(proxy.structure(key).kind, kinds::Kind::Table(_))
            }
            StructureRead::Refused(_) | StructureRead::Sent(_) => false,
        });
        let hashes = self.keys.iter().filter_map(|key| match key {
            KeyGet::Raw { at, .. } => proxy.element_access_hash(self.raw_key(at)),
            KeyGet::Structure(at) => match &self.structures[*at] {
                StructureRead::Refused(_) => None,
                StructureRead::Unsent(key) => proxy.structure_access_hash(key),
                StructureRead::Sent(run) => proxy.structure_access_hash(run.key()),
            },
            KeyGet::Guarded(at) => Some(proxy.hash(&self.guarded[*at].key.key)),
            KeyGet::Tag(tag) => Some(proxy.hash(&tag.key)),
        });
        AccessSet::of(hashes, self.kind.exptime.is_some() || lists)
    }

    /// Sends the first commands.
    pub(super) fn send(&mut self, proxy: &Proxy, client: &Client) {
        for read in &mut self.structures {
            if let (StructureRead::Unsent(key), None) = (&*read, self.refused) {
                match StructureRun::begin(kinds::Request::Get, key.clone(), proxy, client) {
                    Ok(run) => *read = StructureRead::Sent(run),
                    Err(line) if self.binary.is_some() => *read = StructureRead::Refused(line),
                    Err(line) => self.refused = Some(line),
                }
            }
        }
        if self.refused.is_some() {
            return;
        }
        let pending = &client.pending;
        for key in &mut self.keys {
            match key {
                KeyGet::Raw { server, at, .. } => {
                    let server = &mut self.servers[*server as usize];
                    let last = server.ids.last().copied();
                    // If one key was refused, the others are not sent.
                    if last.is_some_and(|last| pending.has_arrived(last)) {
                        continue;
                    }
                    let connection = &proxy.pools[server.pool].connections()[server.place.server];
                    let key = &self.raw[at.start as usize..at.end as usize];
                    let kind = server.place.limit.map_or(self.kind, |limit| limit.get(self.kind));
                    let id = connection.get_one_of(pending, key, kind, last);
                    if last != Some(id) {
                        server.ids.push(id);
                    }
                }
                KeyGet::Guarded(_) | KeyGet::Structure(_) => {}
                KeyGet::Tag(tag) => {
                    let name = tag.key.strip_prefix(&proxy.plan.tag_prefix[..]).unwrap_or(&tag.key);
                    tag.places = proxy.places_of_tag(&tag.key);
                    tag.ids = proxy.request_tag(name, &tag.places, tag_flags(), pending);
                }
            }
        }
        let near = self.kind.exptime.is_none();
        for get in &mut self.guarded {
            get.begin(ReadOptions::default(), self.kind.exptime, near, &mut self.tags, proxy, client);
        }
    }

    /// The number of its keys.
    pub(super) fn reads(&self) -> usize {
        self.keys.len()
    }

    /// Whether it may remove the item of this raw key.
    pub(super) fn may_remove(&self, key: &[u8]) -> bool {
        let is_raw = |read: &KeyGet| matches!(read, KeyGet::Raw { at, .. } if self.raw_key(at) == key);
        may_remove(self.kind.exptime) && self.keys.iter().any(is_raw)
    }

    /// Whether all its keys are raw, so that it only waits for replies.
    pub(super) fn only_waits(&self) -> bool {
        self.keys.iter().all(|key| matches!(key, KeyGet::Raw { .. }))
    }

    /// Whether it waits for builds of other clients, and for nothing else of guarded keys.
    pub(super) fn waits_for_build(&self) -> bool {
        let mut unsettled =
            self.guarded.iter().skip(self.settled).filter(|get| get.outcome().is_none()).peekable();
        unsettled.peek().is_some() && unsettled.all(GuardedRead::waits_for_build)
    }

    /// Its key, if it is for one guarded key only.
    pub(super) fn only_guarded(&self) -> Option<&GuardedKey> {
        match (&self.keys[..], &self.guarded[..]) {
            ([KeyGet::Guarded(_)], [get]) => Some(&get.key),
            _ => None,
        }
    }

    /// What is seen of a raw key of this server, and of the value that has been read.
    fn seen_raw<'k>(
        &self,
        key: &'k [u8],
        server: u32,
        value: Option<&crate::protocol::reply::Value<'_>>,
    ) -> SeenKey<'k> {
        let ServerRead { pool, place, .. } = &self.servers[server as usize];
        let bytes = value.map_or(0, |value| value.data.len());
        SeenKey::raw(key, (*pool, place.server), place.is_standby(), bytes)
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
        if let Some(mut written) = self.written.take() {
            let polled = self.poll_written(&mut written, scope, out);
            self.written = Some(written).filter(|_| polled.is_pending());
            return polled.map(|()| None);
        }
        if self.refused.is_some() {
            // Others of its structures have been sent.
            let mut sent = self.structures.iter_mut().filter_map(|read| match read {
                StructureRead::Sent(run) => Some(run),
                StructureRead::Unsent(_) | StructureRead::Refused(_) => None,
            });
            if !sent.all(|run| run.poll(scope.proxy, scope.client)) {
                return Poll::Pending;
            }
            return self.poll_refused(scope, out);
        }
        loop {
            let won = self.won;
            for (at, get) in self.guarded.iter_mut().enumerate().skip(self.settled) {
                let may_wait = scope.position.may_wait && !self.won;
                let done = get.poll(self.kind.exptime, &mut self.tags, may_wait, &mut self.won, scope, cx);
                self.settled += usize::from(done && self.settled == at);
            }
            // After a win, the keys before it must stop waiting.
            if won == self.won {
                if self.settled < self.guarded.len() {
                    return Poll::Pending;
                }
                break;
            }
        }
        let pending = &scope.client.pending;
        let raw = self.servers.iter().flat_map(|server| &server.ids);
        let tags = self.keys.iter().flat_map(|key| match key {
            KeyGet::Tag(tag) => tag.ids.as_deref().unwrap_or_default(),
            _ => &[],
        });
        if !raw.chain(tags).all(|id| pending.has_arrived(*id)) {
            return Poll::Pending;
        }
        let mut is_read = true;
        for read in &mut self.structures {
            is_read &= match read {
                StructureRead::Sent(run) => run.poll(scope.proxy, scope.client),
                StructureRead::Unsent(_) | StructureRead::Refused(_) => true,
            };
        }
        if !is_read {
            return Poll::Pending;
        }
        // If an earlier part fails, this one has no reply.
        if self.part.is_some() && !scope.position.first {
            return Poll::Pending;
        }
        let start = out.len();
        if let Some(binary) = &self.binary {
            let (large, suspects) = self.write_binary(binary, scope, out);
            if suspects.is_empty() {
                return Poll::Ready(large);
            }
            self.written = Some(Box::new(Written::new(out, start, suspects)));
            return Poll::Pending;
        }
        if let ([KeyGet::Guarded(_)], [get], None) = (&self.keys[..], &self.guarded[..], &self.part)
            && let Some(ReadOutcome::Value(hit, _)) = get.outcome()
        {
            self.put_value_line(out, get, hit);
            return Poll::Ready(write_reply(&hit.payload, b"\r\nEND\r\n", out));
        }
        let suspects = self.write(scope, out);
        if suspects.is_empty() {
            return Poll::Ready(None);
        }
        self.written = Some(Box::new(Written::new(out, start, suspects)));
        Poll::Pending
    }

    /// The reply to a get of which nothing is read.
    fn poll_refused(&self, scope: &CallScope<'_>, out: &mut BytesMut) -> Poll<Option<LargeReply>> {
        if self.part.is_some() && !scope.position.first {
            return Poll::Pending;
        }
        match &self.part {
            Some(part) if part.long_get.is_over() => return Poll::Ready(None),
            Some(part) => part.long_get.fail(),
            None => {}
        }
        scope.count(crate::metrics::NO_RULE, Outcome::ClientError, SeenKey::none);
        out.extend_from_slice(self.refused.unwrap_or_default().as_bytes());
        Poll::Ready(None)
    }

    /// Appends the `VALUE` line of a guarded key.
    fn put_value_line(&self, out: &mut BytesMut, get: &GuardedRead, hit: &Hit) {
        let cas = self.kind.cas.then(|| shown_cas(hit.cas.number, get.key.place.fence()));
        put_value_line(out, &get.key.key, hit.flags, cas, hit.payload.len());
    }
}

/// The stored value is the version: the key is reserved, so it holds nothing else.
fn tag_flags() -> GetFlags {
    GetFlags { value: true, ..GetFlags::default() }
}
