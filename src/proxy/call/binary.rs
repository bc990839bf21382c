//! How a binary request begins. It is forwarded, or handled by the guard, as a text request is.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::get::{BinaryGets, Get};
use super::poll::{Call, Kind};
use crate::metrics::{Command as Label, ErrorCause, Outcome};
use crate::protocol::binary::parse::{Command, Refused, Request, Store};
use crate::protocol::binary::reply::{put_done, put_error, put_statistic, put_text, put_translated};
use crate::protocol::binary::{self, Head, Operation, Status};
use crate::protocol::request::{self, Verb};
use crate::proxy::client::Client;
use crate::proxy::guarded::explicit_tags::BadTags;
use crate::proxy::guarded::write::GuardedWrite;
use crate::proxy::key::KeyClass;
use crate::proxy::pipeline::Proxy;
use crate::proxy::raw::binary::is_too_large;
use crate::proxy::raw::flush_all::FlushAll;
use crate::proxy::raw::forward::Forward;
use crate::proxy::raw::stats::{Statistics, StatsStart};
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::scope::AccessSet;
use crate::proxy::server_key::is_text;
use crate::proxy::structures::call::{StructureCall, refusal};
use crate::upstream::GetKind;

/// What an error is to a delete that accompanies it.
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

impl Call {
    /// Begins a binary request and sends its first commands. Returns `None` as [`Call::begin`] does.
    pub fn binary(
        request: &Request<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let Request { head, command } = request;
        let head = *head;
        if let Command::Get { key, exptime } = *command {
            return Call::binary_get(key, exptime, head, proxy, client, busy);
        }
        let label = label(head, command);
        let count = |outcome| proxy.count_at_once(client, label, outcome);
        let reply = |write: &dyn Fn(&mut BytesMut)| {
            let mut out = BytesMut::new();
            write(&mut out);
            Kind::Reply(out.freeze())
        };
        let structure = |call: Result<StructureCall, &'static str>, rule, key: &[u8]| match call {
            Ok(call) => Kind::Structure(Box::new(call)),
            Err(line) => {
                proxy.count_unsent(client, rule, label, refusal(line), key);
                proxy.count_errors(line.as_bytes());
                reply(&|out| put_translated(head, line.as_bytes(), out))
            }
        };
        let mut accesses = AccessSet::default();
        let changed = match command {
            Command::Store(_) | Command::Count { .. } | Command::Delete { .. } => command.key(),
            _ => None,
        };
        let invalidates = changed.map(|key| proxy.invalidated_by(proxy.split_tags(key).0).into_boxed_slice());
        let invalidates = invalidates.unwrap_or_default();
        if !invalidates.is_empty() && busy(&AccessSet::everything()) {
            return None;
        }
        let kind = match (command, command.key()) {
            (_, Some(key)) => match proxy.class(proxy.split_tags(key).0) {
                KeyClass::Raw { pool, .. } if matches!(command, Command::Store(store) if proxy.is_too_large(store, pool)) =>
                {
                    count(Outcome::ServerError);
                    proxy.metrics.server_error(ErrorCause::TooLarge);
                    reply(&|out| put_error(head, Status::TooLarge, out))
                }
                KeyClass::Raw { pool, rule } => {
                    let forward = || Forward::binary(command, head, (pool, rule), proxy, client);
                    let creates = match command {
                        Command::Store(Store { verb, .. }) => matches!(verb, Verb::Set | Verb::Add),
                        Command::Count { create, .. } => create.is_some(),
                        _ => false,
                    };
                    match proxy.element(key) {
                        None => Kind::change(forward()),
                        Some(element) => {
                            accesses = proxy.structure_access(&element, false);
                            if busy(&accesses) {
                                return None;
                            }
                            match creates {
                                false => Kind::Forward(forward()),
                                true => {
                                    let dialect = Dialect::Binary(head);
                                    let call =
                                        StructureCall::element(element, dialect, proxy, client, forward);
                                    structure(call, rule, key)
                                }
                            }
                        }
                    }
                }
                KeyClass::Structure(class) => {
                    let changed = key;
                    let key = match command {
                        Command::Store(_) => proxy.structure_key_to_store(class),
                        _ => class,
                    };
                    accesses = proxy.structure_access(&key, true);
                    if busy(&accesses) {
                        return None;
                    }
                    let rule = proxy.structure(&key).rule;
                    structure(StructureCall::binary(command, head, key, proxy, client), rule, changed)
                }
                KeyClass::Reserved(line) => {
                    count(Outcome::ClientError);
                    reply(&|out| put_translated(head, line.as_bytes(), out))
                }
                KeyClass::Tag(name) => {
                    accesses = AccessSet::everything();
                    if busy(&accesses) {
                        return None;
                    }
                    let dialect = Dialect::Binary(head);
                    Kind::Guarded(Box::new(GuardedWrite::tag(
                        &as_text(command),
                        name,
                        dialect,
                        proxy,
                        client,
                    )))
                }
                KeyClass::Guarded(guarded) => {
                    accesses = AccessSet::of([proxy.hash(&guarded.key)], true);
                    if busy(&accesses) {
                        return None;
                    }
                    match proxy.with_explicit_tags(guarded, proxy.split_tags(key).1) {
                        Ok(guarded) => Kind::Guarded(Box::new(GuardedWrite::binary(
                            command, head, guarded, proxy, client,
                        ))),
                        Err(BadTags) => {
                            count(Outcome::ClientError);
                            reply(&|out| put_translated(head, BadTags::REPLY, out))
                        }
                    }
                }
            },
            (Command::Flush { .. }, _) if !proxy.server_info.flush_all => {
                count(Outcome::ClientError);
                reply(&|out| put_error(head, Status::AuthError, out))
            }
            (Command::Flush { delay }, _) => {
                accesses = AccessSet::everything();
                if busy(&accesses) {
                    return None;
                }
                Kind::FlushAll(Box::new(FlushAll::begin(*delay, proxy, client)))
            }
            (Command::Stat { what }, _) => match statistics(what) {
                Ok(what) => match Statistics::begin(what, proxy, client) {
                    StatsStart::Sent(statistics) => Kind::Statistics(Box::new(statistics)),
                    StatsStart::Reply(text, outcome) => {
                        count(outcome);
                        reply(&|out| put_translated(head, text, out))
                    }
                },
                Err(OtherStatistics::Unknown) => {
                    count(Outcome::Error);
                    reply(&|out| put_error(head, Status::NotFound, out))
                }
                Err(OtherStatistics::DetailDump) => {
                    count(Outcome::Ok);
                    reply(&|out| {
                        put_statistic(head, b"detailed", b"END\r\n", out);
                        put_statistic(head, b"", b"", out);
                    })
                }
            },
            (Command::Version, _) => {
                count(Outcome::Ok);
                reply(&|out| put_text(head, Status::Success, binary::VERSION, out))
            }
            (Command::Noop, _) => {
                count(Outcome::Ok);
                reply(&|out| put_done(head, 0, out))
            }
            (Command::Quit, _) => reply(&|out| put_done(head, 0, out)),
            // The session answers SASL if the listener has it.
            (_, None) => {
                count(Outcome::Error);
                reply(&|out| put_error(head, Status::UnknownCommand, out))
            }
        };
        if !invalidates.is_empty() {
            accesses = AccessSet::everything();
        }
        Some(Call { head: Some(head), accesses, invalidates, ..Call::new(label, kind, client) })
    }

    /// Begins gets that the client has sent one behind the other, and the `noop` behind them. All keys are read at once, as those of
    /// a text get. `follows`: see [`Get::binary`]. Text commands must be able to name each key. Returns `None` as [`Call::begin`] does.
    pub fn binary_gets(
        gets: &[(Head, &[u8])],
        noop: Option<Head>,
        follows: bool,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let heads = BinaryGets::new(gets.iter().map(|(head, _)| *head).collect(), noop);
        let kind = GetKind { exptime: None, cas: true };
        let mut get = Box::new(Get::binary(kind, heads, follows, gets.len()));
        get.add_all(gets.iter().map(|(_, key)| *key), proxy);
        let call = Call::begin_get(get, Label::Get, proxy, client, busy)?;
        if noop.is_some() {
            proxy.count_at_once(client, Label::MetaNoop, Outcome::Ok);
        }
        Some(call)
    }

    /// Adds the `noop` that ends the gets of this call. Returns false if it is another call, or they have another end.
    pub fn end_gets(&mut self, noop: Head, proxy: &Proxy, client: &Client) -> bool {
        let ends = match &mut self.kind {
            Kind::Get(get) => get.binary.as_mut().is_some_and(|binary| binary.end(noop)),
            _ => false,
        };
        if ends {
            proxy.count_at_once(client, Label::MetaNoop, Outcome::Ok);
        }
        ends
    }

    fn binary_get(
        key: &[u8],
        exptime: Option<i64>,
        head: Head,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let label = if exptime.is_some() { Label::Gat } else { Label::Get };
        let forward = match proxy.class(key) {
            KeyClass::Raw { pool, rule } if is_text(key) && proxy.element(key).is_none() => {
                Forward::binary_get(key, exptime, head, (pool, rule), proxy, client)
            }
            KeyClass::Raw { pool, rule } if !is_text(key) => {
                let command = Command::Get { key, exptime };
                Forward::binary(&command, head, (pool, rule), proxy, client)
            }
            class => {
                let kind = GetKind { exptime, cas: true };
                let heads = BinaryGets::new(SmallVec::from_slice(&[head]), None);
                let mut get = Box::new(Get::binary(kind, heads, false, 1));
                get.add(key, None, class, proxy);
                return Call::begin_get(get, label, proxy, client, busy);
            }
        };
        Some(Call { head: Some(head), ..Call::new(label, Kind::Forward(forward), client) })
    }

    fn begin_get(
        mut get: Box<Get>,
        command: Label,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let accesses = get.accesses(proxy);
        if busy(&accesses) {
            return None;
        }
        get.send(proxy, client);
        Some(Call { accesses, ..Call::new(command, Kind::Get(get), client) })
    }

    /// Begins the reply to a binary request that the parser has refused. Returns `None` as [`Call::begin`] does.
    pub fn refuse_binary(
        refused: &Refused<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let head = refused.head;
        let mut out = BytesMut::new();
        put_error(head, refused.status, &mut out);
        let reply = out.freeze();
        let deletes = refused.deletes.map(|key| proxy.split_tags(key).0);
        let mut accesses = AccessSet::default();
        let kind = match deletes.map(|key| (key, proxy.class(key))) {
            None | Some((_, KeyClass::Tag(_) | KeyClass::Structure(_) | KeyClass::Reserved(_))) => {
                Kind::Reply(reply)
            }
            Some((key, KeyClass::Raw { pool, rule })) => {
                let delete = Command::Delete { key, cas: 0 };
                let forward = Forward::binary(&delete, head, (pool, rule), proxy, client);
                Kind::Forward(forward.with_reply(reply))
            }
            Some((key, KeyClass::Guarded(guarded))) => {
                accesses = AccessSet::of([proxy.hash(key)], true);
                if busy(&accesses) {
                    return None;
                }
                let (dialect, reply) = (Dialect::Binary(head), Bytes::from_static(TOO_LARGE));
                let write = GuardedWrite::delete_with_reply(guarded, dialect, reply, proxy, client);
                Kind::Guarded(Box::new(write))
            }
        };
        let outcome = match refused.status {
            Status::TooLarge => {
                proxy.metrics.server_error(ErrorCause::TooLarge);
                Outcome::ServerError
            }
            Status::ServerError => Outcome::ServerError,
            Status::UnknownCommand => Outcome::Error,
            _ => Outcome::ClientError,
        };
        proxy.count_at_once(client, Label::Other, outcome);
        Some(Call { head: Some(head), accesses, ..Call::new(Label::Other, kind, client) })
    }

    /// A reply that is known.
    pub fn known(reply: Bytes, client: &Client) -> Call {
        Call::new(Label::Other, Kind::Reply(reply), client)
    }
}

