//! A read of one guarded key: its outcome for the client, and the lease or miss that it leaves.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::time::{Instant, Sleep, sleep};

use super::driver::Driver;
use super::misses::end_earlier_miss;
use super::near::{JoinedRead, NearAnswer};
use super::outage::{Grant, OutageWait};
use super::tag_reads::{TagIndexes, TagReads};
use super::take_over::TakeOver;
use super::wire;
use crate::error::Failure;
use crate::guard::leases::Unread;
use crate::guard::near::NearValue;
use crate::guard::{
    Change, Expiry, Hit, Item, Modify, ModifyEnd, Operation, Read, ReadEnd, ReadOptions, Replies,
    ServerReply, fresh_hit,
};
use crate::metrics::Outcome;
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::observe::SeenKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::replies::large::is_large;
use crate::proxy::replies::outcome::{ItemMarks, ReadOutcome};
use crate::proxy::scope::CallScope;
use crate::proxy::state::near_cache::NearRead;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

mod without_server;

/// The pause before a read that waits for the place of its key looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A read in flight.
pub(crate) struct GuardedRead {
    pub(crate) key: GuardedKey,
    options: ReadOptions,
    state: State,
    /// `Some` while other reads may join this one.
    near_read: Option<Box<NearRead>>,
    /// Why nothing is known of the item.
    unread: Option<Unread>,
    /// A value has been taken over from the previous placement, or another client has changed the key meanwhile.
    took_over: bool,
}

enum State {
    NotBegun,
    /// The first round trip, without a state machine. Usually the value is fresh, and no more is needed.
    FirstGet(FirstGet),
    Reading(Box<Driver<Read>>),
    /// Waiting for the result of another read.
    Joined(Box<JoinedRead>),
    /// Served from the near cache.
    Near(Rc<NearValue>),
    Touching(Box<Driver<Modify>>, Hit, ItemMarks),
    /// The key's server gives no answer, and another client builds the value.
    Outage(Box<OutageWait>),
    /// Its place is about to move, or an item that it needs is in one that is.
    Held(Pin<Box<Sleep>>),
    /// A value is being taken over from the previous placement.
    TakingOver(Box<TakeOver>),
    Done(ReadOutcome),
}

/// The first commands of a [`Read`], sent without the state machine. The machine can continue from their replies.
struct FirstGet {
    /// When they were sent. Waiting times count from here.
    began: Instant,
    options: ReadOptions,
    item: ReplyId,
    /// Whether the command of another reader is shared. A stub that it leaves belongs to that reader.
    shared: bool,
    tags: TagIndexes,
}

impl FirstGet {
    /// Once all replies have arrived: the fresh value, or the replies for the state machine.
    fn end(
        &self,
        key: &GuardedKey,
        tags: &mut TagReads,
        proxy: &Proxy,
        pending: &PendingReplies,
    ) -> Result<Hit, Box<Replies>> {
        let policy = proxy.policy_of(key);
        let clear = tags.settle(&self.tags, proxy, pending);
        let mut item = match pending.take(self.item) {
            Some(reply) => wire::decode_reply(&Operation::Get(Read::first_get(self.options, policy)), reply),
            None => ServerReply::Failed(Failure::Down),
        };
        if let (true, ServerReply::Item(Item { won, size, ttl, .. })) = (self.shared, &mut item)
            && std::mem::take(won)
            && *size == 0
        {
            // A server reports no TTL for a stub that this very command has left.
            *ttl = Some(policy.lock_seconds());
        }
        if clear
            && let ServerReply::Item(item) = &mut item
            && let Some(hit) = fresh_hit(item, tags.versions(&self.tags), key.place.fence(), policy)
        {
            return Ok(hit);
        }
        let mut replies = Box::new(Replies::new());
        replies.push(item);
        tags.put_replies(&self.tags, proxy.plan.tag_copies, &mut replies);
        Err(replies)
    }
}

impl GuardedRead {
    /// A read that has not begun.
    pub(crate) fn new(key: GuardedKey) -> GuardedRead {
        GuardedRead {
            key,
            options: ReadOptions::default(),
            state: State::NotBegun,
            near_read: None,
            unread: None,
            took_over: false,
        }
    }

    /// Requests the key and its tags. `exptime`: the new exptime of a fresh value, for `gat`. `near`: whether a near value may be
    /// served, and none of the tags has been requested in an earlier turn.
    pub(crate) fn begin(
        &mut self,
        options: ReadOptions,
        exptime: Option<i64>,
        near: bool,
        tags: &mut TagReads,
        proxy: &Proxy,
        client: &Client,
    ) {
        self.options = options;
        let answer =
            if near { proxy.near_answer(&self.key, options, client) } else { NearAnswer::Read(None) };
        let plain = options.recache.is_none() && exptime.is_none() && self.key.has_view();
        match answer {
            NearAnswer::Read(near_read) if plain => {
                self.near_read = near_read;
                self.state = self.first_get(options, tags, proxy, client);
            }
            answer => self.apply(answer, options, proxy, client),
        }
    }

