//! Misses that end without a fill.

use std::time::Duration;

use super::elsewhere::Bumped;
use crate::guard::TagName;
use crate::guard::leases::{AfterHit, KnownMiss};
use crate::metrics::{LeaseEnd, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::scope::CallScope;
use crate::proxy::state::lease_table::wake_all;

/// Ends an earlier miss of a client that receives a fresh value with this CAS: its next `set` is not a fill.
pub(super) fn end_earlier_miss(key: &GuardedKey, cas: u64, scope: &CallScope<'_>) {
    let CallScope { proxy, client, .. } = scope;
    if client.known_miss(key, proxy) != KnownMiss::No {
        let after = proxy.leases.shard(&key.key).hit(&key.key, client.owner, cas);
        if let AfterHit::Ended(ended) = after {
            client.end_miss(key, proxy);
            proxy.release(ended);
        }
    }
}

/// Ends the client's lease as a fill does: a count or an append has created the value.
pub(super) fn created(key: &GuardedKey, proxy: &Proxy, client: &Client) {
    let (lease, waiters) = proxy.leases.shard(&key.key).created(&key.key, client.owner);
    wake_all(waiters, WaitEnd::Filled);
    if let Some(lease) = lease {
        let took = proxy.now().mono.saturating_sub(lease.at.mono);
        let rule = proxy.rule_of(key.guard);
        proxy.metrics.lease_ended(rule, LeaseEnd::Filled, Duration::from_millis(took));
        proxy.observe_rebuild(key, Duration::from_millis(took));
    }
}

/// Records that the client has bumped a tag: what it stores from now on is newer than the bump.
pub(super) fn tag_bumped(name: &TagName, bump: Bumped, proxy: &Proxy, client: &Client) {
    if let Some(step) = bump.step.filter(|_| client.has_missed()) {
        let tags = |key: &[u8]| proxy.guarded(key).map(|guarded| guarded.tags).unwrap_or_default();
        proxy.leases.all().for_each(|mut leases| leases.record_bump(client.owner, name, step, tags));
    }
}
