//! A log of the entries of the last time: items that grow by appends, several for each slot of time.
//!
//! An append adds its length to the slot's number, which reserves its place, and appends its entry to the part in which that place
//! begins. Both are sent in one round trip: the part is that of the last number which this process has seen. That may be a part
//! before, if other processes have appended meanwhile, and never a part behind. If that part is not there, or this process has
//! seen no number of the slot, the place decides. So a part has at most [`PART`] and what was appended at the same time, and no
//! writer has to find out that a part is full. Slots are named by their absolute number, so no name is ever used twice.
//!
//! To reserve first would take two round trips, and give the entries of several sidecars one order: now they may be exchanged at the
//! border of a part. Parts up to the server's limit of 1 MiB would each be copied by an append; an item for each entry would make a read
//! one of thousands of keys.
//!
//! Where the order of a round trip is not kept, an entry may be there before its place is reserved. So a tail reads the parts of a
//! slot also if as many bytes are reserved as it has seen. And a read reads the parts once more, until those behind the newest have not
//! changed.
//!
//! A tail looks at the previous slot until the current one is over. An append that is not acknowledged by then has failed, so an
//! acknowledged entry is in a place that every tail still looks at. A read gets the newest part first: an entry that was appended
//! after another was acknowledged through the same process is never read without it: that process never goes back to a part before.

mod append;
mod read;
mod ends;
mod cursor;
mod slots;

use std::sync::Arc;

use bytes::Bytes;

use self::append::Append;
use self::cursor::Place;
pub(super) use self::ends::LogEnds;
use self::read::Read;
use self::slots::{Slots, reserved_key};
use super::item::{ItemKey, TOO_LONG};
use super::machine::{Machine, Order};
use super::request::{Request, Verb};
use super::settings::Log;

/// The commands that a log has, for the error that names them.
pub(super) const COMMANDS: &str =
    "CLIENT_ERROR a log has only the commands append, get, get KEY@CURSOR, get KEY@FROM-TO\r\n";
const NOT_A_PLACE: &str =
    "CLIENT_ERROR what follows the @ of a log must be a cursor of it, 0, or FROM-TO in Unix seconds\r\n";
const NO_AT: &str = "CLIENT_ERROR the key of a log that is appended to must not contain @\r\n";
const ENTRY_TOO_LARGE: &str = "CLIENT_ERROR an entry of a log has 1 to 32768 bytes\r\n";

/// The largest entry, in bytes.
const MAX_ENTRY: usize = 32 * 1024;
/// The longest key of a log, in bytes, which leaves room for a cursor behind it.
const MAX_OWN: usize = 110;

/// The numbers of all slots.
pub(super) fn items_below(settings: &Log, own: &[u8], now: u64) -> Vec<ItemKey> {
    let slots = Slots::at(now, settings);
    (slots.oldest()..=slots.current + 1).filter_map(|slot| reserved_key(own, slot).ok()).collect()
}

/// Begins a client's command. The first `length` bytes of `key` are the log's own key. `ends`: what this process knows of the logs of the
/// rule.
pub(super) fn begin(
    settings: &Log,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    ends: &Arc<LogEnds>,
    order: Order,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    let (own, rest) = key.split_at(length);
    if own.len() > MAX_OWN {
        return Err(TOO_LONG);
    }
    let slots = Slots::at(now, settings);
    Ok(match request {
        Request::Store { verb: Verb::Append, data, .. } => {
            if !rest.is_empty() {
                return Err(NO_AT);
            }
            if data.is_empty() || data.len() > MAX_ENTRY {
                return Err(ENTRY_TOO_LARGE);
            }
            let data = Bytes::copy_from_slice(data);
            let own = ItemKey::from_slice(own);
            Box::new(Append::new(own, settings.clone(), data, Arc::clone(ends), slots))
        }
        Request::Get => {
            let place = match rest {
                [] => None,
                [_, place @ ..] => Some(cursor::parse(place).ok_or(NOT_A_PLACE)?),
            };
            // The clock of another sidecar may be ahead.
            let (mut first, mut last) = (slots.oldest(), slots.current + 1);
            let mut behind = None;
            match place {
                None => {}
                Some(Place::Between(from, to)) => {
                    let slot = |seconds: u64| seconds.saturating_mul(1000) / slots.length;
                    (first, last) = (first.max(slot(from)), last.min(slot(to)));
                }
                Some(Place::Behind(cursor)) if cursor.first <= last => {
                    first = first.max(cursor.first);
                    behind = Some(cursor);
                }
                Some(Place::Behind(_)) => return Err(NOT_A_PLACE),
            }
            Box::new(Read::new(ItemKey::from_slice(own), first, last, behind, slots, order))
        }
        _ => return Err(COMMANDS),
    })
}

#[cfg(test)]
mod tests;
