//! A connection for one batch of commands at a time, apart from the clients' requests: it neither waits behind them nor fails
//! with them.

use std::future::pending;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

use super::connection_error::ConnectionError;
use super::server::Server;
use super::socket::Socket;
use crate::protocol::reply::{Frame, Framer, Shape};

/// The longest value of a reply, in bytes. A longer one ends the connection.
const MAX_VALUE: usize = 64 * 1024;

/// Why a command has no reply. Whether it was carried out is unknown, and it may yet be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoReply {
    /// Nobody listens at the server's address.
    Refused,
    /// The server has neither replied nor refused in time.
    Silent,
    /// The connection ended, or what arrived is no reply.
    Lost,
}

/// A connection to a server, which is made again after it has ended.
pub struct BatchConnection {
    server: Arc<Server>,
    socket: Option<Socket>,
    input: BytesMut,
    /// The number of connections made.
    epoch: u32,
}

impl BatchConnection {
    /// Not connected yet.
    pub fn new(server: Arc<Server>) -> BatchConnection {
        BatchConnection { server, socket: None, input: BytesMut::new(), epoch: 0 }
    }

    /// Connects if there is no connection, within the pool's `connect_timeout`. Returns how many connections have been made: a CAS
    /// number that was read over one is not used over a later one.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn connect(&mut self) -> Result<u32, NoReply> {
        if self.socket.is_none() {
            let connected = self.server.connect().await;
            self.socket = Some(connected.map_err(|error| NoReply::of_connect(&error))?);
            self.input.clear();
            self.epoch += 1;
        }
        Ok(self.epoch)
    }

    /// Sends `count` meta commands in one write over the connection, and passes each reply, with its CRLF, to `each`, in order.
    /// All of them must arrive within `limit`.
    ///
    /// # Errors
    /// The rest of the commands has no reply. The connection is closed.
    pub async fn exchange(
        &mut self,
        commands: &[u8],
        count: usize,
        limit: Duration,
        mut each: impl FnMut(Bytes),
    ) -> Result<(), NoReply> {
        let mut socket = self.socket.take().ok_or(NoReply::Lost)?;
        let deadline = Instant::now() + limit;
        let exchanging = async {
            socket.send(commands).await.map_err(|_| NoReply::Lost)?;
            for _ in 0..count {
                each(next_reply(&mut socket, &mut self.input).await?);
            }
            Ok(())
        };
        timeout_at(deadline, exchanging).await.unwrap_or(Err(NoReply::Silent))?;
        // More than was asked for is no reply to anything.
        if self.input.is_empty() {
            self.socket = Some(socket);
        }
        Ok(())
    }

    /// Waits until the connection ends, which a server that is stopped does at once. Never returns without a connection.
    pub async fn ended(&mut self) {
        let Some(socket) = &mut self.socket else { return pending().await };
        // Nothing is expected. What arrives nevertheless is garbage.
        let _ = socket.read_buf(&mut self.input).await;
        self.socket = None;
    }
}

impl NoReply {
    fn of_connect(error: &ConnectionError) -> NoReply {
        let ConnectionError::Unreachable(error) = error else { return NoReply::Silent };
        match error.kind() {
            // The second one: the path of a Unix socket does not exist.
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => NoReply::Refused,
            ErrorKind::ConnectionReset => NoReply::Lost,
            _ => NoReply::Silent,
        }
    }
}

