//! Runs a write to its end, and writes the reply.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;

use super::begin::{begin_delete, begin_modify, begin_store};
use super::fill::{count_plain, finish_fill};
use super::state::{AfterRenewal, GuardedWrite, State};
use crate::guard::{Cas, DeleteEnd, Hit, ModifyEnd, SetEnd};
use crate::metrics::{DropReason, Outcome, WaitEnd};
use crate::proxy::guarded::elsewhere::DeleteElsewhere;
use crate::proxy::guarded::misses::{created, end_earlier_miss, tag_bumped};
use crate::proxy::key::GuardedKey;
use crate::proxy::observe::SeenKey;
use crate::proxy::replies::outcome::WriteOutcome;
use crate::proxy::scope::CallScope;

impl GuardedWrite {
    /// Returns the outcome once it is done, and appends the reply to `out`.
    pub(crate) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Outcome> {
        let CallScope { proxy, client, .. } = scope;
        let key = &self.key;
        let pending = &client.pending;
        let mut counted = false;
        let (reply, outcome) = match &mut self.state {
            State::Renewal { woken, then } => {
                // Whether or not it was woken: the lease shows if the renewal has ended.
                let _ = ready!(Pin::new(woken).poll(cx));
                self.state = match then.clone() {
                    AfterRenewal::Store(kind, value) => begin_store(kind, value, key, proxy, client),
                    AfterRenewal::Modify(change) => begin_modify(change, key, proxy, client),
                    AfterRenewal::Remove(removal) => begin_delete(removal, key, None, proxy, client),
                };
                return self.poll(scope, cx, out);
            }
            State::Fill { driver, fill } => {
                let end = ready!(driver.poll(key, false, proxy, pending, cx));
                match finish_fill(end, fill, key, proxy, client) {
                    Ok(end) => end,
                    Err(change) => {
                        self.state = begin_modify(change, key, proxy, client);
                        return self.poll(scope, cx, out);
                    }
                }
            }
            State::Set(driver) => match ready!(driver.poll(key, false, proxy, pending, cx)) {
                SetEnd::Stored { cas, plain } => {
                    count_plain(plain, key, proxy);
                    proxy.wake(&key.key, WaitEnd::Filled);
                    (WriteOutcome::Stored(cas), Outcome::Stored)
                }
                SetEnd::Dropped => {
                    proxy.metrics.fill_dropped(proxy.rule_of(key.guard), DropReason::Changed);
                    (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped)
                }
                SetEnd::TooLarge => (WriteOutcome::TooLarge, Outcome::ServerError),
                SetEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
            },
            State::Modify(driver) => {
                match end_miss(ready!(driver.poll(key, false, proxy, pending, cx)), key, scope) {
                    ModifyEnd::Stored(cas) => (WriteOutcome::Stored(cas), Outcome::Stored),
                    ModifyEnd::Dropped => {
                        proxy.metrics.fill_dropped(proxy.rule_of(key.guard), DropReason::Changed);
                        (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped)
                    }
                    ModifyEnd::Extended { cas, size, created: new } => {
                        if new {
                            client.end_miss(key, proxy);
                            created(key, proxy, client);
                        }
                        (WriteOutcome::Extended(cas, size), Outcome::Stored)
                    }
                    ModifyEnd::NotStored => {
                        if driver.machine().creates_value() {
                            client.refuse_add(key, proxy);
                        }
                        (WriteOutcome::NotStored, Outcome::NotStored)
                    }
                    ModifyEnd::Exists => (WriteOutcome::Exists, Outcome::Exists),
                    ModifyEnd::NotFound => (WriteOutcome::NotFound, Outcome::NotFound),
                    ModifyEnd::NotANumber => (WriteOutcome::NotANumber, Outcome::ClientError),
                    ModifyEnd::Touched(Hit { flags, cas, .. }) => {
                        (WriteOutcome::Touched { flags, cas }, Outcome::Touched)
                    }
                    ModifyEnd::TooLarge => (WriteOutcome::TooLarge, Outcome::ServerError),
                    ModifyEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                    ModifyEnd::Counted(counted) => {
                        if counted.created {
                            client.end_miss(key, proxy);
                            created(key, proxy, client);
                        }
                        (WriteOutcome::Counted(counted), Outcome::Counted)
                    }
                }
            }
            State::Before(before) => match ready!(before.0.poll(pending, cx)) {
                Ok(()) => {
                    self.invalidated = true;
                    if let Some(change) = before.1.take() {
                        self.state = change.begin(key, proxy, client);
                    }
                    return self.poll(scope, cx, out);
                }
                Err(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
            },
            State::Behind { delete, reply, outcome, counted: before } => {
                match ready!(delete.poll(pending, cx)) {
                    Ok(()) => {
                        counted = *before;
                        (reply.clone(), *outcome)
                    }
                    Err(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                }
            }
            State::Delete { driver, instead } => {
                let end = ready!(driver.poll(key, false, proxy, pending, cx));
                proxy.wake(&key.key, WaitEnd::Freed);
                let own = match end {
                    DeleteEnd::Deleted => (WriteOutcome::Deleted, Outcome::Deleted),
                    DeleteEnd::NotFound => (WriteOutcome::NotFound, Outcome::NotFound),
                    DeleteEnd::Exists => (WriteOutcome::Exists, Outcome::Exists),
                    DeleteEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                };
                match instead.take() {
                    Some((instead, outcome)) if !matches!(own.0, WriteOutcome::Failed(_)) => {
                        counted = outcome.is_none();
                        (instead, outcome.unwrap_or(Outcome::ServerError))
                    }
                    _ => own,
                }
            }
            State::Bump { bump, delete } => match ready!(bump.poll(proxy, pending, cx)) {
                Err(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                Ok(bumped) => {
                    proxy.metrics.tag_bumped();
                    tag_bumped(&key.tags[0], bumped, proxy, client);
                    (WriteOutcome::Bumped { version: bumped.version, delete: *delete }, Outcome::Bumped)
                }
            },
            State::Reply(reply, outcome) => (reply.clone(), *outcome),
        };
        let has_changed = match (&self.state, outcome) {
            (State::Delete { .. }, Outcome::NotFound) => true,
            (State::Set(_) | State::Modify(_) | State::Delete { .. }, _) => counted || is_change(outcome),
            _ => false,
        };
        if has_changed
            && !self.invalidated
            && let Some(delete) = DeleteElsewhere::begin(key, proxy, pending)
        {
            self.state = State::Behind { delete: Box::new(delete), reply, outcome, counted };
            return self.poll(scope, cx, out);
        }
        self.dialect.write(&reply, key.place.fence(), out);
        if !counted {
            let unlocked = matches!(&self.state, State::Fill { fill, .. } if fill.lease);
            let seen = || SeenKey::guarded(key, self.bytes, proxy).unlocked(unlocked);
            scope.count(proxy.rule_of(key.guard), outcome, seen);
        }
        Poll::Ready(outcome)
    }
}

fn is_change(outcome: Outcome) -> bool {
    use Outcome::{Counted, Deleted, FillDropped, Stored, Touched};
    matches!(outcome, Stored | FillDropped | Counted | Deleted | Touched)
}

/// Ends the client's earlier miss if it has written a value or received a number.
fn end_miss(end: ModifyEnd, key: &GuardedKey, scope: &CallScope<'_>) -> ModifyEnd {
    match &end {
        ModifyEnd::Stored(cas) => end_earlier_miss(key, cas.number, scope),
        ModifyEnd::Dropped => end_earlier_miss(key, 0, scope),
        ModifyEnd::Extended { cas, created: false, .. } => end_earlier_miss(key, cas.number, scope),
        ModifyEnd::Counted(counted) if !counted.created => end_earlier_miss(key, counted.cas.number, scope),
        _ => {}
    }
    end
}
