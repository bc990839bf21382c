//! A connection that is closed while no command is on the way: servers do so after a time (`idle_timeout`), and so do firewalls
//! and load balancers. Nothing is lost, so it is no failure: the connection is made again at once, and what is queued meanwhile
//! waits for it, for `connect_timeout` at most.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use super::{Connection, DeferredCommand, Phase, State};
use crate::upstream::connection_error::ConnectionError;
use crate::upstream::socket::Socket;

impl State {
    /// Whether the server has been sent nothing that it has not answered.
    fn nothing_is_sent(&self) -> bool {
        self.unwritten == self.pending.len() && !self.is_behind
    }
}

impl Connection {
    /// Finds out, before the first command is written after a pause, whether the server has closed the connection.
    pub(super) fn poll_closed(&self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        let state = self.state.borrow();
        if state.output.is_empty() || !state.nothing_is_sent() {
            return Poll::Pending;
        }
        let mut byte = [0; 1];
        let mut input = ReadBuf::new(&mut byte);
        let read = ready!(Pin::new(socket).poll_read(cx, &mut input));
        Poll::Ready(match read.is_err() || input.filled().is_empty() {
            true => ConnectionError::Idle,
            false => ConnectionError::Garbage("a reply to no request"),
        })
    }

    /// The connection has ended with this error: whether it was idle.
    pub(super) fn ended(&self, error: ConnectionError) -> ConnectionError {
        let is_idle = self.state.borrow().nothing_is_sent();
        match error {
            ConnectionError::Closed | ConnectionError::Io(_) if is_idle => ConnectionError::Idle,
            error => error,
        }
    }

    /// Keeps what is queued for the next connection. Commands of the guard wait until it is known what the server can do, and
    /// whether their CAS is still valid.
    pub(super) fn hold(&self) {
        let mut state = self.state.borrow_mut();
        state.unsent_reads.new_turn();
        state.get_line.close();
        (state.phase, state.is_behind, state.batch_sent) = (Phase::Connecting, true, None);
        let written = std::mem::take(&mut state.output);
        let mut rest = 0;
        for mut request in std::mem::take(&mut state.pending) {
            let Some(command) = request.guarded.take() else {
                state.pending.push_back(request);
                continue;
            };
            state.output.extend_from_slice(&written[rest..command.at.start]);
            rest = command.at.end;
            let (length, cas_epoch) = (command.at.len(), command.cas_epoch);
            state.deferred.output.extend_from_slice(&written[command.at]);
            state.deferred.commands.push_back(DeferredCommand { request, length, cas_epoch });
        }
        state.output.extend_from_slice(&written[rest..]);
        state.unwritten = state.pending.len();
    }
}
