//! One process takes over from another: `kennel --takeover`, and SIGUSR2.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crate::binary::packet::{
    ADD, AUTH_ERROR, BinaryClient, DELETE, GETKQ, NOOP, Packet, SASL_AUTH, SASL_LIST, SUCCESS,
    UNKNOWN_COMMAND,
};
use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, eventually, free_address, guarded, memcacheds, raw, sidecar_toml, temp_dir,
    within,
};

/// The time limit of what takes seconds on a machine without other load.
const LONG: Duration = Duration::from_secs(60);
const RULE: &str = "stale_for = \"30s\"\nlock_ttl = \"10s\"\nmax_rebuild = \"60s\"\ncold_wait = \"20s\"";

/// The sockets that one process leaves to the next, in a directory that is removed when dropped.
struct Sockets(PathBuf);

impl Sockets {
    fn new() -> Sockets {
        Sockets(temp_dir())
    }

    fn unix(&self) -> PathBuf {
        self.0.join("k.sock")
    }

    fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// A configuration with a TCP and a Unix listener, a control socket, and these rules.
    fn toml(&self, servers: &[Memcached], rules: &[String]) -> String {
        sidecar_toml(&addresses(servers), rules)
            .replacen("[listen]", &format!("[listen]\nunix = [{:?}]", self.unix().display().to_string()), 1)
            .replacen("[admin]", &format!("[admin]\ncontrol = {:?}", self.control().display().to_string()), 1)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn guarded_and_raw() -> [String; 2] {
    [guarded("hot", "hot:*", RULE), raw("raw", "*")]
}

/// Takes over from `old`, and returns the new process once the old one has ended with 0.
fn upgrade(old: Kennel, toml: &str) -> Kennel {
    let new = Kennel::take_over(toml);
    ends_well(old);
    new
}

fn ends_well(old: Kennel) {
    let (status, log) = old.end(LONG);
    assert_eq!(status.code(), Some(0), "{status}\n{log}");
}

/// Ends the clients, also when the test fails.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn received(kennel: &Kennel) -> f64 {
    kennel.metrics().sum("kennel_client_connections_received_total", &[])
}

#[test]
fn two_hundred_clients_see_nothing_of_twenty_upgrades_and_no_lease_is_lost() {
    let (sockets, servers) = (Sockets::new(), memcacheds(2));
    // 200 clients on a busy machine: no server may count as slow.
    let toml = sockets
        .toml(&servers, &guarded_and_raw())
        .replace("request_timeout = \"500ms\"", "request_timeout = \"8s\"")
        + "\n[pools.main.health]\nenabled = false\n";
    let mut kennel = Kennel::start(&toml);
    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stops = StopsWhenDropped(&stop);
        let mut clients = Vec::new();
        for n in 0..200 {
            let mut client = if n % 2 == 0 { kennel.client() } else { Client::unix(&sockets.unix()) };
            let (stop, requests) = (&stop, &requests);
            clients.push(scope.spawn(move || {
                // A client panics at a closed connection, at a wrong reply, and after 10 s without one.
                let mut round = 0;
                while !stop.load(SeqCst) {
                    let (own, shared) = (format!("raw:{n}"), format!("hot:{}", round % 20));
                    client.store(&own, round.to_string().as_bytes(), 600);
                    assert_eq!(client.get(&own), Some(round.to_string().into_bytes()));
                    match client.get(&shared) {
                        Some(value) => assert_eq!(value, shared.as_bytes()),
                        None => client.store(&shared, shared.as_bytes(), 1),
                    }
                    requests.fetch_add(3, SeqCst);
                    round += 1;
                    thread::sleep(Duration::from_millis(5));
                }
            }));
        }
        for upgrade in 0..20 {
            let key = format!("hot:lease:{upgrade}");
            let mut winner = if upgrade % 2 == 0 { kennel.client() } else { Client::unix(&sockets.unix()) };
            assert_eq!(winner.get(&key), None, "wins the key");
            let next = Kennel::take_over(&toml);
            let old = std::mem::replace(&mut kennel, next);
            // Until then, the old process may accept a client too.
            eventually("the other clients have moved", || received(&kennel) >= 200.0);
            // The old process keeps the winner. A client of the new one finds the key held, and waits for the value.
            let mut reader = kennel.client();
            reader.send(format!("get {key}\r\n").as_bytes());
            eventually("the reader waits", || kennel.metrics().sum("kennel_waiters", &[]) >= 1.0);
            winner.store(&key, b"built", 600);
            assert_eq!(reader.only_value(&key).as_deref(), Some(&b"built"[..]));
            ends_well(old);
            let before = requests.load(SeqCst);
            within(LONG, "every client goes on", || requests.load(SeqCst) > before + 1200);
        }
        stop.store(true, SeqCst);
        for client in clients {
            client.join().expect("a client without a failed request");
        }
    });
}

