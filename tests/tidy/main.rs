//! What no compiler holds: who may import whom, which files may use which dependency, and that the pages name what there
//! is. docs/architecture.md says why; a failure says where, as `file:line`.
//!
//! Every check is a function from text to complaints, so that a test can show it a mistake.

mod circles;
mod code;
mod files;
mod pages;
mod promises;

use circles::circles;
use code::{Source, everything_rust, paths_from, sources, words_at};
use files::{read, texts};
use pages::{dead_links, pages, unshown_limits, wrong_configuration, wrong_limits};

use promises::missing_mechanisms;

/// The rooms of `src/`, the highest floor first. Imports point down, or to a neighbour that is no sibling.
const FLOORS: [&[&str]; 6] = [
    &["main", "app", "cli", "config", "open_files", "log"],
    &["listener", "handshake", "tls", "auth", "session", "worker", "admin"],
    &["proxy"],
    SIBLINGS,
    &["embedded"],
    &["protocol", "metrics", "error", "clock", "random"],
];
/// They meet in the proxy and nowhere else.
const SIBLINGS: &[&str] = &["rule", "guard", "upstream"];
/// Who may use a room that not everybody above it may use.
const ONLY_USED_BY: [(&str, &[&str]); 1] = [("embedded", &["upstream", "cli"])];
/// What a room may import that may not import everything below it.
const ONLY_IMPORTS: [(&str, &[&str]); 5] = [
    ("embedded", &["protocol"]),
    ("guard", &["metrics", "error", "protocol"]),
    ("rule", &[]),
    ("protocol", &[]),
    ("error", &[]),
];

/// What only some files may name.
struct Door {
    what: &'static str,
    words: &'static [&'static str],
    /// Beginnings of paths.
    opens: &'static [&'static str],
    /// Whether it is shut for tests too.
    tests_too: bool,
}

const DOORS: [Door; 12] = [
    Door { what: "bincode", words: &["bincode"], opens: &["src/guard/envelope.rs"], tests_too: true },
    Door { what: "prometheus", words: &["prometheus"], opens: &["src/metrics/"], tests_too: true },
    Door { what: "rustls", words: &["rustls", "tokio_rustls"], opens: &["src/tls.rs"], tests_too: true },
    Door { what: "subtle", words: &["subtle"], opens: &["src/auth.rs"], tests_too: true },
    Door { what: "rustix", words: &["rustix"], opens: &["src/open_files.rs"], tests_too: true },
    Door { what: "toml", words: &["toml"], opens: &["src/config/"], tests_too: false },
    Door { what: "socket2", words: &["socket2"], opens: &["src/listener.rs"], tests_too: false },
    Door {
        what: "async-memcached",
        words: &["async_memcached"],
        opens: &["src/cli/", "tests/"],
        tests_too: true,
    },
    Door {
        what: "wall time",
        words: &["SystemTime", "UNIX_EPOCH", "chrono", "OffsetDateTime"],
        opens: &["src/clock.rs"],
        tests_too: false,
    },
    Door {
        what: "randomness",
        words: &["fastrand", "rand", "getrandom"],
        opens: &["src/random.rs"],
        tests_too: false,
    },
    Door {
        what: "a hash that differs from process to process",
        words: &["RandomState"],
        opens: &["src/random.rs", "src/proxy/state/key_hash.rs", "src/proxy/state/lease_table.rs"],
        tests_too: false,
    },
    Door {
        what: "sockets",
        words: &["TcpListener", "TcpStream", "TcpSocket", "UnixListener", "UnixStream", "UdpSocket"],
        opens: &[
            "src/listener.rs",
            "src/worker.rs",
            "src/upstream/",
            "src/admin/",
            "src/embedded/server.rs",
            "src/cli/",
        ],
        tests_too: false,
    },
];

/// Rooms without I/O, threads or a clock.
const PURE: [&str; 11] = [
    "src/guard/",
    "src/protocol/",
    "src/rule",
    "src/upstream/ring.rs",
    "src/embedded/dispatch.rs",
    "src/embedded/classic.rs",
    "src/embedded/meta.rs",
    "src/embedded/stats.rs",
    "src/embedded/store.rs",
    "src/embedded/items.rs",
    "src/embedded/number.rs",
];
const IMPURE: [&str; 8] =
    ["tokio", "tracing", "std::io", "std::fs", "std::net", "std::thread", "std::env", "Instant"];

