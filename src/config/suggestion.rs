//! Which known name a misspelled one was probably meant to be.

/// The closest of `known`, if at most a third of its letters differ from `word`.
pub(super) fn closest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let scored = known.into_iter().map(|k| (distance(word, k), k));
    scored.filter(|(d, k)| *d <= k.len().max(3) / 3).min().map(|(_, k)| k)
}

/// The Levenshtein distance of two words, ignoring ASCII case.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let swap = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = swap.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_recognised_and_another_word_is_not() {
        let known = ["stale_for", "stale_wait", "lock_ttl"];
        assert_eq!(closest("stale_fro", known), Some("stale_for"));
        assert_eq!(closest("lockttl", known), Some("lock_ttl"));
        assert_eq!(closest("timeout", known), None);
    }
}
