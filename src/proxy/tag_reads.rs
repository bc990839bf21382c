//! The versions of the tags of one request's keys: each tag is asked for once, however many of the keys have it.

use std::rc::Rc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::client::Client;
use super::{Proxy, TagCache, wire};
use crate::error::Failure;
use crate::guard::{
    Cas, GetFlags, Item, Operation, Replies, ServerReply, TagName, Usage, incarnation_of, tag_get_flags,
    version_millis,
};
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// A tag is compared with so many of those before it. It may be asked for twice beyond that; that costs a read, no more.
const MAX_COMPARED: usize = 32;

/// The tags of one request, in the order in which its keys first had them.
#[derive(Default)]
pub(super) struct TagReads {
    reads: SmallVec<[TagLookup; 1]>,
    /// Their names' hashes, by which one is found.
    hashes: SmallVec<[u64; 4]>,
}

/// Which tags of a request a key has, in its rule's order.
pub(super) type TagIndexes = SmallVec<[u32; 4]>;

struct TagLookup {
    name: TagName,
    /// When it was asked for, on the monotonic clock.
    asked: u64,
    /// How often it had been written then, as far as the cache knows.
    writes: u64,
    state: State,
}

enum State {
    /// On its way from every server that keeps it.
    Asked(SmallVec<[ReplyId; 2]>),
    /// All of them have this one.
    Known(u64),
    /// It is missing, or they differ, or one does not answer: what they said.
    Unclear(Vec<ServerReply>),
}

impl TagReads {
    /// Asks for the tags of a key, unless another key has had them asked for.
    pub(super) fn ask(&mut self, names: &[TagName], proxy: &Proxy, client: &Client) -> TagIndexes {
        names.iter().map(|name| self.ask_one(name, proxy, client)).collect()
    }

