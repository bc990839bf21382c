//! Another configuration while the sidecar runs: `POST /reload`, SIGHUP, and a changed file.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use crate::client::Client;
use crate::gate::gated_fleet;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, free_address, guarded, memcacheds, raw, sidecar_toml,
    temp_dir, within, without_failover,
};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(60);

fn metric(kennel: &Kennel, name: &str) -> f64 {
    kennel.metrics().sum(name, &[])
}

/// The hash of the configuration in force.
fn hash(kennel: &Kennel) -> String {
    let metrics = kennel.metrics();
    let info: Vec<_> = metrics.0.keys().filter(|series| series.starts_with("kennel_config_info{")).collect();
    assert_eq!(info.len(), 1, "{info:?}");
    info[0].clone()
}

/// Reloads, even if servers change in one step, and returns what has changed.
fn force(kennel: &Kennel, toml: &str) -> String {
    let (status, changes) = kennel.force(toml);
    assert_eq!(status, 200, "{changes}");
    changes
}

/// Reloads, and returns what has changed.
fn reload(kennel: &Kennel, toml: &str) -> String {
    let (status, changes) = kennel.reload(toml);
    assert_eq!(status, 200, "{changes}");
    changes
}

#[test]
fn rules_tags_and_limits_change_and_no_connection_is_closed() {
    let servers = memcacheds(2);
    let before = sidecar_toml(&addresses(&servers), &[raw("all", "*")]);
    let kennel = Kennel::start(&before);
    let mut client = kennel.client();
    client.store("page:1", b"v", 600);
    let (old_hash, read) = (hash(&kennel), metric(&kennel, "kennel_config_last_reload_timestamp_seconds"));
    // Two workers, each with one connection to each server.
    let connections = 4.0;
    eventually("all connections are made", || {
        metric(&kennel, "kennel_upstream_connections_total") == connections
    });
    let after = sidecar_toml(
        &addresses(&servers),
        &[guarded("pages", "page:*", "tags = [\"all\"]"), raw("all", "*")],
    )
    .replace("request_timeout = \"500ms\"", "request_timeout = \"700ms\"")
        + "[tags]\ncache = \"100ms\"\n";
    let changes = reload(&kennel, &after);
    for line in [
        "pools.main.request_timeout: \"500ms\" → \"700ms\"\n",
        "rules[0].name: \"all\" → \"pages\"\n",
        "rules[0].tags: not set → [\"all\"]\n",
        "rules[1].match: not set → \"*\"\n",
        "tags.cache: not set → \"100ms\"\n",
    ] {
        assert!(changes.contains(line), "{line} is not in:\n{changes}");
        assert!(kennel.log().contains(line.trim_end()), "{line} is not logged:\n{}", kennel.log());
    }
    // The same connection, and the same to the servers: a value without an envelope is a hit of a guarded rule too.
    assert_eq!(client.get("page:1").as_deref(), Some(&b"v"[..]));
    assert_eq!(client.get("page:2"), None);
    client.store("page:2", b"w", 600);
    assert_eq!(client.delete("@tag:all"), "DELETED");
    assert_eq!(client.get("page:2"), None, "its tag was bumped");
    assert_eq!(metric(&kennel, "kennel_upstream_connections_total"), connections);
    assert_ne!(hash(&kennel), old_hash);
    assert_eq!(metric(&kennel, "kennel_config_last_reload_successful"), 1.0);
    assert!(metric(&kennel, "kennel_config_last_reload_timestamp_seconds") > read);
    // A rule that both have goes on counting.
    let hits = |rule: &str| kennel.metrics().sum("kennel_requests_total", &[rule, "command=\"set\""]);
    assert_eq!((hits("rule=\"all\""), hits("rule=\"pages\"")), (1.0, 1.0));
    reload(&kennel, &before);
    assert_eq!((hash(&kennel), hits("rule=\"pages\"")), (old_hash, 0.0));
    assert!(client.get("page:1").is_some());
    assert_eq!(reload(&kennel, &before), "nothing has changed\n");
}

