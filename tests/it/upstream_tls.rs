//! TLS and passwords towards servers: real memcacheds with `-Z` and `-Y`, and each way in which it can fail.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::certificates::Certificates;
use crate::client::Client;
use crate::world::{
    Kennel, Memcached, addresses, eventually, free_address, guarded, raw, sidecar_toml, within,
};

/// A connection attempt may need several seconds of CPU time on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// A memcached with TLS, and where it listens without.
struct TlsMemcached {
    server: Memcached,
    plain: SocketAddr,
}

impl TlsMemcached {
    /// With the certificate of this name, further `-o` options, and further arguments.
    fn start(newest: bool, made: &Certificates, name: &str, options: &str, more: &[&str]) -> TlsMemcached {
        let plain = free_address();
        let (cert, key) = (made.path(&format!("{name}.pem")), made.path(&format!("{name}.key")));
        let options = format!("ssl_chain_cert={cert},ssl_key={key}{options}");
        let plain_listener = format!("notls:{plain}");
        let args = [&["-Z", "-o", &options, "-l", &plain_listener], more].concat();
        let server = if newest { Memcached::newest(&args) } else { Memcached::start(&args) };
        TlsMemcached { server, plain }
    }

    fn client(&self) -> Client {
        Client::tcp(self.plain)
    }

    fn stat(&self, name: &str) -> u64 {
        let mut client = self.client();
        client.send(b"stats\r\n");
        let stats = String::from_utf8(client.until(b"END\r\n")).expect("text");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}: {stats}"))
    }
}

/// The configuration with further keys of the pool "main", and time enough for handshakes on a busy machine.
fn with(toml: &str, keys: &str) -> String {
    let toml = toml.replace("\"200ms\"", "\"5s\"").replace("\"500ms\"", "\"5s\"");
    toml.replacen("[pools.main]\n", &format!("[pools.main]\n{keys}\n"), 1)
}

fn ca(made: &Certificates, name: &str) -> String {
    format!("tls = {{ ca = {:?} }}", made.path(&format!("{name}.pem")))
}

fn handshakes(kennel: &Kennel, session: &str) -> f64 {
    kennel.metrics().sum("kennel_upstream_tls_handshakes_total", &[&format!("session=\"{session}\"")])
}

/// Runs a command of the binary with this configuration, in a file of the directory.
fn run(made: &Certificates, command: &[&str], toml: &str) -> Output {
    let file = made.path("kennel.toml");
    std::fs::write(&file, toml).expect("write");
    let arguments = command.iter().map(|argument| if *argument == "FILE" { &file } else { *argument });
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("KENNEL_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("run kennel")
}

#[test]
fn guarded_and_raw_keys_of_a_pool_that_fails_over_travel_over_tls_from_end_to_end() {
    let made = Certificates::new();
    // The newest memcached, and Debian's.
    let servers: Vec<_> = (0..3).map(|n| TlsMemcached::start(n > 0, &made, "server", "", &[])).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.server.address()).collect();
    let rules = [raw("raw", "raw:*"), guarded("pages", "*", "tags = [\"all\"]\ncold_wait = \"0ms\"")];
    let toml = with(&sidecar_toml(&addresses, &rules), &ca(&made, "ca"));
    let sidecars: Vec<_> = (0..2).map(|_| Kennel::start(&toml)).collect();
    let large = vec![b'x'; 900_000];
    let (mut one, mut other) = (sidecars[0].client(), sidecars[1].client());
    for n in 0..30 {
        for key in [format!("raw:{n}"), format!("page:{n}")] {
            assert_eq!(one.get(&key), None);
            one.store(&key, &large, 60);
            assert!(other.get(&key).as_deref() == Some(&large[..]), "{key}");
        }
    }
    // All requests at once: the output is larger than what TLS buffers, and so are the replies.
    let mut pipelined = Vec::new();
    for n in 0..30 {
        pipelined.extend_from_slice(format!("set raw:p{n} 0 60 {}\r\n", large.len()).as_bytes());
        pipelined.extend_from_slice(&large);
        pipelined.extend_from_slice(b"\r\n");
    }
    let mut writer = sidecars[0].client();
    std::thread::scope(|scope| {
        let mut client = sidecars[0].client();
        scope.spawn(move || {
            client.send(&(0..30).map(|n| format!("get raw:{n}\r\n")).collect::<String>().into_bytes())
        });
        writer.send(&pipelined);
    });
    for _ in 0..30 {
        assert_eq!(writer.line(), "STORED");
    }
    assert_eq!(one.execute("delete @tag:all"), "DELETED");
    assert_eq!(other.get("page:1"), None, "its tag has moved");
    let kinds = ["full", "resumed"].map(|kind| handshakes(&sidecars[0], kind));
    // Two workers, with a connection to each server.
    assert!(kinds[0] + kinds[1] >= 6.0, "{kinds:?}");
    // The monitors' too: nothing reached the servers without TLS but this.
    assert!(servers.iter().all(|server| server.stat("curr_connections") >= 6));
    assert_eq!(sidecars[0].metrics().sum("kennel_failover_view_valid", &[]), 3.0);
    let bumped = run(&made, &["tag", "--config", "FILE", "bump", "all"], &toml);
    assert!(bumped.status.success(), "{}", String::from_utf8_lossy(&bumped.stderr));
    let checked = run(&made, &["check", "--connect", "FILE"], &toml);
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && text.matches("can guard keys").count() == 3, "{text}");
    assert!(text.contains("over TLS, verified by the CAs of "), "{text}");
}

