//! What the pipeline reports of each key that it answers: to watchers, to the hot keys, and to the log of slow requests.
//!
//! Usually nothing of it is wanted of a request. Then it costs a few instructions: the sampler of the hot keys counts down, one flag of
//! this worker says whether anybody watches, and the time of the request is compared with `log.slow`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::client::Client;
use super::key::{GuardedKey, StructureKey};
use super::pipeline::Proxy;
use super::replies::cause::each_error;
use crate::hot::HotSample;
use crate::metrics::{Command, LeaseEnd, Limit, NO_RULE, Outcome};
use crate::observed::{Build, Deed, Stored};
use crate::trace::{Happened, Marks, Parts, Peer, ShownKeys, Sighting, Timing, shown_key};

/// A key that a request reads or writes, as far as it is not known from the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenKey<'a> {
    pub(crate) key: &'a [u8],
    /// The pool, and the index of the server in it; `None`: no server was needed.
    pub(crate) server: Option<(usize, usize)>,
    /// The length of the value in bytes.
    pub(crate) bytes: usize,
    pub(crate) marks: Marks,
    /// `key` is the name of a tag, and the server is still to be found.
    is_tag: bool,
    /// A rule guards the key.
    is_guarded: bool,
}

/// A request, as far as it is known from the call.
#[derive(Clone, Copy)]
pub(super) struct SeenRequest<'a> {
    pub(super) client: &'a Client,
    pub(super) command: Command,
    pub(super) began: Instant,
    pub(super) took: Duration,
}

impl<'a> SeenKey<'a> {
    /// A guarded key, or the key of a tag.
    pub(crate) fn guarded(key: &'a GuardedKey, bytes: usize, proxy: &Proxy) -> SeenKey<'a> {
        let server = Some((proxy.plan.guards[key.guard].pool, key.place.server));
        let marks = Marks { failed_over: key.place.is_standby(), ..Marks::default() };
        let is_tag = key.guard == proxy.plan.tag_guard;
        SeenKey { key: &key.key, server, bytes, marks, is_tag, is_guarded: true }
    }

    /// A raw key: its pool, the index of the server, and whether that is a standby server.
    pub(crate) fn raw(
        key: &'a [u8],
        (pool, server): (usize, usize),
        failed_over: bool,
        bytes: usize,
    ) -> SeenKey<'a> {
        let marks = Marks { failed_over, ..Marks::default() };
        SeenKey { key, server: Some((pool, server)), bytes, marks, is_tag: false, is_guarded: false }
    }

    /// What a client sent as the key of a structure.
    pub(crate) fn structure(key: &'a StructureKey, bytes: usize, proxy: &Proxy) -> SeenKey<'a> {
        SeenKey::raw(&key.key, (proxy.structure(key).pool, key.server), false, bytes)
    }

    /// The key of a tag.
    pub(crate) fn tag(name: &'a [u8]) -> SeenKey<'a> {
        SeenKey { key: name, is_tag: true, ..SeenKey::none() }
    }

    /// The same with a value of this length.
    pub(crate) fn with_bytes(self, bytes: usize) -> SeenKey<'a> {
        SeenKey { bytes, ..self }
    }

    /// The same request for a key that was served without a server.
    pub(crate) fn near(self) -> SeenKey<'a> {
        SeenKey { server: None, ..self }
    }

    /// The same with these marks.
    pub(crate) fn early(self, early: bool) -> SeenKey<'a> {
        SeenKey { marks: Marks { early, ..self.marks }, ..self }
    }

    /// The same with the end of a lease.
    pub(crate) fn unlocked(self, unlocked: bool) -> SeenKey<'a> {
        SeenKey { marks: Marks { unlocked, ..self.marks }, ..self }
    }

    /// A request without a key.
    pub(crate) fn none() -> SeenKey<'static> {
        let marks = Marks::default();
        SeenKey { key: b"", server: None, bytes: 0, marks, is_tag: false, is_guarded: false }
    }
}

