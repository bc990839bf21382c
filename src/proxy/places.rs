//! Where the tags lie that were asked for lately, so that a tag that many keys have is not hashed for each of them.

use std::cell::RefCell;

use smallvec::SmallVec;

/// How many are remembered. Of two that fall on one seat, the later is.
const SEATS: usize = 1024;

/// Servers of tags, by the tags' keys. For one ring, whose placements never change.
#[derive(Default)]
pub(super) struct Places {
    /// Empty until something is remembered.
    seats: RefCell<Vec<Option<Seat>>>,
}

#[derive(Clone)]
struct Seat {
    key: SmallVec<[u8; 32]>,
    copy: bool,
    place: usize,
}

impl Places {
    /// The place of this key, or of its copy; `hash` is that of the key, and `find` asks the ring.
    pub(super) fn of(&self, key: &[u8], hash: u64, copy: bool, find: impl FnOnce() -> usize) -> usize {
        let mut seats = self.seats.borrow_mut();
        if seats.is_empty() {
            seats.resize(SEATS, None);
        }
        let seat = &mut seats[(hash as usize ^ usize::from(copy)) % SEATS];
        match seat {
            Some(seat) if seat.copy == copy && seat.key[..] == *key => seat.place,
            _ => {
                let place = find();
                *seat = Some(Seat { key: SmallVec::from_slice(key), copy, place });
                place
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_asked_for_once_and_never_taken_for_that_of_another_key() {
        let (places, mut asked) = (Places::default(), 0);
        let mut place = |key: &[u8], hash, copy, at| {
            places.of(key, hash, copy, || {
                asked += 1;
                at
            })
        };
        assert_eq!(place(b"@tag:a", 7, false, 1), 1);
        assert_eq!(place(b"@tag:a", 7, false, 9), 1);
        assert_eq!(place(b"@tag:a", 7, true, 2), 2);
        // Of the same hash, and of one that falls on the seat of the copy.
        assert_eq!(place(b"@tag:b", 7, false, 3), 3);
        assert_eq!(place(b"@tag:c", 6, false, 4), 4);
        assert_eq!(place(b"@tag:a", 7, true, 2), 2);
        assert_eq!(asked, 5);
    }
}