#[test]
fn a_listener_with_tls_and_servers_with_tls_and_a_password_work_together() {
    let made = Certificates::new();
    std::fs::write(made.path("password"), "pass\n").expect("write");
    let server = TlsMemcached::start(true, &made, "server", "", &["-Y", &made.path("users")]);
    let auth = format!("auth = {{ user = \"user\", password_file = {:?} }}", made.path("password"));
    let toml = with(
        &sidecar_toml(&addresses(std::slice::from_ref(&server.server)), &[raw("all", "*")]),
        &ca(&made, "ca"),
    );
    let toml = toml.replacen("[pools.main]\n", &format!("[pools.main]\n{auth}\n"), 1);
    // Clients have TLS too, on a second listener.
    let listeners = format!("\"127.0.0.1:0\", {}", made.listener("", ""));
    let kennel = Kennel::start(&toml.replacen("\"127.0.0.1:0\"", &listeners, 1));
    let mut client = kennel.client();
    client.store("a", b"v", 60);
    assert_eq!(client.get("a").as_deref(), Some(&b"v"[..]));
    // The command that authenticates has left nothing.
    assert_eq!(client.get("kennel"), None);
    let bumped = run(&made, &["tag", "--config", "FILE", "bump", "all"], &toml);
    assert!(bumped.status.success(), "{}", String::from_utf8_lossy(&bumped.stderr));
    assert!(!kennel.log().contains("pass\n") && !kennel.log().contains("WARN"), "{}", kennel.log());
}

#[test]
fn a_server_without_passwords_keeps_nothing_of_what_it_was_told() {
    let (made, server) = (Certificates::new(), Memcached::start(&[]));
    std::fs::write(made.path("password"), "s3cret").expect("write");
    let auth = format!("auth = {{ user = \"user\", password_file = {:?} }}", made.path("password"));
    let toml = with(&sidecar_toml(&[server.address()], &[raw("all", "*")]), &auth);
    let kennel = Kennel::start(&toml);
    eventually("both workers are connected", || {
        kennel.metrics().sum("kennel_upstream_connections_total", &[]) == 2.0
    });
    assert_eq!(Client::tcp(server.address).get("kennel"), None);
}

#[test]
fn the_second_connection_resumes_the_session_of_the_first() {
    let made = Certificates::new();
    // The server closes idle connections, so that they are made again.
    let server = TlsMemcached::start(true, &made, "server", ",ssl_session_cache,idle_timeout=1", &[]);
    let toml =
        sidecar_toml(&[server.server.address()], &[raw("all", "*")]).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&with(&toml, &ca(&made, "ca")));
    within(LONG, "the first session", || handshakes(&kennel, "full") == 1.0);
    within(LONG, "the connection is made again", || handshakes(&kennel, "resumed") >= 2.0);
    assert_eq!(handshakes(&kennel, "full"), 1.0);
    // A reload that changes nothing in the files keeps the sessions.
    assert_eq!(kennel.reload(&with(&toml, &ca(&made, "ca"))).0, 200);
    let before = handshakes(&kennel, "resumed");
    within(LONG, "the connection is made again", || handshakes(&kennel, "resumed") > before);
    assert_eq!(handshakes(&kennel, "full"), 1.0);
}

