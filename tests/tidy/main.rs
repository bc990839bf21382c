//! Rules that the compiler does not check: which module may import which, which files may use which dependency, and whether the
//! pages name what exists. docs/architecture.md describes them; a failure gives the position as `file:line`.
//!
//! Each check is a function from text to problems, so that a test can pass it a mistake.

mod circles;
mod code;
mod errors;
mod files;
mod mutants;
mod pages;
mod promises;
mod queries;
mod reference;

use circles::circles;
use code::{Source, everything_rust, paths_from, sources, words_at};
use errors::unlisted_errors;
use files::{read, root, texts};
use pages::{
    LIMITS, dead_links, invented_code, pages, said_twice, unknown_messages, unknown_names, unshown_limits,
    wrong_contents, wrong_decisions, wrong_limits,
};
use promises::{MECHANISMS, missing_mechanisms};
use queries::{Metrics, dashboard, unlisted_alerts, unshown_metrics, wrong_queries};
use reference::{reference, unknown_keys};

/// The modules of `src/`, the top layer first. Imports point down, or to a module of the same layer that is no sibling.
const LAYERS: [&[&str]; 7] = [
    &["main", "app", "cli", "discovery", "config", "memory_limit", "open_files", "systemd", "log"],
    &["listener", "takeover", "handshake", "tls", "auth", "session", "worker", "admin"],
    &["proxy", "monitor"],
    SIBLINGS,
    &["embedded"],
    &[
        "protocol",
        "metrics",
        "error",
        "pem",
        "trace",
        "hot",
        "observed",
        "net",
        "clock",
        "dns",
        "random",
        "generations",
    ],
    &["looked_at"],
];
/// Modules that do not import each other. Only the proxy uses them together.
const SIBLINGS: &[&str] = &["rule", "guard", "kinds", "failover", "upstream"];
/// The only modules that may use a module.
const ONLY_USED_BY: [(&str, &[&str]); 1] = [("embedded", &["upstream", "cli"])];
/// The only modules that a module may import.
const ONLY_IMPORTS: [(&str, &[&str]); 7] = [
    ("embedded", &["protocol"]),
    ("guard", &["looked_at", "metrics", "error", "protocol"]),
    ("kinds", &["generations", "error"]),
    ("failover", &[]),
    ("rule", &[]),
    ("protocol", &[]),
    ("error", &[]),
];

/// A dependency that only some files may name.
struct Dependency {
    what: &'static str,
    words: &'static [&'static str],
    /// Prefixes of their paths.
    files: &'static [&'static str],
    /// Whether the rule applies to tests too.
    tests_too: bool,
}

const DEPENDENCIES: [Dependency; 20] = [
    Dependency { what: "bincode", words: &["bincode"], files: &["src/guard/envelope.rs"], tests_too: true },
    Dependency { what: "prometheus", words: &["prometheus"], files: &["src/metrics/"], tests_too: true },
    Dependency {
        what: "rustls",
        words: &["rustls", "tokio_rustls"],
        files: &["src/tls.rs", "src/tls/", "src/pem.rs", "src/upstream/tls.rs", "src/upstream/verifier.rs"],
        tests_too: true,
    },
    Dependency {
        what: "serde_json",
        words: &["serde_json"],
        files: &["src/admin/", "src/cli/", "tests/"],
        tests_too: true,
    },
    Dependency {
        what: "rustls-native-certs",
        words: &["rustls_native_certs"],
        files: &["src/upstream/tls.rs"],
        tests_too: true,
    },
    Dependency { what: "x509-cert", words: &["x509_cert"], files: &["src/pem.rs"], tests_too: true },
    Dependency { what: "subtle", words: &["subtle"], files: &["src/auth.rs"], tests_too: true },
    Dependency {
        what: "rustix",
        words: &["rustix"],
        files: &["src/open_files.rs", "src/systemd.rs", "src/takeover/"],
        tests_too: true,
    },
    Dependency { what: "ratatui", words: &["ratatui", "crossterm"], files: &["src/cli/"], tests_too: true },
    Dependency {
        what: "saphyr-parser",
        words: &["saphyr_parser"],
        files: &["src/cli/init/yaml.rs"],
        tests_too: true,
    },
    Dependency { what: "toml", words: &["toml"], files: &["src/config/"], tests_too: false },
    Dependency { what: "socket2", words: &["socket2"], files: &["src/listener/socket.rs"], tests_too: false },
    Dependency { what: "listenfd", words: &["listenfd"], files: &["src/systemd.rs"], tests_too: true },
    Dependency {
        what: "hickory-resolver",
        words: &["hickory_resolver"],
        files: &["src/dns.rs", "tests/"],
        tests_too: true,
    },
    Dependency { what: "resolv-conf", words: &["resolv_conf"], files: &["src/dns.rs"], tests_too: true },
    Dependency {
        what: "async-memcached",
        words: &["async_memcached"],
        files: &["src/cli/", "tests/"],
        tests_too: true,
    },
    Dependency {
        what: "wall time",
        words: &["SystemTime", "UNIX_EPOCH", "chrono", "OffsetDateTime"],
        files: &["src/clock.rs"],
        tests_too: false,
    },
    Dependency {
        what: "randomness",
        words: &["fastrand", "rand", "getrandom"],
        files: &["src/random.rs"],
        tests_too: false,
    },
    Dependency {
        what: "a hash that differs from process to process",
        words: &["RandomState"],
        files: &["src/random.rs"],
        tests_too: false,
    },
    Dependency {
        what: "sockets",
        words: &["TcpListener", "TcpStream", "TcpSocket", "UnixListener", "UnixStream", "UdpSocket"],
        files: &[
            "src/listener",
            "src/worker",
            "src/handshake/stream.rs",
            "src/takeover/",
            "src/systemd.rs",
            "src/app/adopter.rs",
            "src/upstream/",
            "src/admin/",
            "src/embedded/server.rs",
            "src/cli/",
        ],
        tests_too: false,
    },
];