#[test]
fn no_probe_finds_a_sidecar_that_is_upgraded_not_ready() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let toml = sockets.toml(&servers, &[raw("raw", "*")]);
    let mut kennel = Kennel::start(&toml);
    let (stop, replies, admin) = (AtomicBool::new(false), AtomicU64::new(0), kennel.admin());
    let probe = || {
        while !stop.load(SeqCst) {
            let mut reply = String::new();
            let mut probe = TcpStream::connect(admin).expect("connect");
            probe.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").expect("it reads");
            probe.read_to_string(&mut reply).expect("it replies");
            assert!(reply.starts_with("HTTP/1.0 200 "), "{reply:?}");
            replies.fetch_add(1, SeqCst);
        }
    };
    thread::scope(|scope| {
        let _stops = StopsWhenDropped(&stop);
        let probes: Vec<_> = (0..8).map(|_| scope.spawn(probe)).collect();
        for _ in 0..20 {
            let next = Kennel::take_over(&toml);
            ends_well(std::mem::replace(&mut kennel, next));
            let before = replies.load(SeqCst);
            within(LONG, "they go on", || replies.load(SeqCst) > before + 100);
        }
        stop.store(true, SeqCst);
        probes.into_iter().for_each(|probe| probe.join().expect("a probe without a failed request"));
    });
}

