//! Whether the pages have every error that a client may receive, and a test provokes it.

use crate::code::Source;

/// The first words of errors.
const WORDS: [&str; 3] = ["SERVER_ERROR", "CLIENT_ERROR", "ERROR"];
/// What begins so is never sent to a client: replies of servers, a server itself, and other commands.
const ELSEWHERE: [&str; 5] = ["src/embedded/", "src/upstream/", "src/discovery/", "src/cli/", "src/admin/"];
/// A literal of a test stands for all errors that begin with it, if it is so long.
const ENOUGH: usize = 30;
/// Errors that no test provokes, with the reason.
const NOT_PROVOKED: [(&str, &str); 1] = [(
    "SERVER_ERROR not stored: too many misses on this connection",
    "one connection has 262,144 misses first; `misses.rs` tests that they are bounded",
)];

/// A string in the source that is an error.
struct Literal<'s> {
    source: &'s Source,
    at: usize,
    text: String,
    /// Whether only tests have it.
    of_test: bool,
}

impl Literal<'_> {
    /// Whether a test that has this string expects the error with this text, maybe without what precedes it.
    fn expects(&self, text: &str) -> bool {
        let own = self.text.trim_end_matches("\\r\\n");
        let is_all = [" ", ": "].iter().any(|end| text.split_once(end).is_some_and(|(_, rest)| rest == own));
        own == text || is_all || (own.len() >= ENOUGH && text.starts_with(own))
    }
}

/// All strings of tests, and those of the program that begin with one of the words.
fn literals(sources: &[Source]) -> Vec<Literal<'_>> {
    let mut literals = Vec::new();
    for source in sources {
        for (at, _) in source.text.match_indices('"') {
            let rest = &source.text[at + 1..];
            let Some(end) = rest.find('"') else { continue };
            let before = source.code[..at].trim_end().len().saturating_sub(1);
            let of_test = source.shipped.get(before..=before).is_none_or(|code| code == " ");
            if !of_test && !WORDS.iter().any(|word| rest.starts_with(word)) {
                continue;
            }
            // It may go on in the next line.
            let text = rest[..end].split("\\\n").map(str::trim_start).collect();
            literals.push(Literal { source, at, text, of_test });
        }
    }
    literals
}

/// The errors of a page, each in code font. `…` stands for the beginning of the one before, up to its colon.
fn shown(page: &str) -> Vec<String> {
    let mut shown: Vec<String> = Vec::new();
    for span in page.split('`').skip(1).step_by(2) {
        let beginning = shown.last().and_then(|last| last.split_once(": "));
        match (span.strip_prefix("… "), beginning) {
            (Some(rest), Some((beginning, _))) => shown.push(format!("{beginning}: {rest}")),
            _ if WORDS.iter().any(|word| span.starts_with(word)) => shown.push(span.replace("\\|", "|")),
            _ => {}
        }
    }
    shown
}

/// Errors of the code that no page has, and those that no test provokes.
pub(crate) fn unlisted_errors(pages: &[(String, String)], sources: &[Source]) -> Vec<String> {
    let shown: Vec<String> = pages.iter().flat_map(|(_, page)| shown(page)).collect();
    let literals = literals(sources);
    let (of_tests, shipped): (Vec<_>, Vec<_>) = literals.into_iter().partition(|literal| literal.of_test);
    let of_tests: Vec<_> =
        of_tests.into_iter().filter(|test| !test.source.path.starts_with("tests/tidy/")).collect();
    let mut problems = Vec::new();
    let is_sent = |literal: &&Literal<'_>| {
        !ELSEWHERE.iter().any(|folder| literal.source.path.starts_with(folder))
            && literal.source.path.starts_with("src/")
            && literal.text.ends_with("\\r\\n")
    };
    for literal in shipped.iter().filter(is_sent) {
        let text = literal.text.trim_end_matches("\\r\\n");
        if !shown.iter().any(|shown| shown == text) {
            problems.push(literal.source.complain(literal.at, format_args!("no page has {text:?}")));
        }
        // Those of the parser are compared with memcached's.
        let is_compared = literal.source.path.starts_with("src/protocol/");
        let provokes = |test: &Literal<'_>| test.expects(text);
        let is_excused = NOT_PROVOKED.iter().any(|(excused, _)| *excused == text);
        if !is_compared && is_excused == of_tests.iter().any(provokes) {
            let what = if is_excused { "a test provokes, against its reason," } else { "no test provokes" };
            problems.push(literal.source.complain(literal.at, format_args!("{what} {text:?}")));
        }
    }
    problems
}

mod tests {
    use super::*;
    use crate::tests::only;

    #[test]
    fn an_error_that_no_page_has_or_no_test_provokes_is_found() {
        let shipped = "const A: &str = \"SERVER_ERROR not stored: it is \\\n    new\\r\\n\";\n\
            fn f() { x == b\"SERVER_ERROR theirs\" }\n#[cfg(test)]\nmod tests { fn f() { \"SERVER_ERROR y\\r\\n\" } }\n";
        let source = Source::new("src/a.rs", shipped);
        let test = |text: &str| Source::new("tests/it/a.rs", &format!("fn f() {{ is({text:?}) }}"));
        let page = |text: &str| [("docs/a.md".to_owned(), text.to_owned())];
        let good = page("| `SERVER_ERROR not stored: it is old`, `… it is new` |");
        let problems = |page: &[(String, String)], text: &str| {
            unlisted_errors(page, &[Source::new("src/a.rs", shipped), test(text)])
        };
        assert_eq!(problems(&good, "SERVER_ERROR not stored: it is new"), Vec::<String>::new());
        only(
            problems(&page("`SERVER_ERROR not stored: it is`"), "SERVER_ERROR not stored: it is new"),
            "src/a.rs:1: no page has",
        );
        only(problems(&good, "SERVER_ERROR not"), "src/a.rs:1: no test provokes");
        assert_eq!(literals(&[source]).iter().filter(|literal| !literal.of_test).count(), 2);
    }
}
