//! docs/structures.md says of each kind which commands it has, and what any other receives.

use std::fs;

use super::{Fleet, rule, with_one_copy_and_two};
use crate::binary::packet::*;
use crate::libraries::root;

with_one_copy_and_two!(each_kind_has_the_commands_that_the_page_says_and_refuses_any_other_as_it_says,);

/// A kind: the heading of its section, its rule, a key, and a value that it takes.
struct Kind {
    section: &'static str,
    kind: &'static str,
    more: &'static str,
    /// What the page says, up to the names of the commands.
    refusal: &'static str,
    key: &'static str,
    value: &'static str,
}

const KINDS: [Kind; 7] = [
    Kind {
        section: "Counter",
        kind: "counter",
        more: "",
        refusal: "CLIENT_ERROR a counter has only the commands ",
        key: "counter:1",
        value: "1",
    },
    Kind {
        section: "Window",
        kind: "window",
        more: "window = \"1h\"",
        refusal: "CLIENT_ERROR a window has only the commands ",
        key: "window:1",
        value: "",
    },
    Kind {
        section: "Window",
        kind: "window",
        more: "window = \"1h\"\nunique = true",
        refusal: "CLIENT_ERROR a window with unique has only the commands ",
        key: "unique:1:ann",
        value: "",
    },
    Kind {
        section: "Log",
        kind: "log",
        more: "window = \"1h\"",
        refusal: "CLIENT_ERROR a log has only the commands ",
        key: "log:1",
        value: "a",
    },
    Kind {
        section: "List",
        kind: "list",
        more: "",
        refusal: "CLIENT_ERROR a list has only the commands ",
        key: "list:1",
        value: "+a",
    },
    Kind {
        section: "Table",
        kind: "table",
        more: "",
        refusal: "CLIENT_ERROR a table has only the commands ",
        key: "table:1",
        value: "a",
    },
    Kind {
        section: "Lock",
        kind: "lock",
        more: "",
        refusal: "CLIENT_ERROR a lock has only the commands ",
        key: "lock:1",
        value: "a",
    },
];

/// Commands by the name that the page gives them, as classic and meta clients send them. N is the length of the value V.
const TEXT: [(&str, &str); 25] = [
    ("get", "get K"),
    ("get", "gets K"),
    ("get", "mg K v"),
    ("set", "set K 0 60 N\r\nV"),
    ("set", "ms K N\r\nV"),
    ("set", "ms K N MS\r\nV"),
    ("add", "add K 0 60 N\r\nV"),
    ("add", "ms K N ME\r\nV"),
    ("replace", "replace K 0 60 N\r\nV"),
    ("replace", "ms K N MR\r\nV"),
    ("append", "append K 0 60 N\r\nV"),
    ("append", "ms K N MA\r\nV"),
    ("prepend", "prepend K 0 60 N\r\nV"),
    ("prepend", "ms K N MP\r\nV"),
    ("cas", "cas K 0 60 N 1\r\nV"),
    ("incr", "incr K 1"),
    ("incr", "ma K"),
    ("incr", "ma K MI D2"),
    ("decr", "decr K 1"),
    ("decr", "ma K MD"),
    ("touch", "touch K 60"),
    ("gat", "gat 60 K"),
    ("gat", "gats 60 K"),
    ("delete", "delete K"),
    ("delete", "md K"),
];

fn packets(key: &str, value: &str) -> Vec<(&'static str, Packet)> {
    let touch = |opcode| Packet::new(opcode, key).with_extras(&[60]);
    vec![
        ("get", Packet::new(GET, key)),
        ("get", Packet::new(GETK, key)),
        ("set", Packet::store(SET, key, value, 60)),
        ("add", Packet::store(ADD, key, value, 60)),
        ("replace", Packet::store(REPLACE, key, value, 60)),
        ("append", Packet::new(APPEND, key).with_value(value)),
        ("prepend", Packet::new(PREPEND, key).with_value(value)),
        ("incr", Packet::count(INCREMENT, key, 1, 60)),
        ("decr", Packet::count(DECREMENT, key, 1, 60)),
        ("touch", touch(TOUCH)),
        ("gat", touch(GAT)),
        ("gat", touch(GATK)),
        ("delete", Packet::new(DELETE, key)),
    ]
}

/// What a window that only grows says of a `decr`.
const NO_DECR: &str = "CLIENT_ERROR the window has only counts that increase";

/// The words in backquotes that are names of commands.
fn commands(cell: &str) -> Vec<&str> {
    let mut found: Vec<_> =
        cell.split([' ', ',', '`', '\\']).filter(|word| TEXT.iter().any(|(name, _)| name == word)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn each_kind_has_the_commands_that_the_page_says_and_refuses_any_other_as_it_says(fleet: Fleet) {
    let page = fs::read_to_string(root().join("docs/structures.md")).expect("the page");
    let section = |name: &str| {
        let (_, rest) = page.split_once(&format!("\n## {name}\n")).expect("the section");
        rest.split("\n## ").next().expect("its text").to_owned()
    };
    let rules = KINDS.map(|kind| {
        let name = kind.key.split(':').next().expect("a name");
        rule(name, &format!("{name}:*"), kind.kind, kind.more)
    });
    let (_servers, [sidecar, _]) = fleet(&rules);
    let (mut client, mut binary) = (sidecar.client(), BinaryClient::new(sidecar.address()));
    assert!(section("Window").contains(&format!("| `decr K n` | `{NO_DECR}` |")));
    let mut of_kinds: Vec<(&str, Vec<String>)> = Vec::new();
    for Kind { section: name, kind, refusal, key, value, .. } in KINDS {
        let section = section(name);
        let (_, names) = section.split_once(refusal).expect("the refusal");
        let names = names.split_once('`').expect("its end").0;
        let refusal = format!("{refusal}{names}");
        let has = commands(names.split(" and any command on").next().expect("text"));
        match of_kinds.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, all)) => all.extend(has.iter().map(|&name| name.to_owned())),
            None => of_kinds.push((kind, has.iter().map(|&name| name.to_owned()).collect())),
        }
        let expects = |command: &str, reply: &str, sent: &str| match has.contains(&command) {
            true => assert!(!reply.starts_with("CLIENT_ERROR"), "{kind}: {sent:?}: {reply}"),
            false if kind == "window" && command == "decr" && refusal.contains("incr") => {
                assert_eq!(reply, NO_DECR, "{kind}: {sent:?}");
            }
            false => assert_eq!(reply, refusal, "{kind}: {sent:?}"),
        };
        for (command, text) in TEXT {
            let sent =
                text.replace(" N", &format!(" {}", value.len())).replace('V', value).replacen('K', key, 1);
            client.send(format!("{sent}\r\nmn\r\n").as_bytes());
            let reply = client.line();
            // The rest of a value.
            let mut last = reply.clone();
            while last != "MN" {
                last = client.line();
            }
            expects(command, &reply, &sent);
        }
        for (command, packet) in packets(key, value) {
            let answer = binary.ask(packet.clone());
            let reply = match answer.status {
                INVALID => format!("CLIENT_ERROR {}", answer.text()),
                _ => String::new(),
            };
            expects(command, &reply, &format!("{packet:?}"));
        }
    }
    for (kind, mut has) in of_kinds {
        has.sort_unstable();
        has.dedup();
        let row = page.lines().find(|line| line.starts_with(&format!("| [`{kind}`]"))).expect("the row");
        let cell = row.split('|').nth(3).expect("the commands");
        assert_eq!(commands(cell), has, "the first table on {kind}");
    }
}
