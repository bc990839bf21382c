//! What a client must show before it is served: that it speaks TLS, and perhaps a certificate and a password.
//!
//! ```text
//!  socket ──TLS──▶ stream ──password──▶ session
//! ```
//!
//! A listener that asks for neither has no porter, and its clients go to their session as they come. Until a client is
//! let in it can only take up its own place among `max_connections`: everything else has a bound, and a time.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::auth::{Authentication, Step, Users, Verdict};
use crate::metrics::{AuthOutcome, TlsOutcome, WorkerMetrics};
use crate::tls::{Acceptor, BadFile, TlsFiles};

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How many handshakes one worker has in progress; the next client is hung up on.
const MAX_HANDSHAKES: usize = 1024;
/// How long a client may take to name itself, wrong attempts included.
const INTRODUCTION: Duration = Duration::from_secs(60);
/// How often refusals are logged.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// Room made for a read.
const READ_SIZE: usize = 4 * 1024;

/// What a listener asks of its clients. By default nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    /// TLS, with these files.
    pub tls: Option<TlsFiles>,
    /// A user and a password out of this file, which is memcached's (`-Y`).
    pub auth_file: Option<PathBuf>,
}

/// Stands at a listener that asks for something.
#[derive(Debug)]
pub struct Handshake {
    tls: Option<Acceptor>,
    users: Option<Users>,
}

/// A client's connection, whatever it is made of.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream for S {}

impl Handshake {
    /// Reads the files of these terms; `None` if they ask for nothing. The error is all that is wrong with the files.
    pub fn new(terms: &Requirements) -> Result<Option<Arc<Handshake>>, Vec<BadFile>> {
        let Requirements { tls, auth_file } = terms;
        let tls = tls.as_ref().map(Acceptor::read).transpose();
        let users = auth_file.as_deref().map(Users::read).transpose();
        let path = auth_file.clone().unwrap_or_default();
        let users = users.map_err(|what| vec![BadFile { key: "auth_file", path, what }]);
        match (tls, users) {
            (Ok(None), Ok(None)) => Ok(None),
            (Ok(tls), Ok(users)) => Ok(Some(Arc::new(Handshake { tls, users }))),
            (tls, users) => Err([tls.err(), users.err()].into_iter().flatten().flatten().collect()),
        }
    }

    /// Whether its clients speak TLS, and would not understand anything else.
    pub fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Lets a client in: its connection, on which its first request is next. `None`: it has been hung up on, or `stop` said to
    /// finish.
    pub async fn accept<S: ClientStream + 'static>(
        &self,
        socket: S,
        from: Option<SocketAddr>,
        lodge: &HandshakeLimits,
        metrics: &WorkerMetrics,
        stop: &CancellationToken,
    ) -> Option<Box<dyn ClientStream>> {
        let mut socket: Box<dyn ClientStream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let shaken = stop.run_until_cancelled(lodge.shake_hands(tls, socket, metrics)).await?;
                match shaken {
                    Ok(stream) => Box::new(stream),
                    // A probe that connects and goes is counted, and no news.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
                    Err(error) => {
                        let from = show(from);
                        lodge.refused.say(|unsaid| warn!(%from, unsaid, "TLS handshake failed: {error}"));
                        return None;
                    }
                }
            }
        };
        let Some(users) = &self.users else { return Some(socket) };
        let mut introduction = AuthenticatingStream { users, from, lodge, metrics };
        let named = timeout(lodge.introduction, introduction.hear(&mut socket));
        match stop.run_until_cancelled(named).await {
            Some(Ok(Ok(Some(rest)))) => Some(Box::new(PrefixedStream { rest, socket })),
            _ => {
                // Over TLS the end has to be said. The other side may have gone already.
                let _ = socket.shutdown().await;
                None
            }
        }
    }
}

fn show(from: Option<SocketAddr>) -> String {
    from.map_or_else(|| "a unix socket".to_owned(), |from| from.to_string())
}

