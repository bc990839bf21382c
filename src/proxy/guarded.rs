//! Commands that write one guarded key, or a tag: which machine of the guard runs them, and what its end means to the
//! client.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;

use super::Proxy;
use super::client::Client;
use super::desk::{Bell, ring};
use super::fills::{Filling, How, count_plain, filled, setter};
use super::operation::{Guarded, Operation};
use super::read::end_earlier_miss;
use super::scope::Scope;
use super::wording::{Said, Voice};
use crate::error::Failure;
use crate::guard::leases::{Attribution, Bound, Leases};
use crate::guard::{
    Bump, BumpEnd, Cas, Change, Count, Delete, DeleteEnd, Fill, Lifetime, Modify, ModifyEnd, Offer, Removal,
    Set, SetEnd, Step, TagName,
};
use crate::metrics::{DropReason, LeaseEnd, Outcome, WaitEnd};
use crate::protocol::meta::exptime;
use crate::protocol::request::{Meta, MetaVerb, Request, Store, Verb};

/// Ours. Whether the key was invalidated since the miss cannot be known, so the value may be too old to store.
const UNKNOWN_BASE: &[u8] = b"SERVER_ERROR not stored: no server answered when this key was missed\r\n";
/// Ours. The key may be one of those that were forgotten, and the value too old to store.
const UNKNOWN_MISS: &[u8] =
    b"SERVER_ERROR not stored: this connection was told more misses than are remembered\r\n";
const RESERVED: &[u8] =
    b"CLIENT_ERROR this key is a tag: it can only be read, and bumped by delete and incr\r\n";

/// One command on its way.
pub(super) struct GuardedCall {
    of: Guarded,
    voice: Voice,
    run: Run,
}

enum Run {
    /// Its lease is being renewed at this moment.
    Renewal {
        bell: oneshot::Receiver<WaitEnd>,
        then: Then,
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
        says: Option<(Said, Option<Outcome>)>,
    },
    Bump {
        run: Operation<Bump>,
        delete: bool,
    },
    Said(Said, Outcome),
}

/// What waits for the end of a renewal.
#[derive(Debug, Clone)]
enum Then {
    Store(How, Offer),
    Modify(Change),
    Remove(Removal),
}

