//! The configuration: as written, then as meant.
//!
//! A TOML file, then what `KENNEL_…` variables say instead, is read as it is `written` without any judgement,
//! and then turned into what is `meant`: a [`Config`] that needs no further checking, or every mistake there is.
//! Nothing outside this directory knows the `config` crate.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use config::{FileFormat, Map, Source, Value};
use serde::Deserialize;

use crate::guard::Policy;
pub use crate::listener::{FlushAll, Listen, ListenAddress, ListenerSpec};
use crate::proxy::MetaWinner;
use crate::rule::{Pattern, Template};
use crate::upstream::PoolSpec;

mod addresses;
mod environment;
mod listen;
mod validate;
mod integers;
mod pools;
mod rules;
pub(crate) mod units;
mod file;

/// What is served when there is no file: an embedded memcached, everything guarded, on memcached's own port.
const BUILT_IN: &str = r#"
[pools.main]
servers = ["embedded:64MiB"]

[[rules]]
name = "everything"
match = "*"
"#;

/// What `kennel` is to do. Valid by construction: whoever holds one need not check it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where clients come in, and how many.
    pub listen: Listen,
    /// Where `/metrics`, `/healthz`, `/readyz` and the page are served; none: nowhere.
    pub admin: Option<ListenAddress>,
    /// The pools: "main" first, the others by name.
    pub pools: Vec<PoolSpec>,
    /// How tags are kept.
    pub tags: Tags,
    /// What is kept of what rules with `near` read.
    pub near: Near,
    /// The rules, the one that wins first.
    pub rules: Vec<Rule>,
    /// What is legal but probably not wanted, a sentence each.
    pub warnings: Vec<String>,
}

/// How tags are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// What the key of every tag begins with; 1 to 32 bytes that a key may have.
    pub prefix: Vec<u8>,
    /// How long a version that was read may be used again, at most 60 s.
    pub cache: Duration,
    /// Which of the pools holds them.
    pub pool: usize,
    /// How many of its servers keep each version: 1 or 2.
    pub replicas: usize,
}

/// What is kept of what rules with `near` read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Near {
    /// The most that it may take, in bytes; every worker has its share.
    pub memory: usize,
}

/// What is done with the keys that match a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name in metrics; no other rule has it.
    pub name: String,
    /// Which keys.
    pub pattern: Pattern,
    /// Which of the pools holds them.
    pub pool: usize,
    /// What is done.
    pub kind: Kind,
    /// The tags that a change of such a key bumps, at most 16.
    pub invalidates: Vec<Template>,
}

/// What a rule does with its keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// They are forwarded as they are.
    Raw,
    /// They are wrapped and protected.
    Guarded {
        /// How long things last.
        policy: Policy,
        /// The tags of each key, at most 16.
        tags: Vec<Template>,
        /// Whether classic clients may name more of them in the keys of what they store.
        tags_in_key: bool,
        /// What a winning `mg` without `N` and `R` is told.
        meta_winner: MetaWinner,
    },
}

impl Config {
    /// Whether any rule keeps hits near.
    pub fn keeps_near(&self) -> bool {
        let keeps =
            |rule: &Rule| matches!(&rule.kind, Kind::Guarded { policy, .. } if !policy.near.is_zero());
        self.rules.iter().any(keeps)
    }

    /// Reads the file at `path`, or without one the built-in default, lets the `KENNEL_…` variables among `env`
    /// override it, and checks it all, also the files that it names. The error holds every mistake, not only the first; a file that cannot be
    /// read or is not TOML is one.
    pub fn load(
        path: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigErrors> {
        let Some(path) = path else {
            return Config::read("the built-in configuration", BUILT_IN, env);
        };
        let file = path.display().to_string();
        let only = |what: String| ConfigErrors(vec![format!("{file}: {what}")]);
        let bytes = std::fs::read(path).map_err(|e| only(format!("cannot be read: {e}")))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            only(format!("is not UTF-8 at byte {}, as TOML must be", e.utf8_error().valid_up_to() + 1))
        })?;
        Config::read(&file, &text, env)
    }

    /// Like [`load`](Config::load) for a file already read; `file` is what the mistakes call it.
    pub fn read(
        file: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigErrors> {
        let parse = |text: &str| config::File::from_str(text, FileFormat::Toml).collect();
        let (readable, mut mistakes) = integers::replaced(file, text);
        let mut root: Map<String, Value> = match parse(&readable) {
            Ok(root) => root,
            Err(error) => {
                mistakes.push(syntax(file, &error));
                return Err(ConfigErrors(mistakes));
            }
        };
        let mut overlay = environment::Overrides::lay(env, &mut root);
        overlay.mistakes.splice(..0, mistakes);
        let written = file::ConfigFile::deserialize(Value::new(None, root))
            .map_err(|e| ConfigErrors(vec![format!("{file}: {e}")]))?;
        validate::understand(file, written, overlay)
    }
}

/// This process's `KENNEL_…` variables, for [`Config::load`]. One that is not UTF-8 has U+FFFD in its place.
pub fn environment() -> Vec<(String, String)> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    all.filter(|(name, _)| name.starts_with("KENNEL_")).collect()
}

/// The TOML parser draws a picture over several lines: `TOML parse error at line 3, column 5`, the line, an arrow
/// and last what is wrong. A mistake is one line.
fn syntax(file: &str, error: &config::ConfigError) -> String {
    let text = match error {
        config::ConfigError::FileParse { cause, .. } => cause.to_string(),
        other => other.to_string(),
    };
    let lines: Vec<&str> = text.lines().collect();
    let place = lines.first().and_then(|l| l.strip_prefix("TOML parse error at "));
    match place {
        Some(place) => {
            let what = lines[1..].iter().skip_while(|l| !l.contains(" | ")).skip(2);
            format!("{file}: {place}: {}", what.copied().collect::<Vec<_>>().join("; "))
        }
        None => format!("{file}: cannot be understood: {}", lines.join("; ")),
    }
}

/// Everything that is wrong with a configuration, one line each: file or variable, key, value, what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    /// The mistakes, in the order of the tables in the reference.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests;
