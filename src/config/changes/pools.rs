//! What changes in the pools.

use super::super::settings::{Config, Rule, RuleKind};
use super::{Change, Effect};
use crate::config::LEAST_SERVERS;
use crate::monitor::step;
use crate::upstream::{Address, HashedPart, OtherKind, OtherPlacement, PoolSpec, Scheme, ServerSpec};

/// The keys of a pool that are explained here.
const EXPLAINED: [&str; 15] = [
    "servers",
    "next",
    "previous",
    "take_over",
    "distribution",
    "hash",
    "hash_tag",
    "unhashed_prefixes",
    "other_distribution",
    "other_hash",
    "other_hash_tag",
    "other_unhashed_prefixes",
    "failover",
    "tls",
    "auth",
];

/// Whether the change of this key is explained here.
pub(super) fn is_explained(key: &str) -> bool {
    let of_pool = key.strip_prefix("pools.");
    of_pool.is_some_and(|key| {
        let mut parts = key.split(['.', '[']).skip(1);
        parts.any(|part| EXPLAINED.contains(&part))
    }) || ["tags.prefix", "tags.pool"].contains(&key)
}

pub(super) fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let mut all = Vec::new();
    for (at, before) in old.pools.iter().enumerate() {
        match new.pools.iter().find(|after| after.name == before.name) {
            Some(after) => all.extend(changed(before, after)),
            None => all.push(gone(old, at)),
        }
    }
    let is_new = |after: &&PoolSpec| !old.pools.iter().any(|before| before.name == after.name);
    let added = new.pools.iter().filter(is_new);
    all.extend(added.map(|pool| Change::new(Effect::Harmless, format!("pool {:?} is new", pool.name))));
    all
}

fn gone(old: &Config, at: usize) -> Change {
    let name = &old.pools[at].name;
    let of_pool: Vec<&Rule> = old.rules.iter().filter(|rule| rule.pool == at).collect();
    let names =
        |rules: &[&Rule]| rules.iter().map(|rule| format!("{:?}", rule.name)).collect::<Vec<_>>().join(", ");
    let is_copied = |rule: &&Rule| matches!(&rule.kind, RuleKind::Structure(kind) if kind.is_copied());
    let copied: Vec<&Rule> = of_pool.iter().copied().filter(is_copied).collect();
    if !copied.is_empty() {
        let text = format!(
            "pool {name:?} goes, and the rules {} have both copies of their keys there: clients find none of these keys afterwards",
            names(&copied)
        );
        let remedy = "to do it without a loss: copy what the rules hold under other keys in another pool first, or wait until it has \
                      expired; then remove the rules, and in a further reload the pool";
        return Change::loses(text, vec![remedy.to_owned()]);
    }
    match &of_pool[..] {
        [] => Change::new(Effect::Harmless, format!("pool {name:?} goes; no rule uses it")),
        rules => Change::new(
            Effect::BuildsAgain,
            format!(
                "pool {name:?} goes: the keys of the rules {} are built once more where they go",
                names(rules)
            ),
        ),
    }
}

fn changed(old: &PoolSpec, new: &PoolSpec) -> Vec<Change> {
    let name = &old.name;
    let mut all = Vec::new();
    all.extend(placement(old, new));
    if old.failover.is_some() != new.failover.is_some() {
        let text = if new.failover.is_some() {
            format!(
                "pool {name:?} fails over: each value is built once more, and the old one is served meanwhile"
            )
        } else {
            format!(
                "pool {name:?} no longer fails over: the keys of a dead server are misses until it is back"
            )
        };
        all.push(Change::new(Effect::BuildsAgain, text));
    } else if old.failover != new.failover {
        all.push(Change::new(Effect::Harmless, format!("pool {name:?}: when it fails over changes")));
    }
    if old.security != new.security {
        let text = format!(
            "pool {name:?}: all connections to its servers are made anew; what clients are building meanwhile is built once more"
        );
        all.push(Change::new(Effect::BuildsAgain, text));
    }
    all
}

fn placement(old: &PoolSpec, new: &PoolSpec) -> Option<Change> {
    let (name, before, after) = (&old.name, step(old), step(new));
    let is_embedded = |server: &ServerSpec| matches!(server.address, Address::Embedded { .. });
    if old.scheme != new.scheme && !before.is_adjacent(&after) {
        let text = format!(
            "pool {name:?}: keys are spread by {} instead of {}: almost every key moves at once, and what is invalidated through a \
             sidecar with the one is served by those with the other; almost every key is built once more",
            new.scheme, old.scheme
        );
        let remedy = match old.servers.iter().chain(&new.servers).any(is_embedded) {
            true => vec![
                "to do it all the same: kennel reload --force, which loses what no sidecar but this one has"
                    .to_owned(),
            ],
            false => steps(old, new),
        };
        return Some(Change::loses(text, remedy));
    }
    // One of another size is another one, although the placement is the same.
    if old.servers != new.servers && old.servers.iter().all(is_embedded) {
        let text = format!(
            "pool {name:?}: its embedded servers go with all that they hold: every key of the pool is built once more"
        );
        return Some(Change::new(Effect::BuildsAgain, text));
    }
    if before == after {
        let moved = |server: &&ServerSpec| {
            let same = old.servers.iter().find(|former| former.name == server.name);
            server.name.is_some() && same.is_some_and(|former| former.address != server.address)
        };
        let moved: Vec<_> = new.servers.iter().filter(moved).map(ServerSpec::label).collect();
        let text = format!(
            "pool {name:?}: the servers {} keep their names at other addresses: what the processes there do not have is built once more",
            moved.join(", ")
        );
        return (!moved.is_empty()).then(|| Change::new(Effect::BuildsAgain, text));
    }
    if before.is_adjacent(&after) {
        let text = format!(
            "pool {name:?} takes the next step of a change of its servers, or goes back one, to {}: take it on all sidecars before the \
             next one",
            written(new)
        );
        return Some(Change::new(Effect::Harmless, text));
    }
    let text = format!(
        "pool {name:?}: its servers change in one step, from {} to {}: keys move, and what was or is invalidated through a sidecar with \
         the one list is served by those with the other; each key that moves is a miss and built once more",
        written(old),
        written(new)
    );
    Some(Change::loses(text, steps(old, new)))
}

