//! What happens to keys, event by event, for whoever watches: `GET /trace` and `kennel trace`.
//!
//! `event` is what happens, `filter` which of it a watcher wants (`glob` has its patterns), and `tap` the way from the workers to the
//! watchers. `timing` says where the time of a request goes and `rate_limit` how often the log of slow requests speaks. `shown`
//! limits what is shown of a key, here, in the log and among the [hot keys](crate::hot). The proxy reports what it does in
//! `proxy/observer.rs`.

mod event;
mod filter;
mod glob;
mod rate_limit;
mod shown;
mod tap;
mod timing;

pub use event::{Event, Happened, Letters, Marks, Peer, Sighting};
pub use filter::{Filter, KINDS, MAX_SAMPLE, Names};
pub use glob::{Glob, MAX_PATTERN};
pub use rate_limit::{INTERVAL, MAX_LINES, RateLimit};
pub use shown::{ShownKeys, is_printable, shown_key};
pub use tap::{MAX_WAITING, MAX_WATCHERS, Tap, Taps, Watcher};
pub use timing::{Parts, Timing};
