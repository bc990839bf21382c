//! Which machine carries out a client's command.

use super::copies;
use super::counter;
use super::item::{ItemKey, own_length};
use super::list;
use super::lock;
use super::log;
use super::machine::Machine;
use super::memory::Memory;
use super::request::Request;
use super::settings::{Copied, Kind};
use super::table;
use super::window;

/// The length of the kind's own key in a key of a client: what follows it names a part. `prefix`: the length of the text that
/// every key of the rule begins with.
pub fn split(kind: &Kind, prefix: usize, key: &[u8]) -> usize {
    match kind {
        Kind::Copied(_) | Kind::Counter(_) | Kind::Lock(_) | Kind::Window(_) => key.len(),
        Kind::List(_) | Kind::Log(_) => own_length(b'@', prefix, key),
        Kind::Table(_) => own_length(b'/', prefix, key),
    }
}

/// The same for a command with a value, in which the key of a window with `unique` ends at the last ':', before the visitor. `length`
/// is what [`split`] has returned.
pub fn split_store(kind: &Kind, length: usize, key: &[u8]) -> usize {
    match kind {
        Kind::Window(window) if window.unique => memchr::memrchr(b':', key).unwrap_or(length),
        _ => length,
    }
}

/// The error for a command that this kind does not have, which names those that it has.
pub fn commands_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Copied(Copied { counter: None }) => copies::COMMANDS,
        Kind::Copied(_) | Kind::Counter(_) => counter::COMMANDS,
        Kind::List(_) => list::COMMANDS,
        Kind::Lock(_) => lock::COMMANDS,
        Kind::Log(_) => log::COMMANDS,
        Kind::Table(_) => table::COMMANDS,
        Kind::Window(window) if window.unique => window::UNIQUE_COMMANDS,
        Kind::Window(_) => window::COMMANDS,
    }
}

/// The items that tell what a structure has, if none is under its own key: of a window or log those of its slots, of a list or table those
/// of its shards. Of other kinds, none. `now`: wall time in ms.
pub fn items_below(kind: &Kind, own: &[u8], now: u64) -> Vec<ItemKey> {
    match kind {
        Kind::Copied(_) | Kind::Counter(_) | Kind::Lock(_) => Vec::new(),
        Kind::List(_) => list::items_below(own),
        Kind::Table(_) => table::items_below(own),
        Kind::Log(settings) => log::items_below(settings, own, now),
        Kind::Window(settings) => window::items_below(settings, own, now),
    }
}

/// Begins a client's command. `key`: what the client sent, of which the first `length` bytes are the kind's own key. `memory`:
/// that of the rule. `now`: wall time in ms. The error is a line with its CRLF.
pub fn begin(
    kind: &Kind,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    memory: &Memory,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    Ok(match kind {
        Kind::Copied(settings) => copies::begin(settings, key, request, now)?,
        Kind::Counter(settings) => Box::new(counter::begin(settings, key, request, now)?),
        Kind::List(settings) => list::begin(settings, key, length, request)?,
        Kind::Lock(settings) => lock::begin(settings, key, request, now)?,
        Kind::Log(settings) => log::begin(settings, key, length, request, &memory.log_ends, now)?,
        // An element is stored by the client's own command: see `note`.
        Kind::Table(_) => table::begin(&key[..length], request)?,
        Kind::Window(settings) => window::begin(settings, key, length, request, now)?,
    })
}
