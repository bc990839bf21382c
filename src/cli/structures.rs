//! The kinds of structures in words, for `kennel check`.

use std::fmt;
use std::time::Duration;

use crate::config::units::show_duration;
use crate::kinds::{Counter, Kind};

/// Writes what the settings of a structure mean, on indented lines.
pub(super) fn write(f: &mut fmt::Formatter<'_>, kind: &Kind) -> fmt::Result {
    match kind {
        Kind::Counter(Counter { ttl }) => {
            writeln!(f, "    incr and decr create a counter that is not there; {}", lives(*ttl))?;
            writeln!(f, "    a count that was acknowledged is kept while its server lives")
        }
    }
}

fn lives(ttl: Duration) -> String {
    match ttl {
        Duration::ZERO => "it lives until it is deleted".to_owned(),
        ttl => format!("it lives for {}", show_duration(ttl)),
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::description::Description;
    use crate::config::Config;

    fn describe(keys: &str) -> String {
        let text =
            format!("pools.main.servers = [\"a:11211\"]\n[[rules]]\nname = \"x\"\nmatch = \"x:*\"\n{keys}");
        let all = Description(&Config::read("test.toml", &text, []).unwrap()).to_string();
        let (_, rules) = all.split_once("  rules[0] x: x:*, ").unwrap();
        rules.split_once("  all other keys").unwrap().0.to_owned()
    }

    #[test]
    fn each_kind_is_explained_in_words() {
        for (keys, expected) in [
            (
                "kind = \"counter\"",
                "counter, in pool main\n    incr and decr create a counter that is not there; it lives until it is deleted\n    \
                 a count that was acknowledged is kept while its server lives\n",
            ),
            (
                "kind = \"counter\"\nttl = \"90s\"",
                "counter, in pool main\n    incr and decr create a counter that is not there; it lives for 90s\n    \
                 a count that was acknowledged is kept while its server lives\n",
            ),
        ] {
            assert_eq!(describe(keys), expected, "{keys}");
        }
    }
}
