//! What precedes a client's first request, if the listener requires it: the TLS handshake and the password.
//!
//! ```text
//!  socket ──TLS──▶ stream ──password──▶ session
//! ```
//!
//! A listener that requires neither has no [`Handshake`], and its clients begin their session at once. Until a client is
//! authenticated, it takes one of a quarter of `max_connections`, and gives way to the next; what it sends counts towards
//! `max_buffered`; everything else that it takes has a limit and a timeout (`limits`). The session receives a `stream`.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::auth::{Authentication, Sasl, Step, Users, Verdict};
use crate::metrics::{AuthOutcome, TlsOutcome, WorkerMetrics};
use crate::pem::BadFile;
use crate::protocol::binary::parse::{Access, Command, Limits, Parsed, Request, parse};
use crate::protocol::binary::reply::{put_error, put_text};
use crate::protocol::binary::{self, Status};
use crate::tls::{Acceptor, TlsConnection, TlsFiles};
use crate::upstream::pending_replies::PendingReplies;
use limits::MAX_ATTEMPTS;
use stream::PrefixedStream;

mod limits;
mod stream;
#[cfg(test)]
mod tests;

pub use limits::HandshakeLimits;
pub(crate) use limits::{MAX_WRONG, RateLimitedLog};
pub use stream::{ClientStream, PlainSocket};
pub(crate) use stream::{SimulatedClient, log_name};

/// The buffer space for a read, in bytes.
const READ_SIZE: usize = 1024;

/// What a listener requires of its clients. The default is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    /// TLS, with these files.
    pub tls: Option<TlsFiles>,
    /// A user and password of this file, which has the format of memcached's `-Y`.
    pub auth_file: Option<PathBuf>,
}

impl Requirements {
    /// The files that it names.
    pub fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
        tls.chain([self.auth_file.as_ref()]).flatten().cloned().collect()
    }
}

/// Authenticates the clients of one listener.
#[derive(Debug)]
pub struct Handshake {
    tls: Option<Acceptor>,
    users: Option<Arc<Users>>,
}

/// A client whose first request is read next.
pub struct Accepted {
    /// The client's connection, decrypted if it uses TLS.
    pub stream: Box<dyn ClientStream>,
    /// `Some` if it speaks the binary protocol and has authenticated.
    pub sasl: Option<Sasl>,
}

impl Handshake {
    /// Loads the files of `requirements`; `None` if they require nothing. The error lists every file that cannot be used.
    pub fn new(requirements: &Requirements) -> Result<Option<Arc<Handshake>>, Vec<BadFile>> {
        let Requirements { tls, auth_file } = requirements;
        let tls = tls.as_ref().map(Acceptor::read).transpose();
        let users = auth_file.as_deref().map(Users::read).transpose();
        let path = auth_file.clone().unwrap_or_default();
        let users = users.map_err(|what| vec![BadFile { key: "auth_file", path, what }]);
        match (tls, users) {
            (Ok(None), Ok(None)) => Ok(None),
            (Ok(tls), Ok(users)) => Ok(Some(Arc::new(Handshake { tls, users: users.map(Arc::new) }))),
            (tls, users) => Err([tls.err(), users.err()].into_iter().flatten().flatten().collect()),
        }
    }

    /// The files of the certificate and of the CAs for clients, and when they no longer serve, in seconds of Unix time.
    pub fn certificates(&self) -> Vec<(String, i64)> {
        let tls = self.tls.iter();
        let files = tls.flat_map(|tls| tls.certificate().into_iter().chain(tls.client_ca()));
        files.map(|(file, expires)| (file.display().to_string(), expires)).collect()
    }

    /// The file of the certificate, and when the first certificate in it expires, in seconds of Unix time.
    pub fn certificate(&self) -> Option<(String, i64)> {
        let (file, expires) = self.tls.as_ref()?.certificate()?;
        Some((file.display().to_string(), expires))
    }

    /// Whether clients use TLS, so that they cannot read a plain-text error.
    pub fn uses_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The state of a client of the binary protocol that another process has authenticated. `None`: no password is required.
    pub fn adopted_sasl(&self) -> Option<Sasl> {
        self.users.as_ref().map(|users| Sasl::authenticated(Arc::clone(users)))
    }

