//! A request on its way: begun when it is parsed, and polled until its answer is whole.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::client::Client;
use super::explicit_tags::{BadTags, TOKEN};
use super::gets::{Get, GetPart};
use super::guarded::{GuardedWrite, only};
use super::invalidation::{Invalidation, changes};
use super::large::{LargeReply, write_reply};
use super::meta_get::MetaGet;
use super::raw::{FanOut, Forward};
use super::scope::CallScope;
use super::stats::{Statistics, StatsStart};
use super::wording::{Dialect, MetaDialect};
use super::{KeyClass, Proxy};
use crate::guard::TagName;
use crate::metrics::{Command, NO_RULE, Outcome};
use crate::protocol::base64;
use crate::protocol::request::{Keys, MetaVerb, Refused, Request, Store, Verb};
use crate::upstream::GetKind;

/// What memcached clients look at to tell what the server can do. One word: Dalli takes the last for the version. Kennel's
/// own is in `stats`.
const VERSION: &str = "VERSION 1.6.45\r\n";

/// memcached's words, when it was started with `-F`.
const NO_FLUSH: &str = "CLIENT_ERROR flush_all not allowed\r\n";

/// A call for more keys than this conflicts with every write: they are not compared one by one.
const MAX_COMPARED: usize = 64;
/// Reads of more keys than this pass other reads: what that would cost every multi-get is more than it is worth.
const MAX_ORDERED: usize = 8;

/// Which guarded keys a call reads or writes. A client's own calls take effect in the order it sent them, so one may not begin
/// while an earlier one that it conflicts with is still on its way.
#[derive(Debug, Clone, Default)]
pub struct AccessSet {
    keys: SmallVec<[u64; 1]>,
    write: bool,
    /// Every key: a tag is bumped, or all is flushed.
    all: bool,
}

impl AccessSet {
    pub(super) fn of(keys: impl IntoIterator<Item = u64>, write: bool) -> AccessSet {
        let keys = keys.into_iter();
        // Most keys of a get are guarded or none is: room for all is not too much.
        let mut hashes = SmallVec::with_capacity(keys.size_hint().1.unwrap_or(0).min(MAX_COMPARED));
        hashes.extend(keys);
        match hashes.len() {
            0..=MAX_COMPARED => AccessSet { keys: hashes, write, all: false },
            _ => AccessSet { keys: SmallVec::new(), write, all: true },
        }
    }

    pub(super) fn everything() -> AccessSet {
        AccessSet { keys: SmallVec::new(), write: true, all: true }
    }

    /// Whether no key of the guard is touched.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.all
    }

    /// Whether the order of the two matters. Two reads of one key count too: the first may look again and find what is newer than what
    /// the second has found.
    pub fn conflicts(&self, other: &AccessSet) -> bool {
        let neither_empty = !self.is_empty() && !other.is_empty();
        let share_a_key = || self.keys.iter().any(|key| other.keys.contains(key));
        match self.write || other.write {
            true => neither_empty && (self.all || other.all || share_a_key()),
            false => self.keys.len().max(other.keys.len()) <= MAX_ORDERED && share_a_key(),
        }
    }
}

/// What the parts of one long get have in common.
#[derive(Debug, Default)]
pub struct LongGetState {
    /// An error has been said in place of what was still to come.
    failed: Cell<bool>,
}

impl LongGetState {
    /// Whether nothing more is to be said.
    pub(super) fn is_over(&self) -> bool {
        self.failed.get()
    }

    /// An error is said now.
    pub(super) fn fail(&self) {
        self.failed.set(true);
    }
}

/// A request on its way.
pub struct Call {
    command: Command,
    began: Instant,
    /// noreply: nothing is said, whatever happens.
    quiet: bool,
    footprint: AccessSet,
    /// The tags that it bumps if it changes its key.
    invalidates: Box<[TagName]>,
    kind: Kind,
}

enum Kind {
    Reply(Bytes),
    Forward(Forward),
    FanOut(Box<FanOut>),
    Statistics(Box<Statistics>),
    Get(Box<Get>),
    MetaGet(Box<MetaGet>),
    Guarded(Box<GuardedWrite>),
    Invalidation(Box<Invalidation>),
    /// Nobody hears how these end: what is said behind them is known.
    Touches(Vec<Call>, Bytes),
}

