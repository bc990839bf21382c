//! Takes the versions of tags over from the previous placement, while the servers of their pool change.
//!
//! A tag that its new place lacks has the version of its previous place. Without it, every value that carries the tag would count as
//! stale, also those whose own place has not changed.

use std::rc::Rc;

use smallvec::SmallVec;

use super::round_trip::CommandReply;
use super::tag_servers::tag_version;
use super::wire;
use crate::guard::{
    Cas, Commands, GetFlags, ItemRef, Now, Operation, Replies, ServerCommand, ServerReply,
    store_version_under, tag_get_flags,
};
use crate::proxy::key::{GuardedKey, Place};
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::Standing;
use crate::upstream::OtherKind;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// The replies of one round trip of a state machine, in which tags are being replaced by what their previous places have.
#[derive(Debug)]
pub(super) struct TagTakeOver {
    replies: Replies,
    tags: Vec<OneTag>,
}

/// One tag that none of its servers has.
#[derive(Debug)]
struct OneTag {
    key: SmallVec<[u8; 64]>,
    /// How often it was missing again, because it was bumped meanwhile.
    rounds: u8,
    /// Its reads: the index of the reply, what was read, and the CAS that was found.
    missing: SmallVec<[(usize, ItemRef, Cas); 2]>,
    places: SmallVec<[Place; 2]>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Waiting for its versions in the previous places.
    Reading(SmallVec<[ReplyId; 2]>),
    /// This command is sent for each of `missing`: first the store, then another read.
    Sent(Box<(Commands, SmallVec<[CommandReply; 4]>)>),
    Done,
}

/// A tag that is bumped so often while it is taken over gets a version of its own.
const ATTEMPTS: u8 = 3;
/// What is read in a previous place: it leaves no stub there.
const READ: ServerCommand =
    ServerCommand { item: ItemRef::Tag(0), operation: Operation::Get(GetFlags::VALUE) };

impl Proxy {
    /// Whether tags that a state machine for this key finds missing are taken over. A bump draws another version.
    pub(super) fn takes_tags_over(&self, key: &GuardedKey) -> bool {
        self.other.is_some()
            && !key.tags.is_empty()
            && key.guard != self.plan.tag_guard
            && matches!(self.other(self.plan.tag_pool), Some((_, OtherKind::Previous { take_over: true })))
    }
}