#[test]
fn a_file_with_mistakes_changes_nothing_and_each_is_told_with_its_line() {
    let servers = memcacheds(1);
    let good = sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]);
    let kennel = Kennel::start(&good);
    let mut client = kennel.client();
    client.store("a", b"v", 600);
    let old_hash = hash(&kennel);
    let bad = good.replace("request_timeout = \"500ms\"", "request_timeout = \"5\"\nhush = 1")
        + "[tags]\npool = \"x\"\n";
    let line = |what: &str| bad.lines().position(|line| line.starts_with(what)).unwrap() + 1;
    let (status, mistakes) = kennel.reload(&bad);
    assert_eq!(status, 422, "{mistakes}");
    let expected = [
        (line("request_timeout"), "request_timeout"),
        (line("hush"), "hush"),
        (line("pool = "), "tags.pool"),
    ];
    for (line, key) in expected {
        let told = |text: &str| {
            text.lines().any(|told| told.contains(&format!("line {line}: ")) && told.contains(key))
        };
        assert!(told(&mistakes) && told(&kennel.log()), "{key} in line {line}:\n{mistakes}");
    }
    assert_eq!((mistakes.lines().count(), hash(&kennel)), (3, old_hash.clone()));
    assert_eq!(metric(&kennel, "kennel_config_last_reload_successful"), 0.0);
    let page = kennel.http("/page.json");
    assert!(page.contains("has mistakes") && page.contains("tags.pool"), "{page}");
    assert!(kennel.http("/readyz").contains("has mistakes"));
    assert_eq!(client.get("a").as_deref(), Some(&b"v"[..]));
    // What cannot be bound changes nothing either.
    let taken = good.replacen("tcp = [\"127.0.0.1:0\"]", &format!("tcp = [{:?}]", servers[0].address()), 1);
    let (status, why) = kennel.reload(&taken.replace("servers = [", "servers = [\"127.0.0.1:1\", "));
    assert!(status == 422 && why.contains("listen"), "{why}");
    assert_eq!((client.get("a").as_deref(), hash(&kennel)), (Some(&b"v"[..]), old_hash));
    reload(&kennel, &good);
    assert_eq!(metric(&kennel, "kennel_config_last_reload_successful"), 1.0);
    assert!(
        !kennel.http("/page.json").contains("has mistakes")
            && !kennel.http("/readyz").contains("has mistakes")
    );
}

#[test]
fn sighup_reloads_and_a_get_of_the_path_does_not() {
    let servers = memcacheds(1);
    let toml = |level: &str| {
        format!("[log]\nlevel = {level:?}\n{}", sidecar_toml(&addresses(&servers), &[raw("all", "*")]))
    };
    let kennel = Kennel::start(&toml("info"));
    let old_hash = hash(&kennel);
    kennel.write_config(&toml("error"));
    assert!(kennel.http("/reload").contains(" 405 "));
    assert_eq!(hash(&kennel), old_hash);
    kennel.hang_up();
    eventually("the configuration is in force", || hash(&kennel) != old_hash);
    // From now on, changes are not logged.
    let before = kennel.log();
    kennel.write_config(&toml("warn"));
    let (old_hash, _) = (hash(&kennel), kennel.hang_up());
    eventually("the configuration is in force", || hash(&kennel) != old_hash);
    assert_eq!(kennel.log().matches("SIGHUP").count(), before.matches("SIGHUP").count());
}

