//! A fingerprint of the rules: what must be the same in the sidecars of a fleet for clients to see the same.

use super::settings::{Config, Rule, RuleKind};
use crate::kinds::Kind;
use crate::rule::Template;
use crate::upstream::ring::text_id;

impl Config {
    /// A number for what the rules mean for what is stored: patterns, kinds, tags, pools and their order; not for times that only this
    /// process needs. It is the same in every process and version, and it contains no key. Never 0.
    pub fn rules_fingerprint(&self) -> u64 {
        let tags = &self.tags;
        let mut text = format!(
            "tags {:?} {} {}\n",
            String::from_utf8_lossy(&tags.prefix),
            self.pools[tags.pool].keyspace,
            tags.replicas
        );
        self.rules.iter().for_each(|rule| text.push_str(&self.describe(rule)));
        text_id(&text).max(1)
    }

    fn describe(&self, rule: &Rule) -> String {
        let list =
            |tags: &[Template]| tags.iter().map(|tag| format!(" {:?}", tag.text())).collect::<String>();
        let kind = match &rule.kind {
            RuleKind::Raw | RuleKind::Observed => String::new(),
            RuleKind::Guarded { tags, tags_in_key, .. } => {
                let share = rule.share.map_or_else(String::new, |share| format!(" {share}"));
                format!("{tags_in_key}{}{share}", list(tags))
            }
            RuleKind::Structure(kind) => structure(kind),
        };
        // What is observed is stored as what is raw.
        let word = if rule.kind == RuleKind::Observed { RuleKind::Raw.word() } else { rule.kind.word() };
        let pool = &self.pools[rule.pool].keyspace;
        format!("{:?} {pool} {word} {kind} |{}\n", rule.pattern.text(), list(&rule.invalidates))
    }
}

/// What decides which items a structure has.
fn structure(kind: &Kind) -> String {
    match kind {
        Kind::Copied(copied) => {
            format!("2 {}", copied.of.as_deref().map(structure).unwrap_or_default())
        }
        Kind::Window(window) => format!("{} {} {}", window.window.as_millis(), window.slots, window.unique),
        Kind::Log(log) => format!("{} {}", log.window.as_millis(), log.slot.as_millis()),
        Kind::Lock(lock) => format!("{}", lock.fence),
        Kind::Counter(_) | Kind::List(_) | Kind::Table(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const RULES: &str = "[[rules]]\nname = \"a\"\nmatch = \"a:{id}\"\ntags = [\"t:{id}\"]\n\
                         [[rules]]\nname = \"b\"\nmatch = \"b:*\"\nkind = \"window\"\nwindow = \"60s\"\n";

    const PINNED: &str = "d433cca922225050";

    fn fingerprint(rules: &str) -> u64 {
        let pools = "[pools.main]\nservers = [\"a:1\"]\n[pools.other]\nservers = [\"b:1\"]\n";
        Config::read("k.toml", &format!("{pools}{rules}"), []).unwrap().rules_fingerprint()
    }

    #[test]
    fn it_is_the_same_in_every_version() {
        assert_eq!(format!("{:016x}", fingerprint(RULES)), PINNED);
    }

    #[test]
    fn it_changes_with_what_is_stored_and_with_nothing_else() {
        let with = |from: &str, to: &str| fingerprint(&RULES.replacen(from, to, 1));
        let own = fingerprint(RULES);
        for (from, to) in [
            ("name = \"a\"", "name = \"c\""),
            ("tags = ", "stale_for = \"7s\"\ntags = "),
            ("[[rules]]", "[log]\nslow = \"1s\"\n[[rules]]"),
        ] {
            assert_eq!(with(from, to), own, "{to}");
        }
        for (from, to) in [
            ("a:{id}", "c:{id}"),
            ("t:{id}", "u:{id}"),
            ("tags = [\"t:{id}\"]", "kind = \"raw\""),
            ("tags = ", "pool = \"other\"\ntags = "),
            ("tags = ", "tags_in_key = true\ntags = "),
            ("tags = ", "invalidates = [\"x\"]\ntags = "),
            ("60s", "70s"),
            ("[[rules]]", "[tags]\nprefix = \"t:\"\n[[rules]]"),
            ("[[rules]]", "[[rules]]\nname = \"first\"\nmatch = \"f:*\"\nkind = \"raw\"\n[[rules]]"),
        ] {
            assert_ne!(with(from, to), own, "{to}");
        }
    }
}
