//! What the item of a copy holds, and its key.
//!
//! The value follows a line of text: the life, the number of the change and the end in hexadecimal, each of 16 digits, and `=`, or
//! `-` if there is no value. The client's flags are those of the item.

use bytes::{Bytes, BytesMut};

use crate::kinds::command::{Cas, Value};
use crate::kinds::item::{INFIX, ItemKey, MAX_KEY, TOO_LONG, item_below};
use crate::kinds::machine::Side;

/// The length of the line with its end: an item of a copy that is longer has a value.
pub const HEADER: usize = 3 * 17 + 2;

/// What the key of a copy has behind that of its item: the infix, the number of the copy, and the fence.
const SUFFIX: usize = INFIX.len() + 17;

/// How many bytes a copy has more than the value and the key of its item.
pub const COPY_BYTES: usize = HEADER + SUFFIX;

/// How long the record of a value is kept that was deleted or not yet stored, in ms.
pub const KEPT_WITHOUT_VALUE: u64 = 60_000;

/// How many numbers a CAS that clients see may have: the largest is the last that floating point has exactly.
const CAS_NUMBERS: u64 = 1 << 53;

/// A value with the change that made it, as each of two servers has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Drawn for each life.
    pub(super) life: u64,
    /// The number of the change that made it, which grows within a life.
    pub(super) change: u64,
    /// When the value ends, in ms since 1970; 0: never.
    pub(super) ends: u64,
    pub(super) flags: u32,
    /// `None`: it was deleted, or not stored yet.
    pub(super) data: Option<Bytes>,
}

/// What stands under the key of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// A record with its CAS.
    Record(Record, Cas),
    /// There is none. The CAS is that of a stub, if one was asked for.
    Absent(Option<Cas>),
}

impl Record {
    /// The record of a value that does not exist yet, without a life. It ends if nothing is made of it.
    pub(super) fn nothing(now: u64) -> Record {
        Record { life: 0, change: 0, ends: now.saturating_add(KEPT_WITHOUT_VALUE), flags: 0, data: None }
    }

    /// The record after a change to this value.
    pub(super) fn changed(&self, data: Option<Bytes>, flags: u32, ends: u64) -> Record {
        Record { life: self.life, change: self.change + 1, ends, flags, data }
    }

    /// Whether there is a value at this time.
    pub(super) fn has_value(&self, now: u64) -> bool {
        self.data.is_some() && (self.ends == 0 || self.ends > now)
    }

    /// The CAS that clients see: another one after every change, never 0, and none above 2^53: some clients keep numbers in floating
    /// point, or with a sign.
    pub(super) fn cas(&self) -> u64 {
        match self.life.wrapping_add(self.change) % CAS_NUMBERS {
            0 => CAS_NUMBERS,
            cas => cas,
        }
    }

    /// The seconds that the value still lives, rounded up; `None`: for ever.
    pub(super) fn ttl(&self, now: u64) -> Option<u32> {
        let left = self.ends.saturating_sub(now).div_ceil(1000);
        (self.ends > 0).then(|| u32::try_from(left).unwrap_or(u32::MAX))
    }

    pub(super) fn encode(&self) -> Bytes {
        let Record { life, change, ends, .. } = self;
        let data = self.data.as_deref().unwrap_or_default();
        let state = if self.data.is_some() { '=' } else { '-' };
        let mut item = BytesMut::with_capacity(HEADER + data.len());
        item.extend_from_slice(format!("{life:016x} {change:016x} {ends:016x} {state}\n").as_bytes());
        item.extend_from_slice(data);
        item.freeze()
    }

    /// Decodes an item; `None` if it is not a copy.
    pub(super) fn decode(item: &Value) -> Option<Found> {
        if item.data.is_empty() {
            return Some(Found::Absent(Some(item.cas)));
        }
        let header = std::str::from_utf8(item.data.get(..HEADER)?).ok()?;
        let mut words = header.strip_suffix('\n')?.split(' ');
        let mut number = || words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        let (life, change, ends) = (number()?, number()?, number()?);
        let data = match words.next()? {
            "=" => Some(item.data.slice(HEADER..)),
            "-" => None,
            _ => return None,
        };
        Some(Found::Record(Record { life, change, ends, flags: item.flags, data }, item.cas))
    }
}

/// What an item of a copy is, for whoever looks at it without using it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenCopy {
    /// There is no copy, and somebody is about to store one.
    Stub,
    /// A copy that can be read.
    Record {
        /// The life that its changes belong to.
        life: u64,
        /// The number of the last change.
        change: u64,
        /// When the value ends, in ms since 1970; 0: never.
        ends: u64,
        /// The bytes of the value; `None`: there is none.
        value_bytes: Option<usize>,
    },
}

