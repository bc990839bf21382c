//! Raw requests, which are forwarded unchanged: to the server of their key, or to all servers. On a standby server, TTLs are
//! limited. What a guard has stored is shown as the client's value.

pub(crate) mod binary;
mod encode;
pub(crate) mod flush_all;
pub(crate) mod forward;
mod marks;
pub(crate) mod shown;
pub(crate) mod standby;
pub(crate) mod stats;