#[test]
fn what_is_between_two_requests_moves_and_what_is_not_stays_until_it_is() {
    let (sockets, servers) = (Sockets::new(), memcacheds(2));
    let toml = sockets.toml(&servers, &guarded_and_raw());
    let old = Kennel::start(&toml);
    let (mut idle, mut half, mut missed) = (old.client(), old.client(), Client::unix(&sockets.unix()));
    idle.store("raw:k", b"v", 600);
    half.send(b"set raw:half 0 600 10\r\n01234");
    assert_eq!(missed.get("hot:k"), None, "wins the key");
    let mut deleter = old.client();
    let new = Kennel::take_over(&toml);
    eventually("the two idle clients have moved", || received(&new) == 2.0);
    assert_eq!(idle.get("raw:k").as_deref(), Some(&b"v"[..]));
    // Another client invalidates the key through the new process. The value of the lease is then dropped.
    deleter.delete("hot:k");
    missed.store("hot:k", b"built before the delete", 600);
    assert_eq!(idle.get("hot:k"), None);
    idle.store("hot:k", b"new", 600);
    half.send(b"56789\r\n");
    assert_eq!(half.line(), "STORED");
    assert_eq!(idle.get("raw:half").as_deref(), Some(&b"0123456789"[..]));
    ends_well(old);
    assert_eq!(received(&new), 4.0);
    assert_eq!(missed.get("hot:k").as_deref(), Some(&b"new"[..]));
    assert_eq!(half.get("raw:k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn who_is_authenticated_stays_so_and_an_upgrade_has_a_bound_for_those_that_cannot_move() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let users = sockets.0.join("users");
    std::fs::write(&users, "ann:secret\n").expect("write the users");
    let entry = format!(
        "tcp = [{{ address = \"127.0.0.1:0\", auth_file = {:?} }}]\ntakeover_timeout = \"1s\"",
        users
    );
    let toml = sockets.toml(&servers, &[raw("raw", "*")]).replacen("tcp = [\"127.0.0.1:0\"]", &entry, 1);
    let old = Kennel::start(&toml);
    let mut client = old.client();
    client.send(b"set auth 0 0 10\r\nann secret\r\n");
    assert_eq!(client.line(), "STORED");
    let mut stranger = old.client();
    let mut stuck = Client::unix(&sockets.unix());
    stuck.send(b"set raw:half 0 600 10\r\n01234");
    let new = upgrade(old, &toml);
    client.store("k", b"v", 0);
    assert_eq!(received(&new), 1.0);
    assert_eq!((stranger.rest(), stuck.rest()), (vec![], vec![]), "closed without a reply");
    let mut late = new.client();
    late.send(b"get k\r\n");
    assert!(late.line().starts_with("CLIENT_ERROR unauthenticated"));
}

#[test]
fn a_client_moves_with_its_protocol_and_a_binary_one_with_its_authentication_and_not_within_one() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let users = sockets.0.join("users");
    std::fs::write(&users, "ann:secret\n").expect("write the users");
    let entry = format!("tcp = [{{ address = \"127.0.0.1:0\", auth_file = {users:?} }}]");
    let toml = sockets.toml(&servers, &[raw("raw", "*")]).replacen("tcp = [\"127.0.0.1:0\"]", &entry, 1);
    let password = || Packet::new(SASL_AUTH, "PLAIN").with_value("\0ann\0secret");
    let list = || Packet::new(SASL_LIST, "");
    let old = Kennel::start(&toml);
    let (mut known, mut asks) = (BinaryClient::new(old.address()), BinaryClient::new(old.address()));
    let (mut open, mut reads) =
        (BinaryClient(Client::unix(&sockets.unix())), BinaryClient(Client::unix(&sockets.unix())));
    let mut text = Client::unix(&sockets.unix());
    assert_eq!((known.ask(password()).status, asks.ask(password()).status), (SUCCESS, SUCCESS));
    assert_eq!((known.set("k", "v"), open.set("k", "v")), (SUCCESS, SUCCESS));
    text.store("k", b"v", 0);
    // Whoever asks for the mechanisms is no longer authenticated.
    assert_eq!(asks.ask(list()).status, SUCCESS);
    reads.send(&[Packet::new(GETKQ, "k")]);
    assert_eq!(reads.receive().text(), "v");
    let new = Kennel::take_over(&toml);
    eventually("three clients have moved", || received(&new) == 3.0);
    assert_eq!((known.get("k").as_deref(), open.get("k").as_deref()), (Some("v"), Some("v")));
    assert_eq!((known.ask(list()).status, open.ask(list()).status), (SUCCESS, UNKNOWN_COMMAND));
    assert_eq!(
        known.ask(Packet::new(NOOP, "")).status,
        AUTH_ERROR,
        "as with any that has asked for the list"
    );
    // The first byte of a binary request.
    text.send(b"\x80\r\n");
    assert_eq!(text.line(), "CLIENT_ERROR bad command line format");
    assert_eq!(reads.ask(Packet::new(NOOP, "")).status, SUCCESS);
    eventually("the one that has ended its gets moves", || received(&new) == 4.0);
    assert_eq!(asks.ask(password()).status, SUCCESS);
    ends_well(old);
    assert_eq!(received(&new), 5.0);
    assert_eq!((asks.get("k").as_deref(), reads.get("k").as_deref()), (Some("v"), Some("v")));
}

#[test]
fn a_client_with_a_lock_stays_until_it_has_released_it() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let locks = "[[rules]]\nname = \"locks\"\nmatch = \"lock:*\"\nkind = \"lock\"\nttl = \"2s\"\n".to_owned();
    let toml = sockets.toml(&servers, &[locks]);
    let old = Kennel::start(&toml);
    let (mut holder, mut idle) = (Client::unix(&sockets.unix()), Client::unix(&sockets.unix()));
    let mut binary = BinaryClient(Client::unix(&sockets.unix()));
    holder.send(b"add lock:1 0 0 3\r\nann\r\n");
    assert_eq!(holder.line(), "STORED");
    assert_eq!(binary.ask(Packet::store(ADD, "lock:2", "bob", 0)).status, SUCCESS);
    assert_eq!(idle.get("lock:1").as_deref(), Some(&b"ann"[..]));
    let new = Kennel::take_over(&toml);
    eventually("the idle client has moved", || received(&new) == 1.0);
    let mut server = Client::tcp(servers[0].address);
    for key in ["lock:1", "lock:2"] {
        let mut least = 3;
        eventually("the old process renews the lock", || {
            let ttl = server.ttl(key).expect("a lock that is held is there");
            let is_renewed = ttl > least;
            least = ttl;
            is_renewed
        });
    }
    assert_eq!(received(&new), 1.0);
    assert_eq!(idle.delete("lock:1"), "NOT_FOUND");
    assert_eq!(holder.delete("lock:1"), "DELETED");
    assert_eq!(binary.ask(Packet::new(DELETE, "lock:2")).status, SUCCESS);
    ends_well(old);
    assert_eq!(received(&new), 3.0);
    assert_eq!((holder.get("lock:1"), binary.get("lock:2")), (None, None));
}

