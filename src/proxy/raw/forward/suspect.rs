//! The reply to a read of a raw key that a guard has stored, or may have stored.

use bytes::{Bytes, BytesMut};

use super::incomplete::{Awaits, Incomplete};
use super::{ExpectedReply, Forward, Further};
use crate::guard::{LONGEST_STUB, MAX_ROUNDS};
use crate::protocol::base64;
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{Shape, meta, values};
use crate::protocol::request::{Meta, MetaVerb};
use crate::proxy::pipeline::Proxy;
use crate::proxy::raw::encode::put_meta;
use crate::proxy::raw::shown::{
    EmptyNow, Shown, TOUCHED_STUB, empty_now, flags_of, is_failure, is_suspect, put_expiry, put_give_back,
    put_look, removes, shown_classic, shown_meta, shown_stub, touched, ttl, with_expiry,
};
use crate::proxy::scope::CallScope;
use crate::proxy::server_key::server_key;
use crate::upstream::GetKind;
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

    /// The reply to pass on. `None`: a further command has been sent. `rounds`: how often the read has been sent.
    #[cold]
    pub(super) fn shown(&mut self, reply: Reply, rounds: u8, scope: &CallScope<'_>) -> Option<Reply> {
        let (reply, epoch, is_part) = match reply {
            Reply::Answered { bytes, epoch } => (bytes, epoch, false),
            Reply::Part { bytes, epoch } => (bytes, epoch, true),
            other => return Some(other),
        };
        let shown = match &self.expects {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => shown_classic(&reply),
            _ => shown_meta(&reply),
        };
        let (bytes, awaits) = match shown {
            Shown::AsIs => {
                self.note_win(&reply, scope.proxy);
                return Some(answered(reply, epoch, is_part));
            }
            Shown::Miss => return Some(answered(self.expects.miss(&self.key, is_part), epoch, is_part)),
            Shown::Stub => {
                let incomplete = Incomplete { bytes: reply, epoch, is_part, awaits: Awaits::Empty, rounds };
                return self.stub(incomplete, scope);
            }
            Shown::UnlessStub => {
                let may_take_win = scope.proxy.may_take_win(&self.key, self.connection(scope));
                (reply, if may_take_win { Awaits::Expiry } else { Awaits::Empty })
            }
            Shown::Instead(bytes, stale_for) => {
                let exptime = touched(self.expects.exptime(), stale_for, scope.proxy.now());
                // Only meta replies tell the time that is left, and whether a value is stale.
                if exptime.is_none() && !matches!(self.expects, ExpectedReply::Meta(_)) {
                    return Some(answered(bytes, epoch, is_part));
                }
                self.look(false, exptime, scope);
                let awaits = Awaits::Sealed { stale_for, is_touched: exptime.is_some() };
                return self.await_further(Incomplete { bytes, epoch, is_part, awaits, rounds });
            }
        };
        self.look(awaits == Awaits::Expiry, None, scope);
        self.await_further(Incomplete { bytes, epoch, is_part, awaits, rounds })
    }

    fn await_further(&mut self, incomplete: Incomplete) -> Option<Reply> {
        self.further = Some(Further::Read(Box::new(incomplete)));
        None
    }

    /// Sends a command that reads when the item ends, or else what there is besides the value.
    pub(super) fn look(&mut self, expiry: bool, exptime: Option<i64>, scope: &CallScope<'_>) {
        let look = |out: &mut BytesMut| match expiry {
            true => put_expiry(&self.key, out),
            false => put_look(&self.key, exptime, out),
        };
        self.id = self.connection(scope).send_guard(&scope.client.pending, None, look);
    }

    /// The reply to pass on, now that the further command has this reply. `None`: one more has been sent.
    #[cold]
    pub(super) fn complete(
        &mut self,
        mut incomplete: Incomplete,
        look: Reply,
        scope: &CallScope<'_>,
    ) -> Option<Reply> {
        let Incomplete { bytes, epoch, is_part, awaits, rounds } = &mut incomplete;
        let bytes = match *awaits {
            Awaits::Expiry if scope.proxy.is_safe(&self.key, &look) => {
                self.look(false, None, scope);
                *awaits = Awaits::Empty;
                return self.await_further(incomplete);
            }
            // It is marked, and may be another than the read has found.
            Awaits::Expiry if !is_failure(&look) && self.may_read_again(scope) => {
                self.read_again(bytes, scope);
                *awaits = Awaits::Confirmed;
                return self.await_further(incomplete);
            }
            Awaits::Empty => {
                let (flags, cas) = self.expects.item_of(bytes);
                match empty_now(&look, flags, cas, scope.proxy.is_won(&self.key)) {
                    EmptyNow::Stub => return self.stub(incomplete, scope),
                    EmptyNow::Same(Some(won)) => {
                        let give_back = |out: &mut BytesMut| put_give_back(&self.key, won, out);
                        let connection = self.connection(scope);
                        self.id = connection.send_guard(&scope.client.pending, None, give_back);
                        *awaits = Awaits::Nothing;
                        return self.await_further(incomplete);
                    }
                    // The read itself, or what the client has sent behind it, may have changed it: the reply is that of its moment.
                    EmptyNow::Changed if self.may_read_again(scope) => {
                        if *rounds < MAX_ROUNDS {
                            self.read_again(bytes, scope);
                            (*awaits, *rounds) = (Awaits::Again, *rounds + 1);
                            return self.await_further(incomplete);
                        }
                        self.expects.miss(&self.key, *is_part)
                    }
                    EmptyNow::Unknown if is_failure(&look) => return Some(look),
                    EmptyNow::Same(None) | EmptyNow::Changed | EmptyNow::Unknown => bytes.clone(),
                }
            }
            Awaits::Again | Awaits::Confirmed => {
                let look = self.of_the_key(look, scope);
                let is_believed = *awaits == Awaits::Confirmed && self.may_be_stub(&look);
                return match self.is_suspect(&look) && !is_believed {
                    true => self.shown(look, *rounds, scope),
                    false => Some(look),
                };
            }
            Awaits::Sealed { stale_for, is_touched } => match &self.expects {
                ExpectedReply::Meta(expected) => {
                    let left = if let Reply::Answered { bytes, .. } = &look { ttl(bytes) } else { None };
                    let left = left.filter(|_| !is_touched);
                    with_expiry(bytes, stale_for, expected.read.as_deref().unwrap_or_default(), left)
                }
                _ => bytes.clone(),
            },
            Awaits::Expiry | Awaits::Nothing => bytes.clone(),
        };
        Some(answered(bytes, *epoch, *is_part))
    }

    /// The reply to a read of a stub. If the read has touched it, it gets a stub's time back.
    fn stub(&mut self, incomplete: Incomplete, scope: &CallScope<'_>) -> Option<Reply> {
        let Incomplete { bytes, epoch, is_part, rounds, .. } = incomplete;
        let bytes = self.expects.stub(&bytes, &self.key, is_part);
        if self.expects.exptime().is_none() {
            return Some(answered(bytes, epoch, is_part));
        }
        self.look(false, Some(TOUCHED_STUB), scope);
        self.await_further(Incomplete { bytes, epoch, is_part, awaits: Awaits::Nothing, rounds })
    }

    /// Whether the reply has an empty value, which may be that of a stub.
    fn may_be_stub(&self, reply: &Reply) -> bool {
        let (Reply::Answered { bytes, .. } | Reply::Part { bytes, .. }) = reply else { return false };
        let shown = match &self.expects {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => shown_classic(bytes),
            _ => shown_meta(bytes),
        };
        shown == Shown::UnlessStub
    }

    /// Whether the read may be sent again: neither it nor what the client has sent behind it can have changed the item.
    fn may_read_again(&self, scope: &CallScope<'_>) -> bool {
        !removes(self.expects.exptime(), scope.proxy.now()) && !(scope.position.changes_behind)(&self.key)
    }

    /// Sends the read again, to which this was the reply.
    fn read_again(&mut self, reply: &Bytes, scope: &CallScope<'_>) {
        let (connection, pending) = (self.connection(scope), &scope.client.pending);
        let (key, is_base64) = server_key(&self.key);
        self.id = match &self.expects {
            ExpectedReply::Meta(expected) => {
                let flags = expected.read.as_deref().unwrap_or_default();
                let read = Meta { verb: MetaVerb::Get, key: b"", flags, data: b"" };
                let mut encoded = Vec::new();
                if read.token(b'b').is_some() {
                    base64::encode(&self.key, &mut encoded);
                }
                let key = if encoded.is_empty() { &self.key[..] } else { &encoded };
                let flags: &[u8] = if expected.adds_value { &[flags, b" v"].concat() } else { flags };
                let read = Meta { key, flags, ..read };
                connection.send(pending, Shape::Meta, |out| put_meta(out, &read))
            }
            ExpectedReply::Binary { exptime, .. } => connection.send_guard(pending, None, |out| {
                let flags: &[u8] = if is_base64 { b" b v f c" } else { b" v f c" };
                [b"mg ", &key[..], flags].iter().for_each(|part| out.extend_from_slice(part));
                if let Some(exptime) = *exptime {
                    out.extend_from_slice(b" T");
                    write_decimal(out, exptime);
                }
                out.extend_from_slice(b"\r\n");
            }),
            expects => {
                let cas = values(reply).next().is_some_and(|value| value.cas.is_some());
                connection.get(pending, &self.key, GetKind { exptime: expects.exptime(), cas })
            }
        };
    }

    /// Remembers that a client has won an empty item, which looks like a stub to others.
    fn note_win(&self, reply: &Bytes, proxy: &Proxy) {
        let ExpectedReply::Meta(expected) = &self.expects else { return };
        let Some(read) = expected.read_of(&self.key) else { return };
        let lasts = |token: &[u8]| {
            let exptime = std::str::from_utf8(token).ok().and_then(|token| token.parse::<u32>().ok());
            exptime.is_none_or(|exptime| exptime == 0 || exptime > LONGEST_STUB)
        };
        let creates = read.token(b'N').is_some_and(lasts) || read.token(b'R').is_some();
        if creates && meta(reply).token(b'W').is_some() {
            proxy.note_win(&self.key);
        }
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

    /// The flags and the CAS of the item, as far as a reply with one tells them.
    fn item_of(&self, reply: &Bytes) -> (Option<u32>, Option<u64>) {
        match self {
            ExpectedReply::Value(_) | ExpectedReply::BinaryValue(..) => {
                values(reply).next().map_or((None, None), |value| (Some(value.flags), value.cas))
            }
            _ => {
                let parsed = meta(reply);
                (flags_of(&parsed), parsed.number(b'c'))
            }
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
                shown_stub(reply)
            }
            _ => self.miss(key, is_part),
        }
    }
}

fn answered(bytes: Bytes, epoch: u32, is_part: bool) -> Reply {
    if is_part { Reply::Part { bytes, epoch } } else { Reply::Answered { bytes, epoch } }
}