impl Proxy {
    fn is_too_large(&self, store: &Store<'_>, pool: usize) -> bool {
        let server = self.raw_place(store.key, None, pool).server;
        is_too_large(store, self.pools[pool].connections()[server].server().item_size())
    }
}

/// Statistics whose reply differs from that of the text protocol.
enum OtherStatistics {
    /// `detail dump`
    DetailDump,
    /// Any that memcached does not know in this protocol.
    Unknown,
}

/// The statistics as `stats` names them: memcached compares some names by their beginning.
fn statistics(what: &[u8]) -> Result<&'static [u8], OtherStatistics> {
    let detail = what.strip_prefix(b"detail");
    Ok(match what {
        b"" => b"",
        _ if what.starts_with(b"reset") => b"reset",
        _ if what.starts_with(b"settings") => b"settings",
        b"items" => b"items",
        b"slabs" => b"slabs",
        b"sizes" => b"sizes",
        _ if detail.is_some_and(|rest| rest.starts_with(b" dump")) => {
            return Err(OtherStatistics::DetailDump);
        }
        _ if detail.is_some_and(|rest| rest.starts_with(b" on")) => b"detail on",
        _ if detail.is_some_and(|rest| rest.starts_with(b" off")) => b"detail off",
        _ => return Err(OtherStatistics::Unknown),
    })
}

