//! Whatever opens seals to the same bytes, and whatever is sealed opens, with any payload behind it. Truncated anywhere or with a flipped
//! bit, its payload never begins elsewhere. What cannot be written is refused for the right reason and leaves nothing behind. Reading in
//! place allocates nothing, and copying at most [`ALLOCATED_PER_BYTE`].
//!
//! An input is interpreted as an item, as the part of an item after the magic and the format, as a lock, and as the numbers of an
//! envelope that is then sealed.

use bytes::BytesMut;
use kennel::guard::envelope::{
    Envelope, FORMAT, Header, LockRecord, MAGIC, MAX_HEADER, MAX_TAG_NAME, MAX_TAGS, Opened, SealError,
    TagName, Tags,
};

/// The maximum number of bytes allocated for each byte of an item that is read.
pub const ALLOCATED_PER_BYTE: usize = 32;

/// Panics if a property of this module does not hold for the input.
pub fn check(data: &[u8]) {
    opens(data);
    let behind = behind_the_format(data);
    opens(&behind);
    unlocks(data);
    unlocks(&behind[MAGIC.len()..]);
    let mut numbers = Numbers { data, at: 0 };
    seals(&mut numbers);
    locks(&mut numbers);
}

/// The input as an item with correct first bytes.
pub fn behind_the_format(data: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &[FORMAT], data].concat()
}

fn opens(item: &[u8]) {
    let opened = Envelope::open(item);
    match (&opened, Header::open(item)) {
        (Opened::Plain, Opened::Plain) => assert!(!item.starts_with(&MAGIC), "leaked as plain"),
        (Opened::Unreadable(why), Opened::Unreadable(same)) => {
            assert!(item.starts_with(&MAGIC) && *why == same);
        }
        (Opened::Sealed { envelope, payload_at }, Opened::Sealed { envelope: header, payload_at: same }) => {
            assert_eq!(*payload_at, same);
            assert!(*payload_at <= item.len(), "{payload_at} of {}", item.len());
            assert!(header.tags().eq(envelope.tags.iter().map(|(name, version)| (&name[..], *version))));
            assert!(
                allocated(&envelope.tags) <= ALLOCATED_PER_BYTE * payload_at,
                "{} bytes for {payload_at}",
                allocated(&envelope.tags)
            );
            let mut again = BytesMut::new();
            assert_eq!(envelope.seal(&mut again), Ok(()), "{envelope:?}");
            assert_eq!(&again[..], &item[..*payload_at], "{envelope:?}");
            // The payload has no influence.
            assert_eq!(Envelope::open(&again), opened);
        }
        (owned, in_place) => panic!("{owned:?}, in place {in_place:?}"),
    }
}

/// How much memory tags use in addition to their own.
fn allocated(tags: &Tags) -> usize {
    let names =
        tags.iter().filter(|(name, _)| name.spilled()).map(|(name, _)| name.capacity()).sum::<usize>();
    names + if tags.spilled() { tags.capacity() * size_of::<(TagName, u64)>() } else { 0 }
}

fn unlocks(item: &[u8]) {
    if let Ok(lock) = LockRecord::decode(item) {
        assert!(allocated(&lock.tags) <= ALLOCATED_PER_BYTE * item.len());
        let mut again = BytesMut::new();
        assert_eq!(lock.encode(&mut again), Ok(()), "{lock:?}");
        assert_eq!(&again[..], item, "{lock:?}");
    }
}

fn seals(numbers: &mut Numbers<'_>) {
    let envelope = Envelope {
        stale_for: numbers.next() as u32,
        built_at: numbers.next(),
        rebuild: numbers.next() as u32,
        fence: numbers.next(),
        tags: numbers.tags(),
    };
    let (cut, flip) = (numbers.next() as usize, numbers.next() as usize);
    let payload = numbers.rest();
    let mut item = BytesMut::from(payload);
    let before = item.len();
    let sealed = envelope.seal(&mut item);
    assert_eq!(sealed.err(), refusal(24, envelope.fence, &envelope.tags), "{envelope:?}");
    assert_eq!(&item[..before], payload, "what stood there is another");
    if sealed.is_err() {
        assert_eq!(item.len(), before, "a part of {envelope:?} is left behind");
        return;
    }
    let mut item = item.split_off(before);
    let payload_at = item.len();
    assert_eq!(envelope.header_len(), Ok(payload_at));
    item.extend_from_slice(payload);
    let opened = Opened::Sealed { envelope, payload_at };
    assert_eq!(Envelope::open(&item), opened);
    if cut % payload_at >= MAGIC.len() {
        let cut = Envelope::open(&item[..cut % payload_at]);
        assert!(matches!(cut, Opened::Unreadable(_)), "cut short, it is {cut:?}");
    }
    // A changed bit in the header never moves the payload.
    let bit = MAGIC.len() * 8 + flip % ((payload_at - MAGIC.len()) * 8);
    item[bit / 8] ^= 1 << (bit % 8);
    match Envelope::open(&item) {
        Opened::Unreadable(_) => {}
        damaged @ Opened::Sealed { payload_at: moved, .. } => {
            assert_eq!(moved, payload_at, "bit {bit}");
            assert_ne!(damaged, opened, "bit {bit}");
        }
        Opened::Plain => panic!("bit {bit}"),
    }
}

fn locks(numbers: &mut Numbers<'_>) {
    numbers.at = 0;
    let [granted_at, sidecar, fence] = std::array::from_fn(|_| numbers.next());
    let lock = LockRecord { granted_at, sidecar, fence, tags: numbers.tags() };
    let mut item = BytesMut::new();
    let encoded = lock.encode(&mut item);
    assert_eq!(encoded.err(), refusal(18, lock.fence, &lock.tags), "{lock:?}");
    if encoded.is_ok() {
        assert_eq!(LockRecord::decode(&item), Ok(lock));
    } else {
        assert!(item.is_empty(), "a part of {lock:?} is left behind");
    }
}

/// Why tags cannot be written after `before` bytes and a fence, which takes 8 unless it is 0.
fn refusal(before: usize, fence: u64, tags: &Tags) -> Option<SealError> {
    let length =
        before + 8 * usize::from(fence != 0) + tags.iter().map(|(name, _)| name.len() + 9).sum::<usize>();
    if tags.len() > MAX_TAGS {
        Some(SealError::TooManyTags)
    } else if tags.iter().any(|(name, _)| name.is_empty() || name.len() > MAX_TAG_NAME) {
        Some(SealError::TagName)
    } else {
        (length > MAX_HEADER).then_some(SealError::TooLong)
    }
}

/// The input as numbers, followed by zeros.
struct Numbers<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Numbers<'a> {
    fn byte(&mut self) -> u8 {
        let byte = self.data.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// The first byte determines the number of bytes: small numbers are short.
    fn next(&mut self) -> u64 {
        let bytes = self.byte() % 9;
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// A name takes two bytes, whatever its length, so that a short input can be a long header.
    fn tags(&mut self) -> Tags {
        let count = self.byte() % (MAX_TAGS as u8 + 2);
        let name = |length: u8, first: u8| (0..length).map(|i| first.wrapping_add(i)).collect();
        (0..count).map(|_| (name(self.byte(), self.byte()), self.next())).collect()
    }

    fn rest(&self) -> &'a [u8] {
        self.data.get(self.at..).unwrap_or_default()
    }
}
