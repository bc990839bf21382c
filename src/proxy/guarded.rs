//! Commands that write one guarded key, or a tag: which machine of the guard runs them, and what its end means to the
//! client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;
use tokio::sync::oneshot;

use super::Proxy;
use super::calls::{Client, Scope};
use super::desk::ring;
use super::operation::{Guarded, Operation};
use crate::guard::leases::{Attribution, Owner, Ticket};
use crate::guard::{
    Bump, BumpEnd, Change, Delete, DeleteEnd, Fill, FillEnd, Lifetime, Modify, ModifyEnd, Offer, Set, SetEnd,
    Step, TagName,
};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};
use crate::protocol::request::{Request, Store, Verb};

/// memcached's words.
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
/// Ours. Whether the key was invalidated since the miss cannot be known, so the value may be too old to store.
const UNKNOWN_BASE: &[u8] = b"SERVER_ERROR not stored: no server answered when this key was missed\r\n";
const RESERVED: &[u8] = b"CLIENT_ERROR this key is a tag: only get, delete and incr are allowed\r\n";

/// One command on its way.
pub(super) struct GuardedCall {
    of: Guarded,
    run: Run,
}

enum Run {
    /// Its lease is being renewed at this moment.
    Renewal {
        bell: oneshot::Receiver<WaitEnd>,
        verb: Verb,
        offer: Offer,
    },
    Fill {
        run: Operation<Fill>,
        filling: Filling,
    },
    Set(Operation<Set>),
    Modify(Operation<Modify>),
    Delete {
        run: Operation<Delete>,
        /// Said in place of its own end; counted here, unless that was done where it was refused.
        says: Option<(Bytes, Option<Outcome>)>,
    },
    Bump {
        run: Operation<Bump>,
        delete: bool,
    },
    Said(&'static [u8], Outcome),
}

/// What a fill is for.
struct Filling {
    add: bool,
    ticket: Ticket,
    lease: bool,
    /// Whose lease it was, if another connection's.
    owner: Option<Owner>,
}

impl GuardedCall {
    /// A command on a guarded key.
    pub(super) fn begin(
        request: &Request<'_>,
        of: Guarded,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedCall {
        let now = proxy.now();
        let run = match *request {
            Request::Store(Store { verb, flags, exptime, data, .. }) => {
                let body = Bytes::copy_from_slice(data);
                let lifetime = Lifetime::of(exptime, now);
                match (verb, lifetime) {
                    (Verb::Set, Lifetime::Gone) => begin_delete(
                        &of,
                        Some((Bytes::from_static(b"STORED\r\n"), Some(Outcome::Stored))),
                        proxy,
                        client,
                    ),
                    (Verb::Append, _) => begin_modify(Change::Append(body), &of, proxy, client),
                    (Verb::Prepend, _) => begin_modify(Change::Prepend(body), &of, proxy, client),
                    _ => begin_store(verb, Offer { body, flags, lifetime }, &of, proxy, client),
                }
            }
            Request::Arith { decr, delta, .. } => {
                begin_modify(Change::Count { decr, delta }, &of, proxy, client)
            }
            Request::Touch { exptime, .. } => {
                begin_modify(Change::Touch(Lifetime::of(exptime, now)), &of, proxy, client)
            }
            Request::Delete { .. } => begin_delete(&of, None, proxy, client),
            // Nothing else writes one key.
            _ => Run::Said(b"ERROR\r\n", Outcome::Error),
        };
        GuardedCall { of, run }
    }

    /// The delete that goes with a value that was refused as too large, with the refusal said in its place.
    pub(super) fn delete_saying(of: Guarded, says: Bytes, proxy: &Rc<Proxy>, client: &Client) -> GuardedCall {
        let run = begin_delete(&of, Some((says, None)), proxy, client);
        GuardedCall { of, run }
    }

    /// A command on the key of a tag: `delete` and `incr` bump it.
    pub(super) fn tag(
        request: &Request<'_>,
        name: TagName,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedCall {
        let guard = proxy.plan.tag_guard;
        let place = proxy.pool_of(guard).place(&name);
        let of = Guarded { guard, place, key: Rc::from(&name[..]), tags: smallvec![name] };
        let delete = matches!(request, Request::Delete { .. });
        let run = if delete || matches!(request, Request::Arith { decr: false, .. }) {
            let (bump, asks) = Bump::start();
            Run::Bump { run: Operation::start(bump, asks, &of, proxy, &client.inbox), delete }
        } else {
            Run::Said(RESERVED, Outcome::ClientError)
        };
        GuardedCall { of, run }
    }

    pub(super) fn poll(&mut self, scope: &Scope<'_>, cx: &mut Context<'_>, out: &mut BytesMut) -> Poll<()> {
        let Scope { proxy, client, .. } = scope;
        let of = &self.of;
        let inbox = &client.inbox;
        let rule = proxy.metric(of.guard);
        let (said, outcome): (&[u8], Outcome) = match &mut self.run {
            Run::Renewal { bell, verb, offer } => {
                // Rung or not: if the renewal has ended, the lease says so.
                let _ = ready!(Pin::new(bell).poll(cx));
                self.run = begin_store(*verb, offer.clone(), of, proxy, client);
                return self.poll(scope, cx, out);
            }
            Run::Fill { run, filling } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                filled(end, filling, of, proxy)
            }
            Run::Set(run) => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                SetEnd::Stored { plain } => {
                    count_plain(plain, of, proxy);
                    proxy.wake(&of.key, WaitEnd::Filled);
                    (b"STORED\r\n", Outcome::Stored)
                }
                SetEnd::TooLarge => (TOO_LARGE, Outcome::ServerError),
                SetEnd::Failed(failure) => return fail(failure, rule, scope, out),
            },
            Run::Modify(run) => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                ModifyEnd::Stored => (b"STORED\r\n", Outcome::Stored),
                ModifyEnd::NotStored => (b"NOT_STORED\r\n", Outcome::NotStored),
                ModifyEnd::Exists => (b"EXISTS\r\n", Outcome::Exists),
                ModifyEnd::NotFound => (b"NOT_FOUND\r\n", Outcome::NotFound),
                ModifyEnd::NotANumber => (NOT_A_NUMBER, Outcome::ClientError),
                ModifyEnd::Touched(_) => (b"TOUCHED\r\n", Outcome::Touched),
                ModifyEnd::TooLarge => (TOO_LARGE, Outcome::ServerError),
                ModifyEnd::Failed(failure) => return fail(failure, rule, scope, out),
                ModifyEnd::Counted(number) => {
                    scope.count(rule, Outcome::Counted);
                    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
                    out.extend_from_slice(b"\r\n");
                    return Poll::Ready(());
                }
            },
            Run::Delete { run, says } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                proxy.wake(&of.key, WaitEnd::Freed);
                let (said, outcome): (&[u8], _) = match end {
                    DeleteEnd::Deleted => (b"DELETED\r\n", Outcome::Deleted),
                    DeleteEnd::NotFound => (b"NOT_FOUND\r\n", Outcome::NotFound),
                    DeleteEnd::Failed(failure) => return fail(failure, rule, scope, out),
                };
                match says {
                    None => (said, outcome),
                    Some((says, Some(outcome))) => (&says[..], *outcome),
                    Some((says, None)) => {
                        out.extend_from_slice(says);
                        return Poll::Ready(());
                    }
                }
            }
            Run::Bump { run, delete } => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                BumpEnd::Failed(failure) => return fail(failure, rule, scope, out),
                BumpEnd::Bumped(version) => {
                    proxy.metrics.tag_bumped();
                    scope.count(rule, Outcome::Bumped);
                    match delete {
                        true => out.extend_from_slice(b"DELETED\r\n"),
                        false => {
                            out.extend_from_slice(itoa::Buffer::new().format(version).as_bytes());
                            out.extend_from_slice(b"\r\n");
                        }
                    }
                    return Poll::Ready(());
                }
            },
            Run::Said(text, outcome) => (*text, *outcome),
        };
        out.extend_from_slice(said);
        scope.count(rule, outcome);
        Poll::Ready(())
    }
}