#[test]
fn the_new_configuration_counts_with_other_listeners_and_workers() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let gone = sockets.0.join("gone.sock");
    let first = sockets.toml(&servers, &[raw("raw", "*")]);
    let with_gone = first.replacen("unix = [", &format!("unix = [{:?}, ", gone.display().to_string()), 1);
    let old = Kennel::start(&with_gone.replacen("workers = 2", "workers = 4", 1));
    let address = old.address();
    let mut clients: Vec<_> = (0..8).map(|_| old.client()).collect();
    clients.push(Client::unix(&sockets.unix()));
    let mut without_listener = Client::unix(&gone);
    clients.iter_mut().for_each(|client| client.store("k", b"v", 0));
    without_listener.store("k", b"v", 0);
    let mut kennel = old;
    for workers in ["workers = 1", "workers = 3"] {
        kennel = upgrade(kennel, &first.replacen("workers = 2", workers, 1));
        assert_eq!(kennel.address(), address, "port 0 is the port of the process before");
        for client in &mut clients {
            assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
        }
        assert!(!gone.exists() && sockets.unix().exists());
        let mut more: Vec<_> = (0..20).map(|_| kennel.client()).collect();
        more.push(Client::unix(&sockets.unix()));
        more.iter_mut().for_each(|client| assert_eq!(client.get("k").as_deref(), Some(&b"v"[..])));
    }
    assert_eq!(without_listener.rest(), b"", "closed");
    let (status, _) = kennel.terminate();
    assert_eq!(status.code(), Some(0));
    assert!(!sockets.unix().exists() && !sockets.control().exists(), "removed by the last process");
}