    /// Authenticates a client, whose memory is counted by `memory`. Returns its connection, from which the first request is
    /// read next. `None`: authentication failed and the connection is closed, or `stop` was cancelled.
    pub async fn accept<S: ClientStream + 'static>(
        &self,
        socket: S,
        from: Option<SocketAddr>,
        limits: &HandshakeLimits,
        metrics: &WorkerMetrics,
        memory: &PendingReplies,
        stop: &CancellationToken,
    ) -> Option<Accepted> {
        let until = Instant::now() + limits.auth_timeout;
        let mut socket: Box<dyn ClientStream> = match &self.tls {
            None => Box::new(socket),
            Some(tls) => {
                match stop.run_until_cancelled(tls_handshake(tls, socket, limits, metrics)).await? {
                    Ok(stream) => Box::new(stream),
                    // A port probe connects and disconnects. It is counted, but not logged.
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return None,
                    Err(error) => {
                        let from = log_name(from);
                        limits
                            .failures
                            .log(|suppressed| warn!(%from, suppressed, "TLS handshake failed: {error}"));
                        return None;
                    }
                }
            }
        };
        let Some(users) = &self.users else { return Some(Accepted { stream: socket, sasl: None }) };
        let client = UnauthenticatedClient { users, from, limits, metrics, memory };
        let authentication = timeout_at(until, client.authenticate(&mut socket));
        match stop.run_until_cancelled(authentication).await {
            Some(Ok(Ok(Some((prefix, sasl))))) => {
                Some(Accepted { stream: Box::new(PrefixedStream { prefix, socket }), sasl })
            }
            ended => {
                if matches!(ended, Some(Err(_))) {
                    metrics.authentication(AuthOutcome::TimedOut);
                }
                // TLS requires a close_notify. This fails if the client has disconnected.
                let _ = socket.shutdown().await;
                None
            }
        }
    }
}

/// Another process could not go on with it: it lacks the keys.
impl<S: AsyncRead + AsyncWrite + Unpin> ClientStream for TlsConnection<S> {}

async fn tls_handshake<S: ClientStream + 'static>(
    tls: &Acceptor,
    socket: S,
    limits: &HandshakeLimits,
    metrics: &WorkerMetrics,
) -> io::Result<impl ClientStream + use<S>> {
    let Some(_permit) = limits.try_begin() else {
        metrics.handshake(TlsOutcome::TooMany);
        return Err(io::Error::other("too many handshakes in progress"));
    };
    let accepted = timeout(limits.handshake_timeout, tls.accept(socket)).await;
    metrics.handshake(match &accepted {
        Ok(Ok(_)) => TlsOutcome::Done,
        Ok(Err(_)) => TlsOutcome::Failed,
        Err(_) => TlsOutcome::TimedOut,
    });
    accepted
        .unwrap_or_else(|_| Err(io::Error::other(format!("timeout after {:?}", limits.handshake_timeout))))
}

/// A client that has not sent a valid password yet.
struct UnauthenticatedClient<'a> {
    users: &'a Arc<Users>,
    from: Option<SocketAddr>,
    limits: &'a HandshakeLimits,
    metrics: &'a WorkerMetrics,
    memory: &'a PendingReplies,
}

