//! The monitor's connection to one server. Each has a task of its own, so that a server that does not reply delays nobody.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::upstream::{BatchConnection, NoReply};

/// Sends commands to one server. Clones use the same connection.
#[derive(Clone)]
pub(super) struct Link {
    requests: UnboundedSender<Request>,
    ended: Rc<Notify>,
}

/// A meta command for a server.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Bytes,
    /// The epoch of the CAS that it names. It is sent over the connection of that epoch only.
    pub(super) cas_epoch: Option<u32>,
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The server's reply, and the epoch of the connection.
    Reply(Bytes, u32),
    /// It names a CAS of an earlier connection, and was not sent.
    StaleCas,
    /// There is no reply.
    None(NoReply),
}

/// Commands of one sender.
struct Request {
    commands: Vec<Outgoing>,
    answers: oneshot::Sender<Vec<Answer>>,
}

impl Link {
    /// A link, and the task that drives it. `limit` is how long replies may take.
    pub(super) fn new(connection: BatchConnection, limit: Duration) -> (Link, impl Future<Output = ()>) {
        let (requests, received) = unbounded_channel();
        let ended = Rc::new(Notify::new());
        let task = LinkTask {
            connection,
            limit,
            ended: Rc::clone(&ended),
            batch: Vec::new(),
            output: BytesMut::new(),
        };
        (Link { requests, ended }, task.run(received))
    }

    /// Sends commands, together with those of other senders that are sent in the same turn. Returns what became of each.
    pub(super) async fn send(&self, commands: Vec<Outgoing>) -> Vec<Answer> {
        let (answers, received) = oneshot::channel();
        let count = commands.len();
        let sent = self.requests.send(Request { commands, answers }).is_ok();
        match (sent, received.await) {
            (true, Ok(answers)) => answers,
            // The task has ended.
            _ => vec![Answer::None(NoReply::Lost); count],
        }
    }

    /// Waits until the connection ends while no reply is awaited: the server may have stopped.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }
}

struct LinkTask {
    connection: BatchConnection,
    limit: Duration,
    ended: Rc<Notify>,
    batch: Vec<Request>,
    output: BytesMut,
}

impl LinkTask {
    /// Returns when all links are dropped.
    async fn run(mut self, mut requests: UnboundedReceiver<Request>) {
        loop {
            tokio::select! {
                biased;
                received = requests.recv_many(&mut self.batch, usize::MAX) => if received == 0 { return },
                () = self.connection.ended() => {
                    self.ended.notify_one();
                    continue;
                }
            }
            if self.serve().await == Err(NoReply::Silent) && !self.wait_for_a_sign(&mut requests).await {
                return;
            }
        }
    }

    /// Sends the commands of the batch in one write.
    async fn serve(&mut self) -> Result<(), NoReply> {
        let connected = self.connection.connect().await;
        let requests = std::mem::take(&mut self.batch);
        let epoch = match connected {
            Ok(epoch) => epoch,
            Err(why) => {
                fail(requests, why);
                return Err(why);
            }
        };
        self.output.clear();
        let may_send = |command: &Outgoing| command.cas_epoch.is_none_or(|cas_epoch| cas_epoch == epoch);
        let sent =
            || requests.iter().flat_map(|request| &request.commands).filter(|command| may_send(command));
        sent().for_each(|command| self.output.extend_from_slice(&command.bytes));
        let count = sent().count();
        let mut replies = Vec::with_capacity(count);
        let exchanging =
            self.connection.exchange(&self.output, count, self.limit, |reply| replies.push(reply));
        let result = exchanging.await;
        let mut replies = replies.into_iter();
        for Request { commands, answers } in requests {
            let answer = |command: &Outgoing| match (may_send(command), result) {
                (false, _) => Answer::StaleCas,
                (true, result) => match replies.next() {
                    Some(reply) => Answer::Reply(reply, epoch),
                    None => Answer::None(result.err().unwrap_or(NoReply::Lost)),
                },
            };
            // An error means that the sender no longer waits.
            let _ = answers.send(commands.iter().map(answer).collect());
        }
        result
    }

    /// Lets requests fail at once until the server, which was silent, has replied to a probe or refused it. Returns false when all
    /// links are dropped.
    async fn wait_for_a_sign(&mut self, requests: &mut UnboundedReceiver<Request>) -> bool {
        let (connection, limit) = (&mut self.connection, self.limit);
        let mut probing = pin!(async {
            while let Err(NoReply::Silent) = probe(connection, limit).await {
                sleep(limit).await;
            }
        });
        loop {
            tokio::select! {
                biased;
                () = &mut probing => return true,
                received = requests.recv_many(&mut self.batch, usize::MAX) => match received {
                    0 => return false,
                    _ => fail(std::mem::take(&mut self.batch), NoReply::Silent),
                },
            }
        }
    }
}

async fn probe(connection: &mut BatchConnection, limit: Duration) -> Result<(), NoReply> {
    connection.connect().await?;
    connection.exchange(b"mn\r\n", 1, limit, |_| {}).await
}

