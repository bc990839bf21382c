//! Which miss a `set` ends, if any: one connection is as exact as memcached, a miss of another client costs it no write, and
//! `add` is exclusive. docs/decisions/0005-which-miss-a-set-fills.md.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::between::{Between, pump};
use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, clients_are, direct, eventually, guarded, memcacheds, sidecar_toml,
    temp_dir, within,
};

/// One server and one sidecar, whose rule has these lines.
fn one(rule: &str) -> (Vec<Memcached>, Kennel) {
    of_clients("auto", rule)
}

fn of_clients(clients: &str, rule: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(1);
    let rule = guarded("hot", "hot:*", rule);
    let kennel = Kennel::start(&clients_are(clients, &sidecar_toml(&addresses(&servers), &[rule])));
    (servers, kennel)
}

const QUICK: &str = "cold_wait = \"0ms\"";

/// Runs a script: each line has a client's number, its command, and the first line that it must receive.
fn plays(kennel: &Kennel, script: &[(usize, &str, &str)]) {
    let mut clients: Vec<Client> = (0..10).map(|_| kennel.client()).collect();
    for (line, (client, command, reply)) in script.iter().enumerate() {
        let actual = clients[*client].execute(command);
        assert_eq!(&actual, reply, "line {line} of {script:?}");
        if actual.starts_with("VALUE") {
            clients[*client].line();
            clients[*client].expect(b"END\r\n");
        }
    }
}

const MISS: &str = "END";
const HIT: &str = "VALUE hot:k 0 1";

#[test]
fn what_is_set_behind_a_flush_is_there() {
    for flusher in [0, 1] {
        let (_servers, kennel) = one(QUICK);
        let set = (flusher, "set hot:k 0 0 1\r\nv", "STORED");
        plays(&kennel, &[(0, "get hot:k", MISS), (flusher, "flush_all", "OK"), set, (1, "get hot:k", HIT)]);
    }
}

#[test]
fn what_is_set_behind_an_own_bump_is_fresh_and_what_anothers_bump_overtakes_is_not() {
    for bump in ["delete @tag:t", "incr @tag:t 1", "md @tag:t", "set row:1 0 0 1\r\nx"] {
        let servers = memcacheds(1);
        let invalidates =
            "[[rules]]\nname = \"rows\"\nmatch = \"row:*\"\nkind = \"raw\"\ninvalidates = [\"t\"]\n";
        let rules = [guarded("hot", "hot:*", &format!("tags = [\"t\"]\n{QUICK}")), invalidates.to_owned()];
        let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
        for (bumper, found) in [(0, true), (1, false)] {
            let mut clients = [kennel.client(), kennel.client()];
            assert_eq!(clients[0].get("hot:k"), None);
            assert_ne!(clients[bumper].execute(bump), "ERROR");
            assert_eq!(clients[0].set("hot:k", b"v", 60), "STORED");
            assert_eq!(kennel.client().get("hot:k").is_some(), found, "{bump} by {bumper}");
            clients[0].delete("hot:k");
        }
    }
}

#[test]
fn another_clients_miss_costs_a_client_no_write() {
    let set = |client, value| (client, value, "STORED");
    for script in [
        &[(0, "get hot:k", MISS), set(1, "set hot:k 0 0 1\r\n1"), set(1, "set hot:k 0 0 1\r\n2")][..],
        &[(0, "get hot:k", MISS), (1, "get hot:k", MISS), (2, "delete hot:k", "NOT_FOUND")],
    ] {
        let (_servers, kennel) = one(QUICK);
        plays(&kennel, script);
        plays(&kennel, &[set(3, "set hot:k 0 0 1\r\n3"), (4, "get hot:k", HIT)]);
        assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"3"[..]), "{script:?}");
    }
    // The first client's own set is the last one, so it wins.
    let (_servers, kennel) = one(QUICK);
    let sets =
        [set(1, "set hot:k 0 0 1\r\n1"), set(1, "set hot:k 0 0 1\r\n2"), set(0, "set hot:k 0 0 1\r\n0")];
    plays(&kennel, &[&[(0, "get hot:k", MISS)][..], &sets, &[(2, "get hot:k", HIT)]].concat());
    assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"0"[..]));
}