/// The text command on the key of a tag that does the same.
fn as_text<'a>(command: &Command<'a>) -> request::Request<'a> {
    match *command {
        Command::Delete { key, .. } => request::Request::Delete { key, noreply: false },
        Command::Count { key, decr, delta, .. } => {
            request::Request::Arith { key, decr, delta, noreply: false }
        }
        // Such a key cannot be written.
        _ => request::Request::Touch { key: command.key().unwrap_or_default(), exptime: 0, noreply: false },
    }
}

/// The label of a request in the metrics.
fn label(head: Head, command: &Command<'_>) -> Label {
    match command {
        Command::Store(Store { cas: 1.., verb: Verb::Set | Verb::Add | Verb::Replace, .. }) => Label::Cas,
        _ => match head.opcode.operation() {
            Operation::Get { .. } => Label::Get,
            Operation::GetAndTouch { .. } => Label::Gat,
            Operation::Touch => Label::Touch,
            Operation::Set => Label::Set,
            Operation::Add => Label::Add,
            Operation::Replace => Label::Replace,
            Operation::Append => Label::Append,
            Operation::Prepend => Label::Prepend,
            Operation::Delete => Label::Delete,
            Operation::Increment => Label::Incr,
            Operation::Decrement => Label::Decr,
            Operation::Quit => Label::Quit,
            Operation::Flush => Label::FlushAll,
            Operation::Noop => Label::MetaNoop,
            Operation::Version => Label::Version,
            Operation::Stat => Label::Stats,
            Operation::SaslList | Operation::SaslAuth | Operation::SaslStep | Operation::Unknown => {
                Label::Other
            }
        },
    }
}
