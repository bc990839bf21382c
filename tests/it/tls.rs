//! TLS listeners, with real clients: python's ssl, which distinguishes a close from a cut, and pymemcache.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::certificates::Certificates;
use crate::world::{Kennel, Memcached, addresses, eventually, memcacheds, raw, sidecar_toml};

/// A raw sidecar with this as its only TCP listener.
fn sidecar(servers: &[Memcached], listener: &str) -> Kennel {
    let toml = sidecar_toml(&addresses(servers), &[raw("everything", "*")]);
    Kennel::start(&toml.replacen("\"127.0.0.1:0\"", listener, 1))
}

fn python(what: &str, kennel: &Kennel, ca: &str, own: &[String]) -> Child {
    let python = std::env::var("KENNEL_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/libraries/tls_users.py");
    let address = kennel.address();
    let mut command = Command::new(&python);
    command.args([script, what, &address.ip().to_string(), &address.port().to_string(), ca]).args(own);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap_or_else(|e| panic!("run {python}: {e}"))
}

/// The script's output.
fn run_script(what: &str, kennel: &Kennel, ca: &str, own: &[String]) -> String {
    let output = python(what, kennel, ca, own).wait_with_output().expect("its output");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {}\n{printed}", output.status);
    printed
}

fn handshakes(kennel: &Kennel, outcome: &str) -> f64 {
    kennel.metrics().sum("kennel_tls_handshakes_total", &[&format!("outcome=\"{outcome}\"")])
}

#[test]
fn both_versions_work_and_the_end_of_a_connection_is_announced() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let kennel = sidecar(&servers, &made.listener("", ""));
    assert_eq!(run_script("versions", &kennel, &made.path("ca.pem"), &[]), "TLSv1.2 ended\nTLSv1.3 ended\n");
    assert_eq!(run_script("goodbye", &kennel, &made.path("ca.pem"), &[]), "both ended\n");
    assert_eq!(handshakes(&kennel, "done"), 3.0);
    assert_eq!(run_script("refused", &kennel, &made.path("other.pem"), &[]), "refused\n", "it is another's");
    eventually("the client's refusal is counted", || handshakes(&kennel, "failed") == 1.0);
}

#[test]
fn pymemcache_is_served_over_tls() {
    let (made, servers) = (Certificates::new(), memcacheds(2));
    let kennel = sidecar(&servers, &made.listener("", ""));
    assert_eq!(run_script("pymemcache", &kennel, &made.path("ca.pem"), &[]), "done\n");
}

#[test]
fn a_client_that_reads_late_gets_every_byte_of_its_answers() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    // The client does not read for a while; a request that waits for that must not become a miss.
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]).replace("500ms", "30s");
    let kennel = Kennel::start(&toml.replacen("\"127.0.0.1:0\"", &made.listener("", ""), 1));
    assert_eq!(run_script("late", &kennel, &made.path("ca.pem"), &[]), "all of it\n");
    assert_eq!(run_script("late_quit", &kennel, &made.path("ca.pem"), &[]), "all of it\n");
}

#[test]
fn with_client_ca_only_its_certificates_come_in() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let listener = made.listener(&format!(", client_ca = {:?}", made.path("ca.pem")), "");
    let kennel = sidecar(&servers, &listener);
    let own = |name: &str| [made.path(&format!("{name}.pem")), made.path(&format!("{name}.key"))];
    assert_eq!(
        run_script("versions", &kennel, &made.path("ca.pem"), &own("client")),
        "TLSv1.2 ended\nTLSv1.3 ended\n"
    );
    assert_eq!(run_script("refused", &kennel, &made.path("ca.pem"), &[]), "refused\n", "none");
    assert_eq!(
        run_script("refused", &kennel, &made.path("ca.pem"), &own("stranger")),
        "refused\n",
        "another CA's"
    );
    eventually("both are counted", || handshakes(&kennel, "failed") == 2.0);
}

#[test]
fn a_password_is_required_inside_tls() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let kennel = sidecar(&servers, &made.listener("", &format!(", auth_file = {:?}", made.path("users"))));
    assert_eq!(run_script("password", &kennel, &made.path("ca.pem"), &[]), "in\n");
}