/// What the porters of one worker share.
#[derive(Debug)]
pub struct HandshakeLimits {
    handshake: Duration,
    max_handshakes: usize,
    introduction: Duration,
    handshakes: Cell<usize>,
    refused: RateLimitedLog,
}

impl Default for HandshakeLimits {
    fn default() -> HandshakeLimits {
        HandshakeLimits {
            handshake: HANDSHAKE,
            max_handshakes: MAX_HANDSHAKES,
            introduction: INTRODUCTION,
            handshakes: Cell::new(0),
            refused: RateLimitedLog::default(),
        }
    }
}

impl HandshakeLimits {
    async fn shake_hands<S: ClientStream + 'static>(
        &self,
        tls: &Acceptor,
        socket: S,
        metrics: &WorkerMetrics,
    ) -> io::Result<impl ClientStream + use<S>> {
        if self.handshakes.get() >= self.max_handshakes {
            metrics.handshake(TlsOutcome::Crowded);
            return Err(io::Error::other("too many at once"));
        }
        let _counted = Permit::new(&self.handshakes);
        let shaken = timeout(self.handshake, tls.accept(socket)).await;
        metrics.handshake(match &shaken {
            Ok(Ok(_)) => TlsOutcome::Done,
            Ok(Err(_)) => TlsOutcome::Failed,
            Err(_) => TlsOutcome::TimedOut,
        });
        shaken.unwrap_or_else(|_| Err(io::Error::other(format!("not within {:?}", self.handshake))))
    }
}

/// One of so many, for as long as it lives.
struct Permit<'a>(&'a Cell<usize>);

impl Permit<'_> {
    fn new(count: &Cell<usize>) -> Permit<'_> {
        count.set(count.get() + 1);
        Permit(count)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Something that may happen many times a second, and is logged once in [`SAY_AGAIN`].
#[derive(Debug, Default)]
struct RateLimitedLog {
    said: Cell<Option<Instant>>,
    unsaid: Cell<u64>,
}

impl RateLimitedLog {
    /// Calls `log` with how many were not logged since it was called last, unless that is too short ago.
    fn say(&self, log: impl FnOnce(u64)) {
        if self.said.get().is_some_and(|said| said.elapsed() < SAY_AGAIN) {
            self.unsaid.set(self.unsaid.get() + 1);
            return;
        }
        self.said.set(Some(Instant::now()));
        log(self.unsaid.take());
    }
}

/// A client that has still to say who it is.
struct AuthenticatingStream<'a> {
    users: &'a Users,
    from: Option<SocketAddr>,
    lodge: &'a HandshakeLimits,
    metrics: &'a WorkerMetrics,
}

impl AuthenticatingStream<'_> {
    /// What the client has sent behind its password. `None`: it has gone, or is to be hung up on.
    async fn hear(&mut self, socket: &mut Box<dyn ClientStream>) -> io::Result<Option<BytesMut>> {
        let (mut input, mut dialog) = (BytesMut::new(), Authentication::default());
        loop {
            match dialog.step(self.users, &mut input) {
                Step::Close => return Ok(None),
                Step::Say(verdict, line) => {
                    self.count(verdict);
                    socket.write_all(line).await?;
                    socket.flush().await?;
                    self.metrics.bytes_written(line.len());
                    if verdict == Verdict::Accepted {
                        return Ok(Some(input));
                    }
                }
                Step::More => {
                    input.reserve(READ_SIZE);
                    match socket.read_buf(&mut input).await? {
                        0 => return Ok(None),
                        read => self.metrics.bytes_read(read),
                    }
                }
            }
        }
    }

    fn count(&self, verdict: Verdict) {
        let outcome = match verdict {
            Verdict::Accepted => AuthOutcome::Accepted,
            Verdict::Wrong => AuthOutcome::Wrong,
            Verdict::Malformed => AuthOutcome::Malformed,
            Verdict::Missing => AuthOutcome::Missing,
        };
        self.metrics.authentication(outcome);
        if verdict == Verdict::Wrong {
            // Not who it said it is: people type passwords where a name belongs.
            let from = show(self.from);
            self.lodge.refused.say(|unsaid| warn!(%from, unsaid, "a client's user or password is wrong"));
        }
    }
}

