//! What is asked of, and known about, planned moves.

/// What an operator has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wish {
    /// The server's keys move to their standby servers, and stay there.
    Drain,
    /// They return once the server answers.
    Return,
}

/// Until when requests wait for the next view, in ms of the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Then they no longer wait.
    pub until: u64,
    /// There is a valid view, which those use that have begun under it.
    pub has_view: bool,
}
