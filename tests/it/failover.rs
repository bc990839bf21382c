//! A server goes away, and returns: promises 9 to 11, with real servers.

use std::time::Duration;

use crate::client::Client;
use crate::gate::Gate;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, raw, sidecar_toml,
    version_of, within,
};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(60);

/// Shorter than the defaults, so that tests end sooner.
const SHORT: &str = "window = \"1s\"\nfail_after = \"1s\"\nrecover_after = \"2s\"\n";

/// A configuration with two rules: guarded `k…` with the tag "t", and raw keys. `keys` are further keys of the pool.
fn toml(servers: &[String], keys: &str) -> String {
    let rules = [guarded("k", "k*", "tags = [\"t\"]\ncold_wait = \"0ms\""), raw("rest", "*")];
    sidecar_toml(servers, &rules).replace("[pools.main]\n", &format!("[pools.main]\n{keys}"))
}

/// Three servers and two sidecars.
fn fleet(keys: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let sidecars = [(); 2].map(|()| Kennel::start(&toml(&addresses(&servers), keys)));
    (servers, sidecars)
}

/// Three servers and two sidecars, the first of which connects through the gates. The names place the keys: `s0` to `s2`.
fn gated_fleet(change: impl Fn(String) -> String) -> (Vec<Memcached>, Vec<Gate>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let gates: Vec<Gate> = servers.iter().map(|server| Gate::start(server.address)).collect();
    let start = |addresses: Vec<String>| {
        let named = (0..3).map(|n| format!("{{ address = {:?}, name = \"s{n}\" }}", addresses[n]));
        let list = format!("servers = [{}]", named.collect::<Vec<_>>().join(", "));
        let toml = toml(&addresses, SHORT);
        Kennel::start(&change(toml.replace(&format!("servers = {addresses:?}"), &list)))
    };
    let sidecars = [start(gates.iter().map(Gate::address).collect()), start(addresses(&servers))];
    (servers, gates, sidecars)
}

/// Stores the value under many keys, each read first as a client does. Returns those that the server of the first one holds.
fn keys_of_one_server(servers: &[Memcached], client: &mut Client, prefix: &str) -> (usize, Vec<String>) {
    let keys: Vec<String> = (0..24).map(|n| format!("{prefix}{n}")).collect();
    for key in &keys {
        assert_eq!(client.get(key), None);
        client.store(key, b"old", 600);
    }
    let server = holder(servers, &keys[0]);
    let here = |key: &&String| direct(&servers[server]).ttl(key).is_some();
    let keys: Vec<String> = keys.iter().filter(here).cloned().collect();
    assert!(keys.len() >= 3, "{keys:?}");
    (server, keys)
}

/// How often this sidecar has seen keys move.
fn moves(sidecar: &Kennel, to: &str) -> f64 {
    sidecar.metrics().sum("kennel_failover_changes_total", &[&format!("to={to:?}")])
}

/// How many servers' keys are on their standby servers.
fn away(sidecar: &Kennel) -> f64 {
    sidecar.metrics().sum("kennel_failover_place", &[])
}

/// Whether a valid view of every server is known.
fn knows_all(sidecar: &Kennel) -> bool {
    sidecar.metrics().sum("kennel_failover_view_valid", &[]) == 3.0
}

/// Waits until a value that is stored through one sidecar is hit through the other. Returns how long that took.
fn until_hit(sidecars: &[Kennel; 2], key: &str, value: &[u8]) -> Duration {
    let [mut writer, mut reader] = [sidecars[0].client(), sidecars[1].client()];
    within(LONG, "a value is stored and hit", || {
        writer.set(key, value, 600) == "STORED" && reader.get(key).as_deref() == Some(value)
    })
}

fn until_home(sidecars: &[Kennel]) {
    within(LONG, "the keys are on their own server again", || {
        sidecars.iter().all(|sidecar| away(sidecar) == 0.0 && knows_all(sidecar))
    });
}