/// What is stored under the key of a copy; `None`: no copy.
pub fn seen_copy(data: &Bytes) -> Option<SeenCopy> {
    let item = Value { data: data.clone(), flags: 0, cas: Cas { number: 0, epoch: 0 }, ttl: None };
    Some(match Record::decode(&item)? {
        Found::Absent(_) => SeenCopy::Stub,
        Found::Record(Record { life, change, ends, data, .. }, _) => {
            SeenCopy::Record { life, change, ends, value_bytes: data.map(|data| data.len()) }
        }
    })
}

/// The error if there are no keys of copies for an item with so long a key. A line with its CRLF.
pub(in crate::kinds) fn check_length(key: usize) -> Result<(), &'static str> {
    if key + SUFFIX > MAX_KEY { Err(TOO_LONG) } else { Ok(()) }
}

/// The item, the copy and the fence that the key of a copy names; `None`: it is another key.
pub fn split_copy_key(key: &[u8]) -> Option<(&[u8], Side, u64)> {
    let (item, suffix) = key.split_at_checked(key.len().checked_sub(SUFFIX)?)?;
    let (side, fence) = suffix.strip_prefix(INFIX)?.split_first()?;
    let side = match side {
        b'1' => Side::First,
        b'2' => Side::Second,
        _ => return None,
    };
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let fence = std::str::from_utf8(fence).ok().filter(|fence| fence.bytes().all(|byte| is_digit(&byte)))?;
    Some((item, side, u64::from_str_radix(fence, 16).ok()?)).filter(|_| !item.is_empty())
}

/// The key of a copy in a place with this fence.
pub fn copy_key(own: &[u8], side: Side, fence: u64) -> Result<ItemKey, &'static str> {
    let side = if side == Side::First { 1 } else { 2 };
    item_below(own, format!("{side}{fence:016x}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(data: Bytes) -> Value {
        Value { data, flags: 7, cas: Cas { number: 5, epoch: 1 }, ttl: None }
    }

    #[test]
    fn a_record_is_decoded_as_it_was_encoded() {
        for data in [None, Some(Bytes::new()), Some(Bytes::from_static(b"a\r\n =\0"))] {
            let record = Record { life: u64::MAX, change: 3, ends: 1_700_000_000_000, flags: 7, data };
            let found = Found::Record(record.clone(), Cas { number: 5, epoch: 1 });
            assert_eq!(Record::decode(&item(record.encode())), Some(found));
        }
        let record = Record { life: 1, change: 2, ends: 3, flags: 7, data: Some(Bytes::from_static(b"x")) };
        assert_eq!(&record.encode()[..], b"0000000000000001 0000000000000002 0000000000000003 =\nx");
    }

    #[test]
    fn the_cas_is_another_one_after_every_change_and_exact_in_floating_point() {
        for life in [0, 1, 7, CAS_NUMBERS - 3, CAS_NUMBERS, u64::MAX - 3, u64::MAX, 0xfedc_ba98_7654_3210] {
            let mut record = Record { life, ..Record::nothing(1) };
            for _ in 0..8 {
                let next = record.changed(None, 0, 0);
                assert_ne!(record.cas(), next.cas(), "{life}");
                assert!((1..=1 << 53).contains(&next.cas()), "{life}");
                record = next;
            }
        }
    }

    #[test]
    fn the_key_of_a_copy_is_split_into_what_it_was_made_of_and_no_other_key_is() {
        for (item, side, fence) in [
            (&b"k"[..], Side::First, 0),
            (b"k@kennel:w12", Side::Second, u64::MAX),
            (b"a@kennel:1", Side::First, 0xab),
        ] {
            let key = copy_key(item, side, fence).unwrap();
            assert_eq!(split_copy_key(&key), Some((item, side, fence)));
        }
        for key in [
            "",
            "k",
            "k@kennel:w12",
            "@kennel:10000000000000000",
            "k@kennel:30000000000000000",
            "k@kennel:1000000000000000",
            "k@kennel:1000000000000000G",
            "k@kennel:1000000000000000A",
            "k@kennel:1+00000000000000f",
            "k@kennel#10000000000000000",
        ] {
            assert_eq!(split_copy_key(key.as_bytes()), None, "{key}");
        }
    }

    #[test]
    fn an_empty_item_is_a_stub_and_anything_else_is_no_copy() {
        let stub = Found::Absent(Some(Cas { number: 5, epoch: 1 }));
        assert_eq!(Record::decode(&item(Bytes::new())), Some(stub));
        let record = Record::nothing(1).encode();
        for bad in [&b"x"[..], b"hello", &record[..HEADER - 1], &[b'g'; HEADER], &[0xff; HEADER + 1]] {
            assert_eq!(Record::decode(&item(Bytes::copy_from_slice(bad))), None, "{}", bad.escape_ascii());
        }
    }
}