#[test]
fn five_misses_and_a_delete_cost_the_next_five_sets_of_others_nothing() {
    let (_servers, kennel) = one(QUICK);
    let mut losers: Vec<Client> = (0..5).map(|_| kennel.client()).collect();
    losers.iter_mut().for_each(|loser| assert_eq!(loser.get("hot:k"), None));
    assert_eq!(kennel.client().delete("hot:k"), "NOT_FOUND");
    for n in 0..5 {
        let value = n.to_string();
        let mut client = kennel.client();
        client.store("hot:k", value.as_bytes(), 60);
        assert_eq!(client.get("hot:k").as_deref(), Some(value.as_bytes()));
    }
    for loser in &mut losers {
        loser.store("hot:k", b"late", 60);
    }
    assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"4"[..]), "and theirs are late");
}

#[test]
fn a_client_that_has_read_a_value_may_replace_it_despite_an_earlier_miss() {
    for (command, expected) in [
        ("get hot:k", "VALUE hot:k 0 1"),
        ("gets hot:k", "VALUE hot:k 0 1 "),
        ("gat 60 hot:k", "VALUE hot:k 0 1"),
        ("incr hot:k 1", "2"),
        ("append hot:k 0 0 1\r\n1", "STORED"),
        ("prepend hot:k 0 0 1\r\n1", "STORED"),
    ] {
        let (_servers, kennel) = one(QUICK);
        let (mut first, mut second) = (kennel.client(), kennel.client());
        assert_eq!(first.get("hot:k"), None);
        second.store("hot:k", b"1", 60);
        let actual = first.execute(command);
        assert!(actual.starts_with(expected), "{command}: {actual}");
        if actual.starts_with("VALUE") {
            first.line();
            first.expect(b"END\r\n");
        }
        first.store("hot:k", b"9", 60);
        assert_eq!(second.get("hot:k").as_deref(), Some(&b"9"[..]), "{command}");
    }
}

#[test]
fn a_loser_stores_over_the_stub_though_it_is_renewed_or_its_builder_leaves() {
    let rule = "cold_wait = \"0ms\"\nlock_ttl = \"1s\"";
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    let mut server = direct(&servers[0]);
    // The winner's sidecar renews the lease; the loser's is another.
    for elsewhere in [0, 1] {
        let (mut winner, mut loser) = (sidecars[0].client(), sidecars[elsewhere].client());
        assert_eq!([winner.get("hot:k"), loser.get("hot:k")], [None, None]);
        let cas = |server: &mut Client| server.execute("mg hot:k c");
        let missed = cas(&mut server);
        eventually("its stub is renewed", || cas(&mut server) != missed);
        loser.store("hot:k", b"built by the loser", 60);
        assert_eq!(sidecars[1].client().get("hot:k").as_deref(), Some(&b"built by the loser"[..]));
        winner.delete("hot:k");
    }
    let (mut winner, mut loser) = (sidecars[0].client(), sidecars[0].client());
    assert_eq!([winner.get("hot:k"), loser.get("hot:k")], [None, None]);
    drop(winner);
    eventually("it is given back", || sidecars[0].metrics().sum("kennel_leases_live", &[]) == 0.0);
    loser.store("hot:k", b"built by the loser", 60);
    assert_eq!(sidecars[1].client().get("hot:k").as_deref(), Some(&b"built by the loser"[..]));
}

#[test]
fn a_key_whose_builder_leaves_is_won_at_once_though_others_may_fill_it_yet() {
    let servers = memcacheds(1);
    let rule = guarded("hot", "hot:*", "cold_wait = \"5s\"\nlock_ttl = \"30s\"");
    let toml = sidecar_toml(&addresses(&servers), &[rule]);
    let sidecars = [Kennel::start(&toml), Kennel::start(&toml)];
    let (mut winner, mut loser) = (sidecars[0].client(), sidecars[0].client());
    assert_eq!(winner.get("hot:k"), None);
    // With another request after it, it does not wait.
    loser.send(b"get hot:k\r\nversion\r\n");
    assert_eq!(loser.line(), MISS);
    loser.line();
    let mut waiter = sidecars[1].client();
    waiter.send(b"get hot:k\r\n");
    waiter.silent_for(Duration::from_millis(300));
    drop(winner);
    assert_eq!(waiter.line(), MISS, "it wins");
    let mut next = sidecars[0].client();
    next.send(b"get hot:k\r\n");
    next.silent_for(Duration::from_millis(300));
    waiter.store("hot:k", b"new", 60);
    assert_eq!(next.only_value("hot:k").as_deref(), Some(&b"new"[..]));
    assert_eq!(sidecars[1].metrics().sum("kennel_leases_total", &["end=\"filled\""]), 1.0);
}