/// `set` and `add` may end a rebuild; every other storage command looks before it writes.
fn begin_store(verb: Verb, offer: Offer, of: &Guarded, proxy: &Rc<Proxy>, client: &Client) -> Run {
    let add = match verb {
        Verb::Set => false,
        Verb::Add if offer.lifetime != Lifetime::Gone => true,
        Verb::Add => return begin_modify(Change::Add(offer), of, proxy, client),
        Verb::Cas(number) => return begin_modify(Change::Cas(number, offer), of, proxy, client),
        Verb::Replace | Verb::Append | Verb::Prepend => {
            return begin_modify(Change::Replace(offer), of, proxy, client);
        }
    };
    let rule = proxy.metric(of.guard);
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    client.take_miss(|| proxy.hash(&of.key));
    let mut leases = proxy.desk.of(&of.key);
    match leases.attribute(&of.key, client.owner) {
        Attribution::Renewing => {
            let (bell, hears) = oneshot::channel();
            leases.await_renewal(&of.key, bell);
            Run::Renewal { bell: hears, verb, offer }
        }
        Attribution::Doomed => {
            proxy.metrics.fill_dropped(rule, DropReason::Gone);
            Run::Said(b"STORED\r\n", Outcome::FillDropped)
        }
        Attribution::Blind if add => {
            drop(leases);
            begin_modify(Change::Add(offer), of, proxy, client)
        }
        Attribution::Blind => {
            drop(leases);
            let (set, asks) = Set::start(offer, &scene);
            Run::Set(Operation::start(set, asks, of, proxy, &client.inbox))
        }
        Attribution::Fill { ticket, lease, owner, wary } => {
            drop(leases);
            let (fill, step) = Fill::start(&ticket, wary, offer, &scene);
            let filling = Filling { add, ticket, lease, owner };
            match step {
                Step::Ask(asks) => {
                    let run = Operation::start(fill, asks, of, proxy, &client.inbox);
                    Run::Fill { run, filling }
                }
                _ => {
                    proxy.metrics.fill_dropped(rule, DropReason::Unreachable);
                    Run::Said(UNKNOWN_BASE, Outcome::ServerError)
                }
            }
        }
    }
}

