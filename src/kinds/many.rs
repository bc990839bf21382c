//! Several items that are read at once: their keys, and what the server has of them.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// The keys of items that are read by one line, as they are in it: each behind a space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys(Vec<u8>);

impl Keys {
    /// None yet, with room for this number of bytes.
    pub(super) fn with_capacity(length: usize) -> Keys {
        Keys(Vec::with_capacity(length))
    }

    /// The part of the line behind the name of the command.
    pub fn line(&self) -> &[u8] {
        &self.0
    }

    /// The keys in their order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        // What is before the first space is empty.
        self.0.split(|byte| *byte == b' ').skip(1)
    }

    /// Adds a key, in which no byte is a space, behind a space.
    pub(super) fn push_spaced(&mut self, spaced: &[u8]) {
        self.0.extend_from_slice(spaced);
    }
}

impl<K: AsRef<[u8]>> FromIterator<K> for Keys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Keys {
        let mut all = Keys::default();
        keys.into_iter().for_each(|key| all.0.extend([b" ", key.as_ref()].concat()));
        all
    }
}

/// The items that a server has of those that were asked for, in its order.
#[derive(Clone, Default)]
pub struct Items {
    /// The server's reply, or whatever has the keys and values.
    reply: Bytes,
    /// Where the key and the value of each item are in it.
    places: Vec<(Range<usize>, Range<usize>)>,
}

impl Items {
    /// Those in this reply, of which each must be [added](Items::push).
    pub fn of(reply: Bytes) -> Items {
        Items { reply, places: Vec::new() }
    }

    /// Adds an item by the places of its key and value in the reply.
    pub fn push(&mut self, key: Range<usize>, data: Range<usize>) {
        if self.places.is_empty() {
            // A window of ten slots has twelve.
            self.places.reserve(16);
        }
        self.places.push((key, data));
    }

    /// The key and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let part = |range: &Range<usize>| self.reply.get(range.clone()).unwrap_or_default();
        self.places.iter().map(move |(key, data)| (part(key), part(data)))
    }
}

/// Whatever else is in the reply.
impl PartialEq for Items {
    fn eq(&self, other: &Items) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Items {}

impl std::fmt::Debug for Items {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown =
            |(key, data): (&[u8], &[u8])| (key.escape_ascii().to_string(), data.escape_ascii().to_string());
        out.debug_map().entries(self.iter().map(shown)).finish()
    }
}

impl<K: AsRef<[u8]>, D: AsRef<[u8]>> FromIterator<(K, D)> for Items {
    fn from_iter<I: IntoIterator<Item = (K, D)>>(items: I) -> Items {
        let (mut reply, mut places) = (BytesMut::new(), Vec::new());
        for (key, data) in items {
            let mut add = |part: &[u8]| {
                let start = reply.len();
                reply.extend_from_slice(part);
                start..reply.len()
            };
            places.push((add(key.as_ref()), add(data.as_ref())));
        }
        Items { reply: reply.freeze(), places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_added() {
        let keys = Keys::from_iter(["a", "bc"]);
        assert_eq!(keys.line(), b" a bc");
        assert!(keys.iter().eq([&b"a"[..], b"bc"]) && Keys::default().iter().count() == 0);
    }

    #[test]
    fn items_are_equal_by_their_keys_and_values() {
        let mut items = Items::of(Bytes::from_static(b"VALUE a 0 2\r\n17\r\nEND\r\n"));
        items.push(6..7, 13..15);
        let same = |key, data| items == Items::from_iter([(key, data)]);
        assert!(same("a", "17") && !same("b", "17") && !same("a", "1") && items != Items::default());
    }
}
