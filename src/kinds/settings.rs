//! What a rule sets for its kind.

use std::time::Duration;

/// What a rule's keys are, besides raw and guarded ones, with the settings of the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A number that each command changes at once.
    Counter(Counter),
}

impl Kind {
    /// The word in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Counter(_) => "counter",
        }
    }

    /// Whether each command of a client is one command to the server.
    pub fn is_one_command(&self) -> bool {
        matches!(self, Kind::Counter(_))
    }
}

/// The settings of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// How long a counter lives after it was created, in whole seconds; zero: for ever.
    pub ttl: Duration,
}
