//! What changes in the rules. A rule is the same if it has the same name, or else the same pattern.

use super::super::load::Loaded;
use super::super::settings::{Config, Rule, RuleKind};
use super::{Change, Effect};
use crate::rule::Template;

/// Settings whose changes are explained below.
const EXPLAINED: [&str; 6] = ["name", "match", "kind", "pool", "tags", "tags_in_key"];
/// What clients notice of others.
const NOTICED: [(&str, &str); 15] = [
    (
        "stale_before_expiry",
        "whether a value is stale before or after its exptime; values stored before keep theirs",
    ),
    ("stale_for", "how long after its expiry a value is still served; values stored before keep theirs"),
    ("max_ttl", "how long values are fresh at most; values stored before keep theirs"),
    ("stale_wait", "how long readers wait for the fresh value before they are served the stale one"),
    ("cold_wait", "how long readers without a value wait for the client that builds it"),
    ("cold_limit", "how long readers without a value wait at most"),
    ("lock_ttl", "how long a key is blocked by a sidecar that has died while its client was building"),
    ("max_rebuild", "how long a client may build before its value is dropped"),
    ("outage_ttl", "how long a value that was built while no server answered is served"),
    ("on_tag", "what readers get after a bump while the value is built"),
    ("on_delete", "what readers get after a delete while the value is built"),
    ("early_beta", "how early one client refreshes a value that is still fresh"),
    ("near", "how long a sidecar serves a hit again without asking, so how late it sees changes of others"),
    ("meta_winner", "what the meta client that must build receives"),
    ("invalidates", "the tags that are bumped when a key changes"),
];

pub(super) fn changes(old: &Loaded, new: &Loaded) -> Vec<Change> {
    let mut all = Vec::new();
    let pairs = pairs(&old.config, &new.config);
    for (at, before) in old.config.rules.iter().enumerate() {
        match pairs.iter().find(|(from, _)| *from == at) {
            Some((_, to)) => all.extend(changed((old, at), (new, *to))),
            None => all.push(gone(before)),
        }
    }
    for (at, after) in new.config.rules.iter().enumerate() {
        if !pairs.iter().any(|(_, to)| *to == at) {
            all.push(added(after, &new.config));
        }
    }
    if !pairs.is_sorted_by_key(|(_, to)| *to) {
        let text =
            "the order of the rules changes: the first one that matches a key applies to it".to_owned();
        all.push(Change::new(Effect::Harmless, text));
    }
    all
}

/// The indexes of the rules that both have.
fn pairs(old: &Config, new: &Config) -> Vec<(usize, usize)> {
    let is_named = |config: &Config, rule: &Rule| config.rules.iter().any(|other| other.name == rule.name);
    let same = |rule: &Rule| {
        let by_name = new.rules.iter().position(|other| other.name == rule.name);
        by_name.or_else(|| {
            new.rules.iter().position(|other| other.pattern == rule.pattern && !is_named(old, other))
        })
    };
    old.rules.iter().enumerate().filter_map(|(at, rule)| Some((at, same(rule)?))).collect()
}

/// `guarded`, or `list with copies = 2`.
fn kind(rule: &Rule) -> String {
    match &rule.kind {
        RuleKind::Structure(kind) if kind.is_copied() => format!("{} with copies = 2", kind.word()),
        kind => kind.word().to_owned(),
    }
}

fn gone(rule: &Rule) -> Change {
    let Rule { name, pattern, .. } = rule;
    let text = format!("rule {name:?} (match = {:?}) goes", pattern.text());
    match &rule.kind {
        RuleKind::Guarded { .. } => Change::new(
            Effect::BuildsAgain,
            format!(
                "{text}: its keys are treated as the next rule that matches says, or raw; raw keys have no tags, nobody waits for \
                 the client that builds, and an expired value is built by everyone who misses it"
            ),
        ),
        RuleKind::Raw | RuleKind::Observed => Change::new(Effect::Harmless, text),
        RuleKind::Structure(_) => Change::new(
            Effect::BuildsAgain,
            format!("{text}: what its {} hold is no longer found under their keys", kind(rule)),
        ),
    }
}

fn added(rule: &Rule, config: &Config) -> Change {
    let Rule { name, pattern, .. } = rule;
    let text = format!("rule {name:?} (match = {:?}, kind = {}) is new", pattern.text(), kind(rule));
    match rule.kind {
        RuleKind::Guarded { .. } => becomes_guarded(&text, rule, config),
        RuleKind::Raw | RuleKind::Observed => Change::new(Effect::Harmless, text),
        RuleKind::Structure(_) => Change::new(
            Effect::Harmless,
            format!("{text}: its keys have the commands of that kind from now on"),
        ),
    }
}

fn becomes_guarded(text: &str, rule: &Rule, config: &Config) -> Change {
    match config.pools[rule.pool].failover {
        Some(_) => Change::new(
            Effect::BuildsAgain,
            format!(
                "{text}: each value that was stored raw is stale, so it is built once more, and served meanwhile"
            ),
        ),
        None => Change::new(
            Effect::Harmless,
            format!(
                "{text}: values that were stored raw are hits until they expire, without stale phase and tags"
            ),
        ),
    }
}