/// Where a call stands among those of its client.
#[derive(Debug, Clone, Copy)]
pub struct QueuePosition {
    /// Nothing stands before it.
    pub first: bool,
    /// Nothing stands behind it: it may wait for another client.
    pub patient: bool,
}

impl Call {
    /// Begins a request: what can be sent is sent. `None`: it has to wait until an earlier call is done, which `busy` tells.
    pub fn begin(
        request: &Request<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let (command, quiet) = name(request);
        let said = |text: &'static str| Kind::Reply(Bytes::from_static(text.as_bytes()));
        let count = |outcome| proxy.metrics.request(NO_RULE, command, outcome, std::time::Duration::ZERO);
        let mut footprint = AccessSet::default();
        let decoded = decode(request);
        let invalidates = match changed_key(request, decoded.as_deref()) {
            None => Box::default(),
            // Meta commands have a token for tags: in their keys these words mean nothing.
            Some(key) if matches!(request, Request::Meta(_)) => proxy.invalidated_by(key).into_boxed_slice(),
            Some(key) => proxy.invalidated_by(proxy.split_tags(key).0).into_boxed_slice(),
        };
        if !invalidates.is_empty() && busy(&AccessSet::everything()) {
            return None;
        }
        let kind = match request {
            Request::Get { keys, cas } => {
                return Call::get(
                    command,
                    GetKind { exptime: None, cas: *cas },
                    *keys,
                    None,
                    proxy,
                    client,
                    busy,
                );
            }
            Request::GetAndTouch { exptime, keys, cas } => {
                return Call::get(
                    command,
                    GetKind { exptime: Some(*exptime), cas: *cas },
                    *keys,
                    None,
                    proxy,
                    client,
                    busy,
                );
            }
            Request::Store(Store { key, .. })
            | Request::Arith { key, .. }
            | Request::Touch { key, .. }
            | Request::Delete { key, .. } => match proxy.target(proxy.split_tags(key).0) {
                KeyClass::Raw { pool, rule } => {
                    Kind::Forward(Forward::new(request, key, pool, rule, proxy, client))
                }
                KeyClass::Tag(name) => {
                    footprint = AccessSet::everything();
                    if busy(&footprint) {
                        return None;
                    }
                    Kind::Guarded(Box::new(GuardedWrite::tag(request, name, Dialect::Classic, proxy, client)))
                }
                KeyClass::Guarded(of) => {
                    footprint = AccessSet::of([proxy.hash(&of.key)], true);
                    if busy(&footprint) {
                        return None;
                    }
                    match proxy.with_explicit_tags(of, proxy.split_tags(key).1) {
                        Ok(of) => Kind::Guarded(Box::new(GuardedWrite::begin(request, of, proxy, client))),
                        Err(BadTags) => {
                            count(Outcome::ClientError);
                            Kind::Reply(Bytes::from_static(BadTags::REPLY))
                        }
                    }
                }
            },
            Request::FlushAll { .. } if !proxy.front.flush_all => {
                count(Outcome::ClientError);
                said(NO_FLUSH)
            }
            Request::FlushAll { delay, .. } => {
                footprint = AccessSet::everything();
                if busy(&footprint) {
                    return None;
                }
                Kind::FanOut(Box::new(FanOut::flush_all(*delay, proxy, client)))
            }
            Request::Stats { what } => match Statistics::begin(what, proxy, client) {
                StatsStart::Asked(statistics) => Kind::Statistics(Box::new(statistics)),
                StatsStart::Said(text, outcome) => {
                    count(outcome);
                    Kind::Reply(Bytes::from_static(text))
                }
            },
            Request::Version => {
                count(Outcome::Ok);
                said(VERSION)
            }
            Request::Verbosity { .. } => {
                count(Outcome::Ok);
                said("OK\r\n")
            }
            Request::Quit => said(""),
            Request::Meta(meta) if meta.verb == MetaVerb::Noop => {
                count(Outcome::Ok);
                said("MN\r\n")
            }
            Request::Meta(meta) => {
                let key = decoded.as_deref().unwrap_or(meta.key);
                let reads = meta.verb == MetaVerb::Get;
                let target = proxy.target(key);
                footprint = match &target {
                    KeyClass::Raw { .. } => AccessSet::default(),
                    KeyClass::Tag(_) if !reads => AccessSet::everything(),
                    // A win moves the CAS: who asks for it behind a read of its own is told it as it is then.
                    _ => AccessSet::of([proxy.hash(key)], !reads || meta.has_any(b"Tc")),
                };
                if busy(&footprint) {
                    return None;
                }
                let wording = || MetaDialect::of(meta, key, proxy.now());
                match target {
                    KeyClass::Raw { pool, rule } => {
                        Kind::Forward(Forward::meta(meta, key, pool, rule, proxy, client))
                    }
                    // What stands there, as it stands there: for people who look for a fault.
                    KeyClass::Guarded(of) if meta.verb == MetaVerb::Debug => {
                        let guard = &proxy.plan.guards[of.guard];
                        Kind::Forward(Forward::meta(meta, key, guard.pool, guard.rule, proxy, client))
                    }
                    KeyClass::Guarded(of) if reads => {
                        Kind::MetaGet(Box::new(MetaGet::new(meta, of, wording(), proxy, client)))
                    }
                    KeyClass::Guarded(of) => {
                        let voice = Dialect::Meta(wording());
                        let token = meta.token(b'P').filter(|_| meta.verb == MetaVerb::Set);
                        let list = token.and_then(|token| token.strip_prefix(TOKEN));
                        match proxy.with_explicit_tags(of, list.unwrap_or_default()) {
                            Ok(of) => {
                                Kind::Guarded(Box::new(GuardedWrite::meta(meta, of, voice, proxy, client)))
                            }
                            Err(BadTags) => {
                                count(Outcome::ClientError);
                                Kind::Reply(Bytes::from_static(BadTags::REPLY))
                            }
                        }
                    }
                    KeyClass::Tag(_)
                        if meta.verb == MetaVerb::Debug || (reads && only(meta, b"kqObvfstchlu")) =>
                    {
                        Kind::Forward(Forward::meta(meta, key, proxy.plan.tag_pool, NO_RULE, proxy, client))
                    }
                    KeyClass::Tag(name) => {
                        let voice = Dialect::Meta(wording());
                        Kind::Guarded(Box::new(GuardedWrite::tag(request, name, voice, proxy, client)))
                    }
                }
            }
        };
        if !invalidates.is_empty() {
            footprint = AccessSet::everything();
        }
        Some(Call { command, began: client.moment(), quiet, footprint, invalidates, kind })
    }

