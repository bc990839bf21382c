//! Reads under rules with `near`: values served without asking a server, and reads that share one reply.
//!
//! `guard/near.rs` decides what may be kept and served.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use crate::error::Failure;
use crate::guard::leases::KnownMiss;
use crate::guard::near::{Changed, InFlightRead, NearLookup, NearRequest, NearValue, SharedResult};
use crate::guard::{ReadEnd, ReadOptions};
use crate::metrics::Limit;
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::near_cache::{NearRead, ResultSender};

/// How a key is read.
pub(super) enum NearAnswer {
    /// Not at all: this value is served.
    Hit(Rc<NearValue>),
    /// By another read that is in flight.
    Join(Box<JoinedRead>),
    /// On its own. With `Some`, other reads may join it.
    Read(Option<Box<NearRead>>),
}

/// A read that waits for the result of another one.
pub(super) struct JoinedRead {
    result: oneshot::Receiver<SharedResult>,
    until: Pin<Box<Sleep>>,
    /// The number of the last read when it was requested: see `NearValues::last_read`.
    last_read: u64,
    pub(super) options: ReadOptions,
}

impl Proxy {
    fn near_request<'a>(&self, key: &'a GuardedKey) -> NearRequest<'a> {
        let (near, fences) = (self.policy_of(key).near_ms(), key.fences());
        NearRequest { key: &key.key, tags: &key.tags, near, fences }
    }

    /// How to read this key, for a command that needs only the value. If the client has missed the key, the key is read from the
    /// server: the hit that ends the miss must be newer than the miss.
    pub(super) fn near_answer(&self, key: &GuardedKey, options: ReadOptions, client: &Client) -> NearAnswer {
        let policy = self.policy_of(key);
        if policy.near.is_zero()
            || !self.near.may_keep()
            || !key.has_view()
            || client.known_miss(key, self) != KnownMiss::No
        {
            return NearAnswer::Read(None);
        }
        let last_read = self.near.values.borrow().last_read();
        self.near_answer_since(key, options, last_read)
    }

    fn near_answer_since(&self, key: &GuardedKey, options: ReadOptions, last_read: u64) -> NearAnswer {
        let now = self.now();
        match self.near.values.borrow_mut().lookup(&self.near_request(key), now, &self.near.changes) {
            NearLookup::Hit(value) => NearAnswer::Hit(value),
            NearLookup::Read(read) => NearAnswer::Read(Some(Box::new(read))),
            NearLookup::Join(read) => {
                NearAnswer::Join(Box::new(JoinedRead::join(&read, options, last_read, now.mono)))
            }
        }
    }

    /// Once the result of the joined read has arrived, returns how to go on.
    pub(super) fn poll_joined_read(
        &self,
        joined: &mut JoinedRead,
        key: &GuardedKey,
        cx: &mut Context<'_>,
    ) -> Poll<Result<NearAnswer, Failure>> {
        let result = match Pin::new(&mut joined.result).poll(cx) {
            // The other read has been dropped.
            Poll::Ready(result) => result.unwrap_or(SharedResult::Nothing),
            Poll::Pending if joined.until.as_mut().poll(cx).is_ready() => SharedResult::Nothing,
            Poll::Pending => return Poll::Pending,
        };
        let now = self.now();
        let mut values = self.near.values.borrow_mut();
        let changes = &self.near.changes;
        Poll::Ready(match result {
            SharedResult::Failed(failure) => Err(failure),
            SharedResult::Fresh(value)
                if values.may_serve(&value, joined.last_read, key.fences(), now, changes) =>
            {
                Ok(NearAnswer::Hit(value))
            }
            SharedResult::Fresh(_) => {
                drop(values);
                Ok(self.near_answer_since(key, joined.options, joined.last_read))
            }
            SharedResult::Nothing => {
                let read = values.start_read(&self.near_request(key), now, changes);
                Ok(NearAnswer::Read(Some(Box::new(read))))
            }
        })
    }

    /// Passes the end of a read to the reads that have joined it. `None`: it goes on in a way that they must not wait for.
    pub(super) fn end_near_read(&self, key: &GuardedKey, read: NearRead, end: Option<&ReadEnd>) {
        let mut values = self.near.values.borrow_mut();
        let (readers, result) =
            values.end_read(&self.near_request(key), read, end, self.now(), &self.near.changes);
        for _ in 0..values.take_evicted() {
            self.metrics.limit_reached(Limit::Near);
        }
        self.metrics.near_bytes(values.bytes());
        drop(values);
        for reader in readers {
            // The receiver is gone if the other read has given up.
            let _ = reader.send(result.clone());
        }
    }

    /// Removes some of the expired values. Returns whether it must be called again.
    pub(super) fn sweep_near(&self) -> bool {
        let mut values = self.near.values.borrow_mut();
        let is_unfinished = values.sweep(self.now());
        self.metrics.near_bytes(values.bytes());
        is_unfinished
    }

    /// Must be called when a command that may change this key or tag begins, and when it has ended.
    pub(super) fn note_change(&self, key: &GuardedKey) {
        if key.guard == self.plan.tag_guard {
            key.tags.iter().for_each(|tag| self.near.changed(Changed::Tag(tag)));
        } else if !self.policy_of(key).near.is_zero() {
            self.near.changed(Changed::Key(&key.key));
        }
    }
}

impl JoinedRead {
    fn join(read: &InFlightRead<ResultSender>, options: ReadOptions, last_read: u64, now: u64) -> JoinedRead {
        let (sender, result) = oneshot::channel();
        read.join(sender);
        let until = sleep(Duration::from_millis(read.until().saturating_sub(now)));
        JoinedRead { result, until: Box::pin(until), last_read, options }
    }
}
