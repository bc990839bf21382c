//! When two states are the same.
//!
//! Two states are the same if no later step can distinguish them.
//!
//! - **Names.** CASes, tokens, waiters and tag versions are only ever compared with each other, so they are renamed in the order in
//!   which they occur, versions by their order, connections by how many were made since. A state that recurs with higher numbers is
//!   then the same, and clients that never stop have finitely many states. Where a sidecar may receive the replies of two wins in any
//!   order, which win is the later one is part of the state.
//! - **Symmetry.** If each client has its own sidecar, and no invalidation remains or is in progress, a state and its mirror image
//!   are the same. Each step records whether it mirrored the state, so that a reply to one client does not count as one to the other.
//! - **Values on which no decision depends**: when something was built or granted, and by which sidecar; the queries whose replies are
//!   awaited, which the commands in flight imply; the CAS that only a meta client would name; the recipient of a value's mark; the
//!   writer of what no client holds; the last winner, once it has stored.
//! - **Commands without effect.** A late command whose reply is not awaited is dropped if it only reads, or compares with a CAS that no
//!   item has: a CAS does not recur during a server's life, and what was sent before a restart does not arrive after it. So all CASes
//!   that no item has, and that are in no reply held back until others arrive, are the same, unless a restart may bring one back.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use kennel::guard::envelope::{Header, LockRecord, Opened};
use smallvec::SmallVec;

use super::server::{FIRST_CAS, FIRST_CAS_OF_TAGS};
use super::world::{FIRST_EPOCH, MONO, WALL};

/// Within a sidecar these are ids of tokens and waiters, which count from one.
const IDS: Range<u64> = 1..1000;
const CASES: Range<u64> = FIRST_CAS..FIRST_CAS + (1 << 20);
/// Wall clock times, and so versions of tags.
const VERSIONS: Range<u64> = WALL..WALL + 1000;
/// The flags of stubs begin here; the bits after its age are part of its first CAS.
const STUBS: u32 = 1 << 31;
const STUB_IDS: u32 = (1 << 22) - 1;
/// Connections have their own range so that they differ from tokens.
pub const OWNERS: u64 = 1 << 40;
const PEOPLE: Range<u64> = OWNERS..OWNERS + 100;

/// A client, a sidecar, or an operation of one: the state with both sides exchanged is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who(pub usize);

impl Hash for Who {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(OWNERS + self.0 as u64);
    }
}

/// The number written last. It is kept until the next one is known.
#[derive(Clone, Copy)]
enum Word {
    Long(u64),
    Byte(u8),
    /// The CAS of a stub that was never renewed: it identifies the stub.
    Stub(u64),
}

/// A hasher that renames.
pub struct Canon {
    lanes: [u64; 2],
    cases: SmallVec<[u64; 16]>,
    ids: SmallVec<[u64; 8]>,
    versions: SmallVec<[u64; 8]>,
    last: Option<Word>,
    /// The progress in an item without a value: its size, its flags.
    empty: u8,
    /// In a lease table: its last number is the next token's id, which is not part of the state.
    table: bool,
    inside: bool,
    /// The epochs of the connections to the server and to the tags' server.
    epochs: [u32; 2],
    /// Both sides are exchanged.
    flipped: bool,
    /// The CASes that are stored or may still occur, if all others are equal: those that are gone for good.
    live: Option<SmallVec<[u64; 8]>>,
}

impl Canon {
    pub fn new(epochs: [u32; 2], flipped: bool) -> Canon {
        let (cases, ids, versions) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        let (table, inside, last, lanes) = (false, false, None, [0; 2]);
        Canon { lanes, cases, ids, versions, last, empty: 0, table, inside, epochs, flipped, live: None }
    }

    /// No CAS but these will be stored again, or compared with anything but the stored one.
    pub fn only(&mut self, live: impl Iterator<Item = u64>) {
        self.live = Some(live.collect());
    }

    /// Each sidecar numbers its own tokens and waiters.
    pub fn sidecar(&mut self) {
        self.flush();
        self.ids.clear();
        self.inside = true;
    }

    /// What follows belongs to no sidecar.
    pub fn outside(&mut self) {
        self.flush();
        self.inside = false;
    }

    /// Hashes a lease table without the number that it will assign next.
    pub fn table(&mut self, leases: &impl Hash) {
        self.flush();
        self.table = true;
        leases.hash(self);
        self.table = false;
        self.last = None;
    }

    /// The rank of each number among these.
    pub fn order<T: Ord>(&mut self, numbers: &[T]) {
        self.flush();
        for number in numbers {
            let below = numbers.iter().filter(|other| *other < number).count();
            self.mix(below as u64);
        }
    }

    /// The fingerprint.
    pub fn end(mut self) -> u128 {
        self.flush();
        let versions = std::mem::take(&mut self.versions);
        self.order(&versions);
        u128::from(self.lanes[0]) << 64 | u128::from(self.lanes[1])
    }

