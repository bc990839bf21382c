//! Commands that random clients do not send: what is wrong with them is said, and the connection to the servers stays usable.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;

use super::client::Connection;
use super::schedules::fleet;
use super::seeds::for_each_seed;
use super::world::{Setup, World, run};

const RULES: &str = r#"
[[rules]]
name = "counters"
match = "counter:*"
kind = "counter"

[[rules]]
name = "lists"
match = "list:*"
kind = "list"

[[rules]]
name = "locks"
match = "lock:*"
kind = "lock"
ttl = "30s"

[[rules]]
name = "logs"
match = "log:*"
kind = "log"
window = "10m"
slot = "10s"

[[rules]]
name = "tables"
match = "table:*"
kind = "table"

[[rules]]
name = "windows"
match = "window:*"
kind = "window"
window = "10m"
slots = 60

[[rules]]
name = "visitors"
match = "visitors:*"
kind = "window"
window = "10m"
slots = 60
unique = true

[[rules]]
name = "copied"
match = "copied:*"
kind = "raw"
copies = 2

[[rules]]
name = "observed"
match = "observed:*"
kind = "observe"

[[rules]]
name = "near"
match = "near:*"
near = "1s"

[[rules]]
name = "guarded"
match = "guarded:*"
tags = ["tag"]
stale_for = "30s"
"#;

/// What each is answered with begins with `CLIENT_ERROR`, `SERVER_ERROR` or `ERROR`.
const WRONG: [&str; 59] = [
    "nonsense",
    "get",
    "set guarded:a 0 0",
    "set guarded:a x 0 1",
    "set guarded:a 0 0 1\r\nlonger",
    "touch guarded:a x",
    "incr raw:a x",
    "incr guarded:a x",
    "watch",
    "stats detail",
    "stats detail x",
    "slabs reassign 1 2",
    "lru_crawler crawl all",
    "verbosity",
    "flush_all x",
    "mg",
    "mg guarded:a v v",
    "mg guarded:a !",
    "mg guarded:a N30 E1",
    "mg guarded:a Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "mg !!! b",
    "mg guarded:a T",
    "mg guarded:a Tx",
    "ms guarded:a x",
    "ms guarded:a 1 MX\r\na",
    "ms guarded:a 1 Fx\r\na",
    "ms guarded:a 1 Tx\r\na",
    "ms guarded:a 1\r\nlonger",
    "ma guarded:a MX",
    "ma guarded:a Dx",
    "ma guarded:a Jx",
    "ma guarded:a N1 Jx",
    "set @lock:a 0 0 1\r\na",
    "set @long:a 0 0 1\r\na",
    "set @probe:a 0 0 1\r\na",
    "set a@kennel:a 0 0 1\r\na",
    "set @tag:a 0 0 1\r\na",
    "mg copied:a v T30",
    "set counter:a 0 0 1\r\na",
    "append counter:a 0 0 1\r\n1",
    "set list:a 0 0 1\r\na",
    "append list:a 0 0 1\r\na",
    "append list:a@b 0 0 2\r\n+a",
    "get list:a@",
    "mg list:a v E1",
    "cas list:a 0 0 2 1\r\n+a",
    "set lock:a 0 0 1\r\na",
    "add lock:a 0 -1 1\r\na",
    "set log:a 0 0 1\r\na",
    "append log:a 0 0 0\r\n",
    "append log:a@1 0 0 1\r\na",
    "get log:a@x",
    "set table:a 0 0 1\r\na",
    "set table:a/ 0 0 1\r\na",
    "set window:a 0 0 1\r\na",
    "decr window:a 1",
    "incr visitors:a 1",
    "ms list:a 2 MA C1\r\n+a",
    "gat x guarded:a",
];

/// Commands that are answered otherwise.
const RIGHT: [&str; 26] = [
    "version",
    "verbosity 1",
    "stats",
    "stats items",
    "mn",
    "me guarded:a",
    "set guarded:a 0 1 1\r\na",
    "gat 30 guarded:a",
    "gats 30 guarded:a",
    "gat 30 raw:a",
    "gets raw:a",
    "delete @tag:tag",
    "get @tag:tag",
    "mg guarded:a v t",
    "md guarded:a I",
    "mg guarded:a v t",
    "set near:a 0 0 1\r\na",
    "get near:a",
    "get near:a",
    "get observed:a",
    "set observed:a 0 0 1\r\na",
    "get guarded:b",
    "set guarded:b 0 30 1\r\nb",
    "delete @tag:tag",
    "get guarded:b",
    "flush_all",
];

async fn wrong_and_right(world: Rc<World>) {
    let long = |command: &str, length: usize| command.replace("LONG", &"x".repeat(length));
    let wrong = WRONG.map(str::to_owned).into_iter().chain([
        long("get LONG", 251),
        long("add lock:b 0 0 1025\r\nLONG", 1025),
        long("append list:b 0 0 65537\r\nLONG", 65_537),
        long("append log:b 0 0 32769\r\nLONG", 32_769),
        long("append list:LONG 0 0 2\r\n+a", 245),
        long("append list:LONG 0 0 61\r\n+LONG", 60).replacen(&"x".repeat(60), &"x".repeat(190), 1),
    ]);
    let mut unexpected = Vec::new();
    for command in wrong {
        let mut client = Connection::open(&world, 0, "wrong");
        let reply = client.exchange(&format!("{command}\r\n")).await.unwrap_or_default();
        if !["CLIENT_ERROR ", "SERVER_ERROR ", "ERROR\r\n"].iter().any(|word| reply.starts_with(word)) {
            unexpected.push((command.chars().take(60).collect::<String>(), reply));
        }
    }
    assert_eq!(unexpected, [], "these are answered as if they were right");
    let mut client = Connection::open(&world, 1, "right");
    for command in RIGHT {
        let reply = client
            .exchange(&format!("{command}\r\n"))
            .await
            .unwrap_or_else(|| panic!("no answer to {command:?}"));
        assert!(!reply.contains("ERROR"), "{command:?} is answered with {reply:?}");
        if command.starts_with("stats") {
            // Of the statistics, the first line was read.
            client = Connection::open(&world, 1, "right");
        }
        sleep(Duration::from_millis(300)).await;
    }
    client.exchange("quit\r\n").await;
}

#[test]
fn wrong_commands_are_told_so_and_rare_ones_are_answered() {
    let schedule = |seed| run(seed, Setup { rules: RULES, ..fleet() }, wrong_and_right);
    for_each_seed(1, schedule, |_| Ok(()));
}
