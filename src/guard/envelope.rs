//! What Kennel puts in front of a guarded value, and into a lock.
//!
//! docs/wire-format.md is the same thing byte by byte, for other languages; `tests/golden/envelope.txt` pins both.
//! This is the only file that knows bincode: everything stored is its fixed-int little-endian form, which any
//! language can read, so the crate can be replaced without touching what is stored.
//!
//! Reading is total: any bytes give an answer, and a lying count or length allocates nothing.

use bincode::de::BorrowDecoder;
use bincode::de::read::BorrowReader;
use bincode::enc::Encoder;
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use bincode::{BorrowDecode, Decode, Encode};
use bytes::BytesMut;
use md5::{Digest, Md5};
use smallvec::SmallVec;

/// What every envelope begins with, and no sane value: not UTF-8 (0xF7 is in no character), not deflate (block type
/// 3), protobuf (wire type 7) or gob (a 9-byte length), and as a length prefix, in either byte order or as snappy's
/// varint, larger than any item. gzip, zstd, lz4, pickle, PHP, igbinary, MessagePack maps, Marshal and Java begin
/// with other bytes.
pub const MAGIC: [u8; 4] = [0xF7, 0xCB, 0xCE, 0xCC];

/// The only format there is so far. A reader that meets a higher one reports a miss.
pub const FORMAT: u8 = 1;

/// The most tags that one envelope or lock carries.
pub const MAX_TAGS: usize = 64;

/// The longest name of a tag, in bytes: that of a key. The shortest is one.
pub const MAX_TAG_NAME: usize = 250;

/// The longest header, in bytes, from the magic to the last tag.
pub const MAX_HEADER: usize = 16 * 1024;

/// The name of a tag, without the prefix of its key.
pub type TagName = SmallVec<[u8; 24]>;

/// Tags with their versions (wall-clock ms), in the order of the rule.
pub type Tags = SmallVec<[(TagName, u64); 2]>;

/// What a guarded value carries besides itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// How many of the item's last seconds in memcached are stale ones: stale is a remaining TTL of at most this.
    pub stale_for: u32,
    /// See [`built_at`].
    pub built_at: u64,
    /// How long the rebuild took, in ms (XFetch's Δ); 0 when unknown.
    pub rebuild: u32,
    /// The versions that the rebuild was begun with.
    pub tags: Tags,
}

/// An [`Envelope`] read in place. Nothing is copied; it is already checked to the last tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// See [`Envelope::stale_for`], in seconds.
    pub stale_for: u32,
    /// See [`built_at`].
    pub built_at: u64,
    /// See [`Envelope::rebuild`], in ms.
    pub rebuild: u32,
    tags: &'a [u8],
}

/// The bits of an envelope's `built_at` that are the millisecond; they last until the year 2527.
const MS_BITS: u32 = 44;

/// When a value was begun to be built, and over which stub it is stored: the wall-clock ms at which the lease was granted whose fill
/// this is, and above them the number of the stub (20 bits; 0: it is not known).
pub fn built_at(ms: u64, stub: u32) -> u64 {
    ms.min((1 << MS_BITS) - 1) | u64::from(stub) << MS_BITS
}

/// What an item turned out to be. An empty item is [`Opened::Plain`] here; whether it is a stub, its length says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened<E = Envelope> {
    /// A guarded value: everything from `payload_at` on is the client's.
    Sealed {
        /// What the header says.
        envelope: E,
        /// The header's length in bytes, at most that of the item.
        payload_at: usize,
    },
    /// No magic: a value that someone stored directly.
    Plain,
    /// Begins like an envelope and is none that this version can read; must be treated as a miss. Says why.
    Unreadable(&'static str),
}

/// Why an envelope or lock cannot be written. Nothing has been written then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealError {
    /// More than [`MAX_TAGS`].
    TooManyTags,
    /// Empty, or longer than [`MAX_TAG_NAME`].
    TagName,
    /// The whole is longer than [`MAX_HEADER`].
    TooLong,
}

