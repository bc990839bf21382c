//! What the promises of the design say about everything that was seen. Knows the truth, and nothing of the guard.

use super::plan::Plan;

/// A value that some client made: an index.
pub type ValueId = usize;
/// A rebuild that some client was told to do: an index.
pub type RebuildId = usize;

/// How one value came to be.
#[derive(Debug, Clone)]
pub struct Value {
    pub key: usize,
    /// Of the source of truth, when it was read.
    pub version: u64,
    /// Stored by a client that was told no miss.
    pub blind: bool,
    /// Its exptime, in seconds; 0: none.
    pub ttl: u64,
    /// When its `set` was sent, and answered.
    pub sent: Option<u64>,
    pub acked: Option<u64>,
}

#[derive(Debug, Clone)]
struct Rebuild {
    key: usize,
    /// When its client may first have read the tags' versions.
    began: u64,
    /// When its client was told.
    start: u64,
    /// Its value was still fresh.
    early: bool,
    /// When its `set` was sent, or it was given up.
    end: Option<u64>,
    acked: Option<u64>,
    value: Option<ValueId>,
}

/// Something that makes a key's value end before its time.
#[derive(Debug, Clone)]
struct Move {
    key: usize,
    begin: u64,
    acked: Option<u64>,
    /// The source's version from then on; 0 for what is no invalidation.
    version: u64,
}

/// A reader was given a stale value, or a miss because somebody else rebuilds.
#[derive(Debug, Clone)]
struct Held {
    key: usize,
    begin: u64,
    end: u64,
}

/// One promise, broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// How often each thing happened: that a run was worth running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub fresh: u64,
    pub stale: u64,
    pub won: u64,
    pub held: u64,
    pub failed: u64,
    pub dropped: u64,
    pub blind: u64,
    pub invalidations: u64,
    pub asks: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.fresh += other.fresh;
        self.stale += other.stale;
        self.won += other.won;
        self.held += other.held;
        self.failed += other.failed;
        self.dropped += other.dropped;
        self.blind += other.blind;
        self.invalidations += other.invalidations;
        self.asks += other.asks;
    }
}

pub struct Checker {
    plan: Plan,
    pub seen: Seen,
    /// The source of truth: each key's version.
    pub source: Vec<u64>,
    values: Vec<Value>,
    rebuilds: Vec<Rebuild>,
    moves: Vec<Move>,
    held: Vec<Held>,
    /// Each key's fresh hits after the quiet began: the first.
    first_fresh: Vec<Option<u64>>,
}

impl Checker {
    pub fn new(plan: &Plan) -> Checker {
        Checker {
            plan: plan.clone(),
            seen: Seen::default(),
            source: vec![1; plan.keys.len()],
            values: Vec::new(),
            rebuilds: Vec::new(),
            moves: Vec::new(),
            held: Vec::new(),
            first_fresh: vec![None; plan.keys.len()],
        }
    }

    /// A client has made a value from a version of the source.
    pub fn value(&mut self, key: usize, version: u64, ttl: u64, blind: bool) -> ValueId {
        self.values.push(Value { key, version, blind, ttl, sent: None, acked: None });
        self.values.len() - 1
    }

    pub fn sent(&mut self, value: ValueId, rebuild: Option<RebuildId>, now: u64) {
        self.values[value].sent = Some(now);
        match rebuild {
            Some(rebuild) => {
                self.rebuilds[rebuild].end = Some(now);
                self.rebuilds[rebuild].value = Some(value);
            }
            None => {
                let key = self.values[value].key;
                self.seen.blind += u64::from(self.values[value].blind);
                self.moves.push(Move { key, begin: now, acked: None, version: 0 });
                // Answered when its value is.
            }
        }
    }

    /// A value is being stored that may, instead, take away what stands there.
    pub fn disturbs(&mut self, value: ValueId, now: u64) {
        let Value { key, .. } = self.values[value];
        self.values[value].sent = Some(now);
        self.moves.push(Move { key, begin: now, acked: None, version: 0 });
    }

