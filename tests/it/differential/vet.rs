//! What the streams leave out, and why: each exception is a line of [`LEFT_OUT`], which a test prints, and a check in
//! [`vet`]. Which of them are differences of Kennel stands in docs/commands.md.

use std::collections::HashSet;

use kennel::protocol::base64;
use kennel::protocol::parse::parse;
use kennel::protocol::request::{Limits, Meta, MetaVerb, Parsed, Request, Store, Verb};

use super::stream::{Command, NO_CAS, Part};

/// What is not sent or not compared, and why.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    (
        "CAS numbers",
        "compared by the order in which they first appear; over a pool, only where the reply names the key",
    ),
    ("remaining times", "rounded to 1,000 s: the seconds of two servers do not begin together"),
    ("the time of the last access", "masked: memcached's threads decide when to record one"),
    ("the version number", "masked: Kennel reports its own"),
    ("expiry times within the next ten minutes", "they would end on one side first"),
    (
        "`stats`, `lru_crawler`, `watch` and others that concern one server",
        "a pool is not one server: Kennel replies for itself",
    ),
    (
        "a connection that begins with the byte 0x80",
        "the binary protocol, which has [a tester of its own](#binary-protocol)",
    ),
    (
        "lines over 2 KiB that end and are no `get`",
        "whether memcached closes the connection depends on how the reads cut them",
    ),
    (
        "`get` of too long a key after other commands",
        "memcached discards their replies if it has not sent them yet",
    ),
    ("bytes that end the connection, after other commands", "the same"),
    (
        "`incr` in one turn with a read of its key",
        "memcached pads the shorter number, unless the old one still waits to be sent",
    ),
    (
        "numbers from 2^62 in values, and digits appended to others",
        "on the oldest servers: above 2^63 they look for a minus sign after the number, past the end of the value",
    ),
    (
        "too long a key after others in a `get`",
        "memcached has already recorded their access; Kennel validates the whole line first",
    ),
    (
        "guarded values within a few hundred bytes of the item size limit",
        "the exact limit depends on the server's version",
    ),
    ("values that consist of blanks only", "to increment one, memcached reads past the end of the value"),
    (
        "`flush_all` with a delay",
        "items that an earlier `flush_all` has not yet removed become visible again, unless memcached needed their memory",
    ),
    (
        "invented CAS numbers from 1 to 2^62",
        "each side counts its own, and the reply reveals whether the count is above them",
    ),
    ("data blocks that are announced and not sent", "neither side would reply"),
    (
        "too long an opaque on `ma` and `mg`",
        "memcached reports the error after executing the command, Kennel before",
    ),
    ("a NUL in a line", "older memcacheds take it for the end of the line, so Kennel refuses it"),
    (
        "`ms` with a flag that is not a letter",
        "memcached executes its data block as commands; Kennel discards it, as for any other refused store",
    ),
    (
        "`ms` with a bad data block or too long an opaque, unless a classic store is next",
        "memcached gives that store the CAS it had reserved, which is lower than those given since",
    ),
    (
        "too long a key in a `get` that ends in `noreply`",
        "memcached sends an empty line only; Kennel sends the error",
    ),
    (
        "the empty line after the error of a `get` of too long a key",
        "removed from memcached's reply: a client would take it for the next reply",
    ),
    (
        "`h` of guarded keys",
        "masked: Kennel reads what it changes, and stores anew what memcached changes in place",
    ),
    (
        "guarded: `N`, `R` and `md I`, unless a store ends their effect in the same turn",
        "memcached shows the stub and the stale item to classic commands, and `Z` to every reader",
    ),
    (
        "guarded: `t` of a stale item, `T` with `R` or `N`, an `N` whose item expires at once",
        "[commands.md](commands.md#meta-commands-on-guarded-keys) defines other replies",
    ),
    (
        "guarded: whether `k` is returned in base64",
        "decoded: memcached stores the encoding with the item, but not with a stub; Kennel returns the encoding of the request",
    ),
    (
        "guarded: `N` after a miss on the same connection",
        "the reply says that a client builds the value: this one",
    ),
    ("guarded: `ms I` with a CAS", "it leaves a stale item"),
    (
        "guarded: `c` of an item that ends with the command, `t` after a `T` that has expired",
        "there is no item, so Kennel returns 0",
    ),
    ("guarded: `T` of an `ma` that increments", "memcached ignores it when the number becomes longer"),
    (
        "on the oldest servers: `E`, `md x`, `C` on a raw `mg`, `s` and `N` on a raw `ms`",
        "they do not support them: Kennel forwards the server's reply",
    ),
    (
        "on the oldest servers: `I` on a raw key",
        "a look at an item for a command that may have met a header takes its `W`, which they cannot give back",
    ),
    ("guarded: `me`", "it shows the item as stored"),
    (
        "`flush_all` on guarded keys",
        "it invalidates: a value whose miss came before it is dropped. In a pool with failover a delayed one makes them misses, and refuses their changes, for about one `window`",
    ),
    (
        "guarded keys that several connections write",
        "one connection's miss and another's write: the later set is dropped",
    ),
];

