//! A command that changes a raw key which a guard may have stored. It does what memcached would do if it had what the client sees: the
//! value without its header, and nothing where there is a stub or a placeholder.
//!
//! The command is sent as it is, and the item is looked at only if the reply could be another one for what the client sees. Only where
//! no reply tells, the item is looked at before. A value whose header is in the way of the command is then stored without it, a stub or
//! a placeholder in its way is deleted, and the command is sent again: so every reply is the server's, in every dialect.

use bytes::{Bytes, BytesMut};

use super::change::{Before, Change, ChangeKind, Sender, State};
use super::item::{Item, Seen, is_number, put_whole_look, seen};
use super::{Forward, Further};
use crate::error::Failure;
use crate::guard::{Expiry, MAX_ROUNDS, longest_stub};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{Status, meta};
use crate::proxy::raw::shown::touched;
use crate::proxy::scope::CallScope;
use crate::proxy::server_key::server_key;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::Reply;

/// What memcached replies if there is nothing to count.
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

impl Forward {
    /// The reply to pass on, now that what was sent last has this reply. `None`: more has been sent.
    pub(super) fn changed(
        &mut self,
        mut change: Box<Change>,
        reply: Reply,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        let before = change.before.take().and_then(|id| scope.client.pending.take(id));
        let before = before.and_then(|before| change.before(&before));
        let passed = match std::mem::replace(&mut change.state, State::Last) {
            State::Sent => {
                let Reply::Answered { bytes, .. } = &reply else { return Some(reply) };
                if !change.is_suspect(bytes, before) {
                    return Some(reply);
                }
                self.look_at(&mut change, Some(reply), before, scope)
            }
            State::Last => Some(reply),
            State::Conditional => self.stored_conditionally(&mut change, reply, scope),
            // A server that cannot guard has nothing that a guard has stored.
            State::Looking(None, _) if matches!(&reply, Reply::Failed(failure) if *failure != Failure::Unguarded) => {
                Some(reply)
            }
            State::Looking(replied, before) => {
                self.looked_at(&mut change, seen(&reply), replied, before, scope)
            }
            State::Unwrapping => match &reply {
                Reply::Answered { bytes, .. } if bytes.starts_with(b"HD") => {
                    let cas = meta(bytes).number(b'c').unwrap_or(0);
                    match change.kind == ChangeKind::Prepend || change.compares.is_some() {
                        true => self.send_with_cas(&mut change, cas, scope),
                        false => self.send_again(&mut change, State::Sent, scope),
                    }
                }
                Reply::Answered { bytes, .. }
                    if matches!(meta(bytes).status, Status::Ex | Status::Nf | Status::Ns) =>
                {
                    self.look_at(&mut change, None, None, scope)
                }
                _ => Some(reply),
            },
            State::Dropping => {
                let state = match change.kind {
                    ChangeKind::Add | ChangeKind::Count => State::Sent,
                    _ => State::Last,
                };
                self.send_again(&mut change, state, scope)
            }
            State::Ending(replied) => Some(replied),
        };
        if passed.is_none() {
            self.further = Some(Further::Change(change));
        }
        passed
    }

