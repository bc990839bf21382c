//! What the streams leave out, and why: each exception is a line of [`LEFT_OUT`] and a check in [`vet`]. The table stands in
//! docs/testing.md too.

use std::collections::HashSet;

use kennel::protocol::base64;
use kennel::protocol::parse::parse;
use kennel::protocol::request::{Limits, Meta, MetaVerb, Parsed, Request, Store, Verb};

use super::stream::{Command, NO_CAS, Part};

/// What is not tried or not compared, and why.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    (
        "CAS numbers",
        "compared by the order of their first sight; over a pool, only where the reply names the key",
    ),
    ("remaining times", "to the nearest 1,000 s: two servers' seconds do not turn together"),
    ("the time of the last access", "masked: when memcached notes one is a matter of its own threads"),
    ("the version's number", "masked: Kennel names one of its own"),
    ("times that end within ten minutes", "they would end on one side before the other"),
    (
        "`stats`, `lru_crawler`, `watch` and others of one server",
        "a pool is not one server: Kennel says what it says",
    ),
    (
        "a line that begins with the byte 0x80",
        "memcached asks only the first byte of a connection; Kennel says no to the binary protocol",
    ),
    ("lines over 2 KiB that end and are no `get`", "whether memcached hangs up depends on how they were cut"),
    (
        "`get` of too long a key behind other commands",
        "memcached throws away their replies, if it has not sent them yet",
    ),
    ("what is hung up on for its bytes, behind other commands", "the same"),
    (
        "`incr` in one turn with a read of its key",
        "memcached pads the shorter number, unless the old one still waits to be sent",
    ),
    (
        "numbers from 2^62 in values, and digits appended to others",
        "above 2^63 memcached looks for a minus sign behind the number, as far as memory goes",
    ),
    (
        "too long a key behind others in a `get` or `gat`",
        "memcached has noted their use, and touched them, by then; Kennel looks at the whole line first",
    ),
    (
        "guarded values within some hundred bytes of what an item holds",
        "where exactly that ends depends on the server's version",
    ),
    ("values of nothing but blanks", "to count in one, memcached reads on behind it, as far as memory goes"),
    (
        "`flush_all` for later",
        "what an earlier one did not find yet lives again, unless memcached has needed its memory",
    ),
    ("CAS numbers made up from 1 to 2^62", "each side counts its own, and whether they are above it shows"),
    ("blocks that are announced and not sent", "nobody would answer"),
    ("too long an opaque on `md`, `ma` and `mg`", "memcached complains after the deed, Kennel before it"),
    (
        "`E` with another mistake, and against the embedded memcached",
        "it is a flag of 1.6.27: what is wrong first depends on the server",
    ),
    ("meta commands on guarded keys", "not said to mean the same yet"),
    ("`flush_all` on guarded keys", "it invalidates: what was built after a miss before it is dropped"),
    (
        "guarded keys that several connections write",
        "one connection's miss, another's write: the later set is dropped",
    ),
];

/// Which side the streams are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Kennel with a raw rule before so many servers.
    Raw(usize),
    /// The embedded memcached itself.
    Embedded,
    /// Kennel with a guarded rule before so many servers.
    Guarded(usize),
}

impl Mode {
    /// Several servers count their own CAS numbers.
    pub(super) fn pool(self) -> bool {
        !matches!(self, Mode::Raw(1) | Mode::Guarded(1) | Mode::Embedded)
    }

    /// Commands with guarded keys.
    pub(super) fn guarded(self) -> bool {
        matches!(self, Mode::Guarded(_))
    }

    /// A switch for the day on which meta commands on guarded keys mean what memcached means.
    pub(super) fn meta(self) -> bool {
        !self.guarded()
    }
}

