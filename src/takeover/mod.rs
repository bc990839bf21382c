//! How one process hands its sockets to another: the messages between them, and the control socket that carries them.
//!
//! ```text
//!  new process                         running process
//!    TakeOver ───────────────────────────▶
//!      ◀─────────── Listener, for each one, with its sockets
//!      ◀─────────── Welcome, with the control socket
//!    (starts)
//!    Ready ──────────────────────────────▶
//!      ◀─────────── Committed
//!    Serving ────────────────────────────▶  accepts no further client
//!      ◀─────────── Clients, again and again, with their sockets
//!    Taken ──────────────────────────────▶
//! ```
//!
//! Until `Serving`, the running process goes on as if nothing were, whatever happens to the new one. A process that has clients left
//! when its successor has been taken over in turn begins a conversation with `Deliver` on the control socket instead. `kennel reload`
//! begins one with `Reload`, and receives `Reloaded`, or `Refused` with the mistakes.
//!
//! `message` is the form of the messages, `channel` sends them with open files, and `control_socket` is the socket in the file system.

mod channel;
mod control_socket;
mod message;

pub use channel::{Channel, Received};
pub use control_socket::{ControlSocket, connect};
pub use message::{MAX_CLIENTS, Malformed, Message, MovedClient, PROTOCOL, ReloadMode};
