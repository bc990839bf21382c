//! What is meant by `[[rules]]`.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use config::{Value, ValueKind};

use super::file::{self, Section};
use super::pools::pool_index;
use super::units::{self, show_duration};
use super::validate::{KeyPath, Validator, keys, span, text, whole_seconds, word};
use super::{Kind, Rule, Tags};
use crate::guard::{OnInvalidate, Policy};
use crate::proxy::{MetaWinner, explicit_tags};
use crate::rule::{Pattern, Rules, Template};

const MAX: usize = 10_000;
const TAGS_MAX: usize = 16;
/// What other sidecars invalidate may be served for so long: longer, and nobody would find out why.
const NEAR_MAX: Duration = Duration::from_secs(10);

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn rules(
    r: &mut Validator<'_>,
    written: Section<Vec<Section<file::Rule>>>,
    pools: &[String],
    tags: Option<&Tags>,
) -> Option<Vec<Rule>> {
    let top = KeyPath::top();
    let written = match written {
        Section::Absent => Vec::new(),
        Section::Is(rules) => rules,
        Section::Wrong(value) => {
            r.say(&top, "rules", Some(&value), "must be a list of tables: [[rules]] before each");
            return None;
        }
    };
    if written.len() > MAX {
        r.say(&top, "rules", None, format_args!("must be at most {MAX}; these are {}", written.len()));
        return None;
    }
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut rules = Vec::new();
    for (i, w) in written.into_iter().enumerate() {
        let path = format!("rules[{i}]");
        let rule = match w {
            Section::Is(w) => rule(r, path, w, pools, &mut names, i),
            Section::Absent => None,
            Section::Wrong(value) => {
                r.say(&top, &path, Some(&value), "must be a table: [[rules]] and its keys below");
                None
            }
        };
        rules.push(rule);
    }
    let rules: Vec<Rule> = rules.into_iter().collect::<Option<_>>()?;
    unreachable_rules(r, &rules, tags);
    Some(rules)
}

fn rule(
    r: &mut Validator<'_>,
    path: String,
    w: file::Rule,
    pools: &[String],
    names: &mut HashMap<String, usize>,
    i: usize,
) -> Option<Rule> {
    let called = [&w.name, &w.pattern].into_iter().flatten().find_map(|v| text(v).ok());
    let at = KeyPath::titled(path, called.unwrap_or("without a name"));
    r.unknown(&at, &w.rest, keys(file::Rule::KEYS));
    let name =
        required(r, &at, "name", &w.name, "metrics show it, and no key: name = \"pages\"", units::name);
    if let Some(name) = &name {
        if let Some(j) = names.get(name) {
            let what = format!("is the name of rules[{j}] too: each needs its own");
            r.say(&at, "name", w.name.as_ref(), what);
        } else {
            names.insert(name.clone(), i);
        }
    }
    let parse = |s: &str| Pattern::parse(s).map_err(|e| format!("is no pattern: {e}"));
    let pattern = required(r, &at, "match", &w.pattern, "say which keys: match = \"page:*\"", parse);
    let pool = pool_index(r, &at, &w.pool, pools);
    let guarded = r.leaf(&at, "kind", &w.kind, true, word(&[("guarded", true), ("raw", false)]));
    let kind = match guarded {
        Some(false) => raw(r, &at, &w),
        _ => {
            let tags = tags(r, &at, "tags", &w.tags, pattern.as_ref());
            let policy = policy(r, &at, &w);
            let tags_in_key = r.leaf(&at, "tags_in_key", &w.tags_in_key, false, yes_or_no);
            let winner = word(&[("miss", MetaWinner::Miss), ("stale", MetaWinner::Stale)]);
            let meta_winner = r.leaf(&at, "meta_winner", &w.meta_winner, MetaWinner::Miss, winner);
            (|| {
                Some(Kind::Guarded {
                    policy: policy?,
                    tags: tags?,
                    tags_in_key: tags_in_key?,
                    meta_winner: meta_winner?,
                })
            })()
        }
    };
    guarded?;
    let invalidates = tags(r, &at, "invalidates", &w.invalidates, pattern.as_ref())?;
    let kind = kind?;
    if let Kind::Guarded { tags, .. } = &kind
        && let Some(both) = invalidates.iter().position(|tag| tags.contains(tag))
    {
        let what = "is one of its tags too: whatever is stored would be stale at once";
        r.say(&at, &format!("invalidates[{both}]"), None, what);
        return None;
    }
    if let Kind::Guarded { policy, tags, tags_in_key, meta_winner } = &kind {
        idle_settings(r, &at, policy, *tags_in_key || !tags.is_empty());
        let serves_nothing = policy.stale_for.is_zero() && policy.on_tag == OnInvalidate::Drop;
        if *meta_winner == MetaWinner::Stale && serves_nothing && policy.early_beta == 0.0 {
            r.warn(&at, "meta_winner does nothing with stale_for = \"0s\" and on_tag = \"drop\": there is no old value to show");
        }
    }
    Some(Rule { name: name?, pattern: pattern?, pool: pool?, kind, invalidates })
}

