//! Error replies that classic and meta commands share.

pub(super) const NOT_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
pub(super) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
pub(super) const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
