//! Checks at the end of a run: how many rebuilds there were, and whether each had a cause of its own.

use super::checker::{Checker, DisruptionKind, NotFresh, Rebuild, Violation, millis, violation};
use super::plan::Plan;

/// Why a key may have to be rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A value expired.
    Expired,
    /// It was invalidated.
    Invalidated,
    /// The current value was replaced, or may have been.
    Replaced,
    /// Its item, stub, lock or tag was lost.
    Lost,
    /// A rebuild ended without a value that could be stored.
    GivenUp,
}

/// A cause that took effect at one moment between `from` and `to`.
#[derive(Debug, Clone)]
struct Reason {
    key: usize,
    why: Cause,
    from: u64,
    to: Option<u64>,
}

#[derive(Debug, Default)]
pub struct History {
    reasons: Vec<Reason>,
}

impl History {
    /// Returns its index, for [`Reasons::close`].
    pub fn note(&mut self, key: usize, why: Cause, from: u64, to: Option<u64>) -> usize {
        self.reasons.push(Reason { key, why, from, to });
        self.reasons.len() - 1
    }

    /// How many rebuilds of this key have ended without a value.
    pub fn given_up(&self, key: usize) -> usize {
        self.reasons.iter().filter(|reason| reason.key == key && reason.why == Cause::GivenUp).count()
    }

    pub fn close(&mut self, at: usize, to: u64) {
        self.reasons[at].to.get_or_insert(to);
    }
}

/// The interval that must contain a reason for a rebuild: from the preceding rebuild's decision to its own.
#[derive(Debug, Clone)]
struct Gap {
    from: u64,
    to: u64,
}

/// Whether each gap can be assigned a reason of its own. Otherwise the index of a gap that cannot.
fn matched(gaps: &[Gap], reasons: &[&Reason]) -> Result<(), usize> {
    let fits =
        |gap: &Gap, reason: &Reason| reason.from <= gap.to && reason.to.is_none_or(|to| to >= gap.from);
    let mut taken: Vec<Option<usize>> = vec![None; reasons.len()];
    for start in 0..gaps.len() {
        let mut tried = vec![false; reasons.len()];
        if !place(start, gaps, reasons, &fits, &mut taken, &mut tried) {
            return Err(start);
        }
    }
    Ok(())
}

/// One step of Kuhn's matching algorithm: assigns a reason to this gap, if necessary by assigning another one to another gap.
fn place(
    gap: usize,
    gaps: &[Gap],
    reasons: &[&Reason],
    fits: &impl Fn(&Gap, &Reason) -> bool,
    taken: &mut [Option<usize>],
    tried: &mut [bool],
) -> bool {
    for at in 0..reasons.len() {
        if tried[at] || !fits(&gaps[gap], reasons[at]) {
            continue;
        }
        tried[at] = true;
        let free = taken[at].is_none_or(|other| place(other, gaps, reasons, fits, taken, tried));
        if free {
            taken[at] = Some(gap);
            return true;
        }
    }
    false
}

impl Checker {
    pub fn finish(&mut self, faulty: bool) -> Result<(), Violation> {
        if self.plan.is_storm() {
            return Ok(());
        }
        self.note_expiries();
        for key in 0..self.plan.keys.len() {
            self.check_becomes_fresh(key)?;
            if self.plan.moves > 0 {
                continue;
            }
            self.check_rebuild_reasons(key)?;
            if !faulty {
                self.check_withheld_reasons(key)?;
            }
        }
        Ok(())
    }