#[test]
fn after_a_kill_values_are_stored_and_hit_again_and_the_keys_return_to_an_empty_server() {
    let (mut servers, sidecars) = fleet("");
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    servers[server].kill();
    let took = until_hit(&sidecars, &keys[0], b"new");
    println!("from the kill to a hit: {took:?}");
    assert_eq!([away(&sidecars[0]), away(&sidecars[1])], [1.0, 1.0]);
    for (client, key) in sidecars.iter().flat_map(|s| keys[1..].iter().map(|key| (s.client(), key.clone()))) {
        let mut client = client;
        // What the dead server held is lost, and nothing else answers for it.
        assert_ne!(client.get(&key).as_deref(), Some(&b"old"[..]));
        client.store(&key, b"newer", 600);
        assert_eq!(client.get(&key).as_deref(), Some(&b"newer"[..]));
    }
    servers[server].restart();
    until_home(&sidecars);
    let took = until_hit(&sidecars, &keys[0], b"newest");
    println!("after the return: {took:?}");
    assert_eq!(holder(&servers[server..=server], &keys[0]), 0);
    assert_eq!([moves(&sidecars[0], "standby"), moves(&sidecars[0], "own")], [1.0, 1.0]);
    let log = sidecars[0].log();
    for line in ["failed over", "failed back"] {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
}

#[test]
fn after_a_hang_values_are_stored_and_hit_and_what_was_invalidated_meanwhile_is_not_fresh_on_return() {
    let (servers, sidecars) = fleet("");
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    servers[server].stop();
    let took = until_hit(&sidecars, &keys[0], b"new");
    println!("from the hang to a hit: {took:?}");
    let mut client = sidecars[1].client();
    // The value is not here, but an invalidation is carried out nevertheless.
    assert_eq!(client.delete(&keys[0]), "DELETED");
    assert_eq!(client.delete(&keys[1]), "NOT_FOUND");
    assert_eq!(client.delete("@tag:t"), "DELETED");
    servers[server].cont();
    until_home(&sidecars);
    for key in &keys {
        let [mut first, mut second] = [sidecars[0].client(), sidecars[1].client()];
        // The old value has the fence of before: one client rebuilds it.
        assert_eq!(first.get(key), None, "{key}");
        first.store(key, b"built", 600);
        assert_eq!(second.get(key).as_deref(), Some(&b"built"[..]), "{key}");
    }
}

#[test]
fn a_change_that_is_refused_while_the_server_goes_away_is_never_acknowledged() {
    let (servers, sidecars) = fleet(SHORT);
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    servers[server].stop();
    let mut client = sidecars[0].client();
    let mut refused = 0;
    within(LONG, "deletes are acknowledged again", || {
        let reply = client.delete(&keys[0]);
        refused += u32::from(reply.starts_with("SERVER_ERROR"));
        assert!(
            ["DELETED", "NOT_FOUND"].contains(&&reply[..]) || reply.starts_with("SERVER_ERROR"),
            "{reply}"
        );
        !reply.starts_with("SERVER_ERROR")
    });
    assert!(refused > 0);
    assert_eq!(away(&sidecars[0]), 1.0, "only the new place can have acknowledged it");
    servers[server].cont();
    until_home(&sidecars);
    assert_eq!(sidecars[1].client().get(&keys[0]), None);
}

/// Held commands do not time out.
fn patient(toml: String) -> String {
    toml.replace("request_timeout = \"500ms\"", "request_timeout = \"20s\"")
        .replace("workers = 2", "workers = 1")
}

#[test]
fn a_delete_that_is_carried_out_where_the_key_is_no_longer_is_not_acknowledged() {
    let (mut servers, gates, sidecars) = gated_fleet(patient);
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[1].client(), "k");
    servers[server].kill();
    let key = &keys[0];
    until_hit(&sidecars, key, b"away");
    let standby = (0..3).find(|n| *n != server && direct(&servers[*n]).ttl(key).is_some());
    let gate = &gates[standby.expect("a server has it")];
    gate.hold("md ");
    let mut client = sidecars[0].client();
    client.send(format!("delete {key}\r\n").as_bytes());
    gate.until_held();
    servers[server].restart();
    until_home(&sidecars);
    let mut other = sidecars[1].client();
    assert_eq!(other.get(key), None);
    other.store(key, b"home", 600);
    gate.release();
    let reply = client.line();
    assert!(reply.starts_with("SERVER_ERROR"), "acknowledged where nobody reads it: {reply}");
    assert_eq!(other.get(key).as_deref(), Some(&b"home"[..]));
    assert_eq!(client.delete(key), "DELETED");
    assert_eq!(other.get(key), None);
}

