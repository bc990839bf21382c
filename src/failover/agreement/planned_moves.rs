//! The part of an agreement that announces a move: whom it makes wait, and when it is carried out.

use super::Agreement;
use super::Known;
use crate::failover::copy::{COPIES, Copy};
use crate::failover::moment::Moment;
use crate::failover::planned::{Hold, Wish};
use crate::failover::record::{Record, grace_of};

impl Agreement {
    /// Until when requests wait for the next view, because a planned move is about to end, or has been announced.
    pub fn hold(&self, now: u64) -> Option<Hold> {
        let Known { record, sent, grace_until, planned } = self.known?;
        let window = u64::from(self.timing.window);
        let has_view = self.view(now).is_some();
        let until = if record.leaving && !has_view {
            sent + u64::from(record.window) + window
        } else if grace_until > now && planned {
            grace_until + window
        } else {
            return None;
        };
        (now < until).then_some(Hold { until, has_view })
    }

    /// What an operator has asked this process for. To be called before [`Agreement::begin`].
    pub fn wish(&mut self, wish: Option<Wish>) {
        self.wish = wish;
    }

    /// What follows a record that has announced a move, once every view has ended that was read before.
    pub(super) fn moved_as_planned(&self, leaving: &Record, now: Moment, random: u64) -> Record {
        let standby = !leaving.standby;
        Record {
            standby,
            drained: standby,
            grace: grace_of(leaving.window),
            ..self.renewed(leaving, now, random)
        }
    }

    /// Whether every view has ended that was read before two copies announced the move.
    pub(super) fn is_announced(&mut self, record: &Record, copies: &[Copy; COPIES], now: u64) -> bool {
        let announces =
            |copy: &&Copy| copy.record().is_some_and(|held| held.fence == record.fence && held.leaving);
        if copies.iter().filter(announces).count() < 2 {
            return self.announced.is_some_and(|since| since + u64::from(record.grace) < now);
        }
        let since = *self.announced.get_or_insert(now);
        let until = since + u64::from(record.grace) + 1;
        if now < until {
            self.due = self.due.min(until);
        }
        until <= now
    }
}
