//! All keys of a server, by memcached's `lru_crawler metadump hash`, which every version since 1.6.9 has. It walks the hash table: each
//! item that is there all the time is in it, wherever it moves among the LRU lists meanwhile.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::connection_error::ConnectionError;
use super::server::Server;

/// The longest line, in bytes: a key of 250 bytes of which each is encoded by three, and numbers.
const MAX_LINE: usize = 2048;
/// The longest silence in a dump.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How much is read at a time, in bytes. Then other tasks of the thread run.
const READ: usize = 32 * 1024;

/// Why not all keys are known.
#[derive(Debug)]
pub enum NoKeys {
    /// There is no connection.
    Unreachable(ConnectionError),
    /// The connection ended, or nothing arrived for some time.
    Lost,
    /// Another walk is under way. It ends by itself.
    Busy,
    /// The server has no such command, or may not carry it out. What it said.
    Refused(String),
}

impl fmt::Display for NoKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoKeys::Unreachable(error) => write!(f, "cannot be reached: {error}"),
            NoKeys::Lost => f.write_str("the list of its keys broke off"),
            NoKeys::Busy => f.write_str("it lists its keys for somebody else"),
            NoKeys::Refused(said) => {
                write!(
                    f,
                    "it does not list its keys ({said}): it must be memcached 1.6.9 or later, started without -X and without \
                     -o no_lru_crawler"
                )
            }
        }
    }
}

/// Calls `each` with every key. The server is read as fast as it sends: while it lists keys, its hash table does not grow.
///
/// # Errors
/// Not all keys were passed on.
pub async fn each_key(server: &Server, mut each: impl FnMut(&[u8])) -> Result<(), NoKeys> {
    let mut socket = server.connect().await.map_err(NoKeys::Unreachable)?;
    socket.send(b"lru_crawler metadump hash\r\n").await.map_err(|_| NoKeys::Lost)?;
    let mut input = BytesMut::new();
    loop {
        while let Some(end) = memchr::memchr(b'\n', &input) {
            match line(&input[..end]) {
                Line::Key(key) => each(&key),
                Line::Begin => {}
                Line::End => return Ok(()),
                Line::Failed(why) => return Err(why),
            }
            input.advance(end + 1);
        }
        if input.len() > MAX_LINE {
            return Err(NoKeys::Lost);
        }
        yield_now().await;
        input.reserve(READ);
        match timeout(TIMEOUT, socket.read_buf(&mut input)).await {
            Ok(Ok(1..)) => {}
            _ => return Err(NoKeys::Lost),
        }
    }
}

/// Whether a server would list its keys.
///
/// # Errors
/// It would not.
pub async fn lists_keys(server: &Server) -> Result<(), NoKeys> {
    let mut socket = server.connect().await.map_err(NoKeys::Unreachable)?;
    socket.send(b"lru_crawler metadump hash\r\n").await.map_err(|_| NoKeys::Lost)?;
    let mut input = BytesMut::new();
    loop {
        if let Some(end) = memchr::memchr(b'\n', &input) {
            return match line(&input[..end]) {
                Line::Failed(NoKeys::Busy) | Line::Key(_) | Line::Begin | Line::End => Ok(()),
                Line::Failed(why) => Err(why),
            };
        }
        match timeout(TIMEOUT, socket.read_buf(&mut input)).await {
            Ok(Ok(1..)) if input.len() <= MAX_LINE => {}
            _ => return Err(NoKeys::Lost),
        }
    }
}

/// A line of the reply.
enum Line<'a> {
    Key(Cow<'a, [u8]>),
    /// Some versions begin with it.
    Begin,
    End,
    Failed(NoKeys),
}

/// `line`: without the line feed.
fn line(line: &[u8]) -> Line<'_> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if let Some(rest) = line.strip_prefix(b"key=") {
        let end = memchr::memchr(b' ', rest).unwrap_or(rest.len());
        return match decoded(&rest[..end]) {
            Some(key) => Line::Key(key),
            None => Line::Failed(NoKeys::Lost),
        };
    }
    match line {
        b"OK" => Line::Begin,
        b"END" => Line::End,
        _ if line.starts_with(b"BUSY") || line.starts_with(b"ERROR locked") => Line::Failed(NoKeys::Busy),
        _ => Line::Failed(NoKeys::Refused(line.escape_ascii().to_string())),
    }
}

/// A key with its percent-encoded bytes.
fn decoded(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.contains(&b'%') {
        return Some(Cow::Borrowed(text));
    }
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            key.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        key.push(u8::try_from(16 * digit(0)? + digit(1)?).ok()?);
        rest = behind;
    }
    Some(Cow::Owned(key))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::{Address, ServerSpec};

    /// The keys of a server that replies with this, and how the walk ends.
    async fn keys(reply: &str) -> (Vec<String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let server =
            Server::with_timeout(&ServerSpec { address, weight: 1, name: None }, Duration::from_secs(5));
        let (server, reply) = (Arc::new(server), reply.to_owned());
        let serve = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut command = [0; 27];
            socket.read_exact(&mut command).await.unwrap();
            assert_eq!(&command, b"lru_crawler metadump hash\r\n");
            for part in reply.as_bytes().chunks(7) {
                // Once it has seen enough, it closes the connection.
                let _ = socket.write_all(part).await;
            }
        };
        let mut found = Vec::new();
        let walk = each_key(&server, |key| found.push(key.escape_ascii().to_string()));
        let ((), walked) = tokio::join!(serve, walk);
        (found, walked.err().map_or_else(String::new, |why| why.to_string()))
    }

    #[tokio::test]
    async fn every_key_is_passed_on_decoded() {
        let reply =
            "OK\r\nkey=a%40k%3Ax%25 exp=-1 la=1 cas=1 fetch=no cls=1 size=73\nkey=b exp=9 la=1\nEND\r\n";
        assert_eq!(keys(reply).await, (vec!["a@k:x%".to_owned(), "b".to_owned()], String::new()));
        assert_eq!(keys("END\r\n").await, (vec![], String::new()));
    }

    #[tokio::test]
    async fn a_walk_that_is_not_whole_says_why() {
        let one = "key=a exp=-1\n";
        for (reply, expected) in [
            (
                "CLIENT_ERROR lru crawler disabled\r\n",
                "(CLIENT_ERROR lru crawler disabled): it must be memcached 1.6.9",
            ),
            ("ERROR metadump not allowed\r\n", "(ERROR metadump not allowed)"),
            ("BUSY currently processing crawler request\r\n", "for somebody else"),
            ("ERROR locked try again later\r\n", "for somebody else"),
            ("", "broke off"),
            (one, "broke off"),
            ("key=a%4", "broke off"),
            ("key=a%4 exp\n", "broke off"),
            (&"x".repeat(3 * MAX_LINE), "broke off"),
        ] {
            let (_, why) = keys(reply).await;
            assert!(why.contains(expected), "{reply}: {why}");
        }
    }
}
