//! Where the answers to one asker's commands arrive.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::error::Failure;

/// Names one command of an inbox, and so its reply. Numbers rise in the order of sending.
pub type Ticket = u64;

/// What became of a command.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The server's answer, whole, with its CRLF.
    Answered {
        /// As it came.
        bytes: Bytes,
        /// When its command was sent, counted in connections made to that server: see [`super::server::Server`].
        epoch: u32,
    },
    /// It was conditional on a CAS of a connection that has been remade since, and was not sent.
    Moved,
    /// There is no answer, and whether it was carried out is not known.
    Failed(Failure),
}

/// The replies that one task is owed, from any number of servers. Whoever awaits none any more drops it: what arrives later
/// is thrown away.
#[derive(Debug, Default)]
pub struct Inbox(RefCell<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The ticket of the first slot.
    first: Ticket,
    slots: VecDeque<Slot>,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Slot {
    Owed,
    Here(Reply),
    Taken,
}

impl Inbox {
    /// A place for one reply.
    pub(super) fn expect(&self) -> Ticket {
        let mut inner = self.0.borrow_mut();
        inner.slots.push_back(Slot::Owed);
        inner.first + inner.slots.len() as u64 - 1
    }

    /// A reply has come. Wakes the asker.
    pub(super) fn deliver(&self, ticket: Ticket, reply: Reply) {
        let mut inner = self.0.borrow_mut();
        let Some(at) = ticket.checked_sub(inner.first) else { return };
        if let Some(slot) = inner.slots.get_mut(at as usize) {
            *slot = Slot::Here(reply);
        }
        if let Some(waker) = inner.waker.take() {
            drop(inner);
            waker.wake();
        }
    }

    /// Takes a reply, if it is here.
    pub fn take(&self, ticket: Ticket) -> Option<Reply> {
        let mut inner = self.0.borrow_mut();
        let at = ticket.checked_sub(inner.first)? as usize;
        let slot = inner.slots.get_mut(at)?;
        let Slot::Here(_) = slot else { return None };
        let Slot::Here(reply) = std::mem::replace(slot, Slot::Taken) else { return None };
        while let Some(Slot::Taken) = inner.slots.front() {
            inner.slots.pop_front();
            inner.first += 1;
        }
        Some(reply)
    }

    /// Whether a reply is here.
    pub fn is_here(&self, ticket: Ticket) -> bool {
        let inner = self.0.borrow();
        let at = ticket.checked_sub(inner.first).map(|at| at as usize);
        matches!(at.and_then(|at| inner.slots.get(at)), Some(Slot::Here(_)))
    }

    /// Has this task woken when the next reply comes.
    pub fn wake_on_next(&self, cx: &Context<'_>) {
        let mut inner = self.0.borrow_mut();
        match &mut inner.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
    }

    /// Waits for one reply.
    pub async fn receive(&self, ticket: Ticket) -> Reply {
        std::future::poll_fn(|cx| match self.take(ticket) {
            Some(reply) => Poll::Ready(reply),
            None => {
                self.wake_on_next(cx);
                Poll::Pending
            }
        })
        .await
    }
}
