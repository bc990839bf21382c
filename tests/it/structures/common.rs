//! What all kinds have in common.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Fleet, fleet, rule, store, text, with_one_copy_and_two};
use crate::between::{Between, pump};
use crate::world::{
    Kennel, Memcached, addresses, direct, eventually, guarded, holder, memcacheds, raw, sidecar_toml, within,
};

with_one_copy_and_two!(
    one_get_may_name_structures_raw_and_guarded_keys_and_answers_in_order,
    quiet_commands_are_quiet_and_their_errors_are_not,
    pipelined_commands_of_one_client_take_effect_in_order,
);

fn one_get_may_name_structures_raw_and_guarded_keys_and_answers_in_order(fleet: Fleet) {
    let rules = [
        rule("hits", "hits:*", "counter", ""),
        rule("rate", "rate:*", "window", "window = \"1h\""),
        rule("events", "log:*", "log", "window = \"1h\""),
        rule("locks", "lock:*", "lock", ""),
        rule("lists", "list:*", "list", ""),
        guarded("pages", "page:*", ""),
        raw("rest", "r:*"),
    ];
    let (_servers, [a, b]) = fleet(&rules);
    let (mut a, mut b) = (a.client(), b.client());
    assert_eq!(a.execute("incr hits:1 4"), "4");
    assert_eq!(store(&mut a, "append list:1 0 0", "+ann\n"), "STORED");
    a.store("r:1", b"raw", 0);
    a.store("page:1", b"guarded", 60);
    a.store("other", b"no rule", 0);
    assert_eq!(store(&mut a, "append log:1 0 0", "one\n"), "STORED");
    assert_eq!(store(&mut a, "add lock:1 0 0", "ann"), "STORED");
    assert_eq!(a.execute("incr rate:1 3"), "3");
    let all = [
        "hits:1",
        "log:1",
        "r:1",
        "list:1",
        "hits:none",
        "log:none",
        "list:1@ann",
        "page:1",
        "list:1@bob",
        "other",
        "lock:1",
        "rate:1",
        "hits:1",
    ];
    let items = b.get_many(&all);
    let found: Vec<_> = items
        .iter()
        .map(|item| (item.key.as_str(), std::str::from_utf8(&item.value).expect("text")))
        .collect();
    let expected = [
        ("hits:1", "4"),
        ("log:1", "one\n"),
        ("r:1", "raw"),
        ("list:1", "ann\n"),
        ("list:1@ann", "1"),
        ("page:1", "guarded"),
        ("other", "no rule"),
        ("lock:1", "ann"),
        ("rate:1", "3"),
        ("hits:1", "4"),
    ];
    assert_eq!(found, expected);
    // A long get is answered in parts.
    let many: Vec<String> = (0..400).flat_map(|n| [format!("r:{n}"), format!("hits:{n}")]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let found: Vec<String> = b.get_many(&many).into_iter().map(|item| item.key).collect();
    assert_eq!(found, ["r:1", "hits:1"]);
}

#[test]
fn keys_of_items_below_a_structure_are_refused_in_every_command() {
    let (_servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", ""), raw("rest", "r:*")]);
    let mut client = a.client();
    const REFUSED: &str = "CLIENT_ERROR keys that contain @kennel: are reserved";
    for key in ["hits:1@kennel:x", "r:1@kennel:x", "else@kennel:", "@kennel:x"] {
        assert_eq!(client.execute(&format!("get {key}")), REFUSED);
        assert_eq!(client.execute(&format!("get r:1 {key} hits:1")), REFUSED);
        assert_eq!(client.execute(&format!("gat 10 {key}")), REFUSED);
        assert_eq!(store(&mut client, &format!("set {key} 0 0"), "1"), REFUSED);
        assert_eq!(client.execute(&format!("incr {key} 1")), REFUSED);
        assert_eq!(client.execute(&format!("delete {key}")), REFUSED);
        assert_eq!(client.execute(&format!("touch {key} 1")), REFUSED);
        assert_eq!(client.execute(&format!("mg {key} v")), REFUSED);
        assert_eq!(client.execute(&format!("ma {key}")), REFUSED);
        assert_eq!(client.execute(&format!("md {key}")), REFUSED);
        assert_eq!(store(&mut client, &format!("ms {key}"), "1"), REFUSED);
    }
    // In a get of many parts it ends the reply.
    let many: String = (0..400).map(|n| format!(" r:{n}")).collect();
    assert_eq!(client.execute(&format!("get{many} hits:1@kennel:x")), REFUSED);
    assert_eq!(client.execute("mn"), "MN");
}

fn quiet_commands_are_quiet_and_their_errors_are_not(fleet: Fleet) {
    let (_servers, [a, b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let (mut a, mut b) = (a.client(), b.client());
    a.send(b"incr hits:1 1 noreply\r\nset hits:2 0 0 1 noreply\r\n7\r\nappend hits:2 0 0 1 noreply\r\n7\r\n");
    a.send(b"delete hits:3 noreply\r\ntouch hits:1 0 noreply\r\nma hits:1 q v\r\nms hits:2 1 q\r\n8\r\n");
    a.send(b"mg hits:none v q\r\nmn\r\n");
    assert_eq!(a.line(), "MN");
    assert_eq!((text(&mut b, "hits:1"), text(&mut b, "hits:2")), (Some("2".into()), Some("8".into())));
    a.send(b"ms hits:2 1 q\r\nx\r\nmn\r\n");
    assert!(a.line().starts_with("CLIENT_ERROR a counter can only be set to a number"));
    assert_eq!(a.line(), "MN");
}

fn pipelined_commands_of_one_client_take_effect_in_order(fleet: Fleet) {
    let (_servers, [a, _b]) = fleet(&[rule("hits", "hits:*", "counter", "")]);
    let mut client = a.client();
    let mut sent = String::new();
    let mut expected = String::new();
    for n in 1..=200 {
        sent += "incr hits:1 1\r\nget hits:1\r\nget hits:1 hits:1\r\n";
        let value = format!("VALUE hits:1 0 {}\r\n{n}\r\n", n.to_string().len());
        expected += &format!("{n}\r\n{value}END\r\n{value}{value}END\r\n");
    }
    client.send(sent.as_bytes());
    client.expect(expected.as_bytes());
}

/// Commands on their way to one server, one text for each read: what a sidecar writes in one turn arrives in one.
struct Recorder {
    between: Between,
    written: Arc<Mutex<Vec<String>>>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Recorder {
    fn start(target: SocketAddr) -> Recorder {
        let (written, connections) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (of_serve, kept) = (Arc::clone(&written), Arc::clone(&connections));
        let between = Between::start(target, move |client, server, over| {
            kept.lock()
                .expect("no thread has panicked")
                .push(client.try_clone().expect("another descriptor"));
            let mut ends = [
                client.try_clone().expect("another descriptor"),
                server.try_clone().expect("another descriptor"),
                client,
                server,
            ];
            let (over, written) = (over.clone(), Arc::clone(&of_serve));
            std::thread::spawn(move || {
                let [from_client, from_server, to_client, to_server] = &mut ends;
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        pump(from_server, &over, |bytes| to_client.write_all(bytes).is_ok());
                        let _ = to_client.shutdown(Shutdown::Both);
                    });
                    pump(from_client, &over, |bytes| {
                        written
                            .lock()
                            .expect("no thread has panicked")
                            .push(String::from_utf8_lossy(bytes).into_owned());
                        to_server.write_all(bytes).is_ok()
                    });
                    let _ = to_server.shutdown(Shutdown::Both);
                });
            });
        });
        Recorder { between, written, connections }
    }

    /// In how many round trips `command` names `key`.
    fn round_trips(&self, key: &str, command: impl FnOnce()) -> usize {
        self.written.lock().expect("no thread has panicked").clear();
        command();
        self.written.lock().expect("no thread has panicked").iter().filter(|text| text.contains(key)).count()
    }

    fn cut(&self) {
        for connection in self.connections.lock().expect("no thread has panicked").drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// A server behind a recorder, and a sidecar with these rules.
fn recorded(rules: &[String]) -> (Memcached, Recorder, Kennel) {
    let server = Memcached::start(&[]);
    let recorder = Recorder::start(server.address);
    let toml = sidecar_toml(&[recorder.between.address()], rules);
    let sidecar = Kennel::start(&toml.replace("request_timeout = \"500ms\"", "request_timeout = \"10s\""));
    (server, recorder, sidecar)
}

#[test]
fn each_command_takes_the_round_trips_that_the_page_says() {
    let rules = [
        rule("hits", "hits:*", "counter", ""),
        rule("rate", "rate:*", "window", "window = \"1h\"\nslots = 20"),
        rule("online", "online:*", "window", "window = \"1h\"\nunique = true"),
        rule("events", "log:*", "log", "window = \"10d\"\nslot = \"1d\""),
        rule("lists", "list:*", "list", "ttl = \"1h\""),
        rule("carts", "cart:*", "table", ""),
        rule("locks", "lock:*", "lock", "ttl = \"1h\""),
        rule("fences", "fence:*", "lock", "ttl = \"1h\"\nfence = true"),
    ];
    let (_server, recorder, sidecar) = recorded(&rules);
    let mut client = sidecar.client();
    for (key, command, reply, expected) in [
        ("hits:1", "incr hits:1 1", "1", 1),
        ("hits:1", "get hits:1", "1", 1),
        ("rate:1", "incr rate:1 1", "1", 1),
        ("rate:1", "incr rate:1 1", "2", 1),
        ("rate:1", "get rate:1", "2", 1),
        ("rate:1", "delete rate:1", "DELETED", 1),
        ("online:1", "add online:1:ann 0 0 0\r\n", "STORED", 2),
        ("online:1", "add online:1:ann 0 0 0\r\n", "NOT_STORED", 1),
        ("online:1", "get online:1", "1", 1),
        ("log:1", "append log:1 0 0 1\r\na", "STORED", 2),
        ("log:1", "append log:1 0 0 1\r\nb", "STORED", 1),
        ("log:1", "append log:1 0 0 1\r\nc", "STORED", 1),
        ("log:1", "get log:1", "abc", 2),
        ("log:2", "append log:2 0 0 32768\r\n{large}", "STORED", 2),
        ("log:2", "append log:2 0 0 1\r\na", "STORED", 2),
        ("log:2", "append log:2 0 0 1\r\nb", "STORED", 1),
        ("list:1", "append list:1 0 0 9\r\n+x\n+y\n-z\n", "STORED", 1),
        ("list:1", "mg list:1@x", "HD", 1),
        ("list:1", "append list:1 0 0 3\r\n-y\n", "STORED", 1),
        // It folds what is left of y.
        ("list:1", "get list:1", "x\n", 2),
        ("list:1", "get list:1", "x\n", 1),
        ("list:1", "delete list:1", "DELETED", 1),
        ("cart:1", "set cart:1/ann 0 0 1\r\nx", "STORED", 1),
        ("cart:1", "set cart:1/ann 0 0 1\r\ny", "STORED", 1),
        ("cart:1/ann", "get cart:1/ann", "y", 1),
        // It folds the second name.
        ("cart:1", "get cart:1", "ann\n", 2),
        ("cart:1", "delete cart:1/ann", "DELETED", 1),
        ("lock:1", "delete lock:1", "NOT_FOUND", 0),
        ("lock:1", "add lock:1 0 0 1\r\nx", "STORED", 1),
        ("lock:1", "add lock:1 0 0 1\r\nx", "NOT_STORED", 1),
        ("lock:1", "get lock:1", "x", 1),
        ("lock:1", "delete lock:1", "DELETED", 1),
        ("fence:1", "add fence:1 0 0 1\r\nx", "STORED", 2),
        ("fence:1", "add fence:1 0 0 1\r\nx", "NOT_STORED", 1),
        ("fence:1", "delete fence:1", "DELETED", 1),
    ] {
        let command = command.replace("{large}", &"x".repeat(32_768));
        let mut found = String::new();
        let took = recorder.round_trips(key, || {
            found = match command.starts_with("get") {
                true => text(&mut client, key).unwrap(),
                false => client.execute(&command),
            }
        });
        assert_eq!((found.as_str(), took), (reply, expected), "{command}");
    }
    // A tail: all of it, nothing, and what is new.
    let mut cursor = "0".to_owned();
    for (more, expected, trips) in [("", "abc", 2), ("", "", 1), ("d", "d", 2), ("", "", 1)] {
        if !more.is_empty() {
            assert_eq!(store(&mut client, "append log:1 0 0", more), "STORED");
        }
        let mut found = String::new();
        let took = recorder.round_trips("log:1", || {
            found = text(&mut client, &format!("log:1@{cursor}")).expect("a tail has an answer");
        });
        let (next, new) = found.split_once('\n').expect("a cursor");
        assert_eq!((new, took), (expected, trips), "{cursor}");
        cursor = next.to_owned();
    }
}

#[test]
fn a_lock_outlives_its_sidecars_connections_to_the_server() {
    let (server, recorder, sidecar) = recorded(&[rule("locks", "lock:*", "lock", "ttl = \"2s\"")]);
    let mut client = sidecar.client();
    assert_eq!(store(&mut client, "add lock:1 0 0", "ann"), "STORED");
    for _ in 0..2 {
        recorder.cut();
        let mut server = direct(&server);
        let mut least = 3;
        eventually("the lock is renewed over another connection", || {
            let ttl = server.ttl("lock:1").expect("a lock that is held is there");
            let is_renewed = ttl > least;
            least = ttl;
            is_renewed
        });
    }
    recorder.cut();
    eventually("the server is used again", || text(&mut client, "lock:1").as_deref() == Some("ann"));
    assert_eq!(client.delete("lock:1"), "DELETED");
    assert_eq!(sidecar.metrics().sum("kennel_locks_total", &["end=\"lost\""]), 0.0);
}

#[test]
fn a_structure_stays_on_its_server_when_raw_and_guarded_keys_move_to_the_standby() {
    let mut servers = memcacheds(3);
    let rules = [rule("hits", "hits:*", "counter", ""), raw("rest", "*")];
    let short = "window = \"1s\"\nfail_after = \"1s\"\nrecover_after = \"2s\"\non_error = \"standby\"\n";
    let toml = sidecar_toml(&addresses(&servers), &rules)
        .replace("[pools.main]\n", &format!("[pools.main]\n{short}"));
    let sidecar = Kennel::start(&toml);
    let mut client = sidecar.client();
    assert_eq!(client.execute("incr hits:1 1"), "1");
    let lost = holder(&servers, "hits:1");
    let keys: Vec<String> = (0..60).map(|n| format!("r:{n}")).collect();
    keys.iter().for_each(|key| client.store(key, b"x", 0));
    let moved = keys.iter().find(|key| holder(&servers, key) == lost).expect("a key of each server");
    servers[lost].kill();
    within(Duration::from_secs(60), "raw keys have moved", || client.set(moved, b"y", 0) == "STORED");
    assert!(client.execute("incr hits:1 1").starts_with("SERVER_ERROR"));
    assert_eq!(text(&mut client, "hits:1"), None);
    assert_eq!(text(&mut client, moved).as_deref(), Some("y"));
}
