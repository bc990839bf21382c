//! Classic `get`s of one turn that go to the server as one line.
//!
//! memcached says what it has to say to one line with one system call, but to ten lines with ten. So what clients ask within one
//! turn of the event loop goes as `get k1 k2 k3`, and each is given their part of the answer. Nobody is told anything older than
//! they may be told: the line is written after all of them have asked.
//!
//! No key stands on a line for two who asked. Else the first of them might be told that it is not there, and the second what
//! somebody stored meanwhile, the wrong way round.

use std::ops::Range;

use bytes::BytesMut;

/// The most keys of one line.
const MAX_KEYS: usize = 128;
/// Its most bytes: for a longer one memcached takes a larger buffer, and a longer `gat` it refuses.
const MAX_LINE: usize = 1900;
/// If there was room for more digests than these, it is given back once none is left.
const MAX_KEPT: usize = 8192;
/// Into so many classes keys are put by their digests. Only one whose class is on the line already is compared with the others.
const CLASSES: usize = 512;

/// How a key is read: what stands before it on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GetKind {
    /// It is given this exptime: a `gat`.
    pub exptime: Option<i64>,
    /// Its CAS is told too: `gets` or `gats`.
    pub cas: bool,
}

/// The digests of the keys of all lines that are owed, in the order asked.
#[derive(Default)]
pub(super) struct KeyDigests {
    digests: Vec<u64>,
    /// So many of them have been answered.
    answered: usize,
}

/// The line that was queued last.
#[derive(Default)]
pub(super) struct Line {
    from: usize,
    /// Where it ends: if nothing was queued behind it, what waits to be written does too.
    to: usize,
    /// 0: no key can join it.
    keys: usize,
    how: GetKind,
    /// The classes of all of them.
    taken: [u64; CLASSES / 64],
}

/// Where a key has been put.
pub(super) struct Queued {
    /// It lies there.
    pub(super) at: Range<usize>,
    /// Behind those of others.
    pub(super) joined: bool,
}

impl GetKind {
    fn put(self, out: &mut BytesMut) {
        out.extend_from_slice(match (self.exptime, self.cas) {
            (None, false) => b"get",
            (None, true) => b"gets",
            (Some(_), false) => b"gat",
            (Some(_), true) => b"gats",
        });
        if let Some(exptime) = self.exptime {
            out.extend_from_slice(b" ");
            out.extend_from_slice(itoa::Buffer::new().format(exptime).as_bytes());
        }
    }
}

impl KeyDigests {
    /// The first of those that have not been answered.
    pub(super) fn first(&self, count: usize) -> &[u64] {
        let rest = &self.digests[self.answered..];
        &rest[..count.min(rest.len())]
    }

