//! Whether the pages name what exists.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;

use crate::code::{Source, words_at};
use crate::files::{normal, root, texts};

/// All pages.
pub(crate) fn pages() -> Vec<(String, String)> {
    let is_page = |path: &str| path.ends_with(".md");
    texts().into_iter().filter(|(path, _)| is_page(path)).collect()
}

/// Headings that a page has twice below the same one, and entries of lists that it has twice: it was put together wrongly.
pub(crate) fn said_twice(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut fenced, mut above) = (false, Vec::new());
    let mut known = HashSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        let level = line.bytes().take_while(|byte| *byte == b'#').count();
        let what = match (fenced, level) {
            (true, _) => continue,
            (_, 1..) => {
                above.truncate(level - 1);
                above.push(line);
                above.join("\n")
            }
            // Short ones may be words of a table or an index.
            _ if line.starts_with("- ") && line.len() > 60 => line.to_owned(),
            _ => continue,
        };
        if !known.insert(what) {
            problems.push(format!("{path}:{number}: stands there twice: {line}"));
        }
    }
    problems
}

/// Dead links of a page, links that show another file's name, and files in code font that do not exist.
pub(crate) fn dead_links(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let parts: Vec<&str> = line.split('`').collect();
        let (prose, code) = (parts.iter().step_by(2), parts.iter().skip(1).step_by(2));
        for named in code.filter(|code| is_path(code)) {
            if !root().join(named).exists() {
                problems.push(format!("{path}:{number}: names {named}, which is not there"));
            }
        }
        let prose = prose.copied().collect::<Vec<_>>().join("`");
        let ends: Vec<&str> = prose.split("](").collect();
        for link in ends.windows(2) {
            let [before, after] = link else { continue };
            let target = after.split(')').next().unwrap_or_default();
            if let Err(why) = resolve(path, text, target) {
                problems.push(format!("{path}:{number}: link to {target}: {why}"));
            }
            let shown = before.rsplit('[').next().unwrap_or_default();
            let file = target.split('#').next().and_then(|file| file.rsplit('/').next());
            if shown.ends_with(".md") && file != shown.rsplit('/').next() {
                problems.push(format!("{path}:{number}: link to {target}: it is shown as {shown}"));
            }
        }
    }
    problems
}

/// The most words of a decision.
const DECISION: usize = 150;

/// Decisions that are longer than a page, numbers that two of them have or none, and links that show another number than that of the
/// decision.
pub(crate) fn wrong_decisions(pages: &[(String, String)]) -> Vec<String> {
    let is_one = |(path, _): &&(String, String)| path.starts_with("docs/decisions/");
    let decisions: BTreeMap<_, _> = pages.iter().filter(is_one).map(|(path, text)| (path, text)).collect();
    let mut problems = Vec::new();
    for (number, (path, text)) in decisions.into_iter().enumerate() {
        if !path.starts_with(&format!("docs/decisions/{number:04}-")) {
            problems.push(format!("{path}: number {number:04} comes next"));
        }
        let words = text.split_whitespace().count();
        if words > DECISION {
            problems.push(format!("{path}: has {words} words, and may have {DECISION}"));
        }
    }
    for (path, text) in pages {
        let links = text
            .match_indices("](")
            .filter_map(|(at, _)| Some((text.get(at.checked_sub(4)?..at)?, &text[at..])));
        for (label, link) in links.filter(|(label, _)| label.bytes().all(|byte| byte.is_ascii_digit())) {
            let number =
                link.split_once("decisions/").and_then(|(before, rest)| (before.len() < 9).then_some(rest));
            if number.is_some_and(|rest| !rest.starts_with(label)) {
                problems.push(format!("{path}: a link shows the number {label} of another decision"));
            }
        }
    }
    problems
}

/// Pages of docs/ that the contents of the site leave out or name twice. `packaging/pages.py` adds the decisions.
pub(crate) fn wrong_contents(contents: &str, pages: &[(String, String)]) -> Vec<String> {
    let pages = pages.iter().filter_map(|(path, _)| path.strip_prefix("docs/"));
    let pages = pages.filter(|page| !page.starts_with("decisions/") && *page != "SUMMARY.md");
    let times = |page: &str| contents.matches(&format!("]({page})")).count();
    let wrong = pages.map(|page| (page, times(page))).filter(|(_, times)| *times != 1);
    wrong.map(|(page, times)| format!("docs/SUMMARY.md: has {page} {times} times")).collect()
}

