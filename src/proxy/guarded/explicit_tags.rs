//! Tags that come with a value, in addition to those of its rule: in the `P` token of an `ms`, which memcached reserves for
//! proxies, or, if the rule allows it, in front of the key of a classic command.
//!
//! Both are lists of names separated by commas: `Ptags=posts,blog:7` and `@tags:posts,blog%3A7:KEY`. A byte that separates
//! names, or that a word cannot contain, is written as `%` and two hexadecimal digits.

use crate::guard::envelope::MAX_EXPLICIT_TAGS;
use crate::guard::{TagName, TagNames};
use crate::proxy::key::{GuardedKey, KeyClass};
use crate::proxy::pipeline::Proxy;
use crate::rule::fold_tag;

/// Prefix of a key with tags in front.
pub const PREFIX: &[u8] = b"@tags:";
/// Prefix of a `P` token with tags. Other `P` tokens are ignored.
pub(crate) const TOKEN: &[u8] = b"tags=";
/// A list with more than [`MAX_EXPLICIT_TAGS`] names, or with a `%` that is not followed by two digits.
#[derive(Debug)]
pub(crate) struct BadTags;

impl BadTags {
    /// The reply to the client.
    pub(crate) const REPLY: &'static [u8] =
        b"CLIENT_ERROR bad tags: at most 16 names, separated by commas, with %XX for bytes that a word cannot have\r\n";
}

impl Proxy {
    /// Splits a key with tags in front into the key proper and the list of tags, if the rule of the key proper allows it.
    pub(crate) fn split_tags<'k>(&self, key: &'k [u8]) -> (&'k [u8], &'k [u8]) {
        let split = || {
            let rest = key.strip_prefix(PREFIX).filter(|_| self.plan.tags_in_key)?;
            let colon = rest.iter().position(|&byte| byte == b':')?;
            let (list, proper) = (&rest[..colon], &rest[colon + 1..]);
            match self.class(proper) {
                // A server would take the next word for an empty key, and the data block for commands.
                _ if proper.is_empty() => None,
                KeyClass::Guarded(guarded) if self.plan.guards[guarded.guard].tags_in_key => {
                    Some((proper, list))
                }
                _ => None,
            }
        };
        split().unwrap_or((key, b""))
    }

    /// The key with the tags of a list added.
    pub(crate) fn with_explicit_tags(&self, guarded: GuardedKey, list: &[u8]) -> Result<GuardedKey, BadTags> {
        if list.is_empty() {
            return Ok(guarded);
        }
        let prefix = &self.plan.tag_prefix;
        let mut names = TagNames::new();
        for word in list.split(|&byte| byte == b',').filter(|word| !word.is_empty()) {
            let mut tag = prefix.clone();
            unescape(word, &mut tag).ok_or(BadTags)?;
            fold_tag(&mut tag, prefix.len());
            let name = TagName::from_slice(&tag[prefix.len()..]);
            if guarded.tags.contains(&name) || names.contains(&name) {
                continue;
            }
            if names.len() == MAX_EXPLICIT_TAGS {
                return Err(BadTags);
            }
            names.push(name);
        }
        Ok(self.with_tags(&guarded, names))
    }
}

fn unescape(mut word: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    while let [byte, rest @ ..] = word {
        word = match (byte, rest) {
            (b'%', [high, low, rest @ ..]) => {
                out.push(u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?);
                rest
            }
            (b'%', _) => return None,
            _ => {
                out.push(*byte);
                rest
            }
        };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_sign_and_two_digits_are_one_byte() {
        for (word, bytes) in [
            ("posts", Some(&b"posts"[..])),
            ("blog%3A7", Some(b"blog:7")),
            ("%2c%20%00%25", Some(b", \0%")),
            ("%", None),
            ("a%4", None),
            ("%zz", None),
            ("%+1", None),
        ] {
            let mut out = Vec::new();
            let read = unescape(word.as_bytes(), &mut out).map(|()| &out[..]);
            assert_eq!(read, bytes, "{word}");
        }
    }
}
