//! Defences that are taken away on the wire, between the sidecars and the servers. Each must be noticed.

/// What is changed in the commands that sidecars send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// A store is carried out whatever the CAS of the item is.
    StoresCompareNothing,
    /// A delete of a value is answered, and not carried out.
    DeletesAreLost,
    /// A miss leaves nothing that a later store can be compared with.
    MissesLeaveNoStub,
}

impl Mutant {
    /// The commands as the server receives them. `command` is what a sidecar wrote at once: complete commands.
    pub fn mutate(self, commands: &[u8]) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(commands) else { return commands.to_vec() };
        let lines = text.split_inclusive("\r\n").map(|line| self.line(line));
        lines.collect::<String>().into_bytes()
    }

    fn line(self, line: &str) -> String {
        let word = line.split(' ').next().unwrap_or_default();
        // What sidecars keep for themselves stays as it is.
        if [" @kennel:", " @lock:", " @probe:"].iter().any(|own| line.contains(own)) {
            return line.to_owned();
        }
        match (self, word) {
            (Mutant::StoresCompareNothing, "ms") => without(line, 'C'),
            (Mutant::DeletesAreLost, "md") if line.contains("guarded:") => {
                line.replacen("guarded:", "lost:", 1)
            }
            (Mutant::MissesLeaveNoStub, "mg") => without(line, 'N'),
            _ => line.to_owned(),
        }
    }
}

/// The command without this flag.
fn without(line: &str, flag: char) -> String {
    let mut words = line.trim_end_matches("\r\n").split(' ');
    let head: Vec<&str> = words.by_ref().take(2).collect();
    let rest =
        words.filter(|word| !(word.starts_with(flag) && word[1..].bytes().all(|b| b.is_ascii_digit())));
    let line = head.into_iter().chain(rest).collect::<Vec<_>>().join(" ");
    line + "\r\n"
}
