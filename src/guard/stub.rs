//! The flags of a stub: which stub it is, which build of its value this is, how long that has lasted, and whether the stub is
//! free.
//!
//! A stub that memcached creates for a reader (`mg … N`) has flags 0 and is identified by its CAS. A renewal changes the
//! CAS and stores the original identity in the flags. A client that missed over a stub can therefore tell, through any
//! sidecar, that the stub is still the same one and that nothing has been stored or deleted since: every store and every
//! delete removes the stub.

use md5::{Digest, Md5};

use super::command::{Cas, Item, ItemRef, Operation, ServerCommand, StoreMode, Stored};
use super::envelope::{Header, Opened};
use super::policy::Policy;

/// The flags have the layout defined here. Clear in a stub that was never renewed.
const RENEWED: u32 = 1 << 31;
/// The value is not being built: the next reader may build it.
const FREE: u32 = 1 << 30;
/// How many bits of the first CAS identify a stub among those of its key.
const ID_BITS: u32 = 20;
/// The turn: how often the right to build has passed on to another client, modulo [`TURNS`].
const TURN_AT: u32 = ID_BITS + AGE_BITS;
const TURNS: u8 = 4;
/// The turn of a stub that replaces a value under that value's identity, so that it differs from that of the build which stored it.
const TURN_IN_PLACE: u8 = 2;
/// The flags of a stub that a sidecar has stored over a value of which no stub is known: its CAS identifies it, and its age is 0. No other
/// stub has the highest turn and the number 0 at this age.
const OF_ITS_CAS: u32 = RENEWED | 3 << TURN_AT | 1;
/// The lowest bits are the age, in units of this many milliseconds. The highest value also stands for all
/// greater ages.
const AGE_BITS: u32 = 8;
const AGE_UNIT_MS: u64 = 256;

/// Identifies one stub among all that a key ever had. Two stubs of a key have the same number only if 2^20
/// CAS numbers, or a multiple of that, lie between them. A number derived from a header collides once in
/// 2^20. Number 0 in an envelope means that the stub is unknown.
///
/// A value records the stub over which it was stored ([`Header::stub`]). A value whose tag has changed thus
/// proves that the key has not been deleted since that stub was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StubId(u32);

/// A stub, as returned by a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stub {
    pub(super) id: StubId,
    /// How long its value had been in the making when the stub was stored, in milliseconds.
    pub(super) age: u64,
    /// The client that built the value has given up.
    pub(super) is_free: bool,
    /// Which client in turn builds the value: it changes when another one takes the stub.
    pub(super) turn: u8,
}

impl StubId {
    /// The flags of this stub after a renewal, without its age.
    pub fn flags(self) -> u32 {
        self.0
    }

    /// Identifies a stub that was stored, or created by memcached, under this CAS number.
    pub(super) fn of(number: u64) -> StubId {
        StubId(RENEWED | ((number & ((1 << ID_BITS) - 1)) as u32) << AGE_BITS)
    }

    /// Identifies a value that may not be served, for every reader that finds it: by the stub over which it
    /// was stored. A value that was marked stale has another identity, because the mark may be a delete.
    pub(super) fn of_unservable(item: &Item) -> Option<StubId> {
        if item.stale { Some(StubId::of(item.cas.number)) } else { StubId::of_value(&item.value) }
    }

    /// Identifies the stub over which this value was stored. If that is unknown, the identity is derived from
    /// the header, so that no other header has it. `None`: the value has no readable header.
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

    /// Identifies what a store over this item follows: the stub, or the stub over which the value was stored. A value that was
    /// marked stale, or that has no header, has an identity of its own, because whatever made it so may be an invalidation.
    ///
    /// A value records this number of what it was stored over. A value that has the identity of an earlier miss was therefore
    /// stored over the item of that miss, directly or over others that were, and nothing was invalidated in between.
    pub(super) fn of_item(item: &Item) -> StubId {
        let stub = Stub::of(item).map(|stub| stub.id);
        stub.or_else(|| StubId::of_unservable(item)).unwrap_or(StubId::of(item.cas.number))
    }

    /// The number, of 20 bits.
    pub(super) fn number(self) -> u32 {
        self.0 >> AGE_BITS & ((1 << ID_BITS) - 1)
    }
}

