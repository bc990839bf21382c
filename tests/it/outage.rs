//! No server, no stampede: of the clients of a sidecar one builds a key whose server gives no answer, and the others are
//! served what it builds.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::Client;
use crate::gate::Gate;
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, sidecar_toml, timed,
    within,
};

const AT_ONCE: Duration = Duration::from_millis(400);

fn sidecar(servers: usize, rule: &str) -> (Vec<Memcached>, Kennel) {
    let servers = memcacheds(servers);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", rule)]);
    // Three servers fail over, sooner than with the defaults.
    let kennel = Kennel::start(&match servers.len() {
        3 => toml.replace("[pools.main]\n", "[pools.main]\nwindow = \"1s\"\nfail_after = \"1s\"\n"),
        _ => toml,
    });
    (servers, kennel)
}

/// A sidecar whose only server is dead and known to be.
fn without_server(rule: &str) -> (Vec<Memcached>, Kennel) {
    let (mut servers, kennel) = sidecar(1, rule);
    kennel.client().store("hot:before", b"v", 60);
    servers[0].kill();
    eventually("the server is known to be dead", || {
        kennel.client().set("hot:other", b"v", 60).contains("ERROR")
    });
    (servers, kennel)
}

/// The reply of a dead server to the `set` of a builder.
fn refused(client: &mut Client, key: &str, value: &[u8]) {
    let reply = client.set(key, value, 60);
    let causes = [
        "SERVER_ERROR not stored: no server answered when this key was missed",
        "SERVER_ERROR not stored: a tag was unread when this key was missed",
        // It was missed before.
        "SERVER_ERROR server is down",
    ];
    assert!(causes.contains(&&reply[..]), "{reply}");
}

/// When each build of each key began and ended.
type Builds = Mutex<BTreeMap<String, Vec<(Instant, Instant)>>>;

/// How long a build of the crowd takes.
const BUILD: Duration = Duration::from_millis(200);

/// In which steps each client goes through thirty keys. With the same one, all would wait for the same key at the same time.
const STEPS: [usize; 8] = [1, 7, 11, 13, 17, 19, 23, 29];