    /// What is done now that it is known what the client sees.
    fn looked_at(
        &mut self,
        change: &mut Change,
        seen: Seen,
        replied: Option<Reply>,
        before: Option<Before>,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        let absent = |epoch| Some(Reply::Answered { bytes: change.absent(&self.key), epoch });
        match (change.kind, seen) {
            (ChangeKind::Add, Seen::Absent(item)) => self.drop_item(change, &item, scope),
            (ChangeKind::Count, Seen::Absent(item)) if change.creates => self.drop_item(change, &item, scope),
            (ChangeKind::Count | ChangeKind::Compare, Seen::Absent(item)) => absent(item.epoch),
            (ChangeKind::Count, Seen::Sealed { item, payload_at, stale_for })
                if !is_exists(replied.as_ref())
                    && change.compares.is_none_or(|cas| cas == 0 || cas == item.cas)
                    && is_number(&item.value[payload_at..]) =>
            {
                self.unwrap(change, &item, payload_at, stale_for, scope)
            }
            // It is compared only where there is something to count.
            (ChangeKind::Count, Seen::Sealed { item, payload_at, .. }) if item.value.len() == payload_at => {
                Some(Reply::Answered { bytes: Bytes::from_static(NOT_A_NUMBER), epoch: item.epoch })
            }
            (ChangeKind::Touch(exptime), Seen::Sealed { stale_for, .. }) => {
                match touched(Some(exptime), stale_for, scope.proxy.now()) {
                    None => replied,
                    Some(exptime) => {
                        self.look(false, Some(exptime), scope);
                        change.state = State::Ending(replied?);
                        None
                    }
                }
            }
            (ChangeKind::Touch(_), Seen::Absent(item)) => absent(item.epoch),
            (ChangeKind::Touch(_), Seen::Plain(item)) if !item.won => match before {
                Some(Before::EndedWithin(left))
                    if left <= longest_stub(Some(item.flags)) && item.was_stub() =>
                {
                    let reply = absent(item.epoch);
                    self.look(false, Some(left.max(1).into()), scope);
                    change.state = State::Ending(reply?);
                    None
                }
                _ => replied,
            },
            (ChangeKind::Append, Seen::Absent(item)) if change.creates => {
                self.drop_item(change, &item, scope)
            }
            (ChangeKind::Append, Seen::Absent(item)) => absent(item.epoch),
            // What was appended to a stub is all that there is.
            (ChangeKind::Append, Seen::Plain(item))
                if before == Some(Before::Stub) && item.value == change.data() =>
            {
                let reply = absent(item.epoch);
                self.drop_item(change, &item, scope);
                if !change.creates {
                    change.state = State::Ending(reply?);
                }
                None
            }
            // Nothing has been sent yet.
            (ChangeKind::Replace | ChangeKind::Prepend, Seen::Absent(item)) if change.creates => {
                self.drop_item(change, &item, scope)
            }
            (ChangeKind::Replace | ChangeKind::Prepend, Seen::Absent(item)) => absent(item.epoch),
            (ChangeKind::Prepend, Seen::Plain(item)) if change.compares.is_none() => {
                self.send_with_cas(change, item.cas, scope)
            }
            (ChangeKind::Prepend, Seen::Sealed { item, payload_at, stale_for })
                if change.compares.is_none_or(|cas| cas == item.cas) =>
            {
                self.unwrap(change, &item, payload_at, stale_for, scope)
            }
            (ChangeKind::Replace | ChangeKind::Prepend, Seen::Plain(item)) if item.won => {
                self.give_back_win(&item, scope);
                change.state = State::Dropping;
                None
            }
            (ChangeKind::Replace | ChangeKind::Prepend, _) => self.send_again(change, State::Last, scope),
            // After a round in which another client was first.
            (_, _) if replied.is_none() => self.send_again(change, State::Sent, scope),
            (_, Seen::Plain(item)) if item.won => {
                self.give_back_win(&item, scope);
                change.state = State::Ending(replied?);
                None
            }
            // What is there now may be what the client has sent behind this command: the reply is that of its moment.
            (_, _) => replied,
        }
    }

    /// The reply to a command that was conditional on the item that has been looked at.
    fn stored_conditionally(
        &mut self,
        change: &mut Change,
        reply: Reply,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        let Reply::Answered { bytes, epoch } = &reply else { return Some(reply) };
        let line =
            |text: &'static [u8]| Some(Reply::Answered { bytes: Bytes::from_static(text), epoch: *epoch });
        match (meta(bytes).status, change.sender) {
            // Another client has changed the item.
            (Status::Ex, _) => self.look_at(change, None, None, scope),
            (Status::Hd, Sender::Line) => line(b"STORED\r\n"),
            (Status::Ns | Status::Nf, Sender::Line) => line(b"NOT_STORED\r\n"),
            // Both together are too large, which the command itself says in its own words.
            (_, Sender::Line) => self.send_again(change, State::Last, scope),
            _ => Some(reply),
        }
    }

    fn change_connection<'a>(&self, scope: &'a CallScope<'_>) -> &'a Connection {
        &scope.proxy.pools[self.pool].connections()[self.place.server]
    }

