//! The value that ends a miss: which client stores it, on which condition, and what the outcome means for the lease, the
//! waiters and the client.

use std::rc::Rc;
use std::time::Duration;

use crate::guard::leases::{Ended, KnownMiss, Leases, MissToken, Owner, PairedMiss, Writer};
use crate::guard::{Cas, Change, FillEnd, FillKind, NewValue, Now};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::outcome::WriteOutcome;
use crate::proxy::state::lease_table::{WaitSender, wake_all};

/// On which condition a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    Set,
    Add,
    Replace,
    Cas(u64),
    /// `ms C`, with `I` if `invalidate`. The CAS may be that of a miss; it then identifies the lease.
    MetaCas {
        cas: u64,
        invalidate: bool,
    },
}

impl StoreKind {
    /// The same as the end of a rebuild.
    pub(super) fn fill(self) -> FillKind {
        match self {
            StoreKind::Add => FillKind::Add,
            StoreKind::Cas(_) | StoreKind::MetaCas { .. } => FillKind::Compare,
            StoreKind::Set | StoreKind::Replace => FillKind::Set,
        }
    }

    /// The same as a change that reads first.
    pub(super) fn change(self, value: NewValue) -> Change {
        match self {
            StoreKind::Add => Change::Add(value),
            StoreKind::Cas(number) => {
                Change::Cas { number, new_value: value, sees_stale: false, invalidate: false }
            }
            StoreKind::MetaCas { cas, invalidate } => {
                Change::Cas { number: cas, new_value: value, sees_stale: true, invalidate }
            }
            StoreKind::Set | StoreKind::Replace => Change::Replace(value),
        }
    }
}

/// A fill in flight, and the miss that it ends.
pub(super) struct PendingFill {
    pub(super) kind: StoreKind,
    pub(super) value: NewValue,
    pub(super) token: MissToken,
    pub(super) lease: bool,
    /// The owner of the miss if it is another connection.
    pub(super) owner: Option<Owner>,
}

/// The client that stores, and what this shows of how its listener's clients use their connections.
pub(super) fn writer(
    leases: &mut Leases<WaitSender>,
    key: &GuardedKey,
    proxy: &Proxy,
    client: &Client,
    now: Now,
) -> (Writer, Option<PairedMiss>) {
    let (owner, known_miss) = (client.owner, client.known_miss(key, proxy));
    let listener = &client.listener;
    let paired = match known_miss {
        _ if !listener.is_detecting() => None,
        KnownMiss::Yes => Some(PairedMiss::Own),
        // A connection that only writes does not belong to a pool.
        KnownMiss::No if client.has_missed() => {
            let other = leases.matches_pool_miss(&key.key, owner, now);
            Some(if other { PairedMiss::Other } else { PairedMiss::None })
        }
        KnownMiss::No | KnownMiss::Unknown => None,
    };
    (Writer { owner, known_miss, pooled: listener.is_pooled(client.has_missed()) }, paired)
}

/// Applies the end of a fill to the lease, the waiters and the client's miss. `Err`: the value must still be stored, as stale.
pub(super) fn finish_fill(
    end: FillEnd,
    fill: &mut PendingFill,
    key: &GuardedKey,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> Result<(WriteOutcome, Outcome), Change> {
    let rule = proxy.rule_of(key.guard);
    let now = proxy.now();
    let ended = |end| {
        if fill.lease {
            let took = now.mono.saturating_sub(fill.token.at.mono);
            let took = Duration::from_millis(took);
            proxy.metrics.lease_ended(rule, end, took);
            if matches!(end, LeaseEnd::Filled | LeaseEnd::Dropped) {
                proxy.observe_rebuild(key, took);
            }
        }
    };
    Ok(match end {
        FillEnd::Stored { cas, plain } => {
            client.end_miss(key, proxy);
            ended(LeaseEnd::Filled);
            count_plain(plain, key, proxy);
            let mut leases = proxy.leases.shard(&key.key);
            let waiters = leases.filled(&key.key, cas, &fill.token, fill.owner);
            drop(leases);
            wake_all(waiters, WaitEnd::Filled);
            (WriteOutcome::Stored(cas), Outcome::Stored)
        }
        FillEnd::Dropped { exists } => {
            ended(LeaseEnd::Dropped);
            let why = if exists { DropReason::Changed } else { DropReason::Gone };
            proxy.metrics.fill_dropped(rule, why);
            proxy.wake(&key.key, WaitEnd::Freed);
            match fill.kind {
                StoreKind::MetaCas { invalidate: true, .. } if exists => {
                    return Err(fill.kind.change(fill.value.clone()));
                }
                // A command with a CAS receives the true outcome.
                StoreKind::MetaCas { .. } if exists => (WriteOutcome::Exists, Outcome::Exists),
                StoreKind::MetaCas { .. } => (WriteOutcome::NotFound, Outcome::NotFound),
                StoreKind::Add => {
                    client.refuse_add(key, proxy);
                    (WriteOutcome::NotStored, Outcome::NotStored)
                }
                _ => (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped),
            }
        }
        FillEnd::Outdated => {
            proxy.metrics.fill_dropped(rule, DropReason::Changed);
            if fill.lease {
                let commands = fill.token.release(proxy.policy_of(key));
                let (end, fence, plan) = (LeaseEnd::Dropped, fill.token.fence, fill.token.plan);
                let ended = Ended { key: key.key.as_slice().into(), end, commands, fence, plan };
                proxy.release(vec![ended]);
            }
            client.refuse_add(key, proxy);
            (WriteOutcome::NotStored, Outcome::NotStored)
        }
        FillEnd::TooLarge => {
            ended(LeaseEnd::Dropped);
            proxy.wake_without_value(&key.key);
            (WriteOutcome::TooLarge, Outcome::ServerError)
        }
        FillEnd::Failed(failure) => {
            ended(LeaseEnd::Dropped);
            // The client may send the value again, and it is not newer then.
            if fill.owner.is_none() {
                client.note_miss(key, proxy);
                let token = fill.token.clone();
                let more = proxy.leases.shard(&key.key).record_miss(
                    &key.key,
                    client.owner,
                    token,
                    proxy.policy_of(key),
                );
                proxy.release(more);
            }
            proxy.wake_without_value(&key.key);
            (WriteOutcome::Failed(failure), Outcome::ServerError)
        }
    })
}

pub(super) fn count_plain(plain: bool, key: &GuardedKey, proxy: &Proxy) {
    if plain {
        proxy.metrics.value_plain(proxy.rule_of(key.guard));
    }
}