/// Forty clients read thirty keys for `time`, and build each that they miss. They begin with each key a little later than with the
/// one before it, so that at any time some key is being built.
fn crowd(kennel: &Kennel, keys: &[String], time: Duration, builds: &Builds) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..40 {
            scope.spawn(move || {
                let mut client = kennel.client();
                for round in n.. {
                    if began.elapsed() > time {
                        break;
                    }
                    let at = round * STEPS[n % STEPS.len()] % keys.len();
                    if began.elapsed() < Duration::from_millis(40 * at as u64) {
                        std::thread::sleep(Duration::from_millis(1));
                        continue;
                    }
                    let key = &keys[at];
                    match client.get(key) {
                        Some(value) => assert_eq!(value, key.as_bytes()),
                        None => {
                            let start = Instant::now();
                            std::thread::sleep(BUILD);
                            let end = Instant::now();
                            builds
                                .lock()
                                .expect("no panic")
                                .entry(key.clone())
                                .or_default()
                                .push((start, end));
                            client.set(key, key.as_bytes(), 600);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
    });
}

/// The most builds of one key at the same time, among those that began after `from`.
fn most_at_once(builds: &Builds, from: Instant) -> (usize, usize) {
    let builds = builds.lock().expect("no panic");
    let mut most = (0, 0);
    for spans in builds.values() {
        let spans: Vec<_> = spans.iter().filter(|(start, _)| *start > from).collect();
        let at = |moment| spans.iter().filter(|(start, end)| *start <= moment && moment < *end).count();
        most.0 = most.0.max(spans.iter().map(|(start, _)| at(*start)).max().unwrap_or(0));
        most.1 = most.1.max(spans.len());
    }
    most
}

#[test]
fn with_a_dead_server_each_of_its_keys_is_built_by_one_client_at_a_time_and_at_most_once_per_outage_ttl() {
    let (mut servers, kennel) = sidecar(3, "outage_ttl = \"300ms\"");
    let keys: Vec<String> = (0..30).map(|n| format!("hot:{n}")).collect();
    let builds = Builds::default();
    crowd(&kennel, &keys, Duration::from_secs(2), &builds);
    assert_eq!(most_at_once(&builds, Instant::now() - Duration::from_secs(60)), (1, 1), "healthy");
    servers[0].kill();
    let killed = Instant::now();
    crowd(&kennel, &keys, Duration::from_secs(5), &builds);
    let took = killed.elapsed();
    let (at_once, of_one_key) = most_at_once(&builds, killed);
    assert_eq!(at_once, 1, "builds of one key at once");
    // What is built is kept for a while, and each key is built once more when it moves.
    let most = 2 + (took.as_millis() / (BUILD.as_millis() + 300)) as usize;
    assert!((1..=most).contains(&of_one_key), "{of_one_key} builds of one key in {took:?}");
    let served = kennel.metrics().sum("kennel_requests_total", &["outcome=\"outage\""]);
    assert!(served > 0.0, "no read was served what another client built");
}

#[test]
fn with_the_whole_pool_gone_each_key_is_built_once_per_outage_ttl() {
    let (mut servers, kennel) = sidecar(2, "");
    let keys: Vec<String> = (0..30).map(|n| format!("hot:{n}")).collect();
    let builds = Builds::default();
    crowd(&kennel, &keys, Duration::from_secs(1), &builds);
    servers.iter_mut().for_each(Memcached::kill);
    let killed = Instant::now();
    crowd(&kennel, &keys, Duration::from_secs(4), &builds);
    let took = killed.elapsed();
    let (at_once, of_one_key) = most_at_once(&builds, killed);
    assert_eq!(at_once, 1);
    let most = 1 + (took.as_millis() / (BUILD.as_millis() + 1_000)) as usize;
    assert!((1..=most).contains(&of_one_key), "{of_one_key} builds of one key in {took:?}");
}

#[test]
fn the_builders_value_is_handed_to_those_who_wait_and_kept_for_outage_ttl_and_no_longer() {
    let (_servers, kennel) = without_server("cold_wait = \"9s\"\noutage_ttl = \"500ms\"");
    let (mut builder, mut waiter) = (kennel.client(), kennel.client());
    assert_eq!(builder.get("hot:k"), None);
    waiter.send(b"get hot:k\r\n");
    waiter.silent_for(Duration::from_millis(300));
    builder.send(b"set hot:k 42 60 5\r\nbuilt\r\n");
    assert!(builder.line().starts_with("SERVER_ERROR"), "as without waiting readers");
    assert_eq!(waiter.line(), "VALUE hot:k 42 5");
    waiter.expect(b"built\r\nEND\r\n");
    assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"built"[..]));
    // A meta client sees that it is stale, and that another client builds it.
    let mut meta = kennel.client();
    meta.send(b"mg hot:k v f\r\n");
    let line = meta.line();
    assert!(line.starts_with("VA 5 f42") && line.contains(" X") && line.contains(" Z"), "{line}");
    meta.expect(b"built\r\n");
    let page = kennel.metrics();
    assert_eq!(page.sum("kennel_outage_values", &[]), 1.0);
    assert!(page.sum("kennel_outage_bytes", &[]) > 5.0);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(kennel.client().get("hot:k"), None, "the next reader builds again");
}

#[test]
fn a_delete_a_bump_a_flush_and_a_write_end_what_is_kept_though_they_are_refused() {
    let rule = "cold_wait = \"9s\"\noutage_ttl = \"60s\"\ntags = [\"posts\"]";
    let (_servers, kennel) = without_server(rule);
    for change in ["delete hot:k", "delete @tag:posts", "flush_all", "touch hot:k 9", "set hot:k 0 60 1\r\nw"]
    {
        let mut builder = kennel.client();
        assert_eq!(builder.get("hot:k"), None, "before {change}");
        refused(&mut builder, "hot:k", b"kept");
        assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"kept"[..]));
        let reply = kennel.client().execute(change);
        assert!(reply.starts_with("SERVER_ERROR"), "{change}: {reply}");
        let (mut next, mut other) = (kennel.client(), kennel.client());
        assert_eq!(next.get("hot:k"), None, "after {change}");
        // Begun before the change, and stored after it.
        other.send(b"get hot:k\r\n");
        other.silent_for(Duration::from_millis(50));
        kennel.client().execute(change);
        assert_eq!(other.only_value("hot:k"), None, "it builds, because the build before is out of date");
        next.set("hot:k", b"old", 60);
        refused(&mut other, "hot:k", b"new");
        assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"new"[..]), "{change}");
        kennel.client().execute("delete hot:k");
    }
}

