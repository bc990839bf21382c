//! A list: a set of elements, stored as the commands that made it, `+x` and `-x`, one a line. The last command of an element says
//! whether the list has it.
//!
//! A command is appended, so writers never overtake each other. A reader that finds more lines without effect than elements folds
//! the item: it stores what is left under the condition that the item still has the CAS that was read, so a command that was
//! appended meanwhile is never lost. A writer does so too when an item has grown, and when it is full.
//!
//! All items of a list expire together: whoever stores to one renews the others.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use foldhash::{HashSet, HashSetExt};

use super::command::{Cas, Command, Commands, Mode, Operation, Replies, Reply, Value};
use super::expiry::exptime;
use super::item::ItemKey;
use super::machine::{Inputs, Machine, Outcome, Step};
use super::request::{Request, Verb};
use super::settings::List;
use super::shards::{self, SHARDS, has_grown, shard_of};
use crate::error::Failure;

/// The commands that a list has, for the error that names them.
pub(super) const COMMANDS: &str =
    "CLIENT_ERROR a list has only the commands append, get, get KEY@ELEMENT, delete\r\n";
const NO_LINES: &str = "CLIENT_ERROR each line of a list must be + or - and an element, without a carriage return or a backslash at its end\r\n";
const ELEMENT_TOO_LONG: &str =
    "CLIENT_ERROR the key of a list and an element have at most 249 bytes together\r\n";
const TOO_MANY_LINES: &str = "CLIENT_ERROR one append to a list has at most 65536 bytes\r\n";
const NO_AT: &str = "CLIENT_ERROR the key of a list that is changed must not contain @\r\n";
const NO_ELEMENT: &str = "CLIENT_ERROR what follows the @ of a list must be an element\r\n";
const FULL: &str = "SERVER_ERROR the list is full: some elements of this command are not stored\r\n";

/// The most bytes of one append.
const MAX_APPEND: usize = 65_536;
/// The most bytes of a list's own key and an element, so that `get KEY@ELEMENT` can ask for it.
const MAX_ASKED: usize = 249;
/// The most bytes of an answer: the largest item that memcached stores by default.
const MAX_ANSWER: usize = 1_048_576;
/// How often an append is tried whose items are deleted or changed at the same time.
const MAX_ROUNDS: u8 = 8;
/// The value of an element that the list has.
const HAS: &[u8] = b"1";

/// The items of all shards.
pub(super) fn items_below(own: &[u8]) -> Vec<ItemKey> {
    shards::keys(own, 'e').unwrap_or_default()
}

/// Begins a client's command. The first `length` bytes of `key` are the list's own key.
pub(super) fn begin(
    settings: &List,
    key: &[u8],
    length: usize,
    request: Request<'_>,
) -> Result<Box<dyn Machine>, &'static str> {
    let (own, rest) = key.split_at(length);
    let keys = shards::keys(own, 'e')?;
    let ttl = settings.ttl;
    match request {
        Request::Get => {
            let asked = match rest {
                [] => None,
                [_] => return Err(NO_ELEMENT),
                [_, element @ ..] => Some(Bytes::copy_from_slice(element)),
            };
            Ok(Box::new(Read { keys, ttl, asked, sent: false, answer: None }))
        }
        Request::Store { verb: Verb::Append, .. } | Request::Delete if !rest.is_empty() => Err(NO_AT),
        Request::Store { verb: Verb::Append, data, .. } => {
            let parts = parse(data, own.len())?;
            Ok(Box::new(Append { keys, ttl, parts, step: AppendStep::Begin, rounds: 0 }))
        }
        Request::Delete => Ok(Box::new(Remove { keys, sent: false })),
        _ => Err(COMMANDS),
    }
}

/// Divides the lines of an append by the item that each belongs to. The last line feed may be missing.
fn parse(data: &[u8], own: usize) -> Result<Vec<Part>, &'static str> {
    if data.len() > MAX_APPEND {
        return Err(TOO_MANY_LINES);
    }
    let lines = data.strip_suffix(b"\n").unwrap_or(data);
    let mut parts: Vec<Part> = Vec::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let [sign @ (b'+' | b'-'), element @ ..] = line else { return Err(NO_LINES) };
        // node's memcached sends a backslash before each line feed, which would make another element of each.
        if element.is_empty() || element.contains(&b'\r') || element.ends_with(b"\\") {
            return Err(NO_LINES);
        }
        if own + element.len() > MAX_ASKED {
            return Err(ELEMENT_TOO_LONG);
        }
        let shard = shard_of(element);
        let at = parts.iter().position(|part| part.shard == shard).unwrap_or_else(|| {
            parts.push(Part { shard, lines: BytesMut::new(), adds: false, state: PartState::Unsent });
            parts.len() - 1
        });
        let part = &mut parts[at];
        part.adds |= *sign == b'+';
        part.lines.extend_from_slice(line);
        part.lines.extend_from_slice(b"\n");
    }
    Ok(parts)
}

