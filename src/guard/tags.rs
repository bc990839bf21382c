//! Reads the versions of a key's tags and creates the tags that are missing.
//!
//! A read of a missing tag leaves a stub, and the tag is created only over that stub's CAS. A creation that is carried
//! out late, after the tag was created, bumped and lost again, therefore has no effect. Otherwise it could bring back
//! the version that a value was sealed with.
//!
//! With [`Inputs::copies`] two servers keep each tag. The larger version counts, a reader that finds the other copy
//! behind updates it, and a bump is acknowledged once all reachable copies have it. The loss of one server thus
//! invalidates nothing and makes nothing fresh again.
//!
//! In a pool with failover an item that was stored under another fence counts as lost: a bump may have been carried out in
//! another place meanwhile. And a bump needs all copies: one that it has not reached could become the only one left.

use smallvec::SmallVec;

use crate::error::Failure;

use super::command::{
    Cas, Commands, GetFlags, ItemRef, Operation, ServerCommand, ServerReply, StoreMode, Stored,
};
use super::inputs::Inputs;
use super::retry::MAX_ROUNDS;
use super::tag_version::{Versions, created_version, incarnation_of, tag_value};

/// TTL, in seconds, of the stub of a tag that is never created: longer than any client waits for it.
const STUB_SECONDS: u32 = 30;

/// A read of all tags of one key, including the creation of those that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TagRead {
    tags: SmallVec<[FoundTag; 4]>,
    writing: bool,
    rounds: u8,
    /// The version of the tags that are created in this round. It must be kept: the reply arrives at a later time.
    new_version: u64,
    /// A tag was missing on every server, so it cannot prove that an existing value is fresh.
    pub(super) lost: bool,
}

/// What is known about one tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct FoundTag {
    version: Option<u64>,
    /// The servers where the tag is missing or behind, with the CAS of the item to replace.
    outdated: Vec<(TagServer, Cas)>,
}

/// One of the servers that keep a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TagServer {
    First,
    Copy,
}

impl TagServer {
    pub(super) fn item(self, tag: u8) -> ItemRef {
        match self {
            TagServer::First => ItemRef::Tag(tag),
            TagServer::Copy => ItemRef::TagCopy(tag),
        }
    }

    /// The fence of the place that this is for a tag.
    pub(super) fn fence(self, tag: u8, inputs: &Inputs<'_>) -> u64 {
        inputs.tag_fence(tag, self == TagServer::Copy)
    }

    /// The servers that keep each tag.
    pub(super) fn all(copies: bool) -> &'static [TagServer] {
        if copies { &[TagServer::First, TagServer::Copy] } else { &[TagServer::First] }
    }
}

/// Version and CAS of the tag's item on each server that replied.
type FoundCopies = SmallVec<[(TagServer, Option<u64>, Cas); 2]>;

