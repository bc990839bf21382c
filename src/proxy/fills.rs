//! A value that ends a miss: who stores it, under which condition, and what its end means for the lease, for those who wait, and for
//! the client.

use std::rc::Rc;
use std::time::Duration;

use super::Proxy;
use super::client::Client;
use super::desk::{Bell, ring};
use super::operation::Guarded;
use super::wording::Said;
use crate::guard::leases::{Ended, Leases, Owner, Paired, Setter, Ticket, Told};
use crate::guard::{Cas, Change, FillEnd, Now, Offer};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};

/// Under which condition a value is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Set,
    Add,
    Replace,
    Cas(u64),
    /// `ms C`: the CAS may be that of a miss, and then names the lease; and `I`.
    Named {
        cas: u64,
        invalidate: bool,
    },
}

impl How {
    /// The same for a store that looks first.
    pub(super) fn change(self, offer: Offer) -> Change {
        match self {
            How::Add => Change::Add(offer),
            How::Cas(number) => Change::Cas { number, offer, sees_stale: false, invalidate: false },
            How::Named { cas, invalidate } => {
                Change::Cas { number: cas, offer, sees_stale: true, invalidate }
            }
            How::Set | How::Replace => Change::Replace(offer),
        }
    }
}

/// What a fill is for.
pub(super) struct Filling {
    pub(super) how: How,
    pub(super) offer: Offer,
    pub(super) ticket: Ticket,
    pub(super) lease: bool,
    /// Whose lease it was, if another connection's.
    pub(super) owner: Option<Owner>,
}

/// Who stores, and what that tells of its listener's clients.
pub(super) fn setter(
    leases: &mut Leases<Bell>,
    of: &Guarded,
    proxy: &Proxy,
    client: &Client,
    now: Now,
) -> (Setter, Option<Paired>) {
    let (owner, told) = (client.owner, client.told(of, proxy));
    let pooling = &client.pooling;
    let paired = match told {
        _ if !pooling.learns() => None,
        Told::Miss => Some(Paired::Own),
        // Who only ever writes is none of a pool.
        Told::Nothing if client.was_told_a_miss() => {
            let other = leases.pairs_with_peers(&of.key, owner, now);
            Some(if other { Paired::Other } else { Paired::None })
        }
        Told::Nothing | Told::Unknown => None,
    };
    (Setter { owner, told, pooled: pooling.is_pooled(client.was_told_a_miss()) }, paired)
}

/// What the end of a fill means for the lease, for those who wait, and for the client. `Err`: it is to be stored all the same,
/// as stale.
pub(super) fn filled(
    end: FillEnd,
    filling: &mut Filling,
    of: &Guarded,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> Result<(Said, Outcome), Change> {
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
            ring(bells, WaitEnd::Filled);
            (Said::Stored(cas), Outcome::Stored)
        }
        FillEnd::Dropped { exists } => {
            ended(LeaseEnd::Dropped);
            let why = if exists { DropReason::Changed } else { DropReason::Gone };
            proxy.metrics.fill_dropped(rule, why);
            proxy.wake(&of.key, WaitEnd::Freed);
            match filling.how {
                How::Named { invalidate: true, .. } if exists => {
                    return Err(filling.how.change(filling.offer.clone()));
                }
                // Whoever names a CAS asks to be told.
                How::Named { .. } if exists => (Said::Exists, Outcome::Exists),
                How::Named { .. } => (Said::NotFound, Outcome::NotFound),
                How::Add => {
                    client.refuse_add(of, proxy);
                    (Said::NotStored, Outcome::NotStored)
                }
                _ => (Said::Stored(Cas::NONE), Outcome::FillDropped),
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
            (Said::NotStored, Outcome::NotStored)
        }
        FillEnd::TooLarge => {
            ended(LeaseEnd::Dropped);
            proxy.free(&of.key);
            (Said::TooLarge, Outcome::ServerError)
        }
        FillEnd::Failed(failure) => {
            ended(LeaseEnd::Dropped);
            // It may be sent again, and is no newer for that.
            if filling.owner.is_none() {
                client.note_miss(of, proxy);
                let ticket = filling.ticket.clone();
                let more = proxy.desk.of(&of.key).saw(&of.key, client.owner, ticket, proxy.policy(of.guard));
                proxy.give_back(more);
            }
            proxy.free(&of.key);
            (Said::Failed(failure), Outcome::ServerError)
        }
    })
}

pub(super) fn count_plain(plain: bool, of: &Guarded, proxy: &Proxy) {
    if plain {
        proxy.metrics.value_plain(proxy.metric(of.guard));
    }
}
