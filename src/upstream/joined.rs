//! Classic `get`s of one turn that go to the server as one line of several keys.
//!
//! memcached says what it has to say to one line with one system call, but to ten lines with ten. So what clients ask within one
//! turn of the event loop goes as `get k1 k2 k3`, and each is given their part of the answer. Nobody is told anything older than
//! they may be told: the line is written after all of them have asked.
//!
//! No key stands twice on a line. Else of two who ask for it, the first might be told that it is not there, and the second what
//! somebody stored meanwhile, the wrong way round.

use std::ops::Range;

use bytes::BytesMut;

/// The most keys of one line.
const MAX_KEYS: usize = 32;
/// Its most bytes: for a longer one memcached takes a larger buffer.
const MAX_LINE: usize = 1900;
/// Into so many classes keys are put by their digests; of each there is one on a line at most, and so no key twice.
const CLASSES: usize = 512;

/// The `get` that was queued last.
#[derive(Default)]
pub(super) struct Line {
    from: usize,
    /// Where it ends: if nothing was queued behind it, what waits to be written does too.
    to: usize,
    /// 0: no key can join it.
    keys: usize,
    cas: bool,
    /// The digest of the last of them.
    last: u64,
    /// The classes of all.
    taken: [u64; CLASSES / 64],
}

/// Where a key has been put.
pub(super) struct Put {
    /// It lies there.
    pub(super) at: Range<usize>,
    /// The digest of the key before it on its line, if there is one.
    pub(super) behind: Option<u64>,
}

impl Line {
    /// What was queued is handed to the socket.
    pub(super) fn close(&mut self) {
        self.keys = 0;
    }

    /// Puts a key, whose digest this is, on the line that waits, or on a new one: a `get`, or with `cas` a `gets`.
    pub(super) fn put(&mut self, out: &mut BytesMut, key: &[u8], digest: u64, cas: bool) -> Put {
        let class = (digest >> 55) as usize;
        let (word, bit) = (class / 64, 1 << (class % 64));
        let joins = (1..MAX_KEYS).contains(&self.keys)
            && (self.to, self.cas) == (out.len(), cas)
            && self.taken[word] & bit == 0
            && self.to - self.from + key.len() < MAX_LINE;
        let behind = joins.then_some(self.last);
        if joins {
            out.truncate(self.to - b"\r\n".len());
            out.extend_from_slice(b" ");
        } else {
            *self = Line { from: out.len(), cas, ..Line::default() };
            out.extend_from_slice(if cas { b"gets " } else { b"get " });
        }
        let at = out.len()..out.len() + key.len();
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
        (self.to, self.last) = (out.len(), digest);
        self.keys += 1;
        self.taken[word] |= bit;
        Put { at, behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::digest;

    /// Puts keys; gives what is to be written, and which of them are behind another on a line.
    fn put(line: &mut Line, out: &mut BytesMut, keys: &[&str], cas: bool) -> Vec<bool> {
        let put = |key: &&str| {
            let put = line.put(out, key.as_bytes(), digest(key.as_bytes()), cas);
            assert_eq!(out[put.at], *key.as_bytes());
            put.behind.is_some()
        };
        keys.iter().map(put).collect()
    }

    #[test]
    fn keys_join_the_line_until_something_else_is_queued_or_it_is_written() {
        let (mut line, mut out) = (Line::default(), BytesMut::new());
        assert_eq!(put(&mut line, &mut out, &["a", "b", "c"], false), [false, true, true]);
        assert_eq!(put(&mut line, &mut out, &["d", "e"], true), [false, true]);
        out.extend_from_slice(b"delete x\r\n");
        assert_eq!(put(&mut line, &mut out, &["f"], true), [false]);
        line.close();
        assert_eq!(put(&mut line, &mut out, &["g"], true), [false]);
        assert_eq!(out, "get a b c\r\ngets d e\r\ndelete x\r\ngets f\r\ngets g\r\n");
    }

    #[test]
    fn no_key_is_twice_on_a_line_and_no_line_is_too_long() {
        let (mut line, mut out) = (Line::default(), BytesMut::new());
        assert_eq!(put(&mut line, &mut out, &["a", "b", "a", "b", "a"], false).len(), 5);
        let long = |i: usize| format!("{i:0>240}");
        let keys: Vec<String> = (0..2000).map(|i| format!("k{}", i % 700)).chain((0..30).map(long)).collect();
        put(&mut line, &mut out, &keys.iter().map(String::as_str).collect::<Vec<_>>(), false);
        let mut asked = Vec::new();
        for line in std::str::from_utf8(&out).unwrap().lines() {
            let keys: Vec<&str> = line.strip_prefix("get ").unwrap().split(' ').collect();
            let mut once = keys.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), keys.len(), "{line}");
            assert!(keys.len() <= MAX_KEYS && line.len() <= MAX_LINE + 4, "{line}");
            asked.extend(keys);
        }
        let all: Vec<&str> =
            ["a", "b", "a", "b", "a"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        assert_eq!(asked, all);
    }
}