/// Runs `kennel` until it ends: its exit code and its log.
fn run(args: &[&str], toml: &str, dir: &Sockets) -> (Option<i32>, String) {
    let file = dir.0.join("other.toml");
    std::fs::write(&file, toml).expect("write the configuration");
    let mut command = Command::new("timeout");
    command.args(["20", env!("CARGO_BIN_EXE_kennel")]).args(args).arg("--config").arg(&file);
    let output = command.stdin(Stdio::null()).output().expect("run kennel");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_new_process_that_cannot_serve_leaves_everything_to_the_old_one() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let toml = sockets.toml(&servers, &[raw("raw", "*")]);
    let kennel = Kennel::start(&toml);
    let mut client = Client::unix(&sockets.unix());
    client.store("k", b"v", 0);
    // An address that cannot be bound.
    let taken = std::net::TcpListener::bind(free_address()).expect("a free port");
    let address = taken.local_addr().expect("its address").to_string();
    let other = toml.replacen("tcp = [", &format!("tcp = [{address:?}, "), 1);
    let (code, log) = run(&["--takeover"], &other, &sockets);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(&format!("cannot listen on {address}")), "{log}");
    eventually("the old process notices", || kennel.log().contains("this one goes on serving"));
    // A mistake in the file.
    assert_eq!(run(&["--takeover"], "listen.oops = 1", &sockets).0, Some(1));
    // Killed while it finds out where the keys of three dead servers are.
    let dead: Vec<_> = (0..3).map(|_| free_address().to_string()).collect();
    let slow = sidecar_toml(&dead, &[guarded("all", "*", "")])
        .replacen("[admin]", &format!("[admin]\ncontrol = {:?}", sockets.control().display().to_string()), 1)
        .replacen(
            "[pools.main]\n",
            "[pools.main]\nwindow = \"5s\"\nfail_after = \"5s\"\nrecover_after = \"5s\"\n",
            1,
        );
    let file = sockets.0.join("slow.toml");
    std::fs::write(&file, slow).expect("write the configuration");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    command.arg("--takeover").arg("--config").arg(&file).stdin(Stdio::null()).stderr(Stdio::null());
    let before = kennel.log().matches("waiting until it is ready").count();
    let mut dying = command.spawn().expect("start kennel");
    eventually("the new process has the sockets", || {
        kennel.log().matches("waiting until it is ready").count() > before
    });
    // Only one at a time may take over.
    let (code, log) = run(&["--takeover"], &toml, &sockets);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("another process is taking over; it goes on serving"), "{log}");
    dying.kill().and_then(|()| dying.wait()).expect("kill it");
    eventually("the old process notices", || kennel.log().matches("this one goes on serving").count() == 2);
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
    assert_eq!(kennel.client().get("k").as_deref(), Some(&b"v"[..]));
    assert_eq!(Client::unix(&sockets.unix()).get("k").as_deref(), Some(&b"v"[..]));
    // And the next one takes over.
    let _new = upgrade(kennel, &toml);
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn without_a_running_process_it_starts_and_without_a_control_socket_it_does_not() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let toml = sockets.toml(&servers, &[raw("raw", "*")]);
    let kennel = Kennel::take_over(&toml);
    assert!(kennel.log().contains("no process to take over from: starting"), "{}", kennel.log());
    kennel.client().store("k", b"v", 0);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(sockets.control()).expect("the control socket").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let second = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]);
    let (code, log) = run(&["--takeover"], &second, &sockets);
    assert_eq!(code, Some(1));
    assert!(log.contains("admin.control names no control socket"), "{log}");
    // A second process with the same control socket.
    let control = format!("[admin]\ncontrol = {:?}", sockets.control().display().to_string());
    let (code, log) = run(&[], &second.replacen("[admin]", &control, 1), &sockets);
    assert_eq!(code, Some(1));
    assert!(log.contains("admin.control: cannot listen on"), "{log}");
}

#[test]
fn sigusr2_starts_the_program_again_which_takes_over() {
    let (sockets, servers) = (Sockets::new(), memcacheds(1));
    let toml = sockets.toml(&servers, &[raw("raw", "*")]);
    let old = Kennel::start(&toml);
    let mut client = old.client();
    client.store("k", b"v", 0);
    old.signal("USR2");
    let mut successor = None;
    eventually("it starts a process", || {
        let log = old.log();
        let words = log.split_once("started a process that takes over").map(|(_, rest)| rest.to_owned());
        successor = words.and_then(|rest| {
            let (_, number) = rest.lines().next()?.split_once("process=")?;
            number.split(' ').next()?.parse::<u32>().ok()
        });
        successor.is_some()
    });
    let successor = Ends(successor.expect("just checked"));
    let new = || std::fs::read_to_string(format!("/proc/{}/cmdline", successor.0)).unwrap_or_default();
    eventually("the new process runs", || new().ends_with("\0--takeover\0"));
    // systemd would not wait for the end of a main process that has another parent.
    assert_ne!(parent(successor.0), old.id());
    within(LONG, "the old process hands over", || {
        old.log().contains("handed over to the new process clients=1")
    });
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
    let (status, _) = old.end(LONG);
    assert_eq!(status.code(), Some(0));
    assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
}

fn parent(process: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    parent.trim().parse().expect("a number")
}

/// A process that is no child of the test. Killed when dropped.
struct Ends(u32);

impl Drop for Ends {
    fn drop(&mut self) {
        let kill = format!("kill -9 {}", self.0);
        let _ = Command::new("sh").args(["-c", &kill]).status();
    }
}
