//! One raw request that is forwarded to the server of its key.

use std::rc::Rc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use smallvec::SmallVec;

use super::binary;
use super::encode::{put, put_meta};
use super::shown::{may_remove, needs_value, without_value};
use super::standby::RawPlace;
use crate::error::Failure;
use crate::metrics::Outcome;
use crate::protocol::binary::Head;
use crate::protocol::binary::parse::Command;
use crate::protocol::binary::reply::{put_miss, value_of_packet};
use crate::protocol::reply::{Shape, is_of};
use crate::protocol::request::{Meta, MetaVerb, Request};
use crate::proxy::client::Client;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::binary::put_failure;
use crate::proxy::replies::large::{LargeReply, write_reply};
use crate::proxy::replies::meta::miss;
use crate::proxy::scope::CallScope;
use crate::proxy::state::client_marks::Stale;
use crate::upstream::GetKind;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{END, Reply, ReplyId};

mod change;
mod changed;
mod incomplete;
mod item;
mod suspect;

use change::{Change, ChangeKind};
use incomplete::Incomplete;

/// A forwarded request. The server's reply goes to the client.
pub(crate) struct Forward {
    id: ReplyId,
    key: SmallVec<[u8; 32]>,
    rule: usize,
    pool: usize,
    place: RawPlace,
    /// The length of the value that it stores, in bytes.
    stores: usize,
    expects: ExpectedReply,
    /// The reply to the same delete in the other placement, while the servers of the pool change.
    elsewhere: Option<ReplyId>,
    /// What the reply may need besides: then `id` becomes that of a further command.
    further: Option<Further>,
}

/// What a reply may need besides.
enum Further {
    /// A reply to a read, which a further command must complete.
    Read(Box<Incomplete>),
    Change(Box<Change>),
}

/// What is done with the reply.
enum ExpectedReply {
    /// Passed on.
    Line,
    /// The reply to a `get`, or to a `gat` with this exptime: a value must have the key.
    Value(Option<i64>),
    Meta(Box<ExpectedMetaReply>),
    /// Replaced by this one.
    Replaced(Bytes),
    /// The reply to a `gets`, or to a `gats` with this exptime, for a binary client: a value must have the key.
    BinaryValue(Head, Option<i64>),
    /// The reply to a meta command, for a binary client. `exptime`: that of a read.
    Binary {
        head: Head,
        reads: bool,
        exptime: Option<i64>,
    },
}

/// What is done with the reply to a meta command.
struct ExpectedMetaReply {
    /// For an `mg`: its flags.
    read: Option<SmallVec<[u8; 32]>>,
    /// The command was sent with a `v` that the client has not sent.
    adds_value: bool,
    /// The status words that a quiet command suppresses.
    hides: &'static [&'static [u8]],
}

impl Forward {
    /// Forwards a `get`, `gets`, `gat` or `gats` of one key.
    pub(crate) fn get(
        key: &[u8],
        kind: GetKind,
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let place = proxy.raw_place(key, None, pool);
        let RawPlace { server, limit } = place;
        let kind = limit.map_or(kind, |limit| limit.get(kind));
        let id = proxy.pools[pool].connections()[server].get(&client.pending, key, kind);
        let (key, expects) = (SmallVec::from_slice(key), ExpectedReply::Value(kind.exptime));
        Forward { id, key, rule, pool, place, stores: 0, expects, elsewhere: None, further: None }
    }

