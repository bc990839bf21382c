//! Which machine carries out a client's command.

use std::time::Duration;

use super::copies::{self, OnCopies};
use super::counter;
use super::item::{INFIX, ItemKey, MAX_BELOW, own_length};
use super::list;
use super::lock;
use super::log;
use super::machine::{Machine, Order};
use super::memory::Memory;
use super::request::Request;
use super::settings::{Copied, Kind};
use super::table;
use super::window;

/// The length of the kind's own key in a key of a client: what follows it names a part. `prefix`: the length of the text that
/// every key of the rule begins with.
pub fn split(kind: &Kind, prefix: usize, key: &[u8]) -> usize {
    match kind.structure() {
        None | Some(Kind::Copied(_) | Kind::Counter(_) | Kind::Lock(_) | Kind::Window(_)) => key.len(),
        Some(Kind::List(_) | Kind::Log(_)) => own_length(b'@', prefix, key),
        Some(Kind::Table(_)) => own_length(b'/', prefix, key),
    }
}

/// The same for a command with a value, in which the key of a window with `unique` ends at the last ':', before the visitor. `length`
/// is what [`split`] has returned.
pub fn split_store(kind: &Kind, length: usize, key: &[u8]) -> usize {
    match kind.structure() {
        Some(Kind::Window(window)) if window.unique => memchr::memrchr(b':', key).unwrap_or(length),
        _ => length,
    }
}

/// The error for a command that this kind does not have, which names those that it has. `part`: whether the command is on a part of the
/// structure.
pub fn commands_of(kind: &Kind, part: bool) -> &'static str {
    match kind {
        Kind::Copied(Copied { of: None }) => copies::COMMANDS,
        Kind::Copied(Copied { of: Some(kind) }) => match **kind {
            // An element is a value with copies.
            Kind::Table(_) if part => copies::COMMANDS,
            _ => commands_of(kind, part),
        },
        Kind::Counter(_) => counter::COMMANDS,
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
    match kind.structure() {
        None | Some(Kind::Copied(_) | Kind::Counter(_) | Kind::Lock(_)) => Vec::new(),
        Some(Kind::List(_)) => list::items_below(own),
        Some(Kind::Table(_)) => table::items_below(own),
        Some(Kind::Log(settings)) => log::items_below(settings, own, now),
        Some(Kind::Window(settings)) => window::items_below(settings, own, now),
    }
}

/// Whether the key is that of a value with copies: of a raw one, or of an element of a table. `length`: what [`split`] has returned.
pub fn is_value_with_copies(kind: &Kind, key: &[u8], length: usize) -> bool {
    let Kind::Copied(Copied { of }) = kind else { return false };
    match of.as_deref() {
        None => true,
        Some(kind) => matches!(kind, Kind::Table(_)) && length < key.len(),
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
    let Kind::Copied(Copied { of }) = kind else {
        return begin_on_items(kind, key, length, request, memory, Order::Kept, now);
    };
    let value = |counter, ttl| -> Result<Box<dyn Machine>, &'static str> {
        Ok(Box::new(copies::begin(counter, ttl, key, request, now)?))
    };
    let (kind, machine) = match of.as_deref() {
        None => return value(None, Duration::ZERO),
        Some(Kind::Counter(settings)) => return value(Some(settings), Duration::ZERO),
        Some(kind @ Kind::Table(settings)) if length < key.len() => {
            match table::begin_element(settings, key, length, request, now)? {
                Some(machine) => (kind, machine),
                None => return value(None, settings.ttl),
            }
        }
        Some(kind) => (kind, begin_on_items(kind, key, length, request, memory, Order::NotKept, now)?),
    };
    copies::check_length(longest_item(kind, key, length))?;
    Ok(Box::new(match kind {
        // A tail that has seen what is undone would miss what comes in its place. A listing removes a name whose element it did not find,
        // unless the names have changed: it must not have read a change of them that a command which stores the element may not see yet.
        Kind::Log(_) | Kind::Table(_) => OnCopies::reading_both(machine),
        _ => OnCopies::new(machine),
    }))
}

/// The machine of a kind, wherever its items are.
fn begin_on_items(
    kind: &Kind,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    memory: &Memory,
    order: Order,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    Ok(match kind {
        Kind::Counter(settings) => Box::new(counter::begin(settings, key, request, now)?),
        Kind::List(settings) => list::begin(settings, key, length, request)?,
        Kind::Lock(settings) => lock::begin(settings, key, request, order, now)?,
        Kind::Log(settings) => log::begin(settings, key, length, request, &memory.log_ends, order, now)?,
        // An element is stored by the client's own command: see `note`.
        Kind::Table(_) => table::begin(&key[..length], request)?,
        Kind::Window(settings) => window::begin(settings, key, length, request, order, now)?,
        // No configuration has copies of copies.
        Kind::Copied(_) => return Err(commands_of(kind, false)),
    })
}

/// The length of the longest key of an item that a command on this key uses.
fn longest_item(kind: &Kind, key: &[u8], length: usize) -> usize {
    match kind {
        // That of a visitor, or of another item of the window.
        Kind::Window(_) => (key.len() + INFIX.len()).max(length + MAX_BELOW),
        Kind::Table(_) => key.len().max(length + MAX_BELOW),
        _ => length + MAX_BELOW,
    }
}
