//! What happens to keys is seen while it happens: `kennel trace`, `kennel top` and the log of slow requests.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::binary::packet::{BinaryClient, GETK, GETKQ, INCREMENT, NOOP, Packet, SUCCESS};
use crate::client::{Client, set_command};
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, until_stale,
    within, without_failover,
};

/// A `kennel` command that runs until this is dropped, and the lines that it prints.
pub(crate) struct Tool {
    child: Child,
    lines: Receiver<String>,
}

impl Tool {
    fn start(arguments: &[&str], sidecar: &Kennel) -> Tool {
        let admin = sidecar.admin().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.args(arguments).args(["--admin", &admin]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start kennel");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Tool { child, lines }
    }

    /// A `kennel trace`, once it watches.
    pub(crate) fn trace(arguments: &[&str], sidecar: &Kennel) -> Tool {
        let before = watchers(sidecar);
        let tool = Tool::start(&[&["trace"], arguments].concat(), sidecar);
        eventually("it watches", || watchers(sidecar) > before);
        tool
    }

    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(10)).expect("a line")
    }

    /// The lines that have come.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.lines.try_iter()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.line()).expect("JSON")
    }

    /// Ends it with a signal, and returns the lines that were left.
    pub(crate) fn end(mut self, signal: &str) -> (bool, Vec<String>) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("run sh").success());
        let status = self.child.wait().expect("it ends");
        (status.success(), self.lines.iter().collect())
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watchers(sidecar: &Kennel) -> f64 {
    sidecar.metrics().sum("kennel_trace_watchers", &[])
}

/// The words that are interesting of an event.
fn short(event: &Value) -> (String, String, String, String) {
    let word = |name: &str| event[name].as_str().unwrap_or("-").to_owned();
    (word("command"), word("key"), word("outcome"), word("letters"))
}

fn words(command: &str, key: &str, outcome: &str, letters: &str) -> (String, String, String, String) {
    (command.into(), key.into(), outcome.into(), letters.into())
}

fn one_server(rules: &[String]) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let sidecar = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), rules)));
    (servers, sidecar)
}

#[test]
fn each_event_names_the_server_that_has_the_key() {
    let servers = memcacheds(3);
    let rules = [guarded("pages", "page:*", ""), raw("raw", "raw:*")];
    let sidecar = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), &rules)));
    let trace = Tool::trace(&["--json", "--outcome", "stored"], &sidecar);
    let mut client = sidecar.client();
    let mut seen = HashSet::new();
    for key in (0..12).flat_map(|n| ["page", "raw"].map(|kind| format!("{kind}:{n}"))) {
        client.store(&key, b"value", 60);
        let event = trace.json();
        let has = |server: &&Memcached| direct(server).ttl(&key).is_some();
        let address = servers.iter().find(has).expect("it is stored").address();
        assert_eq!((&event["key"], &event["server"]), (&key.as_str().into(), &address.as_str().into()));
        seen.insert((key.starts_with("raw"), address));
    }
    assert!(seen.len() >= 4, "hardly tested: {seen:?}");
}

