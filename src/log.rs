//! How the process logs, to stderr. At `info`, no request is logged; metrics count them.
//!
//! `RUST_LOG`, otherwise `log.level` of the configuration, otherwise `info` selects what is logged, in the notation of the `tracing`
//! crates: `debug`, `kennel::guard=trace`, …

use std::env;
use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::sync::OnceLock;

use tracing::Subscriber;
use tracing_subscriber::fmt::{MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

mod recent;

pub use recent::RecentError;
use recent::{RecentErrors, Remember};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text; in colour if stderr is a terminal and `NO_COLOR` is not set.
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for Format {
    type Err = LogError;

    fn from_str(word: &str) -> Result<Format, LogError> {
        match word {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(LogError::Format(word.to_owned())),
        }
    }
}

/// Why logging could not be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogError {
    /// Not a [`Format`].
    Format(String),
    /// `RUST_LOG` is invalid: its value and the reason.
    Filter(String, String),
    /// Logging is already set up in this process.
    AlreadySet,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Format(word) => write!(f, "log format {word:?}: must be \"text\" or \"json\""),
            LogError::Filter(filter, why) => write!(f, "RUST_LOG={filter:?}: {why}"),
            LogError::AlreadySet => f.write_str("logging is already set up"),
        }
    }
}

impl std::error::Error for LogError {}

/// Sets up logging for the process; must be called at most once. The format is `flag`, which is `--log-format`, otherwise
/// `KENNEL_LOG_FORMAT`, otherwise text.
///
/// # Errors
/// The variables are invalid. With [`LogError::Filter`], logging is set up nevertheless, at `info`, so that the error can be logged.
pub fn init(flag: Option<Format>) -> Result<(), LogError> {
    let format = choose(flag, env::var("KENNEL_LOG_FORMAT").ok().as_deref())?;
    let variable = env::var("RUST_LOG").unwrap_or_default();
    let (filter, error) = match filter(Some(&known_words(&variable))) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    // What the variable selects may exclude warnings.
    let warns = subscriber(format, EnvFilter::new("warn"), colour, io::stderr);
    tracing::subscriber::with_default(warns, || unknown_words(&variable).for_each(warn_of));
    let (filter, handle) = reload::Layer::new(filter);
    let subscriber = subscriber(format, filter, colour, io::stderr);
    // An error means that logging is set up.
    let _ = FILTER.set(handle);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::AlreadySet)?;
    error.map_or(Ok(()), Err)
}

/// Logs by `log.level` of the configuration from now on. Has no effect if `RUST_LOG` is set or logging is not set up.
pub fn set_level(level: &str) {
    let variable = env::var("RUST_LOG").ok();
    let (None, Some(handle)) = (variable.filter(|set| !set.trim().is_empty()), FILTER.get()) else { return };
    if let Ok(filter) = filter(Some(level)) {
        // An error means that the subscriber is gone.
        let _ = handle.reload(filter);
    }
}

/// Whether `log.level` is in the notation of `RUST_LOG`.
///
/// # Errors
/// Why it is not.
pub fn check_filter(directives: &str) -> Result<(), String> {
    if let Some(word) = unknown_words(directives).next() {
        return Err(format!("{word:?} is no level"));
    }
    EnvFilter::try_new(directives).map(|_| ()).map_err(|error| error.to_string())
}

/// The names of the levels, from the fewest lines to the most.
pub const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The words that are neither a level nor a module of Kennel. `EnvFilter` takes such a word for the name of a module, so that a level
/// with a typing error would turn off everything.
fn unknown_words(directives: &str) -> impl Iterator<Item = &str> {
    directives.split(',').map(str::trim).filter(|word| is_unknown_word(word))
}

fn is_unknown_word(word: &str) -> bool {
    let is_bare = !word.is_empty() && !word.contains(['=', '[', ']', '{', '}', '"']);
    let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
        || matches!(word, "0" | "1" | "2" | "3" | "4" | "5");
    let is_module = word == "kennel" || word.starts_with("kennel::");
    is_bare && !is_level && !is_module
}

/// The last warnings and errors that were logged, the latest first: 32 at most.
pub fn recent_errors() -> Vec<RecentError> {
    RECENT.all()
}

static RECENT: RecentErrors = RecentErrors::new();

/// Replaces the filter of the process's subscriber.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// An empty variable counts as unset.
fn choose(flag: Option<Format>, variable: Option<&str>) -> Result<Format, LogError> {
    match (flag, variable) {
        (Some(format), _) => Ok(format),
        (None, None | Some("")) => Ok(Format::Text),
        (None, Some(word)) => word.parse(),
    }
}