#[test]
fn of_all_who_add_a_key_one_stores_whoever_missed_it_and_whoever_won() {
    for add in ["add hot:k 0 60 1\r\nN", "ms hot:k 1 ME T60\r\nN"] {
        let is_stored = |reply: &str| reply == "STORED" || reply == "HD";
        for clients in ["single", "pooled", "auto"] {
            for adders in [[0, 2, 1], [2, 0, 1], [1, 2, 0], [2, 3, 0], [0, 1, 2]] {
                let (_servers, kennel) = of_clients(clients, QUICK);
                let mut all: Vec<Client> = (0..4).map(|_| kennel.client()).collect();
                // The first wins, the second receives a miss all the same, and the others have not read.
                assert_eq!([all[0].get("hot:k"), all[1].get("hot:k")], [None, None]);
                let replies = adders.map(|n| all[n].execute(&add.replace('N', &n.to_string())));
                let stored = replies.each_ref().map(|reply| is_stored(reply));
                assert_eq!(stored, [true, false, false], "{add}, {clients}, {adders:?}: {replies:?}");
                assert_eq!(all[3].execute("incr hot:k 1"), (adders[0] + 1).to_string());
            }
        }
    }
}

/// A proxy that delays the second connection: when a sidecar starts, one worker is connected earlier than the other.
fn answers_the_second_late(target: SocketAddr) -> Between {
    let connections = AtomicUsize::new(0);
    Between::start(target, move |client, server, over| {
        let late = connections.fetch_add(1, Ordering::Relaxed) == 1;
        let (Ok(mut client_end), Ok(mut server_end)) = (client.try_clone(), server.try_clone()) else {
            return;
        };
        let (over, of_replies) = (over.clone(), over.clone());
        std::thread::spawn(move || {
            pump(&mut client_end, &over, |piece| server_end.write_all(piece).is_ok());
            let _ = server_end.shutdown(Shutdown::Both);
        });
        let (mut from, mut to): (TcpStream, TcpStream) = (server, client);
        std::thread::spawn(move || {
            if late {
                std::thread::sleep(Duration::from_millis(200));
            }
            pump(&mut from, &of_replies, |piece| to.write_all(piece).is_ok());
            let _ = to.shutdown(Shutdown::Both);
        });
    })
}

#[test]
fn a_miss_of_one_worker_is_filled_over_another_that_connects_later() {
    let server = Memcached::start(&[]);
    let slow = answers_the_second_late(server.address);
    let toml = sidecar_toml(&[slow.address()], &[guarded("hot", "hot:*", QUICK)]);
    let kennel = Kennel::start(&clients_are("pooled", &toml));
    // So many that both workers have some, and some keys are missed on one and filled on the other.
    let mut clients: Vec<Client> = (0..16).map(|_| kennel.client()).collect();
    for n in 0..16 {
        let key = format!("hot:{n}");
        assert_eq!(clients[n].get(&key), None);
        assert_eq!(clients[(n + 1) % 16].execute(&format!("add {key} 0 60 1\r\n1")), "STORED");
        assert_eq!(clients[n].get(&key).as_deref(), Some(&b"1"[..]));
    }
    assert_eq!(kennel.metrics().sum("kennel_upstream_connections_total", &[]), 2.0);
}