#[test]
fn a_trace_shows_each_event_with_its_client_server_and_letter_and_a_reload_does_not_end_it() {
    let rules = [guarded("pages", "page:*", "stale_for = \"60s\"\ntags = [\"posts\"]"), raw("raw", "raw:*")];
    let (servers, sidecar) = one_server(&rules);
    let trace = Tool::trace(&["--json"], &sidecar);
    let mut client = sidecar.client();
    assert_eq!(client.get("page:1"), None);
    client.store("page:1", b"value", 1);
    assert_eq!(client.get("page:1").as_deref(), Some(&b"value"[..]));
    let first = trace.json();
    assert_eq!(short(&first), words("get", "page:1", "miss_won", "ML"));
    assert_eq!(first["rule"], "pages");
    assert_eq!((&first["pool"], &first["server"]), (&"main".into(), &servers[0].address().into()));
    assert!(first["client"].as_str().is_some_and(|client| client.starts_with("127.0.0.1:")), "{first}");
    assert!(first["time"].as_str().is_some_and(|time| time.ends_with('Z')) && first["us"].as_u64() > Some(0));
    assert_eq!(short(&trace.json()), words("set", "page:1", "stored", "WU"));
    let hit = trace.json();
    assert_eq!(short(&hit), words("get", "page:1", "hit", "H"));
    assert_eq!(hit["bytes"], 5);
    // Another configuration does not end it.
    let more = [&rules[..], &[raw("more", "more:*")]].concat();
    let (status, changes) = sidecar.reload(&without_failover(&sidecar_toml(&addresses(&servers), &more)));
    assert_eq!(status, 200, "{changes}");
    until_stale(&servers, "page:1", 60);
    let mut other = sidecar.client();
    assert_eq!(client.get("page:1"), None);
    assert_eq!(other.get("page:1").as_deref(), Some(&b"value"[..]));
    // A stale value is absent for a delete.
    assert_eq!(other.delete("page:1"), "NOT_FOUND");
    assert_eq!(other.delete("@tag:posts"), "DELETED");
    other.store("more:1", b"x", 0);
    for expected in [
        words("get", "page:1", "miss_won", "ML"),
        words("get", "page:1", "stale", "S"),
        words("-", "page:1", "released", "U"),
        words("delete", "page:1", "not_found", "D"),
        words("delete", "@tag:posts", "bumped", "T"),
        words("set", "more:1", "stored", "W"),
    ] {
        assert_eq!(short(&trace.json()), expected);
    }
    // What was invalidated during its build is dropped.
    assert_eq!(client.set("page:1", b"late", 0), "STORED");
    assert_eq!(short(&trace.json()), words("set", "page:1", "fill_dropped", "x"));
    other.send(b"nonsense\r\n");
    assert_eq!(other.line(), "ERROR");
    assert_eq!(short(&trace.json()), words("other", "", "error", "!"));
    // A client that leaves frees its key.
    assert_eq!(other.get("page:2"), None);
    drop(other);
    assert_eq!(short(&trace.json()), words("get", "page:2", "miss_won", "ML"));
    assert_eq!(short(&trace.json()), words("-", "page:2", "disconnected", "U"));
    assert!(trace.end("INT").0);
    eventually("nobody watches", || watchers(&sidecar) == 0.0);
}