/// What is known of a command that may be sent.
#[derive(Debug, Default)]
pub(super) struct Vetted {
    /// Stands alone in its turn.
    pub(super) alone: bool,
    /// The connection ends with it.
    pub(super) closes: bool,
    /// Keys whose values may wait to be sent after it.
    pub(super) reads: HashSet<Vec<u8>>,
    /// Keys that it counts in.
    pub(super) counts: HashSet<Vec<u8>>,
    /// So many of its first bytes may be sent long before the others.
    pub(super) early: usize,
    /// Bytes that are lacking: a data block is longer than what is there.
    pub(super) lacks: usize,
}

const LIMITS: Limits = Limits { max_value: 1 << 20 };

/// Looks a command over as Kennel's own parser reads it: nothing here decides what is right, only where commands end and
/// what they are about. `None`: it is not to be sent.
pub(super) fn vet(command: &Command, mode: Mode) -> Option<Vetted> {
    let bytes = command.render(|_| Some(NO_CAS));
    let mut vetted = Vetted::default();
    let mut rest = &bytes[..];
    let mut first = true;
    while !rest.is_empty() {
        if rest[0] == 0x80 || vetted.closes {
            return None;
        }
        let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
        let get = [&b"get"[..], b"gets", b"bget"].contains(&word(rest));
        let indent = rest.iter().take_while(|&&byte| byte == b' ').count();
        let long =
            [&b"get "[..], b"gets "].iter().any(|word| rest[indent..].starts_with(word)) && indent < 100;
        if line > 2048 && !long && (rest.ends_with(b"\n") || rest.len() < 2100) {
            return None;
        }
        let knows_more = rest[..line].windows(2).any(|pair| pair == b" E") && word(rest).starts_with(b"m");
        let refused = matches!(parse(rest, &LIMITS), Parsed::Refused(_));
        if knows_more && (refused || mode == Mode::Embedded) {
            return None;
        }
        let taken = match parse(rest, &LIMITS) {
            Parsed::Incomplete { at_least } => {
                vetted.lacks = at_least;
                break;
            }
            Parsed::Request { request, consumed } => {
                // A CAS in any other place would be a number of its side's own.
                // Nor is it the number of another key, which may be that of this one on one side.
                let own = command.0.iter().all(|part| match (part, &request) {
                    (Part::Cas(of, _), Request::Store(Store { key, verb: Verb::Cas(_), .. })) => of == key,
                    (Part::Cas(of, _), Request::Meta(meta)) => of == meta.key,
                    _ => true,
                });
                if !own {
                    return None;
                }
                let sent = memchr::memmem::find_iter(&rest[..consumed], ANY_CAS).count();
                if sent > usize::from(compares(&request)) || !no_chance(&request) {
                    return None;
                }
                request_is_fit(&request, mode, &mut vetted)?;
                consumed
            }
            Parsed::Refused(refused) => {
                let names_a_server: [&[u8]; 9] = [
                    b"cache_memlimit",
                    b"extstore",
                    b"lru",
                    b"lru_crawler",
                    b"shutdown",
                    b"slabs",
                    b"watch",
                    b"misbehave",
                    b"refresh_certs",
                ];
                if names_a_server.contains(&word(rest)) {
                    return None;
                }
                // The opaque's length is the last thing that is looked at.
                if refused.reply.starts_with(b"CLIENT_ERROR opaque") && word(rest) != b"ms" {
                    return None;
                }
                vetted.closes |= refused.close;
                vetted.alone |= refused.close || (line > 250 && (get || word(rest).starts_with(b"gat")));
                let taken = refused.consumed + usize::try_from(refused.swallow).ok()?;
                if taken > rest.len() {
                    vetted.lacks = taken - rest.len();
                    break;
                }
                taken
            }
        };
        // It must be the first thing of its turn.
        if vetted.alone && !first {
            return None;
        }
        if vetted.alone && !vetted.closes && !first_key_is_long(&rest[..line]) {
            return None;
        }
        if first {
            // Up to the line's end anything may wait; a data block too, if the line is right.
            let whole = matches!(parse(rest, &LIMITS), Parsed::Request { .. }) && taken > line;
            vetted.early = if whole { taken - 1 } else { line - 1 };
            first = false;
        }
        rest = &rest[taken..];
    }
    vetted.alone |= vetted.closes && word(&bytes) != b"quit";
    Some(vetted)
}

