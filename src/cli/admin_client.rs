//! Requests of the command line to the admin address of a running sidecar, with the TLS and the credentials of its configuration.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

use crate::config::{self, AdminAccess};
use crate::listener::ListenAddress;
use crate::protocol::base64;
use crate::tls::{PinnedConnector, TlsFiles};

/// The longest reply that is read, in bytes.
const MAX_REPLY: u64 = 1 << 20;

/// A sidecar to ask.
#[derive(Debug, Default)]
pub(super) struct AdminClient {
    /// `host:port`
    pub(super) address: String,
    tls: Option<TlsFiles>,
    /// The value of the Authorization header.
    authorization: Option<String>,
}

/// A reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Why there is no reply.
#[derive(Debug)]
pub enum Failed {
    /// The connection failed.
    Io(io::Error),
    /// It did not reply within this time.
    TimedOut(Duration),
    /// The reply is not HTTP.
    NotHttp,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Io(error)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Io(error) => error.fmt(f),
            Failed::TimedOut(limit) => write!(f, "no reply within {limit:?}"),
            Failed::NotHttp => f.write_str("the reply is not HTTP: is this the admin address?"),
        }
    }
}

/// Why a sidecar gives no answer to a question.
#[derive(Debug)]
pub(super) enum Unreachable {
    /// None listens there, or the configuration has none.
    Nobody(String),
    /// It, or the configuration, says why.
    Refused(String),
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::Nobody(why) | Unreachable::Refused(why) => f.write_str(why),
        }
    }
}

impl AdminClient {
    /// The sidecar of the configuration at `path` and the environment, or with its credentials the one at the address `admin`.
    /// Without either, that of the built-in configuration.
    pub(super) fn new(path: Option<&Path>, admin: Option<&str>) -> Result<AdminClient, String> {
        let access = match (path, admin) {
            (None, Some(admin)) => {
                return Ok(AdminClient { address: admin.to_owned(), ..AdminClient::default() });
            }
            _ => config::admin_access(path, config::environment())?,
        };
        let AdminAccess { listen, tls, auth_file, token_file } = access;
        let address = match (admin, listen) {
            (Some(admin), _) => admin.to_owned(),
            (None, Some(listen)) => reachable(listen).to_string(),
            (None, None) => String::new(),
        };
        let token = token_file.and_then(|file| first_line(&file)).map(|token| format!("Bearer {token}"));
        let authorization = token.or_else(|| {
            let user = first_line(&auth_file?)?;
            let mut text = Vec::new();
            base64::encode(user.as_bytes(), &mut text);
            Some(format!("Basic {}", String::from_utf8(text).ok()?))
        });
        Ok(AdminClient { address, tls, authorization })
    }

    /// A sidecar without TLS and credentials.
    pub(super) fn plain(admin: &str) -> AdminClient {
        AdminClient { address: admin.to_owned(), ..AdminClient::default() }
    }

    /// The body of a reply with status 200.
    pub(super) fn get(&self, target: &str, limit: Duration) -> Result<String, Unreachable> {
        if self.address.is_empty() {
            return Err(Unreachable::Nobody("admin.listen is \"\"".to_owned()));
        }
        match self.ask(target, limit) {
            Ok(Reply { status: 200, body }) => Ok(body),
            Ok(Reply { status, body }) => {
                Err(Unreachable::Refused(format!("{} replied {status}: {}", self.address, body.trim_end())))
            }
            Err(Failed::Io(error)) => Err(Unreachable::Nobody(format!("{}: {error}", self.address))),
            Err(failed) => Err(Unreachable::Refused(format!("{}: {failed}", self.address))),
        }
    }

    /// Sends a GET.
    pub(super) fn ask(&self, target: &str, limit: Duration) -> Result<Reply, Failed> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let reply = runtime.block_on(async { timeout(limit, self.exchange(target)).await });
        // Do not wait for a host name that is still being resolved.
        runtime.shutdown_background();
        match reply {
            Ok(reply) => parse(&reply?),
            Err(_) => Err(Failed::TimedOut(limit)),
        }
    }

    async fn exchange(&self, target: &str) -> io::Result<Vec<u8>> {
        let socket = TcpStream::connect(&self.address).await?;
        match &self.tls {
            None => self.send(target, socket).await,
            Some(files) => {
                let connector =
                    PinnedConnector::new(files).map_err(|bad| io::Error::other(bad.to_string()))?;
                self.send(target, connector.connect(socket).await?).await
            }
        }
    }

    async fn send(
        &self,
        target: &str,
        mut stream: impl AsyncRead + AsyncWrite + Unpin,
    ) -> io::Result<Vec<u8>> {
        let authorization = self.authorization.iter().map(|value| format!("Authorization: {value}\r\n"));
        let authorization = authorization.collect::<String>();
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {}\r\n{authorization}Connection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut reply = Vec::new();
        match stream.take(MAX_REPLY).read_to_end(&mut reply).await {
            // Not every server of TLS says that it closes.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !reply.is_empty() => Ok(reply),
            read => read.map(|_| reply),
        }
    }
}

/// The first line of a file that can be read and is not empty.
fn first_line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().next().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned)
}

/// An address that listens on all interfaces is reached over loopback.
pub(super) fn reachable(mut listen: ListenAddress) -> ListenAddress {
    match &*listen.host {
        "0.0.0.0" => listen.host = "127.0.0.1".to_owned(),
        "::" => listen.host = "::1".to_owned(),
        _ => {}
    }
    listen
}

fn parse(reply: &[u8]) -> Result<Reply, Failed> {
    let text = String::from_utf8_lossy(reply);
    let status = text.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    status.map(|status| Reply { status, body }).ok_or(Failed::NotHttp)
}