#[test]
fn a_builder_that_leaves_frees_the_key_at_once_and_one_that_takes_long_after_cold_wait() {
    let (_servers, kennel) = without_server("cold_wait = \"1s\"\ncold_limit = \"9s\"");
    let mut builder = kennel.client();
    assert_eq!(builder.get("hot:k"), None);
    let mut waiter = kennel.client();
    waiter.send(b"get hot:k\r\n");
    waiter.silent_for(Duration::from_millis(200));
    let (value, took) = timed(|| {
        drop(builder);
        waiter.only_value("hot:k")
    });
    assert_eq!(value, None);
    assert!(took < AT_ONCE, "freed after {took:?}");
    // Now it builds, and the next one is let through.
    let mut next = kennel.client();
    let (value, took) = timed(|| next.get("hot:k"));
    assert_eq!(value, None);
    let allowed = Duration::from_millis(500)..Duration::from_secs(1) + AT_ONCE;
    assert!(allowed.contains(&took), "let through after {took:?}");
}

#[test]
fn a_multi_get_that_builds_one_key_never_waits_for_another() {
    let (_servers, kennel) = without_server("cold_wait = \"9s\"");
    let mut first = kennel.client();
    assert_eq!(first.get_many(&["hot:a", "hot:b"]), []);
    let (items, took) = timed(|| kennel.client().get_many(&["hot:c", "hot:a"]));
    assert_eq!(items, []);
    assert!(took < AT_ONCE, "waited {took:?} while others may wait for hot:c");
}

