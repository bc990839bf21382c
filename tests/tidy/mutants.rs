//! The mutants of tests/fleet/mutants.toml and unseen.toml, which scripts/mutants runs, are of texts that the sources have.

use std::collections::{BTreeMap, BTreeSet};

use super::files::read;

/// A string as TOML writes it on one line.
fn string(written: &str) -> Option<String> {
    if let Some(literal) = written.strip_prefix('\'') {
        return Some(literal.strip_suffix('\'')?.to_owned());
    }
    let mut text = String::new();
    let mut chars = written.strip_prefix('"')?.strip_suffix('"')?.chars();
    while let Some(next) = chars.next() {
        text.push(match next {
            '\\' => match chars.next()? {
                'n' => '\n',
                other => other,
            },
            other => other,
        });
    }
    Some(text)
}

/// Whether it is clear which text is meant: there is one, or it is the first one behind another that is there once.
fn is_clear(source: &str, old: &str, after: Option<&String>) -> bool {
    match after.map(|after| (after, source.split_once(after.as_str()))) {
        Some((after, Some((_, rest)))) => !rest.contains(after) && rest.contains(old),
        Some((_, None)) => false,
        None => source.matches(old).count() == 1,
    }
}

#[test]
fn each_mutant_takes_something_out_that_is_there() {
    let list = read("tests/fleet/mutants.toml") + &read("tests/fleet/unseen.toml");
    let (mut names, mut seen) = (BTreeSet::new(), 0);
    for mutant in list.split("[[mutant]]\n").skip(1) {
        let pairs = mutant.lines().filter_map(|line| line.split_once(" = "));
        let of: BTreeMap<&str, String> = pairs.filter_map(|(key, text)| Some((key, string(text)?))).collect();
        let (name, file, old) = (&of["name"], &of["file"], &of["old"]);
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(is_clear(&read(file), old, of.get("after")), "{name}: {file} has not, or not once:\n{old}");
        seen += usize::from(!of.contains_key("unseen"));
    }
    assert!(seen >= 50, "the fleet sees {seen} of {}", names.len());
}
