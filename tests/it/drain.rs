//! `kennel server drain` and `undrain` under load, with real servers: planned work costs nothing but one build of a key and move.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, eventually, guarded, memcacheds, sidecar_toml, temp_dir, without_failover,
};

/// Views of a planned move last 600 ms: what is in flight ends within that on a slow machine.
const TIMES: &str = "window = \"3s\"\nfail_after = \"3s\"\nrecover_after = \"3s\"\n";
/// The pause of a client between two requests, so that it leaves other tests the processor.
const PAUSE: Duration = Duration::from_millis(1);
const KEYS: usize = 12;

fn toml(servers: &[String]) -> String {
    let copied =
        "[[rules]]\nname = \"copied\"\nmatch = \"copied:*\"\nkind = \"raw\"\ncopies = 2\n".to_owned();
    let rules = [
        guarded("kept", "kept:*", "cold_wait = \"5s\""),
        guarded("changed", "changed:*", "tags = [\"t\"]\non_tag = \"drop\"\ncold_wait = \"0ms\""),
        copied,
    ];
    let toml =
        sidecar_toml(servers, &rules).replace("request_timeout = \"500ms\"", "request_timeout = \"3s\"");
    toml.replace("[pools.main]\n", &format!("[pools.main]\n{TIMES}"))
}

fn fleet() -> (Vec<Memcached>, [Kennel; 2]) {
    let servers = memcacheds(3);
    let toml = toml(&addresses(&servers));
    (servers, [(); 2].map(|()| Kennel::start(&toml)))
}

/// The status and body of the reply to a command for a server.
fn ask(sidecar: &Kennel, command: &str, name: &str) -> (String, String) {
    let path = format!("/server/{command}?name={name}");
    let reply = sidecar.ask("POST", &path, "Authorization: Bearer token-of-the-tests");
    let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    (reply.split(' ').nth(1).unwrap_or_default().to_owned(), body)
}

/// What the load has found so far.
#[derive(Default)]
struct Load {
    ends: AtomicBool,
    /// The number of commands for servers that have begun.
    phase: AtomicUsize,
    /// Of each changed key: the version in the database, and the latest one whose invalidation was acknowledged.
    database: [AtomicUsize; KEYS],
    acknowledged: [AtomicUsize; KEYS],
    /// The phase of each build of each key that nobody changes.
    builds: Mutex<Vec<(usize, usize)>>,
    wrong: Mutex<Vec<String>>,
    writes: AtomicUsize,
    reads: AtomicUsize,
}

impl Load {
    fn is_wrong(&self, what: String) {
        self.wrong.lock().expect("nobody panics with it").push(format!("{}: {what}", self.phase()));
    }

    fn phase(&self) -> usize {
        self.phase.load(Ordering::SeqCst)
    }

    fn written(&self, reply: &str, what: &str) {
        self.writes.fetch_add(1, Ordering::SeqCst);
        if !matches!(reply, "STORED" | "DELETED" | "NOT_FOUND") {
            self.is_wrong(format!("{what}: {reply}"));
        }
    }

    /// Changes keys, each of which nobody else changes, until it ends.
    fn change(&self, mut client: Client, keys: impl Iterator<Item = usize> + Clone) {
        for (turn, at) in keys.cycle().enumerate() {
            if self.ends.load(Ordering::SeqCst) {
                return;
            }
            sleep(PAUSE);
            let version = self.database[at].fetch_add(1, Ordering::SeqCst) + 1;
            let key = format!("changed:{at}");
            let reply = match turn % 5 {
                0 => client.delete("@tag:t"),
                1 | 2 => client.delete(&key),
                _ => client.set(&key, version.to_string().as_bytes(), 0),
            };
            self.written(&reply, &key);
            // A fill of an earlier miss may follow a set, but no invalidation.
            if turn % 5 < 3 {
                self.acknowledged[at].fetch_max(version, Ordering::SeqCst);
            }
        }
    }

