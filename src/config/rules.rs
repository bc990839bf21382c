//! `[[rules]]`: which keys are guarded, and how.

use std::collections::HashMap;
use std::time::Duration;

use config::{Value, ValueKind};

use super::file::{self, Section};
use super::kinds::{self, KindWord};
use super::pools::pool_index;
use super::settings::{Rule, RuleKind, Tags};
use super::units::{self, show_duration};
use super::validator::{
    DAY, HOUR, KeyPath, MINUTE, SECOND, Validator, boolean, duration, keys, text, whole_seconds, word,
};
use crate::guard::{OnInvalidate, Policy};
use crate::kinds::{Copied, Kind};
use crate::proxy::{MetaWinner, explicit_tags};
use crate::rule::{Pattern, Rules, Share, Template};
use crate::upstream::PoolSpec;

const MAX: usize = 10_000;
const TAGS_MAX: usize = 16;
/// The largest `near`: what other sidecars invalidate is served for this long.
const NEAR_MAX: Duration = Duration::from_secs(10);

/// Validates the rules. `specs`: the pools, if they are valid; `tags` is needed for warnings only.
pub(super) fn rules(
    v: &mut Validator<'_>,
    section: Section<Vec<Section<file::Rule>>>,
    pools: &[String],
    specs: Option<&[PoolSpec]>,
    tags: Option<&Tags>,
) -> Option<Vec<Rule>> {
    let top = KeyPath::top();
    let sections = match section {
        Section::Absent => Vec::new(),
        Section::Present(rules) => rules,
        Section::Wrong(value) => {
            v.error(&top, "rules", Some(&value), "must be a list of tables: write [[rules]] before each");
            return None;
        }
    };
    if sections.len() > MAX {
        v.error(&top, "rules", None, format_args!("must be at most {MAX}, not {}", sections.len()));
        return None;
    }
    let mut names: HashMap<String, usize> = HashMap::new();
    let mut rules = Vec::new();
    for (i, section) in sections.into_iter().enumerate() {
        let path = format!("rules[{i}]");
        let rule = match section {
            Section::Present(table) => rule(v, path, table, (pools, specs), &mut names, i),
            Section::Absent => None,
            Section::Wrong(value) => {
                v.error(&top, &path, Some(&value), "must be a table: write [[rules]] and its keys below");
                None
            }
        };
        rules.push(rule);
    }
    let rules: Vec<Rule> = rules.into_iter().collect::<Option<_>>()?;
    unreachable_rules(v, &rules, tags);
    Some(rules)
}

