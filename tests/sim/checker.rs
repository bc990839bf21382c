//! The guarantees of the design, checked against everything observed. It knows the source of truth and nothing of the guard.

use super::counting::{Cause, History};
use super::places::Place;
use super::plan::Plan;

/// Index of a value that a client has made.
pub type ValueId = usize;
/// Index of a rebuild that a client has won.
pub type RebuildId = usize;

/// A value that a client has made.
#[derive(Debug, Clone)]
pub struct Value {
    pub key: usize,
    /// The version of the source of truth that it was made from.
    pub version: u64,
    /// Stored by a client without a miss.
    pub blind: bool,
    /// Its exptime in seconds; 0: none.
    pub ttl: u64,
    /// The tags that it names in addition to those of its rule.
    pub extra: Vec<usize>,
    /// When its `set` was sent, and acknowledged.
    pub sent: Option<u64>,
    pub acked: Option<u64>,
    /// When its client received a response, if only an error.
    pub ended: Option<u64>,
    /// Those disruptions that its store may cause.
    disruptions: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct Rebuild {
    pub key: usize,
    /// When its client's last read of the value was sent.
    pub last_read: u64,
    /// When the server executed the command that won.
    pub won: u64,
    /// When its client received the win.
    pub start: u64,
    /// Won before the value expired.
    pub early: bool,
    /// Its client was given no old value.
    pub cold: bool,
    /// When its `set` was sent, or it was abandoned.
    pub end: Option<u64>,
    pub acked: Option<u64>,
    pub value: Option<ValueId>,
}

/// What a disruption removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisruptionKind {
    /// The key. `leaves_stale`: the old value remains as stale.
    Key { leaves: bool },
    /// A tag. `named`: the key's rule does not have it, so only values that name it are concerned.
    Tag { tag: usize, named: bool },
    /// Nothing: the current value is replaced or changed, whatever it is.
    Value,
}

/// Something that ends the validity of a key's value early.
#[derive(Debug, Clone)]
pub struct Disruption {
    pub key: usize,
    pub kind: DisruptionKind,
    pub begin: u64,
    pub acked: Option<u64>,
    /// The sidecar that acknowledged it.
    pub by: usize,
    /// The source's version from then on; 0 if it is no invalidation.
    pub version: u64,
}

/// A reader received a stale value, or a miss because another client rebuilds.
#[derive(Debug, Clone)]
pub struct NotFresh {
    pub key: usize,
    pub begin: u64,
    pub end: u64,
}

/// A command that changes the expiry of the current value.
#[derive(Debug, Clone)]
pub struct Touch {
    key: usize,
    ttl: u64,
    sent: u64,
    acked: Option<u64>,
}

/// One request for one key and its progress.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub sidecar: usize,
    pub began: u64,
    pub now: u64,
    /// Since when it must not wait.
    pub no_wait_since: Option<u64>,
    /// When a server last executed one of its commands.
    pub served: u64,
    /// The number of rounds of commands. Taking a lock over while tags are bumped takes many.
    pub rounds: u64,
    /// Where it found the key.
    pub place: Place,
}

/// The last fill of a key.
#[derive(Debug, Clone, Copy)]
struct Filled {
    at: u64,
    sidecar: usize,
    expires: u64,
}

/// The description of a violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

pub fn violation<T>(why: String) -> Result<T, Violation> {
    Err(Violation(why))
}

