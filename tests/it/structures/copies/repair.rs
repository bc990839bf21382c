//! Values that nobody reads get their second copy again: servers restart one after the other, and nothing is lost.

use std::process::{Command, Output};

use super::{SHORT, copied, until_writable};
use crate::client::Client;
use crate::structures::{store, text};
use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, sidecar_toml, temp_dir};

/// Sessions that nobody reads.
const IDLE: usize = 300;

/// Servers and two sidecars, with a rule of sessions and one of each kind, whose items all have two copies.
struct Fleet {
    servers: Vec<Memcached>,
    sidecars: [Kennel; 2],
    toml: String,
    /// The control socket of the first sidecar.
    control: String,
}

/// A fleet whose sidecars repair at this rate.
fn fleet(servers: Vec<Memcached>, rate: u32) -> Fleet {
    let fleet = started(servers, rate);
    fleet.repair(&[]);
    eventually("no server lacks anything", || fleet.is_whole());
    fleet
}

fn started(servers: Vec<Memcached>, rate: u32) -> Fleet {
    let rules = [
        copied("sessions", "session:*", "raw", ""),
        copied("counts", "count:*", "counter", ""),
        copied("carts", "cart:*", "table", ""),
        copied("rates", "rate:*", "window", "window = \"1h\""),
        copied("events", "log:*", "log", "window = \"1h\""),
        copied("friends", "list:*", "list", ""),
    ];
    let toml = sidecar_toml(&addresses(&servers), &rules);
    let toml = toml.replace("[pools.main]\n", &format!("[pools.main]\n{SHORT}repair.rate = {rate}\n"));
    let control = temp_dir().join("control.sock").display().to_string();
    let with_control = toml.replacen("[admin]\n", &format!("[admin]\ncontrol = {control:?}\n"), 1);
    let sidecars = [&with_control, &toml].map(|toml| Kennel::start(toml));
    for sidecar in &sidecars {
        until_writable(&mut sidecar.client(), "new");
    }
    Fleet { servers, sidecars, toml, control }
}

impl Fleet {
    fn client(&self) -> Client {
        self.sidecars[1].client()
    }

    /// `kennel repair` with more arguments.
    fn ask(&self, more: &[&str]) -> Output {
        let arguments = [&["repair", "--pool", "main", "--control", &self.control], more].concat();
        Command::new(env!("CARGO_BIN_EXE_kennel")).args(arguments).output().expect("run kennel")
    }

    /// What it prints once it has succeeded: a sidecar on a busy machine may not know a place for a moment.
    fn repair(&self, more: &[&str]) -> String {
        let mut printed = String::new();
        eventually("kennel repair succeeds", || {
            let output = self.ask(more);
            printed = String::from_utf8(output.stdout).expect("UTF-8");
            output.status.success()
        });
        printed
    }

    /// How many values `kennel repair --dry-run` finds that have one copy.
    fn missing(&self) -> usize {
        let found = self.repair(&["--dry-run"]);
        let count = found.split(", ").nth(1).and_then(|part| part.split(' ').next());
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{found}"))
    }

    fn metric(&self, name: &str) -> f64 {
        self.sidecars.iter().map(|sidecar| sidecar.metrics().sum(name, &["pool=\"main\""])).sum()
    }

    /// Whether no server lacks a copy, as far as the sidecars know.
    fn is_whole(&self) -> bool {
        self.metric("kennel_copies_servers_due") == 0.0
    }

    /// Restarts a server empty, and waits until the sidecars have given it its copies again by themselves.
    fn restart(&mut self, server: usize) {
        let before = self.metric("kennel_copies_repaired_total");
        self.servers[server].restart();
        eventually("the server has its copies again", || {
            self.metric("kennel_copies_repaired_total") > before && self.is_whole()
        });
    }
}

fn store_idle(client: &mut Client) {
    for n in 0..IDLE {
        assert_eq!(store(client, &format!("set session:idle:{n} 7 0"), &format!("value {n}")), "STORED");
    }
}

/// The sessions that are not as they were stored.
fn lost(client: &mut Client) -> Vec<usize> {
    (0..IDLE).filter(|n| text(client, &format!("session:idle:{n}")) != Some(format!("value {n}"))).collect()
}

#[test]
fn servers_that_restart_in_turn_lose_nothing_that_nobody_has_read() {
    let mut fleet = fleet(memcacheds(3), 2_000);
    let mut client = fleet.client();
    store_idle(&mut client);
    for n in 0..20 {
        assert_eq!(client.execute(&format!("incr count:{n} 3")), "3");
        assert_eq!(store(&mut client, &format!("set cart:{n}/shoes 0 0"), "2"), "STORED");
        assert_eq!(client.execute(&format!("incr rate:{n} 4")), "4");
        assert_eq!(store(&mut client, &format!("append log:{n} 0 0"), "entry"), "STORED");
        assert_eq!(store(&mut client, &format!("append list:{n} 0 0"), "+ann"), "STORED");
    }
    for server in 0..3 {
        fleet.restart(server);
    }
    assert_eq!(lost(&mut client), [] as [usize; 0]);
    for n in 0..20 {
        for (key, value) in
            [("count", "3"), ("rate", "4"), ("log", "entry"), ("list", "ann\n"), ("cart", "shoes\n")]
        {
            assert_eq!(text(&mut client, &format!("{key}:{n}")).as_deref(), Some(value), "{key}:{n}");
        }
        assert_eq!(text(&mut client, &format!("cart:{n}/shoes")).as_deref(), Some("2"));
    }
}

