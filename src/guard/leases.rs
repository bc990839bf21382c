//! Decides which client of this process may rebuild a key, and which miss a `set` fills.
//!
//! Every miss that a client receives creates a *miss token*: what was stored at that moment. A later `set` of the same
//! client is stored only over exactly that, and so cannot undo an invalidation in between. A miss token with the right to
//! rebuild is a *lease*: it is renewed while its client is connected and released when the connection closes.
//!
//! The table is bounded (`limits`). The loss of a token breaks no guarantee: each connection also remembers the keys it
//! missed ([`KnownMiss`]), and a `set` with a remembered miss but without a token is dropped.
//!
//! - `observed`, `miss_token`: what a miss saw and what may be stored over it
//! - `entry`: a token in the table, with its owner
//! - `limits`: how many entries each connection has
//! - `table`: the table itself
//! - `room`: what is removed from it
//! - `attribution`: which token a `set` belongs to
//! - `renewal`: keeps a lease
//! - `withheld`: wins whose clients are not told of them yet
//! - `waiters`: requests that wait for a rebuild
//! - `look`: what it knows of one key, and which leases are live, for operators
//! - `pool_detection`: whether clients use connection pools

mod observed;
mod miss_token;
mod entry;
mod limits;
mod table;
mod room;
mod attribution;
mod renewal;
mod withheld;
mod waiters;
mod pool_detection;
mod look;

pub use attribution::{Attribution, KnownMiss, StoreCondition, Writer};
pub use entry::{MissTokenId, Owner};
pub use limits::{MAX_LEASES, MAX_LEASES_PER_OWNER};
pub use look::{KeyLook, LeaseLook, LiveLease};
pub use miss_token::{MissToken, Replacement, Unread};
pub use observed::Observed;
pub use pool_detection::{PairedMiss, PoolDetection};
pub use renewal::Due;
pub use table::{AfterHit, Ended, Leases};
pub use waiters::{Admission, PollRate, PollResult, Polled};
pub(super) use waiters::{MAX_WAITERS_PER_KEY, NO_WAIT_MS};
pub use withheld::Build;

#[cfg(test)]
mod tests;
