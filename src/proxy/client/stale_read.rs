//! Notices clients that judge the age of a value themselves: served a stale one, they delete it or build it all the same.

use std::cell::Cell;

use tracing::warn;

use super::Client;
use crate::guard::Hit;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;

/// What a client does within this time, in milliseconds, and twice the time of a build, follows from what it was served.
const REACTION_MS: u64 = 1_000;
/// It is logged when it has been seen so often: an application may also delete by chance what it has just read.
const LOGGED_AT: u64 = 10;

/// The last stale value that a connection was served.
#[derive(Default)]
pub(super) struct StaleRead(Cell<Option<(u64, u64)>>);

impl Client {
    /// It is served this value after its expiry.
    pub(crate) fn note_stale(&self, key: &GuardedKey, hit: &Hit, proxy: &Proxy) {
        if hit.stale.expired {
            let until = proxy.now().mono + REACTION_MS + 2 * u64::from(hit.rebuild);
            self.stale_read.0.set(Some((proxy.hash(&key.key), until)));
        }
    }

    /// It deletes this key, or sets it without a miss.
    pub(crate) fn note_own_change(&self, key: &GuardedKey, proxy: &Proxy) {
        let Some((hash, until)) = self.stale_read.0.get() else { return };
        if hash != proxy.hash(&key.key) {
            return;
        }
        self.stale_read.0.set(None);
        if proxy.now().mono > until {
            return;
        }
        let rule = proxy.rule_of(key.guard);
        if proxy.metrics.seen_through(rule) == LOGGED_AT && !proxy.policy(key.guard).stale_before_expiry {
            warn!(
                rule = %proxy.observer.rule(rule),
                "clients delete or set what they have just been served as stale: if their library keeps an expiry inside its values, \
                 set preset or stale_before_expiry in this rule"
            );
        }
    }
}