impl TagTakeOver {
    /// Begins to take over the tags that are missing in these replies to the reads of `items`, and takes the replies. `None`: there is
    /// none.
    pub(super) fn begin(
        items: &[Option<ItemRef>],
        replies: &mut Replies,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<TagTakeOver> {
        let (other, _) = proxy.other(proxy.plan.tag_pool)?;
        let inputs = proxy.inputs(key, proxy.policy_of(key), proxy.now(), false);
        let mut tags = Vec::new();
        for (tag, name) in (0..).zip(&key.tags) {
            let of_tag = |item: &Option<ItemRef>| matches!(item, Some(ItemRef::Tag(index) | ItemRef::TagCopy(index)) if *index == tag);
            let reads = items.iter().zip(&*replies).enumerate().filter(|(_, (item, _))| of_tag(item));
            let mut missing = SmallVec::new();
            let mut is_lost = true;
            for (at, (item, reply)) in reads {
                match (item, reply) {
                    (Some(item), ServerReply::Item(found)) if inputs.version_in(found, *item).is_none() => {
                        missing.push((at, *item, found.cas));
                    }
                    _ => is_lost = false,
                }
            }
            if !is_lost || missing.is_empty() {
                continue;
            }
            let tag_key = other.key_of_tag(name);
            let places = other.places_of_tag(&tag_key);
            if places.iter().any(|place| place.fence.is_none()) {
                continue;
            }
            let state = read(&tag_key, &places, other, pending);
            tags.push(OneTag { key: tag_key, rounds: 0, missing, places, state });
        }
        (!tags.is_empty()).then(|| TagTakeOver { replies: std::mem::take(replies), tags })
    }

    /// Goes on. Returns the replies for the state machine once all have arrived.
    pub(super) fn poll(
        &mut self,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<Replies> {
        let mut is_done = true;
        for tag in &mut self.tags {
            is_done &= tag.poll(&mut self.replies, key, proxy, pending);
        }
        is_done.then(|| std::mem::take(&mut self.replies))
    }
}

impl OneTag {
    /// Returns whether it is done.
    fn poll(
        &mut self,
        replies: &mut Replies,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> bool {
        loop {
            match &mut self.state {
                State::Done => return true,
                State::Reading(ids) => {
                    if !ids.iter().all(|id| pending.has_arrived(*id)) {
                        return false;
                    }
                    let ids = std::mem::take(ids);
                    self.state = match self.version(&ids, proxy, pending) {
                        // It has never had one, or that is unknown.
                        None => State::Done,
                        Some(version) => self.store(version, key, proxy, pending),
                    };
                }
                State::Sent(round) => {
                    let (commands, sent) = &mut **round;
                    let has_arrived = |reply: &CommandReply| match reply {
                        CommandReply::Pending(id) => pending.has_arrived(*id),
                        CommandReply::Known(_) => true,
                    };
                    if !sent.iter().all(has_arrived) {
                        return false;
                    }
                    let commands = std::mem::take(commands);
                    let found =
                        sent.drain(..).zip(&commands).map(|(reply, command)| reply.take(command, pending));
                    let found: Replies = found.collect();
                    if matches!(commands[0].operation, Operation::Get(_)) {
                        let is_missing = self.note(&found, key, proxy);
                        for ((at, ..), reply) in self.missing.iter().zip(found) {
                            replies[*at] = reply;
                        }
                        self.state = match proxy.other(proxy.plan.tag_pool) {
                            Some((other, _)) if is_missing && self.rounds < ATTEMPTS => {
                                self.rounds += 1;
                                read(&self.key, &self.places, other, pending)
                            }
                            _ => State::Done,
                        };
                    } else {
                        // Another process may have stored a version meanwhile.
                        let read = |(_, item, _): &(usize, ItemRef, Cas)| ServerCommand {
                            item: *item,
                            operation: Operation::Get(tag_get_flags()),
                        };
                        let commands = self.missing.iter().map(read).collect();
                        self.state = send(commands, key, proxy, pending);
                    }
                }
            }
        }
    }

    /// Notes what stands there now. Returns whether it is missing again, everywhere.
    fn note(&mut self, found: &[ServerReply], key: &GuardedKey, proxy: &Proxy) -> bool {
        let inputs = proxy.inputs(key, proxy.policy_of(key), proxy.now(), false);
        self.missing.iter_mut().zip(found).all(|((_, item, cas), reply)| match reply {
            ServerReply::Item(found) if inputs.version_in(found, *item).is_none() => {
                *cas = found.cas;
                true
            }
            _ => false,
        })
    }

    /// The latest version in the previous places, if all of them have replied and are still what they were.
    fn version(&self, ids: &[ReplyId], proxy: &Proxy, pending: &Rc<PendingReplies>) -> Option<u64> {
        let (other, _) = proxy.other(proxy.plan.tag_pool)?;
        // All of them are taken, also if one is of no use.
        let replies: SmallVec<[_; 2]> = ids.iter().map(|id| pending.take(*id)).collect();
        let mut latest = None;
        for (reply, place) in replies.into_iter().zip(&self.places) {
            if other.standing(proxy.plan.tag_pool, place) != Standing::Valid {
                return None;
            }
            match wire::decode(&READ, reply?) {
                ServerReply::Item(item) => latest = latest.max(tag_version(&item, place, proxy.now())),
                ServerReply::Absent => {}
                _ => return None,
            }
        }
        latest
    }

    fn store(&self, version: u64, key: &GuardedKey, proxy: &Proxy, pending: &Rc<PendingReplies>) -> State {
        let pool = proxy.plan.tag_pool;
        let store = |(_, item, cas): &(usize, ItemRef, Cas)| {
            let copy = usize::from(matches!(item, ItemRef::TagCopy(_)));
            let here = proxy.tag_place(&self.key, copy == 1);
            // Both placements have the same item. Processes of the step before know only the fence of the previous one.
            let elsewhere = self.places.get(copy).filter(|place| proxy.is_same_server(pool, &here, place));
            let fence = elsewhere.filter(|place| here.counts(place.fence())).unwrap_or(&here).fence();
            store_version_under(*item, version, fence, *cas)
        };
        send(self.missing.iter().map(store).collect(), key, proxy, pending)
    }
}

/// Requests a tag from its previous places.
fn read(key: &[u8], places: &[Place], other: &Proxy, pending: &Rc<PendingReplies>) -> State {
    let encode = |out: &mut _| wire::encode(&READ.operation, key, out);
    let request = |place: &Place| other.tag_connection(place).send_guard(pending, None, encode);
    State::Reading(places.iter().map(request).collect())
}

fn send(commands: Commands, key: &GuardedKey, proxy: &Proxy, pending: &Rc<PendingReplies>) -> State {
    let now: Now = proxy.now();
    let sent = proxy.send(&commands, key, now, pending, CommandReply::Pending, CommandReply::Known);
    State::Sent(Box::new((commands, sent)))
}
