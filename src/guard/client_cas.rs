//! The CAS numbers that clients are shown and send back.
//!
//! A CAS number is unique on one server only, while that server runs. In a pool with failover, a number that was shown on the
//! standby may also be that of another item on the own server, and a server that returns with its old contents has items
//! under the numbers that it had before anything was invalidated elsewhere. Clients are therefore shown the number plus an
//! offset of the fence. A number that is sent back under another fence is that of no item there.

/// Bits of an offset. With its low end at [`LOWEST_BIT`], what clients are shown stays below 2^53 while a server's numbers are below
/// 2^52: some clients keep numbers in floating point.
const BITS: u32 = 20;
/// The offsets of two fences differ by at least this power of two.
const LOWEST_BIT: u32 = 32;

/// The number that a client is shown for the CAS of an item under this fence. Nothing changes without a fence (0), nor does 0.
pub fn shown_cas(number: u64, fence: u64) -> u64 {
    if number == 0 { 0 } else { number.wrapping_add(offset(fence)) }
}

/// The CAS that a client means with this number under this fence: the inverse of [`shown_cas`].
pub fn named_cas(shown: u64, fence: u64) -> u64 {
    if shown == 0 { 0 } else { shown.wrapping_sub(offset(fence)) }
}

/// One of 2^20 for each fence.
fn offset(fence: u64) -> u64 {
    (fence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) << LOWEST_BIT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fence as it is drawn: milliseconds, and 20 random bits.
    const FENCE: u64 = 1_700_000_000_000 << 20 | 0xf_edcb;

    #[test]
    fn a_number_means_the_same_item_under_its_fence_and_none_under_another() {
        for number in [1, 57, 1 << 40, u64::MAX] {
            assert_eq!((shown_cas(number, 0), named_cas(number, 0)), (number, number));
            assert_eq!(named_cas(shown_cas(number, FENCE), FENCE), number);
            for other in [0, FENCE + 1, FENCE + (1 << 20), FENCE + (2000 << 20)] {
                assert_ne!(named_cas(shown_cas(number, FENCE), other), number);
            }
        }
        assert_eq!((shown_cas(0, FENCE), named_cas(0, FENCE)), (0, 0));
        assert!((1..10_000).all(|fence| shown_cas((1 << 52) - 1, fence) < 1 << 53));
    }

    #[test]
    fn later_numbers_of_one_fence_are_larger() {
        for fence in 0..1000 {
            assert!(shown_cas(8, fence) > shown_cas(7, fence));
        }
    }
}
