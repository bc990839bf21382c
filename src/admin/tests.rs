use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::access::{Access, AdminSpec, CurrentAccess};
use super::history::{History, HistoryPage};
use super::readiness::Readiness;
use super::server::{LIMITS, Limits, Served, serve};
use super::slabs::{ServerSlabs, SlabClass, Slabs};
use super::view::{
    ConfigState, ErrorRow, HotQuery, LeaseRow, NotExplained, ObservedKeys, Overview, RuleRow, View,
};
use crate::failover::Wish;
use crate::handshake::Requirements;
use crate::hot::HotReport;
use crate::listener::ListenAddress;
use crate::proxy::Explanation;
use crate::takeover::ReloadMode;
use crate::trace::{Filter, Names, Taps, Watcher};

struct Fixed(Arc<Taps>);

impl Fixed {
    fn new() -> Fixed {
        Fixed(Taps::new(1, Arc::default()))
    }
}

impl View for Fixed {
    fn metrics(&self) -> String {
        "# HELP a_total Some.\n# TYPE a_total counter\na_total 1\n".to_owned()
    }

    fn overview(&self) -> Overview {
        Overview {
            version: "1.2.3".to_owned(),
            uptime: Duration::from_secs(61),
            config: ConfigState::default(),
            pools: Vec::new(),
            rules: vec![RuleRow { name: "<b>".to_owned(), ..RuleRow::default() }],
            discovery: Vec::new(),
        }
    }

    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn explain(&self, _: Vec<u8>) -> Pin<Box<dyn Future<Output = Result<Explanation, NotExplained>> + Send>> {
        Box::pin(async { Err(NotExplained::Busy) })
    }

    fn names(&self) -> Names {
        Names { rules: vec!["pages".into()], servers: Vec::new() }
    }

    fn watch(&self, filter: Filter) -> Option<Watcher> {
        self.0.watch(filter)
    }

    fn hot(&self, _: &HotQuery) -> (HotReport, Vec<Arc<str>>) {
        (HotReport::default(), Vec::new())
    }

    fn observed(&self) -> ObservedKeys {
        ObservedKeys::default()
    }

    fn record(&self) {}

    fn history(&self, since: u64) -> HistoryPage {
        History::default().page(since)
    }

    fn slabs(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Slabs>>> + Send>> {
        let of = |server: &str, classes| ServerSlabs { pool: "main".into(), server: server.into(), classes };
        let class =
            SlabClass { class: 3, chunk_size: 152, total_pages: 2, evicted: 7, ..SlabClass::default() };
        let servers = vec![of("a:1", Ok(vec![class])), of("b:1", Err("server is down".into()))];
        Box::pin(async { Some(Arc::new(Slabs { at_ms: 0, servers, omitted: 1 })) })
    }

    fn errors(&self) -> Vec<ErrorRow> {
        vec![ErrorRow { of: "main/a:1".into(), text: "<b>".into(), count: 2, ..ErrorRow::default() }]
    }

    fn leases(&self, _: usize) -> Vec<LeaseRow> {
        vec![LeaseRow { key: (*b"k:\xff").into(), held_ms: 1_500, waiters: 2 }]
    }

    fn written(&self) -> Arc<str> {
        "[pools]\n".into()
    }

    fn reload(&self, _mode: ReloadMode) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> {
        Box::pin(async { Err("k.toml: line 3: wrong\n".to_owned()) })
    }

    fn move_keys(
        &self,
        server: String,
        wish: Wish,
    ) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> {
        Box::pin(async move {
            match &server[..] {
                "a" => Ok(format!("{wish:?}\n")),
                _ => Err(format!("no pool has a server {server}")),
            }
        })
    }
}

struct Server {
    address: SocketAddr,
    readiness: Readiness,
    stop: oneshot::Sender<()>,
    done: JoinHandle<()>,
}

fn open_to_all() -> AdminSpec {
    AdminSpec {
        listen: ListenAddress { host: "admin.example".to_owned(), port: 9111 },
        requirements: Requirements::default(),
        token_file: None,
        explain: true,
        trace: true,
        hot: true,
    }
}

async fn start(limits: Limits) -> Server {
    start_with(limits, &open_to_all()).await
}

async fn start_with(limits: Limits, spec: &AdminSpec) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let readiness = Readiness::new();
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };
    let access = CurrentAccess::new(Access::new(spec).unwrap());
    let served = Served { access, view: Arc::new(Fixed::new()), readiness: readiness.clone() };
    let done = tokio::spawn(serve(listener, served, shutdown, limits));
    Server { address, readiness, stop, done }
}

