//! The control socket of a running process: another process asks to take over there, delivers clients, or asks for a reload, a repair,
//! or to move the keys of a server.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::adopter::Adopter;
use super::view::{AdminView, AskedBy, ReloadRequest, request_reload};
use crate::admin::View as _;
use crate::config::{Config, ControlPath};
use crate::failover::repair::RepairOrder;
use crate::systemd;
use crate::takeover::{Channel, ControlSocket, Message, Received};

/// How long a process may take to say what it wants, and to answer.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a process that delivers clients may have none to deliver. Longer than any `listen.takeover_timeout`.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// The most processes that are connected to the control socket.
const MAX_CONVERSATIONS: usize = 8;
/// The most bytes of what a reload has changed, or of its mistakes, that are sent. The rest is in the log.
const MAX_REPORT: usize = 64 * 1024;
/// The pause after the system could not accept a connection, or one of another user was refused.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Where a configuration has the control socket.
pub(super) fn control_path(config: &Config) -> Option<PathBuf> {
    match &config.control {
        ControlPath::Off => None,
        ControlPath::At(path) => Some(path.clone()),
        ControlPath::Automatic => Some(systemd::runtime_directory()?.join("control.sock")),
    }
}

/// A control socket on which this process listens, until this is dropped.
pub(super) struct ControlServer {
    pub(super) socket: Arc<ControlSocket>,
    _stop: DropGuard,
}

impl ControlServer {
    /// Listens. What processes ask for is sent to `requests`. Must be called in a runtime.
    pub(super) fn start(
        socket: ControlSocket,
        adopter: &Arc<Adopter>,
        requests: &ControlRequests,
    ) -> ControlServer {
        let (socket, stop) = (Arc::new(socket), CancellationToken::new());
        let serving = serve(Arc::clone(&socket), Arc::clone(adopter), requests.clone());
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(serving).await });
        ControlServer { socket, _stop: stop.drop_guard() }
    }

    pub(super) fn path(&self) -> &Path {
        self.socket.path()
    }
}

/// Where the process receives what others ask for.
#[derive(Clone)]
pub(super) struct ControlRequests {
    /// Processes that ask to take over.
    pub(super) takeovers: mpsc::Sender<Channel>,
    pub(super) reloads: mpsc::Sender<ReloadRequest>,
    pub(super) view: Arc<AdminView>,
}

async fn serve(socket: Arc<ControlSocket>, adopter: Arc<Adopter>, requests: ControlRequests) {
    let permits = Arc::new(Semaphore::new(MAX_CONVERSATIONS));
    loop {
        let channel = match socket.accept().await {
            Ok(channel) => channel,
            Err(error) => {
                warn!(%error, "refused a process on the control socket");
                sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            channel.refuse("too many processes are connected to the control socket").await;
            continue;
        };
        let (adopter, requests) = (Arc::clone(&adopter), requests.clone());
        tokio::spawn(async move {
            converse(channel, adopter, requests).await;
            drop(permit);
        });
    }
}

async fn converse(channel: Channel, adopter: Arc<Adopter>, requests: ControlRequests) {
    let process = channel.process();
    match channel.receive(REPLY_TIMEOUT).await {
        Ok(Received { message: Message::TakeOver, .. }) => {
            if let Err(
                mpsc::error::TrySendError::Full(channel) | mpsc::error::TrySendError::Closed(channel),
            ) = requests.takeovers.try_send(channel)
            {
                channel.refuse("another process is taking over, or this one is stopping").await;
            }
        }
        Ok(Received { message: Message::Deliver, .. }) => receive_clients(channel, process, adopter).await,
        Ok(Received { message: Message::Reload(mode), .. }) => {
            let asked = request_reload(&requests.reloads, AskedBy::ControlSocket, mode);
            reply(&channel, asked.await).await;
        }
        Ok(Received { message: Message::Repair { pool, only_count }, .. }) => {
            let order = if only_count { RepairOrder::Count } else { RepairOrder::Repair };
            reply(&channel, requests.view.repair(&pool, order).await).await;
        }
        Ok(Received { message: Message::Move(wish, server), .. }) => {
            reply(&channel, requests.view.move_keys(server, wish).await).await;
        }
        Ok(_) => channel.refuse("unexpected message").await,
        // It only looked whether somebody listens.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
        Err(error) => {
            warn!(process, %error, "refused a process on the control socket");
            channel.refuse(error.to_string()).await;
        }
    }
}

/// What has been done, or why it is refused. Whoever asked may be gone.
async fn reply(channel: &Channel, done: Result<String, String>) {
    let reply = done.map_or_else(|why| Message::Refused(cut(why)), |what| Message::Done(cut(what)));
    let _ = channel.send(&reply, &[], REPLY_TIMEOUT).await;
}

/// Serves the clients of a process that has been taken over, until it has none left.
pub(super) async fn receive_clients(channel: Channel, process: u32, adopter: Arc<Adopter>) {
    let mut received = 0;
    let ended = loop {
        match channel.receive(DELIVERY_TIMEOUT).await {
            Ok(Received { message: Message::Clients(clients), files }) if clients.len() == files.len() => {
                received += clients.len();
                for (client, socket) in clients.into_iter().zip(files) {
                    if let Err(error) = adopter.adopt(client, socket) {
                        warn!(%error, "a client that was handed over cannot be served");
                    }
                }
                if let Err(error) = channel.send(&Message::Taken, &[], REPLY_TIMEOUT).await {
                    break error;
                }
            }
            Ok(_) => break io::Error::new(io::ErrorKind::InvalidData, "unexpected message"),
            Err(error) => break error,
        }
    };
    match ended.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            info!(process, clients = received, "has the clients of the process that it took over from");
        }
        _ => warn!(process, clients = received, error = %ended, "receives no further client"),
    }
}

/// A report that fits into a message.
fn cut(mut report: String) -> String {
    if report.len() > MAX_REPORT {
        let end = (0..=MAX_REPORT).rev().find(|at| report.is_char_boundary(*at));
        report.truncate(end.unwrap_or_default());
        report.push_str("…\nthe log has the rest\n");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_any_length_fits_into_a_message() {
        assert_eq!(cut("rules: 2 now\n".to_owned()), "rules: 2 now\n");
        let report = cut(format!("x{}", "é".repeat(MAX_REPORT)));
        assert!(report.len() < MAX_REPORT + 64 && report.ends_with("the log has the rest\n"));
        assert!(Message::Refused(report).encode().len() < 128 * 1024);
    }
}