/// The longest file in lines. About 500 is what a reader holds in mind; this is where it has become two concepts.
const MAX_LINES: usize = 700;

#[test]
fn imports_point_down_only() {
    let sources = sources("src");
    let rooms = FLOORS.iter().flat_map(|floor| floor.iter());
    let empty = rooms.filter(|room| !sources.iter().any(|source| source.room() == **room));
    report(empty.map(|room| format!("tests/tidy/main.rs: there is no room {room} in src/ any more")));
    report(sources.iter().flat_map(imports));
}

#[test]
fn imports_inside_a_folder_form_no_circle() {
    report(circles(&sources("src")));
}

#[test]
fn every_dependency_comes_in_through_its_own_door() {
    report(everything_rust().iter().flat_map(doors));
}

#[test]
fn what_decides_does_no_io_and_asks_no_clock() {
    report(sources("src").iter().flat_map(impurities));
}

#[test]
fn no_file_has_become_two_concepts() {
    report(texts().iter().filter_map(|(path, text)| too_long(path, text)));
}

#[test]
fn every_relaxed_lint_says_why() {
    report(everything_rust().iter().flat_map(unexplained));
}

#[test]
fn no_line_has_a_tab_or_ends_in_spaces() {
    report(texts().iter().flat_map(|(path, text)| untidy_lines(path, text)));
}

#[test]
fn every_link_and_every_file_that_a_page_names_is_there() {
    report(pages().iter().flat_map(|(path, text)| dead_links(path, text)));
}

#[test]
fn the_architecture_page_gives_every_limit_as_the_code_has_it() {
    let sources = sources("src");
    let page = read("docs/architecture.md");
    report(wrong_limits(&page, &sources));
}

#[test]
fn every_limit_of_the_architecture_page_names_the_test_that_reaches_it() {
    report(unshown_limits(&read("docs/architecture.md"), &everything_rust()));
}

#[test]
fn the_configuration_page_gives_every_key_with_its_default_and_no_other() {
    report(wrong_configuration(&read("docs/configuration.md"), &read("config/kennel.toml")));
}

#[test]
fn every_promise_names_a_mechanism_and_a_test_that_exist() {
    report(missing_mechanisms(&read("docs/promises.md"), &everything_rust()));
}

fn report(complaints: impl IntoIterator<Item = String>) {
    let complaints: Vec<String> = complaints.into_iter().collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

fn imports(source: &Source) -> Vec<String> {
    let room = source.room();
    if room == "lib" {
        return Vec::new();
    }
    let floor = |room: &str| FLOORS.iter().position(|floor| floor.contains(&room));
    let Some(here) = floor(room) else {
        return vec![format!("{}: is on no floor: give {room} one in tests/tidy/main.rs", source.path)];
    };
    let krate = if room == "main" { "kennel" } else { "crate" };
    let named = paths_from(&source.code, krate);
    let mut complaints = Vec::new();
    for (at, other) in named.iter().filter(|(_, other)| other != room) {
        let only_used_by = ONLY_USED_BY.iter().find(|(name, _)| name == other).map(|(_, users)| users);
        let only_imports = ONLY_IMPORTS.iter().find(|(name, _)| *name == room).map(|(_, all)| all);
        let Some(there) = floor(other) else {
            complaints.push(source.complain(*at, format_args!("{krate}::{other} is on no floor")));
            continue;
        };
        if there < here {
            let what = format_args!("{room} imports {other}, which is above it: imports point down only");
            complaints.push(source.complain(*at, what));
        } else if SIBLINGS.contains(&room) && SIBLINGS.contains(&other.as_str()) {
            let what = format_args!("{room} imports its sibling {other}: they meet in the proxy only");
            complaints.push(source.complain(*at, what));
        } else if only_used_by.is_some_and(|users| !users.contains(&room)) {
            complaints.push(source.complain(*at, format_args!("{other} is not for {room} to use")));
        } else if only_imports.is_some_and(|all| !all.contains(&other.as_str())) {
            complaints.push(source.complain(*at, format_args!("{room} must not import {other}")));
        }
    }
    let depth = source.path.trim_end_matches("/mod.rs").split('/').count() - 1;
    for (at, _) in source.shipped.match_indices("super::") {
        let before = &source.shipped[..at];
        let rest = &source.shipped[at..];
        let supers = rest.split("::").take_while(|word| *word == "super").count();
        if !before.ends_with("::") && supers >= depth {
            complaints.push(source.complain(at, "climbs to the crate's root: say `crate::`"));
        }
    }
    complaints
}

fn doors(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    for Door { what, words, opens, tests_too } in &DOORS {
        if opens.iter().any(|open| source.path.starts_with(open)) {
            continue;
        }
        let code = if *tests_too { &source.code } else { &source.shipped };
        for word in *words {
            let say = |at| {
                let doors = opens.join(", ");
                source.complain(at, format_args!("names {word}: {what} belongs to {doors} only"))
            };
            complaints.extend(words_at(code, word).map(say));
        }
    }
    // `config` is also what our own module is called, once it has been imported.
    let ours = ["crate", "kennel"]
        .iter()
        .any(|krate| paths_from(&source.code, krate).iter().any(|(_, room)| room == "config"));
    if !source.path.starts_with("src/config/") && !ours {
        let bare = words_at(&source.code, "config").filter(|at| {
            let (before, after) = (&source.code[..*at], &source.code[at + "config".len()..]);
            after.starts_with("::") && (!before.ends_with("::") || before.ends_with(" ::"))
        });
        complaints.extend(bare.map(|at| source.complain(at, "the config crate belongs to src/config/ only")));
    }
    complaints
}

fn impurities(source: &Source) -> Vec<String> {
    if !PURE.iter().any(|room| source.path.starts_with(room)) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for word in IMPURE {
        let say =
            |at| source.complain(at, format_args!("names {word}: nothing here does I/O or asks a clock"));
        complaints.extend(words_at(&source.shipped, word).map(say));
    }
    complaints
}

fn too_long(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > MAX_LINES)
        .then(|| format!("{path}: has {lines} lines, of {MAX_LINES}: it is two concepts by now"))
}

