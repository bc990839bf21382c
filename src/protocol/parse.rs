//! Bytes in, one request out: where it ends, whether memcached would take it, and what memcached says if not.
//!
//! Everything here is what memcached 1.6.18 was seen to do, not what its manual says. A line is a C string to it:
//! the first NUL ends it. Only spaces separate words. Nothing is allocated, and no input is out of bounds.

use memchr::memchr;

use super::line::{
    Arguments, BAD_FORMAT, Block, ERROR, Line, MAX_LINE, TOO_LARGE, hang_up, is_key, refuse, swallow, trim,
};
use super::meta;
use super::number;
use super::request::{Keys, Limits, MetaVerb, Parsed, Refused, Request, Store, Verb, word};

const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const DELETE_USAGE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// Parses what stands at the front of a read buffer. Total: any bytes give an answer, and the same one however
/// they were cut into reads. Whether a connection speaks text at all is asked of its first byte, before
/// ([`binary::look`](super::binary::look)).
pub fn parse<'a>(buffer: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let line = match Line::read(buffer) {
        Ok(line) => line,
        Err(parsed) => return parsed,
    };
    if let Some(key) = line.text.strip_prefix(b"get ")
        && is_key(key)
        && memchr(b' ', key).is_none()
    {
        return line.request(Request::Get { keys: Keys(key), cas: false });
    }
    let (command, rest) = word(line.text);
    match command {
        // Ancient and undocumented, `bget` is still a `get` to memcached.
        b"get" | b"bget" => get(&line, rest, false),
        b"gets" => get(&line, rest, true),
        b"gat" => get_and_touch(&line, rest, false),
        b"gats" => get_and_touch(&line, rest, true),
        b"set" => store(Verb::Set, &line, rest, limits),
        b"add" => store(Verb::Add, &line, rest, limits),
        b"replace" => store(Verb::Replace, &line, rest, limits),
        b"append" => store(Verb::Append, &line, rest, limits),
        b"prepend" => store(Verb::Prepend, &line, rest, limits),
        b"cas" => store(Verb::Cas(0), &line, rest, limits),
        b"incr" => arith(&line, rest, false),
        b"decr" => arith(&line, rest, true),
        b"touch" => touch(&line, rest),
        b"delete" => delete(&line, rest),
        b"mg" => meta::parse(MetaVerb::Get, &line, rest, limits),
        b"ms" => meta::parse(MetaVerb::Set, &line, rest, limits),
        b"md" => meta::parse(MetaVerb::Delete, &line, rest, limits),
        b"ma" => meta::parse(MetaVerb::Arith, &line, rest, limits),
        b"mn" => meta::parse(MetaVerb::Noop, &line, rest, limits),
        b"me" => meta::parse(MetaVerb::Debug, &line, rest, limits),
        b"flush_all" => flush_all(&line, rest),
        b"version" => line.request(Request::Version),
        b"verbosity" => verbosity(&line, rest),
        b"stats" => line.request(Request::Stats { what: trim(rest) }),
        b"quit" => line.request(Request::Quit),
        b"cache_memlimit" | b"extstore" | b"lru" | b"lru_crawler" | b"shutdown" | b"slabs" | b"watch" => {
            of_one_server(&line, command, rest)
        }
        _ => unknown(&line, command, rest),
    }
}

fn get<'a>(line: &Line<'a>, rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let keys = Keys(trim(rest));
    if keys.is_empty() {
        return refuse(line.consumed, ERROR);
    }
    match keys.iter().all(is_key) {
        true => line.request(Request::Get { keys, cas }),
        false => refuse(line.consumed, BAD_FORMAT),
    }
}

fn get_and_touch<'a>(line: &Line<'a>, rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let (exptime, rest) = word(rest);
    if exptime.is_empty() {
        return refuse(line.consumed, ERROR);
    }
    let Some(exptime) = number::int32(exptime) else { return refuse(line.consumed, BAD_EXPTIME) };
    let keys = Keys(trim(rest));
    if keys.is_empty() {
        return refuse(line.consumed, b"END\r\n");
    }
    match keys.iter().all(is_key) {
        true => line.request(Request::GetAndTouch { exptime: exptime.into(), keys, cas }),
        false if line.consumed > MAX_LINE => refuse(line.consumed, BAD_FORMAT),
        false => {
            let before = keys.up_to(|key| !is_key(key));
            let touches = (!before.is_empty()).then_some((exptime.into(), before));
            match refuse(line.consumed, BAD_FORMAT) {
                Parsed::Refused(refused) => Parsed::Refused(Refused { touches, ..refused }),
                other => other,
            }
        }
    }
}

