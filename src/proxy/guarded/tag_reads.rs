//! The versions of the tags of one request's keys. Each tag is read once, however many of the keys carry it.

use std::rc::Rc;

use smallvec::SmallVec;

use super::wire;
use crate::error::Failure;
use crate::guard::{GetFlags, Now, Operation, Replies, ServerReply, TagName, tag_get_flags};
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::key::Place;
use crate::proxy::pipeline::Proxy;
use crate::proxy::state::tag_cache::TagCache;
use crate::upstream::pending_replies::{PendingReplies, Reply, ReplyId};

/// How many tags a new one is compared with. Beyond that, a tag may be read twice, which costs one read.
const MAX_COMPARED: usize = 32;

/// The tags of one request, in the order in which its keys first carried them.
#[derive(Default)]
pub(crate) struct TagReads {
    reads: SmallVec<[TagLookup; 1]>,
    /// The hashes of their names.
    hashes: SmallVec<[u64; 4]>,
    /// The time at which a reply was first read: near enough to tell that a version is of another day.
    now: Option<Now>,
}

/// The indexes of a key's tags in [`TagReads`], in the order of its rule.
pub(crate) type TagIndexes = SmallVec<[u32; 4]>;

struct TagLookup {
    name: TagName,
    /// When it was requested, in ms on the monotonic clock.
    sent_at: u64,
    /// Its write counter in the cache at that time.
    writes: u64,
    /// The fences of its servers, 0 in a pool without failover.
    fences: [u64; 2],
    /// The number for them, and for the others that count there, under which the cache keeps the version:
    /// [`GuardedKey::fences_of_tag`].
    all_fences: u64,
    state: State,
}

enum State {
    /// Requested from each server that stores it.
    Requested(SmallVec<[ReplyId; 2]>),
    /// All of them have this version.
    Known(u64),
    /// It is missing, the servers differ, or one does not reply: their replies.
    Unclear(Vec<ServerReply>),
}

impl From<Option<SmallVec<[ReplyId; 2]>>> for State {
    fn from(requested: Option<SmallVec<[ReplyId; 2]>>) -> State {
        let refused = || vec![ServerReply::Failed(Failure::NoView); 2];
        requested.map_or_else(|| State::Unclear(refused()), State::Requested)
    }
}

impl TagReads {
    /// Requests the tags of a key that no earlier key has requested.
    pub(crate) fn request(&mut self, key: &GuardedKey, proxy: &Proxy, client: &Client) -> TagIndexes {
        (0..key.tags.len()).map(|tag| self.request_one(key, tag, proxy, client)).collect()
    }

