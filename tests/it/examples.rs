//! The examples of output on the pages for operators are what the commands print, but for numbers and times.

use std::process::Command;
use std::time::Duration;

use tokio::time::Instant;

use crate::observe::Tool;
use crate::world::{
    Kennel, addresses, eventually, guarded, memcacheds, raw, sidecar_toml, until_stale, without_failover,
};

const OPERATIONS: &str = include_str!("../../docs/operations.md");
const OBSERVING: &str = include_str!("../../docs/observing.md");

/// The lines, without what differs from run to run: a number is 0, one of 16 hexadecimal digits `#`, and several blanks are one.
fn shape(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let letters = word.trim_matches([',', ';', ':']);
        if letters.len() == 16 && letters.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return word.replace(letters, "#");
        }
        // In base64, digits mean letters.
        if word.ends_with("==,") {
            return word.to_owned();
        }
        let mut shape = String::new();
        for c in word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }) {
            if !(c == '0' && shape.ends_with('0')) {
                shape.push(c);
            }
        }
        shape
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.trim_end().lines().map(line).collect()
}

/// The block of text on a page that contains this, without its marks.
fn example<'p>(page: &'p str, part: &str) -> &'p str {
    let blocks = page.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains(part)).expect("an example")
}

fn printed(arguments: &[&str], sidecar: &Kennel) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    let output = command.args(arguments).args(["--admin", &sidecar.admin().to_string()]).output();
    let output = output.expect("run kennel");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Until so much time has passed, which is what is tested.
fn pass(time: Duration) {
    let began = Instant::now();
    eventually("time passes", || began.elapsed() >= time);
}

#[test]
fn explanations_are_those_of_the_pages() {
    let servers = memcacheds(3);
    let tags = "tags = [\"blog:{blog}\", \"posts\"]\nstale_for = \"60s\"";
    let rules = [raw("static", "static:*"), guarded("pages", "blog:{blog}:page:*", tags)];
    let sidecar = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let text = |key: &str| printed(&["explain", key], &sidecar);
    let mut firsts = Vec::new();
    let mut first = |key: &str| firsts.extend(text(key).lines().next().map(|line| shape(line).remove(0)));
    let (mut client, mut builder) = (sidecar.client(), sidecar.client());
    first("nope");
    assert_eq!(builder.get("blog:7:page:new"), None);
    eventually("it is known how long the build lasts", || text("blog:7:page:new").contains(" at least"));
    first("blog:7:page:new");
    let key = "blog:7:page:1";
    assert_eq!(client.get(key), None);
    client.send(format!("set {key} 5 2 5\r\nhello\r\n").as_bytes());
    assert_eq!(client.line(), "STORED");
    first(key);
    assert!(client.get(key).is_some());
    assert_eq!(client.delete("@tag:posts"), "DELETED");
    first("@tag:posts");
    first(key);
    until_stale(&servers, key, 60);
    assert_eq!(client.get(key), None);
    first(key);
    let section = OPERATIONS.split("### Why is this key as it is?").nth(1).expect("the section");
    let section = section.split("\n### ").next().unwrap_or_default();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let lines: Vec<String> = lines.map(|line| shape(line).remove(0)).collect();
    for line in &lines {
        assert!(firsts.contains(line), "{line} is none of {firsts:#?}");
    }
    assert_eq!(lines.len(), firsts.len());
    assert_eq!(shape(&text(key)), shape(example(OBSERVING, "lock ")));
}

#[test]
fn traces_tables_and_slow_requests_are_those_of_the_page() {
    let servers = memcacheds(1);
    let rule = guarded("blog-pages", "blog:{blog}:page:*", "tags = [\"blog:{blog}\"]\ncold_wait = \"2s\"");
    // With two workers, events of the same moment come in either order.
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &[rule]))
        .replace("workers = 2", "workers = 1")
        .replace("request_timeout = \"500ms\"", "request_timeout = \"5s\"\nhealth = { enabled = false }");
    let sidecar = Kennel::start(&toml);
    let text = Tool::trace(&["--key", "*blog:*"], &sidecar);
    let letters = Tool::trace(&["--letters", "--key", "blog:*"], &sidecar);
    let json = Tool::trace(&["--json", "--outcome", "miss_won"], &sidecar);
    let (mut one, mut two) = (sidecar.client(), sidecar.client());
    let front = "blog:7:page:front";
    assert_eq!(one.get(front), None);
    two.send(format!("get {front}\r\n").as_bytes());
    eventually("it waits", || sidecar.metrics().sum("kennel_waiters", &[]) == 1.0);
    pass(Duration::from_millis(150));
    one.store(front, b"v", 60);
    assert!(two.only_value(front).is_some());
    assert!(two.get(front).is_some());
    assert_eq!(one.delete("@tag:blog:7"), "DELETED");
    assert_eq!(one.get(front), None);
    assert!(two.get(front).is_some());
    one.store(front, b"v", 60);
    servers[0].stop();
    two.send(format!("get {front}\r\n").as_bytes());
    pass(Duration::from_millis(150));
    servers[0].cont();
    assert!(two.only_value(front).is_some());
    assert_eq!(one.get("blog:7:page:2"), None);
    assert_eq!(two.delete("blog:7:page:2"), "NOT_FOUND");
    assert_eq!(one.set("blog:7:page:2", b"v", 60), "STORED");
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line: &String| !line.contains(" fill_dropped ")) {
        lines.push(shape(&text.line()).remove(0));
    }
    for line in shape(example(OBSERVING, " fill_dropped ")) {
        assert!(lines.contains(&line), "{line} is none of {lines:#?}");
    }
    let event = OBSERVING.lines().find(|line| line.starts_with("{\"time\"")).expect("an event");
    assert_eq!(shape(&json.line()), shape(event));
    // Of repeated letters, one is enough.
    let once = |line: &str| {
        let mut letters: Vec<char> = line.chars().collect();
        letters.dedup();
        letters.into_iter().collect::<String>()
    };
    let mut last = Vec::new();
    let shown: Vec<String> = example(OBSERVING, "MLUDx").lines().take(2).map(once).collect();
    eventually("the letters are those of the page", || {
        last.extend(letters.lines().map(|line| once(&line)));
        shown.iter().all(|line| last.contains(line))
    });
    let table = printed(&["top"], &sidecar);
    let head = |text: &str| {
        let lines = shape(text);
        (lines[0].rsplit_once("; ").expect("its accuracy").0.to_owned(), lines[1].clone())
    };
    assert_eq!(head(&table), head(example(OBSERVING, "requests/s ")));
    let log = shape(&sidecar.log());
    for line in shape(example(OBSERVING, "kennel::slow")) {
        assert!(log.contains(&line), "{line} is not in {log:#?}");
    }
}
