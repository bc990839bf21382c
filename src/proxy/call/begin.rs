//! How a request begins: by the class of its key it is forwarded, or handled by the guard.

use std::rc::Rc;

use bytes::Bytes;

use super::get::Get;
use super::long_get::{GetPart, LongGetState};
use super::poll::{Call, Kind};
use crate::metrics::{Command, ErrorCause, NO_RULE, Outcome};
use crate::protocol::base64;
use crate::protocol::request::{Keys, MetaVerb, Refused, Request, Store, Verb};
use crate::proxy::client::Client;
use crate::proxy::guarded::explicit_tags::{BadTags, TOKEN};
use crate::proxy::guarded::meta_get::MetaGet;
use crate::proxy::guarded::tag_get::TagGet;
use crate::proxy::guarded::write::GuardedWrite;
use crate::proxy::key::KeyClass;
use crate::proxy::pipeline::Proxy;
use crate::proxy::raw::flush_all::FlushAll;
use crate::proxy::raw::forward::Forward;
use crate::proxy::raw::stats::{Statistics, StatsStart};
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::replies::meta::MetaDialect;
use crate::proxy::scope::AccessSet;
use crate::proxy::structures::call::{BAD_FLAG, StructureCall, refusal};
use crate::upstream::GetKind;

/// The reply to an `mg` of a guarded key that chooses the CAS of the stub which it may leave.
const CHOSEN_STUB: &str = "CLIENT_ERROR E does not apply to mg N of a guarded key\r\n";

/// The reply to `version`, from which clients derive the server's features. It has one word after `VERSION`, because Dalli
/// takes the last word for the version. Kennel's own version is in `stats`.
const VERSION: &str = "VERSION 1.6.45\r\n";

/// The reply of a memcached that was started with `-F`.
const NO_FLUSH: &str = "CLIENT_ERROR flush_all not allowed\r\n";

/// The flags of an `mg` of a tag's key: it changes nothing.
const TAG_FLAGS: &[u8] = b"kqObvfstchlu";

