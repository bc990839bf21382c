//! Requests that wait before they begin, because the place of their key is about to move as planned: what has begun ends in the old
//! place, and what waits begins in the new one. So neither is refused.

use tokio::time::Instant;

use super::key::{GuardedKey, KeyClass, Place};
use super::pipeline::Proxy;
use crate::guard::TagName;
use crate::protocol::base64;
use crate::protocol::binary::parse::{self, Command};
use crate::protocol::request::{Request, Store};
use crate::upstream::OnError;

impl Proxy {
    /// Whether any request may have to wait.
    fn may_hold(&self) -> bool {
        let views = self.views.iter().chain(self.other.iter().flat_map(|other| &other.proxy.views));
        views.flatten().any(|views| views.may_hold(|| self.mono(Instant::now())))
    }

    /// Whether this request waits.
    pub fn holds_request(&self, request: &Request<'_>) -> bool {
        self.may_hold()
            && match request {
                Request::Get { keys, .. } | Request::GetAndTouch { keys, .. } => {
                    keys.iter().any(|key| self.holds(key))
                }
                Request::Store(Store { key, .. })
                | Request::Arith { key, .. }
                | Request::Touch { key, .. }
                | Request::Delete { key, .. } => self.holds(key),
                Request::Meta(meta) => {
                    let decoded = meta.token(b'b').and_then(|_| base64::decode(meta.key));
                    let explicit = meta.token(b'P').is_some_and(|list| !list.is_empty());
                    self.holds(decoded.as_deref().unwrap_or(meta.key)) || explicit && self.holds_any_tag()
                }
                _ => false,
            }
    }

    /// Whether this request of a binary client waits.
    pub fn holds_command(&self, command: &Command<'_>) -> bool {
        self.may_hold()
            && match command {
                Command::Get { key, .. }
                | Command::Touch { key, .. }
                | Command::Delete { key, .. }
                | Command::Count { key, .. }
                | Command::Store(parse::Store { key, .. }) => self.holds(key),
                _ => false,
            }
    }

    /// Whether gets of a binary client wait.
    pub fn holds_gets<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> bool {
        self.may_hold() && keys.any(|key| self.holds(key))
    }

    /// Whether a read or a change of this guarded key waits.
    pub(crate) fn holds_guarded(&self, key: &GuardedKey) -> bool {
        let tags = key.tag_places.iter().flat_map(|tags| tags.places.iter().flatten());
        self.may_hold()
            && (self.holds_place(self.plan.guards[key.guard].pool, key.place.home)
                || tags.into_iter().any(|place| self.holds_place(self.plan.tag_pool, place.home))
                || self.holds_elsewhere(key))
    }

    fn holds(&self, key: &[u8]) -> bool {
        let (key, explicit) = self.split_tags(key);
        let of_class = match self.class(key) {
            KeyClass::Reserved(_) => false,
            KeyClass::Raw { pool, .. } => {
                let of = &self.pools[pool];
                of.on_error() == OnError::Standby && self.holds_place(pool, of.server_index(key))
            }
            KeyClass::Tag(name) => self.holds_tag(&name),
            KeyClass::Structure(key) => {
                let pool = self.structure(&key).pool;
                let copies = || self.places_of_copies(pool, key.own_key());
                self.views[pool].is_some() && copies().iter().any(|place| self.holds_place(pool, place.home))
            }
            KeyClass::Guarded(key) => self.holds_guarded(&key),
        };
        of_class
            || !explicit.is_empty() && self.holds_any_tag()
            || self.invalidated_by(key).iter().any(|name| self.holds_tag(name))
    }

    fn holds_tag(&self, name: &TagName) -> bool {
        let places = self.places_of_tag(&self.key_of_tag(name));
        places.iter().any(|Place { home, .. }| self.holds_place(self.plan.tag_pool, *home))
            || self.other(self.plan.tag_pool).is_some_and(|(other, _)| other.holds_any_tag())
    }

    fn holds_any_tag(&self) -> bool {
        self.views[self.plan.tag_pool]
            .as_ref()
            .is_some_and(|views| views.holds_any(self.mono(Instant::now())))
    }

    fn holds_elsewhere(&self, key: &GuardedKey) -> bool {
        let pool = self.plan.guards[key.guard].pool;
        let elsewhere = self.elsewhere(key).zip(self.other(pool));
        elsewhere.is_some_and(|(key, (other, _))| other.holds_place(pool, key.place.home))
    }

    fn holds_place(&self, pool: usize, home: usize) -> bool {
        self.views[pool].as_ref().is_some_and(|views| views.holds(home, self.mono(Instant::now())))
    }
}
