//! `kennel repair`: has the running sidecar store lost copies again, or count them, over its control socket.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::reload::{ask, configured};
use crate::takeover::Message;

/// How long it may take: for a billion copies at the default rate.
const TIMEOUT: Duration = Duration::from_secs(6 * 24 * 3600);

/// Asks the sidecar at the control socket `control`; without it, that of the configuration file at `path` and the environment. Prints what
/// was found to stdout and returns 0, or prints why not everything has two copies to stderr and returns 1.
pub fn run(path: Option<&Path>, control: Option<&Path>, pool: &str, only_count: bool) -> ExitCode {
    let socket = control.map_or_else(|| configured(path), |control| Ok(control.to_owned()));
    let message = Message::Repair { pool: pool.to_owned(), only_count };
    match socket.and_then(|socket| ask(&socket, &message, TIMEOUT)) {
        Ok(Message::Repaired(found)) => {
            // The exit code matters even if stdout is closed.
            let _ = write!(io::stdout(), "{found}");
            ExitCode::SUCCESS
        }
        Ok(_) => refuse("the sidecar sent an unexpected message"),
        Err(why) => refuse(&why),
    }
}

fn refuse(why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "kennel repair: {}", why.trim_end());
    ExitCode::FAILURE
}