    /// Begins one part of a get that is answered in several. `None` as in [`Call::begin`].
    pub fn part(
        request: &Request<'_>,
        line: &Rc<LongGetState>,
        last: bool,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let (command, _) = name(request);
        let (how, keys) = match *request {
            Request::Get { keys, cas } => (GetKind { exptime: None, cas }, keys),
            Request::GetAndTouch { exptime, keys, cas } => (GetKind { exptime: Some(exptime), cas }, keys),
            // Nothing else has parts.
            _ => return Call::begin(request, proxy, client, busy),
        };
        let part = GetPart { line: Rc::clone(line), last };
        Call::get(command, how, keys, Some(part), proxy, client, busy)
    }

    #[allow(clippy::too_many_arguments, reason = "what a get says, and what every call is given")]
    fn get(
        command: Command,
        how: GetKind,
        keys: Keys<'_>,
        part: Option<GetPart>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let began = client.moment();
        let call = |kind, footprint| {
            let invalidates = Box::default();
            Call { command, began, quiet: false, footprint, invalidates, kind }
        };
        let mut rest = keys.iter();
        let only = rest.next().filter(|_| part.is_none() && rest.next().is_none());
        let get = |part, keys| Box::new(Get::new(how, part, keys));
        let mut get = match only.map(|key| (key, proxy.target(key))) {
            Some((key, KeyClass::Raw { pool, rule })) => {
                let forward = Forward::get(key, how, pool, rule, proxy, client);
                return Some(call(Kind::Forward(forward), AccessSet::default()));
            }
            Some((key, target)) => {
                let mut get = get(part, 1);
                get.add(key, None, target, proxy);
                get
            }
            None => {
                let mut get = get(part, keys.len());
                get.add_all(keys, proxy);
                get
            }
        };
        let footprint = get.footprint(proxy);
        if busy(&footprint) {
            return None;
        }
        get.send(proxy, client);
        Some(call(Kind::Get(get), footprint))
    }