    fn ask_one(&mut self, name: &TagName, proxy: &Proxy, client: &Client) -> u32 {
        let hash = proxy.hash(name);
        let at = self.find(name, hash, &proxy.tag_cache).unwrap_or_else(|| {
            let asked = proxy.mono(client.moment());
            let writes = proxy.tag_cache.writes(name);
            let state = match proxy.tag_cache.get(name, asked) {
                Some(version) => State::Known(version),
                None => State::Asked(proxy.ask_for_tag(name, tag_get_flags(), &client.inbox)),
            };
            self.push(TagLookup { name: name.clone(), asked, writes, state }, hash)
        });
        // A part of a get has 128 keys at most, and a rule 16 tags.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Where a tag has been asked for that another key has too. Not one that was written since: what this key is read with may be
    /// kept near, and then counts as read behind that write.
    fn find(&self, name: &TagName, hash: u64, cache: &TagCache) -> Option<usize> {
        let compared = &self.hashes[..self.hashes.len().min(MAX_COMPARED)];
        (0..compared.len()).find(|at| {
            let is = |read: &TagLookup| read.name == *name && read.writes == cache.writes(name);
            compared[*at] == hash && is(&self.reads[*at])
        })
    }

    fn push(&mut self, read: TagLookup, hash: u64) -> usize {
        self.reads.push(read);
        self.hashes.push(hash);
        self.reads.len() - 1
    }

    /// Whether what servers say of these is here.
    pub(super) fn are_here(&self, places: &[u32], inbox: &PendingReplies) -> bool {
        places.iter().all(|place| match self.reads.get(*place as usize).map(|read| &read.state) {
            Some(State::Asked(tickets)) => tickets.iter().all(|ticket| inbox.is_here(*ticket)),
            _ => true,
        })
    }

    /// Reads what has come of these, which must be [here](TagReads::are_here). Whether each has one version, and no more need be
    /// known.
    pub(super) fn settle(&mut self, places: &[u32], proxy: &Proxy, inbox: &PendingReplies) -> bool {
        let mut clear = true;
        for place in places {
            let Some(read) = self.reads.get_mut(*place as usize) else { return false };
            if let State::Asked(tickets) = &read.state {
                read.state = settled(tickets, inbox);
                if let State::Known(version) = read.state {
                    proxy.tag_cache.put_unless_written(&read.name, version, read.asked, read.writes);
                }
            }
            clear &= matches!(read.state, State::Known(_));
        }
        clear
    }

    /// The names and versions of these, once all are [settled](TagReads::settle) and clear.
    pub(super) fn versions(&self, places: &[u32]) -> impl Iterator<Item = (&[u8], u64)> {
        places.iter().filter_map(|place| match self.reads.get(*place as usize) {
            Some(TagLookup { name, state: State::Known(version), .. }) => Some((&name[..], *version)),
            _ => None,
        })
    }

    /// What the servers said of these, for a machine that would have asked itself.
    pub(super) fn answers(&self, places: &[u32], copies: bool, answers: &mut Replies) {
        for place in places {
            match self.reads.get(*place as usize).map(|read| &read.state) {
                Some(State::Known(version)) => {
                    answers.extend((0..1 + usize::from(copies)).map(|_| known(*version)));
                }
                Some(State::Unclear(said)) => answers.extend(said.iter().cloned()),
                Some(State::Asked(_)) | None => answers.push(ServerReply::Failed(Failure::Down)),
            }
        }
    }
}

fn settled(tickets: &[ReplyId], inbox: &PendingReplies) -> State {
    let replies: SmallVec<[_; 2]> = tickets.iter().map(|ticket| inbox.take(*ticket)).collect();
    let mut versions = replies.iter().map(|reply| reply.as_ref().and_then(wire::version));
    match versions.next() {
        Some(Some(version)) if versions.all(|other| other == Some(version)) => State::Known(version),
        _ => {
            let look = Operation::Get(tag_get_flags());
            let answer = |reply| wire::answer(&look, reply);
            let lost = || ServerReply::Failed(Failure::Down);
            State::Unclear(replies.into_iter().map(|reply| reply.map_or_else(lost, answer)).collect())
        }
    }
}

/// A version as a server would tell it that has it under a CAS that nobody needs.
pub(super) fn known(version: u64) -> ServerReply {
    let value = Bytes::from(version_millis(version).to_string());
    let cas = Cas { number: 0, epoch: 0 };
    let (size, flags, usage) = (value.len(), incarnation_of(version), Usage::default());
    ServerReply::Item(Item { value, size, flags, cas, ttl: None, won: false, stale: false, usage })
}

impl Proxy {
    /// Asks every server that keeps it.
    pub(super) fn ask_for_tag(
        &self,
        name: &[u8],
        look: GetFlags,
        inbox: &Rc<PendingReplies>,
    ) -> SmallVec<[ReplyId; 2]> {
        let mut key: SmallVec<[u8; 64]> = SmallVec::from_slice(&self.plan.tag_prefix);
        key.extend_from_slice(name);
        let look = Operation::Get(look);
        let sides: &[bool] = if self.plan.tag_copies { &[false, true] } else { &[false] };
        let ask = |copy: &bool| {
            self.tag_connection(&key, *copy).read(inbox, |out| wire::encode(&look, &key, out)).0
        };
        sides.iter().map(ask).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::guard::{version, version_of};

    #[test]
    fn a_machine_that_is_told_a_known_version_sees_that_version() {
        for known_version in [0, 7, version(1_700_000_000_000, 0xf_edcb)] {
            let ServerReply::Item(item) = known(known_version) else { panic!("it is an item") };
            assert_eq!(version_of(&item), Some(known_version));
        }
    }

    #[test]
    fn a_version_from_the_cache_is_not_shared_with_a_key_that_is_read_behind_a_bump_through_another_worker() {
        let name = TagName::from_slice(b"posts");
        for keep in [Duration::from_secs(1), Duration::ZERO] {
            let cache = TagCache::new(keep);
            let mut reads = TagReads::default();
            let read = TagLookup {
                name: name.clone(),
                asked: 0,
                writes: cache.writes(&name),
                state: State::Known(7),
            };
            reads.push(read, 1);
            assert_eq!(reads.find(&name, 1, &cache), Some(0));
            cache.clone().written(&name);
            // Without a cache it was asked of its server in this very turn, and is not older than the bump.
            assert_eq!(reads.find(&name, 1, &cache), keep.is_zero().then_some(0));
            reads.push(
                TagLookup {
                    name: name.clone(),
                    asked: 0,
                    writes: cache.writes(&name),
                    state: State::Known(9),
                },
                1,
            );
            assert_eq!(reads.find(&name, 1, &cache), Some(usize::from(!keep.is_zero())));
        }
    }

    #[test]
    fn a_tag_behind_more_than_are_compared_is_asked_for_again_and_never_taken_for_another() {
        let cache = TagCache::new(Duration::ZERO);
        let mut reads = TagReads::default();
        let name = |n: usize| TagName::from_slice(format!("t{n}").as_bytes());
        for n in 0..2 * MAX_COMPARED {
            // All have the same hash: it is the name that tells them apart.
            assert_eq!(reads.find(&name(n), 1, &cache), None);
            let read = TagLookup { name: name(n), asked: 0, writes: 0, state: State::Known(n as u64) };
            assert_eq!(reads.push(read, 1), n);
        }
        for n in 0..2 * MAX_COMPARED {
            assert_eq!(reads.find(&name(n), 1, &cache), (n < MAX_COMPARED).then_some(n));
        }
    }
}