/// The side that the streams are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Kennel with a raw rule in front of this many servers.
    Raw(usize),
    /// The same, in front of the oldest servers that are supported.
    RawOldest(usize),
    /// The embedded memcached itself.
    Embedded,
    /// Kennel with a guarded rule in front of this many servers.
    Guarded(usize),
    /// The same, and the rule has two tags.
    Tagged(usize),
    /// The same, in front of the oldest servers that are supported.
    TaggedOldest(usize),
}

impl Mode {
    /// Several servers assign CAS numbers independently.
    pub(super) fn pool(self) -> bool {
        !matches!(self, Mode::Raw(1) | Mode::Guarded(1) | Mode::Tagged(1) | Mode::Embedded)
    }

    /// Whether Kennel's servers are older than the memcached it is compared with.
    pub(super) fn oldest(self) -> bool {
        matches!(self, Mode::RawOldest(_) | Mode::TaggedOldest(_))
    }

    /// Commands with guarded keys.
    pub(super) fn guarded(self) -> bool {
        matches!(self, Mode::Guarded(_) | Mode::Tagged(_) | Mode::TaggedOldest(_))
    }

    /// Whether Kennel's guarded keys have a place that sidecars agree on.
    pub(super) fn fails_over(self) -> bool {
        matches!(self, Mode::Guarded(n) | Mode::Tagged(n) | Mode::TaggedOldest(n) if n > 2)
    }

    /// Whether this key is under the guarded rule.
    fn guards(self, key: &[u8]) -> bool {
        self.guarded() && key.starts_with(b"g:")
    }
}

/// Properties of a permitted command.
#[derive(Debug, Default)]
pub(super) struct Vetted {
    /// It must be alone in its turn.
    pub(super) alone: bool,
    /// The connection ends with it.
    pub(super) closes: bool,
    /// Keys whose values may wait to be sent after it.
    pub(super) reads: HashSet<Vec<u8>>,
    /// Keys that it increments or decrements.
    pub(super) counts: HashSet<Vec<u8>>,
    /// This many of its first bytes may be sent long before the others.
    pub(super) early: usize,
    /// Missing bytes: a data block is announced longer than it is.
    pub(super) lacks: usize,
    /// memcached keeps the CAS of an `ms` that it refuses, and uses it for the connection's next classic store.
    pub(super) puts_by: bool,
    /// What the command leaves of a guarded key until its last request.
    unsettled: Option<Unsettled>,
    /// The guarded key, as sent, that its last request deleted or overwrote.
    settled: Option<Vec<u8>>,
}

/// A guarded key that memcached and Kennel show differently to different clients, until something is stored.
#[derive(Debug)]
struct Unsettled {
    /// As it was sent.
    key: Vec<u8>,
    base64: bool,
    /// What every `mg` of it must have from now on: `N`, a certain `R`, or nothing for a stale one.
    says: Option<(u8, Vec<u8>)>,
}

