//! Classic `get`s of several clients that are sent to the server as one line.
//!
//! memcached replies to one line with one system call, but to ten lines with ten. So the `get`s of one turn of the event loop
//! are sent as `get k1 k2 k3`, and each client gets its part of the reply. No client gets an older value than it may: the line
//! is written after all of them have sent their requests.
//!
//! No key is on a line for two clients. Otherwise, if the key is stored while memcached carries out the line, the miss of one
//! client and the value of the other could be mixed up.

use std::ops::Range;

use bytes::BytesMut;

use crate::protocol::decimal::write_decimal;

/// The most keys on one line.
const MAX_KEYS: usize = 128;
/// The most bytes of a line. For a longer one memcached allocates a larger buffer, and it rejects a longer `gat`.
const MAX_LINE: usize = 1900;
/// A larger capacity for digests is released once none is left.
const MAX_KEPT: usize = 8192;
/// The number of bits in a line's filter of digests. A key is compared with the others only if its bit is set.
const FILTER_BITS: usize = 512;

/// The command a key is read with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GetKind {
    /// Sets this exptime: `gat` or `gats`.
    pub exptime: Option<i64>,
    /// The reply includes the CAS: `gets` or `gats`.
    pub cas: bool,
}

/// The digests of the keys of all pending lines, in order.
#[derive(Default)]
pub(super) struct KeyDigests {
    digests: Vec<u64>,
    /// How many of them, from the front, have been answered.
    answered: usize,
}

/// The last queued line.
#[derive(Default)]
pub(super) struct GetLine {
    from: usize,
    /// The end of the line. If nothing was queued after it, this is the end of the output.
    to: usize,
    /// The number of keys; 0: no key may be added.
    keys: usize,
    kind: GetKind,
    /// The filter of the digests of its keys.
    filter: [u64; FILTER_BITS / 64],
}

/// A key that was added to a line.
pub(super) struct AddedKey {
    /// Its range in the output.
    pub(super) at: Range<usize>,
    /// Whether the line already had keys.
    pub(super) joined: bool,
}

impl GetKind {
    fn write(self, out: &mut BytesMut) {
        out.extend_from_slice(match (self.exptime, self.cas) {
            (None, false) => b"get",
            (None, true) => b"gets",
            (Some(_), false) => b"gat",
            (Some(_), true) => b"gats",
        });
        if let Some(exptime) = self.exptime {
            out.extend_from_slice(b" ");
            write_decimal(out, exptime);
        }
    }
}

impl KeyDigests {
    /// The first `count` digests that have not been answered.
    pub(super) fn first(&self, count: usize) -> &[u64] {
        let rest = &self.digests[self.answered..];
        &rest[..count.min(rest.len())]
    }

