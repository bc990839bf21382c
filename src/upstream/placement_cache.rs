//! Where the keys lie that were asked for lately: to look is a fifth of what it takes to ask the ring, which hashes with MD5.

use std::cell::RefCell;

use crate::protocol::reply::digest;

/// How many are remembered. Of two that fall on one seat, the later is.
const SEATS: usize = 4096;
/// The longest key that is, so that a seat is a line of the processor's cache.
const MAX_REMEMBERED: usize = 58;

/// Places of keys in one ring, whose placements never change.
#[derive(Default)]
pub(super) struct PlacementCache {
    /// Empty until something is remembered.
    seats: RefCell<Vec<CachedPlacement>>,
}

#[derive(Clone)]
#[repr(align(64))]
struct CachedPlacement {
    place: u32,
    /// Of the key's copy.
    copy: bool,
    /// 0: nobody's.
    length: u8,
    key: [u8; MAX_REMEMBERED],
}

impl PlacementCache {
    /// The place of this key, or of its copy; `find` asks the ring.
    pub(super) fn of(&self, key: &[u8], copy: bool, find: impl FnOnce() -> usize) -> usize {
        let length = key.len();
        if !(1..=MAX_REMEMBERED).contains(&length) {
            return find();
        }
        let mut seats = self.seats.borrow_mut();
        if seats.is_empty() {
            seats.resize(
                SEATS,
                CachedPlacement { place: 0, copy: false, length: 0, key: [0; MAX_REMEMBERED] },
            );
        }
        // The upper bits: every byte has had its say in them.
        let seat = &mut seats[((digest(key) >> 48) as usize % SEATS) ^ usize::from(copy)];
        if seat.copy == copy && seat.key.get(..usize::from(seat.length)) == Some(key) {
            return seat.place as usize;
        }
        let place = find();
        (seat.place, seat.copy, seat.length) = (place as u32, copy, length as u8);
        seat.key[..length].copy_from_slice(key);
        place
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_place_is_asked_for_once_and_never_taken_for_that_of_another_key() {
        let (places, asked) = (PlacementCache::default(), Cell::new(0));
        let place = |key: &str, copy, at| {
            places.of(key.as_bytes(), copy, || {
                asked.set(asked.get() + 1);
                at
            })
        };
        for (key, copy, at) in [("k", false, 1), ("k", true, 2), ("kk", false, 3), ("", false, 4)] {
            assert_eq!(place(key, copy, at), at);
        }
        assert_eq!([place("k", false, 9), place("k", true, 9), place("kk", false, 9)], [1, 2, 3]);
        let (long, longer) = ("k".repeat(MAX_REMEMBERED), "k".repeat(MAX_REMEMBERED + 1));
        assert_eq!([place(&long, false, 5), place(&long, false, 6)], [5, 5]);
        assert_eq!([place(&longer, false, 5), place(&longer, false, 6)], [5, 6]);
        assert_eq!((asked.get(), size_of::<CachedPlacement>()), (7, 64));
        // However many fall on one seat.
        for round in 0..2 {
            for i in 0..20_000 {
                assert_eq!(place(&format!("some:key:{i}"), i % 3 == 0, i), i, "{round}");
            }
        }
    }
}
