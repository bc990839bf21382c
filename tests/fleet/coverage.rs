//! What runs have reached: metrics with a count, the values of labels with a fixed set, and error lines that clients received. With
//! `KENNEL_FLEET_COVERAGE=DIR`, each test leaves a file of what it has reached there; `what_no_run_reaches` reads them (scripts/fleet).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

thread_local! {
    /// What the runs of this test have reached.
    static REACHED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Labels whose values are names of a configuration.
const NAMES: [&str; 8] = ["rule", "pool", "server", "version", "revision", "hash", "file", "le"];

fn directory() -> Option<PathBuf> {
    std::env::var_os("KENNEL_FLEET_COVERAGE").map(PathBuf::from)
}

fn reach(what: String) {
    REACHED.with_borrow_mut(|reached| reached.insert(what));
}

/// Notes what a sidecar has counted.
pub fn metrics(text: &str) {
    let counted = |line: &&str| line.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()) > Some(0.0);
    for line in text.lines().filter(|line| !line.starts_with('#')).filter(counted) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        reach(
            ["_bucket", "_sum", "_count"]
                .iter()
                .fold(name, |name, end| name.strip_suffix(end).unwrap_or(name))
                .to_owned(),
        );
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').expect("a label");
            if !NAMES.contains(&label) {
                reach(format!("{name} {label}={}", value.trim_matches('"')));
            }
        }
    }
}

/// Notes the error lines of what a sidecar sends to a client.
pub fn sent(bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let is_error =
            [&b"SERVER_ERROR"[..], b"CLIENT_ERROR", b"ERROR"].iter().any(|word| line.starts_with(word));
        if is_error && let Ok(line) = std::str::from_utf8(line) {
            reach(line.trim_end().to_owned());
        }
    }
}

/// Leaves what this test has reached.
pub fn note() {
    let Some(directory) = directory() else { return };
    let test = super::seeds::test();
    let reached = REACHED.take().into_iter().collect::<Vec<_>>().join("\n");
    fs::write(directory.join(test), reached + "\n").expect("the coverage can be written");
}

/// The values of labels with a fixed set, and all metrics, from docs/metrics.md, which another test compares with the code.
fn all_metrics() -> BTreeSet<String> {
    let page = include_str!("../../docs/metrics.md");
    let (_, tables) = page.split_once("<!-- table -->").expect("a table");
    let (tables, _) = tables.split_once("<!-- end of table -->").expect("its end");
    let mut all = BTreeSet::new();
    for row in tables.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> =
            row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        match cells[..] {
            [label, metric, values] => {
                all.extend(values.split(", ").map(|value| format!("{metric} {label}={value}")))
            }
            [name, ..] => drop(all.insert(name.to_owned())),
            _ => {}
        }
    }
    all
}

/// The error lines that the sources have as text: what stands between a quote and the end of the line, without what is filled in.
fn all_errors() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if entry.is_dir() {
                // The servers' own, and what runs without a sidecar.
                if !["tests", "embedded", "cli", "admin"].contains(&&*name) {
                    folders.push(entry);
                }
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let text = fs::read_to_string(&entry).expect("a source");
                let text = text.split("#[cfg(test)]\nmod").next().unwrap_or_default().replace("\\\n", "");
                for part in text.split('"') {
                    let line = part.split("\\r\\n").next().unwrap_or_default();
                    if ["SERVER_ERROR ", "CLIENT_ERROR "].iter().any(|word| line.starts_with(word))
                        && part.ends_with("\\r\\n")
                    {
                        all.insert(line.split_whitespace().collect::<Vec<_>>().join(" "));
                    }
                }
            }
        }
    }
    all
}

/// What no run reaches, and why: a row each of unreached.md. `*` stands for anything.
fn reasons() -> BTreeMap<String, String> {
    let rows = include_str!("unreached.md").lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (what, why) = (cells.next().expect("what"), cells.next().expect("why"));
        (what.trim_matches('`').to_owned(), why.to_owned())
    };
    rows.map(row).collect()
}

fn matches(pattern: &str, what: &str) -> bool {
    match pattern.split_once('*') {
        Some((front, back)) => what.starts_with(front) && what[front.len()..].ends_with(back),
        None => pattern == what,
    }
}

/// Whether an error line is this text, of which parts are filled in.
fn is_line(text: &str, line: &str) -> bool {
    let mut parts = text.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// Run by scripts/fleet coverage, after all the others.
#[test]
#[ignore = "it reads what the other tests have left"]
fn what_no_run_reaches() {
    let directory = directory().expect("KENNEL_FLEET_COVERAGE");
    let mut by_test: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in fs::read_dir(directory).expect("the coverage").map(|file| file.expect("a file").path()) {
        let reached = fs::read_to_string(&file).expect("it is text").lines().map(str::to_owned).collect();
        by_test.insert(file.file_name().unwrap_or_default().to_string_lossy().into_owned(), reached);
    }
    let reached: BTreeSet<&String> = by_test.values().flatten().collect();
    let (metrics, errors) = (all_metrics(), all_errors());
    let is_reached = |text: &String| reached.contains(text) || reached.iter().any(|line| is_line(text, line));
    println!("{:>8} {:>8} {:>8}  kind of run", "metrics", "labels", "errors");
    let row = |name: &str, reached: &BTreeSet<&String>| {
        let is_error = |what: &&&String| what.contains("ERROR");
        let known = |is: &dyn Fn(&str) -> bool| {
            reached.iter().filter(|what| metrics.contains(**what) && is(what)).count()
        };
        let errors = reached.iter().filter(is_error).count();
        println!(
            "{:>8} {:>8} {:>8}  {name}",
            known(&|what| !what.contains('=')),
            known(&|what| what.contains('=')),
            errors
        );
    };
    for (test, reached) in &by_test {
        row(test, &reached.iter().collect());
    }
    row("all", &reached);
    let mut reasons = reasons();
    let unreached: Vec<&String> = metrics.iter().chain(&errors).filter(|what| !is_reached(what)).collect();
    let (mut without, mut used) = (Vec::new(), BTreeSet::new());
    println!("\nno run reaches {} of {}:", unreached.len(), metrics.len() + errors.len());
    for what in unreached {
        match reasons.iter().find(|(pattern, _)| matches(pattern, what)) {
            Some((pattern, why)) => {
                println!("  {what}: {why}");
                used.insert(pattern.clone());
            }
            None => without.push(what),
        }
    }
    reasons.retain(|pattern, _| !used.contains(pattern));
    println!("reached, although unreached.md has a reason: {:?}", reasons.keys().collect::<Vec<_>>());
    assert_eq!(without, Vec::<&String>::new(), "without a reason");
}
