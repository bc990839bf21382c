//! The stored form of a guarded value's header and of a lock.
//!
//! docs/wire-format.md specifies it byte by byte; `tests/golden/envelope.txt` pins both. This is the only file that uses
//! bincode. Everything stored is its fixed-width little-endian form, which any language can read, so the crate can be
//! replaced without changing what is stored.
//!
//! Any input is accepted: bytes that cannot be read give an error, and a wrong count or length allocates nothing.

use bincode::de::BorrowDecoder;
use bincode::de::read::BorrowReader;
use bincode::enc::Encoder;
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use bincode::{BorrowDecode, Decode, Encode};
use bytes::BytesMut;
use md5::{Digest, Md5};
use smallvec::SmallVec;

/// The first bytes of every envelope, chosen so that no common value starts with them. They are not UTF-8
/// (0xF7 occurs in no character), not deflate (block type 3), protobuf (wire type 7) or gob (a 9-byte
/// length). As a length prefix, in either byte order or as snappy's varint, they exceed any item. gzip, zstd,
/// lz4, pickle, PHP, igbinary, MessagePack maps, Marshal and Java start with other bytes.
pub const MAGIC: [u8; 4] = [0xF7, 0xCB, 0xCE, 0xCC];

/// The format of what has no fence. A reader that finds a format that it does not know reports a miss.
pub const FORMAT: u8 = 1;

/// The format of what has a fence: the same with one more field.
pub const FENCED_FORMAT: u8 = 2;

/// The most tags in one envelope or lock.
pub const MAX_TAGS: usize = 64;

/// The most tags that a client may name for one value, besides those of its rule.
pub const MAX_EXPLICIT_TAGS: usize = 16;

/// The longest name of a tag in bytes, equal to that of a key. The shortest is one byte.
pub const MAX_TAG_NAME: usize = 250;

/// The longest header in bytes, from the magic to the last tag.
pub const MAX_HEADER: usize = 16 * 1024;

/// The name of a tag, without the prefix of its key.
pub type TagName = SmallVec<[u8; 24]>;

/// Names of tags, without the prefix of their keys.
pub type TagNames = Vec<TagName>;

/// Tags with their versions, in the order of the rule.
pub type Tags = SmallVec<[(TagName, u64); 2]>;

/// The header of a guarded value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// How many of the item's last seconds in memcached count as stale: the item is stale if its remaining
    /// TTL is at most this.
    pub stale_for: u32,
    /// See [`built_at`].
    pub built_at: u64,
    /// Duration of the rebuild in milliseconds (XFetch's Δ); 0 if unknown.
    pub rebuild: u32,
    /// The fence of the place that the value was stored in; 0 in a pool without failover.
    pub fence: u64,
    /// The versions that were read before the rebuild began.
    pub tags: Tags,
}

/// An [`Envelope`] read in place, without copying. It has been validated to the last tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// See [`Envelope::stale_for`], in seconds.
    pub stale_for: u32,
    /// See [`built_at`].
    pub built_at: u64,
    /// See [`Envelope::rebuild`], in milliseconds.
    pub rebuild: u32,
    /// See [`Envelope::fence`].
    pub fence: u64,
    tags: &'a [u8],
}

/// How many bits of `built_at` are the millisecond; sufficient until the year 2527.
const MS_BITS: u32 = 44;

/// Combines the wall-clock millisecond at which the lease of this fill was granted with the number of the
/// stub over which the value is stored (20 bits; 0 if unknown).
pub fn built_at(ms: u64, stub: u32) -> u64 {
    ms.min((1 << MS_BITS) - 1) | u64::from(stub) << MS_BITS
}

/// The result of reading an item. An empty item is [`Opened::Plain`]; its length shows that it is a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened<E = Envelope> {
    /// A guarded value: everything from `payload_at` on is the client's.
    Sealed {
        /// Header in front of the value.
        envelope: E,
        /// Length of the header in bytes, at most that of the item.
        payload_at: usize,
    },
    /// No magic: a value that was stored without Kennel, or without an envelope.
    Plain,
    /// Starts like an envelope but cannot be read by this version. It must be treated as a miss. Holds the
    /// reason.
    Unreadable(&'static str),
}