/// Modules without I/O, threads and clocks.
const PURE: [&str; 13] = [
    "src/failover/",
    "src/guard/",
    "src/kinds/",
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

/// Metrics that no panel of the dashboard shows, with the reason.
const UNSHOWN: [(&str, &str); 1] = [(
    "process_virtual_memory_bytes",
    "address space that is reserved, most of which is never used: no question of an operator has it as its answer",
)];

/// The most characters of a line of Rust that is a comment.
const MAX_COMMENT: usize = 140;
/// The longest file, in lines.
const MAX_LINES: usize = 700;
/// The longest file of `src/` without its tests, in lines.
const MAX_LINES_WITHOUT_TESTS: usize = 500;

#[test]
fn imports_point_down_only() {
    let sources = sources("src");
    let modules = LAYERS.iter().flat_map(|layer| layer.iter());
    let empty = modules.filter(|module| !sources.iter().any(|source| source.module() == **module));
    report(empty.map(|module| format!("tests/tidy/main.rs: there is no module {module} in src/")));
    report(sources.iter().flat_map(imports));
}

#[test]
fn imports_inside_a_folder_form_no_circle() {
    report(circles(&sources("src")));
}

#[test]
fn every_dependency_is_used_only_where_it_belongs() {
    report(everything_rust().iter().flat_map(misplaced_dependencies));
}

#[test]
fn decisions_have_no_io_and_no_clock() {
    report(sources("src").iter().flat_map(impurities));
}

#[test]
fn no_file_is_too_long() {
    report(texts().iter().filter_map(|(path, text)| too_long(path, text)));
}

#[test]
fn no_source_file_is_too_long_without_its_tests() {
    report(sources("src").iter().filter_map(too_long_without_tests));
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
fn no_page_says_the_same_twice() {
    report(pages().iter().flat_map(|(path, text)| said_twice(path, text)));
}

#[test]
fn the_site_has_every_page_once() {
    report(wrong_contents(&read("docs/SUMMARY.md"), &pages()));
}

#[test]
fn decisions_are_short_and_numbered_without_gaps() {
    report(wrong_decisions(&pages()));
}

#[test]
fn the_examples_of_style_are_code_of_this_repository() {
    report(invented_code("CONTRIBUTING.md", &read("CONTRIBUTING.md"), &texts()));
}

#[test]
fn every_limit_and_item_that_a_page_names_is_in_the_code() {
    let sources = sources("src");
    report(pages().iter().flat_map(|(path, text)| unknown_names(path, text, &sources)));
}

#[test]
fn the_table_of_limits_has_every_limit_as_the_code_has_it() {
    report(wrong_limits(LIMITS, &read(LIMITS), &sources("src")));
}

#[test]
fn every_limit_of_the_table_names_the_test_that_reaches_it() {
    report(unshown_limits(LIMITS, &read(LIMITS), &everything_rust()));
}

#[test]
fn the_reference_configuration_is_what_the_configuration_page_says() {
    let page = read("docs/configuration.md");
    report(unknown_keys(&page));
    let (expected, found) = (reference(&page), read("config/kennel.toml"));
    let made = root().join("target/kennel.toml");
    std::fs::write(&made, &expected).expect("write");
    let differs = (1..).zip(expected.lines()).zip(found.lines()).find(|((_, e), f)| e != f);
    let at = differs.map_or(0, |((number, _), _)| number);
    assert!(
        expected == found,
        "config/kennel.toml:{at}: differs from docs/configuration.md: cp {} config/",
        made.display()
    );
}

#[test]
fn the_dashboard_shows_every_metric_and_it_the_alerts_and_the_operations_page_query_only_what_exists() {
    let metrics = Metrics::of_page(&read("docs/metrics.md"));
    let json = read("deploy/grafana/kennel.json");
    let (queries, mut problems) = dashboard("deploy/grafana/kennel.json", &json);
    problems.extend(unshown_metrics("deploy/grafana/kennel.json", &queries, &metrics, &UNSHOWN));
    problems.extend(queries.iter().flat_map(|(at, query)| wrong_queries(at, query, false, &metrics)));
    for path in ["deploy/prometheus/kennel.rules.yml", "docs/operations.md", "docs/metrics.md"] {
        problems.extend(wrong_queries(path, &read(path), true, &metrics));
    }
    report(problems);
}

#[test]
fn every_alert_is_on_the_operations_page_and_fires_in_a_test() {
    let (rules, tests) =
        (read("deploy/prometheus/kennel.rules.yml"), read("deploy/prometheus/kennel.rules.test.yml"));
    report(unlisted_alerts(&rules, &read("docs/operations.md"), &tests));
}

#[test]
fn every_message_on_the_operations_page_is_one_of_the_code() {
    report(unknown_messages("docs/operations.md", &read("docs/operations.md"), &sources("src")));
}

#[test]
fn every_error_is_on_a_page_and_provoked_by_a_test() {
    let pages: Vec<_> = pages().into_iter().filter(|(path, _)| path.starts_with("docs/")).collect();
    report(unlisted_errors(&pages, &everything_rust()));
}

#[test]
fn every_promise_names_a_mechanism_and_a_test_that_exist() {
    report(missing_mechanisms(&read(MECHANISMS), &everything_rust()));
}

fn report(problems: impl IntoIterator<Item = String>) {
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn imports(source: &Source) -> Vec<String> {
    let module = source.module();
    if module == "lib" {
        return Vec::new();
    }
    let layer = |module: &str| LAYERS.iter().position(|layer| layer.contains(&module));
    let Some(here) = layer(module) else {
        return vec![format!("{}: is in no layer: add {module} to one in tests/tidy/main.rs", source.path)];
    };
    let krate = if module == "main" { "kennel" } else { "crate" };
    let named = paths_from(&source.code, krate);
    let mut problems = Vec::new();
    for (at, other) in named.iter().filter(|(_, other)| other != module) {
        let only_used_by = ONLY_USED_BY.iter().find(|(name, _)| name == other).map(|(_, users)| users);
        let only_imports = ONLY_IMPORTS.iter().find(|(name, _)| *name == module).map(|(_, all)| all);
        let Some(there) = layer(other) else {
            problems.push(source.complain(*at, format_args!("{krate}::{other} is in no layer")));
            continue;
        };
        if there < here {
            let what = format_args!("{module} imports {other}, which is above it: imports point down only");
            problems.push(source.complain(*at, what));
        } else if SIBLINGS.contains(&module) && SIBLINGS.contains(&other.as_str()) {
            let what = format_args!("{module} imports its sibling {other}: only the proxy uses both");
            problems.push(source.complain(*at, what));
        } else if only_used_by.is_some_and(|users| !users.contains(&module)) {
            problems.push(source.complain(*at, format_args!("{module} must not use {other}")));
        } else if only_imports.is_some_and(|all| !all.contains(&other.as_str())) {
            problems.push(source.complain(*at, format_args!("{module} must not import {other}")));
        }
    }
    let depth = source.path.trim_end_matches("/mod.rs").split('/').count() - 1;
    for (at, _) in source.shipped.match_indices("super::") {
        let before = &source.shipped[..at];
        let rest = &source.shipped[at..];
        let supers = rest.split("::").take_while(|word| *word == "super").count();
        if !before.ends_with("::") && supers >= depth {
            problems.push(source.complain(at, "climbs to the crate's root: write `crate::`"));
        }
    }
    problems
}

fn misplaced_dependencies(source: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    for Dependency { what, words, files, tests_too } in &DEPENDENCIES {
        if files.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        let code = if *tests_too { &source.code } else { &source.shipped };
        for word in *words {
            let complain = |at| {
                let files = files.join(", ");
                source.complain(at, format_args!("names {word}: {what} belongs to {files} only"))
            };
            problems.extend(words_at(code, word).map(complain));
        }
    }
    // Our own module is called `config` too.
    let ours = ["crate", "kennel"]
        .iter()
        .any(|krate| paths_from(&source.code, krate).iter().any(|(_, module)| module == "config"));
    if !source.path.starts_with("src/config/") && !ours {
        let bare = words_at(&source.code, "config").filter(|at| {
            let (before, after) = (&source.code[..*at], &source.code[at + "config".len()..]);
            after.starts_with("::") && (!before.ends_with("::") || before.ends_with(" ::"))
        });
        problems.extend(bare.map(|at| source.complain(at, "the config crate belongs to src/config/ only")));
    }
    problems
}

fn impurities(source: &Source) -> Vec<String> {
    if !PURE.iter().any(|module| source.path.starts_with(module)) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for word in IMPURE {
        let complain =
            |at| source.complain(at, format_args!("names {word}: this module has no I/O and no clock"));
        problems.extend(words_at(&source.shipped, word).map(complain));
    }
    problems
}

fn too_long(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| format!("{path}: has {lines} lines, of {MAX_LINES}: split it"))
}

fn too_long_without_tests(source: &Source) -> Option<String> {
    let lines = source.shipped.trim_end().lines().count();
    (lines > MAX_LINES_WITHOUT_TESTS).then(|| {
        format!("{}: has {lines} lines without tests, of {MAX_LINES_WITHOUT_TESTS}: split it", source.path)
    })
}

fn unexplained(source: &Source) -> Vec<String> {
    let relaxes = |at: usize| {
        let rest = &source.code[at..];
        let attribute = &rest[..rest.find(']').unwrap_or(rest.len())];
        let relaxed = ["allow", "expect"].iter().any(|word| {
            words_at(attribute, word).any(|found| attribute[found + word.len()..].starts_with('('))
        });
        // The reason is a literal, which `code` does not contain.
        let reason = source.text[at..at + attribute.len()].split("reason = \"").nth(1);
        relaxed && reason.is_none_or(|reason| reason.trim_start().starts_with('"'))
    };
    let attributes = source.code.match_indices("#[").chain(source.code.match_indices("#!["));
    let bare = attributes.map(|(at, _)| at).filter(|at| relaxes(*at));
    bare.map(|at| source.complain(at, "a lint is relaxed without `reason = \"…\"`")).collect()
}

fn untidy_lines(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        // gofmt indents with tabs.
        let text = if path.ends_with(".go") { line.trim_start_matches('\t') } else { line };
        if text.contains('\t') {
            problems.push(format!("{path}:{number}: has a tab"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(format!("{path}:{number}: ends in a blank"));
        }
        // rustfmt leaves comments as they are.
        if path.ends_with(".rs") && line.trim_start().starts_with("//") && line.chars().count() > MAX_COMMENT
        {
            problems
                .push(format!("{path}:{number}: a comment of more than {MAX_COMMENT} characters in a line"));
        }
    }
    if !text.ends_with('\n') || text.ends_with("\n\n") {
        problems.push(format!("{path}: must end in one line end"));
    }
    problems
}

mod tests {
    use super::*;

    /// Checks that there is one problem, whose text contains `expected`.
    pub(crate) fn only(problems: Vec<String>, expected: &str) {
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(expected), "{problems:?}");
    }

    fn of(path: &str, text: &str) -> Source {
        Source::new(path, text)
    }

    #[test]
    fn an_import_that_points_up_is_found_in_every_spelling() {
        let up = "src/guard/read.rs:2: guard imports proxy, which is above it";
        only(imports(&of("src/guard/read.rs", "\nuse crate::proxy::Proxy;\n")), up);
        only(imports(&of("src/guard/read.rs", "\nuse crate::{error::Failure, proxy};\n")), up);
        only(imports(&of("src/guard/read.rs", "\nfn f() -> crate::proxy::Proxy {}\n")), up);
        only(
            imports(&of("src/guard/read.rs", "\nuse super::super::proxy::Proxy;\n")),
            "climbs to the crate's root",
        );
        only(imports(&of("src/worker.rs", "use crate::config::Config;\n")), "worker imports config");
        only(imports(&of("src/somewhere.rs", "")), "in no layer");
        only(imports(&of("src/app.rs", "use crate::nowhere::X;\n")), "crate::nowhere is in no layer");
        assert!(
            imports(&of("src/guard/read.rs", "// crate::proxy\nuse super::{Inputs, command::Commands};\n"))
                .is_empty()
        );
        assert!(imports(&of("src/main.rs", "use kennel::{app::App, cli};\n")).is_empty());
    }

    #[test]
    fn siblings_and_restricted_modules_are_kept_apart() {
        only(imports(&of("src/rule.rs", "use crate::guard::Policy;\n")), "its sibling guard");
        only(
            imports(&of("src/proxy/mod.rs", "use crate::embedded::Store;\n")),
            "proxy must not use embedded",
        );
        only(imports(&of("src/embedded/store.rs", "use crate::clock::unix_ms;\n")), "must not import clock");
        only(imports(&of("src/guard/command.rs", "use crate::random::Random;\n")), "must not import random");
    }

    #[test]
    fn a_dependency_outside_its_files_is_found() {
        only(
            misplaced_dependencies(&of("src/guard/read.rs", "use bincode::Encode;\n")),
            "belongs to src/guard/envelope.rs only",
        );
        only(misplaced_dependencies(&of("src/app.rs", "use prometheus::Registry;\n")), "src/metrics/ only");
        only(
            misplaced_dependencies(&of("src/app.rs", "fn f(s: &str) { ::config::File::from_str(s); }\n")),
            "the config crate",
        );
        only(misplaced_dependencies(&of("tests/it/raw.rs", "use config::File;\n")), "the config crate");
        only(
            misplaced_dependencies(&of("src/proxy/raw.rs", "use async_memcached::Client;\n")),
            "src/cli/, tests/ only",
        );
        only(misplaced_dependencies(&of("src/worker.rs", "let now = SystemTime::now();\n")), "wall time");
        only(
            misplaced_dependencies(&of("src/session.rs", "\n\nlet n = fastrand::u8(..);\n")),
            "src/session.rs:3: names fastrand",
        );
        only(misplaced_dependencies(&of("src/proxy/raw.rs", "use tokio::net::UnixStream;\n")), "sockets");
        only(
            misplaced_dependencies(&of("src/handshake.rs", "use tokio_rustls::TlsAcceptor;\n")),
            "src/tls.rs, src/tls/, src/pem.rs, src/upstream/tls.rs, src/upstream/verifier.rs only",
        );
        only(
            misplaced_dependencies(&of("src/upstream/server.rs", "use socket2::Socket;\n")),
            "socket2 belongs to src/listener/socket.rs only",
        );
        only(impurities(&of("src/guard/read.rs", "use tokio::time::sleep;\n")), "names tokio");
        let tests = "#[cfg(test)]\nmod tests {\n fn f() { fastrand::u8(..); }\n}\n";
        assert!(misplaced_dependencies(&of("src/rule.rs", tests)).is_empty());
        only(
            misplaced_dependencies(&of("src/rule.rs", &format!("{tests}fn g() {{ fastrand::u8(..); }}"))),
            "src/rule.rs:5:",
        );
        let ours = "use crate::config::{self, Config};\nfn f() { config::environment(); }\n";
        assert!(misplaced_dependencies(&of("src/cli/check.rs", ours)).is_empty());
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
        let comment = |length: usize| format!("    // {}\n", "x".repeat(length - 7));
        assert_eq!(untidy_lines("a.rs", &comment(MAX_COMMENT)), Vec::<String>::new());
        only(untidy_lines("a.rs", &comment(MAX_COMMENT + 1)), "a.rs:1: a comment of more than");
        assert!(too_long("a.rs", &"x\n".repeat(MAX_LINES)).is_none());
        assert!(too_long("a.rs", &"x\n".repeat(MAX_LINES + 1)).is_some());
        let code = "x\n".repeat(MAX_LINES_WITHOUT_TESTS);
        assert_eq!(
            too_long_without_tests(&of("src/a.rs", &format!("{code}#[cfg(test)]\nmod tests {{\n}}\n"))),
            None
        );
        assert!(too_long_without_tests(&of("src/a.rs", &format!("{code}x\n"))).is_some());
    }
}