    /// Forwards a command that writes one key, without noreply: the reply is discarded here, so that an unexpected reply of the
    /// server cannot be taken for the reply to a later command.
    pub(crate) fn new(
        request: &Request<'_>,
        key: &[u8],
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let place = proxy.raw_place(key, None, pool);
        let RawPlace { server, limit } = place;
        let connection = &proxy.pools[pool].connections()[server];
        let stores = if let Request::Store(store) = request { store.data.len() } else { 0 };
        let request = limit.map_or(*request, |limit| limit.request(request));
        let write = |out: &mut BytesMut| put(out, &request);
        let change = Change::classic(&request, write).filter(|_| proxy.element(key).is_none());
        let (id, further) = match change {
            Some(change) => Further::begin(change, key, connection, client),
            None => (connection.send(&client.pending, Shape::Line, write), None),
        };
        let deletes = matches!(request, Request::Delete { .. });
        let delete = |out: &mut BytesMut| put(out, &Request::Delete { key, noreply: false });
        let mut elsewhere = None;
        if deletes && let Some(connection) = proxy.raw_connection_elsewhere(key, server, pool) {
            elsewhere = Some(connection.send(&client.pending, Shape::Line, delete));
        }
        let (key, expects) = (SmallVec::from_slice(key), ExpectedReply::Line);
        Forward { id, key, rule, pool, place, stores, expects, elsewhere, further }
    }

    /// Forwards a meta command with one key, without `q` for the same reason. Which replies `q` suppresses depends on the
    /// server's version, so the replies that memcached 1.6.45 suppresses are discarded here.
    pub(crate) fn meta(
        meta: &Meta<'_>,
        key: &[u8],
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let place = proxy.raw_place(key, None, pool);
        let RawPlace { server, limit } = place;
        let connection = &proxy.pools[pool].connections()[server];
        let hides: &[&[u8]] = match (meta.token(b'q'), meta.verb) {
            (None, _) | (_, MetaVerb::Debug | MetaVerb::Noop) => &[],
            (_, MetaVerb::Get) => &[b"EN"],
            (_, MetaVerb::Set | MetaVerb::Delete) => &[b"HD"],
            (_, MetaVerb::Arith) => &[b"HD", b"VA"],
        };
        let flags = limit.map(|limit| limit.flags(meta));
        let meta = &Meta { flags: flags.as_deref().unwrap_or(meta.flags), ..*meta };
        let adds_value = needs_value(meta);
        let write = |out: &mut BytesMut| match adds_value {
            false => put_meta(out, meta),
            true => put_meta(out, &Meta { flags: &[meta.flags, b" v"].concat(), ..*meta }),
        };
        let change = Change::meta(meta, write).filter(|_| proxy.element(key).is_none());
        let marks = matches!(meta.verb, MetaVerb::Set | MetaVerb::Delete) && meta.token(b'I').is_some();
        if marks && change.as_ref().is_none_or(|change| change.kind != ChangeKind::Mark) {
            proxy.note_stale(key, Stale::Unknown);
        }
        let (id, further) = match change {
            Some(change) => Further::begin(change, key, connection, client),
            None => (connection.send(&client.pending, Shape::Meta, write), None),
        };
        let read = (meta.verb == MetaVerb::Get).then(|| SmallVec::from_slice(meta.flags));
        let deletes = meta.verb == MetaVerb::Delete;
        let mut elsewhere = None;
        if deletes && let Some(connection) = proxy.raw_connection_elsewhere(key, server, pool) {
            // The key may contain any byte, so it is sent as the client has written it.
            let flags: &[u8] = if meta.token(b'b').is_some() { b" b" } else { b"" };
            let delete = |out: &mut BytesMut| {
                [b"md ", meta.key, flags, b"\r\n"].iter().for_each(|part| out.extend_from_slice(part));
            };
            elsewhere = Some(connection.send(&client.pending, Shape::Meta, delete));
        }
        let expects = ExpectedReply::Meta(Box::new(ExpectedMetaReply { read, adds_value, hides }));
        let (key, stores) = (SmallVec::from_slice(key), meta.data.len());
        Forward { id, key, rule, pool, place, stores, expects, elsewhere, further }
    }

    /// Its key, and the index of the rule.
    pub(crate) fn key_and_rule(&self) -> (&[u8], usize) {
        (&self.key, self.rule)
    }