/// What is set and does nothing. `on_tag = "stale"` does something also where `stale_for` is 0: whose tag is bumped is served
/// until its expiry.
fn idle_settings(r: &mut Validator<'_>, at: &KeyPath, policy: &Policy, tagged: bool) {
    if policy.stale_for.is_zero() {
        if policy.on_delete == OnInvalidate::Stale {
            r.warn(at, "on_delete = \"stale\" does nothing with stale_for = \"0s\": a delete leaves nothing");
        }
        if !policy.stale_wait.is_zero() && policy.on_tag == OnInvalidate::Drop {
            r.warn(
                at,
                "stale_wait does nothing with stale_for = \"0s\" and on_tag = \"drop\": nothing is served as stale",
            );
        } else if !policy.stale_wait.is_zero() && !tagged {
            r.warn(
                at,
                "stale_wait does nothing with stale_for = \"0s\" and without tags, but for values that meta clients tag",
            );
        }
    }
    // A TTL of n lives (n−1, n] seconds, and nothing is kept that may have outlived it.
    if !policy.near.is_zero() && policy.max_ttl == SECOND {
        r.warn(at, "near keeps no hit with max_ttl = \"1s\", for it may go stale at any moment");
    }
}

fn required<T>(
    r: &mut Validator<'_>,
    at: &KeyPath,
    key: &str,
    value: &Option<Value>,
    hint: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    if value.is_none() {
        r.say(at, key, None, format_args!("is missing: {hint}"));
        return None;
    }
    r.leaf(at, key, value, None, |v| parse(text(v)?).map(Some))?
}

/// What a guard would need is probably meant to do something, and would not.
fn raw(r: &mut Validator<'_>, at: &KeyPath, w: &file::Rule) -> Option<Kind> {
    let guards = BTreeMap::from([
        ("tags", &w.tags),
        ("tags_in_key", &w.tags_in_key),
        ("stale_for", &w.stale_for),
        ("lock_ttl", &w.lock_ttl),
        ("max_rebuild", &w.max_rebuild),
        ("stale_wait", &w.stale_wait),
        ("cold_wait", &w.cold_wait),
        ("on_tag", &w.on_tag),
        ("on_delete", &w.on_delete),
        ("early_beta", &w.early_beta),
        ("max_ttl", &w.max_ttl),
        ("near", &w.near),
        ("meta_winner", &w.meta_winner),
    ]);
    let before = r.mistakes.len();
    for (key, value) in guards {
        if value.is_some() {
            r.say(at, key, value.as_ref(), "does nothing in a raw rule: remove it, or kind = \"guarded\"");
        }
    }
    (r.mistakes.len() == before).then_some(Kind::Raw)
}