    /// A request that the parser refused. If it was one that deletes what its key held, or touches keys, that is done.
    /// `None` as in [`Call::begin`].
    pub fn refuse(
        refused: &Refused<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let said = Bytes::from_static(refused.reply);
        // What noreply silences stays silent, also if the delete that goes with it fails.
        let quiet = refused.reply.is_empty();
        let outcome = match () {
            () if refused.reply.starts_with(b"SERVER_ERROR") => Outcome::ServerError,
            () if refused.reply.starts_with(b"CLIENT_ERROR") => Outcome::ClientError,
            () => Outcome::Error,
        };
        if let Some((exptime, keys)) = refused.touches {
            return Call::refuse_behind(exptime, keys, said, proxy, client, busy);
        }
        let decoded = refused.deletes.filter(|_| refused.deletes_base64).and_then(base64::decode);
        let deletes = decoded.as_deref().or(refused.deletes).map(|key| proxy.split_tags(key).0);
        let (kind, footprint) = match deletes.map(|key| (key, proxy.target(key))) {
            None | Some((_, KeyClass::Tag(_))) => (Kind::Reply(said), AccessSet::default()),
            Some((key, KeyClass::Raw { pool, rule })) => {
                let request = Request::Delete { key, noreply: false };
                let forward = Forward::new(&request, key, pool, rule, proxy, client).saying(said);
                (Kind::Forward(forward), AccessSet::default())
            }
            Some((key, KeyClass::Guarded(of))) => {
                let footprint = AccessSet::of([proxy.hash(key)], true);
                if busy(&footprint) {
                    return None;
                }
                (Kind::Guarded(Box::new(GuardedWrite::delete_saying(of, said, proxy, client))), footprint)
            }
        };
        // A block is skipped that is too large, aloud or not, or that belongs to a meta command with a mistake in it.
        if refused.skip_data > 0 && !refused.reply.starts_with(b"CLIENT_ERROR") {
            proxy.metrics.too_large();
        }
        proxy.metrics.request(NO_RULE, Command::Other, outcome, std::time::Duration::ZERO);
        let (command, invalidates) = (Command::Other, Box::default());
        Some(Call { command, began: client.moment(), quiet, footprint, invalidates, kind })
    }

    /// A `gat` that is refused because of a key behind these.
    fn refuse_behind(
        exptime: i64,
        keys: Keys<'_>,
        said: Bytes,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let guarded = keys.iter().filter(|key| !matches!(proxy.target(key), KeyClass::Raw { .. }));
        let footprint = AccessSet::of(guarded.map(|key| proxy.hash(key)), true);
        if busy(&footprint) {
            return None;
        }
        let touch = |key| Request::Touch { key, exptime, noreply: true };
        let touches = keys.iter().filter_map(|key| Call::begin(&touch(key), proxy, client, |_| false));
        let kind = Kind::Touches(touches.collect(), said);
        let (command, invalidates) = (Command::Other, Box::default());
        proxy.metrics.request(NO_RULE, command, Outcome::ClientError, std::time::Duration::ZERO);
        Some(Call { command, began: client.moment(), quiet: false, footprint, invalidates, kind })
    }

    /// The guarded keys that it reads or writes.
    pub fn footprint(&self) -> &AccessSet {
        &self.footprint
    }

    /// How many keys it reads: so many values it may be answered with, or hold.
    pub fn reads(&self) -> usize {
        match &self.kind {
            Kind::Reply(_) => 0,
            Kind::Get(get) => get.reads(),
            Kind::Touches(touches, _) => touches.len(),
            Kind::Forward(_)
            | Kind::FanOut(_)
            | Kind::Statistics(_)
            | Kind::MetaGet(_)
            | Kind::Guarded(_)
            | Kind::Invalidation(_) => 1,
        }
    }

