//! Commands about a server rather than a key: each has a fixed reply, and none ends the connection.

use crate::client::Client;
use crate::world::{
    Kennel, addresses, direct, eventually, guarded, holder, memcacheds, raw, sidecar_toml, until_stale,
};

/// The command and its whole reply. docs/commands.md shows the same.
const REPLIES: &[(&str, &str)] = &[
    ("verbosity 1", "OK\r\n"),
    ("verbosity 1 noreply", ""),
    ("verbosity", "CLIENT_ERROR bad command line format\r\n"),
    ("verbosity x", "CLIENT_ERROR bad command line format\r\n"),
    ("cache_memlimit 64", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
    ("cache_memlimit 64 noreply", ""),
    ("cache_memlimit", "ERROR\r\n"),
    ("lru_crawler enable", "CLIENT_ERROR lru crawler disabled\r\n"),
    ("lru_crawler crawl all", "CLIENT_ERROR lru crawler disabled\r\n"),
    ("lru_crawler metadump all", "CLIENT_ERROR lru crawler disabled\r\n"),
    ("lru_crawler mgdump hash", "CLIENT_ERROR lru crawler disabled\r\n"),
    ("lru mode flat", "ERROR\r\n"),
    ("lru tune 10 25 0.1 2.0", "ERROR\r\n"),
    ("slabs reassign 1 2", "CLIENT_ERROR slab reassignment disabled\r\n"),
    ("slabs automove 1", "ERROR\r\n"),
    ("watch fetchers", "CLIENT_ERROR watch commands not allowed\r\n"),
    ("watch", "CLIENT_ERROR watch commands not allowed\r\n"),
    ("shutdown", "SERVER_ERROR: shutdown not enabled\r\n"),
    ("shutdown graceful", "SERVER_ERROR: shutdown not enabled\r\n"),
    ("extstore free_memchunks 1 1", "ERROR\r\n"),
    ("refresh_certs", "ERROR\r\n"),
    ("debugtime p", "ERROR\r\n"),
    ("misbehave", "ERROR\r\n"),
    ("stats conns", "END\r\n"),
    ("stats cachedump 1 0", "END\r\n"),
    ("stats cachedump 1", "CLIENT_ERROR bad command line\r\n"),
    ("stats cachedump x 0", "CLIENT_ERROR bad command line format\r\n"),
    ("stats detail on", "OK\r\n"),
    ("stats detail off", "OK\r\n"),
    ("stats detail dump", "END\r\n"),
    ("stats detail", "CLIENT_ERROR usage: stats detail on|off|dump\r\n"),
    ("stats extstore", "END\r\n"),
    ("stats bogus", "ERROR\r\n"),
    ("stats reset", "RESET\r\n"),
    ("stats reset noreply", "RESET\r\n"),
    ("flush_all", "OK\r\n"),
    ("flush_all 0", "OK\r\n"),
    ("flush_all -1", "OK\r\n"),
    ("flush_all noreply", ""),
    ("flush_all 0 noreply", ""),
    ("flush_all x", "CLIENT_ERROR invalid exptime argument\r\n"),
    ("flush_all x noreply", ""),
    ("flush_all 0 0 noreply", ""),
    ("flush_all 0 0", "OK\r\n"),
    ("me nothing", "EN\r\n"),
    ("mn", "MN\r\n"),
];

fn sidecar(servers: &[String], listen: &str) -> Kennel {
    let rule = guarded("hot", "hot:*", "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"0ms\"");
    let toml = sidecar_toml(servers, &[rule, raw("raw", "*")]);
    Kennel::start(&toml.replace("workers = 2", &format!("workers = 2\n{listen}")))
}

#[test]
fn every_administrative_command_has_the_answer_that_is_documented() {
    let servers = memcacheds(2);
    let kennel = sidecar(&addresses(&servers), "");
    let mut client = kennel.client();
    for (command, reply) in REPLIES {
        client.send(format!("{command}\r\nverbosity 0\r\n").as_bytes());
        let received = String::from_utf8(client.bytes(reply.len() + 4)).expect("ASCII");
        assert_eq!(received, format!("{reply}OK\r\n"), "{command}");
    }
    client.send(b"quit\r\n");
    assert_eq!(client.rest(), b"");
}

#[test]
fn the_page_of_commands_shows_these_replies() {
    let page = include_str!("../../docs/commands.md");
    for (command, reply) in
        REPLIES.iter().filter(|(_, reply)| !matches!(*reply, "" | "ERROR\r\n" | "OK\r\n" | "EN\r\n"))
    {
        let reply = reply.trim_end().replace('|', "\\|");
        assert!(page.contains(&format!("`{reply}`")), "docs/commands.md must show {reply} to {command}");
    }
}

#[test]
fn where_flush_all_is_refused_nothing_is_flushed_and_noreply_is_silent() {
    let servers = memcacheds(2);
    let kennel = sidecar(&addresses(&servers), "flush_all = \"refuse\"");
    let mut client = kennel.client();
    for i in 0..10 {
        client.store(&format!("k{i}"), b"v", 0);
    }
    for flush in ["flush_all", "flush_all 0", "flush_all 10"] {
        assert_eq!(client.execute(flush), "CLIENT_ERROR flush_all not allowed", "{flush}");
    }
    assert_eq!(client.execute("flush_all noreply\r\nflush_all 0 noreply\r\nverbosity 0"), "OK");
    assert!((0..10).all(|i| client.get(&format!("k{i}")).is_some()));
    client.send(b"stats settings\r\n");
    let settings = String::from_utf8(client.until(b"END\r\n")).expect("ASCII");
    assert!(settings.contains("STAT flush_enabled no\r\n"), "{settings}");
}

#[test]
fn a_flush_with_a_delay_empties_every_server_then_and_not_before() {
    let servers = memcacheds(3);
    let kennel = sidecar(&addresses(&servers), "");
    let mut client = kennel.client();
    let keys: Vec<String> = (0..30).map(|i| format!("k{i}")).collect();
    keys.iter().for_each(|key| client.store(key, b"v", 0));
    let left = |client: &mut Client| keys.iter().filter(|key| client.get(key).is_some()).count();
    assert_eq!(client.execute("flush_all 1000"), "OK");
    assert_eq!(left(&mut client), 30);
    assert_eq!(client.execute("flush_all 1 noreply\r\nverbosity 0"), "OK");
    eventually("the delay is over on every server", || left(&mut client) == 0);
    for server in &servers {
        client = direct(server);
        assert_eq!(left(&mut client), 0);
    }
}

#[test]
fn a_flush_is_not_acknowledged_unless_every_server_did_it() {
    let mut servers = memcacheds(3);
    let kennel = sidecar(&addresses(&servers), "");
    let mut client = kennel.client();
    assert_eq!(client.execute("flush_all"), "OK");
    servers[1].kill();
    for flush in ["flush_all", "flush_all 0", "flush_all 100", "flush_all -1"] {
        assert_eq!(client.execute(flush), "SERVER_ERROR server is down", "{flush}");
    }
    assert_eq!(client.execute("flush_all noreply\r\nflush_all 5 noreply\r\nverbosity 0"), "OK");
    servers[1].restart();
    eventually("it is back", || client.execute("flush_all") == "OK");
    servers[2].stop();
    assert_eq!(client.execute("flush_all"), "SERVER_ERROR server timed out");
    servers[2].cont();
}

#[test]
fn a_rebuild_that_began_before_a_flush_is_not_kept() {
    let servers = memcacheds(2);
    let kennel = sidecar(&addresses(&servers), "");
    let (mut winner, mut other) = (kennel.client(), kennel.client());
    // The first time, and over a stale value.
    assert_eq!(winner.get("hot:cold"), None);
    winner.store("hot:stale", b"old", 1);
    until_stale(&servers, "hot:stale", 30);
    assert_eq!(winner.get("hot:stale"), None);
    assert_eq!(other.get("hot:stale"), Some(b"old".to_vec()));
    assert_eq!(other.execute("flush_all"), "OK");
    for key in ["hot:cold", "hot:stale"] {
        winner.store(key, b"seen before the flush", 60);
        assert_eq!(other.get(key), None, "{key}");
        other.store(key, b"new", 60);
        assert_eq!(winner.get(key), Some(b"new".to_vec()), "{key}");
    }
}

#[test]
fn a_rebuild_that_spans_the_moment_of_a_delayed_flush_is_not_kept() {
    let servers = memcacheds(2);
    let kennel = sidecar(&addresses(&servers), "");
    let (mut winner, mut other) = (kennel.client(), kennel.client());
    assert_eq!(winner.get("hot:k"), None);
    let mut server = direct(&servers[holder(&servers, "hot:k")]);
    assert_eq!(other.execute("flush_all 1"), "OK");
    // Everything is removed, and what is stored now remains. For a second, memcached stores nothing.
    eventually("the moment is over", || {
        server.store("new", b"v", 0);
        server.ttl("hot:k").is_none() && server.get("new").is_some()
    });
    winner.store("hot:k", b"seen before the flush", 60);
    assert_eq!(other.get("hot:k"), None);
}
