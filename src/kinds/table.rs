//! A table: elements that are items of their own, under the keys that clients name, and lists of their names.
//!
//! The elements are the truth. A name is a hint, `+name`, appended before the element is stored, so that a writer that dies leaves
//! a name too many, never one too few. A listing looks up the element of each name. When most lines are of no use, it writes the
//! others back under the condition that the item still has the CAS that was read. A name whose element was absent is written back
//! as `?name`, and goes when it is absent once more.
//!
//! A writer that is overtaken by such a write between the name and the element appends the name once more: it compares the CAS of
//! its append with the one behind the element.
//!
//! The name behind the element, or only of a new one, would leave elements that no listing shows when a writer dies or names are
//! evicted. A generation in each element's key would lose all elements with it. `ms … MA N` would spare the `add` of an empty item,
//! and memcached 1.6.18 does not have it.

mod element;

use bytes::{Bytes, BytesMut};
use foldhash::{HashMap, HashMapExt};

pub(super) use self::element::begin as begin_element;
use super::command::{Cas, Command, Commands, Mode, Operation, Replies, Reply};
use super::item::ItemKey;
use super::machine::{Inputs, Machine, Outcome, Step};
use super::request::Request;
use super::shards::{self, has_grown, shard_of};
use crate::error::Failure;

/// The commands that a table has, for the error that names them.
pub(super) const COMMANDS: &str =
    "CLIENT_ERROR a table has only the commands get, delete, and any command on KEY/NAME\r\n";
const NO_NAME: &str = "CLIENT_ERROR what follows the / of a table must be a name\r\n";
const FULL: &str = "SERVER_ERROR the names of the table are full: the element is not stored\r\n";

/// The longest key of an element, in bytes.
const MAX_KEY: usize = 250;
/// The most bytes of an answer: the largest item that memcached stores by default.
const MAX_ANSWER: usize = 1_048_576;
/// The elements that are looked up or deleted in one round trip.
const BATCH: usize = 2_048;
/// How often a name is appended that is removed meanwhile.
const MAX_ROUNDS: u8 = 8;

/// The items with the names of the elements.
pub(super) fn items_below(own: &[u8]) -> Vec<ItemKey> {
    shards::keys(own, 'n').unwrap_or_default()
}

/// Begins a client's command on the table itself.
pub(super) fn begin(own: &[u8], request: Request<'_>) -> Result<Box<dyn Machine>, &'static str> {
    let keys = shards::keys(own, 'n')?;
    let found = Found { own: ItemKey::from_slice(own), shards: Vec::new(), elements: Vec::new(), at: 0 };
    match request {
        Request::Get => {
            Ok(Box::new(Listing { keys, found, present: Vec::new(), step: ListingStep::Begin, answer: None }))
        }
        Request::Delete => Ok(Box::new(Remove { keys, found, step: RemoveStep::Begin, is_deleted: false })),
        _ => Err(COMMANDS),
    }
}

/// Begins to note the name of an element that the client is about to store. The command that stores it must be sent before the last
/// command of the first round trip. It may be acknowledged if the outcome is [`Outcome::Stored`]. The first `length` bytes of `key`
/// are the table's own key.
pub fn note(key: &[u8], length: usize) -> Result<Box<dyn Machine>, &'static str> {
    let (own, rest) = key.split_at(length);
    let [_, name @ ..] = rest else { return Err(NO_NAME) };
    if !is_name(name) {
        return Err(NO_NAME);
    }
    let names = shards::keys(own, 'n')?.swap_remove(shard_of(name));
    Ok(Box::new(Note {
        names,
        element: ItemKey::from_slice(key),
        line: line(b"+", name),
        step: NoteStep::Begin,
        rounds: 0,
    }))
}

/// Whether a client can have stored such an element: a name that is read becomes a part of a command.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

fn line(mark: &[u8], name: &[u8]) -> Bytes {
    Bytes::from([mark, name, b"\n"].concat())
}

fn element_key(own: &[u8], name: &[u8]) -> ItemKey {
    [own, b"/", name].into_iter().flatten().copied().collect()
}

