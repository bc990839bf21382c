//! One guarded key of a command that reads: what the client is shown of it, and what its leases come to know.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Proxy;
use super::calls::{Client, Scope};
use super::near::{Joined, Near, Reading};
use super::operation::{Guarded, Operation};
use crate::error::Failure;
use crate::guard::leases::Ticket;
use crate::guard::near::Kept;
use crate::guard::{Change, Hit, Lifetime, Modify, ModifyEnd, Read, ReadEnd, Wish};
use crate::metrics::{LeaseEnd, Limit, Outcome};
use crate::upstream::OnError;

/// A read on its way.
pub(super) struct GuardedRead {
    pub(super) of: Guarded,
    state: State,
}

#[allow(clippy::large_enum_variant, reason = "a read stands in a box, and Reading is what it mostly is")]
enum State {
    /// Its turn has not come.
    Waiting,
    /// If others may share the answer, with what that takes.
    Reading(Operation<Read>, Option<Box<Reading>>),
    /// Another's read will do.
    Joined(Box<Joined>),
    /// It was read a moment ago.
    Near(Rc<Kept>),
    Touching(Box<Operation<Modify>>, Hit, Mark),
    Done(Shown),
}

/// What the client may be told.
#[derive(Debug)]
pub(super) enum Shown {
    Value(Hit, Mark),
    /// It is to rebuild the value, and may serve the old one meanwhile; the classic commands cannot say that, and say a miss.
    Won {
        old: Option<Hit>,
        mark: Mark,
    },
    /// With the CAS of the stub, if somebody builds it.
    Miss(Option<u64>),
    Failed(Failure),
}

/// What only meta commands can say about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) cas: u64,
    /// `X`
    pub(super) stale: bool,
    /// `Z`: somebody else rebuilds it.
    pub(super) held: bool,
    /// `W`: this client rebuilds it.
    pub(super) won: bool,
    /// There is no value yet.
    pub(super) stub: bool,
}

impl Mark {
    pub(super) fn of(cas: u64) -> Mark {
        Mark { cas, stale: false, held: false, won: false, stub: false }
    }
}

impl GuardedRead {
    /// A read to be begun later.
    pub(super) fn new(of: Guarded) -> GuardedRead {
        GuardedRead { of, state: State::Waiting }
    }

    /// `near`: whether it can be answered with a value that was read a moment ago.
    pub(super) fn begin(&mut self, wish: Wish, near: bool, proxy: &Proxy, client: &Client) {
        let how = if near { proxy.look_near(&self.of, wish, client) } else { Near::Reads(None) };
        self.go(how, wish, proxy, client);
    }

    fn go(&mut self, how: Near, wish: Wish, proxy: &Proxy, client: &Client) {
        self.state = match how {
            Near::Hit(kept) => State::Near(kept),
            Near::Joins(joined) => State::Joined(joined),
            Near::Reads(reading) => State::Reading(self.start(wish, proxy, client), reading),
        };
    }

    fn start(&self, wish: Wish, proxy: &Proxy, client: &Client) -> Operation<Read> {
        let scene = proxy.scene(&self.of, proxy.policy(self.of.guard), proxy.now(), true);
        let (read, asks) = Read::wishing(wish, &scene);
        Operation::start(read, asks, &self.of, proxy, &client.inbox)
    }

    /// Once it is done: what to show.
    pub(super) fn shown(&self) -> Option<&Shown> {
        match &self.state {
            State::Done(shown) => Some(shown),
            _ => None,
        }
    }

