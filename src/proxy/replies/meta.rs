//! Replies of the meta protocol (protocol.txt, "Meta Commands").

use bytes::BytesMut;
use smallvec::SmallVec;

use super::large::{LargeReply, write_reply};
use super::outcome::{ItemMarks, ReadOutcome, WriteOutcome};
use super::text::put_number;
use crate::guard::{Cas, Counted, Expiry, Hit, Now, shown_cas};
use crate::protocol::base64;
use crate::protocol::decimal::write_decimal;
use crate::protocol::meta::exptime;
use crate::protocol::request::{Meta, MetaVerb};
use crate::proxy::plan::MetaWinner;

/// What the reply to a meta command needs of the command: the key and opaque that it repeats, and the flags in their order.
#[derive(Debug)]
pub(crate) struct MetaDialect {
    verb: MetaVerb,
    /// In base64 if the command has it so.
    key: Box<[u8]>,
    flags: Box<[u8]>,
    quiet: bool,
    /// The length of its data block.
    length: usize,
    /// When it was received: the start of the times of `T` and `N`.
    received: Now,
}

impl MetaDialect {
    /// `key` is the command's key, decoded.
    pub(crate) fn of(meta: &Meta<'_>, key: &[u8], received: Now) -> MetaDialect {
        let quiet = meta.token(b'q').is_some();
        MetaDialect {
            verb: meta.verb,
            key: encoded(meta, key).into_boxed_slice(),
            flags: meta.flags.into(),
            quiet,
            length: meta.data.len(),
            received,
        }
    }

    /// Whether the command is `mg`.
    pub(crate) fn reads(&self) -> bool {
        self.verb == MetaVerb::Get
    }

