//! What a running sidecar is asked for over its control socket: `kennel reload`, `repair`, and `server drain` or `undrain`.
//! Each asks the sidecar at the socket `control`; without it, at that of the configuration file at `path` and the environment. It prints
//! to stdout what has been done and returns 0, or prints to stderr why not and returns 1.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime;

use super::arguments::{MovedServer, ServerCommand};
use crate::config;
use crate::failover::Wish;
use crate::systemd;
use crate::takeover::{self, Message, ReloadMode};

/// How long a reload may take. It looks servers up, and waits until no request uses the former configuration.
const RELOAD: Duration = Duration::from_secs(60);
/// How long a repair may take: for a billion copies at the default rate.
const REPAIR: Duration = Duration::from_secs(6 * 24 * 3600);
/// How long a move of keys may take. A return waits for `recover_after`, and a move for some windows, each of which may be minutes.
const MOVE: Duration = Duration::from_secs(15 * 60);
/// How long the sidecar may take to read what it is asked for.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Has it read its configuration again.
pub fn reload(path: Option<&Path>, control: Option<&Path>, dry_run: bool, force: bool) -> ExitCode {
    let mode = match (dry_run, force) {
        (true, _) => ReloadMode::DryRun,
        (false, true) => ReloadMode::Force,
        (false, false) => ReloadMode::Careful,
    };
    run("reload", path, control, &Message::Reload(mode), RELOAD)
}

/// Has it store lost copies again, or count them.
pub fn repair(path: Option<&Path>, control: Option<&Path>, pool: &str, only_count: bool) -> ExitCode {
    run("repair", path, control, &Message::Repair { pool: pool.to_owned(), only_count }, REPAIR)
}

/// Has it move the keys of a server of its pools, for the whole fleet.
pub fn server(path: Option<&Path>, command: &ServerCommand) -> ExitCode {
    let (name, wish, MovedServer { control, server }) = match command {
        ServerCommand::Drain(server) => ("server drain", Wish::Drain, server),
        ServerCommand::Undrain(server) => ("server undrain", Wish::Return, server),
    };
    run(name, path, control.as_deref(), &Message::Move(wish, server.to_owned()), MOVE)
}

fn run(
    name: &str,
    path: Option<&Path>,
    control: Option<&Path>,
    order: &Message,
    limit: Duration,
) -> ExitCode {
    let socket = control.map_or_else(|| configured(path), |control| Ok(control.to_owned()));
    match socket.and_then(|socket| ask(&socket, order, limit)) {
        Ok(done) => {
            // The exit code matters even if stdout is closed.
            let _ = write!(io::stdout(), "{done}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel {name}: {}", why.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// The control socket of a configuration.
fn configured(path: Option<&Path>) -> Result<PathBuf, String> {
    let control = config::admin_access(path, config::environment())?.control;
    match &control[..] {
        "" => Err("admin.control is \"\": there is no control socket; SIGHUP reloads too".to_owned()),
        "auto" => systemd::runtime_directory().map(|directory| directory.join("control.sock")).ok_or_else(|| {
            "admin.control is \"auto\", which only the service knows: name its socket with --control PATH \
             (/run/kennel/control.sock in the service of the package), or set admin.control"
                .to_owned()
        }),
        path => Ok(PathBuf::from(path)),
    }
}

/// What the sidecar at a control socket has done. The error is what it refuses, too.
fn ask(socket: &Path, order: &Message, limit: Duration) -> Result<String, String> {
    let shown = socket.display();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => {
                format!("{shown}: no reply within {limit:?}; the log says what happens")
            }
            io::ErrorKind::UnexpectedEof => format!("{shown}: the sidecar is stopping"),
            io::ErrorKind::PermissionDenied => {
                format!("{shown}: {error}: run this command as the user of the sidecar")
            }
            _ => format!("{shown}: {error}"),
        };
        let channel = takeover::connect(socket).map_err(failed)?;
        let channel = channel.ok_or_else(|| format!("{shown}: no sidecar listens there"))?;
        channel.send(order, &[], SEND_TIMEOUT).await.map_err(failed)?;
        match channel.receive(limit).await.map_err(failed)?.message {
            Message::Done(what) => Ok(what),
            Message::Refused(why) => Err(why),
            _ => Err(format!("{shown}: unexpected message")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_socket_it_is_said_where_one_may_be() {
        let path = std::env::temp_dir().join(format!("kennel-reload-{}.toml", std::process::id()));
        for (text, expected) in [
            ("", Err("--control")),
            ("admin.control = \"\"", Err("SIGHUP")),
            ("admin.control = \"/run/k\"", Ok("/run/k")),
        ] {
            std::fs::write(&path, text).unwrap();
            match (configured(Some(&path)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, Path::new(expected)),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
                (found, _) => panic!("{found:?}"),
            }
        }
        std::fs::remove_file(path).unwrap();
        assert!(
            ask(Path::new("/nonexistent/c"), &Message::Reload(ReloadMode::Careful), RELOAD)
                .unwrap_err()
                .contains("no sidecar listens there")
        );
    }
}
