use super::*;
use std::cell::Cell;
use std::fs;
use std::process::Command;
use std::time::Duration;

use tokio::io::{DuplexStream, duplex};

use crate::metrics::Metrics;
use crate::upstream::memory_budget::MemoryBudget;

/// A directory with a password file, and a certificate and key made by openssl.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Files {
        let files =
            Files(std::env::temp_dir().join(format!("kennel-handshake-{}-{test}", std::process::id())));
        fs::create_dir_all(&files.0).unwrap();
        fs::write(files.0.join("users"), "user:pass\n").unwrap();
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        command.args(["-subj", "/CN=kennel", "-keyout", "key", "-out", "cert"]).current_dir(&files.0);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        files
    }

    fn users(&self) -> Requirements {
        Requirements { tls: None, auth_file: Some(self.0.join("users")) }
    }

    fn tls(&self) -> Requirements {
        let (cert, key) = (self.0.join("cert"), self.0.join("key"));
        Requirements { tls: Some(TlsFiles { cert, key, client_ca: None }), auth_file: None }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl ClientStream for DuplexStream {}

struct Listener {
    limits: HandshakeLimits,
    metrics: Metrics,
    stop: CancellationToken,
    max_buffered: usize,
}

impl Listener {
    fn new() -> Listener {
        let metrics = Metrics::new(vec![], vec![], 1);
        Listener {
            limits: HandshakeLimits::default(),
            metrics,
            stop: CancellationToken::new(),
            max_buffered: 1 << 20,
        }
    }

    async fn accept(
        &self,
        requirements: &Requirements,
        socket: DuplexStream,
    ) -> Option<Box<dyn ClientStream>> {
        let handshake = Handshake::new(requirements).unwrap().expect("it requires something");
        let metrics = self.metrics.worker(0);
        let budget = MemoryBudget::new(self.max_buffered, self.metrics.worker(0));
        let memory = PendingReplies::for_client(&budget, 1);
        let accepted = handshake.accept(socket, None, &self.limits, &metrics, &memory, &self.stop).await;
        accepted.map(|accepted| accepted.stream)
    }

    fn counted(&self, series: &str) -> bool {
        self.metrics.render().contains(series)
    }
}

#[test]
fn a_listener_without_requirements_has_no_handshake() {
    assert!(Handshake::new(&Requirements::default()).unwrap().is_none());
}

#[test]
fn every_file_that_cannot_be_used_is_listed() {
    let nowhere = |name: &str| PathBuf::from(format!("/nowhere/{name}"));
    let tls = TlsFiles { cert: nowhere("c"), key: nowhere("k"), client_ca: Some(nowhere("ca")) };
    let bad = Handshake::new(&Requirements { tls: Some(tls), auth_file: Some(nowhere("a")) }).unwrap_err();
    let errors: Vec<String> = bad.iter().map(BadFile::to_string).collect();
    assert_eq!(bad.iter().map(|bad| bad.key).collect::<Vec<_>>(), ["cert", "key", "client_ca", "auth_file"]);
    assert!(errors[0].starts_with("cert (\"/nowhere/c\") cannot be read: No such file"), "{errors:?}");
    let endless = || PathBuf::from("/dev/zero");
    let tls = TlsFiles { cert: endless(), key: endless(), client_ca: Some(endless()) };
    let bad = Handshake::new(&Requirements { tls: Some(tls), auth_file: None }).unwrap_err();
    assert_eq!(bad.len(), 3);
    assert!(bad.iter().all(|bad| bad.what == "is larger than 1 MiB: is it the right file?"), "{bad:?}");
}

#[test]
fn files_with_other_contents_are_named_and_not_quoted() {
    let files = Files::new("else");
    let what = |cert: &str, key: &str, ca: Option<&str>| {
        let path = |name: &str| files.0.join(name);
        let tls = TlsFiles { cert: path(cert), key: path(key), client_ca: ca.map(path) };
        let bad = Handshake::new(&Requirements { tls: Some(tls), auth_file: None }).unwrap_err();
        bad.into_iter().map(|bad| format!("{} {}", bad.key, bad.what)).collect::<Vec<_>>()
    };
    assert_eq!(
        what("users", "users", Some("users")),
        [
            "cert has no CERTIFICATE section in PEM",
            "key has no unencrypted PRIVATE KEY section in PEM",
            "client_ca has no CERTIFICATE section in PEM",
        ]
    );
    assert_eq!(what("key", "cert", None).len(), 2);
    let text = fs::read_to_string(files.0.join("key")).unwrap();
    fs::write(files.0.join("cut"), &text[..text.len() - 40]).unwrap();
    assert_eq!(what("cert", "cut", None), ["key ends in the middle of a PEM section"]);
    let other = Files::new("another");
    fs::copy(other.0.join("key"), files.0.join("other")).unwrap();
    assert_eq!(what("cert", "other", None), ["key is not the key of the certificate in cert"]);
    fs::write(files.0.join("junk"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        .unwrap();
    let errors = what("junk", "key", None);
    assert!(errors[0].starts_with("key cannot be used with the certificate in cert: "), "{errors:?}");
    let errors = what("cert", "key", Some("junk"));
    assert!(errors[0].starts_with("client_ca has a certificate that cannot be used: "), "{errors:?}");
}

#[tokio::test]
async fn the_stream_of_an_authenticated_client_begins_with_the_bytes_behind_the_password() {
    let files = Files::new("in");
    let listener = Listener::new();
    let (mut client, ours) = duplex(64);
    let sends = async {
        client.write_all(b"set a 0 0 9\r\nuser pass\r\nget a\r\n").await.unwrap();
        client.write_all(b"get b\r\n").await.unwrap();
        let mut reply = [0; 8];
        client.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"STORED\r\n");
    };
    let requirements = files.users();
    let (accepted, ()) = tokio::join!(listener.accept(&requirements, ours), sends);
    let mut socket = accepted.expect("accepted");
    let mut requests = [0; 14];
    // The reads are smaller than the prefix.
    for part in requests.chunks_mut(3) {
        socket.read_exact(part).await.unwrap();
    }
    assert_eq!(&requests, b"get a\r\nget b\r\n");
    assert!(listener.counted("kennel_authentications_total{outcome=\"accepted\"} 1"));
}

#[tokio::test]
async fn a_client_that_sends_no_password_in_time_is_disconnected() {
    let files = Files::new("late");
    let mut listener = Listener::new();
    listener.limits.auth_timeout = Duration::from_millis(20);
    let (mut client, ours) = duplex(64);
    client.write_all(b"set a 0 0 9\r\nuser").await.unwrap();
    assert!(listener.accept(&files.users(), ours).await.is_none());
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).await.unwrap();
    assert_eq!(replies, b"");
}

/// The text of a wrong password, and the packet.
fn guesses() -> [Vec<u8>; 2] {
    let mut packet = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, 15];
    packet.extend([0; 12]);
    packet.extend(b"PLAIN\0user\0pasX");
    [b"set a 0 0 9\r\nuser pasX\r\n".to_vec(), packet]
}

