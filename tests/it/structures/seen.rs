//! Operators see the kinds: in the metrics, on the page, in a trace, and when a key is explained.

use serde_json::Value;

use super::{fleet, rule, store, text};
use crate::client::Client;
use crate::observe::Tool;
use crate::world::{Kennel, guarded, raw};

fn rules() -> [String; 8] {
    [
        rule("hits", "hits:*", "counter", ""),
        rule("votes", "votes:*", "counter", "ttl = \"1h\""),
        rule("rate", "rate:*", "window", "window = \"1h\"\nslots = 6"),
        rule("events", "log:*", "log", "window = \"10d\"\nslot = \"1d\""),
        rule("friends", "list:*", "list", ""),
        rule("people", "table:*", "table", ""),
        guarded("pages", "page:*", ""),
        raw("rest", "*"),
    ]
}

fn use_all(client: &mut Client) {
    for (command, reply) in [
        ("incr hits:1 1", "1"),
        ("incr votes:1 1", "1"),
        (
            "set hits:1 0 0 1\r\nx",
            "CLIENT_ERROR a counter can only be set to a number from 0 to 18446744073709551615",
        ),
        ("incr rate:1 3", "3"),
        ("append log:1 0 0 1\r\na", "STORED"),
    ] {
        assert_eq!(client.execute(command), reply);
    }
    assert_eq!(text(client, "log:none"), None);
}

#[test]
fn metrics_and_page_count_by_kind() {
    let (_servers, [a, _b]) = fleet(&rules());
    use_all(&mut a.client());
    let metrics = a.metrics();
    for (kind, command, outcome, count) in [
        ("counter", "incr", "counted", 2.0),
        ("counter", "set", "client_error", 1.0),
        ("window", "incr", "counted", 1.0),
        ("log", "append", "stored", 1.0),
        ("log", "get", "miss", 1.0),
    ] {
        let labels = [("kind", kind), ("command", command), ("outcome", outcome)];
        let labels = labels.map(|(label, value)| format!("{label}=\"{value}\""));
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        assert_eq!(
            metrics.sum("kennel_structure_requests_total", &labels),
            count,
            "{kind} {command} {outcome}"
        );
    }
    let (_, body) =
        a.http("/page.json").split_once("\r\n\r\n").map(|(h, b)| (h.to_owned(), b.to_owned())).unwrap();
    let page: Value = serde_json::from_str(&body).expect("JSON");
    let shown: Vec<String> = page["rules"]
        .as_array()
        .expect("rules")
        .iter()
        .map(|rule| {
            format!("{} {} {} {}", rule["name"], rule["kind"], rule["writes"], rule["errors"])
                .replace('"', "")
        })
        .collect();
    let expected = [
        "hits counter 1 1",
        "votes counter 1 0",
        "rate window 1 0",
        "events log 1 0",
        "friends list 0 0",
        "people table 0 0",
        "pages guarded 0 0",
        "rest raw 0 0",
        "none none 0 0",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_trace_names_the_kind_of_each_event_and_selects_by_it() {
    let (_servers, [a, _b]) = fleet(&rules());
    let trace = Tool::trace(&["--json"], &a);
    let selected = Tool::trace(&["--kind", "window,raw"], &a);
    let mut client = a.client();
    use_all(&mut client);
    client.store("page:1", b"x", 0);
    client.store("else", b"x", 0);
    let events: Vec<String> = (0..8)
        .map(|_| {
            let event = trace.json();
            ["kind", "command", "key", "outcome"]
                .map(|field| event[field].as_str().expect("text").to_owned())
                .join(" ")
        })
        .collect();
    let expected = [
        "counter incr hits:1 counted",
        "counter incr votes:1 counted",
        "counter set hits:1 client_error",
        "window incr rate:1 counted",
        "log append log:1 stored",
        "log get log:none miss",
        "guarded set page:1 stored",
        "raw set else stored",
    ];
    assert_eq!(events, expected);
    assert!(selected.line().starts_with("time "), "the headings");
    for (command, rule, kind, key) in [("incr", "rate", "window", "rate:1"), ("set", "rest", "raw", "else")] {
        let line = selected.line();
        let words: Vec<&str> = line.split_whitespace().collect();
        let shown = (words[2], &words[words.len() - 4..words.len() - 2], words[words.len() - 1]);
        assert_eq!(shown, (command, &[rule, kind][..], key), "{line}");
    }
    assert!(selected.end("TERM").1.is_empty());
}

pub(super) fn explain(sidecar: &Kennel, key: &str) -> Value {
    let reply = sidecar.http(&format!("/explain?key={key}&format=json"));
    let (_, body) = reply.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {reply}"))
}

#[test]
fn the_key_of_a_structure_is_explained_by_what_it_has() {
    let (_servers, [a, _b]) = fleet(&rules());
    let mut client = a.client();
    let before = explain(&a, "rate:1");
    assert_eq!(
        (&before["summary"], &before["structure"]["items"]["found"]),
        (&"nothing is stored".into(), &0.into())
    );
    use_all(&mut client);
    assert_eq!(store(&mut client, "append log:1 0 0", "more"), "STORED");
    assert_eq!(store(&mut client, "append list:1 0 0", "+ann\n"), "STORED");
    client.store("table:1/ann", b"x", 0);
    for (key, kind, summary) in [
        ("hits:1", "counter", "stored"),
        ("hits:none", "counter", "nothing is stored"),
        ("rate:1", "window", "stored: 1 of 8 items are there"),
        ("log:1", "log", "stored: 1 of 12 items are there"),
        ("log:1@0", "log", "stored: 1 of 12 items are there"),
        ("log:none", "log", "nothing is stored"),
        ("list:1", "list", "stored: 1 of 8 items are there"),
        ("list:none", "list", "nothing is stored"),
        ("table:1", "table", "stored: 1 of 8 items are there"),
    ] {
        let explained = explain(&a, key);
        let shown = ["class", "summary"].map(|field| explained[field].as_str().expect("text"));
        assert_eq!((shown, &explained["structure"]["kind"]), (["structure", summary], &kind.into()), "{key}");
        assert_eq!(explained["place"]["view"], "fixed", "{key}");
        let has_item = !explained["item"].is_null();
        assert_eq!(has_item, kind == "counter", "{key}");
    }
    let text = a.http("/explain?key=rate:1");
    assert!(text.contains("  items     1 of 8 are there, "), "{text}");
    assert!(text.contains(", window\n"), "{text}");
}
