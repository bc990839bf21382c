//! A client's command on a structure: which request it is, and the reply to it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use super::run::StructureRun;
use crate::error::Failure;
use crate::guard::{self, Counted, Hit};
use crate::kinds::{self, Kind, Outcome};
use crate::metrics::{self, Limit};
use crate::protocol::binary::Head;
use crate::protocol::binary::parse as binary;
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::proxy::client::Client;
use crate::proxy::key::StructureKey;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::plan::{MetaWinner, StructurePlan};
use crate::proxy::raw::forward::Forward;
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::replies::meta::MetaDialect;
use crate::proxy::replies::outcome::{ItemMarks, ReadOutcome, WriteOutcome};
use crate::proxy::scope::CallScope;

/// The reply to a command whose key no classic command could have.
const NOT_TEXT: &str = "CLIENT_ERROR the key of a structure must be text\r\n";
/// The reply to a command of a binary client that names a CAS.
const NO_CAS: &str = "CLIENT_ERROR a command on the key of a structure cannot name a CAS\r\n";
/// The reply to an `add` of a client that has [`MAX_LOCKS`](crate::proxy::held_locks::MAX_LOCKS).
const TOO_MANY_LOCKS: &str = "SERVER_ERROR too many locks of one connection\r\n";
/// The reply to a command with a value that its server does not store.
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
/// The reply to a meta command with a flag that does not apply.
pub(crate) const BAD_FLAG: &str = "CLIENT_ERROR a flag does not apply to the key of a structure\r\n";

/// A command that writes, or an `mg`.
pub(crate) struct StructureCall {
    state: State,
    dialect: Dialect,
    /// Index of the rule in the metrics.
    rule: usize,
    /// Whether a read that failed is an error.
    shows_failures: bool,
    /// The length of what it stores, in bytes.
    stores: usize,
}

enum State {
    Run(StructureRun),
    /// The release of a lock that the client has.
    Release(StructureKey, oneshot::Receiver<Outcome>),
    /// A command that may store an element of a table, whose name is noted around it.
    Element(Box<Element>),
}

/// A command that may store an element of a table.
struct Element {
    /// Notes its name.
    run: StructureRun,
    forward: Forward,
    /// The outcome and the reply, once there is one.
    reply: Option<(metrics::Outcome, BytesMut)>,
}

