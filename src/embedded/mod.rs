//! A memcached inside the process: another server that the pool connects to, nothing more.
//!
//! It is there for trying Kennel out without installing anything, and it is the memcached of the simulations. It
//! answers byte for byte as memcached 1.6.45 does (CAS numbers are its own, but grow alike), held to that by the
//! integration test `embedded_is_faithful`. What it leaves out:
//!
//! - slabs: memory is one heap under one limit, one exact LRU decides what is evicted, and nothing is ever refused
//!   because its size class is full;
//! - threads behind the scenes: what has expired or was flushed is dropped when its key is next asked for, or evicted;
//!   until then it counts in `curr_items` and `bytes`;
//! - the binary protocol, UDP, TLS, authentication, `watch`, `lru_crawler`, `slabs`, `cache_memlimit`, `shutdown`,
//!   external storage, persistence over restarts;
//! - the figures of `stats items`, `stats slabs` and `stats conns`: those lists are empty;
//! - in-place counting that depends on timing: to memcached, an item whose value still waits to be sent counts as
//!   busy, so an `incr` pipelined behind its `get` replaces the item instead of padding it. Here it never does.

mod classic;
mod items;
mod meta;
mod number;
pub mod server;
mod stats;
pub mod store;

pub use server::Embedded;
pub use store::Store;