/// What a command prints to stderr, which fails.
fn refused(arguments: &[&str], sidecar: &Kennel) -> String {
    let admin = sidecar.admin().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    let output = command.args(arguments).args(["--admin", &admin]).output().expect("run kennel");
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

#[test]
fn each_condition_selects_what_it_says_for_several_watchers_at_a_time_and_unknown_names_are_refused() {
    let servers = memcacheds(3);
    let rules = [guarded("pages", "page:*", "stale_for = \"60s\"\ncold_wait = \"2s\""), raw("raw", "raw:*")];
    let sidecar = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), &rules)));
    let address = servers[0].address();
    let of_server = Tool::trace(&["--json", "--server", &address, "--outcome", "stored"], &sidecar);
    let of_pool =
        Tool::trace(&["--json", "--server", &format!("main/{address}"), "--outcome", "stored"], &sidecar);
    let of_no_rule = Tool::trace(&["--json", "--rule", "none"], &sidecar);
    let slow = Tool::trace(&["--json", "--slower", "100ms"], &sidecar);
    let sample = Tool::trace(&["--json", "--key", "raw:sampled", "--sample", "1/10"], &sidecar);
    let mut client = sidecar.client();
    for n in 0..30 {
        client.store(&format!("raw:{n}"), b"v", 0);
    }
    let on_first: Vec<String> =
        (0..30).map(|n| format!("raw:{n}")).filter(|key| direct(&servers[0]).ttl(key).is_some()).collect();
    assert!(!on_first.is_empty() && on_first.len() < 30);
    for key in &on_first {
        assert_eq!([of_server.json(), of_pool.json()].map(|event| event["key"].clone()), [key.as_str(); 2]);
    }
    assert_eq!(client.get("other:1"), None);
    assert_eq!(short(&of_no_rule.json()), words("get", "other:1", "miss", "M"));
    // Slow is who waits for another client's build.
    assert_eq!(client.get("page:1"), None);
    let mut waits = sidecar.client();
    waits.send(b"get page:1\r\n");
    eventually("it waits", || sidecar.metrics().sum("kennel_waiters", &[]) == 1.0);
    let waited = Instant::now();
    eventually("a build takes a while", || waited.elapsed() > Duration::from_millis(150));
    client.store("page:1", b"v", 30);
    assert_eq!(waits.only_value("page:1").as_deref(), Some(&b"v"[..]));
    let event = slow.json();
    assert_eq!(short(&event), words("get", "page:1", "hit", "H"));
    assert!(event["us"].as_u64() >= Some(150_000), "{event}");
    // Of 2,000, a tenth: 10 standard deviations are 134.
    let gets = b"get raw:sampled\r\n".repeat(1000);
    for _ in 0..2 {
        client.send(&gets);
        (0..1000).for_each(|_| client.expect(b"END\r\n"));
    }
    client.store("raw:sampled", b"v", 0);
    let sampled = || sidecar.metrics().sum("kennel_trace_events_total", &[]);
    assert!((66.0..=334.0).contains(&(sampled() - 2.0 * on_first.len() as f64 - 2.0)), "{}", sampled());
    let (status, lines) = sample.end("INT");
    assert!(status && lines.iter().all(|line| line.contains("\"key\":\"raw:sampled\"")));
    for (arguments, expected) in [
        (&["trace", "--rule", "pages,page"][..], "rule=page is no rule: use pages, raw, none"),
        (&["trace", "--server", "10.0.0.1:1"], "server=10.0.0.1:1 is no server: use 127.0.0.1:"),
        (
            &["trace", "--kind", "rule"],
            "--kind=rule is no kind: use guarded, raw, counter, window, log, list, table, lock, observe, none",
        ),
        (&["top", "--rule", "page"], "rule=page is no rule: use pages, raw, none"),
        (&["top", "--key", "a\\"], "must not end with a single"),
        (&["top", "--by", "size"], "--by=size must be one of requests, bytes, misses, rebuild"),
    ] {
        let error = refused(arguments, &sidecar);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn an_early_refresh_has_its_letter_and_so_has_what_happens_on_a_standby_server() {
    let mut servers = memcacheds(3);
    let rules = [guarded("pages", "page:*", "stale_for = \"60s\"")];
    // Long enough for a sidecar without processor time to keep its views.
    let short_times = "[pools.main]\nwindow = \"2s\"\nfail_after = \"2s\"\n";
    let toml = sidecar_toml(&addresses(&servers), &rules).replace("[pools.main]\n", short_times);
    let sidecar = Kennel::start(&toml);
    let mut client = sidecar.client();
    let fill = |client: &mut Client| {
        assert_eq!(client.get("page:1"), None);
        client.store("page:1", b"v", 20);
    };
    fill(&mut client);
    let away = (0..3).find(|n| direct(&servers[*n]).ttl("page:1").is_some()).expect("a server has it");
    let trace = Tool::trace(&["--json", "--key", "page:1"], &sidecar);
    client.send(b"mg page:1 v R600\r\n");
    assert!(client.line().contains(" W"));
    client.expect(b"v\r\n");
    client.store("page:1", b"v", 20);
    assert_eq!(short(&trace.json()), words("mg", "page:1", "miss_won", "EL"));
    assert_eq!(short(&trace.json()), words("set", "page:1", "stored", "WU"));
    servers[away].kill();
    within(Duration::from_secs(30), "its keys have moved", || {
        sidecar.metrics().sum("kennel_failover_place", &[]) == 1.0
    });
    fill(&mut client);
    assert!(client.get("page:1").is_some());
    for letters in ["FML", "FWU", "FH"] {
        assert_eq!(trace.json()["letters"], letters);
    }
}

#[test]
fn letters_are_one_line_a_key_and_conditions_select() {
    let (_servers, sidecar) = one_server(&[guarded("pages", "page:*", ""), raw("raw", "raw:*")]);
    let letters = Tool::trace(&["--letters", "--key", "page:*"], &sidecar);
    let misses = Tool::trace(&["--outcome", "miss*", "--rule", "pages", "--client", "127.0.0.1"], &sidecar);
    let headings = misses.line();
    assert!(headings.starts_with("time ") && headings.ends_with(" key"), "{headings}");
    let mut client = sidecar.client();
    assert_eq!(client.get("page:1"), None);
    client.store("page:1", b"v", 0);
    (0..3).for_each(|_| assert!(client.get("page:1").is_some()));
    assert_eq!(client.get("raw:1"), None);
    client.delete("page:1");
    client.store("page:ÿ", b"v", 0);
    let line = misses.line();
    assert!(line.contains(" miss_won ") && line.ends_with("  page:1"), "{line}");
    let mut last = String::new();
    eventually("the letters are complete", || {
        last.extend(letters.lines.try_iter().map(|line| line + "\n"));
        last.contains("page:1  MLWUHHHD\n") && last.contains("page:ÿ  W\n")
    });
    assert!(!last.contains("raw:1"));
    assert!(letters.end("TERM").0);
    assert!(misses.end("TERM").1.is_empty());
}

#[test]
fn events_that_are_not_read_are_dropped_and_counted_and_clients_are_served() {
    let (_servers, sidecar) = one_server(&[raw("raw", "raw:*")]);
    let mut stream = TcpStream::connect(sidecar.admin()).expect("a connection");
    stream.write_all(b"GET /trace HTTP/1.0\r\n\r\n").expect("a request");
    eventually("it watches", || watchers(&sidecar) == 1.0);
    let mut client = sidecar.client();
    let gets = b"get raw:1\r\n".repeat(1000);
    let dropped = || sidecar.metrics().sum("kennel_trace_events_dropped_total", &[]);
    eventually("events are dropped", || {
        client.send(&gets);
        (0..1000).for_each(|_| client.expect(b"END\r\n"));
        dropped() > 0.0
    });
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "event: dropped"));
    let data = lines.next().expect("the number");
    let number: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
    assert!(number["dropped"].as_u64() > Some(0), "{number}");
}

