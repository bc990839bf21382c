//! `distribution`, `hash`, `hash_tag` and `unhashed_prefixes` of a pool, and the same of its `next` or `previous`.

use config::Value;

use super::validator::{KeyPath, Validator, text, word};
use crate::upstream::{Distribution, Hash, HashedPart, Scheme};

/// The most prefixes of a pool.
const MAX_PREFIXES: usize = 64;

/// The keys of one scheme, with their values.
pub(super) struct Keys<'t> {
    pub(super) distribution: (&'static str, &'t Option<Value>),
    pub(super) hash: (&'static str, &'t Option<Value>),
    pub(super) hash_tag: (&'static str, &'t Option<Value>),
    pub(super) prefixes: (&'static str, &'t Option<Value>),
}

impl<'t> Keys<'t> {
    /// The first of them that is set.
    pub(super) fn first_set(&self) -> Option<(&'static str, &'t Value)> {
        let all = [self.distribution, self.hash, self.hash_tag, self.prefixes];
        all.into_iter().find_map(|(key, value)| Some((key, value.as_ref()?)))
    }
}

/// The scheme that these keys set.
pub(super) fn scheme(v: &mut Validator<'_>, at: &KeyPath, keys: &Keys<'_>) -> Option<Scheme> {
    let (key, value) = keys.distribution;
    let distribution = v.value(at, key, value, Distribution::Ketama, word(&Distribution::NAMES));
    let hash = hash(v, at, keys, distribution);
    let part = part(v, at, keys, distribution);
    Some(Scheme { distribution: distribution?, hash: hash?, part: part? })
}

fn hash(
    v: &mut Validator<'_>,
    at: &KeyPath,
    keys: &Keys<'_>,
    distribution: Option<Distribution>,
) -> Option<Hash> {
    let (key, value) = keys.hash;
    let usual = distribution.map_or(Hash::Md5, Distribution::default_hash);
    let hash = v.value(at, key, value, usual, word(&Hash::NAMES))?;
    let Some(distribution) = distribution else { return Some(hash) };
    if distribution.hashes().contains(&hash) {
        return Some(hash);
    }
    let name = distribution.name();
    let message = match distribution.hashes() {
        [_] if matches!(distribution, Distribution::Jump | Distribution::Rendezvous) => {
            "must be \"md5\" with jump and rendezvous: other hashes have too few bits to distribute keys evenly"
                .to_owned()
        }
        [only] => format!("must be {:?} with {name}, whose library has no other: leave it out", only.name()),
        _ => {
            let belongs = |(_, it): &(&str, Distribution)| it.hashes().contains(&hash);
            let owner = Distribution::NAMES.iter().find(|it| belongs(it)).map_or("", |(name, _)| name);
            format!("is the hash of {owner} only: {name} needs one of libmemcached's, twemproxy's or Java's")
        }
    };
    v.error(at, key, value.as_ref(), message);
    None
}

fn part(
    v: &mut Validator<'_>,
    at: &KeyPath,
    keys: &Keys<'_>,
    distribution: Option<Distribution>,
) -> Option<HashedPart> {
    let ((tag_key, tag), (list_key, list)) = (keys.hash_tag, keys.prefixes);
    let tag_value = v.value(at, tag_key, tag, None, |value| match *text(value)?.as_bytes() {
        [open, close] if open.is_ascii_graphic() && close.is_ascii_graphic() => Ok(Some([open, close])),
        _ => Err("must be two visible ASCII characters: \"{}\"".to_owned()),
    });
    let prefixes = v.list(at, list_key, list, Vec::new(), |v, key, value| {
        let message = match text(value) {
            Ok(prefix)
                if (1..=128).contains(&prefix.len())
                    && prefix.bytes().all(|byte| byte > b' ' && byte != 0x7f) =>
            {
                return Some(prefix.as_bytes().to_vec());
            }
            Ok(_) => "must have 1 to 128 bytes, without spaces and control characters".to_owned(),
            Err(message) => message,
        };
        v.error(at, &key, Some(value), message);
        None
    });
    let (tag_value, prefixes) = (tag_value?, prefixes?);
    if prefixes.len() > MAX_PREFIXES {
        v.error(
            at,
            list_key,
            None,
            format_args!("must contain at most {MAX_PREFIXES} prefixes, not {}", prefixes.len()),
        );
        return None;
    }
    let distribution = distribution?;
    let name = distribution.name();
    match (tag_value, &prefixes[..]) {
        (Some(_), [_, ..]) => {
            v.error(
                at,
                list_key,
                None,
                format_args!("cannot be set together with {tag_key}: no library has both"),
            );
            None
        }
        (Some(_), []) if !matches!(distribution, Distribution::Ketama | Distribution::ModulaSorted) => {
            let message = format!(
                "is impossible with {name}: twemproxy's distributions, ketama and modula_sorted, have one"
            );
            v.error(at, tag_key, tag.as_ref(), message);
            None
        }
        (None, [_, ..]) if !leaves_prefixes_out(distribution) => {
            let message = format!(
                "is impossible with {name}, which hashes whole keys: libmemcached's distributions (ketama, consistent, modula, spymemcached) and \
                 pymemcache have prefixes"
            );
            v.error(at, list_key, None, message);
            None
        }
        (Some(tag), []) => Some(HashedPart::Between(tag)),
        (None, [_, ..]) => Some(HashedPart::After(prefixes)),
        (None, []) => Some(HashedPart::Whole),
    }
}

