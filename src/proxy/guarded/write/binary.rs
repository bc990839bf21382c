//! The commands of binary clients that write a guarded key. They are those of the classic protocol, with a CAS in and out.

use std::rc::Rc;

use bytes::Bytes;

use super::begin::{begin_delete, begin_modify, begin_store};
use super::fill::StoreKind;
use super::state::{GuardedWrite, State};
use crate::guard::{Change, Count, Expiry, NewValue, Removal, named_cas};
use crate::metrics::Outcome;
use crate::protocol::binary::Head;
use crate::protocol::binary::parse::{Command, Store};
use crate::protocol::request::Verb;
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::dialect::Dialect;
use crate::proxy::replies::outcome::WriteOutcome;

impl GuardedWrite {
    /// A command of a binary client on a guarded key.
    pub(crate) fn binary(
        command: &Command<'_>,
        head: Head,
        key: GuardedKey,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let now = proxy.now();
        let compare = |cas: u64| (cas != 0).then(|| named_cas(cas, key.place.fence()));
        let stored = match *command {
            Command::Store(Store { verb: Verb::Set | Verb::Add, flags, data, cas: 0, .. }) => {
                Some((data, flags))
            }
            _ => None,
        };
        if stored.is_some() {
            proxy.outage_write(&key, stored, client);
        }
        let modify = |change| begin_modify(change, &key, proxy, client);
        let state = match *command {
            Command::Store(Store { verb, flags, exptime, data, cas, .. }) => {
                let body = Bytes::copy_from_slice(data);
                let (explicit, create, compare) = (None, None, compare(cas));
                let store = |kind, body| {
                    let (expiry, tags) = (Expiry::of(exptime, now), key.explicit_tags());
                    let value = NewValue { body, flags, expiry, explicit, tags };
                    begin_store(kind, value, &key, proxy, client)
                };
                match (verb, compare) {
                    (Verb::Append, _) => modify(Change::Append { more: body, compare, explicit, create }),
                    (Verb::Prepend, _) => modify(Change::Prepend { more: body, compare, explicit, create }),
                    (_, Some(cas)) => store(StoreKind::Cas(cas), body),
                    (Verb::Add, None) => store(StoreKind::Add, body),
                    (Verb::Replace, None) => store(StoreKind::Replace, body),
                    (Verb::Set | Verb::Cas(_), None) => store(StoreKind::Set, body),
                }
            }
            Command::Count { decr, delta, create, cas, .. } => modify(Change::Count(Count {
                decr,
                delta,
                compare: compare(cas),
                create: create.map(|(exptime, initial)| (Expiry::of(exptime, now), initial)),
                ..Count::default()
            })),
            Command::Touch { exptime, .. } => modify(Change::Touch(Expiry::of(exptime, now))),
            Command::Delete { cas, .. } => {
                let removal = Removal { compare: compare(cas), ..Removal::default() };
                begin_delete(removal, &key, None, proxy, client)
            }
            // No other command writes one key.
            _ => State::Reply(WriteOutcome::Verbatim(Bytes::from_static(b"ERROR\r\n")), Outcome::Error),
        };
        if stored.is_none() {
            proxy.outage_write(&key, None, client);
        }
        let bytes = if let Command::Store(store) = command { store.data.len() } else { 0 };
        GuardedWrite { key, dialect: Dialect::Binary(head), state, bytes, invalidated: false }
    }
}