#[test]
fn a_command_that_stands_still_says_how_many_events_it_has_missed() {
    let (_servers, sidecar) = one_server(&[raw("raw", "raw:*")]);
    let trace = Tool::trace(&[], &sidecar);
    let signal = |name: &str| {
        let kill = format!("kill -{name} {}", trace.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("run sh").success());
    };
    signal("STOP");
    let mut client = sidecar.client();
    let gets = b"get raw:1\r\n".repeat(1000);
    eventually("events are dropped", || {
        client.send(&gets);
        (0..1000).for_each(|_| client.expect(b"END\r\n"));
        sidecar.metrics().sum("kennel_trace_events_dropped_total", &[]) > 0.0
    });
    signal("CONT");
    let missed =
        |line: &String| line.starts_with("--- ") && line.contains(" events dropped: they came faster");
    let mut lines = std::iter::repeat_with(|| trace.line());
    assert!(lines.find(missed).is_some());
}

#[test]
fn of_a_key_no_more_is_shown_than_permitted_and_of_a_value_nothing() {
    let servers = memcacheds(1);
    let rules = [guarded("pages", "user:*", "")];
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &rules));
    for (keys, shown) in [("prefix:5", "user:…"), ("hash", "#")] {
        let sidecar = Kennel::start(&format!("[log]\nkeys = \"{keys}\"\nslow = \"1ms\"\n{toml}"));
        let trace = Tool::trace(&["--json", "--key", "user:17:name"], &sidecar);
        let mut client = sidecar.client();
        servers[0].stop();
        client.send(b"get user:17:name\r\n");
        let waited = Instant::now();
        eventually("it is slow", || waited.elapsed() > Duration::from_millis(50));
        servers[0].cont();
        client.expect(b"END\r\n");
        client.store("user:17:name", b"confidential", 0);
        assert!(client.get("user:17:name").is_some());
        assert_eq!(client.get("user:18:name"), None);
        let events: Vec<Value> = (0..3).map(|_| trace.json()).collect();
        assert!(events.iter().all(|event| event["key"].as_str().is_some_and(|key| key.starts_with(shown))));
        let hottest = hot(&sidecar, "")[0]["key"].as_str().expect("a key").to_owned();
        assert!(hottest.starts_with(shown), "{hottest}");
        let line = logged(&sidecar, &["slow request", "command=get"]);
        assert!(line.contains(&format!(" key={shown}")), "{line}");
        let pages = ["/page.json", "/leases", "/hot", "/metrics", "/slabs"].map(|path| sidecar.http(path));
        let all = [pages.concat(), sidecar.log(), format!("{events:?}")].concat();
        for secret in ["confidential", "17:name", "18:name"] {
            assert!(!all.contains(secret), "{secret} in {all}");
        }
        client.delete("user:17:name");
    }
}