impl Envelope {
    /// Length of the header in bytes, or why there cannot be one.
    pub fn header_len(&self) -> Result<usize, SealError> {
        encoded_len(PREAMBLE + FIELDS, &self.tags)
    }

    /// Appends the header; the payload goes behind it.
    pub fn seal(&self, out: &mut BytesMut) -> Result<(), SealError> {
        let length = self.header_len()?;
        out.reserve(length);
        let start = out.len();
        put(Preamble { magic: MAGIC, format: FORMAT, length: length as u16 }, out);
        put(Fields { stale_for: self.stale_for, built_at: self.built_at, rebuild: self.rebuild }, out);
        put_tags(&self.tags, out);
        debug_assert_eq!(out.len() - start, length);
        Ok(())
    }

    /// Reads an item into an envelope of its own; see [`Header::open`] for the hot path.
    pub fn open(item: &[u8]) -> Opened {
        match Header::open(item) {
            Opened::Sealed { envelope, payload_at } => {
                Opened::Sealed { envelope: envelope.to_owned(), payload_at }
            }
            Opened::Plain => Opened::Plain,
            Opened::Unreadable(why) => Opened::Unreadable(why),
        }
    }
}

impl<'a> Header<'a> {
    /// Reads an item in place, without allocating.
    pub fn open(item: &'a [u8]) -> Opened<Header<'a>> {
        if !item.starts_with(&MAGIC) {
            return Opened::Plain;
        }
        match Header::read(item) {
            Ok((envelope, payload_at)) => Opened::Sealed { envelope, payload_at },
            Err(why) => Opened::Unreadable(why),
        }
    }

    /// The wall-clock ms at which the lease was granted whose fill this is.
    pub fn begun_at(&self) -> u64 {
        self.built_at & ((1 << MS_BITS) - 1)
    }

    /// The number of the stub that it was stored over, or that what it was stored over had been stored over; 0: it is not known.
    pub fn stub(&self) -> u32 {
        (self.built_at >> MS_BITS) as u32
    }

    /// The tags in the order of the rule.
    pub fn tags(&self) -> TagsIter<'a> {
        TagsIter { rest: &self.tags[1..] }
    }

    /// Copies what it refers to.
    pub fn to_owned(&self) -> Envelope {
        let Header { stale_for, built_at, rebuild, .. } = *self;
        Envelope { stale_for, built_at, rebuild, tags: self.tags().map(|(n, v)| (n.into(), v)).collect() }
    }

    fn read(item: &'a [u8]) -> Result<(Header<'a>, usize), &'static str> {
        // The length is not looked at before the format: a newer one may put something else there.
        match item.get(MAGIC.len()) {
            None => return Err("cut short"),
            Some(&FORMAT) => {}
            Some(0) => return Err("format 0 does not exist"),
            Some(_) => return Err("format is newer than this version reads"),
        }
        let (Preamble { length, .. }, _) = get::<Preamble>(item)?;
        let length = usize::from(length);
        if length > MAX_HEADER {
            return Err("header is longer than any that is written");
        }
        let header = item.get(PREAMBLE..length).ok_or("cut short")?;
        let (Fields { stale_for, built_at, rebuild }, at) = get::<Fields>(header)?;
        let tags = &header[at..];
        check_tags(tags)?;
        Ok((Header { stale_for, built_at, rebuild, tags }, length))
    }
}

/// Names and versions of an envelope's tags, in place.
#[derive(Debug, Clone)]
pub struct TagsIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for TagsIter<'a> {
    type Item = (&'a [u8], u64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (Tag { name, version }, used) = get(self.rest).ok()?;
        self.rest = &self.rest[used..];
        Some((name.0, version))
    }
}

/// What a lock holds: whose it is, and how new the value will be that its holder builds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRecord {
    /// Wall-clock ms at which the lease was granted.
    pub granted_at: u64,
    /// Which sidecar holds it: a number that it drew at its start.
    pub sidecar: u64,
    /// The versions that the rebuild was begun with: once one has moved, nobody need wait for this lock.
    pub tags: Tags,
}