    /// Forwards a `get` or `gat` of a binary client, whose key must be one that text commands can name.
    pub(crate) fn binary_get(
        key: &[u8],
        exptime: Option<i64>,
        head: Head,
        (pool, rule): (usize, usize),
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let forward = Forward::get(key, GetKind { exptime, cas: true }, pool, rule, proxy, client);
        Forward { expects: ExpectedReply::BinaryValue(head, forward.expects.exptime()), ..forward }
    }

    /// Forwards any other command of a binary client that has a key.
    pub(crate) fn binary(
        command: &Command<'_>,
        head: Head,
        (pool, rule): (usize, usize),
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let key = command.key().unwrap_or_default();
        let place = proxy.raw_place(key, None, pool);
        let RawPlace { server, limit } = place;
        let send = |connection: &Connection, command: &Command<'_>| {
            connection.send_guard(&client.pending, None, |out| binary::put(out, command, limit))
        };
        let connection = &proxy.pools[pool].connections()[server];
        let change = Change::binary(command, |out| binary::put(out, command, limit));
        let (id, further) = match change.filter(|_| proxy.element(key).is_none()) {
            Some(change) => Further::begin(change, key, connection, client),
            None => (send(connection, command), None),
        };
        let mut elsewhere = None;
        if matches!(command, Command::Delete { .. })
            && let Some(connection) = proxy.raw_connection_elsewhere(key, server, pool)
        {
            elsewhere = Some(send(connection, &Command::Delete { key, cas: 0 }));
        }
        let exptime = match command {
            Command::Get { exptime, .. } => {
                exptime.map(|exptime| limit.map_or(exptime, |limit| limit.exptime(exptime)))
            }
            _ => None,
        };
        let reads = matches!(command, Command::Get { .. });
        let expects = ExpectedReply::Binary { head, reads, exptime };
        let stores = if let Command::Store(store) = command { store.data.len() } else { 0 };
        let key = SmallVec::from_slice(key);
        Forward { id, key, rule, pool, place, stores, expects, elsewhere, further }
    }

    /// Replies with `text` whatever the server replies.
    pub(crate) fn with_reply(self, text: Bytes) -> Forward {
        Forward { expects: ExpectedReply::Replaced(text), ..self }
    }

    /// Whether what its client sends behind it must wait: its first command only looks at the item.
    pub(crate) fn looks_first(&self) -> bool {
        matches!(&self.further, Some(Further::Change(change)) if change.looks_first())
    }

    /// Whether it may change, or create, the item of this key.
    pub(crate) fn may_change(&self, key: &[u8]) -> bool {
        let reads = match &self.expects {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => true,
            ExpectedReply::Binary { reads, .. } => *reads,
            ExpectedReply::Meta(expected) => {
                expected.read_of(key).is_some_and(|read| read.token(b'N').is_none())
            }
            ExpectedReply::Line | ExpectedReply::Replaced(_) => false,
        };
        self.key[..] == *key && (!reads || may_remove(self.expects.exptime()))
    }

    /// Whether all replies have arrived.
    pub(crate) fn has_arrived(&self, client: &Client) -> bool {
        [Some(self.id), self.elsewhere].into_iter().flatten().all(|id| client.pending.has_arrived(id))
    }

    /// Once the reply has arrived, appends it to `out`. Returns the outcome, and the reply if it is too large to copy.
    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> Poll<(Outcome, Option<LargeReply>)> {
        let pending = &scope.client.pending;
        if self.elsewhere.is_some_and(|id| !pending.has_arrived(id)) {
            return Poll::Pending;
        }
        let Some(mut reply) = pending.take(self.id) else { return Poll::Pending };
        if let Some(failure) = self.elsewhere.take().and_then(|id| failure_of(pending.take(id)?)) {
            reply = Reply::Failed(failure);
        }
        match self.further.take() {
            Some(Further::Read(incomplete)) => match self.complete(*incomplete, reply, scope) {
                Some(complete) => reply = complete,
                None => return Poll::Pending,
            },
            Some(Further::Change(change)) => match self.changed(change, reply, scope) {
                Some(passed) => reply = passed,
                None => return Poll::Pending,
            },
            None => {
                reply = self.of_the_key(reply, scope);
                if self.is_suspect(&reply) {
                    let Some(shown) = self.shown(reply, 0, scope) else { return Poll::Pending };
                    reply = shown;
                }
            }
        }
        let length = out.len();
        let (outcome, large) = match (reply, &self.expects) {
            (
                Reply::Answered { bytes, .. } | Reply::Part { bytes, .. },
                ExpectedReply::BinaryValue(head, _),
            ) => binary::write_classic(*head, &self.key, &bytes, out),
            (Reply::Answered { bytes, .. }, ExpectedReply::Binary { head, .. }) => {
                binary::write_meta(*head, &self.key, &bytes, out)
            }
            (Reply::Answered { bytes, .. }, expects) => {
                let bytes = expects.as_requested(bytes);
                (outcome(&bytes), expects.write(bytes, out))
            }
            // It has been selected by its key.
            (Reply::Part { bytes, .. }, _) => {
                out.extend_from_slice(&bytes);
                out.extend_from_slice(END);
                (if bytes.is_empty() { Outcome::Miss } else { Outcome::Hit }, None)
            }
            (Reply::Failed(failure), _) => (self.fail(failure, scope.proxy, out), None),
            (Reply::StaleCas, _) => (self.fail(Failure::Down, scope.proxy, out), None),
        };
        if !matches!(self.expects, ExpectedReply::Replaced(_)) {
            let seen = || {
                let replied = large.as_ref().map_or(&out[length..], |large: &LargeReply| &large.bytes[..]);
                let is_binary =
                    matches!(self.expects, ExpectedReply::BinaryValue(..) | ExpectedReply::Binary { .. });
                let bytes = match outcome {
                    Outcome::Hit if is_binary => value_of_packet(&out[length..]),
                    Outcome::Hit => value_length(replied),
                    // The reply to a store has no value.
                    _ => self.stores,
                };
                SeenKey::raw(&self.key, (self.pool, self.place.server), self.place.is_standby(), bytes)
            };
            scope.count(self.rule, outcome, seen);
        }
        Poll::Ready((outcome, large))
    }

    /// The reply, if a value in it has the key.
    #[inline]
    fn of_the_key(&self, reply: Reply, scope: &CallScope<'_>) -> Reply {
        if let (ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..), Reply::Answered { bytes, epoch }) =
            (&self.expects, &reply)
            && !is_of(bytes, &self.key)
        {
            self.connection(scope).distrust(*epoch);
            return Reply::Failed(Failure::Refused);
        }
        reply
    }

    fn connection<'a>(&self, scope: &'a CallScope<'_>) -> &'a Connection {
        &scope.proxy.pools[self.pool].connections()[self.place.server]
    }

    /// The server has not replied: a read may be a miss.
    fn fail(&self, failure: Failure, proxy: &Proxy, out: &mut BytesMut) -> Outcome {
        let misses = proxy.pools[self.pool].on_error().is_miss();
        let binary = match &self.expects {
            ExpectedReply::BinaryValue(head, _) => Some((*head, misses)),
            ExpectedReply::Binary { head, reads, .. } => Some((*head, *reads && misses)),
            _ => None,
        };
        if let Some((head, miss)) = binary {
            match miss {
                true => put_miss(head, &self.key, out),
                false => put_failure(head, failure, out),
            }
            return if miss { Outcome::Miss } else { Outcome::ServerError };
        }
        let miss = match &self.expects {
            ExpectedReply::Value(_) if misses => Some(SmallVec::from_slice(END)),
            ExpectedReply::Meta(expected) if misses => expected.miss(&self.key),
            _ => None,
        };
        out.extend_from_slice(miss.as_deref().unwrap_or(failure.line()));
        if miss.is_some() { Outcome::Miss } else { Outcome::ServerError }
    }
}

