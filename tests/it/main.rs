//! Integration tests, one file a promise.

mod embedded_is_faithful;
