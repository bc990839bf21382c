//! How a value gets under a guarded key: as the fill that ends a rebuild, or blindly.

use bytes::{Bytes, BytesMut};
use smallvec::smallvec;

use crate::error::Failure;

use super::ask::{Answer, Ask, Asks, At, Cas, Lifetime, Mode, Now, Stored, What, delete};
use super::envelope::Envelope;
use super::leases::Ticket;
use super::tags::{Gather, Versions};
use super::{Event, Machine, Scene, Step};

/// A value as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Its bytes.
    pub body: Bytes,
    /// The client's flags.
    pub flags: u32,
    /// How long it is fresh. Never [`Lifetime::Gone`]: that is a delete.
    pub lifetime: Lifetime,
    /// `E`: the CAS that the client wants it to have.
    pub explicit: Option<u64>,
}

impl Offer {
    /// The same, to be stored as stale.
    pub(super) fn stale(&self) -> Offer {
        // Its fresh seconds are over, and those of `stale_for` begin.
        Offer { lifetime: Lifetime::Seconds(0), ..self.clone() }
    }

    /// The command that stores it, wrapped and sealed with the versions that were read before it was built.
    ///
    /// A value that would be too large once wrapped is stored plain, if the rule has no tags that a plain value would
    /// outlive.
    pub(super) fn store(
        self,
        mode: Mode,
        cas: Option<Cas>,
        versions: &Versions,
        built: (Now, u64),
        scene: &Scene<'_>,
    ) -> (Ask, bool) {
        let (began, rebuild) = built;
        let lifetime = self.lifetime.at_most(scene.policy.max_ttl.as_secs());
        let mut header = BytesMut::new();
        let sealed = Envelope {
            stale_for: scene.policy.stale_seconds(),
            built_at: began.wall,
            rebuild: u32::try_from(rebuild).unwrap_or(u32::MAX),
            tags: scene.tags.iter().cloned().zip(versions.iter().copied()).collect(),
        }
        .seal(&mut header);
        let plain = scene.tags.is_empty() && (sealed.is_err() || header.len() + self.body.len() > scene.room);
        let (header, extra) =
            if plain { (Bytes::new(), 0) } else { (header.freeze(), scene.policy.stale_seconds()) };
        let exptime = lifetime.exptime(extra, scene.now);
        let value = Stored { header, body: self.body };
        let what = What::Store { mode, value, flags: self.flags, exptime, cas, explicit: self.explicit };
        (Ask { at: At::Item, what }, plain)
    }
}

/// The `set` that ends a rebuild: stored only if nothing has happened to the key since the miss was answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fill {
    plain: bool,
    wary: bool,
    clearing: bool,
}

/// How a fill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillEnd {
    /// It is stored, under this CAS.
    Stored {
        /// Its CAS.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// The key was deleted, overwritten or lost since the miss: the value is dropped, and the client is told that it was
    /// stored, because "stored, then invalidated" looks exactly like this.
    Dropped {
        /// Something else stands there now.
        exists: bool,
    },
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it is stored is not known.
    Failed(Failure),
}

impl Fill {
    /// Begins. `wary`: it is not sure that this is the value of this lease's rebuild, so it may as well be a new one; if it
    /// cannot be stored, what stands there is not trusted either.
    pub fn start(lease: &Ticket, wary: bool, offer: Offer, scene: &Scene<'_>) -> (Fill, Step<FillEnd>) {
        let mut fill = Fill { plain: false, wary, clearing: false };
        let Some(base) = lease.base else {
            return (fill, Step::Done(FillEnd::Dropped { exists: false }));
        };
        let rebuild = scene.now.mono.saturating_sub(lease.at.mono);
        let (ask, plain) = offer.store(Mode::Set, Some(base), &lease.versions, (lease.at, rebuild), scene);
        fill.plain = plain;
        let mut asks: Asks = smallvec![ask];
        if let Some(lock) = lease.lock {
            asks.push(delete(At::Lock, Some(lock)));
        }
        (fill, Step::Ask(asks))
    }
}

impl Machine for Fill {
    type End = FillEnd;

    fn resume(&mut self, event: Event, _: &Scene<'_>) -> Step<FillEnd> {
        let answers = event.answers();
        let answer = answers.into_iter().next();
        if self.clearing {
            return Step::Done(match answer {
                Some(Answer::Failed(failure)) => FillEnd::Failed(failure),
                _ => FillEnd::Dropped { exists: false },
            });
        }
        Step::Done(match answer {
            Some(Answer::Stored(cas)) => FillEnd::Stored { cas, plain: self.plain },
            Some(Answer::Exists) if self.wary => {
                self.clearing = true;
                return Step::Ask(cleared());
            }
            Some(Answer::Exists) => FillEnd::Dropped { exists: true },
            Some(Answer::Absent | Answer::NotStored) => FillEnd::Dropped { exists: false },
            Some(Answer::TooLarge) => FillEnd::TooLarge,
            Some(Answer::Failed(failure)) => FillEnd::Failed(failure),
            _ => FillEnd::Failed(Failure::Refused),
        })
    }
}

/// What leaves nothing under a key.
fn cleared() -> Asks {
    smallvec![delete(At::Item, None), delete(At::Lock, None)]
}

/// A `set` that ends no rebuild: stored whatever stands there, and so it defeats a fill in flight. The tags' versions are
/// read first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Set {
    /// What waits for the versions.
    offer: Option<Offer>,
    gather: Gather,
    plain: bool,
}

/// How a blind set ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetEnd {
    /// It is stored, under this CAS.
    Stored {
        /// Its CAS.
        cas: Cas,
        /// Without an envelope, because it would have been too large.
        plain: bool,
    },
    /// The server refuses values of this size.
    TooLarge,
    /// Whether it is stored is not known.
    Failed(Failure),
}

impl Set {
    /// Begins.
    pub fn start(offer: Offer, scene: &Scene<'_>) -> (Set, Asks) {
        let mut set = Set { offer: Some(offer), gather: Gather::new(scene.tags.len()), plain: false };
        let asks = set.go_on(scene);
        (set, asks)
    }

    fn go_on(&mut self, scene: &Scene<'_>) -> Asks {
        let mut asks = Asks::new();
        match self.gather.versions() {
            Some(versions) => {
                if let Some(offer) = self.offer.take() {
                    let (ask, plain) = offer.store(Mode::Set, None, &versions, (scene.now, 0), scene);
                    self.plain = plain;
                    asks.push(ask);
                }
            }
            None => self.gather.ask(&mut asks, scene),
        }
        asks
    }
}

impl Machine for Set {
    type End = SetEnd;

    fn resume(&mut self, event: Event, scene: &Scene<'_>) -> Step<SetEnd> {
        let answers = event.answers();
        if self.offer.is_some() {
            return match self.gather.absorb(&answers, scene) {
                Err(failure) => Step::Done(SetEnd::Failed(failure)),
                Ok(()) => Step::Ask(self.go_on(scene)),
            };
        }
        Step::Done(match answers.into_iter().next() {
            Some(Answer::Stored(cas)) => SetEnd::Stored { cas, plain: self.plain },
            Some(Answer::TooLarge) => SetEnd::TooLarge,
            Some(Answer::Failed(failure)) => SetEnd::Failed(failure),
            _ => SetEnd::Failed(Failure::Refused),
        })
    }
}
