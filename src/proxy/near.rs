//! Hits that are served again: where a worker keeps them, and how its readers wait for each other's answers.
//!
//! What may be kept and what may be served is decided in `guard/near.rs`.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::Proxy;
use super::client::Client;
use super::operation::GuardedKey;
use crate::guard::leases::KnownMiss;
use crate::guard::near::{
    self, Changed, Changes, InFlightRead, NearLookup, NearRequest, NearValue, SharedResult,
};
use crate::guard::{ReadEnd, ReadOptions};
use crate::metrics::Limit;

/// Tells one who waits for another's answer what it was.
type ResultSender = oneshot::Sender<SharedResult>;
/// A read whose answer may be kept.
pub(super) type NearRead = near::NearRead<ResultSender>;

/// One worker's values.
pub(super) struct NearCache {
    values: RefCell<near::NearValues<ResultSender>>,
    changes: Arc<Changes>,
}

/// What a read of a key is to be.
pub(super) enum NearAnswer {
    /// None: this is served.
    Hit(Rc<NearValue>),
    /// Another's.
    Joins(Box<JoinedRead>),
    /// Its own. `None`: and nobody else's.
    Reads(Option<Box<NearRead>>),
}

/// One who waits for another's answer.
pub(super) struct JoinedRead {
    bell: oneshot::Receiver<SharedResult>,
    until: Pin<Box<Sleep>>,
    /// When it was asked, as readings are counted.
    moment: u64,
    pub(super) wish: ReadOptions,
}

impl NearCache {
    pub(super) fn new(memory: usize, changes: Arc<Changes>) -> NearCache {
        NearCache { values: RefCell::new(near::NearValues::new(memory)), changes }
    }

    /// A command that may change this begins, or has ended.
    pub(super) fn changed(&self, what: Changed<'_>) {
        self.changes.note(what);
    }
}

impl Proxy {
    fn wanted<'a>(&self, of: &'a GuardedKey) -> NearRequest<'a> {
        NearRequest { key: &of.key, tags: &of.tags, near: self.policy(of.guard).near_ms() }
    }

    /// What a read of this key is to be, for a client that can be answered with a value alone. One that was told a miss of it
    /// asks the server: the hit that ends its miss must be of its own time.
    pub(super) fn look_near(&self, of: &GuardedKey, wish: ReadOptions, client: &Client) -> NearAnswer {
        let policy = self.policy(of.guard);
        if policy.near.is_zero() || client.known_miss(of, self) != KnownMiss::No {
            return NearAnswer::Reads(None);
        }
        let moment = self.near.values.borrow().moment();
        self.look_near_since(of, wish, moment)
    }

    fn look_near_since(&self, of: &GuardedKey, wish: ReadOptions, moment: u64) -> NearAnswer {
        let now = self.now();
        match self.near.values.borrow_mut().look(&self.wanted(of), now, &self.near.changes) {
            NearLookup::Hit(kept) => NearAnswer::Hit(kept),
            NearLookup::Read(reading) => NearAnswer::Reads(Some(Box::new(reading))),
            NearLookup::Join(flight) => {
                NearAnswer::Joins(Box::new(JoinedRead::join(&flight, wish, moment, now.mono)))
            }
        }
    }

    /// Whether the answer that somebody waits for is here: then what their own read is to be.
    pub(super) fn poll_joined(
        &self,
        joined: &mut JoinedRead,
        of: &GuardedKey,
        cx: &mut Context<'_>,
    ) -> Poll<Result<NearAnswer, crate::error::Failure>> {
        let landing = match Pin::new(&mut joined.bell).poll(cx) {
            // Whoever read for all of them is gone without a word.
            Poll::Ready(landing) => landing.unwrap_or(SharedResult::Nothing),
            Poll::Pending if joined.until.as_mut().poll(cx).is_ready() => SharedResult::Nothing,
            Poll::Pending => return Poll::Pending,
        };
        let now = self.now();
        let mut values = self.near.values.borrow_mut();
        let changes = &self.near.changes;
        Poll::Ready(match landing {
            SharedResult::Failed(failure) => Err(failure),
            SharedResult::Fresh(kept) if values.serves(&kept, joined.moment, now, changes) => {
                Ok(NearAnswer::Hit(kept))
            }
            SharedResult::Fresh(_) => {
                drop(values);
                Ok(self.look_near_since(of, joined.wish, joined.moment))
            }
            SharedResult::Nothing => {
                let reading = values.alone(&self.wanted(of), now, changes);
                Ok(NearAnswer::Reads(Some(Box::new(reading))))
            }
        })
    }

    /// A read has ended, or goes on in a way that nobody should wait for (`None`): tells those who do.
    pub(super) fn near_read(&self, of: &GuardedKey, reading: NearRead, end: Option<&ReadEnd>) {
        let mut values = self.near.values.borrow_mut();
        let (bells, landing) = values.ended(&self.wanted(of), reading, end, self.now(), &self.near.changes);
        for _ in 0..values.take_crowded() {
            self.metrics.limit_reached(Limit::Near);
        }
        self.metrics.near_holds(values.bytes());
        drop(values);
        for bell in bells {
            // Whoever has stopped waiting has dropped the other end.
            let _ = bell.send(landing.clone());
        }
    }

    /// Forgets what is too old to be served.
    pub(super) fn sweep_near(&self) {
        let mut values = self.near.values.borrow_mut();
        values.sweep(self.now());
        self.metrics.near_holds(values.bytes());
    }

    /// A command that may change what the key holds, or the tag, begins or has ended.
    pub(super) fn note_change(&self, of: &GuardedKey) {
        if of.guard == self.plan.tag_guard {
            of.tags.iter().for_each(|tag| self.near.changed(Changed::Tag(tag)));
        } else if !self.policy(of.guard).near.is_zero() {
            self.near.changed(Changed::Key(&of.key));
        }
    }
}

impl JoinedRead {
    fn join(flight: &InFlightRead<ResultSender>, wish: ReadOptions, moment: u64, now: u64) -> JoinedRead {
        let (bell, hears) = oneshot::channel();
        flight.join(bell);
        let until = sleep(Duration::from_millis(flight.until().saturating_sub(now)));
        JoinedRead { bell: hears, until: Box::pin(until), moment, wish }
    }
}
