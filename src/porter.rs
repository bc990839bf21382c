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

use crate::auth::{Dialog, Step, Users, Verdict};
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
pub struct Terms {
    /// TLS, with these files.
    pub tls: Option<TlsFiles>,
    /// A user and a password out of this file, which is memcached's (`-Y`).
    pub auth_file: Option<PathBuf>,
}

/// Stands at a listener that asks for something.
#[derive(Debug)]
pub struct Porter {
    tls: Option<Acceptor>,
    users: Option<Users>,
}

/// A client's connection, whatever it is made of.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

impl Porter {
    /// Reads the files of these terms; `None` if they ask for nothing. The error is all that is wrong with the files.
    pub fn new(terms: &Terms) -> Result<Option<Arc<Porter>>, Vec<BadFile>> {
        let Terms { tls, auth_file } = terms;
        let tls = tls.as_ref().map(Acceptor::read).transpose();
        let users = auth_file.as_deref().map(Users::read).transpose();
        let path = auth_file.clone().unwrap_or_default();
        let users = users.map_err(|what| vec![BadFile { key: "auth_file", path, what }]);
        match (tls, users) {
            (Ok(None), Ok(None)) => Ok(None),
            (Ok(tls), Ok(users)) => Ok(Some(Arc::new(Porter { tls, users }))),
            (tls, users) => Err([tls.err(), users.err()].into_iter().flatten().flatten().collect()),
        }
    }

    /// Whether its clients speak TLS, and would not understand anything else.
    pub fn is_secret(&self) -> bool {
        self.tls.is_some()
    }

    /// Lets a client in: its connection, on which its first request is next. `None`: it has been hung up on, or `stop` said to
    /// finish.
    pub async fn admit<S: Stream + 'static>(
        &self,
        socket: S,
        from: Option<SocketAddr>,
        lodge: &Lodge,
        metrics: &WorkerMetrics,
        stop: &CancellationToken,
    ) -> Option<Box<dyn Stream>> {
        let mut socket: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                let shaken = stop.run_until_cancelled(lodge.shake_hands(tls, socket, metrics)).await?;
                match shaken {
                    Ok(stream) => Box::new(stream),
                    Err(error) => {
                        let from = show(from);
                        lodge.refused.say(|unsaid| warn!(%from, unsaid, "TLS handshake failed: {error}"));
                        return None;
                    }
                }
            }
        };
        let Some(users) = &self.users else { return Some(socket) };
        let mut introduction = Introduction { users, from, lodge, metrics };
        let named = timeout(INTRODUCTION, introduction.hear(&mut socket));
        match stop.run_until_cancelled(named).await {
            Some(Ok(Ok(Some(rest)))) => Some(Box::new(Resumed { rest, socket })),
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
#[derive(Debug, Default)]
pub struct Lodge {
    handshakes: Cell<usize>,
    refused: Seldom,
}

impl Lodge {
    async fn shake_hands<S: Stream + 'static>(
        &self,
        tls: &Acceptor,
        socket: S,
        metrics: &WorkerMetrics,
    ) -> io::Result<impl Stream + use<S>> {
        if self.handshakes.get() >= MAX_HANDSHAKES {
            metrics.handshake(TlsOutcome::Crowded);
            return Err(io::Error::other("too many at once"));
        }
        let _counted = Counted::new(&self.handshakes);
        let shaken = timeout(HANDSHAKE, tls.accept(socket)).await;
        metrics.handshake(match &shaken {
            Ok(Ok(_)) => TlsOutcome::Done,
            Ok(Err(_)) => TlsOutcome::Failed,
            Err(_) => TlsOutcome::TimedOut,
        });
        shaken.unwrap_or_else(|_| Err(io::Error::other(format!("not within {HANDSHAKE:?}"))))
    }
}

/// One of so many, for as long as it lives.
struct Counted<'a>(&'a Cell<usize>);

impl Counted<'_> {
    fn new(count: &Cell<usize>) -> Counted<'_> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Something that may happen many times a second, and is logged once in [`SAY_AGAIN`].
#[derive(Debug, Default)]
struct Seldom {
    said: Cell<Option<Instant>>,
    unsaid: Cell<u64>,
}

impl Seldom {
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
struct Introduction<'a> {
    users: &'a Users,
    from: Option<SocketAddr>,
    lodge: &'a Lodge,
    metrics: &'a WorkerMetrics,
}

impl Introduction<'_> {
    /// What the client has sent behind its password. `None`: it has gone, or is to be hung up on.
    async fn hear(&mut self, socket: &mut Box<dyn Stream>) -> io::Result<Option<BytesMut>> {
        let (mut input, mut dialog) = (BytesMut::new(), Dialog::default());
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
struct Resumed {
    rest: BytesMut,
    socket: Box<dyn Stream>,
}

impl AsyncRead for Resumed {
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

impl AsyncWrite for Resumed {
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