    /// Each value that was stored, or may have been, expires once.
    fn note_expiries(&mut self) {
        let slack = 2 * self.plan.trip();
        let mut ends = Vec::new();
        if self.plan.faults_matter() {
            // If a lock is lost, two clients may rebuild the same stale value: the first to fill ends the other's lease too.
            for value in &self.values {
                if let Some(sent) = value.sent {
                    self.reasons.note(value.key, Cause::Replaced, sent, value.acked);
                }
            }
        }
        for (at, value) in self.values.iter().enumerate() {
            let Some(sent) = value.sent else { continue };
            if let Some(ttl) = self.soft_ttl(value.key, value.ttl) {
                let to = value.acked.map(|acked| acked + ttl * 1000 + slack);
                ends.push((value.key, sent + (ttl - 1) * 1000, to));
            }
            // Sealed with versions from before a bump, it is stale from the start.
            if value.blind && self.bumped_between(value.key, sent, value.acked.unwrap_or(u64::MAX)) {
                ends.push((value.key, sent, value.acked));
            }
            // So is the late value of a build that another one has overtaken after a bump: it is in the place of that one's stub.
            let acked = value.acked.unwrap_or(u64::MAX);
            let of_key = || self.rebuilds.iter().filter(|rebuild| rebuild.key == value.key);
            let own = of_key().find(|rebuild| rebuild.value == Some(at)).map_or(0, |rebuild| rebuild.won);
            let is_late = of_key()
                .any(|other| other.won > own && other.won <= acked && other.end.is_none_or(|end| end > sent));
            if !value.blind && is_late && self.bumped_between(value.key, own, acked) {
                ends.push((value.key, sent, value.acked));
            }
        }
        for (key, ttl, sent, acked) in self.touched() {
            if let Some(ttl) = self.soft_ttl(key, ttl) {
                ends.push((
                    key,
                    sent + (ttl.max(1) - 1) * 1000,
                    acked.map(|acked| acked + ttl * 1000 + slack),
                ));
            }
        }
        for (key, from, to) in ends {
            self.reasons.note(key, Cause::Expired, from, to);
        }
        for rebuild in &self.rebuilds {
            let policy = &self.plan.keys[rebuild.key].policy;
            let late = rebuild.start + millis(policy.max_rebuild);
            if rebuild.end.is_none_or(|end| end > late) {
                // Its lease expires.
                let hold = 1000 * u64::from(policy.lock_seconds()) + slack;
                self.reasons.note(rebuild.key, Cause::GivenUp, late, Some(late + hold));
            }
        }
        for disruption in self.disruptions.iter().filter(|disruption| disruption.version == 0) {
            self.reasons.note(disruption.key, Cause::Replaced, disruption.begin, disruption.acked);
        }
    }

    fn bumped_between(&self, key: usize, from: u64, to: u64) -> bool {
        self.disruptions.iter().any(|disruption| {
            disruption.key == key
                && matches!(disruption.kind, DisruptionKind::Tag { .. })
                && disruption.begin <= to
                && disruption.acked.is_none_or(|acked| acked + self.plan.tag_cache >= from)
        })
    }

    /// Promise 1. Between the decisions for two consecutive rebuilds lies a reason, and no two share one: an expiry, an
    /// invalidation, a loss, or the end of the first without a value. If the first has not ended, the reason must be one that
    /// removed what its lease was based on.
    fn check_rebuild_reasons(&self, key: usize) -> Result<(), Violation> {
        // A win may be delivered so late that another rebuild began and ended meanwhile: one sound order is enough.
        let by_start = self.has_reasons(key, |rebuild| rebuild.start);
        let others: [fn(&Rebuild) -> u64; 2] = [|rebuild| rebuild.last_read, |rebuild| rebuild.won];
        match others.iter().any(|order| self.has_reasons(key, *order).is_ok()) {
            true => Ok(()),
            false => by_start,
        }
    }

    fn has_reasons(&self, key: usize, order: fn(&Rebuild) -> u64) -> Result<(), Violation> {
        let max_rebuild = millis(self.plan.keys[key].policy.max_rebuild);
        let mut rebuilds: Vec<&Rebuild> = self.rebuilds.iter().filter(|rebuild| rebuild.key == key).collect();
        rebuilds.sort_by_key(|rebuild| order(rebuild));
        let (mut gaps, mut overlaps) = (Vec::new(), Vec::new());
        for pair in rebuilds.windows(2) {
            let [first, second] = pair else { continue };
            if self.is_let_through(first, second) {
                continue;
            }
            let gap = Gap { from: first.last_read.min(second.last_read), to: second.start };
            let ends = first.end.unwrap_or(u64::MAX).min(first.start + max_rebuild);
            if second.start < ends && !self.is_overtaken(first, second) {
                overlaps.push((gap.clone(), pair));
            }
            if !second.early {
                gaps.push((gap, pair));
            }
        }
        let of = |counts: fn(Cause) -> bool| -> Vec<&Reason> {
            self.reasons.reasons.iter().filter(|reason| reason.key == key && counts(reason.why)).collect()
        };
        for (what, gaps, reasons) in [
            (
                "overlapping rebuilds",
                overlaps,
                of(|why| matches!(why, Cause::Invalidated | Cause::Replaced | Cause::Lost)),
            ),
            ("a rebuild without a reason", gaps, of(|why| why != Cause::Replaced)),
        ] {
            let spans: Vec<Gap> = gaps.iter().map(|(gap, _)| gap.clone()).collect();
            if let Err(at) = matched(&spans, &reasons) {
                let (gap, pair) = &gaps[at];
                let near = |reason: &&&Reason| {
                    reason.from <= gap.to + 1000 && reason.to.is_none_or(|to| to + 1000 >= gap.from)
                };
                let near: Vec<_> = reasons.iter().filter(near).collect();
                return violation(format!(
                    "promise 1: {what}: key {key} {pair:?}, where there is only {near:?}"
                ));
            }
        }
        Ok(())
    }