impl Stub {
    /// `None` if the item has a value.
    pub(super) fn of(item: &Item) -> Option<Stub> {
        let Item { size: 0, flags, cas, .. } = *item else { return None };
        if flags == OF_ITS_CAS {
            return Some(Stub { id: StubId::of(cas.number), age: 0, is_free: false, turn: 0 });
        }
        // A sidecar of an earlier version stores only the age, in milliseconds.
        if flags & RENEWED == 0 {
            return Some(Stub { id: StubId::of(cas.number), age: u64::from(flags), is_free: false, turn: 0 });
        }
        let id = StubId(flags & (RENEWED | ((1 << ID_BITS) - 1) << AGE_BITS));
        let turn = (flags >> TURN_AT) as u8 % TURNS;
        let age = u64::from(flags & ((1 << AGE_BITS) - 1)) * AGE_UNIT_MS;
        Some(Stub { id, age, is_free: flags & FREE != 0, turn })
    }

    /// The same stub, whose value another client begins to build.
    pub(super) fn taken(self) -> Stub {
        Stub { is_free: false, age: 0, turn: (self.turn + 1) % TURNS, ..self }
    }

    /// Stores the stub again over this CAS, with this TTL in seconds.
    pub(super) fn store_command(self, cas: Option<Cas>, seconds: u32) -> ServerCommand {
        let age = (self.age / AGE_UNIT_MS).min((1 << AGE_BITS) - 1) as u32;
        let free = if self.is_free { FREE } else { 0 };
        store(self.id.flags() | free | u32::from(self.turn) << TURN_AT | age, cas, seconds)
    }
}

/// Replaces the item with this CAS by a stub. With an `id` of `None` the new CAS identifies the stub.
pub(super) fn stub_in_place(id: Option<StubId>, cas: Option<Cas>, policy: &Policy) -> ServerCommand {
    let flags = id.map_or(OF_ITS_CAS, |id| id.flags() | u32::from(turn_in_place(Some(id))) << TURN_AT);
    store(flags, cas, policy.lock_seconds())
}

/// The turn of that stub.
pub(super) fn turn_in_place(id: Option<StubId>) -> u8 {
    if id.is_some() { TURN_IN_PLACE } else { 0 }
}

/// Whether these are the flags of a stub that a sidecar has stored, and hardly those of a client's empty value.
pub(super) fn has_stub_flags(flags: u32) -> bool {
    flags & RENEWED != 0 && flags != RENEWED && flags != u32::MAX
}

fn store(flags: u32, cas: Option<Cas>, seconds: u32) -> ServerCommand {
    let (mode, value, exptime) = (StoreMode::Set, Stored::default(), i64::from(seconds));
    ServerCommand {
        item: ItemRef::Value,
        operation: Operation::Store { mode, value, flags, exptime, cas, explicit: None },
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
        let Operation::Store { flags, .. } = stub.store_command(None, 6).operation else {
            panic!("no store")
        };
        item(flags, number)
    }

    #[test]
    fn a_stub_keeps_its_identity_through_renewals_and_shares_it_with_no_other() {
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
    fn a_stub_that_is_taken_has_another_turn_no_age_and_the_same_identity() {
        let mut stub = Stub { age: 5_000, ..Stub::of(&item(0, 7)).unwrap() };
        let mut turns = Vec::new();
        for number in 8..12 {
            stub = Stub::of(&stored(stub.taken(), number)).unwrap();
            assert_eq!((stub.id, stub.age, stub.is_free), (StubId::of(7), 0, false));
            turns.push(stub.turn);
            let renewed = Stub::of(&stored(Stub { age: 2_048, ..stub }, number + 100)).unwrap();
            assert_eq!(renewed, Stub { age: 2_048, ..stub });
        }
        assert_eq!(turns, [1, 2, 3, 0]);
    }

    #[test]
    fn a_stub_over_a_value_of_no_known_stub_is_told_from_an_empty_value_and_has_its_own_identity() {
        let Operation::Store { flags, .. } = stub_in_place(None, None, &Policy::default()).operation else {
            panic!("no store")
        };
        assert!(has_stub_flags(flags));
        let of_its_cas = Stub { id: StubId::of(7), age: 0, is_free: false, turn: 0 };
        assert_eq!((Stub::of(&item(flags, 7)), Stub::of(&item(0, 7))), (Some(of_its_cas), Some(of_its_cas)));
    }

    #[test]
    fn an_age_is_capped_and_that_of_an_earlier_version_is_read_unchanged() {
        let old = Stub { age: 10_000_000, ..Stub::of(&item(0, 7)).unwrap() };
        assert_eq!(Stub::of(&stored(old, 8)).unwrap().age, 255 * AGE_UNIT_MS);
        assert_eq!(Stub::of(&item(1_670, 7)).unwrap(), Stub { age: 1_670, ..Stub::of(&item(0, 7)).unwrap() });
        assert_eq!(Stub::of(&Item { size: 1, ..item(0, 7) }), None);
    }
}