/// What the lines of an item say.
struct Elements<'a> {
    /// Those that the list has, in the order in which they were last added.
    live: Vec<&'a [u8]>,
    /// The number of lines that can go.
    dead: usize,
}

impl Elements<'_> {
    fn of(data: &[u8]) -> Elements<'_> {
        let count = memchr::memchr_iter(b'\n', data).count() + 1;
        let mut seen = HashSet::with_capacity(count);
        let (mut live, mut dead) = (Vec::with_capacity(count), 0);
        let mut end = data.len();
        // From the last line to the first, before each line feed and at the beginning.
        for start in memchr::memrchr_iter(b'\n', data).map(|feed| feed + 1).chain([0]) {
            let line = &data[start..end];
            end = start.saturating_sub(1);
            match line {
                [] => {}
                [b'+', element @ ..] if seen.insert(element) => live.push(element),
                [b'-', element @ ..] => {
                    seen.insert(element);
                    dead += 1;
                }
                _ => dead += 1,
            }
        }
        live.reverse();
        Elements { live, dead }
    }

    fn is_worth_folding(&self) -> bool {
        self.dead > self.live.len()
    }

    /// The fewest lines that say the same.
    fn lines(&self) -> Bytes {
        let mut lines = BytesMut::new();
        for element in &self.live {
            [b"+", *element, b"\n"].iter().for_each(|part| lines.extend_from_slice(part));
        }
        lines.freeze()
    }
}

/// Replaces an item by these lines, if it still has the CAS.
fn replace(key: &ItemKey, lines: Bytes, cas: Cas, exptime: i64) -> Command {
    let operation = match lines.is_empty() {
        true => Operation::Delete { cas: Some(cas) },
        false => Operation::Store { mode: Mode::Set, value: lines, flags: 0, exptime, cas: Some(cas) },
    };
    Command { key: key.clone(), operation }
}

/// Behind stores to some items, renews the others, if items expire.
fn renew_others(commands: &mut Commands, keys: &[ItemKey], ttl: Duration, now: u64) {
    if ttl.is_zero() || commands.is_empty() {
        return;
    }
    let size = Operation::Size { exptime: Some(exptime(ttl, now)) };
    let others = keys.iter().filter(|key| commands.iter().all(|command| command.key != **key));
    let others: Vec<_> = others.map(|key| Command { key: key.clone(), operation: size.clone() }).collect();
    commands.extend(others);
}

/// The lines of an append that belong to one item.
#[derive(Debug)]
struct Part {
    shard: usize,
    lines: BytesMut,
    /// Whether one of them adds.
    adds: bool,
    state: PartState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartState {
    Unsent,
    /// The item has no room: it must be folded together with the lines.
    Full,
    /// The lines are stored, and the item may be worth folding.
    Grown,
    Stored,
}

#[derive(Debug)]
struct Append {
    keys: Vec<ItemKey>,
    ttl: Duration,
    parts: Vec<Part>,
    step: AppendStep,
    rounds: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppendStep {
    Begin,
    Appending,
    /// The items to fold are read.
    Reading,
    Folding,
}

impl Append {
    /// Sends what is to be done next, if anything is.
    fn next(&mut self, now: u64) -> Step {
        if self.parts.iter().any(|part| part.state == PartState::Unsent) {
            self.rounds += 1;
            if self.rounds > MAX_ROUNDS {
                return Step::Done(Outcome::Failed(Failure::Overloaded));
            }
            self.step = AppendStep::Appending;
            return Step::Send(self.appends(now));
        }
        let to_fold = self.parts.iter().filter(|part| part.state != PartState::Stored);
        let get = |part: &Part| Command { key: self.keys[part.shard].clone(), operation: Operation::Get };
        let gets: Commands = to_fold.map(get).collect();
        if gets.is_empty() {
            return Step::Done(Outcome::Stored(0));
        }
        self.step = AppendStep::Reading;
        Step::Send(gets)
    }