impl GuardedCall {
    /// A classic command on a guarded key.
    pub(super) fn begin(
        request: &Request<'_>,
        of: Guarded,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedCall {
        let now = proxy.now();
        let modify = |change| begin_modify(change, &of, proxy, client);
        let run = match *request {
            Request::Store(Store { verb, flags, exptime, data, .. }) => {
                let tags = of.learnt();
                let body = Bytes::copy_from_slice(data);
                let offer =
                    |body| Offer { body, flags, lifetime: Lifetime::of(exptime, now), explicit: None, tags };
                match verb {
                    Verb::Append => {
                        modify(Change::Append { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Prepend => {
                        modify(Change::Prepend { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Set => begin_store(How::Set, offer(body), &of, proxy, client),
                    Verb::Add => begin_store(How::Add, offer(body), &of, proxy, client),
                    Verb::Replace => begin_store(How::Replace, offer(body), &of, proxy, client),
                    Verb::Cas(number) => begin_store(How::Cas(number), offer(body), &of, proxy, client),
                }
            }
            Request::Arith { decr, delta, .. } => {
                modify(Change::Count(Count { decr, delta, ..Count::default() }))
            }
            Request::Touch { exptime, .. } => modify(Change::Touch(Lifetime::of(exptime, now))),
            Request::Delete { .. } => begin_delete(Removal::default(), &of, None, proxy, client),
            // Nothing else writes one key.
            _ => Run::Said(Said::Verbatim(Bytes::from_static(b"ERROR\r\n")), Outcome::Error),
        };
        GuardedCall { of, voice: Voice::Classic, run }
    }

    /// A meta command that writes a guarded key.
    pub(super) fn meta(
        meta: &Meta<'_>,
        of: Guarded,
        voice: Voice,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedCall {
        let now = proxy.now();
        let options = meta.options();
        let (compare, explicit) = (options.compare, options.explicit);
        let lifetime = options.exptime.map(|exptime| Lifetime::of(exptime, now));
        // What is created with both `N` and `T` lasts as long as the later one says.
        let times = meta.tokens().filter(|(flag, _)| b"NT".contains(flag));
        let created = times.last().map(|(_, token)| Lifetime::of(exptime(token), now));
        // Where memcached looks at a value in order to change it, it takes a CAS of 0 for none.
        let changes = compare.filter(|&cas| cas != 0);
        let modify = |change| begin_modify(change, &of, proxy, client);
        let run = match meta.verb {
            MetaVerb::Set => {
                let body = Bytes::copy_from_slice(meta.data);
                let lifetime = lifetime.unwrap_or(Lifetime::Endless);
                let tags = of.learnt();
                let offer = |body| Offer { body, flags: options.flags, lifetime, explicit, tags };
                // An append that creates takes its time from `N` alone.
                let create = |body| {
                    let lifetime = Lifetime::of(options.vivify?, now);
                    Some(Box::new(Offer {
                        body,
                        flags: options.flags,
                        lifetime,
                        explicit,
                        tags: of.learnt(),
                    }))
                };
                match (options.mode, compare) {
                    (b'A', _) => modify(Change::Append {
                        more: body.clone(),
                        compare: changes,
                        explicit,
                        create: create(body),
                    }),
                    (b'P', _) => modify(Change::Prepend {
                        more: body.clone(),
                        compare: changes,
                        explicit,
                        create: create(body),
                    }),
                    (b'E', _) => begin_store(How::Add, offer(body), &of, proxy, client),
                    (_, Some(cas)) => {
                        let how = How::Named { cas, invalidate: options.invalidate };
                        begin_store(how, offer(body), &of, proxy, client)
                    }
                    (b'R', None) => begin_store(How::Replace, offer(body), &of, proxy, client),
                    (_, None) => begin_store(How::Set, offer(body), &of, proxy, client),
                }
            }
            MetaVerb::Arith => modify(Change::Count(Count {
                decr: matches!(options.mode, b'D' | b'-'),
                delta: options.delta,
                compare: changes,
                create: options.vivify.and(created).map(|lifetime| (lifetime, options.initial)),
                lifetime,
                explicit,
            })),
            MetaVerb::Delete if options.empty => {
                let endless = if options.invalidate { Lifetime::Seconds(0) } else { Lifetime::Endless };
                let lifetime = lifetime.filter(|_| !options.invalidate).unwrap_or(endless);
                modify(Change::Empty { compare, lifetime, explicit })
            }
            _ => {
                let seconds = match lifetime {
                    Some(Lifetime::Seconds(seconds)) => Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
                    Some(Lifetime::Gone) => Some(0),
                    _ => None,
                };
                let removal = Removal { compare, stale: options.invalidate, seconds, explicit };
                begin_delete(removal, &of, None, proxy, client)
            }
        };
        GuardedCall { of, voice, run }
    }

    /// The delete that goes with a value that was refused as too large, with the refusal said in its place.
    pub(super) fn delete_saying(of: Guarded, says: Bytes, proxy: &Rc<Proxy>, client: &Client) -> GuardedCall {
        let says = Some((Said::Verbatim(says), None));
        let run = begin_delete(Removal::default(), &of, says, proxy, client);
        GuardedCall { of, voice: Voice::Classic, run }
    }

    /// A command on the key of a tag: `delete` and `incr` bump it, and so do `md` and `ma`.
    pub(super) fn tag(
        request: &Request<'_>,
        name: TagName,
        voice: Voice,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedCall {
        let (of, now) = (tag(name, proxy), proxy.now());
        let bump = |delete| {
            let scene = proxy.scene(&of, proxy.policy(of.guard), now, false);
            let (bump, asks) = Bump::start(&scene);
            Run::Bump { run: Operation::start(bump, asks, &of, proxy, &client.inbox), delete }
        };
        let run = match request {
            Request::Delete { .. } => bump(true),
            Request::Arith { decr: false, .. } => bump(false),
            Request::Meta(meta) if only(meta, b"kqOb") && meta.verb == MetaVerb::Delete => bump(true),
            Request::Meta(meta) if only(meta, b"kqObvDM") && meta.verb == MetaVerb::Arith => {
                match meta.options().mode {
                    b'D' | b'-' => reserved(),
                    _ => bump(false),
                }
            }
            _ => reserved(),
        };
        GuardedCall { of, voice, run }
    }

    /// Once it is done: what became of it.
    pub(super) fn poll(
        &mut self,
        scope: &Scope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Outcome> {
        let Scope { proxy, client, .. } = scope;
        let of = &self.of;
        let inbox = &client.inbox;
        let (said, outcome) = match &mut self.run {
            Run::Renewal { bell, then } => {
                // Rung or not: if the renewal has ended, the lease says so.
                let _ = ready!(Pin::new(bell).poll(cx));
                self.run = match then.clone() {
                    Then::Store(how, offer) => begin_store(how, offer, of, proxy, client),
                    Then::Modify(change) => begin_modify(change, of, proxy, client),
                    Then::Remove(removal) => begin_delete(removal, of, None, proxy, client),
                };
                return self.poll(scope, cx, out);
            }
            Run::Fill { run, filling } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                match filled(end, filling, of, proxy, client) {
                    Ok(said) => said,
                    Err(change) => {
                        self.run = begin_modify(change, of, proxy, client);
                        return self.poll(scope, cx, out);
                    }
                }
            }
            Run::Set(run) => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                SetEnd::Stored { cas, plain } => {
                    count_plain(plain, of, proxy);
                    proxy.wake(&of.key, WaitEnd::Filled);
                    (Said::Stored(cas), Outcome::Stored)
                }
                SetEnd::Dropped => {
                    proxy.metrics.fill_dropped(proxy.metric(of.guard), DropReason::Changed);
                    (Said::Stored(Cas::NONE), Outcome::FillDropped)
                }
                SetEnd::TooLarge => (Said::TooLarge, Outcome::ServerError),
                SetEnd::Failed(failure) => (Said::Failed(failure), Outcome::ServerError),
            },
            Run::Modify(run) => match seen(ready!(run.poll(of, false, proxy, inbox, cx)), of, scope) {
                ModifyEnd::Stored(cas) => (Said::Stored(cas), Outcome::Stored),
                ModifyEnd::Dropped => {
                    proxy.metrics.fill_dropped(proxy.metric(of.guard), DropReason::Changed);
                    (Said::Stored(Cas::NONE), Outcome::FillDropped)
                }
                ModifyEnd::Extended { cas, size, created: new } => {
                    if new {
                        client.end_miss(of, proxy);
                        created(of, proxy, client);
                    }
                    (Said::Extended(cas, size), Outcome::Stored)
                }
                ModifyEnd::NotStored => {
                    if run.machine().makes_a_value() {
                        client.refuse_add(of, proxy);
                    }
                    (Said::NotStored, Outcome::NotStored)
                }
                ModifyEnd::Exists => (Said::Exists, Outcome::Exists),
                ModifyEnd::NotFound => (Said::NotFound, Outcome::NotFound),
                ModifyEnd::NotANumber => (Said::NotANumber, Outcome::ClientError),
                ModifyEnd::Touched(_) => (Said::Touched, Outcome::Touched),
                ModifyEnd::TooLarge => (Said::TooLarge, Outcome::ServerError),
                ModifyEnd::Failed(failure) => (Said::Failed(failure), Outcome::ServerError),
                ModifyEnd::Counted(counted) => {
                    if counted.created {
                        client.end_miss(of, proxy);
                        created(of, proxy, client);
                    }
                    (Said::Counted(counted), Outcome::Counted)
                }
            },
            Run::Delete { run, says } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                proxy.wake(&of.key, WaitEnd::Freed);
                let own = match end {
                    DeleteEnd::Deleted => (Said::Deleted, Outcome::Deleted),
                    DeleteEnd::NotFound => (Said::NotFound, Outcome::NotFound),
                    DeleteEnd::Exists => (Said::Exists, Outcome::Exists),
                    DeleteEnd::Failed(failure) => (Said::Failed(failure), Outcome::ServerError),
                };
                match says.take() {
                    Some((says, outcome)) if !matches!(own.0, Said::Failed(_)) => {
                        let Some(outcome) = outcome else {
                            self.voice.say(&says, out);
                            return Poll::Ready(Outcome::ServerError);
                        };
                        (says, outcome)
                    }
                    _ => own,
                }
            }
            Run::Bump { run, delete } => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                BumpEnd::Failed(failure) => (Said::Failed(failure), Outcome::ServerError),
                BumpEnd::Bumped(version) => {
                    proxy.metrics.tag_bumped();
                    client_bumped(of, run.machine(), proxy, client);
                    (Said::Bumped { version, delete: *delete }, Outcome::Bumped)
                }
            },
            Run::Said(said, outcome) => (said.clone(), *outcome),
        };
        self.voice.say(&said, out);
        scope.count(proxy.metric(of.guard), outcome);
        Poll::Ready(outcome)
    }
}

/// A tag, as what its bump is about.
pub(super) fn tag(name: TagName, proxy: &Proxy) -> Guarded {
    let guard = proxy.plan.tag_guard;
    // Nothing but the tag itself is asked for.
    Guarded { guard, place: 0, key: SmallVec::from_slice(&name), tags: smallvec![name], learnt: 0 }
}

/// A client has bumped a tag: what it stores from now on is newer than that.
pub(super) fn client_bumped(of: &Guarded, bump: &Bump, proxy: &Proxy, client: &Client) {
    if let Some(step) = bump.step().filter(|_| client.was_told_a_miss()) {
        let tags = |key: &[u8]| proxy.guarded(key).map(|guarded| guarded.tags).unwrap_or_default();
        proxy.desk.all().for_each(|mut leases| leases.bumped(client.owner, &of.tags[0], step, tags));
    }
}

/// Whether a meta command has no flags but these.
pub(super) fn only(meta: &Meta<'_>, flags: &[u8]) -> bool {
    meta.tokens().all(|(flag, _)| flags.contains(&flag))
}

fn reserved() -> Run {
    Run::Said(Said::Verbatim(Bytes::from_static(RESERVED)), Outcome::ClientError)
}

/// `set` and `add` may end a rebuild, and so may a store that names the CAS of its miss; every other looks before it writes.
fn begin_store(how: How, offer: Offer, of: &Guarded, proxy: &Rc<Proxy>, client: &Client) -> Run {
    if how == How::Set && offer.lifetime == Lifetime::Gone {
        let says = (Said::Stored(Cas::NONE), Some(Outcome::Stored));
        return begin_delete(Removal::default(), of, Some(says), proxy, client);
    }
    let looks = match how {
        How::Set | How::Named { .. } => false,
        How::Add => offer.lifetime == Lifetime::Gone,
        How::Replace | How::Cas(_) => true,
    };
    if looks || (how == How::Add && client.was_refused(of, proxy)) {
        return begin_modify(how.change(offer), of, proxy, client);
    }
    let rule = proxy.metric(of.guard);
    let now = proxy.now();
    let scene = proxy.scene(of, proxy.policy(of.guard), now, false);
    let mut leases = proxy.desk.of(&of.key);
    let mut paired = None;
    let ends_miss = match how {
        How::Named { cas, .. } => leases.was_shown(&of.key, cas, client.owner),
        _ => how != How::Add,
    };
    let attribution = match how {
        // That is no value to fill with; what stands there is deleted if it is still the one that was named.
        How::Named { .. } if offer.lifetime == Lifetime::Gone => Attribution::Blind,
        How::Named { cas, .. } => leases.named(&of.key, cas, client.owner, false),
        _ => {
            let (setter, pair) = setter(&mut leases, of, proxy, client, now);
            paired = pair;
            leases.attribute(&of.key, setter, now)
        }
    };
    if let Some(paired) = paired.filter(|_| attribution != Attribution::Renewing) {
        client.pooling.note(paired, &proxy.metrics);
    }
    // An `add` that stores nothing ends no miss, nor does a CAS of another: what is set behind it may have been built as long ago.
    if attribution != Attribution::Renewing && ends_miss {
        client.end_miss(of, proxy);
    }
    match attribution {
        Attribution::Renewing => await_renewal(&mut leases, of, Then::Store(how, offer)),
        Attribution::Doomed => {
            proxy.metrics.fill_dropped(rule, DropReason::Gone);
            dropped(how, of, proxy, client)
        }
        Attribution::Unknown => {
            proxy.metrics.fill_dropped(rule, DropReason::Unknown);
            Run::Said(Said::Verbatim(Bytes::from_static(UNKNOWN_MISS)), Outcome::ServerError)
        }
        // Somebody has filled it since the miss.
        Attribution::Fill { ticket, owner, .. } if how == How::Add && ticket.filled => {
            if owner.is_none() {
                let ended = leases.saw(&of.key, client.owner, ticket, proxy.policy(of.guard));
                drop(leases);
                proxy.give_back(ended);
            }
            dropped(how, of, proxy, client)
        }
        Attribution::Blind => {
            drop(leases);
            if how != How::Set {
                return begin_modify(how.change(offer), of, proxy, client);
            }
            let (set, asks) = Set::start(offer, &scene);
            Run::Set(Operation::start(set, asks, of, proxy, &client.inbox))
        }
        Attribution::Fill { ticket, lease, owner } => {
            drop(leases);
            let (fill, step) = Fill::start(&ticket, offer.clone(), how == How::Add, &scene);
            let filling = Filling { how, offer, ticket, lease, owner };
            match step {
                Step::Ask(asks) => {
                    let run = Operation::start(fill, asks, of, proxy, &client.inbox);
                    Run::Fill { run, filling }
                }
                _ if proxy.home(of).lack().is_some() => {
                    Run::Said(Said::Failed(Failure::Unguarded), Outcome::ServerError)
                }
                _ => {
                    proxy.metrics.fill_dropped(rule, DropReason::Unreachable);
                    Run::Said(Said::Verbatim(Bytes::from_static(UNKNOWN_BASE)), Outcome::ServerError)
                }
            }
        }
    }
}

/// What the client is told of a value that is dropped: a `set`, that it was stored, because that is what "stored, then invalidated"
/// looks like. An `add` tells clients apart, so only what is stored is called so.
fn dropped(how: How, of: &Guarded, proxy: &Proxy, client: &Client) -> Run {
    match how {
        How::Add => {
            client.refuse_add(of, proxy);
            Run::Said(Said::NotStored, Outcome::NotStored)
        }
        _ => Run::Said(Said::Stored(Cas::NONE), Outcome::FillDropped),
    }
}

/// A renewal moves what this is about: it goes on once that has ended.
fn await_renewal(leases: &mut Leases<Bell>, of: &Guarded, then: Then) -> Run {
    let (bell, hears) = oneshot::channel();
    leases.await_renewal(&of.key, bell);
    Run::Renewal { bell: hears, then }
}

fn begin_modify(change: Change, of: &Guarded, proxy: &Rc<Proxy>, client: &Client) -> Run {
    let over = match &change {
        // What these store may be as old as a miss that the client was told.
        Change::Replace(_)
        | Change::Count(Count { create: Some(_), .. })
        | Change::Append { create: Some(_), .. }
        | Change::Prepend { create: Some(_), .. }
            if matches!(change, Change::Replace(_)) || !client.was_refused(of, proxy) =>
        {
            let mut leases = proxy.desk.of(&of.key);
            match leases.bound(&of.key, client.owner, client.told(of, proxy)) {
                Bound::Free => None,
                Bound::Over(base) => Some(base),
                Bound::Renewing => return await_renewal(&mut leases, of, Then::Modify(change)),
                Bound::Unknown => {
                    return Run::Said(Said::Verbatim(Bytes::from_static(UNKNOWN_MISS)), Outcome::ServerError);
                }
            }
        }
        _ => None,
    };
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (modify, asks) = Modify::bound(change, over, &scene);
    Run::Modify(Operation::start(modify, asks, of, proxy, &client.inbox))
}

fn begin_delete(
    mut removal: Removal,
    of: &Guarded,
    says: Option<(Said, Option<Outcome>)>,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> Run {
    let ended = {
        let mut leases = proxy.desk.of(&of.key);
        match removal.compare {
            // Before it is sent: a lease that is granted from now on may well begin after it.
            None => {
                client.end_miss(of, proxy);
                leases.invalidate(&of.key, client.owner)
            }
            // It takes effect only where every fill for what it removes fails by itself. If it names a lease, that one is given
            // up, under the CAS that its renewals have given it.
            Some(cas) => match leases.named(&of.key, cas, client.owner, true) {
                Attribution::Fill { ticket, lease, owner } => {
                    if owner.is_none() {
                        client.end_miss(of, proxy);
                    }
                    removal.compare = ticket.base.map(|base| base.number);
                    usize::from(lease)
                }
                Attribution::Renewing => return await_renewal(&mut leases, of, Then::Remove(removal)),
                Attribution::Blind | Attribution::Doomed | Attribution::Unknown => 0,
            },
        }
    };
    for _ in 0..ended {
        proxy.metrics.lease_ended(proxy.metric(of.guard), LeaseEnd::Released, Duration::ZERO);
    }
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (delete, asks) = Delete::removing(removal, &scene);
    Run::Delete { run: Operation::start(delete, asks, of, proxy, &client.inbox), says }
}

/// Whoever has written a value or was told a number: their miss of it is over.
fn seen(end: ModifyEnd, of: &Guarded, scope: &Scope<'_>) -> ModifyEnd {
    match &end {
        ModifyEnd::Stored(cas) => end_earlier_miss(of, cas.number, scope),
        ModifyEnd::Dropped => end_earlier_miss(of, 0, scope),
        ModifyEnd::Extended { cas, created: false, .. } => end_earlier_miss(of, cas.number, scope),
        ModifyEnd::Counted(counted) if !counted.created => end_earlier_miss(of, counted.cas.number, scope),
        _ => {}
    }
    end
}

/// A count or an append has created the value: that ends the client's lease like a fill.
fn created(of: &Guarded, proxy: &Proxy, client: &Client) {
    let (lease, bells) = proxy.desk.of(&of.key).created(&of.key, client.owner);
    ring(bells, WaitEnd::Filled);
    if let Some(lease) = lease {
        let took = proxy.now().mono.saturating_sub(lease.at.mono);
        let rule = proxy.metric(of.guard);
        proxy.metrics.lease_ended(rule, LeaseEnd::Filled, Duration::from_millis(took));
    }
}