fn tags(
    r: &mut Validator<'_>,
    at: &KeyPath,
    list: &str,
    written: &Option<Value>,
    pattern: Option<&Pattern>,
) -> Option<Vec<Template>> {
    let tags = r.list(at, list, written, Vec::new(), |r, key, v| {
        let template = |v: &Value| match pattern {
            Some(pattern) => {
                Template::parse(text(v)?, pattern).map(Some).map_err(|e| format!("is no tag: {e}"))
            }
            None => text(v).map(|_| None), // the match has its own mistake, and what it captures is unknown
        };
        r.leaf(at, &key, &Some(v.clone()), None, template)?
    })?;
    for (i, tag) in tags.iter().enumerate() {
        if let Some(j) = tags[..i].iter().position(|t| t == tag) {
            r.say(at, &format!("{list}[{i}]"), None, format_args!("is {list}[{j}] again: remove one"));
            return None;
        }
    }
    if tags.len() > TAGS_MAX {
        r.say(at, list, None, format_args!("must be at most {TAGS_MAX}; these are {}", tags.len()));
        return None;
    }
    Some(tags)
}

fn policy(r: &mut Validator<'_>, at: &KeyPath, w: &file::Rule) -> Option<Policy> {
    let d = Policy::default();
    let zero = Duration::ZERO;
    let on_tag = [("stale", OnInvalidate::Stale), ("drop", OnInvalidate::Drop)];
    let on_delete = [("drop", OnInvalidate::Drop), ("stale", OnInvalidate::Stale)];
    let stale_for = r.leaf(at, "stale_for", &w.stale_for, d.stale_for, whole_seconds(zero..=30 * DAY));
    let lock_ttl = r.leaf(at, "lock_ttl", &w.lock_ttl, d.lock_ttl, whole_seconds(SECOND..=HOUR));
    let max_rebuild = r.leaf(at, "max_rebuild", &w.max_rebuild, d.max_rebuild, span(zero..=DAY));
    let stale_wait = r.leaf(at, "stale_wait", &w.stale_wait, d.stale_wait, span(zero..=MINUTE));
    let cold_wait = r.leaf(at, "cold_wait", &w.cold_wait, d.cold_wait, span(zero..=MINUTE));
    let on_tag = r.leaf(at, "on_tag", &w.on_tag, d.on_tag, word(&on_tag));
    let on_delete = r.leaf(at, "on_delete", &w.on_delete, d.on_delete, word(&on_delete));
    let early_beta = r.leaf(at, "early_beta", &w.early_beta, d.early_beta, beta);
    let max_ttl = r.leaf(at, "max_ttl", &w.max_ttl, d.max_ttl, whole_seconds(zero..=3650 * DAY));
    let near = r.leaf(at, "near", &w.near, d.near, span(zero..=NEAR_MAX));
    let policy = Policy {
        stale_for: stale_for?,
        lock_ttl: lock_ttl?,
        max_rebuild: max_rebuild?,
        stale_wait: stale_wait?,
        cold_wait: cold_wait?,
        on_tag: on_tag?,
        on_delete: on_delete?,
        early_beta: early_beta?,
        max_ttl: max_ttl?,
        near: near?,
    };
    if policy.lock_ttl >= policy.max_rebuild {
        let other = match &w.max_rebuild {
            Some(_) => format!("{:?}", show_duration(policy.max_rebuild)),
            None => format!("{:?}, the default", show_duration(policy.max_rebuild)),
        };
        let (key, value, what) = match &w.lock_ttl {
            Some(_) => ("lock_ttl", &w.lock_ttl, format!("must be below max_rebuild ({other})")),
            None => {
                let lock_ttl = show_duration(policy.lock_ttl);
                let what = format!("must be above lock_ttl ({lock_ttl:?}, the default)");
                ("max_rebuild", &w.max_rebuild, what)
            }
        };
        r.say(at, key, value.as_ref(), what);
        return None;
    }
    Some(policy)
}

fn beta(value: &Value) -> Result<f64, String> {
    match value.kind {
        ValueKind::Float(x) if (0.0..=100.0).contains(&x) => Ok(x),
        ValueKind::I64(n @ 0..=100) => Ok(n as f64),
        _ => Err("must be a number from 0.0 to 100.0".to_owned()),
    }
}

