use super::*;

const GOLDEN: &str = include_str!("../../../tests/golden/envelope.txt");
const PAGE: &str = include_str!("../../../docs/wire-format.md");

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| b.is_ascii_hexdigit()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// The columns of the golden lines of one kind.
fn golden(kind: &str) -> Vec<Vec<&'static str>> {
    let lines = GOLDEN.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let of_kind: Vec<_> = lines.filter(|columns| columns[0] == kind).collect();
    assert!(of_kind.len() >= 3, "too few golden lines of {kind}");
    of_kind
}

fn tags(column: &str) -> Tags {
    let tag = |t: &str| t.split_once('=').map(|(n, v)| (n.as_bytes().into(), v.parse().unwrap())).unwrap();
    column.split(',').filter(|t| *t != "-").map(tag).collect()
}

fn sealed() -> Vec<(Envelope, Vec<u8>, Vec<u8>)> {
    let envelope = |c: &[&str]| Envelope {
        stale_for: c[2].parse().unwrap(),
        built_at: built_at(c[3].parse().unwrap(), c[4].parse().unwrap()),
        rebuild: c[5].parse().unwrap(),
        fence: c[6].parse().unwrap(),
        tags: tags(c[7]),
    };
    golden("sealed").iter().map(|c| (envelope(c), hex(c[8]), hex(c[9]))).collect()
}

#[test]
fn a_sealed_envelope_is_byte_for_byte_as_specified() {
    for (envelope, header, _) in sealed() {
        let mut out = BytesMut::from(&b"before"[..]);
        envelope.seal(&mut out).unwrap();
        assert_eq!(&out[..6], b"before");
        assert_eq!(&out[6..], &header[..]);
        assert_eq!(envelope.header_len(), Ok(header.len()));
    }
}

#[test]
fn a_specified_header_is_read_as_sealed_and_the_payload_is_everything_behind_it() {
    for (envelope, header, payload) in sealed() {
        let item = [&header[..], &payload].concat();
        let Opened::Sealed { envelope: in_place, payload_at } = Header::open(&item) else {
            panic!("{item:?}")
        };
        assert_eq!(&item[payload_at..], payload);
        assert!(in_place.tags().eq(envelope.tags.iter().map(|(n, v)| (&n[..], *v))));
        assert_eq!(Envelope::open(&item), Opened::Sealed { envelope: envelope.clone(), payload_at });
        // As after an append.
        let appended = [&item[..], b" and more"].concat();
        assert_eq!(Envelope::open(&appended), Opened::Sealed { envelope, payload_at });
    }
}

#[test]
fn every_format_that_was_ever_written_is_pinned() {
    let mut formats: Vec<u8> = sealed().iter().map(|(_, header, _)| header[MAGIC.len()]).collect();
    formats.sort_unstable();
    formats.dedup();
    assert_eq!(formats, (FORMAT..=FENCED_FORMAT).collect::<Vec<_>>());
}

#[test]
fn an_unknown_format_or_a_damaged_header_is_unreadable() {
    for columns in golden("unreadable") {
        let opened = Envelope::open(&hex(columns[2]));
        assert!(matches!(opened, Opened::Unreadable(_)), "{}: {opened:?}", columns[1]);
    }
    let newer = golden("unreadable").into_iter().find(|columns| columns[1] == "format-3").unwrap();
    let newer = hex(newer[2]);
    assert_eq!(Envelope::open(&newer), Opened::Unreadable("format is newer than this version reads"));
}

#[test]
fn no_commonly_cached_format_starts_like_an_envelope() {
    for columns in golden("plain") {
        assert_eq!(Envelope::open(&hex(columns[2])), Opened::Plain, "{}", columns[1]);
    }
}

#[test]
fn a_header_cut_at_any_byte_is_never_an_envelope() {
    for (_, header, _) in sealed() {
        for cut in 0..header.len() {
            match Header::open(&header[..cut]) {
                Opened::Plain => assert!(cut < MAGIC.len(), "cut at {cut}"),
                Opened::Unreadable(_) => assert!(cut >= MAGIC.len(), "cut at {cut}"),
                Opened::Sealed { .. } => panic!("cut at {cut} of {}", header.len()),
            }
        }
    }
}

