//! Kennel as a service of systemd: what it tells systemd, and the sockets that systemd passes.

use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::client::Client;
use crate::world::{Kennel, addresses, free_address, memcacheds, raw, sidecar_toml, temp_dir, within};

/// The socket that systemd reads, in a directory that is removed when dropped.
struct Systemd {
    socket: UnixDatagram,
    dir: PathBuf,
}

impl Systemd {
    fn new() -> Systemd {
        let dir = temp_dir();
        let socket = UnixDatagram::bind(dir.join("notify")).expect("bind");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out above zero");
        Systemd { socket, dir }
    }

    /// Runs kennel, with these variables too.
    fn command(&self, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.env("NOTIFY_SOCKET", self.dir.join("notify")).envs(variables.iter().copied());
        command
    }

    /// The next message that is no proof of life.
    fn next(&self) -> String {
        loop {
            let mut bytes = [0; 4096];
            let length = self.socket.recv(&mut bytes).expect("a message within 10 s");
            let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if message != "WATCHDOG=1" {
                return message;
            }
        }
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn systemd_is_told_of_the_start_a_reload_and_the_end_after_the_delay() {
    let (systemd, servers) = (Systemd::new(), memcacheds(1));
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]).replacen(
        "[listen]",
        "[listen]\ndrain_delay = \"2s\"",
        1,
    );
    let kennel = Kennel::start_command(systemd.command(&[]), &toml);
    assert_eq!(systemd.next(), format!("READY=1\nSTATUS=serving {}", kennel.address()));
    kennel.hang_up();
    let reloading = systemd.next();
    let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect("a reload");
    assert!(micros.parse::<u64>().is_ok_and(|micros| micros > 0), "{reloading}");
    assert!(systemd.next().starts_with("READY=1\n"));
    let mut client = kennel.client();
    kennel.ask_to_terminate();
    assert_eq!(systemd.next(), "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=8000000");
    // Not ready, but new and old clients are served until the delay is over.
    assert!(kennel.http("/readyz").contains(" 503 "), "{}", kennel.http("/readyz"));
    client.store("k", b"v", 0);
    kennel.client().store("k", b"v", 0);
    let (status, log) = kennel.end(Duration::from_secs(20));
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("draining: /readyz returns 503"), "{log}");
    assert_eq!(client.rest(), b"");
}

#[test]
fn a_second_signal_ends_the_delay() {
    let servers = memcacheds(1);
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]).replacen(
        "[listen]",
        "[listen]\ndrain_delay = \"1h\"",
        1,
    );
    let kennel = Kennel::start(&toml);
    kennel.ask_to_terminate();
    within(Duration::from_secs(10), "it drains", || kennel.http("/readyz").contains(" 503 "));
    let (status, took) = kennel.terminate();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn the_watchdog_is_told_while_the_threads_run_and_not_while_the_process_is_stopped() {
    let (systemd, servers) = (Systemd::new(), memcacheds(1));
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]);
    let kennel = Kennel::start_command(systemd.command(&[("WATCHDOG_USEC", "600000")]), &toml);
    let alive = || {
        let mut bytes = [0; 4096];
        let length = systemd.socket.recv(&mut bytes)?;
        Ok::<_, std::io::Error>(&bytes[..length] == b"WATCHDOG=1")
    };
    assert!((0..8).filter(|_| alive().expect("a message within 10 s")).count() >= 6);
    kennel.standing_still(|| {
        systemd.socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time-out above zero");
        // At most what was sent before.
        assert!((0..8).any(|_| alive().is_err()));
    });
    systemd.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out above zero");
    assert!(alive().expect("a message within 10 s"));
}

#[test]
fn sockets_of_systemd_are_used_and_stay_when_kennel_ends() {
    let (systemd, servers) = (Systemd::new(), memcacheds(1));
    let tcp = TcpListener::bind(free_address()).expect("a free port");
    let path = systemd.dir.join("k.sock");
    let unix = UnixListener::bind(&path).expect("bind");
    let (address, file) = (tcp.local_addr().expect("its address"), path.display().to_string());
    let toml = sidecar_toml(&addresses(&servers), &[raw("raw", "*")]).replacen(
        "tcp = [\"127.0.0.1:0\"]",
        &format!("tcp = [\"{address}\"]\nunix = [{file:?}]"),
        1,
    );
    // A client that connects before Kennel runs.
    let mut early = Client::tcp(address);
    let sockets = || {
        let (tcp, unix) = (tcp.try_clone().expect("another descriptor"), unix.try_clone());
        [tcp.into(), unix.expect("another descriptor").into()]
    };
    let kennel = Kennel::start_activated(sockets(), "kennel:kennel-unix", &toml);
    assert_eq!(kennel.address(), address);
    early.store("k", b"v", 0);
    for mut client in [Client::tcp(address), Client::unix(&path), Client::tcp(address)] {
        assert_eq!(client.get("k").as_deref(), Some(&b"v"[..]));
    }
    let (status, _) = kennel.terminate();
    assert_eq!(status.code(), Some(0));
    assert!(path.exists(), "it belongs to systemd");
    // Whoever connects meanwhile is served by the next one.
    let mut between = Client::unix(&path);
    let _kennel = Kennel::start_activated(sockets(), "kennel:kennel-unix", &toml);
    assert_eq!(between.get("k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_socket_of_systemd_that_the_configuration_does_not_have_stops_the_start() {
    let tcp = TcpListener::bind(free_address()).expect("a free port");
    let address = tcp.local_addr().expect("its address");
    let servers = memcacheds(1);
    let dir = temp_dir();
    let file = dir.join("kennel.toml");
    std::fs::write(&file, sidecar_toml(&addresses(&servers), &[])).expect("write the configuration");
    let mut command = Command::new("sh");
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" --config \"$1\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_kennel")]).arg(&file);
    let output = command.stdin(std::os::fd::OwnedFd::from(tcp)).output().expect("run kennel");
    let _ = std::fs::remove_dir_all(&dir);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains(&format!("systemd passed sockets for {address}, which are not in listen.tcp")),
        "{log}"
    );
}
