//! A share of the keys of a rule: the same keys on every sidecar.

use std::fmt;

/// The parts of the whole.
const WHOLE: u32 = 1_000_000;

/// A share, in millionths. A key that is in a share is in every larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// Parses a number of percent with at most four digits after the point: `5%`, `0.5%`, `100%`.
    pub fn parse(text: &str) -> Option<Share> {
        let number = text.strip_suffix('%')?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(part) || part.len() > 4 {
            return None;
        }
        let millionths = whole.parse::<u32>().ok()?.checked_mul(WHOLE / 100)?;
        let share = millionths.checked_add(format!("{part:0<4}").parse().ok()?)?;
        (share <= WHOLE).then_some(Share(share))
    }

    /// Whether this key is in the share.
    #[inline]
    pub fn contains(self, key: &[u8]) -> bool {
        let place = (u128::from(hash(key)) * u128::from(WHOLE)) >> 64;
        place < u128::from(self.0)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / (WHOLE / 100), self.0 % (WHOLE / 100));
        match part {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{part:04}").trim_end_matches('0')),
        }
    }
}

/// FNV-1a with a basis of its own, and the end of MurmurHash3, so that it has nothing in common with the hashes of a ring. Part of the
/// interface: sidecars of all versions must agree.
fn hash(key: &[u8]) -> u64 {
    let mut hash = 0x6b65_6e6e_656c_2025_u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(text: &str) -> Share {
        Share::parse(text).unwrap()
    }

    #[test]
    fn a_share_is_a_number_of_percent() {
        for (text, millionths, shown) in [
            ("0%", 0, "0%"),
            ("5%", 50_000, "5%"),
            ("0.5%", 5_000, "0.5%"),
            ("12.25%", 122_500, "12.25%"),
            ("0.0001%", 1, "0.0001%"),
            ("100%", 1_000_000, "100%"),
            ("100.0%", 1_000_000, "100%"),
        ] {
            assert_eq!((share(text), share(text).to_string()), (Share(millionths), shown.to_owned()));
        }
        for text in [
            "",
            "%",
            "5",
            "5 %",
            "-5%",
            "101%",
            "100.1%",
            ".5%",
            "5.%",
            "0.00001%",
            "5%%",
            "1e1%",
            "99999999999%",
        ] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_key_that_is_in_a_share_is_in_every_larger_one_and_a_share_has_so_many_keys() {
        let shares = ["0%", "1%", "5%", "10%", "50%", "99%", "100%"].map(share);
        let mut counts = [0; 7];
        for n in 0..100_000 {
            let key = format!("post:{n}:comments");
            let inside = shares.map(|share| share.contains(key.as_bytes()));
            assert!(inside.is_sorted(), "{key}: {inside:?}");
            counts.iter_mut().zip(inside).for_each(|(count, inside)| *count += u32::from(inside));
        }
        for (count, expected) in counts.into_iter().zip([0.0, 0.01, 0.05, 0.1, 0.5, 0.99, 1.0]) {
            let found = f64::from(count) / 100_000.0;
            assert!((found - expected).abs() <= 0.005, "{found} of {expected}");
        }
        assert_eq!((counts[0], counts[6]), (0, 100_000));
    }

    #[test]
    fn all_versions_agree_about_the_keys_of_a_share() {
        let first = |share: Share| {
            (0..1000).filter(|n| share.contains(format!("page:{n}").as_bytes())).take(6).collect::<Vec<_>>()
        };
        assert_eq!(first(share("5%")), PINNED);
    }

    /// The first keys of `page:0`, `page:1`, … that are in 5 %.
    const PINNED: [u32; 6] = [17, 45, 52, 59, 62, 67];
}
