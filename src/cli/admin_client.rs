//! Requests of the command line to the admin address of a running sidecar, with the TLS and the credentials of its configuration.

use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

use crate::config::{self, AdminAccess, Location};
use crate::listener::ListenAddress;
use crate::protocol::base64;
use crate::tls::{PinnedConnector, TlsFiles};

/// The longest reply that is read, in bytes.
const MAX_REPLY: u64 = 16 * 1024 * 1024;
/// The longest line of a head, or event, in bytes.
const MAX_LINE: u64 = 64 * 1024;
/// The most lines of a head.
const MAX_HEAD: usize = 100;

/// A sidecar to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AdminClient {
    /// `host:port`
    pub(super) address: String,
    tls: Option<TlsFiles>,
    /// The value of the Authorization header.
    authorization: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

/// A reply whose body is still to be read.
pub(super) struct OpenReply(BufReader<Box<dyn Stream>>);

/// A connection, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// Why there is no reply.
#[derive(Debug)]
pub enum Failed {
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
    /// The sidecar of the configuration and the environment, or the one at the address `admin`. That one receives the credentials of
    /// the configuration only if the command line names both.
    pub(super) fn new(location: &Location, admin: Option<&str>) -> Result<AdminClient, String> {
        let access = match (location.named(), admin) {
            (None, Some(admin)) => return Ok(AdminClient::plain(admin)),
            (Some(_), Some(_)) => config::admin_access(location.path(), config::environment())?,
            (_, None) => config::admin_access(location.path(), config::environment())
                .map_err(|why| format!("{why}; --admin HOST:PORT asks a sidecar without its file"))?,
        };
        let AdminAccess { listen, tls, auth_file, token_file, .. } = access;
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
        self.has_address()?;
        match self.ask(target, limit) {
            Ok(Reply { status: 200, body }) => Ok(body),
            Ok(Reply { status, body }) => Err(self.refused(status, &body)),
            Err(failed) => Err(self.failed(&failed)),
        }
    }

    /// A reply with status 200, whose body is read as it comes. Its head must arrive within `limit`.
    pub(super) async fn open(&self, target: &str, limit: Duration) -> Result<OpenReply, Unreachable> {
        self.has_address()?;
        let opened = timeout(limit, async {
            // A reply of HTTP/1.0 has no chunks: its body ends with the connection.
            let mut reply = OpenReply(BufReader::new(self.send(target, "1.0").await?));
            let status = reply.head().await?;
            let body = match status {
                200 => None,
                _ => reply.line().await.ok().flatten(),
            };
            Ok((status, body.unwrap_or_default(), reply))
        });
        match opened.await {
            Ok(Ok((200, _, reply))) => Ok(reply),
            Ok(Ok((status, body, _))) => Err(self.refused(status, &body)),
            Ok(Err(failed)) => Err(self.failed(&failed)),
            Err(_) => Err(self.failed(&Failed::TimedOut(limit))),
        }
    }

    fn has_address(&self) -> Result<(), Unreachable> {
        match self.address.is_empty() {
            true => Err(Unreachable::Nobody("admin.listen is \"\"".to_owned())),
            false => Ok(()),
        }
    }

    fn refused(&self, status: u16, body: &str) -> Unreachable {
        Unreachable::Refused(format!("{} replied {status}: {}", self.address, body.trim_end()))
    }

