//! The thread of an embedded memcached, and the server side of its connections.

use std::cell::RefCell;
use std::io;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::thread::{self, JoinHandle};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use super::dispatch::Next;
use super::store::{MAX_ITEM, Store};
use crate::protocol::parse::parse;
use crate::protocol::request::{Limits, Parsed};

/// Reads the wall clock: Unix time in milliseconds.
pub type Clock = fn() -> u64;

/// The least number of bytes to make room for before a read.
const READ_SIZE: usize = 16 * 1024;

/// Replies are sent once they reach this length in bytes, before the next request is carried out.
const WRITE_SIZE: usize = 256 * 1024;

/// The most connections that may wait to be accepted by the thread.
const PENDING: usize = 1024;

/// A running embedded memcached. Dropping it closes its connections, frees its items and ends its thread.
#[derive(Debug)]
pub struct Embedded {
    /// `None` only while it is dropped: closing the channel ends the thread.
    connections: Option<mpsc::Sender<UnixStream>>,
    thread: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Starts an empty one on a thread of its own. Above `limit` bytes of items it evicts the least recently used.
    ///
    /// # Errors
    /// If the thread or its event queue cannot be created.
    pub fn start(limit: u64, clock: Clock) -> io::Result<Embedded> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let (sender, receiver) = mpsc::channel(PENDING);
        let store = Store::new(limit, clock());
        let thread = thread::Builder::new()
            .name("embedded".to_owned())
            .spawn(move || LocalSet::new().block_on(&runtime, accept(receiver, store, clock)))?;
        Ok(Embedded { connections: Some(sender), thread: Some(thread) })
    }

    /// Connects to it, without a port or a socket file. The stream is non-blocking, ready for
    /// `tokio::net::UnixStream::from_std` on the caller's runtime.
    ///
    /// # Errors
    /// `ConnectionRefused` if 1,024 connections are waiting for the thread; otherwise the system's error.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        let connections = self.connections.as_ref().ok_or(io::ErrorKind::ConnectionRefused)?;
        connections.try_send(theirs).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(ours)
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.connections = None;
        if let Some(thread) = self.thread.take() {
            // An error means that the thread panicked, which was reported already.
            let _ = thread.join();
        }
    }
}

/// Serves each connection on a task of its own, until the sender is dropped.
async fn accept(mut connections: mpsc::Receiver<UnixStream>, store: Store, clock: Clock) {
    let store = Rc::new(RefCell::new(store));
    while let Some(connection) = connections.recv().await {
        match tokio::net::UnixStream::from_std(connection) {
            Ok(stream) => {
                tokio::task::spawn_local(serve(stream, Rc::clone(&store), clock));
            }
            Err(error) => tracing::warn!(%error, "embedded memcached: cannot accept a connection"),
        }
    }
}

/// Serves one connection: reads what is available, carries out each complete request in order, sends the replies in one write,
/// and only then reads again. So nothing is read from a peer that does not read its replies.
pub async fn serve<S>(stream: S, store: Rc<RefCell<Store>>, clock: Clock)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // An error only ends this connection, and the peer notices it.
    let _ = serve_requests(stream, &store, clock).await;
}

