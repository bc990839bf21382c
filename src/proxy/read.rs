//! One guarded key of a command that reads: what the client is shown of it, and what its leases come to know.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;

use super::client::Client;
use super::large::is_large;
use super::near::{JoinedRead, NearAnswer, NearRead};
use super::operation::{Driver, GuardedKey};
use super::scope::CallScope;
use super::tag_reads::{TagIndexes, TagReads};
use super::{Proxy, wire};
use crate::error::Failure;
use crate::guard::leases::{AfterHit, KnownMiss, MissToken};
use crate::guard::near::NearValue;
use crate::guard::{
    Change, Expiry, Hit, Item, Modify, ModifyEnd, Operation, Read, ReadEnd, ReadOptions, Replies,
    ServerReply, fresh_hit,
};
use crate::metrics::Outcome;
use crate::upstream::OnError;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// A read on its way.
pub(super) struct GuardedRead {
    pub(super) of: GuardedKey,
    wish: ReadOptions,
    state: State,
    /// If others may share the answer, what that takes.
    reading: Option<Box<NearRead>>,
}

enum State {
    /// Its turn has not come.
    Waiting,
    /// A first look, without a machine: mostly the value is fresh, and that is all there is to know.
    Looking(FirstLook),
    Reading(Box<Driver<Read>>),
    /// Another's read will do.
    Joined(Box<JoinedRead>),
    /// It was read a moment ago.
    Near(Rc<NearValue>),
    Touching(Box<Driver<Modify>>, Hit, ItemMarks),
    Done(ReadOutcome),
}

/// What was asked before there is a machine; in the same words, so that it can go on from the answers.
struct FirstLook {
    /// When, on the monotonic clock: all its waiting is counted from here.
    began: u64,
    wish: ReadOptions,
    item: ReplyId,
    /// Another reader's look has been joined, and a stub that it leaves is theirs.
    joined: bool,
    tags: TagIndexes,
}

/// What the client may be told.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    Value(Hit, ItemMarks),
    /// It is to rebuild the value, and may serve the old one meanwhile; the classic commands cannot say that, and say a miss, as
    /// does an `mg` that does not show that its client looks for `W`.
    Won {
        old: Option<Hit>,
        mark: ItemMarks,
    },
    /// With the CAS of the stub, if somebody builds it.
    Miss(Option<u64>),
    Failed(Failure),
}

/// What only meta commands can say about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemMarks {
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

impl ItemMarks {
    pub(super) fn of(cas: u64) -> ItemMarks {
        ItemMarks { cas, stale: false, held: false, won: false, stub: false }
    }
}

impl FirstLook {
    /// Once all is here: the fresh value, or what a machine has to go on from.
    fn end(
        &self,
        of: &GuardedKey,
        tags: &mut TagReads,
        proxy: &Proxy,
        inbox: &PendingReplies,
    ) -> Result<Hit, Box<Replies>> {
        let policy = proxy.policy(of.guard);
        let clear = tags.settle(&self.tags, proxy, inbox);
        let mut item = match inbox.take(self.item) {
            Some(reply) => wire::answer(&Operation::Get(Read::look(self.wish, policy)), reply),
            None => ServerReply::Failed(Failure::Down),
        };
        if let (true, ServerReply::Item(Item { won, size, ttl, .. })) = (self.joined, &mut item)
            && std::mem::take(won)
            && *size == 0
        {
            // Of a stub that it has just left, a server says that it lasts for ever.
            *ttl = Some(policy.lock_seconds());
        }
        if clear
            && let ServerReply::Item(item) = &mut item
            && let Some(hit) = fresh_hit(item, tags.versions(&self.tags), policy)
        {
            return Ok(hit);
        }
        let mut answers = Box::new(Replies::new());
        answers.push(item);
        tags.answers(&self.tags, proxy.plan.tag_copies, &mut answers);
        Err(answers)
    }
}

