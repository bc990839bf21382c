//! Cuts what a server sends into replies, with few copies of large ones.

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::reply::{COUNTED, END, Reply};
use crate::protocol::reply::{Frame, Framer, Garbage, Shape};

/// The largest value a server may send, in bytes.
const MAX_VALUE: usize = 1 << 30;
/// The size of the buffer that replies are read into.
const READ_SIZE: usize = 64 * 1024;
/// With less free space than this, a new buffer is allocated.
const MIN_ROOM: usize = 16 * 1024;
/// An incomplete reply of at least this many bytes is read into a buffer of its own.
const LARGE_REPLY: usize = 16 * 1024;
/// The size of the first read after a large reply: if the next reply is large too, only this much of it is copied.
const PEEK: usize = 2 * 1024;

/// Received bytes that were not yet taken as replies.
pub(super) struct ReadBuffer {
    input: BytesMut,
    /// The large reply that began in `input`. `input` is empty until it is complete.
    large: Option<BytesMut>,
    /// Whether the large reply may have several values, so that its length is unknown.
    unbounded: bool,
    /// Whether the previous reply was large.
    was_large: bool,
    /// The progress of parsing the first reply.
    framer: Option<Framer>,
    /// The least number of bytes the first reply lacks.
    missing: usize,
    /// When data last arrived.
    pub(super) last_read: Instant,
}

impl ReadBuffer {
    pub(super) fn new() -> ReadBuffer {
        ReadBuffer {
            input: BytesMut::new(),
            large: None,
            unbounded: false,
            was_large: false,
            framer: None,
            missing: 1,
            last_read: Instant::now(),
        }
    }

    /// The buffer to read into, limited to the bytes of a large reply if its length is known.
    pub(super) fn free_space(&mut self) -> Limit<&mut BytesMut> {
        if let Some(large) = &mut self.large {
            let space = if self.unbounded { self.missing.max(MIN_ROOM) } else { self.missing };
            large.reserve(space);
            return large.limit(space);
        }
        if self.input.capacity() - self.input.len() < MIN_ROOM {
            self.input.reserve(READ_SIZE);
        }
        (&mut self.input).limit(if self.was_large { PEEK } else { READ_SIZE })
    }

    /// Whether the first reply is large.
    pub(super) fn is_large(&self) -> bool {
        self.large.is_some()
    }

    /// Whether no received bytes are left.
    pub(super) fn is_empty(&self) -> bool {
        self.large.as_ref().unwrap_or(&self.input).is_empty()
    }

    /// Parses the first reply, of this shape. `keys` are the digests of the keys of a [`Shape::Part`].
    pub(super) fn frame(&mut self, shape: Shape, keys: &[u64]) -> Result<Frame, Garbage> {
        let input = self.large.as_ref().unwrap_or(&self.input);
        self.framer.get_or_insert_with(|| Framer::new(shape, MAX_VALUE)).frame(input, keys)
    }

    /// Prepares to read the rest of the first reply, which lacks at least `missing` bytes. `unbounded`: it may have several
    /// values. `buffer` allocates an empty buffer of a size.
    pub(super) fn expect_more(
        &mut self,
        missing: usize,
        unbounded: bool,
        buffer: impl FnOnce(usize) -> BytesMut,
    ) {
        (self.missing, self.unbounded) = (missing, unbounded);
        let length = self.input.len() + missing;
        if self.large.is_none() && length >= LARGE_REPLY {
            let mut large = buffer(length);
            large.extend_from_slice(&self.input);
            self.input.clear();
            self.large = Some(large);
        }
    }

    /// Takes the first reply, of this length.
    pub(super) fn take(&mut self, length: usize) -> BytesMut {
        (self.framer, self.missing, self.was_large) = (None, 1, self.large.is_some());
        match self.large.take() {
            Some(mut large) => {
                if large.len() > length {
                    // The rest belongs to the next replies.
                    self.input.extend_from_slice(&large[length..]);
                    large.truncate(length);
                }
                large
            }
            None => self.input.split_to(length),
        }
    }

    /// Takes one client's part of the reply to a batched `get`.
    pub(super) fn take_part(&mut self, length: usize, epoch: u32) -> Reply {
        let was_large = self.large.is_some();
        let mut part = self.take(length);
        if length < COUNTED {
            return Reply::Part { bytes: part.freeze(), epoch };
        }
        if !was_large {
            // The bytes read after it leave no room to append.
            let copied = std::mem::replace(&mut part, BytesMut::with_capacity(length + END.len()));
            part.extend_from_slice(&copied);
        }
        part.extend_from_slice(END);
        Reply::Answered { bytes: part.freeze(), epoch }
    }

    /// Copies the first `length` bytes and leaves them for the requests that share them.
    pub(super) fn copy(&mut self, length: usize) -> Bytes {
        self.framer = None;
        Bytes::copy_from_slice(&self.large.as_ref().unwrap_or(&self.input)[..length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_above_the_limit_is_garbage() {
        for (length, valid) in [(1 << 30, true), ((1 << 30) + 1, false)] {
            let mut input = ReadBuffer::new();
            input.free_space().put_slice(format!("VALUE a 0 {length}\r\nx").as_bytes());
            assert_eq!(input.frame(Shape::Values, &[]).is_ok(), valid, "{length}");
        }
    }
}
