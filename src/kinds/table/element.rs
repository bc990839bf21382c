//! A client's command that may store an element, as one machine, for servers that do not keep the order of a round trip: the name is
//! appended, unless it is there, then the element is stored, and then the names are looked at once more, each behind what comes before.

use bytes::Bytes;
use smallvec::smallvec;

use super::super::command::{Command, Commands, Mode, Operation, Replies, Reply};
use super::super::counter;
use super::super::expiry::limited;
use super::super::item::ItemKey;
use super::super::machine::{Inputs, Machine, Outcome, Step};
use super::super::request::{Request, Verb};
use super::super::settings::Table;
use super::{line, note};
use crate::error::Failure;

/// A command that may store an element.
#[derive(Debug)]
struct Element {
    /// What notes the name.
    note: Box<dyn Machine>,
    /// The line with it.
    line: Bytes,
    store: Command,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Begin,
    /// The names are read: whether the name must be appended by these commands. The last command of the note's first round trip is
    /// kept for later.
    Reading(Commands, Command),
    /// The name is appended.
    Naming(Command),
    /// The element is stored. The replies to the note so far.
    Storing(Command, Replies),
    /// The names are looked at. The outcome of the store, and the same replies.
    Looking(Outcome, Replies),
    /// The rest of the note is carried out.
    Noting(Outcome),
}

/// Begins a client's command, if it is one that may store an element that is not there. The first `length` bytes of `key` are the
/// table's own key. The error is a line with its CRLF.
pub(in crate::kinds) fn begin(
    settings: &Table,
    key: &[u8],
    length: usize,
    request: Request<'_>,
    now: u64,
) -> Result<Option<Box<dyn Machine>>, &'static str> {
    let ends = |exptime| limited(exptime, settings.ttl, now);
    let operation = match request {
        Request::Store { verb: verb @ (Verb::Set | Verb::Add), data, flags, exptime } => Operation::Store {
            mode: if verb == Verb::Set { Mode::Set } else { Mode::Add },
            value: Bytes::copy_from_slice(data),
            flags,
            exptime: ends(exptime),
            cas: None,
        },
        Request::Count { decr, delta, initial: Some((initial, exptime)) } => {
            Operation::Count { decr, delta, initial, exptime: ends(exptime.unwrap_or(0)) }
        }
        _ => return Ok(None),
    };
    let store = Command { key: ItemKey::from_slice(key), operation };
    let note = note(key, length)?;
    let line = line(b"+", key.get(length + 1..).unwrap_or_default());
    Ok(Some(Box::new(Element { note, line, store, stage: Stage::Begin })))
}

impl Element {
    fn begin(&mut self, inputs: &Inputs) -> Step {
        let mut commands = match self.note.resume(Replies::new(), inputs) {
            Step::Send(commands) => commands,
            step => return step,
        };
        let (Some(last), Some(names)) = (commands.pop(), commands.first().map(|first| first.key.clone()))
        else {
            return Step::Done(Outcome::Failed(Failure::Refused));
        };
        self.stage = Stage::Reading(commands, last);
        Step::Send(vec![Command { key: names, operation: Operation::Get }])
    }

    /// The names are read. If the name is among them, its append is as good as done.
    fn read(&mut self, append: Commands, last: Command, reply: Option<&Reply>) -> Step {
        match reply {
            Some(Reply::Item(names))
                if names.data.split_inclusive(|byte| *byte == b'\n').any(|of| of == self.line) =>
            {
                self.stage = Stage::Storing(last, smallvec![Reply::NotStored, Reply::Stored(names.cas)]);
                Step::Send(vec![self.store.clone()])
            }
            _ => {
                self.stage = Stage::Naming(last);
                Step::Send(append)
            }
        }
    }

    /// The element is stored, or not.
    fn stored(&mut self, last: Command, named: Replies, reply: Option<&Reply>) -> Step {
        let outcome = match reply {
            Some(Reply::Number(number, cas, ttl)) => Outcome::Counted(*number, cas.number, *ttl),
            Some(reply) => counter::outcome(reply.clone()),
            None => Outcome::Failed(Failure::Refused),
        };
        if !matches!(outcome, Outcome::Stored(_) | Outcome::Counted(..)) {
            return Step::Done(outcome);
        }
        self.stage = Stage::Looking(outcome, named);
        Step::Send(vec![last])
    }
}

impl Machine for Element {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        let failed = replies.iter().find_map(|reply| match reply {
            Reply::Failed(failure) => Some(*failure),
            _ => None,
        });
        let outcome = match (std::mem::replace(&mut self.stage, Stage::Begin), failed) {
            (Stage::Begin, _) => return self.begin(inputs),
            (Stage::Reading(..) | Stage::Naming(_) | Stage::Storing(..), Some(failure)) => {
                return Step::Done(Outcome::Failed(failure));
            }
            (Stage::Reading(append, last), None) => return self.read(append, last, replies.first()),
            (Stage::Naming(last), None) => {
                self.stage = Stage::Storing(last, replies);
                return Step::Send(vec![self.store.clone()]);
            }
            (Stage::Storing(last, named), None) => return self.stored(last, named, replies.first()),
            (Stage::Looking(outcome, mut all), _) => {
                all.extend(replies);
                (outcome, self.note.resume(all, inputs))
            }
            (Stage::Noting(outcome), _) => (outcome, self.note.resume(replies, inputs)),
        };
        match outcome {
            // The name is noted.
            (outcome, Step::Done(Outcome::Stored(_))) => Step::Done(outcome),
            (_, Step::Done(failed)) => Step::Done(failed),
            (outcome, step) => {
                self.stage = Stage::Noting(outcome);
                step
            }
        }
    }
}
