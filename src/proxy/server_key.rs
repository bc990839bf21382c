//! The key under which a server stores what a client stores under its key.
//!
//! They are the same, except for keys that no text command can name. A binary client may use any bytes: a key with a byte that
//! ends a word is sent in base64, as the meta commands allow, and one that is too long for that is shortened.

use std::borrow::Cow;

use super::reserved::LONG_PREFIX;
use crate::guard::envelope::digest_key;
use crate::protocol::base64;

/// The longest key in bytes that can be sent in base64: memcached accepts at most 250 bytes of it.
const MAX_BASE64_KEY: usize = 186;

/// A key as a meta command has it, and whether it needs the flag `b`.
pub(crate) fn server_key(key: &[u8]) -> (Cow<'_, [u8]>, bool) {
    if is_text(key) {
        return (Cow::Borrowed(key), false);
    }
    if key.len() > MAX_BASE64_KEY {
        return (Cow::Owned(digest_key(LONG_PREFIX, key).to_vec()), false);
    }
    let mut text = Vec::new();
    base64::encode(key, &mut text);
    (Cow::Owned(text), true)
}

/// Whether text commands can name this key.
pub(crate) fn is_text(key: &[u8]) -> bool {
    memchr::memchr3(b' ', b'\n', 0, key).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_as_it_is_unless_no_text_command_can_name_it() {
        assert_eq!(server_key(b"a\tb\r\xff"), (Cow::Borrowed(&b"a\tb\r\xff"[..]), false));
        for byte in [b' ', b'\n', 0] {
            let key = [b'k', byte];
            let (text, is_base64) = server_key(&key);
            assert!(is_base64 && base64::decode(&text).as_deref() == Some(&key));
        }
    }

    #[test]
    fn every_key_has_a_server_key_of_its_own_that_servers_accept() {
        let keys: Vec<Vec<u8>> = (1..=250).map(|length| [b' '].repeat(length)).collect();
        let mut all: Vec<Vec<u8>> = keys.iter().map(|key| server_key(key).0.into_owned()).collect();
        assert!(all.iter().all(|key| is_text(key) && (1..=250).contains(&key.len())));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 250);
    }
}
