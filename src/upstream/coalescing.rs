//! Which reads are queued but not yet written, so that an identical read can share the reply.
//!
//! A server carries out a read after it is written, and so after all clients that share it have sent theirs: none of them gets
//! an older value than it may. Sharing ends with the *turn*. A new turn begins when the queue is handed to the socket, or
//! when a command is queued that may change something, because later reads must see the change.

use std::ops::Range;

/// The initial number of entries. It grows to twice the largest number of reads in a turn, up to [`MAX_ENTRIES`]. Of two reads
/// that map to the same entry, the later one is found.
const ENTRIES: usize = 64;
/// The largest number of entries.
const MAX_ENTRIES: usize = 8192;

/// The unsent reads of the current turn.
pub(super) struct UnsentReads {
    turn: u64,
    /// The number of reads in this turn, including those whose entries were replaced.
    count: usize,
    /// The length is a power of two.
    entries: Vec<UnsentRead>,
}

/// A queued read: its turn, its range in the output, and the index of its request among the pending ones.
#[derive(Debug, Clone, Copy)]
struct UnsentRead {
    turn: u64,
    from: u32,
    to: u32,
    request: u32,
    kind: ReadKind,
}

/// An unused entry: turn 0 never occurs.
const UNUSED: UnsentRead = UnsentRead { turn: 0, from: 0, to: 0, request: 0, kind: ReadKind::Meta };

/// What the range of a read covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadKind {
    /// A whole `mg` command.
    Meta,
    /// The key of a `get`.
    Get,
    /// The key of a `gets`.
    Gets,
}

impl UnsentReads {
    pub(super) fn new() -> UnsentReads {
        UnsentReads { turn: 1, count: 0, entries: vec![UNUSED; ENTRIES] }
    }

    /// Begins a turn: no read queued so far is shared any more.
    pub(super) fn new_turn(&mut self) {
        self.turn += 1;
        self.count = 0;
    }

    /// The index of the pending request for this read, if an identical one is queued in `out`. `digest` is the digest of `read`.
    pub(super) fn find(&self, digest: u64, kind: ReadKind, read: &[u8], out: &[u8]) -> Option<usize> {
        let entry = &self.entries[self.index(digest)];
        let same = (entry.turn, entry.kind) == (self.turn, kind)
            && out[entry.from as usize..entry.to as usize] == *read;
        same.then_some(entry.request as usize)
    }

    /// Adds a read at this range of the output, whose request gets this index.
    pub(super) fn add(&mut self, digest: u64, kind: ReadKind, at: Range<usize>, request: usize) {
        let (Ok(from), Ok(to), Ok(request)) = (at.start.try_into(), at.end.try_into(), request.try_into())
        else {
            return;
        };
        self.count += 1;
        if self.count * 2 > self.entries.len() && self.entries.len() < MAX_ENTRIES {
            // The current entries are dropped: growing is for the next turns, which are likely to have as many reads.
            self.entries = vec![UNUSED; self.entries.len() * 2];
        }
        let index = self.index(digest);
        self.entries[index] = UnsentRead { turn: self.turn, from, to, request, kind };
    }

    /// Removes the read with this digest: an identical one is sent again.
    pub(super) fn remove(&mut self, digest: u64) {
        let index = self.index(digest);
        self.entries[index] = UNUSED;
    }

    fn index(&self, digest: u64) -> usize {
        (digest >> (u64::BITS - self.entries.len().ilog2())) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reply::digest;

    #[test]
    fn a_read_is_found_in_its_turn_by_the_same_bytes_only() {
        let mut unsent = UnsentReads::new();
        let (mut out, mut requests) = (Vec::new(), 0);
        let mut find_or_add = |unsent: &mut UnsentReads, read: &str| {
            let of = digest(read.as_bytes());
            let found = unsent.find(of, ReadKind::Meta, read.as_bytes(), &out);
            // The same bytes as the key of a `get` are another read.
            assert_eq!(unsent.find(of, ReadKind::Get, read.as_bytes(), &out), None);
            if found.is_none() {
                let from = out.len();
                out.extend_from_slice(read.as_bytes());
                unsent.add(of, ReadKind::Meta, from..out.len(), requests);
                requests += 1;
            }
            found
        };
        assert_eq!(find_or_add(&mut unsent, "mg a v\r\n"), None);
        assert_eq!(find_or_add(&mut unsent, "mg b v\r\n"), None);
        assert_eq!(find_or_add(&mut unsent, "mg a v\r\n"), Some(0));
        assert_eq!(find_or_add(&mut unsent, "mg a\r\n"), None);
        assert_eq!(find_or_add(&mut unsent, "mg b v\r\n"), Some(1));
        unsent.new_turn();
        assert_eq!(find_or_add(&mut unsent, "mg a v\r\n"), None);
        // With any number of reads, each is found by its own bytes or not at all.
        for i in 0..10_000 {
            let read = format!("mg key:{i} v\r\n");
            let first = find_or_add(&mut unsent, &read);
            assert_eq!((first, find_or_add(&mut unsent, &read)), (None, Some(4 + i)));
        }
        let again = (0..10_000)
            .filter_map(|i| find_or_add(&mut unsent, &format!("mg key:{i} v\r\n")).map(|at| (i, at)));
        let again: Vec<(usize, usize)> = again.collect();
        assert!(again.iter().all(|(i, at)| *at == 4 + i || *at >= 10_004));
        assert_eq!(unsent.entries.len(), MAX_ENTRIES);
        // In the next turn there is room for most of this many.
        unsent.new_turn();
        let mut found = |i: usize| find_or_add(&mut unsent, &format!("mg key:{i} v\r\n")).is_some();
        assert!((0..400).all(|i| !found(i)));
        assert!((0..400).filter(|i| found(*i)).count() > 250);
    }
}
