//! The validated settings. A [`Config`] needs no further checks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::admin::AdminSpec;
use crate::guard::Policy;
use crate::handshake::Requirements;
use crate::kinds::Kind;
use crate::listener::Listen;
use crate::proxy::MetaWinner;
use crate::rule::{Pattern, Share, Template};
use crate::trace::ShownKeys;
use crate::upstream::PoolSpec;

/// A configuration that was validated, with all defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What makes the process read the configuration again, besides SIGHUP, `kennel reload` and `POST /reload`.
    pub reload: Reload,
    /// How the process logs.
    pub log: Log,
    /// The client listeners and their limits.
    pub listen: Listen,
    /// The admin server; `None` if turned off.
    pub admin: Option<AdminSpec>,
    /// The socket on which another process can take over.
    pub control: ControlPath,
    /// The pools: "main" first, the others by name.
    pub pools: Vec<PoolSpec>,
    /// Where and how tag versions are stored.
    pub tags: Tags,
    /// The limits of the near cache.
    pub near: Near,
    /// Whether all raw keys are observed, as those of a rule of `kind = "observe"` are.
    pub observe_all: bool,
    /// How servers are discovered.
    pub discovery: Discovery,
    /// The rules, in order of precedence.
    pub rules: Vec<Rule>,
    /// Settings that are valid but probably not intended, one sentence each.
    pub warnings: Vec<String>,
}

/// What makes the process read the configuration again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// SIGHUP, `kennel reload` and `POST /reload`.
    Signal,
    /// A change of the file, or of a file that it names, too.
    Watch,
}

/// Where the control socket is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlPath {
    /// `control.sock` in the runtime directory of the service, if systemd has made one; otherwise none.
    Automatic,
    /// Nowhere: no `kennel reload`, and no takeover.
    Off,
    /// This absolute path of at most 107 bytes.
    At(PathBuf),
}

/// How the process logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// What is logged, in the notation of `RUST_LOG`, which precedes it.
    pub level: String,
    /// Requests that take at least this long are logged; `None`: none are.
    pub slow: Option<Duration>,
    /// How much of a key is shown, in the log and by the admin server.
    pub keys: ShownKeys,
}

/// Where and how tag versions are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// The prefix of every tag's key; 1 to 32 bytes that are legal in a key.
    pub prefix: Vec<u8>,
    /// How long a version may be reused after it was read; at most 60 s.
    pub cache: Duration,
    /// The pool that stores the versions, as an index into [`Config::pools`].
    pub pool: usize,
    /// How many servers of the pool store each version: 1 or 2.
    pub replicas: usize,
}

/// The limits of the near cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Near {
    /// The most memory that it may use, in bytes, divided evenly among the workers.
    pub memory: usize,
}

/// How servers are discovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// The DNS servers to ask, at most 8. Empty: those of the system.
    pub nameservers: Vec<SocketAddr>,
    /// The longest time between two lookups; 1 s to 1 h.
    pub interval: Duration,
    /// How long each step of a change of discovered servers lasts; at least `interval`, at most a day.
    pub settle: Duration,
}

/// How the keys that match a pattern are treated.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The unique name under which metrics show the rule.
    pub name: String,
    /// The keys that the rule applies to.
    pub pattern: Pattern,
    /// The pool that stores the keys, as an index into [`Config::pools`].
    pub pool: usize,
    /// Raw, observed, guarded, or a structure.
    pub kind: RuleKind,
    /// The share of its keys that are guarded; the others are observed. `None`: all, and none is.
    pub share: Option<Share>,
    /// The tags that are bumped when such a key changes; at most 16.
    pub invalidates: Vec<Template>,
}

/// What a rule's keys are.
#[derive(Debug, Clone, PartialEq)]
pub enum RuleKind {
    /// Requests are forwarded unchanged.
    Raw,
    /// The same, and what clients build is counted.
    Observed,
    /// Values are wrapped in an envelope and protected.
    Guarded {
        /// Times and what invalidations leave behind.
        policy: Policy,
        /// The tags of each key; at most 16.
        tags: Vec<Template>,
        /// Whether classic clients may name further tags in the key of a store command.
        tags_in_key: bool,
        /// What a winning `mg` without `N` and `R` receives.
        meta_winner: MetaWinner,
    },
    /// Each key is a structure with commands of its own.
    Structure(Kind),
}

impl RuleKind {
    /// The word in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            RuleKind::Raw => "raw",
            RuleKind::Observed => "observe",
            RuleKind::Guarded { .. } => "guarded",
            RuleKind::Structure(kind) => kind.word(),
        }
    }
}

impl Config {
    /// The files that it names: certificates, keys and passwords.
    pub fn files(&self) -> Vec<PathBuf> {
        let tcp = self.listen.tcp.iter().map(|listener| &listener.requirements);
        let all = tcp.chain(self.listen.unix.iter().map(|listener| &listener.requirements));
        let pools = self.pools.iter().flat_map(|pool| pool.security.files());
        let admin = self.admin.iter().flat_map(AdminSpec::files);
        all.flat_map(Requirements::files).chain(pools).chain(admin).collect()
    }

    /// Whether any rule uses the near cache.
    pub fn uses_near_cache(&self) -> bool {
        let uses =
            |rule: &Rule| matches!(&rule.kind, RuleKind::Guarded { policy, .. } if !policy.near.is_zero());
        self.rules.iter().any(uses)
    }
}
