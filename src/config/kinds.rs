//! `kind` of a rule, and the keys that only rules of some kinds have.

use std::time::Duration;

use config::Value;

use super::file;
use super::units::show_duration;
use super::validator::{DAY, KeyPath, SECOND, Validator, boolean, duration, integer, whole_seconds};
use crate::kinds::{Copied, Counter, Kind, List, Lock, Log, Table, Window};
use crate::upstream::PoolSpec;

/// How long a lock outlives its sidecar by default.
const LOCK_TTL: Duration = Duration::from_secs(30);

/// The slots of a window by default, and at most.
const SLOTS: i64 = 10;
const SLOTS_MAX: i64 = 100;
const SLOT_MIN: Duration = Duration::from_millis(100);
const WINDOW_MAX: Duration = Duration::from_secs(2_592_000);
/// The length of a log's slot by default.
const LOG_SLOT: Duration = Duration::from_secs(60);
/// The most slots of a log.
const LOG_SLOTS_MAX: u32 = 100;

/// The value of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KindWord {
    Raw,
    Observe,
    Guarded,
    Structure(Structure),
}

/// The kinds of structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Structure {
    Counter,
    List,
    Lock,
    Log,
    Table,
    Window,
}

use KindWord::{Guarded, Observe, Raw};

/// The words for them.
pub(super) const WORDS: [(&str, KindWord); 9] = [
    ("guarded", Guarded),
    ("raw", Raw),
    ("observe", Observe),
    ("counter", COUNTER),
    ("list", LIST),
    ("lock", LOCK),
    ("log", LOG),
    ("table", TABLE),
    ("window", WINDOW),
];

const COUNTER: KindWord = KindWord::Structure(Structure::Counter);
const LIST: KindWord = KindWord::Structure(Structure::List);
const LOCK: KindWord = KindWord::Structure(Structure::Lock);
const LOG: KindWord = KindWord::Structure(Structure::Log);
const TABLE: KindWord = KindWord::Structure(Structure::Table);
const WINDOW: KindWord = KindWord::Structure(Structure::Window);

/// The keys that not every rule has, each with those that have it.
fn conditional(table: &file::Rule) -> [(&'static str, &Option<Value>, &'static [KindWord]); 26] {
    const GUARDED: &[KindWord] = &[Guarded];
    const STRUCTURES: &[KindWord] = &[COUNTER, LIST, LOCK, TABLE, WINDOW];
    [
        ("share", &table.share, GUARDED),
        ("tags", &table.tags, GUARDED),
        ("tags_in_key", &table.tags_in_key, GUARDED),
        ("preset", &table.preset, GUARDED),
        ("stale_for", &table.stale_for, GUARDED),
        ("stale_before_expiry", &table.stale_before_expiry, GUARDED),
        ("lock_ttl", &table.lock_ttl, GUARDED),
        ("max_rebuild", &table.max_rebuild, GUARDED),
        ("stale_wait", &table.stale_wait, GUARDED),
        ("cold_wait", &table.cold_wait, GUARDED),
        ("cold_limit", &table.cold_limit, GUARDED),
        ("outage_ttl", &table.outage_ttl, GUARDED),
        ("on_tag", &table.on_tag, GUARDED),
        ("on_delete", &table.on_delete, GUARDED),
        ("early_beta", &table.early_beta, GUARDED),
        ("max_ttl", &table.max_ttl, GUARDED),
        ("near", &table.near, GUARDED),
        ("meta_winner", &table.meta_winner, GUARDED),
        ("copies", &table.copies, &[Raw, COUNTER, LIST, LOCK, LOG, TABLE, WINDOW]),
        ("ttl", &table.ttl, STRUCTURES),
        ("fence", &table.fence, &[LOCK]),
        ("window", &table.window, &[LOG, WINDOW]),
        ("slot", &table.slot, &[LOG]),
        ("slots", &table.slots, &[WINDOW]),
        ("smooth", &table.smooth, &[WINDOW]),
        ("unique", &table.unique, &[WINDOW]),
    ]
}

/// Rejects the keys that have no effect in a rule of this kind. Returns whether there is none.
pub(super) fn reject_others(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule, kind: KindWord) -> bool {
    let before = v.errors.len();
    for (key, value, kinds) in conditional(table) {
        if value.is_some() && !kinds.contains(&kind) {
            let others: Vec<_> = kinds.iter().map(|kind| format!("kind = {:?}", word(*kind))).collect();
            let (own, others) = (word(kind), others.join(" or "));
            let article = if own.starts_with('o') { "an" } else { "a" };
            let message = format!("has no effect in {article} {own} rule: remove it, or set {others}");
            v.error(at, key, value.as_ref(), message);
        }
    }
    v.errors.len() == before
}

fn word(kind: KindWord) -> &'static str {
    WORDS.iter().find(|(_, of)| *of == kind).map_or("", |(word, _)| word)
}

/// Whether what a rule in this pool keeps has two copies.
pub(super) fn copies(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Rule,
    pool: Option<&PoolSpec>,
) -> Option<bool> {
    let copies = v.value(at, "copies", &table.copies, 1, integer(1..=2))? == 2;
    if let (true, Some(PoolSpec { name, failover: None, .. })) = (copies, pool) {
        let message = format!(
            "needs a pool that fails over: pool {name:?} needs at least three servers, none of them embedded or found by a \
             name, and failover not to be false"
        );
        v.error(at, "copies", table.copies.as_ref(), message);
        return None;
    }
    Some(copies)
}