#[test]
fn so_many_watch_at_a_time_and_a_further_one_is_refused() {
    let (_servers, sidecar) = one_server(&[raw("raw", "*")]);
    let watch = || {
        let mut stream = TcpStream::connect(sidecar.admin()).expect("a connection");
        stream.write_all(b"GET /trace?outcome=hit HTTP/1.0\r\n\r\n").expect("a request");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a status");
        (stream, String::from_utf8_lossy(&status[9..]).into_owned())
    };
    let mut watching: Vec<_> = (0..8).map(|_| watch()).collect();
    assert!(watching.iter().all(|(_, status)| status == "200"));
    assert_eq!(watch().1, "503");
    assert!(sidecar.http("/trace?sample=2").contains("400 Bad Request"));
    assert!(sidecar.http("/trace?sample=2").contains("sample=2 must be a fraction"));
    assert!(sidecar.http("/trace?kind=rule").contains("kind=rule is no kind: use guarded, "));
    watching.pop();
    eventually("one has ended", || watch().1 == "200");
}

fn hot(sidecar: &Kennel, query: &str) -> Vec<Value> {
    let reply = sidecar.http(&format!("/hot{query}"));
    let body = reply.split_once("\r\n\r\n").expect("a body").1;
    let page: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply}"));
    page["keys"].as_array().expect("keys").clone()
}

#[test]
fn the_hottest_keys_are_found_by_each_measure_and_rule() {
    let (_servers, sidecar) = one_server(&[guarded("pages", "page:*", ""), raw("raw", "raw:*")]);
    let mut client = sidecar.client();
    assert_eq!(client.get("page:slow"), None);
    let began = Instant::now();
    eventually("a build takes a while", || began.elapsed() > Duration::from_millis(50));
    client.store("page:slow", b"v", 0);
    client.store("raw:big", &[b'x'; 200_000], 0);
    client.store("raw:hot", b"v", 0);
    (0..5000).for_each(|_| assert!(client.get("raw:hot").is_some()));
    (0..20).for_each(|_| assert!(client.get("raw:cold").is_none()));
    (0..3).for_each(|_| assert!(client.get("raw:big").is_some()));
    let first = |query: &str| hot(&sidecar, query)[0]["key"].as_str().expect("a key").to_owned();
    assert_eq!(first(""), "raw:hot");
    assert_eq!(first("?by=bytes"), "raw:big");
    assert_eq!(first("?by=misses"), "raw:cold");
    assert_eq!(first("?by=rebuild"), "page:slow");
    assert!(hot(&sidecar, "?by=rebuild")[0]["rebuild"]["per_second"].as_f64() > Some(0.001));
    assert_eq!(first("?rule=pages"), "page:slow");
    assert_eq!(hot(&sidecar, "?key=raw:c*").len(), 1);
    assert_eq!(hot(&sidecar, "?limit=1").len(), 1);
    let rate = hot(&sidecar, "")[0]["requests"]["per_second"].as_f64().expect("a rate");
    let stored = hot(&sidecar, "?rule=raw&key=raw:hot")[0]["rule"].clone();
    assert!(rate > 100.0 && stored == "raw", "{rate}");
    let table = Command::new(env!("CARGO_BIN_EXE_kennel"))
        .args(["top", "--by", "misses", "--admin", &sidecar.admin().to_string()])
        .output()
        .expect("run kennel");
    let table = String::from_utf8(table.stdout).expect("UTF-8");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("by misses; last ") && lines[1].ends_with("rule   key"), "{table}");
    assert!(lines[2].ends_with("  raw    raw:cold"), "{table}");
}