/// The names in an item, each once, with whether its element was absent before.
fn names(data: &[u8]) -> (Vec<(Bytes, bool)>, usize) {
    let count = memchr::memchr_iter(b'\n', data).count() + 1;
    let mut at: HashMap<&[u8], usize> = HashMap::with_capacity(count);
    let (mut names, mut lines) = (Vec::<(Bytes, bool)>::with_capacity(count), 0);
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', data).chain([data.len()]) {
        let line = &data[start..end];
        start = end + 1;
        if line.is_empty() {
            continue;
        }
        lines += 1;
        let [mark @ (b'+' | b'?'), name @ ..] = line else { continue };
        if !is_name(name) {
            continue;
        }
        match at.get(name) {
            Some(at) => names[*at].1 &= *mark == b'?',
            None => {
                at.insert(name, names.len());
                names.push((Bytes::copy_from_slice(name), *mark == b'?'));
            }
        }
    }
    (names, lines)
}

/// Replaces an item by these names, if it still has the CAS.
fn replace(key: &ItemKey, names: impl Iterator<Item = (Bytes, bool)>, cas: Cas) -> Command {
    let mut value = BytesMut::new();
    for (name, was_absent) in names {
        value.extend_from_slice(&line(if was_absent { b"?" } else { b"+" }, &name));
    }
    let operation = match value.is_empty() {
        true => Operation::Delete { cas: Some(cas) },
        false => {
            let (mode, cas) = (Mode::Set, Some(cas));
            Operation::Store { mode, value: value.freeze(), flags: 0, exptime: 0, cas }
        }
    };
    Command { key: key.clone(), operation }
}

#[derive(Debug)]
struct Note {
    names: ItemKey,
    element: ItemKey,
    line: Bytes,
    step: NoteStep,
    rounds: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoteStep {
    Begin,
    /// The name is appended, the element stored, and the CAS of the names read.
    Around,
    /// The name is appended once more, behind the element.
    Again,
    /// The names are read: there is no room for one more, or many of the lines may be of no use.
    ReadFull,
    ReadGrown,
    FoldFull,
    FoldGrown,
    /// The element is deleted, because its name is not stored.
    Undo,
}

impl Note {
    fn command(&self, operation: Operation) -> Command {
        Command { key: self.names.clone(), operation }
    }

    fn append(&self) -> Commands {
        let store = |mode, value| Operation::Store { mode, value, flags: 0, exptime: 0, cas: None };
        // Not every version of memcached creates an item that is appended to.
        vec![
            self.command(store(Mode::Add, Bytes::new())),
            self.command(store(Mode::Append, self.line.clone())),
        ]
    }

    fn send(&mut self, step: NoteStep, commands: Commands) -> Step {
        self.step = step;
        Step::Send(commands)
    }

    fn again(&mut self) -> Step {
        self.rounds += 1;
        match self.rounds > MAX_ROUNDS {
            true => self.undo(),
            false => self.send(NoteStep::Again, self.append()),
        }
    }

    fn read(&mut self, step: NoteStep) -> Step {
        let get = self.command(Operation::Get);
        self.send(step, vec![get])
    }

    fn undo(&mut self) -> Step {
        let delete = Command { key: self.element.clone(), operation: Operation::Delete { cas: None } };
        self.send(NoteStep::Undo, vec![delete])
    }
}

impl Machine for Note {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        let failed = replies.iter().find_map(|reply| match reply {
            Reply::Failed(failure) => Some(*failure),
            _ => None,
        });
        if let Some(failure) = failed {
            return Step::Done(match self.step {
                NoteStep::ReadGrown | NoteStep::FoldGrown => Outcome::Stored(0),
                _ => Outcome::Failed(failure),
            });
        }
        match (self.step, &replies[..]) {
            (NoteStep::Begin, _) => {
                let mut commands = self.append();
                commands.push(self.command(Operation::Size { exptime: None }));
                self.send(NoteStep::Around, commands)
            }
            (NoteStep::Around, [_, Reply::Stored(appended), Reply::Size(size, last)]) if appended == last => {
                match has_grown(*size, self.line.len()) {
                    true => self.read(NoteStep::ReadGrown),
                    false => Step::Done(Outcome::Stored(0)),
                }
            }
            (NoteStep::Around, [_, Reply::NotStored, Reply::Size(..)]) => self.read(NoteStep::ReadFull),
            (NoteStep::Around, _) => self.again(),
            (NoteStep::Again, [_, Reply::Stored(_)]) => Step::Done(Outcome::Stored(0)),
            (NoteStep::Again, [Reply::NotStored, _]) => self.read(NoteStep::ReadFull),
            (NoteStep::ReadFull, [Reply::Item(item)]) => {
                let data = [&item.data[..], &self.line].concat();
                let fold = replace(&self.names, names(&data).0.into_iter(), item.cas);
                match &fold.operation {
                    // memcached deletes an item that cannot be replaced because it would be too large.
                    Operation::Store { value, .. } if value.len() <= item.data.len() => {
                        self.send(NoteStep::FoldFull, vec![fold])
                    }
                    _ => self.undo(),
                }
            }
            (NoteStep::FoldFull, [Reply::Stored(_)]) => Step::Done(Outcome::Stored(0)),
            (NoteStep::ReadGrown, [Reply::Item(item)]) => {
                let (names, lines) = names(&item.data);
                match lines > 2 * names.len() {
                    true => {
                        let fold = replace(&self.names, names.into_iter(), item.cas);
                        self.send(NoteStep::FoldGrown, vec![fold])
                    }
                    false => Step::Done(Outcome::Stored(0)),
                }
            }
            (NoteStep::ReadGrown | NoteStep::FoldGrown, _) => Step::Done(Outcome::Stored(0)),
            (NoteStep::Undo, _) => Step::Done(Outcome::Refused(FULL)),
            (NoteStep::Again | NoteStep::ReadFull | NoteStep::FoldFull, _) => self.again(),
        }
    }
}

