//! `kennel explain` and `GET /explain`: what they show, and that they change nothing.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, raw, sidecar_toml, timed,
    until_stale, with_long_windows, without_failover,
};

/// What the sidecar says of a key, of plain ASCII letters, digits and `:`.
fn explain(kennel: &Kennel, key: &str) -> Value {
    let reply = kennel.http(&format!("/explain?format=json&key={key}"));
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no reply: {reply}"));
    assert!(head.contains(" 200 ") && head.contains("application/json"), "{reply}");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Runs `kennel explain` with these arguments.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    command.arg("explain").args(arguments).output().expect("run kennel")
}

/// What `kennel explain` prints.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What `kennel explain` fails with.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

const TAGGED: &str = "tags = [\"blog:{blog}\", \"posts\"]\nstale_for = \"60s\"\ncold_wait = \"2s\"";

fn pages(more: &str) -> String {
    guarded("pages", "blog:{blog}:page:*", &format!("{TAGGED}\n{more}"))
}

fn words(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|word| word.as_str().expect("a string")).collect()
}

#[test]
fn the_life_of_a_key_is_told_from_nothing_to_the_end_of_its_rebuild() {
    let servers = memcacheds(2);
    let toml = sidecar_toml(&addresses(&servers), &[raw("static", "static:*"), pages("")]);
    let (kennel, other) = (Kennel::start(&toml), Kennel::start(&toml));
    let key = "blog:7:page:1";
    let nothing = explain(&kennel, key);
    assert_eq!((&nothing["class"], &nothing["item"]["state"]), (&"guarded".into(), &"nothing".into()));
    let rule = &nothing["rule"];
    assert_eq!(
        (&rule["name"], &rule["index"], &rule["match"]),
        (&"pages".into(), &1.into(), &"blog:{blog}:page:*".into())
    );
    assert_eq!((&rule["captures"][0]["name"], &rule["captures"][0]["value"]), (&"blog".into(), &"7".into()));
    assert_eq!(nothing["earlier_rules"]["last"][0]["match"], "static:*");
    assert_eq!(nothing["tags"][0]["status"], "missing", "explaining creates no tag");

    // The stub of a first build, with its lease, and somebody who waits.
    let (mut winner, mut reader) = (kennel.client(), kennel.client());
    assert_eq!(winner.get(key), None);
    reader.send(format!("get {key}\r\n").as_bytes());
    let mut building = Value::Null;
    eventually("the second reader waits", || {
        building = explain(&kennel, key);
        building["local"]["waiters"] == 1
    });
    assert_eq!(building["item"]["state"], "stub");
    assert_eq!(building["local"]["leases"].as_array().map(Vec::len), Some(1), "{building}");
    let elsewhere = explain(&other, key);
    assert_eq!((&elsewhere["item"]["state"], &elsewhere["local"]["waiters"]), (&"stub".into(), &0.into()));
    winner.send(format!("set {key} 9 60 5\r\nhello\r\n").as_bytes());
    assert_eq!(winner.line(), "STORED");
    assert_eq!(reader.items().expect("a reply").len(), 1);

    // Fresh.
    let fresh = explain(&kennel, key);
    let item = &fresh["item"];
    assert_eq!(
        (&item["state"], &item["flags"], &item["value_bytes"]),
        (&"fresh".into(), &9.into(), &5.into())
    );
    assert!(
        matches!(item["fresh_for_s"].as_u64(), Some(58..=60)) && item["header"]["stale_for_s"] == 60,
        "{item}"
    );
    let statuses: Vec<_> = fresh["tags"].as_array().expect("tags").iter().map(|tag| &tag["status"]).collect();
    assert_eq!(statuses, ["unchanged", "unchanged"]);
    let place = holder(&servers, key);
    assert_eq!(fresh["place"]["server"], servers[place].address().as_str());
    assert_eq!(fresh["lock"]["held"], false);

    // Stale because a tag moved, at the time that the tag itself tells.
    assert_eq!(other.client().delete("@tag:posts"), "DELETED");
    let stale = explain(&kennel, key);
    assert_eq!((&stale["item"]["state"], words(&stale["item"]["reasons"])), (&"stale".into(), vec!["tag"]));
    let moved = &stale["tags"][1];
    assert_eq!((&moved["name"], &moved["status"]), (&"posts".into(), &"moved".into()));
    assert_eq!(stale["item"]["stale_since"], moved["version"]["moved"]);
    let tag = explain(&kennel, "@tag:posts");
    assert_eq!((&tag["class"], &tag["tags"][0]["version"]), (&"tag".into(), &moved["version"]));
    assert!(stale["summary"].as_str().is_some_and(|text| text.contains("nobody rebuilds it")), "{stale}");

    // A client of the other sidecar rebuilds it: both say which sidecar that is.
    assert_eq!(other.client().get(key), None, "a client that leaves: its lease is released");
    let mut builder = other.client();
    eventually("it is free again", || builder.get(key).is_none());
    let (here, there) = (explain(&kennel, key), explain(&other, key));
    assert_eq!((&here["lock"]["held"], &here["lock"]["holder_is_this"]), (&true.into(), &false.into()));
    assert_eq!(
        (&there["lock"]["holder_is_this"], &there["sidecar"]),
        (&true.into(), &here["lock"]["holder"])
    );
    assert_eq!(words(&there["item"]["reasons"]), ["tag", "marked"]);
    assert_eq!(
        (there["local"]["leases"].as_array().map(Vec::len), here["local"]["leases"].as_array().map(Vec::len)),
        (Some(1), Some(0))
    );
    let lock = explain(&kennel, &format!("@lock:{key}"));
    assert_eq!(
        (&lock["class"], &lock["found"][0]["lock"]["holder"]),
        (&"reserved".into(), &there["sidecar"])
    );
    assert_eq!(lock["found"][0]["server"], servers[place].address().as_str());

    // As text, for a ticket.
    let text = printed(&["--admin", &kennel.admin().to_string(), key]);
    assert!(text.starts_with(&format!("{key}: stale (tag: posts moved at ")), "{text}");
    let sidecar = there["sidecar"].as_str().expect("a number");
    assert!(text.contains(&format!("held by sidecar {sidecar} since ")), "{text}");
}

