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
use super::operation::Guarded;
use crate::guard::leases::Told;
use crate::guard::near::{self, Changed, Changes, Flight, Kept, Landing, Look, Wanted};
use crate::guard::{ReadEnd, Wish};
use crate::metrics::Limit;

/// Tells one who waits for another's answer what it was.
type Bell = oneshot::Sender<Landing>;
/// A read whose answer may be kept.
pub(super) type Reading = near::Reading<Bell>;

/// One worker's values.
pub(super) struct NearCache {
    values: RefCell<near::Near<Bell>>,
    changes: Arc<Changes>,
}

/// What a read of a key is to be.
pub(super) enum Near {
    /// None: this is served.
    Hit(Rc<Kept>),
    /// Another's.
    Joins(Box<Joined>),
    /// Its own. `None`: and nobody else's.
    Reads(Option<Box<Reading>>),
}

/// One who waits for another's answer.
pub(super) struct Joined {
    bell: oneshot::Receiver<Landing>,
    until: Pin<Box<Sleep>>,
    /// When it was asked, as readings are counted.
    moment: u64,
    pub(super) wish: Wish,
}

impl NearCache {
    pub(super) fn new(memory: usize, changes: Arc<Changes>) -> NearCache {
        NearCache { values: RefCell::new(near::Near::new(memory)), changes }
    }

    /// A command that may change this begins, or has ended.
    pub(super) fn changed(&self, what: Changed<'_>) {
        self.changes.note(what);
    }
}

impl Proxy {
    fn wanted<'a>(&self, of: &'a Guarded) -> Wanted<'a> {
        Wanted { key: &of.key, tags: &of.tags, near: self.policy(of.guard).near_ms() }
    }

    /// What a read of this key is to be, for a client that can be answered with a value alone. One that was told a miss of it
    /// asks the server: the hit that ends its miss must be of its own time.
    pub(super) fn look_near(&self, of: &Guarded, wish: Wish, client: &Client) -> Near {
        let policy = self.policy(of.guard);
        if policy.near.is_zero() || client.told(of, self) != Told::Nothing {
            return Near::Reads(None);
        }
        let moment = self.near.values.borrow().moment();
        self.look_near_since(of, wish, moment)
    }

    fn look_near_since(&self, of: &Guarded, wish: Wish, moment: u64) -> Near {
        let now = self.now();
        match self.near.values.borrow_mut().look(&self.wanted(of), now, &self.near.changes) {
            Look::Hit(kept) => Near::Hit(kept),
            Look::Read(reading) => Near::Reads(Some(Box::new(reading))),
            Look::Join(flight) => Near::Joins(Box::new(Joined::board(&flight, wish, moment, now.mono))),
        }
    }

    /// Whether the answer that somebody waits for is here: then what their own read is to be.
    pub(super) fn poll_joined(
        &self,
        joined: &mut Joined,
        of: &Guarded,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Near, crate::error::Failure>> {
        let landing = match Pin::new(&mut joined.bell).poll(cx) {
            // Whoever read for all of them is gone without a word.
            Poll::Ready(landing) => landing.unwrap_or(Landing::Nothing),
            Poll::Pending if joined.until.as_mut().poll(cx).is_ready() => Landing::Nothing,
            Poll::Pending => return Poll::Pending,
        };
        let now = self.now();
        let mut values = self.near.values.borrow_mut();
        let changes = &self.near.changes;
        Poll::Ready(match landing {
            Landing::Failed(failure) => Err(failure),
            Landing::Fresh(kept) if values.serves(&kept, joined.moment, now, changes) => Ok(Near::Hit(kept)),
            Landing::Fresh(_) => {
                drop(values);
                Ok(self.look_near_since(of, joined.wish, joined.moment))
            }
            Landing::Nothing => {
                let reading = values.alone(&self.wanted(of), now, changes);
                Ok(Near::Reads(Some(Box::new(reading))))
            }
        })
    }

    /// A read has ended, or goes on in a way that nobody should wait for (`None`): tells those who do.
    pub(super) fn near_read(&self, of: &Guarded, reading: Reading, end: Option<&ReadEnd>) {
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
    pub(super) fn note_change(&self, of: &Guarded) {
        if of.guard == self.plan.tag_guard {
            of.tags.iter().for_each(|tag| self.near.changed(Changed::Tag(tag)));
        } else if !self.policy(of.guard).near.is_zero() {
            self.near.changed(Changed::Key(&of.key));
        }
    }
}

impl Joined {
    fn board(flight: &Flight<Bell>, wish: Wish, moment: u64, now: u64) -> Joined {
        let (bell, hears) = oneshot::channel();
        flight.board(bell);
        let until = sleep(Duration::from_millis(flight.until().saturating_sub(now)));
        Joined { bell: hears, until: Box::pin(until), moment, wish }
    }
}