    fn first_get(&self, options: ReadOptions, tags: &mut TagReads, proxy: &Proxy, client: &Client) -> State {
        let (key, pending) = (&self.key, &client.pending);
        let command = Operation::Get(Read::first_get(options, proxy.policy_of(key)));
        let write = |out: &mut BytesMut| wire::encode(&command, &key.key, out);
        // Each read changes the usage of an item, so such a read is not shared.
        let (item, shared) = match options.usage || options.unseen {
            true => (proxy.connection_of(key).send_guard(pending, None, write), false),
            false => proxy.connection_of(key).read(pending, write),
        };
        let tags = tags.request(key, proxy, client);
        State::FirstGet(FirstGet { began: client.turn_time(), options, item, shared, tags })
    }

    fn apply(&mut self, answer: NearAnswer, options: ReadOptions, proxy: &Proxy, client: &Client) {
        self.state = match answer {
            NearAnswer::Hit(value) => State::Near(value),
            NearAnswer::Join(joined) => State::Joined(joined),
            NearAnswer::Read(near_read) => {
                self.near_read = near_read;
                // The tag versions that the request has read may be older than this read.
                let inputs = proxy.inputs(&self.key, proxy.policy_of(&self.key), proxy.now(), true);
                let (read, commands) = Read::with_options(options, &inputs);
                let read = Driver::start(read, commands, &self.key, proxy, &client.pending);
                State::Reading(Box::new(read.for_reader(client)))
            }
        };
    }

    /// Reads again what has changed during the request. All its waits together are limited from the beginning of the request.
    fn read_again(&mut self, scope: &CallScope<'_>) {
        let CallScope { proxy, client, .. } = scope;
        self.options.began = Some(proxy.mono(scope.began()));
        self.apply(NearAnswer::Read(None), self.options, proxy, client);
    }