#[tokio::test]
async fn each_wrong_password_is_answered_later_than_the_one_before_and_the_last_ends_the_connection() {
    let files = Files::new("guesses");
    for guess in guesses() {
        let mut listener = Listener::new();
        let delays = [1, 2, 3, 4, 5, 6].map(|wrong| listener.limits.delay(wrong).as_millis());
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 4000]);
        listener.limits.first_delay = Duration::from_millis(1);
        let (mut client, ours) = duplex(4096);
        let requirements = files.users();
        let guesses = async {
            client.write_all(&guess.repeat(20)).await.unwrap();
            let mut replies = Vec::new();
            client.read_to_end(&mut replies).await.unwrap();
        };
        let began = Instant::now();
        let (accepted, ()) = tokio::join!(listener.accept(&requirements, ours), guesses);
        assert!(accepted.is_none());
        assert!(began.elapsed() >= Duration::from_millis(31), "each reply is later than the one before");
        assert!(listener.counted("kennel_authentications_total{outcome=\"wrong\"} 5"));
        assert!(listener.counted("kennel_authentications_total{outcome=\"cut_off\"} 1"));
    }
}

#[tokio::test]
async fn a_client_has_ten_seconds_and_few_commands_to_authenticate() {
    let files = Files::new("ten-seconds");
    let (mut listener, requirements) = (Listener::new(), files.users());
    assert_eq!(listener.limits.auth_timeout, Duration::from_secs(10));
    listener.limits.auth_timeout = Duration::from_millis(20);
    let (_client, ours) = duplex(64);
    assert!(listener.accept(&requirements, ours).await.is_none());
    assert!(listener.counted("kennel_authentications_total{outcome=\"timed_out\"} 1"));
    listener.limits.auth_timeout = Duration::from_secs(60);
    let (mut client, ours) = duplex(64 * 1024);
    client.write_all(&b"version\r\n".repeat(100)).await.unwrap();
    assert!(listener.accept(&requirements, ours).await.is_none());
    let mut replies = String::new();
    client.read_to_string(&mut replies).await.unwrap();
    assert_eq!(replies.lines().count(), limits::MAX_ATTEMPTS as usize);
}

