//! What one worker reports of its requests, and whether anything of it is wanted of a request.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use crate::hot::Sampler;
use crate::metrics::Outcome;
use crate::random::Random;
use crate::trace::{RateLimit, ShownKeys, Tap};

/// Replies of servers that take this part of `log.slow` or more are noted, so that the log says where the time of a slow request went.
const SLOW_REPLY_SHARE: u32 = 8;

/// What the configuration says about what is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObserverSettings {
    /// The names of the rules.
    pub rules: Vec<Arc<str>>,
    /// Their kinds, as the configuration names them.
    pub kinds: Vec<&'static str>,
    /// The names of the pools.
    pub pools: Vec<Arc<str>>,
    /// Requests that take at least this long are logged; `None`: none are.
    pub slow: Option<Duration>,
    /// How much of a key is shown.
    pub keys: ShownKeys,
}

/// What one worker reports.
pub(super) struct Observer {
    pub(super) tap: Arc<Tap>,
    pub(super) settings: Arc<ObserverSettings>,
    /// The name of no rule.
    no_rule: Arc<str>,
    pub(super) no_pool: Arc<str>,
    pub(super) slow: Duration,
    requests: Sampler,
    misses: Sampler,
    pub(super) slow_log: RefCell<RateLimit>,
    pub(super) tag_log: RefCell<RateLimit>,
}

impl Observer {
    pub(super) fn new(tap: Arc<Tap>, settings: Arc<ObserverSettings>, random: &mut Random) -> Observer {
        let mut sampler = || Sampler::new(Random::seeded(random.below(u64::MAX)));
        Observer {
            tap,
            slow: settings.slow.unwrap_or(Duration::MAX),
            settings,
            no_rule: "none".into(),
            no_pool: "-".into(),
            requests: sampler(),
            misses: sampler(),
            slow_log: RefCell::default(),
            tag_log: RefCell::default(),
        }
    }

    /// Whether anything of this is wanted of a request that has taken so long.
    #[inline]
    pub(super) fn is_wanted(&self, outcome: Outcome, took: Duration) -> bool {
        // Both are called: a sampler counts each request.
        self.sampler(outcome).is_due() | self.tap.is_watched() | (took >= self.slow)
    }

    /// Misses have a sampler of their own, so that a few misses among many hits are found.
    #[inline]
    pub(super) fn sampler(&self, outcome: Outcome) -> &Sampler {
        match outcome {
            Outcome::MissWon | Outcome::MissHeld | Outcome::Miss => &self.misses,
            _ => &self.requests,
        }
    }

    /// Replies of servers that take at least this long are noted.
    pub(super) fn slow_reply(&self) -> Duration {
        self.settings.slow.map_or(Duration::MAX, |slow| slow / SLOW_REPLY_SHARE)
    }

    /// The kind of a rule; `none` for no rule.
    pub(super) fn kind(&self, rule: usize) -> &'static str {
        self.settings.kinds.get(rule).copied().unwrap_or("none")
    }

    pub(super) fn rule(&self, rule: usize) -> &Arc<str> {
        self.settings.rules.get(rule).unwrap_or(&self.no_rule)
    }

    pub(super) fn pool(&self, pool: usize) -> &Arc<str> {
        self.settings.pools.get(pool).unwrap_or(&self.no_pool)
    }
}
