//! Raw values of a get of several keys that a guard has stored, or may have stored.

use std::task::Poll;

use bytes::{Bytes, BytesMut};

use super::Get;
use super::written::{Empty, Suspect, Written};
use crate::guard::MAX_ROUNDS;
use crate::protocol::binary::Head;
use crate::protocol::binary::reply::{put_hit, put_miss};
use crate::protocol::reply::{Value, values};
use crate::proxy::raw::shown::{
    EmptyNow, Shown, TOUCHED_STUB, empty_now, is_failure, put_expiry, put_give_back, put_look, removes,
    shown_value, touched,
};
use crate::proxy::scope::CallScope;
use crate::upstream::GetKind;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{Reply, ReplyId};

/// What is done for a value.
enum Next {
    Shown(Bytes),
    Miss,
    /// It is shown, or a miss, whatever the reply to this is.
    Touched(Option<Bytes>, ReplyId),
    /// It is empty, and may be a stub.
    Empty(Bytes),
}

impl Get {
    /// Appends a value whose first byte is that of a header, or which is empty. `head`: that of a binary client's request. Returns
    /// whether it is a hit.
    #[cold]
    pub(super) fn put_suspect(
        &self,
        value: &Value<'_>,
        server: usize,
        head: Option<Head>,
        suspects: &mut Vec<Suspect>,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> bool {
        let start = out.len();
        let mut miss = BytesMut::new();
        if let Some(head) = head {
            put_miss(head, value.key, &mut miss);
        }
        let (shown, id, empty) = match self.next(value, server, head, scope) {
            Next::Shown(shown) => (Some(shown), None, None),
            Next::Miss => (None, None, None),
            Next::Touched(shown, id) => (shown, Some(id), None),
            Next::Empty(shown) => {
                let may_take_win = scope.proxy.may_take_win(value.key, self.connection_of(server, scope));
                let id = self.look(value.key, server, may_take_win, None, scope);
                let empty = Empty {
                    key: value.key.into(),
                    server,
                    head,
                    flags: value.flags,
                    cas: value.cas,
                    awaits_expiry: may_take_win,
                    is_read_again: false,
                    is_confirmed: false,
                    rounds: 0,
                    miss: miss.clone().freeze(),
                };
                (Some(shown), Some(id), Some(empty))
            }
        };
        out.extend_from_slice(shown.as_deref().unwrap_or(&miss));
        if id.is_some() {
            suspects.push(Suspect { id, at: start..out.len(), empty, instead: None });
        }
        shown.is_some()
    }

    /// What is done for a value whose first byte is that of a header, or which is empty, or for any other.
    fn next(&self, value: &Value<'_>, server: usize, head: Option<Head>, scope: &CallScope<'_>) -> Next {
        let put = |value: &Value<'_>| match head {
            None => Bytes::copy_from_slice(value.raw),
            Some(head) => {
                let mut out = BytesMut::new();
                put_hit(head, value.key, value.flags, value.cas.unwrap_or(0), value.data.len(), &mut out);
                out.extend_from_slice(value.data);
                out.freeze()
            }
        };
        let exptime = self.kind_at(server).exptime;
        match shown_value(value) {
            Shown::Miss => Next::Miss,
            // It gets a stub's time back.
            Shown::Stub if exptime.is_some() => {
                Next::Touched(None, self.look(value.key, server, false, Some(TOUCHED_STUB), scope))
            }
            Shown::Stub => Next::Miss,
            Shown::AsIs => Next::Shown(put(value)),
            Shown::UnlessStub => Next::Empty(put(value)),
            Shown::Instead(text, stale_for) => {
                let shown = values(&text).next().map(|value| put(&value)).unwrap_or_default();
                match touched(exptime, stale_for, scope.proxy.now()) {
                    None => Next::Shown(shown),
                    exptime => {
                        Next::Touched(Some(shown), self.look(value.key, server, false, exptime, scope))
                    }
                }
            }
        }
    }

    /// How a server's keys are read.
    fn kind_at(&self, server: usize) -> GetKind {
        self.servers[server].place.limit.map_or(self.kind, |limit| limit.get(self.kind))
    }

    fn connection_of<'a>(&self, server: usize, scope: &'a CallScope<'_>) -> &'a Connection {
        let server = &self.servers[server];
        &scope.proxy.pools[server.pool].connections()[server.place.server]
    }

    /// Sends a command that reads when the item ends, or else what there is besides the value.
    fn look(
        &self,
        key: &[u8],
        server: usize,
        expiry: bool,
        exptime: Option<i64>,
        scope: &CallScope<'_>,
    ) -> ReplyId {
        let look = |out: &mut BytesMut| match expiry {
            true => put_expiry(key, out),
            false => put_look(key, exptime, out),
        };
        self.connection_of(server, scope).send_guard(&scope.client.pending, None, look)
    }