async fn serve_requests<S>(mut stream: S, store: &RefCell<Store>, clock: Clock) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut input = BytesMut::with_capacity(READ_SIZE);
    let mut output = Vec::with_capacity(READ_SIZE);
    let mut skip_data = 0_u64;
    loop {
        let mut wanted = READ_SIZE;
        loop {
            let skipped = usize::try_from(skip_data).unwrap_or(usize::MAX).min(input.len());
            input.advance(skipped);
            skip_data -= skipped as u64;
            if input.is_empty() {
                break;
            }
            match step(&input, store, clock, &mut output) {
                Step::NeedMore { at_least } => {
                    wanted = at_least.max(READ_SIZE);
                    break;
                }
                Step::Done { consumed, then_skip, next } => {
                    input.advance(consumed);
                    skip_data = then_skip;
                    if next == Next::Close {
                        stream.write_all(&output).await?;
                        return stream.shutdown().await;
                    }
                }
            }
            if output.len() >= WRITE_SIZE {
                flush(&mut stream, &mut output).await?;
            }
        }
        if !output.is_empty() {
            flush(&mut stream, &mut output).await?;
        }
        input.reserve(wanted);
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

/// The command that lists all keys.
const LIST_KEYS: &[u8] = b"lru_crawler metadump hash\r\n";

enum Step {
    NeedMore { at_least: usize },
    Done { consumed: usize, then_skip: u64, next: Next },
}

/// Carries out the first request of `input`, if it is complete.
fn step(input: &[u8], store: &RefCell<Store>, clock: Clock, output: &mut Vec<u8>) -> Step {
    if input.starts_with(LIST_KEYS) && store.borrow().list_keys(clock(), output) {
        return Step::Done { consumed: LIST_KEYS.len(), then_skip: 0, next: Next::Continue };
    }
    match parse(input, &Limits { max_value: MAX_ITEM }) {
        Parsed::Incomplete { at_least } => Step::NeedMore { at_least },
        Parsed::Request { request, consumed } => {
            let next = store.borrow_mut().execute(&request, clock(), output);
            Step::Done { consumed, then_skip: 0, next }
        }
        Parsed::Refused(refused) => {
            let next = store.borrow_mut().refuse(&refused, clock(), output);
            Step::Done { consumed: refused.consumed, then_skip: refused.skip_data, next }
        }
    }
}

/// Sends the replies, and frees the extra memory of large ones.
async fn flush<S: AsyncWrite + Unpin>(stream: &mut S, output: &mut Vec<u8>) -> io::Result<()> {
    stream.write_all(output).await?;
    output.clear();
    output.shrink_to(WRITE_SIZE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Duration;

    use super::*;

    fn noon() -> u64 {
        1_800_000_000_000
    }

    fn client(server: &Embedded) -> UnixStream {
        let stream = server.connect().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    }

    /// Sends a request and reads the reply up to `end`.
    fn exchange(stream: &mut UnixStream, request: &[u8], end: &str) -> String {
        stream.write_all(request).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(end.as_bytes()) {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        String::from_utf8(reply).unwrap()
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let server = Embedded::start(1 << 20, noon).unwrap();
        let mut stream = client(&server);
        let requests = b"set k 0 0 1\r\n1\r\nincr k 1\r\nbogus\r\nget k\r\nmg x q\r\nmn\r\n";
        let replies = exchange(&mut stream, requests, "MN\r\n");
        assert_eq!(replies, "STORED\r\n2\r\nERROR\r\nVALUE k 0 1\r\n2\r\nEND\r\nMN\r\n");
    }

    #[test]
    fn connections_share_items() {
        let server = Embedded::start(1 << 20, noon).unwrap();
        exchange(&mut client(&server), b"set k 0 0 1\r\n1\r\n", "STORED\r\n");
        assert_eq!(exchange(&mut client(&server), b"get k\r\n", "END\r\n"), "VALUE k 0 1\r\n1\r\nEND\r\n");
    }

    #[test]
    fn a_request_may_arrive_byte_by_byte() {
        let server = Embedded::start(1 << 20, noon).unwrap();
        let mut stream = client(&server);
        for byte in b"set k 0 0 3\r\nabc\r\nget k\r" {
            stream.write_all(&[*byte]).unwrap();
        }
        let reply = exchange(&mut stream, b"\n", "END\r\n");
        assert_eq!(reply, "STORED\r\nVALUE k 0 3\r\nabc\r\nEND\r\n");
    }

    #[test]
    fn a_value_that_is_too_large_is_skipped_and_the_connection_stays_open() {
        let server = Embedded::start(8 << 20, noon).unwrap();
        let mut stream = client(&server);
        let request = [&b"set k 0 0 3000000\r\n"[..], &vec![b'x'; 3_000_000], b"\r\nversion\r\n"].concat();
        let replies = exchange(&mut stream, &request, "VERSION 1.6.45\r\n");
        assert_eq!(replies, "SERVER_ERROR object too large for cache\r\nVERSION 1.6.45\r\n");
    }

    #[test]
    fn quit_closes_the_connection_after_earlier_replies() {
        let server = Embedded::start(1 << 20, noon).unwrap();
        let mut stream = client(&server);
        stream.write_all(b"version\r\nquit\r\nversion\r\n").unwrap();
        let mut replies = String::new();
        stream.read_to_string(&mut replies).unwrap();
        assert_eq!(replies, "VERSION 1.6.45\r\n");
    }

    #[test]
    fn a_peer_that_reads_no_replies_is_not_read_from() {
        let server = Embedded::start(8 << 20, noon).unwrap();
        let mut stream = client(&server);
        let value = "x".repeat(1_000_000);
        exchange(&mut stream, format!("set k 0 0 1000000\r\n{value}\r\n").as_bytes(), "STORED\r\n");
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let requests = b"get k\r\n".repeat(1000);
        let error = (0..1000).find_map(|_| stream.write_all(&requests).err()).expect("its buffers are full");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let mut other = client(&server);
        assert_eq!(exchange(&mut other, b"mg k s\r\n", "\r\n"), "HD s1000000\r\n");
    }

    #[test]
    fn dropping_it_closes_its_connections() {
        let server = Embedded::start(1 << 20, noon).unwrap();
        let mut stream = client(&server);
        exchange(&mut stream, b"mn\r\n", "MN\r\n");
        drop(server);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_connection_is_refused_while_too_many_wait_for_the_thread() {
        // A smaller channel: the full number may exceed the limit of file descriptors.
        let (sender, mut receiver) = mpsc::channel(2);
        let server = Embedded { connections: Some(sender), thread: None };
        (0..2).for_each(|_| drop(server.connect().unwrap()));
        assert_eq!(server.connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        receiver.try_recv().unwrap();
        assert!(server.connect().is_ok());
    }
}