/// The replies to `request` until the server closes the connection.
async fn send(server: &Server, request: &str) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    read_to_close(&mut socket).await
}

async fn read_to_close(socket: &mut TcpStream) -> String {
    let mut reply = Vec::new();
    timeout(Duration::from_secs(10), socket.read_to_end(&mut reply))
        .await
        .expect("the server closes")
        .unwrap();
    String::from_utf8(reply).unwrap()
}

async fn get(server: &Server, method: &str, path: &str) -> String {
    send(server, &format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).await
}

fn body(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").expect("a header").1
}

#[tokio::test]
async fn metrics_are_returned_in_the_text_format() {
    let server = start(LIMITS).await;
    let reply = get(&server, "GET", "/metrics?x=1").await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
    assert!(reply.contains("content-type: text/plain; version=0.0.4\r\n"), "{reply}");
    assert_eq!(body(&reply), Fixed::new().metrics());
}

#[tokio::test]
async fn health_is_ok_from_the_start_and_readiness_follows_its_flag() {
    let server = start(LIMITS).await;
    let ready = async || get(&server, "GET", "/readyz").await;
    let health = get(&server, "GET", "/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200 ") && body(&health) == "ok", "{health}");
    let reply = ready().await;
    assert!(reply.starts_with("HTTP/1.1 503 ") && body(&reply) == "starting", "{reply}");
    server.readiness.ready();
    let reply = ready().await;
    assert!(reply.starts_with("HTTP/1.1 200 ") && body(&reply) == "ready", "{reply}");
    server.readiness.drain();
    server.readiness.ready();
    let reply = ready().await;
    assert!(reply.starts_with("HTTP/1.1 503 ") && body(&reply) == "draining", "{reply}");
}