impl StructureCall {
    /// Begins a classic command that writes. The error is a line with its CRLF.
    pub(crate) fn classic(
        request: &Request<'_>,
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
    ) -> Result<StructureCall, &'static str> {
        let request = match *request {
            Request::Store(Store { verb, flags, exptime, data, .. }) => {
                kinds::Request::Store { verb: verb_of(verb), data, flags, exptime }
            }
            Request::Arith { decr, delta, .. } => kinds::Request::Count { decr, delta, initial: None },
            Request::Delete { .. } => kinds::Request::Delete,
            Request::Touch { exptime, .. } => kinds::Request::Touch { exptime },
            _ => kinds::Request::Other,
        };
        StructureCall::begin(request, Dialect::Classic, key, proxy, client)
    }

    /// Begins a command of a binary client that writes, or a `touch`. The error is a line with its CRLF.
    pub(crate) fn binary(
        command: &binary::Command<'_>,
        head: Head,
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
    ) -> Result<StructureCall, &'static str> {
        if let Some(refused) = key.refused_unless_text() {
            return Err(refused);
        }
        let request = match *command {
            binary::Command::Store(binary::Store {
                verb: Verb::Set | Verb::Replace,
                cas: cas @ 1..,
                flags,
                exptime,
                data,
                ..
            }) if proxy.stores_over_cas(&key) => {
                kinds::Request::Store { verb: kinds::Verb::Cas(cas), data, flags, exptime }
            }
            binary::Command::Store(binary::Store { cas: 1.., .. })
            | binary::Command::Delete { cas: 1.., .. }
            | binary::Command::Count { cas: 1.., .. } => return Err(NO_CAS),
            binary::Command::Store(binary::Store { verb, flags, exptime, data, .. }) => {
                kinds::Request::Store { verb: verb_of(verb), data, flags, exptime }
            }
            binary::Command::Count { decr, delta, create, .. } => {
                // As for a command with a value, 0 is the TTL of the rule.
                let initial = create.map(|(exptime, initial)| (initial, Some(exptime).filter(|&at| at != 0)));
                kinds::Request::Count { decr, delta, initial }
            }
            binary::Command::Delete { .. } => kinds::Request::Delete,
            binary::Command::Touch { exptime, .. } => kinds::Request::Touch { exptime },
            _ => kinds::Request::Other,
        };
        StructureCall::begin(request, Dialect::Binary(head), key, proxy, client)
    }

    /// Begins a meta command other than `mn` and `me`. The error is a line with its CRLF.
    pub(crate) fn meta(
        meta: &Meta<'_>,
        dialect: MetaDialect,
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
    ) -> Result<StructureCall, &'static str> {
        if let Some(refused) = key.refused_unless_text() {
            return Err(refused);
        }
        // memcached ignores P and L, which are for proxies.
        let known: &[u8] = match meta.verb {
            MetaVerb::Get => b"bcfkqstuvOPL",
            MetaVerb::Set if proxy.stores_over_cas(&key) => b"bckqsCFMOTPL",
            MetaVerb::Set => b"bckqsFMOTPL",
            MetaVerb::Delete => b"bkqOPL",
            MetaVerb::Arith => b"bckqtvDJMNOPL",
            MetaVerb::Noop | MetaVerb::Debug => b"",
        };
        if !meta.has_only(known) {
            return Err(BAD_FLAG);
        }
        let options = meta.options();
        let request = match meta.verb {
            MetaVerb::Get => kinds::Request::Get,
            MetaVerb::Set => kinds::Request::Store {
                verb: match (options.mode.to_ascii_uppercase(), options.compare) {
                    (0 | b'S', None) => kinds::Verb::Set,
                    (0 | b'S', Some(cas)) => kinds::Verb::Cas(cas),
                    (_, Some(_)) => return Err(BAD_FLAG),
                    (b'E', None) => kinds::Verb::Add,
                    (b'A', None) => kinds::Verb::Append,
                    (b'P', None) => kinds::Verb::Prepend,
                    (b'R', None) => kinds::Verb::Replace,
                    (_, None) => kinds::Verb::Other,
                },
                data: meta.data,
                flags: options.flags,
                exptime: options.exptime.unwrap_or(0),
            },
            MetaVerb::Delete => kinds::Request::Delete,
            MetaVerb::Arith => kinds::Request::Count {
                decr: matches!(options.mode, b'D' | b'd' | b'-'),
                delta: options.delta,
                initial: options.vivify.map(|exptime| (options.initial, Some(exptime))),
            },
            MetaVerb::Noop | MetaVerb::Debug => kinds::Request::Other,
        };
        StructureCall::begin(request, Dialect::Meta(dialect), key, proxy, client)
    }

    /// Begins a command that may store an element. `forward` sends it. The error is a line with its CRLF.
    pub(crate) fn element(
        key: StructureKey,
        dialect: Dialect,
        proxy: &Proxy,
        client: &Client,
        forward: impl FnOnce() -> Forward,
    ) -> Result<StructureCall, &'static str> {
        let structure = proxy.structure(&key);
        let (rule, shows_failures) = (structure.rule, proxy.shows_failures(structure));
        let (run, forward) = StructureRun::note(key, proxy, client, forward)?;
        Ok(StructureCall {
            state: State::Element(Box::new(Element { run, forward, reply: None })),
            dialect,
            rule,
            shows_failures,
            stores: 0,
        })
    }

    fn begin(
        request: kinds::Request<'_>,
        dialect: Dialect,
        key: StructureKey,
        proxy: &Proxy,
        client: &Client,
    ) -> Result<StructureCall, &'static str> {
        let structure = proxy.structure(&key);
        let (rule, kind, shows_failures) = (structure.rule, &structure.kind, proxy.shows_failures(structure));
        let is_lock = matches!(kind.structure(), Some(Kind::Lock(_)));
        if is_lock && matches!(request, kinds::Request::Store { .. }) && client.locks.is_full() {
            proxy.metrics.limit_reached(Limit::Locks);
            return Err(TOO_MANY_LOCKS);
        }
        let released = match request {
            kinds::Request::Delete if is_lock => client.locks.release(key.own_key()),
            _ => None,
        };
        let stores = if let kinds::Request::Store { data, .. } = &request { data.len() } else { 0 };
        // memcached deletes an item if what a meta command brings for it is too large.
        let beside = if kind.is_copied() { kinds::COPY_BYTES } else { kinds::INFIX.len() };
        if stores > proxy.structure_connection(&key).server().max_value(key.key.len() + beside) {
            return Err(TOO_LARGE);
        }
        let state = match released {
            Some(outcome) => State::Release(key, outcome),
            None => State::Run(StructureRun::begin(request, key, proxy, client)?),
        };
        Ok(StructureCall { state, dialect, rule, shows_failures, stores })
    }

    /// Returns the outcome once it is done, and appends the reply to `out`.
    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<metrics::Outcome> {
        let CallScope { proxy, client, .. } = scope;
        let released;
        let outcome = match &mut self.state {
            State::Element(element) => {
                let Element { run, forward, reply } = &mut **element;
                let is_noted = run.poll(proxy, client);
                if reply.is_none() {
                    let mut bytes = BytesMut::new();
                    let (outcome, large) = ready!(forward.poll(scope, &mut bytes));
                    if let Some(large) = large {
                        bytes.extend_from_slice(&large.bytes);
                        bytes.extend_from_slice(large.trailer);
                    }
                    *reply = Some((outcome, bytes));
                }
                let (Some((counted, bytes)), true) = (reply, is_noted) else { return Poll::Pending };
                return Poll::Ready(match run.outcome() {
                    Some(Outcome::Stored(_)) | None => {
                        out.extend_from_slice(bytes);
                        *counted
                    }
                    Some(failed) => {
                        self.dialect.write(&write_outcome(failed), 0, out);
                        counted_write(failed)
                    }
                });
            }
            State::Release(_, outcome) => {
                released = ready!(Pin::new(outcome).poll(cx)).unwrap_or(Outcome::Failed(Failure::Down));
                &released
            }
            State::Run(run) => {
                if !run.poll(proxy, client) {
                    return Poll::Pending;
                }
                let Some(outcome) = run.outcome() else { return Poll::Pending };
                if let Outcome::Locked(hold) = outcome {
                    let servers = proxy.lock_servers(run.key());
                    let (metrics, unfinished) = (proxy.shared_metrics(), proxy.unfinished());
                    client.locks.take((**hold).clone(), servers, metrics, unfinished, self.rule);
                }
                outcome
            }
        };
        let (counted, bytes) = match &self.dialect {
            Dialect::Meta(meta) if meta.reads() => {
                let read = read_outcome(outcome, self.shows_failures);
                let counted = counted_read(&read);
                // A structure is never too large to copy: see `kinds`.
                if let Some(large) = meta.write_read(&read, MetaWinner::Miss, 0, out) {
                    out.extend_from_slice(&large.bytes);
                    out.extend_from_slice(large.trailer);
                }
                (counted, read.length())
            }
            dialect => {
                dialect.write(&write_outcome(outcome), 0, out);
                (counted_write(outcome), self.stores)
            }
        };
        let key = match &self.state {
            State::Release(key, _) => key,
            State::Run(run) => run.key(),
            State::Element(element) => element.run.key(),
        };
        scope.count(self.rule, counted, || SeenKey::structure(key, bytes, proxy));
        Poll::Ready(counted)
    }
}

