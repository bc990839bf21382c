//! What is reported of one copy of a value on two servers, a part of the [JSON](super::report).

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// The server that has it; without a valid view, the one that the ring names.
    pub server: String,
    /// Whether it is a standby server.
    pub standby: bool,
    /// The fence of its place, in hexadecimal; `None` without a valid view.
    pub fence: Option<String>,
    pub state: CopyState,
    /// Why its state is not known.
    pub failure: Option<String>,
    /// The life that its changes belong to, in hexadecimal; `None` if there is no record.
    pub life: Option<String>,
    /// The number of the last change within that life; `None` if there is no record.
    pub change: Option<u64>,
    /// When its value ends or has ended, in UTC; `None` if it never ends.
    pub ends: Option<String>,
    /// Bytes that a client receives; `None` if there is no value.
    pub value_bytes: Option<usize>,
    /// The client's flags; `None` if there is no value.
    pub flags: Option<u32>,
}

/// The state of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyState {
    /// The server did not tell, or where the copy is is not known.
    Unknown,
    /// There is no record.
    Nothing,
    /// A record with a value.
    Present,
    /// A record without a value: it was deleted, has ended, or is about to be stored.
    Empty,
    /// An item that is no copy.
    Unreadable,
}
