//! Unix socket files: permissions, replacement of existing files, and removal.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, raw, sidecar_toml, temp_dir};

/// A directory for a socket, removed when dropped.
struct SocketDir(PathBuf);

impl SocketDir {
    fn new() -> SocketDir {
        SocketDir(temp_dir())
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

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("the socket").permissions().mode() & 0o7777
}

#[test]
fn the_mode_determines_who_may_connect() {
    let (dir, servers) = (SocketDir::new(), memcacheds(1));
    let kennel = Kennel::start(&dir.toml(&servers, ""));
    kennel.unix_client().store("k", b"v", 0);
    assert_eq!(mode(&dir.socket()), 0o660, "the default");
    let (status, _) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(!dir.socket().exists(), "removed at the end");
    let _kennel = Kennel::start(&dir.toml(&servers, "unix_mode = \"0606\""));
    assert_eq!(mode(&dir.socket()), 0o606);
}

#[test]
fn the_socket_of_a_killed_sidecar_is_replaced() {
    let (dir, servers) = (SocketDir::new(), memcacheds(1));
    let toml = dir.toml(&servers, "");
    let kennel = Kennel::start(&toml);
    eventually("it is bound", || dir.socket().exists());
    kennel.kill();
    assert!(dir.socket().exists(), "a kill leaves it behind");
    Kennel::start(&toml).unix_client().store("k", b"v", 0);
}

#[test]
fn the_socket_of_a_living_sidecar_is_left_alone() {
    let (dir, servers) = (SocketDir::new(), memcacheds(1));
    let toml = dir.toml(&servers, "");
    let kennel = Kennel::start(&toml);
    let output = dir.refused(&toml);
    assert!(output.contains("listen.unix: cannot listen on ") && output.contains("in use"), "{output}");
    kennel.unix_client().store("k", b"v", 0);
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let (dir, servers) = (SocketDir::new(), memcacheds(1));
    std::fs::write(dir.socket(), "precious").expect("write");
    let output = dir.refused(&dir.toml(&servers, ""));
    assert!(output.contains("listen.unix: cannot listen on "), "{output}");
    assert_eq!(std::fs::read_to_string(dir.socket()).expect("still there"), "precious");
    // Nor is the target of a link.
    let file = dir.0.join("precious");
    std::fs::rename(dir.socket(), &file).expect("rename");
    std::os::unix::fs::symlink(&file, dir.socket()).expect("link");
    dir.refused(&dir.toml(&servers, ""));
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
}

#[test]
fn a_sidecar_that_cannot_start_leaves_no_socket_behind() {
    let (dir, servers) = (SocketDir::new(), memcacheds(1));
    let missing = dir.0.join("missing/k.sock");
    let two = format!("unix = [{:?}, {missing:?}]", dir.socket());
    let toml = sidecar_toml(&addresses(&servers), &[]).replacen("[listen]", &format!("[listen]\n{two}"), 1);
    let output = dir.refused(&toml);
    assert!(output.contains("missing/k.sock: No such file"), "{output}");
    assert!(!dir.socket().exists());
}