impl Proxy {
    /// Whether a read that failed is an error and no miss. With two copies it always is: a client that is told that there is no
    /// value stores a new one, over the value that the other server has.
    pub(crate) fn shows_failures(&self, structure: &StructurePlan) -> bool {
        structure.kind.is_copied() || !self.pools[structure.pool].on_error().is_miss()
    }

    /// Whether clients may store over the CAS of this key's item.
    fn stores_over_cas(&self, key: &StructureKey) -> bool {
        kinds::is_value_with_copies(&self.structure(key).kind, &key.key, key.length)
    }
}

impl StructureKey {
    /// The error if no classic command could have this key. A line with its CRLF.
    pub(crate) fn refused_unless_text(&self) -> Option<&'static str> {
        self.key.iter().any(|byte| *byte <= b' ' || *byte == 0x7f).then_some(NOT_TEXT)
    }
}

fn verb_of(verb: Verb) -> kinds::Verb {
    match verb {
        Verb::Set => kinds::Verb::Set,
        Verb::Add => kinds::Verb::Add,
        Verb::Append => kinds::Verb::Append,
        Verb::Replace => kinds::Verb::Replace,
        Verb::Prepend => kinds::Verb::Prepend,
        Verb::Cas(cas) => kinds::Verb::Cas(cas),
    }
}