    /// Runs clients of both sidecars while this lasts.
    fn run_beside(&self, sidecars: &[Kennel; 2], work: impl FnOnce()) {
        std::thread::scope(|scope| {
            for (at, sidecar) in sidecars.iter().enumerate() {
                let writer = sidecar.client();
                scope.spawn(move || self.change(writer, (at..KEYS).step_by(2)));
                for _ in 0..2 {
                    let reader = sidecar.client();
                    scope.spawn(move || self.read(reader));
                }
            }
            // Whatever happens, the clients must end.
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            self.ends.store(true, Ordering::SeqCst);
            if let Err(why) = ended {
                std::panic::resume_unwind(why);
            }
        });
    }

    fn check(&self) {
        let builds = self.builds.lock().expect("nobody panics with it");
        println!("{:?} reads, {:?} writes, {} builds", self.reads, self.writes, builds.len());
        let wrong = self.wrong.lock().expect("nobody panics with it");
        assert!(wrong.is_empty(), "{} of {:?} writes: {wrong:#?}", wrong.len(), self.writes);
        for build in builds.iter() {
            let again = builds.iter().filter(|other| *other == build).count();
            assert_eq!(again, 1, "a key is built again in the same phase: {builds:?}");
        }
        assert!(!builds.is_empty());
    }

    /// Reads all keys until it ends, and builds what is missing.
    fn read(&self, mut client: Client) {
        while !self.ends.load(Ordering::SeqCst) {
            for at in 0..KEYS {
                sleep(PAUSE);
                self.reads.fetch_add(1, Ordering::SeqCst);
                let key = format!("changed:{at}");
                let least = self.acknowledged[at].load(Ordering::SeqCst);
                match client.get(&key).map(|value| String::from_utf8_lossy(&value).parse::<usize>()) {
                    Some(Ok(found)) if found < least => {
                        self.is_wrong(format!("{key} is {found}, and {least} was acknowledged"));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(why)) => self.is_wrong(format!("{key}: {why}")),
                    None => {
                        let built = self.database[at].load(Ordering::SeqCst).to_string();
                        self.written(&client.set(&key, built.as_bytes(), 0), &key);
                    }
                }
                let kept = format!("kept:{at}");
                if client.get(&kept).is_none() {
                    self.builds.lock().expect("nobody panics with it").push((self.phase(), at));
                    self.written(&client.set(&kept, b"kept", 0), &kept);
                }
                let copied = format!("copied:{at}");
                if client.get(&copied).as_deref() != Some(b"copied") {
                    self.is_wrong(format!("{copied} is lost"));
                }
            }
        }
    }
}

#[test]
fn all_servers_are_restarted_one_by_one_and_no_write_is_refused_and_nothing_old_is_read() {
    let (mut servers, sidecars) = fleet();
    let load = Load::default();
    let mut client = sidecars[0].client();
    for at in 0..KEYS {
        client.store(&format!("copied:{at}"), b"copied", 0);
        client.store(&format!("kept:{at}"), b"kept", 0);
    }
    load.run_beside(&sidecars, || {
        for server in &mut servers {
            load.phase.fetch_add(1, Ordering::SeqCst);
            let (status, body) = ask(&sidecars[0], "drain", &server.address());
            assert_eq!(status, "200", "{body}");
            server.restart();
            load.phase.fetch_add(1, Ordering::SeqCst);
            let (status, body) = ask(&sidecars[1], "undrain", &server.address());
            assert_eq!(status, "200", "{body}");
        }
    });
    load.check();
    assert!(load.phase() == 6);
}

