//! What the pipeline keeps between requests. The lease table, the counts of the tag cache and the server information are shared
//! by all workers; each worker has its own near cache, tag versions and queue of lease renewals.

pub(crate) mod client_marks;
pub(crate) mod key_hash;
pub(crate) mod lease_table;
pub(crate) mod near_cache;
pub(crate) mod outage_table;
pub(crate) mod renewal_queue;
pub(crate) mod server_info;
pub(crate) mod tag_cache;
pub(crate) mod unfinished;
