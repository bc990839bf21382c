//! Asks the servers for their slab classes, for operators.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::pipeline::Proxy;
use crate::protocol::reply::Shape;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};

/// The longest reply that is used, in bytes: memcached's have 60 KiB at most.
const MAX_REPLY: usize = 256 << 10;

/// What one server has replied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlabReply {
    /// The name of its pool.
    pub pool: String,
    /// Its name or address.
    pub server: String,
    /// Its replies to `stats slabs` and `stats items`, or why there are none.
    pub replies: Result<(Bytes, Bytes), String>,
}

impl Proxy {
    /// Asks the first `limit` servers, all at once, each once even if it is in several pools. A server that has not replied within
    /// `time_limit` is left. Returns the replies, and how many servers were not asked.
    pub async fn slab_replies(&self, limit: usize, time_limit: Duration) -> (Vec<SlabReply>, usize) {
        let pending = Rc::new(PendingReplies::default());
        let omitted = self.distinct_servers().count().saturating_sub(limit);
        let until = Instant::now() + time_limit;
        let ask = |(pool, connection): (&str, &Rc<Connection>)| {
            let ask =
                |line: &[u8]| connection.send(&pending, Shape::Stats, |out| out.extend_from_slice(line));
            let (slabs, items) = (ask(b"stats slabs\r\n"), ask(b"stats items\r\n"));
            (pool.to_owned(), connection.server().label().to_owned(), slabs, items)
        };
        let asked: Vec<_> = self.distinct_servers().take(limit).map(ask).collect();
        let mut replies = Vec::with_capacity(asked.len());
        for (pool, server, slabs, items) in asked {
            let both = match received(&pending, slabs, until).await {
                Ok(slabs) => received(&pending, items, until).await.map(|items| (slabs, items)),
                Err(why) => Err(why),
            };
            replies.push(SlabReply { pool, server, replies: both });
        }
        (replies, omitted)
    }
}

/// The reply, or why there is none.
async fn received(pending: &PendingReplies, id: ReplyId, until: Instant) -> Result<Bytes, String> {
    timeout_at(until, pending.receive(id)).await.map_or_else(|_| Err("no reply yet".to_owned()), usable)
}

fn usable(reply: Reply) -> Result<Bytes, String> {
    match reply {
        Reply::Answered { bytes, .. } if bytes.len() > MAX_REPLY => {
            Err(format!("its reply is longer than {MAX_REPLY} bytes"))
        }
        Reply::Answered { bytes, .. } if bytes.ends_with(b"END\r\n") => Ok(bytes),
        Reply::Failed(failure) => {
            let line = String::from_utf8_lossy(failure.line());
            Err(line.trim_end().trim_start_matches("SERVER_ERROR ").to_owned())
        }
        Reply::Answered { .. } | Reply::Part { .. } | Reply::StaleCas => {
            Err("it does not tell its slab classes".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;

    #[test]
    fn a_reply_that_is_too_long_or_an_error_is_not_used() {
        let answered = |length: usize| {
            let bytes = Bytes::from([vec![b'x'; length], b"END\r\n".to_vec()].concat());
            usable(Reply::Answered { bytes, epoch: 1 }).map(|bytes| bytes.len())
        };
        assert_eq!(answered(MAX_REPLY - 5), Ok(MAX_REPLY));
        assert_eq!(answered(MAX_REPLY).unwrap_err(), "its reply is longer than 262144 bytes");
        let refused = Reply::Answered { bytes: Bytes::from_static(b"ERROR\r\n"), epoch: 1 };
        assert_eq!(usable(refused).unwrap_err(), "it does not tell its slab classes");
        assert_eq!(usable(Reply::Failed(Failure::TimedOut)).unwrap_err(), "server timed out");
    }
}
