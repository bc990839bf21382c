//! `stats` through a sidecar, as read by memcached monitoring: the names, formats and numbers of a real one.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, timed,
    without_failover,
};

/// Name → value.
type Stats = BTreeMap<String, String>;

/// memcached's names that Kennel does not send: docs/commands.md explains why.
fn is_left_out(what: &str, name: &str) -> bool {
    what == "settings" && name.starts_with("ssl_")
}

fn stats(client: &mut Client, what: &str) -> Stats {
    let mut line = client.execute(format!("stats {what}").trim_end());
    let mut stats = Stats::new();
    while line != "END" {
        let words: Vec<&str> = line.split(' ').collect();
        let ["STAT", name, value] = words[..] else { panic!("stats {what}: {line:?} has not three words") };
        assert!(!value.is_empty(), "stats {what}: {line:?}");
        assert!(stats.insert(name.to_owned(), value.to_owned()).is_none(), "stats {what}: {name} twice");
        line = client.line();
    }
    stats
}

fn number(stats: &Stats, name: &str) -> u64 {
    let value = stats.get(name).unwrap_or_else(|| panic!("{name} is not in {stats:?}"));
    value.parse().unwrap_or_else(|e| panic!("{name} {value}: {e}"))
}

/// The values as a monitoring tool parses them.
fn form(value: &str) -> &'static str {
    match value {
        _ if value.parse::<u64>().is_ok() => "a whole number",
        _ if value.parse::<f64>().is_ok() => "a number with a point",
        "yes" | "no" => "yes or no",
        _ => "text",
    }
}

fn toml(servers: &[Memcached]) -> String {
    let hot = "stale_for = \"30s\"\nlock_ttl = \"3s\"\ncold_wait = \"0ms\"";
    sidecar_toml(&addresses(servers), &[guarded("hot", "hot:*", hot), raw("raw", "*")])
}

fn sidecar(servers: &[Memcached]) -> Kennel {
    Kennel::start(&toml(servers))
}

/// Traffic on every server and by the sidecar's clients: keys on all servers, of two sizes.
fn fill(kennel: &Kennel) {
    let mut client = kennel.client();
    for i in 0..60 {
        client.store(&format!("k{i}"), &vec![b'x'; if i % 2 == 0 { 10 } else { 5000 }], 0);
        assert!(client.get(&format!("k{i}")).is_some());
    }
}

#[test]
fn every_name_that_memcached_sends_is_sent_with_a_value_of_the_same_form() {
    let (memcached, servers) = (Memcached::start(&[]), memcacheds(2));
    let kennel = sidecar(&servers);
    fill(&kennel);
    let mut real = direct(&memcached);
    for size in [10, 5000] {
        real.store("k", &vec![b'x'; size], 0);
    }
    for what in ["", "settings", "items", "slabs", "sizes"] {
        let (theirs, ours) = (stats(&mut real, what), stats(&mut kennel.client(), what));
        assert!(!theirs.is_empty(), "stats {what}");
        for (name, value) in theirs.iter().filter(|(name, _)| !is_left_out(what, name)) {
            let reported = ours.get(name).unwrap_or_else(|| panic!("stats {what}: no {name} in {ours:?}"));
            assert_eq!(form(reported), form(value), "stats {what}: {name} {reported}, memcached has {value}");
        }
    }
}