/// The first line of the log that contains all of these.
fn logged(sidecar: &Kennel, parts: &[&str]) -> String {
    let mut found = None;
    eventually(&format!("{parts:?} is logged"), || {
        let log = sidecar.log();
        found = log.lines().find(|line| parts.iter().all(|part| line.contains(part))).map(str::to_owned);
        found.is_some()
    });
    found.unwrap_or_default()
}

/// The number after `name=` in a line of the log.
fn number(line: &str, name: &str) -> u64 {
    let at = line.find(&format!(" {name}=")).unwrap_or_else(|| panic!("{name} in {line}"));
    let rest = &line[at + name.len() + 2..];
    rest.split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{name} in {line}"))
}

#[test]
fn a_slow_request_is_logged_with_where_its_time_went_and_without_its_value() {
    let servers = memcacheds(1);
    let rules = [guarded("pages", "page:*", "cold_wait = \"2s\""), raw("raw", "raw:*")];
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &rules))
        .replace("request_timeout = \"500ms\"", "request_timeout = \"5s\"\nhealth = { enabled = false }");
    let sidecar = Kennel::start(&format!("[log]\nslow = \"150ms\"\nkeys = \"prefix:6\"\n{toml}"));
    let mut client = sidecar.client();
    client.store("raw:secret-name", b"confidential", 0);
    // The server.
    servers[0].stop();
    client.send(b"get raw:secret-name\r\n");
    let waited = Instant::now();
    eventually("the server is silent for a while", || waited.elapsed() > Duration::from_millis(300));
    servers[0].cont();
    assert!(client.items().expect("a reply").len() == 1);
    let line = logged(&sidecar, &["WARN", "slow request", "command=get", "rule=raw"]);
    assert!(line.contains("key=raw:se…") && line.contains(&servers[0].address()), "{line}");
    assert!(number(&line, "total_ms") >= 300 && number(&line, "server_ms") >= 250, "{line}");
    assert_eq!(number(&line, "build_ms"), 0, "{line}");
    // Another client's build.
    assert_eq!(client.get("page:1"), None);
    let mut waits = sidecar.client();
    waits.send(b"get page:1\r\n");
    eventually("it waits", || sidecar.metrics().sum("kennel_waiters", &[]) == 1.0);
    let waited = Instant::now();
    eventually("a build takes a while", || waited.elapsed() > Duration::from_millis(300));
    client.store("page:1", b"confidential", 0);
    assert!(waits.items().expect("a reply").len() == 1);
    let line = logged(&sidecar, &["INFO", "slow request", "another client's build"]);
    assert!(number(&line, "build_ms") >= 280 && number(&line, "server_ms") < 150, "{line}");
    // The client.
    client.store("raw:large", &vec![b'x'; 900_000], 0);
    let mut slow = sidecar.client();
    slow.send(&b"get raw:large\r\n".repeat(40));
    let waited = Instant::now();
    eventually("the client does not read for a while", || waited.elapsed() > Duration::from_millis(400));
    (0..40).for_each(|_| assert!(slow.items().expect("a reply").len() == 1));
    let line = logged(&sidecar, &["slow request", "command=get", "key=raw:la…"]);
    assert!(number(&line, "client_ms") >= 100, "{line}");
    assert!(!sidecar.log().contains("confidential") && !sidecar.log().contains("secret-name"));
    let slow = sidecar.metrics().sum("kennel_slow_requests_total", &["rule=\"raw\""]);
    assert!(slow >= 2.0 && sidecar.metrics().sum("kennel_slow_requests_total", &["rule=\"pages\""]) >= 1.0);
}

