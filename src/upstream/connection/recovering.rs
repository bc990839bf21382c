//! A server that is slow or silent is sick: requests to it fail at once. One task of the process probes it and leads it back.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::Connection;
use crate::metrics::{HealthState, ServerMetrics};
use crate::upstream::server::Server;
use crate::upstream::socket::Socket;

impl Connection {
    /// The server's health has changed by a reply to, or time-out of, this connection.
    pub(super) fn health_changed(&self, to: HealthState) {
        let first = self.server.health.begin_recovery();
        report(&self.server, &self.metrics, to, first);
        if first {
            spawn_local(recover(Arc::clone(&self.server), self.metrics.clone()));
        }
    }
}

/// Logs and counts a change, once for the whole process. `was_healthy` is whether the server was healthy before.
fn report(server: &Server, metrics: &ServerMetrics, to: HealthState, was_healthy: bool) {
    metrics.health(to, was_healthy);
    let server = server.label();
    match to {
        HealthState::Sick => {
            warn!(server, "sick: it answers too slowly; its requests fail at once until it recovers")
        }
        HealthState::HalfOpen => info!(server, "answers in time again: it gets a part of its requests"),
        HealthState::Healthy => info!(server, "healthy again"),
    }
}

/// Probes a sick server until it is healthy.
async fn recover(server: Arc<Server>, metrics: ServerMetrics) {
    let mut socket = None;
    while let Some(pause) = server.health.pause() {
        sleep(pause).await;
        let changed = match server.health.state() {
            HealthState::Sick => {
                let took = probe(&server, &mut socket).await;
                server.health.probed(took)
            }
            _ => server.health.widen(server.since_created(Instant::now())),
        };
        if let Some(to) = changed {
            report(&server, &metrics, to, false);
        }
        if changed == Some(HealthState::Healthy) {
            return; // from now on somebody else may begin another recovery
        }
    }
}

/// Sends `mn` over a connection of its own, which is kept for the next probe. Returns the time until the reply.
async fn probe(server: &Server, socket: &mut Option<Socket>) -> Option<Duration> {
    let mut open = match socket.take() {
        Some(open) => open,
        None => server.connect().await.ok()?,
    };
    let sent = Instant::now();
    timeout(server.request_timeout(), no_op(&mut open)).await.ok()?.ok()?;
    *socket = Some(open);
    Some(sent.elapsed())
}

async fn no_op(socket: &mut Socket) -> io::Result<()> {
    socket.send(b"mn\r\n").await?;
    let mut reply = [0; 4];
    socket.read_exact(&mut reply).await?;
    if reply == *b"MN\r\n" { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
