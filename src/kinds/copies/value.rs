//! A client's command on a raw value or a counter with two copies.

use std::time::Duration;

use super::change::{self, Change};
use super::edit::{Edit, Needs};
use super::record::{Record, check_length};
use super::run::{Progress, Run};
use crate::error::Failure;
use crate::kinds::command::Replies;
use crate::kinds::expiry::limited;
use crate::kinds::item::ItemKey;
use crate::kinds::machine::{Inputs, Machine, Outcome, Step};
use crate::kinds::request::Request;
use crate::kinds::settings::Counter;

/// A command on a key that is one item on each of two servers.
#[derive(Debug)]
pub(in crate::kinds) struct ValueMachine(Run<Change>);

/// Begins a client's command. `counter`: the settings of the counter that it is, if it is one. `ttl`: how long an exptime may be at
/// most; zero: as long as the client says.
pub(in crate::kinds) fn begin(
    counter: Option<&Counter>,
    ttl: Duration,
    key: &[u8],
    request: Request<'_>,
    now: u64,
) -> Result<ValueMachine, &'static str> {
    let request = match request {
        Request::Store { verb, data, flags, exptime } => {
            Request::Store { verb, data, flags, exptime: limited(exptime, ttl, now) }
        }
        Request::Touch { exptime } => Request::Touch { exptime: limited(exptime, ttl, now) },
        request => request,
    };
    let change = change::of(counter, request, now)?;
    check_length(key.len())?;
    Ok(ValueMachine(Run::new(ItemKey::from_slice(key), change)))
}

impl Machine for ValueMachine {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        self.0.resume(&replies, inputs).into()
    }

    fn unfinished(&self) -> Vec<ItemKey> {
        self.0.unfinished().cloned().into_iter().collect()
    }
}

impl From<Progress<Outcome>> for Step {
    fn from(progress: Progress<Outcome>) -> Step {
        match progress {
            Progress::Send(commands) => Step::SendCopies(commands),
            Progress::Done(outcome) => Step::Done(outcome),
        }
    }
}

/// Begins to complete a change of the item with this key that only the first copy may have. It ends with [`Outcome::Failed`] if not both
/// copies could be reached.
pub fn complete(key: ItemKey) -> Box<dyn Machine> {
    Box::new(Completion(Run::new(key, Completed)))
}

#[derive(Debug)]
struct Completion(Run<Completed>);

impl Machine for Completion {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        self.0.resume(&replies, inputs).into()
    }
}

/// What a completion makes of an item: both copies are the same.
#[derive(Debug)]
struct Completed;

impl Completed {
    const END: Outcome = Outcome::Stored(0);
}

impl Edit for Completed {
    type End = Outcome;

    fn changes(&self) -> bool {
        false
    }

    fn apply(&mut self, _: &Record, _: u64) -> Result<Record, Outcome> {
        Err(Completed::END)
    }

    fn made(&mut self, _: &Record, _: u64) -> Outcome {
        Completed::END
    }

    fn read(&mut self, _: Option<&Record>, _: u64) -> Outcome {
        Completed::END
    }

    fn needs(&self) -> Needs {
        Needs::Both
    }

    fn failed(failure: Failure) -> Outcome {
        Outcome::Failed(failure)
    }

    fn too_large() -> Outcome {
        Outcome::TooLarge
    }
}
