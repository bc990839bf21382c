//! The commands of both protocols that write, and the state machine that runs each of them.

use std::rc::Rc;

use bytes::Bytes;

use super::begin::{begin_delete, begin_modify, begin_store};
use super::fill::StoreKind;
use super::state::{GuardedWrite, State};
use crate::guard::{Change, Count, Expiry, NewValue, Removal, TagName, named_cas};
use crate::metrics::Outcome;
use crate::protocol::meta::exptime;
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};
use crate::proxy::client::Client;
use crate::proxy::guarded::elsewhere::TagBump;
use crate::proxy::guarded::tag_servers::bump_key;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::replies::outcome::WriteOutcome;

const RESERVED: &[u8] =
    b"CLIENT_ERROR this key is a tag: it can only be read, and bumped by delete and incr\r\n";

impl GuardedWrite {
    /// A classic command on a guarded key.
    pub(crate) fn begin(
        request: &Request<'_>,
        key: GuardedKey,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let now = proxy.now();
        let stored = match *request {
            Request::Store(Store { verb: Verb::Set | Verb::Add, flags, exptime: 0.., data, .. }) => {
                Some((data, flags))
            }
            _ => None,
        };
        if stored.is_some() {
            proxy.outage_write(&key, stored, client);
        }
        let modify = |change| begin_modify(change, &key, proxy, client);
        let state = match *request {
            Request::Store(Store { verb, flags, exptime, data, .. }) => {
                let tags = key.explicit_tags();
                let body = Bytes::copy_from_slice(data);
                let value =
                    |body| NewValue { body, flags, expiry: Expiry::of(exptime, now), explicit: None, tags };
                match verb {
                    Verb::Append => {
                        modify(Change::Append { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Prepend => {
                        modify(Change::Prepend { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Set => begin_store(StoreKind::Set, value(body), &key, proxy, client),
                    Verb::Add => begin_store(StoreKind::Add, value(body), &key, proxy, client),
                    Verb::Replace => begin_store(StoreKind::Replace, value(body), &key, proxy, client),
                    Verb::Cas(number) => {
                        let number = named_cas(number, key.place.fence());
                        begin_store(StoreKind::Cas(number), value(body), &key, proxy, client)
                    }
                }
            }
            Request::Arith { decr, delta, .. } => {
                modify(Change::Count(Count { decr, delta, ..Count::default() }))
            }
            Request::Touch { exptime, .. } => modify(Change::Touch(Expiry::of(exptime, now))),
            Request::Delete { .. } => begin_delete(Removal::default(), &key, None, proxy, client),
            // No other command writes one key.
            _ => State::Reply(WriteOutcome::Verbatim(Bytes::from_static(b"ERROR\r\n")), Outcome::Error),
        };
        // Those who waited for what this command ends build after it.
        if stored.is_none() {
            proxy.outage_write(&key, None, client);
        }
        let bytes = if let Request::Store(store) = request { store.data.len() } else { 0 };
        GuardedWrite { key, dialect: Dialect::Classic, state, bytes, invalidated: false }
    }

    /// A meta command that writes a guarded key.
    pub(crate) fn meta(
        meta: &Meta<'_>,
        key: GuardedKey,
        dialect: Dialect,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let now = proxy.now();
        let options = meta.options();
        let named = |shown: Option<u64>| shown.map(|shown| named_cas(shown, key.place.fence()));
        let (compare, explicit) = (named(options.compare), named(options.explicit));
        let expiry = options.exptime.map(|exptime| Expiry::of(exptime, now));
        let stores = meta.verb == MetaVerb::Set && !matches!(options.mode, b'A' | b'P' | b'R');
        let stored = (meta.data, options.flags);
        let stored =
            Some(stored).filter(|_| stores && expiry != Some(Expiry::Expired) && !options.invalidate);
        if stored.is_some() {
            proxy.outage_write(&key, stored, client);
        }
        // If both `N` and `T` are given, the last one sets the TTL of a created item.
        let times = meta.tokens().filter(|(flag, _)| b"NT".contains(flag));
        let created = times.last().map(|(_, token)| Expiry::of(exptime(token), now));
        // For commands that change a value, memcached takes a CAS of 0 for none.
        let changes = compare.filter(|&cas| cas != 0);
        let modify = |change| begin_modify(change, &key, proxy, client);
        let state = match meta.verb {
            MetaVerb::Set => {
                let body = Bytes::copy_from_slice(meta.data);
                let expiry = expiry.unwrap_or(Expiry::Never);
                let tags = key.explicit_tags();
                let value = |body| NewValue { body, flags: options.flags, expiry, explicit, tags };
                // An append that creates the item takes the TTL from `N` only.
                let create = |body| {
                    let expiry = Expiry::of(options.vivify?, now);
                    Some(Box::new(NewValue {
                        body,
                        flags: options.flags,
                        expiry,
                        explicit,
                        tags: key.explicit_tags(),
                    }))
                };
                match (options.mode, compare) {
                    (b'A', _) => modify(Change::Append {
                        more: body.clone(),
                        compare: changes,
                        explicit,
                        create: create(body),
                    }),
                    (b'P', _) => modify(Change::Prepend {
                        more: body.clone(),
                        compare: changes,
                        explicit,
                        create: create(body),
                    }),
                    (b'E', _) => begin_store(StoreKind::Add, value(body), &key, proxy, client),
                    (_, Some(cas)) => {
                        let kind = StoreKind::MetaCas { cas, invalidate: options.invalidate };
                        begin_store(kind, value(body), &key, proxy, client)
                    }
                    (b'R', None) => begin_store(StoreKind::Replace, value(body), &key, proxy, client),
                    (_, None) => begin_store(StoreKind::Set, value(body), &key, proxy, client),
                }
            }
            MetaVerb::Arith => modify(Change::Count(Count {
                decr: matches!(options.mode, b'D' | b'-'),
                delta: options.delta,
                compare: changes,
                create: options.vivify.and(created).map(|expiry| (expiry, options.initial)),
                expiry,
                explicit,
            })),
            MetaVerb::Delete if options.empty => {
                let default = if options.invalidate { Expiry::Seconds(0) } else { Expiry::Never };
                let expiry = expiry.filter(|_| !options.invalidate).unwrap_or(default);
                modify(Change::Empty { compare, expiry, explicit })
            }
            _ => {
                let seconds = match expiry {
                    Some(Expiry::Seconds(seconds)) => Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
                    Some(Expiry::Expired) => Some(0),
                    _ => None,
                };
                let removal = Removal { compare, stale: options.invalidate, seconds, explicit };
                begin_delete(removal, &key, None, proxy, client)
            }
        };
        if stored.is_none() {
            proxy.outage_write(&key, None, client);
        }
        GuardedWrite { key, dialect, state, bytes: meta.data.len(), invalidated: false }
    }

    /// The delete that accompanies the refusal of a too large value. The reply is the refusal.
    pub(crate) fn delete_with_reply(
        key: GuardedKey,
        dialect: Dialect,
        instead: Bytes,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let instead = Some((WriteOutcome::Verbatim(instead), None));
        let state = begin_delete(Removal::default(), &key, instead, proxy, client);
        proxy.outage_write(&key, None, client);
        GuardedWrite { key, dialect, state, bytes: 0, invalidated: false }
    }

    /// A command on the key of a tag. `delete`, `incr`, `md` and `ma` bump the tag.
    pub(crate) fn tag(
        request: &Request<'_>,
        name: TagName,
        dialect: Dialect,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let key = bump_key(name, proxy);
        let bump = |delete| {
            let name = key.tags[0].clone();
            proxy.outage_bump(&name);
            State::Bump { bump: TagBump::begin(name, proxy, &client.pending), delete }
        };
        let state = match request {
            Request::Delete { .. } => bump(true),
            Request::Arith { decr: false, .. } => bump(false),
            Request::Meta(meta) if meta.has_only(b"kqOb") && meta.verb == MetaVerb::Delete => bump(true),
            Request::Meta(meta) if meta.has_only(b"kqObvDM") && meta.verb == MetaVerb::Arith => {
                match meta.options().mode {
                    b'D' | b'-' => reserved(),
                    _ => bump(false),
                }
            }
            _ => reserved(),
        };
        GuardedWrite { key, dialect, state, bytes: 0, invalidated: false }
    }
}

fn reserved() -> State {
    State::Reply(WriteOutcome::Verbatim(Bytes::from_static(RESERVED)), Outcome::ClientError)
}
