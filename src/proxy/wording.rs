//! What became of a command on a guarded key, in the words of the protocol that the client speaks.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::large::{LargeReply, write_reply};
use super::raw::put_number;
use super::read::{ItemMarks, ReadOutcome};
use crate::error::Failure;
use crate::guard::{Cas, Counted, Expiry, Hit, Now};
use crate::protocol::base64;
use crate::protocol::meta::exptime;
use crate::protocol::request::{Meta, MetaVerb};

/// memcached's words.
const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const NOT_A_NUMBER: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// What became of a command that writes.
#[derive(Debug, Clone)]
pub(super) enum WriteOutcome {
    /// Under this CAS; [`Cas::NONE`] for a value that is not there any more.
    Stored(Cas),
    /// An append, under this CAS: the value has so many bytes now.
    Extended(Cas, usize),
    NotStored,
    Exists,
    NotFound,
    Deleted,
    Touched,
    Counted(Counted),
    /// A tag has this version now.
    Bumped {
        version: u64,
        /// It was asked for by a delete, which has no number to answer.
        delete: bool,
    },
    NotANumber,
    TooLarge,
    Failed(Failure),
    /// The same in every protocol.
    Verbatim(Bytes),
}

/// Which protocol.
#[derive(Debug)]
pub(super) enum Dialect {
    Classic,
    Meta(MetaDialect),
}