/// The names that were found, and how far their elements have been dealt with.
#[derive(Debug)]
struct Found {
    own: ItemKey,
    shards: Vec<Shard>,
    elements: Vec<ItemKey>,
    at: usize,
}

/// An item with names.
#[derive(Debug)]
struct Shard {
    key: ItemKey,
    cas: Cas,
    names: Vec<(Bytes, bool)>,
    lines: usize,
}

impl Found {
    /// Takes the items with the names.
    fn take(&mut self, keys: &[ItemKey], replies: Replies) -> Result<(), Failure> {
        for (key, reply) in keys.iter().zip(replies) {
            match reply {
                Reply::Item(item) => {
                    let (mut names, lines) = names(&item.data);
                    names.retain(|(name, _)| self.own.len() + 1 + name.len() <= MAX_KEY);
                    self.elements.extend(names.iter().map(|(name, _)| element_key(&self.own, name)));
                    self.shards.push(Shard { key: key.clone(), cas: item.cas, names, lines });
                }
                Reply::Absent => {}
                Reply::Failed(failure) => return Err(failure),
                _ => return Err(Failure::Refused),
            }
        }
        Ok(())
    }

    /// The commands on the next elements.
    fn next(&mut self, operation: &Operation) -> Commands {
        let elements = self.elements.iter().skip(self.at).take(BATCH);
        let command = |key: &ItemKey| Command { key: key.clone(), operation: operation.clone() };
        let commands: Commands = elements.map(command).collect();
        self.at += commands.len();
        commands
    }
}

fn gets(keys: &[ItemKey]) -> Step {
    let get = |key: &ItemKey| Command { key: key.clone(), operation: Operation::Get };
    Step::Send(keys.iter().map(get).collect())
}

/// A listing of the names.
#[derive(Debug)]
struct Listing {
    keys: Vec<ItemKey>,
    found: Found,
    /// Whether each element is there.
    present: Vec<bool>,
    step: ListingStep,
    /// The outcome, while names are folded.
    answer: Option<Outcome>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListingStep {
    Begin,
    Reading,
    LookingUp,
}

impl Listing {
    fn look_up(&mut self) -> Step {
        self.step = ListingStep::LookingUp;
        match self.found.next(&Operation::Size { exptime: None }) {
            commands if commands.is_empty() => self.end(),
            commands => Step::Send(commands),
        }
    }

