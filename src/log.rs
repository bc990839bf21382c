//! Where the log goes and how it looks. At `info` nothing is logged per request: what requests do is in the metrics.
//!
//! `RUST_LOG` chooses what is logged (`info` when unset), in the `tracing` crates' notation: `debug`, `kennel::guard=trace`, …

use std::env;
use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::{EnvFilter, fmt as layout};

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For eyes; in colour when stderr is a terminal and `NO_COLOR` is not set.
    Text,
    /// One JSON object a line, for collectors.
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
    /// `RUST_LOG` does not parse: what it says, and why.
    Filter(String, String),
    /// A log is already set up in this process.
    Twice,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Format(word) => write!(f, "log format {word:?}: must be \"text\" or \"json\""),
            LogError::Filter(filter, why) => write!(f, "RUST_LOG={filter:?}: {why}"),
            LogError::Twice => f.write_str("logging is already set up"),
        }
    }
}

impl std::error::Error for LogError {}

/// Sends the log of the whole process to stderr. `flag` is `--log-format`; without it `KENNEL_LOG_FORMAT` decides, and without
/// that it is text. Once a process.
pub fn init(flag: Option<Format>) -> Result<(), LogError> {
    let format = choose(flag, env::var("KENNEL_LOG_FORMAT").ok().as_deref())?;
    let filter = filter(env::var("RUST_LOG").ok().as_deref())?;
    let colour = io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
    let subscriber = subscriber(format, filter, colour, io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)
}

/// An empty variable is as good as none.
fn choose(flag: Option<Format>, variable: Option<&str>) -> Result<Format, LogError> {
    match (flag, variable) {
        (Some(format), _) => Ok(format),
        (None, None | Some("")) => Ok(Format::Text),
        (None, Some(word)) => word.parse(),
    }
}

fn filter(variable: Option<&str>) -> Result<EnvFilter, LogError> {
    let wanted = variable.filter(|set| !set.trim().is_empty()).unwrap_or("info");
    EnvFilter::try_new(wanted).map_err(|error| LogError::Filter(wanted.to_owned(), error.to_string()))
}

fn subscriber<W>(format: Format, filter: EnvFilter, colour: bool, to: W) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = layout().with_env_filter(filter).with_writer(to).with_ansi(colour);
    match format {
        Format::Text => Box::new(lines.finish()),
        Format::Json => Box::new(lines.json().flatten_event(true).finish()),
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

    /// What is logged of an info line and a debug line.
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
            let said = logged(Format::Text, unset);
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(said.contains(" INFO kennel::log::tests: listening \"here\" port=11211"), "{said}");
        }
    }

    #[test]
    fn rust_log_chooses_the_level() {
        assert_eq!(logged(Format::Text, Some("kennel=debug")).lines().count(), 2);
        assert_eq!(logged(Format::Text, Some("warn,kennel::guard=trace")), "");
    }

    #[test]
    fn json_is_one_object_a_line_with_the_fields_at_the_top() {
        let said = logged(Format::Json, None);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with('{') && said.ends_with("}\n"), "{said}");
        for part in [
            "\"level\":\"INFO\"",
            "\"message\":\"listening \\\"here\\\"\"",
            "\"port\":11211",
            "\"timestamp\":",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn the_flag_beats_the_variable_and_neither_is_text() {
        assert_eq!(choose(Some(Format::Text), Some("json")), Ok(Format::Text));
        assert_eq!(choose(None, Some("json")), Ok(Format::Json));
        assert_eq!(choose(None, Some("")), Ok(Format::Text));
        assert_eq!(choose(None, None), Ok(Format::Text));
    }

    #[test]
    fn mistakes_are_named_with_what_would_be_right() {
        let error = choose(None, Some("yaml")).unwrap_err();
        assert_eq!(error.to_string(), "log format \"yaml\": must be \"text\" or \"json\"");
        let error = filter(Some("kennel=loud")).unwrap_err().to_string();
        assert!(error.starts_with("RUST_LOG=\"kennel=loud\": "), "{error}");
    }
}
