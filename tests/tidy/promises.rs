//! Whether the table of mechanisms names mechanisms and tests that exist.

use std::collections::BTreeSet;

use crate::code::{Source, words_at};

/// The page with the table.
pub(crate) const MECHANISMS: &str = "tests/tidy/mechanisms.md";

/// Rows like `` | a mechanism | `guard/read.rs` `judge` | `a_test` | `` whose file does not define the item, or whose test does not
/// exist. Files are below `src/`; a path that ends in `/` means all files of a folder.
pub(crate) fn missing_mechanisms(page: &str, sources: &[Source]) -> Vec<String> {
    let functions: BTreeSet<&str> = sources.iter().flat_map(|source| names(&source.code)).collect();
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [_, mechanism, tests] = cells[..] else { continue };
        if !mechanism.starts_with('`') {
            continue;
        }
        let mut complain = |what: String| problems.push(format!("{MECHANISMS}:{number}: {what}"));
        let (files, items): (Vec<&str>, Vec<&str>) =
            code(mechanism).partition(|code| code.contains('/') || code.ends_with(".rs"));
        let of = |file: &str| {
            let path = format!("src/{file}");
            sources.iter().filter(move |source| {
                source.path == path || (path.ends_with('/') && source.path.starts_with(&path))
            })
        };
        for file in files.iter().filter(|file| of(file).next().is_none()) {
            complain(format!("there is no src/{file}"));
        }
        for item in &items {
            let name = item.rsplit("::").next().unwrap_or(item);
            // The type of a method may be defined in another file.
            let owner = item.split("::").next().unwrap_or(name);
            let defines = |source: &Source| {
                names(&source.code).any(|defined| defined == name)
                    && words_at(&source.code, owner).next().is_some()
            };
            if !files.is_empty() && !files.iter().flat_map(|file| of(file)).any(defines) {
                complain(format!("{} does not define {item}", files.join(", ")));
            }
        }
        let named = || code(tests).filter(|code| code.contains('_') && !code.contains(['/', '.']));
        if named().next().is_none() {
            complain("names no test".to_owned());
        }
        for test in named() {
            if !functions.contains(test) {
                complain(format!("there is no test {test}"));
            }
        }
    }
    problems
}

/// The code spans of a cell.
fn code(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The functions and types that a file defines.
fn names(code: &str) -> impl Iterator<Item = &str> {
    ["fn", "struct", "enum", "type", "const"].into_iter().flat_map(move |keyword| {
        words_at(code, keyword).filter_map(move |at| {
            let rest = code[at + keyword.len()..].strip_prefix(' ')?;
            Some(rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default())
        })
    })
}

mod tests {
    use super::*;
    use crate::tests::only;

    #[test]
    fn a_mechanism_or_test_that_does_not_exist_is_found() {
        let sources = [
            Source::new("src/a/b.rs", "impl B { fn keep(&self) {} }\n"),
            Source::new("tests/it/b.rs", "#[test]\nfn it_is_kept() {}\n"),
        ];
        let row = |mechanism: &str, test: &str| format!("| A value is kept | {mechanism} | {test} |\n");
        for fine in ["`a/b.rs` `B::keep`", "`a/` `keep`", "`a/b.rs`"] {
            let page = row(fine, "`it_is_kept` (b)<br>`it_is_kept` (`src/a/b.rs`)");
            assert_eq!(missing_mechanisms(&page, &sources), Vec::<String>::new());
        }
        only(
            missing_mechanisms(&row("`a/c.rs`", "`it_is_kept`"), &sources),
            "tests/tidy/mechanisms.md:1: there is no src/a/c.rs",
        );
        only(
            missing_mechanisms(&row("`a/b.rs` `C::keep`", "`it_is_kept`"), &sources),
            "does not define C::keep",
        );
        only(
            missing_mechanisms(&row("`a/b.rs` `drop`", "`it_is_kept`"), &sources),
            "a/b.rs does not define drop",
        );
        only(
            missing_mechanisms(&row("`a/b.rs` `keep`", "`it_is_lost`"), &sources),
            "there is no test it_is_lost",
        );
        only(missing_mechanisms(&row("`a/b.rs` `keep`", "the same"), &sources), "names no test");
    }
}
