//! What `stats` counts.

use super::store::{Store, VERSION};

/// Counters by memcached's own names, since the start or the last `stats reset`.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
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

impl Store {
    /// `stats` and its kinds: those about slabs and connections are empty, for there are none here.
    pub(super) fn answer_stats(&mut self, what: &[u8], now: u64, out: &mut Vec<u8>) {
        let word = what.split(|&byte| byte == b' ').next().unwrap_or(b"");
        match word {
            b"" => self.list(now, out),
            b"reset" => {
                self.stats = Stats::default();
                out.extend_from_slice(b"RESET\r\n");
                return;
            }
            b"settings" => {
                line(out, "maxbytes", &self.limit().to_string());
                line(out, "item_size_max", &super::store::MAX_ITEM.to_string());
                line(out, "evictions", "on");
                line(out, "cas_enabled", "yes");
            }
            b"items" | b"slabs" | b"conns" | b"cachedump" => {}
            b"sizes" => line(out, "sizes_status", "disabled"),
            b"detail" => {
                let reply: &[u8] = match what.get(word.len() + 1..).unwrap_or(b"").trim_ascii() {
                    b"on" | b"off" => b"OK\r\n",
                    b"dump" => b"END\r\n",
                    _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
                };
                out.extend_from_slice(reply);
                return;
            }
            _ => {
                out.extend_from_slice(b"ERROR\r\n");
                return;
            }
        }
        out.extend_from_slice(b"END\r\n");
    }

    fn list(&self, now: u64, out: &mut Vec<u8>) {
        line(out, "uptime", &self.uptime(now).to_string());
        line(out, "time", &(now / 1000).to_string());
        line(out, "version", VERSION);
        line(out, "pointer_size", "64");
        let stats = &self.stats;
        for (name, count) in [
            ("cmd_get", stats.cmd_get),
            ("cmd_set", stats.cmd_set),
            ("cmd_flush", stats.cmd_flush),
            ("cmd_touch", stats.cmd_touch),
            ("cmd_meta", stats.cmd_meta),
            ("get_hits", stats.get_hits),
            ("get_misses", stats.get_misses),
            ("delete_misses", stats.delete_misses),
            ("delete_hits", stats.delete_hits),
            ("incr_misses", stats.incr_misses),
            ("incr_hits", stats.incr_hits),
            ("decr_misses", stats.decr_misses),
            ("decr_hits", stats.decr_hits),
            ("touch_hits", stats.touch_hits),
            ("touch_misses", stats.touch_misses),
            ("store_too_large", stats.store_too_large),
            ("limit_maxbytes", self.limit()),
            ("threads", 1),
            ("bytes", self.bytes()),
            ("curr_items", self.len() as u64),
            ("total_items", stats.total_items),
            ("evictions", stats.evictions),
        ] {
            line(out, name, &count.to_string());
        }
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
}