/// The outcome for the metrics of a command that is refused with this line.
pub(crate) fn refusal(line: &str) -> metrics::Outcome {
    if line.starts_with("SERVER_ERROR") {
        metrics::Outcome::ServerError
    } else {
        metrics::Outcome::ClientError
    }
}

/// What a client is shown of the outcome of a read: see [`Proxy::shows_failures`].
pub(crate) fn read_outcome(outcome: &Outcome, shows_failures: bool) -> ReadOutcome {
    match outcome {
        Outcome::Value { data, flags, cas, ttl } => {
            let hit = Hit { payload: data.clone(), flags: *flags, ttl: *ttl, ..Hit::nothing() };
            ReadOutcome::Value(hit, ItemMarks::of(*cas))
        }
        Outcome::Failed(failure) if *failure == Failure::TooLarge || shows_failures => {
            ReadOutcome::Failed(*failure)
        }
        _ => ReadOutcome::Miss(None),
    }
}

/// The outcome of a read for the metrics.
pub(crate) fn counted_read(outcome: &ReadOutcome) -> metrics::Outcome {
    match outcome {
        ReadOutcome::Value(..) => metrics::Outcome::Hit,
        ReadOutcome::Failed(_) => metrics::Outcome::ServerError,
        _ => metrics::Outcome::Miss,
    }
}

fn write_outcome(outcome: &Outcome) -> WriteOutcome {
    let cas = |number| guard::Cas { number, epoch: 0 };
    match *outcome {
        Outcome::Stored(number) => WriteOutcome::Stored(cas(number)),
        Outcome::Locked(_) => WriteOutcome::Stored(guard::Cas::NONE),
        Outcome::NotStored => WriteOutcome::NotStored,
        Outcome::Exists => WriteOutcome::Exists,
        Outcome::Touched(flags, number) => WriteOutcome::Touched { flags, cas: cas(number) },
        Outcome::Deleted => WriteOutcome::Deleted,
        Outcome::NotFound | Outcome::Miss | Outcome::Value { .. } => WriteOutcome::NotFound,
        Outcome::Counted(number, item, ttl) => {
            WriteOutcome::Counted(Counted { number, cas: cas(item), ttl, created: false })
        }
        Outcome::NotANumber => WriteOutcome::NotANumber,
        Outcome::Refused(line) => WriteOutcome::Verbatim(Bytes::from_static(line.as_bytes())),
        Outcome::TooLarge => WriteOutcome::TooLarge,
        Outcome::Failed(failure) => WriteOutcome::Failed(failure),
    }
}

fn counted_write(outcome: &Outcome) -> metrics::Outcome {
    match outcome {
        Outcome::Stored(_) | Outcome::Locked(_) => metrics::Outcome::Stored,
        Outcome::NotStored => metrics::Outcome::NotStored,
        Outcome::Exists => metrics::Outcome::Exists,
        Outcome::Touched(..) => metrics::Outcome::Touched,
        Outcome::Deleted => metrics::Outcome::Deleted,
        Outcome::NotFound | Outcome::Miss | Outcome::Value { .. } => metrics::Outcome::NotFound,
        Outcome::Counted(..) => metrics::Outcome::Counted,
        Outcome::Refused(line) => refusal(line),
        Outcome::NotANumber => metrics::Outcome::ClientError,
        Outcome::TooLarge | Outcome::Failed(_) => metrics::Outcome::ServerError,
    }
}