#[test]
fn requests_in_flight_end_under_the_configuration_that_they_began_with() {
    let (_servers, gate, [kennel, other]) = gated_fleet(&[raw("all", "*")]);
    let mut writer = other.client();
    writer.store("a", b"raw", 0);
    let toml = std::fs::read_to_string(kennel.dir().join("kennel.toml")).unwrap();
    let guard = toml.replace("kind = \"raw\"", "kind = \"guarded\"\ncold_wait = \"0ms\"");
    let mut clients: Vec<Client> = (0..4).map(|_| kennel.client()).collect();
    let before = hash(&kennel);
    gate.hold_replies();
    // A miss of a raw key is no lease, one of a guarded key is.
    clients.iter_mut().for_each(|client| client.send(b"get b\r\nget a\r\n"));
    gate.until_held();
    std::thread::scope(|scope| {
        let reloading = scope.spawn(|| reload(&kennel, &guard));
        eventually("the next configuration is in force", || {
            hash(&kennel) != before && kennel.metrics().sum("kennel_requests_total", &[]) == 0.0
        });
        // What arrives now waits for the first requests of its connection, and begins under the next configuration.
        clients.iter_mut().for_each(|client| client.send(b"get c\r\n"));
        std::thread::sleep(Duration::from_millis(300));
        gate.release();
        for client in &mut clients {
            assert_eq!(client.only_value("b"), None);
            assert_eq!(client.only_value("a").as_deref(), Some(&b"raw"[..]));
            assert_eq!(client.only_value("c"), None);
        }
        reloading.join().expect("no panic");
    });
    let requests = |labels: &[&str]| kennel.metrics().sum("kennel_requests_total", labels);
    eventually("all are counted", || requests(&["command=\"get\""]) == 12.0);
    // One of four won the right to build c; nobody won b.
    assert_eq!(requests(&["outcome=\"miss_won\""]), 1.0, "{:?}", kennel.metrics().0);
}

#[test]
fn a_request_in_flight_is_not_taken_for_one_of_a_rule_that_has_its_place_now() {
    let rules =
        [guarded("first", "f:*", "cold_wait = \"0ms\""), guarded("second", "s:*", "cold_wait = \"0ms\"")];
    let (_servers, gate, [kennel, _]) = gated_fleet(&rules);
    let toml = std::fs::read_to_string(kennel.dir().join("kennel.toml")).expect("its configuration");
    let swapped = toml.replace(&rules[1], "").replace(&rules[0], &format!("{}\n{}", rules[1], rules[0]));
    let before = hash(&kennel);
    let mut client = kennel.client();
    gate.hold_replies();
    client.send(b"get f:a\r\n");
    gate.until_held();
    kennel.write_config(&swapped);
    kennel.hang_up();
    eventually("the next configuration is in force", || hash(&kennel) != before);
    gate.release();
    assert_eq!(client.only_value("f:a"), None);
    let won = |rule: &str| {
        kennel.metrics().sum("kennel_requests_total", &[&format!("rule={rule:?}"), "outcome=\"miss_won\""])
    };
    eventually("it is counted", || won("first") + won("second") == 1.0);
    assert_eq!([won("first"), won("second")], [1.0, 0.0]);
    client.store("f:a", b"built", 600);
    assert_eq!(client.get("f:a").as_deref(), Some(&b"built"[..]));
}

