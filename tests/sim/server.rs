//! A simulated memcached: the embedded store, accessed through the wire protocol.

use bytes::{Bytes, BytesMut};
use kennel::embedded::Store;
use kennel::guard::{Operation, ServerCommand};
use kennel::protocol::parse::parse;
use kennel::protocol::request::{Limits, Parsed};
use kennel::proxy::wire;

const LIMIT: u64 = 64 << 20;

pub struct Server {
    store: Store,
    /// Buffer for the command.
    buffer: BytesMut,
}

impl Server {
    pub fn start(wall: u64) -> Server {
        Server { store: Store::new(LIMIT, wall), buffer: BytesMut::new() }
    }

    /// Executes a command. Returns the reply as bytes of the wire. As in memcached, a value longer than `max_value` is refused
    /// and the previous one is removed.
    pub fn execute(&mut self, command: &ServerCommand, key: &[u8], max_value: usize, wall: u64) -> Bytes {
        if let Operation::Store { value, .. } = &command.operation
            && value.len() > max_value
        {
            self.evict(key, wall);
            return Bytes::from_static(b"SERVER_ERROR object too large for cache\r\n");
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        wire::encode(&command.operation, key, &mut buffer);
        let reply = self.run(&buffer, wall);
        self.buffer = buffer;
        reply
    }

    /// Removes an item, as if it had been evicted.
    pub fn evict(&mut self, key: &[u8], wall: u64) {
        self.run(&[b"md ", key, b"\r\n"].concat(), wall);
    }

    /// `flush_all`.
    pub fn flush(&mut self, wall: u64) {
        self.run(b"flush_all\r\n", wall);
    }

    /// The value under a key and its client flags, without counting as a read.
    pub fn peek(&self, key: &[u8], wall: u64) -> Option<(Bytes, u32)> {
        let reply = Server { store: self.store.clone(), buffer: BytesMut::new() }
            .run(&[b"mg ", key, b" v f\r\n"].concat(), wall);
        let data = kennel::protocol::reply::meta(&reply);
        let flags = data.number(b'f').unwrap_or_default() as u32;
        reply.starts_with(b"VA").then(|| (Bytes::copy_from_slice(data.data), flags))
    }

    fn run(&mut self, command: &[u8], wall: u64) -> Bytes {
        let mut reply = Vec::with_capacity(128);
        match parse(command, &Limits { max_value: 1 << 20 }) {
            Parsed::Request { request, consumed } => {
                assert_eq!(consumed, command.len(), "one command at a time: {}", command.escape_ascii());
                self.store.execute(&request, wall, &mut reply);
            }
            other => panic!(
                "the guard sent a command that memcached does not accept: {} {other:?}",
                command.escape_ascii()
            ),
        }
        Bytes::from(reply)
    }
}
