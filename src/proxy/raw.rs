//! Requests that are forwarded as they are: to one server, or to all.

use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::Proxy;
use super::client::Client;
use super::large::{LargeReply, write_reply};
use super::scope::CallScope;
use super::wording::miss;
use crate::error::Failure;
use crate::guard::near::Changed;
use crate::metrics::{LeaseEnd, NO_RULE, Outcome};
use crate::protocol::reply::{Shape, is_of};
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::upstream::GetKind;
use crate::upstream::OnError;
use crate::upstream::pending_replies::{END, Reply, ReplyId};

/// One request to one server, whose reply is the client's.
pub(super) struct Forward {
    ticket: ReplyId,
    rule: usize,
    expects: ExpectedReply,
}

/// What is done with the reply.
enum ExpectedReply {
    /// It is passed on.
    Line,
    /// Of a `get`: its pool, and the key that a value must be of.
    Value(usize, SmallVec<[u8; 32]>),
    Meta(Box<ExpectedMetaReply>),
    /// This is said in its place.
    Says(Bytes),
}

/// What is done with the reply to a meta command.
struct ExpectedMetaReply {
    /// For an `mg`: its pool, and a miss in its words.
    get: Option<(usize, SmallVec<[u8; 32]>)>,
    /// What a quiet command does not say.
    hides: &'static [&'static [u8]],
}

impl Forward {
    /// A `get`, `gets`, `gat` or `gats` of one key.
    pub(super) fn get(
        key: &[u8],
        how: GetKind,
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let ticket = proxy.pools[pool].connection(key).get(&client.inbox, key, how);
        Forward { ticket, rule, expects: ExpectedReply::Value(pool, SmallVec::from_slice(key)) }
    }

    /// A command that writes one key. It goes without noreply: a reply that must not be said is thrown away here, and so
    /// nothing that a server says unasked can put this connection out of step.
    pub(super) fn new(
        request: &Request<'_>,
        key: &[u8],
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let connection = proxy.pools[pool].connection(key);
        let ticket = connection.send(&client.inbox, Shape::Line, |out| put(out, request));
        Forward { ticket, rule, expects: ExpectedReply::Line }
    }

    /// A meta command about one key. It goes without `q`, for the same reason, and because what that hides depends on the server's
    /// version: what memcached 1.6.45 would not say is thrown away here.
    pub(super) fn meta(
        meta: &Meta<'_>,
        key: &[u8],
        pool: usize,
        rule: usize,
        proxy: &Proxy,
        client: &Client,
    ) -> Forward {
        let connection = proxy.pools[pool].connection(key);
        let hides: &[&[u8]] = match (meta.token(b'q'), meta.verb) {
            (None, _) | (_, MetaVerb::Debug | MetaVerb::Noop) => &[],
            (_, MetaVerb::Get) => &[b"EN"],
            (_, MetaVerb::Set | MetaVerb::Delete) => &[b"HD"],
            (_, MetaVerb::Arith) => &[b"HD", b"VA"],
        };
        let ticket = connection.send(&client.inbox, Shape::Meta, |out| put_meta(out, meta));
        let get = (meta.verb == MetaVerb::Get).then(|| (pool, miss(meta, key)));
        Forward { ticket, rule, expects: ExpectedReply::Meta(Box::new(ExpectedMetaReply { get, hides })) }
    }

    /// The same, but with this said in place of the reply.
    pub(super) fn saying(self, text: Bytes) -> Forward {
        Forward { expects: ExpectedReply::Says(text), ..self }
    }

    /// What its reply arrives as.
    pub(super) fn ticket(&self) -> ReplyId {
        self.ticket
    }