    /// Removes the first `count` digests, which have been answered.
    pub(super) fn advance(&mut self, count: usize) {
        self.answered += count;
        // Amortized: no more digests are moved than have been answered.
        if self.answered * 2 >= self.digests.len() {
            self.digests.drain(..self.answered.min(self.digests.len()));
            self.answered = 0;
            if self.digests.is_empty() && self.digests.capacity() > MAX_KEPT {
                self.digests = Vec::new();
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = KeyDigests::default();
    }
}

impl GetLine {
    /// Ends the line: the output is handed to the socket.
    pub(super) fn close(&mut self) {
        self.keys = 0;
    }

    /// Adds a key to the line, or to a new one.
    pub(super) fn add(
        &mut self,
        out: &mut BytesMut,
        digests: &mut KeyDigests,
        key: &[u8],
        digest: u64,
        kind: GetKind,
    ) -> AddedKey {
        let joined = self.has_room(out, key, kind) && !self.has(digest, 0, digests);
        if !joined {
            *self = GetLine { from: out.len(), kind, ..GetLine::default() };
            kind.write(out);
            out.extend_from_slice(b"\r\n");
            self.to = out.len();
        }
        AddedKey { at: self.push(out, digests, key, digest), joined }
    }

    /// Adds another key of the client that added the last `own` keys of this line. Returns false if it does not fit.
    pub(super) fn add_more(
        &mut self,
        out: &mut BytesMut,
        digests: &mut KeyDigests,
        key: &[u8],
        digest: u64,
        kind: GetKind,
        own: usize,
    ) -> bool {
        let joins = self.has_room(out, key, kind) && !self.has(digest, own, digests);
        if joins {
            self.push(out, digests, key, digest);
        }
        joins
    }

    fn has_room(&self, out: &BytesMut, key: &[u8], kind: GetKind) -> bool {
        (1..MAX_KEYS).contains(&self.keys)
            && (self.to, self.kind) == (out.len(), kind)
            && self.to - self.from + key.len() < MAX_LINE
    }

    /// Whether the key with this digest is on the line, before the last `own` keys.
    fn has(&self, digest: u64, own: usize, digests: &KeyDigests) -> bool {
        let (word, bit) = filter_bit(digest);
        let KeyDigests { digests, .. } = digests;
        self.filter[word] & bit != 0
            && digests[digests.len() - self.keys..digests.len() - own].contains(&digest)
    }

    fn push(
        &mut self,
        out: &mut BytesMut,
        digests: &mut KeyDigests,
        key: &[u8],
        digest: u64,
    ) -> Range<usize> {
        out.truncate(self.to - b"\r\n".len());
        out.extend_from_slice(b" ");
        let at = out.len()..out.len() + key.len();
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
        self.to = out.len();
        self.keys += 1;
        let (word, bit) = filter_bit(digest);
        self.filter[word] |= bit;
        digests.digests.push(digest);
        at
    }
}

fn filter_bit(digest: u64) -> (usize, u64) {
    let bit = (digest >> 55) as usize;
    (bit / 64, 1 << (bit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::digest;

    const GET: GetKind = GetKind { exptime: None, cas: false };
    const GETS: GetKind = GetKind { exptime: None, cas: true };

    /// Adds keys of different clients. Returns which of them joined a line.
    fn add(
        line: &mut GetLine,
        out: &mut BytesMut,
        digests: &mut KeyDigests,
        keys: &[&str],
        kind: GetKind,
    ) -> Vec<bool> {
        let add = |key: &&str| {
            let added = line.add(out, digests, key.as_bytes(), digest(key.as_bytes()), kind);
            assert_eq!(out[added.at], *key.as_bytes());
            added.joined
        };
        keys.iter().map(add).collect()
    }

    #[test]
    fn keys_join_a_line_until_another_command_is_queued_or_it_is_written() {
        let (mut line, mut out, mut digests) = (GetLine::default(), BytesMut::new(), KeyDigests::default());
        let mut add = |line: &mut GetLine, out: &mut BytesMut, keys: &[&str], kind| {
            add(line, out, &mut digests, keys, kind)
        };
        assert_eq!(add(&mut line, &mut out, &["a", "b", "c"], GET), [false, true, true]);
        assert_eq!(add(&mut line, &mut out, &["d", "e"], GETS), [false, true]);
        let until = |exptime| GetKind { exptime: Some(exptime), cas: false };
        assert_eq!(add(&mut line, &mut out, &["d", "e"], until(-1)), [false, true]);
        assert_eq!(add(&mut line, &mut out, &["x"], until(7)), [false]);
        assert_eq!(add(&mut line, &mut out, &["y"], GetKind { cas: true, ..until(7) }), [false]);
        out.extend_from_slice(b"delete x\r\n");
        assert_eq!(add(&mut line, &mut out, &["f"], GETS), [false]);
        line.close();
        assert_eq!(add(&mut line, &mut out, &["g"], GETS), [false]);
        let lines = [
            "get a b c",
            "gets d e",
            "gat -1 d e",
            "gat 7 x",
            "gats 7 y",
            "delete x",
            "gets f",
            "gets g",
            "",
        ];
        assert_eq!(out, lines.join("\r\n"));
    }

    #[test]
    fn no_key_is_on_a_line_for_two_clients_and_no_line_is_too_long() {
        let (mut line, mut out, mut digests) = (GetLine::default(), BytesMut::new(), KeyDigests::default());
        add(&mut line, &mut out, &mut digests, &["a", "b", "a", "b", "a"], GET);
        let long = |i: usize| format!("{i:0>240}");
        let keys: Vec<String> = (0..2000)
            .map(|i| format!("k{}", i % 70))
            .chain((0..30).map(long))
            .chain((0..500).map(|i| format!("s{i}")))
            .collect();
        add(&mut line, &mut out, &mut digests, &keys.iter().map(String::as_str).collect::<Vec<_>>(), GET);
        let mut sent = Vec::new();
        let mut counts = Vec::new();
        for line in std::str::from_utf8(&out).unwrap().lines() {
            let keys: Vec<&str> = line.strip_prefix("get ").unwrap().split(' ').collect();
            let mut once = keys.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), keys.len(), "{line}");
            assert!(keys.len() <= MAX_KEYS && line.len() <= MAX_LINE + 4, "{line}");
            counts.push(keys.len());
            sent.extend(keys);
        }
        let all: Vec<&str> =
            ["a", "b", "a", "b", "a"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        assert!(sent == all);
        // One line with all distinct keys and the `a` before them, and one with the most keys.
        assert_eq!((counts.contains(&(1 + 70)), counts.iter().max()), (true, Some(&MAX_KEYS)), "{counts:?}");
    }

    #[test]
    fn a_client_may_have_a_key_twice_on_a_line_but_not_another_clients() {
        let (mut line, mut out, mut digests) = (GetLine::default(), BytesMut::new(), KeyDigests::default());
        add(&mut line, &mut out, &mut digests, &["x", "a"], GET);
        let mut more = |line: &mut GetLine, key: &str, own| {
            line.add_more(&mut out, &mut digests, key.as_bytes(), digest(key.as_bytes()), GET, own)
        };
        assert!(more(&mut line, "b", 1) && more(&mut line, "a", 2) && more(&mut line, "b", 3));
        assert!(!more(&mut line, "x", 4));
        line.close();
        assert!(!more(&mut line, "c", 4));
        assert_eq!(out, "get x a b a b\r\n");
        assert_eq!(digests.first(9), ["x", "a", "b", "a", "b"].map(|key| digest(key.as_bytes())));
    }

    #[test]
    fn digests_are_consumed_in_order() {
        let mut digests = KeyDigests::default();
        let mut next = 0;
        for round in 0..100 {
            digests.digests.extend(round * 3..round * 3 + 3);
            let first: Vec<u64> = digests.first(2).to_vec();
            assert_eq!(first, [next, next + 1]);
            digests.advance(2);
            next += 2;
        }
        assert_eq!(digests.first(1000), (200..300).collect::<Vec<_>>());
        digests.advance(100);
        assert!(digests.first(1).is_empty() && digests.digests.is_empty());
    }
}