    fn mix(&mut self, number: u64) {
        const FACTORS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F];
        let [first, second] = &mut self.lanes;
        let product = u128::from(*first ^ number ^ FACTORS[1].rotate_left(17)) * u128::from(FACTORS[0]);
        *first = (product as u64) ^ ((product >> 64) as u64).rotate_left(23) ^ first.rotate_left(5);
        *second = (second.rotate_left(5) ^ number).wrapping_mul(FACTORS[1]);
    }

    fn rename(&mut self, number: u64) {
        let at = |names: &mut [u64]| names.iter().position(|known| *known == number);
        let (found, count, kind) = if self.inside && IDS.contains(&number) {
            (at(&mut self.ids), self.ids.len(), 1 << 60)
        } else if CASES.contains(&number) {
            if self.live.as_ref().is_some_and(|live| !live.contains(&number)) {
                return self.mix(4 << 60);
            }
            (at(&mut self.cases), self.cases.len(), 2 << 60)
        } else if VERSIONS.contains(&number) {
            (at(&mut self.versions), self.versions.len(), 3 << 60)
        } else if PEOPLE.contains(&number) {
            return self.mix(self.person(number));
        } else {
            return self.mix(number);
        };
        if found.is_none() {
            match kind >> 60 {
                1 => self.ids.push(number),
                2 => self.cases.push(number),
                _ => self.versions.push(number),
            }
        }
        self.mix(kind + found.unwrap_or(count) as u64);
    }

    /// The stub that this first CAS identifies: it is compared although it may be gone.
    fn rename_stub(&mut self, cas: u64) {
        let live = self.live.take();
        self.rename(cas);
        self.live = live;
    }

    fn person(&self, number: u64) -> u64 {
        // The numbers of background operations follow, then the connections through the other sidecar.
        let has_a_twin = matches!(number - OWNERS, 0 | 1 | 10 | 11);
        if self.flipped && has_a_twin { number ^ 1 } else { number }
    }

    fn flush(&mut self) {
        match self.last.take() {
            // The CAS that a client received with its miss: only meta clients pass it.
            Some(Word::Long(cas)) if self.table && CASES.contains(&cas) => {}
            Some(Word::Long(number)) => self.rename(number),
            Some(Word::Stub(cas)) => self.rename_stub(cas),
            Some(Word::Byte(number)) => self.mix(u64::from(number)),
            None => {}
        }
    }

    fn plain(&mut self, number: u64) {
        self.flush();
        self.mix(number);
    }

    fn raw(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            match u64::from_le_bytes(word) {
                version if VERSIONS.contains(&version) => self.rename(version),
                number => self.mix(number),
            }
        }
    }
}

impl Hasher for Canon {
    fn finish(&self) -> u64 {
        self.lanes[0] ^ self.lanes[1].rotate_left(32)
    }