async fn next_reply(socket: &mut Socket, input: &mut BytesMut) -> Result<Bytes, NoReply> {
    let mut framer = Framer::new(Shape::Meta, MAX_VALUE);
    loop {
        match framer.frame(input, &[]) {
            Ok(Frame::Whole(length)) => return Ok(input.split_to(length).freeze()),
            Ok(_) => {}
            Err(_) => return Err(NoReply::Lost),
        }
        match socket.read_buf(input).await {
            Ok(0) | Err(_) => return Err(NoReply::Lost),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::{Address, ServerSpec};

    const SECOND: Duration = Duration::from_secs(1);

    /// A listener, and a connection to it that has not been made.
    async fn pair() -> (TcpListener, BatchConnection) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let spec = ServerSpec { address, weight: 1, name: None };
        let server = Server::with_timeout(&spec, SECOND);
        (listener, BatchConnection::new(Arc::new(server)))
    }

    /// Sends two commands and returns the replies.
    async fn exchange(
        connection: &mut BatchConnection,
        limit: Duration,
    ) -> (Vec<Bytes>, Result<(), NoReply>) {
        let mut replies = Vec::new();
        if let Err(why) = connection.connect().await {
            return (replies, Err(why));
        }
        let result =
            connection.exchange(b"mg a v\r\nmg b v\r\n", 2, limit, |reply| replies.push(reply)).await;
        (replies, result)
    }

    /// Accepts a connection, reads both commands and sends `reply`. Returns the connection.
    async fn serve(listener: &TcpListener, reply: &[u8]) -> tokio::net::TcpStream {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut commands = [0; 16];
        socket.read_exact(&mut commands).await.unwrap();
        assert_eq!(&commands, b"mg a v\r\nmg b v\r\n");
        socket.write_all(reply).await.unwrap();
        socket
    }

    #[tokio::test]
    async fn replies_are_passed_on_in_order_and_the_connection_is_used_again() {
        let (listener, mut connection) = pair().await;
        let server = async {
            let mut socket = serve(&listener, b"VA 2 c7\r\nhi\r\nEN\r\n").await;
            let mut commands = [0; 16];
            socket.read_exact(&mut commands).await.unwrap();
            socket.write_all(b"EN\r\nEN\r\n").await.unwrap();
            socket
        };
        let client = async {
            let first = exchange(&mut connection, SECOND).await;
            assert_eq!(first, (vec![Bytes::from("VA 2 c7\r\nhi\r\n"), Bytes::from("EN\r\n")], Ok(())));
            assert_eq!(exchange(&mut connection, SECOND).await.1, Ok(()));
            assert_eq!(connection.connect().await, Ok(1));
        };
        tokio::join!(server, client);
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_is_made_anew() {
        let (listener, mut connection) = pair().await;
        let server = async {
            drop(serve(&listener, b"EN\r\nEN\r\n").await);
            serve(&listener, b"EN\r\nEN\r\n").await
        };
        let client = async {
            assert_eq!(exchange(&mut connection, SECOND).await.1, Ok(()));
            connection.ended().await;
            assert_eq!(exchange(&mut connection, SECOND).await.1, Ok(()));
            assert_eq!(connection.connect().await, Ok(2));
        };
        tokio::join!(server, client);
    }

    #[tokio::test]
    async fn a_server_that_ends_is_noticed_and_its_address_refuses() {
        let (listener, mut connection) = pair().await;
        let socket = tokio::join!(serve(&listener, b"EN\r\nEN\r\n"), exchange(&mut connection, SECOND)).0;
        drop((socket, listener));
        connection.ended().await;
        assert_eq!(exchange(&mut connection, SECOND).await, (vec![], Err(NoReply::Refused)));
    }

    #[tokio::test]
    async fn a_silent_server_and_one_that_sends_no_reply_are_told_apart_and_the_rest_is_unanswered() {
        let (listener, mut connection) = pair().await;
        let (socket, (replies, result)) =
            tokio::join!(serve(&listener, b""), exchange(&mut connection, Duration::from_millis(50)));
        assert_eq!((replies.len(), result), (0, Err(NoReply::Silent)));
        drop(socket);
        let (_, (replies, result)) =
            tokio::join!(serve(&listener, b"EN\r\nNONSENSE\r\n"), exchange(&mut connection, SECOND));
        assert_eq!((replies.len(), result), (1, Err(NoReply::Lost)));
        let too_long = format!("EN\r\nVA {} c1\r\n", MAX_VALUE + 1);
        let (_, (replies, result)) =
            tokio::join!(serve(&listener, too_long.as_bytes()), exchange(&mut connection, SECOND));
        assert_eq!((replies.len(), result), (1, Err(NoReply::Lost)));
    }
}