    /// The outcome, once it is known.
    pub(crate) fn outcome(&self) -> Option<&ReadOutcome> {
        match &self.state {
            State::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Whether it waits for another client's build.
    pub(crate) fn waits_for_build(&self) -> bool {
        match &self.state {
            State::Reading(read) => read.is_waiting(),
            State::Outage(_) => true,
            _ => false,
        }
    }

    /// Returns true once the outcome is known. `exptime`: the new exptime of a fresh value. Sets `won` if the client wins.
    pub(crate) fn poll(
        &mut self,
        exptime: Option<i64>,
        tags: &mut TagReads,
        may_wait: bool,
        won: &mut bool,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let CallScope { proxy, client, .. } = scope;
        let outcome = match &mut self.state {
            State::Done(_) => return true,
            State::NotBegun => return false,
            State::FirstGet(first) => {
                if !client.pending.has_arrived(first.item) || !tags.have_arrived(&first.tags, &client.pending)
                {
                    return false;
                }
                match first.end(&self.key, tags, proxy, &client.pending) {
                    Ok(hit) => self.finish(ReadEnd::Fresh(hit), may_wait, won, scope),
                    Err(replies) => {
                        let mut read = Box::new(
                            Driver::without_commands(
                                Read::after_first_get(first.options, proxy.mono(first.began)),
                                proxy.now(),
                            )
                            .for_reader(client),
                        );
                        let end = read.resume_with(*replies, &self.key, may_wait, proxy, &client.pending, cx);
                        let is_waiting = read.is_waiting();
                        self.state = State::Reading(read);
                        match end {
                            Poll::Pending => {
                                if is_waiting {
                                    self.share(None, proxy);
                                }
                                return false;
                            }
                            Poll::Ready(end) if self.goes_on(&end, scope) => {
                                return self.poll(exptime, tags, may_wait, won, scope, cx);
                            }
                            Poll::Ready(end) => self.finish(end, may_wait, won, scope),
                        }
                    }
                }
            }
            State::Near(value) => {
                let rule = proxy.rule_of(self.key.guard);
                let bytes = value.hit().payload.len();
                scope.count(rule, Outcome::Hit, || SeenKey::guarded(&self.key, bytes, proxy).near());
                proxy.metrics.near_hit(rule);
                let mut hit = value.hit().clone();
                // A large payload is not copied. It counts towards the memory of the client that it is written to.
                if is_large(&hit.payload) {
                    hit.payload = client.pending.keep(hit.payload);
                }
                let marks = ItemMarks::of(hit.cas.number);
                Some(ReadOutcome::Value(hit, marks))
            }
            State::Joined(joined) => match proxy.poll_joined_read(joined, &self.key, cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(failure)) => self.failed(failure, may_wait, won, scope),
                Poll::Ready(Ok(answer)) => {
                    let options = joined.options;
                    self.apply(answer, options, proxy, client);
                    return self.poll(exptime, tags, may_wait, won, scope, cx);
                }
            },
            State::Reading(read) => {
                match (read.poll(&self.key, may_wait, proxy, &client.pending, cx), exptime) {
                    (Poll::Pending, _) => {
                        if read.is_waiting() {
                            self.share(None, proxy);
                        }
                        return false;
                    }
                    (Poll::Ready(end @ (ReadEnd::Fresh(_) | ReadEnd::Refreshing(_))), Some(exptime)) => {
                        let held = matches!(end, ReadEnd::Refreshing(_));
                        let (ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) = end else { return true };
                        let now = proxy.now();
                        let change = Change::Touch(Expiry::of(exptime, now));
                        let inputs = proxy.inputs(&self.key, proxy.policy_of(&self.key), now, false);
                        let (modify, commands) = Modify::start(change, &inputs);
                        let touch = Driver::start(modify, commands, &self.key, proxy, &client.pending);
                        let marks = ItemMarks { held, ..ItemMarks::of(hit.cas.number) };
                        self.state = State::Touching(Box::new(touch), hit, marks);
                        return self.poll(Some(exptime), tags, may_wait, won, scope, cx);
                    }
                    (Poll::Ready(end), _) if self.goes_on(&end, scope) => {
                        return self.poll(exptime, tags, may_wait, won, scope, cx);
                    }
                    (Poll::Ready(end), _) => self.finish(end, may_wait, won, scope),
                }
            }
            State::Touching(modify, hit, marks) => {
                let end = modify.poll(&self.key, may_wait, proxy, &client.pending, cx);
                match end {
                    Poll::Pending => return false,
                    Poll::Ready(ModifyEnd::Touched(touched)) => {
                        end_earlier_miss(&self.key, touched.cas.number, scope);
                        let seen = || SeenKey::guarded(&self.key, hit.payload.len(), proxy);
                        scope.count(proxy.rule_of(self.key.guard), Outcome::Hit, seen);
                        // This command may have expired the value.
                        let hit = match touched.cas.number {
                            0 => hit.clone(),
                            // Only the first read requested the usage, and it counts as a use itself.
                            _ => Hit { usage: hit.usage, ..touched },
                        };
                        Some(ReadOutcome::Value(hit, *marks))
                    }
                    Poll::Ready(ModifyEnd::Failed(failure)) => self.failed(failure, may_wait, won, scope),
                    // The value has gone since it was read. Read again.
                    Poll::Ready(_) => {
                        self.apply(NearAnswer::Read(None), self.options, proxy, client);
                        return self.poll(exptime, tags, may_wait, won, scope, cx);
                    }
                }
            }
            State::Held(timer) => {
                if timer.as_mut().poll(cx).is_pending() {
                    return false;
                }
                match proxy.holds_guarded(&self.key) {
                    true => self.state = State::Held(Box::pin(sleep(LOOK_AGAIN))),
                    false => {
                        self.key = proxy.placed_again(&self.key);
                        self.read_again(scope);
                    }
                }
                return self.poll(exptime, tags, may_wait, won, scope, cx);
            }
            State::TakingOver(take_over) => match take_over.poll(&self.key, proxy, client) {
                Poll::Pending => return false,
                Poll::Ready(Some(end)) => self.finish(end, may_wait, won, scope),
                Poll::Ready(None) => {
                    self.took_over = true;
                    self.read_again(scope);
                    return self.poll(exptime, tags, may_wait, won, scope, cx);
                }
            },
            State::Outage(wait) => match proxy.poll_outage(wait, &self.key, may_wait, client, cx) {
                Poll::Pending => return false,
                Poll::Ready(answer) if wait.has_won => self.after_wait_of_winner(answer, won, scope),
                Poll::Ready(answer) => self.without_server(answer, won, scope),
            },
        };
        match outcome {
            Some(outcome) => {
                self.state = State::Done(outcome);
                true
            }
            // It waits for another client.
            None => self.poll(exptime, tags, may_wait, won, scope, cx),
        }
    }

    /// Reads again in the key's new place if the old one was replaced during the read. Or takes a value over from the
    /// previous placement.
    fn goes_on(&mut self, end: &ReadEnd, scope: &CallScope<'_>) -> bool {
        let CallScope { proxy, client, .. } = scope;
        if proxy.other.is_some()
            && !self.took_over
            && let Some(take_over) = TakeOver::begin(end, &self.key, proxy, client)
        {
            self.share(None, proxy);
            self.state = State::TakingOver(Box::new(take_over));
            return true;
        }
        if !matches!(end, ReadEnd::Failed(Failure::NoView)) {
            return false;
        }
        if proxy.holds_guarded(&self.key) {
            self.share(None, proxy);
            self.state = State::Held(Box::pin(sleep(LOOK_AGAIN)));
            return true;
        }
        let key = proxy.placed_again(&self.key);
        if !key.has_view() || key.place == self.key.place {
            return false;
        }
        self.share(None, proxy);
        self.key = key;
        self.read_again(scope);
        true
    }

    fn fresh(&self, hit: Hit, scope: &CallScope<'_>) -> ReadOutcome {
        end_earlier_miss(&self.key, hit.cas.number, scope);
        let seen = || SeenKey::guarded(&self.key, hit.payload.len(), scope.proxy);
        scope.count(scope.proxy.rule_of(self.key.guard), Outcome::Hit, seen);
        let marks = ItemMarks::of(hit.cas.number);
        ReadOutcome::Value(hit, marks)
    }

    /// Passes the end of this read to the reads that have joined it. `None`: it goes on in a way that they must not wait for.
    fn share(&mut self, end: Option<&ReadEnd>, proxy: &Proxy) {
        if let Some(near_read) = self.near_read.take() {
            proxy.end_near_read(&self.key, *near_read, end);
        }
    }

    /// The outcome. `None`: it waits for another client.
    fn finish(
        &mut self,
        end: ReadEnd,
        may_wait: bool,
        won: &mut bool,
        scope: &CallScope<'_>,
    ) -> Option<ReadOutcome> {
        let CallScope { proxy, client, .. } = scope;
        self.share(Some(&end), proxy);
        let key = &self.key;
        let (rule, policy) = (proxy.rule_of(key.guard), proxy.policy_of(key));
        Some(match end {
            ReadEnd::Fresh(hit) => self.fresh(hit, scope),
            ReadEnd::Refreshing(hit) => {
                end_earlier_miss(key, hit.cas.number, scope);
                scope.count(rule, Outcome::Hit, || SeenKey::guarded(key, hit.payload.len(), proxy));
                let marks = ItemMarks { held: true, ..ItemMarks::of(hit.cas.number) };
                ReadOutcome::Value(hit, marks)
            }
            ReadEnd::Stale(hit) => {
                scope.count(rule, Outcome::Stale, || SeenKey::guarded(key, hit.payload.len(), proxy));
                client.note_stale(key, &hit, proxy);
                proxy.metrics.stale_served(rule, Duration::from_millis(hit.stale_ms), hit.stale.counted());
                let marks = ItemMarks { stale: true, held: true, ..ItemMarks::of(hit.cas.number) };
                ReadOutcome::Value(hit, marks)
            }
            ReadEnd::Won { lease, early, old } => {
                client.note_miss(key, proxy);
                let cas = lease.observed_cas.map_or(0, |cas| cas.number);
                let stale = !early && old.is_some();
                match (self.grant(lease, old.is_some(), may_wait, scope), old) {
                    (Grant::Waits(wait), _) => {
                        self.state = State::Outage(wait);
                        return None;
                    }
                    (Grant::NotNeeded, Some(old)) => {
                        proxy.give_up_win(key, client);
                        let end = if early { ReadEnd::Refreshing(old) } else { ReadEnd::Stale(old) };
                        return self.finish(end, may_wait, won, scope);
                    }
                    (Grant::Builds | Grant::NotNeeded, old) => {
                        *won = true;
                        scope.count(rule, Outcome::MissWon, || SeenKey::guarded(key, 0, proxy).early(early));
                        ReadOutcome::Won { old, marks: ItemMarks { stale, won: true, ..ItemMarks::of(cas) } }
                    }
                }
            }
            // Nothing decides who builds, as without an answer of the key's own server.
            ReadEnd::Missed { seen, held: false } if seen.observed_cas.is_none() => {
                return self.without_stub(seen.unread, may_wait, won, scope);
            }
            ReadEnd::Missed { seen, held } => {
                client.note_miss(key, proxy);
                let outcome = if held { Outcome::MissHeld } else { Outcome::Miss };
                scope.count(rule, outcome, || SeenKey::guarded(key, 0, proxy));
                let cas = seen.observed_cas.filter(|_| held).map(|cas| cas.number);
                let ended = proxy.leases.shard(&key.key).record_miss(&key.key, client.owner, seen, policy);
                proxy.release(ended);
                ReadOutcome::Miss(cas)
            }
            ReadEnd::Failed(failure) => return self.failed(failure, may_wait, won, scope),
        })
    }
}