/// Lines of Rust on a page that no source has: examples of style are real code.
pub(crate) fn invented_code(path: &str, text: &str, sources: &[(String, String)]) -> Vec<String> {
    let blocks = text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    let is_real =
        |block: &str| sources.iter().any(|(file, text)| file.ends_with(".rs") && text.contains(block));
    blocks.filter(|block| !is_real(block)).map(|block| format!("{path}: no source has\n{block}")).collect()
}

fn is_path(code: &str) -> bool {
    const FOLDERS: [&str; 10] = [
        "src/",
        "tests/",
        "docs/",
        "config/",
        "deploy/",
        "packaging/",
        "scripts/",
        "benches/",
        "bench/",
        "fuzz/",
    ];
    let plain = code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    plain && FOLDERS.iter().any(|folder| code.starts_with(folder))
}

fn resolve(from: &str, text: &str, target: &str) -> Result<(), String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let mut there = root().join(from);
    let text = match file {
        "" => text.to_owned(),
        file => {
            there.pop();
            there.push(file);
            if !there.exists() {
                return Err("there is no such file".into());
            }
            if normal(&there).strip_prefix(root()).is_err() {
                return Err("it leads out of the repository".into());
            }
            fs::read_to_string(&there).unwrap_or_default()
        }
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let keeps = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        keeps.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    });
    if anchor.is_empty() || headings.into_iter().any(|heading| heading == anchor) {
        return Ok(());
    }
    Err(format!("there is no heading for #{anchor}"))
}

/// The page whose table lists the limits.
pub(crate) const LIMITS: &str = "tests/tidy/limits.md";

/// Rows of a page like `` | `src/session.rs` | `MAX_CALLS` | 1,024 | … | `` against the constants, and constants called `MAX_…` or
/// `…_MAX` that the page leaves out.
pub(crate) fn wrong_limits(path: &str, page: &str, sources: &[Source]) -> Vec<String> {
    let mut constants: BTreeMap<(&str, &str), (usize, Vec<u64>)> = BTreeMap::new();
    for source in sources {
        for (at, _) in source.shipped.match_indices("const ") {
            let rest = &source.shipped[at + "const ".len()..];
            let Some((name, value)) = rest.split_once(';').and_then(|(item, _)| item.split_once(':')) else {
                continue;
            };
            let value = value.split_once('=').and_then(|(_, value)| evaluate(value));
            if let Some(value) = value {
                constants.insert((&source.path, name.trim()), (at, value));
            }
        }
    }
    let mut problems = Vec::new();
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, file, name, value, ..] = cells[..] else { continue };
        let (file, name) = (file.trim_matches('`'), name.trim_matches('`'));
        if !file.starts_with("src/") {
            continue;
        }
        rows.push((file.to_owned(), name.to_owned()));
        match (constants.get(&(file, name)), human(value)) {
            (None, _) => {
                problems.push(format!("{path}:{number}: {file} has no constant {name} with a plain value"))
            }
            (Some((_, real)), stated) if *real != stated => problems.push(format!(
                "{path}:{number}: says {name} is {value} ({stated:?}), but in {file} it is {real:?}"
            )),
            _ => {}
        }
    }
    // The other commands have no clients, so their limits need no row.
    for source in sources.iter().filter(|source| !source.path.starts_with("src/cli/")) {
        for ((file, name), (at, _)) in constants.iter().filter(|((file, _), _)| *file == source.path) {
            let is_limit = name.starts_with("MAX_") || name.ends_with("_MAX");
            if is_limit && !rows.iter().any(|(f, n)| f == file && n == name) {
                problems.push(source.complain(*at, format_args!("{name} is not in {path}")));
            }
        }
    }
    problems
}

