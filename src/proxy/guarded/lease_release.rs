//! Leases that end without a value: their locks are released on the servers, and their waiters are woken.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_local};

use crate::guard::Commands;
use crate::guard::leases::{Ended, Owner};
use crate::metrics::{LeaseEnd, NO_RULE, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::lease_table::wake_all;

impl Proxy {
    /// Wakes all waiters of a key.
    pub(super) fn wake(&self, key: &[u8], why: WaitEnd) {
        let waiters = self.leases.shard(key).wake(key);
        wake_all(waiters, why);
    }

    /// Wakes all waiters of a key whose lease has ended without a value. They read the key again.
    pub(in crate::proxy) fn wake_without_value(&self, key: &[u8]) {
        let now = self.now();
        let waiters = self.leases.shard(key).release_waiters(key, now);
        wake_all(waiters, WaitEnd::Freed);
    }

    /// Counts the end of a lease. Returns its key, unless that is not guarded any longer.
    pub(in crate::proxy) fn count_end(&self, key: &[u8], end: LeaseEnd) -> Option<GuardedKey> {
        let key = self.guarded(key);
        let rule = key.as_ref().map_or(NO_RULE, |key| self.rule_of(key.guard));
        self.metrics.lease_ended(rule, end, Duration::ZERO);
        self.observe_release(key.as_ref(), end, Duration::ZERO);
        key
    }

    /// Releases leases that their clients have not ended themselves.
    pub(super) fn release(self: &Rc<Self>, ended: Vec<Ended>) {
        for Ended { key, end, commands, fence, plan } in ended {
            let Some(key) = self.count_end(&key, end) else { continue };
            let proxy = Rc::clone(self);
            spawn_local(async move {
                proxy.send_release(commands, (fence, plan), &key).await;
                proxy.wake(&key.key, WaitEnd::Freed);
            });
        }
    }

    /// The client does not need the win that it has not been told of.
    pub(super) fn give_up_win(self: &Rc<Self>, key: &GuardedKey, client: &Client) {
        client.end_miss(key, self);
        let ended = self.leases.shard(&key.key).give_up(&key.key, client.owner);
        self.release(ended);
    }

    /// A lease of another fence or plan ends by itself: what it holds is in a place that no longer counts.
    async fn send_release(&self, commands: Commands, (fence, plan): (u64, u64), key: &GuardedKey) {
        if key.place.fence == Some(fence) && self.policy(key.guard).plan == plan {
            self.send_and_wait(commands, key).await;
        }
    }

    /// Releases all leases of a client whose connection has closed. They are released at the same time, so a server that does not
    /// respond delays no other.
    pub async fn disconnect(self: Rc<Self>, owner: Owner, end: LeaseEnd) {
        let ended: Vec<_> = self.leases.all().flat_map(|mut leases| leases.disconnect(owner)).collect();
        // Whoever is woken by this looks for a lease again, on any worker.
        self.outage_disconnect(owner);
        let mut releases = JoinSet::new();
        for Ended { key, commands, fence, plan, .. } in ended {
            let Some(key) = self.count_end(&key, end) else { continue };
            let proxy = Rc::clone(&self);
            releases.spawn_local(async move {
                proxy.send_release(commands, (fence, plan), &key).await;
                proxy.wake_without_value(&key.key);
            });
        }
        releases.join_all().await;
    }
}
