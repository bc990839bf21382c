//! Sidecars that place keys differently notice each other by the marks on the servers: promise 12.

use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, Memcached, addresses, direct, guarded, memcacheds, raw, sidecar_toml, within};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(60);

/// Guarded keys `k…`, each with a tag of its own, and raw keys. `keys` are further keys of the pool.
fn toml(servers: &[Memcached], keys: &str) -> String {
    let rules = [guarded("k", "k:{n}", "tags = [\"t:{n}\"]\ncold_wait = \"0ms\""), raw("rest", "*")];
    sidecar_toml(&addresses(servers), &rules).replace("[pools.main]\n", &format!("[pools.main]\n{keys}\n"))
}

/// A sidecar that knows the first three servers, and one that knows all four.
fn three_and_four(keys: &str) -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(4);
    let sidecars = [&servers[..3], &servers].map(|known| Kennel::start(&toml(known, keys)));
    (servers, sidecars)
}

/// How many placements are in use, and how many of them are not adjacent, as this sidecar sees it.
fn placements(sidecar: &Kennel) -> [f64; 2] {
    let metrics = sidecar.metrics();
    ["placements", "placements_unknown"].map(|name| metrics.sum(&format!("kennel_pool_{name}"), &[]))
}

/// Waits until the sidecars have noticed each other. Returns how long that took.
fn until_noticed(sidecars: &[Kennel]) -> Duration {
    within(LONG, "both notice the other placement", || sidecars.iter().all(|s| placements(s) == [2.0, 1.0]))
}

fn until_alone(sidecar: &Kennel) -> Duration {
    within(LONG, "the other placement is gone", || placements(sidecar) == [1.0, 0.0])
}

/// The marks of placements on a server.
fn record(server: &Memcached, keyspace: &str) -> String {
    let value = direct(server).get(&format!("@kennel:marks:{keyspace}")).unwrap_or_default();
    let record = String::from_utf8(value).expect("a record is text");
    record.lines().filter(|line| !line.starts_with("rules ")).map(|line| format!("{line}\n")).collect()
}

/// Waits until this server's record, which must have so many marks, has been renewed twice.
fn until_renewed(server: &Memcached, keyspace: &str, marks: usize) {
    let (mut seen, mut renewals) = (String::new(), 0);
    within(LONG, "the record is renewed", || {
        let now = record(server, keyspace);
        renewals += usize::from(now != seen && now.lines().count() == marks);
        seen = now;
        renewals > 2 * marks
    });
}

/// Stores values under `k:0` to `k:99`, each read first as a client does.
fn fill(client: &mut Client) {
    for n in 0..100 {
        let key = format!("k:{n}");
        assert_eq!(client.get(&key), None);
        client.store(&key, b"old", 600);
    }
}

/// Bumps the tag of each key. Returns how many bumps were acknowledged, and after how many of these the other client still gets
/// the old value.
fn bump_all(client: &mut Client, other: &mut Client) -> (usize, usize) {
    let mut acknowledged = Vec::new();
    for n in 0..100 {
        let reply = client.delete(&format!("@tag:t:{n}"));
        match &reply[..] {
            "DELETED" => acknowledged.push(n),
            refused => assert!(refused.starts_with("SERVER_ERROR"), "{refused}"),
        }
    }
    let lost = acknowledged.iter().filter(|n| other.get(&format!("k:{n}")).is_some()).count();
    (acknowledged.len(), lost)
}

#[test]
fn a_change_of_servers_in_one_go_is_reported_by_both_sides_and_once_again_when_it_is_over() {
    let (_servers, sidecars) = three_and_four("");
    fill(&mut sidecars[1].client());
    let took = until_noticed(&sidecars);
    println!("noticed after {took:?}");
    // This is what operators are warned of: by default the sidecars go on.
    let (acknowledged, lost) = bump_all(&mut sidecars[0].client(), &mut sidecars[1].client());
    println!("{lost} of {acknowledged} acknowledged bumps were lost");
    assert_eq!(acknowledged, 100);
    assert!(lost > 0);
    let hashes = sidecars.each_ref().map(|sidecar| {
        let log = sidecar.log();
        assert_eq!(log.matches("places keys in a way that is not adjacent").count(), 1, "{log}");
        let found = ["own", "other"].map(|field| {
            let (_, rest) = log.split_once(&format!("{field}=")).unwrap_or_else(|| panic!("{log}"));
            rest.split_whitespace().next().unwrap_or_default().to_owned()
        });
        let ready = sidecar.http("/readyz");
        let page = sidecar.http("/page.json");
        assert!(ready.starts_with("HTTP/1.0 200") || ready.starts_with("HTTP/1.1 200"), "{ready}");
        for hash in &found {
            assert!(
                hash.len() == 16 && ready.contains(hash) && page.contains(hash),
                "{hash}\n{ready}\n{page}"
            );
        }
        found
    });
    assert_eq!([&hashes[0][0], &hashes[0][1]], [&hashes[1][1], &hashes[1][0]]);
    let [three, four] = sidecars;
    three.kill();
    println!("over after {:?}", until_alone(&four));
    assert_eq!(four.log().matches("any longer").count(), 1, "{}", four.log());
    assert!(!four.http("/readyz").contains("another sidecar uses placement"));
}