/// Words like `MAX_CALLS`, and code like `Reply::StaleCas`, that a page names and no source of `src/` has.
pub(crate) fn unknown_names(path: &str, text: &str, sources: &[Source]) -> Vec<String> {
    let has = |source: &Source, word: &str| words_at(&source.code, word).next().is_some();
    let is_known = |words: &[&str]| sources.iter().any(|source| words.iter().all(|word| has(source, word)));
    let is_type = |word: &str| {
        ["struct ", "enum "].iter().any(|keyword| {
            let item = format!("{keyword}{word}");
            sources.iter().any(|source| words_at(&source.code, &item).next().is_some())
        })
    };
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let limits = words.filter(|word| word.starts_with("MAX_") && word.len() > "MAX_".len());
        let unknown = limits.filter(|word| !is_known(&[word])).map(str::to_owned);
        let paths =
            line.split('`').skip(1).step_by(2).filter_map(|code| Some((code, code.split_once("::")?)));
        let unknown_paths = paths.filter(|(_, (of, item))| is_type(of) && !is_known(&[of, item]));
        let all = unknown.chain(unknown_paths.map(|(code, _)| code.to_owned()));
        problems.extend(all.map(|name| format!("{path}:{number}: names {name}, which is not in src/")));
    }
    problems
}

/// Why a limit may have no test: it is a pause or the size of a buffer, and cannot be reached.
const UNREACHABLE: [&str; 2] = ["– pause", "– buffer"];
/// Precedes the reason why no test reaches a limit.
const NOT_REACHED: &str = "not reached by a test: ";

/// Rows of the limits table of a page whose last cell names no test of `sources`, or that do not say what a full table costs: `–` is
/// no table, and a test that the cell names must exist.
pub(crate) fn unshown_limits(path: &str, page: &str, sources: &[Source]) -> Vec<String> {
    let tests: BTreeSet<&str> = sources.iter().flat_map(|source| tests(&source.code)).collect();
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", file, name, _, .., shown, ""] = cells[..] else { continue };
        if !file.starts_with("`src/") || !name.starts_with('`') {
            continue;
        }
        let cost = if let [_, _, _, _, _, cost, _, _] = cells[..] { cost } else { "" };
        if cost.is_empty() || cost.split('`').skip(1).step_by(2).any(|test| !tests.contains(test)) {
            problems.push(format!(
                "{path}:{number}: {name} at its limit costs {cost:?}: no number, or no such test"
            ));
        }
        let test = shown.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        let is_shown = match test {
            Some(test) => tests.contains(test),
            None => {
                UNREACHABLE.contains(&shown)
                    || shown.strip_prefix(NOT_REACHED).is_some_and(|why| !why.is_empty())
            }
        };
        if !is_shown {
            problems.push(format!("{path}:{number}: {name} is shown by {shown:?}: no such test"));
        }
    }
    problems
}

/// The names of the functions with `#[test]` or the like.
fn tests(code: &str) -> impl Iterator<Item = &str> {
    ["#[test]", "#[tokio::test"].into_iter().flat_map(move |mark| code.split(mark).skip(1)).filter_map(
        |rest| {
            let (_, function) = rest.split_once("fn ")?;
            function.split('(').next()
        },
    )
}

/// The value of a constant: a number, a duration in ms, or a pair of them. `None`: any other expression.
fn evaluate(expression: &str) -> Option<Vec<u64>> {
    let expression = expression.trim();
    if let Some(pair) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return Some(pair.split(", ").map(evaluate).collect::<Option<Vec<_>>>()?.concat());
    }
    let duration = [("Duration::from_millis(", 1), ("Duration::from_secs(", 1000)]
        .into_iter()
        .find_map(|(name, unit)| Some((expression.strip_prefix(name)?.strip_suffix(')')?, unit)));
    if let Some((number, unit)) = duration {
        return Some(vec![evaluate(number)?.first()? * unit]);
    }
    if let Some((left, right)) = expression.split_once("<<") {
        return Some(vec![evaluate(left)?.first()? << evaluate(right)?.first()?]);
    }
    let factors = expression.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>().ok());
    Some(vec![factors.product::<Option<u64>>()?])
}

/// "1,024", "64 KiB", "4 s", "10 ms to 500 ms": what [`evaluate`] gives.
fn human(value: &str) -> Vec<u64> {
    const UNITS: [(&str, u64); 6] =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("ms", 1), ("min", 60_000), ("s", 1000)];
    let number = |part: &str| {
        let (number, unit) = part.trim().split_once(' ').unwrap_or((part.trim(), ""));
        let unit = UNITS.iter().find(|(name, _)| *name == unit).map_or(1, |(_, size)| *size);
        number.replace(',', "").parse::<u64>().ok().map(|number| number * unit)
    };
    value.split(" to ").filter_map(number).collect()
}

