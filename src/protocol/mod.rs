//! memcached's wire: requests and replies as bytes. No async, no sockets, no clock.

pub mod request;
