//! Where the answers to one asker's commands arrive.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::memory_budget::{ClientUsage, CloseReason};
use crate::error::Failure;

/// A smaller answer does not count towards the budget by itself: there are few of them for one client.
pub(super) const COUNTED: usize = 4 * 1024;
/// With so many answers owed or here, a small one is copied: else each could keep a whole buffer that was read into, and that
/// of a client which takes nothing for long.
const CROWDED: usize = 64;
/// What ends the answer to a `get`.
pub const END: &[u8] = b"END\r\n";

/// Names one command of an inbox, and so its reply. Numbers rise in the order of sending.
pub type ReplyId = u64;

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
    /// Of a `get` that went with others: its values, or nothing, and no [`END`] behind them. It is small.
    Part {
        /// As they came.
        bytes: Bytes,
        /// As of an answer.
        epoch: u32,
    },
    /// It was conditional on a CAS of a connection that has been remade since, and was not sent.
    Moved,
    /// There is no answer, and whether it was carried out is not known.
    Failed(Failure),
}

impl Reply {
    /// Without what was read around it, if it is small: beside other such answers in `copies`.
    fn apart(self, copies: &mut BytesMut) -> Reply {
        let mut apart = |bytes: Bytes| {
            if bytes.len() >= COUNTED {
                return bytes;
            }
            if copies.capacity() < bytes.len() {
                *copies = BytesMut::with_capacity(2 * COUNTED);
            }
            copies.extend_from_slice(&bytes);
            copies.split().freeze()
        };
        match self {
            Reply::Answered { bytes, epoch } => Reply::Answered { bytes: apart(bytes), epoch },
            Reply::Part { bytes, epoch } => Reply::Part { bytes: apart(bytes), epoch },
            reply => reply,
        }
    }
}

/// The replies that one task is owed, from any number of servers. Whoever awaits none any more drops it: what arrives later
/// is thrown away.
#[derive(Default)]
pub struct PendingReplies {
    inner: RefCell<State>,
    /// What its client holds and does; `None`: it is no client's.
    member: Option<ClientUsage>,
}

#[derive(Debug, Default)]
struct State {
    /// The ticket of the first slot.
    first: ReplyId,
    slots: VecDeque<Slot>,
    /// Room for copies of small answers.
    copies: BytesMut,
    waker: Option<Waker>,
}

/// A place for one reply.
#[derive(Debug)]
pub(super) enum Slot {
    Owed,
    Here(Reply),
    Taken,
}

impl PendingReplies {
    /// The inbox of a client on the roll.
    pub(super) fn of(member: ClientUsage) -> PendingReplies {
        PendingReplies { inner: RefCell::default(), member: Some(member) }
    }

    /// A place for one reply.
    pub(super) fn expect(&self) -> ReplyId {
        let mut inner = self.inner.borrow_mut();
        if let (0, Some(member)) = (inner.slots.capacity(), &self.member) {
            inner.slots = member.roll.slots.take_buffer();
        }
        inner.slots.push_back(Slot::Owed);
        inner.first + inner.slots.len() as u64 - 1
    }

    /// A reply has come. Wakes the asker.
    pub(super) fn deliver(&self, ticket: ReplyId, reply: Reply) {
        let reply = match (reply, &self.member) {
            (Reply::Answered { bytes, epoch }, Some(member)) if bytes.len() >= COUNTED => {
                // Small ones are kept, for a lease may have been won with one.
                if member.closing.get().is_some() {
                    return self.put(ticket, Reply::Failed(Failure::Overloaded));
                }
                let bytes = member.account.hold(bytes);
                self.put(ticket, Reply::Answered { bytes, epoch });
                return member.roll.make_room();
            }
            (reply, _) => reply,
        };
        self.put(ticket, reply);
    }

    fn put(&self, ticket: ReplyId, reply: Reply) {
        let mut inner = self.inner.borrow_mut();
        let Some(at) = ticket.checked_sub(inner.first) else { return };
        let State { slots, copies, .. } = &mut *inner;
        let crowded = slots.len() > CROWDED;
        if let Some(slot) = slots.get_mut(at as usize) {
            *slot = Slot::Here(if crowded { reply.apart(copies) } else { reply });
        }
        if let Some(waker) = inner.waker.take() {
            drop(inner);
            waker.wake();
        }
    }

