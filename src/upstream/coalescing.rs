//! Which reads wait to be written, so that whoever asks the same meanwhile is answered with them.
//!
//! A server carries out a read after it was written, so after all who share it have asked: none of them is told anything older
//! than they may be told. Two things end that, and both are a new *turn*: what waits is handed to the socket, or a command is
//! queued that may change something, behind which a read must see what it did.

use std::ops::Range;

/// How many reads are remembered, at first and at most: twice as many as there were in any turn. Of two that fall on one seat, the
/// later is.
const SEATS: usize = 64;
const MAX_SEATS: usize = 8192;

/// The reads of this turn.
pub(super) struct UnsentReads {
    turn: u64,
    /// How many there are, those that took another's seat included.
    count: usize,
    /// As many as a power of two.
    seats: Vec<UnsentRead>,
}

/// A read that was queued: in which turn, where it lies in what is to be written, and which of the owed it is.
#[derive(Debug, Clone, Copy)]
struct UnsentRead {
    turn: u64,
    from: u32,
    to: u32,
    owed: u32,
    kind: Kind,
}

/// Nobody sits there: it is of no turn.
const FREE: UnsentRead = UnsentRead { turn: 0, from: 0, to: 0, owed: 0, kind: Kind::Meta };

/// What is remembered of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All of it, an `mg`.
    Meta,
    /// The key of a `get`.
    Get,
    /// The key of a `gets`.
    Gets,
}

impl UnsentReads {
    pub(super) fn new() -> UnsentReads {
        UnsentReads { turn: 1, count: 0, seats: vec![FREE; SEATS] }
    }

    /// Nothing that waits may be shared any more.
    pub(super) fn new_turn(&mut self) {
        self.turn += 1;
        self.count = 0;
    }

    /// Which of the owed is this read, whose digest that is, if it waits in `out` already.
    pub(super) fn find(&self, digest: u64, kind: Kind, read: &[u8], out: &[u8]) -> Option<usize> {
        let seat = &self.seats[self.seat(digest)];
        let same =
            (seat.turn, seat.kind) == (self.turn, kind) && out[seat.from as usize..seat.to as usize] == *read;
        same.then_some(seat.owed as usize)
    }

    /// It waits there, and is to be number `owed` of the owed.
    pub(super) fn note(&mut self, digest: u64, kind: Kind, at: Range<usize>, owed: usize) {
        let (Ok(from), Ok(to), Ok(owed)) = (at.start.try_into(), at.end.try_into(), owed.try_into()) else {
            return;
        };
        self.count += 1;
        if self.count * 2 > self.seats.len() && self.seats.len() < MAX_SEATS {
            // Those who sit there are forgotten: the next turn is likely to have as many, and finds room for all.
            self.seats = vec![FREE; self.seats.len() * 2];
        }
        let seat = self.seat(digest);
        self.seats[seat] = UnsentRead { turn: self.turn, from, to, owed, kind };
    }

    /// Whoever asks for what has this digest asks anew.
    pub(super) fn forget(&mut self, digest: u64) {
        let seat = self.seat(digest);
        self.seats[seat] = FREE;
    }

    fn seat(&self, digest: u64) -> usize {
        (digest >> (u64::BITS - self.seats.len().ilog2())) as usize
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
    use crate::upstream::connection::Connection;
    use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};
    use crate::upstream::server::Server;
    use crate::upstream::{Address, GetKind, ServerSpec};

    fn text(reply: Reply) -> String {
        let Reply::Answered { bytes, .. } = reply else { panic!("{reply:?}") };
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_read_joins_the_same_one_unless_something_that_may_change_something_stands_between() {
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
        let read = |inbox: &Rc<PendingReplies>| -> (ReplyId, bool) {
            connection.read(inbox, |out| out.extend_from_slice(b"mg k v\r\n"))
        };
        let asked = async {
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
            for (inbox, ticket, said) in [
                (&one, early, "VA 3\r\nold\r\n"),
                (&one, got, "END\r\n"),
                (&other, late, "VA 3\r\nold\r\n"),
                (&one, set, "HD\r\n"),
                (&other, behind, "VA 3\r\nnew\r\n"),
            ] {
                assert_eq!(text(inbox.receive(ticket).await), said);
            }
            let (first, _) = read(&one);
            let touched = connection.get(&other, b"k", GetKind { exptime: Some(60), cas: false });
            let (behind, shared) = read(&one);
            assert!(!shared);
            for (inbox, ticket, said) in [
                (&one, first, "VA 3\r\nnew\r\n"),
                (&other, touched, "VALUE k 0 3\r\nnew\r\nEND\r\n"),
                (&one, behind, "VA 3\r\nnew\r\n"),
            ] {
                assert_eq!(text(inbox.receive(ticket).await), said);
            }
            // That has been written long ago.
            let (alone, shared) = read(&one);
            assert!(!shared);
            assert_eq!(text(one.receive(alone).await), "VA 3\r\nnew\r\n");
        };
        tokio::select! {
            () = asked => {}
            () = Rc::clone(&connection).drive(Random::seeded(1)) => unreachable!("it is driven for ever"),
        }
    }

    #[test]
    fn a_read_is_found_again_in_its_turn_and_only_by_the_same_words() {
        let mut unwritten = UnsentReads::new();
        let (mut out, mut owed) = (Vec::new(), 0);
        let mut ask = |unwritten: &mut UnsentReads, read: &str| {
            let of = digest(read.as_bytes());
            let found = unwritten.find(of, Kind::Meta, read.as_bytes(), &out);
            // The same words as the key of a `get` are something else.
            assert_eq!(unwritten.find(of, Kind::Get, read.as_bytes(), &out), None);
            if found.is_none() {
                let from = out.len();
                out.extend_from_slice(read.as_bytes());
                unwritten.note(of, Kind::Meta, from..out.len(), owed);
                owed += 1;
            }
            found
        };
        assert_eq!(ask(&mut unwritten, "mg a v\r\n"), None);
        assert_eq!(ask(&mut unwritten, "mg b v\r\n"), None);
        assert_eq!(ask(&mut unwritten, "mg a v\r\n"), Some(0));
        assert_eq!(ask(&mut unwritten, "mg a\r\n"), None);
        assert_eq!(ask(&mut unwritten, "mg b v\r\n"), Some(1));
        unwritten.new_turn();
        assert_eq!(ask(&mut unwritten, "mg a v\r\n"), None);
        // However many there are, each is found under its own words or not at all.
        for i in 0..10_000 {
            let read = format!("mg key:{i} v\r\n");
            let first = ask(&mut unwritten, &read);
            assert_eq!((first, ask(&mut unwritten, &read)), (None, Some(4 + i)));
        }
        let again =
            (0..10_000).filter_map(|i| ask(&mut unwritten, &format!("mg key:{i} v\r\n")).map(|at| (i, at)));
        let again: Vec<(usize, usize)> = again.collect();
        assert!(again.iter().all(|(i, at)| *at == 4 + i || *at >= 10_004));
        assert_eq!(unwritten.seats.len(), MAX_SEATS);
        // By the next turn there is room for most of so many.
        unwritten.new_turn();
        let mut found = |i: usize| ask(&mut unwritten, &format!("mg key:{i} v\r\n")).is_some();
        assert!((0..400).all(|i| !found(i)));
        assert!((0..400).filter(|i| found(*i)).count() > 250);
    }
}
