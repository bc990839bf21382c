//! Replays every input of `fuzz/corpus/`, including those written by hand, without a fuzzer.

#[allow(unreachable_pub, reason = "it is a public module of the package in fuzz/")]
#[path = "../../fuzz/src/properties/mod.rs"]
mod properties;

use std::path::{Path, PathBuf};
use std::{fs, panic};

use properties::{envelope, packets, replies, requests};

/// Replays all inputs of a target and lists those for which its property does not hold. There must be inputs: without them
/// nothing would be tested.
fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut inputs = Vec::new();
    for directory in [corpus.join("by-hand").join(target), corpus.join(target)] {
        let entries =
            fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let before = inputs.len();
        inputs.extend(entries.map(|entry| entry.expect("an entry of the corpus").path()));
        assert!(inputs.len() >= before + 20, "too few inputs in {}", directory.display());
    }
    inputs.sort();
    let fails = |input: &&PathBuf| {
        let bytes = fs::read(input).expect("an input is readable");
        panic::catch_unwind(|| check(&bytes)).is_err()
    };
    let failed: Vec<_> = inputs.iter().filter(fails).collect();
    assert!(failed.is_empty(), "it does not hold of {failed:#?}");
}

#[test]
fn any_request_parses_the_same_however_it_is_cut_and_spelled() {
    replay("requests", requests::check);
}

#[test]
fn any_packet_parses_the_same_however_it_is_cut_and_written() {
    replay("packets", packets::check);
}

#[test]
fn invalid_replies_are_rejected_alike_however_they_are_cut() {
    replay("replies", replies::check);
}

#[test]
fn whatever_opens_is_what_seals_to_it() {
    replay("envelope", envelope::check);
}