    /// Reads the item, in a way that counts as no use of it.
    fn look_at(
        &mut self,
        change: &mut Change,
        replied: Option<Reply>,
        before: Option<Before>,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        change.looks += 1;
        if change.looks > MAX_ROUNDS {
            return Some(Reply::Failed(Failure::Overloaded));
        }
        let connection = self.change_connection(scope);
        self.id = connection.send_guard(&scope.client.pending, None, |out| put_whole_look(&self.key, out));
        change.state = State::Looking(replied, before);
        None
    }

    /// Stores the value without its header, with the flags and the time that the client sees.
    fn unwrap(
        &mut self,
        change: &mut Change,
        item: &Item,
        payload_at: usize,
        stale_for: u32,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        // A stale value is shown until the server drops it.
        let seconds = item.ttl.map(|ttl| if ttl > stale_for { ttl - stale_for } else { ttl.max(1) });
        let exptime =
            seconds.map_or(0, |seconds| Expiry::Seconds(seconds.into()).exptime(0, scope.proxy.now()));
        let payload = &item.value[payload_at..];
        let store = |out: &mut BytesMut| {
            let (key, is_base64) = server_key(&self.key);
            out.reserve(payload.len() + key.len() + 96);
            out.extend_from_slice(b"ms ");
            out.extend_from_slice(&key);
            out.extend_from_slice(b" ");
            write_decimal(out, payload.len());
            out.extend_from_slice(if is_base64 { b" b c T" } else { b" c T" });
            write_decimal(out, exptime);
            out.extend_from_slice(b" F");
            write_decimal(out, item.flags);
            out.extend_from_slice(b" C");
            write_decimal(out, item.cas);
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(payload);
            out.extend_from_slice(b"\r\n");
        };
        self.id = self.change_connection(scope).send_guard(&scope.client.pending, Some(item.epoch), store);
        change.state = State::Unwrapping;
        None
    }

    /// Deletes the stub or placeholder.
    fn drop_item(&mut self, change: &mut Change, item: &Item, scope: &CallScope<'_>) -> Option<Reply> {
        self.delete(item, |_| (), scope);
        change.state = State::Dropping;
        None
    }

    /// Marks the item stale again, so that the next reader wins it. Servers before 1.6.27 refuse to keep the CAS.
    fn give_back_win(&mut self, item: &Item, scope: &CallScope<'_>) {
        let keep = |out: &mut BytesMut| {
            out.extend_from_slice(b" I E");
            write_decimal(out, item.cas);
        };
        self.delete(item, keep, scope);
    }

    /// Sends a delete of this very item, with further flags.
    fn delete(&mut self, item: &Item, flags: impl FnOnce(&mut BytesMut), scope: &CallScope<'_>) {
        let write = |out: &mut BytesMut| {
            let (key, is_base64) = server_key(&self.key);
            out.extend_from_slice(b"md ");
            out.extend_from_slice(&key);
            out.extend_from_slice(if is_base64 { b" b C" } else { b" C" });
            write_decimal(out, item.cas);
            flags(out);
            out.extend_from_slice(b"\r\n");
        };
        self.id = self.change_connection(scope).send_guard(&scope.client.pending, Some(item.epoch), write);
    }

    fn send_again(&mut self, change: &mut Change, state: State, scope: &CallScope<'_>) -> Option<Reply> {
        self.id = change.send(self.change_connection(scope), &scope.client.pending);
        change.state = state;
        None
    }

    fn send_with_cas(&mut self, change: &mut Change, cas: u64, scope: &CallScope<'_>) -> Option<Reply> {
        let command = change.with_cas(&self.key, cas);
        let write = |out: &mut BytesMut| out.extend_from_slice(&command);
        self.id = self.change_connection(scope).send_guard(&scope.client.pending, None, write);
        change.state = State::Conditional;
        None
    }
}

fn is_exists(reply: Option<&Reply>) -> bool {
    matches!(reply, Some(Reply::Answered { bytes, .. }) if bytes.starts_with(b"EX"))
}
