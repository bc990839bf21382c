//! A memcached, as far as places need one.

use std::collections::HashMap;

/// The key of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// An item of the agreement.
    Place(kennel::failover::Item),
    /// The guarded key.
    Value,
    /// The tag.
    Tag,
}

/// What an item holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A stub, or bytes of the agreement.
    Bytes(Vec<u8>),
    /// A sealed value: its fence, the version of the source that it was built from, and that of its tag.
    Value { fence: u64, built: u64, tag: u64 },
    /// A tag's version, sealed.
    Tag { fence: u64, version: u64 },
}

#[derive(Debug, Clone)]
pub enum Action {
    Get {
        stub: bool,
    },
    /// `None`: whatever is there.
    Store {
        content: Content,
        cas: Option<u64>,
        seconds: u32,
    },
    Delete,
}

#[derive(Debug, Clone)]
pub enum Answer {
    Found(Content, u64),
    Absent,
    Stored,
    Conflict,
    Done,
}

#[derive(Debug, Default)]
pub struct Server {
    pub up: bool,
    pub hung: bool,
    items: HashMap<Key, (Content, u64, u64)>,
    cas: u64,
}

impl Server {
    pub fn started() -> Server {
        Server { up: true, ..Server::default() }
    }

    pub fn flush(&mut self) {
        self.items.clear();
    }

    pub fn evict(&mut self, key: Key) {
        self.items.remove(&key);
    }

    pub fn execute(&mut self, key: Key, action: Action, now: u64) -> Answer {
        self.items.retain(|_, (_, _, ends)| *ends > now);
        let forever = u64::MAX;
        match (action, self.items.get(&key).cloned()) {
            (Action::Get { .. }, Some((content, cas, _))) => Answer::Found(content, cas),
            (Action::Get { stub: true }, None) => Answer::Found(
                Content::Bytes(Vec::new()),
                self.store(key, Content::Bytes(Vec::new()), now + 60_000),
            ),
            (Action::Get { stub: false }, None) => Answer::Absent,
            (Action::Store { content, cas: None, seconds }, _) => {
                let ends = if seconds == 0 { forever } else { now + u64::from(seconds) * 1000 };
                {
                    self.store(key, content, ends);
                    Answer::Stored
                }
            }
            (Action::Store { content, cas: Some(cas), .. }, Some((_, held, _))) if held == cas => {
                self.store(key, content, forever);
                Answer::Stored
            }
            (Action::Store { .. }, _) => Answer::Conflict,
            (Action::Delete, held) => {
                self.items.remove(&key);
                if held.is_some() { Answer::Done } else { Answer::Absent }
            }
        }
    }

    fn store(&mut self, key: Key, content: Content, ends: u64) -> u64 {
        self.cas += 1;
        self.items.insert(key, (content, self.cas, ends));
        self.cas
    }
}