impl Call {
    /// Begins a request and sends its first commands. Returns `None` if it must wait for an earlier call: `busy` returns
    /// whether one conflicts with a set of keys.
    pub fn begin(
        request: &Request<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let (command, quiet) = name(request);
        let reply = |text: &'static str| Kind::Reply(Bytes::from_static(text.as_bytes()));
        let count = |outcome| proxy.count_at_once(client, command, outcome);
        let structure = |call: Result<StructureCall, &'static str>, rule, key: &[u8]| match call {
            Ok(call) => Kind::Structure(Box::new(call)),
            Err(line) => {
                proxy.count_unsent(client, rule, command, refusal(line), key);
                proxy.count_errors(line.as_bytes());
                reply(line)
            }
        };
        let mut accesses = AccessSet::default();
        let decoded = decode(request);
        let invalidates = match changed_key(request, decoded.as_deref()) {
            None => Box::default(),
            // Meta commands name tags in a token, not in the key.
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
            | Request::Delete { key, .. } => match proxy.class(proxy.split_tags(key).0) {
                KeyClass::Raw { pool, rule } => {
                    let forward = || Forward::new(request, key, pool, rule, proxy, client);
                    match proxy.element(key) {
                        None => Kind::change(forward()),
                        Some(element) => {
                            accesses = proxy.structure_access(&element, false);
                            if busy(&accesses) {
                                return None;
                            }
                            match request {
                                Request::Store(Store { verb: Verb::Set | Verb::Add, .. }) => {
                                    let dialect = Dialect::Classic;
                                    let call =
                                        StructureCall::element(element, dialect, proxy, client, forward);
                                    structure(call, rule, key)
                                }
                                _ => Kind::Forward(forward()),
                            }
                        }
                    }
                }
                KeyClass::Structure(class) => {
                    let changed = *key;
                    let key = match request {
                        Request::Store(_) => proxy.structure_key_to_store(class),
                        _ => class,
                    };
                    accesses = proxy.structure_access(&key, true);
                    if busy(&accesses) {
                        return None;
                    }
                    let rule = proxy.structure(&key).rule;
                    structure(StructureCall::classic(request, key, proxy, client), rule, changed)
                }
                KeyClass::Reserved(line) => {
                    count(Outcome::ClientError);
                    reply(line)
                }
                KeyClass::Tag(name) => {
                    accesses = AccessSet::everything();
                    if busy(&accesses) {
                        return None;
                    }
                    Kind::Guarded(Box::new(GuardedWrite::tag(request, name, Dialect::Classic, proxy, client)))
                }
                KeyClass::Guarded(guarded) => {
                    accesses = AccessSet::of([proxy.hash(&guarded.key)], true);
                    if busy(&accesses) {
                        return None;
                    }
                    match proxy.with_explicit_tags(guarded, proxy.split_tags(key).1) {
                        Ok(guarded) => {
                            Kind::Guarded(Box::new(GuardedWrite::begin(request, guarded, proxy, client)))
                        }
                        Err(BadTags) => {
                            count(Outcome::ClientError);
                            Kind::Reply(Bytes::from_static(BadTags::REPLY))
                        }
                    }
                }
            },
            Request::FlushAll { .. } if !proxy.server_info.flush_all => {
                count(Outcome::ClientError);
                reply(NO_FLUSH)
            }
            Request::FlushAll { delay, .. } => {
                accesses = AccessSet::everything();
                if busy(&accesses) {
                    return None;
                }
                Kind::FlushAll(Box::new(FlushAll::begin(*delay, proxy, client)))
            }
            Request::Stats { what } => match Statistics::begin(what, proxy, client) {
                StatsStart::Sent(statistics) => Kind::Statistics(Box::new(statistics)),
                StatsStart::Reply(text, outcome) => {
                    count(outcome);
                    Kind::Reply(Bytes::from_static(text))
                }
            },
            Request::Version => {
                count(Outcome::Ok);
                reply(VERSION)
            }
            Request::Verbosity { .. } => {
                count(Outcome::Ok);
                reply("OK\r\n")
            }
            Request::Quit => reply(""),
            Request::Meta(meta) if meta.verb == MetaVerb::Noop => {
                count(Outcome::Ok);
                reply("MN\r\n")
            }
            Request::Meta(meta) => {
                let key = decoded.as_deref().unwrap_or(meta.key);
                let reads = meta.verb == MetaVerb::Get;
                let class = match proxy.class(key) {
                    KeyClass::Structure(key) if meta.verb == MetaVerb::Set => {
                        KeyClass::Structure(proxy.structure_key_to_store(key))
                    }
                    class => class,
                };
                accesses = match &class {
                    KeyClass::Raw { .. } => AccessSet::of(proxy.element_access_hash(key), false),
                    KeyClass::Reserved(_) => AccessSet::default(),
                    KeyClass::Structure(key) => proxy.structure_access(key, !reads),
                    KeyClass::Tag(_) if !reads => AccessSet::everything(),
                    // A win changes the CAS. A read that returns the CAS must not overtake an earlier read of its client.
                    _ => AccessSet::of([proxy.hash(key)], !reads || meta.has_any(b"Tc")),
                };
                if busy(&accesses) {
                    return None;
                }
                let dialect = || MetaDialect::of(meta, key, proxy.now());
                match class {
                    KeyClass::Raw { pool, rule } => {
                        let forward = || Forward::meta(meta, key, pool, rule, proxy, client);
                        let creates = match meta.verb {
                            MetaVerb::Set => true,
                            MetaVerb::Get | MetaVerb::Arith => meta.has_any(b"N"),
                            _ => false,
                        };
                        match proxy.element(key).filter(|_| creates) {
                            None => Kind::change(forward()),
                            Some(_) if reads => structure(Err(BAD_FLAG), rule, key),
                            Some(element) => {
                                let dialect = Dialect::Meta(dialect());
                                structure(
                                    StructureCall::element(element, dialect, proxy, client, forward),
                                    rule,
                                    key,
                                )
                            }
                        }
                    }
                    // The item as it is stored, for debugging.
                    KeyClass::Structure(key) if meta.verb == MetaVerb::Debug => {
                        let plan = proxy.structure(&key);
                        Kind::Forward(Forward::meta(meta, &key.key, plan.pool, plan.rule, proxy, client))
                    }
                    KeyClass::Structure(structure_key) => {
                        let rule = proxy.structure(&structure_key).rule;
                        structure(
                            StructureCall::meta(meta, dialect(), structure_key, proxy, client),
                            rule,
                            key,
                        )
                    }
                    KeyClass::Reserved(line) => {
                        count(Outcome::ClientError);
                        reply(line)
                    }
                    // The item as it is stored, for debugging.
                    KeyClass::Guarded(guarded) if meta.verb == MetaVerb::Debug => {
                        let guard = &proxy.plan.guards[guarded.guard];
                        Kind::Forward(Forward::meta(meta, key, guard.pool, guard.rule, proxy, client))
                    }
                    // What a client fills by a CAS of its own is told from what an invalidation left by the server's CAS.
                    KeyClass::Guarded(_) if reads && meta.has_any(b"N") && meta.has_any(b"E") => {
                        count(Outcome::ClientError);
                        reply(CHOSEN_STUB)
                    }
                    KeyClass::Guarded(guarded) if reads => {
                        Kind::MetaGet(Box::new(MetaGet::new(meta, guarded, dialect(), proxy, client)))
                    }
                    KeyClass::Guarded(guarded) => {
                        let dialect = Dialect::Meta(dialect());
                        let token = meta.token(b'P').filter(|_| meta.verb == MetaVerb::Set);
                        let list = token.and_then(|token| token.strip_prefix(TOKEN));
                        match proxy.with_explicit_tags(guarded, list.unwrap_or_default()) {
                            Ok(guarded) => Kind::Guarded(Box::new(GuardedWrite::meta(
                                meta, guarded, dialect, proxy, client,
                            ))),
                            Err(BadTags) => {
                                count(Outcome::ClientError);
                                Kind::Reply(Bytes::from_static(BadTags::REPLY))
                            }
                        }
                    }
                    KeyClass::Tag(name)
                        if reads && meta.has_only(TAG_FLAGS) && proxy.fails_over(proxy.plan.tag_pool) =>
                    {
                        Kind::TagGet(Box::new(TagGet::new(meta, &name, dialect(), proxy, client)))
                    }
                    KeyClass::Tag(_)
                        if meta.verb == MetaVerb::Debug || (reads && meta.has_only(TAG_FLAGS)) =>
                    {
                        Kind::Forward(Forward::meta(meta, key, proxy.plan.tag_pool, NO_RULE, proxy, client))
                    }
                    KeyClass::Tag(name) => {
                        let dialect = Dialect::Meta(dialect());
                        Kind::Guarded(Box::new(GuardedWrite::tag(request, name, dialect, proxy, client)))
                    }
                }
            }
        };
        if !invalidates.is_empty() {
            accesses = AccessSet::everything();
        }
        Some(Call { quiet, accesses, invalidates, ..Call::new(command, kind, client) })
    }

    /// Begins one part of a long get. Returns `None` as [`Call::begin`] does.
    pub fn part(
        request: &Request<'_>,
        long_get: &Rc<LongGetState>,
        last: bool,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let (command, _) = name(request);
        let (kind, keys) = match *request {
            Request::Get { keys, cas } => (GetKind { exptime: None, cas }, keys),
            Request::GetAndTouch { exptime, keys, cas } => (GetKind { exptime: Some(exptime), cas }, keys),
            // No other request has parts.
            _ => return Call::begin(request, proxy, client, busy),
        };
        let part = GetPart { long_get: Rc::clone(long_get), last };
        Call::get(command, kind, keys, Some(part), proxy, client, busy)
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a get, and what every call is given")]
    fn get(
        command: Command,
        kind: GetKind,
        keys: Keys<'_>,
        part: Option<GetPart>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let call = |kind, accesses| Call { accesses, ..Call::new(command, kind, client) };
        let mut rest = keys.iter();
        let only = rest.next().filter(|_| part.is_none() && rest.next().is_none());
        let get = |part, keys| Box::new(Get::new(kind, part, keys));
        let mut get = match only.map(|key| (key, proxy.class(key))) {
            Some((key, KeyClass::Raw { pool, rule })) if proxy.element(key).is_none() => {
                let forward = Forward::get(key, kind, pool, rule, proxy, client);
                return Some(call(Kind::Forward(forward), AccessSet::default()));
            }
            Some((key, class)) => {
                let mut get = get(part, 1);
                get.add(key, None, class, proxy);
                get
            }
            None => {
                let mut get = get(part, keys.len());
                get.add_all(keys, proxy);
                get
            }
        };
        let accesses = get.accesses(proxy);
        if busy(&accesses) {
            return None;
        }
        get.send(proxy, client);
        Some(call(Kind::Get(get), accesses))
    }

    /// Begins the reply to a request that the parser has refused. If memcached deletes the key or touches keys in this case, so
    /// does Kennel. Returns `None` as [`Call::begin`] does.
    pub fn refuse(
        refused: &Refused<'_>,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let reply = Bytes::from_static(refused.reply);
        // With noreply there is no reply, even if the delete fails.
        let quiet = refused.reply.is_empty();
        let outcome = match () {
            () if refused.reply.starts_with(b"SERVER_ERROR") => Outcome::ServerError,
            () if refused.reply.starts_with(b"CLIENT_ERROR") => Outcome::ClientError,
            () => Outcome::Error,
        };
        if let Some((exptime, keys)) = refused.touches {
            return Call::refuse_gat(exptime, keys, reply, proxy, client, busy);
        }
        let decoded = refused.deletes.filter(|_| refused.deletes_base64).and_then(base64::decode);
        let deletes = decoded.as_deref().or(refused.deletes).map(|key| proxy.split_tags(key).0);
        let (kind, accesses) = match deletes.map(|key| (key, proxy.class(key))) {
            None | Some((_, KeyClass::Tag(_) | KeyClass::Structure(_) | KeyClass::Reserved(_))) => {
                (Kind::Reply(reply), AccessSet::default())
            }
            Some((key, KeyClass::Raw { pool, rule })) => {
                let request = Request::Delete { key, noreply: false };
                let forward = Forward::new(&request, key, pool, rule, proxy, client).with_reply(reply);
                (Kind::Forward(forward), AccessSet::default())
            }
            Some((key, KeyClass::Guarded(guarded))) => {
                let accesses = AccessSet::of([proxy.hash(key)], true);
                if busy(&accesses) {
                    return None;
                }
                (
                    Kind::Guarded(Box::new(GuardedWrite::delete_with_reply(
                        guarded,
                        Dialect::Classic,
                        reply,
                        proxy,
                        client,
                    ))),
                    accesses,
                )
            }
        };
        // A data block is skipped if it is too large (the reply is empty for noreply), or if its meta command is malformed.
        if refused.skip_data > 0 && !refused.reply.starts_with(b"CLIENT_ERROR") {
            proxy.metrics.server_error(ErrorCause::TooLarge);
        }
        proxy.count_at_once(client, Command::Other, outcome);
        Some(Call { quiet, accesses, ..Call::new(Command::Other, kind, client) })
    }

    /// Begins a `gat` that is refused because of a key after these: memcached touches these first.
    fn refuse_gat(
        exptime: i64,
        keys: Keys<'_>,
        reply: Bytes,
        proxy: &Rc<Proxy>,
        client: &Client,
        busy: impl Fn(&AccessSet) -> bool,
    ) -> Option<Call> {
        let guarded = keys.iter().filter(|key| !matches!(proxy.class(key), KeyClass::Raw { .. }));
        let accesses = AccessSet::of(guarded.map(|key| proxy.hash(key)), true);
        if busy(&accesses) {
            return None;
        }
        let touch = |key| Request::Touch { key, exptime, noreply: true };
        let touches = keys.iter().filter_map(|key| Call::begin(&touch(key), proxy, client, |_| false));
        let kind = Kind::Touches(touches.collect(), reply);
        proxy.count_at_once(client, Command::Other, Outcome::ClientError);
        Some(Call { accesses, ..Call::new(Command::Other, kind, client) })
    }
}

/// The decoded key of a meta command with a base64 key.
fn decode(request: &Request<'_>) -> Option<Vec<u8>> {
    match request {
        Request::Meta(meta) => meta.token(b'b').and_then(|_| base64::decode(meta.key)),
        _ => None,
    }
}

/// The key that a request may change, if any.
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

/// The label of a request in the metrics, and whether it has noreply.
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