    /// What follows the reply to a further command for an empty value. `None`: nothing.
    fn follow(&self, suspect: &mut Suspect, reply: Reply, scope: &CallScope<'_>) -> Option<ReplyId> {
        let Suspect { empty, instead, .. } = suspect;
        let it = empty.as_mut()?;
        if std::mem::take(&mut it.is_read_again) {
            let bytes = match &reply {
                Reply::Answered { bytes, .. } | Reply::Part { bytes, .. } => &bytes[..],
                Reply::Failed(_) | Reply::StaleCas => b"",
            };
            let value = values(bytes).next().filter(|value| value.key == &it.key[..]);
            let (shown, id) = match value.map(|value| (self.next(&value, it.server, it.head, scope), value)) {
                None | Some((Next::Miss, _)) => (None, None),
                Some((Next::Empty(shown), _)) if it.is_confirmed => (Some(shown), None),
                Some((Next::Shown(shown), _)) => (Some(shown), None),
                Some((Next::Touched(shown, id), _)) => (shown, Some(id)),
                Some((Next::Empty(shown), value)) => {
                    (it.flags, it.cas) = (value.flags, value.cas);
                    it.awaits_expiry =
                        scope.proxy.may_take_win(&it.key, self.connection_of(it.server, scope));
                    *instead = Some(shown);
                    return Some(self.look(&it.key, it.server, it.awaits_expiry, None, scope));
                }
            };
            *instead = Some(shown.unwrap_or_else(|| it.miss.clone()));
            *empty = None;
            return id;
        }
        let (connection, pending) = (self.connection_of(it.server, scope), &scope.client.pending);
        // Neither the read nor what the client has sent behind it can have changed the item.
        let may_read_again = |key: &[u8], server: usize| {
            !removes(self.kind_at(server).exptime, scope.proxy.now()) && !(scope.position.changes_behind)(key)
        };
        if std::mem::take(&mut it.awaits_expiry) {
            if scope.proxy.is_safe(&it.key, &reply) {
                return Some(self.look(&it.key, it.server, false, None, scope));
            }
            // It is marked, and may be another than the read has found.
            if !is_failure(&reply) && may_read_again(&it.key, it.server) {
                (it.is_read_again, it.is_confirmed) = (true, true);
                return Some(connection.get(pending, &it.key, self.kind_at(it.server)));
            }
            *empty = None;
            return None;
        }
        let id = match empty_now(&reply, Some(it.flags), it.cas, scope.proxy.is_won(&it.key)) {
            EmptyNow::Stub => {
                *instead = Some(it.miss.clone());
                let touches = self.kind_at(it.server).exptime.is_some();
                touches.then(|| self.look(&it.key, it.server, false, Some(TOUCHED_STUB), scope))
            }
            EmptyNow::Same(won) => {
                won.map(|won| connection.send_guard(pending, None, |out| put_give_back(&it.key, won, out)))
            }
            // The read itself, or what the client has sent behind it, may have changed it: the reply is that of its moment.
            EmptyNow::Changed if may_read_again(&it.key, it.server) => {
                if it.rounds < MAX_ROUNDS {
                    (it.is_read_again, it.rounds) = (true, it.rounds + 1);
                    return Some(connection.get(pending, &it.key, self.kind_at(it.server)));
                }
                *instead = Some(it.miss.clone());
                None
            }
            EmptyNow::Unknown if is_failure(&reply) => {
                *instead = Some(it.miss.clone());
                None
            }
            EmptyNow::Changed | EmptyNow::Unknown => None,
        };
        *empty = None;
        id
    }

    /// Appends the reply that has been written, without stubs, once all further commands have their replies.
    #[cold]
    pub(super) fn poll_written(
        &self,
        written: &mut Written,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        // Only the first call knows what is behind it.
        let mut waits = !scope.position.first;
        for suspect in &mut written.suspects {
            let Some(id) = suspect.id.filter(|_| scope.position.first) else { continue };
            suspect.id = match scope.client.pending.take(id) {
                Some(reply) => self.follow(suspect, reply, scope),
                None => Some(id),
            };
            waits |= suspect.id.is_some();
        }
        if waits {
            return Poll::Pending;
        }
        let mut copied = 0;
        for Suspect { at, instead, .. } in written.suspects.drain(..) {
            if let Some(instead) = instead {
                out.extend_from_slice(&written.text[copied..at.start]);
                out.extend_from_slice(&instead);
                copied = at.end;
            }
        }
        out.extend_from_slice(&written.text[copied..]);
        Poll::Ready(())
    }
}

impl Written {
    /// The reply at `start` of `out`, which is removed from it.
    pub(super) fn new(out: &mut BytesMut, start: usize, mut suspects: Vec<Suspect>) -> Written {
        for suspect in &mut suspects {
            suspect.at = suspect.at.start - start..suspect.at.end - start;
        }
        Written { text: out.split_off(start), suspects }
    }
}
