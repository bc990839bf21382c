//! When something of a key is over, so that neither a read nor the sweep looks at keys of which nothing is.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{KeyState, Outages};
use crate::guard::leases::Owner;
use crate::looked_at;

/// How many keys one step of the sweep looks at: clients must not wait for a sweep of the whole table.
pub(super) const SWEPT_AT_ONCE: usize = 256;

impl<W> KeyState<W> {
    /// When a build, the value that is kept, or what is remembered is over. At once if there is nothing; never while there are
    /// only waiting readers.
    fn next_due(&self) -> Option<u64> {
        let builders = self.builders.iter().map(|builder| builder.until);
        let kept = self.kept.iter().map(|kept| kept.until);
        let remembered = (self.unfilled > 0).then_some(self.remember_until);
        let next = builders.chain(kept).chain(remembered).min();
        next.or_else(|| self.waiters.is_empty().then_some(0))
    }
}

impl<W> Outages<W> {
    /// Ends the builds of this key whose `set` would be too late.
    pub(super) fn end_late_builds(&mut self, key: &[u8], now: u64) {
        let late =
            self.keys.get(key).map(|state| state.builders.iter().filter(|builder| now >= builder.until));
        let late: SmallVec<[Owner; 1]> = late.into_iter().flatten().map(|builder| builder.owner).collect();
        late.into_iter().for_each(|owner| self.end_build(key, owner));
    }

    /// Removes the key from the table and all indexes.
    pub(super) fn remove(&mut self, key: &[u8]) -> Option<KeyState<W>> {
        let state = self.keys.remove(key)?;
        for builder in &state.builders {
            self.forget_owner(key, builder.owner);
        }
        for tag in &state.tags {
            if let Some(keys) = self.by_tag.get_mut(tag) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_tag.remove(tag);
                }
            }
        }
        if let Some(due) = state.due {
            self.due.remove(&(due, Arc::clone(&state.key)));
        }
        Some(state)
    }

    pub(super) fn remove_or_reschedule(&mut self, key: &[u8], now: u64) {
        if self.keys.get(key).is_some_and(|state| state.is_idle(now)) {
            self.remove(key);
        } else {
            self.reschedule(key);
        }
    }

    /// Puts the key where it belongs in `due`.
    pub(super) fn reschedule(&mut self, key: &[u8]) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let next = state.next_due();
        if next != state.due {
            if let Some(before) = state.due {
                self.due.remove(&(before, Arc::clone(&state.key)));
            }
            state.due = next;
            self.due.extend(next.map(|next| (next, Arc::clone(&state.key))));
        }
    }

    /// Removes what has expired, at `now` on the monotonic clock in ms, of a few keys. Must be called periodically, each time until
    /// it returns false.
    pub fn sweep(&mut self, now: u64) -> bool {
        self.remove_due(now, SWEPT_AT_ONCE)
    }

    /// The same for at most so many keys, those first that have been over for the longest time. Returns whether there may be more.
    pub(super) fn remove_due(&mut self, now: u64, most: usize) -> bool {
        for _ in 0..most {
            looked_at::entry();
            let Some((_, key)) = self.due.first().filter(|(due, _)| *due <= now).cloned() else {
                return false;
            };
            self.end_late_builds(&key, now);
            let Some(state) = self.keys.get_mut(&key) else { return false };
            if state.remember_until <= now {
                state.unfilled = 0;
            }
            if state.kept.as_ref().is_some_and(|kept| now >= kept.until) {
                self.forget_value(&key);
            }
            self.remove_or_reschedule(&key, now);
        }
        true
    }
}
