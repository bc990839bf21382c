//! Reads that no stub decides about, because their server gives no answer: one client of the sidecar builds, and the others wait for
//! it. Also those that win a key which such a client builds.

use super::{GuardedRead, State};
use crate::error::Failure;
use crate::guard::Hit;
use crate::guard::leases::{MissToken, Unread};
use crate::guard::outage::OutageValue;
use crate::metrics::Outcome;
use crate::proxy::guarded::outage::{Grant, OutageAnswer};
use crate::proxy::observe::SeenKey;
use crate::proxy::replies::large::is_large;
use crate::proxy::replies::outcome::{ItemMarks, ReadOutcome};
use crate::proxy::scope::CallScope;
use crate::upstream::OnError;

impl GuardedRead {
    /// Records the lease, and finds out whether another client builds the key since its server gave no answer. `has_old`: whether
    /// there is an old value to serve, so that this client need not wait for that build.
    pub(super) fn grant(
        &self,
        lease: MissToken,
        has_old: bool,
        may_wait: bool,
        scope: &CallScope<'_>,
    ) -> Grant {
        let CallScope { proxy, client, .. } = scope;
        let key = &self.key;
        let policy = proxy.policy_of(key);
        let before = self.find_build(has_old, may_wait, scope);
        let (id, ended) = {
            let mut leases = proxy.leases.shard(&key.key);
            let granted = leases.grant(&key.key, client.owner, lease.clone(), policy);
            if !matches!(before, Grant::Builds) {
                leases.withhold(&key.key, client.owner);
            }
            granted
        };
        // `None`: a later win has been recorded already.
        if let Some(id) = id {
            proxy.metrics.lease_granted();
            proxy.schedule_renewal(key, id, &lease);
        }
        proxy.release(ended);
        let Grant::Builds = before else { return before };
        // A client that has begun to build in between may not have found this lease.
        let after = self.find_build(has_old, may_wait, scope);
        if !matches!(after, Grant::Builds) {
            proxy.leases.shard(&key.key).withhold(&key.key, client.owner);
        }
        after
    }

    fn find_build(&self, has_old: bool, may_wait: bool, scope: &CallScope<'_>) -> Grant {
        let CallScope { proxy, client, .. } = scope;
        if !has_old {
            let until = self.outage_until(scope);
            let wait = proxy.await_outage_build(&self.key, may_wait, until, client);
            wait.map_or(Grant::Builds, Grant::Waits)
        } else if proxy.is_built_without_server(&self.key, client) {
            Grant::NotNeeded
        } else {
            Grant::Builds
        }
    }

    /// Until when it waits for a build without a server, on the monotonic clock in ms.
    fn outage_until(&self, scope: &CallScope<'_>) -> u64 {
        let (policy, listener) = (scope.proxy.policy_of(&self.key), &scope.client.listener);
        let limit =
            if listener.is_shared() { policy.cold_wait.min(policy.cold_limit) } else { policy.cold_limit };
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let began = scope.proxy.mono(scope.began());
        began.saturating_add(limit.min(listener.patience_ms().unwrap_or(u64::MAX)))
    }

    /// The client has won, and has waited for one that began to build before. What that one has built is served, and not stored by
    /// this win: something that was invalidated before the win may be missing in it.
    pub(super) fn after_wait_of_winner(
        &mut self,
        answer: OutageAnswer,
        won: &mut bool,
        scope: &CallScope<'_>,
    ) -> Option<ReadOutcome> {
        let CallScope { proxy, client, .. } = scope;
        let key = &self.key;
        match answer {
            OutageAnswer::Miss => {
                *won = true;
                scope.count(proxy.rule_of(key.guard), Outcome::MissWon, || SeenKey::guarded(key, 0, proxy));
                let cas = proxy.leases.shard(&key.key).deliver(&key.key, client.owner);
                let marks = ItemMarks { won: true, ..ItemMarks::of(cas.unwrap_or(0)) };
                Some(ReadOutcome::Won { old: None, marks })
            }
            answer => {
                proxy.give_up_win(key, client);
                self.without_server(answer, won, scope)
            }
        }
    }

    /// The key's server does not reply.
    pub(super) fn failed(
        &mut self,
        failure: Failure,
        may_wait: bool,
        won: &mut bool,
        scope: &CallScope<'_>,
    ) -> Option<ReadOutcome> {
        let proxy = scope.proxy;
        let key = &self.key;
        if proxy.pool_of(key.guard).on_error() == OnError::Error {
            scope.count(proxy.rule_of(key.guard), Outcome::ServerError, || SeenKey::guarded(key, 0, proxy));
            return Some(ReadOutcome::Failed(failure));
        }
        self.without_stub(Some(Unread::Item(failure)), may_wait, won, scope)
    }

    /// No stub decides who builds. One client of the sidecar receives a miss, and builds the value for all.
    pub(super) fn without_stub(
        &mut self,
        why: Option<Unread>,
        may_wait: bool,
        won: &mut bool,
        scope: &CallScope<'_>,
    ) -> Option<ReadOutcome> {
        let CallScope { proxy, client, .. } = scope;
        self.unread = why;
        if let Some(Unread::Item(Failure::NoMemory)) = why {
            proxy.connection_of(&self.key).server().note_full();
        }
        let until = self.outage_until(scope);
        let answer = proxy.outage_read(&self.key, may_wait, until, None, client);
        self.without_server(answer, won, scope)
    }

    /// A value that is built after a miss here must not be stored, because the item is not known.
    pub(super) fn without_server(
        &mut self,
        answer: OutageAnswer,
        won: &mut bool,
        scope: &CallScope<'_>,
    ) -> Option<ReadOutcome> {
        let CallScope { proxy, client, .. } = scope;
        let key = &self.key;
        let rule = proxy.rule_of(key.guard);
        match answer {
            OutageAnswer::Wait(wait) => {
                self.state = State::Outage(wait);
                None
            }
            OutageAnswer::ReadAgain => {
                self.read_again(scope);
                None
            }
            OutageAnswer::Value(OutageValue { payload, flags }) => {
                scope.count(rule, Outcome::Outage, || SeenKey::guarded(key, payload.len(), proxy));
                let payload = if is_large(&payload) { client.pending.keep(payload) } else { payload };
                let hit = Hit { payload, flags, ttl: Some(0), ..Hit::nothing() };
                let marks = ItemMarks { stale: true, held: true, ..ItemMarks::of(0) };
                Some(ReadOutcome::Value(hit, marks))
            }
            OutageAnswer::Miss => {
                // Others may wait for this client, so its request must not wait for them.
                *won = true;
                let token = MissToken { unread: self.unread, ..MissToken::unanswered(proxy.now()) };
                client.note_miss(key, proxy);
                let policy = proxy.policy_of(key);
                let ended = proxy.leases.shard(&key.key).record_miss(&key.key, client.owner, token, policy);
                proxy.release(ended);
                scope.count(rule, Outcome::Miss, || SeenKey::guarded(key, 0, proxy));
                Some(ReadOutcome::Miss(None))
            }
        }
    }
}