#[test]
fn a_lease_outlives_a_reload_and_is_renewed_under_the_next_configuration() {
    let servers = memcacheds(3);
    let rule = "stale_for = \"30s\"\nlock_ttl = \"2s\"\ncold_wait = \"20s\"\ncold_limit = \"20s\"";
    let toml = without_failover(&sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]));
    let kennel = Kennel::start(&toml);
    let (mut winner, mut waiter) = (kennel.client(), kennel.client());
    assert_eq!(winner.get("hot:a"), None);
    waiter.send(b"get hot:a\r\n");
    eventually("a reader waits", || metric(&kennel, "kennel_waiters") == 1.0);
    let other = Kennel::start(&toml);
    let mut elsewhere = other.client();
    for (n, cache) in ["10ms", "20ms", "30ms"].iter().enumerate() {
        let more =
            format!("{toml}[[rules]]\nname = \"r{n}\"\nmatch = \"r{n}:*\"\n[tags]\ncache = {cache:?}\n");
        kennel.write_config(&more.replace(
            "[[rules]]\nname = \"hot\"",
            &format!(
                "[[rules]]\nname = \"q{n}\"\nmatch = \"q:*\"\nkind = \"raw\"\n[[rules]]\nname = \"hot\""
            ),
        ));
        let before = hash(&kennel);
        kennel.hang_up();
        within(LONG, "the configuration is in force", || hash(&kennel) != before);
        // Longer than the lock lasts without a renewal.
        let started = tokio::time::Instant::now();
        while started.elapsed() < Duration::from_secs(3) {
            let line = elsewhere.execute("mg hot:a s N30");
            assert!(line.ends_with(" Z"), "nobody else wins while the builder builds: {line}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    assert_eq!(metric(&kennel, "kennel_leases_live"), 1.0);
    assert_eq!(other.metrics().sum("kennel_requests_total", &["outcome=\"miss_won\""]), 0.0);
    winner.store("hot:a", b"built", 600);
    assert_eq!(waiter.only_value("hot:a").as_deref(), Some(&b"built"[..]));
    assert_eq!(elsewhere.get("hot:a").as_deref(), Some(&b"built"[..]));
    assert_eq!(kennel.metrics().sum("kennel_leases_total", &["end=\"filled\"", "rule=\"hot\""]), 1.0);
    assert_eq!(metric(&kennel, "kennel_fills_dropped_total"), 0.0);
}

#[test]
fn what_was_built_for_other_tags_or_servers_is_dropped() {
    let servers = memcacheds(2);
    let toml = |tags: &str, servers: &[Memcached]| {
        let more = format!("cold_wait = \"0ms\"\n{tags}");
        sidecar_toml(&addresses(servers), &[guarded("a", "a:*", &more), raw("all", "*")])
    };
    let (tagged, other) = ("tags = [\"t\"]", "tags = [\"u\"]");
    let kennel = Kennel::start(&toml(tagged, &servers));
    for (n, next) in [toml(other, &servers), toml(other, &servers[..1])].iter().enumerate() {
        // Keys of both servers.
        let keys: Vec<String> = (0..20).map(|key| format!("a:{n}:{key}")).collect();
        let mut client = kennel.client();
        keys.iter().for_each(|key| assert_eq!(client.get(key), None));
        let mut pooled = kennel.client();
        force(&kennel, next);
        for key in &keys {
            assert_eq!(client.set(key, b"old", 600), "STORED");
            assert_eq!(pooled.get(key), None, "{key} was built for other tags, or another server");
        }
        // They can be built again.
        for key in &keys {
            pooled.store(key, b"new", 600);
            assert_eq!(client.get(key).as_deref(), Some(&b"new"[..]));
        }
    }
}

#[test]
fn listeners_come_and_go_and_only_the_clients_of_those_that_go_are_disconnected() {
    let servers = memcacheds(1);
    let dir = temp_dir();
    let (stays, goes, comes) = (free_address(), free_address(), free_address());
    let (old_socket, new_socket) = (dir.join("old"), dir.join("new"));
    let toml = |tcp: &[String], unix: &PathBuf, more: &str| {
        let listen = format!("tcp = {tcp:?}\nunix = [{unix:?}]\n{more}");
        sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]).replacen(
            "tcp = [\"127.0.0.1:0\"]",
            &listen,
            1,
        )
    };
    let [stays_at, goes_at, comes_at] = [stays, goes, comes].map(|address| address.to_string());
    let kennel = Kennel::start(&toml(&[stays_at.clone(), goes_at], &old_socket, ""));
    let (mut kept, mut lost) = (Client::tcp(stays), Client::tcp(goes));
    let mut lost_unix = Client::unix(&old_socket);
    kept.store("a", b"v", 600);
    assert!(lost.get("a").is_some() && lost_unix.get("a").is_some());
    let changed = toml(&[comes_at, stays_at], &new_socket, "unix_mode = \"0600\"\nmax_connections = 3\n");
    reload(&kennel, &changed);
    assert_eq!((lost.rest(), lost_unix.rest()), (vec![], vec![]));
    // A connection is counted until just after it is closed.
    eventually("the others have left", || metric(&kennel, "kennel_client_connections") == 1.0);
    assert!(kept.get("a").is_some());
    assert!(Client::tcp(comes).get("a").is_some() && Client::unix(&new_socket).get("a").is_some());
    assert!(std::net::TcpStream::connect(goes).is_err() && !old_socket.exists());
    // The new limit counts the client that stayed.
    eventually("the others have left", || metric(&kennel, "kennel_client_connections") == 1.0);
    let (mut second, mut third) = (Client::tcp(comes), Client::tcp(comes));
    assert!(second.get("a").is_some() && third.get("a").is_some());
    // Another listener might accept it before those.
    let mut fourth = Client::tcp(stays);
    assert_eq!(fourth.line(), "ERROR Too many open connections");
    drop(kennel);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn the_admin_address_moves() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("all", "*")]);
    let kennel = Kennel::start(&toml);
    let next = free_address();
    let moved = toml.replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\nlisten = \"{next}\""));
    reload(&kennel, &moved);
    eventually("the former address is closed", || kennel.http("/healthz").is_empty());
    let mut page = std::net::TcpStream::connect(next).expect("the new address");
    let mut reply = String::new();
    std::io::Write::write_all(&mut page, b"GET /healthz HTTP/1.0\r\n\r\n").expect("a request");
    std::io::Read::read_to_string(&mut page, &mut reply).expect("a reply");
    assert!(reply.contains(" 200 "), "{reply}");
}

