//! Promise 7: failure degrades to a miss, never to a hang, a wrong value or a closed connection; and an invalidation that could
//! not be executed is never acknowledged.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::client::Client;
use crate::gate::{Gate, gated_fleet};
use crate::world::{
    Kennel, Memcached, addresses, eventually, guarded, holder, memcacheds, raw, sidecar_toml, timed, within,
};

/// connect_timeout + request_timeout of the test configuration, and the same again for a busy machine.
const AN_ANSWER: Duration = Duration::from_millis(1400);

/// How soon a returned server must be used again; half a second allows for a busy machine.
const BACK_IN_USE: Duration = Duration::from_millis(1500);

fn rules() -> [String; 2] {
    let hot = "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"100ms\"\ntags = [\"posts\"]";
    [guarded("hot", "hot:*", hot), raw("raw", "*")]
}

/// Three servers, a sidecar, and for each server a key of this prefix that it holds.
fn fleet(prefix: &str) -> (Vec<Memcached>, Kennel, [String; 3]) {
    let servers = memcacheds(3);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules()));
    let mut client = kennel.client();
    let mut keys = [const { String::new() }; 3];
    for n in 0..1000 {
        let key = format!("{prefix}{n}");
        client.store(&key, key.as_bytes(), 0);
        let at = holder(&servers, &key);
        keys[at] = key;
        if keys.iter().all(|k| !k.is_empty()) {
            return (servers, kennel, keys);
        }
    }
    panic!("1000 keys, and a server without one: {keys:?}");
}

fn value(client: &mut Client, key: &str) -> Option<String> {
    client.get(key).map(|v| String::from_utf8_lossy(&v).into_owned())
}

/// Checks everything promised about an unavailable server, on one connection that must stay open.
fn the_other_servers_do_not_notice(kennel: &Kennel, keys: &[String; 3]) {
    let [dead, alive, well] = keys;
    let mut client = kennel.client();
    for round in 0..5 {
        let (got, took) = timed(|| value(&mut client, dead));
        assert_eq!(got, None, "round {round}");
        assert!(took < AN_ANSWER, "round {round}: the miss took {took:?}");
        assert_eq!(value(&mut client, alive).as_ref(), Some(alive), "round {round}");
        let items = client.get_many(&[alive, dead, well]);
        let found: Vec<&String> = items.iter().map(|i| &i.key).collect();
        assert_eq!(found, [alive, well], "round {round}");
        let (reply, took) = timed(|| client.set(dead, b"x", 0));
        assert!(reply.starts_with("SERVER_ERROR"), "round {round}, set: {reply}");
        assert!(took < AN_ANSWER, "round {round}: the error took {took:?}");
        for command in [format!("delete {dead}"), format!("incr {dead} 1"), format!("touch {dead} 0")] {
            let reply = client.execute(&command);
            assert!(reply.starts_with("SERVER_ERROR"), "round {round}, {command}: {reply}");
        }
        client.send(
            format!(
                "set {dead} 0 0 1 noreply\r\nx\r\ndelete {dead} noreply\r\nset {dead} 0 0 9000000 noreply\r\n"
            )
            .as_bytes(),
        );
        client.send(&vec![b'x'; 9_000_000]);
        client.send(format!("\r\nget {well}\r\n").as_bytes());
        assert_eq!(client.only_value(well).as_deref(), Some(well.as_bytes()), "noreply stays silent");
        client.store(alive, alive.as_bytes(), 0);
    }
}