/// The return after a death is planned too.
#[test]
fn the_return_after_a_death_refuses_no_write_and_costs_one_build_of_a_key() {
    let (mut servers, sidecars) = fleet();
    let load = Load::default();
    let mut client = sidecars[0].client();
    (0..KEYS).for_each(|at| client.store(&format!("copied:{at}"), b"copied", 0));
    servers[0].kill();
    let places = |place: f64| {
        let is = |sidecar: &Kennel| {
            let metrics = sidecar.metrics();
            let sum = |name| metrics.sum(name, &[]);
            sum("kennel_failover_place") == place && sum("kennel_failover_view_valid") == 3.0
        };
        eventually("the keys have moved", || sidecars.iter().all(is));
    };
    places(1.0);
    for at in 0..KEYS {
        // Both copies are there again.
        assert_eq!(client.get(&format!("copied:{at}")).as_deref(), Some(&b"copied"[..]));
        client.store(&format!("kept:{at}"), b"kept", 0);
    }
    load.run_beside(&sidecars, || {
        servers[0].restart();
        places(0.0);
    });
    load.check();
}

#[test]
fn what_cannot_be_drained_is_refused_and_a_drained_server_stays_so_until_it_is_asked_for() {
    let (mut servers, sidecars) = fleet();
    let names = addresses(&servers);
    let refused = |command: &str, name: &str, why: &str| {
        let (status, body) = ask(&sidecars[1], command, name);
        assert!(status == "422" && body.contains(why), "{command} {name}: {status} {body}");
    };
    refused("drain", "nobody", "no pool has a server nobody");
    refused("undrain", &names[0], "is not drained");
    assert_eq!(ask(&sidecars[0], "drain", &names[0]).0, "200");
    refused("drain", &names[0], "drained already");
    // It may be the standby server of some keys of the other one.
    refused("drain", &names[1], "one server of a pool at a time");
    servers[0].restart();
    // Much longer than recover_after would be a sleep; the record says what holds, and a sidecar that starts reads it.
    let late = Kennel::start(&toml(&names));
    for sidecar in sidecars.iter().chain([&late]) {
        assert_eq!(sidecar.metrics().sum("kennel_failover_place", &[]), 2.0);
        assert!(sidecar.http("/readyz").contains("is drained"));
        assert!(sidecar.http("/page.json").contains("\"keys\":\"drained\""));
    }
    assert_eq!(ask(&late, "undrain", &names[0]).0, "200");
    assert_eq!(late.metrics().sum("kennel_failover_place", &[]), 0.0);
    eventually("the log tells both", || {
        let log = sidecars[0].log();
        log.contains("drained: its guarded keys") && log.contains("failed back")
    });
    assert!(!sidecars[0].log().contains("another window"));
}

#[test]
fn the_command_drains_over_the_control_socket_and_says_why_not() {
    let dir = temp_dir();
    let run = |toml: &str, commands: &[(&str, &str, &str)]| {
        let socket = dir.join("control.sock");
        let _kennel =
            Kennel::start(&toml.replacen("[admin]\n", &format!("[admin]\ncontrol = {socket:?}\n"), 1));
        for (command, name, expected) in commands {
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_kennel"))
                .args(["server", command, "--control", &socket.display().to_string(), name])
                .output()
                .expect("it runs");
            let does = expected.starts_with("the ");
            let told =
                String::from_utf8_lossy(if does { &output.stdout } else { &output.stderr }).into_owned();
            assert!(output.status.success() == does && told.contains(expected), "{command} {name}: {told}");
        }
    };
    let servers = memcacheds(2);
    let names = addresses(&servers);
    let fixed = without_failover(&toml(&names).replace(TIMES, "")).replace("copies = 2\n", "");
    run(
        &fixed,
        &[("drain", &names[0], "does not fail over"), ("undrain", "nobody", "no pool has a server nobody")],
    );
    let servers = memcacheds(3);
    let names = addresses(&servers);
    let done =
        |place| format!("the guarded keys, tags and copies of {} (pool main) are on {place}", names[0]);
    let (away, back) = (done("their standby servers"), done("it again"));
    run(
        &toml(&names),
        &[
            ("drain", &names[0], &away),
            ("drain", &names[0], "drained already"),
            ("undrain", &names[0], &back),
        ],
    );
    let _ = std::fs::remove_dir_all(dir);
}
