//! One round trip of the guard: its commands go to their servers, and the replies come back.

use std::rc::Rc;

use bytes::BytesMut;
use smallvec::SmallVec;

use super::wire;
use crate::error::Failure;
use crate::guard::envelope::lock_key;
use crate::guard::{Commands, Inputs, ItemRef, Now, Operation, Policy, Replies, ServerCommand, ServerReply};
use crate::proxy::key::{GuardedKey, Place};
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::Standing;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// The reply to one command of a round trip.
#[derive(Debug)]
pub(super) enum CommandReply {
    /// The reply with this id, once it arrives.
    Pending(ReplyId),
    /// Known without a command.
    Known(ServerReply),
}

impl CommandReply {
    /// The reply, which must have arrived.
    pub(super) fn take(self, command: &ServerCommand, pending: &PendingReplies) -> ServerReply {
        match self {
            CommandReply::Known(reply) => reply,
            CommandReply::Pending(id) => match pending.take(id) {
                Some(reply) => wire::decode(command, reply),
                None => ServerReply::Failed(Failure::Down),
            },
        }
    }
}

impl Proxy {
    /// What a guard decision about this key depends on, besides replies. `may_wait`: whether the client may wait for another one.
    pub(crate) fn inputs<'a>(
        &self,
        key: &'a GuardedKey,
        policy: &'a Policy,
        now: Now,
        may_wait: bool,
    ) -> Inputs<'a> {
        Inputs {
            policy,
            tags: &key.tags,
            added_tags: key.explicit_tags,
            sidecar: self.sidecar,
            max_value: self.connection_of(key).server().max_value(key.key.len()),
            copies: self.plan.tag_copies,
            fence: key.place.fence(),
            inherited: key.place.inherited,
            tag_fences: key.tag_places.as_ref().map_or(&[], |tags| &tags.fences),
            inherited_tag_fences: key.tag_places.as_ref().map_or(&[], |tags| &tags.inherited),
            now,
            may_wait,
            random_unit: self.random.borrow_mut().unit(),
        }
    }

    /// Sends each command to its server, if its place still has the fence that the key names. `sent` makes the result of a
    /// command that is sent, and `known` that of one that is not, because a tag version is cached or the place has changed.
    pub(super) fn send<T>(
        &self,
        commands: &Commands,
        key: &GuardedKey,
        now: Now,
        pending: &Rc<PendingReplies>,
        sent: impl Fn(ReplyId) -> T,
        known: impl Fn(ServerReply) -> T,
    ) -> SmallVec<[T; 4]> {
        let own_server = self.connection_of(key);
        let own = self.standing(self.plan.guards[key.guard].pool, &key.place);
        let send = |command: &ServerCommand| {
            let epoch = wire::depends_on(&command.operation);
            let on = |connection: &Connection, key: &[u8]| {
                sent(connection.send_guard(pending, epoch, |out| wire::encode(&command.operation, key, out)))
            };
            match command.item {
                ItemRef::Value | ItemRef::Lock if own != Standing::Valid => known(refused(own, epoch)),
                ItemRef::Value => on(own_server, &key.key),
                ItemRef::Lock => on(own_server, &lock_key(&key.key)),
                ItemRef::Tag(index) | ItemRef::TagCopy(index) => {
                    let name = &key.tags[usize::from(index)];
                    // A bump needs the stored version and its CAS.
                    let bumps = key.guard == self.plan.tag_guard;
                    if !bumps && let Some(version) = self.cached_tag(key, command, now) {
                        return known(version);
                    }
                    let (tag, copy) = (self.key_of_tag(name), is_copy(command.item));
                    let place = match &key.tag_places {
                        Some(tags) => tags.places[usize::from(index)][usize::from(copy)],
                        None => self.tag_place(&tag, copy),
                    };
                    let ended = match &key.tag_places {
                        Some(tags) if wire::needs_both_places(&command.operation) => {
                            self.ended(&tags.places[usize::from(index)])
                        }
                        _ => self.ended(&[place]),
                    };
                    if let Some(standing) = ended {
                        return known(refused(standing, epoch));
                    }
                    let connection = self.tag_connection(&place);
                    match place.is_standby() {
                        true => {
                            let operation = self.limit_ttl(&command.operation);
                            let encode = |out: &mut BytesMut| wire::encode(&operation, &tag, out);
                            sent(connection.send_guard(pending, epoch, encode))
                        }
                        false => on(connection, &tag),
                    }
                }
            }
        };
        commands.iter().map(send).collect()
    }

    /// What has become of the first of these places of a tag that no longer has the fence that it had.
    fn ended(&self, places: &[Place]) -> Option<Standing> {
        let standings = places.iter().map(|place| self.standing(self.plan.tag_pool, place));
        standings.into_iter().find(|standing| *standing != Standing::Valid)
    }

    /// Sends commands outside any request, and waits for the replies.
    pub(super) async fn send_and_wait(&self, commands: Commands, key: &GuardedKey) -> Replies {
        let pending = Rc::new(PendingReplies::default());
        let ids = self.send(&commands, key, self.now(), &pending, Ok, Err);
        let mut replies = Replies::new();
        for (command, id) in commands.iter().zip(ids) {
            replies.push(match id {
                Ok(id) => wire::decode(command, pending.receive(id).await),
                Err(known) => known,
            });
        }
        replies
    }

    /// The version of a tag if it is cached, as the reply to its `mg`.
    fn cached_tag(&self, key: &GuardedKey, command: &ServerCommand, now: Now) -> Option<ServerReply> {
        let (Operation::Get(_), ItemRef::Tag(index) | ItemRef::TagCopy(index)) =
            (&command.operation, command.item)
        else {
            return None;
        };
        let tag = usize::from(index);
        let version = self.tag_cache.get(&key.tags[tag], key.fences_of_tag(tag), now.mono)?;
        let fences = key.tag_places.as_ref().map_or([0; 2], |tags| tags.fences[tag]);
        Some(wire::tag_reply(version, fences[usize::from(is_copy(command.item))]))
    }
}

fn is_copy(item: ItemRef) -> bool {
    matches!(item, ItemRef::TagCopy(_))
}

/// In place of a command whose place no longer has the fence that it had. An item that was seen there is no longer the one that
/// counts.
fn refused(standing: Standing, epoch: Option<u32>) -> ServerReply {
    match (standing, epoch) {
        (Standing::Replaced, Some(_)) => ServerReply::Exists,
        _ => ServerReply::Failed(Failure::NoView),
    }
}
