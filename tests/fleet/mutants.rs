//! Defences that are taken away on the wire, between the sidecars and the servers. Each must be noticed.

/// What is changed in what sidecars send, or receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store is carried out whatever the CAS of the item is.
    StoresCompareNothing,
    /// A store that must create the item replaces it.
    AddsReplace,
    /// A delete of a value is answered, and not carried out.
    DeletesAreLost,
    /// A miss leaves nothing that a later store can be compared with.
    MissesLeaveNoStub,
    /// A bump of a tag leaves the version that it had.
    BumpsAreLost,
    /// What is appended replaces the value.
    AppendsReplace,
    /// A count is carried out twice.
    CountsAreDoubled,
    /// A store that the server refuses is acknowledged.
    RefusalsAreSuccesses,
    /// An item that was created for a reader does not look so.
    StubsAreNotHeld,
    /// The same if it lasts longer than a stub does.
    LongStubsAreNotHeld,
    /// A stub that is stored has the flags of an empty value.
    StubsHaveNoFlags,
    /// An empty value that has been replaced since looks as it did.
    ChangesAreUnseen,
    /// An `md I` marks whatever item there is.
    MarksCompareNothing,
    /// What is put in front is put in front of whatever item there is.
    PrependsCompareNothing,
}

impl Mutant {
    /// Commands as the server receives them, or replies as the sidecar does. `sent` is what was written at once: complete ones.
    pub fn mutate(self, sent: &[u8], is_reply: bool) -> Vec<u8> {
        let change = |line: &[u8]| match std::str::from_utf8(line) {
            Ok(line) if is_reply => self.reply(line).into_bytes(),
            Ok(line) => self.command(line).into_bytes(),
            // A part of a value.
            Err(_) => line.to_vec(),
        };
        sent.split_inclusive(|byte| *byte == b'\n').flat_map(change).collect()
    }

    fn reply(self, line: &str) -> String {
        match line.get(..2) {
            Some("EX" | "NS") if self == Mutant::RefusalsAreSuccesses => line.replacen(&line[..2], "HD", 1),
            Some("HD") if line.starts_with("HD s0 f0 ") && line.ends_with(" Z\r\n") => {
                let ttl = line.split(' ').find_map(|word| word.strip_prefix('t')?.parse::<i64>().ok());
                let is_long = ttl.is_none_or(|ttl| !(0..=3601).contains(&ttl));
                match self {
                    Mutant::StubsAreNotHeld => line.replacen(" Z\r", "\r", 1),
                    Mutant::LongStubsAreNotHeld if is_long => line.replacen(" Z\r", "\r", 1),
                    _ => line.to_owned(),
                }
            }
            Some("HD") if line.starts_with("HD s") && self == Mutant::ChangesAreUnseen => {
                let rest = line.split_once(" t").map_or("-1\r\n", |(_, rest)| rest);
                format!("HD s0 f0 t{rest}")
            }
            _ => line.to_owned(),
        }
    }

    fn command(self, line: &str) -> String {
        let word = line.split(' ').next().unwrap_or_default();
        match (self, word) {
            // What sidecars agree on stays as it is.
            _ if [" @kennel:", " @probe:"].iter().any(|own| line.contains(own)) => line.to_owned(),
            // The value of a tag: its version, and what makes it unique.
            (Mutant::BumpsAreLost, version) if version.starts_with("17000000") && line.len() == 35 => {
                "1700000005000 1782579200004540073\r\n".to_owned()
            }
            _ if line.contains(" @lock:") => line.to_owned(),
            (Mutant::StoresCompareNothing, "ms") => without(line, "C"),
            (Mutant::StubsHaveNoFlags, "ms") if line.split(' ').nth(2) == Some("0") => {
                without(line, "F").replacen("\r\n", " F0\r\n", 1)
            }
            (Mutant::MarksCompareNothing, "md") if line.contains(" I") => without(line, "C"),
            (Mutant::PrependsCompareNothing, "ms") if line.contains(" MP") => without(line, "C"),
            (Mutant::AddsReplace, "ms") => without(line, "ME"),
            (Mutant::AppendsReplace, "ms") => without(line, "MA"),
            (Mutant::DeletesAreLost, "md") => line.replacen("md ", "md lost:", 1),
            (Mutant::MissesLeaveNoStub, "mg") => without(line, "N"),
            (Mutant::CountsAreDoubled, "ma") => line.replacen(" D1", " D2", 1),
            _ => line.to_owned(),
        }
    }
}

/// The command without this flag.
fn without(line: &str, flag: &str) -> String {
    let mut words = line.trim_end_matches("\r\n").split(' ');
    let head: Vec<&str> = words.by_ref().take(2).collect();
    let is =
        |word: &&str| word.strip_prefix(flag).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    let line = head.into_iter().chain(words.filter(|word| !is(word))).collect::<Vec<_>>().join(" ");
    line + "\r\n"
}
