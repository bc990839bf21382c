//! A server that sends anything: its replies end at the same byte however they are cut, and what is parsed of them is in them.
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

/// Panics if a property of docs/fuzzing.md does not hold for the input.
pub fn check(data: &[u8]) {
    let Some(input) = Input::read(data) else { return };
    let owed = [0, 2, 4].map(|shift| SHAPES[usize::from(input.knobs >> shift & 3)]);
    let max_value = MAX_VALUES[usize::from(input.knobs >> 6)];
    // A get may be for one key.
    let single = owed.map(|shape| match shape {
        Shape::Values => Shape::Value,
        shape => shape,
    });
    // Or for some of several keys that were sent together.
    let keys = [&b"k"[..], b"kk", b"a"].map(digest);
    let line = [(Shape::Part, &keys[..1]), (Shape::Part, &keys[1..]), (Shape::Value, &keys[..0])];
    for owed in [owed.map(|shape| (shape, &keys[..0])), single.map(|shape| (shape, &keys[..0])), line] {
        let mut cuts = input.cuts().into_iter().map(|ends| read(input.stream, &ends, owed, max_value));
        let whole = cuts.next();
        for cut in cuts {
            assert_eq!(Some(cut), whole, "it depends on how the stream is cut");
        }
    }
    is_harmless(input.stream);
}

/// The expected reply, and the keys of a part of a batched get.
type Owed<'a> = (Shape, &'a [u64]);