    /// Takes a reply, if it is here.
    pub fn take(&self, ticket: ReplyId) -> Option<Reply> {
        let mut inner = self.inner.borrow_mut();
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
    pub fn is_here(&self, ticket: ReplyId) -> bool {
        let inner = self.inner.borrow();
        let at = ticket.checked_sub(inner.first).map(|at| at as usize);
        matches!(at.and_then(|at| inner.slots.get(at)), Some(Slot::Here(_)))
    }

    /// Has this task woken when the next reply comes.
    pub fn wake_on_next(&self, cx: &Context<'_>) {
        let mut inner = self.inner.borrow_mut();
        match &mut inner.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
    }

    /// Its client can do nothing until something comes: what it does not need until then is given back.
    pub fn rest(&self) {
        if let Some(member) = &self.member {
            let mut inner = self.inner.borrow_mut();
            member.roll.slots.take_back(&mut inner.slots);
            if inner.slots.is_empty() {
                inner.copies = BytesMut::new();
            }
        }
    }

    /// An empty buffer for an answer of so many bytes.
    pub(super) fn buffer(&self, room: usize) -> BytesMut {
        match &self.member {
            Some(member) => member.account.buffer(room),
            None => BytesMut::with_capacity(room),
        }
    }

    /// Its client's own buffers hold so many bytes now.
    pub fn holds(&self, bytes: usize) {
        let Some(member) = &self.member else { return };
        let before = member.own.replace(bytes);
        if bytes > before {
            member.account.add(bytes - before);
            member.roll.make_room();
        } else if bytes < before {
            member.account.take(before - bytes);
        }
    }

    /// An answer that is said later: counts until then.
    pub fn keep(&self, answer: Bytes) -> Bytes {
        match &self.member {
            Some(member) if answer.len() >= COUNTED => {
                let answer = member.account.hold(answer);
                member.roll.make_room();
                answer
            }
            _ => answer,
        }
    }

    /// How many bytes its client holds, answers and buffers.
    pub fn held(&self) -> usize {
        self.member.as_ref().map_or(0, |member| member.account.held())
    }

    /// Whether its client waits for an answer.
    pub fn is_busy(&self, busy: bool) {
        if let Some(member) = &self.member {
            member.busy.set(busy);
        }
    }

    /// Its client has done something: asked a whole request, or taken some of an answer.
    pub fn note_activity(&self) {
        if let Some(member) = &self.member {
            member.stirred.set(true);
        }
    }

    /// Whether its client has done something since this was asked last, or cannot do anything because it waits.
    pub(super) fn was_active(&self) -> bool {
        self.member.as_ref().is_none_or(|member| member.stirred.replace(false) || member.busy.get())
    }

    /// Whether its client is to be hung up on, and why.
    pub fn closing(&self) -> Option<CloseReason> {
        self.member.as_ref().and_then(|member| member.closing.get())
    }

    /// Has its client hung up on. The large answers that are here are gone at once.
    pub(super) fn close(&self, why: CloseReason) {
        let Some(member) = &self.member else { return };
        if member.closing.get().is_none() {
            member.closing.set(Some(why));
        }
        member.account.write_off();
        let mut inner = self.inner.borrow_mut();
        for slot in &mut inner.slots {
            if let Slot::Here(Reply::Answered { bytes, .. }) = slot
                && bytes.len() >= COUNTED
            {
                *slot = Slot::Here(Reply::Failed(Failure::Overloaded));
            }
        }
        if let Some(waker) = inner.waker.take() {
            drop(inner);
            waker.wake();
        }
    }

    /// Wakes its asker, who should look again at what it waits for.
    pub(super) fn wake(&self) {
        let waker = self.inner.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for one reply.
    pub async fn receive(&self, ticket: ReplyId) -> Reply {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_answer_of_who_takes_nothing_does_not_keep_all_that_was_read_with_it() {
        let inbox = PendingReplies::default();
        let tickets: Vec<ReplyId> = (0..2 * CROWDED).map(|_| inbox.expect()).collect();
        let read = Bytes::from(vec![b'x'; 64 * 1024]);
        let pieces = |part: bool| {
            let bytes = read.slice(..100);
            if part { Reply::Part { bytes, epoch: 1 } } else { Reply::Answered { bytes, epoch: 1 } }
        };
        tickets.iter().for_each(|ticket| inbox.deliver(*ticket, pieces(ticket % 2 == 0)));
        let taken: Vec<Reply> = tickets.iter().filter_map(|ticket| inbox.take(*ticket)).collect();
        assert_eq!(taken.len(), 2 * CROWDED);
        assert!(read.is_unique());
        // A large one has a buffer of its own, and who takes what comes has it as it came.
        let (large, small) = (inbox.expect(), inbox.expect());
        inbox.deliver(large, Reply::Answered { bytes: read.slice(..COUNTED), epoch: 1 });
        inbox.deliver(small, pieces(true));
        let held = [large, small].map(|ticket| inbox.take(ticket));
        assert!(held.iter().all(Option::is_some) && !read.is_unique());
    }
}
