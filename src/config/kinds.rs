//! `kind` of a rule, and the keys that only rules of some kinds have.

use std::time::Duration;

use config::Value;

use super::file;
use super::validator::{DAY, KeyPath, Validator, whole_seconds};
use crate::kinds::{Counter, Kind};

/// The value of `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KindWord {
    Raw,
    Guarded,
    Structure(Structure),
}

/// The kinds of structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Structure {
    Counter,
}

use KindWord::{Guarded, Raw};

/// The words for them.
pub(super) const WORDS: [(&str, KindWord); 3] =
    [("guarded", Guarded), ("raw", Raw), ("counter", KindWord::Structure(Structure::Counter))];

/// The keys that not every rule has, each with those that have it.
fn conditional(table: &file::Rule) -> [(&'static str, &Option<Value>, &'static [KindWord]); 16] {
    const GUARDED: &[KindWord] = &[Guarded];
    const STRUCTURES: &[KindWord] = &[KindWord::Structure(Structure::Counter)];
    [
        ("tags", &table.tags, GUARDED),
        ("tags_in_key", &table.tags_in_key, GUARDED),
        ("stale_for", &table.stale_for, GUARDED),
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
        ("ttl", &table.ttl, STRUCTURES),
    ]
}

/// Rejects the keys that have no effect in a rule of this kind. Returns whether there is none.
pub(super) fn reject_others(v: &mut Validator<'_>, at: &KeyPath, table: &file::Rule, kind: KindWord) -> bool {
    let before = v.errors.len();
    for (key, value, kinds) in conditional(table) {
        if value.is_some() && !kinds.contains(&kind) {
            let others: Vec<_> = kinds.iter().map(|kind| format!("kind = {:?}", word(*kind))).collect();
            let (own, others) = (word(kind), others.join(" or "));
            let message = format!("has no effect in a {own} rule: remove it, or set {others}");
            v.error(at, key, value.as_ref(), message);
        }
    }
    v.errors.len() == before
}

fn word(kind: KindWord) -> &'static str {
    WORDS.iter().find(|(_, of)| *of == kind).map_or("", |(word, _)| word)
}

/// Validates the settings of a structure.
pub(super) fn structure(
    v: &mut Validator<'_>,
    at: &KeyPath,
    table: &file::Rule,
    kind: Structure,
) -> Option<Kind> {
    match kind {
        Structure::Counter => {
            let ttl =
                v.value(at, "ttl", &table.ttl, Duration::ZERO, whole_seconds(Duration::ZERO..=3650 * DAY))?;
            Some(Kind::Counter(Counter { ttl }))
        }
    }
}