fn yes_or_no(value: &Value) -> Result<bool, String> {
    match value.kind {
        ValueKind::Boolean(yes) => Ok(yes),
        _ => Err("must be true or false, without quotes".to_owned()),
    }
}

fn unreachable_rules(r: &mut Validator<'_>, rules: &[Rule], tags: Option<&Tags>) {
    let table = Rules::new(rules.iter().map(|rule| rule.pattern.clone()).collect());
    for (later, earlier) in table.shadowed() {
        let (a, b) = (&rules[earlier], &rules[later]);
        r.warnings.push(format!(
            "rules[{later}] {:?} is never reached: rules[{earlier}] {:?} before it matches all its keys",
            b.name, a.name
        ));
    }
    for (i, rule) in rules.iter().enumerate() {
        let prefix = tags.map_or(&[][..], |tags| &tags.prefix);
        let both = explicit_tags::PREFIX.starts_with(prefix) && !prefix.is_empty();
        if both && matches!(rule.kind, Kind::Guarded { tags_in_key: true, .. }) {
            r.warnings.push(format!(
                "rules[{i}] {:?}: tags_in_key does nothing, for what begins with tags.prefix is a tag",
                rule.name
            ));
        }
        if tags.is_some_and(|tags| rule.pattern.prefix().starts_with(&tags.prefix)) {
            r.warnings.push(format!(
                "rules[{i}] {:?} is never reached: what begins with tags.prefix is a tag",
                rule.name
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn warnings(keys: &str) -> Vec<String> {
        let pool = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";
        let text = format!("{pool}[[rules]]\nname = \"user\"\nmatch = \"user:*\"\n{keys}");
        Config::read("k.toml", &text, []).unwrap().warnings
    }

    #[test]
    fn a_setting_that_does_nothing_is_a_warning() {
        for (keys, said) in [
            (
                "stale_for = \"0s\"\non_delete = \"stale\"",
                "on_delete = \"stale\" does nothing with stale_for = \"0s\": a delete leaves nothing",
            ),
            (
                "stale_for = \"0s\"\nstale_wait = \"2s\"\ntags = [\"t\"]\non_tag = \"drop\"",
                "stale_wait does nothing with stale_for = \"0s\" and on_tag = \"drop\": nothing is served as stale",
            ),
            (
                "stale_for = \"0s\"\nstale_wait = \"2s\"",
                "stale_wait does nothing with stale_for = \"0s\" and without tags, but for values that meta clients tag",
            ),
            (
                "stale_for = \"0s\"\non_tag = \"drop\"\nmeta_winner = \"stale\"",
                "meta_winner does nothing with stale_for = \"0s\" and on_tag = \"drop\": there is no old value to show",
            ),
            (
                "max_ttl = \"1s\"\nnear = \"1ms\"",
                "near keeps no hit with max_ttl = \"1s\", for it may go stale at any moment",
            ),
        ] {
            assert_eq!(warnings(keys), [format!("rules[0] \"user\": {said}")], "{keys}");
        }
    }

    #[test]
    fn a_setting_that_does_something_is_no_warning() {
        for keys in [
            "stale_for = \"0s\"",
            "stale_for = \"1s\"\non_delete = \"stale\"\nstale_wait = \"2s\"",
            // A bumped tag leaves the old value until its own expiry.
            "stale_for = \"0s\"\non_tag = \"stale\"\nstale_wait = \"2s\"\ntags = [\"t\"]",
            "stale_for = \"0s\"\non_tag = \"stale\"\nstale_wait = \"2s\"\ntags_in_key = true",
            // It is kept until a second before the end.
            "max_ttl = \"2s\"\nnear = \"10s\"",
            "max_ttl = \"1s\"",
            "stale_for = \"0s\"\non_tag = \"drop\"\nmeta_winner = \"stale\"\nearly_beta = 1.0",
            "meta_winner = \"stale\"",
        ] {
            assert_eq!(warnings(keys), [] as [String; 0], "{keys}");
        }
    }
}