    fn end(&mut self) -> Step {
        let mut present = self.present.iter().copied();
        let (mut answer, mut commands) = (BytesMut::new(), Commands::new());
        for Shard { key, cas, names, lines } in std::mem::take(&mut self.found.shards) {
            let (mut kept, mut live) = (Vec::new(), 0);
            for ((name, was_absent), is_present) in names.into_iter().zip(&mut present) {
                if is_present {
                    [&name[..], b"\n"].iter().for_each(|part| answer.extend_from_slice(part));
                    live += 1;
                    kept.push((name, false));
                } else if !was_absent {
                    kept.push((name, true));
                }
            }
            if lines - live > live {
                commands.push(replace(&key, kept.into_iter(), cas));
            }
        }
        let outcome = match answer.len() {
            0 => Outcome::Miss,
            1..=MAX_ANSWER => Outcome::Value { data: answer.freeze(), flags: 0, cas: 0, ttl: None },
            _ => Outcome::Failed(Failure::TooLarge),
        };
        if commands.is_empty() {
            return Step::Done(outcome);
        }
        self.answer = Some(outcome);
        Step::Send(commands)
    }
}

impl Machine for Listing {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        if let Some(answer) = self.answer.take() {
            // Whether the names have been folded does not matter.
            return Step::Done(answer);
        }
        match self.step {
            ListingStep::Begin => {
                self.step = ListingStep::Reading;
                gets(&self.keys)
            }
            ListingStep::Reading => match self.found.take(&self.keys, replies) {
                Ok(()) => self.look_up(),
                Err(failure) => Step::Done(Outcome::Failed(failure)),
            },
            ListingStep::LookingUp => {
                for reply in replies {
                    match reply {
                        Reply::Size(..) => self.present.push(true),
                        Reply::Absent => self.present.push(false),
                        Reply::Failed(failure) => return Step::Done(Outcome::Failed(failure)),
                        _ => return Step::Done(Outcome::Failed(Failure::Refused)),
                    }
                }
                self.look_up()
            }
        }
    }
}

/// A delete of a table: of all elements whose names are found, and then of the names, unless others were added meanwhile. As in a
/// listing, a name goes when its element was absent twice.
#[derive(Debug)]
struct Remove {
    keys: Vec<ItemKey>,
    found: Found,
    step: RemoveStep,
    /// Whether there was an element.
    is_deleted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemoveStep {
    Begin,
    Reading,
    Deleting,
    /// The names are marked.
    Marking,
    /// The elements are looked for once more.
    DeletingAgain,
    /// The names are deleted.
    Forgetting,
}

impl Remove {
    fn delete(&mut self, step: RemoveStep) -> Step {
        self.step = step;
        let commands = self.found.next(&Operation::Delete { cas: None });
        match (commands.is_empty(), step) {
            (false, _) => Step::Send(commands),
            (true, RemoveStep::Deleting) => {
                self.found.at = 0;
                self.change(RemoveStep::Marking, |shard| {
                    let marked = shard.names.iter().map(|(name, _)| (name.clone(), true));
                    replace(&shard.key, marked, shard.cas)
                })
            }
            (true, _) => self
                .change(RemoveStep::Forgetting, |shard| replace(&shard.key, std::iter::empty(), shard.cas)),
        }
    }

    fn change(&mut self, step: RemoveStep, command: impl FnMut(&Shard) -> Command) -> Step {
        self.step = step;
        match self.found.shards.is_empty() {
            true => self.done(),
            false => Step::Send(self.found.shards.iter().map(command).collect()),
        }
    }

    fn done(&self) -> Step {
        Step::Done(if self.is_deleted { Outcome::Deleted } else { Outcome::NotFound })
    }
}

impl Machine for Remove {
    fn resume(&mut self, replies: Replies, _: &Inputs) -> Step {
        let failed = replies.iter().find_map(|reply| match reply {
            Reply::Failed(failure) => Some(*failure),
            _ => None,
        });
        if let Some(failure) = failed {
            return Step::Done(Outcome::Failed(failure));
        }
        match self.step {
            RemoveStep::Begin => {
                self.step = RemoveStep::Reading;
                gets(&self.keys)
            }
            RemoveStep::Reading => match self.found.take(&self.keys, replies) {
                Ok(()) => self.delete(RemoveStep::Deleting),
                Err(failure) => Step::Done(Outcome::Failed(failure)),
            },
            RemoveStep::Deleting | RemoveStep::DeletingAgain => {
                self.is_deleted |= replies.contains(&Reply::Done);
                self.delete(self.step)
            }
            RemoveStep::Marking => {
                // Names that were added meanwhile remain, with those beside them.
                let mut replies = replies.into_iter();
                self.found.shards.retain_mut(|shard| match replies.next() {
                    Some(Reply::Stored(cas)) => {
                        shard.cas = cas;
                        true
                    }
                    _ => false,
                });
                let own = self.found.own.clone();
                let names = self.found.shards.iter().flat_map(|shard| &shard.names);
                self.found.elements = names.map(|(name, _)| element_key(&own, name)).collect();
                self.delete(RemoveStep::DeletingAgain)
            }
            RemoveStep::Forgetting => self.done(),
        }
    }
}

#[cfg(test)]
mod tests;