#[test]
fn a_copy_of_a_tag_is_not_restored_from_one_whose_place_has_ended() {
    let (mut servers, gates, sidecars) = gated_fleet(|toml| patient(toml) + "\n[tags]\nreplicas = 2\n");
    let mut other = sidecars[1].client();
    keys_of_one_server(&servers, &mut other, "k");
    let version = |servers: &[Memcached], server: usize| {
        let item = direct(&servers[server]).get("@tag:t").filter(|item| !item.is_empty());
        item.map(|item| version_of(&item))
    };
    let both: Vec<usize> = (0..3).filter(|n| version(&servers, *n).is_some()).collect();
    let [first, second] = both[..] else { panic!("{both:?}") };
    let third = 3 - first - second;
    let old = version(&servers, first).expect("a version");
    // A guarded key on the server that has no copy, and a raw one on that of the first copy.
    let [key, raw] = [("kx", third), ("r", first)].map(|(prefix, server)| {
        let here = |key: &String| {
            other.get(key);
            other.store(key, b"old", 600);
            direct(&servers[server]).ttl(key).is_some()
        };
        (0..99).map(|n| format!("{prefix}{n}")).find(here).expect("a key of each server")
    });
    assert_eq!(direct(&servers[second]).delete("@tag:t"), "DELETED");
    gates[second].hold("mg @tag:t");
    let mut reader = sidecars[0].client();
    reader.send(format!("get {key}\r\n").as_bytes());
    gates[second].until_held();
    // The first copy's reply has come, because a later one of the same connection has.
    assert_eq!(sidecars[0].client().get(&raw).as_deref(), Some(&b"old"[..]));
    servers[first].kill();
    within(LONG, "the keys have moved", || sidecars.iter().all(|sidecar| away(sidecar) == 1.0));
    gates[second].release();
    reader.only_value(&key);
    assert_ne!(version(&servers, second), Some(old), "this version's place has ended");
    // The next reader draws another one.
    other.get(&key);
    let new = version(&servers, second).expect("a version");
    assert!(new > old, "{new} after {old}");
}

#[test]
fn without_failover_the_keys_of_a_dead_server_stay_there() {
    let (mut servers, sidecars) = fleet("failover = false\n");
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    servers[server].kill();
    let mut client = sidecars[0].client();
    eventually("the server is known to be down", || {
        client.set(&keys[0], b"x", 0) == "SERVER_ERROR server is down"
    });
    assert_eq!(client.get(&keys[0]), None);
    assert!(sidecars[0].metrics().0.keys().all(|series| !series.starts_with("kennel_failover")));
    servers[server].restart();
    until_hit(&sidecars, &keys[0], b"new");
}

#[test]
fn a_sidecar_that_alone_cannot_reach_a_server_moves_nothing_and_says_so() {
    let (servers, gates, sidecars) = gated_fleet(|toml| toml);
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[1].client(), "k");
    assert_eq!(sidecars[0].client().get(&keys[0]).as_deref(), Some(&b"old"[..]), "both use the same records");
    gates[server].hold("");
    within(LONG, "it notices that it is alone", || {
        sidecars[0].metrics().sum("kennel_failover_unreachable_here", &[]) == 1.0
    });
    let ready = sidecars[0].http("/readyz");
    let note = "server s0 of pool main is unreachable from here, but not from other sidecars";
    assert!(
        ready.contains(&note.replace("s0", &format!("s{server}"))) && ready.contains("200 OK"),
        "{ready}"
    );
    // It may be carried out late, once the connection is released.
    assert!(sidecars[0].client().delete(&keys[1]).starts_with("SERVER_ERROR"));
    // The others go on.
    let mut other = sidecars[1].client();
    assert_eq!(other.get(&keys[0]).as_deref(), Some(&b"old"[..]));
    other.store(&keys[0], b"new", 600);
    let mut client = sidecars[0].client();
    for key in keys.iter().cycle().take(12) {
        assert_eq!(client.get(key), None);
        assert_eq!(moves(&sidecars[1], "standby"), 0.0);
    }
    assert_eq!([away(&sidecars[1]), moves(&sidecars[1], "standby")], [0.0, 0.0]);
    gates[server].release();
    within(LONG, "it serves the keys again", || client.get(&keys[0]).as_deref() == Some(&b"new"[..]));
    within(LONG, "it is not alone any more", || !sidecars[0].http("/readyz").contains("unreachable"));
    assert_eq!([away(&sidecars[0]), moves(&sidecars[0], "standby")], [0.0, 0.0]);
}

