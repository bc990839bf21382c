//! A memcached inside the process.
