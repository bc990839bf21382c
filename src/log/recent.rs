//! The last warnings and errors of the log, for the status page.
//!
//! A layer of the subscriber remembers them where they are logged, so what `log.level` leaves out is not remembered. Lines about slow
//! requests are not remembered: they have keys.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::clock::unix_ms;

/// The most lines that are remembered. A further one replaces the oldest.
const MAX_ERRORS: usize = 32;
/// The longest text of a line that is remembered, in bytes. The rest is cut off.
const MAX_TEXT: usize = 400;
/// What is remembered has targets that begin so,
const OURS: &str = "kennel";
/// except this one, whose lines have keys.
const SLOW: &str = "kennel::slow";

/// A warning or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentError {
    /// When it was logged last, in milliseconds of Unix time.
    pub at_ms: u64,
    /// Whether it is an error; otherwise it is a warning.
    pub is_error: bool,
    /// What it is about: a server, with its pool if the line has it, or a discovered entry. Empty if it is about neither.
    pub of: String,
    /// The client that it is about, of the lines that `count` counts the last one; empty if it is about none.
    pub from: String,
    /// The message and the other fields.
    pub text: String,
    /// How often it was logged since another line has replaced it, or since the start. A line that says how many were suppressed
    /// before it counts for them too.
    pub count: u64,
}

/// The last warnings and errors, at a fixed cost of memory.
pub(super) struct RecentErrors(Mutex<VecDeque<RecentError>>);

impl RecentErrors {
    pub(super) const fn new() -> RecentErrors {
        RecentErrors(Mutex::new(VecDeque::new()))
    }

    /// Those that are remembered, the latest first.
    pub(super) fn all(&self) -> Vec<RecentError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    /// Remembers a line. One that is remembered already becomes the latest, so that a line that is repeated displaces no other.
    fn add(&self, new: RecentError) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |old: &RecentError| (old.is_error, &old.of, &old.text) == (new.is_error, &new.of, &new.text);
        let before = match all.iter().position(is_same) {
            Some(at) => all.remove(at).map_or(0, |old| old.count),
            None => 0,
        };
        if all.len() == MAX_ERRORS {
            all.pop_front();
        }
        all.push_back(RecentError { count: before + new.count, ..new });
    }
}

/// The layer that remembers.
pub(super) struct Remember(pub(super) &'static RecentErrors);

impl<S: Subscriber> Layer<S> for Remember {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let target = metadata.target();
        if *metadata.level() > Level::WARN || !target.starts_with(OURS) || target == SLOW {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { message, pool, subject, from, mut rest, suppressed } = fields;
        rest.insert_str(0, &message);
        if rest.len() > MAX_TEXT {
            let end = (0..=MAX_TEXT).rev().find(|&at| rest.is_char_boundary(at));
            rest.truncate(end.unwrap_or(0));
            rest.push('…');
        }
        let of =
            if pool.is_empty() || subject.is_empty() { pool + &subject } else { format!("{pool}/{subject}") };
        self.0.add(RecentError {
            at_ms: unix_ms(),
            is_error: *metadata.level() == Level::ERROR,
            of,
            from,
            text: rest,
            count: 1 + suppressed,
        });
    }
}

/// The fields of a line.
#[derive(Default)]
struct Fields {
    message: String,
    pool: String,
    /// The server, or the entry that stands for servers.
    subject: String,
    from: String,
    rest: String,
    suppressed: u64,
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "suppressed" => self.suppressed = value,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "pool" => value.clone_into(&mut self.pool),
            "server" | "entry" => value.clone_into(&mut self.subject),
            _ => self.record_debug(field, &format_args!("{value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "pool" => write!(self.pool, "{value:?}"),
            "server" | "entry" => write!(self.subject, "{value:?}"),
            "from" => write!(self.from, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{error, info, warn};
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt;

    /// What is remembered of what `log` logs.
    fn remembered(log: impl FnOnce()) -> Vec<RecentError> {
        let recent: &'static RecentErrors = Box::leak(Box::new(RecentErrors::new()));
        tracing::subscriber::with_default(Registry::default().with(Remember(recent)), log);
        recent.all()
    }

    #[test]
    fn warnings_and_errors_are_remembered_with_their_server_the_latest_first() {
        let all = remembered(|| {
            info!("connected");
            warn!(pool = "main", server = "a:1", "failed over");
            warn!(server = "a:1", address = %"10.0.0.1:1", why = "refused", "not connected");
            error!(error = %"no memory", "thread ended");
            warn!(pool = "main", entry = %"dns+a:1", "not found");
        });
        let shown: Vec<_> = all.iter().map(|line| (line.is_error, &line.of[..], &line.text[..])).collect();
        assert_eq!(
            shown,
            [
                (false, "main/dns+a:1", "not found"),
                (true, "", "thread ended error=no memory"),
                (false, "a:1", "not connected address=10.0.0.1:1 why=refused"),
                (false, "main/a:1", "failed over"),
            ]
        );
        assert!(all.iter().all(|line| line.at_ms > 0));
    }

    #[test]
    fn a_line_that_is_repeated_is_counted_and_displaces_no_other() {
        let all = remembered(|| {
            warn!("once");
            for n in 0..MAX_ERRORS {
                warn!(from = %format_args!("10.0.0.{n}"), suppressed = 2_u64, "often");
            }
        });
        let shown: Vec<_> = all.iter().map(|line| (&line.text[..], &line.from[..], line.count)).collect();
        let last = format!("10.0.0.{}", MAX_ERRORS - 1);
        assert_eq!(shown, [("often", &last[..], 3 * MAX_ERRORS as u64), ("once", "", 1)]);
    }

    #[test]
    fn lines_and_their_text_are_bounded() {
        let all = remembered(|| {
            for n in 0..MAX_ERRORS + 3 {
                warn!(n, "{}", "é".repeat(MAX_TEXT));
            }
            for n in 0..MAX_ERRORS {
                warn!(n, "line");
            }
        });
        assert_eq!(all.len(), MAX_ERRORS);
        assert_eq!(all[0].text, format!("line n={}", MAX_ERRORS - 1));
        let all = remembered(|| warn!("{}", "é".repeat(MAX_TEXT)));
        assert_eq!(all[0].text, "é".repeat(MAX_TEXT / 2) + "…");
    }

    #[test]
    fn what_has_keys_and_what_is_not_kennels_is_not_remembered() {
        let all = remembered(|| {
            warn!(target: "kennel::slow", key = "user:17", "slow request");
            warn!(target: "hyper", "closed");
        });
        assert_eq!(all, []);
    }
}