#[test]
fn with_miss_no_acknowledged_bump_is_lost_while_a_placement_is_not_adjacent() {
    for failover in ["false", "true"] {
        let keys = format!("unknown_placement = \"miss\"\nfailover = {failover}");
        let servers = memcacheds(4);
        let four = Kennel::start(&toml(&servers, &keys));
        let mut by_four = four.client();
        fill(&mut by_four);
        let three = Kennel::start(&toml(&servers[..3], &keys));
        let mut by_three = three.client();
        let sidecars = [three, four];
        println!("noticed after {:?}", until_noticed(&sidecars));
        let served =
            |client: &mut Client| (0..100).filter(|n| client.get(&format!("k:{n}")).is_some()).count();
        assert_eq!([served(&mut by_three), served(&mut by_four)], [0, 0]);
        assert_eq!(bump_all(&mut by_three, &mut by_four), (0, 0));
        assert_eq!(bump_all(&mut by_four, &mut by_three), (0, 0));
        for reply in [by_four.delete("k:1"), by_four.set("k:1", b"v", 600), by_three.set("k:1", b"v", 600)] {
            assert!(reply.starts_with("SERVER_ERROR"), "{reply}");
        }
        // Raw keys have nothing to do with it.
        by_four.store("raw", b"v", 600);
        assert_eq!(by_four.get("raw").as_deref(), Some(&b"v"[..]));
        for sidecar in &sidecars {
            let log = sidecar.log();
            assert_eq!(log.matches("guarded keys are misses and cannot be changed").count(), 1, "{log}");
            let ready = sidecar.http("/readyz");
            assert!(ready.contains("guarded keys are not served until it is gone"), "{ready}");
            assert!(!ready.contains("where its keys are is unknown"), "{ready}");
        }
        // Once there is one placement, what was stored before is served again: no bump of it has been acknowledged.
        let [three, four] = sidecars;
        three.kill();
        until_alone(&four);
        within(LONG, "what was stored before is served again", || served(&mut by_four) == 100);
        assert_eq!(by_four.delete("@tag:t:1"), "DELETED");
        assert_eq!(served(&mut by_four), 99);
    }
}

#[test]
fn a_fleet_of_one_placement_has_one_mark_on_each_server_and_no_alarm() {
    let servers = memcacheds(2);
    let sidecars = [(); 3].map(|()| Kennel::start(&toml(&servers, "unknown_placement = \"miss\"")));
    for server in &servers {
        until_renewed(server, "main", 1);
    }
    let mut client = sidecars[0].client();
    client.store("k:1", b"v", 600);
    for sidecar in &sidecars {
        assert_eq!(placements(sidecar), [1.0, 0.0]);
        assert_eq!(sidecar.client().get("k:1").as_deref(), Some(&b"v"[..]));
        assert!(!sidecar.log().contains("not adjacent"), "{}", sidecar.log());
    }
}

#[test]
fn pools_that_share_servers_and_no_keys_are_told_apart_by_their_keyspace() {
    let servers = memcacheds(2);
    // Two pools of one sidecar, and a pool of the same name in another fleet.
    let second = format!("[pools.other]\nservers = {:?}\n", addresses(&servers[..1]));
    let sidecar = Kennel::start(&format!("{}{second}", toml(&servers, "")));
    let foreign = Kennel::start(&toml(&servers[..1], "keyspace = \"foreign\""));
    for keyspace in ["main", "other", "foreign"] {
        until_renewed(&servers[0], keyspace, 1);
    }
    let metrics = sidecar.metrics();
    for pool in ["pool=\"main\"", "pool=\"other\""] {
        assert_eq!(metrics.sum("kennel_pool_placements", &[pool]), 1.0);
        assert_eq!(metrics.sum("kennel_pool_placements_unknown", &[pool]), 0.0);
    }
    assert_eq!(placements(&foreign), [1.0, 0.0]);
    // The same keyspace under another name of the pool.
    let toml = toml(&servers[1..], "").replace("[pools.main]", "[pools.main]\nkeyspace = \"other\"");
    drop(foreign);
    let first = format!("[pools.shared]\nservers = {:?}\nkeyspace = \"other\"\n", addresses(&servers));
    let foreign = Kennel::start(&format!("{toml}{first}"));
    let unknown = |sidecar: &Kennel, pool: &str| {
        sidecar.metrics().sum("kennel_pool_placements_unknown", &[&format!("pool={pool:?}")])
    };
    within(LONG, "both notice the other placement", || {
        unknown(&sidecar, "other") == 1.0 && unknown(&foreign, "shared") >= 1.0
    });
    assert_eq!(unknown(&sidecar, "main"), 0.0);
}

