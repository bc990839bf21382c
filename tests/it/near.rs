//! Near values: a hot key costs its server one read per worker and window, and a change through the same sidecar, on any worker,
//! takes effect at once.
//!
//! `near` is long where a value must still be kept, and short where it must not be kept any more: no test measures time.

use std::time::Duration;

use crate::client::{Client, set_command};
use crate::gate::gated_fleet;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, sidecar_toml, until_stale, within,
};

const LONG: &str = "near = \"10s\"\nstale_for = \"60s\"\ncold_wait = \"0ms\"\ntags = [\"posts\"]";

fn toml(servers: &[Memcached], workers: usize, rule: &str) -> String {
    sidecar_toml(&addresses(servers), &[guarded("near", "n:*", rule)])
        .replace("workers = 2", &format!("workers = {workers}"))
}

fn world(workers: usize) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&toml(&servers, workers, LONG));
    (servers, kennel)
}

/// How many keys were read from the server.
fn reads(server: &Memcached) -> u64 {
    let mut server = direct(server);
    server.send(b"stats\r\n");
    let stats = server.until(b"END\r\n");
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let line = stats.lines().find_map(|line| line.strip_prefix("STAT cmd_get ")).expect("cmd_get");
    line.parse().expect("a number")
}

/// Stored through the sidecar, and fresh.
fn fill(client: &mut Client, key: &str, value: &[u8]) {
    eventually("the value is fresh", || {
        client.get(key);
        client.set(key, value, 0) == "STORED" && client.get(key).as_deref() == Some(value)
    });
}

#[test]
fn thousands_of_gets_of_a_hot_key_cost_its_server_one_read() {
    let (servers, kennel) = world(1);
    fill(&mut kennel.client(), "n:hot", b"v");
    kennel.client().store("n:other", b"w", 0);
    let before = reads(&servers[0]);
    let mut clients: Vec<Client> = (0..20).map(|_| kennel.client()).collect();
    for _ in 0..50 {
        // The first of them reads the value for all.
        clients.iter_mut().for_each(|client| client.send(b"get n:hot\r\ngets n:hot\r\nmg n:hot v f\r\n"));
        for client in &mut clients {
            assert_eq!(client.only_value("n:hot").as_deref(), Some(&b"v"[..]));
            let [item] = &client.items().expect("no error")[..] else { panic!("not one item") };
            assert_eq!((&item.value[..], item.cas.is_some()), (&b"v"[..], true));
            client.expect(b"VA 1 f0\r\nv\r\n");
        }
    }
    let cost = reads(&servers[0]) - before;
    assert!(cost <= 2, "3000 gets cost {cost} reads of the value and its tag");
    let metrics = kennel.metrics();
    let near = metrics.sum("kennel_near_hits_total", &["rule=\"near\""]);
    let hits = metrics.sum("kennel_requests_total", &["rule=\"near\"", "outcome=\"hit\""]);
    assert!(near >= 2999.0 && hits >= near, "{near} of {hits} hits were near");
    assert!(metrics.sum("kennel_near_bytes", &[]) > 0.0);
    // Requests for more than the value are sent to the server.
    let mut client = kennel.client();
    for command in ["mg n:hot t v", "mg n:hot h", "mg n:hot l", "mg n:hot R30 v", "gat 0 n:hot"] {
        let before = reads(&servers[0]);
        client.send(format!("{command}\r\nmn\r\n").as_bytes());
        client.until(b"MN\r\n");
        assert!(reads(&servers[0]) > before, "{command}");
    }
}

#[test]
fn without_near_every_get_reads_the_server() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&toml(&servers, 1, "cold_wait = \"0ms\""));
    let mut client = kennel.client();
    fill(&mut client, "n:hot", b"v");
    let before = reads(&servers[0]);
    (0..10).for_each(|_| assert!(client.get("n:hot").is_some()));
    assert_eq!(reads(&servers[0]) - before, 10);
    assert_eq!(kennel.metrics().sum("kennel_near_hits_total", &[]), 0.0);
}

/// Clients on every worker; each worker keeps the value.
fn warmed(kennel: &Kennel) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..12).map(|_| kennel.client()).collect();
    fill(&mut clients[0], "n:k", b"1");
    for client in &mut clients {
        assert_eq!(client.get("n:k").as_deref(), Some(&b"1"[..]));
    }
    clients
}

