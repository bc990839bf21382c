//! The keys that a configuration sets, as text: what tells one configuration from another for operators.

use std::collections::{BTreeMap, BTreeSet};

use config::{Map, Value, ValueKind};
use crc32fast::Hasher;

/// The most differences that are told one by one.
const MAX_TOLD: usize = 200;
/// The most keys that are listed.
const MAX_LISTED: usize = 1000;
/// The longest value in a difference, in characters.
const MAX_SHOWN: usize = 100;

/// Each key that the file or the environment sets, by its path: `rules[2].lock_ttl`. Keys with their default value are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyValues(BTreeMap<String, String>);

impl KeyValues {
    pub(super) fn of(root: &Map<String, Value>) -> KeyValues {
        let mut all = BTreeMap::new();
        for (key, value) in root {
            add(key.clone(), value, &mut all);
        }
        KeyValues(all)
    }

    /// A hash of the keys and values: 8 hexadecimal digits. Two configurations with different hashes differ.
    pub fn hash(&self) -> String {
        let mut hasher = Hasher::new();
        for (key, value) in &self.0 {
            hasher.update(format!("{key}={value}\n").as_bytes());
        }
        format!("{:08x}", hasher.finalize())
    }

    /// Each key with its value, cut to 100 characters; 1,000 at most.
    pub fn shown(&self) -> Vec<(String, String)> {
        self.0.keys().take(MAX_LISTED).map(|key| (key.clone(), self.show(key))).collect()
    }

    /// One line for each key whose value differs in the next configuration; after 200 of them, the number of the others.
    pub fn changes(&self, next: &KeyValues) -> Vec<String> {
        let keys: BTreeSet<_> = self.0.keys().chain(next.0.keys()).collect();
        let differing = keys.into_iter().filter(|key| self.0.get(*key) != next.0.get(*key));
        let mut lines: Vec<String> =
            differing.map(|key| format!("{key}: {} → {}", self.show(key), next.show(key))).collect();
        let untold = lines.len().saturating_sub(MAX_TOLD);
        if untold > 0 {
            lines.truncate(MAX_TOLD);
            lines.push(format!("and {untold} more"));
        }
        lines
    }

    /// The same lines for the keys that are not left out.
    pub(super) fn changes_but(&self, next: &KeyValues, is_left_out: impl Fn(&str) -> bool) -> Vec<String> {
        let but = |all: &KeyValues| {
            let kept = all.0.iter().filter(|(key, _)| !is_left_out(key));
            KeyValues(kept.map(|(key, value)| (key.clone(), value.clone())).collect())
        };
        but(self).changes(&but(next))
    }

    /// Those of one rule, which is another one of the next configuration by its index: the key within the rule, and the line.
    pub(super) fn changes_of_rules(
        &self,
        (from, next, to): (usize, &KeyValues, usize),
        is_left_out: impl Fn(&str) -> bool,
    ) -> Vec<(String, String)> {
        let (old, new) = (self.of_rule(from), next.of_rule(to));
        let keys: BTreeSet<_> = old.0.keys().chain(new.0.keys()).filter(|key| !is_left_out(key)).collect();
        let differing = keys.into_iter().filter(|key| old.0.get(*key) != new.0.get(*key));
        let line = |key: &String| (key.clone(), format!("{key}: {} → {}", old.show(key), new.show(key)));
        differing.map(line).collect()
    }

    fn of_rule(&self, at: usize) -> KeyValues {
        let prefix = format!("rules[{at}].");
        let inside =
            |(key, value): (&String, &String)| Some((key.strip_prefix(&prefix)?.to_owned(), value.clone()));
        KeyValues(self.0.iter().filter_map(inside).collect())
    }

    fn show(&self, key: &str) -> String {
        match self.0.get(key) {
            None => "not set".to_owned(),
            Some(value) if value.chars().count() > MAX_SHOWN => {
                format!("{}…", value.chars().take(MAX_SHOWN).collect::<String>())
            }
            Some(value) => value.clone(),
        }
    }
}

fn add(path: String, value: &Value, all: &mut BTreeMap<String, String>) {
    match &value.kind {
        ValueKind::Table(table) => {
            table.iter().for_each(|(key, value)| add(format!("{path}.{key}"), value, all));
        }
        ValueKind::Array(values) if values.iter().any(|value| matches!(value.kind, ValueKind::Table(_))) => {
            values.iter().enumerate().for_each(|(at, value)| add(format!("{path}[{at}]"), value, all));
        }
        _ => {
            all.insert(path, text(value));
        }
    }
}

/// A value in TOML notation.
fn text(value: &Value) -> String {
    match &value.kind {
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::Array(values) => format!("[{}]", values.iter().map(text).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::load;

    const POOL: &str = "[pools.main]\nservers = [\"a:1\", { address = \"b:2\", weight = 2 }]\n";

    fn read(text: &str) -> super::KeyValues {
        load::read("k.toml", text, []).unwrap().key_values
    }

    #[test]
    fn what_has_changed_is_told_key_by_key() {
        let before = read(POOL);
        let text =
            POOL.replace("b:2", "c:3") + "[tags]\ncache = \"1s\"\n[[rules]]\nname = \"r\"\nmatch = \"*\"\n";
        let after = read(&text);
        let expected = [
            "pools.main.servers[1].address: \"b:2\" → \"c:3\"",
            "rules[0].match: not set → \"*\"",
            "rules[0].name: not set → \"r\"",
            "tags.cache: not set → \"1s\"",
        ];
        assert_eq!(before.changes(&after), expected);
        assert_eq!(after.changes(&before)[3], "tags.cache: \"1s\" → not set");
        assert_eq!(before.changes(&read(&format!("# a comment\n{POOL}"))), [] as [&str; 0]);
        assert_eq!((before.hash(), before.hash() == after.hash()), (read(POOL).hash(), false));
    }

    #[test]
    fn so_many_settings_are_listed_and_no_more() {
        let shown = read(POOL).shown();
        assert_eq!(shown.len(), 3);
        assert_eq!(shown[0], ("pools.main.servers[0]".to_owned(), "\"a:1\"".to_owned()));
        let rule = |n| format!("[[rules]]\nname = \"r{n}\"\nmatch = \"k{n}\"\n");
        let many = POOL.to_owned() + &(0..super::MAX_LISTED).map(rule).collect::<String>();
        assert_eq!(read(&many).shown().len(), super::MAX_LISTED);
    }

    #[test]
    fn a_variable_counts_as_the_key_that_it_sets() {
        let env = [("KENNEL_TAGS__CACHE".to_owned(), "1s".to_owned())];
        let by_variable = load::read("k.toml", POOL, env).unwrap().key_values;
        assert_eq!(by_variable, read(&format!("{POOL}[tags]\ncache = \"1s\"\n")));
    }

    #[test]
    fn many_and_long_changes_are_cut() {
        let rules = |name: &str| {
            let rule = |n| format!("[[rules]]\nname = \"{name}{n}\"\nmatch = \"{}{n}\"\n", name.repeat(50));
            POOL.to_owned() + &(0..150).map(rule).collect::<String>()
        };
        let changes = read(&rules("a")).changes(&read(&rules("bc")));
        assert_eq!(changes.len(), super::MAX_TOLD + 1);
        assert_eq!(changes[super::MAX_TOLD], "and 100 more");
        assert!(changes.iter().all(|line| line.chars().count() < 300));
    }
}