fn unexplained(source: &Source) -> Vec<String> {
    let relaxes = |at: usize| {
        let rest = &source.code[at..];
        let attribute = &rest[..rest.find(']').unwrap_or(rest.len())];
        let relaxed = ["allow", "expect"].iter().any(|word| {
            words_at(attribute, word).any(|found| attribute[found + word.len()..].starts_with('('))
        });
        // The reason itself is a literal, so it is to be read in the text.
        let reason = source.text[at..at + attribute.len()].split("reason = \"").nth(1);
        relaxed && reason.is_none_or(|reason| reason.trim_start().starts_with('"'))
    };
    let attributes = source.code.match_indices("#[").chain(source.code.match_indices("#!["));
    let bare = attributes.map(|(at, _)| at).filter(|at| relaxes(*at));
    bare.map(|at| source.complain(at, "a lint is relaxed without `reason = \"…\"`")).collect()
}

fn untidy_lines(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        // Go is indented with tabs, by its own formatter.
        let text = if path.ends_with(".go") { line.trim_start_matches('\t') } else { line };
        if text.contains('\t') {
            complaints.push(format!("{path}:{number}: has a tab"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            complaints.push(format!("{path}:{number}: ends in a blank"));
        }
    }
    if !text.ends_with('\n') || text.ends_with("\n\n") {
        complaints.push(format!("{path}: must end in one line end"));
    }
    complaints
}

mod tests {
    use super::*;

    /// That there is one complaint, which says so.
    pub(crate) fn only(complaints: Vec<String>, says: &str) {
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains(says), "{complaints:?}");
    }

    fn of(path: &str, text: &str) -> Source {
        Source::new(path, text)
    }

    #[test]
    fn an_import_that_points_up_is_found_in_every_spelling() {
        let up = "src/guard/read.rs:2: guard imports proxy, which is above it";
        only(imports(&of("src/guard/read.rs", "\nuse crate::proxy::Desk;\n")), up);
        only(imports(&of("src/guard/read.rs", "\nuse crate::{error::Failure, proxy};\n")), up);
        only(imports(&of("src/guard/read.rs", "\nfn f() -> crate::proxy::Desk {}\n")), up);
        only(
            imports(&of("src/guard/read.rs", "\nuse super::super::proxy::Desk;\n")),
            "climbs to the crate's root",
        );
        only(imports(&of("src/worker.rs", "use crate::config::Config;\n")), "worker imports config");
        only(imports(&of("src/somewhere.rs", "")), "on no floor");
        only(imports(&of("src/app.rs", "use crate::nowhere::X;\n")), "crate::nowhere is on no floor");
        assert!(
            imports(&of("src/guard/read.rs", "// crate::proxy\nuse super::{Scene, ask::Ask};\n")).is_empty()
        );
        assert!(imports(&of("src/main.rs", "use kennel::{app::App, cli};\n")).is_empty());
    }

    #[test]
    fn siblings_and_rooms_with_few_doors_are_kept_apart() {
        only(imports(&of("src/rule.rs", "use crate::guard::Policy;\n")), "its sibling guard");
        only(imports(&of("src/proxy/mod.rs", "use crate::embedded::Store;\n")), "not for proxy to use");
        only(imports(&of("src/embedded/store.rs", "use crate::clock::unix_ms;\n")), "must not import clock");
        only(imports(&of("src/guard/ask.rs", "use crate::random::Chance;\n")), "must not import random");
    }

    #[test]
    fn a_dependency_beside_its_door_is_found() {
        only(
            doors(&of("src/guard/read.rs", "use bincode::Encode;\n")),
            "belongs to src/guard/envelope.rs only",
        );
        only(doors(&of("src/app.rs", "use prometheus::Registry;\n")), "src/metrics/ only");
        only(
            doors(&of("src/app.rs", "fn f(s: &str) { ::config::File::from_str(s); }\n")),
            "the config crate",
        );
        only(doors(&of("tests/it/raw.rs", "use config::File;\n")), "the config crate");
        only(doors(&of("src/proxy/raw.rs", "use async_memcached::Client;\n")), "src/cli/, tests/ only");
        only(doors(&of("src/worker.rs", "let now = SystemTime::now();\n")), "wall time");
        only(
            doors(&of("src/session.rs", "\n\nlet n = fastrand::u8(..);\n")),
            "src/session.rs:3: names fastrand",
        );
        only(doors(&of("src/proxy/raw.rs", "use tokio::net::UnixStream;\n")), "sockets");
        only(doors(&of("src/handshake.rs", "use tokio_rustls::TlsAcceptor;\n")), "src/tls.rs only");
        only(doors(&of("src/upstream/server.rs", "use socket2::Socket;\n")), "src/listener.rs only");
        only(impurities(&of("src/guard/read.rs", "use tokio::time::sleep;\n")), "names tokio");
        let tests = "#[cfg(test)]\nmod tests {\n fn f() { fastrand::u8(..); }\n}\n";
        assert!(doors(&of("src/rule.rs", tests)).is_empty());
        only(doors(&of("src/rule.rs", &format!("{tests}fn g() {{ fastrand::u8(..); }}"))), "src/rule.rs:5:");
        let ours = "use crate::config::{self, Config};\nfn f() { config::environment(); }\n";
        assert!(doors(&of("src/cli/check.rs", ours)).is_empty());
    }

    #[test]
    fn a_lint_relaxed_without_a_reason_is_found() {
        only(unexplained(&of("src/a.rs", "\n#[allow(dead_code)]\nfn f() {}\n")), "src/a.rs:2:");
        only(unexplained(&of("src/a.rs", "#![expect(dead_code, reason = \"\")]\n")), "relaxed");
        only(unexplained(&of("src/a.rs", "#[cfg_attr(test, allow(dead_code))]\n")), "relaxed");
        let explained = "#[allow(\n    dead_code,\n    reason = \"it lives\"\n)]\nfn expect() {}\n";
        assert!(unexplained(&of("src/a.rs", explained)).is_empty());
    }

    #[test]
    fn tabs_blanks_and_long_files_are_found() {
        only(untidy_lines("a.md", "a\tb\n"), "a.md:1: has a tab");
        only(untidy_lines("a.go", "\ta\tb\n"), "a.go:1: has a tab");
        assert_eq!(untidy_lines("a.go", "\ta\n"), Vec::<String>::new());
        only(untidy_lines("a.md", "a\nb \n"), "a.md:2: ends in a blank");
        only(untidy_lines("a.md", "a"), "one line end");
        assert!(too_long("a.rs", &"x\n".repeat(MAX_LINES)).is_none());
        assert!(too_long("a.rs", &"x\n".repeat(MAX_LINES + 1)).is_some());
    }
}
