//! What can only be told in the end: how many rebuilds there were, and whether each had a reason of its own.

use super::checker::{Broken, Checker, Held, Moving, Rebuild, broken, millis};
use super::plan::Plan;

/// Why a key may have to be rebuilt once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A value's time was over.
    Expired,
    /// It was invalidated.
    Invalidated,
    /// What stood there was replaced, or may have been.
    Replaced,
    /// Its item, its stub, its lock or its tag was lost.
    Lost,
    /// A rebuild ended without a value that could be kept.
    GivenUp,
}

/// Something that took effect at one moment between these two.
#[derive(Debug, Clone)]
struct Reason {
    key: usize,
    why: Why,
    from: u64,
    to: Option<u64>,
}

#[derive(Debug, Default)]
pub struct History {
    reasons: Vec<Reason>,
}

impl History {
    /// Gives what names it, for [`History::close`].
    pub fn note(&mut self, key: usize, why: Why, from: u64, to: Option<u64>) -> usize {
        self.reasons.push(Reason { key, why, from, to });
        self.reasons.len() - 1
    }

    pub fn close(&mut self, at: usize, to: u64) {
        self.reasons[at].to.get_or_insert(to);
    }
}

/// The span in which there must have been a reason for a rebuild: from the decision before it to its own.
#[derive(Debug, Clone)]
struct Gap {
    from: u64,
    to: u64,
}

/// Whether each gap can be given a reason of its own; else the index of one that cannot.
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

