//! Buffers and queues that one worker does not use at the moment.
//!
//! A waiting client holds none: it takes a buffer when it has something to read or write, and returns it once it is empty. So
//! thousands of idle clients own no buffers, and the busy ones share a few that are still in the processor's caches. Large
//! replies use them too, because fresh memory from the system costs more than copying into it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::BytesMut;

/// The smallest pooled buffer, in bytes. Every pooled size is a power of two.
pub(super) const SMALLEST: usize = 8 * 1024;
/// The largest pooled buffer, in bytes.
const LARGEST: usize = 4 * 1024 * 1024;
/// The number of pooled sizes.
const SIZES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// The most bytes in the pool; further buffers are freed.
const MAX_POOLED: usize = 16 * 1024 * 1024;

/// A worker's unused buffers. Behind a mutex because replies own buffers and may be dropped on any thread; it is rarely
/// contended.
#[derive(Debug, Default)]
pub(super) struct BufferPool(Mutex<Buffers>);

#[derive(Debug, Default)]
struct Buffers {
    /// The buffers of each size.
    by_size: [Vec<BytesMut>; SIZES],
    /// The fewest buffers of each size since the last [`BufferPool::free_unused`].
    fewest: [usize; SIZES],
    bytes: usize,
}

impl BufferPool {
    /// An empty buffer for at least this many bytes: the one returned last, which is most likely still in the caches.
    pub(super) fn take(&self, capacity: usize) -> BytesMut {
        if capacity > LARGEST {
            return BytesMut::with_capacity(capacity);
        }
        let bytes = capacity.max(SMALLEST).next_power_of_two();
        let size = (bytes / SMALLEST).ilog2() as usize;
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match buffers.by_size[size].pop() {
            None => BytesMut::with_capacity(bytes),
            Some(buffer) => {
                buffers.bytes -= bytes;
                buffers.fewest[size] = buffers.fewest[size].min(buffers.by_size[size].len());
                buffer
            }
        }
    }

    /// Keeps a buffer for later use, or frees it if the pool is full. Its contents are discarded.
    pub(super) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        // The capacity does not include bytes taken from the front until a larger one is requested.
        let _ = buffer.try_reclaim(buffer.capacity() + 1);
        let Some(size) = (buffer.capacity() / SMALLEST).checked_ilog2().map(|size| size as usize) else {
            return;
        };
        let bytes = SMALLEST << size;
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if size < SIZES && buffers.bytes + bytes <= MAX_POOLED {
            buffers.bytes += bytes;
            buffers.by_size[size].push(buffer);
        }
    }

    /// Frees the buffers that were not taken since the last call.
    pub(super) fn free_unused(&self) {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for size in 0..SIZES {
            let unused = buffers.fewest[size];
            buffers.by_size[size].drain(..unused);
            buffers.bytes -= unused * (SMALLEST << size);
            buffers.fewest[size] = buffers.by_size[size].len();
        }
    }
}

/// The most pooled queues, and the largest capacity of one.
const MAX_QUEUES: usize = 64;

/// A worker's unused queues, all empty.
pub struct QueuePool<T>(RefCell<Vec<VecDeque<T>>>);

impl<T> Default for QueuePool<T> {
    fn default() -> Self {
        QueuePool(RefCell::default())
    }
}

impl<T> QueuePool<T> {
    /// An empty queue, with capacity if one is pooled.
    pub fn take(&self) -> VecDeque<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes the queue's memory if it is empty.
    pub fn take_back(&self, queue: &mut VecDeque<T>) {
        if queue.is_empty() && queue.capacity() > 0 {
            let (queue, mut pooled) = (std::mem::take(queue), self.0.borrow_mut());
            if queue.capacity() <= MAX_QUEUES && pooled.len() < MAX_QUEUES {
                pooled.push(queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn bytes(pool: &BufferPool) -> usize {
        pool.0.lock().unwrap().bytes
    }

    #[test]
    fn a_returned_buffer_is_taken_again_for_its_size() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(100_000);
        assert_eq!(buffer.capacity(), 128 * 1024);
        buffer.extend_from_slice(&[b'x'; 100_000]);
        let at = buffer.as_ptr();
        // Only the last reference to a reply yields its buffer.
        let reply = buffer.freeze();
        let Err(reply) = (reply.clone(), reply).1.try_into_mut() else { panic!("there are two references") };
        pool.give(reply.try_into_mut().unwrap());
        assert_eq!(bytes(&pool), 128 * 1024);
        assert_ne!(pool.take(8192).as_ptr(), at);
        assert_ne!(pool.take(128 * 1024 + 1).as_ptr(), at);
        let again = pool.take(70_000);
        assert_eq!((again.as_ptr(), again.len(), bytes(&pool)), (at, 0, 0));
        // Also if most of it was consumed.
        let mut read = again;
        read.extend_from_slice(&[b'x'; 100_000]);
        read.advance(100_000);
        pool.give(read);
        assert_eq!(pool.take(128 * 1024).as_ptr(), at);
    }

    #[test]
    fn the_pool_is_bounded_and_holds_no_odd_sizes() {
        let pool = BufferPool::default();
        for _ in 0..40 {
            pool.give(BytesMut::with_capacity(1 << 20));
            pool.give(BytesMut::with_capacity(100));
            pool.give(BytesMut::with_capacity(LARGEST * 2));
        }
        assert_eq!(bytes(&pool), MAX_POOLED);
        assert_eq!(pool.take(LARGEST + 1).capacity(), LARGEST + 1);
    }

    #[test]
    fn an_empty_queue_is_pooled_unless_it_is_long() {
        let queues = QueuePool::default();
        let mut queue: VecDeque<u8> = [1, 2, 3].into();
        queues.take_back(&mut queue);
        assert_eq!(queue.len(), 3);
        queue.clear();
        queues.take_back(&mut queue);
        assert_eq!(queue.capacity(), 0);
        assert!(queues.take().capacity() >= 3 && queues.take().capacity() == 0);
        let mut long = VecDeque::with_capacity(MAX_QUEUES + 1);
        queues.take_back(&mut long);
        assert_eq!((long.capacity(), queues.take().capacity()), (0, 0));
        (0..2 * MAX_QUEUES).for_each(|_| queues.take_back(&mut VecDeque::with_capacity(1)));
        assert_eq!(queues.0.borrow().len(), MAX_QUEUES);
    }

    #[test]
    fn buffers_unused_between_two_calls_are_freed() {
        let pool = BufferPool::default();
        let taken = [0; 4].map(|_| pool.take(8192));
        taken.into_iter().for_each(|buffer| pool.give(buffer));
        pool.free_unused();
        let needed = [0; 3].map(|_| pool.take(8192));
        needed.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(bytes(&pool), 4 * 8192);
        pool.free_unused();
        assert_eq!(bytes(&pool), 3 * 8192);
        pool.free_unused();
        assert_eq!(bytes(&pool), 0);
    }
}