#[test]
fn raw_keys_follow_to_their_standby_servers_and_end_there() {
    let (mut servers, sidecars) = fleet(&format!("on_error = \"standby\"\nstandby_ttl = \"100s\"\n{SHORT}"));
    let mut client = sidecars[0].client();
    let (server, keys) = keys_of_one_server(&servers, &mut client, "r");
    servers[server].kill();
    until_hit(&sidecars, &keys[0], b"new");
    let others: Vec<usize> = (0..3).filter(|n| *n != server).collect();
    // The TTLs of the item on the servers that are left.
    let ttls =
        |key: &str| -> Vec<i64> { others.iter().filter_map(|n| direct(&servers[*n]).ttl(key)).collect() };
    let is_limited = |ttls: Vec<i64>| matches!(ttls[..], [1..=100]);
    let later = 2_000_000_000; // Unix time, in 2033
    for exptime in [0, 100_000, later] {
        assert_eq!(client.set(&keys[1], b"v", exptime), "STORED");
        assert!(is_limited(ttls(&keys[1])), "{exptime}: {:?}", ttls(&keys[1]));
    }
    assert_eq!(client.set(&keys[1], b"v", 20), "STORED");
    assert!(matches!(ttls(&keys[1])[..], [1..=20]), "{:?}", ttls(&keys[1]));
    assert_eq!(client.execute(&format!("touch {} 0", keys[1])), "TOUCHED");
    assert!(is_limited(ttls(&keys[1])));
    client.send(format!("ms {} 1\r\nv\r\n", keys[2]).as_bytes());
    assert_eq!(client.line(), "HD");
    assert!(is_limited(ttls(&keys[2])), "{:?}", ttls(&keys[2]));
    assert_eq!(client.execute(&format!("mg {} T0", keys[2])), "HD");
    assert!(is_limited(ttls(&keys[2])));
    client.send(format!("gat 0 {} {}\r\n", keys[1], keys[2]).as_bytes());
    assert_eq!(client.items().map(|items| items.len()), Ok(2));
    assert!(is_limited(ttls(&keys[1])) && is_limited(ttls(&keys[2])));
    let many: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(sidecars[1].client().get_many(&many).len(), 3);
    servers[server].restart();
    until_home(&sidecars);
    // What is written now is on the server itself, with the exptime that the client sent.
    client.store(&keys[1], b"home", 0);
    assert_eq!(direct(&servers[server]).ttl(&keys[1]), Some(-1));
}

#[test]
fn a_sidecar_that_waits_for_its_first_views_ends_at_once_when_it_is_told_to() {
    // Nobody listens there, and the bounded time is long.
    let servers: Vec<String> = (1..=3).map(|n| format!("127.0.0.1:{n}")).collect();
    let long = "window = \"60s\"\nfail_after = \"60s\"\nrecover_after = \"60s\"\n";
    let sidecar = Kennel::start_unready(&toml(&servers, long));
    assert!(sidecar.http("/readyz").ends_with("starting"));
    assert!(sidecar.terminate().0.success());
}

#[test]
fn a_sidecar_beside_a_running_fleet_knows_where_the_keys_are_although_a_server_is_away() {
    let (mut servers, sidecars) = fleet(SHORT);
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    servers[server].kill();
    until_hit(&sidecars, &keys[0], b"new");
    let third = Kennel::start(&toml(&addresses(&servers), SHORT));
    assert_eq!(third.client().get(&keys[0]).as_deref(), Some(&b"new"[..]));
    assert_eq!([away(&third), moves(&third, "standby")], [1.0, 0.0]);
}