fn changed((old, from): (&Loaded, usize), (new, to): (&Loaded, usize)) -> Vec<Change> {
    let (before, after) = (&old.config.rules[from], &new.config.rules[to]);
    let mut all = Vec::new();
    let title = format!("rule {:?}", after.name);
    if before.name != after.name {
        let text = format!("rule {:?} is called {:?} from now on, in metrics too", before.name, after.name);
        all.push(Change::new(Effect::Harmless, text));
    }
    if before.pattern != after.pattern {
        let text = format!(
            "{title}: match {:?} → {:?}: keys that match only one of the two are under other rules",
            before.pattern.text(),
            after.pattern.text()
        );
        all.push(Change::new(Effect::Harmless, text));
    }
    let pool = |config: &Config, rule: &Rule| config.pools[rule.pool].name.clone();
    let (from_pool, to_pool) = (pool(&old.config, before), pool(&new.config, after));
    if from_pool != to_pool && new.config.pools.iter().any(|pool| pool.name == from_pool) {
        let text = format!(
            "{title}: pool {from_pool:?} → {to_pool:?}: all its keys move at once, and what is invalidated through a sidecar with the \
             one pool is served by those with the other; each key is built once more"
        );
        let remedy =
            "to do it without a loss: have the application use other keys, with a rule for the new pool";
        all.push(Change::loses(text, vec![remedy.to_owned()]));
    }
    all.extend(kinds(&title, before, after, &new.config));
    let is_explained = |key: &str| EXPLAINED.contains(&key) || key.starts_with("tags[");
    for (key, line) in old.key_values.changes_of_rules((from, &new.key_values, to), is_explained) {
        let noticed =
            NOTICED.iter().find(|(setting, _)| *setting == key).map(|(_, what)| format!(" ({what})"));
        all.push(Change::new(Effect::Harmless, format!("{title}: {line}{}", noticed.unwrap_or_default())));
    }
    all
}

/// What changes between the kinds of a rule.
fn kinds(title: &str, before: &Rule, after: &Rule, config: &Config) -> Vec<Change> {
    let words = format!("{title}: kind {} → {}", kind(before), kind(after));
    match (&before.kind, &after.kind) {
        (
            RuleKind::Guarded { tags: old, tags_in_key: had, .. },
            RuleKind::Guarded { tags: new, tags_in_key: has, .. },
        ) => {
            tags(title, (old, new)).into_iter().chain((*had && !has).then(|| no_tags_in_key(title))).collect()
        }
        (RuleKind::Raw | RuleKind::Observed, RuleKind::Raw | RuleKind::Observed) => {
            let text = format!("{words}: requests are forwarded as before, and only what is counted changes");
            let is_other = kind(before) != kind(after);
            is_other.then(|| Change::new(Effect::Harmless, text)).into_iter().collect()
        }
        (RuleKind::Guarded { .. }, RuleKind::Raw | RuleKind::Observed) => vec![Change::new(
            Effect::BuildsAgain,
            format!(
                "{words}: its keys have no tags any longer, nobody waits for the client that builds, and an expired value is built by \
                 everyone who misses it"
            ),
        )],
        (_, RuleKind::Guarded { .. }) => vec![becomes_guarded(&words, after, config)],
        _ if kind(before) != kind(after) => vec![Change::new(
            Effect::BuildsAgain,
            format!("{words}: what is stored under the former kind is not found under the other one"),
        )],
        _ => Vec::new(),
    }
}

fn tags(title: &str, (old, new): (&[Template], &[Template])) -> Option<Change> {
    let missing = |from: &[Template], of: &[Template]| -> Vec<String> {
        let missing = from.iter().filter(|tag| !of.contains(tag));
        missing.map(|tag| format!("{:?}", tag.text())).collect()
    };
    let (gone, added) = (missing(old, new), missing(new, old));
    match (&gone[..], &added[..]) {
        ([], []) => None,
        ([..], []) => {
            let stops = if new.is_empty() { " and has none any longer" } else { "" };
            let text = format!(
                "{title} stops having the tags {}{stops}: a bump of them does not reach what is stored from now on, on any sidecar",
                gone.join(", ")
            );
            let remedy = "to do it without a loss: have the application stop bumping these tags, or delete the keys instead; then \
                          kennel reload --force on all sidecars";
            Some(Change::loses(text, vec![remedy.to_owned()]))
        }
        (_, added) => {
            let gone = match &gone[..] {
                [] => String::new(),
                gone => format!(" instead of {}", gone.join(", ")),
            };
            let text = format!(
                "{title} has the tags {}{gone}: values stored before keep the tags that they have; what clients are building is dropped \
                 and built once more",
                added.join(", ")
            );
            Some(Change::new(Effect::BuildsAgain, text))
        }
    }
}

fn no_tags_in_key(title: &str) -> Change {
    let text = format!(
        "{title}: tags_in_key = false: the tags that clients name in a key are part of the key, so a bump of them does not reach what is \
         stored from now on"
    );
    Change::loses(
        text,
        vec!["to do it without a loss: have the application stop naming tags first".to_owned()],
    )
}
