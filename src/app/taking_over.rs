//! How a process starts: alone, or in place of a running one, whose sockets and clients it takes over.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::info;

use super::control_server::{REPLY_TIMEOUT, control_path, receive_clients};
use super::errors::StartError;
use super::service::Service;
use super::{App, Start};
use crate::config::Loaded;
use crate::listener::{Inherited, InheritedListener, ListenSocket, ListenerName};
use crate::proxy::KeyHasher;
use crate::takeover::{self, Channel, ControlSocket, Message, Received};

/// How long the running process may take to hand its sockets over.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the sidecar. `passed` are the sockets that the service manager has bound. `takeover`: in place of the running process with
/// the same control socket, if there is one, which then sends its clients. Must be called in a runtime.
///
/// # Errors
/// A listener cannot be bound, the system refuses a resource, or the running process does not hand over. It goes on serving then.
pub async fn start(
    loaded: Loaded,
    passed: Inherited,
    takeover: bool,
    service: &Service,
) -> Result<App, StartError> {
    let (mut inherited, mut predecessor) = (passed, None);
    if takeover {
        let control = control_path(&loaded.config).ok_or(StartError::NoControl)?;
        match Predecessor::ask(&control).await? {
            Some((running, listeners)) => {
                inherited.0.extend(listeners.0);
                predecessor = Some(running);
            }
            None => info!(control = %control.display(), "no process to take over from: starting"),
        }
    }
    let hasher = predecessor.as_ref().map(|running| running.hasher);
    let start = Start { inherited, hasher, heartbeat: service.heartbeat(), ..Start::default() };
    let (mut app, unused) = App::prepare(loaded, start)?;
    let passed = unused.unnamed();
    if !passed.is_empty() {
        return Err(StartError::Unused(passed));
    }
    match predecessor {
        None => {
            let control = app.bind_control()?;
            app.open(control)?;
        }
        Some(running) => {
            for known in app.in_force.known() {
                known.cancelled().await;
            }
            running.take_over(&mut app).await?;
            unused.close();
        }
    }
    Ok(app)
}

/// The running process, which waits for this one to be ready.
struct Predecessor {
    channel: Channel,
    process: u32,
    hasher: KeyHasher,
    control: OwnedFd,
}

impl Predecessor {
    /// Asks the process with this control socket for its sockets. `None`: there is no such process. Must be called in a runtime.
    ///
    /// # Errors
    /// It refuses, or does not answer. It goes on serving.
    async fn ask(control: &Path) -> Result<Option<(Predecessor, Inherited)>, StartError> {
        let failed = |error| StartError::Takeover(control.to_owned(), error);
        let Some(channel) = takeover::connect(control).map_err(failed)? else { return Ok(None) };
        channel.send(&Message::TakeOver, &[], REPLY_TIMEOUT).await.map_err(failed)?;
        let mut inherited = Inherited::default();
        loop {
            let Received { message, mut files } = receive(&channel, WELCOME_TIMEOUT).await.map_err(failed)?;
            match message {
                Message::Listener { name, pooled, owns_file } if !files.is_empty() => {
                    let is_unix = matches!(name, ListenerName::Unix(_));
                    let socket = |file: OwnedFd| match is_unix {
                        true => ListenSocket::Unix(file.into()),
                        false => ListenSocket::Tcp(file.into()),
                    };
                    let sockets = files.into_iter().map(socket).collect();
                    inherited.0.push(InheritedListener { name: Some(name), sockets, pooled, owns_file });
                }
                Message::Welcome { seed, process } if files.len() == 1 => {
                    let Some(control) = files.pop() else { continue };
                    info!(process, listeners = inherited.0.len(), "taking over from a running process");
                    let hasher = KeyHasher::with_seed(seed);
                    return Ok(Some((Predecessor { channel, process, hasher, control }, inherited)));
                }
                _ => return Err(failed(unexpected())),
            }
        }
    }

    /// Has this process serve instead of the running one, which then sends its clients.
    ///
    /// # Errors
    /// The running process has changed its mind and goes on serving.
    async fn take_over(self, app: &mut App) -> Result<(), StartError> {
        let Predecessor { channel, process, control, .. } = self;
        let path = app.control_path().ok_or(StartError::NoControl)?;
        let failed = |error| StartError::Takeover(path.clone(), error);
        channel.send(&Message::Ready, &[], REPLY_TIMEOUT).await.map_err(failed)?;
        match receive(&channel, REPLY_TIMEOUT).await.map_err(failed)?.message {
            Message::Committed => {}
            _ => return Err(failed(unexpected())),
        }
        app.in_force.listeners.take_files();
        app.in_force.apply_to_shared();
        // Where the keys are is known: no probe finds the sidecar starting.
        app.readiness.ready();
        app.open(Some(ControlSocket::inherit(control, &path)?))?;
        // It may have been killed. Its sockets are here.
        let _ = channel.send(&Message::Serving, &[], REPLY_TIMEOUT).await;
        info!(process, "took over from the process, which sends its clients as soon as they may move");
        tokio::spawn(receive_clients(channel, process, Arc::clone(&app.adopter)));
        Ok(())
    }
}

async fn receive(channel: &Channel, limit: Duration) -> io::Result<Received> {
    match channel.receive(limit).await? {
        Received { message: Message::Refused(why), .. } => Err(io::Error::other(why)),
        received => Ok(received),
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unexpected message")
}