#[test]
fn what_is_kept_is_not_served_once_the_server_answers() {
    let (mut servers, kennel) = without_server("cold_wait = \"1s\"\noutage_ttl = \"60s\"");
    let mut builder = kennel.client();
    assert_eq!(builder.get("hot:k"), None);
    refused(&mut builder, "hot:k", b"kept");
    assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"kept"[..]));
    servers[0].restart();
    eventually("the server is used again", || kennel.client().set("hot:other", b"v", 60) == "STORED");
    let mut reader = kennel.client();
    eventually("both workers use it", || {
        let value = reader.get("hot:k");
        if value.is_none() {
            reader.store("hot:k", b"new", 60);
        }
        // Each client is served by one of the two.
        (0..20).all(|_| kennel.client().get("hot:k").as_deref() == Some(b"new"))
    });
    assert!(direct(&servers[holder(&servers, "hot:k")]).ttl("hot:k").is_some());
    for _ in 0..20 {
        assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn with_on_error_error_nobody_builds_and_everybody_receives_the_error() {
    let mut servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", "")]);
    let kennel = Kennel::start(&toml.replace("[pools.main]\n", "[pools.main]\non_error = \"error\"\n"));
    kennel.client().store("hot:k", b"v", 60);
    servers[0].kill();
    for _ in 0..3 {
        let mut client = kennel.client();
        let (reply, took) = timed(|| client.execute("get hot:k"));
        assert!(reply.starts_with("SERVER_ERROR") && took < AT_ONCE, "{reply} after {took:?}");
    }
}

#[test]
fn under_a_rule_that_serves_nothing_stale_a_value_is_handed_only_to_those_who_waited_before_its_build_began()
{
    for rule in ["stale_for = \"0s\"", "on_tag = \"drop\"\ntags = [\"t\"]"] {
        // With one worker, of those that are freed the one that has waited longest builds.
        let mut servers = memcacheds(1);
        let rule = guarded("hot", "hot:*", &format!("cold_wait = \"9s\"\n{rule}"));
        let kennel = Kennel::start(
            &sidecar_toml(&addresses(&servers), std::slice::from_ref(&rule))
                .replace("workers = 2", "workers = 1"),
        );
        servers[0].kill();
        let mut builder = kennel.client();
        assert_eq!(builder.get("hot:k"), None);
        let mut readers = [kennel.client(), kennel.client()];
        for reader in &mut readers {
            reader.send(b"get hot:k\r\n");
            reader.silent_for(Duration::from_millis(50));
        }
        // Another sidecar may have invalidated the key when the build had begun, and before they read it.
        refused(&mut builder, "hot:k", b"first");
        let [mut next, mut last] = readers;
        assert_eq!(next.only_value("hot:k"), None, "it builds: {rule}");
        last.silent_for(Duration::from_millis(50));
        refused(&mut next, "hot:k", b"second");
        assert_eq!(last.only_value("hot:k").as_deref(), Some(&b"second"[..]), "built after its read: {rule}");
        assert_eq!(kennel.client().get("hot:k"), None, "nothing is kept: {rule}");
    }
}

#[test]
fn under_a_rule_that_serves_nothing_stale_each_key_is_built_by_one_client_at_a_time_all_the_same() {
    let (mut servers, kennel) = sidecar(2, "stale_for = \"0s\"");
    let keys: Vec<String> = (0..4).map(|n| format!("hot:{n}")).collect();
    servers.iter_mut().for_each(Memcached::kill);
    eventually("the servers are known to be dead", || {
        kennel.client().set("hot:other", b"v", 60).contains("ERROR")
    });
    let builds = Builds::default();
    let began = Instant::now();
    crowd(&kennel, &keys, Duration::from_secs(3), &builds);
    let (at_once, of_one_key) = most_at_once(&builds, began);
    assert_eq!(at_once, 1);
    assert!(of_one_key <= 16, "{of_one_key} builds of one key in 3 s, each of 200 ms");
}

/// A rule under which no reader is let through while a test runs.
const PATIENT: &str = "cold_wait = \"60s\"\ncold_limit = \"60s\"\nmax_rebuild = \"120s\"";

/// Waits until the server of this client's keys answers it: the answer comes over the connection that its reads use.
fn until_answered(client: &mut Client) {
    within(Duration::from_secs(60), "the server answers", || client.set("hot:other", b"v", 60) == "STORED");
}

/// `reader` waits for `builder`, which is handed its value without one of its own, and the next reader builds.
fn is_waited_for(builder: &mut Client, reader: &mut Client, kennel: &Kennel, key: &str) {
    reader.send(format!("get {key}\r\n").as_bytes());
    reader.silent_for(Duration::from_millis(500));
    builder.set(key, b"built", 60);
    assert_eq!(reader.only_value(key).as_deref(), Some(&b"built"[..]));
    // It was built before the stub, so it is not stored: something may have been invalidated in between.
    let mut next = kennel.client();
    assert_eq!(next.get(key), None, "the next one builds, and does not wait");
    next.store(key, b"stored", 60);
    assert_eq!(kennel.client().get(key).as_deref(), Some(&b"stored"[..]));
}

#[test]
fn a_build_without_a_server_goes_on_alone_when_the_server_returns_empty() {
    let (mut servers, kennel) = without_server(PATIENT);
    let (mut builder, mut reader) = (kennel.client(), kennel.client());
    assert_eq!(builder.get("hot:k"), None);
    servers[0].restart();
    until_answered(&mut reader);
    is_waited_for(&mut builder, &mut reader, &kennel, "hot:k");
}

#[test]
fn a_build_without_a_server_goes_on_alone_when_the_keys_move() {
    let (mut servers, kennel) = sidecar(3, PATIENT);
    kennel.client().store("hot:k", b"v", 60);
    let server = holder(&servers, "hot:k");
    servers[server].kill();
    let (mut builder, mut reader) = (kennel.client(), kennel.client());
    assert_eq!(builder.get("hot:k"), None);
    within(Duration::from_secs(60), "the keys have moved", || {
        kennel.metrics().sum("kennel_failover_place", &[]) == 1.0
    });
    is_waited_for(&mut builder, &mut reader, &kennel, "hot:k");
}

#[test]
fn a_reader_that_waits_for_a_build_without_a_server_builds_once_the_builder_leaves_or_the_key_changes() {
    let (mut servers, kennel) = without_server(PATIENT);
    let mut builders = [kennel.client(), kennel.client()];
    for (n, builder) in builders.iter_mut().enumerate() {
        assert_eq!(builder.get(&format!("hot:{n}")), None);
    }
    servers[0].restart();
    let mut readers = [kennel.client(), kennel.client()];
    for (n, reader) in readers.iter_mut().enumerate() {
        until_answered(reader);
        reader.send(format!("get hot:{n}\r\n").as_bytes());
        reader.silent_for(Duration::from_millis(200));
    }
    let [leaves, mut stays] = builders;
    drop(leaves);
    assert_eq!(readers[0].only_value("hot:0"), None);
    readers[0].store("hot:0", b"new", 60);
    assert_eq!(kennel.client().get("hot:0").as_deref(), Some(&b"new"[..]));
    kennel.client().execute("delete hot:1");
    assert_eq!(readers[1].only_value("hot:1"), None);
    stays.set("hot:1", b"old", 60);
    readers[1].store("hot:1", b"new", 60);
    assert_eq!(kennel.client().get("hot:1").as_deref(), Some(&b"new"[..]), "the older build is dropped");
}

#[test]
fn a_stale_value_that_the_server_still_has_is_served_while_a_client_builds_without_it() {
    let (servers, kennel) = sidecar(1, "cold_wait = \"60s\"\ncold_limit = \"60s\"\nstale_for = \"60s\"");
    let mut reader = kennel.client();
    reader.store("hot:k", b"old", 1);
    servers[0].stop();
    let mut builder = kennel.client();
    within(Duration::from_secs(60), "it is missed without an answer", || builder.get("hot:k").is_none());
    std::thread::sleep(Duration::from_millis(1_100));
    servers[0].cont();
    until_answered(&mut reader);
    for _ in 0..3 {
        assert_eq!(reader.get("hot:k").as_deref(), Some(&b"old"[..]), "one client builds already");
    }
    builder.set("hot:k", b"new", 60);
    assert_eq!(reader.get("hot:k"), None, "now the next one builds");
    reader.store("hot:k", b"new", 60);
}

#[test]
fn a_pools_set_that_ends_a_build_without_a_server_is_not_stored_by_the_win_that_waits_for_it() {
    let mut servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[guarded("hot", "hot:*", PATIENT)]);
    let kennel = Kennel::start(&toml.replace("workers = 2", "workers = 2\nclients = \"pooled\""));
    let [mut builder, mut reader, mut setter] = [kennel.client(), kennel.client(), kennel.client()];
    // Only a connection that has missed belongs to a pool.
    assert_eq!(setter.get("hot:other"), None);
    servers[0].kill();
    eventually("the server is known to be dead", || {
        setter.set("hot:other", b"v", 60).contains("ERROR")
            && builder.set("hot:other", b"v", 60).contains("ERROR")
    });
    assert_eq!(builder.get("hot:k"), None);
    servers[0].restart();
    until_answered(&mut reader);
    until_answered(&mut setter);
    reader.send(b"get hot:k\r\n");
    reader.silent_for(Duration::from_millis(300));
    setter.set("hot:k", b"built", 60);
    assert_eq!(reader.only_value("hot:k").as_deref(), Some(&b"built"[..]));
    let mut next = kennel.client();
    assert_eq!(next.get("hot:k"), None, "built before the stub, so it must not be stored over it");
    next.store("hot:k", b"new", 60);
}

