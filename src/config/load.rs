//! How a configuration is read: parse the TOML, apply the environment, validate.

use std::path::Path;
use std::sync::Arc;

use config::{FileFormat, Map, Source, Value};
use serde::Deserialize;

use super::environment::Overrides;
use super::errors::ConfigErrors;
use super::file::ConfigFile;
use super::integers;
use super::key_values::KeyValues;
use super::lines::Lines;
use super::location::unreadable;
use super::read_files::ReadFiles;
use super::settings::Config;
use super::validate::validate;
use super::written::written;
use crate::memory_limit;

/// Used when no file is given: an embedded memcached with every key guarded, on memcached's own port.
const BUILT_IN: &str = r#"
[pools.main]
servers = ["embedded:64MiB"]

[[rules]]
name = "everything"
match = "*"
"#;

/// A configuration, and the keys that it sets.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// What the file and the variables mean.
    pub config: Config,
    /// The keys that the file and the environment set.
    pub key_values: KeyValues,
    /// The same as a file.
    pub written: Arc<str>,
    /// The files that it names, as they were read.
    pub files: ReadFiles,
}

impl Loaded {
    /// A configuration of which nothing else is known.
    pub(crate) fn of(config: Config) -> Loaded {
        let (key_values, files) = (KeyValues::default(), ReadFiles::default());
        Loaded { config, key_values, written: "".into(), files }
    }
}

/// Reads the file at `path`, or the built-in configuration without one, applies the `KENNEL_…` variables of `env` and validates the
/// result, including the files that it names.
///
/// # Errors
/// Every error of the configuration, not only the first. A file that cannot be read or is not TOML is one error.
pub fn load(
    path: Option<&Path>,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    let memory = memory_limit::read();
    let Some(path) = path else {
        return read_within(memory, "the built-in configuration", BUILT_IN, env);
    };
    let file = path.display().to_string();
    let only = |what: String| ConfigErrors::new(vec![format!("{file}: {what}")]);
    let bytes = std::fs::read(path).map_err(|e| only(unreadable(&e)))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        only(format!("is not valid UTF-8: byte {} is invalid", e.utf8_error().valid_up_to() + 1))
    })?;
    read_within(memory, &file, &text, env)
}

/// Like [`load`] for the text of a file, and without regard to the memory that the process may use; `file` is the name that error
/// messages use.
///
/// # Errors
/// Every error of the configuration.
pub fn read(
    file: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    read_within(None, file, text, env)
}

/// The same in a process that may use so much memory, in bytes.
pub(super) fn read_within(
    memory: Option<u64>,
    file: &str,
    text: &str,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigErrors> {
    let parse = |text: &str| config::File::from_str(text, FileFormat::Toml).collect();
    let (readable, mut errors) = integers::quote_oversized(file, text);
    let mut root: Map<String, Value> = match parse(&readable) {
        Ok(root) => root,
        Err(error) => {
            errors.push(syntax_error(file, &error));
            return Err(ConfigErrors::new(errors));
        }
    };
    let mut overrides = Overrides::apply(env, &mut root);
    overrides.errors.splice(..0, errors);
    let (key_values, written) = (KeyValues::of(&root), written(&root).into());
    let raw = ConfigFile::deserialize(Value::new(None, root))
        .map_err(|e| ConfigErrors::new(vec![format!("{file}: {e}")]))?;
    let config = validate(file, memory, Lines::of(&readable), raw, overrides)?;
    let files = ReadFiles::read(&config.files());
    Ok(Loaded { config, key_values, written, files })
}

impl Config {
    /// Reads the file at `path`, or the built-in configuration without one, applies the `KENNEL_…` variables of `env` and
    /// validates the result, including the files that it names.
    ///
    /// # Errors
    /// Every error of the configuration, not only the first. A file that cannot be read or is not TOML is one error.
    pub fn load(
        path: Option<&Path>,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigErrors> {
        load(path, env).map(|loaded| loaded.config)
    }

    /// Like [`load`](Config::load) for the text of a file; `file` is the name that error messages use.
    pub fn read(
        file: &str,
        text: &str,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Config, ConfigErrors> {
        read(file, text, env).map(|loaded| loaded.config)
    }
}

/// One line for an error of the TOML parser, which prints several: `TOML parse error at line 3, column 5`, the line, an
/// arrow and the message.
fn syntax_error(file: &str, error: &config::ConfigError) -> String {
    let text = match error {
        config::ConfigError::FileParse { cause, .. } => cause.to_string(),
        other => other.to_string(),
    };
    let lines: Vec<&str> = text.lines().collect();
    let position = lines.first().and_then(|l| l.strip_prefix("TOML parse error at "));
    match position {
        Some(position) => {
            let message = lines[1..].iter().skip_while(|l| !l.contains(" | ")).skip(2);
            format!("{file}: {position}: {}", message.copied().collect::<Vec<_>>().join("; "))
        }
        None => format!("{file}: cannot be parsed: {}", lines.join("; ")),
    }
}
