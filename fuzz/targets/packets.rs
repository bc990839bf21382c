//! See [`kennel_fuzz::properties::packets`].
#![no_main]

use kennel_fuzz::properties::packets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| packets::check(data));