#[test]
fn tls_1_2_works_and_resumes_too() {
    let (made, server) = (Certificates::new(), Memcached::start(&["-o", "idle_timeout=1"]));
    let relay = TlsRelay::start(&made, "TLSv1_2", server.address);
    let toml =
        sidecar_toml(&[relay.address.to_string()], &[raw("all", "*")]).replace("workers = 2", "workers = 1");
    let kennel = Kennel::start(&with(&toml, &ca(&made, "ca")));
    let mut client = kennel.client();
    client.store("a", b"v", 60);
    within(LONG, "the connection is made again", || handshakes(&kennel, "resumed") >= 1.0);
    assert_eq!(client.get("a").as_deref(), Some(&b"v"[..]));
}

/// Python's ssl in front of a server, with one version of TLS.
struct TlsRelay {
    address: SocketAddr,
    process: std::process::Child,
}

impl TlsRelay {
    fn start(made: &Certificates, version: &str, target: SocketAddr) -> TlsRelay {
        let python = std::env::var("KENNEL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/libraries/tls_relay.py");
        let mut command = Command::new(&python);
        command.args([script, version, &made.path("server.pem"), &made.path("server.key")]);
        command.arg(target.port().to_string()).stdout(std::process::Stdio::piped());
        // The relay ends with its standard input, also when this process is killed.
        command.stdin(std::process::Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|e| panic!("run {python}: {e}"));
        let mut port = String::new();
        let mut output = std::io::BufReader::new(process.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut output, &mut port).expect("its port");
        let port: u16 = port.trim().parse().unwrap_or_else(|e| panic!("{port:?}: {e}"));
        TlsRelay { address: SocketAddr::from(([127, 0, 0, 1], port)), process }
    }
}

impl Drop for TlsRelay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_self_signed_certificate_is_accepted_where_it_is_listed_and_nowhere_else() {
    let made = Certificates::new();
    made.make_self_signed("self");
    made.make_self_signed("same"); // another one, with the same names
    let server = TlsMemcached::start(true, &made, "self", "", &[]);
    let toml = |keys: &str| with(&sidecar_toml(&[server.server.address()], &[raw("all", "*")]), keys);
    let kennel = Kennel::start(&toml(&ca(&made, "self")));
    kennel.client().store("a", b"v", 60);
    for keys in [
        ca(&made, "same"),
        ca(&made, "ca"),
        format!("tls = {{ ca = {:?}, server_name = \"elsewhere.internal\" }}", made.path("self.pem")),
        // The CAs of the system.
        "tls = {}".to_owned(),
    ] {
        let checked = run(&made, &["check", "--connect", "FILE"], &toml(&keys));
        let why = String::from_utf8_lossy(&checked.stderr);
        assert!(!checked.status.success() && why.contains("certificate"), "{keys}: {why}");
    }
}

#[test]
fn the_name_in_the_certificate_is_that_of_the_address_or_server_name() {
    let made = Certificates::new();
    let server = TlsMemcached::start(true, &made, "server", "", &[]);
    let port = server.server.address.port();
    // The certificate is for 127.0.0.1 and localhost.
    for (address, name, is_right) in [
        ("localhost", "", true),
        ("LOCALHOST", "", true),
        ("127.0.0.1", "localhost", true),
        ("localhost", "127.0.0.1", true),
        ("127.0.0.1", "127.0.0.2", false),
        ("localhost", "a.localhost", false),
    ] {
        let name = if name.is_empty() { String::new() } else { format!(", server_name = {name:?}") };
        let keys = format!("tls = {{ ca = {:?}{name} }}", made.path("ca.pem"));
        let toml = with(&sidecar_toml(&[format!("{address}:{port}")], &[raw("all", "*")]), &keys);
        let checked = run(&made, &["check", "--connect", "FILE"], &toml);
        let why = String::from_utf8_lossy(&checked.stderr);
        assert_eq!(checked.status.success(), is_right, "{address} {name}: {why}");
        assert!(is_right || why.contains("the server's certificate is for "), "{why}");
    }
}

