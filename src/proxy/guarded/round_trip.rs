//! One round trip of the guard: its commands go to their servers, and the replies come back.

use std::rc::Rc;

use smallvec::SmallVec;

use super::wire;
use crate::guard::envelope::lock_key;
use crate::guard::{
    Commands, Inputs, ItemRef, Now, Operation, Policy, Replies, ServerCommand, ServerReply, TagName,
};
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

impl Proxy {
    /// What a guard decision about this key depends on, besides replies. `may_wait`: whether the client may wait for another one.
    pub(super) fn inputs<'a>(
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
            now,
            may_wait,
            random_unit: self.random.borrow_mut().unit(),
        }
    }

    /// Sends each command to its server. `sent` makes the result of a command that is sent, and `known` that of a
    /// tag version that is cached.
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
        let send = |command: &ServerCommand| {
            let epoch = wire::depends_on(&command.operation);
            let on = |connection: &Connection, key: &[u8]| {
                sent(connection.send_guard(pending, epoch, |out| wire::encode(&command.operation, key, out)))
            };
            match command.item {
                ItemRef::Value => on(own_server, &key.key),
                ItemRef::Lock => on(own_server, &lock_key(&key.key)),
                ItemRef::Tag(index) | ItemRef::TagCopy(index) => {
                    let name = &key.tags[usize::from(index)];
                    // A bump needs the stored version and its CAS.
                    let bumps = key.guard == self.plan.tag_guard;
                    if !bumps && let Some(version) = self.cached_tag(name, &command.operation, now) {
                        return known(version);
                    }
                    let tag = self.key_of_tag(name);
                    on(self.tag_connection(&tag, matches!(command.item, ItemRef::TagCopy(_))), &tag)
                }
            }
        };
        commands.iter().map(send).collect()
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
    fn cached_tag(&self, name: &TagName, operation: &Operation, now: Now) -> Option<ServerReply> {
        let Operation::Get(_) = operation else { return None };
        self.tag_cache.get(name, now.mono).map(wire::tag_reply)
    }
}
