//! Servers that are found in DNS, or named by a cluster's configuration endpoint.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::change::{Site, holders, keys, read_all};
use crate::dns::{Dns, Endpoint, Zone};
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir,
    within,
};

const LONG: Duration = Duration::from_secs(60);
const SERVICE: &str = "_memcache._tcp.cache.test";

/// A configuration with these entries in `servers`, whose names this DNS server knows.
fn toml(dns: &Dns, entries: &[&str], more: &str) -> String {
    let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
    let rules = [guarded("k", "k:{n}", "tags = [\"t:{n}\"]"), raw("rest", "*")];
    let discovery = format!(
        "[discovery]\nnameservers = [\"{}\"]\ninterval = \"1s\"\nsettle = \"2s\"\n{more}\n",
        dns.address()
    );
    sidecar_toml(&entries, &[&[discovery][..], &rules[..]].concat())
}

fn srv(entry: &str) -> String {
    format!("dnssrv+{entry}")
}

/// Names `m0.test`, `m1.test`, … for these memcacheds, and the service of all of them.
fn serve(dns: &Dns, servers: &[Memcached]) {
    let services: Vec<_> =
        servers.iter().enumerate().map(|(n, server)| (format!("m{n}.test"), server.address.port())).collect();
    for (name, _) in &services {
        dns.addresses(name, &["127.0.0.1"]);
    }
    let services: Vec<_> = services.iter().map(|(name, port)| (&name[..], *port)).collect();
    dns.services(SERVICE, &services);
}

/// The labels `server` of the servers that metrics show, sorted.
fn servers_of(sidecar: &Kennel) -> Vec<String> {
    let metrics = sidecar.metrics();
    let up = metrics.0.keys().filter_map(|series| {
        let labels = series.strip_prefix("kennel_upstream_up{")?;
        Some(labels.split_once("server=\"")?.1.split_once('"')?.0.to_owned())
    });
    up.collect()
}

fn discovered(sidecar: &Kennel, what: &str) -> f64 {
    sidecar.metrics().sum(&format!("kennel_discovery_{what}"), &[])
}

fn until_servers(sidecar: &Kennel, expected: &[String]) {
    let mut expected = expected.to_vec();
    expected.sort();
    within(LONG, &format!("the servers are {expected:?}"), || {
        servers_of(sidecar) == expected && discovered(sidecar, "step") == 0.0
    });
}

fn labels(servers: &[Memcached]) -> Vec<String> {
    servers.iter().enumerate().map(|(n, server)| format!("m{n}.test:{}", server.address.port())).collect()
}

fn kennel(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("KENNEL_")) {
        command.env_remove(name);
    }
    let output = command.args(arguments).output().expect("run kennel");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Stores and reads keys of all servers.