/// Why an envelope or lock cannot be written. In that case nothing has been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealError {
    /// More than [`MAX_TAGS`] tags.
    TooManyTags,
    /// A name is empty or longer than [`MAX_TAG_NAME`].
    TagName,
    /// The whole is longer than [`MAX_HEADER`].
    TooLong,
}

impl Envelope {
    /// Length of the header in bytes, or why it cannot be written.
    pub fn header_len(&self) -> Result<usize, SealError> {
        encoded_len(PREAMBLE + FIELDS, self.fence, &self.tags)
    }

    /// Appends the header. The payload must follow.
    pub fn seal(&self, out: &mut BytesMut) -> Result<(), SealError> {
        let length = self.header_len()?;
        out.reserve(length);
        let start = out.len();
        put(Preamble { magic: MAGIC, format: format_with(self.fence), length: length as u16 }, out);
        put(Fields { stale_for: self.stale_for, built_at: self.built_at, rebuild: self.rebuild }, out);
        put_fence(self.fence, out);
        put_tags(&self.tags, out);
        debug_assert_eq!(out.len() - start, length);
        Ok(())
    }

    /// Reads an item into an owned envelope. On the hot path use [`Header::open`].
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

    /// The wall-clock millisecond at which the lease of this fill was granted.
    pub fn begun_at(&self) -> u64 {
        self.built_at & ((1 << MS_BITS) - 1)
    }

    /// The number of the stub over which the value was stored; a placeholder has that of the value it
    /// replaced. 0 if unknown.
    pub fn stub(&self) -> u32 {
        (self.built_at >> MS_BITS) as u32
    }

    /// The tags, in the order of the rule.
    pub fn tags(&self) -> TagsIter<'a> {
        TagsIter { rest: &self.tags[1..] }
    }

    /// Copies the header out of the item's bytes.
    pub fn to_owned(&self) -> Envelope {
        let Header { stale_for, built_at, rebuild, fence, .. } = *self;
        let tags = self.tags().map(|(n, v)| (n.into(), v)).collect();
        Envelope { stale_for, built_at, rebuild, fence, tags }
    }

    fn read(item: &'a [u8]) -> Result<(Header<'a>, usize), &'static str> {
        // The format must be checked before the length: a newer format may have another field there.
        let format = match item.get(MAGIC.len()) {
            None => return Err("cut short"),
            Some(format @ &(FORMAT | FENCED_FORMAT)) => *format,
            Some(0) => return Err("format 0 does not exist"),
            Some(_) => return Err("format is newer than this version reads"),
        };
        let (Preamble { length, .. }, _) = get::<Preamble>(item)?;
        let length = usize::from(length);
        if length > MAX_HEADER {
            return Err("header is longer than any that is written");
        }
        let header = item.get(PREAMBLE..length).ok_or("cut short")?;
        let (Fields { stale_for, built_at, rebuild }, at) = get::<Fields>(header)?;
        let (fence, tags) = get_fence(format, &header[at..])?;
        check_tags(tags)?;
        Ok((Header { stale_for, built_at, rebuild, fence, tags }, length))
    }
}

/// Names and versions of an envelope's tags, read in place.
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

/// The content of a lock: its holder, and the versions its rebuild is based on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRecord {
    /// The wall-clock millisecond at which the lease was granted.
    pub granted_at: u64,
    /// Identifies the sidecar that holds the lock: a random number drawn at its start.
    pub sidecar: u64,
    /// The fence under which the lease was granted; 0 in a pool without failover.
    pub fence: u64,
    /// The versions that were read before the rebuild began. Once one has changed, waiting for this lock is
    /// pointless.
    pub tags: Tags,
}

impl LockRecord {
    /// Appends the record, which is the whole value of the lock's item.
    pub fn encode(&self, out: &mut BytesMut) -> Result<(), SealError> {
        out.reserve(encoded_len(LOCK_FIELDS, self.fence, &self.tags)?);
        let format = format_with(self.fence);
        put(LockFields { format, granted_at: self.granted_at, sidecar: self.sidecar }, out);
        put_fence(self.fence, out);
        put_tags(&self.tags, out);
        Ok(())
    }