    /// Once the reply is here: what became of the request, and the answer if it is large.
    pub(super) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> Poll<(Outcome, Option<LargeReply>)> {
        let Some(mut reply) = scope.client.inbox.take(self.ticket) else { return Poll::Pending };
        if let (ExpectedReply::Value(pool, key), Reply::Answered { bytes, epoch }) = (&self.expects, &reply)
            && !is_of(bytes, key)
        {
            scope.proxy.pools[*pool].connection(key).distrust(*epoch);
            reply = Reply::Failed(Failure::Refused);
        }
        let mut large = None;
        let outcome = match reply {
            Reply::Answered { bytes, .. } => {
                let outcome = outcome(&bytes);
                large = self.expects.write_reply(bytes, out);
                outcome
            }
            // It was found by its key.
            Reply::Part { bytes, .. } => {
                out.extend_from_slice(&bytes);
                out.extend_from_slice(END);
                if bytes.is_empty() { Outcome::Miss } else { Outcome::Hit }
            }
            Reply::Failed(failure) => self.expects.fail(failure, scope.proxy, out),
            Reply::Moved => self.expects.fail(Failure::Down, scope.proxy, out),
        };
        if !matches!(self.expects, ExpectedReply::Says(_)) {
            scope.count(self.rule, outcome);
        }
        Poll::Ready((outcome, large))
    }
}

impl ExpectedReply {
    /// The server has answered this.
    fn write_reply(&self, mut bytes: Bytes, out: &mut BytesMut) -> Option<LargeReply> {
        match self {
            ExpectedReply::Line | ExpectedReply::Value(..) => {}
            ExpectedReply::Meta(expected) => {
                if expected.hides.iter().any(|hidden| bytes.starts_with(hidden)) {
                    return None;
                }
            }
            ExpectedReply::Says(text) => bytes = text.clone(),
        }
        write_reply(&bytes, b"", out)
    }

    /// It has not: a read may be a miss.
    fn fail(&self, failure: Failure, proxy: &Proxy, out: &mut BytesMut) -> Outcome {
        let misses = |pool: usize| proxy.pools[pool].on_error() == OnError::Miss;
        let miss: Option<&[u8]> = match self {
            ExpectedReply::Value(pool, _) => misses(*pool).then_some(END),
            ExpectedReply::Meta(expected) => {
                expected.get.as_ref().and_then(|(pool, miss)| misses(*pool).then_some(&miss[..]))
            }
            ExpectedReply::Line | ExpectedReply::Says(_) => None,
        };
        out.extend_from_slice(miss.unwrap_or(failure.line()));
        if miss.is_some() { Outcome::Miss } else { Outcome::ServerError }
    }
}

/// One request to every server of every pool, acknowledged only if all of them did.
pub(super) struct FanOut {
    tickets: SmallVec<[ReplyId; 8]>,
    /// What each of them says then, and so does Kennel.
    says: &'static [u8],
}

impl FanOut {
    /// `flush_all`, everywhere. Acknowledged only if every server has done it.
    pub(super) fn flush_all(delay: i64, proxy: &Proxy, client: &Client) -> FanOut {
        proxy.near.changed(Changed::Everything);
        // Before it is sent, as with a delete: what this client sets behind it is new.
        // One for later ends nothing yet; when it comes, the fills fail by themselves.
        if delay <= 0 {
            client.end_all_misses();
            for key in proxy.desk.all().flat_map(|mut leases| leases.flush(client.owner)) {
                let rule = proxy.guarded(&key).map_or(NO_RULE, |of| proxy.metric(of.guard));
                proxy.metrics.lease_ended(rule, LeaseEnd::Released, Duration::ZERO);
            }
        }
        let line = format!("flush_all {delay}\r\n");
        let send = |out: &mut BytesMut| out.extend_from_slice(line.as_bytes());
        let each = proxy.everywhere();
        let tickets = each.map(|connection| connection.send(&client.inbox, Shape::Line, send)).collect();
        FanOut { tickets, says: b"OK\r\n" }
    }

