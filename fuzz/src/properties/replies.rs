//! A server that sends anything: its replies end at the same byte however they are cut, and what is parsed of them is in them.
//! The same invalid input is found; a reply depends only on its own bytes; the wait for the end of a line or a data block is bounded.
//!
//! An input is a byte that selects the expected replies and the largest value, three bytes that cut the stream, and the stream.

use kennel::protocol::reply::{
    Frame, Framer, Garbage, MetaReply, Shape, Status, Value, digest, frame, meta, values,
};

use super::Input;

const SHAPES: [Shape; 4] = [Shape::Line, Shape::Values, Shape::Meta, Shape::Stats];
/// The largest values to select from; the last one is a connection's limit.
const MAX_VALUES: [usize; 4] = [0, 5, 1000, 1 << 30];
/// The maximum length of an incomplete line, in bytes.
const MAX_UNFINISHED: usize = 2047;

/// The result of reading a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// The end of each reply.
    replies: Vec<usize>,
    /// Why the rest was rejected.
    garbage: Option<&'static str>,
}

/// Panics if a property of this module does not hold for the input.
pub fn check(data: &[u8]) {
    let Some(input) = Input::read(data) else { return };
    let expected = [0, 2, 4].map(|shift| SHAPES[usize::from(input.parameters >> shift & 3)]);
    let max_value = MAX_VALUES[usize::from(input.parameters >> 6)];
    // A get may be for one key.
    let single = expected.map(|shape| match shape {
        Shape::Values => Shape::Value,
        shape => shape,
    });
    // Or for some of several keys that were sent together.
    let keys = [&b"k"[..], b"kk", b"a"].map(digest);
    let line = [(Shape::Part, &keys[..1]), (Shape::Part, &keys[1..]), (Shape::Value, &keys[..0])];
    for expected in [expected.map(|shape| (shape, &keys[..0])), single.map(|shape| (shape, &keys[..0])), line]
    {
        let mut cuts = input.cuts().into_iter().map(|ends| read(input.stream, &ends, expected, max_value));
        let whole = cuts.next();
        for cut in cuts {
            assert_eq!(Some(cut), whole, "the result depends on how the stream is cut");
        }
    }
    is_harmless(input.stream);
}

/// The expected reply, and the keys of a part of a batched get.
type Expected<'a> = (Shape, &'a [u64]);