#[test]
fn a_dead_server_misses_and_is_used_again_within_a_second_of_its_return() {
    for prefix in ["raw:", "hot:"] {
        let (mut servers, kennel, keys) = fleet(prefix);
        let mut client = kennel.client();
        assert_eq!(value(&mut client, &keys[0]).as_ref(), Some(&keys[0]));
        servers[0].kill();
        // The tags' server may be the dead one: a test of its own covers what depends on it.
        if prefix == "raw:" {
            the_other_servers_do_not_notice(&kennel, &keys);
        }
        let reply = client.delete(&keys[0]);
        assert!(reply.starts_with("SERVER_ERROR"), "a delete that did not happen: {reply}");
        assert_eq!(value(&mut client, &keys[0]), None, "the connection is open, the key is missed");
        servers[0].restart();
        within(BACK_IN_USE, "the server is used again", || client.set(&keys[0], b"back", 0) == "STORED");
        assert_eq!(value(&mut client, &keys[0]).as_deref(), Some("back"));
    }
}

#[test]
fn a_stopped_server_misses_and_its_late_replies_reach_nobody() {
    let (servers, kennel, keys) = fleet("raw:");
    servers[0].stop();
    the_other_servers_do_not_notice(&kennel, &keys);
    servers[0].cont();
    let mut client = kennel.client();
    within(BACK_IN_USE, "the server is used again", || client.set(&keys[0], b"back", 0) == "STORED");
    for _ in 0..100 {
        assert_eq!(value(&mut client, &keys[0]).as_deref(), Some("back"));
        assert_eq!(value(&mut client, &keys[1]).as_ref(), Some(&keys[1]));
        assert_eq!(value(&mut client, "raw:nothing"), None);
    }
}

#[test]
fn each_request_to_a_stopped_server_gets_a_reply_within_request_timeout() {
    let (servers, kennel, keys) = fleet("raw:");
    let mut client = kennel.client();
    servers[0].stop();
    // One after another: the second is sent on a connection on which the first has timed out already.
    for nth in ["first", "second", "third"] {
        let (got, took) = timed(|| value(&mut client, &keys[0]));
        assert_eq!(got, None);
        assert!(took < Duration::from_millis(900), "the {nth} miss took {took:?}");
    }
}

#[test]
fn without_the_tags_server_nothing_is_acknowledged_and_nothing_hangs() {
    let (mut servers, kennel, keys) = fleet("hot:");
    let at = holder(&servers, "@tag:posts");
    servers[at].kill();
    let mut client = kennel.client();
    for command in ["delete @tag:posts", "incr @tag:posts 1"] {
        let (reply, took) = timed(|| client.execute(command));
        assert!(reply.starts_with("SERVER_ERROR"), "{command}: {reply}");
        assert!(took < AN_ANSWER, "{command} took {took:?}");
    }
    for key in &keys {
        let (got, took) = timed(|| value(&mut client, key));
        assert!(got.is_none() || got.as_ref() == Some(key), "{key}: {got:?}");
        assert!(took < AN_ANSWER, "{key} took {took:?}");
    }
    servers[at].restart();
    within(BACK_IN_USE, "bumps work again", || client.delete("@tag:posts") == "DELETED");
}

#[test]
fn with_on_error_error_a_get_on_a_dead_server_says_so() {
    let mut servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")])
        .replace("connect_timeout", "on_error = \"error\"\nconnect_timeout");
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    client.store("raw:k", b"v", 0);
    servers[0].kill();
    let reply = client.execute("get raw:k");
    assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
    servers[0].restart();
    eventually("the server is used again", || client.set("raw:k", b"v", 0) == "STORED");
    assert_eq!(client.get("raw:k").as_deref(), Some(&b"v"[..]), "the connection was never closed");
}

