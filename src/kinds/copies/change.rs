//! What a client's command makes of a value.

use bytes::{Bytes, BytesMut};

use super::record::{KEPT_WITHOUT_VALUE, Record};
use crate::kinds::counter::{self, NOT_A_NUMBER, number};
use crate::kinds::expiry::remaining;
use crate::kinds::machine::Outcome;
use crate::kinds::request::{Request, Verb};
use crate::kinds::settings::Copied;

/// The commands that a raw rule with copies has, for the error that names them.
pub(in crate::kinds) const COMMANDS: &str = "CLIENT_ERROR a raw rule with copies has only the commands get, gets, set, add, \
     replace, append, prepend, cas, incr, decr, touch, delete\r\n";

/// What becomes of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Stored, with when it ends.
    Store {
        verb: Verb,
        data: Bytes,
        flags: u32,
        ends: u64,
    },
    /// Counted. `create`: the number that is created if there is none, and when it ends.
    Count {
        decr: bool,
        delta: u64,
        create: Option<(u64, u64)>,
    },
    /// Ends at another time.
    Touch {
        ends: u64,
    },
    Delete,
    /// Stays as it is, so that a copy that was lost is stored again.
    Keep,
}

/// When a value with this exptime ends, in ms since 1970; 0: never.
fn ends(exptime: i64, now: u64) -> u64 {
    match (exptime, remaining(exptime, now)) {
        (0, _) => 0,
        (_, Some(left)) => now.saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        // It has ended.
        (_, None) => 1,
    }
}

/// The change that a command asks for; `None`: it is a read. The error is a line with its CRLF.
pub(super) fn of(settings: &Copied, request: Request<'_>, now: u64) -> Result<Option<Change>, &'static str> {
    let ttl = settings.counter.as_ref().map(|counter| counter.ttl).filter(|ttl| !ttl.is_zero());
    let own = ttl.map_or(0, |ttl| now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)));
    let or_own = |exptime| if exptime == 0 { own } else { ends(exptime, now) };
    let is_counter = settings.counter.is_some();
    Ok(Some(match request {
        Request::Get => return Ok(None),
        Request::Delete => Change::Delete,
        Request::Store { verb: verb @ (Verb::Set | Verb::Add), data, flags, exptime } => {
            if is_counter {
                number(data).ok_or(NOT_A_NUMBER)?;
            }
            Change::Store { verb, data: Bytes::copy_from_slice(data), flags, ends: or_own(exptime) }
        }
        Request::Count { decr, delta, initial } => {
            let created = if decr { 0 } else { delta };
            let create = match initial {
                Some((number, exptime)) => Some((number, exptime.map_or(own, |exptime| ends(exptime, now)))),
                None => is_counter.then_some((created, own)),
            };
            Change::Count { decr, delta, create }
        }
        _ if is_counter => return Err(counter::COMMANDS),
        Request::Store { verb: Verb::Other, .. } | Request::Other => return Err(COMMANDS),
        Request::Store { verb, data, flags, exptime } => {
            Change::Store { verb, data: Bytes::copy_from_slice(data), flags, ends: ends(exptime, now) }
        }
        Request::Touch { exptime } => Change::Touch { ends: ends(exptime, now) },
    }))
}

impl Change {
    /// Applies the change to a record. The error is the outcome if nothing changes.
    pub(super) fn apply(&self, record: &Record, now: u64) -> Result<Record, Outcome> {
        let held = record.data.as_ref().filter(|_| record.has_value(now));
        let next = |data: Option<Bytes>, flags, ends| Record {
            life: record.life,
            change: record.change + 1,
            ends,
            flags,
            data,
        };
        Ok(match (self, held) {
            (Change::Store { verb: Verb::Add, .. }, Some(_))
            | (Change::Store { verb: Verb::Replace | Verb::Append | Verb::Prepend, .. }, None) => {
                return Err(Outcome::NotStored);
            }
            (Change::Store { verb: Verb::Cas(_), .. } | Change::Touch { .. } | Change::Delete, None) => {
                return Err(Outcome::NotFound);
            }
            (Change::Store { verb: Verb::Cas(cas), .. }, Some(_)) if *cas != record.cas() => {
                return Err(Outcome::Exists);
            }
            (Change::Store { verb: Verb::Append, data, .. }, Some(held)) => {
                next(Some(joined(held, data)), record.flags, record.ends)
            }
            (Change::Store { verb: Verb::Prepend, data, .. }, Some(held)) => {
                next(Some(joined(data, held)), record.flags, record.ends)
            }
            (Change::Store { data, flags, ends, .. }, _) => next(Some(data.clone()), *flags, *ends),
            (Change::Count { create: None, .. }, None) => return Err(Outcome::NotFound),
            (Change::Count { create: Some((number, ends)), .. }, None) => {
                next(Some(Bytes::from(number.to_string())), 0, *ends)
            }
            (Change::Count { decr, delta, .. }, Some(held)) => {
                // memcached fills a number that has become shorter with spaces, so a client may have stored some.
                let number = number(held.trim_ascii_end()).ok_or(Outcome::NotANumber)?;
                let number = if *decr { number.saturating_sub(*delta) } else { number.wrapping_add(*delta) };
                next(Some(Bytes::from(number.to_string())), record.flags, record.ends)
            }
            (Change::Touch { ends }, Some(held)) => next(Some(held.clone()), record.flags, *ends),
            (Change::Delete, Some(_)) => next(None, 0, now.saturating_add(KEPT_WITHOUT_VALUE)),
            (Change::Keep, _) => next(record.data.clone(), record.flags, record.ends),
        })
    }

    /// The outcome once both copies have this record, which the change has made.
    pub(super) fn outcome(&self, record: &Record, now: u64) -> Outcome {
        match self {
            Change::Store { .. } => Outcome::Stored(record.cas()),
            Change::Count { .. } => {
                let data = record.data.as_deref().unwrap_or_default();
                Outcome::Counted(number(data).unwrap_or(0), record.cas(), record.ttl(now))
            }
            Change::Touch { .. } => Outcome::Touched(record.flags, record.cas()),
            Change::Delete => Outcome::Deleted,
            Change::Keep => Outcome::Miss,
        }
    }
}

fn joined(front: &[u8], back: &[u8]) -> Bytes {
    let mut data = BytesMut::with_capacity(front.len() + back.len());
    data.extend_from_slice(front);
    data.extend_from_slice(back);
    data.freeze()
}
