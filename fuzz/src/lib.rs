//! Properties that must hold for any bytes. The targets search for counterexamples; `tests/it/fuzz_corpus.rs` replays the inputs
//! that are checked in.

pub mod properties;