fn rule(
    v: &mut Validator<'_>,
    path: String,
    table: file::Rule,
    (pools, specs): (&[String], Option<&[PoolSpec]>),
    names: &mut HashMap<String, usize>,
    i: usize,
) -> Option<Rule> {
    let title = [&table.name, &table.pattern].into_iter().flatten().find_map(|value| text(value).ok());
    let at = KeyPath::titled(path, title.unwrap_or("without a name"));
    v.unknown(&at, &table.rest, keys(file::Rule::KEYS));
    let name = required(v, &at, "name", &table.name, "metrics show it, add name = \"pages\"", units::name);
    if let Some(name) = &name {
        if let Some(j) = names.get(name) {
            let message = format!("is already the name of rules[{j}]: names must be unique");
            v.error(&at, "name", table.name.as_ref(), message);
        } else {
            names.insert(name.clone(), i);
        }
    }
    let parse = |s: &str| Pattern::parse(s).map_err(|e| format!("is not a valid pattern: {e}"));
    let pattern = required(v, &at, "match", &table.pattern, "add match = \"page:*\"", parse);
    let pool = pool_index(v, &at, &table.pool, pools);
    let spec = pool.and_then(|pool| specs?.get(pool));
    let kind_word = v.value(&at, "kind", &table.kind, KindWord::Guarded, word(&kinds::WORDS));
    let applicable = kind_word.is_none_or(|kind| kinds::reject_others(v, &at, &table, kind));
    let kind = match kind_word.unwrap_or(KindWord::Guarded) {
        KindWord::Raw => kinds::copies(v, &at, &table, spec).map(|copies| match copies {
            true => RuleKind::Structure(Kind::Copied(Copied { of: None })),
            false => RuleKind::Raw,
        }),
        KindWord::Observe => Some(RuleKind::Observed),
        KindWord::Structure(kind) => kinds::structure(v, &at, &table, kind, spec).map(RuleKind::Structure),
        KindWord::Guarded => {
            let tags = tags(v, &at, "tags", &table.tags, pattern.as_ref());
            let policy = policy(v, &at, &table);
            let tags_in_key = v.value(&at, "tags_in_key", &table.tags_in_key, false, boolean);
            let winner = word(&[("miss", MetaWinner::Miss), ("stale", MetaWinner::Stale)]);
            let meta_winner = v.value(&at, "meta_winner", &table.meta_winner, MetaWinner::Miss, winner);
            (|| {
                Some(RuleKind::Guarded {
                    policy: policy?,
                    tags: tags?,
                    tags_in_key: tags_in_key?,
                    meta_winner: meta_winner?,
                })
            })()
        }
    };
    let invalidates = tags(v, &at, "invalidates", &table.invalidates, pattern.as_ref());
    let share = v.value(&at, "share", &table.share, None, |value| {
        let share = Share::parse(text(value)?).map(Some);
        share
            .ok_or_else(|| "must be a number of percent from \"0%\" to \"100%\": \"5%\", \"0.5%\"".to_owned())
    });
    kind_word?;
    let (invalidates, kind, share) = (invalidates?, kind.filter(|_| applicable)?, share?);
    if let (Some(_), RuleKind::Guarded { tags, tags_in_key, .. }) = (share, &kind)
        && (*tags_in_key || !tags.is_empty())
    {
        let message = "must not be set in a rule with tags: a bump does not invalidate the keys that are not guarded. Remove tags \
                       and tags_in_key, or share";
        v.error(&at, "share", table.share.as_ref(), message);
        return None;
    }
    if let RuleKind::Guarded { tags, .. } = &kind {
        let before = v.errors.len();
        for (at_list, _) in invalidates.iter().enumerate().filter(|(_, tag)| tags.contains(tag)) {
            let message = "is also one of the rule's tags: every stored value would be stale at once";
            v.error(&at, &format!("invalidates[{at_list}]"), None, message);
        }
        if v.errors.len() > before {
            return None;
        }
    }
    if let RuleKind::Guarded { policy, tags, tags_in_key, meta_winner } = &kind {
        warn_without_effect(v, &at, policy, *tags_in_key || !tags.is_empty());
        let never_stale = policy.stale_for.is_zero() && policy.on_tag == OnInvalidate::Drop;
        if *meta_winner == MetaWinner::Stale && never_stale && policy.early_beta == 0.0 {
            v.warn(&at, "meta_winner has no effect with stale_for = \"0s\" and on_tag = \"drop\": there is no old value to return");
        }
    }
    Some(Rule { name: name?, pattern: pattern?, pool: pool?, kind, share, invalidates })
}

/// Warns about settings without an effect. `on_tag = "stale"` has one even if `stale_for` is 0: after a bump, the value may be
/// served until its expiry.
fn warn_without_effect(v: &mut Validator<'_>, at: &KeyPath, policy: &Policy, tagged: bool) {
    if policy.stale_for.is_zero() {
        if policy.stale_before_expiry {
            v.warn(at, "stale_before_expiry has no effect with stale_for = \"0s\": no value is stale before its expiry");
        }
        if policy.on_delete == OnInvalidate::Stale {
            v.warn(at, "on_delete = \"stale\" has no effect with stale_for = \"0s\": a deleted value is never served");
        }
        if !policy.stale_wait.is_zero() && policy.on_tag == OnInvalidate::Drop {
            v.warn(
                at,
                "stale_wait has no effect with stale_for = \"0s\" and on_tag = \"drop\": no stale value is served",
            );
        } else if !policy.stale_wait.is_zero() && !tagged {
            v.warn(
                at,
                "stale_wait has no effect with stale_for = \"0s\" and no tags, except for values that meta clients tag",
            );
        }
    }
    // A TTL of n ends after (n−1, n] seconds, and a value that may have expired is not kept.
    if !policy.near.is_zero() && policy.max_ttl == SECOND {
        v.warn(at, "near has no effect with max_ttl = \"1s\": a value may expire at any moment");
    }
}