#[test]
fn a_server_that_sends_garbage_causes_misses_and_no_wrong_value() {
    let garbage: [&'static [u8]; 5] = [
        b"HELLO THERE\r\n",
        b"VALUE somebody-elses-key 0 5\r\nwrong\r\nEND\r\n",
        b"VALUE raw:x 0 99999999999999999999\r\n",
        b"\x00\x01\x02\xff\xfe",
        b"VA 5\r\nwrong\r\nHD\r\nEN\r\nEND\r\nSTORED\r\nSTORED\r\n",
    ];
    for answer in garbage {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let liar = listener.local_addr().expect("a bound address").to_string();
        // Ends with the test's process: it blocks in accept, owns nothing, and its port is not shared.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let (mut reader, mut writer) = (&stream, &stream);
                    let mut buffer = [0; 4096];
                    while matches!(reader.read(&mut buffer), Ok(n) if n > 0)
                        && writer.write_all(answer).is_ok()
                    {}
                });
            }
        });
        let servers = memcacheds(1);
        let kennel = Kennel::start(&sidecar_toml(&[liar, servers[0].address()], &rules()));
        let mut client = kennel.client();
        let (mut served, mut missed) = (0, 0);
        for n in 0..24 {
            let key = format!("{}{n}", ["raw:", "plain:"][n % 2]);
            let direct = crate::world::direct(&servers[0]).set(&key, key.as_bytes(), 0);
            assert_eq!(direct, "STORED");
            let (got, took) = timed(|| value(&mut client, &key));
            assert!(took < AN_ANSWER, "{key} took {took:?}");
            match got {
                None => missed += 1,
                Some(v) => {
                    assert_eq!(v, key, "a wrong value, from {:?}", answer.escape_ascii().to_string());
                    served += 1;
                }
            }
        }
        assert!(
            served > 0 && missed > 0,
            "{served} served, {missed} missed: one of both servers had no part in it"
        );
    }
}

#[test]
fn a_guarded_key_of_a_dead_server_is_missed_and_nothing_written_to_it_is_acknowledged() {
    let (mut servers, kennel, keys) = fleet("hot:");
    let tags = holder(&servers, "@tag:posts");
    // A key whose server is not the tags' server.
    let at = (tags + 1) % 3;
    let (key, mut client, mut winner) = (&keys[at], kennel.client(), kennel.client());
    let cold = (0..1000).map(|n| format!("hot:cold{n}")).find(|cold| {
        assert_eq!(winner.get(cold), None);
        crate::world::direct(&servers[at]).ttl(cold).is_some()
    });
    let cold = cold.expect("one in three keys is on this server");
    servers[at].kill();
    eventually("the key is missed", || value(&mut client, key).is_none());
    let reply = winner.set(&cold, b"x", 60);
    assert!(reply.starts_with("SERVER_ERROR"), "a fill: {reply}");
    let mut other = kennel.client();
    for command in [
        format!("set {key} 0 0 1\r\nx"),
        format!("add {key} 0 0 1\r\nx"),
        format!("replace {key} 0 0 1\r\nx"),
        format!("append {key} 0 0 1\r\nx"),
        format!("prepend {key} 0 0 1\r\nx"),
        format!("cas {key} 0 0 1 1\r\nx"),
        format!("incr {key} 1"),
        format!("touch {key} 60"),
        format!("delete {key}"),
        "flush_all".to_owned(),
    ] {
        let (reply, took) = timed(|| other.execute(&command));
        assert!(reply.starts_with("SERVER_ERROR"), "{command}: {reply}");
        assert!(took < AN_ANSWER, "{command} took {took:?}");
    }
    other.send(format!("set {key} 0 0 1 noreply\r\nx\r\nincr {key} 1 noreply\r\n").as_bytes());
    other.send(format!("delete {key} noreply\r\nflush_all noreply\r\nversion\r\n").as_bytes());
    let line = other.line();
    assert!(line.starts_with("VERSION"), "noreply stays silent: {line}");
}

#[test]
fn without_its_tags_server_a_value_cannot_be_proven_fresh_and_is_not_served_where_only_fresh_ones_are() {
    let mut servers = memcacheds(3);
    let rule = "stale_for = \"30s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]\non_tag = \"drop\"";
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]));
    let mut client = kennel.client();
    client.store("hot:first", b"v", 0);
    let tags = holder(&servers, "@tag:posts");
    let key = (0..1000).map(|n| format!("hot:{n}")).find(|key| {
        client.store(key, b"v", 0);
        holder(&servers, key) != tags
    });
    let key = key.expect("two in three keys are on another server");
    assert_eq!(value(&mut client, &key).as_deref(), Some("v"));
    servers[tags].kill();
    eventually("the key is missed", || client.get(&key).is_none());
    for _ in 0..20 {
        assert_eq!(client.get(&key), None);
    }
    let reply = client.set(&key, b"new", 60);
    let unread = "SERVER_ERROR not stored: a tag was unread when this key was missed";
    assert_eq!(reply, unread, "it cannot be sealed");
}

