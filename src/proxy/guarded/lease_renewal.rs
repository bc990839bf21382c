//! The task that renews this worker's leases when they are due, and removes expired entries now and then.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::{spawn_local, yield_now};
use tokio::time::Instant;

use crate::guard::leases::{Due, Leases, MissToken, MissTokenId};
use crate::metrics::{LeaseEnd, Limit, WaitEnd};
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::lease_table::{SHARDS, wake_all};
use crate::proxy::state::renewal_queue::DueLease;

/// How often expired entries are removed.
const SWEEP: Duration = Duration::from_secs(10);

impl Proxy {
    /// Renews leases for as long as it is polled.
    pub async fn renew_leases(self: Rc<Self>) {
        let mut swept = Instant::now();
        loop {
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                self.sweep().await;
            }
            let now = self.now();
            match self.renewals.first_due() {
                Some(at) if at <= now.mono => {
                    if let Some(lease) = self.renewals.pop() {
                        self.clone().renew(lease);
                    }
                }
                first => {
                    let pause = first.map_or(SWEEP, |at| Duration::from_millis(at - now.mono).min(SWEEP));
                    self.renewals.wait(pause).await;
                }
            }
        }
    }

    /// Removes expired entries step by step. Between two steps, clients are served.
    async fn sweep(&self) {
        for shard in 0..SHARDS {
            while self.leases.sweep(shard, self.now()) {
                yield_now().await;
            }
        }
        (0..self.leases.take_evicted()).for_each(|_| self.metrics.limit_reached(Limit::MissTokens));
        while self.sweep_near() {
            yield_now().await;
        }
        while self.sweep_outages() {
            yield_now().await;
        }
    }

    /// Schedules the renewal of a lease that was granted through this worker.
    pub(super) fn schedule_renewal(&self, key: &GuardedKey, id: MissTokenId, token: &MissToken) {
        let at = Leases::<()>::next_due(token, self.policy_of(key), self.now());
        self.queue_renewal(at, id, key.clone());
    }

    pub(in crate::proxy) fn queue_renewal(&self, at: u64, id: MissTokenId, key: GuardedKey) {
        let is_active =
            |lease: &DueLease| self.leases.shard(&lease.key.key).is_active(&lease.key.key, lease.id);
        self.renewals.push(DueLease { at, id, key }, is_active);
    }

    fn renew(self: Rc<Self>, DueLease { id, key, .. }: DueLease) {
        let now = self.now();
        let policy = self.policy_of(&key);
        let due = self.leases.shard(&key.key).due(&key.key, id, now, policy, &key.tags, self.sidecar);
        match due {
            Due::Nothing => {}
            Due::Expire(commands) => {
                let held = policy.max_rebuild;
                self.metrics.lease_ended(self.rule_of(key.guard), LeaseEnd::Expired, held);
                self.observe_release(Some(&key), LeaseEnd::Expired, held);
                spawn_local(async move {
                    self.send_and_wait(commands, &key).await;
                    self.wake_without_value(&key.key);
                });
            }
            Due::Renew(commands) => {
                spawn_local(async move {
                    let replies = self.send_and_wait(commands, &key).await;
                    let (renewed, fills) = {
                        let mut leases = self.leases.shard(&key.key);
                        (leases.renewed(&key.key, id, &replies, now.mono), leases.renewal_ended(&key.key))
                    };
                    wake_all(fills, WaitEnd::Freed);
                    match renewed {
                        Ok(token) => {
                            let policy = self.policy_of(&key);
                            let at = Leases::<()>::due_after(&token, &replies, policy, self.now());
                            self.queue_renewal(at, id, key);
                        }
                        Err((end, commands)) => {
                            if let Some(end) = end {
                                self.metrics.lease_ended(self.rule_of(key.guard), end, Duration::ZERO);
                                self.observe_release(Some(&key), end, Duration::ZERO);
                            }
                            self.send_and_wait(commands, &key).await;
                            match end {
                                Some(LeaseEnd::Disconnected) => self.wake_without_value(&key.key),
                                _ => self.wake(&key.key, WaitEnd::Freed),
                            }
                        }
                    }
                });
            }
        }
    }
}
