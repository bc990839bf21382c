//! memcached's protocols as bytes: which request a client sends, and where a server's reply ends. No async, no sockets, no clock.
//!
//! - `binary` is the binary protocol, which only clients use. The rest is the text protocol.
//! - `parse` turns the front of a read buffer into a `request`; it uses `line` (line ends, words, data blocks, refusals),
//!   `number`, and `meta` for the meta commands.
//! - `long_get` reads a `get` of many keys in parts.
//! - `reply` finds the end of a server's reply and parses it.
//! - `base64` encodes and decodes keys of the meta flag `b`; `decimal` writes numbers.

pub mod binary;
pub mod parse;
mod line;
pub(crate) mod number;
pub(crate) mod decimal;
pub mod meta;
pub mod request;
pub mod long_get;
pub mod reply;
pub mod base64;

pub use line::{MAX_KEY, MAX_LINE};