#[test]
fn the_command_counts_and_repairs_and_then_the_next_server_may_restart() {
    let mut fleet = fleet(memcacheds(3), 0);
    let mut client = fleet.client();
    store_idle(&mut client);
    // The record of a deleted value is missed by nobody, a value without bytes is.
    assert_eq!(client.delete("session:idle:0"), "DELETED");
    assert_eq!(store(&mut client, "set session:idle:0 7 0", "value 0"), "STORED");
    let deleted: Vec<_> = (0..30).map(|n| format!("session:deleted:{n}")).collect();
    for key in &deleted {
        assert_eq!(store(&mut client, &format!("set {key} 0 0"), ""), "STORED");
    }
    assert_eq!(fleet.missing(), 0);
    fleet.servers[0].restart();
    let missing = fleet.missing();
    // Of two thirds of the keys, it had a copy.
    assert!((100..IDLE).contains(&missing), "{missing}");
    assert_eq!(fleet.missing(), missing, "counting changes nothing");
    eventually("the metrics have them", || fleet.metric("kennel_copies_missing") == missing as f64);
    eventually("the server is known to lack copies", || fleet.metric("kennel_copies_servers_due") == 2.0);
    let ready = fleet.sidecars[0].http("/readyz");
    assert!(ready.contains("pool main: 1 servers may lack copies"), "{ready}");
    for key in &deleted {
        assert_eq!(client.delete(key), "DELETED");
    }
    assert_eq!(fleet.metric("kennel_copies_repaired_total"), 0.0, "nothing happens by itself");
    fleet.repair(&[]);
    assert!(fleet.metric("kennel_copies_repaired_total") > 100.0);
    assert_eq!(fleet.missing(), 0);
    fleet.servers[1].restart();
    fleet.repair(&[]);
    fleet.servers[2].restart();
    assert_eq!(lost(&mut client), [] as [usize; 0]);
    for key in &deleted {
        assert_eq!(text(&mut client, key), None, "{key} was deleted");
    }
    eventually("no server lacks anything", || {
        fleet.repair(&[]).contains("copies looked at") && fleet.is_whole()
    });
    assert_eq!(fleet.ask(&["--pool", "none"]).status.code(), Some(2), "the pool is given twice");
}

#[test]
fn what_is_deleted_or_replaced_during_a_repair_stays_so() {
    let mut fleet = fleet(memcacheds(3), 100);
    let mut client = fleet.client();
    store_idle(&mut client);
    let before = fleet.metric("kennel_copies_repaired_total");
    fleet.servers[1].restart();
    eventually("the repair has begun", || fleet.metric("kennel_copies_repaired_total") > before);
    for n in 0..IDLE {
        let key = format!("session:idle:{n}");
        match n % 3 {
            0 => assert_eq!(client.delete(&key), "DELETED"),
            1 => assert_eq!(store(&mut client, &format!("set {key} 7 0"), &format!("newer {n}")), "STORED"),
            _ => {}
        }
    }
    assert!(!fleet.is_whole(), "the repair goes on");
    let check = |client: &mut Client, when: &str| {
        for n in 0..IDLE {
            let expected = [None, Some(format!("newer {n}")), Some(format!("value {n}"))][n % 3].clone();
            assert_eq!(text(client, &format!("session:idle:{n}")), expected, "{when}: session:idle:{n}");
        }
    };
    eventually("the server has its copies again", || fleet.is_whole());
    for server in [0, 2] {
        fleet.restart(server);
    }
    check(&mut client, "after the repairs");
}

#[test]
fn what_is_on_standby_servers_has_two_copies_too_and_again_when_they_return() {
    let mut fleet = fleet(memcacheds(4), 2_000);
    let mut client = fleet.client();
    store_idle(&mut client);
    let away = |fleet: &Fleet| fleet.metric("kennel_failover_place");
    fleet.servers[0].kill();
    eventually("both sidecars have failed over", || away(&fleet) == 2.0);
    eventually("its keys have two copies again", || fleet.is_whole() && fleet.missing() == 0);
    let refused = fleet.ask(&[]);
    let why = String::from_utf8(refused.stderr).expect("UTF-8");
    assert!(!refused.status.success() && why.contains("on its standby servers"), "{why}");
    fleet.servers[0].restart();
    eventually("it is used again, with its copies", || away(&fleet) == 0.0 && fleet.is_whole());
    fleet.repair(&[]);
    fleet.servers[1].restart();
    assert_eq!(lost(&mut client), [] as [usize; 0]);
}

#[test]
fn a_server_that_does_not_list_its_keys_is_told_by_the_command_the_check_and_the_notes() {
    let mut servers = memcacheds(2);
    servers.push(Memcached::start(&["-o", "no_lru_crawler"]));
    let fleet = started(servers, 2_000);
    let disabled = fleet.servers[2].address();
    let expected = format!("{disabled} it does not list its keys (CLIENT_ERROR lru crawler disabled)");
    eventually("the command says so", || {
        let output = fleet.ask(&[]);
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(&expected)
    });
    eventually("the notes say so", || fleet.sidecars[0].http("/readyz").contains(&expected));
    assert!(!fleet.is_whole());
    let file = temp_dir().join("kennel.toml");
    std::fs::write(&file, &fleet.toml).expect("write the configuration");
    let checked =
        Command::new(env!("CARGO_BIN_EXE_kennel")).arg("check").arg("--connect").arg(&file).output();
    let checked = checked.expect("run kennel");
    let (out, errors) = (String::from_utf8_lossy(&checked.stdout), String::from_utf8_lossy(&checked.stderr));
    assert_eq!(checked.status.code(), Some(1), "{out}{errors}");
    let good = "can guard keys, lists its keys for the repair of copies";
    assert_eq!(out.matches(good).count(), 2, "{out}");
    let bad =
        "lost copies are not stored again: it does not list its keys (CLIENT_ERROR lru crawler disabled)";
    assert!(errors.contains(&format!("pool main: {disabled}: ")) && errors.contains(bad), "{errors}");
}
