//! Commands of `kinds` on the embedded store, as they are on the wire.

use bytes::{Bytes, BytesMut};
use kennel::embedded::Store;
use kennel::kinds::Command;
use kennel::protocol::parse::parse;
use kennel::protocol::request::{Limits, Parsed};
use kennel::proxy::kind_wire;

/// Carries out a command at this time, in Unix ms. Returns the reply's bytes.
pub fn execute(store: &mut Store, command: &Command, wall: u64) -> Bytes {
    let mut line = BytesMut::new();
    kind_wire::encode(command, &mut line);
    run(store, &line, wall)
}

/// Carries out the command with these bytes.
pub fn run(store: &mut Store, command: &[u8], wall: u64) -> Bytes {
    let mut reply = Vec::with_capacity(64);
    match parse(command, &Limits { max_value: 1 << 20 }) {
        Parsed::Request { request, consumed } if consumed == command.len() => {
            store.execute(&request, wall, &mut reply);
        }
        other => panic!("no server accepts {} ({other:?})", command.escape_ascii()),
    }
    Bytes::from(reply)
}