    /// Whether it has to be polled even while an earlier call has not been answered: its guarded keys take more than one
    /// round trip.
    pub fn is_active(&self) -> bool {
        match &self.kind {
            Kind::Get(get) => !get.only_waits(),
            Kind::MetaGet(_) | Kind::Guarded(_) | Kind::Invalidation(_) | Kind::Touches(..) => true,
            Kind::Reply(_) | Kind::Forward(_) | Kind::FanOut(_) | Kind::Statistics(_) => {
                !self.invalidates.is_empty()
            }
        }
    }

    /// Whether it can do nothing but wait for its reply, which is not here.
    pub fn waits(&self, client: &Client) -> bool {
        matches!(&self.kind, Kind::Forward(forward) if !client.inbox.is_here(forward.ticket()))
    }

    /// Goes on as far as it can. Once it is done, its answer has been appended to `out`; but what is large of it
    /// is given back, and is to be said behind that.
    pub fn poll(
        &mut self,
        proxy: &Rc<Proxy>,
        client: &Client,
        turn: QueuePosition,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        let scope = CallScope::new(proxy, client, self.command, self.began, turn);
        let length = out.len();
        let polled = match &mut self.kind {
            Kind::Reply(_) if self.quiet => Poll::Ready(()),
            Kind::Reply(bytes) => return Poll::Ready(write_reply(bytes, b"", out)),
            Kind::Forward(forward) => {
                let (outcome, large) = ready!(forward.poll(&scope, out));
                ready!(self.done(outcome, length, &scope, cx, out));
                return Poll::Ready(large);
            }
            Kind::FanOut(fan_out) => fan_out.poll(&scope, out),
            Kind::Statistics(statistics) => statistics.poll(&scope, out),
            Kind::Get(get) => return get.poll(&scope, cx, out),
            // It is never quiet.
            Kind::MetaGet(get) => return get.poll(&scope, cx, out),
            Kind::Guarded(call) => match call.poll(&scope, cx, out) {
                Poll::Ready(outcome) => self.done(outcome, length, &scope, cx, out),
                Poll::Pending => Poll::Pending,
            },
            Kind::Invalidation(invalidation) => invalidation.poll(&scope, cx, out),
            Kind::Touches(touches, said) => {
                touches.retain_mut(|touch| touch.poll(proxy, client, turn, cx, out).is_pending());
                match touches.is_empty() {
                    true => {
                        out.extend_from_slice(said);
                        Poll::Ready(())
                    }
                    false => Poll::Pending,
                }
            }
        };
        if self.quiet && polled.is_ready() {
            out.truncate(length);
        }
        polled.map(|()| None)
    }

    /// It has become this, and unless it is large its answer stands in `out` from `length` on: it is done, unless tags are to be bumped.
    fn done(
        &mut self,
        outcome: Outcome,
        length: usize,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        // What the parser refused was counted there.
        if self.command != Command::Other {
            note_refusal(&out[length..], scope.proxy);
        }
        let invalidates = std::mem::take(&mut self.invalidates);
        let answer =
            if self.quiet || !invalidates.is_empty() { out.split_off(length) } else { BytesMut::new() };
        if invalidates.is_empty() || !changes(self.command, outcome) {
            if !self.quiet {
                out.unsplit(answer);
            }
            return Poll::Ready(());
        }
        let CallScope { proxy, client, turn, .. } = *scope;
        let invalidates = SmallVec::from_vec(invalidates.into_vec());
        self.kind = Kind::Invalidation(Box::new(Invalidation::begin(invalidates, answer, proxy, client)));
        self.poll(proxy, client, turn, cx, out).map(|_| ())
    }

    /// Once done ahead of its turn: keeps its answer until then.
    pub fn keep(&mut self, answer: Bytes) {
        self.kind = Kind::Reply(answer);
        self.footprint = AccessSet::default();
        self.quiet = false;
    }
}

/// The key of a meta command that sent it in base64.
fn decode(request: &Request<'_>) -> Option<Vec<u8>> {
    match request {
        Request::Meta(meta) => meta.token(b'b').and_then(|_| base64::decode(meta.key)),
        _ => None,
    }
}