/// What both [`NO_CAS`] and the number below it begin with.
const ANY_CAS: &[u8] = b"46116860184273879";

/// Whether a CAS stands where one belongs.
fn compares(request: &Request<'_>) -> bool {
    match request {
        Request::Store(Store { verb: Verb::Cas(number), .. }) => (NO_CAS - 1..=NO_CAS).contains(number),
        Request::Meta(meta) => meta.token(b'C').is_some_and(|token| token.starts_with(ANY_CAS)),
        _ => false,
    }
}

/// Whether a CAS that was made up is below or above all that there are: each side counts its own.
fn no_chance(request: &Request<'_>) -> bool {
    let number = match request {
        Request::Store(Store { verb: Verb::Cas(number), .. }) => Some(*number),
        Request::Meta(meta) => meta.token(b'C').and_then(|token| {
            let digits: String = token.iter().map(|&byte| char::from(byte)).collect();
            digits.trim_start().trim_start_matches('+').split_ascii_whitespace().next()?.parse().ok()
        }),
        _ => None,
    };
    number.is_none_or(|number: u64| number == 0 || number >= NO_CAS - 1)
}

/// Whether the first key of a `get` or a `gat` is too long a one.
fn first_key_is_long(line: &[u8]) -> bool {
    let at = if word(line).starts_with(b"gat") { 2 } else { 1 };
    line.split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
        .nth(at)
        .is_some_and(|key| key.len() > 252)
}

/// Whether a turn's commands may be sent together: for the minimiser, which makes its own.
pub(super) fn fit(commands: &[Command], mode: Mode) -> bool {
    let mut reads = HashSet::new();
    commands.iter().enumerate().all(|(at, command)| {
        let Some(vetted) = vet(command, mode) else { return false };
        let lone = (!vetted.alone || commands.len() == 1) && (!vetted.closes || at + 1 == commands.len());
        let counted = vetted.counts.is_disjoint(&reads);
        reads.extend(vetted.reads);
        lone && counted && vetted.lacks == 0 && (vetted.closes || command.ends())
    })
}

fn word(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(0);
    let length = line[start..].iter().position(|byte| b" \r\n\0".contains(byte));
    &line[start..start + length.unwrap_or(line.len() - start)]
}

