//! Which keys `kennel check` says have no protection while their server is down.

use std::fmt;

use crate::config::{Config, RuleKind};
use crate::kinds::Kind;
use crate::upstream::{OnError, PoolSpec};

/// Displays the rules whose keys are neither guarded nor kept on another server, by pool; nothing if there are none.
pub(super) struct Unprotected<'a>(pub(super) &'a Config);

impl fmt::Display for Unprotected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pool) in self.0.pools.iter().enumerate() {
            let keys = keys(self.0, at, pool);
            if keys.is_empty() {
                continue;
            }
            let get = if pool.on_error == OnError::Error { "an error" } else { "a miss" };
            writeln!(
                f,
                "Without protection in pool {}: {}.\n  While their server is down, a get is {get}, and every other command an error, \
                 until it is back.",
                pool.name,
                keys.join(", ")
            )?;
        }
        Ok(())
    }
}

/// The rules of a pool whose keys have no protection, and the keys without a rule.
fn keys(config: &Config, at: usize, pool: &PoolSpec) -> Vec<String> {
    let raw_follows = pool.on_error == OnError::Standby;
    let mut keys: Vec<String> = Vec::new();
    for rule in config.rules.iter().filter(|rule| rule.pool == at) {
        match &rule.kind {
            RuleKind::Raw if !raw_follows => keys.push(format!("rule {} (raw)", rule.name)),
            RuleKind::Observed if !raw_follows => keys.push(format!("rule {} (observe)", rule.name)),
            RuleKind::Structure(Kind::Copied(_))
            | RuleKind::Raw
            | RuleKind::Observed
            | RuleKind::Guarded { .. } => {}
            // They do not move to a standby server.
            RuleKind::Structure(kind) => keys.push(format!("rule {} ({})", rule.name, kind.word())),
        }
    }
    if pool.name == "main" && !raw_follows {
        keys.push("keys that match no rule (raw)".to_owned());
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unprotected(pool: &str, rules: &str) -> String {
        let text = format!("[pools.main]\nservers = [\"a:1\", \"b:1\", \"c:1\"]\n{pool}\n{rules}");
        Unprotected(&Config::read("test.toml", &text, []).unwrap()).to_string()
    }

    const RULES: &str = "
        [[rules]]
        name = \"sessions\"
        match = \"sess:*\"
        kind = \"raw\"
        [[rules]]
        name = \"hits\"
        match = \"hits:*\"
        kind = \"counter\"
        [[rules]]
        name = \"kept\"
        match = \"kept:*\"
        kind = \"raw\"
        copies = 2
        [[rules]]
        name = \"pages\"
        match = \"page:*\"
        kind = \"guarded\"
    ";

    #[test]
    fn rules_without_protection_are_named() {
        assert_eq!(
            unprotected("", RULES),
            "Without protection in pool main: rule sessions (raw), rule hits (counter), keys that match no rule (raw).\n  \
             While their server is down, a get is a miss, and every other command an error, until it is back.\n"
        );
        let error = unprotected("on_error = \"error\"", "");
        assert!(
            error.contains("main: keys that match no rule (raw).\n") && error.contains("a get is an error"),
            "{error}"
        );
    }

    #[test]
    fn raw_keys_that_follow_to_the_standby_server_are_not_named() {
        let text = unprotected("on_error = \"standby\"", RULES);
        assert!(text.contains("main: rule hits (counter).\n"), "{text}");
        assert_eq!(unprotected("on_error = \"standby\"", ""), "");
    }

    #[test]
    fn a_pool_is_named_with_its_own_rules() {
        let rules = "[pools.other]\nservers = [\"d:1\"]\n[[rules]]\nname = \"r\"\nmatch = \"r:*\"\nkind = \"raw\"\npool = \"other\"";
        let text = unprotected("on_error = \"standby\"", rules);
        assert!(text.starts_with("Without protection in pool other: rule r (raw).\n"), "{text}");
    }
}