#[test]
fn a_win_from_before_a_move_fills_nothing_after_the_server_has_returned_with_its_stub() {
    let servers = memcacheds(3);
    let rule = guarded("k", "k*", "lock_ttl = \"60s\"\nmax_rebuild = \"120s\"\ncold_wait = \"0ms\"");
    let toml = sidecar_toml(&addresses(&servers), &[rule])
        .replace("[pools.main]\n", &format!("[pools.main]\n{SHORT}"));
    let sidecars = [(); 2].map(|()| Kennel::start(&toml));
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    let here = |key: &str| direct(&servers[server]).ttl(key).is_some();
    let mut client = sidecars[0].client();
    // The number after ` c` of a win.
    let mut win = |key: &str| -> u64 {
        let won = client.execute(&format!("mg {key} c N30"));
        let cas = won.split(" c").nth(1).and_then(|cas| cas.split(' ').next());
        cas.and_then(|cas| cas.parse().ok()).unwrap_or_else(|| panic!("no CAS of a win: {won}"))
    };
    let wins: Vec<(String, u64)> =
        (0..40).map(|n| format!("kw{n}")).map(|key| (key.clone(), win(&key))).collect();
    let wins: Vec<(String, u64)> = wins.into_iter().filter(|(key, _)| here(key)).collect();
    let [(deleted, cas), (current, same), ..] = &wins[..] else { panic!("too few keys: {wins:?}") };
    let fill = |key: &str, cas: u64, value: &str| {
        let mut client = sidecars[1].client();
        client.send(format!("ms {key} 3 C{cas}\r\n{value}\r\n").as_bytes());
        client.line()
    };
    // Under the same fence, any sidecar stores it as fresh.
    assert_eq!(fill(current, *same, "one"), "HD");
    assert_eq!(sidecars[0].client().get(current).as_deref(), Some(&b"one"[..]));
    servers[server].stop();
    until_hit(&sidecars, &keys[0], b"new");
    assert_eq!(sidecars[1].client().delete(deleted), "NOT_FOUND", "it is acknowledged on the standby server");
    servers[server].cont();
    until_home(&sidecars);
    assert!(here(deleted), "the stub of the win is still there");
    let reply = fill(deleted, *cas, "old");
    assert!(["NF", "EX"].contains(&&reply[..]), "{reply}");
    assert_eq!(sidecars[0].client().get(deleted), None, "built before the delete");
}

#[test]
fn a_tag_shows_no_fence_and_its_version_wherever_it_is() {
    let (mut servers, sidecars) = fleet(SHORT);
    let (server, keys) = keys_of_one_server(&servers, &mut sidecars[0].client(), "k");
    let mut client = sidecars[0].client();
    let shown = |client: &mut Client, tag: &str| {
        client.send(format!("mg @tag:{tag} v s q\r\nget @tag:{tag}\r\nmn\r\n").as_bytes());
        client.until(b"MN\r\n")
    };
    // Of these tags, some are on the server that goes away.
    let tags: Vec<String> = (0..16).map(|n| format!("n{n}")).collect();
    let bump = |client: &mut Client, tag: &str| -> String { client.execute(&format!("incr @tag:{tag} 1")) };
    let expected = |tag: &str, version: &str| {
        let length = version.len();
        format!(
            "VA {length} s{length}\r\n{version}\r\nVALUE @tag:{tag} 0 {length}\r\n{version}\r\nEND\r\nMN\r\n"
        )
    };
    for tag in &tags {
        let version = bump(&mut client, tag);
        assert_eq!(String::from_utf8_lossy(&shown(&mut client, tag)), expected(tag, &version));
    }
    servers[server].kill();
    until_hit(&sidecars, &keys[0], b"new");
    let mut lost = 0;
    for tag in &tags {
        // What the dead server had is lost.
        lost += u32::from(shown(&mut client, tag) == b"END\r\nMN\r\n");
        let version = bump(&mut client, tag);
        assert_eq!(String::from_utf8_lossy(&shown(&mut client, tag)), expected(tag, &version));
    }
    assert!(lost > 0);
}