/// Validates the settings of a structure.
pub(super) fn structure(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Rule,
    kind: Structure,
    pool: Option<&PoolSpec>,
) -> Option<Kind> {
    let copies = copies(v, at, table, pool);
    // Both have been checked before either is missed.
    let kind = on_one_server(v, at, table, kind)?;
    Some(match copies? {
        true => Kind::Copied(Copied { of: Some(Box::new(kind)) }),
        false => kind,
    })
}

/// The same whether it has copies or not.
fn on_one_server(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule, kind: Structure) -> Option<Kind> {
    match kind {
        Structure::Counter => Some(Kind::Counter(Counter { ttl: lifetime(v, at, table)? })),
        Structure::List => Some(Kind::List(List { ttl: lifetime(v, at, table)? })),
        Structure::Lock => {
            let ttl = v.value(at, "ttl", &table.ttl, LOCK_TTL, whole_seconds(SECOND..=DAY));
            let fence = v.value(at, "fence", &table.fence, false, boolean);
            Some(Kind::Lock(Lock { ttl: ttl?, fence: fence? }))
        }
        Structure::Log => {
            let slot = v.value(at, "slot", &table.slot, LOG_SLOT, duration(SECOND..=DAY));
            let window = window(v, at, table);
            let (window, slot) = (window?, slot?);
            if window < slot || window > slot * LOG_SLOTS_MAX {
                let (from, to) = (show_duration(slot), show_duration(slot * LOG_SLOTS_MAX));
                let message = format!("must be 1 to {LOG_SLOTS_MAX} times slot: {from} to {to}");
                v.error(at, "window", table.window.as_ref(), message);
                return None;
            }
            Some(Kind::Log(Log { window, slot }))
        }
        Structure::Table => Some(Kind::Table(Table { ttl: lifetime(v, at, table)? })),
        Structure::Window => {
            if table.ttl.is_some() {
                v.warn(at, "ttl has no effect in a window rule: each count lives as long as window needs it");
            }
            let slots = v.value(at, "slots", &table.slots, SLOTS, integer(2..=SLOTS_MAX));
            let smooth = v.value(at, "smooth", &table.smooth, false, boolean);
            let unique = v.value(at, "unique", &table.unique, false, boolean);
            let window = window(v, at, table);
            let (window, slots) = (window?, u32::try_from(slots?).ok()?);
            if window < SLOT_MIN * slots {
                let message = format!("must be at least 100ms for each of the {slots} slots");
                v.error(at, "window", table.window.as_ref(), message);
                return None;
            }
            Some(Kind::Window(Window { window, slots, smooth: smooth?, unique: unique? }))
        }
    }
}

/// `window`, which has no default.
fn window(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule) -> Option<Duration> {
    if table.window.is_none() {
        v.error(at, "window", None, "is missing: add window = \"5m\"");
        return None;
    }
    v.value(at, "window", &table.window, WINDOW_MAX, duration(SECOND..=WINDOW_MAX))
}

/// `ttl` of a structure that lives for ever by default.
fn lifetime(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule) -> Option<Duration> {
    v.value(at, "ttl", &table.ttl, Duration::ZERO, whole_seconds(Duration::ZERO..=3650 * DAY))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::WORDS;
    use crate::config::{Config, RuleKind};
    use crate::kinds::Kind;

    fn read(pool: &str, rule: &str) -> Result<RuleKind, String> {
        let text = format!("[pools.main]\n{pool}\n[[rules]]\nname = \"x\"\nmatch = \"x:*\"\n{rule}");
        let config = Config::read("k.toml", &text, []).map_err(|errors| errors.to_string())?;
        Ok(config.rules[0].kind.clone())
    }

    #[test]
    fn a_trace_can_select_by_each_kind() {
        let known: BTreeSet<&str> = WORDS.iter().map(|(word, _)| *word).chain(["none"]).collect();
        assert_eq!(known, BTreeSet::from(crate::trace::KINDS));
    }

    #[test]
    fn two_copies_need_a_pool_that_fails_over() {
        let three = "servers = [\"a:1\", \"b:1\", \"c:1\"]";
        for kind in ["raw", "counter", "list", "lock", "log", "table", "window"] {
            let window = if matches!(kind, "log" | "window") { "window = \"5m\"" } else { "" };
            let rule = format!("kind = {kind:?}\ncopies = 2\n{window}");
            let RuleKind::Structure(of @ Kind::Copied(_)) = read(three, &rule).unwrap() else {
                panic!("{kind} has one copy")
            };
            assert_eq!(of.word(), kind);
            for pool in ["servers = [\"a:1\", \"b:1\"]", &format!("{three}\nfailover = false")] {
                let error = read(pool, &rule).unwrap_err();
                let expected = "copies (2) needs a pool that fails over: pool \"main\" needs at least three servers, none of \
                                them embedded or found by a name, and failover not to be false";
                assert!(error.contains(expected), "{error}");
            }
            assert!(read("servers = [\"a:1\"]", &format!("kind = {kind:?}\ncopies = 1\n{window}")).is_ok());
        }
        let error = read(three, "kind = \"raw\"\ncopies = 3").unwrap_err();
        assert!(error.contains("copies (3) must be"), "{error}");
        let error = read(three, "kind = \"guarded\"\ncopies = 2").unwrap_err();
        let expected = "copies (2) has no effect in a guarded rule: remove it, or set kind = \"raw\" or kind = \"counter\" or";
        assert!(error.contains(expected), "{error}");
    }
}