#[test]
fn what_clients_do_is_counted_as_memcached_counts_it() {
    const COUNTED: [&str; 20] = [
        "cmd_get",
        "cmd_set",
        "cmd_flush",
        "cmd_touch",
        "get_hits",
        "get_misses",
        "delete_misses",
        "delete_hits",
        "incr_misses",
        "incr_hits",
        "decr_misses",
        "decr_hits",
        "cas_misses",
        "cas_hits",
        "cas_badval",
        "touch_hits",
        "touch_misses",
        "store_too_large",
        "store_no_memory",
        "total_items",
    ];
    let (memcached, servers) = (Memcached::start(&[]), memcacheds(2));
    let kennel = sidecar(&servers);
    eventually("both workers are connected to both servers", || {
        kennel.metrics().sum("kennel_upstream_connections_total", &[]) == 4.0
    });
    let counted = |client: &mut Client| {
        // What Kennel stores to probe a server counts too.
        let items = number(&stats(client, ""), "total_items");
        for command in [
            "set a 0 0 1\r\n1",
            "set b 0 0 1 noreply\r\n1\r\nadd a 0 0 1\r\n2",
            "replace none 0 0 1\r\n2",
            "append a 0 0 1\r\n0",
            "incr a 5",
            "incr none 1",
            "decr a 1",
            "decr none 1",
            "decr none 1",
            "cas none 0 0 1 1\r\n1",
            "cas a 0 0 1 1000000\r\n1",
            "touch a 0",
            "touch none 0",
            "touch none 0",
            "delete b",
            "delete b",
            "delete none",
            "ms m 1\r\n1",
            "ms m 1 ME\r\n1",
            "ms m 1 C1000000\r\n1",
            "md none",
            "ma m",
            "ma none",
            "md m",
            "mg a",
            "mg none v",
            "flush_all",
        ] {
            client.execute(command);
        }
        client.store("a", b"1", 0);
        let (_, cas) = client.gets("a").expect("just stored");
        assert_eq!(client.execute(&format!("cas a 0 0 1 {cas}\r\n2")), "STORED");
        assert_eq!(client.get_many(&["a", "none", "a", "other"]).len(), 2);
        for (command, items) in [("gat 0 a none a", 2), ("gats 0 a", 1)] {
            client.send(format!("{command}\r\n").as_bytes());
            assert_eq!(client.items().expect("a reply to gat").len(), items);
        }
        let big = vec![b'x'; 1_100_000];
        assert!(client.set("a", &big, 0).starts_with("SERVER_ERROR"));
        assert!(client.set("a", &vec![b'x'; 1_048_570], 0).starts_with("SERVER_ERROR"));
        let stats = stats(client, "");
        let before = |name| if name == "total_items" { items } else { 0 };
        COUNTED.map(|name| (name, number(&stats, name) - before(name)))
    };
    let theirs = counted(&mut direct(&memcached));
    assert!(theirs.iter().filter(|(_, count)| *count > 0).count() >= 18, "{theirs:?}");
    assert_eq!(counted(&mut kennel.client()), theirs);
}

#[test]
fn reads_of_guarded_keys_are_the_clients_hits_and_misses_whatever_they_cost_the_servers() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers);
    let mut client = kennel.client();
    assert_eq!(client.get("hot:k"), None);
    client.store("hot:k", b"v", 60);
    for _ in 0..3 {
        assert_eq!(client.get("hot:k"), Some(b"v".to_vec()));
    }
    let stats = stats(&mut client, "");
    let read = ["cmd_get", "get_hits", "get_misses", "cmd_set", "cmd_meta"].map(|name| number(&stats, name));
    assert_eq!(read, [4, 3, 1, 1, 0]);
}

/// Waits until the sidecar has left its mark on each server.
fn until_marked(servers: &[Memcached]) {
    eventually("the marks are there", || {
        let record = |server| direct(server).get("@kennel:marks:main");
        servers.iter().all(|server| record(server).is_some_and(|record| !record.is_empty()))
    });
}

/// What a sidecar reports, and for some names the sums of what the servers do. The sidecar reads its marks on each server every
/// second, so this is repeated until nothing has changed meanwhile.
fn with_sums(
    servers: &[Memcached],
    client: &mut Client,
    what: &str,
    is_compared: impl Fn(&str) -> bool,
) -> (Stats, BTreeMap<String, u64>) {
    let sums = || {
        let mut sums = BTreeMap::new();
        for server in servers {
            for (name, value) in
                stats(&mut direct(server), what).into_iter().filter(|(name, _)| is_compared(name))
            {
                *sums.entry(name).or_insert(0) += value.parse::<u64>().expect("a number");
            }
        }
        sums
    };
    let mut found = None;
    eventually("the servers' numbers stand still for a moment", || {
        let before = sums();
        let reported = stats(client, what);
        let is_undisturbed = sums() == before;
        found = Some((reported, before));
        is_undisturbed
    });
    found.expect("just set")
}

