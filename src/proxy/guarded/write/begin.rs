//! Which state machine runs a write: the fill of a miss, a store over whatever is there, a change that reads first, or a delete.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::fill::{PendingFill, StoreKind, finish_fill, writer};
use super::state::{AfterRenewal, LocalChange, State};
use crate::error::Failure;
use crate::guard::leases::{Attribution, Leases, StoreCondition, Unread};
use crate::guard::{Cas, Change, Count, Delete, Expiry, Fill, FillEnd, Modify, NewValue, Removal, Set, Step};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::guarded::driver::Driver;
use crate::proxy::guarded::elsewhere::DeleteElsewhere;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::outcome::WriteOutcome;
use crate::proxy::state::lease_table::WaitSender;

/// Whether the key has been invalidated since the miss is unknown, so the value may be too old to store. `why` it is unknown.
fn not_stored(why: Option<Unread>) -> &'static [u8] {
    match why {
        Some(Unread::Tag(Failure::NoMemory)) => {
            b"SERVER_ERROR not stored: no memory for a tag when this key was missed\r\n"
        }
        Some(Unread::Tag(_)) => b"SERVER_ERROR not stored: a tag was unread when this key was missed\r\n",
        Some(Unread::Item(Failure::NoMemory)) => {
            b"SERVER_ERROR not stored: the server was out of memory when this key was missed\r\n"
        }
        Some(Unread::Item(Failure::Overloaded)) => {
            b"SERVER_ERROR not stored: the server was overloaded when this key was missed\r\n"
        }
        Some(Unread::Item(Failure::Refused | Failure::TooLarge | Failure::Lost | Failure::Foreign)) => {
            b"SERVER_ERROR not stored: the server refused when this key was missed\r\n"
        }
        Some(Unread::Item(Failure::NoView)) => {
            b"SERVER_ERROR not stored: the server of this key was being replaced when it was missed\r\n"
        }
        Some(Unread::Item(Failure::Down | Failure::TimedOut | Failure::Unguarded)) | None => {
            b"SERVER_ERROR not stored: no server answered when this key was missed\r\n"
        }
    }
}
/// The miss of this key may have been evicted, so the value may be too old to store.
const UNKNOWN_MISS: &[u8] = b"SERVER_ERROR not stored: too many misses on this connection\r\n";

