//! The running process when another one takes over: hands its sockets over, and then its clients, one by one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

use super::App;
use super::control_server::{ControlServer, REPLY_TIMEOUT, control_path};
use crate::handshake::PlainSocket;
use crate::listener::{BindError, InheritedListener, ListenSocket, ListenerName};
use crate::proxy::Leaving;
use crate::takeover::{self, Channel, ControlSocket, MAX_CLIENTS, Message, MovedClient, Received};
use crate::worker::{MovingClient, Order};

/// How long a new process may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long clients may take to move once `listen.takeover_timeout` is over.
const LATE: Duration = Duration::from_secs(1);
/// The pause after clients could not be delivered.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is looked at whether clients are left.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

impl App {
    /// The control socket of the configuration in force.
    pub(super) fn control_path(&self) -> Option<PathBuf> {
        control_path(&self.in_force.config)
    }

    /// Binds the control socket of the configuration in force, if it has one. Must be called in a runtime.
    pub(super) fn bind_control(&self) -> Result<Option<ControlSocket>, BindError> {
        let Some(path) = self.control_path() else { return Ok(None) };
        match ControlSocket::bind(&path) {
            Ok(socket) => Ok(Some(socket)),
            Err(error) => {
                let what = path.display().to_string();
                Err(BindError::Refused {
                    key: "admin.control",
                    variable: "KENNEL_ADMIN__CONTROL",
                    what,
                    error,
                })
            }
        }
    }

    /// The configuration in force may have another control socket.
    pub(super) fn follow_control(&mut self) {
        if self.control_path().as_deref() == self.control.as_ref().map(ControlServer::path) {
            return;
        }
        self.control = None;
        match self.bind_control() {
            Ok(socket) => {
                let start = |socket| ControlServer::start(socket, &self.adopter, &self.control_requests);
                self.control = socket.map(start);
            }
            Err(error) => error!(%error, "no process can take over from this one"),
        }
    }

    /// How many clients are connected.
    fn clients(&self) -> usize {
        self.lasting.connection_limit.count()
    }

    /// Leaves the listeners to another process, and has clients sent to it. Whoever has just asked here whether the sidecar is ready
    /// asks about the other process too: it is.
    fn give_away(&mut self, leaving: Leaving, to: &mpsc::UnboundedSender<MovingClient>) {
        if let Some(control) = self.control.take() {
            control.socket.give_away();
        }
        if let Some(admin) = self.admin.take() {
            admin.stop.cancel();
        }
        self.in_force.listeners.give_away();
        self.in_force.listeners.close();
        for worker in &self.workers {
            // A worker that has ended has no clients.
            let _ = worker.send(Order::Leave(leaving, to.clone()));
        }
    }
}