#[test]
fn what_only_the_servers_know_is_their_sum() {
    let servers = memcacheds(3);
    // The records of failover are items too, and change meanwhile.
    let kennel = Kennel::start(&without_failover(&toml(&servers)));
    fill(&kennel);
    until_marked(&servers);
    let mut client = kennel.client();
    let general_names = ["bytes", "curr_items", "total_items", "limit_maxbytes", "evictions", "hash_bytes"];
    let (general, sums) = with_sums(&servers, &mut client, "", |name| general_names.contains(&name));
    for name in general_names {
        assert_eq!(number(&general, name), sums[name], "{name}");
    }
    // On each server there is a record of marks too.
    assert_eq!(number(&general, "curr_items"), 63);
    assert_eq!(number(&general, "hash_power_level"), 16, "the largest, not the sum");
    let largest = ["age", "age_hot", "age_warm", "evicted_time", "chunk_size", "chunks_per_page"];
    // Values that memcached's own threads change at any time are not compared.
    let moves = ["number_", "moves_", "crawler_", "lrutail_"];
    let adds_up = |name: &str| {
        let Some((_, field)) = name.rsplit_once(':') else { return name == "total_malloced" };
        !largest.contains(&field) && !moves.iter().any(|prefix| field.starts_with(prefix))
    };
    let (items, sums_of_items) = with_sums(&servers, &mut client, "items", adds_up);
    let (slabs, sums_of_slabs) = with_sums(&servers, &mut client, "slabs", adds_up);
    for (what, stats, sums) in [("items", &items, sums_of_items), ("slabs", &slabs, sums_of_slabs)] {
        let compared: Vec<_> = stats.keys().filter(|name| adds_up(name)).collect();
        assert!(compared.len() > 20, "{stats:?}");
        for name in compared {
            assert_eq!(Some(number(stats, name)), sums.get(name).copied(), "stats {what}: {name}");
        }
    }
    // Of the keys of both sizes, and of the marks.
    assert_eq!(number(&slabs, "active_slabs"), 3);
    assert_eq!(number(&slabs, "1:chunk_size"), 96);
    assert_eq!(number(&stats(&mut client, "settings"), "maxbytes"), number(&general, "limit_maxbytes"));
}

#[test]
fn the_settings_are_the_sidecars_where_it_has_its_own() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]);
    let kennel = Kennel::start(&toml.replace("workers = 2", "workers = 2\nmax_connections = 77"));
    let mut client = kennel.client();
    let settings = stats(&mut client, "settings");
    assert_eq!(settings["tcpport"], kennel.address().port().to_string());
    let own = ["inter", "num_threads", "maxconns", "item_size_max"].map(|name| settings[name].as_str());
    assert_eq!(own, ["127.0.0.1", "2", "77", "1048576"]);
    let general = stats(&mut client, "");
    let own = ["threads", "max_connections", "curr_connections"].map(|name| number(&general, name));
    assert_eq!(own, [2, 77, 1]);
}

#[test]
fn a_server_that_is_in_two_pools_is_counted_once() {
    let servers = memcacheds(2);
    let more = format!("\n[pools.other]\nservers = {:?}\n\n[[rules]]", addresses(&servers));
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]).replacen("[[rules]]", &more, 1);
    let kennel = Kennel::start(&toml);
    let stats = stats(&mut kennel.client(), "");
    assert_eq!(number(&stats, "kennel_servers"), 2);
    assert_eq!(number(&stats, "limit_maxbytes"), 2 * 64 * 1024 * 1024);
}

#[test]
fn with_a_server_down_stats_says_the_rest_and_who_is_missing() {
    let mut servers = memcacheds(2);
    let kennel = sidecar(&servers);
    fill(&kennel);
    let mut client = kennel.client();
    let missing = |client: &mut Client, what: &str| stats(client, what).get("kennel_missing_1").cloned();
    assert_eq!(missing(&mut client, ""), None);
    servers[1].kill();
    for what in ["", "settings", "slabs"] {
        assert_eq!(missing(&mut client, what), Some(servers[1].address()), "stats {what}");
    }
    let general = stats(&mut client, "");
    let there = ["kennel_servers", "kennel_servers_answering", "cmd_set"].map(|name| number(&general, name));
    assert_eq!(there, [2, 1, 60]);
    let left = number(&stats(&mut direct(&servers[0]), ""), "curr_items");
    assert_eq!(number(&general, "curr_items"), left);
    assert!(stats(&mut client, "items").keys().all(|name| name.starts_with("items:")));
    servers[0].kill();
    eventually("the other is given up too", || missing(&mut client, "") == Some(servers[0].address()));
    let general = stats(&mut client, "");
    assert_eq!((number(&general, "cmd_set"), general.get("curr_items")), (60, None), "unknown is not 0");
    for what in ["items", "slabs", "sizes", "settings", "reset"] {
        assert_eq!(client.execute(&format!("stats {what}")), "SERVER_ERROR server is down", "stats {what}");
    }
}

#[test]
fn a_server_that_never_replies_is_unavailable_after_request_timeout() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers);
    fill(&kennel);
    let mut client = kennel.client();
    servers[1].stop();
    let (stats, took) = timed(|| stats(&mut client, ""));
    assert_eq!(stats.get("kennel_missing_1"), Some(&servers[1].address()));
    // request_timeout is 500 ms; anything above that is due to this machine.
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    servers[1].cont();
}