macro_rules! coverage {
    ($($field:ident),*) => {
        /// How often each event happened, to check that the runs covered it.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Coverage { $(pub $field: u64),* }

        impl Coverage {
            pub fn add(&mut self, other: &Coverage) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

coverage!(
    fresh,
    stale,
    won,
    early,
    held,
    failed,
    dropped,
    blind,
    invalidations,
    server_commands,
    named,
    elsewhere,
    changed,
    cached,
    large,
    no_wait,
    waited,
    near,
    joined,
    late,
    copies_lost,
    tags_spoilt,
    added_tags,
    unmoved,
    fresh_hits,
    commands,
    undecided,
    moves,
    refused
);

pub struct Checker {
    pub plan: Plan,
    pub coverage: Coverage,
    /// The source of truth: each key's version.
    pub source: Vec<u64>,
    pub values: Vec<Value>,
    pub rebuilds: Vec<Rebuild>,
    pub disruptions: Vec<Disruption>,
    pub not_fresh: Vec<NotFresh>,
    pub reasons: History,
    /// For each key, until when a lock may remain whose key was filled without the knowledge of the sidecar that granted the
    /// lease.
    pub lock_outlives_fill: Vec<Option<u64>>,
    touches: Vec<Touch>,
    /// Keys whose item's expiry was changed by a late command, and the latest moment that it may be.
    put_off: Vec<(usize, u64)>,
    /// The results of `incr`, by value: no number may occur twice.
    counts: Vec<(ValueId, u64)>,
    /// The last fill of each key.
    fills: Vec<Option<Filled>>,
    /// When a fill of each key was last stored.
    pub stored: Vec<Option<u64>>,
    /// The first fresh hit of each key in the quiet period.
    pub first_fresh: Vec<Option<u64>>,
}

impl Value {
    /// Whether a disruption of this kind concerns it.
    fn has(&self, kind: DisruptionKind) -> bool {
        !matches!(kind, DisruptionKind::Tag { tag, named: true } if !self.extra.contains(&tag))
    }
}

impl Checker {
    pub fn new(plan: &Plan) -> Checker {
        Checker {
            plan: plan.clone(),
            coverage: Coverage::default(),
            source: vec![1; plan.keys.len()],
            values: Vec::new(),
            rebuilds: Vec::new(),
            disruptions: Vec::new(),
            not_fresh: Vec::new(),
            reasons: History::default(),
            lock_outlives_fill: vec![None; plan.keys.len()],
            touches: Vec::new(),
            put_off: Vec::new(),
            counts: Vec::new(),
            fills: vec![None; plan.keys.len()],
            stored: vec![None; plan.keys.len()],
            first_fresh: vec![None; plan.keys.len()],
        }
    }

    /// A client makes a value from the source's current version.
    pub fn value(&mut self, key: usize, ttl: u64, blind: bool, extra: Vec<usize>) -> ValueId {
        let (version, sent, acked, ended) = (self.source[key], None, None, None);
        let disruptions = Vec::new();
        self.values.push(Value { key, version, blind, ttl, extra, sent, acked, ended, disruptions });
        self.values.len() - 1
    }

    /// A value is sent: as the end of a rebuild, or to replace the current value.
    pub fn sent(&mut self, value: ValueId, rebuild: Option<RebuildId>, now: u64) {
        self.values[value].sent = Some(now);
        match rebuild {
            Some(rebuild) => {
                self.rebuilds[rebuild].end.get_or_insert(now);
                self.rebuilds[rebuild].value = Some(value);
            }
            None => {
                self.coverage.blind += u64::from(self.values[value].blind);
                self.may_replace(value, now);
            }
        }
    }

    /// A value is being stored that may instead remove the current one.
    pub fn may_replace(&mut self, value: ValueId, now: u64) {
        let key = self.values[value].key;
        self.values[value].sent = Some(now);
        self.values[value].disruptions.push(self.disruptions.len());
        self.disruptions.push(Disruption {
            key,
            kind: DisruptionKind::Value,
            begin: now,
            acked: None,
            by: 0,
            version: 0,
        });
    }

    pub fn acked(&mut self, value: ValueId, now: u64) {
        self.values[value].acked = Some(now);
        for rebuild in self.rebuilds.iter_mut().filter(|rebuild| rebuild.value == Some(value)) {
            rebuild.acked = Some(now);
        }
        self.ended(value, now, now);
    }

    /// The client has received a response, if only an error. None of the value's commands is on its way after `by`.
    pub fn ended(&mut self, value: ValueId, now: u64, by: u64) {
        let Value { disruptions, ended, .. } = &mut self.values[value];
        ended.get_or_insert(now);
        for disruption in disruptions {
            self.disruptions[*disruption].acked.get_or_insert(by);
        }
    }

    /// A late command has set the remaining time of the current value to `seconds`; 0: no expiry.
    pub fn put_off(&mut self, key: usize, seconds: i64, now: u64) {
        let until = if seconds == 0 { u64::MAX } else { now + seconds.unsigned_abs() * 1000 };
        self.put_off.push((key, until));
    }

    /// Something other than an invalidation may remove the key's value.
    pub fn may_remove(&mut self, key: usize, from: u64, to: u64) {
        self.disruptions.push(Disruption {
            key,
            kind: DisruptionKind::Value,
            begin: from,
            acked: Some(to),
            by: 0,
            version: 0,
        });
        self.reasons.note(key, Cause::Lost, from, Some(to));
    }

    /// A command that reads before it writes begins. It changes the CAS of the current value.
    pub fn changes(&mut self, key: usize, ttl: Option<u64>, now: u64) -> (usize, Option<usize>) {
        self.coverage.changed += 1;
        self.disruptions.push(Disruption {
            key,
            kind: DisruptionKind::Value,
            begin: now,
            acked: None,
            by: 0,
            version: 0,
        });
        let touch = ttl.map(|ttl| {
            self.touches.push(Touch { key, ttl, sent: now, acked: None });
            self.touches.len() - 1
        });
        (self.disruptions.len() - 1, touch)
    }

    pub fn changed(&mut self, (disruption, touch): (usize, Option<usize>), now: u64) {
        self.disruptions[disruption].acked = Some(now);
        if let Some(touch) = touch {
            self.touches[touch].acked = Some(now);
        }
    }

    /// `incr` has returned a number: no two of the same value may be equal.
    pub fn counted(&mut self, value: ValueId, count: u64) -> Result<(), Violation> {
        if self.counts.contains(&(value, count)) {
            return violation(format!("two counts of value {value} gave {count}"));
        }
        self.counts.push((value, count));
        Ok(())
    }

    pub fn rebuild(
        &mut self,
        key: usize,
        last_read: u64,
        won: u64,
        now: u64,
        (early, cold): (bool, bool),
    ) -> RebuildId {
        self.coverage.won += 1;
        self.coverage.early += u64::from(early);
        if now > last_read + super::world::TIMEOUT {
            // A copy of a tag did not respond in time: the stub may have been filled before its winner received the win.
            self.reasons.note(key, Cause::Lost, last_read, Some(now));
        }
        let unfinished =
            Rebuild { key, last_read, won, start: now, early, cold, end: None, acked: None, value: None };
        self.rebuilds.push(unfinished);
        self.rebuilds.len() - 1
    }

    /// The client has left or never fills: its lease may last for `hold` ms more.
    pub fn given_up(&mut self, rebuild: RebuildId, now: u64, hold: u64) {
        let Rebuild { key, end, .. } = &mut self.rebuilds[rebuild];
        end.get_or_insert(now);
        let key = *key;
        self.reasons.note(key, Cause::GivenUp, now, Some(now + hold));
    }

    /// The source has changed and an invalidation of these keys begins. Returns its disruptions.
    pub fn invalidation(&mut self, keys: &[(usize, DisruptionKind)], now: u64) -> Vec<usize> {
        self.coverage.invalidations += 1;
        let begin = |&(key, kind): &(usize, DisruptionKind)| {
            self.source[key] += 1;
            let version = self.source[key];
            self.disruptions.push(Disruption { key, kind, begin: now, acked: None, by: 0, version });
            self.disruptions.len() - 1
        };
        keys.iter().map(begin).collect()
    }

    /// The invalidation is sent, for the first time or again. Returns the attempt's reasons.
    pub fn attempted(&mut self, disruptions: &[usize], now: u64) -> Vec<usize> {
        // With cached versions, clients may build any number of values that are stale from the start.
        let again = |at: &&usize| match self.disruptions[**at].kind {
            DisruptionKind::Tag { .. } if self.plan.tag_cache > 0 => 32,
            _ => 1,
        };
        let each = disruptions.iter().flat_map(|at| std::iter::repeat_n(*at, again(&at)));
        each.map(|at| self.reasons.note(self.disruptions[at].key, Cause::Invalidated, now, None)).collect()
    }

    /// An attempt has ended at its sidecar; its commands have arrived by `now`.
    pub fn attempt_ended(&mut self, attempt: &[usize], now: u64) {
        for &at in attempt {
            self.reasons.close(at, now + self.plan.tag_cache);
        }
    }

    pub fn invalidated(&mut self, disruptions: &[usize], by: usize, now: u64) {
        for &at in disruptions {
            self.disruptions[at].acked = Some(now);
            self.disruptions[at].by = by;
        }
    }

    /// A key is fresh again. Its fill counts as well as a read: it may expire before the first read.
    pub fn filled(&mut self, key: usize, value: ValueId, sidecar: usize, now: u64) {
        self.is_fresh(key, now);
        let ttl = self.soft_ttl(key, self.values[value].ttl);
        let expires = ttl.map_or(u64::MAX, |ttl| self.values[value].sent.unwrap_or(now) + (ttl - 1) * 1000);
        self.fills[key] = Some(Filled { at: now, sidecar, expires });
    }

    /// Whether a fill was stored at or after that moment, including one that is stale from the start.
    pub fn is_stored_since(&self, key: usize, moment: u64) -> bool {
        self.stored[key].is_some_and(|stored| stored >= moment)
    }

    fn is_fresh(&mut self, key: usize, now: u64) {
        if now >= self.plan.quiet {
            self.first_fresh[key].get_or_insert(now);
        }
    }

    /// A reader receives a value as fresh.
    pub fn fresh(&mut self, key: usize, value: ValueId, request: Request) -> Result<(), Violation> {
        self.coverage.fresh += 1;
        self.is_fresh(key, request.now);
        let of = &self.values[value];
        if of.key != key {
            return violation(format!("key {key} was answered with a value of key {}", of.key));
        }
        if let Some(disruption) = self.ended_before(value, request, |_| true) {
            let Request { began, .. } = request;
            return violation(format!(
                "promise 2: resurrection: a request of {began} received value {value} {of:?} as fresh, after {disruption:?}"
            ));
        }
        self.check_expiry(key, value, request, 0)
    }

    /// A reader receives a value as stale. `won`: it also receives the lease.
    pub fn stale(
        &mut self,
        key: usize,
        value: ValueId,
        request: Request,
        won: bool,
    ) -> Result<(), Violation> {
        self.coverage.stale += 1;
        if !won {
            self.not_fresh.push(NotFresh { key, begin: request.began, end: request.now });
        }
        let policy = &self.plan.keys[key].policy;
        let drops = |kind: DisruptionKind| match kind {
            // A delete that another place has missed leaves the old value there, for which `on_tag` decides.
            DisruptionKind::Key { leaves } => !leaves && self.plan.moves == 0,
            DisruptionKind::Tag { .. } => policy.on_tag == kennel::guard::OnInvalidate::Drop,
            DisruptionKind::Value => false,
        };
        if let Some(disruption) = self.ended_before(value, request, drops) {
            let of = &self.values[value];
            return violation(format!(
                "promise 2: value {value} {of:?} was served as stale, after {disruption:?}"
            ));
        }
        let extra = millis(policy.stale_for) + millis(policy.stale_wait);
        self.check_expiry(key, value, request, extra)
    }

    /// The disruption, of a kind that `counts`, that had ended this value before the request began.
    fn ended_before(
        &self,
        value: ValueId,
        request: Request,
        counts: impl Fn(DisruptionKind) -> bool,
    ) -> Option<&Disruption> {
        let of = &self.values[value];
        self.disruptions.iter().find(|disruption| {
            if disruption.key != of.key || disruption.version <= of.version {
                return false;
            }
            // A sidecar sees its own bumps at once, unless the tag was lost and its version may be smaller now.
            let knows = disruption.by == request.sidecar && !self.plan.faults_matter();
            let cached = matches!(disruption.kind, DisruptionKind::Tag { .. }) && !knows;
            let cache = if cached { self.plan.tag_cache } else { 0 };
            let cache = cache + self.near(disruption.key, disruption.by, request.sidecar);
            counts(disruption.kind)
                && of.has(disruption.kind)
                && disruption.acked.is_some_and(|acked| acked + cache < request.began)
                && (!of.blind || of.ended.is_some_and(|ended| ended < disruption.begin))
        })
    }

    /// A reader receives a miss without the right to rebuild. `held`: because another client rebuilds.
    pub fn missed(&mut self, key: usize, request: Request, held: bool) -> Result<(), Violation> {
        self.coverage.held += 1;
        let Request { began, now, no_wait_since, .. } = request;
        self.not_fresh.push(NotFresh { key, begin: began, end: now });
        let policy = &self.plan.keys[key].policy;
        let patient = held && no_wait_since.is_none() && !policy.cold_wait.is_zero();
        // A key whose stub has been removed twice counts as one that is never filled.
        let deletes = self.disruptions.iter().filter(|disruption| {
            disruption.key == key && matches!(disruption.kind, DisruptionKind::Key { .. })
        });
        let is_awaited = self.reasons.given_up(key) + deletes.count() < 2;
        // A value that is too large ends a rebuild without a value.
        let exact = !self.plan.faults_matter()
            && !self.plan.is_storm()
            && self.plan.max_value >= 1 << 20
            && is_awaited;
        if patient && exact && now < began + millis(policy.cold_limit) {
            return violation(format!(
                "promise 1: a reader of key {key} waited from {began} to {now} and received a miss, before cold_limit"
            ));
        }
        Ok(())
    }

    /// How long a value of this key is fresh, in seconds; `None`: without limit.
    pub fn soft_ttl(&self, key: usize, ttl: u64) -> Option<u64> {
        match (ttl, self.plan.keys[key].policy.max_ttl.as_secs()) {
            (0, 0) => None,
            (ttl, 0) => Some(ttl),
            (0, max) => Some(max),
            (ttl, max) => Some(ttl.min(max)),
        }
    }

    fn check_expiry(
        &self,
        key: usize,
        value: ValueId,
        request: Request,
        extra: u64,
    ) -> Result<(), Violation> {
        let Request { now, rounds, .. } = request;
        let Value { acked: Some(acked), ttl, sent, .. } = self.values[value] else { return Ok(()) };
        if self.plan.checks_only_freshness() {
            return Ok(());
        }
        let touches = self.touches.iter().filter(|touch| touch.key == key && touch.acked >= sent);
        let unknown = self.touches.iter().any(|touch| touch.key == key && touch.acked.is_none());
        let ends = touches.map(|touch| (touch.acked, touch.ttl)).chain([(Some(acked), ttl)]);
        let end = |(at, ttl): (Option<u64>, u64)| Some(at? + self.soft_ttl(key, ttl)? * 1000);
        let Some(ends) = ends.map(end).collect::<Option<Vec<u64>>>() else { return Ok(()) };
        let last = ends.into_iter().max().unwrap_or(0);
        // `incr` and the like store the value again, and memcached's clock may tick between their read and their store.
        let again = |disruption: &&Disruption| {
            disruption.key == key && disruption.version == 0 && disruption.acked >= sent
        };
        let ticks =
            if self.plan.changes { self.disruptions.iter().filter(again).count() as u64 * 1000 } else { 0 };
        let last = last + ticks;
        // A value that is won while fresh may be served some rounds later.
        let took = rounds.max(2) * self.plan.trip() + rounds.max(1) * self.grace() + self.copy_grace();
        let put_off = self.put_off.iter().any(|(of, until)| *of == key && until.saturating_add(extra) >= now);
        if !unknown && !put_off && now > last + extra + took {
            return violation(format!(
                "promise 3: value {value} {:?} was served at {now}",
                self.values[value]
            ));
        }
        Ok(())
    }

    /// The touches of every key: key, exptime, when sent, when acknowledged.
    pub fn touched(&self) -> impl Iterator<Item = (usize, u64, u64, Option<u64>)> {
        self.touches.iter().map(|touch| (touch.key, touch.ttl, touch.sent, touch.acked))
    }

    /// The delay that lost replies add to anything that takes time.
    pub fn grace(&self) -> u64 {
        if self.plan.faults.lost > 0 || self.plan.holds_back() { super::world::TIMEOUT } else { 0 }
    }

    /// How long rounds wait for a copy of a tag that does not respond, until its connection is replaced.
    fn copy_grace(&self) -> u64 {
        if self.plan.copies && self.plan.holds_back() { 5 * self.grace() } else { 0 }
    }

    /// A reader has received its response.
    pub fn answered(&mut self, key: usize, request: Request) -> Result<(), Violation> {
        let Request { began, now, no_wait_since, rounds, .. } = request;
        let policy = &self.plan.keys[key].policy;
        let cold_limit = if policy.cold_wait.is_zero() { 0 } else { millis(policy.cold_limit) };
        let wait = cold_limit.max(millis(policy.stale_wait));
        let rounds = rounds.max(12) * self.plan.trip()
            + rounds.max(3) * self.grace()
            + self.copy_grace()
            + self.join_wait(key);
        self.coverage.waited += u64::from(now > began + rounds);
        if self.plan.checks_only_freshness() {
            return Ok(());
        }
        if now > began + wait + rounds {
            return violation(format!("promise 4: a reader of key {key} waited from {began} to {now}"));
        }
        if let Some(no_wait_since) = no_wait_since {
            self.coverage.no_wait += 1;
            if now > no_wait_since.max(began) + rounds {
                return violation(format!(
                    "promise 4: a reader of key {key} that may not wait since {no_wait_since} waited from {began} to {now}"
                ));
            }
        }
        self.check_woken_in_time(key, request)
    }

    /// Once a key is filled, its waiters are woken: at once, or, if another sidecar filled it, by the next poll.
    fn check_woken_in_time(
        &self,
        key: usize,
        Request { sidecar, began, now, .. }: Request,
    ) -> Result<(), Violation> {
        let Some(Filled { at: filled, sidecar: by, expires }) = self.fills[key] else { return Ok(()) };
        let look = if by == sidecar { 0 } else { 200 };
        let polled = look + 16 * self.plan.trip() + self.join_wait(key);
        let due = filled.max(began) + polled;
        let calm = expires > now && !self.disrupted_between(key, filled, now);
        let early =
            self.rebuilds.iter().any(|rebuild| rebuild.key == key && rebuild.start + polled >= filled);
        // If a lock remains after the fill, a poll mistakes the new value for the old one.
        let exact = !self.plan.faults_matter() && self.lock_outlives_fill[key].is_none();
        if exact && calm && !early && now > due {
            return violation(format!(
                "promise 4: a reader of key {key} waited from {began} to {now} though it was filled at {filled}"
            ));
        }
        Ok(())
    }

    pub fn disrupted_between(&self, key: usize, from: u64, to: u64) -> bool {
        self.disruptions.iter().any(|disruption| {
            disruption.key == key
                && disruption.begin <= to
                && disruption.acked.is_none_or(|acked| acked >= from)
        })
    }
}

pub fn millis(duration: std::time::Duration) -> u64 {
    duration.as_millis() as u64
}