    /// True once it is known what to show. `exptime`: what a fresh value is given. `won` becomes true with a win.
    pub(super) fn poll(
        &mut self,
        exptime: Option<i64>,
        patient: bool,
        won: &mut bool,
        scope: &Scope<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let Scope { proxy, client, .. } = scope;
        let shown = match &mut self.state {
            State::Done(_) => return true,
            State::Waiting => return false,
            State::Near(kept) => {
                let rule = proxy.metric(self.of.guard);
                scope.count(rule, Outcome::Hit);
                proxy.metrics.near_hit(rule);
                let hit = kept.hit().clone();
                let mark = Mark::of(hit.cas.number);
                Shown::Value(hit, mark)
            }
            State::Joined(joined) => match proxy.poll_joined(joined, &self.of, cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(failure)) => self.failed(failure, scope),
                Poll::Ready(Ok(how)) => {
                    let wish = joined.wish;
                    self.go(how, wish, proxy, client);
                    return self.poll(exptime, patient, won, scope, cx);
                }
            },
            State::Reading(read, reading) => {
                match (read.poll(&self.of, patient, proxy, &client.inbox, cx), exptime) {
                    (Poll::Pending, _) => {
                        if read.waits()
                            && let Some(reading) = reading.take()
                        {
                            proxy.near_read(&self.of, *reading, None);
                        }
                        return false;
                    }
                    (Poll::Ready(end @ (ReadEnd::Fresh(_) | ReadEnd::Refreshing(_))), Some(exptime)) => {
                        let held = matches!(end, ReadEnd::Refreshing(_));
                        let (ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) = end else { return true };
                        let now = proxy.now();
                        let change = Change::Touch(Lifetime::of(exptime, now));
                        let scene = proxy.scene(&self.of, proxy.policy(self.of.guard), now, false);
                        let (modify, asks) = Modify::start(change, &scene);
                        let touch = Operation::start(modify, asks, &self.of, proxy, &client.inbox);
                        let mark = Mark { held, ..Mark::of(hit.cas.number) };
                        self.state = State::Touching(Box::new(touch), hit, mark);
                        return self.poll(Some(exptime), patient, won, scope, cx);
                    }
                    (Poll::Ready(end), _) => {
                        if let Some(reading) = reading.take() {
                            proxy.near_read(&self.of, *reading, Some(&end));
                        }
                        self.read(end, won, scope)
                    }
                }
            }
            State::Touching(modify, hit, mark) => {
                let end = modify.poll(&self.of, patient, proxy, &client.inbox, cx);
                match end {
                    Poll::Pending => return false,
                    Poll::Ready(ModifyEnd::Touched(touched)) => {
                        end_earlier_miss(&self.of, scope);
                        scope.count(proxy.metric(self.of.guard), Outcome::Hit);
                        // It may have ended with this very command.
                        let hit = match touched.cas.number {
                            0 => hit.clone(),
                            // Only the first look asked how it has been used, and counts as a use itself.
                            _ => Hit { usage: hit.usage, ..touched },
                        };
                        Shown::Value(hit, *mark)
                    }
                    Poll::Ready(ModifyEnd::Failed(failure)) => self.failed(failure, scope),
                    Poll::Ready(_) => {
                        scope.count(proxy.metric(self.of.guard), Outcome::Miss);
                        Shown::Miss(None)
                    }
                }
            }
        };
        self.state = State::Done(shown);
        true
    }

    fn read(&mut self, end: ReadEnd, won: &mut bool, scope: &Scope<'_>) -> Shown {
        let Scope { proxy, client, .. } = scope;
        let of = &self.of;
        let (rule, policy) = (proxy.metric(of.guard), proxy.policy(of.guard));
        match end {
            ReadEnd::Fresh(hit) => {
                end_earlier_miss(of, scope);
                scope.count(rule, Outcome::Hit);
                let mark = Mark::of(hit.cas.number);
                Shown::Value(hit, mark)
            }
            ReadEnd::Refreshing(hit) => {
                end_earlier_miss(of, scope);
                scope.count(rule, Outcome::Hit);
                let mark = Mark { held: true, ..Mark::of(hit.cas.number) };
                Shown::Value(hit, mark)
            }
            ReadEnd::Stale(hit) => {
                scope.count(rule, Outcome::Stale);
                proxy.metrics.stale_served(rule, Duration::from_millis(hit.stale_ms));
                let mark = Mark { stale: true, held: true, ..Mark::of(hit.cas.number) };
                Shown::Value(hit, mark)
            }
            ReadEnd::Won { lease, early, old } => {
                *won = true;
                client.note_miss(proxy.hash(&of.key));
                scope.count(rule, Outcome::MissWon);
                let cas = lease.base.map_or(0, |base| base.number);
                let stale = !early && old.is_some();
                self.grant(lease, scope);
                Shown::Won { old, mark: Mark { stale, won: true, ..Mark::of(cas) } }
            }
            ReadEnd::Missed { seen, held } => {
                client.note_miss(proxy.hash(&of.key));
                scope.count(rule, if held { Outcome::MissHeld } else { Outcome::Miss });
                let cas = seen.base.filter(|_| held).map(|base| base.number);
                proxy.desk.of(&of.key).saw(&of.key, client.owner, seen, policy);
                Shown::Miss(cas)
            }
            ReadEnd::Failed(failure) => self.failed(failure, scope),
        }
    }

    fn grant(&self, lease: Ticket, scope: &Scope<'_>) {
        let Scope { proxy, client, .. } = scope;
        let of = &self.of;
        let (rule, policy) = (proxy.metric(of.guard), proxy.policy(of.guard));
        let (id, superseded) = proxy.desk.of(&of.key).grant(&of.key, client.owner, lease.clone(), policy);
        for asks in superseded {
            proxy.metrics.lease_ended(rule, LeaseEnd::Superseded, Duration::ZERO);
            proxy.give_back(asks, of.clone());
        }
        match id {
            Some(id) => {
                proxy.metrics.lease_granted();
                proxy.look_after_lease(of, id, &lease);
            }
            // A full table grants nothing; what was won ends by itself after lock_ttl.
            None => proxy.metrics.limit_reached(Limit::Tickets),
        }
    }

    /// The key's server is dead: as good as a miss, after which nothing may be stored that was built without knowing what
    /// stood there.
    fn failed(&self, failure: Failure, scope: &Scope<'_>) -> Shown {
        let Scope { proxy, client, .. } = scope;
        let of = &self.of;
        let rule = proxy.metric(of.guard);
        if proxy.pool_of(of.guard).on_error() == OnError::Error {
            scope.count(rule, Outcome::ServerError);
            return Shown::Failed(failure);
        }
        let seen = Ticket::nothing(proxy.now());
        client.note_miss(proxy.hash(&of.key));
        proxy.desk.of(&of.key).saw(&of.key, client.owner, seen, proxy.policy(of.guard));
        scope.count(rule, Outcome::Miss);
        Shown::Miss(None)
    }
}

/// Whoever is served a fresh value does not fill for a miss that they were told before.
fn end_earlier_miss(of: &Guarded, scope: &Scope<'_>) {
    let Scope { proxy, client, .. } = scope;
    if client.take_miss(|| proxy.hash(&of.key)) {
        proxy.desk.of(&of.key).hit(&of.key, client.owner);
    }
}