#[test]
fn a_value_is_stale_or_hidden_for_each_reason_that_there_is() {
    let servers = memcacheds(1);
    let rules = [
        guarded("drops", "drop:*", "tags = [\"posts\"]\non_tag = \"drop\""),
        guarded("keeps", "keep:*", "on_delete = \"stale\"\nstale_for = \"60s\""),
    ];
    let kennel = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), &rules)));
    let (mut client, mut server) = (kennel.client(), direct(&servers[0]));
    client.store("drop:k", b"v", 60);
    assert_eq!(explain(&kennel, "drop:k")["item"]["state"], "fresh");
    assert_eq!(client.delete("@tag:posts"), "DELETED");
    let hidden = explain(&kennel, "drop:k");
    assert_eq!(
        (&hidden["item"]["state"], words(&hidden["item"]["reasons"])),
        (&"hidden".into(), vec!["tag"])
    );

    client.store("keep:expired", b"v", 1);
    until_stale(&servers, "keep:expired", 60);
    let expired = explain(&kennel, "keep:expired");
    assert_eq!(words(&expired["item"]["reasons"]), ["expired"]);
    assert!(expired["item"]["stale_since"].as_str().is_some(), "{expired}");
    client.store("keep:deleted", b"v", 60);
    assert_eq!(client.delete("keep:deleted"), "DELETED");
    let deleted = explain(&kennel, "keep:deleted");
    assert_eq!(
        words(&deleted["item"]["reasons"]),
        ["expired", "marked"],
        "a delete ends the time in which it is fresh too"
    );
    client.store("keep:marked", b"v", 600);
    assert_eq!(server.execute("md keep:marked I"), "HD");
    assert_eq!(words(&explain(&kennel, "keep:marked")["item"]["reasons"]), ["marked"]);

    // Stored without Kennel: a plain value, and one whose header is of a later version.
    server.store("keep:plain", b"plain", 60);
    let plain = explain(&kennel, "keep:plain");
    assert_eq!((&plain["item"]["state"], &plain["item"]["header"]), (&"fresh".into(), &Value::Null));
    server.store("keep:later", b"\xf7\xcb\xce\xcc\x09rest", 60);
    assert_eq!(words(&explain(&kennel, "keep:later")["item"]["reasons"]), ["unreadable"]);
}

