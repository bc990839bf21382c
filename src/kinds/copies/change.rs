//! What a client's command makes of a raw value or a counter.

use bytes::{Bytes, BytesMut};

use super::edit::Edit;
use super::record::{KEPT_WITHOUT_VALUE, Record};
use crate::error::Failure;
use crate::kinds::counter::{COMMANDS as NO_COUNTER_COMMAND, NOT_A_NUMBER, number};
use crate::kinds::expiry::remaining;
use crate::kinds::machine::Outcome;
use crate::kinds::request::{Request, Verb};
use crate::kinds::settings::Counter;

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
    /// It is only read.
    Nothing,
}

/// When a value with this exptime ends, in ms since 1970; 0: never.
pub(super) fn ends(exptime: i64, now: u64) -> u64 {
    match (exptime, remaining(exptime, now)) {
        (0, _) => 0,
        (_, Some(left)) => now.saturating_add(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        // It has ended.
        (_, None) => 1,
    }
}

/// What a client's command does to a value, which is a number if there are settings of a counter. The error is a line with its CRLF.
pub(super) fn of(counter: Option<&Counter>, request: Request<'_>, now: u64) -> Result<Change, &'static str> {
    let ttl = counter.map(|counter| counter.ttl).filter(|ttl| !ttl.is_zero());
    let own = ttl.map_or(0, |ttl| now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)));
    let or_own = |exptime| if exptime == 0 { own } else { ends(exptime, now) };
    Ok(match request {
        Request::Get => Change::Nothing,
        Request::Delete => Change::Delete,
        Request::Store { verb: verb @ (Verb::Set | Verb::Add), data, flags, exptime } => {
            if counter.is_some() {
                number(data).ok_or(NOT_A_NUMBER)?;
            }
            Change::Store { verb, data: Bytes::copy_from_slice(data), flags, ends: or_own(exptime) }
        }
        Request::Count { decr, delta, initial } => {
            let created = if decr { 0 } else { delta };
            let create = match initial {
                Some((number, exptime)) => Some((number, exptime.map_or(own, |exptime| ends(exptime, now)))),
                None => counter.map(|_| (created, own)),
            };
            Change::Count { decr, delta, create }
        }
        _ if counter.is_some() => return Err(NO_COUNTER_COMMAND),
        Request::Store { verb: Verb::Other, .. } | Request::Other => return Err(COMMANDS),
        Request::Store { verb, data, flags, exptime } => {
            Change::Store { verb, data: Bytes::copy_from_slice(data), flags, ends: ends(exptime, now) }
        }
        Request::Touch { exptime } => Change::Touch { ends: ends(exptime, now) },
    })
}

impl Edit for Change {
    type End = Outcome;

    fn changes(&self) -> bool {
        *self != Change::Nothing
    }

    fn apply(&mut self, record: &Record, now: u64) -> Result<Record, Outcome> {
        let held = record.data.as_ref().filter(|_| record.has_value(now));
        Ok(match (&*self, held) {
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
                record.changed(Some(joined(held, data)), record.flags, record.ends)
            }
            (Change::Store { verb: Verb::Prepend, data, .. }, Some(held)) => {
                record.changed(Some(joined(data, held)), record.flags, record.ends)
            }
            (Change::Store { data, flags, ends, .. }, _) => record.changed(Some(data.clone()), *flags, *ends),
            (Change::Count { create: None, .. }, None) => return Err(Outcome::NotFound),
            (Change::Count { create: Some((number, ends)), .. }, None) => {
                record.changed(Some(Bytes::from(number.to_string())), 0, *ends)
            }
            (Change::Count { decr, delta, .. }, Some(held)) => {
                let number = counted(held, *decr, *delta).ok_or(Outcome::NotANumber)?;
                record.changed(Some(Bytes::from(number.to_string())), record.flags, record.ends)
            }
            (Change::Touch { ends }, Some(held)) => record.changed(Some(held.clone()), record.flags, *ends),
            (Change::Delete, Some(_)) => record.changed(None, 0, now.saturating_add(KEPT_WITHOUT_VALUE)),
            (Change::Nothing, _) => return Err(self.read(Some(record), now)),
        })
    }

    fn made(&mut self, record: &Record, now: u64) -> Outcome {
        match self {
            Change::Store { .. } => Outcome::Stored(record.cas()),
            Change::Count { .. } => {
                let data = record.data.as_deref().unwrap_or_default();
                Outcome::Counted(number(data).unwrap_or(0), record.cas(), record.ttl(now))
            }
            Change::Touch { .. } => Outcome::Touched(record.flags, record.cas()),
            Change::Delete => Outcome::Deleted,
            Change::Nothing => self.read(Some(record), now),
        }
    }

    fn read(&mut self, record: Option<&Record>, now: u64) -> Outcome {
        match record {
            Some(record @ Record { data: Some(data), flags, .. }) if record.has_value(now) => {
                Outcome::Value { data: data.clone(), flags: *flags, cas: record.cas(), ttl: record.ttl(now) }
            }
            _ => Outcome::Miss,
        }
    }

    fn failed(failure: Failure) -> Outcome {
        Outcome::Failed(failure)
    }

    fn too_large() -> Outcome {
        Outcome::TooLarge
    }
}

/// The number that a value becomes; `None` if it is none.
pub(super) fn counted(held: &[u8], decr: bool, delta: u64) -> Option<u64> {
    // memcached fills a number that has become shorter with spaces, so a client may have stored some.
    let number = number(held.trim_ascii_end())?;
    Some(if decr { number.saturating_sub(delta) } else { number.wrapping_add(delta) })
}

/// One behind the other.
pub(super) fn joined(front: &[u8], back: &[u8]) -> Bytes {
    let mut data = BytesMut::with_capacity(front.len() + back.len());
    data.extend_from_slice(front);
    data.extend_from_slice(back);
    data.freeze()
}