#[test]
fn embedded_servers_have_no_marks() {
    let rules = [guarded("k", "k:{n}", ""), raw("rest", "*")];
    let sidecar = Kennel::start(&sidecar_toml(&["embedded:8MiB".to_owned()], &rules));
    sidecar.client().store("k:1", b"v", 60);
    assert!(!sidecar.metrics().0.keys().any(|series| series.starts_with("kennel_pool_placements")));
    assert!(sidecar.http("/page.json").contains(r#""placement":null"#));
}

#[test]
fn a_sidecar_that_goes_back_behind_the_end_of_a_change_says_so() {
    let servers = memcacheds(3);
    let old = addresses(&servers[..2]);
    let step = |keys: &str| {
        let keys = format!("failover = false\nunknown_placement = \"miss\"\n{keys}");
        Kennel::start(&toml(&servers[1..], &keys))
    };
    let last_but_one = format!("previous = {old:?}\ntake_over = false");
    let (three, four) = (step(&last_but_one), step(""));
    for server in &servers[1..] {
        within(LONG, "the end of the change is noted", || record(server, "main").contains(" ended "));
    }
    assert_eq!([placements(&three), placements(&four)].map(|[_, unknown]| unknown), [0.0; 2]);
    four.kill();
    assert!(!three.log().contains("goes back"), "{}", three.log());
    three.kill();
    let two = step(&format!("previous = {old:?}"));
    within(LONG, "it goes back behind the end", || placements(&two)[1] == 1.0);
    let (log, ready) = (two.log(), two.http("/readyz"));
    assert_eq!(log.matches("goes back behind the end of a change").count(), 1, "{log}");
    assert!(ready.contains("guarded keys are not served") && ready.contains("behind the end"), "{ready}");
    let error = "SERVER_ERROR the server of this key is being replaced";
    assert_eq!(two.client().set("k:1", b"v", 60), error);
    two.kill();
    // A change back is another change.
    let back = Kennel::start(&toml(&servers[1..], &format!("failover = false\nnext = {old:?}")));
    within(LONG, "it begins", || {
        !servers[1..].iter().any(|server| record(server, "main").contains(" ended "))
    });
    assert_eq!(placements(&back)[1], 0.0, "{}", back.log());
}

#[test]
fn sidecars_with_other_rules_notice_each_other_and_tell_what_is_where() {
    let servers = memcacheds(2);
    let one = Kennel::start(&toml(&servers, ""));
    let differ = |sidecar: &Kennel| sidecar.metrics().sum("kennel_pool_rules_differ", &["pool=\"main\""]);
    assert_eq!(differ(&one), 0.0);
    // The same rules under another name are the same.
    let same = Kennel::start(&toml(&servers, "").replace("name = \"k\"", "name = \"other\""));
    let other = Kennel::start(&toml(&servers, "").replace("\"k:{n}\"", "\"k:{n}:*\""));
    within(LONG, "all notice the other rules", || {
        [&one, &same, &other].iter().all(|sidecar| differ(sidecar) == 1.0)
    });
    assert_eq!(placements(&one), [1.0, 0.0]);
    let ready = one.http("/readyz");
    assert!(
        ready.contains("sidecars have had different rules for") && ready.contains("2 fingerprints"),
        "{ready}"
    );
    assert_eq!(one.log().matches("sidecars have had different rules for").count(), 1, "{}", one.log());
    let stats = {
        let mut client = one.client();
        client.send(b"stats kennel\r\n");
        String::from_utf8(client.until(b"END\r\n")).expect("text")
    };
    assert!(stats.contains("kennel_pool_rules_differ"), "{stats}");
    let admin = one.admin().to_string();
    let fleet = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"))
        .args(["fleet", "--admin", &admin])
        .output()
        .expect("run kennel");
    let fleet = String::from_utf8_lossy(&fleet.stdout).into_owned();
    assert_eq!(fleet.matches("  rules ").count(), 2, "{fleet}");
    assert_eq!(
        fleet.matches(&format!("kennel {}  since 20", env!("CARGO_PKG_VERSION"))).count(),
        2,
        "{fleet}"
    );
    assert!(fleet.contains("pool main\n") && fleet.contains("as this sidecar"), "{fleet}");
    assert!(!fleet.contains("k:{n}"), "no pattern and no key: {fleet}");
    // It is over once all have the same, also by a reload.
    assert_eq!(other.reload(&toml(&servers, "")).0, 200);
    within(LONG, "all have the same rules", || {
        [&one, &same, &other].iter().all(|sidecar| differ(sidecar) == 0.0)
    });
    assert!(one.log().contains("all sidecars have the same rules again"), "{}", one.log());
    assert!(!one.http("/readyz").contains("different rules"));
}
