//! Parses one request: where it ends, whether memcached accepts it, and the error memcached sends if it does not.
//!
//! The rules are the observed behaviour of memcached 1.6.45, not its manual. Where older versions differ, requests are
//! forwarded in a form that all of them read alike. Only spaces separate words. Parsing allocates nothing and accepts any bytes.

use super::line::{
    Arguments, BAD_EXPTIME, BAD_FORMAT, Block, ERROR, Line, MAX_LINE, TOO_LARGE, close_connection, is_key,
    refuse, refuse_block, trim,
};
use super::meta;
use super::number;
use super::request::{Keys, Limits, MetaVerb, Parsed, Refused, Request, Store, Verb, word};

const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";

/// Parses the request at the front of a read buffer. Any bytes give a result, and it does not depend on how they were split
/// into reads. [`binary::detect`](super::binary::detect) must have checked the first byte of the connection.
pub fn parse<'a>(buffer: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let line = match Line::read(buffer) {
        Ok(line) => line,
        Err(parsed) => return parsed,
    };
    if let Some(key) = line.text.strip_prefix(b"get ")
        && is_key(key)
        && !line.has_nul
        && memchr::memchr(b' ', key).is_none()
    {
        return line.request(Request::Get { keys: Keys(key), cas: false });
    }
    let (command, rest) = line.text.split_at(memchr::memchr(b' ', line.text).unwrap_or(line.text.len()));
    match command {
        b"get" => get(&line, rest, false),
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
        b"version" => line.request(Request::Version),
        b"stats" => line.request(Request::Stats { what: trim(rest) }),
        b"quit" => line.request(Request::Quit),
        b"watch" => refuse(line.consumed, b"CLIENT_ERROR watch commands not allowed\r\n"),
        _ => from_table(&line),
    }
}

fn get<'a>(line: &Line<'a>, rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let keys = Keys(trim(rest));
    match !keys.is_empty() && !line.has_nul && keys.iter().all(is_key) {
        true => line.request(Request::Get { keys, cas }),
        false => refuse(line.consumed, BAD_FORMAT),
    }
}

fn get_and_touch<'a>(line: &Line<'a>, rest: &'a [u8], cas: bool) -> Parsed<'a> {
    let (exptime, rest) = word(rest);
    let keys = Keys(trim(rest));
    if keys.is_empty() || line.has_nul {
        return refuse(line.consumed, BAD_FORMAT);
    }
    let Some(exptime) = number::i32(exptime) else { return refuse(line.consumed, BAD_EXPTIME) };
    match keys.iter().all(is_key) {
        true => line.request(Request::GetAndTouch { exptime: exptime.into(), keys, cas }),
        false if line.consumed > MAX_LINE => refuse(line.consumed, BAD_FORMAT),
        false => {
            let before = keys.up_to(|key| !is_key(key));
            let touches = (!before.is_empty()).then_some((exptime.into(), before));
            Parsed::Refused(Refused { touches, ..Refused::new(line.consumed, BAD_FORMAT) })
        }
    }
}

/// `<command> <key> <flags> <exptime> <bytes> [<cas>] [noreply]`. Once the length is known, a refusal also discards the data
/// block, so that data is never executed as commands. Without a valid length there is no block, and `noreply` is ignored.
fn store<'a>(verb: Verb, line: &Line<'a>, rest: &'a [u8], limits: &Limits) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, _, _, length, cas] = arguments.words;
    if arguments.count < 4 {
        return refuse(line.consumed, BAD_FORMAT);
    }
    let Some(length) = line.length(length) else { return refuse(line.consumed, BAD_FORMAT) };
    let noreply = arguments.noreply();
    let verb = match verb {
        Verb::Cas(_) if arguments.count > 4 => number::u64(cas).map(Verb::Cas),
        Verb::Cas(_) => None,
        verb => Some(verb),
    };
    // Flags and exptime are parsed from their first byte on: the C number functions find the end themselves.
    let (_, flags) = word(rest);
    let (_, exptime) = word(flags);
    let (Some(verb), Some(flags), Some(exptime), true, false) =
        (verb, number::c_uint32(flags), number::c_int32(exptime), is_key(key), line.has_nul)
    else {
        let reply = if noreply { b"" } else { BAD_FORMAT };
        return Parsed::Refused(refuse_block(line.consumed, reply, length));
    };
    if length > limits.max_value {
        let reply = if noreply { b"" } else { TOO_LARGE };
        let deletes = (verb == Verb::Set).then_some(key);
        return Parsed::Refused(Refused { deletes, ..refuse_block(line.consumed, reply, length) });
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
    if arguments.count < 2 {
        return refuse(line.consumed, BAD_FORMAT);
    }
    if !is_key(key) || line.has_nul {
        return arguments.refuse(line, BAD_FORMAT);
    }
    match number::u64(delta) {
        Some(delta) => line.request(Request::Arith { key, decr, delta, noreply: arguments.noreply() }),
        None => arguments.refuse(line, BAD_DELTA),
    }
}