#[test]
fn while_failover_is_turned_on_sidecar_by_sidecar_no_invalidation_is_lost() {
    let servers = memcacheds(3);
    let start = |keys: &str| Kennel::start(&toml(&addresses(&servers), keys));
    let mut sidecars = [start("failover = false\n"), start("failover = false\n")];
    for step in 0..3 {
        if step > 0 {
            sidecars[step - 1] = start("");
        }
        let mixed = step == 1;
        for (writer, reader) in [(0, 1), (1, 0)] {
            for n in 0..12 {
                let key = format!("k{step}:{writer}:{n}");
                let [mut writer, mut reader] = [sidecars[writer].client(), sidecars[reader].client()];
                assert_eq!(writer.get(&key), None);
                writer.store(&key, b"first", 600);
                // To a sidecar of the other kind it is stale: it builds the value again.
                let found = reader.get(&key);
                assert_eq!(found.is_none(), mixed, "{key}: {found:?}");
                if mixed {
                    reader.store(&key, b"first", 600);
                    assert_eq!(reader.get(&key).as_deref(), Some(&b"first"[..]));
                }
                // To its sidecar, the other one's value is stale, and a delete finds nothing that is fresh.
                let expected = if mixed && n % 2 == 0 { "NOT_FOUND" } else { "DELETED" };
                let invalidated = if n % 2 == 0 { writer.delete(&key) } else { writer.delete("@tag:t") };
                assert_eq!(invalidated, expected);
                assert_eq!(reader.get(&key), None, "{key} was invalidated by the other sidecar");
                reader.store(&key, b"second", 600);
            }
        }
    }
}

/// How many gets the servers have answered.
fn gets(servers: &[Memcached]) -> u64 {
    let of = |server| {
        let mut server = direct(server);
        server.send(b"stats\r\n");
        let stats = String::from_utf8(server.until(b"END\r\n")).expect("text");
        let hits = stats.lines().find_map(|line| line.strip_prefix("STAT get_hits "));
        hits.expect("a number of hits").parse::<u64>().expect("a number")
    };
    servers.iter().map(of).sum()
}

#[test]
fn cached_versions_of_tags_are_not_read_from_the_servers_again() {
    let servers = memcacheds(3);
    let rule = guarded("k", "k*", "tags = [\"t\", \"u\"]\ncold_wait = \"0ms\"");
    let toml = sidecar_toml(&addresses(&servers), &[rule]).replace("workers = 2", "workers = 1");
    let sidecar = Kennel::start(&(toml + "[tags]\ncache = \"60s\"\n"));
    eventually("a view of every server is known", || knows_all(&sidecar));
    let mut client = sidecar.client();
    assert_eq!(client.get("k"), None);
    client.store("k", b"v", 600);
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
    let before = gets(&servers);
    for _ in 0..2_000 {
        assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
    }
    // One read of the key each; the sidecar's monitor reads its records beside them.
    let reads = gets(&servers) - before;
    assert!((2_000..3_000).contains(&reads), "{reads} reads for 2,000 gets");
}

#[test]
fn after_a_flush_all_every_guarded_key_can_be_written_at_once_and_nothing_from_before_is_served() {
    // The default window of 2 s: a place that were lost would be missed for longer than this test takes.
    let (_servers, sidecars) = fleet("");
    within(LONG, "a view of every server is known", || sidecars.iter().all(knows_all));
    let mut clients: Vec<Client> = sidecars.iter().map(Kennel::client).collect();
    for round in 0..6 {
        let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
        for key in &keys {
            clients[round % 2].store(key, b"before", 600);
        }
        let flushing = (round / 2) % 2;
        assert_eq!(clients[flushing].execute("flush_all"), "OK");
        for (n, key) in keys.iter().enumerate() {
            let client = &mut clients[n % 2];
            assert_eq!(client.get(key), None, "{key} in round {round}");
            client.store(key, b"after", 600);
            assert_eq!(client.get(key).as_deref(), Some(&b"after"[..]), "{key} in round {round}");
        }
        // What is sent behind a flush is not flushed.
        clients[flushing]
            .send(b"flush_all noreply\r\nset raw 0 0 1\r\nv\r\nset k 0 0 1\r\nv\r\nget raw\r\nget k\r\n");
        assert_eq!([clients[flushing].line(), clients[flushing].line()], ["STORED", "STORED"]);
        for key in ["raw", "k"] {
            clients[flushing].expect(format!("VALUE {key} 0 1\r\nv\r\nEND\r\n").as_bytes());
        }
    }
}
