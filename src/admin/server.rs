//! The HTTP server of the admin address: connections, their limits, shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::access::CurrentAccess;
use super::readiness::Readiness;
use super::routes::reply_to;
use super::view::View;

/// The most file descriptors that the admin server uses: its connections, one being accepted, and the listener.
pub(crate) const MAX_OPEN: usize = LIMITS.connections + 2;
/// The shortest interval between two log lines about failed accepts.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The resources that clients of the admin server may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most connections at a time. For a further one, the connection whose last request is the oldest is closed, so that
    /// probes are always accepted.
    pub(super) connections: usize,
    /// The time from the end of a request, or from the start of the connection, to the end of the next request's header. It
    /// includes idle time, so it is the keep-alive limit too: a client that scrapes every 15 s connects each time.
    pub(super) header: Duration,
    /// The longest duration of a connection, so that a client that does not read its replies is disconnected eventually.
    pub(super) connection: Duration,
    /// The time from a graceful shutdown of a connection to closing it.
    pub(super) grace: Duration,
}

pub(super) const LIMITS: Limits = Limits {
    connections: 64,
    header: Duration::from_secs(5),
    connection: Duration::from_secs(600),
    grace: Duration::from_secs(1),
};

/// Serves until `shutdown` completes, then for at most one second to finish replies. The listener must be non-blocking.
///
/// # Errors
/// The listener cannot be registered with the runtime.
pub async fn run(
    listener: std::net::TcpListener,
    access: CurrentAccess,
    view: Arc<dyn View>,
    readiness: Readiness,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let served = Served { access, view, readiness };
    serve(TcpListener::from_std(listener)?, served, shutdown, LIMITS).await;
    Ok(())
}

/// What the server shows, and to whom.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) access: CurrentAccess,
    pub(super) view: Arc<dyn View>,
    pub(super) readiness: Readiness,
}

pub(super) async fn serve(
    listener: TcpListener,
    served: Served,
    shutdown: impl Future<Output = ()>,
    limits: Limits,
) {
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut open: Vec<Open> = Vec::new();
    let mut logged: Option<Instant> = None;
    let mut shutdown = pin!(shutdown);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, from)) => {
                open.retain(|open| !open.task.is_finished());
                if open.len() >= limits.connections
                    && let Some(oldest) = open.iter().min_by_key(|open| open.last.get())
                {
                    oldest.task.abort();
                    // Wait until its socket is closed.
                    connections.join_next().await;
                }
                let last = LastRequest::now();
                let connection = accepted_connection(
                    (socket, from.ip()),
                    served.clone(),
                    last.clone(),
                    stop.clone(),
                    limits,
                );
                open.push(Open { task: connections.spawn(connection), last });
            }
            Err(error) => {
                if logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
                    logged = Some(Instant::now());
                    warn!(%error, "cannot accept an admin connection");
                }
                // Probably out of file descriptors. Wait, to avoid a busy loop.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    stop.cancel();
    let ended = async { while connections.join_next().await.is_some() {} };
    // Each connection applies the grace period itself; this limits the total.
    let _ = timeout(limits.grace, ended).await;
}

/// An open connection.
struct Open {
    task: AbortHandle,
    last: LastRequest,
}

/// When a connection received its last request, or was accepted.
#[derive(Debug, Clone)]
struct LastRequest(Arc<Mutex<Instant>>);

impl LastRequest {
    fn now() -> LastRequest {
        LastRequest(Arc::new(Mutex::new(Instant::now())))
    }

    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// Performs the TLS handshake if there is one to perform, within the time for a header, and serves the connection.
async fn accepted_connection(
    (socket, from): (TcpStream, IpAddr),
    served: Served,
    last: LastRequest,
    stop: CancellationToken,
    limits: Limits,
) {
    let access = served.access.get();
    let Some(tls) = &access.tls else { return connection((socket, from), served, last, stop, limits).await };
    match timeout(limits.header, tls.accept(socket)).await {
        Ok(Ok(stream)) => connection((stream, from), served, last, stop, limits).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake of an admin connection failed"),
        Err(_) => debug!("TLS handshake of an admin connection timed out"),
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (socket, from): (S, IpAddr),
    served: Served,
    last: LastRequest,
    stop: CancellationToken,
    limits: Limits,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        last.update();
        let Served { access, view, readiness } = served.clone();
        async move {
            let (uri, access) = (request.uri(), access.get());
            let target = (uri.path(), uri.query().unwrap_or_default());
            let reply =
                reply_to(request.method(), target, (request.headers(), from), &access, &view, &readiness);
            Ok::<_, Infallible>(reply.await)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(socket), service)
    );
    let ended = tokio::select! {
        ended = &mut connection => Some(ended),
        () = stop.cancelled() => None,
        () = sleep(limits.connection) => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(limits.grace, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "admin connection closed");
    }
}
