//! When two states are the same.
//!
//! The numbers that are only ever compared for being equal, those of CASes, tickets and waiters, are called by the order in
//! which they are met. So a state that comes again with higher numbers is the same, and clients that go on for ever have
//! finitely many.

use std::hash::{Hash, Hasher};

use kennel::guard::envelope::{Header, LockRecord, Opened};

use super::server::FIRST_CAS;

/// Numbers of tickets and waiters count from one. Nothing else that is below this differs between states.
const IDS: std::ops::Range<u64> = 1..1000;
const CASES: std::ops::Range<u64> = FIRST_CAS..FIRST_CAS + (1 << 20);

/// A hasher that renames.
#[derive(Default)]
pub struct Canon {
    lanes: [u64; 2],
    cases: Vec<u64>,
    ids: Vec<u64>,
    /// In a table of leases: its last number is the next ticket's, and no part of the state.
    table: bool,
    withheld: Option<u64>,
}

impl Canon {
    /// Tickets and waiters are numbered by each sidecar for itself.
    pub fn sidecar(&mut self) {
        self.ids.clear();
    }

    /// Hashes all of a table of leases but the number it will give next.
    pub fn table(&mut self, leases: &impl Hash) {
        self.table = true;
        leases.hash(self);
        self.table = false;
        self.withheld = None;
    }

    /// Whether, and as which, a CAS has been met.
    pub fn known(&self, cas: u64) -> Option<usize> {
        self.cases.iter().position(|known| *known == cas)
    }

    fn mix(&mut self, number: u64) {
        const FACTORS: [u64; 2] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F];
        for (lane, factor) in self.lanes.iter_mut().zip(FACTORS) {
            let product = u128::from(*lane ^ number ^ factor.rotate_left(17)) * u128::from(factor);
            *lane = (product as u64) ^ ((product >> 64) as u64).rotate_left(23) ^ lane.rotate_left(5);
        }
    }

    fn rename(&mut self, number: u64) {
        let (names, kind) = match number {
            id if IDS.contains(&id) => (&mut self.ids, 1 << 60),
            cas if CASES.contains(&cas) => (&mut self.cases, 2 << 60),
            other => return self.mix(other),
        };
        let at = names.iter().position(|known| *known == number).unwrap_or_else(|| {
            names.push(number);
            names.len() - 1
        });
        self.mix(kind + at as u64);
    }

    fn plain(&mut self, number: u64) {
        if let Some(before) = self.withheld.take() {
            self.rename(before);
        }
        self.mix(number);
    }

    fn raw(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.plain(u64::from_le_bytes(word));
        }
    }
}

impl Hasher for Canon {
    fn finish(&self) -> u64 {
        self.lanes[0] ^ self.lanes[1].rotate_left(32)
    }

    /// What is stored says when it was built and by whom, which decides nothing.
    fn write(&mut self, bytes: &[u8]) {
        if let Opened::Sealed { envelope, payload_at } = Header::open(bytes) {
            self.plain(u64::from(envelope.stale_for));
            for (_, version) in envelope.tags() {
                self.plain(version);
            }
            self.raw(&bytes[payload_at..]);
        } else if let Ok(record) = LockRecord::decode(bytes) {
            for (_, version) in &record.tags {
                self.plain(*version);
            }
        } else {
            self.raw(bytes);
        }
    }

    /// Of these, machines only have how often they have tried, which decides nothing below sixteen times, and what stands in
    /// their questions as well.
    fn write_u8(&mut self, number: u8) {
        if self.table {
            self.plain(u64::from(number));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.plain(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        if !self.table {
            self.rename(number);
        } else if let Some(before) = self.withheld.replace(number) {
            self.rename(before);
        }
    }

    fn write_usize(&mut self, number: usize) {
        self.plain(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.plain(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashed(state: &impl Hash) -> u64 {
        let mut canon = Canon::default();
        state.hash(&mut canon);
        canon.finish()
    }

    #[test]
    fn states_that_differ_only_in_the_names_of_cases_and_tickets_are_one() {
        let state = |a: u64, b: u64| (a, b, a, 5_u32);
        assert_eq!(
            hashed(&state(FIRST_CAS + 1, FIRST_CAS + 2)),
            hashed(&state(FIRST_CAS + 9, FIRST_CAS + 4))
        );
        assert_ne!(
            hashed(&state(FIRST_CAS + 1, FIRST_CAS + 2)),
            hashed(&state(FIRST_CAS + 9, FIRST_CAS + 9))
        );
        assert_eq!(hashed(&state(3, 4)), hashed(&state(7, 6)));
        assert_ne!(hashed(&state(3, 4)), hashed(&state(3, FIRST_CAS)));
        assert_ne!(hashed(&state(5000, 4)), hashed(&state(6000, 4)));
    }
}
