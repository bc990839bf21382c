//! A value that ends a miss: who stores it, under which condition, and what its end means for the lease, for those who wait, and for
//! the client.

use std::rc::Rc;
use std::time::Duration;

use super::Proxy;
use super::client::Client;
use super::desk::{WaitSender, wake_all};
use super::operation::GuardedKey;
use super::wording::WriteOutcome;
use crate::guard::leases::{Ended, KnownMiss, Leases, MissToken, Owner, PairedMiss, Writer};
use crate::guard::{Cas, Change, FillEnd, NewValue, Now};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};

/// Under which condition a value is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    Set,
    Add,
    Replace,
    Cas(u64),
    /// `ms C`: the CAS may be that of a miss, and then names the lease; and `I`.
    MetaCas {
        cas: u64,
        invalidate: bool,
    },
}

impl StoreKind {
    /// The same for a store that looks first.
    pub(super) fn change(self, offer: NewValue) -> Change {
        match self {
            StoreKind::Add => Change::Add(offer),
            StoreKind::Cas(number) => Change::Cas { number, offer, sees_stale: false, invalidate: false },
            StoreKind::MetaCas { cas, invalidate } => {
                Change::Cas { number: cas, offer, sees_stale: true, invalidate }
            }
            StoreKind::Set | StoreKind::Replace => Change::Replace(offer),
        }
    }
}

/// What a fill is for.
pub(super) struct PendingFill {
    pub(super) how: StoreKind,
    pub(super) offer: NewValue,
    pub(super) ticket: MissToken,
    pub(super) lease: bool,
    /// Whose lease it was, if another connection's.
    pub(super) owner: Option<Owner>,
}

/// Who stores, and what that tells of its listener's clients.
pub(super) fn setter(
    leases: &mut Leases<WaitSender>,
    of: &GuardedKey,
    proxy: &Proxy,
    client: &Client,
    now: Now,
) -> (Writer, Option<PairedMiss>) {
    let (owner, told) = (client.owner, client.known_miss(of, proxy));
    let pooling = &client.pooling;
    let paired = match told {
        _ if !pooling.learns() => None,
        KnownMiss::Yes => Some(PairedMiss::Own),
        // Who only ever writes is none of a pool.
        KnownMiss::No if client.was_told_a_miss() => {
            let other = leases.matches_pool_miss(&of.key, owner, now);
            Some(if other { PairedMiss::Other } else { PairedMiss::None })
        }
        KnownMiss::No | KnownMiss::Unknown => None,
    };
    (Writer { owner, told, pooled: pooling.is_pooled(client.was_told_a_miss()) }, paired)
}

/// What the end of a fill means for the lease, for those who wait, and for the client. `Err`: it is to be stored all the same,
/// as stale.
pub(super) fn filled(
    end: FillEnd,
    filling: &mut PendingFill,
    of: &GuardedKey,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> Result<(WriteOutcome, Outcome), Change> {
    let rule = proxy.metric(of.guard);
    let now = proxy.now();
    let ended = |end| {
        if filling.lease {
            let took = now.mono.saturating_sub(filling.ticket.at.mono);
            proxy.metrics.lease_ended(rule, end, Duration::from_millis(took));
        }
    };
    Ok(match end {
        FillEnd::Stored { cas, plain } => {
            client.end_miss(of, proxy);
            ended(LeaseEnd::Filled);
            count_plain(plain, of, proxy);
            let mut leases = proxy.desk.of(&of.key);
            let bells = leases.filled(&of.key, cas, &filling.ticket, filling.owner);
            drop(leases);
            wake_all(bells, WaitEnd::Filled);
            (WriteOutcome::Stored(cas), Outcome::Stored)
        }
        FillEnd::Dropped { exists } => {
            ended(LeaseEnd::Dropped);
            let why = if exists { DropReason::Changed } else { DropReason::Gone };
            proxy.metrics.fill_dropped(rule, why);
            proxy.wake(&of.key, WaitEnd::Freed);
            match filling.how {
                StoreKind::MetaCas { invalidate: true, .. } if exists => {
                    return Err(filling.how.change(filling.offer.clone()));
                }
                // Whoever names a CAS asks to be told.
                StoreKind::MetaCas { .. } if exists => (WriteOutcome::Exists, Outcome::Exists),
                StoreKind::MetaCas { .. } => (WriteOutcome::NotFound, Outcome::NotFound),
                StoreKind::Add => {
                    client.refuse_add(of, proxy);
                    (WriteOutcome::NotStored, Outcome::NotStored)
                }
                _ => (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped),
            }
        }
        FillEnd::Outdated => {
            proxy.metrics.fill_dropped(rule, DropReason::Changed);
            if filling.lease {
                let asks = filling.ticket.release(proxy.policy(of.guard));
                let ended = Ended { key: of.key.as_slice().into(), end: LeaseEnd::Dropped, asks };
                proxy.give_back(vec![ended]);
            }
            client.refuse_add(of, proxy);
            (WriteOutcome::NotStored, Outcome::NotStored)
        }
        FillEnd::TooLarge => {
            ended(LeaseEnd::Dropped);
            proxy.free(&of.key);
            (WriteOutcome::TooLarge, Outcome::ServerError)
        }
        FillEnd::Failed(failure) => {
            ended(LeaseEnd::Dropped);
            // It may be sent again, and is no newer for that.
            if filling.owner.is_none() {
                client.note_miss(of, proxy);
                let ticket = filling.ticket.clone();
                let more =
                    proxy.desk.of(&of.key).record_miss(&of.key, client.owner, ticket, proxy.policy(of.guard));
                proxy.give_back(more);
            }
            proxy.free(&of.key);
            (WriteOutcome::Failed(failure), Outcome::ServerError)
        }
    })
}

pub(super) fn count_plain(plain: bool, of: &GuardedKey, proxy: &Proxy) {
    if plain {
        proxy.metrics.value_plain(proxy.metric(of.guard));
    }
}
