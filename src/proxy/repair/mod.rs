//! Stores the second copy of what has only one: a value that nobody reads would otherwise be lost with the next server.
//!
//! ```text
//!   task    when a server lacks copies, and who repairs it
//!    │ ╲
//!    │  marks   what is kept on the servers about that
//!    │
//!   pass    walks the keys of the other servers, and completes what has one copy
//!    │
//!   walk    recognises copies among the keys of a server
//! ```
//!
//! To complete an item is what a read of it does that finds one copy (`kinds::complete`): nothing else changes, so nothing that was deleted
//! or replaced meanwhile comes back.

mod task;
mod marks;
mod pass;
mod walk;