impl Proxy {
    /// Reports the answer to one key of a request, of which [`Observer::is_wanted`] is true.
    #[cold]
    #[inline(never)]
    pub(super) fn observe(
        &self,
        rule: usize,
        outcome: Outcome,
        seen: SeenKey<'_>,
        request: &SeenRequest<'_>,
    ) {
        if seen.is_tag {
            let key = self.key_of_tag(seen.key);
            return self.observe(rule, outcome, self.seen_tag(&key, &seen), request);
        }
        let observer = &self.observer;
        let SeenRequest { client, command, took, .. } = *request;
        let sampler = observer.sampler(outcome);
        if sampler.is_at_zero() {
            let now = client.turn_time();
            let weight = sampler.next(now);
            if !seen.key.is_empty() {
                let miss = matches!(outcome, Outcome::MissWon | Outcome::MissHeld | Outcome::Miss);
                let hash = self.hash(seen.key);
                let sample = HotSample { hash, rule, weight, bytes: seen.bytes, miss, key: seen.key };
                let shown = || observer.settings.keys.of(seen.key, || hash);
                observer.tap.count_hot(|hot| hot.request(&sample, now, shown));
            }
        }
        if observer.tap.is_watched() {
            let happened = Happened::Answered(command, outcome);
            self.send_event(rule, happened, &seen, client.peer, took);
        }
        if took >= observer.slow {
            self.log_slow(rule, outcome, &seen, request);
        }
    }

    /// Notes the miss of an observed key, or counts what a client has built for one.
    #[cold]
    #[inline(never)]
    pub(super) fn observe_build(
        &self,
        rule: usize,
        outcome: Outcome,
        seen: &SeenKey<'_>,
        request: &SeenRequest<'_>,
    ) {
        let SeenRequest { client, command, began, .. } = *request;
        // The key of a tag is no value that clients build.
        if seen.key.is_empty() || seen.key.starts_with(&self.plan.tag_prefix) {
            return;
        }
        let hash = self.hash(seen.key);
        let since = |at: Instant| at.saturating_duration_since(self.start);
        let now = since(client.turn_time());
        let by = client.builder();
        // A key that is not in the share of its rule may be in it after a reload. What a client has missed until then must not be stored
        // over an invalidation that comes after it, as if the key had been guarded at the time of the miss.
        let share = self.plan.policy_of_share(rule).filter(|_| !seen.is_guarded);
        if let Some(policy) = share {
            match command {
                Command::Set | Command::Add | Command::MetaSet | Command::Delete | Command::MetaDelete => {
                    client.end_raw_miss(hash);
                }
                _ if outcome == Outcome::Miss => client.note_raw_miss(hash, policy, self),
                _ => {}
            }
        }
        let mut ended = None;
        match (command, outcome) {
            (
                Command::Get | Command::Gets | Command::Gat | Command::Gats | Command::MetaGet,
                Outcome::Miss | Outcome::MissWon | Outcome::MissHeld,
            ) => {
                client.note_observed_miss();
                if self.builds.missed(hash, by, now) {
                    self.metrics.limit_reached(Limit::Observed);
                }
            }
            (
                Command::Set | Command::Add | Command::MetaSet,
                Outcome::Stored
                | Outcome::Ok
                | Outcome::NotStored
                | Outcome::Exists
                | Outcome::FillDropped
                | Outcome::ServerError,
            ) => {
                let stored = self.builds.stored(hash, by, since(began), now);
                if seen.is_guarded {
                    if let Stored::Build(Build { spared, .. }) = stored {
                        self.metrics.guarded_build(rule, spared);
                    }
                    return;
                }
                client.note_observed_store(&stored, &self.metrics);
                ended = Some(stored);
                if let Stored::Build(build) = stored {
                    let Build { took, spared, at_once, .. } = build;
                    self.metrics.observed_build(rule, took, spared, at_once);
                    let shown = || self.observer.settings.keys.of(seen.key, || hash);
                    let now = client.turn_time();
                    self.observer.tap.count_hot(|hot| {
                        hot.rebuild(hash, rule, took, now, shown);
                        if spared {
                            hot.spared(hash, rule, now, shown);
                        }
                    });
                }
            }
            (Command::Delete | Command::MetaDelete, Outcome::Deleted | Outcome::Ok) => {
                self.builds.deleted(hash, by, now);
            }
            _ => {}
        }
        // Of a key that is shown in part or as a hash, no pattern is known.
        if !seen.is_guarded && self.observer.settings.keys == ShownKeys::Full {
            let mut families = self.observer.tap.families();
            families.begin(now);
            families.note_stored(seen.key, Deed::of(command, outcome), ended.as_ref());
        }
    }