#[test]
fn a_change_through_the_same_sidecar_is_seen_at_once_on_every_worker() {
    let (_servers, kennel) = world(4);
    let after = |command: &str, reply: &str, value_after: Option<&str>| {
        for round in 0..8 {
            let mut clients = warmed(&kennel);
            let who = round % clients.len();
            let cas = clients[who].gets("n:k").expect("a value").1;
            assert_eq!(clients[who].execute(&command.replace("CAS", &cas.to_string())), reply, "{command}");
            for (at, client) in clients.iter_mut().enumerate() {
                let found = client.get("n:k");
                assert_eq!(
                    found.as_deref(),
                    value_after.map(str::as_bytes),
                    "{command}, as read by client {at}"
                );
                if value_after.is_none() {
                    // The client that rebuilds it receives a miss; the others may receive the stale value.
                    break;
                }
            }
            kennel.client().execute("delete n:k");
        }
    };
    after("set n:k 0 0 1\r\n2", "STORED", Some("2"));
    after("set n:k 0 0 1 noreply\r\n2\r\nget none", "END", Some("2"));
    after("replace n:k 0 0 1\r\n2", "STORED", Some("2"));
    after("cas n:k 0 0 1 CAS\r\n2", "STORED", Some("2"));
    after("append n:k 0 0 1\r\n2", "STORED", Some("12"));
    after("prepend n:k 0 0 1\r\n2", "STORED", Some("21"));
    after("incr n:k 4", "5", Some("5"));
    after("decr n:k 1", "0", Some("0"));
    after("ma n:k", "HD", Some("2"));
    after("ms n:k 1\r\n2", "HD", Some("2"));
    after("delete n:k", "DELETED", None);
    after("md n:k", "HD", None);
    after("touch n:k -1", "TOUCHED", None);
    after("mg n:k T-1", "HD", None);
    after("flush_all", "OK", None);
    after("delete @tag:posts", "DELETED", None);
}

#[test]
fn a_bump_of_a_tag_that_came_with_the_value_is_seen_at_once_on_every_worker() {
    let (_servers, kennel) = world(4);
    for _ in 0..8 {
        let mut clients: Vec<Client> = (0..12).map(|_| kennel.client()).collect();
        eventually("it is stored fresh", || {
            clients[0].get("n:k");
            clients[0].execute("ms n:k 1 Ptags=more\r\n1") == "HD" && clients[0].get("n:k").is_some()
        });
        for client in &mut clients {
            assert_eq!(client.get("n:k").as_deref(), Some(&b"1"[..]));
        }
        assert!(clients[3].execute("incr @tag:more 1").parse::<u64>().is_ok());
        assert_eq!(clients[7].get("n:k"), None);
        clients[3].delete("n:k");
    }
}

#[test]
fn a_cas_that_fails_because_the_value_was_old_is_followed_by_a_new_one() {
    let (servers, kennel) = world(1);
    let mut client = kennel.client();
    fill(&mut client, "n:k", b"1");
    let (value, old) = client.gets("n:k").expect("a value");
    assert_eq!(value, b"1");
    // A change through another sidecar.
    let other = Kennel::start(&toml(&servers, 1, LONG));
    other.client().store("n:k", b"2", 0);
    assert_eq!(client.gets("n:k"), Some((b"1".to_vec(), old)), "it is kept near");
    assert_eq!(client.execute(&format!("cas n:k 0 0 1 {old}\r\n3")), "EXISTS");
    let (value, new) = client.gets("n:k").expect("a value");
    assert_eq!(value, b"2");
    assert_eq!(client.execute(&format!("cas n:k 0 0 1 {new}\r\n3")), "STORED");
    assert_eq!(client.get("n:k").as_deref(), Some(&b"3"[..]));
}

#[test]
fn what_another_sidecar_changes_is_seen_within_near() {
    let servers = memcacheds(1);
    let short = LONG.replace("10s", "200ms");
    let [here, there] = [(); 2].map(|()| Kennel::start(&toml(&servers, 2, &short)));
    let mut readers: Vec<Client> = (0..8).map(|_| here.client()).collect();
    for command in ["set n:k 0 0 1\r\n2", "delete n:k", "delete @tag:posts", "flush_all"] {
        fill(&mut there.client(), "n:k", b"1");
        eventually("the first value is visible", || {
            readers.iter_mut().all(|reader| reader.get("n:k").as_deref() == Some(b"1"))
        });
        there.client().execute(command);
        eventually("the change is visible", || readers[0].get("n:k").as_deref() != Some(b"1"));
        for reader in &mut readers {
            eventually("others see it too", || {
                reader.get("n:k").as_deref() != Some(b"1") || command.contains("@tag")
            });
        }
        there.client().delete("n:k");
    }
}

#[test]
fn nothing_is_served_from_near_beyond_its_soft_expiry() {
    let (servers, kennel) = world(1);
    let mut client = kennel.client();
    fill(&mut client, "n:k", b"old");
    client.store("n:k", b"v", 2);
    let mut others: Vec<Client> = (0..4).map(|_| kennel.client()).collect();
    for other in &mut others {
        assert_eq!(other.get("n:k").as_deref(), Some(&b"v"[..]));
    }
    until_stale(&servers, "n:k", 60);
    // A busy server's clock skips: then two of its seconds are shorter than one.
    within(Duration::from_secs(2), "the first to read it is to rebuild it", || {
        others[0].get("n:k").is_none()
    });
}

