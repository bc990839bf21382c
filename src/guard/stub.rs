//! The flags of a stub: which stub it is, how long its value has been in the making, and whether it is free.
//!
//! A stub that memcached creates for a reader (`mg … N`) has flags 0 and is identified by its CAS. A renewal changes the
//! CAS and stores the original identity in the flags. A client that missed over a stub can therefore tell, through any
//! sidecar, that the stub is still the same one and that nothing has been stored or deleted since: every store and every
//! delete removes the stub.

use md5::{Digest, Md5};

use super::command::{Cas, Item, ItemRef, Operation, ServerCommand, StoreMode, Stored};
use super::envelope::{Header, Opened};
use super::policy::Policy;

/// The flags have the layout of this page, not those of a stub that was never renewed.
const RENEWED: u32 = 1 << 31;
/// Nobody builds the value: the next reader may.
const FREE: u32 = 1 << 30;
/// So many bits of the first CAS tell one stub of a key from another.
const ID_BITS: u32 = 20;
/// The lowest bits are the age, in units of so many milliseconds. The highest stands for all that are older.
const AGE_BITS: u32 = 8;
const AGE_UNIT_MS: u64 = 256;

/// Which of the stubs that a key ever had. Two that stood under one key share a number only if 2^20 CASes lie between them, or a
/// multiple of that; or, where a number is made from a header, once in 2^20. A value that tells number 0 tells nothing.
///
/// What is stored over a stub goes on telling which stub that was ([`Header::stub`]). So a value whose tag has moved can be known as
/// one before which the key was not deleted since that stub stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StubId(u32);

/// A stub, as a look shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stub {
    pub(super) id: StubId,
    /// For how many ms its value has been in the making, when it was stored.
    pub(super) age: u64,
    /// Whoever built the value has given it up.
    pub(super) is_free: bool,
}

impl StubId {
    /// What the flags of this stub are, without its age, once it has been renewed.
    pub fn flags(self) -> u32 {
        self.0
    }

    /// Of a stub that is stored, or was made, under this CAS number.
    pub(super) fn of(number: u64) -> StubId {
        StubId(RENEWED | ((number & ((1 << ID_BITS) - 1)) as u32) << AGE_BITS)
    }

    /// By which all know a value again that find it, and nobody is to see it: the stub that it was stored over. Once it was marked stale
    /// it is another one, for that may have been a delete.
    pub(super) fn of_unseen(item: &Item) -> Option<StubId> {
        if item.stale { Some(StubId::of(item.cas.number)) } else { StubId::of_value(&item.value) }
    }

    /// Of the stub that this value was stored over; if it does not know, of one that would have left this header and no other. `None`: it
    /// has no header that can be read.
    pub(super) fn of_value(value: &[u8]) -> Option<StubId> {
        let Opened::Sealed { envelope, payload_at } = Header::open(value) else { return None };
        match envelope.stub() {
            0 => {
                let digest = Md5::digest(&value[..payload_at]);
                Some(StubId::of(u64::from(u32::from_le_bytes([digest[0], digest[1], digest[2], 0]))))
            }
            stub => Some(StubId::of(stub.into())),
        }
    }

    /// Its number, of 20 bits.
    pub(super) fn number(self) -> u32 {
        self.0 >> AGE_BITS & ((1 << ID_BITS) - 1)
    }
}

impl Stub {
    /// `None`: the item has a value.
    pub(super) fn of(item: &Item) -> Option<Stub> {
        let Item { size: 0, flags, cas, .. } = *item else { return None };
        // A sidecar of an earlier version stores the age alone, in ms.
        if flags & RENEWED == 0 {
            return Some(Stub { id: StubId::of(cas.number), age: u64::from(flags), is_free: false });
        }
        let id = StubId(flags & !(FREE | ((1 << AGE_BITS) - 1)));
        let age = u64::from(flags & ((1 << AGE_BITS) - 1)) * AGE_UNIT_MS;
        Some(Stub { id, age, is_free: flags & FREE != 0 })
    }

    /// Stores it anew, over this CAS, for so many seconds.
    pub(super) fn store_command(self, cas: Option<Cas>, seconds: u32) -> ServerCommand {
        let age = (self.age / AGE_UNIT_MS).min((1 << AGE_BITS) - 1) as u32;
        store(self.id.flags() | if self.is_free { FREE } else { 0 } | age, cas, seconds)
    }
}

/// Puts a stub in the place of what has this CAS. `None`: it is known by the CAS that it is given with that, as one that memcached makes.
pub(super) fn stub_in_place(id: Option<StubId>, cas: Option<Cas>, policy: &Policy) -> ServerCommand {
    store(id.map_or(0, StubId::flags), cas, policy.lock_seconds())
}

fn store(flags: u32, cas: Option<Cas>, seconds: u32) -> ServerCommand {
    let (mode, value, exptime) = (StoreMode::Set, Stored::default(), i64::from(seconds));
    ServerCommand {
        at: ItemRef::Value,
        what: Operation::Store { mode, value, flags, exptime, cas, explicit: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::fixtures;

    fn item(flags: u32, number: u64) -> Item {
        Item { flags, ttl: Some(6), ..fixtures::item("", number) }
    }

    fn stored(stub: Stub, number: u64) -> Item {
        let Operation::Store { flags, .. } = stub.store_command(None, 6).what else { panic!("it stores") };
        item(flags, number)
    }

    #[test]
    fn a_stub_is_the_same_one_after_any_number_of_renewals_and_no_other_is() {
        let first = Stub::of(&item(0, 0x1234_5678_9abc)).unwrap();
        assert_eq!((first.age, first.is_free), (0, false));
        let mut stub = first;
        for (round, is_free) in [(1, false), (2, true), (3, false)] {
            let renewed = stored(Stub { age: round * 1_700, is_free, ..stub }, 0x2000 + round);
            stub = Stub::of(&renewed).unwrap();
            assert_eq!((stub.id, stub.is_free), (first.id, is_free));
            assert_eq!(stub.age, round * 1_700 / AGE_UNIT_MS * AGE_UNIT_MS);
        }
        for other in [0x1234_5678_9abd, 1, u64::MAX] {
            assert_ne!(Stub::of(&item(0, other)).unwrap().id, first.id);
        }
    }

    #[test]
    fn an_age_stops_at_what_fits_and_an_earlier_versions_is_read_as_it_is() {
        let old = Stub { age: 10_000_000, ..Stub::of(&item(0, 7)).unwrap() };
        assert_eq!(Stub::of(&stored(old, 8)).unwrap().age, 255 * AGE_UNIT_MS);
        assert_eq!(Stub::of(&item(1_670, 7)).unwrap(), Stub { age: 1_670, ..Stub::of(&item(0, 7)).unwrap() });
        assert_eq!(Stub::of(&Item { size: 1, ..item(0, 7) }), None);
    }
}
