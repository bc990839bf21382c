//! The replies to `stats`.

use super::counters::Counters;
use super::store::{MAX_ITEM, Store, VERSION};

impl Store {
    /// Replies to `stats` and its subcommands. Those about slabs and connections are empty, because there are none.
    pub(super) fn execute_stats(&mut self, what: &[u8], now: u64, out: &mut Vec<u8>) {
        let word = what.split(|&byte| byte == b' ').next().unwrap_or(b"");
        match word {
            b"" => self.list(now, out),
            b"reset" => {
                self.counters = Counters::default();
                out.extend_from_slice(b"RESET\r\n");
                return;
            }
            b"settings" => {
                line(out, "maxbytes", &self.limit().to_string());
                line(out, "item_size_max", &MAX_ITEM.to_string());
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
        let counters = &self.counters;
        for (name, count) in [
            ("cmd_get", counters.cmd_get),
            ("cmd_set", counters.cmd_set),
            ("cmd_flush", counters.cmd_flush),
            ("cmd_touch", counters.cmd_touch),
            ("cmd_meta", counters.cmd_meta),
            ("get_hits", counters.get_hits),
            ("get_misses", counters.get_misses),
            ("delete_misses", counters.delete_misses),
            ("delete_hits", counters.delete_hits),
            ("incr_misses", counters.incr_misses),
            ("incr_hits", counters.incr_hits),
            ("decr_misses", counters.decr_misses),
            ("decr_hits", counters.decr_hits),
            ("touch_hits", counters.touch_hits),
            ("touch_misses", counters.touch_misses),
            ("store_too_large", counters.store_too_large),
            ("limit_maxbytes", self.limit()),
            ("threads", 1),
            ("bytes", self.bytes()),
            ("curr_items", self.len() as u64),
            ("total_items", counters.total_items),
            ("evictions", counters.evictions),
        ] {
            line(out, name, &count.to_string());
        }
    }
}

fn line(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
}