#[test]
fn a_stale_value_that_is_served_is_counted_by_its_reason() {
    let servers = memcacheds(1);
    let rules = [guarded("pages", "p:*", "tags = [\"posts\"]\nstale_for = \"60s\"")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let (mut client, mut winner) = (kennel.client(), kennel.client());
    let stale = |why: &str| {
        kennel.metrics().sum("kennel_stale_total", &["rule=\"pages\"", &format!("why=\"{why}\"")])
    };
    client.store("p:tag", b"v", 60);
    assert_eq!(client.delete("@tag:posts"), "DELETED");
    client.store("p:expired", b"v", 1);
    until_stale(&servers, "p:expired", 60);
    for key in ["p:tag", "p:expired"] {
        assert_eq!((winner.get(key), client.get(key)), (None, Some(b"v".to_vec())), "{key}");
    }
    assert_eq!((stale("tag"), stale("expired"), stale("marked")), (1.0, 1.0, 0.0));
}

/// memcached's report of an item, without the time since its last use, and that time.
fn debug(server: &mut Client, key: &str) -> (String, u64) {
    let line = server.execute(&format!("me {key}"));
    let (before, rest) = line.split_once(" la=").unwrap_or_else(|| panic!("{line}"));
    let (used, after) = rest.split_once(' ').expect("more words");
    let (head, _) = before.split_once(" exp=").expect("a TTL");
    (format!("{head} {after}"), used.parse().expect("a number"))
}

fn items(server: &mut Client) -> Vec<String> {
    server.send(b"stats items\r\n");
    let text = String::from_utf8(server.until(b"END\r\n")).expect("ASCII");
    // Ages grow, items cool down by themselves, and reads are counted although they are no use of an item.
    let counts = [":age", ":hits_to_", ":moves_", ":number_", ":lru_", ":lrutail_"];
    let is_of_items = |line: &&str| !counts.iter().any(|count| line.contains(count));
    text.lines().filter(is_of_items).map(str::to_owned).collect()
}

#[test]
fn explaining_a_key_is_no_use_of_it_takes_no_lease_and_changes_nothing() {
    for server in [Memcached::start(&[]), Memcached::newest(&[])] {
        let servers = [server];
        let rules = [pages(""), raw("raw", "*")];
        let toml = without_failover(&sidecar_toml(&addresses(&servers), &rules));
        let kennel = Kennel::start(&toml);
        let (mut client, mut server) = (kennel.client(), direct(&servers[0]));
        let (stale, cold) = ("blog:7:page:stale", "blog:7:page:cold");
        client.store(stale, b"old", 1);
        client.store("plain", b"v", 0);
        until_stale(&servers, stale, 60);
        let keys = [stale, "plain", "@tag:posts", "@tag:blog:7"];
        // memcached moves items that were used between its lists within a second or two, and counts that as a use.
        eventually("nothing has used them for a while", || {
            keys.iter().all(|key| debug(&mut server, key).1 > 2)
        });
        let before: Vec<_> = keys.iter().map(|key| debug(&mut server, key)).collect();
        let items_before = items(&mut server);
        let file = kennel.dir().join("kennel.toml").display().to_string();
        for key in [stale, cold, "plain", "absent", "@tag:posts", "@tag:absent", "@lock:blog:7:page:stale"] {
            explain(&kennel, key);
            printed(&["--direct", "--config", &file, key]);
        }
        for (key, (report, used)) in keys.iter().zip(before) {
            let (now, used_now) = debug(&mut server, key);
            assert!(
                (&now, true) == (&report, used_now >= used),
                "{key}: {report} {used} became {now} {used_now}"
            );
        }
        assert_eq!(items(&mut server), items_before);
        for absent in [cold, "absent", "@tag:absent", "@lock:blog:7:page:stale"] {
            assert_eq!(server.execute(&format!("me {absent}")), "EN", "{absent}");
        }
        assert_eq!(kennel.metrics().sum("kennel_leases_live", &[]), 0.0);
        // The right to rebuild is there for the first client that asks for the keys.
        assert_eq!((client.get(stale), client.get(cold)), (None, None));
        assert_eq!(kennel.metrics().sum("kennel_leases_live", &[]), 2.0);
    }
}

#[test]
fn of_a_marked_guarded_value_the_servers_own_w_goes_and_of_a_raw_one_it_stays() {
    let servers = memcacheds(1);
    let rules = [guarded("keeps", "keep:*", "on_delete = \"stale\""), raw("raw", "*")];
    let kennel = Kennel::start(&without_failover(&sidecar_toml(&addresses(&servers), &rules)));
    let (mut client, mut server) = (kennel.client(), direct(&servers[0]));
    for key in ["keep:k", "raw:k"] {
        client.store(key, b"v", 60);
        assert_eq!(server.execute(&format!("md {key} I")), "HD");
        explain(&kennel, key);
    }
    // docs/observing.md says so.
    assert_eq!(server.execute("mg keep:k"), "HD Z X");
    assert_eq!(server.execute("mg raw:k"), "HD X W");
    // The guard does not use it: the first client wins.
    assert_eq!(client.get("keep:k"), None);
    assert_eq!(kennel.metrics().sum("kennel_requests_total", &["outcome=\"miss_won\""]), 1.0);
}

#[test]
fn without_a_sidecar_the_servers_are_asked_and_the_places_are_those_of_the_fleet() {
    let servers = memcacheds(3);
    let toml = with_long_windows(&sidecar_toml(&addresses(&servers), &[pages("")]));
    let kennel = Kennel::start(&toml);
    let key = "blog:7:page:1";
    kennel.client().store(key, b"hello", 60);
    let with = explain(&kennel, key);
    let file = servers[0].address().replace(':', "-");
    let file = std::env::temp_dir().join(format!("kennel-it-explain-{file}.toml"));
    std::fs::write(&file, &toml).expect("write the configuration");
    let path = file.display().to_string();
    kennel.kill();
    let text = printed(&["--config", &path, key]);
    let without: Value = serde_json::from_str(&printed(&["--json", "--config", &path, key])).expect("JSON");
    std::fs::remove_file(file).expect("remove the configuration");
    assert_eq!((&without["asked_by"], &without["local"]), (&"command".into(), &Value::Null));
    assert_eq!((&without["place"], &without["rule"]), (&with["place"], &with["rule"]));
    assert_eq!(without["place"]["view"], "own");
    assert_eq!(
        (&without["item"]["state"], &without["item"]["header"]),
        (&"fresh".into(), &with["item"]["header"])
    );
    assert!(text.starts_with(&format!("{key}: fresh for ")) && text.contains("without a sidecar"), "{text}");
}

#[test]
fn a_key_of_any_bytes_can_be_asked_for_and_one_that_cannot_be_is_refused_with_the_reason() {
    let servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[guarded("all", "*", "")]));
    let admin = kennel.admin().to_string();
    let mut client = kennel.client();
    assert_eq!(client.execute("ms YSAB/w== 1 b T60\r\nv"), "HD"); // "a \x01\xff"
    client.store("Zürich", b"v", 60);
    let spaced = explain(&kennel, "a%20%01%ff");
    assert_eq!((&spaced["item"]["state"], &spaced["key"]["base64"]), (&"fresh".into(), &"YSAB/w==".into()));
    assert_eq!(spaced["key"]["text"], "a \\x01\\xff");
    for arguments in [&["--admin", &admin, "--base64", "YSAB/w=="][..], &["--admin", &admin, "Zürich"]] {
        assert!(printed(arguments).contains(": fresh for "), "{arguments:?}");
    }
    let long = "x".repeat(251);
    for (arguments, why) in [
        (vec!["--admin", &admin, ""], "the key is empty"),
        (vec!["--admin", &admin, &long], "the key has 251 bytes: memcached takes at most 250"),
        (vec!["--admin", &admin, "--base64", "Y*Q="], "Y*Q= is not base64"),
    ] {
        assert!(refused(&arguments).contains(why), "{arguments:?}");
    }
    for (query, why) in [
        ("", "key is missing"),
        ("key=", "the key is empty"),
        ("key=a&key=b", "key is given twice"),
        ("key=a&base64=1", "the key is not base64"),
        ("key=a&format=xml", "format must be json or text"),
        ("key=a&colour=red", "unknown parameter colour"),
        (&format!("key={long}")[..], "the key has 251 bytes"),
        (&format!("key={}", "%20".repeat(187))[..], "252 bytes of at most 250"),
    ] {
        let reply = kennel.http(&format!("/explain?{query}"));
        assert!(reply.contains(" 400 ") && reply.contains(why), "{query}: {reply}");
    }
}