impl LockRecord {
    /// Appends the record: the whole value of the lock's item.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), SealError> {
        out.reserve(encoded_len(LOCK_FIELDS, &self.tags)?);
        put(LockFields { format: FORMAT, granted_at: self.granted_at, sidecar: self.sidecar }, out);
        put_tags(&self.tags, out);
        Ok(())
    }

    /// Reads a lock's item, or says why it cannot. A lock that cannot be read is held all the same: it counts down
    /// like any other.
    pub fn decode(item: &[u8]) -> Result<LockRecord, &'static str> {
        match item.first() {
            None => return Err("lock is empty"),
            Some(&FORMAT) => {}
            Some(_) => return Err("format of the lock is not one that this version reads"),
        }
        let (LockFields { granted_at, sidecar, .. }, at) = get::<LockFields>(item)?;
        check_tags(&item[at..])?;
        let tags = TagsIter { rest: &item[at + 1..] }.map(|(n, v)| (n.into(), v)).collect();
        Ok(LockRecord { granted_at, sidecar, tags })
    }
}

/// The key of the lock on `key`, at most 250 bytes, and none that the text protocol could not spell (a meta command's
/// base64 key may be any bytes). It lives on the server of `key`, wherever the ring would put it.
pub fn lock_key(key: &[u8]) -> SmallVec<[u8; 64]> {
    const PREFIX: &[u8] = b"@lock:";
    let mut lock = SmallVec::from_slice(PREFIX);
    if key.len() <= 250 - PREFIX.len() && !key.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r' | b' ')) {
        lock.extend_from_slice(key);
    } else {
        lock.push(b'#');
        for byte in Md5::digest(key) {
            lock.extend([byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    lock
}

// The stored form. Every number is as wide as here, little-endian, without padding.

const PREAMBLE: usize = 7;
const FIELDS: usize = 16;
const LOCK_FIELDS: usize = 17;

#[derive(Encode, Decode)]
struct Preamble {
    magic: [u8; 4],
    format: u8,
    /// From the magic to the last tag, so that the payload is everything behind, however often it is appended to.
    length: u16,
}

#[derive(Encode, Decode)]
struct Fields {
    stale_for: u32,
    built_at: u64,
    rebuild: u32,
}

#[derive(Encode, Decode)]
struct LockFields {
    format: u8,
    granted_at: u64,
    sidecar: u64,
}

#[derive(Encode, BorrowDecode)]
struct Tag<'a> {
    name: Name<'a>,
    version: u64,
}

/// Bytes behind a one-byte length; bincode's own slices have eight, which no name needs.
struct Name<'a>(&'a [u8]);

impl Encode for Name<'_> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let length = u8::try_from(self.0.len()).map_err(|_| EncodeError::Other("name is too long"))?;
        length.encode(encoder)?;
        encoder.writer().write(self.0)
    }
}

impl<'de, C> BorrowDecode<'de, C> for Name<'de> {
    fn borrow_decode<D: BorrowDecoder<'de, Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let length = usize::from(u8::decode(decoder)?);
        decoder.claim_bytes_read(length)?;
        Ok(Name(decoder.borrow_reader().take_bytes(length)?))
    }
}

type Form = bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Fixint,
    bincode::config::Limit<MAX_HEADER>,
>;

fn form() -> Form {
    bincode::config::standard().with_little_endian().with_fixed_int_encoding().with_limit::<MAX_HEADER>()
}

fn put<T: Encode>(value: T, out: &mut BytesMut) {
    struct Out<'a>(&'a mut BytesMut);
    impl Writer for Out<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }
    bincode::encode_into_writer(value, Out(out), form())
        .expect("a BytesMut takes everything, and encoded_len has checked the names");
}