    pub fn acked(&mut self, value: ValueId, now: u64) {
        self.values[value].acked = Some(now);
        let Value { key, sent, .. } = self.values[value];
        for rebuild in self.rebuilds.iter_mut().filter(|rebuild| rebuild.value == Some(value)) {
            rebuild.acked = Some(now);
        }
        for moved in &mut self.moves {
            if moved.key == key && moved.version == 0 && Some(moved.begin) == sent && moved.acked.is_none() {
                moved.acked = Some(now);
            }
        }
    }

    pub fn rebuild(&mut self, key: usize, began: u64, now: u64, early: bool) -> RebuildId {
        self.seen.won += 1;
        // A read takes up to four rounds after it was last woken.
        let began = began.max(now.saturating_sub(4 * self.plan.trip()));
        self.rebuilds.push(Rebuild { key, began, start: now, early, end: None, acked: None, value: None });
        self.rebuilds.len() - 1
    }

    pub fn given_up(&mut self, rebuild: RebuildId, now: u64) {
        self.rebuilds[rebuild].end.get_or_insert(now);
    }

    /// The source has changed; an invalidation of these keys begins. Gives what names it.
    pub fn invalidation(&mut self, keys: &[usize], now: u64) -> Vec<usize> {
        self.seen.invalidations += 1;
        let begin = |&key: &usize| {
            self.source[key] += 1;
            self.moves.push(Move { key, begin: now, acked: None, version: self.source[key] });
            self.moves.len() - 1
        };
        keys.iter().map(begin).collect()
    }

    pub fn invalidated(&mut self, moves: &[usize], now: u64) {
        for &at in moves {
            self.moves[at].acked = Some(now);
        }
    }

    /// A key is fresh again. Its fill says so as well as a reader: it may expire before anybody reads it.
    pub fn filled(&mut self, key: usize, now: u64) {
        if now >= self.plan.quiet {
            self.first_fresh[key].get_or_insert(now);
        }
    }

    /// A reader that began at `began` is given a value as fresh.
    pub fn fresh(&mut self, key: usize, value: ValueId, began: u64, now: u64) -> Result<(), Broken> {
        self.seen.fresh += 1;
        self.filled(key, now);
        let of = &self.values[value];
        if of.key != key {
            return Err(Broken(format!("key {key} was answered with a value of key {}", of.key)));
        }
        let kills = |moved: &&Move| {
            moved.key == key
                && moved.version > of.version
                && moved.acked.is_some_and(|acked| acked < began)
                && (!of.blind || of.acked.is_some_and(|acked| acked < moved.begin))
        };
        if let Some(moved) = self.moves.iter().find(kills) {
            return Err(Broken(format!(
                "promise 2: resurrection: a request of {began} was given value {value} {of:?} as fresh, after {moved:?}"
            )));
        }
        self.in_time(key, value, now, 0)
    }

    /// A reader is given a value as stale.
    pub fn stale(&mut self, key: usize, value: ValueId, began: u64, now: u64) -> Result<(), Broken> {
        self.seen.stale += 1;
        self.held.push(Held { key, begin: began, end: now });
        let policy = &self.plan.keys[key].policy;
        let extra = millis(policy.stale_for) + millis(policy.stale_wait);
        self.in_time(key, value, now, extra)
    }

    pub fn missed(&mut self, key: usize, began: u64, now: u64) {
        self.seen.held += 1;
        self.held.push(Held { key, begin: began, end: now });
    }

    fn in_time(&self, key: usize, value: ValueId, now: u64, extra: u64) -> Result<(), Broken> {
        let Value { acked: Some(acked), ttl, .. } = self.values[value] else { return Ok(()) };
        let max_ttl = self.plan.keys[key].policy.max_ttl.as_secs();
        let ttl = match (ttl, max_ttl) {
            (ttl, 0) => ttl,
            (0, max) => max,
            (ttl, max) => ttl.min(max),
        };
        if ttl > 0 && now > acked + ttl * 1000 + extra + 2 * self.plan.trip() + self.grace() {
            return Err(Broken(format!(
                "promise 3: value {value} {:?} was served at {now}",
                self.values[value]
            )));
        }
        Ok(())
    }

    /// What lost replies add to anything that takes time.
    fn grace(&self) -> u64 {
        if self.plan.faults.lost > 0 { super::world::TIMEOUT } else { 0 }
    }