#[tokio::test]
async fn head_returns_the_header_of_get_without_a_body() {
    let server = start(LIMITS).await;
    for path in ["/", "/metrics", "/healthz", "/readyz", "/nowhere"] {
        let (head, get) = (get(&server, "HEAD", path).await, get(&server, "GET", path).await);
        let header = |reply: &str| {
            let lines = reply.split_once("\r\n\r\n").unwrap().0.lines();
            lines.filter(|line| !line.starts_with("date:")).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(header(&head), header(&get));
        assert!(header(&head).contains(&format!("content-length: {}", body(&get).len())), "{head}");
        assert_eq!(body(&head), "");
    }
}

#[tokio::test]
async fn other_paths_are_404_and_other_methods_405_with_allow() {
    let server = start(LIMITS).await;
    for path in ["/metric", "/metrics/", "//", "/readyz/../metrics"] {
        assert!(get(&server, "GET", path).await.starts_with("HTTP/1.1 404 "), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        let reply = get(&server, method, "/metrics").await;
        assert!(reply.starts_with("HTTP/1.1 405 ") && reply.contains("allow: GET, HEAD\r\n"), "{reply}");
    }
}

#[tokio::test]
async fn the_page_has_a_policy_that_allows_only_its_own_files_and_each_is_there() {
    let server = start(LIMITS).await;
    let reply = get(&server, "GET", "/").await;
    assert!(reply.contains("content-type: text/html; charset=utf-8\r\n"), "{reply}");
    assert!(
        reply.contains("content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; ")
    );
    for (path, content_type) in [
        ("/page.js", "text/javascript; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/uplot.js", "text/javascript; charset=utf-8"),
        ("/uplot.css", "text/css; charset=utf-8"),
        ("/page.json", "application/json"),
        ("/page.json?since=3", "application/json"),
    ] {
        let reply = get(&server, "GET", path).await;
        assert!(reply.starts_with("HTTP/1.1 200 "), "{path}: {reply}");
        assert!(reply.contains(&format!("content-type: {content_type}\r\n")), "{path}: {reply}");
        assert!(!body(&reply).is_empty());
    }
    assert!(get(&server, "GET", "/page.json?since=x").await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn leases_are_shown_where_keys_may_be() {
    let asked = "GET /leases HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let reply = send(&start(LIMITS).await, asked).await;
    let lease = r#"{"held_ms":1500,"key":"k:\\xff","key_base64":"azr/","waiters":2}"#;
    assert!(body(&reply).contains(lease), "{reply}");
    let hidden = start_with(LIMITS, &AdminSpec { hot: false, ..open_to_all() }).await;
    assert!(!send(&hidden, asked).await.contains("k:"));
}

#[tokio::test]
async fn the_last_errors_and_the_slab_classes_are_shown_as_json() {
    let server = start(LIMITS).await;
    let page: serde_json::Value =
        serde_json::from_str(body(&get(&server, "GET", "/page.json").await)).unwrap();
    let error = serde_json::json!({
        "at": "1970-01-01T00:00:00.000Z", "level": "warning", "of": "main/a:1", "from": "", "text": "<b>", "count": 2
    });
    assert_eq!(page["errors"], serde_json::json!([error]));
    let slabs: serde_json::Value = serde_json::from_str(body(&get(&server, "GET", "/slabs").await)).unwrap();
    let class = serde_json::json!({
        "class": 3, "chunk_size": 152, "chunks_per_page": 0, "total_pages": 2, "total_chunks": 0, "used_chunks": 0,
        "evicted": 7, "evicted_time": 0
    });
    let servers = serde_json::json!([
        { "pool": "main", "server": "a:1", "classes": [class], "error": null },
        { "pool": "main", "server": "b:1", "classes": [], "error": "server is down" },
    ]);
    assert_eq!((&slabs["servers"], &slabs["omitted"]), (&servers, &1.into()));
}

#[tokio::test]
async fn two_requests_on_one_connection_are_answered_in_order() {
    let server = start(LIMITS).await;
    let two =
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /no HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let reply = send(&server, two).await;
    let (ok, missing) = (reply.find("HTTP/1.1 200 ").unwrap(), reply.find("HTTP/1.1 404 ").unwrap());
    assert!(ok < missing, "{reply}");
}

#[tokio::test]
async fn an_invalid_request_is_refused_and_the_next_client_is_served() {
    let server = start(LIMITS).await;
    let reply = send(&server, "get key\r\n\r\n").await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(14 * 1024));
    assert!(send(&server, &long.replace("X:", "Connection: close\r\nX:")).await.starts_with("HTTP/1.1 200 "));
    assert!(get(&server, "GET", "/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn an_unfinished_header_and_an_idle_connection_are_closed() {
    let server = start(Limits { header: Duration::from_millis(100), ..LIMITS }).await;
    assert!(LIMITS.header <= Duration::from_secs(5));
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").await.unwrap();
    let reply = read_to_close(&mut slow).await;
    assert!(!reply.contains("200"), "{reply}");
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let reply = read_to_close(&mut idle).await;
    assert!(reply.starts_with("HTTP/1.1 200 ") && !reply.contains("connection: close"), "{reply}");
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(read_to_close(&mut silent).await, "");
}

/// A connection that has received a reply and stays open.
async fn open(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    request(&mut stream).await;
    stream
}

async fn request(stream: &mut TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"\r\n\r\nok") {
        assert!(stream.read_buf(&mut reply).await.unwrap() > 0, "the connection was closed");
    }
}

#[tokio::test]
async fn at_the_limit_the_connection_with_the_oldest_request_is_closed_for_the_next() {
    let server = start(Limits { connections: 3, ..LIMITS }).await;
    let mut first = open(&server).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let mut third = open(&server).await;
    request(&mut first).await;
    let reply = timeout(Duration::from_secs(2), get(&server, "GET", "/healthz"));
    assert!(reply.await.expect("at once").starts_with("HTTP/1.1 200 "));
    assert_eq!(read_to_close(&mut silent).await, "");
    request(&mut first).await;
    request(&mut third).await;
}

#[tokio::test]
async fn clients_that_do_not_read_replies_do_not_block_others() {
    let server = start(Limits { connections: 3, ..LIMITS }).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        // More replies than fit in the sockets' buffers, whatever their size.
        let requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10_000);
        let mut sent = 0;
        while timeout(Duration::from_millis(300), client.write_all(&requests)).await.is_ok() {
            sent += requests.len();
            assert!(sent < 1 << 30, "requests are read though no reply is");
        }
        clients.push(client);
    }
    let reply = timeout(Duration::from_secs(2), get(&server, "GET", "/healthz"));
    assert!(reply.await.expect("at once").starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_connection_is_closed_at_its_longest_duration_whatever_its_client_does() {
    let connection = Duration::from_millis(150);
    let server = start(Limits { connection, grace: Duration::from_millis(50), ..LIMITS }).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /").await.unwrap();
    assert!(read_to_close(&mut client).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn shutdown_closes_idle_connections_at_once_and_stops_listening() {
    let server = start(Limits { grace: Duration::from_secs(60), ..LIMITS }).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    server.stop.send(()).unwrap();
    timeout(Duration::from_secs(5), server.done).await.expect("the server stops").unwrap();
    assert!(read_to_close(&mut idle).await.ends_with("ok"));
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_client_that_has_connected_before_the_shutdown_and_asks_then_receives_its_reply() {
    let server = start(Limits { grace: Duration::from_secs(60), ..LIMITS }).await;
    let mut client = TcpStream::connect(server.address).await.unwrap();
    // Accepted, because a later one has been.
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(read_to_close(&mut second).await.ends_with("ok"));
    server.stop.send(()).unwrap();
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    client.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await.unwrap();
    assert!(read_to_close(&mut client).await.ends_with("ok"));
    timeout(Duration::from_secs(5), server.done).await.expect("the server stops").unwrap();
}

/// Connects, asks for a stream, and returns once it has begun.
async fn stream(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /trace HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"event: start\ndata: {}\n\n\r\n") {
        assert!(stream.read_buf(&mut reply).await.unwrap() > 0, "{}", String::from_utf8_lossy(&reply));
    }
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.contains("content-type: text/event-stream\r\n"), "{reply}");
    stream
}

#[tokio::test]
async fn a_stream_is_not_closed_to_make_room_nor_at_the_longest_duration_while_it_is_read() {
    let connection = Duration::from_millis(100);
    let server = start(Limits { connections: 2, connection, ..LIMITS }).await;
    let mut first = stream(&server).await;
    for _ in 0..5 {
        let reply = timeout(Duration::from_secs(2), get(&server, "GET", "/healthz"));
        assert!(reply.await.expect("at once").starts_with("HTTP/1.1 200 "));
    }
    let longer = timeout(connection * 4, read_to_close(&mut first));
    assert!(longer.await.is_err(), "the stream was closed");
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_closed() {
    let limit = Duration::from_millis(200);
    let server = start(Limits { connection: limit, stream: limit, ..LIMITS }).await;
    let mut stalled = stream(&server).await;
    // Nothing is to be sent within this time, as if the socket accepted nothing.
    read_to_close(&mut stalled).await;
}