impl UnauthenticatedClient<'_> {
    /// Reads and answers commands until one has a valid password. Returns the bytes that the client has sent after it, and what SASL
    /// knows of the client if it speaks the binary protocol. `None`: the client has disconnected, or its connection must be closed.
    async fn authenticate(
        &self,
        socket: &mut Box<dyn ClientStream>,
    ) -> io::Result<Option<(BytesMut, Option<Sasl>)>> {
        let mut input = BytesMut::new();
        if !self.read(socket, &mut input, READ_SIZE).await? {
            return Ok(None);
        }
        if input[0] == binary::REQUEST {
            return self.authenticate_binary(socket, input).await;
        }
        let (mut authentication, mut attempts) = (Authentication::default(), Attempts::default());
        loop {
            match authentication.step(self.users, &mut input) {
                Step::Close => return Ok(None),
                Step::Reply(verdict, line) => {
                    let goes_on = self.count(verdict, &mut attempts).await;
                    socket.write_all(line).await?;
                    socket.flush().await?;
                    self.metrics.bytes_written(line.len());
                    if verdict == Verdict::Accepted {
                        return Ok(Some((input, None)));
                    }
                    if !goes_on {
                        return Ok(None);
                    }
                }
                Step::Read => {
                    if !self.read(socket, &mut input, READ_SIZE).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The same for a client of the binary protocol. `input`: what it has sent so far.
    async fn authenticate_binary(
        &self,
        socket: &mut Box<dyn ClientStream>,
        mut input: BytesMut,
    ) -> io::Result<Option<(BytesMut, Option<Sasl>)>> {
        let (mut sasl, mut attempts) = (Sasl::new(Arc::clone(self.users)), Attempts::default());
        // Only messages of SASL have a body here, and theirs have a limit of their own.
        let limits = Limits { max_value: 0, access: sasl.access() };
        let mut skip = 0;
        loop {
            let skipped = input.len().min(skip);
            input.advance(skipped);
            skip -= skipped;
            if input.is_empty() {
                if !self.read(socket, &mut input, READ_SIZE).await? {
                    return Ok(None);
                }
                continue;
            }
            let mut reply = BytesMut::new();
            let (consumed, closes) = match parse(&input, &limits) {
                Parsed::NoPacket => return Ok(None),
                Parsed::Incomplete { at_least } => {
                    if !self.read(socket, &mut input, at_least.max(READ_SIZE)).await? {
                        return Ok(None);
                    }
                    continue;
                }
                Parsed::Request { request: Request { head, command: Command::Sasl(message) }, consumed } => {
                    let answer = sasl.answer(&message);
                    let goes_on = match answer.verdict {
                        Some(verdict) => self.count(verdict, &mut attempts).await,
                        None => attempts.add(),
                    };
                    put_text(head, answer.status, answer.text, &mut reply);
                    (consumed, !goes_on)
                }
                // Before the password, the parser accepts no other.
                Parsed::Request { request: Request { head, .. }, consumed } => {
                    put_text(head, Status::Success, binary::VERSION, &mut reply);
                    (consumed, !attempts.add())
                }
                Parsed::Refused(refused) => {
                    let goes_on = match refused.status {
                        Status::AuthError => self.count(Verdict::Missing, &mut attempts).await,
                        _ => attempts.add(),
                    };
                    put_error(refused.head, refused.status, &mut reply);
                    skip = usize::try_from(refused.skip_data).unwrap_or(usize::MAX);
                    (refused.consumed, refused.close || !goes_on)
                }
            };
            input.advance(consumed);
            socket.write_all(&reply).await?;
            socket.flush().await?;
            self.metrics.bytes_written(reply.len());
            if closes {
                return Ok(None);
            }
            if sasl.access() == Access::Authenticated {
                return Ok(Some((input, Some(sasl))));
            }
        }
    }

    /// Reads at most about `room` bytes. Returns false if the client has disconnected, or must be because all clients together hold
    /// too much and this one holds most.
    async fn read(
        &self,
        socket: &mut Box<dyn ClientStream>,
        input: &mut BytesMut,
        room: usize,
    ) -> io::Result<bool> {
        input.reserve(room);
        let read = {
            let mut reading = pin!(socket.read_buf(input));
            let read = poll_fn(|cx| {
                self.memory.wake_on_next(cx);
                match self.memory.closing() {
                    Some(_) => Poll::Ready(Ok(0)),
                    None => reading.as_mut().poll(cx),
                }
            });
            read.await?
        };
        self.memory.set_buffered(input.capacity());
        self.memory.note_activity();
        self.metrics.bytes_read(read);
        Ok(read > 0)
    }

    /// Counts an attempt. After a wrong password, it waits before it returns. Returns false if the connection must be closed.
    async fn count(&self, verdict: Verdict, attempts: &mut Attempts) -> bool {
        self.metrics.authentication(verdict.outcome());
        let goes_on = attempts.add();
        if verdict == Verdict::Wrong {
            attempts.wrong += 1;
            // The user is not logged: people type passwords in place of names.
            let from = log_name(self.from);
            self.limits.failures.log(|suppressed| {
                warn!(%from, suppressed, "authentication failed: unknown user or wrong password");
            });
            sleep(self.limits.delay(attempts.wrong)).await;
            if attempts.wrong >= MAX_WRONG {
                self.metrics.authentication(AuthOutcome::CutOff);
                return false;
            }
        }
        goes_on
    }
}

/// What one connection has sent instead of a valid password.
#[derive(Debug, Default)]
struct Attempts {
    all: u32,
    wrong: u32,
}

impl Attempts {
    /// Counts a command. Returns false if it was the last one.
    fn add(&mut self) -> bool {
        self.all += 1;
        self.all < MAX_ATTEMPTS
    }
}
