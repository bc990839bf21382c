//! A command that changes a raw key which a guard may have stored. It does what memcached would do if it had what the client sees: the
//! value without its header, and nothing where there is a stub or a placeholder.
//!
//! The command is sent as it is, and the item is looked at only if the reply could be another one for what the client sees. Only where
//! no reply tells, the item is looked at before. A value whose header is in the way of the command is then stored without it, a stub or
//! a placeholder in its way is deleted, and the command is sent again: so every reply is the server's, in every dialect.

use bytes::{Bytes, BytesMut};

use super::change::{Change, ChangeKind, Sender, Sized, State};
use super::item::{Item, Seen, is_number, put_whole_look, seen};
use super::{Forward, Further};
use crate::error::Failure;
use crate::guard::{Expiry, MAX_ROUNDS};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{Status, meta};
use crate::proxy::raw::shown::{TOUCHED_STUB, cas_of, left, put_give_back, touched};
use crate::proxy::scope::CallScope;
use crate::proxy::server_key::server_key;
use crate::proxy::state::client_marks::Stale;
use crate::upstream::pending_replies::Reply;

/// No item has it.
const NO_CAS: u64 = u64::MAX;

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
        let before = before.and_then(|before| u32::try_from(left(&before)?).ok());
        let passed = match std::mem::replace(&mut change.state, State::Last) {
            State::Sent => {
                let Reply::Answered { bytes, .. } = &reply else { return Some(reply) };
                if !change.is_suspect(bytes) {
                    return Some(reply);
                }
                self.look_at(&mut change, Some(reply), before, scope)
            }
            State::Last => Some(reply),
            State::Conditional => self.stored_conditionally(&mut change, reply, scope),
            // A server that cannot guard has nothing that a guard has stored.
            State::Looking(None, _) | State::Sizing if matches!(&reply, Reply::Failed(failure) if *failure != Failure::Unguarded) => {
                Some(reply)
            }
            State::Looking(replied, before) => {
                let seen = seen(&reply, scope.proxy.is_won(&self.key));
                self.looked_at(&mut change, seen, replied, before, scope)
            }
            State::Sizing => {
                let sized = change.sized(&reply, scope.proxy.is_won(&self.key));
                self.sized(&mut change, sized, scope)
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
            State::Dropping => match (change.kind, &reply) {
                (ChangeKind::Add | ChangeKind::Count, _) => self.send_again(&mut change, State::Sent, scope),
                // The stub has been renewed.
                (_, Reply::Answered { bytes, .. }) if meta(bytes).status == Status::Ex => {
                    self.look_at(&mut change, None, None, scope)
                }
                (ChangeKind::Mark, Reply::Answered { epoch, .. }) => {
                    Some(Reply::Answered { bytes: change.absent(&self.key), epoch: *epoch })
                }
                (ChangeKind::Mark, _) => Some(reply),
                (ChangeKind::Append | ChangeKind::Prepend, _) if change.creates => {
                    self.send_with_cas(&mut change, NO_CAS, scope)
                }
                _ => self.send_again(&mut change, State::Last, scope),
            },
            State::Marking(replied) => {
                if let Some(cas) = cas_of(&reply) {
                    scope.proxy.note_stale(&self.key, Stale::Cas(cas));
                }
                Some(replied)
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
        before: Option<u32>,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        let is_last = !(scope.position.changes_behind)(&self.key);
        let absent = |epoch| Some(Reply::Answered { bytes: change.absent(&self.key), epoch });
        match (change.kind, seen) {
            (ChangeKind::Add, Seen::Absent(item)) => self.drop_item(change, &item, scope),
            (ChangeKind::Count, Seen::Absent(item)) if change.creates => self.drop_item(change, &item, scope),
            // Another client has changed the item since. What this one has sent behind the command may have done so too: then the
            // reply is that of its moment.
            (ChangeKind::Add | ChangeKind::Count, Seen::Gone) if is_last && !is_exists(replied.as_ref()) => {
                self.send_again(change, State::Sent, scope)
            }
            // What another client stores meanwhile may have a header.
            (ChangeKind::Append, Seen::Gone) if change.creates => self.send_with_cas(change, NO_CAS, scope),
            (ChangeKind::Prepend, Seen::Gone) if change.compares.is_none() => {
                self.send_with_cas(change, NO_CAS, scope)
            }
            (ChangeKind::Mark, Seen::Gone) => self.send_with_cas(change, NO_CAS, scope),
            (ChangeKind::Count, Seen::Plain(item))
                if is_last && !item.won && !is_exists(replied.as_ref()) && is_number(&item.value) =>
            {
                self.send_again(change, State::Sent, scope)
            }
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
            // It ends when it would have ended.
            (ChangeKind::Touch(_), Seen::Absent(item)) => {
                let reply = absent(item.epoch);
                let left = before.map_or(TOUCHED_STUB, |left| left.max(1).into());
                self.look(false, Some(left), scope);
                change.state = State::Ending(reply?);
                None
            }
            // Nothing has been sent yet.
            (ChangeKind::Append | ChangeKind::Replace | ChangeKind::Prepend, Seen::Absent(item))
                if change.creates =>
            {
                self.drop_item(change, &item, scope)
            }
            // The build of its value ends, as a delete would end it.
            (ChangeKind::Mark, Seen::Absent(item)) => self.drop_item(change, &item, scope),
            (ChangeKind::Mark, Seen::Plain(item) | Seen::Sealed { item, .. }) => {
                self.send_with_cas(change, item.cas, scope)
            }
            (ChangeKind::Append | ChangeKind::Replace | ChangeKind::Prepend, Seen::Absent(item)) => {
                absent(item.epoch)
            }
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
            (ChangeKind::Append | ChangeKind::Replace | ChangeKind::Prepend | ChangeKind::Mark, _) => {
                self.send_again(change, State::Last, scope)
            }
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

    /// What is done now that it is known what there is besides the value.
    fn sized(&mut self, change: &mut Change, sized: Sized, scope: &CallScope<'_>) -> Option<Reply> {
        let absent = |epoch| Some(Reply::Answered { bytes: change.absent(&self.key), epoch });
        match (change.kind, sized) {
            (_, Sized::MayBePlaceholder) => self.look_at(change, None, None, scope),
            (ChangeKind::Mark, Sized::Value { cas, .. }) => self.send_with_cas(change, cas, scope),
            (_, Sized::Value { cas, ends_soon: true }) if change.compares.is_none() => {
                self.send_with_cas(change, cas, scope)
            }
            (ChangeKind::Mark, Sized::Gone) => self.send_with_cas(change, NO_CAS, scope),
            (_, Sized::Gone) if change.creates => self.send_with_cas(change, NO_CAS, scope),
            (ChangeKind::Append, Sized::Stub { epoch, .. }) if !change.creates => absent(epoch),
            (_, Sized::Stub { cas, epoch }) => {
                self.delete((cas, epoch), scope);
                change.state = State::Dropping;
                None
            }
            // A value, or none where one is created. A server that cannot guard has no stub.
            _ => self.send_again(change, State::Last, scope),
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
            (Status::Hd, _) if change.kind == ChangeKind::Mark => {
                self.look(true, None, scope);
                change.state = State::Marking(reply);
                None
            }
            (Status::Hd, Sender::Line) => line(b"STORED\r\n"),
            (Status::Ns | Status::Nf, Sender::Line) => line(b"NOT_STORED\r\n"),
            // Both together are too large, which the command itself says in its own words.
            (_, Sender::Line) => self.send_again(change, State::Last, scope),
            _ => Some(reply),
        }
    }

    /// Reads the item, in a way that counts as no use of it.
    fn look_at(
        &mut self,
        change: &mut Change,
        replied: Option<Reply>,
        before: Option<u32>,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        change.looks += 1;
        if change.looks > MAX_ROUNDS {
            return Some(Reply::Failed(Failure::Overloaded));
        }
        let connection = self.connection(scope);
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
        self.id = self.connection(scope).send_guard(&scope.client.pending, Some(item.epoch), store);
        change.state = State::Unwrapping;
        None
    }

    /// Deletes the stub or placeholder.
    fn drop_item(&mut self, change: &mut Change, item: &Item, scope: &CallScope<'_>) -> Option<Reply> {
        self.delete((item.cas, item.epoch), scope);
        change.state = State::Dropping;
        None
    }

    fn give_back_win(&mut self, item: &Item, scope: &CallScope<'_>) {
        let write = |out: &mut BytesMut| put_give_back(&self.key, item.cas, out);
        self.id = self.connection(scope).send_guard(&scope.client.pending, Some(item.epoch), write);
    }

    /// Sends a delete of the item with this CAS in this epoch.
    fn delete(&mut self, (cas, epoch): (u64, u32), scope: &CallScope<'_>) {
        let write = |out: &mut BytesMut| {
            let (key, is_base64) = server_key(&self.key);
            out.extend_from_slice(b"md ");
            out.extend_from_slice(&key);
            out.extend_from_slice(if is_base64 { b" b C" } else { b" C" });
            write_decimal(out, cas);
            out.extend_from_slice(b"\r\n");
        };
        self.id = self.connection(scope).send_guard(&scope.client.pending, Some(epoch), write);
    }

    fn send_again(&mut self, change: &mut Change, state: State, scope: &CallScope<'_>) -> Option<Reply> {
        self.id = change.send(self.connection(scope), &scope.client.pending);
        change.state = state;
        None
    }

    fn send_with_cas(&mut self, change: &mut Change, cas: u64, scope: &CallScope<'_>) -> Option<Reply> {
        let command = change.with_cas(&self.key, cas);
        let write = |out: &mut BytesMut| out.extend_from_slice(&command);
        self.id = self.connection(scope).send_guard(&scope.client.pending, None, write);
        change.state = State::Conditional;
        None
    }
}

fn is_exists(reply: Option<&Reply>) -> bool {
    matches!(reply, Some(Reply::Answered { bytes, .. }) if bytes.starts_with(b"EX"))
}