impl GuardedRead {
    /// A read to be begun later.
    pub(super) fn new(of: GuardedKey) -> GuardedRead {
        GuardedRead { of, wish: ReadOptions::default(), state: State::Waiting, reading: None }
    }

    /// Asks for the key and its tags. `exptime`: what a fresh value is to be given. `near`: whether it can be answered with a
    /// value that was read a moment ago, and none of the tags has been asked for in an earlier turn.
    pub(super) fn begin(
        &mut self,
        wish: ReadOptions,
        exptime: Option<i64>,
        near: bool,
        tags: &mut TagReads,
        proxy: &Proxy,
        client: &Client,
    ) {
        self.wish = wish;
        let how = if near { proxy.look_near(&self.of, wish, client) } else { NearAnswer::Reads(None) };
        let plain = wish.recache.is_none() && exptime.is_none();
        match how {
            NearAnswer::Reads(reading) if plain => {
                self.reading = reading;
                self.state = self.look(wish, tags, proxy, client);
            }
            how => self.go(how, wish, proxy, client),
        }
    }

    fn look(&self, wish: ReadOptions, tags: &mut TagReads, proxy: &Proxy, client: &Client) -> State {
        let (of, inbox) = (&self.of, &client.inbox);
        let ask = Operation::Get(Read::look(wish, proxy.policy(of.guard)));
        let write = |out: &mut BytesMut| wire::encode(&ask, &of.key, out);
        // How an item has been used changes with every look.
        let (item, joined) = match wish.usage || wish.unseen {
            true => (proxy.home(of).ask(inbox, None, write), false),
            false => proxy.home(of).read(inbox, write),
        };
        let tags = tags.ask(&of.tags, proxy, client);
        State::Looking(FirstLook { began: proxy.mono(client.moment()), wish, item, joined, tags })
    }

    fn go(&mut self, how: NearAnswer, wish: ReadOptions, proxy: &Proxy, client: &Client) {
        self.state = match how {
            NearAnswer::Hit(kept) => State::Near(kept),
            NearAnswer::Joins(joined) => State::Joined(joined),
            NearAnswer::Reads(reading) => {
                self.reading = reading;
                // What the request has read of the tags may be older than what this is to be noted for.
                let scene = proxy.scene(&self.of, proxy.policy(self.of.guard), proxy.now(), true);
                let (read, asks) = Read::with_options(wish, &scene);
                let read = Driver::start(read, asks, &self.of, proxy, &client.inbox);
                State::Reading(Box::new(read.read_by(client.owner)))
            }
        };
    }

    /// Once it is done: what to show.
    pub(super) fn shown(&self) -> Option<&ReadOutcome> {
        match &self.state {
            State::Done(shown) => Some(shown),
            _ => None,
        }
    }

