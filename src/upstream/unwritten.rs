//! Which reads wait to be written, so that whoever asks the same meanwhile is answered with them.
//!
//! A server carries out a read after it was written, so after all who share it have asked: none of them is told anything older
//! than they may be told. Two things end that, and both are a new *turn*: what waits is handed to the socket, or a command is
//! queued that may change something, behind which a read must see what it did.

/// How many reads are remembered. Of two that fall on one place, the later is.
const SEATS: usize = 128;

/// The reads of this turn.
pub(super) struct Unwritten {
    turn: u64,
    seats: Box<[Seat; SEATS]>,
}

/// A read that was queued: in which turn, where it lies in what is to be written, and which of the owed it is.
#[derive(Debug, Clone, Copy)]
struct Seat {
    turn: u64,
    from: usize,
    to: usize,
    owed: usize,
}

impl Unwritten {
    pub(super) fn new() -> Unwritten {
        let nobody = Seat { turn: 0, from: 0, to: 0, owed: 0 };
        Unwritten { turn: 1, seats: Box::new([nobody; SEATS]) }
    }

    /// Nothing that waits may be shared any more.
    pub(super) fn new_turn(&mut self) {
        self.turn += 1;
    }

    /// `out` ends with a read, which begins at `from` and would be number `owed` of the owed: the number of the same one that
    /// waits already, if one does; else it is remembered.
    pub(super) fn find_or_note(&mut self, out: &[u8], from: usize, owed: usize) -> Option<usize> {
        let read = &out[from..];
        let seat = &mut self.seats[place(read)];
        if seat.turn == self.turn && out[seat.from..seat.to] == *read {
            return Some(seat.owed);
        }
        *seat = Seat { turn: self.turn, from, to: out.len(), owed };
        None
    }
}

fn place(read: &[u8]) -> usize {
    let (words, rest) = read.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = words.iter().fold(0, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
    (hash >> 57) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_found_again_in_its_turn_and_only_by_the_same_words() {
        let mut unwritten = Unwritten::new();
        let (mut out, mut owed) = (Vec::new(), 0);
        let mut ask = |unwritten: &mut Unwritten, read: &str| {
            let from = out.len();
            out.extend_from_slice(read.as_bytes());
            let found = unwritten.find_or_note(&out, from, owed);
            match found {
                Some(_) => out.truncate(from),
                None => owed += 1,
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
        for i in 0..1_000 {
            let read = format!("mg key:{i} v\r\n");
            let first = ask(&mut unwritten, &read);
            assert_eq!((first, ask(&mut unwritten, &read)), (None, Some(4 + i)));
        }
        let again =
            (0..1_000).filter_map(|i| ask(&mut unwritten, &format!("mg key:{i} v\r\n")).map(|at| (i, at)));
        let again: Vec<(usize, usize)> = again.collect();
        assert!(again.iter().all(|(i, at)| *at == 4 + i || *at >= 1_004));
    }
}
