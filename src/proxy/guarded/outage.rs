//! Reads of keys whose server gives no answer: one client builds, the others are served what its `set` carries.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::guard::leases::{Build, KnownMiss, Owner, Writer};
use crate::guard::outage::{Awaited, OutageRead, OutageRequest, OutageValue, Outages};
use crate::guard::{TagName, Wait};
use crate::metrics::{Limit, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::client::process::ProcessWait;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::outage_table::OutageSender;

/// What a reader without an answer gets.
pub(super) enum OutageAnswer {
    /// A value that was built meanwhile.
    Value(OutageValue),
    /// A miss: it may build.
    Miss,
    /// The build that it has waited for has ended without a value for it: it asks its server again.
    ReadAgain,
    /// To be polled.
    Wait(Box<OutageWait>),
}

/// What a client that has won a key does.
pub(super) enum Grant {
    Builds,
    /// It waits for another client that builds the key since its server gave no answer.
    Waits(Box<OutageWait>),
    /// It serves the old value, because there is such a client.
    NotNeeded,
}

/// A reader that waits for another client's `set`.
pub(super) struct OutageWait {
    /// Whether its server has answered, and it has won. Its client is told of it when it builds the value.
    pub(super) has_won: bool,
    waiter: u64,
    woken: oneshot::Receiver<Option<OutageValue>>,
    /// Ends it if its client process needs a connection.
    process: ProcessWait,
    timer: Pin<Box<Sleep>>,
    limits: Wait,
    /// When it began, on the monotonic clock in ms.
    began: u64,
}

impl Proxy {
    /// What a reader gets whose key's server gave no answer. It waits until `until` at most, on the monotonic clock in ms.
    /// `waited`: the number under which it has waited before.
    pub(super) fn outage_read(
        &self,
        key: &GuardedKey,
        may_wait: bool,
        until: u64,
        waited: Option<u64>,
        client: &Client,
    ) -> OutageAnswer {
        let (now, policy) = (self.now(), self.policy(key.guard));
        let may_wait = may_wait && now.mono < until;
        let request = OutageRequest { key: &key.key, tags: &key.tags, owner: client.owner, may_wait, waited };
        let (waker, mut woken) = oneshot::channel();
        let mut read =
            self.outages.with(&self.metrics, |outages| outages.read(request, now, policy, || waker));
        // The lease table is asked after the outage table: of two clients that begin at the same time, the one that wins asks in
        // the other order, and at least one of them finds the other.
        if read == OutageRead::Miss
            && may_wait
            && let Some(build) = self.build_before_outage(key, client.owner)
        {
            let (waker, second) = oneshot::channel();
            let waits =
                |outages: &mut Outages<OutageSender>| outages.give_way(request, build, now, policy, || waker);
            if let Some(wait) = self.outages.with(&self.metrics, waits) {
                (read, woken) = (wait, second);
            }
        }
        match read {
            OutageRead::Serve(value) => OutageAnswer::Value(value),
            OutageRead::Miss | OutageRead::SecondMiss => OutageAnswer::Miss,
            OutageRead::Full => {
                self.metrics.limit_reached(Limit::Waiters);
                OutageAnswer::Miss
            }
            OutageRead::Wait { waiter, let_through_at } => {
                let limits = Wait { until, let_through_at: Some(let_through_at) };
                OutageAnswer::Wait(self.begin_outage_wait(waiter, woken, limits, false, client))
            }
        }
    }

    fn begin_outage_wait(
        &self,
        waiter: u64,
        woken: oneshot::Receiver<Option<OutageValue>>,
        limits: Wait,
        has_won: bool,
        client: &Client,
    ) -> Box<OutageWait> {
        let began = self.now().mono;
        let timer = Box::pin(sleep(limits.pause(began)));
        self.metrics.wait_began();
        let process = client.membership().begin_wait(|| self.builds(client.owner));
        Box::new(OutageWait { has_won, waiter, woken, process, timer, limits, began })
    }

    /// The build of another client that has won the key before its server failed. `None` if the key or one of its tags has been
    /// changed through this sidecar since: what it builds may be out of date.
    fn build_before_outage(&self, key: &GuardedKey, owner: Owner) -> Option<Build> {
        let build = self.leases.shard(&key.key).build(&key.key, owner, self.now())?;
        let is_changed = |name: &[u8]| self.outages.is_changed_since(name, build.began);
        let mut tags = key.tags.iter().chain(&build.added_tags);
        (!is_changed(&key.key) && !tags.any(|tag| is_changed(tag))).then_some(build)
    }

    /// Whether another client builds the key since its server gave no answer.
    pub(super) fn is_built_without_server(&self, key: &GuardedKey, client: &Client) -> bool {
        !self.outages.is_empty()
            && self
                .outages
                .with(&self.metrics, |outages| outages.is_built(&key.key, client.owner, self.now()))
    }

    /// The wait of a client that has won the key, for one that builds it since its server gave no answer. `None` if there is
    /// none, or it must not wait for it.
    pub(super) fn await_outage_build(
        &self,
        key: &GuardedKey,
        may_wait: bool,
        until: u64,
        client: &Client,
    ) -> Option<Box<OutageWait>> {
        if self.outages.is_empty() {
            return None;
        }
        let (now, policy) = (self.now(), self.policy(key.guard));
        let may_wait = may_wait && now.mono < until;
        let (owner, tags) = (client.owner, &key.tags[..]);
        let request = OutageRequest { key: &key.key, tags, owner, may_wait, waited: None };
        let (waker, woken) = oneshot::channel();
        let wait = |outages: &mut Outages<OutageSender>| outages.await_build(request, now, policy, || waker);
        match self.outages.with(&self.metrics, wait) {
            Some(OutageRead::Wait { waiter, let_through_at }) => {
                let limits = Wait { until, let_through_at: Some(let_through_at) };
                Some(self.begin_outage_wait(waiter, woken, limits, true, client))
            }
            _ => None,
        }
    }

    /// Goes on with a wait.
    pub(super) fn poll_outage(
        &self,
        wait: &mut OutageWait,
        key: &GuardedKey,
        may_wait: bool,
        client: &Client,
        cx: &mut Context<'_>,
    ) -> Poll<OutageAnswer> {
        let began = wait.began;
        let end = |end| {
            self.metrics.wait_ended(self.rule_of(key.guard), end);
            client.pending.note_build(Duration::from_millis(self.now().mono.saturating_sub(began)));
        };
        match Pin::new(&mut wait.woken).poll(cx) {
            Poll::Ready(Ok(Some(value))) => {
                end(WaitEnd::Filled);
                return Poll::Ready(OutageAnswer::Value(value));
            }
            Poll::Ready(_) => {
                end(WaitEnd::Freed);
                if wait.has_won {
                    return Poll::Ready(OutageAnswer::ReadAgain);
                }
                let (until, waited) = (wait.limits.until, Some(wait.waiter));
                let answer = self.outage_read(key, may_wait, until, waited, client);
                return Poll::Ready(answer);
            }
            Poll::Pending => {}
        }
        let (policy, reader) = (self.policy(key.guard), (client.owner, wait.waiter));
        let gives_up = if !may_wait {
            WaitEnd::Pipelined
        } else if wait.process.poll(cx).is_ready() {
            WaitEnd::GaveWay
        } else {
            loop {
                if wait.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let now = self.now();
                if now.mono >= wait.limits.until {
                    break WaitEnd::TimedOut;
                }
                let asked = self
                    .outages
                    .with(&self.metrics, |outages| outages.let_through(&key.key, reader, now, policy));
                match asked {
                    Ok(()) => {
                        end(WaitEnd::LetThrough);
                        return Poll::Ready(OutageAnswer::Miss);
                    }
                    Err(again) => wait.limits.let_through_at = Some(again),
                }
                wait.timer.set(sleep(wait.limits.pause(now.mono)));
            }
        };
        end(gives_up);
        let now = self.now();
        self.outages.with(&self.metrics, |outages| outages.give_up_waiting(&key.key, reader, now, policy));
        Poll::Ready(OutageAnswer::Miss)
    }

    /// A write of this key begins. `value`: what a `set` or `add` stores, and its flags. A builder's value is handed to those
    /// who wait. Any other write ends what is kept.
    pub(super) fn outage_write(&self, key: &GuardedKey, value: Option<(&[u8], u32)>, client: &Client) {
        let (now, policy) = (self.now(), self.policy(key.guard));
        self.outages.note_change(&key.key, now.mono);
        if self.outages.is_empty() {
            return;
        }
        let value = value.map(|(payload, flags)| OutageValue { payload: payload.to_vec().into(), flags });
        let (pooled, known_miss) =
            (client.listener.is_pooled(client.has_missed()), client.known_miss(key, self));
        let writer = Writer { owner: client.owner, known_miss, pooled };
        let Awaited { served, freed } = self.outages.with(&self.metrics, |outages| {
            let built = value.as_ref().and_then(|value| {
                outages.add_tags(&key.key, &key.explicit_tags());
                outages.built(&key.key, writer, value, now, policy)
            });
            match built {
                Some(awaited) => awaited,
                // Built after a miss that has been invalidated since, or that is not remembered: it is no newer than what is
                // kept.
                None if value.is_some() && known_miss == KnownMiss::Yes => {
                    Awaited { served: Vec::new(), freed: Vec::new() }
                }
                None => Awaited { served: Vec::new(), freed: outages.changed(&key.key) },
            }
        });
        wake(served, value.as_ref());
        wake(freed, None);
    }

    /// A tag is bumped.
    pub(super) fn outage_bump(&self, tag: &TagName) {
        self.outages.note_change(tag, self.now().mono);
        if !self.outages.is_empty() {
            wake(self.outages.with(&self.metrics, |outages| outages.bumped(tag)), None);
        }
    }

    /// All servers are flushed.
    pub(crate) fn outage_flush(&self) {
        if !self.outages.is_empty() {
            wake(self.outages.with(&self.metrics, |outages| outages.flushed()), None);
        }
    }

    /// A connection has been closed: the next reader of what it built builds.
    pub(super) fn outage_disconnect(&self, owner: Owner) {
        if !self.outages.is_empty() {
            let now = self.now();
            wake(self.outages.with(&self.metrics, |outages| outages.disconnect(owner, now)), None);
        }
    }

    /// Removes some of what has expired. Returns whether it must be called again.
    pub(super) fn sweep_outages(&self) -> bool {
        let now = self.now().mono;
        !self.outages.is_empty() && self.outages.with(&self.metrics, |outages| outages.sweep(now))
    }
}

fn wake(waiters: Vec<OutageSender>, value: Option<&OutageValue>) {
    for waiter in waiters {
        // The receiver is gone if the reader has given up.
        let _ = waiter.send(value.cloned());
    }
}