fn touch<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, exptime, ..] = arguments.words;
    if arguments.count < 2 {
        return refuse(line.consumed, BAD_FORMAT);
    }
    if !is_key(key) || line.has_nul {
        return arguments.refuse(line, BAD_FORMAT);
    }
    match number::i32(exptime) {
        Some(exptime) => {
            line.request(Request::Touch { key, exptime: exptime.into(), noreply: arguments.noreply() })
        }
        None => arguments.refuse(line, BAD_EXPTIME),
    }
}

/// `delete <key> [noreply]`, with any words between. `delete noreply` deletes the key `noreply` without a reply.
fn delete<'a>(line: &Line<'a>, rest: &'a [u8]) -> Parsed<'a> {
    let arguments = Arguments::read(rest);
    let [key, ..] = arguments.words;
    match is_key(key) && !line.has_nul {
        true => line.request(Request::Delete { key, noreply: arguments.noreply() }),
        false => arguments.refuse(line, BAD_FORMAT),
    }
}

/// The commands that memcached finds in its table, where leading spaces are ignored, and unknown commands.
fn from_table<'a>(line: &Line<'a>) -> Parsed<'a> {
    let arguments = Arguments::read_line(line.text);
    let [command, first, ..] = arguments.words;
    let level = || number::u32(first).filter(|_| arguments.count > 1);
    match (command, arguments.count) {
        (b"flush_all", _) => flush_all(line, &arguments),
        (b"verbosity", _) if level().is_some() => {
            line.request(Request::Verbosity { noreply: arguments.noreply() })
        }
        (b"verbosity", _) => arguments.refuse(line, BAD_FORMAT),
        // The remaining commands concern a single server, which a pool is not. The replies are those of a memcached on which the
        // command is disabled.
        (b"cache_memlimit", _) if level().is_some() => {
            arguments.refuse(line, b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n")
        }
        (b"slabs", 4) if first == b"reassign" => {
            arguments.refuse(line, b"CLIENT_ERROR slab reassignment disabled\r\n")
        }
        (b"lru_crawler", 2 | 3) => arguments.refuse(line, b"CLIENT_ERROR lru crawler disabled\r\n"),
        (b"shutdown", _) => arguments.refuse(line, b"SERVER_ERROR: shutdown not enabled\r\n"),
        (b"cache_memlimit" | b"extstore" | b"lru" | b"lru_crawler" | b"refresh_certs" | b"slabs", _) => {
            arguments.refuse(line, ERROR)
        }
        // A line that ends like an HTTP request line closes the connection, so that a browser cannot be made to send memcached
        // commands.
        (_, 2..) if arguments.last.starts_with(b"HTTP/") => close_connection(line.consumed, b""),
        _ => arguments.refuse(line, ERROR),
    }
}

/// `flush_all [<delay>] [noreply]`; the first of `arguments` is the command word.
fn flush_all<'a>(line: &Line<'a>, arguments: &Arguments<'a>) -> Parsed<'a> {
    let noreply = arguments.noreply();
    let delay = match arguments.count == if noreply { 2 } else { 1 } {
        true => Some(0),
        false => number::i32(arguments.words[1]),
    };
    match delay {
        Some(delay) => line.request(Request::FlushAll { delay: delay.max(0).into(), noreply }),
        None => arguments.refuse(line, BAD_EXPTIME),
    }
}

#[cfg(test)]
mod tests;
