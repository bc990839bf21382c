//! What a recording of `kennel trace --json` tells of keys.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::BufRead;
use std::time::Duration;

use serde::Deserialize;

use crate::clock::parse_utc;
use crate::metrics::{Command, Outcome};
use crate::observed::{Builder, Deed, Families, OpenBuilds};

/// A recording, as far as rules depend on it.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) families: Families,
    /// From the first event to the last one.
    pub(super) lasted: Duration,
    pub(super) events: u64,
    /// Events that the sidecar has not recorded.
    pub(super) dropped: u64,
}

/// A line of a recording.
#[derive(Debug, Deserialize)]
struct Line {
    time: String,
    client: String,
    command: String,
    key: String,
    key_base64: Option<String>,
    outcome: String,
    us: u64,
}

/// Instead of events.
#[derive(Debug, Deserialize)]
struct Dropped {
    dropped: u64,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// It is none, or it is empty: a sentence.
    pub(super) fn read(mut from: impl BufRead) -> Result<Recording, String> {
        let (mut recording, builds) = (Recording::default(), OpenBuilds::default());
        let mut clients: HashMap<String, u64> = HashMap::new();
        let (mut first, mut text) = (None, Vec::new());
        for number in 1.. {
            text.clear();
            if from.read_until(b'\n', &mut text).map_err(|error| error.to_string())? == 0 {
                break;
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let line: Line = match serde_json::from_slice(&text) {
                Ok(line) => line,
                Err(why) => match serde_json::from_slice::<Dropped>(&text) {
                    Ok(Dropped { dropped }) => {
                        recording.dropped += dropped;
                        continue;
                    }
                    Err(_) => {
                        return Err(format!(
                            "line {number} is no event of kennel trace --json, such as {{\"time\":…,\"client\":…,\"command\":…}}: {why}"
                        ));
                    }
                },
            };
            let at = parse_utc(&line.time)
                .map(Duration::from_millis)
                .ok_or_else(|| format!("line {number}: {:?} is no time", line.time))?;
            let first = *first.get_or_insert(at);
            recording.lasted = recording.lasted.max(at.saturating_sub(first));
            recording.events += 1;
            let next = clients.len() as u64;
            let connection = *clients.entry(line.client.clone()).or_insert(next);
            recording.note(&line, at, connection, &builds);
        }
        if recording.events == 0 {
            return Err("it has no events: record with kennel trace --json --for 3600s > FILE".to_owned());
        }
        Ok(recording)
    }

    fn note(&mut self, line: &Line, at: Duration, connection: u64, builds: &OpenBuilds) {
        let command = Command::ALL.iter().find(|command| command.word() == line.command);
        let outcome = Outcome::ALL.iter().find(|outcome| outcome.word() == line.outcome);
        let (Some(&command), Some(&outcome)) = (command, outcome) else { return };
        let key = match &line.key_base64 {
            // What is no text varies.
            Some(_) => line.key.replace('\\', "\u{7f}"),
            None => line.key.clone(),
        };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        let by = Builder { connection, peers: 0, pooled: false };
        let began = at.saturating_sub(Duration::from_micros(line.us));
        let deed = Deed::of(command, outcome);
        let stored = match command {
            _ if deed == Some(Deed::Missed) => {
                builds.missed(hash, by, at);
                None
            }
            _ if deed == Some(Deed::Deleted) => {
                builds.deleted(hash, by, at);
                None
            }
            Command::Set | Command::Add | Command::MetaSet => Some(builds.stored(hash, by, began, at)),
            _ => None,
        };
        self.families.note_stored(key.as_bytes(), deed, stored.as_ref());
    }
}