fn begin_modify(change: Change, of: &Guarded, proxy: &Rc<Proxy>, client: &Client) -> Run {
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (modify, asks) = Modify::start(change, &scene);
    Run::Modify(Operation::start(modify, asks, of, proxy, &client.inbox))
}

fn begin_delete(
    of: &Guarded,
    says: Option<(Bytes, Option<Outcome>)>,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> Run {
    // Before it is sent: a lease that is granted from now on may well begin after it.
    let ended = proxy.desk.of(&of.key).invalidate(&of.key, client.owner);
    for _ in 0..ended {
        proxy.metrics.lease_ended(proxy.metric(of.guard), LeaseEnd::Released, Duration::ZERO);
    }
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (delete, asks) = Delete::start(&scene);
    Run::Delete { run: Operation::start(delete, asks, of, proxy, &client.inbox), says }
}

/// What the end of a fill means for the lease, for those who wait, and for the client.
fn filled(end: FillEnd, filling: &Filling, of: &Guarded, proxy: &Proxy) -> (&'static [u8], Outcome) {
    let rule = proxy.metric(of.guard);
    let now = proxy.now();
    let ended = |end| {
        if filling.lease {
            let took = now.mono.saturating_sub(filling.ticket.at.mono);
            proxy.metrics.lease_ended(rule, end, Duration::from_millis(took));
        }
    };
    match end {
        FillEnd::Stored { cas, plain } => {
            ended(LeaseEnd::Filled);
            count_plain(plain, of, proxy);
            let spent = filling.owner.map(|owner| (owner, filling.ticket.clone()));
            let bells = proxy.desk.of(&of.key).filled(&of.key, cas, spent, proxy.policy(of.guard));
            ring(bells, WaitEnd::Filled);
            (b"STORED\r\n", Outcome::Stored)
        }
        FillEnd::Dropped { exists } => {
            ended(LeaseEnd::Dropped);
            let why = if exists { DropReason::Changed } else { DropReason::Gone };
            proxy.metrics.fill_dropped(rule, why);
            proxy.wake(&of.key, WaitEnd::Freed);
            match filling.add && exists {
                true => (b"NOT_STORED\r\n", Outcome::NotStored),
                false => (b"STORED\r\n", Outcome::FillDropped),
            }
        }
        FillEnd::TooLarge => {
            ended(LeaseEnd::Dropped);
            proxy.free(&of.key);
            (TOO_LARGE, Outcome::ServerError)
        }
        FillEnd::Failed(failure) => {
            ended(LeaseEnd::Dropped);
            proxy.free(&of.key);
            (failure.line(), Outcome::ServerError)
        }
    }
}

fn count_plain(plain: bool, of: &Guarded, proxy: &Proxy) {
    if plain {
        proxy.metrics.value_plain(proxy.metric(of.guard));
    }
}

fn fail(failure: crate::error::Failure, rule: usize, scope: &Scope<'_>, out: &mut BytesMut) -> Poll<()> {
    out.extend_from_slice(failure.line());
    scope.count(rule, Outcome::ServerError);
    Poll::Ready(())
}