/// How many connections a server has, and how many it has had. The one that asks counts.
fn connections(server: &Memcached) -> [u64; 2] {
    let mut client = direct(server);
    client.send(b"stats\r\n");
    let stats = String::from_utf8(client.until(b"END\r\n")).expect("text");
    ["curr_connections", "total_connections"].map(|name| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{stats}"))
    })
}

#[test]
fn a_server_that_is_removed_is_disconnected_and_the_others_are_not() {
    let servers = memcacheds(3);
    let all = addresses(&servers);
    let toml = |servers: &[String]| without_failover(&sidecar_toml(servers, &[guarded("all", "*", "")]));
    // The server may still count a connection that the start has closed.
    let idle = (0..100).map(|_| connections(&servers[2])[0]).min().expect("a count");
    let kennel = Kennel::start(&toml(&all[..2]));
    let mut client = kennel.client();
    assert_eq!(client.get("a"), None);
    eventually("all connections are made", || metric(&kennel, "kennel_upstream_connections_total") == 4.0);
    let used = connections(&servers[1])[0];
    force(&kennel, &toml(&[all[0].clone(), all[2].clone()]));
    eventually("the new server is connected", || connections(&servers[2])[0] == used);
    within(LONG, "the removed server is disconnected", || connections(&servers[1])[0] <= idle);
    let of = |server: usize| {
        let label = format!("server={:?}", all[server]);
        kennel.metrics().sum("kennel_upstream_connections_total", &[&label])
    };
    // Two workers, each with one connection to each server.
    eventually("only servers of the pool have connections", || (of(0), of(1), of(2)) == (2.0, 0.0, 2.0));
    for n in 0..20 {
        client.store(&format!("k{n}"), b"v", 600);
    }
    for n in 0..20 {
        assert!(client.get(&format!("k{n}")).is_some());
    }
}

/// Clients in a loop, over connections that they keep, while `during` runs. Returns how many requests there were.
fn under_load(kennel: &Kennel, during: impl FnOnce(&AtomicU64)) -> u64 {
    let (ended, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (ended, requests) = (&ended, &requests);
            let mut client = kennel.client();
            scope.spawn(move || {
                for round in 0.. {
                    if ended.load(SeqCst) {
                        return;
                    }
                    let key = format!("{}:{n}:{}", ["a", "b", "raw"][round % 3], round % 50);
                    // A miss is followed by the value, as clients do.
                    if client.get(&key).is_none() {
                        assert_eq!(client.set(&key, b"value", 600), "STORED", "{key}");
                    }
                    requests.fetch_add(1, SeqCst);
                }
            });
        }
        during(&requests);
        ended.store(true, SeqCst);
    });
    requests.load(SeqCst)
}

