//! Rust sources without comments and literals, with or without test code.

use crate::files::{files, read};

/// A Rust file.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with blanks in place of comments and literals.
    pub(crate) code: String,
    /// The same without what is compiled for tests only.
    pub(crate) shipped: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let code = blank(text);
        let shipped = if path.starts_with("src/") { without_tests(&code).0 } else { String::new() };
        Source { path: path.into(), text: text.into(), code, shipped }
    }

    /// `guard` for src/guard/read.rs.
    pub(crate) fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or_default();
        inside.split('/').next().unwrap_or_default().trim_end_matches(".rs")
    }

    pub(crate) fn complain(&self, at: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line(&self.text, at))
    }
}

pub(crate) fn sources(path: &str) -> Vec<Source> {
    let rust = files(path).into_iter().filter(|path| path.ends_with(".rs"));
    let mut sources: Vec<Source> = rust.map(|path| Source::new(&path, &read(&path))).collect();
    let tests: Vec<String> = sources
        .iter()
        .flat_map(|source| {
            let directory = source.path.trim_end_matches("/mod.rs").trim_end_matches(".rs").to_owned();
            without_tests(&source.code).1.into_iter().map(move |name| format!("{directory}/{name}.rs"))
        })
        .collect();
    for source in sources.iter_mut().filter(|source| tests.contains(&source.path)) {
        source.shipped.clear();
    }
    sources
}

pub(crate) fn everything_rust() -> Vec<Source> {
    ["src", "tests", "benches", "fuzz"].into_iter().flat_map(sources).collect()
}

/// Positions of `word` as a whole word.
pub(crate) fn words_at<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !part(code[..*at].chars().next_back()) && !part(code[at + word.len()..].chars().next())
    })
}

/// The first segments of paths that begin with `krate::`: `a` and `b` of `crate::{a::x, b}`.
pub(crate) fn paths_from(code: &str, krate: &str) -> Vec<(usize, String)> {
    let mut named = Vec::new();
    for at in words_at(code, krate) {
        let Some(rest) = code[at + krate.len()..].strip_prefix("::") else { continue };
        let group = rest.strip_prefix('{');
        let mut depth = 0;
        let mut begins = true;
        let text = group.unwrap_or(rest);
        for (i, c) in text.char_indices() {
            let word: String = text[i..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if begins && depth == 0 && !word.is_empty() {
                named.push((at, word));
            }
            begins = matches!(c, ',') || (begins && c.is_whitespace());
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                _ => {}
            }
            if group.is_none() {
                break;
            }
        }
    }
    named
}

/// Replaces comments, strings and characters by blanks. Each byte of code keeps its position.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let is_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => find(rest, b"*/", 2) + 2,
            [b'"', ..] => string(rest),
            [b'b' | b'c', b'"', ..] if !is_word => 1 + string(&rest[1..]),
            [b'r', b'"' | b'#', ..] if !is_word => raw_string(rest),
            [b'b', b'r', b'"' | b'#', ..] if !is_word => 1 + raw_string(&rest[1..]),
            [b'\'', b'\\', ..] => find(rest, b"'", 3) + 1,
            // A lifetime has no closing quote.
            [b'\'', ..] => text[at + 1..]
                .char_indices()
                .nth(1)
                .filter(|(i, c)| *c == '\'' && *i > 0)
                .map_or(0, |(i, _)| i + 2),
            _ => 0,
        };
        let end = (at + length).min(bytes.len());
        out[at..end].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        at = end.max(at + 1);
    }
    // Code outside literals and comments is ASCII.
    String::from_utf8_lossy(&out).into_owned()
}

fn find(bytes: &[u8], end: &[u8], from: usize) -> usize {
    let windows = bytes.windows(end.len()).enumerate().skip(from);
    windows.filter(|(_, window)| *window == end).map(|(at, _)| at).next().unwrap_or(bytes.len())
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string(bytes: &[u8]) -> usize {
    let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    find(bytes, &end, 2 + hashes) + end.len()
}

/// Code without the items under `#[cfg(test)]`, and the names of the test modules that have their own files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let mut out = code.as_bytes().to_vec();
    let mut modules = Vec::new();
    for (at, mark) in code.match_indices("#[cfg(test)]") {
        let item = &code[at + mark.len()..];
        let end = match item.find(['{', ';']) {
            Some(semicolon) if item[semicolon..].starts_with(';') => {
                modules.extend(item[..semicolon].trim().strip_prefix("mod ").map(str::to_owned));
                semicolon + 1
            }
            Some(brace) => {
                let mut depth = 0;
                let closes = item[brace..].char_indices().find(|(_, c)| {
                    depth += match c {
                        '{' => 1,
                        '}' => -1,
                        _ => 0,
                    };
                    depth == 0
                });
                brace + closes.map_or(item.len() - brace, |(i, _)| i + 1)
            }
            None => item.len(),
        };
        let item = &mut out[at..at + mark.len() + end];
        item.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    }
    (String::from_utf8_lossy(&out).into_owned(), modules)
}

pub(crate) fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_no_code_and_lifetimes_are() {
        let text = "a\"b\\\"//\"c//d\n'e'<'f>b'\\''r#\"g\"#h/*i*/j";
        let code = "a       c   \n   <'f>b          h     j";
        assert_eq!(blank(text), code);
    }

    #[test]
    fn a_path_is_named_in_a_use_in_a_group_and_in_passing() {
        let named =
            |code| paths_from(code, "crate").into_iter().map(|(_, module)| module).collect::<Vec<_>>();
        assert_eq!(named("use crate::a::{b, c};"), ["a"]);
        assert_eq!(named("use crate::{\n    a::{b, c},\n    d, e::f,\n};"), ["a", "d", "e"]);
        assert_eq!(named("pub(in crate::a) fn f(x: &crate::b::C) -> supercrate::d {}"), ["a", "b"]);
    }

    #[test]
    fn what_is_for_tests_only_is_left_out_and_its_files_are_known() {
        let code = "a #[cfg(test)]\nmod b; c #[cfg(test)] mod d { { } e } f";
        let (shipped, modules) = without_tests(code);
        assert_eq!(shipped.split_whitespace().collect::<Vec<_>>(), ["a", "c", "f"]);
        assert_eq!(modules, ["b"]);
        assert_eq!(shipped.len(), code.len());
    }
}
