//! The HTTP server of the admin address: connections, their limits, shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::access::CurrentAccess;
use super::activity::Activity;
use super::history::INTERVAL;
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
    /// The longest duration of a connection, so that a client that does not read its replies is disconnected eventually. One that
    /// reads a stream lasts longer.
    pub(super) connection: Duration,
    /// The longest time in which a client reads nothing of a stream.
    pub(super) stream: Duration,
    /// The time from a graceful shutdown of a connection to closing it.
    pub(super) grace: Duration,
}

pub(super) const LIMITS: Limits = Limits {
    connections: 64,
    header: Duration::from_secs(5),
    connection: Duration::from_secs(600),
    stream: Duration::from_secs(60),
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
    let mut points = interval(INTERVAL);
    points.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            _ = points.tick() => {
                served.view.record();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, from)) => {
                open.retain(|open| !open.task.is_finished());
                if open.len() >= limits.connections
                    && let Some(oldest) = least_recent(&open)
                {
                    oldest.task.abort();
                    // Wait until its socket is closed.
                    connections.join_next().await;
                }
                let activity = Activity::now();
                let connection = accepted_connection(
                    (socket, from.ip()),
                    served.clone(),
                    activity.clone(),
                    stop.clone(),
                    limits,
                );
                open.push(Open { task: connections.spawn(connection), activity });
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

struct Open {
    task: AbortHandle,
    activity: Activity,
}

/// The connection to close for the next one. Streams are few, and are kept.
fn least_recent(open: &[Open]) -> Option<&Open> {
    open.iter().min_by_key(|open| (open.activity.is_stream(), open.activity.last()))
}

/// Returns when the server stops, and the connection has had a request, or `grace` for it.
async fn stopped(stop: &CancellationToken, activity: &Activity, grace: Duration) {
    stop.cancelled().await;
    // What comes later is too late.
    let _ = timeout(grace, activity.asked()).await;
}

/// Returns when a connection has lasted too long, or its client does not read its stream.
async fn too_long(began: Instant, activity: &Activity, limits: &Limits) {
    let mut end = began + limits.connection.min(limits.stream);
    loop {
        sleep_until(end).await;
        end = match activity.is_stream() {
            true => activity.last() + limits.stream,
            false => began + limits.connection,
        };
        if end <= Instant::now() {
            return;
        }
    }
}

/// Performs the TLS handshake if there is one to perform, within the time for a header, and serves the connection.
async fn accepted_connection(
    (socket, from): (TcpStream, IpAddr),
    served: Served,
    activity: Activity,
    stop: CancellationToken,
    limits: Limits,
) {
    let access = served.access.get();
    let Some(tls) = &access.tls else {
        return connection((socket, from), served, activity, stop, limits).await;
    };
    match timeout(limits.header, tls.accept(socket)).await {
        Ok(Ok(stream)) => connection((stream, from), served, activity, stop, limits).await,
        Ok(Err(error)) => debug!(%error, "TLS handshake of an admin connection failed"),
        Err(_) => debug!("TLS handshake of an admin connection timed out"),
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    (socket, from): (S, IpAddr),
    served: Served,
    activity: Activity,
    stop: CancellationToken,
    limits: Limits,
) {
    let (began, used) = (Instant::now(), activity.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        activity.update();
        let (Served { access, view, readiness }, activity) = (served.clone(), activity.clone());
        async move {
            let (uri, access) = (request.uri(), access.get());
            let target = (uri.path(), uri.query().unwrap_or_default());
            let from = (request.headers(), from);
            Ok::<_, Infallible>(
                reply_to(request.method(), target, from, &access, &view, &readiness, &activity).await,
            )
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
        // A client that has just connected receives its reply: at an upgrade, it would have been the new process's.
        () = stopped(&stop, &used, limits.grace) => None,
        () = too_long(began, &used, &limits) => None,
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
