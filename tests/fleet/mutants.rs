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