    fn failed(&self, failed: &Failed) -> Unreachable {
        let why = format!("{}: {failed}", self.address);
        match failed {
            Failed::Io(_) => Unreachable::Nobody(why),
            Failed::TimedOut(_) | Failed::NotHttp => Unreachable::Refused(why),
        }
    }

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
        let stream = self.send(target, "1.1").await?;
        let mut reply = Vec::new();
        match stream.take(MAX_REPLY).read_to_end(&mut reply).await {
            // Not every server of TLS says that it closes.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !reply.is_empty() => Ok(reply),
            read => read.map(|_| reply),
        }
    }

    /// Connects, and sends a GET in this version of HTTP. The reply is still to be read.
    async fn send(&self, target: &str, version: &str) -> io::Result<Box<dyn Stream>> {
        let socket = TcpStream::connect(&self.address).await?;
        let mut stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some(files) => {
                let connector =
                    PinnedConnector::new(files).map_err(|bad| io::Error::other(bad.to_string()))?;
                Box::new(connector.connect(socket).await?)
            }
        };
        let authorization = self.authorization.iter().map(|value| format!("Authorization: {value}\r\n"));
        let authorization = authorization.collect::<String>();
        let request = format!(
            "GET {target} HTTP/{version}\r\nHost: {}\r\n{authorization}Connection: close\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        Ok(stream)
    }
}

impl OpenReply {
    /// Reads the head, and returns the status.
    async fn head(&mut self) -> Result<u16, Failed> {
        let status = self.line().await?.and_then(|line| status(&line)).ok_or(Failed::NotHttp)?;
        for _ in 0..MAX_HEAD {
            match self.line().await? {
                Some(line) if line.is_empty() => return Ok(status),
                Some(_) => {}
                None => break,
            }
        }
        Err(Failed::NotHttp)
    }

    /// The next line of the body, without its end. `None`: the body has ended.
    pub(super) async fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if (&mut self.0).take(MAX_LINE).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        while line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
            line.pop();
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }
}

/// Percent-encodes the value of a parameter, and appends it with its name to a query.
pub(super) fn add_parameter(query: &mut String, name: &str, value: &[u8]) {
    query.push(if query.is_empty() { '?' } else { '&' });
    query.push_str(name);
    query.push('=');
    for byte in value {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => query.push(*byte as char),
            // Writing to a String cannot fail.
            byte => drop(write!(query, "%{byte:02X}")),
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
    let status = status(&text);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    status.map(|status| Reply { status, body }).ok_or(Failed::NotHttp)
}

/// The status in the first line of a reply.
fn status(reply: &str) -> Option<u16> {
    reply.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_encoded() {
        let mut query = String::new();
        add_parameter(&mut query, "key", b"blog:*&\xff b");
        add_parameter(&mut query, "rule", b"a-b_c.d~");
        assert_eq!(query, "?key=blog%3A%2A%26%FF%20b&rule=a-b_c.d~");
    }

    #[test]
    fn another_address_receives_credentials_only_of_a_file_that_the_command_line_names() {
        let directory = std::env::temp_dir().join(format!("kennel-credentials-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, token) = (directory.join("kennel.toml"), directory.join("token"));
        fs::write(&token, "secret\n").unwrap();
        fs::write(&file, format!("[admin]\nlisten = \"127.0.0.1:9\"\ntoken_file = {token:?}\n")).unwrap();
        let asked = |location: Location, admin| {
            let client = AdminClient::new(&location, admin).unwrap();
            (client.address.clone(), client.authorization.is_some())
        };
        let (named, found) = (Location::Named(file.clone()), Location::Found(file.clone()));
        assert_eq!(asked(named.clone(), None), ("127.0.0.1:9".to_owned(), true));
        assert_eq!(asked(found.clone(), None), ("127.0.0.1:9".to_owned(), true));
        assert_eq!(asked(named, Some("a:1")), ("a:1".to_owned(), true));
        assert_eq!(asked(found, Some("a:1")), ("a:1".to_owned(), false));
        fs::remove_dir_all(&directory).unwrap();
        // It does not matter then whether the file can be read.
        assert_eq!(asked(Location::Found(file.clone()), Some("a:1")), ("a:1".to_owned(), false));
        let error = AdminClient::new(&Location::Found(file), None).unwrap_err();
        assert!(error.ends_with("; --admin HOST:PORT asks a sidecar without its file"), "{error}");
    }
}