fn get<'a, T: BorrowDecode<'a, ()>>(from: &'a [u8]) -> Result<(T, usize), &'static str> {
    bincode::borrow_decode_from_slice(from, form()).map_err(|_| "cut short")
}

fn put_tags(tags: &Tags, out: &mut BytesMut) {
    put(tags.len() as u8, out);
    for (name, version) in tags {
        put(Tag { name: Name(name), version: *version }, out);
    }
}

/// That `tags` is a count and exactly so many tags, each of which can have been written.
fn check_tags(tags: &[u8]) -> Result<(), &'static str> {
    let (&count, mut rest) = tags.split_first().ok_or("cut short")?;
    if usize::from(count) > MAX_TAGS {
        return Err("more tags than are ever written");
    }
    for _ in 0..count {
        let (Tag { name, .. }, used) = get(rest)?;
        if name.0.is_empty() || name.0.len() > MAX_TAG_NAME {
            return Err("name of a tag is not of a legal length");
        }
        rest = &rest[used..];
    }
    if rest.is_empty() { Ok(()) } else { Err("longer than its fields") }
}

fn encoded_len(fields: usize, tags: &Tags) -> Result<usize, SealError> {
    if tags.len() > MAX_TAGS {
        return Err(SealError::TooManyTags);
    }
    if tags.iter().any(|(name, _)| name.is_empty() || name.len() > MAX_TAG_NAME) {
        return Err(SealError::TagName);
    }
    let length = fields + 1 + tags.iter().map(|(name, _)| 1 + name.len() + 8).sum::<usize>();
    if length > MAX_HEADER { Err(SealError::TooLong) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../tests/golden/envelope.txt");
    const PAGE: &str = include_str!("../../docs/wire-format.md");

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
        let tag =
            |t: &str| t.split_once('=').map(|(n, v)| (n.as_bytes().into(), v.parse().unwrap())).unwrap();
        column.split(',').filter(|t| *t != "-").map(tag).collect()
    }

    fn sealed() -> Vec<(Envelope, Vec<u8>, Vec<u8>)> {
        let envelope = |c: &[&str]| Envelope {
            stale_for: c[2].parse().unwrap(),
            built_at: built_at(c[3].parse().unwrap(), c[4].parse().unwrap()),
            rebuild: c[5].parse().unwrap(),
            tags: tags(c[6]),
        };
        golden("sealed").iter().map(|c| (envelope(c), hex(c[7]), hex(c[8]))).collect()
    }

    #[test]
    fn what_is_sealed_is_byte_for_byte_what_is_specified() {
        for (envelope, header, _) in sealed() {
            let mut out = BytesMut::from(&b"before"[..]);
            envelope.seal(&mut out).unwrap();
            assert_eq!(&out[..6], b"before");
            assert_eq!(&out[6..], &header[..]);
            assert_eq!(envelope.header_len(), Ok(header.len()));
        }
    }

    #[test]
    fn what_is_specified_opens_to_what_was_sealed_and_the_payload_is_everything_behind() {
        for (envelope, header, payload) in sealed() {
            let item = [&header[..], &payload].concat();
            let Opened::Sealed { envelope: in_place, payload_at } = Header::open(&item) else {
                panic!("{item:?}")
            };
            assert_eq!(&item[payload_at..], payload);
            assert!(in_place.tags().eq(envelope.tags.iter().map(|(n, v)| (&n[..], *v))));
            assert_eq!(Envelope::open(&item), Opened::Sealed { envelope: envelope.clone(), payload_at });
            // What append does.
            let appended = [&item[..], b" and more"].concat();
            assert_eq!(Envelope::open(&appended), Opened::Sealed { envelope, payload_at });
        }
    }

    #[test]
    fn an_unknown_format_or_a_damaged_header_is_unreadable() {
        for columns in golden("unreadable") {
            let opened = Envelope::open(&hex(columns[2]));
            assert!(matches!(opened, Opened::Unreadable(_)), "{}: {opened:?}", columns[1]);
        }
        let newer = hex(golden("unreadable")[0][2]);
        assert_eq!(Envelope::open(&newer), Opened::Unreadable("format is newer than this version reads"));
    }

    #[test]
    fn nothing_else_that_is_commonly_cached_begins_like_an_envelope() {
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
    fn a_flipped_bit_never_makes_header_bytes_payload_or_payload_header() {
        for (envelope, header, payload) in sealed() {
            let mut item = [&header[..], &payload].concat();
            // Every bit of a usual header, every 61st of the longest ones.
            let step = if header.len() < 1000 { 1 } else { 61 };
            for bit in (MAGIC.len() * 8..header.len() * 8).step_by(step) {
                item[bit / 8] ^= 1 << (bit % 8);
                // The preamble, the counts and the lengths are covered; a number or a name that changed is another
                // one, which the versions' equality then sees.
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
    fn any_bytes_at_all_give_an_answer_and_whatever_opens_is_what_seals_to_it() {
        let mut random = fastrand::Rng::with_seed(0x6b65_6e6e);
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut item = MAGIC.to_vec();
            item.push(FORMAT);
            item.resize(24 + random.usize(..40), 0);
            random.fill(&mut item[7..]);
            // Small counts and lengths, so that some are right.
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
        assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused: the test tests nothing");
    }

    #[test]
    fn what_would_not_be_readable_is_not_sealed_and_leaves_nothing_behind() {
        let with = |tags: Tags| Envelope { stale_for: 1, built_at: 2, rebuild: 3, tags };
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
        let lock = LockRecord { granted_at: 1, sidecar: 2, tags: SmallVec::from_elem((name(0), 0), 1) };
        let mut out = BytesMut::new();
        assert_eq!(lock.encode(&mut out), Err(SealError::TagName));
        assert!(out.is_empty());
    }

    #[test]
    fn a_lock_is_byte_for_byte_what_is_specified_and_unreadable_when_cut() {
        for columns in golden("lock") {
            let (granted_at, sidecar) = (columns[2].parse().unwrap(), columns[3].parse().unwrap());
            let (lock, stored) =
                (LockRecord { granted_at, sidecar, tags: tags(columns[4]) }, hex(columns[5]));
            let mut out = BytesMut::new();
            lock.encode(&mut out).unwrap();
            assert_eq!(&out[..], &stored[..]);
            assert_eq!(LockRecord::decode(&stored), Ok(lock));
            for cut in 0..stored.len() {
                assert!(LockRecord::decode(&stored[..cut]).is_err(), "cut at {cut}");
            }
            assert!(LockRecord::decode(&[&stored[..], b"x"].concat()).is_err());
            assert!(LockRecord::decode(&[&[2], &stored[1..]].concat()).is_err());
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

    /// The ```-blocks of the page in one language.
    fn blocks(language: &str) -> Vec<&'static str> {
        let fence = format!("```{language}\n");
        PAGE.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
    }

    #[test]
    fn the_examples_on_the_page_are_what_the_page_says() {
        let example = |block: &str| -> Vec<u8> {
            // Two-digit words are bytes, up to the first word that is not: there the explanation begins.
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
        let envelope = Envelope { stale_for: 60, built_at, rebuild: 250, tags: two_tags.clone() };
        assert_eq!(Envelope::open(item), Opened::Sealed { envelope, payload_at: 53 });
        assert_eq!(&item[53..], b"hello");
        assert_eq!(
            LockRecord::decode(lock),
            Ok(LockRecord { granted_at: built_at, sidecar: 7, tags: two_tags })
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
        numbers = tuple(map(int, rest[:4]))
        tags = [(n.encode(), int(v)) for n, v in (t.split("=") for t in rest[4].split(",") if t != "-")]
        assert read(value(rest[5]) + value(rest[6])) == ((*numbers, tags), value(rest[6])), line
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
        assert_eq!(
            seen,
            ["sealed", "plain", "unreadable"].map(|kind| golden(kind).len()).iter().sum::<usize>()
        );
    }
}
