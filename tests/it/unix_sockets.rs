//! Unix socket files: permissions, replacement of existing files, and removal.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, raw, sidecar_toml, temp_dir};

/// A directory for a socket, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        Place(temp_dir())
    }

    fn socket(&self) -> PathBuf {
        self.0.join("k.sock")
    }

    fn toml(&self, servers: &[Memcached], more: &str) -> String {
        let unix = format!("[listen]\nunix = [{:?}]\n{more}", self.socket().display().to_string());
        sidecar_toml(&addresses(servers), &[raw("everything", "*")]).replacen("[listen]", &unix, 1)
    }

    /// The error output of a sidecar that must not start.
    fn refused(&self, toml: &str) -> String {
        let file = self.0.join("kennel.toml");
        std::fs::write(&file, toml).expect("write the configuration");
        // If it starts, it is not waited for.
        let mut command = Command::new("timeout");
        command.args(["10", env!("CARGO_BIN_EXE_kennel")]);
        let Output { status, stderr, .. } =
            command.arg("--config").arg(&file).stdin(Stdio::null()).output().expect("run kennel");
        assert_eq!(status.code(), Some(1), "{status}");
        String::from_utf8_lossy(&stderr).into_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the socket").permissions().mode() & 0o7777
}

#[test]
fn the_mode_says_who_may_connect() {
    let (place, servers) = (Place::new(), memcacheds(1));
    let kennel = Kennel::start(&place.toml(&servers, ""));
    kennel.unix_client().store("k", b"v", 0);
    assert_eq!(mode(&place.socket()), 0o660, "the default");
    let (status, _) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(!place.socket().exists(), "removed at the end");
    let _kennel = Kennel::start(&place.toml(&servers, "unix_mode = \"0606\""));
    assert_eq!(mode(&place.socket()), 0o606);
}

#[test]
fn the_socket_of_a_killed_sidecar_is_replaced() {
    let (place, servers) = (Place::new(), memcacheds(1));
    let toml = place.toml(&servers, "");
    let kennel = Kennel::start(&toml);
    eventually("it is bound", || place.socket().exists());
    kennel.kill();
    assert!(place.socket().exists(), "a kill leaves it behind");
    Kennel::start(&toml).unix_client().store("k", b"v", 0);
}

#[test]
fn the_socket_of_a_living_sidecar_is_left_alone() {
    let (place, servers) = (Place::new(), memcacheds(1));
    let toml = place.toml(&servers, "");
    let kennel = Kennel::start(&toml);
    let said = place.refused(&toml);
    assert!(said.contains("listen.unix: cannot listen on ") && said.contains("in use"), "{said}");
    kennel.unix_client().store("k", b"v", 0);
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let (place, servers) = (Place::new(), memcacheds(1));
    std::fs::write(place.socket(), "precious").expect("write");
    let said = place.refused(&place.toml(&servers, ""));
    assert!(said.contains("listen.unix: cannot listen on "), "{said}");
    assert_eq!(std::fs::read_to_string(place.socket()).expect("still there"), "precious");
    // Nor is the target of a link.
    let file = place.0.join("precious");
    std::fs::rename(place.socket(), &file).expect("rename");
    std::os::unix::fs::symlink(&file, place.socket()).expect("link");
    place.refused(&place.toml(&servers, ""));
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
}

#[test]
fn a_sidecar_that_cannot_start_leaves_no_socket_behind() {
    let (place, servers) = (Place::new(), memcacheds(1));
    let missing = place.0.join("missing/k.sock");
    let two = format!("unix = [{:?}, {missing:?}]", place.socket());
    let toml = sidecar_toml(&addresses(&servers), &[]).replacen("[listen]", &format!("[listen]\n{two}"), 1);
    let said = place.refused(&toml);
    assert!(said.contains("missing/k.sock: No such file"), "{said}");
    assert!(!place.socket().exists());
}