/// Says that a word of `RUST_LOG` has no effect.
fn warn_of(word: &str) {
    let levels = LEVELS.join(", ");
    tracing::warn!(
        "RUST_LOG: {word:?} is neither a level ({levels}) nor a module of Kennel, and is ignored; for a module of another crate, write \
         {word}=trace"
    );
}

/// The directives without the words that have no effect.
fn known_words(directives: &str) -> String {
    // A comma may stand in the fields of a span: such a list is left as it is.
    match unknown_words(directives).next() {
        None => directives.to_owned(),
        Some(_) => {
            directives.split(',').filter(|word| !is_unknown_word(word.trim())).collect::<Vec<_>>().join(",")
        }
    }
}

fn filter(variable: Option<&str>) -> Result<EnvFilter, LogError> {
    let wanted = variable.filter(|set| !set.trim().is_empty()).unwrap_or("info");
    EnvFilter::try_new(wanted).map_err(|error| LogError::Filter(wanted.to_owned(), error.to_string()))
}

fn subscriber<W, F>(format: Format, filter: F, colour: bool, to: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    F: Layer<Registry> + Send + Sync,
{
    let lines = layer().with_writer(to).with_ansi(colour);
    let filtered = Registry::default().with(filter).with(Remember(&RECENT));
    match format {
        Format::Text => Box::new(filtered.with(lines)),
        Format::Json => Box::new(filtered.with(lines.json().flatten_event(true))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The output for one event at `info` and one at `debug`.
    fn logged(format: Format, rust_log: Option<&str>) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = subscriber(format, filter(rust_log).unwrap(), false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(port = 11211, "listening \"here\"");
            tracing::debug!("in detail");
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn without_rust_log_info_is_logged_and_debug_is_not() {
        for unset in [None, Some(""), Some(" ")] {
            let output = logged(Format::Text, unset);
            assert_eq!(output.lines().count(), 1, "{output}");
            assert!(output.contains(" INFO kennel::log::tests: listening \"here\" port=11211"), "{output}");
        }
    }

    #[test]
    fn rust_log_selects_the_level() {
        assert_eq!(logged(Format::Text, Some("kennel=debug")).lines().count(), 2);
        assert_eq!(logged(Format::Text, Some("warn,kennel::guard=trace")), "");
    }

    #[test]
    fn a_word_that_is_no_level_is_an_error_in_the_configuration() {
        for good in [
            "info",
            "WARN",
            "off",
            "3",
            "kennel",
            "kennel::guard",
            "info,kennel::guard=trace",
            "rustls=debug",
            "",
        ] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["warning", "inf", "info,warning", "verbose, kennel=debug", "6"] {
            assert!(check_filter(bad).unwrap_err().ends_with("is no level"), "{bad}");
        }
        assert!(check_filter("kennel=warning").is_err());
    }

    #[test]
    fn a_word_of_the_variable_that_is_no_level_does_not_silence_the_rest() {
        for (variable, expected) in [
            ("warning", ""),
            ("warning,error", "error"),
            ("a, debug ,b", " debug "),
            ("kennel=info", "kennel=info"),
        ] {
            assert_eq!(known_words(variable), expected);
        }
        assert_eq!(logged(Format::Text, Some(&known_words("warning"))).lines().count(), 1);
    }

    #[test]
    fn json_is_one_object_per_line_with_the_fields_at_the_top_level() {
        let output = logged(Format::Json, None);
        assert_eq!(output.lines().count(), 1, "{output}");
        assert!(output.starts_with('{') && output.ends_with("}\n"), "{output}");
        for part in [
            "\"level\":\"INFO\"",
            "\"message\":\"listening \\\"here\\\"\"",
            "\"port\":11211",
            "\"timestamp\":",
        ] {
            assert!(output.contains(part), "{part} in {output}");
        }
    }

    #[test]
    fn the_flag_overrides_the_variable_and_the_default_is_text() {
        assert_eq!(choose(Some(Format::Text), Some("json")), Ok(Format::Text));
        assert_eq!(choose(None, Some("json")), Ok(Format::Json));
        assert_eq!(choose(None, Some("")), Ok(Format::Text));
        assert_eq!(choose(None, None), Ok(Format::Text));
    }

    #[test]
    fn errors_name_the_allowed_values() {
        let error = choose(None, Some("yaml")).unwrap_err();
        assert_eq!(error.to_string(), "log format \"yaml\": must be \"text\" or \"json\"");
        let error = filter(Some("kennel=loud")).unwrap_err().to_string();
        assert!(error.starts_with("RUST_LOG=\"kennel=loud\": "), "{error}");
    }
}
