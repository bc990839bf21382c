//! memcached's wire: requests and replies as bytes. No async, no sockets, no clock.

pub mod request;
mod line;
pub mod parse;
pub mod meta;
pub mod base64;
pub(crate) mod number;
pub mod reply;

pub use line::MAX_KEY;
pub use meta::Tokens;
