//! Builds that a server answers during, or has answered before: no second client begins to build beside them.
//!
//! A reader without an answer enters the outage table first, and then looks at the lease table. A winner looks at the outage table, enters
//! the lease table, and looks at the outage table again. So of two that begin at the same time, at least one finds the other; if both
//! do, the outage table decides. No thread holds the mutexes of both.
//!
//! What a client builds without a server is not stored by the win of a reader that waits for it: its build began before the stub, and
//! another sidecar may have invalidated the key in between. The reader keeps its lease until then, because each further reader would
//! win the stub, release it and wait.

use std::sync::Arc;

use super::{Builder, OutageRead, OutageRequest, Outages};
use crate::guard::inputs::Now;
use crate::guard::leases::{Build, Owner};
use crate::guard::policy::{Policy, millis};

impl<W> Outages<W> {
    /// The client that has become the only builder by [`Outages::read`] finds that another one builds the value since before the
    /// server failed. That one takes its place, and it waits. Under a rule that serves nothing stale, nobody is handed what that
    /// one builds. Returns `None` if the client must go on: it may not wait, the key has been changed in between, or the other
    /// one waits for it.
    pub fn give_way(
        &mut self,
        request: OutageRequest<'_>,
        to: Build,
        now: Now,
        policy: &Policy,
        waiter: impl FnOnce() -> W,
    ) -> Option<OutageRead> {
        let OutageRequest { key, owner, waited, .. } = request;
        let id = waited.unwrap_or_else(|| self.number());
        self.end_late_builds(key, now.mono);
        let state = self.keys.get_mut(key)?;
        let is_alone = state.awaited(now.mono).all(|builder| builder.owner == owner);
        let own = state.builders.iter().position(|builder| builder.owner == owner);
        let is_awaited = state.waiters.has(to.owner);
        let (true, Some(own), false) = (is_alone, own, is_awaited) else { return None };
        let own = state.builders.remove(own);
        state.builders.push(Builder { owner: to.owner, since: 0, until: to.until, is_overdue: false });
        if !state.must_wait(&request, now.mono, policy) {
            state.builders.pop();
            state.builders.push(own);
            return None;
        }
        state.let_through_at = to.began + millis(policy.cold_wait);
        let wait = state.wait(id, owner, waiter());
        self.by_owner.entry(to.owner).or_default().insert(Arc::clone(&state.key));
        self.forget_owner(key, owner);
        self.add_tags(key, &to.added_tags);
        self.reschedule(key);
        Some(wait)
    }

    /// Whether another client builds the key since its server gave no answer, and this one does not.
    pub fn is_built(&self, key: &[u8], owner: Owner, now: Now) -> bool {
        let Some(state) = self.keys.get(key) else { return false };
        let mut current = state.builders.iter().filter(|builder| now.mono < builder.until);
        current.any(|builder| !builder.is_overdue) && state.builders.iter().all(|other| other.owner != owner)
    }

    /// A read that its server has answered with a miss. If another client builds the key since the server gave no answer, the
    /// read waits for it. Otherwise `None`.
    pub fn await_build(
        &mut self,
        request: OutageRequest<'_>,
        now: Now,
        policy: &Policy,
        waiter: impl FnOnce() -> W,
    ) -> Option<OutageRead> {
        let state = self.keys.get_mut(request.key)?;
        if !state.must_wait(&request, now.mono, policy) {
            return None;
        }
        let id = request.waited.unwrap_or_else(|| self.number());
        Some(self.keys.get_mut(request.key)?.wait(id, request.owner, waiter()))
    }
}
