//! memcached's wire: requests and replies as bytes. No async, no sockets, no clock.

pub mod request;
mod line;
pub mod parse;
pub mod long_get;
pub mod binary;
pub mod meta;
pub mod base64;
pub(crate) mod number;
pub(crate) mod decimal;
pub mod reply;

pub use line::{MAX_KEY, MAX_LINE};
pub use meta::Tokens;