fn leaves_prefixes_out(distribution: Distribution) -> bool {
    use Distribution::{Consistent, Ketama, Modula, Pymemcache, Spymemcached};
    matches!(distribution, Consistent | Ketama | Modula | Pymemcache | Spymemcached)
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::upstream::{Distribution, Hash, HashedPart, PoolSpec, Scheme};

    fn read(keys: &str) -> Result<PoolSpec, String> {
        let text = format!("[pools.main]\nservers = [\"a:1\", \"b:1\"]\n{keys}\n");
        match Config::read("k.toml", &text, []) {
            Ok(config) => Ok(config.pools[0].clone()),
            Err(errors) => Err(errors.without_places().join("\n")),
        }
    }

    #[test]
    fn each_distribution_has_its_hash_if_none_is_set() {
        for (name, distribution) in Distribution::NAMES {
            let scheme = read(&format!("distribution = {name:?}")).unwrap().scheme;
            assert_eq!((scheme.distribution, scheme.hash), (distribution, distribution.default_hash()));
            for (hash, it) in Hash::NAMES {
                let pool = read(&format!("distribution = {name:?}\nhash = {hash:?}"));
                assert_eq!(pool.is_ok(), distribution.hashes().contains(&it), "{name} {hash}");
            }
        }
    }

    #[test]
    fn what_no_library_has_is_refused_with_the_reason() {
        for (keys, reason) in [
            (
                "distribution = \"dalli\"\nhash = \"md5\"",
                "must be \"crc32a\" with dalli, whose library has no other",
            ),
            ("distribution = \"jump\"\nhash = \"crc32a\"", "must be \"md5\" with jump and rendezvous"),
            ("hash = \"murmur3\"", "is the hash of pymemcache only"),
            ("hash_tag = \"{\"", "must be two visible ASCII characters"),
            ("hash_tag = \"{}\"\ndistribution = \"modula\"", "is impossible with modula: twemproxy's"),
            ("hash_tag = \"{}\"\nunhashed_prefixes = [\"a:\"]", "cannot be set together with hash_tag"),
            ("unhashed_prefixes = [\"a:\"]\ndistribution = \"dalli\"", "is impossible with dalli"),
            ("unhashed_prefixes = [\"a b\"]", "unhashed_prefixes[0] (\"a b\") must have 1 to 128 bytes"),
            ("servers_ = 1\ndistribution = \"ketma\"", "must be \"ketama\" or"),
            ("other_distribution = \"modula\"", "needs next or previous"),
            ("previous = [\"a:1\", \"b:1\"]\nother_distribution = \"ketama\"", "must differ from servers"),
        ] {
            let error = read(keys).err().unwrap_or_else(|| panic!("accepted: {keys}"));
            assert!(error.contains(reason), "{keys}: {error}");
        }
    }

    #[test]
    fn the_other_list_has_the_scheme_of_the_pool_unless_it_has_its_own() {
        let other = |keys: &str| read(keys).unwrap().other.unwrap().scheme;
        let same = other("hash = \"fnv1a_64\"\nhash_tag = \"{}\"\nprevious = [\"c:1\"]");
        assert_eq!((same.hash, &same.part), (Hash::Fnv1a64, &HashedPart::Between(*b"{}")));
        let ketama = "hash = \"fnv1a_64\"\nhash_tag = \"{}\"\n";
        let jump = other(&format!("{ketama}next = [\"a:1\", \"b:1\"]\nother_distribution = \"jump\""));
        assert_eq!(
            (jump.distribution, jump.hash, &jump.part),
            (Distribution::Jump, Hash::Md5, &HashedPart::Whole)
        );
        // One of the keys is enough for all of them to have their defaults.
        let none = other(&format!("{ketama}previous = [\"a:1\", \"b:1\"]\nother_hash = \"murmur\""));
        assert_eq!(none, Scheme::whole(Distribution::Ketama, Hash::Murmur));
        let tag = other("previous = [\"a:1\", \"b:1\"]\nother_hash_tag = \"||\"");
        assert_eq!((tag.hash, &tag.part), (Hash::Md5, &HashedPart::Between(*b"||")));
        let prefix = other("previous = [\"a:1\", \"b:1\"]\nother_unhashed_prefixes = [\"p:\"]");
        assert_eq!(prefix.part, HashedPart::After(vec![b"p:".to_vec()]));
    }
}
