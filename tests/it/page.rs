//! The status page, in a real browser.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, memcacheds, raw, sidecar_toml, temp_dir,
    timed, within, without_failover,
};

/// Debian's `chromium-headless-shell`, or the browser of `KENNEL_TEST_CHROMIUM`.
fn chromium() -> String {
    std::env::var("KENNEL_TEST_CHROMIUM").unwrap_or_else(|_| "chromium-headless-shell".to_owned())
}

/// Clients that get, build and set pages until `stop`.
fn use_pages(sidecar: &Kennel, stop: &AtomicBool) {
    let mut client = sidecar.client();
    for n in (0..7).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("page:{n}");
        if client.get(&key).is_none() {
            client.set(&key, b"built", 60);
        }
        if n == 3 {
            client.get("session:1");
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_browser_shows_the_page_updates_it_and_shows_a_killed_server_within_3_seconds() {
    let mut servers = memcacheds(3);
    let rules = [guarded("pages", "page:{n}", ""), raw("rest", "*")];
    let sidecar = Kennel::start(&sidecar_toml(&addresses(&servers), &rules));
    // A lease that stays, and a request that is served by another client's build.
    let mut builder = sidecar.client();
    assert_eq!(builder.get("page:waited"), None);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| sidecar.client().get("page:waited"));
        eventually("it waits", || sidecar.metrics().sum("kennel_waiters", &[]) >= 1.0);
        builder.set("page:waited", b"built", 60);
        assert_eq!(waiter.join().expect("it is served").as_deref(), Some(&b"built"[..]));
    });
    let profile = temp_dir();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| use_pages(&sidecar, &stop));
        let _stop = Stop(&stop);
        assert_eq!(builder.get("page:building"), None);
        let url = format!("http://{}/", sidecar.admin());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/page/browser.js");
        let mut node = Command::new("node");
        node.args([script, &chromium()]).arg(&profile).arg(url);
        let mut node = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start node");
        let mut told = node.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(node.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("loaded"));
        servers[1].kill();
        writeln!(told, "killed").expect("node reads");
        let down = lines.next().expect("it is shown");
        assert!(down.starts_with("down after "), "{down}");
        servers[1].restart();
        let up = || sidecar.metrics().sum("kennel_upstream_up", &[]) == 3.0;
        within(Duration::from_secs(30), "it is up", up);
        writeln!(told, "restarted").expect("node reads");
        assert_eq!(lines.next().as_deref(), Some("passed"));
        assert!(node.wait().expect("node ends").success());
    });
    let _ = std::fs::remove_dir_all(profile);
}

#[test]
fn leases_in_flight_are_listed_with_their_age_and_waiters_and_keys_as_the_log_shows_them() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("pages", "page:*", "")]);
    let sidecar = Kennel::start(&format!("[log]\nkeys = \"prefix:5\"\n{toml}"));
    let leases = || -> Value {
        let reply = sidecar.http("/leases");
        let (_, body) = reply.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str::<Value>(body).unwrap_or_else(|error| panic!("{error}: {reply}"))["leases"]
            .take()
    };
    assert_eq!(leases(), json!([]));
    let began = Instant::now();
    let mut builder = sidecar.client();
    assert_eq!(builder.get("page:secret"), None);
    let mut waiter = sidecar.client();
    waiter.send(b"get page:secret\r\n");
    eventually("it waits", || leases()[0]["waiters"] == 1);
    // It holds the key since its first read.
    eventually("it has held the key", || leases()[0]["held_ms"].as_u64() >= Some(100));
    assert_eq!(builder.get("page:secret"), None);
    let (all, elapsed) = (leases(), began.elapsed());
    let [lease] = &all.as_array().expect("a list")[..] else { panic!("one lease: {all}") };
    assert_eq!(lease["key"], "page:…");
    let held = lease["held_ms"].as_u64().expect("milliseconds");
    // Either moment is rounded down.
    assert!(held >= 100 && u128::from(held) <= elapsed.as_millis() + 1, "{held}");
    builder.store("page:secret", b"built", 60);
    assert_eq!(waiter.only_value("page:secret").as_deref(), Some(&b"built"[..]));
    assert_eq!(leases(), json!([]));
}

/// The reply to `/slabs`.
fn slabs(sidecar: &Kennel) -> Value {
    let reply = sidecar.http("/slabs");
    let (_, body) = reply.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {reply}"))
}

