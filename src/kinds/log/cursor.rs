//! What follows the '@' in the key of a read of a log: the cursor of a tail, or a range of time.

/// How many parts a slot has.
pub(super) const MAX_PARTS: usize = 8;
/// The slots whose offsets a cursor has: the previous one, the current one, and the next, for a clock that is ahead.
pub(super) const MAX_SLOTS: usize = 3;

/// Where a tail is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    /// The first slot that it still looks at.
    pub(super) first: u64,
    /// How many bytes it has seen of each part of that slot and those behind it.
    pub(super) seen: Vec<Vec<u64>>,
}

/// What a read is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// What is behind a cursor.
    Behind(Cursor),
    /// The slots of these Unix times, in seconds.
    Between(u64, u64),
}

impl Cursor {
    /// The bytes that it has seen of a part.
    pub(super) fn seen(&self, slot: u64, part: usize) -> u64 {
        let parts = slot.checked_sub(self.first).and_then(|at| self.seen.get(usize::try_from(at).ok()?));
        parts.and_then(|parts| parts.get(part)).copied().unwrap_or(0)
    }

    /// As text: the first slot, and behind each '_' a slot's numbers of bytes, separated by '.', all in base 36. Only that of
    /// the beginning, `0`, has no '_', so that a word is not taken for a cursor.
    pub(super) fn text(&self) -> String {
        let mut text = base36(self.first);
        if self.seen.is_empty() && self.first > 0 {
            text.push('_');
        }
        for parts in &self.seen {
            let parts: Vec<String> = parts.iter().map(|seen| base36(*seen)).collect();
            text.push('_');
            text.push_str(&parts.join("."));
        }
        text
    }
}

/// Parses what follows the '@'. `None` if it is neither a cursor nor a range.
pub(super) fn parse(text: &[u8]) -> Option<Place> {
    let text = std::str::from_utf8(text).ok()?;
    if let Some((from, to)) = text.split_once('-') {
        let (from, to) = (seconds(from)?, seconds(to)?);
        return (from <= to).then_some(Place::Between(from, to));
    }
    let mut fields = text.split('_');
    let first = number(fields.next()?)?;
    let seen = |parts: &str| match parts {
        "" => Some(Vec::new()),
        parts => parts.split('.').map(number).collect::<Option<Vec<u64>>>(),
    };
    let seen = fields.map(seen).collect::<Option<Vec<_>>>()?;
    let is_marked = first == 0 || !seen.is_empty();
    let is_valid = is_marked && seen.len() <= MAX_SLOTS && seen.iter().all(|parts| parts.len() <= MAX_PARTS);
    is_valid.then_some(Place::Behind(Cursor { first, seen }))
}

fn seconds(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty()
        && text.len() <= 10
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    u64::from_str_radix(text, 36).ok().filter(|_| is_number)
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        digits.push(char::from_digit(digit, 36).unwrap_or('0'));
        number /= 36;
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() {
        for (first, seen) in [
            (0, vec![]),
            (28_333_333, vec![vec![], vec![32_768, 7], vec![0]]),
            (1_700_000_000, vec![vec![65_535; MAX_PARTS]; MAX_SLOTS]),
        ] {
            let cursor = Cursor { first, seen };
            let text = cursor.text();
            assert!(text.len() <= 130, "{text}");
            assert_eq!(parse(text.as_bytes()), Some(Place::Behind(cursor)), "{text}");
        }
        assert_eq!(Cursor { first: 33, seen: vec![] }.text(), "x_");
        for bad in [
            "",
            "_",
            "x",
            "snmjk",
            "A",
            "1_1_1_1_1",
            "1_0.0.0.0.0.0.0.0.0",
            "1_.",
            "1__-",
            "zzzzzzzzzzz",
            "é",
            "+1",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_range_is_two_times_in_order() {
        assert_eq!(parse(b"5-17"), Some(Place::Between(5, 17)));
        for bad in ["-", "5-", "-5", "17-5", "a-b", "1-2-3", "1-+2", "1-1000000000000"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