#[test]
fn a_server_that_is_down_or_silent_is_said_to_be_and_holds_nobody_up() {
    let mut servers = memcacheds(1);
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &[pages("")]));
    servers[0].stop();
    // More than may be explained at a time: the others are told, and the sidecar serves its other clients.
    let silent: Vec<_> = std::thread::scope(|scope| {
        let ask = || scope.spawn(|| timed(|| kennel.http("/explain?key=blog:7:page:1")));
        let asked: Vec<_> = (0..30).map(|_| ask()).collect();
        let (health, took) = timed(|| kennel.http("/healthz"));
        assert!(health.contains("200 OK") && took < Duration::from_secs(1), "{took:?}");
        asked.into_iter().map(|asked| asked.join().expect("no panic")).collect()
    });
    assert!(silent.iter().all(|(_, took)| *took < Duration::from_secs(5)), "{silent:?}");
    let count = |what: &str| silent.iter().filter(|(reply, _)| reply.contains(what)).count();
    // Once it is known to be too slow, it is not asked.
    let told = count("the server did not reply in time") + count("is too slow to be used");
    let busy = count("too many keys are being explained");
    assert!(told >= 1 && busy >= 1 && told + busy <= 30, "{silent:?}");
    servers[0].cont();
    servers[0].kill();
    eventually("the server is known to be down", || {
        let item = &explain(&kennel, "blog:7:page:1")["item"];
        item["state"] == "unknown"
            && item["failure"] == "the server cannot be reached, or is too slow to be used"
    });
}

