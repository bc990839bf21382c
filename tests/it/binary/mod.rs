//! Clients of memcached's binary protocol: what they receive is what memcached sends, and the guard keeps its promises for them.

mod differential;
mod guarded;
pub(crate) mod packet;
mod poison;
mod sasl;
