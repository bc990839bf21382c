//! What the reply to a read of a raw key is passed on as. The item may have been stored by a sidecar with a guarded rule for the key:
//! a client is shown the value without its header, and no stub or placeholder.
//!
//! A reply without any of that costs one look at the first byte of its value.

use bytes::{Bytes, BytesMut};
use memchr::memchr;

use crate::error::Failure;
use crate::guard::{Expiry, LONGEST_STUB, Now, RawView, is_stub};
use crate::protocol::decimal::write_decimal;
use crate::protocol::reply::{MetaReply, Status, Value, meta, values};
use crate::protocol::request::{Meta, MetaVerb};
use crate::proxy::replies::classic::put_value_line;
use crate::proxy::server_key::server_key;
use crate::upstream::pending_replies::Reply;

/// memcached treats an exptime above thirty days, in seconds, as Unix time.
const RELATIVE_LIMIT: i64 = 60 * 60 * 24 * 30;

/// The most words of a meta command.
const META_WORDS: usize = 20;

/// The TTL in seconds that a stub gets which a client's `gat` or `mg T` has touched, until it is renewed.
pub(crate) const TOUCHED_STUB: i64 = 60;

/// What is passed on for a server's reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    AsIs,
    Miss,
    /// The item is a stub.
    Stub,
    /// The value is empty. It is a miss if the item is a stub.
    UnlessStub,
    /// Another reply: this is the one without the header, of a value with this `stale_for`.
    Instead(Bytes, u32),
}

/// Whether a reply of which the value's line is at least this long may have a value that is not passed on as it is.
#[inline]
pub(super) fn is_suspect(reply: &[u8], line: usize) -> bool {
    let Some(rest) = reply.get(line..) else { return false };
    let value = memchr(b'\n', rest).and_then(|end| rest.get(end + 1)).copied();
    // An empty value begins with the line end behind it.
    value.is_some_and(|first| first == b'\r' || RawView::is_suspect(Some(first)))
}

/// What is passed on for one value of a classic reply. The reply in its stead is that value alone.
pub(crate) fn shown_value(value: &Value<'_>) -> Shown {
    match RawView::of(value.data) {
        RawView::Plain if value.data.is_empty() => shown_empty(Some(value.flags)),
        RawView::Plain => Shown::AsIs,
        RawView::Absent => Shown::Miss,
        RawView::Sealed { payload_at, stale_for } => {
            let payload = &value.data[payload_at..];
            let mut out = BytesMut::with_capacity(payload.len() + value.key.len() + 64);
            put_value_line(&mut out, value.key, value.flags, value.cas, payload.len());
            out.extend_from_slice(payload);
            out.extend_from_slice(b"\r\n");
            Shown::Instead(out.freeze(), stale_for)
        }
    }
}

fn shown_empty(flags: Option<u32>) -> Shown {
    match flags.and_then(is_stub) {
        Some(true) => Shown::Stub,
        Some(false) => Shown::AsIs,
        None => Shown::UnlessStub,
    }
}

/// What is passed on for a classic reply with one value.
#[cold]
pub(super) fn shown_classic(reply: &Bytes) -> Shown {
    let Some(value) = values(reply).next() else { return Shown::AsIs };
    match shown_value(&value) {
        Shown::Instead(shown, stale_for) => {
            // `END`, if it belongs to the reply.
            let rest = &reply[value.raw.len()..];
            Shown::Instead([&shown[..], rest].concat().into(), stale_for)
        }
        shown => shown,
    }
}