    fn meta(&self) -> Meta<'_> {
        Meta { verb: self.verb, key: &self.key, flags: &self.flags, data: &[] }
    }

    /// Appends the reply to `ms`, `md` or `ma` of a key under this fence.
    pub(super) fn write(&self, outcome: &WriteOutcome, fence: u64, out: &mut BytesMut) {
        let (status, cas): (&[u8], Cas) = match outcome {
            WriteOutcome::Counted(counted) => return self.counted(counted, fence, out),
            WriteOutcome::Bumped { version, delete: false } => {
                let counted = Counted { number: *version, cas: Cas::NONE, ttl: None, created: false };
                return self.counted(&counted, fence, out);
            }
            WriteOutcome::Stored(_)
            | WriteOutcome::Extended(..)
            | WriteOutcome::Deleted
            | WriteOutcome::Touched { .. }
            | WriteOutcome::Bumped { .. }
                if self.quiet =>
            {
                return;
            }
            WriteOutcome::Stored(cas) | WriteOutcome::Extended(cas, _) => (b"HD", *cas),
            WriteOutcome::Deleted | WriteOutcome::Touched { .. } | WriteOutcome::Bumped { .. } => {
                (b"HD", Cas::NONE)
            }
            WriteOutcome::NotStored => (b"NS", Cas::NONE),
            WriteOutcome::Exists => (b"EX", Cas::NONE),
            _ => (b"NF", Cas::NONE),
        };
        let size = if let WriteOutcome::Extended(_, size) = outcome { *size } else { self.length };
        out.extend_from_slice(status);
        for (flag, token) in self.meta().tokens() {
            match flag {
                b'c' if self.verb == MetaVerb::Set => put_count(out, b'c', shown_cas(cas.number, fence)),
                b's' if self.verb == MetaVerb::Set => put_count(out, b's', size as u64),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn counted(&self, counted: &Counted, fence: u64, out: &mut BytesMut) {
        if self.quiet {
            return;
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(counted.number);
        self.status(Some(digits.len()), out);
        let mut ttl = counted.ttl;
        for (flag, token) in self.meta().tokens() {
            match flag {
                b'c' => put_count(out, b'c', shown_cas(counted.cas.number, fence)),
                b't' => put_ttl(out, ttl),
                b'T' => ttl = self.ttl(token),
                b'N' if counted.created => ttl = self.ttl(token),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.meta().token(b'v').is_some() {
            out.extend_from_slice(digits.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends the reply to `mg` of a key under this fence. `winner` selects the reply to a win. Returns what is too large to copy.
    pub(crate) fn write_read(
        &self,
        outcome: &ReadOutcome,
        winner: MetaWinner,
        fence: u64,
        out: &mut BytesMut,
    ) -> Option<LargeReply> {
        // Only a command with `N` receives stubs.
        let vivifies = self.meta().token(b'N').is_some();
        let nothing = Hit::nothing();
        let stub = |marks| (&nothing, ItemMarks { stub: true, ..marks });
        let (hit, marks) = match outcome {
            ReadOutcome::Value(hit, marks) => (hit, *marks),
            ReadOutcome::Won { old: Some(hit), marks } if winner == MetaWinner::Stale => (hit, *marks),
            // There is no value, and `N` asks who rebuilds it.
            ReadOutcome::Won { old: None, marks } if vivifies => stub(*marks),
            ReadOutcome::Miss(Some(cas)) if vivifies => stub(ItemMarks { held: true, ..ItemMarks::of(*cas) }),
            ReadOutcome::Won { .. } | ReadOutcome::Miss(_) => {
                out.extend_from_slice(&miss_line(&self.meta(), &self.key));
                return None;
            }
            ReadOutcome::Failed(failure) => {
                out.extend_from_slice(failure.line());
                return None;
            }
        };
        self.hit(hit, ItemMarks { cas: shown_cas(marks.cas, fence), ..marks }, out)
    }

    fn hit(&self, hit: &Hit, marks: ItemMarks, out: &mut BytesMut) -> Option<LargeReply> {
        // A client that sends the current CAS has the value.
        let has = self.meta().options().compare == Some(marks.cas);
        self.status(Some(hit.payload.len()).filter(|_| !has), out);
        let mut ttl = hit.ttl;
        for (flag, token) in self.meta().tokens() {
            match flag {
                b's' => put_count(out, b's', hit.payload.len() as u64),
                b't' => put_ttl(out, ttl),
                // `T` does not touch a stale value, nor one that this client is about to replace.
                b'T' if !marks.stale && !marks.won => ttl = self.ttl(token),
                b'N' if marks.stub => ttl = self.ttl(token),
                b'c' => put_count(out, b'c', marks.cas),
                b'f' => put_count(out, b'f', u64::from(hit.flags)),
                b'h' => put_count(out, b'h', u64::from(hit.usage.hit)),
                b'l' => put_count(out, b'l', u64::from(hit.usage.idle)),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        if marks.held {
            out.extend_from_slice(b" Z");
        }
        if marks.stale {
            out.extend_from_slice(b" X");
        }
        if marks.won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        self.meta().token(b'v').filter(|_| !has).and_then(|_| write_reply(&hit.payload, b"\r\n", out))
    }

    fn status(&self, length: Option<usize>, out: &mut BytesMut) {
        match length.filter(|_| self.meta().token(b'v').is_some()) {
            Some(length) => {
                out.extend_from_slice(b"VA");
                put_number(out, length);
            }
            None => out.extend_from_slice(b"HD"),
        }
    }

    /// The remaining time that `t` returns after a `T` or `N` with this token.
    fn ttl(&self, token: &[u8]) -> Option<u32> {
        match Expiry::of(exptime(token), self.received) {
            Expiry::Expired => Some(0),
            Expiry::Never => None,
            Expiry::Seconds(seconds) => Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
        }
    }
}

/// The reply to a missed `mg`: `EN`, or nothing if the command is quiet. `key` is decoded.
pub(crate) fn miss(meta: &Meta<'_>, key: &[u8]) -> SmallVec<[u8; 32]> {
    miss_line(meta, &encoded(meta, key))
}

fn miss_line(meta: &Meta<'_>, key: &[u8]) -> SmallVec<[u8; 32]> {
    let mut line = SmallVec::new();
    if meta.token(b'q').is_none() {
        line.extend_from_slice(b"EN");
        for (flag, token) in meta.tokens() {
            echo(meta, key, flag, token, &mut line);
        }
        line.extend_from_slice(b"\r\n");
    }
    line
}

/// The key as the reply repeats it: in base64 if the command has it so. It is encoded again, because memcached keeps it decoded.
fn encoded(meta: &Meta<'_>, key: &[u8]) -> SmallVec<[u8; 64]> {
    if meta.token(b'b').is_none() {
        return SmallVec::from_slice(key);
    }
    let mut text = Vec::new();
    base64::encode(key, &mut text);
    SmallVec::from_vec(text)
}

/// Appends the flags that each reply repeats: `O` and `k`.
fn echo(meta: &Meta<'_>, key: &[u8], flag: u8, token: &[u8], out: &mut impl Extend<u8>) {
    let mut put = |bytes: &[u8]| out.extend(bytes.iter().copied());
    match flag {
        b'O' => {
            put(b" O");
            put(token);
        }
        b'k' => {
            put(b" k");
            put(key);
            if meta.token(b'b').is_some() {
                put(b" b");
            }
        }
        _ => {}
    }
}

fn put_count(out: &mut BytesMut, flag: u8, count: u64) {
    out.extend_from_slice(&[b' ', flag]);
    write_decimal(out, count);
}

/// Appends `t`: the remaining time in whole seconds; -1 means that the item does not expire.
fn put_ttl(out: &mut BytesMut, ttl: Option<u32>) {
    match ttl {
        None => out.extend_from_slice(b" t-1"),
        Some(seconds) => put_count(out, b't', u64::from(seconds)),
    }
}
