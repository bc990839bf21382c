//! What the process does while it runs: it waits for signals, for changes of the configuration file, and for requests to reload or
//! to take over.

use std::fs;
use std::future::pending;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::App;
use super::handing_over::{self, hand_over};
use super::service::Service;
use super::view::{AskedBy, ReloadRequest};
use crate::clock::unix_ms;
use crate::config::{self, Changes, ConfigErrors, Effect, Loaded, Reload};
use crate::discovery::{self, Change, Discovery};
use crate::takeover::{Channel, ReloadMode};

/// How often the files are looked at with `reload = "watch"`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The most time that the process needs to stop after `listen.drain_delay`.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

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
    /// SIGTERM and SIGINT.
    pub stop: StopSignals,
    hangup: Signal,
    user2: Signal,
}

impl Signals {
    /// Handles them from now on. Must be called in a runtime.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            stop: StopSignals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            },
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }
}

/// SIGTERM and SIGINT.
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Returns at the next one.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!("SIGTERM"),
            _ = self.interrupt.recv() => info!("SIGINT"),
        }
    }
}

/// Why the configuration is read again.
enum Trigger {
    Hangup,
    Changed,
    Requested(ReloadRequest),
}

/// A process that takes over, once it serves.
type Successor = JoinHandle<io::Result<Channel>>;

/// Runs until SIGTERM or SIGINT, or until another process has taken over and has all clients. Then the sidecar must be stopped.
pub async fn control(
    app: &mut App,
    source: &Source,
    service: &Service,
    mut signals: Signals,
    mut discovery: Discovery,
) {
    let mut watched = Watched::new(source, app);
    discovery::watch_names(discovery.written());
    let watchdog = service.watch(app.heartbeats.clone());
    let (mut is_ready, mut successor) = (false, None);
    loop {
        let trigger = tokio::select! {
            () = signals.stop.received() => break,
            _ = signals.hangup.recv() => Trigger::Hangup,
            Some(request) = app.reloads.recv() => Trigger::Requested(request),
            () = watched.changed() => Trigger::Changed,
            () = app.opened.cancelled(), if !is_ready => {
                is_ready = true;
                info!("ready");
                service.ready(app);
                continue;
            }
            _ = signals.user2.recv() => {
                upgrade(app, service);
                continue;
            }
            Some(channel) = app.takeovers.recv() => {
                offer(app, service, channel, &mut successor).await;
                continue;
            }
            served = serves(&mut successor) => {
                successor = None;
                match served {
                    Ok(channel) => {
                        service.notifier.main_process(channel.process());
                        watchdog.inspect(AbortHandle::abort);
                        return hand_over(app, channel, signals.stop.received()).await;
                    }
                    Err(error) => warn!(%error, "the other process does not take over: this one goes on serving"),
                }
                continue;
            }
            // While another process takes over, that one has found the servers itself.
            change = discovery.changed(), if successor.is_none() => {
                tokio::select! {
                    () = signals.stop.received() => break,
                    () = change_servers(app, &mut discovery, change) => continue,
                }
            }
        };
        if successor.is_some() {
            let why = "another process takes over: reload that one";
            warn!("the configuration is not read: {why}");
            if let Trigger::Requested(request) = trigger {
                // Whoever asked may be gone.
                let _ = request.result.send(Err(format!("{why}\n")));
            }
            watched.remember();
            continue;
        }
        match trigger {
            Trigger::Hangup => info!("SIGHUP: reading the configuration"),
            Trigger::Changed => info!("a file of the configuration has changed: reading the configuration"),
            Trigger::Requested(ReloadRequest { by: AskedBy::Http, .. }) => {
                info!("POST /reload: reading the configuration");
            }
            Trigger::Requested(ReloadRequest { by: AskedBy::ControlSocket, .. }) => {
                info!("asked on the control socket: reading the configuration");
            }
        }
        let mode = match &trigger {
            Trigger::Requested(request) => request.mode,
            Trigger::Hangup | Trigger::Changed => ReloadMode::Careful,
        };
        if mode != ReloadMode::DryRun {
            watched.remember();
        }
        service.notifier.reloading();
        let result = tokio::select! {
            () = signals.stop.received() => break,
            result = reload(app, source, &mut discovery, mode) => result,
        };
        app.follow_control();
        service.ready(app);
        if let Trigger::Requested(request) = trigger {
            // Whoever asked may be gone.
            let _ = request.result.send(result);
        }
        watched.follow(source, app);
    }
    drain(app, service, signals).await;
}

/// Starts a process that takes over.
fn upgrade(app: &App, service: &Service) {
    info!("SIGUSR2: starting a process that takes over");
    match app.control {
        Some(_) => service.start_successor(),
        None => error!("no process can take over: there is no control socket (admin.control)"),
    }
}

/// Sends a process the sockets. If that succeeds, it is the successor once it serves.
async fn offer(app: &App, service: &Service, channel: Channel, successor: &mut Option<Successor>) {
    if successor.is_some() {
        return channel.refuse("another process is taking over").await;
    }
    if app.control.is_none() || !app.opened.is_cancelled() {
        return channel.refuse("this process does not serve yet: try again").await;
    }
    match handing_over::offer(app, &channel, service.notifier.is_used()).await {
        Ok(()) => {
            let serving = async move { handing_over::until_it_serves(&channel).await.map(|()| channel) };
            *successor = Some(tokio::spawn(serving));
        }
        Err(error) => {
            warn!(process = channel.process(), %error, "another process cannot take over: this one goes on serving");
        }
    }
}