/// Takes one reply for each server of the n-th tag. Fails if none of them has an item.
pub(super) fn find_copies<'a>(
    tag: u8,
    inputs: &Inputs<'_>,
    replies: &mut impl Iterator<Item = &'a ServerReply>,
) -> Result<FoundCopies, Failure> {
    let mut found = FoundCopies::new();
    let mut failure = None;
    for server in TagServer::all(inputs.copies) {
        match replies.next() {
            Some(ServerReply::Item(item)) => {
                let version = inputs.version_of(item, tag, *server == TagServer::Copy);
                found.push((*server, version, item.cas));
            }
            Some(ServerReply::Failed(failed)) => failure = Some(*failed),
            // Not even a stub.
            Some(ServerReply::Absent) => failure = Some(Failure::NoMemory),
            Some(_) | None => failure = Some(Failure::Refused),
        }
    }
    match failure {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

impl TagRead {
    pub(super) fn new(tags: usize) -> TagRead {
        TagRead {
            tags: SmallVec::from_elem(FoundTag::default(), tags),
            writing: false,
            rounds: 0,
            new_version: 0,
            lost: false,
        }
    }

    /// A read of only those tags whose version is `None`.
    pub(super) fn with_known(versions: impl Iterator<Item = Option<u64>>) -> TagRead {
        let tags = versions.map(|version| FoundTag { version, outdated: Vec::new() }).collect();
        TagRead { tags, ..TagRead::new(0) }
    }

    /// Appends the commands of the next round: first reads, then creations and updates, then reads of the tags that
    /// another sidecar has written meanwhile.
    pub(super) fn push_commands(&mut self, commands: &mut Commands, inputs: &Inputs<'_>) {
        self.new_version = created_version(inputs);
        for (index, tag) in (0..).zip(&self.tags) {
            if self.writing {
                let version = tag.version.unwrap_or(self.new_version);
                let outdated = tag.outdated.iter();
                commands.extend(
                    outdated.map(|(server, cas)| store_version(*server, index, version, *cas, inputs)),
                );
            } else if tag.version.is_none() {
                commands.extend(get_copies(index, inputs.copies));
            }
        }
    }

    /// Takes the replies to [`TagRead::push_commands`].
    pub(super) fn absorb(&mut self, replies: &[ServerReply], inputs: &Inputs<'_>) -> Result<(), Failure> {
        let mut replies = replies.iter();
        for (index, tag) in (0..).zip(&mut self.tags) {
            if self.writing {
                let (mut stored, mut raced, mut failure) = (false, false, None);
                for (_, reply) in tag.outdated.drain(..).zip(&mut replies) {
                    match reply {
                        ServerReply::Stored(_) => stored = true,
                        ServerReply::Failed(failed) => failure = Some(*failed),
                        ServerReply::TooLarge => failure = Some(Failure::Refused),
                        // Another sidecar has written it.
                        _ => raced = true,
                    }
                }
                match failure {
                    Some(failure) if tag.version.is_none() && !stored && !raced => return Err(failure),
                    // The other sidecar's version may be newer than the one read here: read again.
                    _ if raced => tag.version = None,
                    _ if stored => tag.version = tag.version.or(Some(self.new_version)),
                    _ => {}
                }
            } else if tag.version.is_none() {
                let found = find_copies(index, inputs, &mut replies)?;
                tag.version = found.iter().filter_map(|(_, version, _)| *version).max();
                self.lost |= tag.version.is_none();
                let outdated =
                    found.into_iter().filter(|(_, version, _)| version.is_none() || *version < tag.version);
                tag.outdated = outdated.map(|(server, _, cas)| (server, cas)).collect();
            }
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(Failure::Overloaded);
        }
        self.writing = !self.writing && self.tags.iter().any(|tag| !tag.outdated.is_empty());
        Ok(())
    }

    /// The versions, once all are known and stored on every reachable server.
    pub(super) fn versions(&self) -> Option<Versions> {
        if self.writing { None } else { self.known() }
    }

    /// The versions, once all are known.
    pub(super) fn known(&self) -> Option<Versions> {
        self.tags.iter().map(|tag| tag.version).collect()
    }
}

/// The flags of a read of a tag: with the value, and with a stub if the tag is missing.
pub fn tag_get_flags() -> GetFlags {
    GetFlags { value: true, vivify: Some(STUB_SECONDS), ..GetFlags::default() }
}

/// Stores a version of a tag under this fence, over exactly the item with this CAS.
pub fn store_version_under(item: ItemRef, version: u64, fence: u64, over: Cas) -> ServerCommand {
    ServerCommand {
        item,
        operation: Operation::Store {
            mode: StoreMode::Set,
            value: Stored::plain(tag_value(version, fence)),
            flags: incarnation_of(version),
            exptime: 0,
            cas: Some(over),
            explicit: None,
        },
    }
}

pub(super) fn get_tag(item: ItemRef) -> ServerCommand {
    ServerCommand { item, operation: Operation::Get(tag_get_flags()) }
}

/// Reads of a tag on every server that keeps it.
pub(super) fn get_copies(tag: u8, copies: bool) -> impl Iterator<Item = ServerCommand> {
    TagServer::all(copies).iter().map(move |server| get_tag(server.item(tag)))
}

/// Stores the version of a tag on one of its servers, over exactly the item with this CAS.
pub(super) fn store_version(
    server: TagServer,
    tag: u8,
    version: u64,
    over: Cas,
    inputs: &Inputs<'_>,
) -> ServerCommand {
    store_version_under(server.item(tag), version, server.fence(tag, inputs), over)
}

#[cfg(test)]
mod tests;
