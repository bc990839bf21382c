//! What has been read from a server and belongs to replies that are not whole.

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::time::Instant;

use super::pending_replies::{COUNTED, END, Reply};
use crate::protocol::reply::{Frame, Framer, Garbage, Shape};

/// The largest value a server may send.
const MAX_VALUE: usize = 1 << 30;
/// The buffer that replies are read into.
const READ_SIZE: usize = 64 * 1024;
/// With less room in it for a read, another is taken.
const MIN_ROOM: usize = 16 * 1024;
/// A reply of so many bytes that is not whole at once is read to its end into a buffer of its own.
const LARGE_REPLY: usize = 16 * 1024;
/// Behind a large reply so much is read at first: of the next one, if it is large too, no more has to be copied.
const PEEK: usize = 2 * 1024;

/// What has been read.
pub(super) struct ReadBuffer {
    input: BytesMut,
    /// The large reply that began in `input`, which is empty until this is whole.
    large: Option<BytesMut>,
    /// It may have many values: nobody knows how long it is before its end is here.
    endless: bool,
    /// The last reply was large.
    was_large: bool,
    /// How far the reply at the front has been looked at.
    framer: Option<Framer>,
    /// How many bytes it still lacks, at least.
    missing: usize,
    /// When something was read last.
    pub(super) last: Instant,
}

impl ReadBuffer {
    pub(super) fn new() -> ReadBuffer {
        ReadBuffer {
            input: BytesMut::new(),
            large: None,
            endless: false,
            was_large: false,
            framer: None,
            missing: 1,
            last: Instant::now(),
        }
    }

    /// Where to read, and how much at most: of a large reply never more than belongs to it, if that is known.
    pub(super) fn room(&mut self) -> Limit<&mut BytesMut> {
        if let Some(large) = &mut self.large {
            let room = if self.endless { self.missing.max(MIN_ROOM) } else { self.missing };
            large.reserve(room);
            return large.limit(room);
        }
        if self.input.capacity() - self.input.len() < MIN_ROOM {
            self.input.reserve(READ_SIZE);
        }
        (&mut self.input).limit(if self.was_large { PEEK } else { READ_SIZE })
    }

    /// Whether the reply at the front is large.
    pub(super) fn is_large(&self) -> bool {
        self.large.is_some()
    }

    /// Whether nothing is left to be looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.large.as_ref().unwrap_or(&self.input).is_empty()
    }

    /// How much of the reply at the front is there, which is of this shape; `keys`: of a part.
    pub(super) fn frame(&mut self, shape: Shape, keys: &[u64]) -> Result<Frame, Garbage> {
        let front = self.large.as_ref().unwrap_or(&self.input);
        self.framer.get_or_insert_with(|| Framer::new(shape, MAX_VALUE)).frame(front, keys)
    }

    /// The reply at the front lacks so many bytes, at least. `endless`: it may have many values. `buffer` gives an empty one of a
    /// size.
    pub(super) fn missing_bytes(
        &mut self,
        missing: usize,
        endless: bool,
        buffer: impl FnOnce(usize) -> BytesMut,
    ) {
        (self.missing, self.endless) = (missing, endless);
        let length = self.input.len() + missing;
        if self.large.is_none() && length >= LARGE_REPLY {
            let mut large = buffer(length);
            large.extend_from_slice(&self.input);
            self.input.clear();
            self.large = Some(large);
        }
    }

    /// Takes the reply at the front, which has so many bytes.
    pub(super) fn take(&mut self, length: usize) -> BytesMut {
        (self.framer, self.missing, self.was_large) = (None, 1, self.large.is_some());
        match self.large.take() {
            Some(mut large) => {
                if large.len() > length {
                    // The next replies.
                    self.input.extend_from_slice(&large[length..]);
                    large.truncate(length);
                }
                large
            }
            None => self.input.split_to(length),
        }
    }

    /// The same, if the server has said it to one of several.
    pub(super) fn take_part(&mut self, length: usize, epoch: u32) -> Reply {
        let was_large = self.large.is_some();
        let mut part = self.take(length);
        if length < COUNTED {
            return Reply::Part { bytes: part.freeze(), epoch };
        }
        if !was_large {
            // What has been read behind it leaves no room.
            let copied = std::mem::replace(&mut part, BytesMut::with_capacity(length + END.len()));
            part.extend_from_slice(&copied);
        }
        part.extend_from_slice(END);
        Reply::Answered { bytes: part.freeze(), epoch }
    }

    /// What the reply at the front says stays there, for the next ones: the first so many bytes.
    pub(super) fn leave(&mut self, length: usize) -> Bytes {
        self.framer = None;
        Bytes::copy_from_slice(&self.large.as_ref().unwrap_or(&self.input)[..length])
    }
}