impl Unsettled {
    /// The state after this request; `None`: it must not be sent.
    fn goes_on(self, request: &Request<'_>) -> Option<Option<Unsettled>> {
        match request {
            Request::Store(Store { verb: Verb::Set, key, .. }) if *key == self.key => Some(None),
            Request::Meta(meta) if meta.key == self.key => match meta.verb {
                // The same text in base64 and in plain is two keys.
                _ if meta.token(b'b').is_some() != self.base64 => None,
                MetaVerb::Set
                    if meta.token(b'C').is_none()
                        && meta.token(b'M').is_none_or(|mode| b"sS".contains(&mode[0])) =>
                {
                    Some(None)
                }
                MetaVerb::Get => {
                    let same = match &self.says {
                        Some((flag, token)) => meta.token(*flag) == Some(&token[..]),
                        None => meta.token(b't').is_none() && meta.token(b'R').is_none(),
                    };
                    (same && meta.token(b'T').is_none()).then_some(Some(self))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

const LIMITS: Limits = Limits { max_value: 1 << 20 };

/// Inspects a command with Kennel's own parser: this does not decide what is correct, only where commands end and what they are
/// about. `None`: it must not be sent.
pub(super) fn vet(command: &Command, mode: Mode) -> Option<Vetted> {
    let bytes = command.render(|_| Some(NO_CAS));
    let mut vetted = Vetted::default();
    let mut rest = &bytes[..];
    let mut first = true;
    while !rest.is_empty() {
        if vetted.closes {
            return None;
        }
        let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
        let get = [&b"get"[..], b"gets"].contains(&word(rest));
        let long = [&b"get "[..], b"gets "].iter().any(|word| rest.starts_with(word));
        if line > 2048 && !long && (rest.ends_with(b"\n") || rest.len() < 2100 || rest[0] == b' ') {
            return None;
        }
        if rest[..line].contains(&0) || runs_its_block(&rest[..line]) || is_told_an_empty_line(&rest[..line])
        {
            return None;
        }
        let taken = match parse(rest, &LIMITS) {
            Parsed::Incomplete { at_least } => {
                vetted.lacks = at_least;
                break;
            }
            Parsed::Request { request, consumed } => {
                // A CAS in any other position would be a number of its own side. Nor may it be the number of another key, which
                // may equal this one's on one side.
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
                vetted.unsettled = match vetted.unsettled.take() {
                    Some(unsettled) => unsettled.goes_on(&request)?,
                    None => unsettles(&request, mode, vetted.settled.as_deref())?,
                };
                vetted.settled = settled(&request);
                vetted.puts_by &= !matches!(request, Request::Store(_));
                consumed
            }
            Parsed::Refused(_) if vetted.unsettled.is_some() => return None,
            Parsed::Refused(refused) => {
                // A CAS in the position of the length is each side's own length.
                let length = if word(rest) == b"ms" { 2 } else { 4 };
                if words(&rest[..line]).nth(length).is_some_and(|word| word.starts_with(ANY_CAS)) {
                    return None;
                }
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
                // The opaque's length is checked last.
                let late = [&b"mg"[..], b"ma"].contains(&word(rest));
                if refused.reply.starts_with(b"CLIENT_ERROR opaque") && late {
                    return None;
                }
                let late = [&b"CLIENT_ERROR bad data chunk"[..], b"CLIENT_ERROR opaque"];
                vetted.puts_by |=
                    word(rest) == b"ms" && late.iter().any(|late| refused.reply.starts_with(late));
                vetted.closes |= refused.close;
                vetted.alone |= refused.close || (line > 250 && (get || word(rest).starts_with(b"gat")));
                let taken = refused.consumed + usize::try_from(refused.skip_data).ok()?;
                if taken > rest.len() {
                    vetted.lacks = taken - rest.len();
                    break;
                }
                taken
            }
        };
        // It must be the first in its turn.
        if vetted.alone && !first {
            return None;
        }
        if vetted.alone && !vetted.closes && !first_key_is_long(&rest[..line]) {
            return None;
        }
        if first {
            // Everything up to the line end may wait; a data block too, if the line is valid.
            let whole = matches!(parse(rest, &LIMITS), Parsed::Request { .. }) && taken > line;
            vetted.early = if whole { taken - 1 } else { line - 1 };
            first = false;
        }
        rest = &rest[taken..];
    }
    vetted.alone |= vetted.closes && word(&bytes) != b"quit";
    (vetted.unsettled.is_none() || vetted.lacks > 0).then_some(vetted)
}

/// Whether it is an `ms` whose line memcached accepts, but not its block.
fn runs_its_block(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = words(line).collect();
    words.first() == Some(&&b"ms"[..])
        && words.iter().skip(3).any(|word| !matches!(word[0], 65..=122 | b'0'..=b'9'))
}

/// Whether it is a `get` to which memcached replies only with an empty line.
fn is_told_an_empty_line(line: &[u8]) -> bool {
    let words: Vec<&[u8]> = words(line).collect();
    let get = words.first().is_some_and(|word| [&b"get"[..], b"gets"].contains(word));
    get && words.last() == Some(&&b"noreply"[..]) && words.iter().any(|word| word.len() > 250)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// The common prefix of [`NO_CAS`] and the number below it.
const ANY_CAS: &[u8] = b"46116860184273879";

/// Whether a CAS is in its proper position.
fn compares(request: &Request<'_>) -> bool {
    match request {
        Request::Store(Store { verb: Verb::Cas(number), .. }) => (NO_CAS - 1..=NO_CAS).contains(number),
        Request::Meta(meta) => meta.token(b'C').is_some_and(|token| token.starts_with(ANY_CAS)),
        _ => false,
    }
}

/// Whether a made-up CAS is below or above all existing ones: each side counts its own.
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

/// Whether the first key of a `get` is too long.
fn first_key_is_long(line: &[u8]) -> bool {
    // A `gat` has touched the keys before it by then, and so has Kennel.
    word(line).starts_with(b"gat")
        || line
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty())
            .nth(1)
            .is_some_and(|key| key.len() > 252)
}

/// Whether a turn's commands may be sent together: for the minimiser, which makes its own turns.
pub(super) fn fit(commands: &[Command], mode: Mode) -> bool {
    let mut reads = HashSet::new();
    commands.iter().enumerate().all(|(at, command)| {
        let Some(vetted) = vet(command, mode) else { return false };
        let lone = (!vetted.alone || commands.len() == 1) && (!vetted.closes || at + 1 == commands.len());
        let counted = vetted.counts.is_disjoint(&reads);
        reads.extend(vetted.reads);
        lone && counted && vetted.lacks == 0 && !vetted.puts_by && (vetted.closes || command.ends())
    })
}

fn word(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|&byte| byte != b' ').unwrap_or(0);
    let length = line[start..].iter().position(|byte| b" \r\n\0".contains(byte));
    &line[start..start + length.unwrap_or(line.len() - start)]
}

/// `None`: must not be sent.
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
            lasts(exptime).filter(|()| countable(data, longer, mode) && !near)
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
            let number = [start, delta].iter().all(|number| countable(number, false, mode));
            let near = mode.guarded() && (1_047_000..=1_048_576).contains(&meta.data.len());
            if !number || near || (meta.verb == MetaVerb::Set && !countable(meta.data, longer, mode)) {
                return None;
            }
            let marks = meta.token(b'I').is_some();
            if mode.oldest() && !mode.guards(&key) && (marks || !the_oldest_know(&meta)) {
                return None;
            }
            if mode.guards(&key) && !means_the_same(&meta, mode) {
                return None;
            }
            match meta.verb {
                MetaVerb::Get => vetted.reads.insert(key),
                MetaVerb::Arith if vetted.reads.contains(&key) => return None,
                MetaVerb::Arith => vetted.counts.insert(key),
                _ => true,
            };
            Some(())
        }
    }
}

/// Whether the oldest servers accept a meta command as the newest do.
fn the_oldest_know(meta: &Meta<'_>) -> bool {
    let has = |flag| meta.token(flag).is_some();
    match meta.verb {
        _ if has(b'E') => false,
        MetaVerb::Get => !has(b'C'),
        MetaVerb::Set => !has(b's') && !has(b'N'),
        MetaVerb::Delete => !has(b'x'),
        _ => true,
    }
}

/// Whether a meta command on a guarded key means what it means to memcached.
fn means_the_same(meta: &Meta<'_>, mode: Mode) -> bool {
    let has = |flag| meta.token(flag).is_some();
    let over = |flag| meta.token(flag).and_then(int32).is_some_and(|time| !(0..=2_592_000).contains(&time));
    let ends = over(b'T') || (has(b'N') && over(b'N'));
    match meta.verb {
        MetaVerb::Debug => false,
        _ if mode.oldest() && has(b'E') => false,
        MetaVerb::Get if has(b'N') && has(b'E') => false,
        MetaVerb::Get => !(over(b'N') || ((has(b'R') || has(b'N')) && has(b'T')) || (has(b't') && ends)),
        MetaVerb::Set => !(has(b'I') && has(b'C') || has(b'c') && ends),
        MetaVerb::Delete => !(has(b'I') && ends),
        _ => {
            let down = meta.token(b'M').is_some_and(|mode| matches!(mode.first(), Some(b'D' | b'd' | b'-')));
            !((has(b'c') || has(b't')) && ends) && (down || !has(b'T'))
        }
    }
}

/// The key that a request deletes or overwrites.
fn settled(request: &Request<'_>) -> Option<Vec<u8>> {
    match request {
        Request::Store(Store { verb: Verb::Set, key, .. }) | Request::Delete { key, .. } => {
            Some(key.to_vec())
        }
        Request::Meta(meta) => {
            let flag = |flag| meta.token(flag);
            let all = match meta.verb {
                MetaVerb::Set => flag(b'M').is_none_or(|mode| b"sS".contains(&mode[0])),
                MetaVerb::Delete => flag(b'I').is_none(),
                _ => false,
            };
            (all && flag(b'C').is_none()).then(|| meta.key.to_vec())
        }
        _ => None,
    }
}

/// Whether a guarded key is left in a state that shows who guards it, and until when. The outer `None`: it must not be sent.
fn unsettles(request: &Request<'_>, mode: Mode, settled: Option<&[u8]>) -> Option<Option<Unsettled>> {
    let Request::Meta(meta) = request else { return Some(None) };
    let decoded = meta.token(b'b').and_then(|_| base64::decode(meta.key));
    if !mode.guards(decoded.as_deref().unwrap_or(meta.key)) {
        return Some(None);
    }
    let token = |flag| meta.token(flag).map(|token| (flag, token.to_vec()));
    let says = match (meta.verb, token(b'N'), token(b'R')) {
        (MetaVerb::Get, Some(_), Some(_)) => return None,
        (MetaVerb::Get, None, None) => return Some(None),
        // After a miss of its own, a client sees that the value is being built: by itself.
        (MetaVerb::Get, Some(_), _) if settled != Some(meta.key) => return None,
        (MetaVerb::Get, stub, recache) => stub.or(recache),
        (MetaVerb::Delete, ..) if meta.token(b'I').is_some() => None,
        _ => return Some(None),
    };
    Some(Some(Unsettled { key: meta.key.to_vec(), base64: decoded.is_some(), says }))
}

/// Whether the result of `incr` depends on the value alone. `longer`: bytes are appended to it.
fn countable(data: &[u8], longer: bool, mode: Mode) -> bool {
    let blank = |byte: &u8| b" \t\n\x0b\x0c\r".contains(byte);
    let blanks = data.iter().take_while(|byte| blank(byte)).count();
    if data.len() > 24 {
        return true;
    }
    let digits = data[blanks..].iter().skip_while(|byte| b"+-".contains(byte));
    let digits: String =
        digits.take_while(|byte| byte.is_ascii_digit()).map(|&byte| char::from(byte)).collect();
    let large =
        mode.oldest() && digits.parse().is_ok_and(|number: u128| (1 << 62..1 << 64).contains(&number));
    let digit = mode.oldest()
        && longer
        && data.iter().any(|byte| byte.is_ascii_digit() || byte == &b'-' || blank(byte));
    !large && !digit && (data.is_empty() || blanks < data.len())
}

/// An exptime that does not end while the stream runs: never, at once, long ago, in more than ten minutes.
fn lasts(exptime: i64) -> Option<()> {
    (!(1..=600).contains(&exptime) && !(1_750_000_000..2_147_000_000).contains(&exptime)).then_some(())
}

/// A token as memcached parses it: C's `long`, then 32 bits of it.
fn int32(token: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(token).ok()?.trim_start();
    let text = text.split_ascii_whitespace().next()?;
    let long: i64 = text.parse().ok()?;
    Some(i64::from(long as i32))
}

#[test]
fn what_is_left_out_is_printed_and_listed_once() {
    let page = include_str!("../../../docs/testing.md");
    assert!(page.contains("what_is_left_out_is_printed"), "docs/testing.md does not name the command");
    let mut known = HashSet::new();
    for (what, why) in LEFT_OUT {
        println!("{what}: {why}");
        assert!(known.insert(what) && !why.is_empty(), "{what} is listed twice, or without a reason");
    }
}

#[test]
fn commands_that_time_or_cutting_would_decide_are_not_sent() {
    let fit = |text: &[u8]| vet(&Command::parse(text), Mode::Raw(1)).is_some();
    for text in [&b"set k 0 5 1\r\nx\r\n"[..], b"set k 0 0 1\r\n \r\n", b"stats\r\n", b"mg k N9\r\n"] {
        assert!(!fit(text), "{}", text.escape_ascii());
    }
    assert!(fit(b"set k 0 4294977296 1\r\nx\r\n") && !fit(b"set k 0 4294967299 1\r\nx\r\n"));
    assert!(vet(&Command::parse(b"get <<k*251>>\r\n"), Mode::Raw(1)).is_some_and(|vetted| vetted.alone));
}

#[test]
fn what_shows_who_guards_a_key_is_sent_only_with_the_store_that_ends_it() {
    let fit =
        |text: &[u8]| vet(&Command::parse(text), Mode::Guarded(1)).is_some_and(|vetted| vetted.lacks == 0);
    for text in [
        &b"md g:k\r\nmg g:k N0\r\n"[..],
        b"mg g:k N0\r\nset g:k 0 0 1\r\nx\r\n",
        b"md g:k\r\nmg g:k N0\r\nmg g:k v\r\nset g:k 0 0 1\r\nx\r\n",
        b"md g:k\r\nmg g:k N-1\r\nset g:k 0 0 1\r\nx\r\n",
        b"mg g:k R9\r\nmg g:k\r\nms g:k 1\r\nx\r\n",
        b"md g:k I\r\nget g:k\r\n",
        b"md g:k I\r\nms g:k 1 ME\r\nx\r\n",
        b"md g:k I\r\nms g:l 1\r\nx\r\n",
        b"ms g:k 1 I C1\r\nx\r\n",
        b"me g:k\r\n",
        b"md Zzpr b I\r\n",
    ] {
        assert!(!fit(text), "{}", text.escape_ascii());
    }
    for text in [
        &b"mg k N0\r\n"[..],
        b"md g:k\r\nmg g:k N0 c\r\nmg g:k N0 v\r\nset g:k 0 0 1\r\nx\r\n",
        b"mg g:k R9\r\nmg g:k R9 v\r\nms g:k 1 c\r\nx\r\n",
        b"md g:k I\r\nmg g:k v c\r\nms g:k 1 MS\r\nx\r\n",
        b"md Zzpr b I\r\nms Zzpr 1 b\r\nx\r\n",
    ] {
        assert!(fit(text), "{}", text.escape_ascii());
    }
}