    /// A reader's request has taken from `began` to `now`.
    pub fn answered(&self, key: usize, began: u64, now: u64) -> Result<(), Broken> {
        let policy = &self.plan.keys[key].policy;
        let wait = millis(policy.cold_wait).max(millis(policy.stale_wait));
        let limit = wait + 12 * self.plan.trip() + 3 * self.grace();
        if now > began + limit {
            return Err(Broken(format!("promise 4: a reader of key {key} waited from {began} to {now}")));
        }
        Ok(())
    }

    /// What can only be told in the end.
    pub fn finish(&self, faulty: bool) -> Result<(), Broken> {
        for key in 0..self.plan.keys.len() {
            self.becomes_fresh(key)?;
            if !faulty {
                self.one_rebuild(key)?;
                self.held_for_a_reason(key)?;
            }
        }
        Ok(())
    }

    fn becomes_fresh(&self, key: usize) -> Result<(), Broken> {
        let Plan { quiet, think, faults, .. } = &self.plan;
        let policy = &self.plan.keys[key].policy;
        let hold = if faults.sloth > 0 { policy.max_rebuild } else { policy.lock_ttl };
        let slack = 20 * self.plan.trip() + 2 * self.grace();
        // Whatever was held when the quiet began has ended by then, renewed at the last moment or not.
        let free = quiet + millis(hold) + 1000 * u64::from(policy.lock_seconds()) + think + slack;
        let mut asked = self.held.iter().filter(|held| held.key == key && held.begin > free);
        let Some(first) = asked.clone().map(|held| held.begin).min() else { return Ok(()) };
        let late = |held: &&Held| {
            held.begin > first + think + slack && self.first_fresh[key].is_none_or(|fresh| fresh > held.end)
        };
        match asked.find(late) {
            // What a client with a pool stores may take away what another has just begun to build.
            Some(held) if self.plan.pooled && self.moved_between(key, first, held.end) => Ok(()),
            Some(held) => Err(Broken(format!("promise 5: {held:?} got nothing fresh since {first}"))),
            None => Ok(()),
        }
    }

    fn moved_between(&self, key: usize, from: u64, to: u64) -> bool {
        self.moves.iter().any(|moved| {
            moved.key == key && moved.begin <= to && moved.acked.is_none_or(|acked| acked >= from)
        })
    }

    fn one_rebuild(&self, key: usize) -> Result<(), Broken> {
        let mut rebuilds: Vec<&Rebuild> = self.rebuilds.iter().filter(|rebuild| rebuild.key == key).collect();
        rebuilds.sort_by_key(|rebuild| rebuild.start);
        for pair in rebuilds.windows(2) {
            let [first, second] = pair else { continue };
            if self.moved_between(key, first.began, second.start) {
                continue;
            }
            if first.end.is_none_or(|end| second.start < end) {
                return Err(Broken(format!("promise 1: overlapping rebuilds: {first:?} {second:?}")));
            }
            let ttl = first.value.map_or(0, |value| self.values[value].ttl);
            let max_ttl = self.plan.keys[key].policy.max_ttl.as_secs();
            let ttl = match (ttl, max_ttl) {
                (ttl, 0) => ttl,
                (0, max) => max,
                (ttl, max) => ttl.min(max),
            };
            let expires = first.end.unwrap_or(0) + ttl.saturating_sub(1) * 1000;
            if !second.early && (ttl == 0 || second.start < expires) {
                return Err(Broken(format!("promise 1: needless rebuild: {first:?} {second:?}")));
            }
        }
        Ok(())
    }

    fn held_for_a_reason(&self, key: usize) -> Result<(), Broken> {
        let slack = 4 * self.plan.trip();
        for held in self.held.iter().filter(|held| held.key == key) {
            let reason = self.rebuilds.iter().any(|rebuild| {
                rebuild.key == key
                    && rebuild.start <= held.end + slack
                    && rebuild.acked.is_none_or(|acked| acked + slack >= held.begin)
            });
            // A claim that finds the value moved, be it while a stub is put in its place, holds the lock for a moment, and
            // gives it back.
            if !reason && !self.moved_between(key, held.begin.saturating_sub(slack), held.end + slack) {
                return Err(Broken(format!("nobody rebuilt what was withheld: key {key} {held:?}")));
            }
        }
        Ok(())
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    duration.as_millis() as u64
}
