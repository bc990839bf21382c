//! Reads of several items by as few lines as memcached takes.

use super::command::{Command, Commands, Operation};
use super::item::ItemKey;
use super::many::Keys;

/// The longest line of keys that is sent to a server, in bytes: memcached takes 2,048.
pub(super) const MAX_LINE: usize = 1_900;

/// Divides keys into lines.
#[derive(Debug)]
pub(super) struct Gets {
    full: Commands,
    line: Keys,
}

impl Gets {
    /// Reads of items whose keys probably take so many bytes, each with a space.
    pub(super) fn new(length: usize) -> Gets {
        Gets { full: Commands::new(), line: Keys::with_capacity(length.min(MAX_LINE)) }
    }

    /// Reads the item with this key, which is behind a space, behind those before.
    pub(super) fn push_spaced(&mut self, spaced: &[u8]) {
        if self.line.line().len() + spaced.len() > MAX_LINE {
            self.full.push(get(std::mem::take(&mut self.line)));
        }
        self.line.push_spaced(spaced);
    }

    /// The commands, once at least one key was added, behind another command if there is one.
    pub(super) fn behind(self, first: Option<Command>) -> Commands {
        let mut commands = Commands::with_capacity(2);
        commands.extend(first);
        commands.extend(self.full);
        commands.push(get(self.line));
        commands
    }
}

fn get(keys: Keys) -> Command {
    Command { key: ItemKey::new(), operation: Operation::GetMany(keys) }
}

/// Reads of these items, of which there is at least one, in this order.
pub(super) fn gets(keys: impl IntoIterator<Item: AsRef<[u8]>>) -> Commands {
    let mut gets = Gets::new(0);
    keys.into_iter().for_each(|key| gets.push_spaced(&[b" ", key.as_ref()].concat()));
    gets.behind(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_keys_is_ended_before_it_is_too_long_and_no_sooner() {
        let all: Vec<Vec<u8>> = (0..20u8).map(|n| vec![b'a' + n; 249 - usize::from(n)]).collect();
        let commands = gets(&all);
        let lines = commands.iter().map(|command| match &command.operation {
            Operation::GetMany(keys) => keys,
            other => panic!("{other:?}"),
        });
        let lengths: Vec<usize> = lines.clone().map(|keys| keys.line().len()).collect();
        assert!(lengths.iter().all(|length| *length <= MAX_LINE), "{lengths:?}");
        // Another key has no room.
        assert!(lengths[..lengths.len() - 1].iter().all(|length| *length > MAX_LINE - 250), "{lengths:?}");
        let read: Vec<&[u8]> = lines.flat_map(Keys::iter).collect();
        assert_eq!(read, all);
    }
}