fn required<T>(
    v: &mut Validator<'_>,
    at: &KeyPath,
    key: &str,
    value: &Option<Value>,
    hint: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Option<T> {
    if value.is_none() {
        v.error(at, key, None, format_args!("is missing: {hint}"));
        return None;
    }
    v.value(at, key, value, None, |value| parse(text(value)?).map(Some))?
}

fn tags(
    v: &mut Validator<'_>,
    at: &KeyPath,
    list: &str,
    value: &Option<Value>,
    pattern: Option<&Pattern>,
) -> Option<Vec<Template>> {
    let before = v.errors.len();
    let tags = v.entries(at, list, value, Vec::new(), |v, key, value| {
        let template = |value: &Value| match pattern {
            Some(pattern) => Template::parse(text(value)?, pattern)
                .map(Some)
                .map_err(|e| format!("is not a valid tag: {e}")),
            None => text(value).map(|_| None), // the pattern has an error, so its captures are unknown
        };
        v.value(at, &key, &Some(value.clone()), None, template)?
    })?;
    for (i, tag) in tags.iter().enumerate().filter(|(_, tag)| tag.is_some()) {
        if let Some(j) = tags[..i].iter().position(|t| t == tag) {
            v.error(
                at,
                &format!("{list}[{i}]"),
                None,
                format_args!("is the same as {list}[{j}]: remove one"),
            );
        }
    }
    if tags.len() > TAGS_MAX {
        v.error(at, list, None, format_args!("must contain at most {TAGS_MAX} tags, not {}", tags.len()));
    }
    let tags = tags.into_iter().collect::<Option<Vec<Template>>>();
    tags.filter(|_| v.errors.len() == before)
}

fn policy(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule) -> Option<Policy> {
    let d = Policy::default();
    let zero = Duration::ZERO;
    let on_tag = [("stale", OnInvalidate::Stale), ("drop", OnInvalidate::Drop)];
    let on_delete = [("drop", OnInvalidate::Drop), ("stale", OnInvalidate::Stale)];
    let preset = v.value(at, "preset", &table.preset, None, word(&PRESETS));
    let stale_for = v.value(at, "stale_for", &table.stale_for, d.stale_for, whole_seconds(zero..=30 * DAY));
    let stale_before_expiry =
        v.value(at, "stale_before_expiry", &table.stale_before_expiry, preset.flatten().is_some(), boolean);
    let lock_ttl = v.value(at, "lock_ttl", &table.lock_ttl, d.lock_ttl, whole_seconds(SECOND..=HOUR));
    let max_rebuild = v.value(at, "max_rebuild", &table.max_rebuild, d.max_rebuild, duration(zero..=DAY));
    let stale_wait = v.value(at, "stale_wait", &table.stale_wait, d.stale_wait, duration(zero..=MINUTE));
    let cold_wait = v.value(at, "cold_wait", &table.cold_wait, d.cold_wait, duration(zero..=MINUTE));
    let limit_default = d.cold_limit.max(cold_wait.unwrap_or_default());
    let cold_limit = v.value(at, "cold_limit", &table.cold_limit, limit_default, duration(zero..=5 * MINUTE));
    let outage_ttl = v.value(at, "outage_ttl", &table.outage_ttl, d.outage_ttl, duration(zero..=MINUTE));
    let on_tag = v.value(at, "on_tag", &table.on_tag, d.on_tag, word(&on_tag));
    let on_delete = v.value(at, "on_delete", &table.on_delete, d.on_delete, word(&on_delete));
    let early_beta = v.value(at, "early_beta", &table.early_beta, d.early_beta, beta);
    let max_ttl = v.value(at, "max_ttl", &table.max_ttl, d.max_ttl, whole_seconds(zero..=3650 * DAY));
    let near = v.value(at, "near", &table.near, d.near, duration(zero..=NEAR_MAX));
    // Checked even if other keys have errors.
    let before = v.errors.len();
    if let (Some(limit), Some(wait)) = (cold_limit, cold_wait)
        && limit < wait
    {
        let message = format!("must be at least cold_wait ({:?})", show_duration(wait));
        v.error(at, "cold_limit", table.cold_limit.as_ref(), message);
    }
    if let (Some(ttl), Some(most)) = (lock_ttl, max_rebuild)
        && ttl >= most
    {
        let other = match &table.max_rebuild {
            Some(_) => format!("{:?}", show_duration(most)),
            None => format!("{:?}, the default", show_duration(most)),
        };
        let (key, value, message) = match &table.lock_ttl {
            Some(_) => ("lock_ttl", &table.lock_ttl, format!("must be below max_rebuild ({other})")),
            None => {
                let message = format!("must be above lock_ttl ({:?}, the default)", show_duration(ttl));
                ("max_rebuild", &table.max_rebuild, message)
            }
        };
        v.error(at, key, value.as_ref(), message);
    }
    if preset == Some(Some(Preset::Dogpile)) && max_ttl == Some(zero) {
        let message = "preset = \"dogpile\" has no effect on values that dogpile.cache stores without memcached_expire_time: set \
                       max_ttl to its expiration_time";
        v.warn(at, message);
    }
    let policy = Policy {
        stale_for: stale_for?,
        stale_before_expiry: stale_before_expiry?,
        lock_ttl: lock_ttl?,
        max_rebuild: max_rebuild?,
        stale_wait: stale_wait?,
        cold_wait: cold_wait?,
        cold_limit: cold_limit?,
        outage_ttl: outage_ttl?,
        on_tag: on_tag?,
        on_delete: on_delete?,
        early_beta: early_beta?,
        max_ttl: max_ttl?,
        near: near?,
        plan: d.plan,
    };
    Some(policy).filter(|_| v.errors.len() == before)
}

/// A library that keeps an expiry of its own inside its values, and builds what has expired by it whatever it is served.
#[derive(Clone, Copy, PartialEq)]
enum Preset {
    Dogpile,
    Rails,
    Symfony,
}

/// The words for them. Each sets `stale_before_expiry`.
const PRESETS: [(&str, Option<Preset>); 4] = [
    ("none", None),
    ("dogpile", Some(Preset::Dogpile)),
    ("rails", Some(Preset::Rails)),
    ("symfony", Some(Preset::Symfony)),
];

fn beta(value: &Value) -> Result<f64, String> {
    match value.kind {
        ValueKind::Float(x) if (0.0..=100.0).contains(&x) => Ok(x),
        ValueKind::I64(n @ 0..=100) => Ok(n as f64),
        _ => Err("must be a number from 0.0 to 100.0".to_owned()),
    }
}

/// Warns about rules that never match a key because an earlier rule or the prefix of tags does.
fn unreachable_rules(v: &mut Validator<'_>, rules: &[Rule], tags: Option<&Tags>) {
    let table = Rules::new(rules.iter().map(|rule| rule.pattern.clone()).collect());
    for (later, earlier) in table.shadowed() {
        let (a, b) = (&rules[earlier], &rules[later]);
        v.warnings.push(format!(
            "rules[{later}] {:?} never applies: rules[{earlier}] {:?} matches all its keys first",
            b.name, a.name
        ));
    }
    for (i, rule) in rules.iter().enumerate() {
        let prefix = tags.map_or(&[][..], |tags| &tags.prefix);
        let both = explicit_tags::PREFIX.starts_with(prefix) && !prefix.is_empty();
        if both && matches!(rule.kind, RuleKind::Guarded { tags_in_key: true, .. }) {
            v.warnings.push(format!(
                "rules[{i}] {:?}: tags_in_key has no effect: a key that begins with tags.prefix is a tag",
                rule.name
            ));
        }
        if tags.is_some_and(|tags| rule.pattern.prefix().starts_with(&tags.prefix)) {
            v.warnings.push(format!(
                "rules[{i}] {:?} never applies: a key that begins with tags.prefix is a tag",
                rule.name
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn warnings(keys: &str) -> Vec<String> {
        let pool = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";
        let text = format!("{pool}[[rules]]\nname = \"user\"\nmatch = \"user:*\"\n{keys}");
        Config::read("k.toml", &text, []).unwrap().warnings
    }

    #[test]
    fn a_rule_and_a_list_report_all_their_errors() {
        let errors = |text: &str| Config::read("k.toml", text, []).unwrap_err().to_string();
        let rule = |keys: &str| {
            format!("[pools.main]\nservers = [\"a:1\"]\n[[rules]]\nname = \"r\"\nmatch = \"x:{{a}}\"\n{keys}")
        };
        let pool = |keys: &str| format!("[pools.main]\n{keys}");
        for (text, expected) in [
            (
                rule("stale_for = \"x\"\ncold_wait = \"5s\"\ncold_limit = \"1s\"\nlock_ttl = \"90s\""),
                &["stale_for", "cold_limit", "lock_ttl"][..],
            ),
            (rule("kind = \"x\"\ninvalidates = [\"{b}\"]"), &["kind", "invalidates[0]"]),
            (rule("tags = [\"{b}\", \"t\", \"t\", \"u\", \"u\"]"), &["tags[0]", "tags[2]", "tags[4]"]),
            (
                rule("tags = [\"t\", \"u\"]\ninvalidates = [\"t\", \"u\"]"),
                &["invalidates[0]", "invalidates[1]"],
            ),
            (pool("servers = [\"bad\", \"a:1\", \"a:1\"]"), &["servers[0]", "servers[2]"]),
            (pool("servers = [\"a:1\"]\ntake_over = true\nkeyspace = \"\""), &["take_over", "keyspace"]),
            (pool("servers = [\"a:1\"]\n[log]\nlevel = \"warning\"\nslow = \"x\""), &["level", "slow"]),
        ] {
            let found = errors(&text);
            assert!(expected.iter().all(|key| found.contains(&format!("{key} "))), "{expected:?} in {found}");
            assert_eq!(found.lines().count(), expected.len(), "{found}");
        }
    }

    #[test]
    fn a_setting_without_effect_is_a_warning() {
        for (keys, warning) in [
            (
                "stale_for = \"0s\"\nstale_before_expiry = true",
                "stale_before_expiry has no effect with stale_for = \"0s\": no value is stale before its expiry",
            ),
            (
                "preset = \"dogpile\"",
                "preset = \"dogpile\" has no effect on values that dogpile.cache stores without memcached_expire_time: set max_ttl to its \
                 expiration_time",
            ),
            (
                "stale_for = \"0s\"\non_delete = \"stale\"",
                "on_delete = \"stale\" has no effect with stale_for = \"0s\": a deleted value is never served",
            ),
            (
                "stale_for = \"0s\"\nstale_wait = \"2s\"\ntags = [\"t\"]\non_tag = \"drop\"",
                "stale_wait has no effect with stale_for = \"0s\" and on_tag = \"drop\": no stale value is served",
            ),
            (
                "stale_for = \"0s\"\nstale_wait = \"2s\"",
                "stale_wait has no effect with stale_for = \"0s\" and no tags, except for values that meta clients tag",
            ),
            (
                "stale_for = \"0s\"\non_tag = \"drop\"\nmeta_winner = \"stale\"",
                "meta_winner has no effect with stale_for = \"0s\" and on_tag = \"drop\": there is no old value to return",
            ),
            (
                "max_ttl = \"1s\"\nnear = \"1ms\"",
                "near has no effect with max_ttl = \"1s\": a value may expire at any moment",
            ),
        ] {
            assert_eq!(warnings(keys), [format!("rules[0] \"user\": {warning}")], "{keys}");
        }
    }

    #[test]
    fn a_share_is_of_a_guarded_rule_without_tags() {
        let read = |keys: &str| {
            let pool = "[pools.main]\nservers = [\"10.0.0.1:11211\"]\n";
            let text = format!("{pool}[[rules]]\nname = \"user\"\nmatch = \"user:{{user}}\"\n{keys}");
            let config = Config::read("k.toml", &text, []).map_err(|errors| errors.to_string())?;
            assert_eq!(config.warnings, [] as [String; 0]);
            Ok::<_, String>(config.rules[0].share.map(|share| share.to_string()))
        };
        assert_eq!(read("share = \"5%\""), Ok(Some("5%".to_owned())));
        assert_eq!(read("share = \"100%\"\ninvalidates = [\"user:{user}\"]"), Ok(Some("100%".to_owned())));
        assert_eq!(read(""), Ok(None));
        for (keys, expected) in [
            (
                "share = \"5%\"\ntags = [\"user:{user}\"]",
                "share (\"5%\") must not be set in a rule with tags",
            ),
            ("share = \"5%\"\ntags_in_key = true", "share (\"5%\") must not be set in a rule with tags"),
            (
                "share = \"5%\"\nkind = \"raw\"",
                "share (\"5%\") has no effect in a raw rule: remove it, or set kind = \"guarded\"",
            ),
            ("share = \"5%\"\nkind = \"observe\"", "share (\"5%\") has no effect in an observe rule"),
            ("share = \"5\"", "share (\"5\") must be a number of percent"),
            ("share = 5", "share (5) must be"),
            ("share = \"101%\"", "share (\"101%\") must be a number of percent"),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_setting_with_an_effect_is_no_warning() {
        for keys in [
            "stale_for = \"0s\"",
            "stale_for = \"1s\"\non_delete = \"stale\"\nstale_wait = \"2s\"",
            // A bumped tag leaves the old value until its own expiry.
            "stale_for = \"0s\"\non_tag = \"stale\"\nstale_wait = \"2s\"\ntags = [\"t\"]",
            "stale_for = \"0s\"\non_tag = \"stale\"\nstale_wait = \"2s\"\ntags_in_key = true",
            // Kept until a second before its expiry.
            "max_ttl = \"2s\"\nnear = \"10s\"",
            "max_ttl = \"1s\"",
            "stale_for = \"0s\"\non_tag = \"drop\"\nmeta_winner = \"stale\"\nearly_beta = 1.0",
            "meta_winner = \"stale\"",
            "preset = \"rails\"",
            "preset = \"symfony\"",
            "preset = \"dogpile\"\nmax_ttl = \"60s\"",
        ] {
            assert_eq!(warnings(keys), [] as [String; 0], "{keys}");
        }
    }
}