    pub(super) fn poll(&mut self, scope: &CallScope<'_>, out: &mut BytesMut) -> Poll<()> {
        let inbox = &scope.client.inbox;
        if !self.tickets.iter().all(|ticket| inbox.is_here(*ticket)) {
            return Poll::Pending;
        }
        scope.proxy.near.changed(Changed::Everything);
        let mut trouble = None;
        for reply in self.tickets.iter().filter_map(|ticket| inbox.take(*ticket)) {
            match reply {
                Reply::Answered { bytes, .. } if bytes == self.says => {}
                Reply::Answered { .. } | Reply::Part { .. } => trouble = trouble.or(Some(Failure::Refused)),
                Reply::Failed(failure) => trouble = trouble.or(Some(failure)),
                Reply::Moved => trouble = trouble.or(Some(Failure::Down)),
            }
        }
        match trouble {
            Some(failure) => out.extend_from_slice(failure.line()),
            None => out.extend_from_slice(self.says),
        }
        scope.count(NO_RULE, if trouble.is_some() { Outcome::ServerError } else { Outcome::Ok });
        Poll::Ready(())
    }
}

pub(super) fn put_key(out: &mut BytesMut, key: &[u8]) {
    out.extend_from_slice(b" ");
    out.extend_from_slice(key);
}

pub(super) fn put_number(out: &mut BytesMut, number: impl itoa::Integer) {
    out.extend_from_slice(b" ");
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A command that writes one key, without noreply.
fn put(out: &mut BytesMut, request: &Request<'_>) {
    match *request {
        Request::Store(Store { verb, key, flags, exptime, data, .. }) => {
            let word: &[u8] = match verb {
                Verb::Set => b"set",
                Verb::Add => b"add",
                Verb::Replace => b"replace",
                Verb::Append => b"append",
                Verb::Prepend => b"prepend",
                Verb::Cas(_) => b"cas",
            };
            out.reserve(data.len() + key.len() + 64);
            out.extend_from_slice(word);
            put_key(out, key);
            put_number(out, flags);
            put_number(out, exptime);
            put_number(out, data.len());
            if let Verb::Cas(cas) = verb {
                put_number(out, cas);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
        }
        Request::Arith { key, decr, delta, .. } => {
            out.extend_from_slice(if decr { b"decr" } else { b"incr" });
            put_key(out, key);
            put_number(out, delta);
        }
        Request::Touch { key, exptime, .. } => {
            out.extend_from_slice(b"touch");
            put_key(out, key);
            put_number(out, exptime);
        }
        Request::Delete { key, .. } => {
            out.extend_from_slice(b"delete");
            put_key(out, key);
            // As the last word memcached 1.6.45 would take it for a wish, and answer nothing.
            if key == b"noreply" {
                out.extend_from_slice(b" 0");
            }
        }
        // Nothing else writes one key.
        _ => out.extend_from_slice(b"version"),
    }
    out.extend_from_slice(b"\r\n");
}

/// A meta command as it was sent, in words that older servers take alike, and without `q`.
fn put_meta(out: &mut BytesMut, meta: &Meta<'_>) {
    out.reserve(meta.data.len() + meta.key.len() + meta.flags.len() + 32);
    out.extend_from_slice(match meta.verb {
        MetaVerb::Get => b"mg",
        MetaVerb::Set => b"ms",
        MetaVerb::Delete => b"md",
        MetaVerb::Arith => b"ma",
        MetaVerb::Noop => b"mn",
        MetaVerb::Debug => b"me",
    });
    put_key(out, meta.key);
    if meta.verb == MetaVerb::Set {
        put_number(out, meta.data.len());
    }
    for (flag, token) in meta.tokens() {
        // What is nothing to memcached 1.6.45 was once refused.
        let token = match flag {
            // To an `me` it matters only how many there are.
            _ if meta.verb == MetaVerb::Debug => token,
            b'q' => continue,
            b'x' if meta.verb != MetaVerb::Delete => continue,
            b'M' if !matches!(meta.verb, MetaVerb::Set | MetaVerb::Arith) => continue,
            b'M' => &token[..1],
            b'N' | b'T' | b'R' if token == b"-" => b"0",
            _ => token,
        };
        out.extend_from_slice(&[b' ', flag]);
        out.extend_from_slice(token);
    }
    out.extend_from_slice(b"\r\n");
    if meta.verb == MetaVerb::Set {
        out.extend_from_slice(meta.data);
        out.extend_from_slice(b"\r\n");
    }
}

/// What a server's reply says to the metrics.
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
