//! Raw values of a get of several keys that a guard has stored, or may have stored.

use std::task::Poll;

use bytes::BytesMut;

use super::Get;
use super::written::{Empty, Suspect, Written};
use crate::protocol::binary::Head;
use crate::protocol::binary::reply::{put_hit, put_miss};
use crate::protocol::reply::{Value, values};
use crate::proxy::raw::shown::{Shown, ends_within, put_expiry, put_look, shown_value, shows_stub, touched};
use crate::proxy::scope::CallScope;
use crate::upstream::pending_replies::ReplyId;

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
        let put = |value: &Value<'_>, out: &mut BytesMut| match head {
            None => out.extend_from_slice(value.raw),
            Some(head) => {
                put_hit(head, value.key, value.flags, value.cas.unwrap_or(0), value.data.len(), out);
                out.extend_from_slice(value.data);
            }
        };
        let (at, server) = (server, &self.servers[server]);
        let start = out.len();
        let mut miss = BytesMut::new();
        if let Some(head) = head {
            put_miss(head, value.key, &mut miss);
        }
        let (exptime, empty) = match shown_value(value) {
            Shown::Miss => {
                out.extend_from_slice(&miss);
                return false;
            }
            Shown::AsIs => {
                put(value, out);
                return true;
            }
            Shown::UnlessStub(seconds) => {
                put(value, out);
                let (key, ends_within) = (value.key.into(), Some(seconds));
                (None, Some(Empty { key, server: at, ends_within, miss: miss.freeze() }))
            }
            Shown::Instead(text, stale_for) => {
                values(&text).for_each(|value| put(&value, out));
                let kind = server.place.limit.map_or(self.kind, |limit| limit.get(self.kind));
                match touched(kind.exptime, stale_for, scope.proxy.now()) {
                    None => return true,
                    exptime => (exptime, None),
                }
            }
        };
        let id = self.look(value.key, at, empty.is_some(), exptime, scope);
        suspects.push(Suspect { id: Some(id), at: start..out.len(), empty });
        true
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
        let server = &self.servers[server];
        let connection = &scope.proxy.pools[server.pool].connections()[server.place.server];
        let look = |out: &mut BytesMut| match expiry {
            true => put_expiry(key, out),
            false => put_look(key, exptime, out),
        };
        connection.send_guard(&scope.client.pending, None, look)
    }

    /// Appends the reply that has been written, without stubs, once all further commands have their replies.
    #[cold]
    pub(super) fn poll_written(
        &self,
        written: &mut Written,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        let pending = &scope.client.pending;
        let mut waits = false;
        for suspect in &mut written.suspects {
            let Some(id) = suspect.id else { continue };
            if !pending.has_arrived(id) {
                waits = true;
            } else if let Some(Empty { key, server, ends_within: seconds @ Some(_), .. }) = &mut suspect.empty
            {
                let (reply, seconds) = (pending.take(id), seconds.take());
                let may_be_stub =
                    reply.zip(seconds).is_some_and(|(reply, seconds)| ends_within(&reply, seconds));
                suspect.id = may_be_stub.then(|| self.look(key, *server, false, None, scope));
                waits |= may_be_stub;
            }
        }
        if waits {
            return Poll::Pending;
        }
        let mut copied = 0;
        for Suspect { id, at, empty } in written.suspects.drain(..) {
            let look = id.and_then(|id| pending.take(id));
            if let (Some(empty), Some(true)) = (empty, look.as_ref().map(shows_stub)) {
                out.extend_from_slice(&written.text[copied..at.start]);
                out.extend_from_slice(&empty.miss);
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