    fn appends(&self, now: u64) -> Commands {
        let mut commands = Commands::new();
        let exptime = exptime(self.ttl, now);
        let renewed = (!self.ttl.is_zero()).then_some(exptime);
        let unsent = || self.parts.iter().filter(|part| part.state == PartState::Unsent);
        // An item that is renewed first does not expire between its append and the reply.
        for (shard, key) in self.keys.iter().enumerate() {
            if renewed.is_some() || unsent().any(|part| part.shard == shard) {
                commands.push(Command { key: key.clone(), operation: Operation::Size { exptime: renewed } });
            }
        }
        for part in unsent() {
            let mut store = |mode, value| {
                let operation = Operation::Store { mode, value, flags: 0, exptime, cas: None };
                commands.push(Command { key: self.keys[part.shard].clone(), operation });
            };
            // Not every version of memcached creates an item that is appended to.
            if part.adds {
                store(Mode::Add, Bytes::new());
            }
            store(Mode::Append, Bytes::copy_from_slice(&part.lines));
        }
        commands
    }

    /// Takes the replies to `appends`.
    fn appended(&mut self, replies: Replies) -> Result<(), Outcome> {
        let mut replies = replies.into_iter();
        let mut next = || match replies.next() {
            Some(Reply::Failed(failure)) => Err(Outcome::Failed(failure)),
            Some(Reply::TooLarge) => Err(Outcome::TooLarge),
            Some(reply) => Ok(reply),
            None => Err(Outcome::Failed(Failure::Refused)),
        };
        let mut sizes = [None; SHARDS];
        for (shard, size) in sizes.iter_mut().enumerate() {
            let is_unsent = |part: &Part| part.shard == shard && part.state == PartState::Unsent;
            if (!self.ttl.is_zero() || self.parts.iter().any(is_unsent))
                && let Reply::Size(found, _) = next()?
            {
                *size = Some(found);
            }
        }
        for part in self.parts.iter_mut().filter(|part| part.state == PartState::Unsent) {
            let is_created = part.adds && matches!(next()?, Reply::Stored(_));
            let is_stored = matches!(next()?, Reply::Stored(_));
            let size = if is_created { Some(0) } else { sizes[part.shard] };
            part.state = match size {
                Some(size) if is_stored && has_grown(size + part.lines.len(), part.lines.len()) => {
                    PartState::Grown
                }
                _ if is_stored => PartState::Stored,
                // It was removed meanwhile.
                _ if is_created => PartState::Unsent,
                // From what is not there nothing is removed.
                None if !part.adds => PartState::Stored,
                _ => PartState::Full,
            };
        }
        Ok(())
    }

    /// Takes the items that have been read, and sends what replaces them.
    fn fold(&mut self, replies: Replies, now: u64) -> Step {
        let mut commands = Commands::new();
        let exptime = exptime(self.ttl, now);
        let to_fold = self.parts.iter_mut().filter(|part| part.state != PartState::Stored);
        for (part, reply) in to_fold.zip(replies) {
            let key = &self.keys[part.shard];
            match (part.state, reply) {
                (PartState::Full, Reply::Item(item)) => {
                    let mut data = BytesMut::from(&item.data[..]);
                    data.extend_from_slice(&part.lines);
                    let lines = Elements::of(&data).lines();
                    // memcached deletes an item that cannot be replaced because it would be too large.
                    if lines.len() > item.data.len() {
                        return Step::Done(Outcome::Refused(FULL));
                    }
                    commands.push(replace(key, lines, item.cas, exptime));
                }
                (PartState::Full, Reply::Absent) if part.adds => part.state = PartState::Unsent,
                (PartState::Full, Reply::Failed(failure)) => {
                    return Step::Done(Outcome::Failed(failure));
                }
                (PartState::Grown, Reply::Item(item)) => {
                    let elements = Elements::of(&item.data);
                    match elements.is_worth_folding() {
                        true => commands.push(replace(key, elements.lines(), item.cas, exptime)),
                        false => part.state = PartState::Stored,
                    }
                }
                _ => part.state = PartState::Stored,
            }
        }
        if commands.is_empty() {
            return self.next(now);
        }
        renew_others(&mut commands, &self.keys, self.ttl, now);
        self.step = AppendStep::Folding;
        Step::Send(commands)
    }