/// Reads the stream as a connection does, in reads that end at `ends`. The expected shapes recur in turn.
fn read(stream: &[u8], ends: &[usize], expected: [Expected<'_>; 3], max_value: usize) -> Outcome {
    let mut replies = Vec::new();
    let mut expected = expected.into_iter().cycle();
    let mut reading: Option<(Expected<'_>, Framer)> = None;
    let (mut start, mut wanted) = (0, 0);
    for &end in ends {
        while start < end {
            let buffer = &stream[start..end];
            let (expected, mut framer) = reading
                .take()
                .or_else(|| {
                    let expected = expected.next()?;
                    Some((expected, Framer::new(expected.0, max_value)))
                })
                .expect("a cycle has no end");
            let verdict = framer.frame(buffer, expected.1);
            let anew = |buffer| Framer::new(expected.0, max_value).frame(buffer, expected.1);
            assert_eq!(verdict, anew(buffer), "the result depends on earlier bytes");
            match verdict {
                Ok(Frame::Partial { at_least }) => {
                    assert!((1..=max_value + 7).contains(&at_least), "it needs {at_least} more bytes");
                    if matches!(expected.0, Shape::Line | Shape::Meta) {
                        let block = if expected.0 == Shape::Meta { 2 + max_value + 1 } else { 0 };
                        assert!(buffer.len() <= MAX_UNFINISHED + block, "it never completes");
                    }
                    wanted = end + at_least;
                    reading = Some((expected, framer));
                    break;
                }
                Ok(Frame::Whole(length)) => {
                    assert!((1..=buffer.len()).contains(&length), "{length} of {} bytes", buffer.len());
                    let reply = &buffer[..length];
                    // The end may belong to the next part.
                    if expected.0 != Shape::Part {
                        assert!(wanted <= start + length, "it requested more bytes than needed");
                        assert_eq!(anew(reply), Ok(Frame::Whole(length)), "it read beyond the end");
                    }
                    let short = anew(&reply[..length - 1]);
                    assert_eq!(short, Ok(Frame::Partial { at_least: 1 }), "a byte too few");
                    check_parsed(expected, reply, max_value);
                    start += length;
                    wanted = start;
                    replies.push(start);
                }
                // It belongs to the next one.
                Ok(Frame::Nothing) => replies.push(start),
                Ok(Frame::Shared(length)) => {
                    assert!(is_error(&buffer[..length]), "not an error");
                    replies.push(start);
                }
                Err(Garbage(why)) => return Outcome { replies, garbage: Some(why) },
            }
        }
    }
    Outcome { replies, garbage: None }
}

/// Checks that the parsed reply contains everything in the bytes, and nothing else.
fn check_parsed((shape, keys): Expected<'_>, reply: &[u8], max_value: usize) {
    match shape {
        Shape::Line => assert!(is_one_line(reply), "{:?}", reply.escape_ascii().to_string()),
        Shape::Value | Shape::Values => {
            assert!(shape == Shape::Values || values(reply).count() < 2, "two values of one key");
            check_values(reply, max_value);
        }
        Shape::Part => {
            let mut left = keys.iter();
            let raw: Vec<&[u8]> = values(reply).map(|value| value.raw).collect();
            assert_eq!(raw.concat(), reply, "there is something other than values");
            assert!(
                values(reply).all(|value| left.any(|key| *key == digest(value.key))),
                "a value is not of its keys, or out of order"
            );
        }
        Shape::Meta => check_meta(&meta(reply), reply, max_value),
        Shape::Stats => {
            assert!(
                is_one_line(reply) || reply.ends_with(b"\r\nEND\r\n"),
                "{:?}",
                reply.escape_ascii().to_string()
            );
        }
    }
}

fn check_values(reply: &[u8], max_value: usize) {
    let mut rest = reply;
    let mut again = Vec::new();
    for value in values(reply) {
        let Value { key, flags, data, cas, raw } = value;
        assert!(!key.is_empty() && !key.iter().any(|byte| b" \n".contains(byte)), "{value:?}");
        assert!(data.len() <= max_value, "{value:?}");
        rest = rest.strip_prefix(raw).expect("the values are consecutive");
        let block = raw.strip_suffix(b"\r\n").and_then(|raw| raw.strip_suffix(data));
        let line =
            block.and_then(|line| line.strip_suffix(b"\r\n")).expect("a line, a block, and their ends");
        assert!(line.starts_with(&[b"VALUE ", key, b" "].concat()), "{value:?}");
        let cas = cas.map_or(String::new(), |cas| format!(" {cas}"));
        again.extend_from_slice(&[b"VALUE ", key].concat());
        again.extend_from_slice(format!(" {flags} {}{cas}\r\n", data.len()).as_bytes());
        again.extend_from_slice(&[data, b"\r\n"].concat());
    }
    if rest.len() == reply.len() && rest != b"END\r\n" {
        assert!(is_error(rest), "no values in {:?}", rest.escape_ascii().to_string());
        return;
    }
    assert_eq!(rest, b"END\r\n", "values are left out");
    again.extend_from_slice(b"END\r\n");
    assert_eq!(frame(Shape::Values, &again, max_value), Ok(Frame::Whole(again.len())), "encoded again");
    let parsed = |value: Value<'_>| (value.key.to_vec(), value.flags, value.data.to_vec(), value.cas);
    assert!(values(&again).map(parsed).eq(values(reply).map(parsed)), "encoded again");
}

fn check_meta(parsed: &MetaReply<'_>, reply: &[u8], max_value: usize) {
    let end = reply.iter().position(|&byte| byte == b'\n').expect("a reply has a line");
    let line = &reply[..end - 1];
    let word = match parsed.status {
        Status::Va => b"VA",
        Status::Hd => b"HD",
        Status::En => b"EN",
        Status::Nf => b"NF",
        Status::Ns => b"NS",
        Status::Ex => b"EX",
        Status::Mn => b"MN",
        Status::Me => b"ME",
        Status::Error => {
            assert!(is_error(reply), "{parsed:?}");
            assert_eq!((parsed.data, parsed.flags), (line, &b""[..]));
            return;
        }
    };
    assert!(line.starts_with(word) && line[2..].first().is_none_or(|&byte| byte == b' '), "{parsed:?}");
    if parsed.status == Status::Va {
        assert!(parsed.data.len() <= max_value, "{parsed:?}");
        assert_eq!(&reply[end + 1..], [parsed.data, b"\r\n"].concat(), "{parsed:?}");
    } else {
        assert_eq!((parsed.data, reply.len()), (&b""[..], end + 1), "{parsed:?}");
    }
    let words: Vec<&[u8]> = line[2..].split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let flags = &words[usize::from(parsed.status == Status::Va)..];
    assert_eq!(parsed.tokens().count(), flags.len(), "{parsed:?}");
    for ((letter, token), word) in parsed.tokens().zip(flags) {
        assert_eq!((letter, token), (word[0], &word[1..]), "{parsed:?}");
        let first = flags.iter().find(|word| word[0] == letter).map(|word| &word[1..]);
        assert_eq!(parsed.token(letter), first, "{parsed:?}");
        let digits = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
        assert!(digits || Some(token) != first || parsed.number(letter).is_none(), "{parsed:?}");
    }
}

fn is_one_line(reply: &[u8]) -> bool {
    reply.strip_suffix(b"\r\n").is_some_and(|line| !line.is_empty() && !line.contains(&b'\n'))
}

fn is_error(reply: &[u8]) -> bool {
    let first = reply.split(|byte| b" \r".contains(byte)).next();
    is_one_line(reply) && matches!(first, Some(b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR"))
}

/// The accessors must not panic on bytes that were not framed.
fn is_harmless(bytes: &[u8]) {
    let parsed: usize = values(bytes).map(|value| value.raw.len()).sum();
    assert!(parsed <= bytes.len(), "it parsed {parsed} of {} bytes", bytes.len());
    let parsed = meta(bytes);
    assert!(parsed.data.len() + parsed.flags.len() <= bytes.len(), "{parsed:?}");
}
