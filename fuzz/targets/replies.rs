//! See [`kennel_fuzz::properties::replies`].
#![no_main]

use kennel_fuzz::properties::replies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| replies::check(data));
