//! The record of a server's place: what it says, and its stored form.

use std::fmt::Write;

/// Where the keys of one server are kept. Three servers keep a copy each: the server itself and two witnesses. What two of them
/// say holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// The number of this place, never 0: see [`fence`].
    pub fence: u64,
    /// Whether the keys are on their standby servers.
    pub standby: bool,
    /// Whether they stay there although the server answers, because an operator drains it.
    pub drained: bool,
    /// How long a view of this record is valid, in ms from the moment at which its reads were sent.
    pub window: u32,
    /// How long a process that meets this fence waits before it uses it, in ms: at least as long as any view of an earlier record
    /// may be valid.
    pub grace: u32,
    /// How often this record was replaced without a change of its fence.
    pub version: u32,
    /// Whether a process has used it. Then no earlier view is valid any more.
    pub settled: bool,
    /// Whether the keys are about to move: back from the standby servers, or to them because the server is drained. The window of such
    /// a record is a short one. It is settled.
    pub leaving: bool,
    /// How often in succession the server has failed again soon after its return.
    pub relapses: u8,
    /// The fence of the same server's own place in the previous placement, while the servers of the pool change; 0 if there is
    /// none. What is on the server under that fence has missed nothing, so it counts here too.
    pub inherited: u64,
}

/// How many bits of a fence are drawn at random. The wall clock's milliseconds are above them.
const RANDOM_BITS: u32 = 20;

/// A fence that never was: drawn at this millisecond of the wall clock.
pub fn fence(ms: u64, random: u64) -> u64 {
    (ms << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1)).max(1)
}

/// The millisecond of the wall clock at which a fence was drawn.
pub fn fence_millis(fence: u64) -> u64 {
    fence >> RANDOM_BITS
}

/// How long a record is not used while views of this length may be valid. Clocks may run at slightly different rates.
pub(super) fn grace_of(window: u32) -> u32 {
    window + window / 8
}

impl Record {
    /// The stored form: words of ASCII, separated by one space.
    pub fn encode(&self) -> Vec<u8> {
        let Record { fence, standby, drained, window, grace, version, settled, leaving, relapses, inherited } =
            *self;
        let place = match (standby, drained) {
            (false, _) => "own",
            (true, false) => "standby",
            (true, true) => "drained",
        };
        let state = match (settled, leaving) {
            (_, true) => "leaving",
            (true, false) => "settled",
            (false, false) => "new",
        };
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write!(out, "1 {fence} {place} {window} {grace} {version} {state} {relapses}");
        if inherited != 0 {
            let _ = write!(out, " {inherited}");
        }
        out.into_bytes()
    }

    /// Reads the stored form. `None`: it is empty, damaged, or of another format.
    pub fn decode(value: &[u8]) -> Option<Record> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        let mut next = || words.next();
        if next()? != "1" {
            return None;
        }
        let fence = next()?.parse().ok().filter(|fence| *fence != 0)?;
        let (standby, drained) = match next()? {
            "own" => (false, false),
            "standby" => (true, false),
            "drained" => (true, true),
            _ => return None,
        };
        let window = next()?.parse().ok().filter(|window| *window > 0)?;
        let grace = next()?.parse().ok()?;
        let version = next()?.parse().ok()?;
        let (settled, leaving) = match next()? {
            "new" => (false, false),
            "settled" => (true, false),
            "leaving" => (true, true),
            _ => return None,
        };
        let record = Record {
            fence,
            standby,
            drained,
            window,
            grace,
            version,
            settled,
            leaving,
            relapses: next()?.parse().ok()?,
            inherited: match next() {
                None => 0,
                Some(word) => word.parse().ok().filter(|fence| *fence != 0)?,
            },
        };
        next().is_none().then_some(record)
    }

    /// The next record of the same fence.
    pub(super) fn successor(&self) -> Record {
        Record { version: self.version.wrapping_add(1), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            fence: fence(1_700_000_000_000, 0xf_edcb),
            standby: true,
            drained: false,
            window: 1500,
            grace: 3000,
            version: 7,
            settled: false,
            leaving: false,
            relapses: 2,
            inherited: 0,
        };
        let text = b"1 1782579200000000000 standby 1500 3000 7 new 2";
        assert_eq!(Record { fence: 1_782_579_200_000_000_000, ..record }.encode(), text);
        let inherits = Record { inherited: 41, ..record };
        assert_eq!(inherits.encode(), [&record.encode()[..], b" 41"].concat());
        let own = Record { standby: false, settled: true, ..record };
        let drained = Record { drained: true, ..record };
        for record in [record, inherits, own, drained, Record { leaving: true, ..own }] {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(fence_millis(record.fence), 1_700_000_000_000);
    }

    #[test]
    fn what_is_no_record_is_none() {
        let valid = "1 5 own 1500 1500 0 new 0";
        assert!(Record::decode(valid.as_bytes()).is_some());
        for wrong in [
            "",
            "2 5 own 1500 1500 0 new 0",
            "1 0 own 1500 1500 0 new 0",
            "1 5 here 1500 1500 0 new 0",
            "1 5 own 0 1500 0 new 0",
            "1 5 own 1500 1500 0 old 0",
            "1 5 own 1500 1500 0 new",
            "1 5 own 1500 1500 0 new 0 0",
            "1 5 own 1500 1500 0 new 0 7 0",
            "1 5 own 1500 1500 0 new 256",
        ] {
            assert_eq!(Record::decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