    /// What is stored contains when and by whom it was built; no decision depends on that.
    fn write(&mut self, bytes: &[u8]) {
        self.flush();
        self.empty = 0;
        if let Opened::Sealed { envelope, payload_at } = Header::open(bytes) {
            self.mix(u64::from(envelope.stale_for));
            self.rename_stub(FIRST_CAS + u64::from(envelope.stub()));
            for (_, version) in envelope.tags() {
                self.rename(version);
            }
            self.raw(&bytes[payload_at..]);
        } else if let Ok(record) = LockRecord::decode(bytes) {
            for (_, version) in &record.tags {
                self.rename(*version);
            }
        } else if let Some(version) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()) {
            self.rename(version);
        } else {
            self.raw(bytes);
        }
    }

    /// No decision depends on a state machine's number of attempts below sixteen. A read's is over when it began; that of a tag
    /// read before what it creates tags with.
    fn write_u8(&mut self, number: u8) {
        self.empty = 0;
        if self.table {
            // Two failed attempts are equivalent to more.
            return self.plain(u64::from(number.min(2)));
        }
        let behind_a_moment = matches!(self.last, Some(Word::Long(MONO)));
        self.flush();
        if !behind_a_moment {
            self.last = Some(Word::Byte(number));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.empty = if (self.empty, number) == (1, 0) { 2 } else { 0 };
        match self.last {
            Some(Word::Long(cas) | Word::Stub(cas)) if CASES.contains(&cas) && number >= FIRST_EPOCH => {
                match self.last.take() {
                    Some(Word::Stub(_)) => self.rename_stub(cas),
                    _ => self.rename(cas),
                }
                let epoch = self.epochs[usize::from(cas >= FIRST_CAS_OF_TAGS)];
                self.mix(u64::from(epoch.wrapping_sub(number)));
            }
            _ if number >= STUBS => {
                self.flush();
                self.rename_stub(FIRST_CAS + u64::from(number >> 8 & STUB_IDS));
                self.mix(u64::from(number & !(STUB_IDS << 8)));
            }
            _ => self.plain(u64::from(number)),
        }
    }

    fn write_u64(&mut self, number: u64) {
        match self.last {
            Some(Word::Byte(_)) if number == 0 || VERSIONS.contains(&number) => {}
            // A time by both clocks; the wall clock's dates what is sealed.
            Some(Word::Long(wall)) if number == MONO && VERSIONS.contains(&wall) => {}
            _ => self.flush(),
        }
        let is_stub = std::mem::take(&mut self.empty) == 2;
        self.last = Some(if is_stub { Word::Stub(number) } else { Word::Long(number) });
    }

    fn write_i64(&mut self, number: i64) {
        self.empty = 0;
        self.plain(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.plain(number as u64);
        self.empty = u8::from(number == 0);
    }

    fn write_isize(&mut self, number: isize) {
        self.empty = 0;
        self.plain(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use kennel::guard::{Cas, Now};

    use super::*;

    fn hashed(state: &impl Hash, flipped: bool) -> u128 {
        let mut canon = Canon::new([FIRST_EPOCH + 5; 2], flipped);
        canon.sidecar();
        state.hash(&mut canon);
        canon.end()
    }

    fn same(a: &impl Hash, b: &impl Hash) -> bool {
        hashed(a, false) == hashed(b, false)
    }

    #[test]
    fn states_that_differ_only_in_the_numbers_of_cases_and_tokens_are_one() {
        let state = |a: u64, b: u64| (a, b, a, 5_u32);
        assert!(same(&state(FIRST_CAS + 1, FIRST_CAS + 2), &state(FIRST_CAS + 9, FIRST_CAS + 4)));
        assert!(!same(&state(FIRST_CAS + 1, FIRST_CAS + 2), &state(FIRST_CAS + 9, FIRST_CAS + 9)));
        assert!(same(&state(3, 4), &state(7, 6)));
        assert!(!same(&state(3, 4), &state(3, FIRST_CAS)));
        assert!(!same(&state(5000, 4), &state(6000, 4)));
        assert!(!same(&6_i64, &110_i64));
        let outside = |number: u64| {
            let mut canon = Canon::new([FIRST_EPOCH; 2], false);
            number.hash(&mut canon);
            canon.end()
        };
        assert_ne!(outside(3), outside(4));
    }

    #[test]
    fn of_versions_which_is_the_later_is_part_of_the_state() {
        let versions = |a: u64, b: u64| (WALL + a, 1_u32, (WALL + b).to_string().into_bytes());
        assert!(same(&versions(1, 2), &versions(3, 9)));
        assert!(!same(&versions(1, 2), &versions(2, 1)));
        assert!(!same(&versions(1, 2), &versions(2, 2)));
    }

    #[test]
    fn a_cas_of_a_connection_that_has_ended_is_another() {
        let cas = |epoch| Cas { number: FIRST_CAS + 7, epoch: FIRST_EPOCH + epoch };
        assert!(!same(&cas(5), &cas(4)));
        assert!(same(&cas(4), &Cas { number: FIRST_CAS + 8, ..cas(4) }));
    }

    #[test]
    fn a_stubs_identity_is_part_of_the_state_though_its_cas_is_gone() {
        let print = |state: &dyn Fn(&mut Canon)| {
            let mut canon = Canon::new([FIRST_EPOCH; 2], false);
            canon.only([].into_iter());
            state(&mut canon);
            canon.end()
        };
        let cas = |n| Cas { number: FIRST_CAS + n, epoch: FIRST_EPOCH };
        let renewed = |n: u32| STUBS | n << 8;
        // An item as a state machine keeps it: its size, flags and CAS; and the stub of a token.
        let seen = |size: usize, n| move |canon: &mut Canon| (size, 0_u32, cas(n), renewed(1)).hash(canon);
        assert_ne!(print(&seen(0, 1)), print(&seen(0, 2)));
        assert_eq!(print(&seen(7, 1)), print(&seen(7, 2)));
    }

    #[test]
    fn moments_and_tries_are_no_part_of_a_state_and_flags_are() {
        let at = |wall: u64, rounds: u8| (Now { wall: WALL + wall, mono: MONO }, 7_u32, MONO, rounds);
        assert!(same(&at(1, 2), &at(4, 3)));
        assert!(!same(&(true, 1_u32), &(false, 1_u32)));
        assert!(same(&(3_u8, WALL, false), &(4_u8, WALL + 1, false)));
    }

    #[test]
    fn both_sides_can_be_exchanged() {
        let state = [Who(0), Who(1), Who(1), Who(2), Who(11)];
        let other = [Who(1), Who(0), Who(0), Who(2), Who(10)];
        assert_eq!(hashed(&state, false), hashed(&other, true));
        assert_ne!(hashed(&state, false), hashed(&other, false));
    }
}