/// `<command> <key> <flags> <exptime> <bytes> [<cas>] [noreply]`. Only a block that is too large is swallowed; behind
/// every other mistake the data is read as commands.
fn store<'a>(verb: Verb, line: &Line<'a>, rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, flags, exptime, length, cas] = arguments.words;
    let needed = if matches!(verb, Verb::Cas(_)) { 5 } else { 4 };
    if arguments.count != needed && arguments.count != needed + 1 {
        return refuse(line.consumed, ERROR);
    }
    let noreply = arguments.noreply();
    let verb = match verb {
        Verb::Cas(_) => number::uint64(cas).map(Verb::Cas),
        verb => Some(verb),
    };
    let (Some(verb), Some(flags), Some(exptime), Some(length), true) =
        (verb, number::uint32(flags), number::int32(exptime), line.length(length), is_key(key))
    else {
        return arguments.refuse(line, BAD_FORMAT);
    };
    if length > limits.max_value {
        let reply = if noreply { b"" } else { TOO_LARGE };
        let deletes = (verb == Verb::Set).then_some(key);
        return Parsed::Refused(Refused { deletes, ..swallow(line.consumed, reply, length) });
    }
    line.block(length, |block| match block {
        Block::Data(data) => {
            Ok(Request::Store(Store { verb, key, flags, exptime: exptime.into(), data, noreply }))
        }
        Block::Bad => Err(noreply),
    })
}

fn arith<'a>(line: &Line<'a>, rest: &'a [u8], decr: bool) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, delta, ..] = arguments.words;
    if !(2..=3).contains(&arguments.count) {
        return refuse(line.consumed, ERROR);
    }
    if !is_key(key) {
        return arguments.refuse(line, BAD_FORMAT);
    }
    match number::uint64(delta) {
        Some(delta) => line.request(Request::Arith { key, decr, delta, noreply: arguments.noreply() }),
        None => arguments.refuse(line, BAD_DELTA),
    }
}

fn touch<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, exptime, ..] = arguments.words;
    if !(2..=3).contains(&arguments.count) {
        return refuse(line.consumed, ERROR);
    }
    if !is_key(key) {
        return arguments.refuse(line, BAD_FORMAT);
    }
    match number::int32(exptime) {
        Some(exptime) => {
            line.request(Request::Touch { key, exptime: exptime.into(), noreply: arguments.noreply() })
        }
        None => arguments.refuse(line, BAD_EXPTIME),
    }
}

/// `delete <key> [0] [noreply]`: the 0 is what is left of a hold time. `delete noreply` deletes that key, aloud.
fn delete<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, hold, ..] = arguments.words;
    let noreply = arguments.count > 1 && arguments.noreply();
    let takes = match arguments.count {
        1 => true,
        2 => hold == b"0" || noreply,
        3 => hold == b"0" && noreply,
        _ => return refuse(line.consumed, ERROR),
    };
    match (takes, is_key(key)) {
        (true, true) => line.request(Request::Delete { key, noreply }),
        (true, false) => refuse(line.consumed, if noreply { b"" } else { BAD_FORMAT }),
        (false, _) => refuse(line.consumed, if noreply { b"" } else { DELETE_USAGE }),
    }
}

fn flush_all<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let noreply = arguments.noreply();
    let delay = match arguments.count {
        0 => Some(0),
        1 if noreply => Some(0),
        1 | 2 => number::int32(arguments.words[0]),
        _ => return refuse(line.consumed, ERROR),
    };
    match delay {
        Some(delay) => line.request(Request::FlushAll { delay: delay.max(0).into(), noreply }),
        None => arguments.refuse(line, BAD_EXPTIME),
    }
}

fn verbosity<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    match arguments.count {
        1 | 2 if number::uint32(arguments.words[0]).is_some() => {
            line.request(Request::Verbosity { noreply: arguments.noreply() })
        }
        1 | 2 => arguments.refuse(line, BAD_FORMAT),
        _ => refuse(line.consumed, ERROR),
    }
}

/// Commands that mean one certain server, which a pool is not. They are answered as a memcached does that was told
/// to disallow them.
fn of_one_server<'a>(line: &Line<'a>, command: &[u8], rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [first, ..] = arguments.words;
    match (command, arguments.count) {
        (b"cache_memlimit", 1 | 2) if number::uint32(first).is_some() => {
            arguments.refuse(line, b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n")
        }
        (b"cache_memlimit", 1 | 2) | (b"extstore" | b"lru", 2..) => arguments.refuse(line, ERROR),
        (b"slabs", 2..) if first == b"automove" => arguments.refuse(line, ERROR),
        (b"slabs", 3) if first == b"reassign" => {
            refuse(line.consumed, b"CLIENT_ERROR slab reassignment disabled\r\n")
        }
        (b"lru_crawler", 1 | 2) => refuse(line.consumed, b"CLIENT_ERROR lru crawler disabled\r\n"),
        (b"watch", _) => arguments.refuse(line, b"CLIENT_ERROR watch commands not allowed\r\n"),
        (b"shutdown", _) => refuse(line.consumed, b"ERROR: shutdown not enabled\r\n"),
        _ => refuse(line.consumed, ERROR),
    }
}

/// `ERROR`, and never suppressed. But what ends like the first line of an HTTP request is hung up on, so that a
/// browser or a form cannot be made to speak memcached; memcached looks only when no command begins with the letter.
fn unknown<'a>(line: &Line<'a>, command: &'a [u8], rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let last = if arguments.count == 0 { command } else { arguments.last };
    let looked_up = match command {
        [] | [_] | [b'm', _] => true,
        [first, ..] => b"gsacidt".contains(first),
    };
    match !looked_up && last.starts_with(b"HTTP/") {
        true => hang_up(line.consumed, b""),
        false => refuse(line.consumed, ERROR),
    }
}

#[cfg(test)]
mod tests;