/// `None`: not to be sent.
fn request_is_fit(request: &Request<'_>, mode: Mode, vetted: &mut Vetted) -> Option<()> {
    match *request {
        Request::Get { keys, .. } => {
            vetted.reads.extend(keys.iter().map(<[u8]>::to_vec));
            Some(())
        }
        Request::GetAndTouch { exptime, keys, .. } => {
            vetted.reads.extend(keys.iter().map(<[u8]>::to_vec));
            lasts(exptime)
        }
        Request::Store(Store { verb, exptime, data, .. }) => {
            let longer = matches!(verb, Verb::Append | Verb::Prepend);
            let near = mode.guarded() && (1_047_000..=1_048_576).contains(&data.len());
            lasts(exptime).filter(|()| countable(data, longer) && !near)
        }
        Request::Touch { exptime, .. } => lasts(exptime),
        Request::Arith { key, delta, decr, .. } => {
            let busy = !vetted.reads.contains(key);
            vetted.counts.insert(key.to_vec());
            (busy && (decr || delta < 1 << 50)).then_some(())
        }
        Request::Delete { .. } | Request::Version | Request::Verbosity { .. } => Some(()),
        Request::FlushAll { delay, .. } => (delay == 0 && !mode.guarded()).then_some(()),
        Request::Stats { .. } => None,
        Request::Quit => {
            vetted.closes = true;
            Some(())
        }
        Request::Meta(Meta { verb: MetaVerb::Noop, .. }) => Some(()),
        Request::Meta(meta) => {
            let key = match meta.token(b'b') {
                Some(_) => base64::decode(meta.key)?,
                None => meta.key.to_vec(),
            };
            for flag in [b'T', b'N'] {
                lasts(meta.token(flag).and_then(int32).unwrap_or(0))?;
            }
            let longer =
                meta.token(b'M').is_some_and(|mode| mode.first().is_some_and(|mode| b"APap".contains(mode)));
            let start = meta.token(b'J').filter(|_| meta.verb == MetaVerb::Arith).unwrap_or(b"0");
            let delta = meta.token(b'D').filter(|_| meta.verb == MetaVerb::Arith).unwrap_or(b"1");
            let number = [start, delta].iter().all(|number| countable(number, false));
            if !number || (meta.verb == MetaVerb::Set && !countable(meta.data, longer)) {
                return None;
            }
            match meta.verb {
                MetaVerb::Get => vetted.reads.insert(key),
                MetaVerb::Arith if vetted.reads.contains(&key) => return None,
                MetaVerb::Arith => vetted.counts.insert(key),
                _ => true,
            };
            mode.meta().then_some(())
        }
    }
}

/// Whether what `incr` makes of a value is a matter of the value alone. `longer`: it is put to another.
fn countable(data: &[u8], longer: bool) -> bool {
    let blank = |byte: &u8| b" \t\n\x0b\x0c\r".contains(byte);
    let blanks = data.iter().take_while(|byte| blank(byte)).count();
    if data.len() > 24 {
        return true;
    }
    let digits = data[blanks..].iter().skip_while(|byte| b"+-".contains(byte));
    let digits: String =
        digits.take_while(|byte| byte.is_ascii_digit()).map(|&byte| char::from(byte)).collect();
    let large = digits.parse().is_ok_and(|number: u128| (1 << 62..1 << 64).contains(&number));
    let digit = longer && data.iter().any(|byte| byte.is_ascii_digit() || byte == &b'-' || blank(byte));
    !large && !digit && (data.is_empty() || blanks < data.len())
}

/// An exptime that does not end while the stream runs: never, at once, long ago, in more than ten minutes.
fn lasts(exptime: i64) -> Option<()> {
    (!(1..=600).contains(&exptime) && !(1_750_000_000..2_147_000_000).contains(&exptime)).then_some(())
}

/// A token as memcached reads it: C's `long`, then 32 bits of it.
fn int32(token: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(token).ok()?.trim_start();
    let text = text.split_ascii_whitespace().next()?;
    let long: i64 = text.parse().ok()?;
    Some(i64::from(long as i32))
}

#[test]
fn what_is_left_out_stands_in_the_page_on_testing() {
    let page = include_str!("../../../docs/testing.md");
    for (what, why) in LEFT_OUT {
        let row = format!("| {what} | {why} |");
        assert!(page.contains(&row), "docs/testing.md lacks the row\n{row}");
    }
}

#[test]
fn commands_that_time_or_cutting_would_decide_are_not_sent() {
    let fit = |text: &[u8]| vet(&Command::parse(text), Mode::Raw(1)).is_some();
    for text in
        [&b"set k 0 5 1\r\nx\r\n"[..], b"set k 0 0 1\r\n \r\n", b"\x80\r\n", b"stats\r\n", b"mg k N9\r\n"]
    {
        assert!(!fit(text), "{}", text.escape_ascii());
    }
    assert!(fit(b"set k 0 4294977296 1\r\nx\r\n") && !fit(b"set k 0 4294967299 1\r\nx\r\n"));
    assert!(vet(&Command::parse(b"get <<k*251>>\r\n"), Mode::Raw(1)).is_some_and(|vetted| vetted.alone));
}