    fn folded(&mut self, replies: Replies, now: u64) -> Step {
        let to_fold =
            self.parts.iter_mut().filter(|part| matches!(part.state, PartState::Full | PartState::Grown));
        for (part, reply) in to_fold.zip(replies) {
            part.state = match (part.state, reply) {
                (PartState::Grown, _) | (_, Reply::Stored(_) | Reply::Done) => PartState::Stored,
                (_, Reply::Failed(failure)) => return Step::Done(Outcome::Failed(failure)),
                (_, Reply::TooLarge) => return Step::Done(Outcome::Refused(FULL)),
                // Another command has been appended.
                _ => PartState::Unsent,
            };
        }
        self.next(now)
    }
}

impl Machine for Append {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        match self.step {
            AppendStep::Begin => self.next(inputs.now),
            AppendStep::Appending => match self.appended(replies) {
                Ok(()) => self.next(inputs.now),
                Err(outcome) => Step::Done(outcome),
            },
            AppendStep::Reading => self.fold(replies, inputs.now),
            AppendStep::Folding => self.folded(replies, inputs.now),
        }
    }
}

/// A read of all elements, or of whether the list has one.
#[derive(Debug)]
struct Read {
    keys: Vec<ItemKey>,
    ttl: Duration,
    asked: Option<Bytes>,
    sent: bool,
    /// The outcome, while items are folded.
    answer: Option<Outcome>,
}

impl Read {
    /// The items that are read.
    fn read(&self) -> &[ItemKey] {
        match &self.asked {
            None => &self.keys,
            Some(element) => std::slice::from_ref(&self.keys[shard_of(element)]),
        }
    }

    fn answer(&self, items: &[(&ItemKey, Value)], now: u64) -> (Outcome, Commands) {
        let mut commands = Commands::new();
        let mut lines = BytesMut::new();
        let mut has = false;
        for (key, item) in items {
            let elements = Elements::of(&item.data);
            match &self.asked {
                Some(asked) => has |= elements.live.contains(&&asked[..]),
                None => {
                    for element in &elements.live {
                        lines.extend_from_slice(element);
                        lines.extend_from_slice(b"\n");
                    }
                }
            }
            if elements.is_worth_folding() {
                commands.push(replace(key, elements.lines(), item.cas, exptime(self.ttl, now)));
            }
        }
        renew_others(&mut commands, &self.keys, self.ttl, now);
        let data = if has { Bytes::from_static(HAS) } else { lines.freeze() };
        let ttl = items.iter().filter_map(|(_, item)| item.ttl).min();
        let outcome = match data.len() {
            0 => Outcome::Miss,
            1..=MAX_ANSWER => Outcome::Value { data, flags: 0, cas: 0, ttl },
            _ => Outcome::Failed(Failure::TooLarge),
        };
        (outcome, commands)
    }
}

impl Machine for Read {
    fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Step {
        if let Some(answer) = self.answer.take() {
            // Whether the items have been folded does not matter.
            return Step::Done(answer);
        }
        if !std::mem::replace(&mut self.sent, true) {
            let get = |key: &ItemKey| Command { key: key.clone(), operation: Operation::Get };
            return Step::Send(self.read().iter().map(get).collect());
        }
        let mut items = Vec::new();
        for (key, reply) in self.read().iter().zip(replies) {
            match reply {
                Reply::Item(item) => items.push((key, item)),
                Reply::Absent => {}
                Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                _ => return Step::Done(Outcome::Failed(Failure::Refused)),
            }
        }
        let (outcome, commands) = self.answer(&items, inputs.now);
        if commands.is_empty() {
            return Step::Done(outcome);
        }
        self.answer = Some(outcome);
        Step::Send(commands)
    }
}

/// A delete of the whole list.
#[derive(Debug)]
struct Remove {
    keys: Vec<ItemKey>,
    sent: bool,
}

impl Machine for Remove {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        if !std::mem::replace(&mut self.sent, true) {
            let delete =
                |key: &ItemKey| Command { key: key.clone(), operation: Operation::Delete { cas: None } };
            return Step::Send(self.keys.iter().map(delete).collect());
        }
        let mut outcome = Outcome::NotFound;
        for reply in replies {
            match reply {
                Reply::Done => outcome = Outcome::Deleted,
                Reply::Absent => {}
                Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                _ => return Step::Done(Outcome::Failed(Failure::Refused)),
            }
        }
        Step::Done(outcome)
    }
}

#[cfg(test)]
mod tests;