/// Begins a store. `set`, `add` and a store with the CAS of its miss may be fills. All others read before they write.
pub(super) fn begin_store(
    kind: StoreKind,
    value: NewValue,
    key: &GuardedKey,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> State {
    if kind == StoreKind::Set && value.expiry == Expiry::Expired {
        let instead = (WriteOutcome::Stored(Cas::NONE), Some(Outcome::Stored));
        return begin_delete(Removal::default(), key, Some(instead), proxy, client);
    }
    let reads = match kind {
        StoreKind::Set | StoreKind::MetaCas { .. } => false,
        StoreKind::Add => value.expiry == Expiry::Expired,
        StoreKind::Replace | StoreKind::Cas(_) => true,
    };
    if reads || (kind == StoreKind::Add && client.was_refused(key, proxy)) {
        return begin_modify(kind.change(value), key, proxy, client);
    }
    let rule = proxy.rule_of(key.guard);
    let now = proxy.now();
    let mut leases = proxy.leases.shard(&key.key);
    let mut paired = None;
    let ends_miss = match kind {
        StoreKind::MetaCas { cas, .. } => leases.is_cas_of_miss(&key.key, cas, client.owner),
        _ => kind != StoreKind::Add,
    };
    let attribution = match kind {
        // An expired value cannot be a fill. The item is deleted if it still has the CAS.
        StoreKind::MetaCas { .. } if value.expiry == Expiry::Expired => Attribution::NoMiss,
        StoreKind::MetaCas { cas, .. } => leases.attribute_by_cas(&key.key, cas, client.owner, false),
        _ => {
            let (writer, pair) = writer(&mut leases, key, proxy, client, now);
            paired = pair;
            leases.attribute(&key.key, writer, now)
        }
    };
    if let Some(paired) = paired.filter(|_| attribution != Attribution::Renewing) {
        client.listener.note(paired, &proxy.metrics);
    }
    // An `add` that stores nothing does not end a miss, nor does the CAS of another item: a later `set` may be as old as the
    // miss.
    if attribution != Attribution::Renewing && ends_miss {
        client.end_miss(key, proxy);
    }
    match attribution {
        Attribution::Renewing => await_renewal(&mut leases, key, AfterRenewal::Store(kind, value)),
        Attribution::Invalidated => {
            let may_be_peers = kind == StoreKind::Set && client.listener.is_pooled(client.has_missed());
            let ended = if may_be_peers { leases.give_up_peers(&key.key, client.owner) } else { Vec::new() };
            drop(leases);
            proxy.release(ended);
            proxy.wake(&key.key, WaitEnd::Freed);
            proxy.metrics.fill_dropped(rule, DropReason::Gone);
            dropped(kind, key, proxy, client)
        }
        Attribution::Unknown => {
            proxy.metrics.fill_dropped(rule, DropReason::Unknown);
            State::Reply(WriteOutcome::Verbatim(Bytes::from_static(UNKNOWN_MISS)), Outcome::ServerError)
        }
        // Another client has filled the key since the miss.
        Attribution::Fill { token, owner, .. } if kind == StoreKind::Add && token.filled => {
            if owner.is_none() {
                let ended = leases.record_miss(&key.key, client.owner, token, proxy.policy_of(key));
                drop(leases);
                proxy.release(ended);
            }
            dropped(kind, key, proxy, client)
        }
        Attribution::NoMiss => {
            drop(leases);
            if kind != StoreKind::Set {
                return begin_modify(kind.change(value), key, proxy, client);
            }
            client.note_own_change(key, proxy);
            begin_change(LocalChange::Set(value), key, proxy, client)
        }
        // It was built for another place than that where the key is now, or for other tags. With no view at all that is unknown, and
        // dropped too.
        Attribution::Fill { token, lease, owner }
            if token.observed_cas.is_some()
                && !token.holds(key.place.fence(), proxy.policy(key.guard).plan) =>
        {
            drop(leases);
            let mut fill = PendingFill { kind, value, token, lease, owner };
            match finish_fill(FillEnd::Dropped { exists: false }, &mut fill, key, proxy, client) {
                Ok((reply, outcome)) => State::Reply(reply, outcome),
                Err(change) => begin_modify(change, key, proxy, client),
            }
        }
        Attribution::Fill { token, lease, owner } => {
            drop(leases);
            let inputs = proxy.inputs(key, proxy.policy_of(key), now, false);
            let (machine, step) = Fill::start(&token, value.clone(), kind.fill(), &inputs);
            let fill = PendingFill { kind, value, token, lease, owner };
            match step {
                Step::Send(commands) => {
                    let driver = Driver::start(machine, commands, key, proxy, &client.pending);
                    State::Fill { driver, fill }
                }
                _ if proxy.connection_of(key).missing_feature().is_some() => {
                    State::Reply(WriteOutcome::Failed(Failure::Unguarded), Outcome::ServerError)
                }
                _ => {
                    proxy.metrics.fill_dropped(rule, DropReason::Unread);
                    let why = Bytes::from_static(not_stored(fill.token.unread));
                    State::Reply(WriteOutcome::Verbatim(why), Outcome::ServerError)
                }
            }
        }
    }
}

/// The reply to a value that is dropped. A `set` receives `STORED`: the result is the same as that of a value that is stored
/// and then invalidated. An `add` receives `NOT_STORED`, because clients use it to elect one of them.
fn dropped(kind: StoreKind, key: &GuardedKey, proxy: &Proxy, client: &Client) -> State {
    match kind {
        StoreKind::Add => {
            client.refuse_add(key, proxy);
            State::Reply(WriteOutcome::NotStored, Outcome::NotStored)
        }
        _ => State::Reply(WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped),
    }
}

/// Waits for a renewal in flight, because it changes the CAS.
fn await_renewal(leases: &mut Leases<WaitSender>, key: &GuardedKey, then: AfterRenewal) -> State {
    let (waker, woken) = oneshot::channel();
    leases.await_renewal(&key.key, waker);
    State::Renewal { woken, then }
}

pub(super) fn begin_modify(change: Change, key: &GuardedKey, proxy: &Rc<Proxy>, client: &Client) -> State {
    let condition = match &change {
        // The value of these may be as old as the client's miss.
        Change::Replace(_)
        | Change::Count(Count { create: Some(_), .. })
        | Change::Append { create: Some(_), .. }
        | Change::Prepend { create: Some(_), .. }
            if matches!(change, Change::Replace(_)) || !client.was_refused(key, proxy) =>
        {
            let mut leases = proxy.leases.shard(&key.key);
            match leases.store_condition(&key.key, client.owner, client.known_miss(key, proxy)) {
                StoreCondition::Unconditional => None,
                StoreCondition::Observed(cas) => Some(cas),
                StoreCondition::Renewing => {
                    return await_renewal(&mut leases, key, AfterRenewal::Modify(change));
                }
                StoreCondition::Unknown => {
                    return State::Reply(
                        WriteOutcome::Verbatim(Bytes::from_static(UNKNOWN_MISS)),
                        Outcome::ServerError,
                    );
                }
            }
        }
        _ => None,
    };
    begin_change(LocalChange::Modify(change, condition), key, proxy, client)
}

/// Begins a change that is no fill. While the servers of the pool change, the previous placement may come before it.
fn begin_change(change: LocalChange, key: &GuardedKey, proxy: &Rc<Proxy>, client: &Client) -> State {
    match DeleteElsewhere::before(key, proxy, &client.pending) {
        Some(delete) => State::Before(Box::new((delete, Some(change)))),
        None => change.begin(key, proxy, client),
    }
}

impl LocalChange {
    /// Sends its first commands.
    pub(super) fn begin(self, key: &GuardedKey, proxy: &Rc<Proxy>, client: &Client) -> State {
        let inputs = proxy.inputs(key, proxy.policy_of(key), proxy.now(), false);
        let pending = &client.pending;
        match self {
            LocalChange::Set(value) => {
                let (set, commands) = Set::start(value, &inputs);
                State::Set(Driver::start(set, commands, key, proxy, pending))
            }
            LocalChange::Modify(change, condition) => {
                let (modify, commands) = Modify::with_condition(change, condition, &inputs);
                State::Modify(Driver::start(modify, commands, key, proxy, pending))
            }
            LocalChange::Delete(removal, instead) => {
                let (delete, commands) = Delete::with_removal(removal, &inputs);
                State::Delete { driver: Driver::start(delete, commands, key, proxy, pending), instead }
            }
        }
    }
}

pub(super) fn begin_delete(
    mut removal: Removal,
    key: &GuardedKey,
    instead: Option<(WriteOutcome, Option<Outcome>)>,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> State {
    let ended = {
        let mut leases = proxy.leases.shard(&key.key);
        match removal.compare {
            // Before the command is sent: a lease that is granted from now on may begin after the delete.
            None => {
                client.end_miss(key, proxy);
                client.note_own_change(key, proxy);
                leases.invalidate(&key.key, client.owner)
            }
            // It takes effect only where each fill of the removed item fails by itself. If the CAS is that of a lease, the
            // lease is given up, with the CAS of its latest renewal.
            Some(cas) => match leases.attribute_by_cas(&key.key, cas, client.owner, true) {
                Attribution::Fill { token, lease, owner } => {
                    if owner.is_none() {
                        client.end_miss(key, proxy);
                    }
                    if token.holds(key.place.fence(), proxy.policy(key.guard).plan) {
                        removal.compare = token.observed_cas.map(|cas| cas.number);
                    }
                    usize::from(lease)
                }
                Attribution::Renewing => {
                    return await_renewal(&mut leases, key, AfterRenewal::Remove(removal));
                }
                Attribution::NoMiss | Attribution::Invalidated | Attribution::Unknown => 0,
            },
        }
    };
    for _ in 0..ended {
        proxy.metrics.lease_ended(proxy.rule_of(key.guard), LeaseEnd::Released, Duration::ZERO);
        proxy.observe_release(Some(key), LeaseEnd::Released, Duration::ZERO);
    }
    begin_change(LocalChange::Delete(removal, instead), key, proxy, client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_refused_with_the_cause_for_which_its_miss_was_not_read() {
        for (unread, error) in [
            (None, "no server answered when this key was missed"),
            (Some(Unread::Item(Failure::TimedOut)), "no server answered when this key was missed"),
            (Some(Unread::Item(Failure::NoMemory)), "the server was out of memory when this key was missed"),
            (Some(Unread::Item(Failure::Overloaded)), "the server was overloaded when this key was missed"),
            (Some(Unread::Item(Failure::Refused)), "the server refused when this key was missed"),
            (
                Some(Unread::Item(Failure::NoView)),
                "the server of this key was being replaced when it was missed",
            ),
            (Some(Unread::Tag(Failure::Down)), "a tag was unread when this key was missed"),
            (Some(Unread::Tag(Failure::NoMemory)), "no memory for a tag when this key was missed"),
        ] {
            let line = format!("SERVER_ERROR not stored: {error}\r\n");
            assert_eq!(String::from_utf8_lossy(not_stored(unread)), line);
        }
    }
}