fn works(sidecar: &Kennel) {
    let mut client = sidecar.client();
    for n in 0..30 {
        eventually("a value is stored", || client.set(&format!("k:{n}"), b"v", 100) == "STORED");
        assert_eq!(client.get(&format!("k:{n}")).as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn each_address_of_a_name_is_a_server_whatever_their_order() {
    let dns = Dns::start();
    let memcached = Memcached::start(&["-l", "127.0.0.2", "-l", "127.0.0.3"]);
    let port = memcached.address.port();
    dns.addresses("cache.test", &["127.0.0.3", "127.0.0.1", "127.0.0.2", "127.0.0.1"]);
    let sidecar = Kennel::start(&toml(&dns, &[&format!("dns+cache.test:{port}")], ""));
    let expected = [1, 2, 3].map(|n| format!("127.0.0.{n}:{port}"));
    until_servers(&sidecar, &expected);
    works(&sidecar);
    for order in [["127.0.0.1", "127.0.0.2", "127.0.0.3"], ["127.0.0.2", "127.0.0.3", "127.0.0.1"]] {
        dns.addresses("cache.test", &order);
        let asked = dns.asked("cache.test", "A");
        within(LONG, "the name is looked up again", || dns.asked("cache.test", "A") >= asked + 3);
    }
    assert_eq!((discovered(&sidecar, "step"), discovered(&sidecar, "servers")), (0.0, 3.0));
    assert!(!sidecar.log().contains("the servers change"), "{}", sidecar.log());
}

#[test]
fn a_name_is_looked_up_again_within_its_ttl() {
    let dns = Dns::start();
    let memcached = Memcached::start(&[]);
    let address = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    dns.set("short.test", Zone::Addresses(address.clone(), 1));
    dns.set("long.test", Zone::Addresses(address, 3600));
    let port = memcached.address.port();
    let other = Memcached::start(&[]).address.port();
    let entries = [format!("dns+short.test:{port}"), format!("dns+long.test:{other}")];
    let text =
        toml(&dns, &[&entries[0], &entries[1]], "").replace("\"1s\"", "\"1h\"").replace("\"2s\"", "\"2h\"");
    let _sidecar = Kennel::start(&text);
    within(LONG, "the name is looked up again", || dns.asked("short.test", "A") >= 4);
    assert_eq!(dns.asked("long.test", "A"), 1);
}

#[test]
fn a_server_that_returns_under_its_name_with_another_address_keeps_its_keys() {
    let dns = Dns::start();
    let mut servers = memcacheds(3);
    serve(&dns, &servers);
    let sidecar = Kennel::start(
        &toml(&dns, &[&srv(SERVICE)], "").replace("[pools.main]\n", "[pools.main]\nfailover = false\n"),
    );
    until_servers(&sidecar, &labels(&servers));
    works(&sidecar);
    let held =
        |server: &Memcached| (0..30).filter(|n| direct(server).ttl(&format!("k:{n}")).is_some()).count();
    let before = held(&servers[1]);
    assert!((1..30).contains(&before), "{before}");
    // Its successor, at another address.
    let (port, next) = (servers[1].address.port(), Memcached::start(&[]));
    servers[1].kill();
    let moved = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), port);
    let _relay = Endpoint::start_at(moved, next.address, false);
    dns.addresses("m1.test", &["127.0.0.2"]);
    let label = format!("server=\"m1.test:{port}\"");
    eventually("it is connected again", || {
        sidecar.metrics().sum("kennel_upstream_connections_total", &[&label]) >= 4.0
    });
    works(&sidecar);
    assert_eq!(held(&next), before);
    assert!(!sidecar.log().contains("the servers change"), "{}", sidecar.log());
}

#[test]
fn a_cluster_names_its_servers_by_either_command_and_garbage_keeps_the_last_list() {
    for is_old in [false, true] {
        let dns = Dns::start();
        let servers = memcacheds(3);
        serve(&dns, &servers);
        let endpoint = Endpoint::start(servers[0].address, is_old);
        let named = |n: usize| -> Vec<String> {
            let server = |n: usize| format!("m{n}.test|127.0.0.1|{}", servers[n].address.port());
            (0..n).rev().map(server).collect()
        };
        endpoint.name(5, &named(2));
        dns.addresses("cluster.test", &["127.0.0.1"]);
        let entry = format!("elasticache+cluster.test:{}", endpoint.address().port());
        let sidecar = Kennel::start(&toml(&dns, &[&entry], ""));
        until_servers(&sidecar, &labels(&servers[..2]));
        works(&sidecar);
        let mut failures = 0.0;
        let mut fails = |reply: &dyn Fn()| {
            reply();
            within(LONG, "a lookup fails", || discovered(&sidecar, "failures_total") >= failures + 2.0);
            failures = discovered(&sidecar, "failures_total");
            assert_eq!(servers_of(&sidecar).len(), 2);
            endpoint.name(5, &named(2));
            within(LONG, "it is found again", || sidecar.http("/page.json").contains(r#""error":null"#));
        };
        if is_old {
            endpoint.name(6, &named(3));
            until_servers(&sidecar, &labels(&servers));
            continue;
        }
        fails(&|| endpoint.name(4, &named(3)));
        fails(&|| endpoint.name(6, &[]));
        fails(&|| endpoint.reply_with(b"CONFIG cluster 0 999999999\r\n"));
        fails(&|| endpoint.reply_with(b"CONFIG cluster 0 8\r\n7\n\xff\xff\xff\xff\n\n\r\nEND\r\n"));
        fails(&|| endpoint.reply_with(b"SERVER_ERROR busy\r\n"));
        assert!(!sidecar.log().contains("the servers change"), "{}", sidecar.log());
        endpoint.name(6, &named(3));
        until_servers(&sidecar, &labels(&servers));
        works(&sidecar);
    }
}

#[test]
fn an_empty_or_failed_answer_keeps_the_last_list_and_is_logged_once() {
    let dns = Dns::start();
    let servers = memcacheds(3);
    serve(&dns, &servers);
    let sidecar = Kennel::start(&toml(&dns, &[&srv(SERVICE)], ""));
    until_servers(&sidecar, &labels(&servers));
    let logged = |what: &str| sidecar.log().matches(what).count();
    let many: Vec<(String, u16)> = (0..1025).map(|n| (format!("n{n}.test"), 11211)).collect();
    let zones = [
        None,
        Some(Zone::Fails),
        Some(Zone::Services(Vec::new(), 1)),
        Some(Zone::Services(vec![("m0.test".to_owned(), 0)], 1)),
        Some(Zone::Services(many, 1)),
        Some(Zone::Silent),
    ];
    for (n, zone) in zones.into_iter().enumerate() {
        match zone {
            Some(zone) => dns.set(SERVICE, zone),
            None => dns.remove(SERVICE),
        }
        let before = discovered(&sidecar, "failures_total");
        within(LONG, "two lookups fail", || discovered(&sidecar, "failures_total") >= before + 2.0);
        assert_eq!(logged("those that were found last remain in use"), n + 1, "{}", sidecar.log());
        serve(&dns, &servers);
        within(LONG, "it is found again", || logged("servers are found again") == n + 1);
    }
    assert_eq!(servers_of(&sidecar), {
        let mut all = labels(&servers);
        all.sort();
        all
    });
    assert!(!sidecar.log().contains("the servers change"), "{}", sidecar.log());
    works(&sidecar);
}

#[test]
fn a_sidecar_starts_without_its_servers_answers_misses_says_so_and_finds_them_later() {
    let dns = Dns::start();
    let servers = memcacheds(2);
    dns.set(SERVICE, Zone::Fails);
    let sidecar = Kennel::start(&toml(&dns, &[&srv(SERVICE)], ""));
    let mut client = sidecar.client();
    assert_eq!(client.get("k:1"), None);
    assert_eq!(client.get("raw"), None);
    assert!(client.set("raw", b"v", 0).starts_with("SERVER_ERROR"));
    assert!(client.delete("k:1").starts_with("SERVER_ERROR"), "an invalidation that nobody carries out");
    let ready = sidecar.http("/readyz");
    assert!(ready.contains("200") && ready.contains(&format!("dnssrv+{SERVICE}")), "{ready}");
    assert!(sidecar.http("/page.json").contains(&format!(r#""entry":"dnssrv+{SERVICE}"#)));
    assert_eq!(sidecar.metrics().sum("kennel_discovery_last_success_timestamp_seconds", &[]), 0.0);
    within(LONG, "it is tried again", || discovered(&sidecar, "failures_total") >= 3.0);
    assert_eq!(sidecar.log().matches("until they are, every key of the pool is a miss").count(), 1);
    serve(&dns, &servers);
    until_servers(&sidecar, &labels(&servers));
    works(&sidecar);
    assert!(!sidecar.http("/readyz").contains("no server of pool"));
}

#[test]
fn a_reload_keeps_what_was_found_and_refuses_entries_that_are_not_found() {
    let dns = Dns::start();
    let servers = memcacheds(3);
    serve(&dns, &servers[..2]);
    let entry = srv(SERVICE);
    let sidecar = Kennel::start(&toml(&dns, &[&entry], ""));
    until_servers(&sidecar, &labels(&servers[..2]));
    dns.set(SERVICE, Zone::Fails);
    let changed =
        toml(&dns, &[&entry], "").replace("request_timeout = \"500ms\"", "request_timeout = \"400ms\"");
    let (status, changes) = sidecar.reload(&changed);
    assert_eq!((status, &changes[..]), (200, "pools.main.request_timeout: \"500ms\" → \"400ms\"\n"));
    works(&sidecar);
    let (status, mistakes) = sidecar.reload(&toml(&dns, &[&entry, "dns+nowhere.test:11211"], ""));
    assert_eq!(status, 422);
    assert_eq!(mistakes, "pools.main: dns+nowhere.test:11211 is not found: there is no such name\n");
    assert_eq!(sidecar.metrics().sum("kennel_config_last_reload_successful", &[]), 0.0);
    works(&sidecar);
    // While the servers change, the configuration cannot change them too.
    serve(&dns, &servers);
    within(LONG, "a change begins", || discovered(&sidecar, "step") > 0.0);
    let (status, mistakes) = sidecar.reload(&toml(&dns, &[&entry, &addresses(&servers)[0]], ""));
    assert!(status == 422 && mistakes.contains("wait until kennel_discovery_step is 0"), "{mistakes}");
    let (status, _) = sidecar.reload(&changed.replace("400ms", "450ms"));
    assert_eq!(status, 200);
    until_servers(&sidecar, &labels(&servers));
    let log = sidecar.log();
    let steps: Vec<_> = [1, 2, 3].map(|n| log.matches(&format!("step={n}")).count()).to_vec();
    assert_eq!(steps, [1, 1, 1], "{log}");
    assert!(
        log.contains(&format!("the servers change: added m2.test:{}", servers[2].address.port())),
        "{log}"
    );
}

#[test]
fn servers_and_entries_mix_and_each_server_of_an_entry_has_its_weight() {
    let dns = Dns::start();
    let servers = memcacheds(4);
    serve(&dns, &servers[..2]);
    dns.addresses("one.test", &["127.0.0.1"]);
    let (third, fourth) = (addresses(&servers)[2].clone(), servers[3].address.port());
    let entries = format!(
        "servers = [{third:?}, {{ address = \"dnssrv+{SERVICE}\", weight = 3 }}, \"dns+one.test:{fourth}\"]"
    );
    let text = toml(&dns, &["x:1"], "").replace("servers = [\"x:1\"]", &entries);
    let sidecar = Kennel::start(&text.replace("[pools.main]\n", "[pools.main]\nfailover = false\n"));
    until_servers(&sidecar, &[labels(&servers[..2]), vec![third, format!("127.0.0.1:{fourth}")]].concat());
    let mut client = sidecar.client();
    (0..400).for_each(|n| client.store(&format!("raw{n}"), b"v", 0));
    let items = |server: &Memcached| {
        let mut client = direct(server);
        (0..400).filter(|n| client.get(&format!("raw{n}")).is_some()).count()
    };
    let held: Vec<usize> = servers.iter().map(items).collect();
    assert_eq!(held.iter().sum::<usize>(), 400, "{held:?}");
    assert!(
        held[..2].iter().all(|n| *n > 100) && held[2..].iter().all(|n| (10..100).contains(n)),
        "{held:?}"
    );
}

#[test]
fn an_answer_that_is_too_long_for_udp_is_read_over_tcp() {
    let dns = Dns::start();
    let memcached = Memcached::start(&[]);
    let names: Vec<String> = (0..60).map(|n| format!("server-{n}.test")).collect();
    names.iter().for_each(|name| dns.addresses(name, &["127.0.0.1"]));
    let all: Vec<_> = names.iter().map(|name| (&name[..], memcached.address.port())).collect();
    dns.services(SERVICE, &all);
    let sidecar = Kennel::start(
        &toml(&dns, &[&srv(SERVICE)], "").replace("[pools.main]\n", "[pools.main]\nfailover = false\n"),
    );
    assert!(dns.asked_over_tcp() > 0);
    assert_eq!(discovered(&sidecar, "servers"), 60.0);
    works(&sidecar);
}

#[test]
fn a_plain_name_with_several_addresses_is_one_server_and_a_warning() {
    let dns = Dns::start();
    let memcached = Memcached::start(&["-l", "127.0.0.2"]);
    dns.addresses("cache.test", &["127.0.0.1", "127.0.0.2", "::1"]);
    dns.addresses("both.test", &["127.0.0.1", "::1"]);
    let port = memcached.address.port();
    let text = toml(&dns, &[&format!("cache.test:{port}"), &format!("both.test:{port}")], "");
    let sidecar = Kennel::start(&text);
    eventually("it warns", || sidecar.log().contains("has 3 addresses"));
    let log = sidecar.log();
    for words in
        [format!("write \"dns+cache.test:{port}\""), "\"dnssrv+_memcache._tcp.cache.test\"".to_owned()]
    {
        assert!(log.contains(&words), "{words}: {log}");
    }
    assert!(!log.contains("the name both.test"), "one address of each kind is one server: {log}");
    let file = sidecar.dir().join("kennel.toml");
    let (code, out, err) = kennel(&["check", "--connect", file.to_str().expect("UTF-8")]);
    assert!(
        out.contains(&format!(
            "warning: pools.main.servers: the name cache.test has 3 addresses, and cache.test:{port}"
        )),
        "{out}{err}"
    );
    assert_eq!(code, Some(0), "{out}{err}");
}

#[test]
fn the_commands_look_up_what_a_configuration_discovers() {
    let dns = Dns::start();
    let servers = memcacheds(3);
    serve(&dns, &servers);
    let dir = temp_dir();
    let file = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).expect("write the configuration");
        path.to_str().expect("UTF-8").to_owned()
    };
    let text = toml(&dns, &[&srv(SERVICE)], "");
    let found = file("found.toml", &text);
    let names: Vec<String> = labels(&servers);
    let written =
        file("written.toml", &text.replace(&format!("[\"dnssrv+{SERVICE}\"]"), &format!("{names:?}")));
    let missing = file("missing.toml", &text.replace(SERVICE, "_memcache._tcp.nowhere.test"));

    let (code, out, _) = kennel(&["check", &missing]);
    assert_eq!(code, Some(0), "a check without --connect asks nobody: {out}");
    assert!(
        out.contains("dnssrv+_memcache._tcp.nowhere.test: each SRV record is a server, named by its target"),
        "{out}"
    );
    assert!(out.contains("A change takes three steps of 2s each"), "{out}");
    let (code, out, err) = kennel(&["check", "--connect", &found]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(out.contains(&format!("pool main: dnssrv+{SERVICE}: {}", names.join(", "))), "{out}");
    assert_eq!(out.matches(", can guard keys").count(), 3, "{out}");
    let (code, _, err) = kennel(&["check", "--connect", &missing]);
    assert_eq!(code, Some(1));
    assert!(err.contains("pools.main: dnssrv+_memcache._tcp.nowhere.test: there is no such name"), "{err}");

    let (code, out, err) = kennel(&["ring", &found, &written]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("Pool main: 3 servers") && out.contains("0.00% of the keys move"), "{out}");
    let (code, _, err) = kennel(&["ring", &found, &missing]);
    assert!(code == Some(1) && err.contains("there is no such name"), "{err}");

    let sidecar = Kennel::start(&text);
    let (code, out, err) = kennel(&["tag", "--config", &found, "bump", "t:1"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let version = out.split(' ').nth(1).expect("a version").to_owned();
    let read = sidecar.client().get("@tag:t:1").expect("a version");
    assert_eq!(String::from_utf8_lossy(&read), version);
    let (code, _, err) = kennel(&["tag", "--config", &missing, "bump", "t:1"]);
    assert!(code == Some(1) && err.starts_with("kennel tag: pools.main: dnssrv+"), "{err}");
    let text = std::fs::read_to_string(&missing).expect("just written");
    let admin = format!("listen = \"{}\"", sidecar.admin());
    let asked =
        file("asked.toml", &text.replace("[admin]\nlisten = \"127.0.0.1:0\"", &format!("[admin]\n{admin}")));
    let (code, out, err) = kennel(&["health", "--config", &asked]);
    assert_eq!((code, &out[..]), (Some(0), "ready\n"), "{err}");
    std::fs::remove_dir_all(dir).expect("remove the configurations");
}

#[test]
fn a_server_that_returns_serves_nothing_that_was_invalidated_while_it_was_away() {
    let dns = Dns::start();
    let servers = memcacheds(4);
    serve(&dns, &servers);
    let sidecar = Kennel::start(&toml(&dns, &[&srv(SERVICE)], ""));
    until_servers(&sidecar, &labels(&servers));
    let mut client = sidecar.client();
    let all: Vec<String> = keys().collect();
    all.iter().for_each(|key| client.store(key, b"old", 600));
    assert_eq!(all.iter().filter(|key| client.get(key).as_deref() == Some(b"old")).count(), all.len());
    // The process goes on, with all that it has. Keys that move to the others and back are invalidated in between.
    serve(&dns, &servers[..3]);
    until_servers(&sidecar, &labels(&servers[..3]));
    all.iter().for_each(|key| drop(client.delete(key)));
    serve(&dns, &servers);
    until_servers(&sidecar, &labels(&servers));
    let fresh = all.iter().filter(|key| {
        client.send(format!("mg {key} v\r\n").as_bytes());
        let line = client.line();
        line.starts_with("VA") && !client.line().is_empty() && !line.contains(" X")
    });
    assert_eq!(fresh.count(), 0);
}

/// Each sidecar asks another DNS server, and so sees the change at another moment.
fn see_it_one_after_the_other(dns: &[Dns; 3], servers: &[Memcached]) {
    for dns in dns {
        let asked = dns.asked(SERVICE, "SRV");
        serve(dns, servers);
        within(LONG, "the change is seen", || dns.asked(SERVICE, "SRV") >= asked + 2);
    }
}

fn fleet_toml(dns: &Dns) -> String {
    toml(dns, &[&srv(SERVICE)], "").replace("settle = \"2s\"", "settle = \"8s\"")
}

#[test]
fn a_moved_key_costs_one_rebuild_if_a_fleet_sees_the_change_at_different_times() {
    let servers = memcacheds(5);
    let dns = [Dns::start(), Dns::start(), Dns::start()];
    let (before, after) = (&servers[..4], &servers[..]);
    dns.iter().for_each(|dns| serve(dns, before));
    let sidecars: Vec<Kennel> = dns.iter().map(|dns| Kennel::start(&fleet_toml(dns))).collect();
    assert_eq!(read_all(&sidecars[0], "v0"), (200, 0));
    let held_before = holders(&servers);
    see_it_one_after_the_other(&dns, after);
    let mut total = (0, 0);
    let is_done = |sidecar: &Kennel| servers_of(sidecar).len() == 5 && discovered(sidecar, "step") == 0.0;
    within(2 * LONG, "the change is complete", || {
        for sidecar in &sidecars {
            let (built, served) = read_all(sidecar, "v1");
            total = (total.0 + built, total.1 + served);
        }
        sidecars.iter().all(is_done)
    });
    let held = holders(&servers);
    let moved = keys().filter(|key| !held[key].iter().all(|at| held_before[key].contains(at))).count();
    println!("{moved} moved; {total:?}");
    assert!(moved > 20, "{moved}");
    assert_eq!(total, (moved, moved));
    assert!(sidecars.iter().all(|sidecar| !sidecar.log().contains("not adjacent")));
}

#[test]
fn no_acknowledged_change_is_lost_while_a_fleet_sees_changes_at_different_times() {
    let servers = memcacheds(5);
    let dns = [Dns::start(), Dns::start(), Dns::start()];
    dns.iter().for_each(|dns| serve(dns, &servers[..4]));
    let site = Site::of(dns.each_ref().map(|dns| Kennel::start(&fleet_toml(dns))));
    site.under_load(|site| {
        let settled = |n: usize| {
            within(3 * LONG, "the change is complete", || {
                site.with_sidecars(|sidecar| {
                    servers_of(sidecar).len() == n && discovered(sidecar, "step") == 0.0
                })
            });
        };
        see_it_one_after_the_other(&dns, &servers);
        settled(5);
        site.go_on();
        // One that shrinks, with another one that begins before this is complete.
        see_it_one_after_the_other(&dns, &servers[..3]);
        within(LONG, "it begins", || site.with_sidecars(|sidecar| discovered(sidecar, "step") >= 1.0));
        see_it_one_after_the_other(&dns, &servers[..4]);
        settled(4);
        site.go_on();
    });
    site.with_sidecars(|sidecar| {
        assert!(!sidecar.log().contains("not adjacent"), "{}", sidecar.log());
        true
    });
    site.report();
}