    /// So many more have been answered.
    pub(super) fn pass(&mut self, count: usize) {
        self.answered += count;
        // No more are moved than have been answered.
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

impl Line {
    /// What was queued is handed to the socket.
    pub(super) fn close(&mut self) {
        self.keys = 0;
    }

    /// Puts a key, whose digest this is, on the line that waits, or on a new one.
    pub(super) fn put(
        &mut self,
        out: &mut BytesMut,
        names: &mut KeyDigests,
        key: &[u8],
        digest: u64,
        how: GetKind,
    ) -> Queued {
        let joined = self.has_room(out, key, how) && !self.has(digest, 0, names);
        if !joined {
            *self = Line { from: out.len(), how, ..Line::default() };
            how.put(out);
            out.extend_from_slice(b"\r\n");
            self.to = out.len();
        }
        Queued { at: self.push(out, names, key, digest), joined }
    }

    /// Puts another key of whoever put the last `own` of this line there; false: it has no room.
    pub(super) fn put_more(
        &mut self,
        out: &mut BytesMut,
        names: &mut KeyDigests,
        key: &[u8],
        digest: u64,
        how: GetKind,
        own: usize,
    ) -> bool {
        let joins = self.has_room(out, key, how) && !self.has(digest, own, names);
        if joins {
            self.push(out, names, key, digest);
        }
        joins
    }

    fn has_room(&self, out: &BytesMut, key: &[u8], how: GetKind) -> bool {
        (1..MAX_KEYS).contains(&self.keys)
            && (self.to, self.how) == (out.len(), how)
            && self.to - self.from + key.len() < MAX_LINE
    }

    /// Whether this key is among those before the last `own`.
    fn has(&self, digest: u64, own: usize, names: &KeyDigests) -> bool {
        let (word, bit) = class(digest);
        let KeyDigests { digests, .. } = names;
        self.taken[word] & bit != 0
            && digests[digests.len() - self.keys..digests.len() - own].contains(&digest)
    }

    fn push(&mut self, out: &mut BytesMut, names: &mut KeyDigests, key: &[u8], digest: u64) -> Range<usize> {
        out.truncate(self.to - b"\r\n".len());
        out.extend_from_slice(b" ");
        let at = out.len()..out.len() + key.len();
        out.extend_from_slice(key);
        out.extend_from_slice(b"\r\n");
        self.to = out.len();
        self.keys += 1;
        let (word, bit) = class(digest);
        self.taken[word] |= bit;
        names.digests.push(digest);
        at
    }
}

fn class(digest: u64) -> (usize, u64) {
    let class = (digest >> 55) as usize;
    (class / 64, 1 << (class % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::digest;

    const GET: GetKind = GetKind { exptime: None, cas: false };
    const GETS: GetKind = GetKind { exptime: None, cas: true };

    /// Puts keys of different askers; gives which of them are behind another on a line.
    fn put(
        line: &mut Line,
        out: &mut BytesMut,
        names: &mut KeyDigests,
        keys: &[&str],
        how: GetKind,
    ) -> Vec<bool> {
        let put = |key: &&str| {
            let put = line.put(out, names, key.as_bytes(), digest(key.as_bytes()), how);
            assert_eq!(out[put.at], *key.as_bytes());
            put.joined
        };
        keys.iter().map(put).collect()
    }

    #[test]
    fn keys_join_the_line_until_something_else_is_queued_or_it_is_written() {
        let (mut line, mut out, mut names) = (Line::default(), BytesMut::new(), KeyDigests::default());
        let mut put =
            |line: &mut Line, out: &mut BytesMut, keys: &[&str], how| put(line, out, &mut names, keys, how);
        assert_eq!(put(&mut line, &mut out, &["a", "b", "c"], GET), [false, true, true]);
        assert_eq!(put(&mut line, &mut out, &["d", "e"], GETS), [false, true]);
        let until = |exptime| GetKind { exptime: Some(exptime), cas: false };
        assert_eq!(put(&mut line, &mut out, &["d", "e"], until(-1)), [false, true]);
        assert_eq!(put(&mut line, &mut out, &["x"], until(7)), [false]);
        assert_eq!(put(&mut line, &mut out, &["y"], GetKind { cas: true, ..until(7) }), [false]);
        out.extend_from_slice(b"delete x\r\n");
        assert_eq!(put(&mut line, &mut out, &["f"], GETS), [false]);
        line.close();
        assert_eq!(put(&mut line, &mut out, &["g"], GETS), [false]);
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
    fn no_key_is_on_a_line_for_two_who_asked_and_no_line_is_too_long() {
        let (mut line, mut out, mut names) = (Line::default(), BytesMut::new(), KeyDigests::default());
        put(&mut line, &mut out, &mut names, &["a", "b", "a", "b", "a"], GET);
        let long = |i: usize| format!("{i:0>240}");
        let keys: Vec<String> = (0..2000)
            .map(|i| format!("k{}", i % 70))
            .chain((0..30).map(long))
            .chain((0..500).map(|i| format!("s{i}")))
            .collect();
        put(&mut line, &mut out, &mut names, &keys.iter().map(String::as_str).collect::<Vec<_>>(), GET);
        let mut asked = Vec::new();
        let mut counts = Vec::new();
        for line in std::str::from_utf8(&out).unwrap().lines() {
            let keys: Vec<&str> = line.strip_prefix("get ").unwrap().split(' ').collect();
            let mut once = keys.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), keys.len(), "{line}");
            assert!(keys.len() <= MAX_KEYS && line.len() <= MAX_LINE + 4, "{line}");
            counts.push(keys.len());
            asked.extend(keys);
        }
        let all: Vec<&str> =
            ["a", "b", "a", "b", "a"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        assert!(asked == all);
        // All that are different, and the `a` before them; and as many as there may be.
        assert_eq!((counts.contains(&(1 + 70)), counts.iter().max()), (true, Some(&MAX_KEYS)), "{counts:?}");
    }

    #[test]
    fn who_asks_for_several_keys_may_have_one_twice_but_not_one_of_another_asker() {
        let (mut line, mut out, mut names) = (Line::default(), BytesMut::new(), KeyDigests::default());
        put(&mut line, &mut out, &mut names, &["x", "a"], GET);
        let mut more = |line: &mut Line, key: &str, own| {
            line.put_more(&mut out, &mut names, key.as_bytes(), digest(key.as_bytes()), GET, own)
        };
        assert!(more(&mut line, "b", 1) && more(&mut line, "a", 2) && more(&mut line, "b", 3));
        assert!(!more(&mut line, "x", 4));
        line.close();
        assert!(!more(&mut line, "c", 4));
        assert_eq!(out, "get x a b a b\r\n");
        assert_eq!(names.first(9), ["x", "a", "b", "a", "b"].map(|key| digest(key.as_bytes())));
    }

    #[test]
    fn names_are_passed_in_the_order_asked() {
        let mut names = KeyDigests::default();
        let mut next = 0;
        for round in 0..100 {
            names.digests.extend(round * 3..round * 3 + 3);
            let first: Vec<u64> = names.first(2).to_vec();
            assert_eq!(first, [next, next + 1]);
            names.pass(2);
            next += 2;
        }
        assert_eq!(names.first(1000), (200..300).collect::<Vec<_>>());
        names.pass(100);
        assert!(names.first(1).is_empty() && names.digests.is_empty());
    }
}