    fn request_one(&mut self, key: &GuardedKey, tag: usize, proxy: &Proxy, client: &Client) -> u32 {
        let name = &key.tags[tag];
        let hash = proxy.hash(name);
        let fences = key.tag_places.as_ref().map_or([0; 2], |tags| tags.fences[tag]);
        let all_fences = key.fences_of_tag(tag);
        let at = self.find(name, (fences, all_fences), hash, &proxy.tag_cache).unwrap_or_else(|| {
            let sent_at = proxy.mono(client.turn_time());
            let writes = proxy.tag_cache.writes(name);
            let state = match proxy.tag_cache.get(name, all_fences, sent_at) {
                Some(version) => State::Known(version),
                None => {
                    let places = match &key.tag_places {
                        Some(tags) => {
                            SmallVec::from_slice(&tags.places[tag][..1 + usize::from(proxy.plan.tag_copies)])
                        }
                        None => proxy.places_of_tag(&proxy.key_of_tag(name)),
                    };
                    proxy.request_tag(name, &places, tag_get_flags(), &client.pending).into()
                }
            };
            self.push(TagLookup { name: name.clone(), sent_at, writes, fences, all_fences, state }, hash)
        });
        // A part of a get has at most 128 keys, and a rule at most 16 tags.
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// The index of an earlier request of this tag. A tag that has been written since does not count: the value of this key may
    /// be kept near, and then counts as read after that write.
    fn find(&self, name: &TagName, fences: ([u64; 2], u64), hash: u64, cache: &TagCache) -> Option<usize> {
        let compared = &self.hashes[..self.hashes.len().min(MAX_COMPARED)];
        (0..compared.len()).find(|at| {
            let is = |read: &TagLookup| {
                let is_same_place = (read.fences, read.all_fences) == fences;
                read.name == *name && read.writes == cache.writes(name) && is_same_place
            };
            compared[*at] == hash && is(&self.reads[*at])
        })
    }

    fn push(&mut self, read: TagLookup, hash: u64) -> usize {
        self.reads.push(read);
        self.hashes.push(hash);
        self.reads.len() - 1
    }

    /// Whether all replies about these tags have arrived.
    pub(crate) fn have_arrived(&self, indexes: &[u32], pending: &PendingReplies) -> bool {
        indexes.iter().all(|index| match self.reads.get(*index as usize).map(|read| &read.state) {
            Some(State::Requested(ids)) => ids.iter().all(|id| pending.has_arrived(*id)),
            _ => true,
        })
    }

    /// Reads the replies about these tags, all of which must [have arrived](TagReads::have_arrived). Returns whether each tag
    /// has one version.
    pub(crate) fn settle(&mut self, indexes: &[u32], proxy: &Proxy, pending: &PendingReplies) -> bool {
        let mut clear = true;
        for index in indexes {
            let Some(read) = self.reads.get_mut(*index as usize) else { return false };
            if let State::Requested(ids) = &read.state {
                let now = *self.now.get_or_insert_with(|| proxy.now());
                read.state = read_replies(ids, read, now, proxy, pending);
                if let State::Known(version) = read.state {
                    let TagLookup { name, sent_at, writes, all_fences, .. } = &*read;
                    proxy.tag_cache.put_unless_written(name, version, *all_fences, *sent_at, *writes);
                }
            }
            clear &= matches!(read.state, State::Known(_));
        }
        clear
    }

    /// The names and versions of these tags. [`TagReads::settle`] must have returned true.
    pub(crate) fn versions(&self, indexes: &[u32]) -> impl Iterator<Item = (&[u8], u64)> {
        indexes.iter().filter_map(|index| match self.reads.get(*index as usize) {
            Some(TagLookup { name, state: State::Known(version), .. }) => Some((&name[..], *version)),
            _ => None,
        })
    }

    /// The servers' replies about these tags, for a state machine that has not requested them itself.
    pub(crate) fn put_replies(&self, indexes: &[u32], copies: bool, replies: &mut Replies) {
        for index in indexes {
            match self.reads.get(*index as usize).map(|read| (&read.state, &read.fences)) {
                Some((State::Known(version), fences)) => {
                    let fences = &fences[..1 + usize::from(copies)];
                    replies.extend(fences.iter().map(|fence| wire::tag_reply(*version, *fence)));
                }
                Some((State::Unclear(unclear), _)) => {
                    replies.extend(unclear.iter().take(1 + usize::from(copies)).cloned());
                }
                Some((State::Requested(_), _)) | None => replies.push(ServerReply::Failed(Failure::Down)),
            }
        }
    }
}

fn read_replies(ids: &[ReplyId], of: &TagLookup, now: Now, proxy: &Proxy, pending: &PendingReplies) -> State {
    let replies: SmallVec<[_; 2]> = ids.iter().map(|id| pending.take(*id)).collect();
    let version = |(reply, fence): (&Option<Reply>, u64)| wire::version(reply.as_ref()?, fence, now);
    let mut versions = replies.iter().zip(of.fences).map(version);
    match versions.next() {
        Some(Some(version)) if versions.all(|other| other == Some(version)) => State::Known(version),
        _ => {
            let flags = Operation::Get(tag_get_flags());
            let decode = |(copy, reply): (usize, Option<Reply>)| {
                let Some(reply) = reply else { return ServerReply::Failed(Failure::Down) };
                let reply = wire::decode_reply(&flags, reply);
                match reply {
                    ServerReply::Absent => proxy.note_full_tag(&of.name, copy == 1),
                    _ => proxy.note_tag(&of.name, &reply),
                }
                reply
            };
            State::Unclear(replies.into_iter().enumerate().map(decode).collect())
        }
    }
}

impl Proxy {
    /// Sends a get of a tag to each server that stores it. `None` if one of these places had no valid view.
    pub(crate) fn request_tag(
        &self,
        name: &[u8],
        places: &[Place],
        flags: GetFlags,
        pending: &Rc<PendingReplies>,
    ) -> Option<SmallVec<[ReplyId; 2]>> {
        let key = self.key_of_tag(name);
        let flags = Operation::Get(flags);
        if places.iter().any(|place| place.fence.is_none()) {
            return None;
        }
        let send =
            |place: &Place| self.tag_connection(place).read(pending, |out| wire::encode(&flags, &key, out)).0;
        Some(places.iter().map(send).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::guard::{version, version_of};

    #[test]
    fn a_machine_reads_the_version_in_a_tag_reply() {
        let versions = [7, version(1_700_000_000_000, 0xf_edcb)];
        for (known_version, fence) in versions.into_iter().flat_map(|version| [(version, 0), (version, 9)]) {
            let ServerReply::Item(item) = wire::tag_reply(known_version, fence) else {
                panic!("it is an item")
            };
            let now = Now { wall: 1_700_000_000_000, mono: 0 };
            assert_eq!(version_of(&item, fence, now), Some(known_version));
        }
    }

    #[test]
    fn a_cached_version_is_not_shared_with_a_key_that_is_read_after_a_bump_by_another_worker() {
        let name = TagName::from_slice(b"posts");
        for keep in [Duration::from_secs(1), Duration::ZERO] {
            let cache = TagCache::new(keep);
            let mut reads = TagReads::default();
            let read = TagLookup {
                name: name.clone(),
                sent_at: 0,
                writes: cache.writes(&name),
                fences: [0; 2],
                all_fences: 0,
                state: State::Known(7),
            };
            reads.push(read, 1);
            assert_eq!(reads.find(&name, ([0; 2], 0), 1, &cache), Some(0));
            cache.clone().written(&name);
            // Without a cache it was requested in this turn, so it is not older than the bump.
            assert_eq!(reads.find(&name, ([0; 2], 0), 1, &cache), keep.is_zero().then_some(0));
            reads.push(
                TagLookup {
                    name: name.clone(),
                    sent_at: 0,
                    writes: cache.writes(&name),
                    fences: [0; 2],
                    all_fences: 0,
                    state: State::Known(9),
                },
                1,
            );
            assert_eq!(reads.find(&name, ([0; 2], 0), 1, &cache), Some(usize::from(!keep.is_zero())));
        }
    }

    #[test]
    fn a_tag_beyond_the_compared_ones_is_requested_again_and_never_mistaken_for_another() {
        let cache = TagCache::new(Duration::ZERO);
        let mut reads = TagReads::default();
        let name = |n: usize| TagName::from_slice(format!("t{n}").as_bytes());
        for n in 0..2 * MAX_COMPARED {
            // All have the same hash: it is the name that tells them apart.
            assert_eq!(reads.find(&name(n), ([0; 2], 0), 1, &cache), None);
            let read = TagLookup {
                name: name(n),
                sent_at: 0,
                writes: 0,
                fences: [0; 2],
                all_fences: 0,
                state: State::Known(n as u64),
            };
            assert_eq!(reads.push(read, 1), n);
        }
        for n in 0..2 * MAX_COMPARED {
            assert_eq!(reads.find(&name(n), ([0; 2], 0), 1, &cache), (n < MAX_COMPARED).then_some(n));
        }
    }
}