#[test]
fn a_build_that_began_before_the_server_died_is_the_only_one() {
    let (mut servers, kennel) = sidecar(1, PATIENT);
    let mut builder = kennel.client();
    assert_eq!(builder.get("hot:k"), None);
    let mut leaves = kennel.client();
    assert_eq!(leaves.get("hot:l"), None);
    servers[0].kill();
    let [mut first, mut second] = [kennel.client(), kennel.client()];
    for (reader, key) in [(&mut first, "hot:k"), (&mut second, "hot:l")] {
        reader.send(format!("get {key}\r\n").as_bytes());
        reader.silent_for(Duration::from_millis(300));
    }
    refused(&mut builder, "hot:k", b"built");
    assert_eq!(first.only_value("hot:k").as_deref(), Some(&b"built"[..]));
    assert_eq!(kennel.client().get("hot:k").as_deref(), Some(&b"built"[..]), "it is kept");
    drop(leaves);
    assert_eq!(second.only_value("hot:l"), None, "it is free once its builder has left");
}

#[test]
fn with_the_server_of_its_tags_dead_a_key_without_a_value_is_built_by_one_client_too() {
    let mut servers = memcacheds(2);
    let rule = guarded("hot", "hot:*", &format!("{PATIENT}\ntags = [\"t\"]"));
    let tags = format!("[pools.tags]\nservers = [{:?}]\n[tags]\npool = \"tags\"\n", servers[1].address());
    let kennel = Kennel::start(&(sidecar_toml(&addresses(&servers[..1]), &[rule]) + &tags));
    servers[1].kill();
    eventually("it is known to be dead", || kennel.client().execute("delete @tag:t").contains("ERROR"));
    let [mut builder, mut reader] = [kennel.client(), kennel.client()];
    assert_eq!(builder.get("hot:k"), None);
    reader.send(b"get hot:k\r\n");
    reader.silent_for(Duration::from_millis(300));
    refused(&mut builder, "hot:k", b"built");
    assert_eq!(reader.only_value("hot:k").as_deref(), Some(&b"built"[..]));
}

