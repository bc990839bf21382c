//! A counter: a number under the client's key itself. Each command is one command to the server, so nothing is ever overtaken.
//!
//! A count that failed is not sent again: whether the server has carried it out is unknown.

use bytes::Bytes;

use super::command::{Command, Mode, Operation, Replies, Reply, Value};
use super::expiry::exptime;
use super::item::ItemKey;
use super::machine::{Inputs, Machine, Outcome, Step};
use super::request::{Request, Verb};
use super::settings::Counter;
use crate::error::Failure;

/// The commands that a counter has, for the error that names them.
pub(super) const COMMANDS: &str =
    "CLIENT_ERROR a counter has only the commands incr, decr, get, set, add, delete\r\n";
/// The error for a value that is no number.
pub(super) const NOT_A_NUMBER: &str =
    "CLIENT_ERROR a counter can only be set to a number from 0 to 18446744073709551615\r\n";

#[derive(Debug)]
pub(super) struct CounterMachine {
    command: Option<Command>,
}

/// Begins a client's command.
pub(super) fn begin(
    settings: &Counter,
    key: &[u8],
    request: Request<'_>,
    now: u64,
) -> Result<CounterMachine, &'static str> {
    let ttl = exptime(settings.ttl, now);
    let operation = match request {
        Request::Get => Operation::Get,
        Request::Store { verb: verb @ (Verb::Set | Verb::Add), data, flags, exptime } => {
            number(data).ok_or(NOT_A_NUMBER)?;
            let mode = if verb == Verb::Set { Mode::Set } else { Mode::Add };
            let exptime = if exptime == 0 { ttl } else { exptime };
            Operation::Store { mode, value: Bytes::copy_from_slice(data), flags, exptime, cas: None }
        }
        Request::Count { decr, delta, initial } => {
            // A number is never below 0.
            let created = if decr { 0 } else { delta };
            let (initial, exptime) = initial.unwrap_or((created, None));
            let exptime = exptime.unwrap_or(ttl);
            Operation::Count { decr, delta, initial, exptime }
        }
        Request::Delete => Operation::Delete { cas: None },
        _ => return Err(COMMANDS),
    };
    Ok(CounterMachine { command: Some(Command { key: ItemKey::from_slice(key), operation }) })
}

impl Machine for CounterMachine {
    fn resume(&mut self, mut replies: Replies, _: &Inputs) -> Step {
        if let Some(command) = self.command.take() {
            return Step::Send(vec![command]);
        }
        Step::Done(match replies.pop() {
            Some(Reply::Item(Value { data, flags, cas, ttl })) => {
                Outcome::Value { data: without_padding(data), flags, cas: cas.number, ttl }
            }
            Some(Reply::Number(number, cas, ttl)) => Outcome::Counted(number, cas.number, ttl),
            Some(reply) => outcome(reply),
            None => Outcome::Failed(Failure::Refused),
        })
    }
}

/// The outcome of a command that ends with this reply, whatever the kind.
pub(super) fn outcome(reply: Reply) -> Outcome {
    match reply {
        Reply::Stored(cas) => Outcome::Stored(cas.number),
        Reply::NotStored | Reply::Exists => Outcome::NotStored,
        Reply::Done => Outcome::Deleted,
        Reply::NotANumber => Outcome::NotANumber,
        Reply::TooLarge => Outcome::TooLarge,
        Reply::Failed(failure) => Outcome::Failed(failure),
        Reply::Absent => Outcome::NotFound,
        Reply::Item(_) | Reply::Items(_) | Reply::Size(..) | Reply::Number(..) => {
            Outcome::Failed(Failure::Refused)
        }
    }
}

/// A number as memcached counts with it: digits, below 2^64.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    // As many digits cannot be too large.
    let (few, more) = text.split_at(text.len().min(19));
    let number = few.iter().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))?;
    let add = |number: u64, byte: &u8| number.checked_mul(10)?.checked_add(digit(byte)?);
    if text.is_empty() { None } else { more.iter().try_fold(number, add) }
}

/// memcached fills a number that has become shorter with spaces.
pub(super) fn without_padding(mut data: Bytes) -> Bytes {
    let length = data.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1);
    if number(&data[..length]).is_some() {
        data.truncate(length);
    }
    data
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smallvec::smallvec;

    use super::super::command::Cas;
    use super::*;

    const INPUTS: Inputs = Inputs { now: 1_700_000_000_000, random: 7 };

    fn first(request: Request<'_>) -> Result<Operation, &'static str> {
        let settings = Counter { ttl: Duration::from_secs(60) };
        let mut machine = begin(&settings, b"k", request, INPUTS.now)?;
        let Step::Send(commands) = machine.resume(Replies::new(), &INPUTS) else { panic!("nothing sent") };
        assert_eq!((commands.len(), &commands[0].key[..]), (1, &b"k"[..]));
        Ok(commands[0].operation.clone())
    }

    #[test]
    fn a_count_creates_the_number_with_the_ttl_of_the_rule() {
        for (decr, initial) in [(false, 5), (true, 0)] {
            let count = first(Request::Count { decr, delta: 5, initial: None });
            assert_eq!(count, Ok(Operation::Count { decr, delta: 5, initial, exptime: 60 }));
        }
        let count = first(Request::Count { decr: false, delta: 5, initial: Some((100, Some(9))) });
        assert_eq!(count, Ok(Operation::Count { decr: false, delta: 5, initial: 100, exptime: 9 }));
        let count = first(Request::Count { decr: false, delta: 5, initial: Some((100, None)) });
        assert_eq!(count, Ok(Operation::Count { decr: false, delta: 5, initial: 100, exptime: 60 }));
    }

    #[test]
    fn only_a_number_can_be_stored() {
        let store = |data| first(Request::Store { verb: Verb::Set, data, flags: 1, exptime: 0 });
        for good in [&b"0"[..], b"007", b"18446744073709551615"] {
            assert!(matches!(store(good), Ok(Operation::Store { exptime: 60, flags: 1, .. })), "{good:?}");
        }
        for bad in [&b""[..], b"-1", b"1.5", b"1 ", b"x", b"18446744073709551616"] {
            assert_eq!(store(bad), Err(NOT_A_NUMBER), "{bad:?}");
        }
    }

    #[test]
    fn a_command_that_counters_do_not_have_is_refused_with_those_that_they_have() {
        let append = Request::Store { verb: Verb::Append, data: b"1", flags: 0, exptime: 0 };
        for request in [append, Request::Other] {
            assert_eq!(first(request), Err(COMMANDS));
        }
    }

    #[test]
    fn the_padding_of_a_number_is_removed_and_nothing_else() {
        let cas = Cas { number: 7, epoch: 1 };
        for (stored, read) in [("9 ", "9"), ("10", "10"), ("x ", "x "), ("  ", "  "), ("1 2 ", "1 2 ")] {
            let mut machine = CounterMachine { command: None };
            let item = Value { data: Bytes::from_static(stored.as_bytes()), flags: 0, cas, ttl: None };
            let Step::Done(Outcome::Value { data, .. }) =
                machine.resume(smallvec![Reply::Item(item)], &INPUTS)
            else {
                panic!("no value")
            };
            assert_eq!(data, read, "{stored:?}");
        }
    }
}