/// Sends a process the listening sockets. They remain in use here.
///
/// # Errors
/// The process does not answer, or must not take over.
pub(super) async fn offer(app: &App, channel: &Channel, is_service: bool) -> io::Result<()> {
    let process = channel.process();
    if is_service && !is_in_our_group(process) {
        let why = "the running process is a service of systemd, and the new one is not in its control group: run \
                   systemctl kill --kill-who=main --signal=USR2 with the name of the unit";
        channel.refuse(why).await;
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let Some(control) = &app.control else { return Err(io::ErrorKind::NotFound.into()) };
    for listener in app.in_force.listeners.to_hand_over() {
        send(channel, listener).await?;
    }
    if let Some(admin) = &app.admin {
        let name = Some(ListenerName::Admin(admin.configured.to_string()));
        let sockets = std::slice::from_ref(&admin.socket);
        send(channel, InheritedListener { name, sockets, pooled: false, owns_file: false }).await?;
    }
    let welcome = Message::Welcome { seed: app.lasting.hasher.seed(), process: std::process::id() };
    channel.send(&welcome, &[control.socket.as_fd()], REPLY_TIMEOUT).await?;
    info!(process, "another process takes over: waiting until it is ready");
    Ok(())
}

async fn send(channel: &Channel, listener: InheritedListener<&[ListenSocket]>) -> io::Result<()> {
    let InheritedListener { name: Some(name), sockets, pooled, owns_file } = listener else { return Ok(()) };
    let files: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    channel.send(&Message::Listener { name, pooled, owns_file }, &files, REPLY_TIMEOUT).await
}

/// Whether a process is in the control group of this one.
fn is_in_our_group(process: u32) -> bool {
    let group = |process: &str| fs::read_to_string(format!("/proc/{process}/cgroup"));
    match (group("self"), group(&process.to_string())) {
        (Ok(own), Ok(other)) => own == other,
        _ => true,
    }
}

/// Waits until the new process serves.
///
/// # Errors
/// It has ended, or does not become ready in time. This process goes on serving.
pub(super) async fn until_it_serves(channel: &Channel) -> io::Result<()> {
    expect(channel, Message::Ready, START_TIMEOUT).await?;
    channel.send(&Message::Committed, &[], REPLY_TIMEOUT).await?;
    expect(channel, Message::Serving, REPLY_TIMEOUT).await
}

async fn expect(channel: &Channel, message: Message, limit: Duration) -> io::Result<()> {
    match channel.receive(limit).await? {
        Received { message: received, .. } if received == message => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected message")),
    }
}

/// Sends the clients to the new process as soon as they may move, until none is left or `listen.takeover_timeout` is over.
/// `stop` ends it earlier.
pub(super) async fn hand_over(app: &mut App, channel: Channel, stop: impl Future<Output = ()>) {
    let limit = app.in_force.config.listen.takeover_timeout;
    let (to, mut moving) = mpsc::unbounded_channel();
    app.give_away(Leaving::WhenFree, &to);
    let deadline = Instant::now() + limit;
    let (mut stop, mut stage, mut next) = (pin!(stop), Leaving::WhenFree, deadline);
    let mut deliveries = Deliveries { link: Some(channel), delivered: 0, has_failed: false };
    loop {
        let mut clients = Vec::new();
        tokio::select! {
            () = &mut stop => break,
            () = sleep_until(next) => match stage {
                Leaving::Now => break,
                Leaving::No if Instant::now() < deadline => {
                    (stage, next) = (Leaving::WhenFree, deadline);
                    app.give_away(stage, &to);
                }
                Leaving::No | Leaving::WhenFree => {
                    (stage, next) = (Leaving::Now, Instant::now() + LATE);
                    app.give_away(stage, &to);
                }
            },
            _ = moving.recv_many(&mut clients, MAX_CLIENTS) => {
                if let Err((clients, error)) = deliveries.deliver(app, clients).await {
                    if !std::mem::replace(&mut deliveries.has_failed, true) {
                        warn!(%error, "the new process accepts no client: those that are left are served here");
                    }
                    if stage == Leaving::WhenFree {
                        (stage, next) = (Leaving::No, Instant::now() + RETRY);
                        app.give_away(stage, &to);
                    }
                    clients.into_iter().for_each(|client| app.adopter.serve(client));
                }
            }
            // The last client may have ended.
            () = sleep(CHECK_INTERVAL) => {}
        }
        if app.clients() == 0 && moving.is_empty() {
            break;
        }
    }
    info!(clients = deliveries.delivered, left = app.clients(), "handed over to the new process");
}

/// The way to the process that serves now.
struct Deliveries {
    /// Broken if that process has been taken over in turn.
    link: Option<Channel>,
    delivered: usize,
    has_failed: bool,
}

impl Deliveries {
    /// Delivers clients. Returns those that could not be delivered.
    async fn deliver(
        &mut self,
        app: &App,
        clients: Vec<MovingClient>,
    ) -> Result<(), (Vec<MovingClient>, io::Error)> {
        let moved = |client: &MovingClient| {
            let listener = app.adopter.name(client.listener)?;
            Some(MovedClient { listener, protocol: client.protocol, misses: client.misses.clone() })
        };
        // The connection of a client whose listener is gone is closed.
        let clients: Vec<_> = clients.into_iter().filter(|client| moved(client).is_some()).collect();
        let message = Message::Clients(clients.iter().filter_map(moved).collect());
        let sockets: Vec<_> = clients.iter().map(|client| file_of(&client.socket)).collect();
        let mut result = Err(io::ErrorKind::NotConnected.into());
        if let Some(link) = &self.link {
            result = deliver(link, &message, &sockets).await;
        }
        if result.is_err() {
            self.link = None;
            result = async {
                let path = app.control_path().unwrap_or_default();
                let link = takeover::connect(&path)?.ok_or(io::ErrorKind::ConnectionRefused)?;
                link.send(&Message::Deliver, &[], REPLY_TIMEOUT).await?;
                deliver(&link, &message, &sockets).await?;
                self.link = Some(link);
                Ok(())
            }
            .await;
        }
        match result {
            Ok(()) => {
                self.delivered += clients.len();
                Ok(())
            }
            Err(error) => Err((clients, error)),
        }
    }
}

async fn deliver(link: &Channel, message: &Message, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    link.send(message, sockets, REPLY_TIMEOUT).await?;
    match link.receive(REPLY_TIMEOUT).await?.message {
        Message::Taken => Ok(()),
        Message::Refused(why) => Err(io::Error::other(why)),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected message")),
    }
}

fn file_of(socket: &PlainSocket) -> BorrowedFd<'_> {
    match socket {
        PlainSocket::Tcp(socket) => socket.as_fd(),
        PlainSocket::Unix(socket) => socket.as_fd(),
    }
}