/// A connection of which something has been read already.
struct PrefixedStream {
    rest: BytesMut,
    socket: Box<dyn ClientStream>,
}

impl AsyncRead for PrefixedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            return Pin::new(&mut self.socket).poll_read(cx, into);
        }
        let length = self.rest.len().min(into.remaining());
        into.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    use tokio::io::{DuplexStream, duplex};

    use crate::metrics::Metrics;

    /// A directory with users, and a certificate and key of openssl's.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Files {
            let files =
                Files(std::env::temp_dir().join(format!("kennel-porter-{}-{test}", std::process::id())));
            fs::create_dir_all(&files.0).unwrap();
            fs::write(files.0.join("users"), "user:pass\n").unwrap();
            let mut command = Command::new("openssl");
            command.args([
                "req",
                "-x509",
                "-nodes",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ]);
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

    struct Hall {
        lodge: HandshakeLimits,
        metrics: Metrics,
        stop: CancellationToken,
    }

    impl Hall {
        fn new() -> Hall {
            let metrics = Metrics::new(vec![], vec![], 1);
            Hall { lodge: HandshakeLimits::default(), metrics, stop: CancellationToken::new() }
        }

        async fn accept(&self, terms: &Requirements, socket: DuplexStream) -> Option<Box<dyn ClientStream>> {
            let porter = Handshake::new(terms).unwrap().expect("terms that ask for something");
            porter.accept(socket, None, &self.lodge, &self.metrics.worker(0), &self.stop).await
        }

        fn counted(&self, series: &str) -> bool {
            self.metrics.render().contains(series)
        }
    }

    #[test]
    fn a_listener_that_asks_for_nothing_has_no_porter() {
        assert!(Handshake::new(&Requirements::default()).unwrap().is_none());
    }

    #[test]
    fn every_file_that_cannot_be_used_is_told_of() {
        let nowhere = |name: &str| PathBuf::from(format!("/nowhere/{name}"));
        let tls = TlsFiles { cert: nowhere("c"), key: nowhere("k"), client_ca: Some(nowhere("ca")) };
        let bad =
            Handshake::new(&Requirements { tls: Some(tls), auth_file: Some(nowhere("a")) }).unwrap_err();
        let said: Vec<String> = bad.iter().map(BadFile::to_string).collect();
        assert_eq!(
            bad.iter().map(|bad| bad.key).collect::<Vec<_>>(),
            ["cert", "key", "client_ca", "auth_file"]
        );
        assert!(said[0].starts_with("cert (\"/nowhere/c\") cannot be read: No such file"), "{said:?}");
        let endless = || PathBuf::from("/dev/zero");
        let tls = TlsFiles { cert: endless(), key: endless(), client_ca: Some(endless()) };
        let bad = Handshake::new(&Requirements { tls: Some(tls), auth_file: None }).unwrap_err();
        assert_eq!(bad.len(), 3);
        assert!(bad.iter().all(|bad| bad.what == "is larger than 1 MiB: is it the right file?"), "{bad:?}");
    }

    #[test]
    fn files_that_are_something_else_are_named_and_not_quoted() {
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
                "cert has no CERTIFICATE in PEM",
                "key has no PRIVATE KEY in PEM that is without a password",
                "client_ca has no CERTIFICATE in PEM",
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
        let said = what("junk", "key", None);
        assert!(said[0].starts_with("key does not fit the certificate in cert: "), "{said:?}");
        let said = what("cert", "key", Some("junk"));
        assert!(said[0].starts_with("client_ca has a certificate that is unusable: "), "{said:?}");
    }

    #[tokio::test]
    async fn who_gives_a_password_is_handed_on_with_what_it_sent_behind_it() {
        let files = Files::new("in");
        let hall = Hall::new();
        let (mut client, ours) = duplex(64);
        let sends = async {
            client.write_all(b"set a 0 0 9\r\nuser pass\r\nget a\r\n").await.unwrap();
            client.write_all(b"get b\r\n").await.unwrap();
            let mut said = [0; 8];
            client.read_exact(&mut said).await.unwrap();
            assert_eq!(&said, b"STORED\r\n");
        };
        let terms = files.users();
        let (admitted, ()) = tokio::join!(hall.accept(&terms, ours), sends);
        let mut socket = admitted.expect("let in");
        let mut requests = [0; 14];
        // Small reads, so that what was read before is taken in several.
        for part in requests.chunks_mut(3) {
            socket.read_exact(part).await.unwrap();
        }
        assert_eq!(&requests, b"get a\r\nget b\r\n");
        assert!(hall.counted("kennel_authentications_total{outcome=\"accepted\"} 1"));
    }

    #[tokio::test]
    async fn who_does_not_give_a_password_in_time_is_hung_up_on() {
        let files = Files::new("late");
        let mut hall = Hall::new();
        hall.lodge.introduction = Duration::from_millis(20);
        let (mut client, ours) = duplex(64);
        client.write_all(b"set a 0 0 9\r\nuser").await.unwrap();
        assert!(hall.accept(&files.users(), ours).await.is_none());
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        assert_eq!(said, b"");
    }

    #[tokio::test]
    async fn a_handshake_that_takes_too_long_is_given_up_and_counted() {
        let files = Files::new("handshake");
        let mut hall = Hall::new();
        hall.lodge.handshake = Duration::from_millis(20);
        let (_client, ours) = duplex(64);
        assert!(hall.accept(&files.tls(), ours).await.is_none());
        assert!(hall.counted("kennel_tls_handshakes_total{outcome=\"timed_out\"} 1"));
        assert_eq!(hall.lodge.handshakes.get(), 0);
    }

    #[tokio::test]
    async fn a_handshake_too_many_is_not_begun_and_there_is_room_again_when_one_has_ended() {
        let files = Files::new("crowd");
        let (mut hall, terms) = (Hall::new(), files.tls());
        hall.lodge.max_handshakes = 1;
        let ((first, ours), (_second, other)) = (duplex(64), duplex(64));
        let turned_away = async {
            assert!(hall.accept(&terms, other).await.is_none());
            assert!(hall.counted("kennel_tls_handshakes_total{outcome=\"crowded\"} 1"));
            drop(first);
        };
        let (admitted, ()) = tokio::join!(hall.accept(&terms, ours), turned_away);
        assert!(admitted.is_none());
        assert!(hall.counted("kennel_tls_handshakes_total{outcome=\"failed\"} 1"));
        assert_eq!(hall.lodge.handshakes.get(), 0);
    }

    #[tokio::test]
    async fn told_to_stop_the_porter_waits_for_nobody() {
        let files = Files::new("stop");
        for terms in [files.users(), files.tls()] {
            let hall = Hall::new();
            let (_client, ours) = duplex(64);
            let stops = async { hall.stop.cancel() };
            let (admitted, ()) = tokio::join!(hall.accept(&terms, ours), stops);
            assert!(admitted.is_none());
        }
    }

    #[test]
    fn what_is_not_logged_is_told_when_something_is_again() {
        let seldom = RateLimitedLog::default();
        let told = Cell::new(None);
        seldom.say(|unsaid| told.set(Some(unsaid)));
        assert_eq!(told.take(), Some(0));
        for _ in 0..3 {
            seldom.say(|unsaid| told.set(Some(unsaid)));
        }
        assert_eq!(told.take(), None);
        seldom.said.set(None);
        seldom.say(|unsaid| told.set(Some(unsaid)));
        assert_eq!(told.take(), Some(3));
    }
}
