//! The structures that a rule may give to its keys, besides raw and guarded ones: what they do with a client's command.
//!
//! A kind is a state machine for one command: it gives the commands of a round trip, takes the replies, and ends with an outcome.
//! All items of one key are on the server of that key, so that a round trip goes to one server, or each of them is on the same two.
//! The wire format of their keys is in `item`.
//!
//! The modules are in the order in which a command meets them. Each imports only those below it.

mod dispatch;
mod copies;
mod counter;
mod list;
mod lock;
mod memory;
mod log;
mod table;
mod window;
mod machine;
mod hold;
mod shards;
mod expiry;
mod request;
mod gets;
mod command;
mod many;
mod item;
mod settings;
#[cfg(test)]
mod model;

pub use command::{Cas, Command, Commands, Mode, Operation, Replies, Reply, Value};
pub use copies::{
    COPY_BYTES, HEADER as COPY_HEADER, KEPT_WITHOUT_VALUE, OnCopies, SeenCopy, complete, copy_key, seen_copy,
    split_copy_key,
};
pub use dispatch::{begin, commands_of, is_value_with_copies, items_below, split, split_store};
pub use hold::Hold;
pub use item::{INFIX, ItemKey};
pub use lock::HoldMachine;
pub use machine::{Inputs, Machine, Outcome, Side, Step};
pub use many::{Items, Keys};
pub use memory::Memory;
pub use request::{Request, Verb};
pub use settings::{Copied, Counter, Kind, List, Lock, Log, Table, Window};
pub use table::note;