#[test]
fn many_slow_requests_are_few_lines_and_the_others_are_counted() {
    let servers = memcacheds(1);
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &[raw("raw", "raw:*")]))
        .replace("workers = 2", "workers = 1")
        .replace("request_timeout = \"500ms\"", "request_timeout = \"5s\"\nhealth = { enabled = false }");
    let sidecar = Kennel::start(&format!("[log]\nslow = \"50ms\"\nkeys = \"hash\"\n{toml}"));
    let mut clients: Vec<Client> = (0..30).map(|_| sidecar.client()).collect();
    clients.iter_mut().for_each(|client| client.store("raw:1", b"v", 0));
    servers[0].stop();
    clients.iter_mut().for_each(|client| client.send(&set_command("raw:1", b"w", 0)));
    let waited = Instant::now();
    eventually("the server is silent for a while", || waited.elapsed() > Duration::from_millis(100));
    servers[0].cont();
    clients.iter_mut().for_each(|client| assert_eq!(client.line(), "STORED"));
    let slow = || sidecar.metrics().sum("kennel_slow_requests_total", &["rule=\"raw\""]);
    eventually("all are counted", || slow() >= 30.0);
    let line = logged(&sidecar, &["slow request command=set"]);
    assert!(line.contains("key=#") && !line.contains("raw:1"), "{line}");
    let lines = |log: &str| log.lines().filter(|line| line.contains("slow request command=")).count() as u64;
    within(Duration::from_secs(20), "the others are reported", || {
        let log = sidecar.log();
        let suppressed: u64 = log
            .lines()
            .filter(|line| line.contains(" suppressed="))
            .map(|line| number(line, "suppressed"))
            .sum();
        suppressed > 0 && lines(&log) + suppressed == slow() as u64
    });
}