#[test]
fn under_load_no_request_fails_through_twenty_reloads() {
    let servers = memcacheds(4);
    let all = addresses(&servers);
    let toml = |n: usize| {
        let more = format!("tags = [\"t{}\"]\nlock_ttl = \"{}s\"", n % 3, 2 + n % 2);
        let rules = match n % 2 {
            0 => vec![guarded("a", "a:*", &more), guarded("b", "b:*", ""), raw("raw", "*")],
            _ => vec![raw("b", "b:*"), guarded("rest", "*", &more)],
        };
        // Some reloads change the servers, and some of the pools fail over.
        sidecar_toml(&all[..3 + n / 2 % 2], &rules) + &format!("[tags]\ncache = \"{}ms\"\n", n % 2 * 10)
    };
    let kennel = Kennel::start(&toml(0));
    let requests = under_load(&kennel, |requests| {
        for n in 1..=20 {
            let before = requests.load(SeqCst);
            force(&kennel, &toml(n));
            within(LONG, "clients go on", || requests.load(SeqCst) > before + 200);
        }
    });
    let failed = kennel.metrics().sum("kennel_requests_total", &["outcome=\"server_error\""]);
    assert_eq!(failed, 0.0, "{:?}", kennel.metrics().0);
    assert!(requests > 4000);
    eventually("all have left", || metric(&kennel, "kennel_client_connections") == 0.0);
    assert_eq!((metric(&kennel, "kennel_leases_live"), metric(&kennel, "kennel_waiters")), (0.0, 0.0));
}

#[test]
fn a_changed_file_is_noticed_also_behind_the_links_of_a_mounted_config_map() {
    let servers = memcacheds(1);
    let toml = |n: usize| {
        let cache = format!("[tags]\ncache = \"{n}ms\"\n");
        format!("reload = \"watch\"\n{}{cache}", sidecar_toml(&addresses(&servers), &[raw("all", "*")]))
    };
    let kennel = Kennel::start(&toml(1));
    let changed = |what: &str, change: &dyn Fn()| {
        let before = hash(&kennel);
        change();
        within(LONG, what, || hash(&kennel) != before);
    };
    changed("the file is replaced", &|| kennel.write_config(&toml(2)));
    let file = kennel.dir().join("kennel.toml");
    changed("it is written in place", &|| std::fs::write(&file, toml(3)).expect("write"));
    // As kubelet does: kennel.toml -> ..data/kennel.toml, ..data -> a directory, which is replaced by renaming a link.
    let version = |n: usize| {
        let dir = kennel.dir().join(format!("..version{n}"));
        std::fs::create_dir(&dir).expect("create a directory");
        std::fs::write(dir.join("kennel.toml"), toml(n)).expect("write");
        let link = kennel.dir().join("..next");
        symlink(format!("..version{n}"), &link).expect("link");
        std::fs::rename(link, kennel.dir().join("..data")).expect("rename");
    };
    changed("it is replaced by a link", &|| {
        version(4);
        std::fs::remove_file(&file).expect("remove");
        symlink("..data/kennel.toml", &file).expect("link");
    });
    changed("the directory behind the link is replaced", &|| version(5));
    // A version with a mistake is tried once, and the next one again.
    let attempts = || kennel.log().matches("reading the configuration").count();
    let before = (hash(&kennel), attempts());
    kennel.write_config("nonsense");
    within(LONG, "the mistake is noticed", || metric(&kennel, "kennel_config_last_reload_successful") == 0.0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((hash(&kennel), attempts()), (before.0, before.1 + 1));
    changed("it is mended", &|| kennel.write_config(&toml(6)));
    // No more with "signal".
    changed("it is replaced", &|| kennel.write_config(&toml(7).replace("\"watch\"", "\"signal\"")));
    let before = hash(&kennel);
    kennel.write_config(&toml(8));
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(hash(&kennel), before);
}

#[test]
fn a_file_that_is_gone_changes_nothing() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("all", "*")]);
    let kennel = Kennel::start(&toml);
    std::fs::remove_file(kennel.dir().join("kennel.toml")).expect("remove");
    kennel.hang_up();
    eventually("the missing file is told", || kennel.log().contains("cannot be read"));
    assert_eq!(metric(&kennel, "kennel_config_last_reload_successful"), 0.0);
    reload(&kennel, &toml);
}
