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
    /// The whole command.
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
