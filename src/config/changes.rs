//! What another configuration would change, in words: what would be lost, what is built again, and what clients notice.
//!
//! `kennel check --against`, `kennel reload --dry-run` and each reload use this one list. It is made of two configurations and nothing
//! else.

mod pools;
mod rules;

use std::fmt::Write as _;

use super::load::Loaded;
use super::settings::{Config, Rule, RuleKind};

/// What a change costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Acknowledged invalidations, or what is kept nowhere else. A reload refuses it.
    Loses,
    /// Some keys are built once more.
    BuildsAgain,
    /// No key is lost, and none is built again.
    Harmless,
}

/// One difference between two configurations, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What the change costs a running fleet.
    pub effect: Effect,
    /// What changes and what clients notice: a sentence without a full stop.
    pub text: String,
    /// How to do it without a loss, line by line; empty if there is no way or none is needed.
    pub remedy: Vec<String>,
}

/// All changes from one configuration to the next, those that lose something first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes(Vec<Change>);

impl Change {
    fn new(effect: Effect, text: impl Into<String>) -> Change {
        Change { effect, text: text.into(), remedy: Vec::new() }
    }

    fn loses(text: impl Into<String>, remedy: Vec<String>) -> Change {
        Change { effect: Effect::Loses, text: text.into(), remedy }
    }
}

impl Changes {
    /// Those from one configuration to the next.
    pub fn between(old: &Loaded, new: &Loaded) -> Changes {
        let mut all = pools::changes(&old.config, &new.config);
        all.extend(tags(&old.config, &new.config));
        all.extend(rules::changes(old, new));
        all.extend(old.files.changes(&new.files).into_iter().map(|text| Change::new(Effect::Harmless, text)));
        all.extend(settings(old, new));
        all.sort_by_key(|change| change.effect);
        Changes(all)
    }

    /// Every change between the two configurations.
    pub fn all(&self) -> &[Change] {
        &self.0
    }

    /// Whether a reload refuses them.
    pub fn lose_something(&self) -> bool {
        self.0.iter().any(|change| change.effect == Effect::Loses)
    }

    /// What would be lost and how to avoid that, as lines; empty if nothing would be.
    pub fn losses(&self) -> Vec<String> {
        let loses = self.0.iter().filter(|change| change.effect == Effect::Loses);
        loses.flat_map(|change| [change.text.clone()].into_iter().chain(change.remedy.clone())).collect()
    }

    /// Everything, under a title for each effect.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for (effect, title) in [
            (Effect::Loses, "Would lose something, so a reload refuses it without --force:"),
            (Effect::BuildsAgain, "Has keys built once more:"),
            (Effect::Harmless, "Changes without a loss:"),
        ] {
            let mut of_effect = self.0.iter().filter(|change| change.effect == effect).peekable();
            if of_effect.peek().is_some() {
                let _ = writeln!(text, "{title}");
            }
            for change in of_effect {
                let _ = writeln!(text, "- {}", change.text);
                for line in &change.remedy {
                    let _ = writeln!(text, "  {line}");
                }
            }
        }
        if text.is_empty() { "nothing changes\n".to_owned() } else { text }
    }
}

/// The settings that `pools` and `rules` do not explain.
fn settings(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let is_explained = |key: &str| key.starts_with("rules[") || pools::is_explained(key);
    let lines = old.key_values.changes_but(&new.key_values, is_explained).into_iter();
    let harmless = |line: String| {
        let why = match line.split([':', '[']).next() {
            Some("listen.tcp" | "listen.unix") => " (clients of a listener that goes are disconnected)",
            Some("listen.workers") => " (takes effect when the process is started again)",
            Some("near.memory") => " (what is near is forgotten)",
            Some("tags.replicas") => " (what clients are building under rules with tags is built once more)",
            _ => "",
        };
        Change::new(Effect::Harmless, format!("{line}{why}"))
    };
    lines.map(harmless).collect()
}

/// Where the versions of tags are.
fn tags(old: &Config, new: &Config) -> Vec<Change> {
    let is_guarded = |rule: &Rule| matches!(rule.kind, RuleKind::Guarded { .. });
    if !old.rules.iter().any(is_guarded) {
        return Vec::new();
    }
    let pool = |config: &Config| config.pools[config.tags.pool].name.clone();
    let prefix = |config: &Config| String::from_utf8_lossy(&config.tags.prefix).into_owned();
    let moved = |key: &str, from: String, to: String| {
        (from != to).then(|| {
            let text = format!(
                "{key}: {from:?} → {to:?}: until every sidecar and every client has it, a tag that is bumped under one of the two stays \
                 as it was under the other, so acknowledged bumps are lost; every tagged value is built once more"
            );
            let remedy = "to do it without a loss: stop the clients that bump tags, take it on all sidecars with kennel reload --force, and \
                          then bump what has changed meanwhile";
            Change::loses(text, vec![remedy.to_owned()])
        })
    };
    let prefix = moved("tags.prefix", prefix(old), prefix(new));
    prefix.into_iter().chain(moved("tags.pool", pool(old), pool(new))).collect()
}

#[cfg(test)]
mod tests;