#[test]
fn a_reset_reaches_every_server_and_the_sidecars_stats_but_not_its_metrics() {
    let mut servers = memcacheds(2);
    let kennel = sidecar(&servers);
    fill(&kennel);
    until_marked(&servers);
    let mut client = kennel.client();
    let requests = |kennel: &Kennel| kennel.metrics().sum("kennel_requests_total", &["command=\"set\""]);
    assert_eq!((number(&stats(&mut client, ""), "cmd_set"), requests(&kennel)), (60, 60.0));
    let zero = ["cmd_set", "cmd_get", "get_hits", "total_connections", "total_items"];
    let mut general = Stats::new();
    // The sidecar renews its marks every few seconds, perhaps between the reset and the look at the servers.
    eventually("all is reset", || {
        assert_eq!(client.execute("stats reset"), "RESET");
        general = stats(&mut client, "");
        let of_servers = servers.iter().map(|server| number(&stats(&mut direct(server), ""), "cmd_set"));
        zero.map(|name| number(&general, name)) == [0; 5] && of_servers.sum::<u64>() == 0
    });
    assert_eq!(["curr_connections", "curr_items"].map(|name| number(&general, name)), [1, 62], "levels stay");
    client.store("k", b"v", 0);
    assert_eq!(number(&stats(&mut client, ""), "cmd_set"), 1);
    assert_eq!(requests(&kennel), 61.0);
    servers[1].kill();
    assert!(client.execute("stats reset").starts_with("SERVER_ERROR"));
}

#[test]
fn stats_proxy_counts_by_command_under_the_names_of_memcacheds_proxy() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers);
    let mut client = kennel.client();
    client.store("a", b"1", 0);
    client.get_many(&["a", "none", "other"]);
    client.gets("a");
    for command in ["mg a", "md a", "mn", "incr a 1", "set a 0 0 x"] {
        client.execute(command);
    }
    let proxy = stats(&mut client, "proxy");
    let counts = [
        "cmd_set",
        "cmd_get",
        "cmd_gets",
        "cmd_mg",
        "cmd_md",
        "cmd_mn",
        "cmd_incr",
        "cmd_add",
        "proxy_conn_requests",
        "proxy_conn_errors",
        "proxy_req_active",
        "proxy_await_active",
        "proxy_backend_total",
        "proxy_backend_marked_bad",
    ];
    let reported = counts.map(|name| number(&proxy, name));
    assert_eq!(reported, [1, 3, 1, 1, 1, 1, 1, 0, 10, 0, 0, 0, 2, 0], "{counts:?}");
    let general = stats(&mut client, "");
    assert_eq!(number(&general, "proxy_backend_total"), 2);
}

#[test]
fn the_page_of_commands_describes_each_of_the_sidecars_own_numbers() {
    let mut servers = memcacheds(1);
    let kennel = sidecar(&servers);
    servers[0].kill();
    let page = include_str!("../../docs/commands.md");
    let mut client = kennel.client();
    eventually("the server is given up", || stats(&mut client, "").contains_key("kennel_missing_1"));
    let own = stats(&mut client, "");
    assert!(own.len() > 50 && !own.contains_key("bytes"), "{own:?}");
    for name in own.keys() {
        let family = name.split('_').next().unwrap_or(name);
        let is_there = page.contains(&format!("`{name}`")) || page.contains(&format!("`{family}_…`"));
        assert!(is_there, "docs/commands.md must explain {name}");
    }
}

#[test]
fn stats_kennel_has_the_metrics_of_the_sidecar_for_clients_without_the_admin_address() {
    let servers = memcacheds(2);
    let kennel = sidecar(&servers);
    fill(&kennel);
    let mut client = kennel.client();
    eventually("the client that filled it has gone", || {
        stats(&mut client, "kennel")["kennel_client_connections"] == "1"
    });
    let own = stats(&mut client, "kennel");
    let metrics = kennel.metrics();
    for name in ["kennel_client_connections", "kennel_leases_live", "kennel_tag_bumps_total"] {
        assert_eq!(own[name].parse::<f64>().expect(name), metrics.sum(name, &[]), "{name}");
    }
    for server in &servers {
        let up = format!("kennel_upstream_up{{pool=\"main\",server=\"{}\"}}", server.address());
        assert_eq!(own.get(&up).map(String::as_str), Some("1"), "{own:?}");
    }
    let of_gets: f64 = ["hit", "miss_won"]
        .iter()
        .filter_map(|outcome| {
            own.get(&format!("kennel_requests_total{{command=\"get\",outcome=\"{outcome}\"}}"))
        })
        .map(|count| count.parse::<f64>().expect("a number"))
        .sum();
    assert!(
        of_gets > 0.0 && of_gets <= metrics.sum("kennel_requests_total", &["command=\"get\""]),
        "{own:?}"
    );
    assert!(own.keys().all(|name| !name.contains("_bucket") && !name.contains("rule=")), "{own:?}");
}
