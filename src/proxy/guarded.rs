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
use super::desk::{WaitSender, wake_all};
use super::fills::{PendingFill, StoreKind, count_plain, filled, setter};
use super::operation::{Driver, GuardedKey};
use super::read::end_earlier_miss;
use super::scope::CallScope;
use super::wording::{Dialect, WriteOutcome};
use crate::error::Failure;
use crate::guard::leases::{Attribution, Leases, StoreCondition};
use crate::guard::{
    Bump, BumpEnd, Cas, Change, Count, Delete, DeleteEnd, Expiry, Fill, Modify, ModifyEnd, NewValue, Removal,
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
pub(super) struct GuardedWrite {
    of: GuardedKey,
    voice: Dialect,
    run: State,
}

enum State {
    /// Its lease is being renewed at this moment.
    Renewal {
        bell: oneshot::Receiver<WaitEnd>,
        then: AfterRenewal,
    },
    Fill {
        run: Driver<Fill>,
        filling: PendingFill,
    },
    Set(Driver<Set>),
    Modify(Driver<Modify>),
    Delete {
        run: Driver<Delete>,
        /// Said in place of its own end; counted here, unless that was done where it was refused.
        says: Option<(WriteOutcome, Option<Outcome>)>,
    },
    Bump {
        run: Driver<Bump>,
        delete: bool,
    },
    Reply(WriteOutcome, Outcome),
}

/// What waits for the end of a renewal.
#[derive(Debug, Clone)]
enum AfterRenewal {
    Store(StoreKind, NewValue),
    Modify(Change),
    Remove(Removal),
}

impl GuardedWrite {
    /// A classic command on a guarded key.
    pub(super) fn begin(
        request: &Request<'_>,
        of: GuardedKey,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let now = proxy.now();
        let modify = |change| begin_modify(change, &of, proxy, client);
        let run = match *request {
            Request::Store(Store { verb, flags, exptime, data, .. }) => {
                let tags = of.learnt();
                let body = Bytes::copy_from_slice(data);
                let offer =
                    |body| NewValue { body, flags, lifetime: Expiry::of(exptime, now), explicit: None, tags };
                match verb {
                    Verb::Append => {
                        modify(Change::Append { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Prepend => {
                        modify(Change::Prepend { more: body, compare: None, explicit: None, create: None })
                    }
                    Verb::Set => begin_store(StoreKind::Set, offer(body), &of, proxy, client),
                    Verb::Add => begin_store(StoreKind::Add, offer(body), &of, proxy, client),
                    Verb::Replace => begin_store(StoreKind::Replace, offer(body), &of, proxy, client),
                    Verb::Cas(number) => begin_store(StoreKind::Cas(number), offer(body), &of, proxy, client),
                }
            }
            Request::Arith { decr, delta, .. } => {
                modify(Change::Count(Count { decr, delta, ..Count::default() }))
            }
            Request::Touch { exptime, .. } => modify(Change::Touch(Expiry::of(exptime, now))),
            Request::Delete { .. } => begin_delete(Removal::default(), &of, None, proxy, client),
            // Nothing else writes one key.
            _ => State::Reply(WriteOutcome::Verbatim(Bytes::from_static(b"ERROR\r\n")), Outcome::Error),
        };
        GuardedWrite { of, voice: Dialect::Classic, run }
    }

    /// A meta command that writes a guarded key.
    pub(super) fn meta(
        meta: &Meta<'_>,
        of: GuardedKey,
        voice: Dialect,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let now = proxy.now();
        let options = meta.options();
        let (compare, explicit) = (options.compare, options.explicit);
        let lifetime = options.exptime.map(|exptime| Expiry::of(exptime, now));
        // What is created with both `N` and `T` lasts as long as the later one says.
        let times = meta.tokens().filter(|(flag, _)| b"NT".contains(flag));
        let created = times.last().map(|(_, token)| Expiry::of(exptime(token), now));
        // Where memcached looks at a value in order to change it, it takes a CAS of 0 for none.
        let changes = compare.filter(|&cas| cas != 0);
        let modify = |change| begin_modify(change, &of, proxy, client);
        let run = match meta.verb {
            MetaVerb::Set => {
                let body = Bytes::copy_from_slice(meta.data);
                let lifetime = lifetime.unwrap_or(Expiry::Never);
                let tags = of.learnt();
                let offer = |body| NewValue { body, flags: options.flags, lifetime, explicit, tags };
                // An append that creates takes its time from `N` alone.
                let create = |body| {
                    let lifetime = Expiry::of(options.vivify?, now);
                    Some(Box::new(NewValue {
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
                    (b'E', _) => begin_store(StoreKind::Add, offer(body), &of, proxy, client),
                    (_, Some(cas)) => {
                        let how = StoreKind::MetaCas { cas, invalidate: options.invalidate };
                        begin_store(how, offer(body), &of, proxy, client)
                    }
                    (b'R', None) => begin_store(StoreKind::Replace, offer(body), &of, proxy, client),
                    (_, None) => begin_store(StoreKind::Set, offer(body), &of, proxy, client),
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
                let endless = if options.invalidate { Expiry::Seconds(0) } else { Expiry::Never };
                let lifetime = lifetime.filter(|_| !options.invalidate).unwrap_or(endless);
                modify(Change::Empty { compare, lifetime, explicit })
            }
            _ => {
                let seconds = match lifetime {
                    Some(Expiry::Seconds(seconds)) => Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
                    Some(Expiry::Expired) => Some(0),
                    _ => None,
                };
                let removal = Removal { compare, stale: options.invalidate, seconds, explicit };
                begin_delete(removal, &of, None, proxy, client)
            }
        };
        GuardedWrite { of, voice, run }
    }

    /// The delete that goes with a value that was refused as too large, with the refusal said in its place.
    pub(super) fn delete_saying(
        of: GuardedKey,
        says: Bytes,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let says = Some((WriteOutcome::Verbatim(says), None));
        let run = begin_delete(Removal::default(), &of, says, proxy, client);
        GuardedWrite { of, voice: Dialect::Classic, run }
    }

    /// A command on the key of a tag: `delete` and `incr` bump it, and so do `md` and `ma`.
    pub(super) fn tag(
        request: &Request<'_>,
        name: TagName,
        voice: Dialect,
        proxy: &Rc<Proxy>,
        client: &Client,
    ) -> GuardedWrite {
        let (of, now) = (tag(name, proxy), proxy.now());
        let bump = |delete| {
            let scene = proxy.scene(&of, proxy.policy(of.guard), now, false);
            let (bump, asks) = Bump::start(&scene);
            State::Bump { run: Driver::start(bump, asks, &of, proxy, &client.inbox), delete }
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
        GuardedWrite { of, voice, run }
    }

    /// Once it is done: what became of it.
    pub(super) fn poll(
        &mut self,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Outcome> {
        let CallScope { proxy, client, .. } = scope;
        let of = &self.of;
        let inbox = &client.inbox;
        let (said, outcome) = match &mut self.run {
            State::Renewal { bell, then } => {
                // Rung or not: if the renewal has ended, the lease says so.
                let _ = ready!(Pin::new(bell).poll(cx));
                self.run = match then.clone() {
                    AfterRenewal::Store(how, offer) => begin_store(how, offer, of, proxy, client),
                    AfterRenewal::Modify(change) => begin_modify(change, of, proxy, client),
                    AfterRenewal::Remove(removal) => begin_delete(removal, of, None, proxy, client),
                };
                return self.poll(scope, cx, out);
            }
            State::Fill { run, filling } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                match filled(end, filling, of, proxy, client) {
                    Ok(said) => said,
                    Err(change) => {
                        self.run = begin_modify(change, of, proxy, client);
                        return self.poll(scope, cx, out);
                    }
                }
            }
            State::Set(run) => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                SetEnd::Stored { cas, plain } => {
                    count_plain(plain, of, proxy);
                    proxy.wake(&of.key, WaitEnd::Filled);
                    (WriteOutcome::Stored(cas), Outcome::Stored)
                }
                SetEnd::Dropped => {
                    proxy.metrics.fill_dropped(proxy.metric(of.guard), DropReason::Changed);
                    (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped)
                }
                SetEnd::TooLarge => (WriteOutcome::TooLarge, Outcome::ServerError),
                SetEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
            },
            State::Modify(run) => match seen(ready!(run.poll(of, false, proxy, inbox, cx)), of, scope) {
                ModifyEnd::Stored(cas) => (WriteOutcome::Stored(cas), Outcome::Stored),
                ModifyEnd::Dropped => {
                    proxy.metrics.fill_dropped(proxy.metric(of.guard), DropReason::Changed);
                    (WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped)
                }
                ModifyEnd::Extended { cas, size, created: new } => {
                    if new {
                        client.end_miss(of, proxy);
                        created(of, proxy, client);
                    }
                    (WriteOutcome::Extended(cas, size), Outcome::Stored)
                }
                ModifyEnd::NotStored => {
                    if run.machine().creates_value() {
                        client.refuse_add(of, proxy);
                    }
                    (WriteOutcome::NotStored, Outcome::NotStored)
                }
                ModifyEnd::Exists => (WriteOutcome::Exists, Outcome::Exists),
                ModifyEnd::NotFound => (WriteOutcome::NotFound, Outcome::NotFound),
                ModifyEnd::NotANumber => (WriteOutcome::NotANumber, Outcome::ClientError),
                ModifyEnd::Touched(_) => (WriteOutcome::Touched, Outcome::Touched),
                ModifyEnd::TooLarge => (WriteOutcome::TooLarge, Outcome::ServerError),
                ModifyEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                ModifyEnd::Counted(counted) => {
                    if counted.created {
                        client.end_miss(of, proxy);
                        created(of, proxy, client);
                    }
                    (WriteOutcome::Counted(counted), Outcome::Counted)
                }
            },
            State::Delete { run, says } => {
                let end = ready!(run.poll(of, false, proxy, inbox, cx));
                proxy.wake(&of.key, WaitEnd::Freed);
                let own = match end {
                    DeleteEnd::Deleted => (WriteOutcome::Deleted, Outcome::Deleted),
                    DeleteEnd::NotFound => (WriteOutcome::NotFound, Outcome::NotFound),
                    DeleteEnd::Exists => (WriteOutcome::Exists, Outcome::Exists),
                    DeleteEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                };
                match says.take() {
                    Some((says, outcome)) if !matches!(own.0, WriteOutcome::Failed(_)) => {
                        let Some(outcome) = outcome else {
                            self.voice.write(&says, out);
                            return Poll::Ready(Outcome::ServerError);
                        };
                        (says, outcome)
                    }
                    _ => own,
                }
            }
            State::Bump { run, delete } => match ready!(run.poll(of, false, proxy, inbox, cx)) {
                BumpEnd::Failed(failure) => (WriteOutcome::Failed(failure), Outcome::ServerError),
                BumpEnd::Bumped(version) => {
                    proxy.metrics.tag_bumped();
                    client_bumped(of, run.machine(), proxy, client);
                    (WriteOutcome::Bumped { version, delete: *delete }, Outcome::Bumped)
                }
            },
            State::Reply(said, outcome) => (said.clone(), *outcome),
        };
        self.voice.write(&said, out);
        scope.count(proxy.metric(of.guard), outcome);
        Poll::Ready(outcome)
    }
}

/// A tag, as what its bump is about.
pub(super) fn tag(name: TagName, proxy: &Proxy) -> GuardedKey {
    let guard = proxy.plan.tag_guard;
    // Nothing but the tag itself is asked for.
    GuardedKey { guard, place: 0, key: SmallVec::from_slice(&name), tags: smallvec![name], learnt: 0 }
}

/// A client has bumped a tag: what it stores from now on is newer than that.
pub(super) fn client_bumped(of: &GuardedKey, bump: &Bump, proxy: &Proxy, client: &Client) {
    if let Some(step) = bump.step().filter(|_| client.was_told_a_miss()) {
        let tags = |key: &[u8]| proxy.guarded(key).map(|guarded| guarded.tags).unwrap_or_default();
        proxy.desk.all().for_each(|mut leases| leases.record_bump(client.owner, &of.tags[0], step, tags));
    }
}

/// Whether a meta command has no flags but these.
pub(super) fn only(meta: &Meta<'_>, flags: &[u8]) -> bool {
    meta.tokens().all(|(flag, _)| flags.contains(&flag))
}

fn reserved() -> State {
    State::Reply(WriteOutcome::Verbatim(Bytes::from_static(RESERVED)), Outcome::ClientError)
}

/// `set` and `add` may end a rebuild, and so may a store that names the CAS of its miss; every other looks before it writes.
fn begin_store(
    how: StoreKind,
    offer: NewValue,
    of: &GuardedKey,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> State {
    if how == StoreKind::Set && offer.lifetime == Expiry::Expired {
        let says = (WriteOutcome::Stored(Cas::NONE), Some(Outcome::Stored));
        return begin_delete(Removal::default(), of, Some(says), proxy, client);
    }
    let looks = match how {
        StoreKind::Set | StoreKind::MetaCas { .. } => false,
        StoreKind::Add => offer.lifetime == Expiry::Expired,
        StoreKind::Replace | StoreKind::Cas(_) => true,
    };
    if looks || (how == StoreKind::Add && client.was_refused(of, proxy)) {
        return begin_modify(how.change(offer), of, proxy, client);
    }
    let rule = proxy.metric(of.guard);
    let now = proxy.now();
    let scene = proxy.scene(of, proxy.policy(of.guard), now, false);
    let mut leases = proxy.desk.of(&of.key);
    let mut paired = None;
    let ends_miss = match how {
        StoreKind::MetaCas { cas, .. } => leases.is_cas_of_miss(&of.key, cas, client.owner),
        _ => how != StoreKind::Add,
    };
    let attribution = match how {
        // That is no value to fill with; what stands there is deleted if it is still the one that was named.
        StoreKind::MetaCas { .. } if offer.lifetime == Expiry::Expired => Attribution::NoMiss,
        StoreKind::MetaCas { cas, .. } => leases.attribute_by_cas(&of.key, cas, client.owner, false),
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
        Attribution::Renewing => await_renewal(&mut leases, of, AfterRenewal::Store(how, offer)),
        Attribution::Invalidated => {
            proxy.metrics.fill_dropped(rule, DropReason::Gone);
            dropped(how, of, proxy, client)
        }
        Attribution::Unknown => {
            proxy.metrics.fill_dropped(rule, DropReason::Unknown);
            State::Reply(WriteOutcome::Verbatim(Bytes::from_static(UNKNOWN_MISS)), Outcome::ServerError)
        }
        // Somebody has filled it since the miss.
        Attribution::Fill { ticket, owner, .. } if how == StoreKind::Add && ticket.filled => {
            if owner.is_none() {
                let ended = leases.record_miss(&of.key, client.owner, ticket, proxy.policy(of.guard));
                drop(leases);
                proxy.give_back(ended);
            }
            dropped(how, of, proxy, client)
        }
        Attribution::NoMiss => {
            drop(leases);
            if how != StoreKind::Set {
                return begin_modify(how.change(offer), of, proxy, client);
            }
            let (set, asks) = Set::start(offer, &scene);
            State::Set(Driver::start(set, asks, of, proxy, &client.inbox))
        }
        Attribution::Fill { ticket, lease, owner } => {
            drop(leases);
            let (fill, step) = Fill::start(&ticket, offer.clone(), how == StoreKind::Add, &scene);
            let filling = PendingFill { how, offer, ticket, lease, owner };
            match step {
                Step::Send(asks) => {
                    let run = Driver::start(fill, asks, of, proxy, &client.inbox);
                    State::Fill { run, filling }
                }
                _ if proxy.home(of).missing_feature().is_some() => {
                    State::Reply(WriteOutcome::Failed(Failure::Unguarded), Outcome::ServerError)
                }
                _ => {
                    proxy.metrics.fill_dropped(rule, DropReason::Unreachable);
                    State::Reply(
                        WriteOutcome::Verbatim(Bytes::from_static(UNKNOWN_BASE)),
                        Outcome::ServerError,
                    )
                }
            }
        }
    }
}

/// What the client is told of a value that is dropped: a `set`, that it was stored, because that is what "stored, then invalidated"
/// looks like. An `add` tells clients apart, so only what is stored is called so.
fn dropped(how: StoreKind, of: &GuardedKey, proxy: &Proxy, client: &Client) -> State {
    match how {
        StoreKind::Add => {
            client.refuse_add(of, proxy);
            State::Reply(WriteOutcome::NotStored, Outcome::NotStored)
        }
        _ => State::Reply(WriteOutcome::Stored(Cas::NONE), Outcome::FillDropped),
    }
}

/// A renewal moves what this is about: it goes on once that has ended.
fn await_renewal(leases: &mut Leases<WaitSender>, of: &GuardedKey, then: AfterRenewal) -> State {
    let (bell, hears) = oneshot::channel();
    leases.await_renewal(&of.key, bell);
    State::Renewal { bell: hears, then }
}

fn begin_modify(change: Change, of: &GuardedKey, proxy: &Rc<Proxy>, client: &Client) -> State {
    let over = match &change {
        // What these store may be as old as a miss that the client was told.
        Change::Replace(_)
        | Change::Count(Count { create: Some(_), .. })
        | Change::Append { create: Some(_), .. }
        | Change::Prepend { create: Some(_), .. }
            if matches!(change, Change::Replace(_)) || !client.was_refused(of, proxy) =>
        {
            let mut leases = proxy.desk.of(&of.key);
            match leases.bound(&of.key, client.owner, client.known_miss(of, proxy)) {
                StoreCondition::Unconditional => None,
                StoreCondition::Observed(base) => Some(base),
                StoreCondition::Renewing => {
                    return await_renewal(&mut leases, of, AfterRenewal::Modify(change));
                }
                StoreCondition::Unknown => {
                    return State::Reply(
                        WriteOutcome::Verbatim(Bytes::from_static(UNKNOWN_MISS)),
                        Outcome::ServerError,
                    );
                }
            }
        }
        _ => None,
    };
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (modify, asks) = Modify::bound(change, over, &scene);
    State::Modify(Driver::start(modify, asks, of, proxy, &client.inbox))
}

fn begin_delete(
    mut removal: Removal,
    of: &GuardedKey,
    says: Option<(WriteOutcome, Option<Outcome>)>,
    proxy: &Rc<Proxy>,
    client: &Client,
) -> State {
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
            Some(cas) => match leases.attribute_by_cas(&of.key, cas, client.owner, true) {
                Attribution::Fill { ticket, lease, owner } => {
                    if owner.is_none() {
                        client.end_miss(of, proxy);
                    }
                    removal.compare = ticket.base.map(|base| base.number);
                    usize::from(lease)
                }
                Attribution::Renewing => {
                    return await_renewal(&mut leases, of, AfterRenewal::Remove(removal));
                }
                Attribution::NoMiss | Attribution::Invalidated | Attribution::Unknown => 0,
            },
        }
    };
    for _ in 0..ended {
        proxy.metrics.lease_ended(proxy.metric(of.guard), LeaseEnd::Released, Duration::ZERO);
    }
    let scene = proxy.scene(of, proxy.policy(of.guard), proxy.now(), false);
    let (delete, asks) = Delete::with_removal(removal, &scene);
    State::Delete { run: Driver::start(delete, asks, of, proxy, &client.inbox), says }
}

/// Whoever has written a value or was told a number: their miss of it is over.
fn seen(end: ModifyEnd, of: &GuardedKey, scope: &CallScope<'_>) -> ModifyEnd {
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
fn created(of: &GuardedKey, proxy: &Proxy, client: &Client) {
    let (lease, bells) = proxy.desk.of(&of.key).created(&of.key, client.owner);
    wake_all(bells, WaitEnd::Filled);
    if let Some(lease) = lease {
        let took = proxy.now().mono.saturating_sub(lease.at.mono);
        let rule = proxy.metric(of.guard);
        proxy.metrics.lease_ended(rule, LeaseEnd::Filled, Duration::from_millis(took));
    }
}
