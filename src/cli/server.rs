//! `kennel server drain NAME`, `undrain`: has a running sidecar move the keys of a server of its pools, over its control socket.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime;

use super::arguments::{MovedServer, ServerCommand};
use super::reload::configured;
use crate::failover::Wish;
use crate::takeover::{self, Message};

/// How long the sidecar may take. A return waits for `recover_after`, and a move for some windows, each of which may be minutes.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// How long it may take to read the request.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the sidecar. Prints to stdout what has been done and returns 0, or prints to stderr why not and returns 1.
pub fn run(command: &ServerCommand, path: Option<&Path>) -> ExitCode {
    let (wish, name, MovedServer { control, server }) = match command {
        ServerCommand::Drain(server) => (Wish::Drain, "drain", server),
        ServerCommand::Undrain(server) => (Wish::Return, "undrain", server),
    };
    let socket = control.as_deref().map_or_else(|| configured(path), |control| Ok(control.to_owned()));
    match socket.and_then(|socket| ask(&socket, wish, server)) {
        Ok(done) => {
            // The exit code matters even if stdout is closed.
            let _ = write!(io::stdout(), "{done}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel server {name}: {}", why.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn ask(socket: &Path, wish: Wish, server: &str) -> Result<String, String> {
    let shown = socket.display();
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("{shown}: the sidecar is stopping"),
            io::ErrorKind::PermissionDenied => {
                format!("{shown}: {error}: run this command as the user of the sidecar")
            }
            _ => format!("{shown}: {error}"),
        };
        let channel = takeover::connect(socket).map_err(failed)?;
        let channel = channel.ok_or_else(|| format!("{shown}: no sidecar listens there"))?;
        channel.send(&Message::Move(wish, server.to_owned()), &[], SEND_TIMEOUT).await.map_err(failed)?;
        match channel.receive(TIMEOUT).await.map_err(failed)?.message {
            Message::Moved(done) => Ok(done),
            Message::Refused(why) => Err(why),
            _ => Err(format!("{shown}: unexpected message")),
        }
    })
}