/// Error lines, and what "the log says", of the tables of a page, that no source has. `…` stands for anything.
pub(crate) fn unknown_messages(path: &str, page: &str, sources: &[Source]) -> Vec<String> {
    // A literal may go on in the next line of the source.
    let plain = |source: &Source| source.text.split("\\\n").map(str::trim_start).collect::<String>();
    let code: Vec<String> = sources.iter().map(plain).collect();
    let is_known = |part: &str| code.iter().any(|code| code.contains(part));
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(page.lines()).filter(|(_, line)| line.starts_with("| ")) {
        let cell = line.split(" | ").next().unwrap_or_default();
        let spans: Vec<&str> = cell.split('`').collect();
        for pair in spans.chunks_exact(2) {
            let [before, span] = pair else { continue };
            let is_error =
                ["SERVER_ERROR ", "CLIENT_ERROR ", "ERROR "].iter().any(|word| span.starts_with(word));
            if !is_error && !before.ends_with("the log says ") {
                continue;
            }
            for part in span.split('…').map(str::trim).filter(|part| !part.is_empty() && !is_known(part)) {
                problems.push(format!("{path}:{number}: no source has the message {part:?}"));
            }
        }
    }
    problems
}

mod tests {
    use super::*;
    use crate::tests::only;

    #[test]
    fn a_page_that_the_site_lacks_or_has_twice_is_found() {
        let page = |path: &str| (path.to_owned(), String::new());
        let pages = ["docs/a.md", "docs/SUMMARY.md", "docs/decisions/0001-b.md", "README.md"].map(page);
        assert_eq!(wrong_contents("- [A](a.md)\n", &pages), Vec::<String>::new());
        only(wrong_contents("- [A](b/a.md)\n", &pages), "docs/SUMMARY.md: has a.md 0 times");
        only(wrong_contents("- [A](a.md)\n- [B](a.md)\n", &pages), "docs/SUMMARY.md: has a.md 2 times");
    }

    #[test]
    fn a_decision_that_is_too_long_or_has_a_wrong_number_is_found() {
        let pages = |second: &str, text: &str| {
            let path = |name: &str| format!("docs/decisions/{name}");
            [(path("0000-template.md"), "a".to_owned()), (path(second), text.to_owned())]
        };
        assert_eq!(wrong_decisions(&pages("0001-b.md", &"a ".repeat(150))), Vec::<String>::new());
        only(wrong_decisions(&pages("0001-b.md", &"a ".repeat(151))), "has 151 words");
        assert_eq!(
            wrong_decisions(&pages("0001-b.md", "[0000](../decisions/0000-a.md)")),
            Vec::<String>::new()
        );
        only(
            wrong_decisions(&pages("0001-b.md", "[0001](decisions/0000-a.md)")),
            "a link shows the number 0001 of another decision",
        );
        only(wrong_decisions(&pages("0002-b.md", "a")), "docs/decisions/0002-b.md: number 0001 comes next");
        only(
            wrong_decisions(&pages("0000-b.md", "a")),
            "docs/decisions/0000-template.md: number 0001 comes next",
        );
    }

    #[test]
    fn an_example_that_is_no_code_is_found() {
        let sources = [("src/a.rs".to_owned(), "fn a() {}\nfn b() {}\n".to_owned())];
        assert_eq!(invented_code("a.md", "```rust\nfn b() {}\n```\n", &sources), Vec::<String>::new());
        only(invented_code("a.md", "```rust\nfn c() {}\n```\n", &sources), "a.md: no source has");
    }

    #[test]
    fn a_dead_link_is_found_and_code_is_no_link() {
        only(dead_links("docs/a.md", "\n[b](nowhere.md)\n"), "docs/a.md:2: link to nowhere.md");
        only(dead_links("docs/a.md", "# B c\n[b](#b-d)\n"), "no heading for #b-d");
        only(dead_links("docs/a.md", "see `src/nowhere.rs`\n"), "names src/nowhere.rs");
        only(dead_links("docs/a.md", "[b](../../..)\n"), "out of the repository");
        only(dead_links("docs/a.md", "[testing.md](../README.md)\n"), "it is shown as testing.md");
        let fine = "# B `c`\n[b](#b-c) [d](../README.md) `[x](y)`\n```\n[e](nowhere)\n```\n[f](https://x.example/)\n";
        assert_eq!(dead_links("docs/a.md", fine), Vec::<String>::new());
    }