impl Further {
    /// Sends what comes first.
    fn begin(
        mut change: Change,
        key: &[u8],
        connection: &Connection,
        client: &Client,
    ) -> (ReplyId, Option<Further>) {
        let id = change.begin(key, connection, &client.pending);
        (id, Some(Further::Change(Box::new(change))))
    }
}

impl Proxy {
    /// The connection to the server that has a raw key in the other placement, if that is not this server of the pool.
    fn raw_connection_elsewhere(&self, key: &[u8], server: usize, pool: usize) -> Option<&Rc<Connection>> {
        let (other, _) = self.other(pool)?;
        let elsewhere = &other.pools[pool].connections()[other.raw_place(key, None, pool).server];
        (!Rc::ptr_eq(&self.pools[pool].connections()[server], elsewhere)).then_some(elsewhere)
    }
}

impl ExpectedMetaReply {
    fn read_of<'a>(&'a self, key: &'a [u8]) -> Option<Meta<'a>> {
        self.read.as_deref().map(|flags| Meta { verb: MetaVerb::Get, key, flags, data: &[] })
    }

    /// The reply to an `mg` of this key that misses.
    fn miss(&self, key: &[u8]) -> Option<SmallVec<[u8; 32]>> {
        self.read_of(key).map(|meta| miss(&meta, key))
    }
}