#[test]
fn a_flipped_bit_never_turns_header_bytes_into_payload_or_payload_into_header() {
    for (envelope, header, payload) in sealed() {
        let mut item = [&header[..], &payload].concat();
        // Every bit of a usual header, every 61st of the longest ones.
        let step = if header.len() < 1000 { 1 } else { 61 };
        for bit in (MAGIC.len() * 8..header.len() * 8).step_by(step) {
            item[bit / 8] ^= 1 << (bit % 8);
            // The preamble, the counts and the lengths are covered. A changed number or name is a different
            // one, which the comparison of versions detects.
            match Envelope::open(&item) {
                Opened::Sealed { envelope: damaged, payload_at } => {
                    assert!(bit / 8 >= PREAMBLE, "bit {bit}");
                    assert_eq!(payload_at, header.len(), "bit {bit}");
                    assert_ne!(damaged, envelope, "bit {bit}");
                }
                Opened::Unreadable(_) => {}
                Opened::Plain => panic!("bit {bit}"),
            }
            item[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn any_bytes_can_be_read_and_an_envelope_seals_to_the_bytes_it_was_read_from() {
    let mut random = fastrand::Rng::with_seed(0x6b65_6e6e);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut item = MAGIC.to_vec();
        item.push(FORMAT);
        item.resize(24 + random.usize(..40), 0);
        random.fill(&mut item[7..]);
        // Small counts and lengths, so that some are valid.
        item[23..].iter_mut().for_each(|byte| *byte &= 7);
        let length = if random.bool() { item.len() } else { random.usize(..70) };
        item[5..7].copy_from_slice(&[length as u8, 0]);
        match Envelope::open(&item) {
            Opened::Sealed { envelope, payload_at } => {
                opened += 1;
                let mut again = BytesMut::new();
                envelope.seal(&mut again).unwrap();
                assert_eq!(&again[..], &item[..payload_at]);
            }
            Opened::Unreadable(_) => refused += 1,
            Opened::Plain => panic!("{item:?}"),
        }
        let _ = LockRecord::decode(&item[22..]);
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused: the test is ineffective");
}

#[test]
fn an_envelope_that_would_be_unreadable_is_not_sealed_and_writes_nothing() {
    let with = |tags: Tags| Envelope { stale_for: 1, built_at: 2, rebuild: 3, fence: 0, tags };
    let name = |length: usize| TagName::from_elem(b'n', length);
    let cases = [
        (SealError::TooManyTags, with(SmallVec::from_elem((name(1), 0), 65))),
        (SealError::TagName, with(SmallVec::from_elem((name(0), 0), 1))),
        (SealError::TagName, with(SmallVec::from_elem((name(251), 0), 1))),
        (SealError::TooLong, with(SmallVec::from_elem((name(247), 0), 64))),
    ];
    for (error, envelope) in cases {
        let mut out = BytesMut::new();
        assert_eq!(envelope.seal(&mut out), Err(error));
        assert!(out.is_empty());
    }
    let lock = LockRecord { granted_at: 1, sidecar: 2, fence: 0, tags: SmallVec::from_elem((name(0), 0), 1) };
    let mut out = BytesMut::new();
    assert_eq!(lock.encode(&mut out), Err(SealError::TagName));
    assert!(out.is_empty());
}

#[test]
fn a_lock_is_byte_for_byte_what_is_specified_and_unreadable_when_cut() {
    for columns in golden("lock") {
        let [granted_at, sidecar, fence] = [2, 3, 4].map(|column| columns[column].parse().unwrap());
        let lock = LockRecord { granted_at, sidecar, fence, tags: tags(columns[5]) };
        let stored = hex(columns[6]);
        let mut out = BytesMut::new();
        lock.encode(&mut out).unwrap();
        assert_eq!(&out[..], &stored[..]);
        assert_eq!(LockRecord::decode(&stored), Ok(lock));
        for cut in 0..stored.len() {
            assert!(LockRecord::decode(&stored[..cut]).is_err(), "cut at {cut}");
        }
        assert!(LockRecord::decode(&[&stored[..], b"x"].concat()).is_err());
        assert!(LockRecord::decode(&[&[3], &stored[1..]].concat()).is_err());
    }
}

#[test]
fn a_lock_key_is_never_longer_than_memcached_allows() {
    assert_eq!(&lock_key(b"blog:7")[..], b"@lock:blog:7");
    assert_eq!(lock_key(&[b'k'; 244]).len(), 250);
    // printf 'a b' | md5sum
    assert_eq!(&lock_key(b"a b")[..], b"@lock:#0cc9cd4dd26c5137b675a0d819cb9ab0");
    // echo -n kkk…k | md5sum
    assert_eq!(&lock_key(&[b'k'; 245])[..], b"@lock:#9a1cf355dc0e0af87daa8b928a668e3b");
}

/// The code blocks of the page in one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn the_examples_on_the_page_are_read_as_described() {
    let example = |block: &str| -> Vec<u8> {
        // Two-digit words are bytes, up to the first other word, where the explanation begins.
        let byte = |word: &&str| word.len() == 2 && word.bytes().all(|b| b.is_ascii_hexdigit());
        block
            .lines()
            .flat_map(|line| hex(&line.split_whitespace().take_while(byte).collect::<String>()))
            .collect()
    };
    let examples: Vec<_> = blocks("text").into_iter().map(example).collect();
    let [item, lock] = &examples[..] else { panic!("{} examples", examples.len()) };
    let two_tags = tags("blog:7=1699999999000,posts=1600000000000");
    let built_at = 1_700_000_000_000;
    let envelope = Envelope { stale_for: 60, built_at, rebuild: 250, fence: 0, tags: two_tags.clone() };
    assert_eq!(Envelope::open(item), Opened::Sealed { envelope, payload_at: 53 });
    assert_eq!(&item[53..], b"hello");
    assert_eq!(
        LockRecord::decode(lock),
        Ok(LockRecord { granted_at: built_at, sidecar: 7, fence: 0, tags: two_tags })
    );
}

#[test]
fn the_python_on_the_page_reads_every_golden_item() {
    let check = r#"
import sys
seen = 0
for line in open(sys.argv[1], encoding="utf-8"):
    kind, _, *rest = line.split()
    value = lambda column: bytes.fromhex(column.replace("-", ""))
    if kind == "sealed":
        numbers = tuple(map(int, rest[:5]))
        tags = [(n.encode(), int(v)) for n, v in (t.split("=") for t in rest[5].split(",") if t != "-")]
        assert read(value(rest[6]) + value(rest[7])) == ((*numbers, tags), value(rest[7])), line
    elif kind == "plain":
        assert read(value(rest[0])) == (None, value(rest[0])), line
    elif kind == "unreadable":
        try:
            raise SystemExit(f"{read(value(rest[0]))}: {line}")
        except ValueError:
            pass
    else:
        continue
    seen += 1
print(seen)
"#;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/envelope.txt");
    let script = blocks("python").concat() + check;
    let run = std::process::Command::new("python3").args(["-c", &script, file]).output();
    let run = run.expect("python3 is needed to check the page");
    let seen: usize = String::from_utf8_lossy(&run.stdout).trim().parse().unwrap_or(0);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(seen, ["sealed", "plain", "unreadable"].map(|kind| golden(kind).len()).iter().sum::<usize>());
}
