//! One line for each key, with a letter for each event: `kennel trace --letters`.
//!
//! In a terminal, the lines change in place. Otherwise the line of a key is written again whenever it has changed.

use std::collections::HashMap;
use std::io::{self, Write};

use ratatui::crossterm::terminal;

/// The most keys that are remembered. The one whose last event is oldest makes room.
const MAX_KEYS: usize = 1000;
/// The most letters of a line. The oldest are left out.
const MAX_LETTERS: usize = 1000;

pub(super) struct LetterLines {
    in_place: bool,
    keys: HashMap<String, Line>,
    /// Numbers the keys in the order of their first events, and all events.
    next: u64,
    dropped: u64,
    has_changed: bool,
    /// How many lines are on the terminal.
    shown: usize,
}

struct Line {
    first: u64,
    last: u64,
    letters: String,
    has_changed: bool,
}

impl LetterLines {
    /// No line yet. `in_place`: the output is a terminal.
    pub(super) fn new(in_place: bool) -> LetterLines {
        LetterLines { in_place, keys: HashMap::new(), next: 0, dropped: 0, has_changed: false, shown: 0 }
    }

    /// These letters, which may be none, have happened to a key.
    pub(super) fn add(&mut self, key: &str, letters: &str) {
        if letters.is_empty() || key.is_empty() {
            return;
        }
        let now = self.next;
        self.next += 1;
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(key) {
            let oldest = self.keys.iter().min_by_key(|(_, line)| line.last).map(|(key, _)| key.clone());
            oldest.map(|key| self.keys.remove(&key));
        }
        let line = self.keys.entry(key.to_owned()).or_insert_with(|| Line {
            first: now,
            last: now,
            letters: String::new(),
            has_changed: true,
        });
        (line.last, line.has_changed, self.has_changed) = (now, true, true);
        line.letters.push_str(letters);
        // They are ASCII.
        let surplus = line.letters.len().saturating_sub(MAX_LETTERS);
        line.letters.drain(..surplus);
    }

    /// So many events were lost.
    pub(super) fn dropped(&mut self, number: u64) {
        (self.dropped, self.has_changed) = (self.dropped + number, true);
    }

    /// Writes what has changed.
    pub(super) fn write(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !std::mem::take(&mut self.has_changed) {
            return Ok(());
        }
        let text = if self.in_place {
            let (width, height) = terminal::size().unwrap_or((80, 24));
            self.screen(width.into(), height.into())
        } else {
            self.changes()
        };
        out.write_all(text.as_bytes())
    }

    /// The lines that have changed.
    fn changes(&mut self) -> String {
        let mut changed: Vec<(&String, &mut Line)> =
            self.keys.iter_mut().filter(|(_, line)| line.has_changed).collect();
        changed.sort_by_key(|(_, line)| line.first);
        let mut text = String::new();
        for (key, line) in changed {
            line.has_changed = false;
            text += &format!("{key}  {}\n", line.letters);
        }
        match std::mem::take(&mut self.dropped) {
            0 => {}
            dropped => {
                text += &format!("--- {dropped} events dropped: they came faster than they were read\n")
            }
        }
        text
    }

    /// The lines of the keys with the latest events, over those that are on the terminal.
    fn screen(&mut self, width: usize, height: usize) -> String {
        let rows = height.saturating_sub(2).max(1);
        let mut lines: Vec<(&String, &Line)> = self.keys.iter().collect();
        lines.sort_by_key(|(_, line)| std::cmp::Reverse(line.last));
        lines.truncate(rows);
        lines.sort_by_key(|(_, line)| line.first);
        let widest = lines.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(width / 2);
        let mut text = match self.shown {
            0 => String::new(),
            shown => format!("\x1b[{shown}A\r"),
        };
        for (key, line) in &lines {
            let key: String = key.chars().take(widest).collect();
            let room = width.saturating_sub(widest + 3);
            let letters = &line.letters[line.letters.len().saturating_sub(room)..];
            text += &format!("{key:widest$}  {letters}\x1b[K\r\n");
        }
        let mut shown = lines.len();
        if self.dropped > 0 {
            text += &format!("{} events dropped\x1b[K\r\n", self.dropped);
            shown += 1;
        }
        text += "\x1b[J";
        self.shown = shown;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lines: &mut LetterLines) -> String {
        let mut out = Vec::new();
        lines.write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_key_has_one_line_of_letters_that_is_written_again_when_it_changes() {
        let mut lines = LetterLines::new(false);
        for (key, letters) in [("b", "ML"), ("a", "H"), ("b", "WU"), ("b", "H"), ("c", ""), ("b", "H")] {
            lines.add(key, letters);
        }
        assert_eq!(written(&mut lines), "b  MLWUHH\na  H\n");
        assert_eq!(written(&mut lines), "");
        lines.add("a", "S");
        lines.dropped(3);
        assert_eq!(
            written(&mut lines),
            "a  HS\n--- 3 events dropped: they came faster than they were read\n"
        );
    }

    #[test]
    fn in_a_terminal_the_latest_keys_and_letters_are_shown_in_place() {
        let mut lines = LetterLines::new(true);
        (0..5).for_each(|key| lines.add(&format!("key{key}"), "M"));
        (0..100).for_each(|_| lines.add("key0", "H"));
        let screen = lines.screen(20, 4);
        assert_eq!(screen, format!("key0  {}\x1b[K\r\nkey4  M\x1b[K\r\n\x1b[J", "H".repeat(13)));
        assert!(lines.screen(20, 4).starts_with("\x1b[2A\r"));
    }

    #[test]
    fn keys_and_letters_are_limited() {
        let mut lines = LetterLines::new(false);
        lines.add("first", "M");
        (0..MAX_KEYS).for_each(|key| lines.add(&key.to_string(), "M"));
        assert!(lines.keys.len() == MAX_KEYS && !lines.keys.contains_key("first"));
        (0..MAX_LETTERS).for_each(|_| lines.add("7", "HS"));
        assert_eq!(lines.keys["7"].letters.len(), MAX_LETTERS);
    }
}
