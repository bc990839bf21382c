//! What must hold of any bytes at all. The targets look for bytes of which it does not, `tests/it/fuzz_corpus.rs`
//! replays those that are checked in.

pub mod properties;
