//! The counters behind `stats`.

/// Counters under memcached's names, since the start or the last `stats reset`.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) cmd_get: u64,
    pub(super) cmd_set: u64,
    pub(super) cmd_flush: u64,
    pub(super) cmd_touch: u64,
    pub(super) cmd_meta: u64,
    pub(super) get_hits: u64,
    pub(super) get_misses: u64,
    pub(super) delete_misses: u64,
    pub(super) delete_hits: u64,
    pub(super) incr_misses: u64,
    pub(super) incr_hits: u64,
    pub(super) decr_misses: u64,
    pub(super) decr_hits: u64,
    pub(super) touch_hits: u64,
    pub(super) touch_misses: u64,
    pub(super) store_too_large: u64,
    pub(super) evictions: u64,
    pub(super) total_items: u64,
}

impl Counters {
    /// Counts a `get`.
    pub(super) fn count_get(&mut self, hit: bool) {
        self.cmd_get += 1;
        *(if hit { &mut self.get_hits } else { &mut self.get_misses }) += 1;
    }

    /// Counts a `touch`.
    pub(super) fn count_touch(&mut self, hit: bool) {
        self.cmd_touch += 1;
        *(if hit { &mut self.touch_hits } else { &mut self.touch_misses }) += 1;
    }

    /// Counts an `incr` or `decr`.
    pub(super) fn count_arith(&mut self, decr: bool, hit: bool) {
        *(match (decr, hit) {
            (true, true) => &mut self.decr_hits,
            (true, false) => &mut self.decr_misses,
            (false, true) => &mut self.incr_hits,
            (false, false) => &mut self.incr_misses,
        }) += 1;
    }
}