    fn send_event(&self, rule: usize, happened: Happened, seen: &SeenKey<'_>, client: Peer, took: Duration) {
        let observer = &self.observer;
        let server =
            seen.server.map(|(pool, server)| self.pools[pool].connections()[server].server().label());
        let sighting = Sighting {
            key: seen.key,
            rule: observer.rule(rule),
            kind: observer.kind(rule),
            server,
            pool: seen.server.map_or(&observer.no_pool, |(pool, _)| observer.pool(pool)),
            client,
            happened,
            took,
            bytes: seen.bytes,
            marks: seen.marks,
        };
        let shown = |key: &[u8]| observer.settings.keys.of(key, || self.hash(key));
        observer.tap.send(&sighting, || self.clock.now_ms(), shown, &self.metrics);
    }

    /// Reports that a lease has ended without a value.
    pub(super) fn observe_release(&self, key: Option<&GuardedKey>, end: LeaseEnd, held: Duration) {
        if let Some(key) = key.filter(|_| self.observer.tap.is_watched()) {
            let seen = SeenKey::guarded(key, 0, self);
            self.send_event(self.rule_of(key.guard), Happened::Released(end), &seen, Peer::Sidecar, held);
        }
    }

    /// Reports that a client has bumped a tag by changing another key.
    pub(super) fn observe_bump(&self, tag: &[u8], request: &SeenRequest<'_>) {
        if self.observer.tap.is_watched() {
            let key = self.key_of_tag(tag);
            let seen = self.seen_tag(&key, &SeenKey::none());
            let happened = Happened::Answered(request.command, Outcome::Bumped);
            self.send_event(NO_RULE, happened, &seen, request.client.peer, request.took);
        }
    }

    /// A tag by its key.
    fn seen_tag<'a>(&self, key: &'a [u8], seen: &SeenKey<'_>) -> SeenKey<'a> {
        let place = self.tag_place(key, false);
        let server = Some((self.plan.tag_pool, place.server));
        let marks = Marks { failed_over: place.is_standby(), ..seen.marks };
        SeenKey { key, server, bytes: seen.bytes, marks, is_tag: false, is_guarded: true }
    }

    /// Counts a request that is answered at once, without a key.
    pub(super) fn count_at_once(&self, client: &Client, command: Command, outcome: Outcome) {
        self.count_unsent(client, NO_RULE, command, outcome, b"");
    }

    /// Counts each error of a server or of Kennel in these replies.
    pub(super) fn count_errors(&self, replies: &[u8]) {
        each_error(replies, |cause| self.metrics.server_error(cause));
    }

    /// Counts a request for a key that is answered at once, without a server.
    pub(super) fn count_unsent(
        &self,
        client: &Client,
        rule: usize,
        command: Command,
        outcome: Outcome,
        key: &[u8],
    ) {
        self.metrics.request(rule, command, outcome, Duration::ZERO);
        if self.observer.tap.is_watched() {
            let happened = Happened::Answered(command, outcome);
            let seen = SeenKey { key, ..SeenKey::none() };
            self.send_event(rule, happened, &seen, client.peer, Duration::ZERO);
        }
    }

    /// Counts the time that a client has taken to build the value of a key.
    pub(super) fn observe_rebuild(&self, key: &GuardedKey, took: Duration) {
        let hash = self.hash(&key.key);
        let shown = || self.observer.settings.keys.of(&key.key, || hash);
        let rule = self.rule_of(key.guard);
        self.observer.tap.count_hot(|hot| hot.rebuild(hash, rule, took, Instant::now(), shown));
    }

    fn log_slow(&self, rule: usize, outcome: Outcome, seen: &SeenKey<'_>, request: &SeenRequest<'_>) {
        let SeenRequest { client, command, began, took } = *request;
        let mut timing = client.pending.timing();
        // A request for several keys is one slow request.
        if std::mem::replace(&mut timing.is_logged, true) {
            return;
        }
        client.pending.set_timing(timing);
        self.metrics.slow_request(rule);
        let Some(suppressed) = self.observer.slow_log.borrow_mut().permit(client.turn_time()) else { return };
        let parts = timing.parts(took);
        let (unread, other) = match client.has_lagged(began) {
            true => (parts.rest, Duration::ZERO),
            false => (Duration::ZERO, parts.rest),
        };
        let key = self.observer.settings.keys.of(seen.key, || self.hash(seen.key));
        let line = SlowLine {
            command,
            key: shown_key(&key),
            rule: self.observer.rule(rule),
            outcome,
            client: client.peer,
            server: self.server_name(seen),
            parts,
            unread,
            other,
            suppressed,
        };
        line.log(took);
    }

