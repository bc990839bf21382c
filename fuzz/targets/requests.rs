//! See [`kennel_fuzz::properties::requests`].
#![no_main]

use kennel_fuzz::properties::requests;

libfuzzer_sys::fuzz_target!(|data: &[u8]| requests::check(data));