/// What is passed on for the reply to an `mg`. The reply in its stead has `s` and `t` as the server sent them.
#[cold]
pub(super) fn shown_meta(reply: &Bytes) -> Shown {
    let parsed = meta(reply);
    if parsed.status != Status::Va {
        return Shown::AsIs;
    }
    match RawView::of(parsed.data) {
        // With `W`, this client's `N` has created it.
        RawView::Plain if parsed.data.is_empty() && parsed.token(b'W').is_none() => {
            shown_empty(flags_of(&parsed))
        }
        RawView::Plain => Shown::AsIs,
        RawView::Absent => Shown::Miss,
        RawView::Sealed { payload_at, stale_for } => {
            let payload = &parsed.data[payload_at..];
            let mut out = BytesMut::with_capacity(payload.len() + parsed.flags.len() + 32);
            put_va(payload.len(), &mut out);
            for (flag, token) in parsed.tokens() {
                match flag {
                    b's' => put_count(b's', payload.len() as u64, &mut out),
                    _ => put_token(flag, token, &mut out),
                }
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(payload);
            out.extend_from_slice(b"\r\n");
            Shown::Instead(out.freeze(), stale_for)
        }
    }
}

/// The reply of [`shown_meta`] with `t` as the client is shown it, and with `X` if the value is stale. `sent`: the flags of the command.
/// `left`: the TTL of the item after the command, without which nothing is known of it.
pub(super) fn with_expiry(reply: &Bytes, stale_for: u32, sent: &[u8], left: Option<Option<u32>>) -> Bytes {
    let parsed = meta(reply);
    let is_stale = left.flatten().is_some_and(|left| left <= stale_for);
    // Behind a `T`, the server shows the exptime of that, which is the client's.
    let sent = Meta { verb: MetaVerb::Get, key: b"", flags: sent, data: b"" };
    let is_touched = sent.tokens().take_while(|(flag, _)| *flag != b't').any(|(flag, _)| flag == b'T');
    let mut out = BytesMut::with_capacity(reply.len() + 8);
    put_va(parsed.data.len(), &mut out);
    for (flag, token) in parsed.tokens() {
        match std::str::from_utf8(token).ok().and_then(|text| text.parse::<u32>().ok()) {
            Some(ttl) if flag == b't' && !is_touched => {
                put_count(b't', ttl.saturating_sub(stale_for).into(), &mut out);
            }
            _ => put_token(flag, token, &mut out),
        }
    }
    if is_stale && parsed.token(b'X').is_none() {
        out.extend_from_slice(b" X");
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(parsed.data);
    out.extend_from_slice(b"\r\n");
    out.freeze()
}

/// What a client with `N` is shown of a stub: an empty item that another client has won.
pub(super) fn shown_stub(reply: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(reply.len() + 8);
    put_va(0, &mut out);
    for (flag, token) in meta(reply).tokens().filter(|(flag, _)| !b"WXZ".contains(flag)) {
        match flag {
            b'f' => put_count(b'f', 0, &mut out),
            _ => put_token(flag, token, &mut out),
        }
    }
    out.extend_from_slice(b" Z\r\n\r\n");
    out.freeze()
}

/// The reply to an `mg` with `v` as that to one without.
pub(super) fn without_value(reply: Bytes) -> Bytes {
    let parsed = meta(&reply);
    if parsed.status != Status::Va {
        return reply;
    }
    let mut out = BytesMut::with_capacity(parsed.flags.len() + 8);
    out.extend_from_slice(b"HD");
    parsed.tokens().for_each(|(flag, token)| put_token(flag, token, &mut out));
    out.extend_from_slice(b"\r\n");
    out.freeze()
}

/// Whether a command reads a value that it does not ask for: only its bytes tell whether there is a header.
pub(super) fn needs_value(meta: &Meta<'_>) -> bool {
    // The command and its key are words too.
    meta.verb == MetaVerb::Get && meta.token(b'v').is_none() && meta.tokens().count() + 2 < META_WORDS
}

/// Appends a command that reads when an item ends, and does not count as a read of it. An `mg` may receive the win of a stale item.
pub(crate) fn put_expiry(key: &[u8], out: &mut BytesMut) {
    let (key, is_base64) = server_key(key);
    out.extend_from_slice(b"me ");
    out.extend_from_slice(&key);
    out.extend_from_slice(if is_base64 { b" b\r\n" } else { b"\r\n" });
}

/// Whether the reply to [`put_expiry`] says that the item ends as early as a stub that nobody has touched.
pub(crate) fn ends_early(reply: &Reply) -> bool {
    left(reply).is_some_and(|left| left <= LONGEST_STUB.into())
}

/// When the item ends by the reply to [`put_expiry`], in seconds. `None`: there is none, or it never ends.
pub(super) fn left(reply: &Reply) -> Option<u64> {
    // -1: it never ends. Older servers negate the other numbers.
    field::<i64>(reply, b"exp=").filter(|left| *left != -1).map(i64::unsigned_abs)
}

/// The CAS of the item by the reply to [`put_expiry`].
pub(crate) fn cas_of(reply: &Reply) -> Option<u64> {
    field(reply, b"cas=")
}

/// Whether there is no item by the reply to [`put_expiry`].
pub(crate) fn is_gone(reply: &Reply) -> bool {
    matches!(reply, Reply::Answered { bytes, .. } if meta(bytes).status == Status::En)
}

fn field<T: std::str::FromStr>(reply: &Reply, name: &[u8]) -> Option<T> {
    let Reply::Answered { bytes, .. } = reply else { return None };
    let parsed = meta(bytes);
    // The key is the first word.
    let mut words = parsed.flags.split(|byte| *byte == b' ').filter_map(|word| word.strip_prefix(name));
    let value = words.next_back().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    value.filter(|_| parsed.status == Status::Me)
}

/// Appends a command that reads what there is of an item besides its value, and is no use of it. With an exptime it touches it.
pub(crate) fn put_look(key: &[u8], exptime: Option<i64>, out: &mut BytesMut) {
    let (key, is_base64) = server_key(key);
    out.extend_from_slice(b"mg ");
    out.extend_from_slice(&key);
    out.extend_from_slice(if is_base64 { b" b" } else { b"" });
    out.extend_from_slice(if exptime.is_some() { b" s f t c" } else { b" u s f t c" });
    if let Some(exptime) = exptime {
        out.extend_from_slice(b" T");
        write_decimal(out, exptime);
    }
    out.extend_from_slice(b"\r\n");
}

/// Whether an empty item is a stub, by a reply that has its flags, time and marks. `is_won`: a client of this sidecar has won an
/// empty item of the key, for longer than a stub lasts. Then one that the server has created is a stub only if it ends as early as one.
pub(crate) fn shows_stub(parsed: &MetaReply<'_>, is_won: bool) -> bool {
    let ends_early = || parsed.number(b't').is_some_and(|ttl| ttl <= LONGEST_STUB.into());
    // No guard marks a stub stale: such an item is a client's.
    let is_held = || parsed.token(b'Z').is_some() && parsed.token(b'X').is_none();
    let flags = flags_of(parsed).unwrap_or_default();
    is_stub(flags).unwrap_or_else(|| is_held() && (!is_won || ends_early()))
}

/// What there is now where a read has found an empty value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmptyNow {
    Stub,
    /// The same value. The look has taken the win of the item with this CAS, if there is one.
    Same(Option<u64>),
    Changed,
    /// The server has not told.
    Unknown,
}

/// The same by the reply to [`put_look`]. `flags` and `cas`: what is known of the item that was read.
pub(crate) fn empty_now(reply: &Reply, flags: Option<u32>, cas: Option<u64>, is_won: bool) -> EmptyNow {
    let Reply::Answered { bytes, .. } = reply else { return EmptyNow::Unknown };
    let parsed = meta(bytes);
    let now = parsed.number(b'c');
    let is_other = || {
        parsed.number(b's') != Some(0)
            || flags.is_some_and(|flags| flags_of(&parsed) != Some(flags))
            || cas.is_some_and(|cas| now != Some(cas))
    };
    match parsed.status {
        Status::En => EmptyNow::Changed,
        Status::Hd if parsed.number(b's') == Some(0) && shows_stub(&parsed, is_won) => EmptyNow::Stub,
        Status::Hd if is_other() => EmptyNow::Changed,
        Status::Hd => EmptyNow::Same(now.filter(|_| parsed.token(b'W').is_some())),
        _ => EmptyNow::Unknown,
    }
}

pub(crate) fn flags_of(parsed: &MetaReply<'_>) -> Option<u32> {
    parsed.number(b'f').and_then(|flags| u32::try_from(flags).ok())
}

/// Appends a command that gives back the win which a look has taken of the item with this CAS: the next reader wins it. Servers
/// before 1.6.27 refuse to keep the CAS.
pub(crate) fn put_give_back(key: &[u8], cas: u64, out: &mut BytesMut) {
    let (key, is_base64) = server_key(key);
    out.extend_from_slice(b"md ");
    out.extend_from_slice(&key);
    out.extend_from_slice(if is_base64 { b" b I C" } else { b" I C" });
    write_decimal(out, cas);
    out.extend_from_slice(b" E");
    write_decimal(out, cas);
    out.extend_from_slice(b"\r\n");
}

/// The TTL in the reply to [`put_look`], in seconds: `None` within it if the item never expires.
pub(super) fn ttl(reply: &[u8]) -> Option<Option<u32>> {
    let parsed = meta(reply);
    let token = parsed.token(b't').filter(|_| parsed.status == Status::Hd)?;
    Some(parsed.number(b't').and_then(|ttl| u32::try_from(ttl).ok()).filter(|_| token != b"-1"))
}

/// Whether a read with this exptime removes what it has read.
pub(crate) fn removes(exptime: Option<i64>, now: Now) -> bool {
    exptime.is_some_and(|exptime| Expiry::of(exptime, now) == Expiry::Expired)
}

/// Whether a read with this exptime may remove what it reads, by any clock: it is negative, or Unix time.
pub(crate) fn may_remove(exptime: Option<i64>) -> bool {
    exptime.is_some_and(|exptime| !(0..=RELATIVE_LIMIT).contains(&exptime))
}

/// The exptime of an item with a header that a client touches with this one. `None`: the touch has done it.
pub(crate) fn touched(exptime: Option<i64>, stale_for: u32, now: Now) -> Option<i64> {
    match Expiry::of(exptime?, now) {
        expiry @ Expiry::Seconds(_) if stale_for > 0 => Some(expiry.exptime(stale_for, now)),
        _ => None,
    }
}

/// Whether the server has failed. One that cannot guard has nothing that a guard has stored.
pub(crate) fn is_failure(reply: &Reply) -> bool {
    match reply {
        Reply::Failed(failure) => *failure != Failure::Unguarded,
        Reply::StaleCas => true,
        Reply::Answered { .. } | Reply::Part { .. } => false,
    }
}

fn put_va(length: usize, out: &mut BytesMut) {
    out.extend_from_slice(b"VA ");
    write_decimal(out, length);
}

fn put_count(flag: u8, count: u64, out: &mut BytesMut) {
    out.extend_from_slice(&[b' ', flag]);
    write_decimal(out, count);
}

fn put_token(flag: u8, token: &[u8], out: &mut BytesMut) {
    out.extend_from_slice(&[b' ', flag]);
    out.extend_from_slice(token);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::envelope::Envelope;

    fn sealed(payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        let tags = [((&b"t"[..]).into(), 5)].into_iter().collect();
        Envelope { stale_for: 60, built_at: 7, rebuild: 5, fence: 0, tags }.seal(&mut out).unwrap();
        [&out[..], payload].concat()
    }

    fn value(flags: u32, data: &[u8], end: &[u8]) -> Bytes {
        [format!("VALUE k {flags} {} 9\r\n", data.len()).as_bytes(), data, b"\r\n", end].concat().into()
    }

    fn va(data: &[u8], flags: &str) -> Bytes {
        [format!("VA {}{flags}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat().into()
    }

    fn instead(shown: &Shown) -> &[u8] {
        if let Shown::Instead(bytes, 60) = shown { bytes } else { panic!("{shown:?}") }
    }

    #[test]
    fn a_header_is_removed_from_a_classic_reply() {
        for end in [&b"END\r\n"[..], b""] {
            let reply = value(7, &sealed(b"abc"), end);
            assert!(is_suspect(&reply, b"VALUE k".len()));
            assert_eq!(instead(&shown_classic(&reply)), &value(7, b"abc", end)[..]);
            let empty = shown_classic(&value(7, &sealed(b""), end));
            assert_eq!(instead(&empty), &value(7, b"", end)[..]);
        }
        for (reply, suspect) in [
            (value(7, b"abc", b"END\r\n"), false),
            (value(7, b"", b"END\r\n"), true),
            (value(7, b"\r\nEND", b"END\r\n"), true),
            (Bytes::from_static(b"END\r\n"), false),
            (Bytes::from_static(b"SERVER_ERROR out of memory\r\n"), false),
        ] {
            assert_eq!(is_suspect(&reply, b"VALUE k".len()), suspect, "{reply:?}");
            assert_eq!(shown_classic(&reply), Shown::AsIs, "{reply:?}");
        }
        assert_eq!(shown_classic(&value(0, b"", b"END\r\n")), Shown::UnlessStub);
        assert_eq!(shown_classic(&value(1 << 31 | 5 << 8, b"", b"END\r\n")), Shown::Stub);
        assert_eq!(shown_classic(&value(1, b"\xf7\xcb\xce\xcc\x09", b"")), Shown::Miss);
    }

    #[test]
    fn a_header_is_removed_from_a_meta_reply_with_the_size_and_time_that_the_client_is_shown() {
        let seen = |flags: &str, sent: &[u8], left| {
            let reply = va(&sealed(b"abc"), flags);
            let shown = shown_meta(&reply);
            with_expiry(&Bytes::copy_from_slice(instead(&shown)), 60, sent, left)
        };
        let size = sealed(b"abc").len();
        let flags = format!(" s{size} t160 f7 Oq");
        assert_eq!(seen(&flags, b"s t f Oq v", Some(Some(160))), va(b"abc", " s3 t100 f7 Oq"));
        assert_eq!(seen(" t60 f7", b"t f v", Some(Some(60))), va(b"abc", " t0 f7 X"));
        assert_eq!(seen(" t-1", b"t v", Some(None)), va(b"abc", " t-1"));
        assert_eq!(seen(" t100 W X", b"T100 t v", Some(Some(160))), va(b"abc", " t100 W X"));
        assert_eq!(seen(" t160", b"t T100 v", Some(Some(160))), va(b"abc", " t100"));
        assert_eq!(seen(" X", b"v", Some(Some(5))), va(b"abc", " X"));
        assert_eq!(seen("", b"v", None), va(b"abc", ""));
        assert_eq!(without_value(va(b"abc", " t5 X")), Bytes::from_static(b"HD t5 X\r\n"));
        assert_eq!(without_value(Bytes::from_static(b"EN\r\n")), Bytes::from_static(b"EN\r\n"));
        assert_eq!(shown_meta(&va(b"", " t5")), Shown::UnlessStub);
        assert_eq!(shown_meta(&va(b"", " f2415930112")), Shown::Stub);
        assert_eq!(shown_meta(&va(b"", " f5")), Shown::AsIs);
        assert_eq!(shown_meta(&va(b"", " W")), Shown::AsIs);
        assert_eq!(shown_meta(&Bytes::from_static(b"HD t5\r\n")), Shown::AsIs);
        assert!(is_suspect(&va(b"", ""), 2) && !is_suspect(&va(b"abc", ""), 2));
    }

    #[test]
    fn a_look_tells_a_stub_from_an_empty_value() {
        let mut out = BytesMut::new();
        put_look(b"k", None, &mut out);
        put_look(b"a b", Some(-1), &mut out);
        put_expiry(b"k", &mut out);
        assert_eq!(&out[..], b"mg k u s f t c\r\nmg YSBi b s f t c T-1\r\nme k\r\n");
        let look =
            |text: &'static str| Reply::Answered { bytes: Bytes::from_static(text.as_bytes()), epoch: 1 };
        for (text, is_won, expected) in [
            ("HD s0 f0 t6 c3 Z\r\n", true, EmptyNow::Stub),
            // A client has touched it.
            ("HD s0 f0 t-1 c3 Z\r\n", false, EmptyNow::Stub),
            ("HD s0 f2147483904 t90000 c9\r\n", true, EmptyNow::Stub),
            // A client has created it for a long time, has stored it, or has marked it and won it.
            ("HD s0 f0 t-1 c3 Z\r\n", true, EmptyNow::Same(None)),
            ("HD s0 f0 t6 c3\r\n", false, EmptyNow::Same(None)),
            ("HD s0 f0 t6 c3 Z X\r\n", false, EmptyNow::Same(None)),
            ("HD s0 f0 t6 c3 W X\r\n", false, EmptyNow::Same(Some(3))),
            ("HD s0 f0 t6 c4\r\n", false, EmptyNow::Changed),
            ("HD s0 f5 t6 c3\r\n", false, EmptyNow::Changed),
            ("HD s1 f0 t6 c3 Z\r\n", false, EmptyNow::Changed),
            ("EN\r\n", false, EmptyNow::Changed),
            ("ERROR\r\n", false, EmptyNow::Unknown),
        ] {
            assert_eq!(empty_now(&look(text), Some(0), Some(3), is_won), expected, "{text}");
        }
        let mut out = BytesMut::new();
        put_give_back(b"a b", 7, &mut out);
        assert_eq!(&out[..], b"md YSBi b I C7 E7\r\n");
        assert_eq!(
            (ttl(b"HD s0 f0 t6 Z\r\n"), ttl(b"HD s0 f0 t-1\r\n"), ttl(b"EN\r\n")),
            (Some(Some(6)), Some(None), None)
        );
        let now = Now { wall: 1_700_000_000_000, mono: 0 };
        assert_eq!((touched(Some(100), 60, now), touched(Some(0), 60, now)), (Some(160), None));
        assert_eq!((touched(Some(-1), 60, now), touched(None, 60, now)), (None, None));
    }
}
