//! What Kennel tells its operator: metrics, health, and a page. Everything here is read-only.
//!
//! ```text
//! GET /         a page for eyes            GET /healthz  200 while the process can answer at all
//! GET /metrics  Prometheus's text format   GET /readyz   200 while clients are welcome, and what is not well; else 503 and why
//! ```

mod page;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::http::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::metrics;
pub use page::{Overview, PoolRow, RuleRow, ServerRow};

/// What the server shows. It is asked anew for every request, on the thread that serves it, so it must not block.
pub trait View: Send + Sync + 'static {
    /// The body of `/metrics`, in the format of [`metrics::CONTENT_TYPE`].
    fn metrics(&self) -> String;
    /// The contents of the page.
    fn overview(&self) -> Overview;
    /// What an operator should know though clients are welcome, a line each.
    fn notes(&self) -> Vec<String>;
}

/// Whether clients are welcome. Clones share the answer; it begins as "starting".
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicU8>);

const STARTING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

impl Readiness {
    /// Starting: not ready yet.
    pub fn new() -> Readiness {
        Readiness::default()
    }

    /// The configuration is read and the listeners are bound. Draining has no way back, so this does nothing then.
    pub fn ready(&self) {
        // Failing means that it was ready already, or is draining: either stands.
        let _ = self.0.compare_exchange(STARTING, READY, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// No new clients from now on.
    pub fn drain(&self) {
        self.0.store(DRAINING, Ordering::SeqCst);
    }

    /// Whether `/readyz` says 200.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::SeqCst) == READY
    }

    fn word(&self) -> &'static str {
        match self.0.load(Ordering::SeqCst) {
            STARTING => "starting",
            READY => "ready",
            _ => "draining",
        }
    }
}

/// How many connections are open at once, one in hand and the listener among them.
pub(crate) const MAX_OPEN: usize = LIMITS.connections + 2;
/// How often it is logged that no connection can be accepted.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// How much of the process the admin address may take.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at once. When there are so many, the one that has waited longest for a request is closed for the next: a probe is
    /// always let in.
    connections: usize,
    /// From the end of one request (or the connection's beginning) to the end of the next one's header. hyper counts idle
    /// time in, so this is the keep-alive limit too: who scrapes every 15 s or more seldom connects anew each time.
    header: Duration,
    /// A connection's life, so that a client that does not read its answers cannot hold its place for ever.
    life: Duration,
    /// From being asked to end to being cut off.
    grace: Duration,
}

const LIMITS: Limits = Limits {
    connections: 64,
    header: Duration::from_secs(5),
    life: Duration::from_secs(600),
    grace: Duration::from_secs(1),
};

/// Serves until `shutdown` completes, and at most one second longer for the answers that are under way. The listener must
/// be non-blocking.
pub async fn run(
    listener: std::net::TcpListener,
    view: Arc<dyn View>,
    readiness: Readiness,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve(TcpListener::from_std(listener)?, view, readiness, shutdown, LIMITS).await;
    Ok(())
}

async fn serve(
    listener: TcpListener,
    view: Arc<dyn View>,
    readiness: Readiness,
    shutdown: impl Future<Output = ()>,
    limits: Limits,
) {
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut open: Vec<Open> = Vec::new();
    let mut said: Option<Instant> = None;
    let mut shutdown = pin!(shutdown);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                open.retain(|open| !open.task.is_finished());
                if open.len() >= limits.connections
                    && let Some(longest) = open.iter().min_by_key(|open| open.last.get())
                {
                    longest.task.abort();
                    // Its socket is closed before another one is made.
                    connections.join_next().await;
                }
                let last = LastRequest::now();
                let (view, readiness) = (Arc::clone(&view), readiness.clone());
                let connection = connection(socket, view, readiness, last.clone(), stop.clone(), limits);
                open.push(Open { task: connections.spawn(connection), last });
            }
            Err(error) => {
                if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                    said = Some(Instant::now());
                    warn!(%error, "the admin address could not accept a connection");
                }
                // Out of descriptors, most likely: trying again at once would only burn a core.
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    stop.cancel();
    let ended = async { while connections.join_next().await.is_some() {} };
    // Whoever is left has had the grace within its own connection; this bounds the sum.
    let _ = timeout(limits.grace, ended).await;
}

/// A connection, as the one who accepts others knows it.
struct Open {
    task: AbortHandle,
    last: LastRequest,
}

/// When the last request of a connection came, or the connection itself.
#[derive(Debug, Clone)]
struct LastRequest(Arc<Mutex<Instant>>);