/// One step of Kuhn's algorithm: a reason for this gap, if need be by moving another gap to another reason.
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
    pub fn finish(&mut self, faulty: bool) -> Result<(), Broken> {
        if self.plan.is_storm() {
            return Ok(());
        }
        self.note_expiries();
        for key in 0..self.plan.keys.len() {
            self.becomes_fresh(key)?;
            self.every_rebuild_has_a_reason(key)?;
            if !faulty {
                self.held_for_a_reason(key)?;
            }
        }
        Ok(())
    }

    /// Each value that was stored, or may have been, ends once.
    fn note_expiries(&mut self) {
        let slack = 2 * self.plan.trip();
        let mut ends = Vec::new();
        if self.plan.faults_matter() {
            // Two that build over the same stale value because a lock was lost: the first to fill ends the other's lease too.
            for value in &self.values {
                if let Some(sent) = value.sent {
                    self.ledger.note(value.key, Why::Replaced, sent, value.acked);
                }
            }
        }
        for value in &self.values {
            let Some(sent) = value.sent else { continue };
            if let Some(ttl) = self.soft_ttl(value.key, value.ttl) {
                let to = value.acked.map(|acked| acked + ttl * 1000 + slack);
                ends.push((value.key, sent + (ttl - 1) * 1000, to));
            }
            // Sealed with versions from before an invalidation, it is stale from the start.
            if value.blind && self.bumped_between(value.key, sent, value.acked.unwrap_or(u64::MAX)) {
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
            self.ledger.note(key, Why::Expired, from, to);
        }
        for rebuild in &self.rebuilds {
            let policy = &self.plan.keys[rebuild.key].policy;
            let late = rebuild.start + millis(policy.max_rebuild);
            if rebuild.end.is_none_or(|end| end > late) {
                // Its lease has ended by itself.
                let hold = 1000 * u64::from(policy.lock_seconds()) + slack;
                self.ledger.note(rebuild.key, Why::GivenUp, late, Some(late + hold));
            }
        }
        for moved in self.moves.iter().filter(|moved| moved.version == 0) {
            self.ledger.note(moved.key, Why::Replaced, moved.begin, moved.acked);
        }
    }

    fn bumped_between(&self, key: usize, from: u64, to: u64) -> bool {
        self.moves.iter().any(|moved| {
            moved.key == key
                && matches!(moved.what, Moving::Tag { .. })
                && moved.begin <= to
                && moved.acked.is_none_or(|acked| acked + self.plan.tag_cache >= from)
        })
    }

    /// Promise 1. Between the decisions for two rebuilds that follow each other lies a reason, and no two share one: an expiry,
    /// an invalidation, something lost, or the end of the first without a value. Where the first has not ended, it must be
    /// something that took away what it stood on.
    fn every_rebuild_has_a_reason(&self, key: usize) -> Result<(), Broken> {
        // A win may be told so late that another began and ended meanwhile: it is enough if one order is sound.
        let told = self.has_reasons(key, |rebuild| rebuild.start);
        let others: [fn(&Rebuild) -> u64; 2] = [|rebuild| rebuild.looked, |rebuild| rebuild.won];
        match others.iter().any(|order| self.has_reasons(key, *order).is_ok()) {
            true => Ok(()),
            false => told,
        }
    }

    fn has_reasons(&self, key: usize, order: fn(&Rebuild) -> u64) -> Result<(), Broken> {
        let max_rebuild = millis(self.plan.keys[key].policy.max_rebuild);
        let mut rebuilds: Vec<&Rebuild> = self.rebuilds.iter().filter(|rebuild| rebuild.key == key).collect();
        rebuilds.sort_by_key(|rebuild| order(rebuild));
        let (mut gaps, mut overlaps) = (Vec::new(), Vec::new());
        for pair in rebuilds.windows(2) {
            let [first, second] = pair else { continue };
            let gap = Gap { from: first.looked.min(second.looked), to: second.start };
            let ends = first.end.unwrap_or(u64::MAX).min(first.start + max_rebuild);
            if second.start < ends {
                overlaps.push((gap.clone(), pair));
            }
            if !second.early {
                gaps.push((gap, pair));
            }
        }
        let of = |counts: fn(Why) -> bool| -> Vec<&Reason> {
            self.ledger.reasons.iter().filter(|reason| reason.key == key && counts(reason.why)).collect()
        };
        for (what, gaps, reasons) in [
            (
                "overlapping rebuilds",
                overlaps,
                of(|why| matches!(why, Why::Invalidated | Why::Replaced | Why::Lost)),
            ),
            ("a rebuild without a reason", gaps, of(|why| why != Why::Replaced)),
        ] {
            let spans: Vec<Gap> = gaps.iter().map(|(gap, _)| gap.clone()).collect();
            if let Err(at) = matched(&spans, &reasons) {
                let (gap, pair) = &gaps[at];
                let near = |reason: &&&Reason| {
                    reason.from <= gap.to + 1000 && reason.to.is_none_or(|to| to + 1000 >= gap.from)
                };
                let near: Vec<_> = reasons.iter().filter(near).collect();
                return broken(format!(
                    "promise 1: {what}: key {key} {pair:?}, where there is only {near:?}"
                ));
            }
        }
        Ok(())
    }

    fn becomes_fresh(&self, key: usize) -> Result<(), Broken> {
        let Plan { quiet, think, faults, .. } = &self.plan;
        let policy = &self.plan.keys[key].policy;
        let hold = if faults.sloth > 0 { policy.max_rebuild } else { policy.lock_ttl };
        let slack = 20 * self.plan.trip() + 2 * self.grace() + self.plan.tag_cache;
        // A tag that comes with a value for the first time makes it stale, if it has moved of late: the next one counts.
        let again = if self.plan.keys[key].extra.is_empty() { 1 } else { 2 };
        // Whatever was held when the quiet began has ended by then, renewed at the last moment or not.
        let held = (quiet + millis(hold)).max(self.astray[key].unwrap_or(0));
        let free = held + 1000 * u64::from(policy.lock_seconds()) + think + slack;
        let mut asked = self.held.iter().filter(|held| held.key == key && held.begin > free);
        let Some(first) = asked.clone().map(|held| held.begin).min() else { return Ok(()) };
        let late = |held: &&Held| {
            held.begin > first + again * (think + slack)
                && self.first_fresh[key].is_none_or(|fresh| fresh > held.end)
        };
        match asked.find(late) {
            // What is stored without a lease, or is too large, may take away what another has just begun to build.
            Some(held) if self.moved_between(key, first, held.end) => Ok(()),
            Some(held) => broken(format!("promise 5: {held:?} got nothing fresh since {first}")),
            None => Ok(()),
        }
    }

    fn held_for_a_reason(&self, key: usize) -> Result<(), Broken> {
        let slack = 4 * self.plan.trip();
        // Whoever had the lock when the run was over may have been about to begin.
        let in_time = |held: &&Held| held.end + slack <= self.plan.end;
        for held in self.held.iter().filter(|held| held.key == key).filter(in_time) {
            let reason = self.rebuilds.iter().any(|rebuild| {
                rebuild.key == key
                    && rebuild.start <= held.end + slack
                    && rebuild.acked.is_none_or(|acked| acked + slack >= held.begin)
            });
            // A claim that finds the value moved, be it while a stub is put in its place, holds the lock for a moment, and
            // gives it back. Where versions are reused, what others have built since may look stale.
            let before = slack + self.plan.tag_cache;
            if !reason && !self.moved_between(key, held.begin.saturating_sub(before), held.end + slack) {
                return broken(format!("nobody rebuilt what was withheld: key {key} {held:?}"));
            }
        }
        Ok(())
    }
}

mod tests {
    use super::*;

    fn reason(from: u64, to: u64) -> Reason {
        Reason { key: 0, why: Why::Lost, from, to: Some(to) }
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