/// The key that a request may change.
fn changed_key<'a>(request: &Request<'a>, decoded: Option<&'a [u8]>) -> Option<&'a [u8]> {
    match request {
        Request::Store(Store { key, .. }) | Request::Arith { key, .. } | Request::Delete { key, .. } => {
            Some(key)
        }
        Request::Meta(meta) if matches!(meta.verb, MetaVerb::Set | MetaVerb::Delete | MetaVerb::Arith) => {
            Some(decoded.unwrap_or(meta.key))
        }
        _ => None,
    }
}

/// Counts a value that found no room: `stats` has names for it.
fn note_refusal(answer: &[u8], proxy: &Proxy) {
    match answer {
        [b'S', b'E', ..] if answer.starts_with(b"SERVER_ERROR object too large") => proxy.metrics.too_large(),
        [b'S', b'E', ..] if answer.starts_with(b"SERVER_ERROR out of memory") => proxy.metrics.no_memory(),
        _ => {}
    }
}

/// What a request is called in the metrics, and whether it wants no reply.
fn name(request: &Request<'_>) -> (Command, bool) {
    match *request {
        Request::Get { cas: false, .. } => (Command::Get, false),
        Request::Get { cas: true, .. } => (Command::Gets, false),
        Request::GetAndTouch { cas: false, .. } => (Command::Gat, false),
        Request::GetAndTouch { cas: true, .. } => (Command::Gats, false),
        Request::Store(Store { verb, noreply, .. }) => {
            let command = match verb {
                Verb::Set => Command::Set,
                Verb::Add => Command::Add,
                Verb::Replace => Command::Replace,
                Verb::Append => Command::Append,
                Verb::Prepend => Command::Prepend,
                Verb::Cas(_) => Command::Cas,
            };
            (command, noreply)
        }
        Request::Arith { decr: false, noreply, .. } => (Command::Incr, noreply),
        Request::Arith { decr: true, noreply, .. } => (Command::Decr, noreply),
        Request::Touch { noreply, .. } => (Command::Touch, noreply),
        Request::Delete { noreply, .. } => (Command::Delete, noreply),
        Request::FlushAll { noreply, .. } => (Command::FlushAll, noreply),
        Request::Version => (Command::Version, false),
        Request::Verbosity { noreply } => (Command::Verbosity, noreply),
        Request::Stats { .. } => (Command::Stats, false),
        Request::Quit => (Command::Quit, false),
        Request::Meta(meta) => {
            let command = match meta.verb {
                MetaVerb::Get => Command::MetaGet,
                MetaVerb::Set => Command::MetaSet,
                MetaVerb::Delete => Command::MetaDelete,
                MetaVerb::Arith => Command::MetaArith,
                MetaVerb::Noop => Command::MetaNoop,
                MetaVerb::Debug => Command::MetaDebug,
            };
            (command, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reads_of_one_key_are_in_order_unless_one_is_of_many_keys() {
        let of = |keys: std::ops::Range<u64>| AccessSet::of(keys, false);
        assert!(of(1..2).conflicts(&of(1..2)) && !of(1..2).conflicts(&of(2..3)));
        let most = MAX_ORDERED as u64;
        assert!(of(0..most).conflicts(&of(most - 1..most)));
        assert!(!of(0..most + 1).conflicts(&of(most..most + 1)));
    }

    #[test]
    fn a_call_for_too_many_keys_to_compare_is_in_order_with_every_write() {
        let key = |write| AccessSet::of([1_000_000], write);
        for (keys, waits) in [(MAX_COMPARED as u64, false), (MAX_COMPARED as u64 + 1, true)] {
            let many = AccessSet::of(0..keys, false);
            assert!(!many.conflicts(&key(false)), "two reads of different keys may pass each other");
            assert!(!many.conflicts(&AccessSet::of([], true)), "raw keys may pass everything");
            assert_eq!((many.conflicts(&key(true)), key(true).conflicts(&many)), (waits, waits));
            // A key that is read is never written meanwhile.
            assert!(AccessSet::of([keys - 1], true).conflicts(&many));
            assert!(many.conflicts(&AccessSet::of(0..keys, true)));
        }
    }
}