#[test]
fn a_build_that_began_before_a_change_and_before_the_server_died_is_not_waited_for() {
    for change in ["delete hot:k", "delete @tag:posts", "flush_all", "touch hot:k 9", "set hot:k 0 60 1\r\nw"]
    {
        let (mut servers, kennel) = sidecar(1, &format!("{PATIENT}\ntags = [\"posts\"]"));
        let mut builder = kennel.client();
        assert_eq!(builder.get("hot:k"), None);
        let reply = kennel.client().execute(change);
        assert!(!reply.contains("ERROR"), "{change}: {reply}");
        servers[0].kill();
        let (value, took) = timed(|| kennel.client().get("hot:k"));
        assert_eq!(value, None, "after {change}");
        assert!(took < Duration::from_secs(30), "after {change} it waited {took:?} for what is out of date");
    }
}

#[test]
fn under_a_rule_that_serves_nothing_stale_a_build_from_before_the_outage_is_handed_to_nobody() {
    let mut servers = memcacheds(1);
    let rule = guarded("hot", "hot:*", &format!("{PATIENT}\nstale_for = \"0s\""));
    let toml = sidecar_toml(&addresses(&servers), &[rule]).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&toml);
    let mut builder = kennel.client();
    assert_eq!(builder.get("hot:k"), None);
    servers[0].kill();
    let mut readers = [kennel.client(), kennel.client()];
    for reader in &mut readers {
        reader.send(b"get hot:k\r\n");
        reader.silent_for(Duration::from_millis(200));
    }
    refused(&mut builder, "hot:k", b"first");
    let [mut next, mut last] = readers;
    assert_eq!(next.only_value("hot:k"), None, "it builds, after the first one");
    last.silent_for(Duration::from_millis(50));
    refused(&mut next, "hot:k", b"second");
    assert_eq!(last.only_value("hot:k").as_deref(), Some(&b"second"[..]));
}

#[test]
fn a_reader_whose_server_fails_while_it_claims_a_key_without_a_value_is_the_only_builder() {
    for drops in [false, true] {
        let servers = memcacheds(1);
        let gate = Gate::start(servers[0].address);
        let rule = if drops { "on_tag = \"drop\"\ntags = [\"t\"]" } else { "" };
        let rule = guarded("hot", "hot:*", &format!("{PATIENT}\n{rule}"));
        let toml = sidecar_toml(&[gate.address()], &[rule]).replace("workers = 2", "workers = 1");
        let kennel = Kennel::start(&toml);
        let mut leaves = kennel.client();
        assert_eq!(leaves.get("hot:k"), None);
        if drops {
            // A value that may not be served: the next reader takes its lock.
            leaves.store("hot:k", b"old", 60);
            assert_eq!(kennel.client().execute("delete @tag:t"), "DELETED");
        } else {
            // A stub without a builder: the next reader takes it.
            drop(leaves);
            let mut server = direct(&servers[0]);
            eventually("the stub is free", || {
                let flags = server.execute("mg hot:k f").strip_prefix("HD f").and_then(|it| it.parse().ok());
                flags.is_some_and(|flags: u32| flags & 1 << 30 != 0)
            });
        }
        gate.hold("ms ");
        let [mut first, mut second] = [kennel.client(), kennel.client()];
        first.send(b"get hot:k\r\n");
        gate.until_held();
        second.send(b"get hot:k\r\n");
        assert_eq!(first.only_value("hot:k"), None, "its server gave no answer to the claim");
        second.silent_for(Duration::from_millis(700));
        refused(&mut first, "hot:k", b"built");
        // Under a rule that serves nothing stale it builds after the first one.
        let handed = (!drops).then_some(&b"built"[..]);
        assert_eq!(second.only_value("hot:k").as_deref(), handed);
    }
}
