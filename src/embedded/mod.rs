//! A memcached inside the process. To the rest of Kennel it is one more server that a pool connects to.
//!
//! It lets users try Kennel without installing memcached, and it is the memcached of the simulations. Its replies equal those of
//! memcached 1.6.45 byte for byte (CAS numbers differ, but increase alike), which the integration test `embedded_is_faithful`
//! checks. Differences:
//!
//! - no slabs: memory is one heap with one limit, one exact LRU decides what is evicted, and no size class is ever full;
//! - no background threads: expired and flushed items are removed when their key is next looked up, or evicted. Until then
//!   they count in `curr_items` and `bytes`;
//! - no binary protocol, UDP, TLS, authentication, `watch`, `lru_crawler`, `slabs`, `cache_memlimit`, `shutdown`, external
//!   storage or persistence over restarts;
//! - `stats items`, `stats slabs` and `stats conns` are empty;
//! - no arithmetic that depends on timing: memcached does not write over an item whose value is still being sent, so an `incr`
//!   pipelined behind its `get` replaces the item instead of padding it. Here it never does.
//!
//! The files, in the order in which a request uses them:
//!
//! - `server`: the thread and its connections;
//! - `dispatch`: one request in, one reply out;
//! - `classic`, `meta`, `stats`: the commands; `replies` has the errors that they share;
//! - `store`: the operations they consist of, on `items` and `counters`; `number` reads numbers in values.

pub mod server;
mod dispatch;
mod classic;
mod meta;
mod stats;
mod replies;
pub mod store;
mod items;
mod counters;
mod number;

pub use dispatch::Next;
pub use server::Embedded;
pub use store::Store;
