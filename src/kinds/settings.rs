//! What a rule sets for its kind.

use std::time::Duration;

/// What a rule's keys are, besides raw and guarded ones, with the settings of the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A raw value or any kind, on two servers.
    Copied(Copied),
    /// A number that each command changes at once.
    Counter(Counter),
    /// A set of elements.
    List(List),
    /// What one connection at a time has.
    Lock(Lock),
    /// The entries of the last time.
    Log(Log),
    /// Elements with keys of their own, and their names.
    Table(Table),
    /// A count over a sliding window of time.
    Window(Window),
}

impl Kind {
    /// The word in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Copied(Copied { of: None }) => "raw",
            Kind::Copied(Copied { of: Some(kind) }) => kind.word(),
            Kind::Counter(_) => "counter",
            Kind::List(_) => "list",
            Kind::Lock(_) => "lock",
            Kind::Log(_) => "log",
            Kind::Table(_) => "table",
            Kind::Window(_) => "window",
        }
    }

    /// Whether each command of a client is one command to the server.
    pub fn is_one_command(&self) -> bool {
        matches!(self, Kind::Counter(_))
    }

    /// Whether everything is on two servers.
    pub fn is_copied(&self) -> bool {
        matches!(self, Kind::Copied(_))
    }

    /// The kind, however many servers its items are on; `None`: a raw value on two servers.
    pub fn structure(&self) -> Option<&Kind> {
        match self {
            Kind::Copied(Copied { of }) => of.as_deref(),
            kind => Some(kind),
        }
    }
}

/// The settings of what is on two servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The kind whose items each have two copies; `None`: a raw value.
    pub of: Option<Box<Kind>>,
}

/// The settings of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counter {
    /// How long a counter lives after it was created, in whole seconds; zero: for ever.
    pub ttl: Duration,
}

/// The settings of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// How long a list lives after the last append, in whole seconds; zero: for ever.
    pub ttl: Duration,
}

/// The settings of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// How long a lock outlives its sidecar, unless the client names an exptime; in whole seconds.
    pub ttl: Duration,
    /// Whether the owner is followed by a number that grows from hold to hold.
    pub fence: bool,
}

/// The settings of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How long its entries are in it.
    pub window: Duration,
    /// The time whose entries are in the same items.
    pub slot: Duration,
}

/// The settings of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The longest time that an element lives without being stored or touched, in whole seconds; zero: as long as the client says.
    pub ttl: Duration,
}

/// The settings of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// The time that is counted over.
    pub window: Duration,
    /// Into how many slots it is divided.
    pub slots: u32,
    /// Whether the oldest slot is weighed by its part that is in the window.
    pub smooth: bool,
    /// Whether visitors are counted, each once a window.
    pub unique: bool,
}
