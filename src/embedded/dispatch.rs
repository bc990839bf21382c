//! Carries out one request on a store and writes the reply.

use super::store::Store;
use crate::protocol::base64;
use crate::protocol::request::{Refused, Request};

/// What happens to the connection after the reply is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next request is read.
    Continue,
    /// The connection is closed.
    Close,
}

impl Store {
    /// Carries out `request` at `now` (Unix ms) and appends the reply to `out`; nothing for noreply or quiet mode.
    ///
    /// Time counts in whole seconds from the start of the store, so a TTL of n lasts (n−1, n] s. If `now` goes backwards, items
    /// last longer by that amount.
    pub fn execute(&mut self, request: &Request<'_>, now: u64, out: &mut Vec<u8>) -> Next {
        match request {
            Request::Meta(meta) => self.execute_meta(meta, now, out),
            Request::Stats { what } => self.execute_stats(what, now, out),
            Request::Quit => return Next::Close,
            classic => self.execute_classic(classic, now, out),
        }
        Next::Continue
    }

    /// Carries out the side effects of a request that the parser refused, and appends the reply. The caller must skip the rest
    /// of its data.
    pub fn refuse(&mut self, refused: &Refused<'_>, now: u64, out: &mut Vec<u8>) -> Next {
        if let Some(sent) = refused.deletes {
            let decoded = if refused.deletes_base64 { base64::decode(sent) } else { None };
            self.remove_key(decoded.as_deref().unwrap_or(sent), self.tick(now));
        }
        if let Some((exptime, keys)) = refused.touches {
            for key in keys {
                self.execute_classic(&Request::Touch { key, exptime, noreply: true }, now, out);
            }
        }
        out.extend_from_slice(refused.reply);
        if refused.close { Next::Close } else { Next::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::store::MAX_ITEM;
    use crate::protocol::parse::parse;
    use crate::protocol::request::{Limits, Parsed};

    /// Carries out one request at a given time.
    fn run(store: &mut Store, now: u64, line: &str) -> String {
        let mut out = Vec::new();
        match parse(line.as_bytes(), &Limits { max_value: MAX_ITEM }) {
            Parsed::Request { request, .. } => store.execute(&request, now, &mut out),
            Parsed::Refused(refused) => store.refuse(&refused, now, &mut out),
            Parsed::Incomplete { .. } => panic!("{line:?} is incomplete"),
        };
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_ttl_of_n_lasts_more_than_n_minus_1_and_at_most_n_seconds() {
        for (stored_at, last) in [(10_000, 11_999), (10_999, 11_999)] {
            let mut store = Store::new(1 << 20, 0);
            run(&mut store, stored_at, "set k 0 2 1\r\nx\r\n");
            assert_eq!(run(&mut store, last, "mg k t\r\n"), "HD t1\r\n");
            assert_eq!(run(&mut store, last + 1, "mg k t\r\n"), "EN\r\n");
        }
    }

    #[test]
    fn an_exptime_above_30_days_is_unix_time() {
        let start = 1_800_000_000_000;
        let mut store = Store::new(1 << 20, start);
        run(&mut store, start + 5_000, "set k 0 1800000010 1\r\nx\r\n");
        assert_eq!(run(&mut store, start + 5_000, "mg k t\r\n"), "HD t5\r\n");
        assert_eq!(run(&mut store, start + 10_000, "mg k t\r\n"), "EN\r\n");
        run(&mut store, start, "set k 0 2592001 1\r\nx\r\n");
        assert_eq!(run(&mut store, start, "get k\r\n"), "END\r\n");
    }

    #[test]
    fn a_clock_that_starts_at_zero_works_too() {
        let mut store = Store::new(1 << 20, 0);
        run(&mut store, 0, "set k 0 -1 1\r\nx\r\n");
        run(&mut store, 0, "set l 0 2592000 1\r\nx\r\n");
        assert_eq!(run(&mut store, 0, "get k l\r\n"), "VALUE l 0 1\r\nx\r\nEND\r\n");
        assert_eq!(run(&mut store, 2_592_000_000, "get k l\r\n"), "END\r\n");
    }

    #[test]
    fn the_least_recently_used_items_are_evicted_and_the_limit_holds() {
        // Each costs 50 + 2 + 48 bytes.
        let mut store = Store::new(1000, 0);
        for n in 10..20 {
            run(&mut store, 0, &format!("set {n} 0 0 48\r\n{}\r\n", "x".repeat(48)));
        }
        assert_eq!((store.len(), store.bytes()), (10, 1000));
        run(&mut store, 0, "get 10\r\n");
        run(&mut store, 0, "mg 11 u\r\n");
        run(&mut store, 0, &format!("set 20 0 0 148\r\n{}\r\n", "x".repeat(148)));
        assert_eq!((store.len(), store.bytes()), (9, 1000));
        assert_eq!(run(&mut store, 0, "mg 10\r\n"), "HD\r\n");
        assert_eq!(run(&mut store, 0, "mg 11\r\n"), "EN\r\n");
        assert_eq!(run(&mut store, 0, "mg 12\r\n"), "EN\r\n");
        assert_eq!(run(&mut store, 0, "mg 13\r\n"), "HD\r\n");
        let huge = format!("set 20 0 0 2000\r\n{}\r\n", "x".repeat(2000));
        assert_eq!(run(&mut store, 0, &huge), "SERVER_ERROR out of memory storing object\r\n");
        assert_eq!(run(&mut store, 0, "mg 20\r\n"), "EN\r\n");
        assert!(store.bytes() <= 1000);
    }

    #[test]
    fn a_clone_is_independent_and_in_the_same_state() {
        let mut store = Store::new(1 << 20, 0);
        run(&mut store, 0, "set k 0 0 1\r\n1\r\n");
        let mut other = store.clone();
        for store in [&mut store, &mut other] {
            assert_eq!(run(store, 0, "ma k v c\r\n"), "VA 1 c3\r\n2\r\n");
        }
    }

    #[test]
    fn a_refused_set_deletes_the_old_value_of_a_base64_key_too() {
        let mut store = Store::new(1 << 20, 0);
        run(&mut store, 0, "set foo 0 0 1\r\n1\r\n");
        assert_eq!(
            run(&mut store, 0, "ms Zm9v 2000000 b\r\n"),
            "SERVER_ERROR object too large for cache\r\n"
        );
        assert_eq!(run(&mut store, 0, "get foo\r\n"), "END\r\n");
    }

    #[test]
    fn a_client_may_set_the_cas() {
        let mut store = Store::new(1 << 20, 0);
        assert_eq!(run(&mut store, 0, "ms k 1 E77 c\r\n1\r\n"), "HD c77\r\n");
        assert_eq!(run(&mut store, 0, "ms k 1 C77 E99 c\r\n1\r\n"), "HD c99\r\n");
        assert_eq!(run(&mut store, 0, "md k C99 I E100\r\n"), "HD\r\n");
        assert_eq!(run(&mut store, 0, "mg k c\r\n"), "HD c100 X W\r\n");
        assert_eq!(run(&mut store, 0, "ma k E200 c\r\n"), "HD c200\r\n");
    }

    #[test]
    fn md_x_keeps_the_item_without_its_value() {
        let mut store = Store::new(1 << 20, 0);
        run(&mut store, 0, "set k 5 100 1\r\n1\r\n");
        assert_eq!(run(&mut store, 0, "md k x I T30\r\n"), "HD\r\n");
        assert_eq!(run(&mut store, 0, "mg k t f v\r\n"), "VA 0 t30 f0 X W\r\n\r\n");
    }
}