/// Returns once the successor serves, or does not. Never, if there is none.
async fn serves(successor: &mut Option<Successor>) -> io::Result<Channel> {
    match successor {
        Some(serving) => serving.await.map_err(io::Error::other)?,
        None => pending().await,
    }
}

/// Reports that the sidecar is not ready for `listen.drain_delay`, and serves clients meanwhile. A second signal ends it.
async fn drain(app: &App, service: &Service, mut signals: Signals) {
    let delay = app.in_force.config.listen.drain_delay;
    app.readiness.drain();
    service.notifier.stopping(delay + STOP_TIMEOUT);
    if delay.is_zero() {
        return;
    }
    info!(delay = ?delay, "draining: /readyz returns 503, and clients are served");
    tokio::select! {
        () = sleep(delay) => {}
        () = signals.stop.received() => {}
    }
}

/// Puts the servers in force that were found.
async fn change_servers(app: &mut App, discovery: &mut Discovery, change: Change) {
    match app.switch_servers(change.loaded.clone()).await {
        Ok(()) => discovery.begin(change),
        Err(error) => {
            error!(%error, "the servers that were found cannot be put in force; this is tried again");
            discovery.postpone();
        }
    }
}

/// Why a configuration is not taken.
enum Refused {
    /// It has mistakes, or something that it needs is missing.
    Mistakes(Vec<String>),
    /// It would lose this.
    Losses(Vec<String>),
}

/// Reads the configuration again and takes it. Returns what has changed, or why nothing has, as lines.
async fn reload(
    app: &mut App,
    source: &Source,
    discovery: &mut Discovery,
    mode: ReloadMode,
) -> Result<String, String> {
    let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    if source.is_built_in() {
        let why = "there is no configuration file: the sidecar was started without one";
        warn!("{why}");
        return Err(format!("{why}\n"));
    }
    let read = source.read().map_err(|errors| errors.lines().to_vec());
    if mode == ReloadMode::DryRun {
        let next = match read {
            Ok(loaded) => discovery.next(loaded).await,
            Err(errors) => Err(errors),
        };
        let changes = differences(app, &next.map_err(|errors| lines(&errors))?);
        return if changes.lose_something() { Err(changes.report()) } else { Ok(changes.report()) };
    }
    let switched = match read {
        Ok(loaded) => {
            loaded.config.warnings.iter().for_each(|warning| warn!("{warning}"));
            take(app, loaded, discovery, mode).await
        }
        Err(errors) => Err(Refused::Mistakes(errors)),
    };
    app.metrics().config_read(switched.is_ok(), unix_ms());
    let (errors, would_lose) = match switched {
        Ok(changes) => {
            changes.iter().for_each(|change| info!("configuration: {change}"));
            let (hash, changed) = (app.in_force.hash(), changes.len());
            info!(hash, changed, "the configuration is in force");
            return Ok(if changes.is_empty() { "nothing has changed\n".to_owned() } else { lines(&changes) });
        }
        Err(Refused::Mistakes(errors)) => (errors, false),
        Err(Refused::Losses(losses)) => (losses, true),
    };
    errors.iter().for_each(|mistake| error!("configuration: {mistake}"));
    let hash = app.in_force.hash();
    error!(hash, "the configuration is refused; the one before remains in force");
    let all = lines(&errors);
    app.view.show_errors(errors, would_lose);
    Err(all)
}

/// Takes a configuration, with the servers that its entries stand for.
async fn take(
    app: &mut App,
    loaded: Loaded,
    discovery: &mut Discovery,
    mode: ReloadMode,
) -> Result<Vec<String>, Refused> {
    let next = discovery.next(loaded).await.map_err(Refused::Mistakes)?;
    let changes = differences(app, &next);
    if mode != ReloadMode::Force && changes.lose_something() {
        let mut losses = changes.losses();
        losses.push(
            "nothing has changed: kennel reload --dry-run tells everything that would, kennel reload --force loses what is named here"
                .to_owned(),
        );
        return Err(Refused::Losses(losses));
    }
    let forced = changes.all().iter().filter(|change| change.effect == Effect::Loses);
    forced.for_each(|change| warn!("forced: {}", change.text));
    let switched = app.switch_to(next.in_force()).await;
    let changes = switched.map_err(|error| Refused::Mistakes(vec![error.to_string()]))?;
    *discovery = next;
    discovery::watch_names(discovery.written());
    Ok(changes)
}

/// What the next configuration would change.
fn differences(app: &App, next: &Discovery) -> Changes {
    let (mut old, new) = (app.in_force.loaded(), next.in_force());
    // Of a pool whose servers have not been found, nothing was invalidated.
    for pool in
        old.config.pools.iter_mut().filter(|pool| pool.servers.iter().all(|server| server.lookup().is_some()))
    {
        if let Some(after) = new.config.pools.iter().find(|after| after.name == pool.name) {
            (pool.servers, pool.other) = (after.servers.clone(), after.other.clone());
        }
    }
    Changes::between(&old, &new)
}

/// The files of the configuration, with `reload = "watch"`.
struct Watched {
    files: Vec<PathBuf>,
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