#[test]
fn a_client_without_tls_is_closed_and_harms_no_other_client() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let kennel = sidecar(&servers, &made.listener("", ""));
    let mut held = python("hold", &kennel, &made.path("ca.pem"), &[]);
    let mut output =
        BufReader::new(held.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
    assert_eq!(output.next().as_deref(), Some("in"));
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(kennel.address()).expect("connect")).collect();
    for bytes in
        [&b"get a\r\n"[..], b"\x16\x03\x01\xff\xff", b"\x80\x0b", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"]
    {
        let mut stream = TcpStream::connect(kennel.address()).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out above zero");
        stream.write_all(bytes).expect("send");
        stream.shutdown(std::net::Shutdown::Write).expect("half-close");
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got);
        assert!(!got.windows(5).any(|w| w == b"ERROR"), "{}", got.escape_ascii());
    }
    eventually("they are counted", || handshakes(&kennel, "failed") == 4.0);
    assert_eq!(
        run_script("pymemcache", &kennel, &made.path("ca.pem"), &[]),
        "done\n",
        "beside 20 that say nothing"
    );
    let log = kennel.log();
    // One per worker, for 10 s.
    assert!((1..=2).contains(&log.matches("TLS handshake failed").count()), "{log}");
    drop(silent);
    eventually("only one client is connected", || {
        kennel.metrics().sum("kennel_client_connections", &[]) == 1.0
    });
    let (status, took) = kennel.terminate();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(output.next().as_deref(), Some("ended"), "closed, not cut off");
    assert!(held.wait().expect("its end").success());
}

#[test]
fn a_client_above_the_limit_is_closed_without_bytes_outside_tls() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]);
    let toml = toml.replacen("\"127.0.0.1:0\"", &made.listener("", ""), 1);
    let kennel = Kennel::start(&toml.replacen("workers = 2", "workers = 1\nmax_connections = 1", 1));
    // One that has completed its handshake: another one would give way to the second.
    let mut first = python("hold", &kennel, &made.path("ca.pem"), &[]);
    let mut output = BufReader::new(first.stdout.take().expect("a pipe")).lines();
    assert_eq!(output.next().expect("a line").expect("text"), "in");
    let mut second = TcpStream::connect(kennel.address()).expect("connect");
    second.set_read_timeout(Some(Duration::from_secs(5))).expect("a time-out above zero");
    let mut got = Vec::new();
    second.read_to_end(&mut got).expect("the end");
    assert_eq!(got, b"");
    first.kill().and_then(|()| first.wait()).expect("it ends");
}

#[test]
fn a_new_certificate_is_used_after_a_reload_and_no_connection_is_dropped() {
    let (made, servers) = (Certificates::new(), memcacheds(1));
    let toml = sidecar_toml(&addresses(&servers), &[raw("everything", "*")]);
    let toml = toml.replacen("\"127.0.0.1:0\"", &made.listener("", ""), 1);
    let kennel = Kennel::start(&toml);
    let expiry = || kennel.metrics().sum("kennel_tls_certificate_expiry_timestamp_seconds", &["server.pem"]);
    let days = |expiry: f64| {
        let output = Command::new("date").arg("+%s").output().expect("run date").stdout;
        let now: f64 = String::from_utf8_lossy(&output).trim().parse().expect("seconds");
        ((expiry - now) / 86_400.0).round()
    };
    assert_eq!(days(expiry()), 2.0);
    let mut held = python("hold", &kennel, &made.path("ca.pem"), &[]);
    let mut output =
        BufReader::new(held.stdout.take().expect("a pipe")).lines().map(|line| line.expect("a line"));
    assert_eq!(output.next().as_deref(), Some("in"));
    // A certificate without its key is refused, and the former one remains in use.
    let (cert, key) = (made.path("server.pem"), made.path("server.key"));
    let former = std::fs::read(&cert).expect("the certificate");
    made.make_for("client", Some("other"), 9);
    std::fs::copy(made.path("client.pem"), &cert).expect("copy");
    let (status, why) = kennel.reload(&toml);
    assert!(status == 422 && why.contains("is not the key of the certificate"), "{status} {why}");
    assert_eq!(run_script("versions", &kennel, &made.path("ca.pem"), &[]), "TLSv1.2 ended\nTLSv1.3 ended\n");
    assert_ne!(std::fs::read(&cert).expect("the certificate"), former);
    // With its key: another CA's.
    std::fs::copy(made.path("client.key"), &key).expect("copy");
    let (status, changes) = kennel.reload(&toml);
    let read_again = |what: &str, file: &str| format!("the {what} {file} was read again: it has changed\n");
    let expected = read_again("private key", &key) + &read_again("certificate", &cert);
    assert_eq!((status, changes), (200, expected));
    assert_eq!(days(expiry()), 9.0);
    assert_eq!(run_script("refused", &kennel, &made.path("ca.pem"), &[]), "refused\n");
    assert_eq!(
        run_script("versions", &kennel, &made.path("other.pem"), &[]),
        "TLSv1.2 ended\nTLSv1.3 ended\n"
    );
    assert_eq!(handshakes(&kennel, "done"), 5.0);
    eventually("only the first client is connected", || {
        kennel.metrics().sum("kennel_client_connections", &[]) == 1.0
    });
    let (status, _) = kennel.terminate();
    assert_eq!((status.code(), output.next().as_deref()), (Some(0), Some("ended")), "closed only now");
    assert!(held.wait().expect("its end").success());
}