#[test]
fn an_add_that_an_invalidation_has_overtaken_returns_not_stored() {
    let (_servers, kennel) = one(QUICK);
    let mut clients = [kennel.client(), kennel.client()];
    assert_eq!(clients[0].get("hot:k"), None);
    clients[1].delete("hot:k");
    assert_eq!(clients[0].execute("add hot:k 0 60 3\r\nold"), "NOT_STORED");
    assert_eq!(clients[1].execute("add hot:k 0 60 3\r\nnew"), "STORED");
    assert_eq!(clients[0].get("hot:k").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_cas_that_a_client_was_not_shown_with_its_miss_does_not_end_that() {
    let (_servers, kennel) = one(QUICK);
    let overtaken = [(0, "get hot:k", MISS), (1, "delete hot:k", "NOT_FOUND")];
    let refused = (0, "add hot:k 0 0 1\r\n0", "NOT_STORED");
    let names = (0, "ms hot:k 1 C12345\r\nx", "NF");
    let late = [(0, "set hot:k 0 0 1\r\n0", "STORED"), (2, "get hot:k", MISS)];
    plays(&kennel, &[&overtaken[..], &[refused, names], &late].concat());
}

#[test]
fn a_miss_that_the_table_cannot_keep_makes_its_set_drop() {
    let (_servers, kennel) = one("cold_wait = \"0ms\"");
    let mut clients: Vec<Client> = (0..80).map(|_| kennel.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("hot:k"), None);
    }
    assert_eq!(kennel.client().delete("hot:k"), "NOT_FOUND");
    for client in &mut clients {
        client.store("hot:k", b"old", 60);
        assert_eq!(kennel.client().get("hot:k"), None, "built before the delete");
    }
}

#[test]
fn a_set_long_after_its_miss_is_dropped_and_so_is_the_winners() {
    let (_servers, kennel) = one("cold_wait = \"0ms\"\nlock_ttl = \"1s\"\nmax_rebuild = \"2s\"");
    let (mut winner, mut loser) = (kennel.client(), kennel.client());
    assert_eq!([winner.get("hot:k"), loser.get("hot:k")], [None, None]);
    kennel.client().delete("hot:k");
    // The table is swept every ten seconds, so it contains neither any more.
    let expired = || kennel.metrics().sum("kennel_leases_live", &[]) == 0.0;
    within(Duration::from_secs(30), "the lease is over", expired);
    std::thread::sleep(Duration::from_secs(13));
    for late in [&mut winner, &mut loser] {
        late.store("hot:k", b"old", 60);
        assert_eq!(kennel.client().get("hot:k"), None, "built before the delete");
        late.store("hot:k", b"new", 60);
        assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"new"[..]), "one miss drops one set");
        kennel.client().delete("hot:k");
    }
}

#[test]
fn nobody_waits_for_what_its_own_connection_builds() {
    for read in ["get hot:k", "gets hot:k", "gat 60 hot:k", "mg hot:k v"] {
        let (_servers, kennel) = one("cold_wait = \"9s\"");
        let (mut winner, mut other) = (kennel.client(), kennel.client());
        assert_eq!(winner.get("hot:k"), None);
        other.send(format!("{read}\r\n").as_bytes());
        let reply = winner.execute(read);
        assert!(reply == MISS || reply == "EN", "{read}: {reply}");
        // The other one waits all the while.
        other.silent_for(Duration::from_millis(50));
        winner.store("hot:k", b"v", 60);
        assert!(other.line().starts_with("VA"), "{read}");
    }
}

#[test]
fn where_clients_have_pools_a_late_fill_is_dropped_wherever_it_comes_and_only_there() {
    for (clients, dropped) in [("pooled", true), ("single", false), ("auto", false)] {
        let (_servers, kennel) = of_clients(clients, QUICK);
        let (mut reads, mut writes) = (kennel.client(), kennel.client());
        assert_eq!(reads.get("hot:k"), None);
        kennel.client().delete("hot:k");
        writes.store("hot:k", b"late", 60);
        assert_eq!(kennel.client().get("hot:k").is_none(), dropped, "{clients}");
    }
}

/// A client with a pool of two connections builds a value.
fn builds(pool: &mut [Client; 2], n: usize) {
    let key = format!("hot:{n}");
    assert_eq!(pool[n % 2].get(&key), None);
    pool[(n + 1) % 2].store(&key, b"v", 60);
}

