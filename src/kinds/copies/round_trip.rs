//! The commands of one round trip of a machine, carried out on items of which each has two copies.
//!
//! Commands on one item are carried out in their order, as one change. Different items are changed at the same time.

use foldhash::{HashMap, HashMapExt};

use super::operations::Operations;
use super::run::{Progress, Run};
use crate::error::Failure;
use crate::kinds::command::{Command, Commands, Operation, Replies, Reply};
use crate::kinds::item::ItemKey;
use crate::kinds::machine::{Inputs, Side};
use crate::kinds::many::Items;

/// A round trip that is under way.
#[derive(Debug)]
pub(super) struct RoundTrip {
    items: Vec<ItemRun>,
    commands: Vec<Asked>,
}

/// What is done to one item.
#[derive(Debug)]
struct ItemRun {
    key: ItemKey,
    run: Run<Operations>,
    /// How many of its commands are under way.
    sent: usize,
    /// The replies to its operations, once there are some.
    replies: Vec<Reply>,
    is_done: bool,
}

/// The items and the operations on them that a command consists of, by their indices.
#[derive(Debug)]
enum Asked {
    One(usize, usize),
    Many(Vec<(usize, usize)>),
}

impl RoundTrip {
    /// Begins. `needs_both`: whether a read must not return what may be undone.
    pub(super) fn begin(
        commands: Commands,
        needs_both: bool,
        inputs: &Inputs,
    ) -> (RoundTrip, Progress<Replies>) {
        let mut operations: Vec<(ItemKey, Vec<Operation>)> = Vec::new();
        let mut known: HashMap<ItemKey, usize> = HashMap::new();
        let mut ask = |key: ItemKey, operation| {
            let at = *known.entry(key).or_insert_with_key(|key| {
                operations.push((key.clone(), Vec::new()));
                operations.len() - 1
            });
            operations[at].1.push(operation);
            (at, operations[at].1.len() - 1)
        };
        let asked = commands.into_iter().map(|Command { key, operation }| match operation {
            Operation::GetMany(keys) => {
                Asked::Many(keys.iter().map(|key| ask(ItemKey::from_slice(key), Operation::Get)).collect())
            }
            operation => {
                let (item, at) = ask(key, operation);
                Asked::One(item, at)
            }
        });
        let commands = asked.collect();
        let items = operations.into_iter().map(|(key, operations)| ItemRun {
            run: Run::new(key.clone(), Operations::new(operations, needs_both)),
            key,
            sent: 0,
            replies: Vec::new(),
            is_done: false,
        });
        let mut begun = RoundTrip { items: items.collect(), commands };
        let progress = begun.resume(Replies::new(), inputs);
        (begun, progress)
    }

    /// Takes the replies to the commands that it returned last.
    pub(super) fn resume(&mut self, replies: Replies, inputs: &Inputs) -> Progress<Replies> {
        let mut replies = replies.into_iter();
        let mut commands: Vec<(Side, Command)> = Vec::new();
        for item in self.items.iter_mut().filter(|item| !item.is_done) {
            let own: Replies = replies.by_ref().take(item.sent).collect();
            match item.run.resume(&own, inputs) {
                Progress::Send(next) => {
                    item.sent = next.len();
                    commands.extend(next);
                }
                Progress::Done(end) => (item.replies, item.is_done) = (end, true),
            }
        }
        match commands.is_empty() {
            true => Progress::Done(self.commands.iter().map(|asked| self.reply(asked)).collect()),
            false => Progress::Send(commands),
        }
    }

    /// The items that it has left half changed.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = ItemKey> {
        self.items.iter().filter_map(|item| item.run.unfinished().cloned())
    }

    fn reply(&self, asked: &Asked) -> Reply {
        match asked {
            Asked::One(item, at) => self.reply_to(*item, *at).clone(),
            Asked::Many(all) => {
                let mut found = Vec::with_capacity(all.len());
                for (item, at) in all {
                    match self.reply_to(*item, *at) {
                        Reply::Item(value) => found.push((&self.items[*item].key, &value.data)),
                        Reply::Absent => {}
                        Reply::Failed(failure) => return Reply::Failed(*failure),
                        _ => return Reply::Failed(Failure::Refused),
                    }
                }
                Reply::Items(Items::from_iter(found))
            }
        }
    }

    /// The reply to one operation on an item. One that has failed has a single reply, whatever the operations.
    fn reply_to(&self, item: usize, at: usize) -> &Reply {
        let replies = &self.items[item].replies;
        replies.get(at).or(replies.last()).unwrap_or(&Reply::Failed(Failure::Refused))
    }
}