impl LastRequest {
    fn now() -> LastRequest {
        LastRequest(Arc::new(Mutex::new(Instant::now())))
    }

    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn comes(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

async fn connection(
    socket: TcpStream,
    view: Arc<dyn View>,
    readiness: Readiness,
    last: LastRequest,
    stop: CancellationToken,
    limits: Limits,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        last.comes();
        let reply = answer(request.method(), request.uri().path(), &*view, &readiness);
        async move { Ok::<_, Infallible>(reply) }
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
        () = sleep(limits.life) => None,
    };
    let ended = match ended {
        Some(ended) => Ok(ended),
        None => {
            connection.as_mut().graceful_shutdown();
            timeout(limits.grace, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "an admin connection ended early");
    }
}

const TEXT: &str = "text/plain; charset=utf-8";

fn answer(method: &Method, path: &str, view: &dyn View, readiness: &Readiness) -> Response<Full<Bytes>> {
    if !matches!(path, "/" | "/metrics" | "/healthz" | "/readyz") {
        return reply(StatusCode::NOT_FOUND, TEXT, "not found: try /, /metrics, /healthz or /readyz\n");
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/metrics" => reply(StatusCode::OK, metrics::CONTENT_TYPE, view.metrics()),
        "/healthz" => reply(StatusCode::OK, TEXT, "ok"),
        "/readyz" if readiness.is_ready() => {
            let lines = [vec!["ready".to_owned()], view.notes()].concat();
            reply(StatusCode::OK, TEXT, lines.join("\n"))
        }
        "/readyz" => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, readiness.word()),
        _ => {
            let page = page::render(&view.overview(), readiness.word());
            let mut page = reply(StatusCode::OK, "text/html; charset=utf-8", page);
            // Names come from the configuration and are escaped; should that fail, nothing in them may run or load.
            let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
            page
        }
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    struct Fixed;

    impl View for Fixed {
        fn metrics(&self) -> String {
            "# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n".to_owned()
        }

        fn overview(&self) -> Overview {
            Overview {
                version: "1.2.3".to_owned(),
                uptime: Duration::from_secs(61),
                pools: Vec::new(),
                rules: vec![RuleRow { name: "<b>".to_owned(), ..RuleRow::default() }],
            }
        }

        fn notes(&self) -> Vec<String> {
            Vec::new()
        }
    }

    struct Server {
        address: SocketAddr,
        readiness: Readiness,
        stop: oneshot::Sender<()>,
        done: JoinHandle<()>,
    }

    async fn start(limits: Limits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let readiness = Readiness::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async { drop(stopped.await) };
        let done = tokio::spawn(serve(listener, Arc::new(Fixed), readiness.clone(), shutdown, limits));
        Server { address, readiness, stop, done }
    }

    /// Everything the server says to `request` until it closes.
    async fn ask(server: &Server, request: &str) -> String {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        read_to_close(&mut socket).await
    }

    async fn read_to_close(socket: &mut TcpStream) -> String {
        let mut said = Vec::new();
        timeout(Duration::from_secs(10), socket.read_to_end(&mut said)).await.expect("it closes").unwrap();
        String::from_utf8(said).unwrap()
    }

    async fn get(server: &Server, method: &str, path: &str) -> String {
        ask(server, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
    }

    fn body(said: &str) -> &str {
        said.split_once("\r\n\r\n").expect("a header").1
    }

    #[tokio::test]
    async fn metrics_are_answered_as_the_text_format() {
        let server = start(LIMITS).await;
        let said = get(&server, "GET", "/metrics?x=1").await;
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.contains("content-type: text/plain; version=0.0.4\r\n"), "{said}");
        assert_eq!(body(&said), Fixed.metrics());
    }

    #[tokio::test]
    async fn health_is_ok_from_the_start_and_readiness_follows_its_flag() {
        let server = start(LIMITS).await;
        let ready = async || get(&server, "GET", "/readyz").await;
        let health = get(&server, "GET", "/healthz").await;
        assert!(health.starts_with("HTTP/1.1 200 ") && body(&health) == "ok", "{health}");
        let said = ready().await;
        assert!(said.starts_with("HTTP/1.1 503 ") && body(&said) == "starting", "{said}");
        server.readiness.ready();
        let said = ready().await;
        assert!(said.starts_with("HTTP/1.1 200 ") && body(&said) == "ready", "{said}");
        server.readiness.drain();
        server.readiness.ready();
        let said = ready().await;
        assert!(said.starts_with("HTTP/1.1 503 ") && body(&said) == "draining", "{said}");
    }

    #[tokio::test]
    async fn head_gives_the_header_of_get_and_no_body() {
        let server = start(LIMITS).await;
        for path in ["/", "/metrics", "/healthz", "/readyz", "/nowhere"] {
            let (head, get) = (get(&server, "HEAD", path).await, get(&server, "GET", path).await);
            let header = |said: &str| {
                let lines = said.split_once("\r\n\r\n").unwrap().0.lines();
                lines.filter(|line| !line.starts_with("date:")).map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(header(&head), header(&get));
            assert!(header(&head).contains(&format!("content-length: {}", body(&get).len())), "{head}");
            assert_eq!(body(&head), "");
        }
    }

    #[tokio::test]
    async fn other_paths_are_404_and_other_methods_405_with_what_is_allowed() {
        let server = start(LIMITS).await;
        for path in ["/metric", "/metrics/", "//", "/readyz/../metrics"] {
            assert!(get(&server, "GET", path).await.starts_with("HTTP/1.1 404 "), "{path}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
            let said = get(&server, method, "/metrics").await;
            assert!(said.starts_with("HTTP/1.1 405 ") && said.contains("allow: GET, HEAD\r\n"), "{said}");
        }
    }

    #[tokio::test]
    async fn the_page_escapes_names_and_forbids_everything_but_its_style() {
        let server = start(LIMITS).await;
        let said = get(&server, "GET", "/").await;
        assert!(said.contains("content-type: text/html; charset=utf-8\r\n"), "{said}");
        assert!(said.contains("content-security-policy: default-src 'none'; style-src 'unsafe-inline'\r\n"));
        assert!(body(&said).contains("&lt;b&gt;") && !body(&said).contains("<b>"), "{said}");
    }

    #[tokio::test]
    async fn two_requests_on_one_connection_are_answered_in_order() {
        let server = start(LIMITS).await;
        let two = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /no HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let said = ask(&server, two).await;
        let (ok, missing) = (said.find("HTTP/1.1 200 ").unwrap(), said.find("HTTP/1.1 404 ").unwrap());
        assert!(ok < missing, "{said}");
    }

    #[tokio::test]
    async fn what_is_not_http_is_refused_and_the_next_client_is_served() {
        let server = start(LIMITS).await;
        let said = ask(&server, "get key\r\n\r\n").await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{said}");
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(14 * 1024));
        assert!(
            ask(&server, &long.replace("X:", "Connection: close\r\nX:")).await.starts_with("HTTP/1.1 200 ")
        );
        assert!(get(&server, "GET", "/healthz").await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn a_header_that_does_not_end_and_an_idle_connection_are_closed() {
        let server = start(Limits { header: Duration::from_millis(100), ..LIMITS }).await;
        assert!(LIMITS.header <= Duration::from_secs(5));
        let mut slow = TcpStream::connect(server.address).await.unwrap();
        slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
        let said = read_to_close(&mut slow).await;
        assert!(!said.contains("200"), "{said}");
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let said = read_to_close(&mut idle).await;
        assert!(said.starts_with("HTTP/1.1 200 ") && !said.contains("connection: close"), "{said}");
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        assert_eq!(read_to_close(&mut silent).await, "");
    }

    /// A connection that has been answered, and stays.
    async fn holder(server: &Server) -> TcpStream {
        let mut holder = TcpStream::connect(server.address).await.unwrap();
        ask_again(&mut holder).await;
        holder
    }

    async fn ask_again(holder: &mut TcpStream) {
        holder.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"\r\n\r\nok") {
            assert!(holder.read_buf(&mut said).await.unwrap() > 0, "it was closed");
        }
    }

    #[tokio::test]
    async fn when_all_connections_are_taken_the_one_without_a_request_for_longest_is_closed_for_the_next() {
        let server = start(Limits { connections: 3, ..LIMITS }).await;
        let mut first = holder(&server).await;
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        let mut third = holder(&server).await;
        ask_again(&mut first).await;
        let said = timeout(Duration::from_secs(2), get(&server, "GET", "/healthz"));
        assert!(said.await.expect("at once").starts_with("HTTP/1.1 200 "));
        assert_eq!(read_to_close(&mut silent).await, "");
        ask_again(&mut first).await;
        ask_again(&mut third).await;
    }

    #[tokio::test]
    async fn who_takes_no_answers_keeps_nobody_out() {
        let server = start(Limits { connections: 3, ..LIMITS }).await;
        let mut hogs = Vec::new();
        for _ in 0..3 {
            let mut hog = TcpStream::connect(server.address).await.unwrap();
            // More answers than the sockets' buffers take, however large the system makes them.
            let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000);
            let mut sent = 0;
            while timeout(Duration::from_millis(300), hog.write_all(&requests)).await.is_ok() {
                sent += requests.len();
                assert!(sent < 1 << 30, "it is read though it takes no answers");
            }
            hogs.push(hog);
        }
        let said = timeout(Duration::from_secs(2), get(&server, "GET", "/healthz"));
        assert!(said.await.expect("at once").starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_life_even_if_its_client_never_lets_go() {
        let life = Duration::from_millis(150);
        let server = start(Limits { life, grace: Duration::from_millis(50), ..LIMITS }).await;
        let mut holder = TcpStream::connect(server.address).await.unwrap();
        holder.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /").await.unwrap();
        assert!(read_to_close(&mut holder).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn shutdown_closes_idle_connections_at_once_and_stops_listening() {
        let server = start(Limits { grace: Duration::from_secs(60), ..LIMITS }).await;
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        idle.read_exact(&mut first).await.unwrap();
        server.stop.send(()).unwrap();
        timeout(Duration::from_secs(5), server.done).await.expect("it ends").unwrap();
        assert!(read_to_close(&mut idle).await.ends_with("ok"));
        assert!(TcpStream::connect(server.address).await.is_err());
    }
}
