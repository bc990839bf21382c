//! Requests parse the same however they are cut, and a request that is encoded again parses to the same request.
//! Errors, ends, data blocks to skip and closed connections are the same too; a request depends only on its own bytes; no more bytes are
//! reported missing than are; keys are valid, for reading and for deleting.
//!
//! An input is a byte that selects the largest value, three bytes that cut the stream, and the stream.

use kennel::protocol::request::{Limits, Meta, MetaVerb, Parsed, Refused, Request, Store, Verb};
use kennel::protocol::{MAX_KEY, base64, parse::parse};

use super::Input;

/// The largest values to select from.
const MAX_VALUES: [usize; 4] = [0, 8, 1000, 1 << 20];

/// What the parser made of a part of the stream.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// A request, encoded again, and its end in the stream.
    Request(Vec<u8>, usize),
    /// A refusal, its reply, and where the next request begins; `None` if none does.
    Refused { reply: &'static [u8], end: Option<u64>, deletes: Option<(Vec<u8>, bool)> },
    /// The rest is no complete request.
    Incomplete,
}

/// Panics if a property of this module does not hold for the input.
pub fn check(data: &[u8]) {
    let Some(input) = Input::read(data) else { return };
    let limits = Limits { max_value: MAX_VALUES[usize::from(input.parameters & 3)] };
    let mut cuts = input.cuts().into_iter().map(|ends| read(input.stream, &ends, &limits));
    let whole = cuts.next();
    for cut in cuts {
        assert_eq!(Some(cut), whole, "the result depends on how the stream is cut");
    }
}

/// Reads the stream as a session does, in reads that end at `ends`.
fn read(stream: &[u8], ends: &[usize], limits: &Limits) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    // Where the next request begins, possibly after a part of a data block that is still to come.
    let mut start = 0;
    // According to the parser, it cannot end before this byte.
    let mut wanted = 0;
    for &end in ends {
        while start < end {
            let buffer = &stream[start..end];
            match parse(buffer, limits) {
                Parsed::Incomplete { at_least } => {
                    assert!((1..=limits.max_value + 2).contains(&at_least), "it needs {at_least} more bytes");
                    assert!(end + at_least >= wanted, "it needs more bytes than announced");
                    wanted = end + at_least;
                    break;
                }
                Parsed::Request { request, consumed } => {
                    assert!(wanted <= start + consumed, "it requested more bytes than needed");
                    ends_itself(buffer, consumed, limits);
                    is_legal(&request);
                    start += consumed;
                    outcomes.push(Outcome::Request(encoded_again(&request, limits), start));
                }
                Parsed::Refused(refused) => {
                    assert!(wanted <= end, "it requested more bytes than needed");
                    let outcome = refusal(&refused, buffer, start, limits);
                    outcomes.push(outcome);
                    if refused.close {
                        return outcomes;
                    }
                    start += refused.consumed + refused.skip_data as usize;
                }
            }
        }
    }
    if start < stream.len() {
        outcomes.push(Outcome::Incomplete);
    }
    outcomes
}

/// Checks that the parser's result depends on all of the first `consumed` bytes and on nothing else.
fn ends_itself(buffer: &[u8], consumed: usize, limits: &Limits) {
    assert!((1..=buffer.len()).contains(&consumed), "{consumed} of {} bytes", buffer.len());
    assert_eq!(
        parse(&buffer[..consumed], limits),
        parse(buffer, limits),
        "the result depends on later bytes"
    );
    if consumed > 1 {
        let short = parse(&buffer[..consumed - 1], limits);
        assert_eq!(short, Parsed::Incomplete { at_least: 1 }, "a byte too few");
    }
}

fn refusal(refused: &Refused<'_>, buffer: &[u8], start: usize, limits: &Limits) -> Outcome {
    let Refused { reply, consumed, skip_data, close, deletes, deletes_base64, touches } = *refused;
    assert!((1..=buffer.len()).contains(&consumed), "{consumed} of {} bytes", buffer.len());
    assert!(reply.is_empty() || is_one_line(reply), "its reply is {:?}", reply.escape_ascii().to_string());
    assert!(skip_data < 1 << 31, "it skips {skip_data}");
    assert!(touches.is_none_or(|(_, keys)| keys.iter().all(is_key)), "it touches an invalid key");
    assert!(deletes.is_none_or(is_key), "it deletes an invalid key");
    assert!(!deletes_base64 || deletes.is_some_and(|key| base64::decode(key).is_some()), "invalid base64");
    // Only a value that is too large causes a delete.
    assert!(deletes.is_none() || skip_data > limits.max_value as u64 + 2, "it deletes without a reason");
    if !close {
        ends_itself(buffer, consumed, limits);
    }
    Outcome::Refused {
        reply,
        end: (!close).then_some((start + consumed) as u64 + skip_data),
        deletes: deletes.map(|key| (key.to_vec(), deletes_base64)),
    }
}

fn is_one_line(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n").is_some_and(|line| !line.is_empty() && !line.contains(&b'\n'))
}

fn is_key(key: &[u8]) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && !key.iter().any(|byte| b" \n\0".contains(byte))
}

/// Checks that the request is valid without further checks.
fn is_legal(request: &Request<'_>) {
    match request {
        Request::Get { keys, .. } | Request::GetAndTouch { keys, .. } => {
            assert!(keys.iter().all(is_key), "{request:?}");
            assert!(!keys.is_empty(), "{request:?}");
            assert_eq!(keys.single(), keys.iter().next().filter(|_| keys.len() == 1), "{request:?}");
        }
        Request::Store(Store { key, .. })
        | Request::Arith { key, .. }
        | Request::Touch { key, .. }
        | Request::Delete { key, .. } => assert!(is_key(key), "{request:?}"),
        Request::FlushAll { delay, .. } => assert!(*delay >= 0, "{request:?}"),
        Request::Meta(meta) => is_legal_meta(meta),
        Request::Version | Request::Verbosity { .. } | Request::Stats { .. } | Request::Quit => {}
    }
}