#[test]
fn slab_classes_are_those_of_each_server_and_many_who_ask_cost_the_servers_one_question() {
    let servers = [Memcached::start(&["-m", "2"]), Memcached::start(&[])];
    let sidecar = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("all", "*")]));
    let mut client = sidecar.client();
    (0..400).for_each(|n| client.store(&format!("k{n}"), &[b'x'; 20_000], 0));
    let asked = || sidecar.metrics().sum("kennel_upstream_requests_total", &[]);
    let before = asked();
    let replies: Vec<Value> = thread::scope(|scope| {
        let all: Vec<_> = (0..20).map(|_| scope.spawn(|| slabs(&sidecar))).collect();
        all.into_iter().map(|asked| asked.join().expect("it is answered")).collect()
    });
    assert_eq!(asked() - before, 4.0, "two commands for each server");
    assert!(replies.iter().all(|reply| *reply == replies[0]));
    let shown = replies[0]["servers"].as_array().expect("servers").clone();
    assert_eq!(shown.len(), 2);
    for (server, shown) in servers.iter().zip(&shown) {
        assert_eq!((&shown["server"], &shown["error"]), (&json!(server.address()), &Value::Null));
        let mut client = direct(server);
        let told: Vec<String> = ["stats slabs\r\n", "stats items\r\n"]
            .into_iter()
            .flat_map(|line| {
                client.send(line.as_bytes());
                String::from_utf8(client.until(b"END\r\n"))
                    .expect("text")
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect();
        let classes = shown["classes"].as_array().expect("classes");
        assert!(!classes.is_empty());
        for class in classes {
            let n = &class["class"];
            for (field, line) in [
                ("total_pages", format!("STAT {n}:total_pages {}", class["total_pages"])),
                ("used_chunks", format!("STAT {n}:used_chunks {}", class["used_chunks"])),
                ("chunk_size", format!("STAT {n}:chunk_size {}", class["chunk_size"])),
                ("evicted", format!("STAT items:{n}:evicted {}", class["evicted"])),
            ] {
                // `stats items` omits a class without items.
                let is_omitted = field == "evicted" && class[field] == 0;
                assert!(is_omitted || told.contains(&line), "{line} is not in {told:?}");
            }
        }
    }
    let evicted = |of: &Value| -> u64 {
        of["classes"].as_array().expect("classes").iter().filter_map(|class| class["evicted"].as_u64()).sum()
    };
    assert!(evicted(&shown[0]) > 0 && evicted(&shown[1]) == 0, "{shown:?}");
}

#[test]
fn a_server_that_is_down_or_silent_is_said_to_be_while_the_slab_classes_of_others_are_shown() {
    let mut servers = memcacheds(3);
    let sidecar = Kennel::start(&sidecar_toml(&addresses(&servers), &[raw("all", "*")]));
    servers[1].kill();
    eventually("it is down", || sidecar.metrics().sum("kennel_upstream_up", &[]) == 2.0);
    servers[2].stop();
    let (reply, took) = timed(|| slabs(&sidecar));
    servers[2].cont();
    assert!(took < Duration::from_millis(2_500), "{took:?}");
    let error = |at: usize| reply["servers"][at]["error"].as_str().map(str::to_owned);
    assert_eq!([error(0), error(1)], [None, Some("server is down".to_owned())], "{reply}");
    assert!(["no reply yet", "server timed out"].contains(&&*error(2).expect("silent")), "{reply}");
    // Each is among the last errors, with its time.
    let page = sidecar.http("/page.json");
    assert!(page.contains("\"text\":\"not connected"), "{page}");
}

#[test]
fn of_many_servers_the_first_are_asked_for_their_slab_classes_and_the_others_counted() {
    let nobody: Vec<String> = (0..66).map(|n| format!("127.1.1.{}:1", n + 1)).collect();
    let toml = without_failover(&sidecar_toml(&nobody, &[raw("all", "*")]));
    let reply = slabs(&Kennel::start(&toml));
    let servers = reply["servers"].as_array().expect("servers");
    assert_eq!((servers.len(), &reply["omitted"]), (64, &json!(2)));
    assert_eq!(servers[63]["server"], "127.1.1.64:1");
}

/// Ends the clients, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
