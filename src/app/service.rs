//! The process as a service of systemd, and how it starts the next version of itself.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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
/// The argument that has a process start one that takes over, and end.
const START_TAKEOVER: &str = "--start-takeover";

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

    /// Has the program start again and take over from this process. Logs if it fails.
    ///
    /// A process between the two starts it and ends, so that systemd is the parent of the one that takes over. systemd does not
    /// wait for a main process that is another's child: it would kill it at once when the service stops.
    pub(super) fn start_successor(&self) {
        match self.start(START_TAKEOVER) {
            Ok(mut child) => {
                let waiting = move || match child.wait() {
                    Ok(status) if status.success() => {}
                    Ok(status) => warn!(%status, "no process that takes over was started"),
                    Err(error) => warn!(%error, "cannot tell whether a process that takes over was started"),
                };
                if let Err(error) = thread::Builder::new().name("kennel-successor".into()).spawn(waiting) {
                    warn!(%error, "it will not be noticed if no process takes over");
                }
            }
            Err(error) => error!(%error, "cannot start the process that is to take over"),
        }
    }

    /// Starts a process that takes over from the running one, and does not wait for it.
    ///
    /// # Errors
    /// The program cannot be started again.
    pub fn start_takeover(&self) -> io::Result<()> {
        let child = self.start(TAKEOVER)?;
        info!(process = child.id(), "started a process that takes over");
        Ok(())
    }

    /// Starts the program again, with the same arguments but for `how` it takes over.
    fn start(&self, how: &str) -> io::Result<Child> {
        let program = self.program.as_ref().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot tell which program this process runs: {error}"))
        })?;
        let same =
            self.arguments.iter().filter(|argument| *argument != TAKEOVER && *argument != START_TAKEOVER);
        let mut command = Command::new(program);
        command.args(same).arg(how).stdin(Stdio::null());
        OWN_VARIABLES.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", program.display())))
    }
}
