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
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::metrics::{Metrics, ServerName};
    use crate::protocol::reply::{Shape, digest};
    use crate::random::Random;
    use crate::upstream::batched_gets::GetKind;
    use crate::upstream::connection::Connection;
    use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};
    use crate::upstream::server::Server;
    use crate::upstream::spec::{Address, ServerSpec};

    fn text(reply: Reply) -> String {
        let Reply::Answered { bytes, .. } = reply else { panic!("{reply:?}") };
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_read_joins_an_identical_one_unless_a_change_is_queued_between() {
        let server = ServerName { pool: "main".into(), server: "a".into() };
        let metrics = Metrics::new(Vec::new(), vec![server], 1);
        let (address, second) = (Address::Embedded { limit: 1 << 20 }, Duration::from_secs(1));
        let spec = ServerSpec { address, weight: 1, name: None };
        let server = Server::new(0, &spec, second, second, || 1_700_000_000_000).unwrap();
        let first_attempt = server.first_attempt();
        let connection = Connection::new(Arc::new(server), first_attempt, metrics.worker(0));
        let (one, other) = (Rc::new(PendingReplies::default()), Rc::new(PendingReplies::default()));
        let send = |command: &'static str, shape| {
            connection.send(&one, shape, |out| out.extend_from_slice(command.as_bytes()))
        };
        let read = |replies: &Rc<PendingReplies>| -> (ReplyId, bool) {
            connection.read(replies, |out| out.extend_from_slice(b"mg k v\r\n"))
        };
        let checks = async {
            let first = send("ms k 3\r\nold\r\n", Shape::Meta);
            assert_eq!(text(one.receive(first).await), "HD\r\n");
            let (early, shared) = read(&one);
            assert!(!shared);
            let got = connection.get_one_of(&one, b"x", GetKind::default(), None);
            let (late, shared) = read(&other);
            assert!(shared);
            let set = send("ms k 3\r\nnew\r\n", Shape::Meta);
            let (behind, shared) = read(&other);
            assert!(!shared);
            for (replies, id, expected) in [
                (&one, early, "VA 3\r\nold\r\n"),
                (&one, got, "END\r\n"),
                (&other, late, "VA 3\r\nold\r\n"),
                (&one, set, "HD\r\n"),
                (&other, behind, "VA 3\r\nnew\r\n"),
            ] {
                assert_eq!(text(replies.receive(id).await), expected);
            }
            let (first, _) = read(&one);
            let touched = connection.get(&other, b"k", GetKind { exptime: Some(60), cas: false });
            let (behind, shared) = read(&one);
            assert!(!shared);
            for (replies, id, expected) in [
                (&one, first, "VA 3\r\nnew\r\n"),
                (&other, touched, "VALUE k 0 3\r\nnew\r\nEND\r\n"),
                (&one, behind, "VA 3\r\nnew\r\n"),
            ] {
                assert_eq!(text(replies.receive(id).await), expected);
            }
            // The first one was written long ago.
            let (alone, shared) = read(&one);
            assert!(!shared);
            assert_eq!(text(one.receive(alone).await), "VA 3\r\nnew\r\n");
        };
        tokio::select! {
            () = checks => {}
            () = Rc::clone(&connection).drive(Random::seeded(1)) => unreachable!("it is driven until it is dropped"),
        }
    }

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
