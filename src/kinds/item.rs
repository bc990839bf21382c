//! The keys of items: a kind's key itself, or the key followed by [`INFIX`] and a name.

use smallvec::SmallVec;

/// What separates a kind's key from the name of an item below it. No client may use a key that contains it.
pub const INFIX: &[u8] = b"@kennel:";

/// The key of an item, as memcached has it.
pub type ItemKey = SmallVec<[u8; 64]>;

/// The error for a structure's key that leaves no room for the names below it.
pub(super) const TOO_LONG: &str =
    "CLIENT_ERROR the key of a structure is too long for the items below it\r\n";

/// The most bytes that an item's key has behind the structure's own key, other than that of a visitor: the infix and a name.
pub(super) const MAX_BELOW: usize = 24;

/// The longest key of an item, in bytes.
pub(super) const MAX_KEY: usize = 250;

/// The key of an item below a structure's own key.
pub(super) fn item_below(own: &[u8], name: &[u8]) -> Result<ItemKey, &'static str> {
    let mut key = ItemKey::with_capacity(own.len() + INFIX.len() + name.len());
    [own, INFIX, name].into_iter().for_each(|part| key.extend_from_slice(part));
    fits(key)
}

/// The same with a name that is a letter and a number.
pub(super) fn numbered_item(own: &[u8], letter: u8, number: u64) -> Result<ItemKey, &'static str> {
    Ok(ItemKey::from_slice(NumberedKey::new(own, letter, number)?.key()))
}

/// A key of [`numbered_item`] that is counted up, which costs less than another key.
pub(super) struct NumberedKey {
    /// A space, and the key.
    text: [u8; 1 + MAX_KEY],
    length: usize,
    /// Where the number begins.
    number: usize,
}

impl NumberedKey {
    pub(super) fn new(own: &[u8], letter: u8, number: u64) -> Result<NumberedKey, &'static str> {
        let mut buffer = itoa::Buffer::new();
        let mut key =
            NumberedKey { text: [b' '; 1 + MAX_KEY], length: 1, number: own.len() + INFIX.len() + 2 };
        for part in [own, INFIX, &[letter], buffer.format(number).as_bytes()] {
            let end = key.length + part.len();
            key.text.get_mut(key.length..end).ok_or(TOO_LONG)?.copy_from_slice(part);
            key.length = end;
        }
        Ok(key)
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.text[1..self.length]
    }

    /// The key behind a space.
    pub(super) fn spaced(&self) -> &[u8] {
        &self.text[..self.length]
    }

    /// Adds one to its number.
    pub(super) fn count_up(&mut self) -> Result<(), &'static str> {
        for digit in self.text[self.number..self.length].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return Ok(());
            }
            *digit = b'0';
        }
        // All digits were nines: the number has one more.
        self.text[self.number] = b'1';
        *self.text.get_mut(self.length).ok_or(TOO_LONG)? = b'0';
        self.length += 1;
        Ok(())
    }
}

/// A key, unless it is too long.
pub(super) fn fits(key: ItemKey) -> Result<ItemKey, &'static str> {
    if key.len() > MAX_KEY { Err(TOO_LONG) } else { Ok(key) }
}

/// The length of a kind's own key in what a client sent: up to the first `separator` behind the rule's `prefix`.
pub(super) fn own_length(separator: u8, prefix: usize, key: &[u8]) -> usize {
    let behind = key.get(prefix..).unwrap_or_default();
    memchr::memchr(separator, behind).map_or(key.len(), |at| prefix + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_structure_leaves_room_for_the_names_below_it() {
        let own = vec![b'k'; 250 - INFIX.len() - 5];
        assert_eq!(item_below(&own, b"fence").map(|key| key.len()), Ok(250));
        assert_eq!(item_below(&own, b"fence2"), Err(TOO_LONG));
    }

    #[test]
    fn the_keys_of_numbered_items_are_counted_up() {
        for number in [0, 8, 9, 99, 198, 199, 999, 1_000, 9_999_999_999] {
            let mut key = NumberedKey::new(b"k9", b'w', number).unwrap();
            assert_eq!(key.key(), &item_below(b"k9", format!("w{number}").as_bytes()).unwrap()[..]);
            key.count_up().unwrap();
            assert_eq!(key.key(), &item_below(b"k9", format!("w{}", number + 1).as_bytes()).unwrap()[..]);
        }
        let own = vec![b'k'; 250 - INFIX.len() - 3];
        let mut key = NumberedKey::new(&own, b'w', 98).unwrap();
        assert_eq!((key.count_up(), key.count_up()), (Ok(()), Err(TOO_LONG)));
        assert_eq!(numbered_item(&own, b'w', 100), Err(TOO_LONG));
    }
}
