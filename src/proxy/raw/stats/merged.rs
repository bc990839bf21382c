//! Merges the replies of several servers to one `stats`.

use std::collections::HashMap;

/// The most names in one reply. memcached has about 100, and some 30 for each slab class. Further names are left out.
const MAX_NAMES: usize = 65_536;

/// The servers' lines, in the order of the first server.
#[derive(Debug, Default)]
pub(super) struct MergedStats {
    pub(super) lines: Vec<(String, Value)>,
    indexes: HashMap<String, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    /// Not a whole number. The value of the first server counts.
    Text(String),
}

impl Value {
    pub(super) fn text(&self) -> String {
        match self {
            Value::Number(number) => number.to_string(),
            Value::Text(text) => text.clone(),
        }
    }
}

impl MergedStats {
    /// Adds the reply of one server.
    pub(super) fn add(&mut self, reply: &[u8]) {
        for line in reply.split(|&byte| byte == b'\n') {
            let Some(line) = line.strip_prefix(b"STAT ") else { continue };
            let line = String::from_utf8_lossy(line.trim_ascii_end());
            let Some((name, value)) = line.split_once(' ') else { continue };
            let value = value.parse().map_or_else(|_| Value::Text(value.to_owned()), Value::Number);
            match self.indexes.get(name) {
                Some(&at) => {
                    if let (Value::Number(sum), Value::Number(more)) = (&mut self.lines[at].1, value) {
                        *sum = if is_level(name) { more.max(*sum) } else { sum.saturating_add(more) };
                    }
                }
                None if self.lines.len() < MAX_NAMES => {
                    self.indexes.insert(name.to_owned(), self.lines.len());
                    self.lines.push((name.to_owned(), value));
                }
                None => {}
            }
        }
    }

    pub(super) fn value(&self, name: &str) -> Option<String> {
        self.lines.iter().find(|(other, _)| other == name).map(|(_, value)| value.text())
    }
}

/// Whether the largest value counts instead of the sum: for ages, sizes and flags.
fn is_level(name: &str) -> bool {
    const LEVELS: [&str; 10] = [
        "age",
        "age_hot",
        "age_warm",
        "evicted_time",
        "chunk_size",
        "chunks_per_page",
        "hash_power_level",
        "hash_is_expanding",
        "slab_reassign_running",
        "lru_crawler_running",
    ];
    name.rsplit(':').next().is_some_and(|field| LEVELS.contains(&field))
}

/// Sort key of a line: its slab class or size. Lines without one come last.
pub(super) fn class(name: &str) -> u64 {
    name.split(':').find_map(|part| part.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(replies: &[&str]) -> Vec<(String, String)> {
        let mut merged = MergedStats::default();
        replies.iter().for_each(|reply| merged.add(reply.as_bytes()));
        merged.lines.into_iter().map(|(name, value)| (name, value.text())).collect()
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn counts_are_summed_ages_are_the_largest_and_words_are_the_first_servers() {
        let a = "STAT items:1:number 2\r\nSTAT items:1:age 7\r\nSTAT version 1.6.18\r\nSTAT ratio 0.80\r\nEND\r\n";
        let b = "STAT items:1:age 5\r\nSTAT items:1:number 3\r\nSTAT version 1.6.45\r\nSTAT ratio 1\r\nSTAT new 4\r\nEND\r\n";
        let both = [
            ("items:1:number", "5"),
            ("items:1:age", "7"),
            ("version", "1.6.18"),
            ("ratio", "0.80"),
            ("new", "4"),
        ];
        assert_eq!(merged(&[a, b]), pairs(&both));
    }

    #[test]
    fn a_sum_saturates_at_64_bits() {
        let most = "STAT bytes 18446744073709551615\r\nEND\r\n";
        assert_eq!(merged(&[most, "STAT bytes 9\r\n"]), pairs(&[("bytes", "18446744073709551615")]));
    }

    #[test]
    fn the_number_of_merged_names_is_bounded() {
        let many: String = (0..MAX_NAMES + 10).map(|n| format!("STAT n{n} 1\r\n")).collect();
        let merged = merged(&[&many, "STAT n0 2\r\nSTAT late 1\r\n"]);
        assert_eq!(merged.len(), MAX_NAMES);
        assert_eq!(merged[0], ("n0".to_owned(), "3".to_owned()));
    }

    #[test]
    fn classes_are_in_the_order_of_their_numbers_and_totals_come_last() {
        let mut names = ["total_malloced", "10:chunk_size", "items:9:age", "2:chunk_size"];
        names.sort_by_key(|name| class(name));
        assert_eq!(names, ["2:chunk_size", "items:9:age", "10:chunk_size", "total_malloced"]);
    }
}