#[test]
fn that_clients_have_pools_is_learnt_and_so_is_that_they_have_none_any_more() {
    let (_servers, kennel) = one(QUICK);
    let mode = |to| {
        let label = format!("to=\"{to}\"");
        kennel.metrics().sum("kennel_clients_mode_changes_total", &[&label])
    };
    let mut pool = [kennel.client(), kennel.client()];
    (0..40).for_each(|n| builds(&mut pool, n));
    assert_eq!([mode("pooled"), mode("single")], [1.0, 0.0]);
    assert!(kennel.log().contains("detected how clients use their connections"), "{}", kennel.log());
    // From now on a late fill is dropped on another connection.
    assert_eq!(pool[0].get("hot:k"), None);
    kennel.client().delete("hot:k");
    pool[1].store("hot:k", b"late", 60);
    assert_eq!(kennel.client().get("hot:k"), None);
    let mut alone = kennel.client();
    for n in 1000..1600 {
        let key = format!("hot:{n}");
        assert_eq!(alone.get(&key), None);
        alone.store(&key, b"v", 60);
    }
    assert_eq!([mode("pooled"), mode("single")], [1.0, 1.0]);
    assert_eq!(pool[0].get("hot:j"), None);
    kennel.client().delete("hot:j");
    pool[1].store("hot:j", b"new", 60);
    assert_eq!(kennel.client().get("hot:j").as_deref(), Some(&b"new"[..]));
}

#[test]
fn at_a_unix_socket_only_connections_of_one_process_are_of_one_pool() {
    let servers = memcacheds(1);
    let directory = temp_dir();
    let path = directory.join("k.sock");
    let listen = format!("[listen]\nclients = \"pooled\"\nunix = [{:?}]\n", path.display().to_string());
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", QUICK)]);
    let kennel = Kennel::start(&toml.replacen("[listen]\n", &listen, 1));
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
        s.sendall(b'get hot:other\\r\\n'); s.recv(100)\n\
        s.sendall(b'set hot:k 0 60 3\\r\\nnew\\r\\n'); assert s.recv(100) == b'STORED\\r\\n'\n";
    for (other_process, found) in [(true, true), (false, false)] {
        let (mut reads, mut writes) = (Client::unix(&path), Client::unix(&path));
        assert_eq!(reads.get("hot:k"), None);
        kennel.client().delete("hot:k");
        match other_process {
            true => {
                let ran = std::process::Command::new("python3").args(["-c", script]).arg(&path).status();
                assert!(ran.expect("run python3").success());
            }
            false => writes.store("hot:k", b"late", 60),
        }
        assert_eq!(kennel.client().get("hot:k").is_some(), found, "another process: {other_process}");
        kennel.client().delete("hot:k");
    }
    std::fs::remove_dir_all(directory).expect("remove it");
}

#[test]
fn a_client_that_is_told_misses_and_answers_none_costs_nobody_else_a_lease_and_few_renewals() {
    let (servers, kennel) = one("cold_wait = \"0ms\"\nlock_ttl = \"1s\"\nmax_rebuild = \"60s\"");
    let mut behaves = kennel.client();
    assert_eq!(behaves.get("hot:mine"), None);
    let mut crawler = kennel.client();
    for start in (0..40_000).step_by(100) {
        let keys: Vec<String> = (start..start + 100).map(|n| format!("hot:{n}")).collect();
        assert_eq!(crawler.get_many(&keys.iter().map(String::as_str).collect::<Vec<_>>()), []);
    }
    let live = kennel.metrics().sum("kennel_leases_live", &[]);
    assert!(live <= 16.0 * 32.0 + 1.0, "{live} leases");
    // What it holds is available to others.
    let mut server = direct(&servers[0]);
    let renewed = |server: &mut Client| server.execute("mg hot:mine c");
    let before = renewed(&mut server);
    eventually("the other's lease is renewed", || renewed(&mut server) != before);
    let mut other = kennel.client();
    assert_eq!(other.get("hot:7"), None);
    other.store("hot:7", b"v", 60);
    behaves.store("hot:mine", b"v", 60);
    assert_eq!(crawler.get("hot:mine").as_deref(), Some(&b"v"[..]));
    // Its own writes are treated like any other client's.
    crawler.store("hot:39999", b"v", 60);
    assert_eq!(other.get("hot:39999").as_deref(), Some(&b"v"[..]));
}