/// The list of servers, and the other placement of a change.
fn written(pool: &PoolSpec) -> String {
    let own = format!("servers = {}", list(&pool.servers));
    let Some(OtherPlacement { servers, scheme, kind }) = &pool.other else { return own };
    let take_over =
        if *kind == (OtherKind::Previous { take_over: false }) { ", take_over = false" } else { "" };
    let (own_keys, other_keys) = match *scheme == pool.scheme {
        true => (String::new(), String::new()),
        false => (format!(", {}", keys("", &pool.scheme)), format!(", {}", keys("other_", scheme))),
    };
    format!("{own}{own_keys}, {} = {}{other_keys}{take_over}", kind.key(), list(servers))
}

/// The keys of a scheme as in a configuration, each of which begins with this.
fn keys(prefix: &str, Scheme { distribution, hash, part }: &Scheme) -> String {
    let part = match part {
        HashedPart::Whole => String::new(),
        HashedPart::Between(tag) => format!(", {prefix}hash_tag = {:?}", String::from_utf8_lossy(tag)),
        HashedPart::After(all) => {
            let all: Vec<_> = all.iter().map(|one| format!("{:?}", String::from_utf8_lossy(one))).collect();
            format!(", {prefix}unhashed_prefixes = [{}]", all.join(", "))
        }
    };
    format!("{prefix}distribution = {:?}, {prefix}hash = {:?}{part}", distribution.name(), hash.name())
}

/// A list as in a configuration.
fn list(servers: &[ServerSpec]) -> String {
    let one = |server: &ServerSpec| {
        let address = server.address.to_string();
        let name = server.name.as_ref().map(|name| format!(", name = {name:?}")).unwrap_or_default();
        let weight = if server.weight == 1 { String::new() } else { format!(", weight = {}", server.weight) };
        match name.is_empty() && weight.is_empty() {
            true => format!("{address:?}"),
            false => format!("{{ address = {address:?}{name}{weight} }}"),
        }
    };
    format!("[{}]", servers.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The reloads that do it without a loss.
fn steps(old: &PoolSpec, new: &PoolSpec) -> Vec<String> {
    let mut lines = Vec::new();
    let plain = |pool: &PoolSpec| PoolSpec { other: None, ..pool.clone() };
    // A change that has begun is ended first.
    let (from, to, done) = match (&old.other, old.other_pool()) {
        (Some(other), Some(with)) => match other.kind {
            OtherKind::Next => (plain(old), with, 1),
            OtherKind::Previous { take_over: true } => (with, plain(old), 2),
            OtherKind::Previous { take_over: false } => (with, plain(old), 3),
        },
        _ => (plain(old), plain(new), 0),
    };
    lines.push(match done {
        0 => format!(
            "to do it without a loss, three reloads and then the {} alone; in [pools.{}], each on all sidecars before the next \
             (docs/operations.md):",
            if from.scheme == to.scheme { "list" } else { "new one" },
            old.name
        ),
        done => format!("a change of its servers is under way, in step {done}: end it first:"),
    });
    let with = |pool: &PoolSpec, other: &PoolSpec, kind| {
        let (servers, scheme) = (other.servers.clone(), other.scheme.clone());
        written(&PoolSpec { other: Some(OtherPlacement { servers, scheme, kind }), ..pool.clone() })
    };
    let end = match from.scheme == to.scheme {
        true => written(&to),
        false => format!("{}, {}", written(&to), keys("", &to.scheme)),
    };
    let steps = [
        with(&from, &to, OtherKind::Next),
        with(&to, &from, OtherKind::Previous { take_over: true }),
        with(&to, &from, OtherKind::Previous { take_over: false }),
        end,
    ];
    let remaining = steps.iter().enumerate().skip(done);
    lines.extend(remaining.map(|(at, step)| format!("  {}. {step}    then: kennel reload", at + 1)));
    if (old.servers.len() < LEAST_SERVERS) != (new.servers.len() < LEAST_SERVERS) {
        lines.push(format!(
            "  with failover = false in all of them: fewer than {LEAST_SERVERS} servers cannot fail over"
        ));
    }
    lines
}