#[test]
fn what_is_kept_has_a_bound_and_no_client_gets_the_value_of_another_key() {
    let servers = memcacheds(1);
    let toml = toml(&servers, 1, LONG) + "[near]\nmemory = \"1MiB\"\n";
    let kennel = Kennel::start(&toml);
    let value = |n: usize| format!("{n}:").repeat(4000).into_bytes();
    let mut client = kennel.client();
    fill(&mut client, "n:0", &value(0));
    for n in 0..300 {
        client.send(&set_command(&format!("n:{n}"), &value(n), 0));
        assert_eq!(client.line(), "STORED");
    }
    for step in [1, 7, 11, 13] {
        for n in (0..300).map(|n| n * step % 300) {
            let keys = [format!("n:{n}"), format!("n:{}", (n + 1) % 300), format!("n:{}", n / 2)];
            let items = client.get_many(&[&keys[0], &keys[1], &keys[2]]);
            for (key, item) in keys.iter().zip(&items) {
                assert_eq!(&item.key, key);
                assert!(item.value == value(key[2..].parse().expect("a number")), "{key}");
            }
            assert_eq!(items.len(), 3);
        }
        let metrics = kennel.metrics();
        let bytes = metrics.sum("kennel_near_bytes", &[]);
        assert!(bytes > 500_000.0 && bytes <= f64::from(1 << 20), "{bytes} are kept");
        assert!(metrics.sum("kennel_limit_reached_total", &["limit=\"near\""]) > 0.0);
    }
    assert!(kennel.metrics().sum("kennel_near_hits_total", &[]) >= 300.0);
}

#[test]
fn who_was_told_a_miss_asks_the_server_until_they_have_set_the_key() {
    let (_servers, kennel) = world(1);
    let [mut slow, mut quick] = [(); 2].map(|()| kennel.client());
    // Both receive a miss; the second fills first.
    assert_eq!((slow.get("n:k"), quick.get("n:k")), (None, None));
    slow.store("n:k", b"1", 0);
    assert_eq!(slow.get("n:k").as_deref(), Some(&b"1"[..]));
    // Its hit comes from the server and ends its miss: a later set does not belong to that miss.
    assert_eq!(quick.get("n:k").as_deref(), Some(&b"1"[..]));
    quick.store("n:k", b"2", 0);
    assert_eq!(slow.get("n:k").as_deref(), Some(&b"2"[..]), "it was not taken for the fill of an old miss");
}

#[test]
fn a_client_that_goes_away_while_others_wait_for_its_read_leaves_nobody_waiting() {
    let (_servers, gate, [kennel, _]) = gated_fleet(&[guarded("near", "n:*", LONG)]);
    fill(&mut kennel.client(), "n:k", b"1");
    // On either worker: some of them wait for the first.
    let mut clients: Vec<Client> = (0..6).map(|_| kennel.client()).collect();
    assert_eq!(kennel.client().execute("touch n:k 0"), "TOUCHED");
    gate.hold("mg n:k");
    let mut first = kennel.client();
    first.send(b"get n:k\r\n");
    gate.until_held();
    clients.iter_mut().for_each(|client| client.send(b"get n:k\r\n"));
    first.reset();
    gate.release();
    for client in &mut clients {
        assert_eq!(client.only_value("n:k").as_deref(), Some(&b"1"[..]));
    }
}

#[test]
fn what_was_read_while_a_change_was_on_its_way_is_not_served_once_it_is_acknowledged() {
    let rule = format!("{LONG}\non_tag = \"drop\"");
    let (_servers, gate, [kennel, _]) = gated_fleet(&[guarded("near", "n:*", &rule)]);
    let mut writer = kennel.client();
    let mut readers: Vec<Client> = (0..24).map(|_| kennel.client()).collect();
    let hits = || kennel.metrics().sum("kennel_requests_total", &["command=\"get\"", "outcome=\"hit\""]);
    for (command, held, value_after) in [
        ("set n:k 0 0 1\r\n2", "ms n:k", Some(&b"2"[..])),
        ("incr n:k 1", "ms n:k", Some(b"2")),
        ("delete n:k", "md n:k", None),
        ("delete @tag:posts", "ms @tag:posts", None),
    ] {
        fill(&mut writer, "n:k", b"1");
        for reader in &mut readers {
            // This also ends the misses that they received before.
            assert_eq!(reader.get("n:k").as_deref(), Some(&b"1"[..]));
        }
        assert_eq!(writer.execute("touch n:k 0"), "TOUCHED", "nothing is kept any more");
        gate.hold(held);
        writer.send(format!("{command}\r\n").as_bytes());
        gate.until_held();
        let before = hits();
        readers.iter_mut().for_each(|reader| reader.send(b"get n:k\r\n"));
        // Those on the other worker do not wait for it.
        eventually("somebody reads the old value", || hits() > before);
        gate.release();
        writer.line();
        for reader in &mut readers {
            reader.only_value("n:k");
            assert_eq!(reader.get("n:k").as_deref(), value_after, "{command}");
        }
    }
}