#[test]
fn a_value_that_a_worker_keeps_near_is_shown_with_its_worker() {
    let servers = memcacheds(1);
    let rules = [guarded("near", "near:*", "near = \"10s\"")];
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let mut client = kennel.client();
    client.store("near:k", b"v", 600);
    assert_eq!(explain(&kennel, "near:k")["local"]["near"].as_array().map(Vec::len), Some(0));
    assert_eq!(kennel.client().get("near:k"), Some(b"v".to_vec()));
    let near = explain(&kennel, "near:k")["local"]["near"].clone();
    assert!(matches!(near[0]["for_ms"].as_u64(), Some(1..=10_000)), "{near}");
}

#[test]
fn during_a_change_of_servers_both_places_are_shown() {
    let servers = memcacheds(2);
    let all = addresses(&servers);
    let toml = sidecar_toml(&all[..1], &[pages("")]);
    let next = toml.replace("[pools.main]\n", &format!("[pools.main]\nnext = {:?}\n", &all[1..]));
    let kennel = Kennel::start(&without_failover(&next));
    kennel.client().store("blog:7:page:1", b"v", 60);
    let told = explain(&kennel, "blog:7:page:1");
    assert_eq!(
        (&told["place"]["server"], &told["item"]["state"]),
        (&all[0].as_str().into(), &"fresh".into())
    );
    let elsewhere = &told["elsewhere"];
    assert_eq!((&elsewhere["list"], &elsewhere["same_server"]), (&"next".into(), &false.into()));
    assert_eq!(
        (&elsewhere["place"]["server"], &elsewhere["item"]["state"]),
        (&all[1].as_str().into(), &"nothing".into())
    );
    assert_eq!(told["tags"][0]["elsewhere"][0]["server"], all[1].as_str());
}

#[test]
fn of_many_rules_that_do_not_match_the_last_are_named_and_the_others_counted() {
    let servers = memcacheds(1);
    let mut rules: Vec<_> = (0..20).map(|n| raw(&format!("r{n}"), &format!("r{n}:*"))).collect();
    rules.push(guarded("all", "*", ""));
    let kennel = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    let earlier = explain(&kennel, "k")["earlier_rules"].clone();
    let names: Vec<_> =
        earlier["last"].as_array().expect("a list").iter().map(|rule| &rule["name"]).collect();
    assert_eq!((&earlier["count"], names.len()), (&20.into(), 16));
    assert_eq!((names[0], names[15]), (&"r4".into(), &"r19".into()));
    let text = printed(&["--admin", &kennel.admin().to_string(), "k"]);
    assert!(text.contains("nor 4 rules before these"), "{text}");
}