impl ExpectedReply {
    /// A reply without what the client has not requested.
    fn as_requested(&self, reply: Bytes) -> Bytes {
        match self {
            ExpectedReply::Meta(expected) if expected.adds_value => without_value(reply),
            _ => reply,
        }
    }

    /// The server has replied.
    fn write(&self, mut bytes: Bytes, out: &mut BytesMut) -> Option<LargeReply> {
        match self {
            ExpectedReply::Line | ExpectedReply::Value(_) => {}
            ExpectedReply::BinaryValue(..) | ExpectedReply::Binary { .. } => return None,
            ExpectedReply::Meta(expected) => {
                if expected.hides.iter().any(|hidden| bytes.starts_with(hidden)) {
                    return None;
                }
            }
            ExpectedReply::Replaced(text) => bytes = text.clone(),
        }
        write_reply(&bytes, b"", out)
    }
}

/// The length of the value in the reply to a read: what is between the first line and the last line end, and `END` if there is one.
fn value_length(reply: &[u8]) -> usize {
    let head = memchr(b'\n', reply).map_or(reply.len(), |end| end + 1);
    let value = reply[head..].strip_suffix(END).unwrap_or(&reply[head..]);
    value.len().saturating_sub(2)
}

/// Why a delete in the other placement failed, if it did.
fn failure_of(reply: Reply) -> Option<Failure> {
    match reply {
        Reply::Answered { bytes, .. } | Reply::Part { bytes, .. } => {
            let is_gone =
                matches!(outcome(&bytes), Outcome::Deleted | Outcome::NotFound) || bytes.starts_with(b"HD");
            (!is_gone).then_some(Failure::Refused)
        }
        Reply::Failed(failure) => Some(failure),
        Reply::StaleCas => Some(Failure::Down),
    }
}

/// The outcome that a server's reply counts as.
fn outcome(reply: &[u8]) -> Outcome {
    match reply {
        [b'V', ..] => Outcome::Hit,
        [b'E', b'N', ..] => Outcome::Miss,
        [b'S', b'T', ..] => Outcome::Stored,
        [b'N', b'O', b'T', b'_', b'S', ..] => Outcome::NotStored,
        [b'N', b'S', ..] => Outcome::NotStored,
        [b'N', ..] => Outcome::NotFound,
        [b'E', b'X', ..] => Outcome::Exists,
        [b'D', ..] => Outcome::Deleted,
        [b'T', ..] => Outcome::Touched,
        [b'0'..=b'9', ..] => Outcome::Counted,
        [b'C', ..] => Outcome::ClientError,
        [b'S', ..] => Outcome::ServerError,
        [b'E', ..] => Outcome::Error,
        _ => Outcome::Ok,
    }
}