    /// The same without the tags if they do not fit: then nobody sees that the rebuild is based on versions that no longer count.
    pub fn encode_what_fits(self, out: &mut BytesMut) {
        if self.encode(out).is_err() {
            // Without tags, nothing is too large.
            let _ = LockRecord { tags: Tags::new(), ..self }.encode(out);
        }
    }

    /// Reads the item of a lock, or returns why it cannot be read. Such a lock holds nobody.
    pub fn decode(item: &[u8]) -> Result<LockRecord, &'static str> {
        match item.first() {
            None => return Err("lock is empty"),
            Some(&(FORMAT | FENCED_FORMAT)) => {}
            Some(_) => return Err("format of the lock is not one that this version reads"),
        }
        let (LockFields { format, granted_at, sidecar }, at) = get::<LockFields>(item)?;
        let (fence, tags) = get_fence(format, &item[at..])?;
        check_tags(tags)?;
        let tags = TagsIter { rest: &tags[1..] }.map(|(n, v)| (n.into(), v)).collect();
        Ok(LockRecord { granted_at, sidecar, fence, tags })
    }
}

/// What the key of every lock begins with. No client may use such a key.
pub const LOCK_PREFIX: &[u8] = b"@lock:";

/// The key of the lock on `key`: at most 250 bytes, all valid in the text protocol (the base64 key of a meta
/// command may hold any bytes). The lock is stored on the server of `key`, not where the ring would place its
/// own key.
pub fn lock_key(key: &[u8]) -> SmallVec<[u8; 64]> {
    if key.len() <= 250 - LOCK_PREFIX.len()
        && !key.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r' | b' '))
    {
        let mut lock = SmallVec::from_slice(LOCK_PREFIX);
        lock.extend_from_slice(key);
        lock
    } else {
        digest_key(b"@lock:#", key)
    }
}

/// This prefix and the MD5 of the key in hexadecimal.
pub fn digest_key(prefix: &[u8], key: &[u8]) -> SmallVec<[u8; 64]> {
    let mut digest = SmallVec::from_slice(prefix);
    for byte in Md5::digest(key) {
        digest.extend([byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)]));
    }
    digest
}

// The stored form. Every number has the width given here, little-endian, without padding.

const PREAMBLE: usize = 7;
const FIELDS: usize = 16;
const LOCK_FIELDS: usize = 17;

#[derive(Encode, Decode)]
struct Preamble {
    magic: [u8; 4],
    format: u8,
    /// From the magic to the last tag: the payload is everything behind, even after appends.
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

/// Bytes behind a one-byte length; bincode's own slices have an eight-byte length.
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

fn format_with(fence: u64) -> u8 {
    if fence == 0 { FORMAT } else { FENCED_FORMAT }
}

fn put_fence(fence: u64, out: &mut BytesMut) {
    if fence != 0 {
        put(fence, out);
    }
}

/// The fence of an item in this format, and what follows it.
fn get_fence(format: u8, from: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    if format == FORMAT {
        return Ok((0, from));
    }
    match get::<u64>(from)? {
        (0, _) => Err("fence 0 does not exist"),
        (fence, at) => Ok((fence, &from[at..])),
    }
}

fn put_tags(tags: &Tags, out: &mut BytesMut) {
    put(tags.len() as u8, out);
    for (name, version) in tags {
        put(Tag { name: Name(name), version: *version }, out);
    }
}

/// Checks that `tags` is a count and exactly that many valid tags.
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

fn encoded_len(fields: usize, fence: u64, tags: &Tags) -> Result<usize, SealError> {
    if tags.len() > MAX_TAGS {
        return Err(SealError::TooManyTags);
    }
    if tags.iter().any(|(name, _)| name.is_empty() || name.len() > MAX_TAG_NAME) {
        return Err(SealError::TagName);
    }
    let fields = fields + if fence == 0 { 0 } else { size_of::<u64>() };
    let length = fields + 1 + tags.iter().map(|(name, _)| 1 + name.len() + 8).sum::<usize>();
    if length > MAX_HEADER { Err(SealError::TooLong) } else { Ok(length) }
}

#[cfg(test)]
mod tests;