    #[test]
    fn a_limit_that_the_page_has_wrong_or_not_at_all_is_found() {
        let source = [Source::new(
            "src/a.rs",
            "const MAX_A: usize = 64 * 1_024;\nconst B: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));\n",
        )];
        let a = "| `src/a.rs` | `MAX_A` | 64 KiB | it ends |\n";
        let b = "| `src/a.rs` | `B` | 10 ms to 1 s | |\n";
        assert_eq!(wrong_limits("docs/a.md", &format!("{a}{b}"), &source), Vec::<String>::new());
        only(wrong_limits("docs/a.md", b, &source), "src/a.rs:1: MAX_A is not in");
        only(wrong_limits("docs/a.md", &a.replace("64", "65"), &source), "says MAX_A is 65 KiB");
        only(
            wrong_limits("docs/a.md", &format!("{a}{}", a.replace("MAX_A", "MAX_C")), &source),
            "has no constant MAX_C",
        );
    }

    #[test]
    fn a_name_that_no_source_has_is_found() {
        let sources = [Source::new("src/a.rs", "const MAX_A: usize = 1;\nenum Reply { Stale }\n")];
        let fine =
            "`MAX_A`, MAX_A × 2, `Reply::Stale` and `Memcached::OPT_POLL_TIMEOUT`, as `…_MAX` or `MAX_…`\n";
        assert_eq!(unknown_names("docs/a.md", fine, &sources), Vec::<String>::new());
        only(unknown_names("docs/a.md", "\n```\n2 × MAX_B\n", &sources), "docs/a.md:3: names MAX_B");
        only(unknown_names("docs/a.md", "`Reply::Moved`\n", &sources), "docs/a.md:1: names Reply::Moved");
    }

    #[test]
    fn a_limit_that_no_test_shows_is_found() {
        let source = |text: &str| [Source::new("src/a.rs", text)];
        let row = |shown: &str| format!("| `src/a.rs` | `MAX_A` | 1 | it ends | – | {shown} |\n");
        let there = source("#[test]\nfn it_ends() {}\n#[tokio::test]\n#[ignore]\nasync fn it_waits() {}\n");
        for shown in ["`it_ends`", "`it_waits`", "– pause", "– buffer", "not reached by a test: too large"]
        {
            assert_eq!(unshown_limits("docs/a.md", &row(shown), &there), Vec::<String>::new());
        }
        for shown in ["`it_end`", "it_ends", "", "–", "– size", "not reached by a test: "] {
            only(unshown_limits("docs/a.md", &row(shown), &there), "docs/a.md:1: `MAX_A` is shown by");
        }
        let with_cost = |cost: &str| format!("| `src/a.rs` | `MAX_A` | 1 | it ends |{cost} `it_ends` |\n");
        assert_eq!(
            unshown_limits("docs/a.md", &with_cost(" two: `it_waits` |"), &there),
            Vec::<String>::new()
        );
        for cost in ["", "  |", " two: `it_end` |"] {
            only(
                unshown_limits("docs/a.md", &with_cost(cost), &there),
                "docs/a.md:1: `MAX_A` at its limit costs",
            );
        }
        only(unshown_limits("docs/a.md", &row("`it_ends`"), &source("fn it_ends() {}")), "no such test");
        assert_eq!(
            unshown_limits("docs/a.md", "| bincode | `src/guard/envelope.rs` |\n", &there),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_message_that_no_source_has_is_found() {
        let text = "line(\"SERVER_ERROR server is \\\n     down\"); warn!(\"lost: a link\")";
        let source = [Source::new("src/a.rs", text)];
        let unknown = |page: &str| unknown_messages("p", page, &source);
        for right in [
            "| `SERVER_ERROR server is down` | x |",
            "| the log says `lost: … link` | x |",
            "| `other` | x |",
        ] {
            assert_eq!(unknown(right), Vec::<String>::new(), "{right}");
        }
        only(unknown("\n| `SERVER_ERROR server is up` | x |"), "p:2: no source has the message");
        only(
            unknown("| x, and the log says `found: … link` | x |"),
            "p:1: no source has the message \"found:\"",
        );
    }
}