impl Dialect {
    pub(super) fn write(&self, said: &WriteOutcome, out: &mut BytesMut) {
        match (said, self) {
            (WriteOutcome::NotANumber, _) => out.extend_from_slice(NOT_A_NUMBER),
            (WriteOutcome::TooLarge, _) => out.extend_from_slice(TOO_LARGE),
            (WriteOutcome::Failed(failure), _) => out.extend_from_slice(failure.line()),
            (WriteOutcome::Verbatim(line), _) => out.extend_from_slice(line),
            (_, Dialect::Meta(wording)) => wording.write(said, out),
            (WriteOutcome::Stored(_) | WriteOutcome::Extended(..), Dialect::Classic) => {
                out.extend_from_slice(b"STORED\r\n")
            }
            (WriteOutcome::NotStored, Dialect::Classic) => out.extend_from_slice(b"NOT_STORED\r\n"),
            (WriteOutcome::Exists, Dialect::Classic) => out.extend_from_slice(b"EXISTS\r\n"),
            (WriteOutcome::NotFound, Dialect::Classic) => out.extend_from_slice(b"NOT_FOUND\r\n"),
            (WriteOutcome::Deleted | WriteOutcome::Bumped { delete: true, .. }, Dialect::Classic) => {
                out.extend_from_slice(b"DELETED\r\n");
            }
            (WriteOutcome::Touched, Dialect::Classic) => out.extend_from_slice(b"TOUCHED\r\n"),
            (
                WriteOutcome::Counted(Counted { number, .. }) | WriteOutcome::Bumped { version: number, .. },
                Dialect::Classic,
            ) => {
                out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// What an `mg` is told that has won the right to rebuild a value which may be served meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaWinner {
    /// A miss, as a classic client is.
    Miss,
    /// That value, with `W`.
    Stale,
}

/// A meta command, for as long as its reply is on its way: what the reply repeats and which flags it answers, in the order
/// asked (protocol.txt, "Meta Commands").
#[derive(Debug)]
pub(super) struct MetaDialect {
    verb: MetaVerb,
    /// In base64 if it came so.
    key: Box<[u8]>,
    flags: Box<[u8]>,
    quiet: bool,
    /// How many bytes of a value came with it.
    sent: usize,
    /// When it was asked: from here `T` and `N` count.
    asked: Now,
}

impl MetaDialect {
    /// `key` is the command's, decoded.
    pub(super) fn of(meta: &Meta<'_>, key: &[u8], asked: Now) -> MetaDialect {
        let quiet = meta.token(b'q').is_some();
        MetaDialect {
            verb: meta.verb,
            key: spelled(meta, key).into_boxed_slice(),
            flags: meta.flags.into(),
            quiet,
            sent: meta.data.len(),
            asked,
        }
    }

    fn meta(&self) -> Meta<'_> {
        Meta { verb: self.verb, key: &self.key, flags: &self.flags, data: &[] }
    }

    /// The reply to `ms`, `md` or `ma`.
    fn write(&self, said: &WriteOutcome, out: &mut BytesMut) {
        let (status, cas): (&[u8], Cas) = match said {
            WriteOutcome::Counted(counted) => return self.counted(counted, out),
            WriteOutcome::Bumped { version, delete: false } => {
                let counted = Counted { number: *version, cas: Cas::NONE, ttl: None, created: false };
                return self.counted(&counted, out);
            }
            WriteOutcome::Stored(_)
            | WriteOutcome::Extended(..)
            | WriteOutcome::Deleted
            | WriteOutcome::Touched
            | WriteOutcome::Bumped { .. }
                if self.quiet =>
            {
                return;
            }
            WriteOutcome::Stored(cas) | WriteOutcome::Extended(cas, _) => (b"HD", *cas),
            WriteOutcome::Deleted | WriteOutcome::Touched | WriteOutcome::Bumped { .. } => (b"HD", Cas::NONE),
            WriteOutcome::NotStored => (b"NS", Cas::NONE),
            WriteOutcome::Exists => (b"EX", Cas::NONE),
            _ => (b"NF", Cas::NONE),
        };
        let size = if let WriteOutcome::Extended(_, size) = said { *size } else { self.sent };
        out.extend_from_slice(status);
        for (flag, token) in self.meta().tokens() {
            match flag {
                b'c' if self.verb == MetaVerb::Set => put_count(out, b'c', cas.number),
                b's' if self.verb == MetaVerb::Set => put_count(out, b's', size as u64),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    fn counted(&self, counted: &Counted, out: &mut BytesMut) {
        if self.quiet {
            return;
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(counted.number);
        self.status(Some(digits.len()), out);
        let mut ttl = counted.ttl;
        for (flag, token) in self.meta().tokens() {
            match flag {
                b'c' => put_count(out, b'c', counted.cas.number),
                b't' => put_ttl(out, ttl),
                b'T' => ttl = self.lasts(token),
                b'N' if counted.created => ttl = self.lasts(token),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        out.extend_from_slice(b"\r\n");
        if self.meta().token(b'v').is_some() {
            out.extend_from_slice(digits.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    /// The reply to `mg`. `winner`: what it is told if it has won.
    pub(super) fn show(
        &self,
        shown: &ReadOutcome,
        winner: MetaWinner,
        out: &mut BytesMut,
    ) -> Option<LargeReply> {
        // Whoever did not ask for stubs is shown none.
        let vivifies = self.meta().token(b'N').is_some();
        let nothing = Hit::nothing();
        let stub = |mark| (&nothing, ItemMarks { stub: true, ..mark });
        let (hit, mark) = match shown {
            ReadOutcome::Value(hit, mark) => (hit, *mark),
            ReadOutcome::Won { old: Some(hit), mark } if winner == MetaWinner::Stale => (hit, *mark),
            // Nothing is there yet, and the client has asked to be told who builds it.
            ReadOutcome::Won { old: None, mark } if vivifies => stub(*mark),
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
        self.hit(hit, mark, out)
    }

    fn hit(&self, hit: &Hit, mark: ItemMarks, out: &mut BytesMut) -> Option<LargeReply> {
        // Whoever names the CAS has the value.
        let has = self.meta().options().compare == Some(mark.cas);
        self.status(Some(hit.payload.len()).filter(|_| !has), out);
        let mut ttl = hit.ttl;
        for (flag, token) in self.meta().tokens() {
            match flag {
                b's' => put_count(out, b's', hit.payload.len() as u64),
                b't' => put_ttl(out, ttl),
                // It moves the end neither of a stale value nor of one that this client is about to replace.
                b'T' if !mark.stale && !mark.won => ttl = self.lasts(token),
                b'N' if mark.stub => ttl = self.lasts(token),
                b'c' => put_count(out, b'c', mark.cas),
                b'f' => put_count(out, b'f', u64::from(hit.flags)),
                b'h' => put_count(out, b'h', u64::from(hit.usage.hit)),
                b'l' => put_count(out, b'l', u64::from(hit.usage.idle)),
                _ => echo(&self.meta(), &self.key, flag, token, out),
            }
        }
        if mark.held {
            out.extend_from_slice(b" Z");
        }
        if mark.stale {
            out.extend_from_slice(b" X");
        }
        if mark.won {
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

    /// What `t` says behind a token of `T` or `N`.
    fn lasts(&self, token: &[u8]) -> Option<u32> {
        match Expiry::of(exptime(token), self.asked) {
            Expiry::Expired => Some(0),
            Expiry::Never => None,
            Expiry::Seconds(seconds) => Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
        }
    }
}

/// What `mg` says where there is nothing to show: `EN`, or nothing if it is quiet. `key` is decoded.
pub(super) fn miss(meta: &Meta<'_>, key: &[u8]) -> SmallVec<[u8; 32]> {
    miss_line(meta, &spelled(meta, key))
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

/// The key as a reply repeats it: in base64 if it came so, but spelled anew, for memcached knows it only decoded.
fn spelled(meta: &Meta<'_>, key: &[u8]) -> SmallVec<[u8; 64]> {
    if meta.token(b'b').is_none() {
        return SmallVec::from_slice(key);
    }
    let mut text = Vec::new();
    base64::encode(key, &mut text);
    SmallVec::from_vec(text)
}

/// Repeats `O` and `k`, as every reply does.
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
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
}

/// `t`: whole seconds left, -1 for ever.
fn put_ttl(out: &mut BytesMut, ttl: Option<u32>) {
    match ttl {
        None => out.extend_from_slice(b" t-1"),
        Some(seconds) => put_count(out, b't', u64::from(seconds)),
    }
}