fn is_legal_meta(meta: &Meta<'_>) {
    assert_eq!(meta.key.is_empty(), meta.verb == MetaVerb::Noop, "{meta:?}");
    assert!(meta.key.is_empty() || is_key(meta.key), "{meta:?}");
    let flags: Vec<(u8, &[u8])> = meta.tokens().collect();
    for (at, (flag, token)) in flags.iter().enumerate() {
        assert!(!token.contains(&b' '), "{meta:?}");
        // The flags of a debugging command are not parsed.
        if meta.verb != MetaVerb::Debug {
            assert!(flags[..at].iter().all(|(before, _)| before != flag), "{meta:?} has a flag twice");
            assert_eq!(meta.token(*flag), Some(*token), "{meta:?}");
            let decoded = (*flag == b'b').then(|| base64::decode(meta.key));
            assert!(
                decoded.is_none_or(|key| key.is_some_and(|key| !key.is_empty())),
                "{meta:?} is no base64"
            );
        }
    }
}

/// The request as text, which parses to the same request.
fn encoded_again(request: &Request<'_>, limits: &Limits) -> Vec<u8> {
    let text = encode(request);
    match parse(&text, limits) {
        Parsed::Request { request: again, consumed } => {
            assert_eq!(consumed, text.len(), "{request:?} encoded again ends early");
            assert!(same(request, &again), "{request:?} encoded again is {again:?}");
        }
        other => panic!("{request:?} encoded again is {other:?}"),
    }
    text
}

/// Whether two requests are equal. Keys may be separated by one or several spaces.
fn same(a: &Request<'_>, b: &Request<'_>) -> bool {
    match (a, b) {
        (Request::Get { keys: a, cas: a_cas }, Request::Get { keys: b, cas: b_cas }) => {
            a.iter().eq(b.iter()) && a_cas == b_cas
        }
        (
            Request::GetAndTouch { exptime: a_exptime, keys: a, cas: a_cas },
            Request::GetAndTouch { exptime: b_exptime, keys: b, cas: b_cas },
        ) => a.iter().eq(b.iter()) && (a_exptime, a_cas) == (b_exptime, b_cas),
        (a, b) => a == b,
    }
}

fn encode(request: &Request<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    let mut block = None;
    let quiet: &[u8] = match request {
        Request::Store(Store { noreply: true, .. })
        | Request::Arith { noreply: true, .. }
        | Request::Touch { noreply: true, .. }
        | Request::Delete { noreply: true, .. }
        | Request::FlushAll { noreply: true, .. }
        | Request::Verbosity { noreply: true } => b"noreply",
        _ => b"",
    };
    let mut say = |words: &[&[u8]]| {
        for word in words.iter().filter(|word| !word.is_empty()) {
            if !text.is_empty() {
                text.push(b' ');
            }
            text.extend_from_slice(word);
        }
    };
    match *request {
        Request::Get { keys, cas } => {
            say(&[if cas { b"gets" } else { b"get" }]);
            keys.iter().for_each(|key| say(&[key]));
        }
        Request::GetAndTouch { exptime, keys, cas } => {
            say(&[if cas { b"gats" } else { b"gat" }, &number(exptime)]);
            keys.iter().for_each(|key| say(&[key]));
        }
        Request::Store(Store { verb, key, flags, exptime, data, .. }) => {
            let (word, cas): (&[u8], Vec<u8>) = match verb {
                Verb::Set => (b"set", Vec::new()),
                Verb::Add => (b"add", Vec::new()),
                Verb::Replace => (b"replace", Vec::new()),
                Verb::Append => (b"append", Vec::new()),
                Verb::Prepend => (b"prepend", Vec::new()),
                Verb::Cas(cas) => (b"cas", number(cas)),
            };
            say(&[word, key, &number(flags), &number(exptime), &number(data.len()), &cas]);
            block = Some(data);
        }
        Request::Arith { key, decr, delta, .. } => {
            say(&[if decr { b"decr" } else { b"incr" }, key, &number(delta)]);
        }
        Request::Touch { key, exptime, .. } => say(&[b"touch", key, &number(exptime)]),
        // Without another word behind it, this key would be the last word, which asks for no reply.
        Request::Delete { key: key @ b"noreply", noreply: false } => say(&[b"delete", key, b"0"]),
        Request::Delete { key, .. } => say(&[b"delete", key]),
        Request::FlushAll { delay, .. } => say(&[b"flush_all", &number(delay)]),
        Request::Version => say(&[b"version"]),
        Request::Verbosity { .. } => say(&[b"verbosity", b"1"]),
        Request::Stats { what } => say(&[b"stats", what]),
        Request::Quit => say(&[b"quit"]),
        Request::Meta(Meta { verb, key, flags, data }) => {
            let (word, length): (&[u8], Vec<u8>) = match verb {
                MetaVerb::Get => (b"mg", Vec::new()),
                MetaVerb::Set => (b"ms", number(data.len())),
                MetaVerb::Delete => (b"md", Vec::new()),
                MetaVerb::Arith => (b"ma", Vec::new()),
                MetaVerb::Noop => (b"mn", Vec::new()),
                MetaVerb::Debug => (b"me", Vec::new()),
            };
            say(&[word, key, &length, flags]);
            block = (verb == MetaVerb::Set).then_some(data);
        }
    }
    say(&[quiet]);
    text.extend_from_slice(b"\r\n");
    if let Some(data) = block {
        text.extend_from_slice(data);
        text.extend_from_slice(b"\r\n");
    }
    text
}

fn number(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}