#[test]
fn a_server_that_has_gone_silent_for_good_is_connected_to_anew() {
    let servers = memcacheds(1);
    let gate = Gate::start(servers[0].address);
    let kennel = Kennel::start(&sidecar_toml(&[gate.address()], &rules()));
    let mut client = kennel.client();
    client.store("raw:k", b"v", 0);
    gate.deafen();
    let (got, took) = timed(|| value(&mut client, "raw:k"));
    assert_eq!(got, None);
    assert!(took < AN_ANSWER, "the miss took {took:?}");
    // Four request timeouts without a reply, and then as after any failure.
    within(Duration::from_secs(4), "the server is used again", || value(&mut client, "raw:k").is_some());
}

#[test]
fn a_server_that_was_dead_for_long_is_used_again_as_soon() {
    let mut servers = memcacheds(1);
    // One worker, so that all connection attempts share one backoff.
    let toml = sidecar_toml(&addresses(&servers), &rules()).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&toml);
    let mut client = kennel.client();
    client.store("raw:k", b"v", 0);
    servers[0].kill();
    // Doubling from 10 ms, the pause between two attempts would be a second or more by now.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(value(&mut client, "raw:k"), None);
    let listener = TcpListener::bind(servers[0].address).expect("the dead server's port");
    listener.set_nonblocking(true).expect("a listener that does not block");
    let attempt = || within(Duration::from_secs(10), "an attempt to connect", || listener.accept().is_ok());
    attempt();
    let pause = attempt();
    assert!(pause < Duration::from_secs(1), "{pause:?} between two attempts to connect");
    drop(listener);
    servers[0].restart();
    within(BACK_IN_USE, "the server is used again", || client.set("raw:k", b"back", 0) == "STORED");
}

#[test]
fn a_delete_that_could_not_mark_the_old_value_as_stale_is_not_acknowledged() {
    let rule = "on_delete = \"stale\"\nstale_for = \"30s\"\ncold_wait = \"0ms\"";
    let (mut servers, gate, sidecars) = gated_fleet(&[guarded("hot", "hot:*", rule)]);
    let mut client = sidecars[0].client();
    client.store("hot:k", b"v", 60);
    // Between the read and the mark.
    gate.hold("md hot:k I");
    client.send(b"delete hot:k\r\n");
    gate.until_held();
    servers[0].kill();
    gate.release();
    let reply = client.line();
    assert!(reply.starts_with("SERVER_ERROR"), "the mark was lost: {reply}");
    let mut client = sidecars[1].client();
    let reply = client.delete("hot:k");
    assert!(reply.starts_with("SERVER_ERROR"), "the server is dead: {reply}");
    assert_eq!(client.get("hot:k"), None);
}

#[test]
fn a_set_that_ends_no_rebuild_is_not_acknowledged_by_a_dead_server() {
    let mut servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", "")]));
    let mut client = kennel.client();
    client.store("hot:k", b"v", 60);
    servers[0].kill();
    // This client has received no miss.
    let reply = client.set("hot:k", b"new", 60);
    assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
}

#[test]
fn a_flush_that_a_server_refuses_is_not_acknowledged() {
    let servers = [Memcached::start(&[]), Memcached::start(&["-F"])];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("raw", "*")]));
    let mut client = kennel.client();
    let reply = client.execute("flush_all");
    assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
    assert_eq!(client.execute("flush_all noreply\r\nverbosity 1"), "OK", "and noreply says nothing");
}
