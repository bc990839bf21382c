//! What the process does while it runs: it waits for signals, for changes of the configuration file, and for requests to reload.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::App;
use super::view::ReloadRequest;
use crate::clock::unix_ms;
use crate::config::{self, ConfigErrors, Loaded, Reload};

/// How often the files are looked at with `reload = "watch"`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Where the configuration comes from.
pub struct Source {
    /// The file; `None`: the built-in configuration.
    path: Option<PathBuf>,
    /// The `KENNEL_…` variables.
    environment: Vec<(String, String)>,
}

impl Source {
    /// A file, and the environment variables that override its keys.
    pub fn new(path: Option<PathBuf>, environment: Vec<(String, String)>) -> Source {
        Source { path, environment }
    }

    /// Whether there is no file.
    pub fn is_built_in(&self) -> bool {
        self.path.is_none()
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// All mistakes.
    pub fn read(&self) -> Result<Loaded, ConfigErrors> {
        config::load(self.path.as_deref(), self.environment.clone())
    }
}

/// The signals that the process handles.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Handles them from now on. Must be called in a runtime.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Why the configuration is read again.
enum Trigger {
    Hangup,
    Changed,
    Requested(ReloadRequest),
}

/// Runs until SIGTERM or SIGINT.
pub async fn control(app: &mut App, source: &Source, mut signals: Signals) {
    let mut watched = Watched::new(source, app);
    loop {
        let trigger = tokio::select! {
            _ = signals.terminate.recv() => break info!("SIGTERM"),
            _ = signals.interrupt.recv() => break info!("SIGINT"),
            _ = signals.hangup.recv() => Trigger::Hangup,
            Some(request) = app.reloads.recv() => Trigger::Requested(request),
            () = watched.changed() => Trigger::Changed,
        };
        match trigger {
            Trigger::Hangup => info!("SIGHUP: reading the configuration"),
            Trigger::Changed => info!("a file of the configuration has changed: reading the configuration"),
            Trigger::Requested(_) => info!("POST /reload: reading the configuration"),
        }
        watched.remember();
        let result = tokio::select! {
            _ = signals.terminate.recv() => break info!("SIGTERM"),
            _ = signals.interrupt.recv() => break info!("SIGINT"),
            result = reload(app, source) => result,
        };
        if let Trigger::Requested(request) = trigger {
            // Whoever asked may be gone.
            let _ = request.send(result);
        }
        watched.follow(source, app);
    }
}

/// Reads the configuration again and takes it. Returns what has changed, or why nothing has, as lines.
async fn reload(app: &mut App, source: &Source) -> Result<String, String> {
    if source.is_built_in() {
        let why = "there is no configuration file: the sidecar was started without --config";
        warn!("{why}");
        return Err(format!("{why}\n"));
    }
    let read = source.read().map_err(|errors| errors.lines().to_vec());
    let switched = match read {
        Ok(loaded) => {
            loaded.config.warnings.iter().for_each(|warning| warn!("{warning}"));
            app.switch_to(loaded).await.map_err(|error| vec![error.to_string()])
        }
        Err(errors) => Err(errors),
    };
    app.metrics().config_read(switched.is_ok(), unix_ms());
    match switched {
        Ok(changes) => {
            changes.iter().for_each(|change| info!("configuration: {change}"));
            let (hash, changed) = (app.in_force.hash(), changes.len());
            info!(hash, changed, "the configuration is in force");
            let lines = changes.iter().map(|change| format!("{change}\n")).collect::<String>();
            Ok(if lines.is_empty() { "nothing has changed\n".to_owned() } else { lines })
        }
        Err(errors) => {
            errors.iter().for_each(|mistake| error!("configuration: {mistake}"));
            let hash = app.in_force.hash();
            error!(hash, "the configuration is refused; the one before remains in force");
            let lines = errors.iter().map(|mistake| format!("{mistake}\n")).collect();
            app.view.show_errors(errors);
            Err(lines)
        }
    }
}

/// The files of the configuration, with `reload = "watch"`.
struct Watched {
    files: Vec<PathBuf>,
    /// What was read.
    read: Vec<Option<Stamp>>,
}

/// What tells one version of a file from another. Links are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
}

impl Watched {
    fn new(source: &Source, app: &App) -> Watched {
        let mut watched = Watched { files: Vec::new(), read: Vec::new() };
        watched.follow(source, app);
        watched.remember();
        watched
    }

    /// The configuration in force may name other files. Those that were known are compared with what was read.
    fn follow(&mut self, source: &Source, app: &App) {
        let config = &app.in_force.config;
        let files: Vec<PathBuf> = match config.reload {
            Reload::Watch => source.path.iter().cloned().chain(config.files()).collect(),
            Reload::Signal => Vec::new(),
        };
        let known = |file: &PathBuf| self.files.iter().position(|known| known == file);
        let read = |file: &PathBuf| known(file).map_or_else(|| stamp(file), |at| self.read[at].clone());
        self.read = files.iter().map(read).collect();
        self.files = files;
    }

    /// The files are read now.
    fn remember(&mut self) {
        self.read = self.stamps();
    }

    fn stamps(&self) -> Vec<Option<Stamp>> {
        self.files.iter().map(|file| stamp(file)).collect()
    }

    /// Returns when a file has changed and has then stayed the same for one interval: whoever writes it may write it in parts.
    async fn changed(&self) {
        let mut last = self.read.clone();
        loop {
            sleep(WATCH_INTERVAL).await;
            let now = self.stamps();
            if now == last && now != self.read {
                return;
            }
            last = now;
        }
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let data = fs::metadata(file).ok()?;
    let modified = (data.mtime(), data.mtime_nsec());
    Some(Stamp { inode: (data.dev(), data.ino()), length: data.len(), modified })
}
