//! The process as a service of systemd, and how it starts the next version of itself.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::App;
use crate::systemd::{self, Notifier, OWN_VARIABLES};
use crate::worker::Heartbeat;

/// The argument that has a process take over.
const TAKEOVER: &str = "--takeover";

/// The process, as the service manager sees it.
pub struct Service {
    pub(super) notifier: Arc<Notifier>,
    watchdog: Option<Duration>,
    /// Where the program was when it was started. Another version may be there now.
    program: io::Result<PathBuf>,
    arguments: Vec<OsString>,
}

impl Service {
    /// What the environment says. `arguments` are those of the process.
    pub fn from_environment(arguments: Vec<OsString>) -> Service {
        let notifier = Arc::new(Notifier::from_environment());
        let watchdog = if notifier.is_used() { systemd::watchdog() } else { None };
        Service { notifier, watchdog, program: env::current_exe(), arguments }
    }

    /// How often threads must prove that they run.
    pub(super) fn heartbeat(&self) -> Option<Duration> {
        self.watchdog.map(|most| most / 6)
    }

    /// Tells systemd that the sidecar serves.
    pub(super) fn ready(&self, app: &App) {
        let tcp = app.tcp().into_iter().map(|address| address.to_string());
        let all: Vec<_> = tcp.chain(app.unix().iter().map(|path| path.display().to_string())).collect();
        self.notifier.ready(&format!("serving {}", all.join(", ")));
    }

    /// Tells systemd that the process works, for as long as all of these do. `None`: it need not be told.
    pub(super) fn watch(&self, heartbeats: Vec<Heartbeat>) -> Option<AbortHandle> {
        let (most, notifier) = (self.watchdog?, Arc::clone(&self.notifier));
        let watching = async move {
            let mut warned = false;
            let mut seen: Vec<u64> = heartbeats.iter().map(|_| 0).collect();
            loop {
                let now: Vec<_> = heartbeats.iter().map(Heartbeat::beats).collect();
                match now.iter().zip(&seen).position(|(now, seen)| now == seen) {
                    None => {
                        notifier.alive();
                        warned = false;
                    }
                    Some(thread) if !std::mem::replace(&mut warned, true) => {
                        warn!(
                            thread,
                            "a thread does not run: the watchdog is not told that the process works"
                        );
                    }
                    Some(_) => {}
                }
                seen = now;
                sleep(most / 3).await;
            }
        };
        Some(tokio::spawn(watching).abort_handle())
    }

    /// Starts the program again, to take over from this process. Logs if it fails.
    pub(super) fn start_successor(&self) {
        let program = match &self.program {
            Ok(program) => program,
            Err(error) => return error!(%error, "cannot tell which program this process runs"),
        };
        let mut command = Command::new(program);
        command.args(self.arguments.iter().filter(|argument| *argument != TAKEOVER)).arg(TAKEOVER);
        OWN_VARIABLES.iter().for_each(|name| {
            command.env_remove(name);
        });
        let shown = program.display();
        match command.stdin(Stdio::null()).spawn() {
            Ok(mut child) => {
                info!(program = %shown, process = child.id(), "started a process that takes over");
                let waiting = move || match child.wait() {
                    Ok(status) => {
                        warn!(process = child.id(), %status, "the process that was to take over has ended")
                    }
                    Err(error) => {
                        warn!(process = child.id(), %error, "the process that was to take over is lost")
                    }
                };
                if let Err(error) = thread::Builder::new().name("kennel-successor".into()).spawn(waiting) {
                    warn!(%error, "the end of the process that takes over will not be noticed");
                }
            }
            Err(error) => error!(program = %shown, %error, "cannot start the process that is to take over"),
        }
    }
}