    /// Promise 1: without an old value to serve, another client is let through when the last one has had `cold_wait`. The
    /// lock of a value that may not be served is taken some rounds before its win is decided.
    fn is_let_through(&self, first: &Rebuild, second: &Rebuild) -> bool {
        let cold_wait = millis(self.plan.keys[first.key].policy.cold_wait);
        let rounds = 4 * self.plan.trip();
        second.cold && cold_wait > 0 && second.won + rounds >= first.won + cold_wait
    }

    /// Whether `first` was let through, and the client that it was to stand in for has stored its value before `second`.
    fn is_overtaken(&self, first: &Rebuild, second: &Rebuild) -> bool {
        self.rebuilds.iter().any(|other| {
            other.key == first.key
                && other.won < first.won
                && other.acked.is_some_and(|acked| acked >= first.won)
                && other.end.is_some_and(|end| end <= second.start)
        })
    }

    fn check_becomes_fresh(&self, key: usize) -> Result<(), Violation> {
        let Plan { quiet, think, faults, .. } = &self.plan;
        let policy = &self.plan.keys[key].policy;
        let hold = if faults.slow_winner > 0 { policy.max_rebuild } else { policy.lock_ttl };
        let slack = 20 * self.plan.trip() + 2 * self.grace() + self.plan.tag_cache;
        // A value that names a tag for the first time is stale if the tag was bumped recently: then the next rebuild counts.
        let again = if self.plan.keys[key].extra.is_empty() { 1 } else { 2 };
        // Leases that were held when the quiet period began have ended by then, even if they were renewed at the last moment.
        let held = (quiet + millis(hold)).max(self.lock_outlives_fill[key].unwrap_or(0));
        let free = held + 1000 * u64::from(policy.lock_seconds()) + think + slack;
        let mut unserved = self.not_fresh.iter().filter(|held| held.key == key && held.begin > free);
        let Some(first) = unserved.clone().map(|held| held.begin).min() else { return Ok(()) };
        let late = |held: &&NotFresh| {
            held.begin > first + again * (think + slack)
                && self.first_fresh[key].is_none_or(|fresh| fresh > held.end)
        };
        match unserved.find(late) {
            // A value that is stored without a lease, or is too large, may remove what another client has just begun to build.
            Some(held) if self.disrupted_between(key, first, held.end) => Ok(()),
            Some(held) => violation(format!("promise 5: {held:?} received no fresh value since {first}")),
            None => Ok(()),
        }
    }

    fn check_withheld_reasons(&self, key: usize) -> Result<(), Violation> {
        let slack = 4 * self.plan.trip();
        // The lock's holder may have been about to begin when the run ended.
        let check_expiry = |held: &&NotFresh| held.end + slack <= self.plan.end;
        for held in self.not_fresh.iter().filter(|held| held.key == key).filter(check_expiry) {
            let reason = self.rebuilds.iter().any(|rebuild| {
                rebuild.key == key
                    && rebuild.start <= held.end + slack
                    && rebuild.acked.is_none_or(|acked| acked + slack >= held.begin)
            });
            // A claim that finds the value changed, if only because a stub was put in its place, holds the lock briefly and
            // releases it. With cached versions, values that others have built since may look stale.
            let before = slack + self.plan.tag_cache;
            if !reason && !self.disrupted_between(key, held.begin.saturating_sub(before), held.end + slack) {
                return violation(format!(
                    "a reader got nothing fresh though no client rebuilt: key {key} {held:?}"
                ));
            }
        }
        Ok(())
    }
}

mod tests {
    use super::*;

    fn reason(from: u64, to: u64) -> Reason {
        Reason { key: 0, why: Cause::Lost, from, to: Some(to) }
    }

    #[test]
    fn two_rebuilds_do_not_share_a_reason_and_each_takes_one_that_leaves_the_others_theirs() {
        let gaps = [Gap { from: 0, to: 10 }, Gap { from: 5, to: 20 }];
        let (both, second) = (reason(6, 8), reason(15, 16));
        assert_eq!(matched(&gaps, &[&both]), Err(1));
        assert_eq!(matched(&gaps, &[&both, &second]), Ok(()));
        assert_eq!(matched(&gaps, &[&second, &both]), Ok(()));
        assert_eq!(matched(&gaps, &[&second, &second]), Err(0));
    }
}
