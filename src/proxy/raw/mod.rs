//! Raw requests, which are forwarded unchanged: to the server of their key, or to all servers.

mod encode;
pub(crate) mod flush_all;
pub(crate) mod forward;
pub(crate) mod stats;
