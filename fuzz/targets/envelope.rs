//! See [`kennel_fuzz::properties::envelope`]. This target also counts what reading allocates.
#![no_main]

use std::hint::black_box;

use allocation_counter::measure;
use kennel::guard::envelope::{Envelope, Header, LockRecord};
use kennel_fuzz::properties::envelope::{self, ALLOCATED_PER_BYTE};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    reads_frugally(data);
    reads_frugally(&envelope::behind_the_format(data));
    envelope::check(data);
});

fn reads_frugally(item: &[u8]) {
    let in_place = measure(|| _ = black_box(Header::open(item)));
    assert_eq!(in_place.count_total, 0, "it allocates");
    let limit = (ALLOCATED_PER_BYTE * item.len()) as u64;
    for read in
        [measure(|| _ = black_box(Envelope::open(item))), measure(|| _ = black_box(LockRecord::decode(item)))]
    {
        assert!(read.bytes_total <= limit, "{} bytes for {}", read.bytes_total, item.len());
    }
}