/// A terminal of a tmux server of its own.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(width: u16, height: u16, command: &str) -> Terminal {
        let socket = format!("kennel-it-{}", std::process::id());
        let terminal = Terminal { socket };
        let size = [width.to_string(), height.to_string()];
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1], command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        let output = tmux.args(["-L", &self.socket]).args(arguments).env("TERM", "screen").output();
        let output = output.expect("run tmux: scripts/test installs it");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> Vec<String> {
        self.tmux(&["capture-pane", "-p"]).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    fn until(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        eventually(what, || {
            let screen = self.screen();
            condition(&screen)
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

#[test]
fn top_in_a_terminal_is_live_sorts_filters_follows_the_size_and_quits() {
    let (_servers, sidecar) = one_server(&[guarded("pages", "page:*", ""), raw("raw", "raw:*")]);
    let mut client = sidecar.client();
    client.store("raw:first", b"v", 0);
    (0..100).for_each(|_| assert!(client.get("raw:first").is_some()));
    (0..30).for_each(|_| assert!(client.get("raw:missed").is_none()));
    (0..3).for_each(|_| assert!(client.get("raw:rare").is_none()));
    let command = format!(
        "{} top --limit 2 --admin {}; echo it has ended; exec cat",
        env!("CARGO_BIN_EXE_kennel"),
        sidecar.admin()
    );
    let terminal = Terminal::start(80, 24, &command);
    terminal.until("the table is shown", |screen| {
        screen.len() == 24
            && screen[0].starts_with("kennel top  127.0.0.1:")
            && screen[3].ends_with("raw:first")
            && screen[4].ends_with("raw:missed")
            && screen[5].is_empty()
            && screen[23].ends_with("q quit")
    });
    terminal.press("m");
    terminal.until("it is sorted by misses", |screen| {
        screen[0].ends_with("by misses") && screen[3].ends_with("raw:missed")
    });
    // Without a key press.
    (0..300).for_each(|_| assert!(client.get("raw:later").is_none()));
    terminal.until("it shows what happens", |screen| screen[3].ends_with("raw:later"));
    ["/", "m", "i", "s"].iter().for_each(|key| terminal.press(key));
    terminal.until("it filters", |screen| screen[3].ends_with("raw:missed") && screen[4].is_empty());
    terminal.tmux(&["resize-window", "-x", "60", "-y", "12"]);
    terminal
        .until("it follows the size", |screen| screen.len() == 12 && screen[11].starts_with("filter: mis"));
    terminal.press("Escape");
    // An escape and a letter at once are another key.
    terminal.until("it does not filter", |screen| screen[11].starts_with("r requests"));
    terminal.press("q");
    terminal.until("the terminal is as before", |screen| screen.iter().any(|line| line == "it has ended"));
}

#[test]
fn binary_requests_and_the_keys_of_structures_are_seen_as_those_of_text_and_guarded_ones_are() {
    let structure = |name: &str, kind: &str| {
        format!("[[rules]]\nname = {name:?}\nmatch = \"{name}:*\"\nkind = {kind:?}\nttl = \"1h\"\n")
    };
    let rules = [
        structure("hits", "counter"),
        structure("lock", "lock"),
        guarded("page", "page:*", ""),
        raw("raw", "*"),
    ];
    let (servers, sidecar) = one_server(&rules);
    let trace = Tool::trace(&["--json"], &sidecar);
    let (mut text, mut binary) = (sidecar.client(), BinaryClient::new(sidecar.address()));
    let server = servers[0].address();
    let seen = |expected: (&str, &str, &str), rule: &str, bytes: u64| {
        let event = trace.json();
        let (command, key, outcome, _) = short(&event);
        assert_eq!((&command[..], &key[..], &outcome[..]), expected, "{event}");
        assert_eq!((event["rule"].as_str(), event["bytes"].as_u64()), (Some(rule), Some(bytes)), "{event}");
        event
    };
    // Raw and guarded keys of a binary client: of a value, its length alone.
    let long = "v".repeat(100_000);
    for key in ["short", "long"] {
        let value = if key == "short" { "value" } else { &long[..] };
        let bytes = value.len() as u64;
        assert_eq!(binary.set(key, value), SUCCESS);
        seen(("set", key, "stored"), "raw", bytes);
        assert_eq!(binary.get(key).as_deref(), Some(value));
        assert_eq!(seen(("get", key, "hit"), "raw", bytes)["server"], server);
        assert_eq!(binary.ask(Packet::new(GETK, key)).status, SUCCESS);
        seen(("get", key, "hit"), "raw", bytes);
    }
    binary.send(&[Packet::new(GETKQ, "short"), Packet::new(NOOP, b"")]);
    assert_eq!((binary.receive().opcode, binary.receive().opcode), (GETKQ, NOOP));
    let mut events = [trace.json(), trace.json()].map(|event| (short(&event).0, short(&event).2));
    events.sort();
    assert_eq!(
        events,
        [("get", "hit"), ("mn", "ok")].map(|(command, outcome)| (command.into(), outcome.into()))
    );
    assert_eq!(binary.get("page:1"), None);
    seen(("get", "page:1", "miss_won"), "page", 0);
    assert_eq!(binary.set("page:1", "built"), SUCCESS);
    seen(("set", "page:1", "stored"), "page", 5);
    // Structures, for clients of both protocols.
    assert_eq!(text.execute("incr hits:1 1"), "1");
    assert_eq!(seen(("incr", "hits:1", "counted"), "hits", 0)["server"], server);
    assert_eq!(binary.ask(Packet::count(INCREMENT, "hits:1", 7, u32::MAX)).number(), 2);
    seen(("incr", "hits:1", "counted"), "hits", 0);
    assert_eq!(text.get("hits:1").as_deref(), Some(&b"2"[..]));
    seen(("get", "hits:1", "hit"), "hits", 1);
    assert_eq!(binary.get("hits:1").as_deref(), Some("2"));
    seen(("get", "hits:1", "hit"), "hits", 1);
    assert!(text.execute("touch hits:1 1").starts_with("CLIENT_ERROR"));
    seen(("touch", "hits:1", "client_error"), "hits", 0);
    text.send(b"add lock:1 0 0 2\r\nme\r\n");
    assert_eq!(text.line(), "STORED");
    assert_eq!(seen(("add", "lock:1", "stored"), "lock", 2)["server"], server);
    assert_eq!(text.delete("lock:1"), "DELETED");
    assert_eq!(seen(("delete", "lock:1", "deleted"), "lock", 0)["server"], server);
    // They may be hot, too.
    for _ in 0..5_000 {
        assert_eq!(binary.get("hits:1").as_deref(), Some("2"));
    }
    assert_eq!(hot(&sidecar, "?rule=hits")[0]["key"], "hits:1");
}
