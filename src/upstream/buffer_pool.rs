//! Buffers that one worker does not need at the moment.
//!
//! Who waits holds none: a client takes one when it has something to read or to say, and gives it back as soon as it is empty.
//! So ten thousand idle clients own no buffers, and those who are busy share a few that are still in the processor's caches.
//! Large answers pass through them too: memory fresh from the system costs more than all that is done with what is in it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::BytesMut;

/// The smallest buffer that is kept, in bytes. All are kept by their size, a power of two.
pub(super) const SMALLEST: usize = 8 * 1024;
/// The largest.
const LARGEST: usize = 4 * 1024 * 1024;
/// How many sizes there are.
const KINDS: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// No more bytes than this are kept; what is given back beyond is freed.
const MAX_SPARE: usize = 16 * 1024 * 1024;

/// A worker's spare buffers. In a mutex because answers carry their buffers, and these could be dropped anywhere; nobody
/// contends for it.
#[derive(Debug, Default)]
pub(super) struct BufferPool(Mutex<IdleBuffer>);

#[derive(Debug, Default)]
struct IdleBuffer {
    kinds: [Vec<BytesMut>; KINDS],
    /// How few of each kind there were since it was looked at last.
    least: [usize; KINDS],
    bytes: usize,
}

impl BufferPool {
    /// An empty buffer with room for so many bytes. The one that was given back last: it is the warmest.
    pub(super) fn take(&self, room: usize) -> BytesMut {
        if room > LARGEST {
            return BytesMut::with_capacity(room);
        }
        let size = room.max(SMALLEST).next_power_of_two();
        let kind = (size / SMALLEST).ilog2() as usize;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.kinds[kind].pop() {
            None => BytesMut::with_capacity(size),
            Some(buffer) => {
                kept.bytes -= size;
                kept.least[kind] = kept.least[kind].min(kept.kinds[kind].len());
                buffer
            }
        }
    }

    /// Keeps a buffer that is not needed any more, whatever it holds, if somebody may want it.
    pub(super) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        // Its capacity does not count what has been taken from its front, until more is wanted than is left.
        let _ = buffer.try_reclaim(buffer.capacity() + 1);
        let Some(kind) = (buffer.capacity() / SMALLEST).checked_ilog2().map(|kind| kind as usize) else {
            return;
        };
        let size = SMALLEST << kind;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kind < KINDS && kept.bytes + size <= MAX_SPARE {
            kept.bytes += size;
            kept.kinds[kind].push(buffer);
        }
    }

    /// Frees those that nobody has needed since this was called last.
    pub(super) fn forget(&self) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in 0..KINDS {
            let idle = kept.least[kind];
            kept.kinds[kind].drain(..idle);
            kept.bytes -= idle * (SMALLEST << kind);
            kept.least[kind] = kept.kinds[kind].len();
        }
    }
}

/// The most queues that are kept, and the most places of one.
const MAX_QUEUES: usize = 64;

/// Queues with nothing in them. Who waits holds none of these either.
pub struct QueuePool<T>(RefCell<Vec<VecDeque<T>>>);

impl<T> Default for QueuePool<T> {
    fn default() -> Self {
        QueuePool(RefCell::default())
    }
}

impl<T> QueuePool<T> {
    /// One with room, if one is at hand.
    pub fn take_buffer(&self) -> VecDeque<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes one, if it is empty.
    pub fn take_back(&self, queue: &mut VecDeque<T>) {
        if queue.is_empty() && queue.capacity() > 0 {
            let (queue, mut kept) = (std::mem::take(queue), self.0.borrow_mut());
            if queue.capacity() <= MAX_QUEUES && kept.len() < MAX_QUEUES {
                kept.push(queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn bytes(spare: &BufferPool) -> usize {
        spare.0.lock().unwrap().bytes
    }

    #[test]
    fn what_is_given_back_is_taken_again_by_whoever_needs_that_much() {
        let spare = BufferPool::default();
        let mut buffer = spare.take(100_000);
        assert_eq!(buffer.capacity(), 128 * 1024);
        buffer.extend_from_slice(&[b'x'; 100_000]);
        let at = buffer.as_ptr();
        // Only the last holder of an answer has its buffer.
        let answer = buffer.freeze();
        let Err(answer) = (answer.clone(), answer).1.try_into_mut() else { panic!("it is held twice") };
        spare.give(answer.try_into_mut().unwrap());
        assert_eq!(bytes(&spare), 128 * 1024);
        assert_ne!(spare.take(8192).as_ptr(), at);
        assert_ne!(spare.take(128 * 1024 + 1).as_ptr(), at);
        let again = spare.take(70_000);
        assert_eq!((again.as_ptr(), again.len(), bytes(&spare)), (at, 0, 0));
        // Also if nearly all of it has been read.
        let mut read = again;
        read.extend_from_slice(&[b'x'; 100_000]);
        read.advance(100_000);
        spare.give(read);
        assert_eq!(spare.take(128 * 1024).as_ptr(), at);
    }

    #[test]
    fn no_more_is_kept_than_may_be_and_nothing_that_nobody_wants() {
        let spare = BufferPool::default();
        for _ in 0..40 {
            spare.give(BytesMut::with_capacity(1 << 20));
            spare.give(BytesMut::with_capacity(100));
            spare.give(BytesMut::with_capacity(LARGEST * 2));
        }
        assert_eq!(bytes(&spare), MAX_SPARE);
        assert_eq!(spare.take(LARGEST + 1).capacity(), LARGEST + 1);
    }

    #[test]
    fn an_empty_queue_is_kept_for_the_next_who_needs_one_unless_it_is_long() {
        let queues = QueuePool::default();
        let mut queue: VecDeque<u8> = [1, 2, 3].into();
        queues.take_back(&mut queue);
        assert_eq!(queue.len(), 3);
        queue.clear();
        queues.take_back(&mut queue);
        assert_eq!(queue.capacity(), 0);
        assert!(queues.take_buffer().capacity() >= 3 && queues.take_buffer().capacity() == 0);
        let mut long = VecDeque::with_capacity(MAX_QUEUES + 1);
        queues.take_back(&mut long);
        assert_eq!((long.capacity(), queues.take_buffer().capacity()), (0, 0));
        (0..2 * MAX_QUEUES).for_each(|_| queues.take_back(&mut VecDeque::with_capacity(1)));
        assert_eq!(queues.0.borrow().len(), MAX_QUEUES);
    }

    #[test]
    fn what_nobody_needs_from_one_look_to_the_next_is_freed() {
        let spare = BufferPool::default();
        let taken = [0; 4].map(|_| spare.take(8192));
        taken.into_iter().for_each(|buffer| spare.give(buffer));
        spare.forget();
        let needed = [0; 3].map(|_| spare.take(8192));
        needed.into_iter().for_each(|buffer| spare.give(buffer));
        assert_eq!(bytes(&spare), 4 * 8192);
        spare.forget();
        assert_eq!(bytes(&spare), 3 * 8192);
        spare.forget();
        assert_eq!(bytes(&spare), 0);
    }
}
