//! Tags that come with a value, beside those that its rule names: in the `P` token of an `ms`, which memcached leaves to proxies, or
//! for classic clients before the key, where the rule allows that.
//!
//! Either is a list of names, separated by commas: `Ptags=posts,blog:7`, and `@tags:posts,blog%3A7:KEY`. A byte that has a meaning there,
//! or that no word may have, is written as `%` and two hexadecimal digits.

use super::operation::GuardedKey;
use super::{KeyClass, Proxy};
use crate::guard::{TagName, TagNames};
use crate::rule::fold_tag;

/// What a key begins with that names tags.
pub const PREFIX: &[u8] = b"@tags:";
/// What a `P` token begins with that names tags; any other is none of ours.
pub(super) const TOKEN: &[u8] = b"tags=";
/// The most tags that may come with one value.
pub(super) const MAX_EXPLICIT_TAGS: usize = 16;

/// More than [`MAX_EXPLICIT_TAGS`], or a `%` without two digits behind it.
#[derive(Debug)]
pub(super) struct BadTags;

impl BadTags {
    /// What the client is told.
    pub(super) const REPLY: &'static [u8] =
        b"CLIENT_ERROR bad tags: at most 16 names, separated by commas, with %XX for bytes that a word cannot have\r\n";
}

impl Proxy {
    /// Takes the tags off the front of a key whose rule allows them there: the key that is meant, and the list.
    pub(super) fn split_tags<'k>(&self, key: &'k [u8]) -> (&'k [u8], &'k [u8]) {
        let split = || {
            let rest = key.strip_prefix(PREFIX).filter(|_| self.plan.tags_in_key)?;
            let colon = rest.iter().position(|&byte| byte == b':')?;
            let (list, meant) = (&rest[..colon], &rest[colon + 1..]);
            match self.target(meant) {
                // A server would take the next word of the command for a key without bytes, and its data for commands.
                _ if meant.is_empty() => None,
                KeyClass::Guarded(of) if self.plan.guards[of.guard].tags_in_key => Some((meant, list)),
                _ => None,
            }
        };
        split().unwrap_or((key, b""))
    }

    /// The key with the tags of a list as well.
    pub(super) fn with_explicit_tags(&self, of: GuardedKey, list: &[u8]) -> Result<GuardedKey, BadTags> {
        if list.is_empty() {
            return Ok(of);
        }
        let prefix = &self.plan.tag_prefix;
        let mut names = TagNames::new();
        for word in list.split(|&byte| byte == b',').filter(|word| !word.is_empty()) {
            let mut tag = prefix.clone();
            unescape(word, &mut tag).ok_or(BadTags)?;
            fold_tag(&mut tag, prefix.len());
            let name = TagName::from_slice(&tag[prefix.len()..]);
            if of.tags.contains(&name) || names.contains(&name) {
                continue;
            }
            if names.len() == MAX_EXPLICIT_TAGS {
                return Err(BadTags);
            }
            names.push(name);
        }
        Ok(of.with_tags(names))
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
    fn a_percent_sign_stands_for_a_byte() {
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
