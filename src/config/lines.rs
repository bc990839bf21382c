//! The line of each key of a file, for messages.

use std::collections::HashMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The line of each key, by its path: `rules[2].lock_ttl`. Lines count from 1.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<String, usize>);

impl Lines {
    /// Those of a file. Empty if it is not TOML.
    pub(super) fn of(text: &str) -> Lines {
        let mut lines = HashMap::new();
        if let Ok(table) = DeTable::parse(text) {
            let starts: Vec<usize> =
                std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
            let line = |at: usize| starts.partition_point(|start| *start <= at);
            in_table("", table.get_ref(), &line, &mut lines);
        }
        Lines(lines)
    }

    /// The line of a key, or of the table that lacks it.
    pub(super) fn find(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

fn in_table(
    path: &str,
    table: &DeTable<'_>,
    line: &impl Fn(usize) -> usize,
    lines: &mut HashMap<String, usize>,
) {
    for (key, value) in table {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", key.get_ref());
        lines.insert(path.clone(), line(key.span().start));
        in_value(&path, value, line, lines);
    }
}

fn in_value(
    path: &str,
    value: &Spanned<DeValue<'_>>,
    line: &impl Fn(usize) -> usize,
    lines: &mut HashMap<String, usize>,
) {
    match value.get_ref() {
        DeValue::Table(table) => in_table(path, table, line, lines),
        DeValue::Array(values) => {
            for (at, value) in values.iter().enumerate() {
                let path = format!("{path}[{at}]");
                lines.insert(path.clone(), line(value.span().start));
                in_value(&path, value, line, lines);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_and_entry_has_its_line() {
        let text = "a = 1\n[pools.main]\nservers = [\n  \"x\",\n  { address = \"y\", weight = 0 },\n]\n[[rules]]\nname = \"r\"\n\n[[rules]]\nmatch = \"m\"\n";
        let lines = Lines::of(text);
        for (path, line) in [
            ("a", 1),
            ("pools.main.servers", 3),
            ("pools.main.servers[0]", 4),
            ("pools.main.servers[1].weight", 5),
            ("rules[0].name", 8),
            ("rules[1].match", 11),
            // The table that lacks the key.
            ("pools.main.hash", 2),
            ("rules[1].name", 10),
        ] {
            assert_eq!(lines.find(path), Some(line), "{path}");
        }
        assert_eq!(lines.find("tags.cache"), None);
        assert_eq!(Lines::of("no toml").find("a"), None);
    }
}