fn fail(requests: Vec<Request>, why: NoReply) {
    for Request { commands, answers } in requests {
        let _ = answers.send(vec![Answer::None(why); commands.len()]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::upstream::server::Server;
    use crate::upstream::{Address, ServerSpec};

    /// Runs a test with a listener, and a link to it whose replies may take this long.
    fn with_link<F: Future<Output = ()>>(limit: Duration, test: impl FnOnce(TcpListener, Link) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let address = Address::Tcp { host: "127.0.0.1".into(), port };
            let spec = ServerSpec { address, weight: 1, name: None };
            let second = Duration::from_secs(1);
            let server = Arc::new(Server::with_timeout(&spec, second));
            let (link, task) = Link::new(BatchConnection::new(server), limit);
            tokio::task::spawn_local(task);
            test(listener, link).await;
        });
    }

    fn command(text: &str, cas_epoch: Option<u32>) -> Outgoing {
        Outgoing { bytes: Bytes::from(format!("{text}\r\n")), cas_epoch }
    }

    /// Reads exactly these commands and replies.
    async fn serve(socket: &mut TcpStream, expected: &str, reply: &str) {
        let mut commands = vec![0; expected.len()];
        socket.read_exact(&mut commands).await.unwrap();
        assert_eq!(String::from_utf8(commands).unwrap(), expected);
        socket.write_all(reply.as_bytes()).await.unwrap();
    }

    fn replied(text: &str, epoch: u32) -> Answer {
        Answer::Reply(Bytes::from(text.to_owned()), epoch)
    }

    #[test]
    fn commands_of_one_turn_are_sent_together_and_each_sender_gets_its_own_replies() {
        with_link(Duration::from_secs(10), |listener, link| async move {
            let server = async {
                let (mut socket, _) = listener.accept().await.unwrap();
                serve(&mut socket, "mg a v\r\nmg b v\r\nmg c v\r\n", "EN\r\nHD\r\nEX\r\n").await;
                socket
            };
            let first = link.send(vec![command("mg a v", None), command("mg b v", None)]);
            let second = link.send(vec![command("mg c v", None)]);
            let (_socket, first, second) = tokio::join!(server, first, second);
            assert_eq!(first, [replied("EN\r\n", 1), replied("HD\r\n", 1)]);
            assert_eq!(second, [replied("EX\r\n", 1)]);
        });
    }

    #[test]
    fn a_cas_of_an_earlier_connection_is_not_sent() {
        with_link(Duration::from_secs(10), |listener, link| async move {
            let mut sockets = Vec::new();
            for epoch in 1..=2 {
                let server = async {
                    let (mut socket, _) = listener.accept().await.unwrap();
                    serve(&mut socket, "mg a v\r\n", "EN\r\n").await;
                    socket
                };
                let sent = link.send(vec![command("mg a v", None)]);
                let (socket, answers) = tokio::join!(server, sent);
                assert_eq!(answers, [replied("EN\r\n", epoch)]);
                if epoch == 1 {
                    drop(socket);
                    link.ended().await;
                } else {
                    sockets.push(socket);
                }
            }
            let commands = vec![command("ms old", Some(1)), command("ms new", Some(2))];
            let socket = &mut sockets[0];
            let (answers, ()) = tokio::join!(link.send(commands), serve(socket, "ms new\r\n", "HD\r\n"));
            assert_eq!(answers, [Answer::StaleCas, replied("HD\r\n", 2)]);
        });
    }

    #[test]
    fn after_silence_commands_fail_at_once_until_the_server_replies_to_a_probe() {
        // The server is silent for as long as the test wants, whatever the limit is.
        with_link(Duration::from_millis(20), |listener, link| async move {
            let silent = [Answer::None(NoReply::Silent)];
            let answers = link.send(vec![command("mg a v", None)]).await;
            assert_eq!(answers, silent);
            let (unanswered, _) = listener.accept().await.unwrap();
            drop(unanswered);
            // Nothing of this is sent: the next connections have probes only.
            assert_eq!(link.send(vec![command("mg b v", None)]).await, silent);
            let server = async {
                loop {
                    let (mut socket, _) = listener.accept().await.unwrap();
                    let mut commands = [0; 4];
                    // A probe may have been given up before it was served.
                    if socket.read_exact(&mut commands).await.is_ok()
                        && socket.write_all(b"MN\r\n").await.is_ok()
                    {
                        assert_eq!(&commands, b"mn\r\n");
                        let mut commands = [0; 8];
                        if socket.read_exact(&mut commands).await.is_ok() {
                            assert_eq!(&commands, b"mg c v\r\n");
                            let _ = socket.write_all(b"EN\r\n").await;
                        }
                    }
                }
            };
            let client = async {
                loop {
                    let answers = link.send(vec![command("mg c v", None)]).await;
                    if matches!(answers[..], [Answer::Reply(..)]) {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                () = client => {}
                () = server => {}
            }
        });
    }

    #[test]
    fn a_server_that_refuses_is_told_apart_from_a_silent_one() {
        with_link(Duration::from_secs(10), |listener, link| async move {
            drop(listener);
            assert_eq!(link.send(vec![command("mg a v", None)]).await, [Answer::None(NoReply::Refused)]);
        });
    }
}