/// Accepts connections, and does this with each, until it is dropped.
struct Listener {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// `serve` returns whether the connection stays open.
    fn start(serve: fn(&mut std::net::TcpStream) -> bool) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
                if serve(&mut stream) {
                    open.push(stream);
                }
                open.truncate(64);
            }
        });
        Listener { address, over, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = std::net::TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn check_and_start_name_a_certificate_that_has_expired() {
    let made = Certificates::new();
    made.make_expired("expired", "ca");
    made.make_expired("clients", "ca");
    let file = |name: &str| made.path(&format!("{name}.pem"));
    let own = format!("cert = {:?}, key = {:?}", file("expired"), made.path("expired.key"));
    let listener =
        format!("{{ address = \"127.0.0.1:0\", tls = {{ {own}, client_ca = {:?} }} }}", file("clients"));
    let tls = format!("tls = {{ ca = {:?}, {own} }}", file("ca"));
    let toml = with(&sidecar_toml(&[free_address().to_string()], &[raw("all", "*")]), &tls);
    let toml = toml.replacen("\"127.0.0.1:0\"", &listener, 1);
    let checked = run(&made, &["check", "FILE"], &toml);
    let says = |text: &str, at: &str, name: &str| {
        let expected = format!("tls: the certificate in {:?} expired at ", file(name));
        text.lines().any(|line| line.contains(at) && line.contains(&expected))
    };
    let kennel = Kennel::start(&toml);
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    for text in [checked, kennel.log()] {
        assert!(says(&text, "pools.main", "expired"), "{text}");
        assert!(says(&text, "listen.tcp[0]", "expired") && says(&text, "listen.tcp[0]", "clients"), "{text}");
        assert!(!says(&text, "", "ca"), "{text}");
    }
}

#[test]
fn each_way_to_fail_has_a_reason_in_the_metrics_and_a_line_that_says_what_to_do() {
    let made = Certificates::new();
    made.make_expired("expired", "ca");
    for (file, contents) in [("password", "pass"), ("wrong", "rosebud")] {
        std::fs::write(made.path(file), contents).expect("write");
    }
    let tls = TlsMemcached::start(true, &made, "server", "", &[]);
    let expired = TlsMemcached::start(true, &made, "expired", "", &[]);
    let mutual = format!(",ssl_verify_mode=2,ssl_ca_cert={}", made.path("ca.pem"));
    let mutual = TlsMemcached::start(true, &made, "server", &mutual, &[]);
    let with_password = Memcached::start(&["-Y", &made.path("users")]);
    let plain = Memcached::start(&[]);
    let silent = Listener::start(|_| true);
    let closing = Listener::start(|stream| stream.read(&mut [0; 1]).is_err());
    let nonsense = Listener::start(|stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").is_ok());
    let nobody = free_address();
    let own = |name: &str| {
        let file = |end: &str| made.path(&format!("{name}.{end}"));
        format!(
            "tls = {{ ca = {:?}, cert = {:?}, key = {:?} }}",
            made.path("ca.pem"),
            file("pem"),
            file("key")
        )
    };
    let by = ca(&made, "ca");
    let auth = |file: &str| format!("auth = {{ user = \"user\", password_file = {:?} }}", made.path(file));
    let name = format!("tls = {{ ca = {:?}, server_name = \"cache.internal\" }}", made.path("ca.pem"));
    let cases: [(&str, SocketAddr, String, &[&str], &str); 14] = [
        (
            "ca",
            tls.server.address,
            ca(&made, "other"),
            &["unknown_ca"],
            "has signed the server's certificate: set tls.ca",
        ),
        (
            "system",
            tls.server.address,
            "tls = {}".to_owned(),
            &["unknown_ca"],
            "no CA of the system has signed",
        ),
        ("expired", expired.server.address, by.clone(), &["expired"], "has expired: renew it on the server"),
        ("name", tls.server.address, name, &["wrong_name"], "not for cache.internal: set tls.server_name"),
        ("plain", plain.address, by.clone(), &["tls_missing"], "does not speak TLS at this port"),
        ("missing", tls.server.address, String::new(), &["tls_required", "closed"], "set tls for the pool"),
        (
            "certificate",
            mutual.server.address,
            by.clone(),
            &["client_certificate", "closed"],
            "client certificate",
        ),
        (
            "stranger",
            mutual.server.address,
            own("stranger"),
            &["client_certificate", "closed"],
            "client certificate",
        ),
        ("silent", silent.address, by.clone(), &["tls_timeout"], "did not end within connect_timeout"),
        ("closing", closing.address, by.clone(), &["closed"], "closed the connection in the TLS handshake"),
        ("nonsense", nonsense.address, by.clone(), &["tls_missing"], "does not speak TLS at this port"),
        ("password", with_password.address, auth("wrong"), &["password"], "refused the user"),
        ("none", with_password.address, String::new(), &["password_required"], "set auth for the pool"),
        ("nobody", nobody, by.clone(), &["unreachable"], "Connection refused"),
    ];
    let right: [(&str, SocketAddr, String); 2] = [
        ("mutual", mutual.server.address, own("client")),
        ("known", with_password.address, auth("password")),
    ];
    let mut toml = sidecar_toml(&[plain.address()], &[raw("all", "*")]);
    let all = cases.iter().map(|(name, address, keys, ..)| (name, address, keys));
    for (name, address, keys) in all.chain(right.iter().map(|(name, address, keys)| (name, address, keys))) {
        // Long enough for a handshake while all others are made, except where nothing else is waited for.
        let limit = if *name == "silent" { "300ms" } else { "5s" };
        toml += &format!(
            "[pools.{name}]\nservers = [{{ address = \"{address}\", name = \"server-{name}\" }}]\n\
             connect_timeout = {limit:?}\nrequest_timeout = \"5s\"\n{keys}\n"
        );
    }
    let kennel = Kennel::start(&toml.replace("workers = 2", "workers = 1"));
    let failures = |pool: &str, reason: &str| {
        let labels =
            [format!("pool={pool:?}"), format!("server=\"server-{pool}\""), format!("reason={reason:?}")];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        kennel.metrics().sum("kennel_upstream_connection_failures_total", &labels)
    };
    for (pool, _, _, reasons, words) in &cases {
        within(LONG, pool, || reasons.iter().map(|reason| failures(pool, reason)).sum::<f64>() >= 3.0);
        let log = kennel.log();
        let lines: Vec<&str> =
            log.lines().filter(|line| line.contains(&format!("server=\"server-{pool}\""))).collect();
        // Attempts that fail alike are logged once. A refused certificate is told in one of two ways, by when the connection ends.
        assert!((1..=reasons.len()).contains(&lines.len()), "{lines:#?}");
        for line in lines {
            assert!(
                line.contains(" WARN ") && line.contains("not connected") && line.contains(words),
                "{line}"
            );
        }
    }
    for (pool, ..) in &right {
        within(LONG, pool, || {
            kennel.metrics().sum("kennel_upstream_up", &[&format!("pool={pool:?}")]) == 1.0
        });
    }
    for secret in ["rosebud", "pass "] {
        assert!(!kennel.log().contains(secret), "{}", kennel.log());
    }
    // The command says the same of each.
    let checked = run(&made, &["check", "--connect", "FILE"], &toml);
    let said = String::from_utf8_lossy(&checked.stderr);
    for (pool, _, _, _, words) in &cases {
        let line = said.lines().find(|line| line.starts_with(&format!("pool {pool}: ")));
        assert!(line.is_some_and(|line| line.contains(words)), "{pool}: {said}");
    }
    assert_eq!(said.lines().count(), cases.len(), "{said}");
}

#[test]
fn new_connections_use_the_files_of_the_latest_reload_and_the_others_stay() {
    let made = Certificates::new();
    let mutual = format!(",ssl_verify_mode=2,ssl_ca_cert={}", made.path("ca.pem"));
    let users = made.path("users");
    let mut server = TlsMemcached::start(true, &made, "server", &mutual, &["-Y", &users]);
    let file = |name: &str| made.path(name);
    std::fs::write(file("password"), "pass").expect("write");
    let copy = |from: &str, to: &str| {
        std::fs::copy(file(from), file(to)).expect("copy");
    };
    for (from, to) in [("ca.pem", "cas.pem"), ("client.pem", "own.pem"), ("client.key", "own.key")] {
        copy(from, to);
    }
    let keys = format!(
        "tls = {{ ca = {:?}, cert = {:?}, key = {:?} }}\nauth = {{ user = \"user\", password_file = {:?} }}",
        file("cas.pem"),
        file("own.pem"),
        file("own.key"),
        file("password")
    );
    let toml = with(&sidecar_toml(&[server.server.address()], &[raw("all", "*")]), &keys);
    let kennel = Kennel::start(&toml.replace("workers = 2", "workers = 1"));
    let toml = toml.replace("workers = 2", "workers = 1");
    let connected = || kennel.metrics().sum("kennel_upstream_connections_total", &[]);
    within(LONG, "it is connected", || connected() == 1.0);
    let expiry =
        |name: &str| kennel.metrics().sum("kennel_tls_certificate_expiry_timestamp_seconds", &[name]);
    let (of_own, of_ca) = (expiry("own.pem"), expiry("cas.pem"));
    assert!(of_own > 1.0e9 && of_ca > 1.0e9, "{of_own} {of_ca}");
    // A certificate without its key, and an empty password, change nothing.
    made.make_for("fresh", Some("ca"), 9);
    copy("fresh.pem", "own.pem");
    std::fs::write(file("password"), "\n").expect("write");
    let (status, why) = kennel.reload(&toml);
    assert!(
        status == 422 && why.contains("pools.main.auth.password_file") && why.contains("is empty"),
        "{status} {why}"
    );
    assert!(why.contains("pools.main.tls.key") && why.contains("is not the key of the certificate"), "{why}");
    assert_eq!(expiry("own.pem"), of_own);
    // Both as they should be, but the server does not know the password yet: the connection stays, the next one fails.
    copy("fresh.key", "own.key");
    std::fs::write(file("password"), "later").expect("write");
    let read_again =
        [("private key", "own.key"), ("certificate", "own.pem"), ("password or token file", "password")]
            .map(|(what, name)| format!("the {what} {} was read again: it has changed\n", file(name)));
    assert_eq!(kennel.reload(&toml), (200, read_again.concat()));
    assert_eq!(((expiry("own.pem") - of_own) / 86_400.0).round(), 7.0);
    let mut client = kennel.client();
    client.store("a", b"v", 60);
    assert_eq!((client.get("a").as_deref(), connected()), (Some(&b"v"[..]), 1.0));
    server.server.restart();
    within(LONG, "the new password is used", || {
        kennel.metrics().sum("kennel_upstream_connection_failures_total", &["reason=\"password\""]) >= 1.0
    });
    // The server learns it.
    std::fs::write(&users, "user:later\nuser:pass\n").expect("write");
    server.server.restart();
    within(LONG, "it is connected again", || connected() == 2.0);
    client.store("a", b"v", 60);
    // Other settings: no connection with the former ones remains.
    let other = toml.replace("key = ", "server_name = \"localhost\", key = ");
    let (status, changes) = kennel.reload(&other);
    assert_eq!((status, &changes[..]), (200, "pools.main.tls.server_name: not set → \"localhost\"\n"));
    within(LONG, "it is connected anew", || connected() == 3.0);
    assert!(client.get("a").is_some());
    assert!(!kennel.log().contains("later"), "{}", kennel.log());
}

#[test]
fn with_watch_a_changed_password_file_is_noticed() {
    let (made, users) = (Certificates::new(), "user:pass\n");
    std::fs::write(made.path("users"), users).expect("write");
    std::fs::write(made.path("password"), "wrong").expect("write");
    let server = Memcached::start(&["-Y", &made.path("users")]);
    let auth = format!("auth = {{ user = \"user\", password_file = {:?} }}", made.path("password"));
    let toml = with(&sidecar_toml(&[server.address()], &[raw("all", "*")]), &auth);
    let kennel = Kennel::start(&format!("reload = \"watch\"\n{toml}"));
    eventually("the wrong password is refused", || {
        kennel.metrics().sum("kennel_upstream_connection_failures_total", &["reason=\"password\""]) >= 1.0
    });
    std::fs::write(made.path("password"), "pass").expect("write");
    within(LONG, "the right one is used", || kennel.metrics().sum("kennel_upstream_up", &[]) == 1.0);
    assert!(Path::new(&made.path("password")).exists());
}