    fn server_name(&self, seen: &SeenKey<'_>) -> String {
        match seen.server {
            Some((pool, server)) => {
                let label = self.pools[pool].connections()[server].server().label();
                format!("{}/{label}", self.observer.pool(pool))
            }
            None => "-".to_owned(),
        }
    }

    /// Remembers a request with a large value in `unread` for the log, if anything is logged: the client may be slow to read it.
    pub fn note_large_read(&self, read: Option<LargeRead<'_>>, unread: &mut Option<Box<UnreadReply>>) {
        if self.observer.slow == Duration::MAX {
            return;
        }
        *unread = read.map(|LargeRead { command, key, rule, began, timing }| {
            Box::new(UnreadReply { command, key: key.into(), rule, began, timing })
        });
    }

    /// Logs that a client has taken so long to read its replies, until now. `large`: the last one with a large value.
    pub fn log_unread(
        &self,
        client: &Client,
        unread: Duration,
        now: Instant,
        large: Option<Box<UnreadReply>>,
    ) {
        if unread < self.observer.slow {
            return;
        }
        let large = large.filter(|large| !large.timing.is_logged);
        self.metrics.slow_request(large.as_ref().map_or(NO_RULE, |large| large.rule));
        let Some(suppressed) = self.observer.slow_log.borrow_mut().permit(now) else { return };
        let Some(large) = large else {
            return warn!(
                target: "kennel::slow",
                client = %client.peer, client_ms = ms(unread), suppressed,
                "slow client: it has not read its replies"
            );
        };
        let took = now.saturating_duration_since(large.began);
        let parts = large.timing.parts(took.saturating_sub(unread));
        let key = self.observer.settings.keys.of(&large.key, || self.hash(&large.key));
        let line = SlowLine {
            command: large.command,
            key: shown_key(&key),
            rule: self.observer.rule(large.rule),
            outcome: Outcome::Hit,
            client: client.peer,
            server: "-".to_owned(),
            parts,
            unread,
            other: parts.rest,
            suppressed,
        };
        line.log(took);
    }

    /// Logs how many slow requests have not been logged, if no other line has said so. Must be called about once a second.
    pub fn log_suppressed(&self) {
        if let Some(suppressed) = self.observer.slow_log.borrow_mut().take_suppressed(Instant::now()) {
            warn!(target: "kennel::slow", suppressed, "further slow requests are not logged one by one");
        }
    }
}

/// A request whose reply has a large value.
#[derive(Debug, Clone, Copy)]
pub struct LargeRead<'a> {
    /// Command of the client that reads.
    pub command: Command,
    /// Key of the large value.
    pub key: &'a [u8],
    /// The index of its rule.
    pub rule: usize,
    /// When it was parsed.
    pub began: Instant,
    /// Where its time went until the reply was ready.
    pub timing: Timing,
}

/// A request with a large value that its client may not have read yet.
pub struct UnreadReply {
    command: Command,
    key: Box<[u8]>,
    rule: usize,
    began: Instant,
    timing: Timing,
}

/// One line of the log of slow requests.
struct SlowLine<'a> {
    command: Command,
    key: String,
    rule: &'a Arc<str>,
    outcome: Outcome,
    client: Peer,
    server: String,
    parts: Parts,
    unread: Duration,
    other: Duration,
    suppressed: u64,
}

impl SlowLine<'_> {
    /// To wait for another client's build is what the guard is for. Everything else is a warning.
    fn log(&self, took: Duration) {
        let SlowLine { command, key, rule, outcome, client, server, parts, unread, other, suppressed } = self;
        macro_rules! line {
            ($level:ident, $text:literal) => {
                $level!(
                    target: "kennel::slow",
                    command = %command.word(), %key, %rule, outcome = %outcome.word(), %client, %server,
                    total_ms = ms(took), build_ms = ms(parts.build), queue_ms = ms(parts.queue),
                    server_ms = ms(parts.server), client_ms = ms(*unread), other_ms = ms(*other), suppressed,
                    $text
                )
            };
        }
        match parts.build > took / 2 {
            true => line!(info, "slow request: it waited for another client's build"),
            false => line!(warn, "slow request"),
        }
    }
}

/// In whole milliseconds, rounded.
fn ms(duration: Duration) -> u64 {
    u64::try_from((duration.as_micros() + 500) / 1000).unwrap_or(u64::MAX)
}