#[tokio::test]
async fn what_a_client_sends_before_it_has_authenticated_counts_towards_the_budget() {
    let files = Files::new("budget");
    let listener = Listener { max_buffered: 8 * 1024, ..Listener::new() };
    let (mut client, ours) = duplex(64 * 1024);
    client.write_all(b"set a 0 0 16000\r\n").await.unwrap();
    client.write_all(&[b'x'; 15_000]).await.unwrap();
    assert!(listener.accept(&files.users(), ours).await.is_none());
    assert!(listener.counted("kennel_limit_reached_total{limit=\"buffered\"} 1"));
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_aborted_and_counted() {
    let files = Files::new("handshake");
    let mut listener = Listener::new();
    listener.limits.handshake_timeout = Duration::from_millis(20);
    let (_client, ours) = duplex(64);
    assert!(listener.accept(&files.tls(), ours).await.is_none());
    assert!(listener.counted("kennel_tls_handshakes_total{outcome=\"timed_out\"} 1"));
    assert_eq!(listener.limits.in_progress.get(), 0);
}

#[tokio::test]
async fn a_handshake_beyond_the_limit_is_refused_until_another_has_ended() {
    let files = Files::new("many-clients");
    let (mut listener, requirements) = (Listener::new(), files.tls());
    listener.limits.max_handshakes = 1;
    let ((first, ours), (_second, other)) = (duplex(64), duplex(64));
    let refused = async {
        assert!(listener.accept(&requirements, other).await.is_none());
        assert!(listener.counted("kennel_tls_handshakes_total{outcome=\"too_many\"} 1"));
        drop(first);
    };
    let (accepted, ()) = tokio::join!(listener.accept(&requirements, ours), refused);
    assert!(accepted.is_none());
    assert!(listener.counted("kennel_tls_handshakes_total{outcome=\"failed\"} 1"));
    assert_eq!(listener.limits.in_progress.get(), 0);
}

#[tokio::test]
async fn a_handshake_ends_at_once_when_the_worker_stops() {
    let files = Files::new("stop");
    for requirements in [files.users(), files.tls()] {
        let listener = Listener::new();
        let (_client, ours) = duplex(64);
        let stops = async { listener.stop.cancel() };
        let (accepted, ()) = tokio::join!(listener.accept(&requirements, ours), stops);
        assert!(accepted.is_none());
    }
}

#[test]
fn the_log_reports_how_many_messages_were_suppressed() {
    let log = RateLimitedLog::default();
    let logged = Cell::new(None);
    log.log(|suppressed| logged.set(Some(suppressed)));
    assert_eq!(logged.take(), Some(0));
    for _ in 0..3 {
        log.log(|suppressed| logged.set(Some(suppressed)));
    }
    assert_eq!(logged.take(), None);
    log.last.set(None);
    log.log(|suppressed| logged.set(Some(suppressed)));
    assert_eq!(logged.take(), Some(3));
}
