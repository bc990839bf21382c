//! `kennel reload`: has the running sidecar read its configuration again, over its control socket.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime;

use crate::config;
use crate::systemd;
use crate::takeover::{self, Message, ReloadMode};

/// How long the sidecar may take. It looks servers up, and waits until no request uses the former configuration.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to read the request.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the sidecar at the control socket `control`; without it, that of the configuration file at `path` and the environment. Prints
/// what has changed, or would, to stdout and returns 0, or prints the mistakes, or what would be lost, to stderr and returns 1.
pub fn run(path: Option<&Path>, control: Option<&Path>, mode: ReloadMode) -> ExitCode {
    let socket = control.map_or_else(|| configured(path), |control| Ok(control.to_owned()));
    match socket.and_then(|socket| reload(&socket, mode)) {
        Ok(changes) => {
            // The exit code matters even if stdout is closed.
            let _ = write!(io::stdout(), "{changes}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel reload: {}", why.trim_end());
            ExitCode::FAILURE
        }
    }
}

/// How the flags of the command say to read it.
pub fn mode(dry_run: bool, force: bool) -> ReloadMode {
    match (dry_run, force) {
        (true, _) => ReloadMode::DryRun,
        (false, true) => ReloadMode::Force,
        (false, false) => ReloadMode::Careful,
    }
}

/// The control socket of a configuration.
pub(super) fn configured(path: Option<&Path>) -> Result<PathBuf, String> {
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

fn reload(socket: &Path, mode: ReloadMode) -> Result<String, String> {
    match ask(socket, &Message::Reload(mode), TIMEOUT)? {
        Message::Reloaded(changes) => Ok(changes),
        _ => Err(format!("{}: unexpected message", socket.display())),
    }
}

/// Asks the sidecar at a control socket, which may take so long to reply. The error is what it refuses, too.
pub(super) fn ask(socket: &Path, message: &Message, limit: Duration) -> Result<Message, String> {
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
        channel.send(message, &[], SEND_TIMEOUT).await.map_err(failed)?;
        match channel.receive(limit).await.map_err(failed)?.message {
            Message::Refused(why) => Err(why),
            reply => Ok(reply),
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
            reload(Path::new("/nonexistent/c"), ReloadMode::Careful)
                .unwrap_err()
                .contains("no sidecar listens there")
        );
    }
}
