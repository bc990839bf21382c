//! The monitor's connection to one server. Each has a task of its own, so that a server that does not reply delays nobody.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::upstream::{BatchConnection, NoReply};

/// A meta command for a server.
#[derive(Debug)]
pub(super) struct Command<I> {
    /// Identifies its reply.
    pub(super) id: I,
    /// The whole command.
    pub(super) bytes: Bytes,
}

/// What happens on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkEvent<I> {
    /// What became of a command. Every command has exactly one of these.
    Replied { id: I, sent: Instant, reply: Result<Bytes, NoReply> },
    /// The connection ended while no reply was awaited: the server may have stopped.
    Ended,
}

/// Sends the commands that arrive, all that are queued in one write, and passes on what becomes of them. `limit` is how long
/// replies may take. Returns when the sender or the receiver of the other end is dropped.
pub(super) async fn run<I>(
    mut connection: BatchConnection,
    limit: Duration,
    mut commands: UnboundedReceiver<Command<I>>,
    events: UnboundedSender<LinkEvent<I>>,
) {
    let mut batch = Vec::new();
    let mut output = BytesMut::new();
    while !events.is_closed() {
        tokio::select! {
            received = commands.recv_many(&mut batch, usize::MAX) => if received == 0 { return },
            () = connection.ended() => {
                let _ = events.send(LinkEvent::Ended);
                continue;
            }
        }
        output.clear();
        batch.iter().for_each(|command| output.extend_from_slice(&command.bytes));
        // Not later than when they are written, so that nothing that is carried out afterwards counts as seen.
        let sent = Instant::now();
        let count = batch.len();
        let mut ids = batch.drain(..).map(|command| command.id);
        let mut deliver = |reply| {
            if let Some(id) = ids.next() {
                // An error means that the monitor is ending.
                let _ = events.send(LinkEvent::Replied { id, sent, reply });
            }
        };
        let result = connection.exchange(&output, count, limit, |reply| deliver(Ok(reply))).await;
        if let Err(why) = result {
            for id in ids {
                let _ = events.send(LinkEvent::Replied { id, sent, reply: Err(why) });
            }
        }
    }
}