    /// True once it is known what to show. `exptime`: what a fresh value is given. `won` becomes true with a win.
    pub(super) fn poll(
        &mut self,
        exptime: Option<i64>,
        tags: &mut TagReads,
        patient: bool,
        won: &mut bool,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
    ) -> bool {
        let CallScope { proxy, client, .. } = scope;
        let shown = match &mut self.state {
            State::Done(_) => return true,
            State::Waiting => return false,
            State::Looking(look) => {
                if !client.inbox.is_here(look.item) || !tags.are_here(&look.tags, &client.inbox) {
                    return false;
                }
                match look.end(&self.of, tags, proxy, &client.inbox) {
                    Ok(hit) => self.read(ReadEnd::Fresh(hit), won, scope),
                    Err(answers) => {
                        let mut read = Box::new(
                            Driver::idle(Read::answered(look.wish, look.began), proxy.now())
                                .read_by(client.owner),
                        );
                        let end = read.tell(*answers, &self.of, patient, proxy, &client.inbox, cx);
                        let waits = read.waits();
                        self.state = State::Reading(read);
                        match end {
                            Poll::Pending => {
                                if waits {
                                    self.share(None, proxy);
                                }
                                return false;
                            }
                            Poll::Ready(end) => self.read(end, won, scope),
                        }
                    }
                }
            }
            State::Near(kept) => {
                let rule = proxy.metric(self.of.guard);
                scope.count(rule, Outcome::Hit);
                proxy.metrics.near_hit(rule);
                let mut hit = kept.hit().clone();
                // What is said from where it lies counts as held by whom it is said to: nobody else's reply has it.
                if is_large(&hit.payload) {
                    hit.payload = client.inbox.keep(hit.payload);
                }
                let mark = ItemMarks::of(hit.cas.number);
                ReadOutcome::Value(hit, mark)
            }
            State::Joined(joined) => match proxy.poll_joined(joined, &self.of, cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(failure)) => self.failed(failure, scope),
                Poll::Ready(Ok(how)) => {
                    let wish = joined.wish;
                    self.go(how, wish, proxy, client);
                    return self.poll(exptime, tags, patient, won, scope, cx);
                }
            },
            State::Reading(read) => match (read.poll(&self.of, patient, proxy, &client.inbox, cx), exptime) {
                (Poll::Pending, _) => {
                    if read.waits() {
                        self.share(None, proxy);
                    }
                    return false;
                }
                (Poll::Ready(end @ (ReadEnd::Fresh(_) | ReadEnd::Refreshing(_))), Some(exptime)) => {
                    let held = matches!(end, ReadEnd::Refreshing(_));
                    let (ReadEnd::Fresh(hit) | ReadEnd::Refreshing(hit)) = end else { return true };
                    let now = proxy.now();
                    let change = Change::Touch(Expiry::of(exptime, now));
                    let scene = proxy.scene(&self.of, proxy.policy(self.of.guard), now, false);
                    let (modify, asks) = Modify::start(change, &scene);
                    let touch = Driver::start(modify, asks, &self.of, proxy, &client.inbox);
                    let mark = ItemMarks { held, ..ItemMarks::of(hit.cas.number) };
                    self.state = State::Touching(Box::new(touch), hit, mark);
                    return self.poll(Some(exptime), tags, patient, won, scope, cx);
                }
                (Poll::Ready(end), _) => self.read(end, won, scope),
            },
            State::Touching(modify, hit, mark) => {
                let end = modify.poll(&self.of, patient, proxy, &client.inbox, cx);
                match end {
                    Poll::Pending => return false,
                    Poll::Ready(ModifyEnd::Touched(touched)) => {
                        end_earlier_miss(&self.of, touched.cas.number, scope);
                        scope.count(proxy.metric(self.of.guard), Outcome::Hit);
                        // It may have ended with this very command.
                        let hit = match touched.cas.number {
                            0 => hit.clone(),
                            // Only the first look asked how it has been used, and counts as a use itself.
                            _ => Hit { usage: hit.usage, ..touched },
                        };
                        ReadOutcome::Value(hit, *mark)
                    }
                    Poll::Ready(ModifyEnd::Failed(failure)) => self.failed(failure, scope),
                    // It has gone since it was looked at: what stands there now is to be looked at as by any other reader.
                    Poll::Ready(_) => {
                        self.go(NearAnswer::Reads(None), self.wish, proxy, client);
                        return self.poll(exptime, tags, patient, won, scope, cx);
                    }
                }
            }
        };
        self.state = State::Done(shown);
        true
    }

    fn fresh(&self, hit: Hit, scope: &CallScope<'_>) -> ReadOutcome {
        end_earlier_miss(&self.of, hit.cas.number, scope);
        scope.count(scope.proxy.metric(self.of.guard), Outcome::Hit);
        let mark = ItemMarks::of(hit.cas.number);
        ReadOutcome::Value(hit, mark)
    }

    /// Tells those who wait for this read how it ended; `None`: it goes on in a way that they should not wait for.
    fn share(&mut self, end: Option<&ReadEnd>, proxy: &Proxy) {
        if let Some(reading) = self.reading.take() {
            proxy.near_read(&self.of, *reading, end);
        }
    }

    fn read(&mut self, end: ReadEnd, won: &mut bool, scope: &CallScope<'_>) -> ReadOutcome {
        let CallScope { proxy, client, .. } = scope;
        self.share(Some(&end), proxy);
        let of = &self.of;
        let (rule, policy) = (proxy.metric(of.guard), proxy.policy(of.guard));
        match end {
            ReadEnd::Fresh(hit) => self.fresh(hit, scope),
            ReadEnd::Refreshing(hit) => {
                end_earlier_miss(of, hit.cas.number, scope);
                scope.count(rule, Outcome::Hit);
                let mark = ItemMarks { held: true, ..ItemMarks::of(hit.cas.number) };
                ReadOutcome::Value(hit, mark)
            }
            ReadEnd::Stale(hit) => {
                scope.count(rule, Outcome::Stale);
                proxy.metrics.stale_served(rule, Duration::from_millis(hit.stale_ms));
                let mark = ItemMarks { stale: true, held: true, ..ItemMarks::of(hit.cas.number) };
                ReadOutcome::Value(hit, mark)
            }
            ReadEnd::Won { lease, early, old } => {
                *won = true;
                client.note_miss(of, proxy);
                scope.count(rule, Outcome::MissWon);
                let cas = lease.base.map_or(0, |base| base.number);
                let stale = !early && old.is_some();
                self.grant(lease, scope);
                ReadOutcome::Won { old, mark: ItemMarks { stale, won: true, ..ItemMarks::of(cas) } }
            }
            ReadEnd::Missed { seen, held } => {
                client.note_miss(of, proxy);
                scope.count(rule, if held { Outcome::MissHeld } else { Outcome::Miss });
                let cas = seen.base.filter(|_| held).map(|base| base.number);
                let ended = proxy.desk.of(&of.key).record_miss(&of.key, client.owner, seen, policy);
                proxy.give_back(ended);
                ReadOutcome::Miss(cas)
            }
            ReadEnd::Failed(failure) => self.failed(failure, scope),
        }
    }

    fn grant(&self, lease: MissToken, scope: &CallScope<'_>) {
        let CallScope { proxy, client, .. } = scope;
        let of = &self.of;
        let policy = proxy.policy(of.guard);
        let (id, ended) = proxy.desk.of(&of.key).grant(&of.key, client.owner, lease.clone(), policy);
        // `None`: a later win was heard of first.
        if let Some(id) = id {
            proxy.metrics.lease_granted();
            proxy.renew_lease_later(of, id, &lease);
        }
        proxy.give_back(ended);
    }

    /// The key's server is dead: as good as a miss, after which nothing may be stored that was built without knowing what
    /// stood there.
    fn failed(&self, failure: Failure, scope: &CallScope<'_>) -> ReadOutcome {
        let CallScope { proxy, client, .. } = scope;
        let of = &self.of;
        let rule = proxy.metric(of.guard);
        if proxy.pool_of(of.guard).on_error() == OnError::Error {
            scope.count(rule, Outcome::ServerError);
            return ReadOutcome::Failed(failure);
        }
        let seen = MissToken::nothing(proxy.now());
        client.note_miss(of, proxy);
        let ended = proxy.desk.of(&of.key).record_miss(&of.key, client.owner, seen, proxy.policy(of.guard));
        proxy.give_back(ended);
        scope.count(rule, Outcome::Miss);
        ReadOutcome::Miss(None)
    }
}

/// Whoever is served a fresh value does not fill for a miss that they were told before.
/// `cas`: the number of that value.
pub(super) fn end_earlier_miss(of: &GuardedKey, cas: u64, scope: &CallScope<'_>) {
    let CallScope { proxy, client, .. } = scope;
    if client.known_miss(of, proxy) != KnownMiss::No {
        let after = proxy.desk.of(&of.key).hit(&of.key, client.owner, cas);
        if let AfterHit::Over(ended) = after {
            client.end_miss(of, proxy);
            proxy.give_back(ended);
        }
    }
}
