//! The reply to a read of a raw key that a guard has stored, or may have stored.

use bytes::{Bytes, BytesMut};

use super::incomplete::Incomplete;
use super::{ExpectedReply, Forward, Further};
use crate::proxy::raw::shown::{
    Shown, ends_within, is_suspect, put_expiry, put_look, shown_classic, shown_meta, shows_stub, touched,
    ttl, with_expiry,
};
use crate::proxy::scope::CallScope;
use crate::upstream::pending_replies::{END, Reply};

impl Forward {
    /// Whether the reply to a read must be looked at: it may have a header, or be a stub.
    #[inline]
    pub(super) fn is_suspect(&self, reply: &Reply) -> bool {
        let (Reply::Answered { bytes, .. } | Reply::Part { bytes, .. }) = reply else { return false };
        match &self.expects {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => {
                is_suspect(bytes, b"VALUE ".len() + self.key.len())
            }
            ExpectedReply::Meta(expected) => expected.read.is_some() && is_suspect(bytes, b"VA".len()),
            ExpectedReply::Binary { reads, .. } => *reads && is_suspect(bytes, b"VA".len()),
            ExpectedReply::Line | ExpectedReply::Replaced(_) => false,
        }
    }

    /// The reply to pass on. `None`: a further command has been sent.
    #[cold]
    pub(super) fn shown(&mut self, reply: Reply, scope: &CallScope<'_>) -> Option<Reply> {
        let (reply, epoch, is_part) = match reply {
            Reply::Answered { bytes, epoch } => (bytes, epoch, false),
            Reply::Part { bytes, epoch } => (bytes, epoch, true),
            other => return Some(other),
        };
        let shown = match &self.expects {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => shown_classic(&reply),
            _ => shown_meta(&reply),
        };
        let (bytes, stale_for, ends_within) = match shown {
            Shown::AsIs => return Some(answered(reply, epoch, is_part)),
            Shown::Miss => return Some(answered(self.expects.miss(&self.key, is_part), epoch, is_part)),
            Shown::UnlessStub(seconds) => (reply, None, Some(seconds)),
            Shown::Instead(bytes, stale_for) => (bytes, Some(stale_for), None),
        };
        let exptime =
            stale_for.and_then(|stale_for| touched(self.expects.exptime(), stale_for, scope.proxy.now()));
        // Only meta replies tell the time that is left, and whether a value is stale.
        if stale_for.is_some() && exptime.is_none() && !matches!(self.expects, ExpectedReply::Meta(_)) {
            return Some(answered(bytes, epoch, is_part));
        }
        self.look(ends_within.is_some(), exptime, scope);
        let is_touched = exptime.is_some();
        let incomplete = Incomplete { bytes, epoch, is_part, ends_within, stale_for, is_touched };
        self.further = Some(Further::Read(Box::new(incomplete)));
        None
    }

    /// Sends a command that reads when the item ends, or else what there is besides the value.
    pub(super) fn look(&mut self, expiry: bool, exptime: Option<i64>, scope: &CallScope<'_>) {
        let connection = &scope.proxy.pools[self.pool].connections()[self.place.server];
        let look = |out: &mut BytesMut| match expiry {
            true => put_expiry(&self.key, out),
            false => put_look(&self.key, exptime, out),
        };
        self.id = connection.send_guard(&scope.client.pending, None, look);
    }

    /// The reply to pass on, now that the further command has this reply. `None`: one more has been sent.
    #[cold]
    pub(super) fn complete(
        &mut self,
        mut incomplete: Box<Incomplete>,
        look: &Reply,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        if let Some(seconds) = incomplete.ends_within.take()
            && ends_within(look, seconds)
        {
            self.look(false, None, scope);
            self.further = Some(Further::Read(incomplete));
            return None;
        }
        let Incomplete { bytes, epoch, is_part, stale_for, is_touched, .. } = *incomplete;
        let bytes = match (&self.expects, stale_for) {
            (expects, None) if shows_stub(look) => expects.stub(&bytes, &self.key, is_part),
            (ExpectedReply::Meta(expected), Some(stale_for)) => {
                let left = if let Reply::Answered { bytes, .. } = look { ttl(bytes) } else { None };
                let left = left.filter(|_| !is_touched);
                with_expiry(&bytes, stale_for, expected.read.as_deref().unwrap_or_default(), left)
            }
            _ => bytes,
        };
        Some(answered(bytes, epoch, is_part))
    }
}

impl ExpectedReply {
    /// The exptime that a read sets.
    pub(super) fn exptime(&self) -> Option<i64> {
        match self {
            ExpectedReply::Value(exptime)
            | ExpectedReply::BinaryValue(_, exptime)
            | ExpectedReply::Binary { exptime, .. } => *exptime,
            ExpectedReply::Meta(expected) => expected.read_of(b"")?.options().exptime,
            ExpectedReply::Line | ExpectedReply::Replaced(_) => None,
        }
    }

    /// A server's reply to a read that misses.
    fn miss(&self, key: &[u8], is_part: bool) -> Bytes {
        match self {
            ExpectedReply::Meta(expected) => match expected.miss(key) {
                Some(line) if !line.is_empty() => Bytes::copy_from_slice(&line),
                // A quiet command does not pass it on.
                _ => Bytes::from_static(b"EN\r\n"),
            },
            ExpectedReply::Binary { .. } => Bytes::from_static(b"EN\r\n"),
            _ if is_part => Bytes::new(),
            _ => Bytes::from_static(END),
        }
    }

    /// What is passed on for a reply to a read of a stub: only a command with `N` receives it, as held by another client.
    fn stub(&self, reply: &Bytes, key: &[u8], is_part: bool) -> Bytes {
        match self {
            ExpectedReply::Meta(expected)
                if expected.read_of(key).is_some_and(|meta| meta.token(b'N').is_some()) =>
            {
                match reply.strip_suffix(b"\r\n\r\n") {
                    Some(line) if !line.ends_with(b" Z") => [line, b" Z\r\n\r\n"].concat().into(),
                    _ => reply.clone(),
                }
            }
            _ => self.miss(key, is_part),
        }
    }
}

fn answered(bytes: Bytes, epoch: u32, is_part: bool) -> Reply {
    if is_part { Reply::Part { bytes, epoch } } else { Reply::Answered { bytes, epoch } }
}