/// Reads the stream as a connection does, in reads that end at `ends`. The expected shapes recur in turn.
fn read(stream: &[u8], ends: &[usize], owed: [Owed<'_>; 3], max_value: usize) -> Outcome {
    let mut replies = Vec::new();
    let mut owed = owed.into_iter().cycle();
    let mut reading: Option<(Owed<'_>, Framer)> = None;
    let (mut start, mut wanted) = (0, 0);
    for &end in ends {
        while start < end {
            let buffer = &stream[start..end];
            let (owed, mut framer) = reading
                .take()
                .or_else(|| {
                    let owed = owed.next()?;
                    Some((owed, Framer::new(owed.0, max_value)))
                })
                .expect("a cycle has no end");
            let verdict = framer.frame(buffer, owed.1);
            let anew = |buffer| Framer::new(owed.0, max_value).frame(buffer, owed.1);
            assert_eq!(verdict, anew(buffer), "it depends on what was seen before");
            match verdict {
                Ok(Frame::Partial { at_least }) => {
                    assert!((1..=max_value + 7).contains(&at_least), "it lacks {at_least} bytes");
                    if matches!(owed.0, Shape::Line | Shape::Meta) {
                        let block = if owed.0 == Shape::Meta { 2 + max_value + 1 } else { 0 };
                        assert!(buffer.len() <= MAX_UNFINISHED + block, "it waits for ever");
                    }
                    wanted = end + at_least;
                    reading = Some((owed, framer));
                    break;
                }
                Ok(Frame::Whole(length)) => {
                    assert!((1..=buffer.len()).contains(&length), "{length} of {} bytes", buffer.len());
                    let reply = &buffer[..length];
                    // The end may belong to the next part.
                    if owed.0 != Shape::Part {
                        assert!(wanted <= start + length, "it asked for more than it needed");
                        assert_eq!(anew(reply), Ok(Frame::Whole(length)), "it looked further");
                    }
                    let short = anew(&reply[..length - 1]);
                    assert_eq!(short, Ok(Frame::Partial { at_least: 1 }), "a byte too few");
                    is_told(owed, reply, max_value);
                    start += length;
                    wanted = start;
                    replies.push(start);
                }
                // It belongs to the next one.
                Ok(Frame::Nothing) => replies.push(start),
                Ok(Frame::Shared(length)) => {
                    assert!(is_error(&buffer[..length]), "an error that is none");
                    replies.push(start);
                }
                Err(Garbage(why)) => return Outcome { replies, garbage: Some(why) },
            }
        }
    }
    Outcome { replies, garbage: None }
}

/// Checks that the parsed reply contains everything in the bytes, and nothing else.
fn is_told((shape, keys): Owed<'_>, reply: &[u8], max_value: usize) {
    match shape {
        Shape::Line => assert!(is_one_line(reply), "{:?}", reply.escape_ascii().to_string()),
        Shape::Value | Shape::Values => {
            assert!(shape == Shape::Values || values(reply).count() < 2, "two values of one key");
            are_told(reply, max_value);
        }
        Shape::Part => {
            let mut left = keys.iter();
            let raw: Vec<&[u8]> = values(reply).map(|value| value.raw).collect();
            assert_eq!(raw.concat(), reply, "there are values, and nothing else");
            assert!(
                values(reply).all(|value| left.any(|key| *key == digest(value.key))),
                "they are of its keys, in the order asked"
            );
        }
        Shape::Meta => is_told_of_meta(&meta(reply), reply, max_value),
        Shape::Stats => {
            assert!(
                is_one_line(reply) || reply.ends_with(b"\r\nEND\r\n"),
                "{:?}",
                reply.escape_ascii().to_string()
            );
        }
    }
}

fn are_told(reply: &[u8], max_value: usize) {
    let mut rest = reply;
    let mut again = Vec::new();
    for value in values(reply) {
        let Value { key, flags, data, cas, raw } = value;
        assert!(!key.is_empty() && !key.iter().any(|byte| b" \n".contains(byte)), "{value:?}");
        assert!(data.len() <= max_value, "{value:?}");
        rest = rest.strip_prefix(raw).expect("the values stand one behind the other");
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
    assert_eq!(frame(Shape::Values, &again, max_value), Ok(Frame::Whole(again.len())), "spelled anew");
    let told = |value: Value<'_>| (value.key.to_vec(), value.flags, value.data.to_vec(), value.cas);
    assert!(values(&again).map(told).eq(values(reply).map(told)), "spelled anew");
}

fn is_told_of_meta(told: &MetaReply<'_>, reply: &[u8], max_value: usize) {
    let end = reply.iter().position(|&byte| byte == b'\n').expect("a reply has a line");
    let line = &reply[..end - 1];
    let word = match told.status {
        Status::Va => b"VA",
        Status::Hd => b"HD",
        Status::En => b"EN",
        Status::Nf => b"NF",
        Status::Ns => b"NS",
        Status::Ex => b"EX",
        Status::Mn => b"MN",
        Status::Me => b"ME",
        Status::Error => {
            assert!(is_error(reply), "{told:?}");
            assert_eq!((told.data, told.flags), (line, &b""[..]));
            return;
        }
    };
    assert!(line.starts_with(word) && line[2..].first().is_none_or(|&byte| byte == b' '), "{told:?}");
    if told.status == Status::Va {
        assert!(told.data.len() <= max_value, "{told:?}");
        assert_eq!(&reply[end + 1..], [told.data, b"\r\n"].concat(), "{told:?}");
    } else {
        assert_eq!((told.data, reply.len()), (&b""[..], end + 1), "{told:?}");
    }
    let words: Vec<&[u8]> = line[2..].split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let flags = &words[usize::from(told.status == Status::Va)..];
    assert_eq!(told.tokens().count(), flags.len(), "{told:?}");
    for ((letter, token), word) in told.tokens().zip(flags) {
        assert_eq!((letter, token), (word[0], &word[1..]), "{told:?}");
        let first = flags.iter().find(|word| word[0] == letter).map(|word| &word[1..]);
        assert_eq!(told.token(letter), first, "{told:?}");
        let digits = !token.is_empty() && token.iter().all(u8::is_ascii_digit);
        assert!(digits || Some(token) != first || told.number(letter).is_none(), "{told:?}");
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
    let told: usize = values(bytes).map(|value| value.raw.len()).sum();
    assert!(told <= bytes.len(), "it saw {told} of {} bytes", bytes.len());
    let told = meta(bytes);
    assert!(told.data.len() + told.flags.len() <= bytes.len(), "{told:?}");
}
