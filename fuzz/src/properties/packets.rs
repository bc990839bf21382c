//! Packets of the binary protocol parse the same however they are cut, and a request that is written again parses to the same request.
//! Outcomes have the same ends, data to skip and closed connections; a request depends only on its own bytes; no more bytes are
//! reported missing than are; keys are valid. Before a connection has authenticated, only SASL and `version` are requests.
//!
//! An input is a byte that selects the largest value and whether the connection must authenticate, three bytes that cut the stream,
//! and the stream.

use kennel::protocol::MAX_KEY;
use kennel::protocol::binary::HEADER;
use kennel::protocol::binary::parse::{
    Access, Command, Limits, Parsed, Refused, Request, SaslMessage, Store, parse,
};

use super::Input;

/// The largest values to select from.
const MAX_VALUES: [usize; 4] = [0, 8, 1000, 1 << 20];

/// What the parser made of a part of the stream.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// A request, written again, and its end in the stream.
    Request(Vec<u8>, usize),
    /// A refusal: its status, where the next packet begins (`None` if none does), and the key that it deletes.
    Refused { status: u16, end: Option<u64>, deletes: Option<Vec<u8>> },
    /// No packet begins here.
    NoPacket,
    /// The rest is no complete packet.
    Incomplete,
}

/// Panics if a property of this module does not hold for the input.
pub fn check(data: &[u8]) {
    let Some(input) = Input::read(data) else { return };
    let access = match input.parameters >> 2 & 3 {
        0 => Access::Unauthenticated,
        1 => Access::Authenticated,
        _ => Access::Open,
    };
    let limits = Limits { max_value: MAX_VALUES[usize::from(input.parameters & 3)], access };
    let mut cuts = input.cuts().into_iter().map(|ends| read(input.stream, &ends, &limits));
    let whole = cuts.next();
    for cut in cuts {
        assert_eq!(Some(cut), whole, "the result depends on how the stream is cut");
    }
}

/// Reads the stream as a session does, in reads that end at `ends`.
fn read(stream: &[u8], ends: &[usize], limits: &Limits) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let (mut start, mut wanted) = (0, 0);
    for &end in ends {
        while start < end {
            let buffer = &stream[start..end];
            match parse(buffer, limits) {
                Parsed::Incomplete { at_least } => {
                    assert!(at_least >= 1 && end + at_least >= wanted, "it needs more bytes than announced");
                    wanted = end + at_least;
                    break;
                }
                Parsed::Request { request, consumed } => {
                    assert!((wanted..=end).contains(&(start + consumed)) || wanted <= start + consumed);
                    depends_on_itself(buffer, consumed, limits);
                    is_legal(&request, limits);
                    start += consumed;
                    outcomes.push(Outcome::Request(written_again(&request), start));
                }
                Parsed::Refused(refused) => {
                    let Refused { status, consumed, skip_data, close, deletes, .. } = refused;
                    assert!((HEADER..=buffer.len()).contains(&consumed));
                    assert!(deletes.is_none_or(|key| (1..=MAX_KEY).contains(&key.len())));
                    let next = start as u64 + consumed as u64 + skip_data;
                    let (end, deletes) = ((!close).then_some(next), deletes.map(<[u8]>::to_vec));
                    outcomes.push(Outcome::Refused { status: status.number(), end, deletes });
                    if close {
                        return outcomes;
                    }
                    start = usize::try_from(next).unwrap_or(usize::MAX);
                }
                Parsed::NoPacket => {
                    assert_ne!(buffer[0], 0x80);
                    outcomes.push(Outcome::NoPacket);
                    return outcomes;
                }
            }
        }
    }
    if start < stream.len() {
        outcomes.push(Outcome::Incomplete);
    }
    outcomes
}

/// Checks that the result depends on all of the first `consumed` bytes and on nothing else.
fn depends_on_itself(buffer: &[u8], consumed: usize, limits: &Limits) {
    let itself = &buffer[..consumed];
    assert_eq!(parse(itself, limits), parse(buffer, limits), "it depends on what follows");
    let shorter = parse(&itself[..consumed - 1], limits);
    assert!(matches!(shorter, Parsed::Incomplete { .. }), "its last byte is not needed");
}

fn is_legal(request: &Request<'_>, limits: &Limits) {
    assert!(request.command.key().is_none_or(|key| (1..=MAX_KEY).contains(&key.len())));
    match request.command {
        Command::Store(Store { data, .. }) => assert!(data.len() <= limits.max_value),
        Command::Sasl(_) => assert_ne!(limits.access, Access::Open),
        _ => {}
    }
    if limits.access == Access::Unauthenticated {
        assert!(matches!(request.command, Command::Sasl(_) | Command::Version), "{request:?}");
    }
}

/// The request as a client could have sent it.
fn written_again(request: &Request<'_>) -> Vec<u8> {
    let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes();
    let (mut extras, mut key, mut value, mut named) = (Vec::new(), &b""[..], &b""[..], 0);
    match request.command {
        Command::Get { key: of, exptime } => {
            key = of;
            extras.extend(exptime.iter().flat_map(|exptime| number(*exptime)));
        }
        Command::Touch { key: of, exptime } => {
            key = of;
            extras.extend(number(exptime));
        }
        Command::Store(Store { key: of, flags, exptime, data, cas, verb }) => {
            (key, value, named) = (of, data, cas);
            use kennel::protocol::request::Verb;
            if !matches!(verb, Verb::Append | Verb::Prepend) {
                extras.extend(flags.to_be_bytes().into_iter().chain(number(exptime)));
            }
        }
        Command::Delete { key: of, cas } => (key, named) = (of, cas),
        Command::Count { key: of, delta, create, cas, .. } => {
            (key, named) = (of, cas);
            let (exptime, initial) = create.map_or((-1, 0), |(exptime, initial)| (exptime, initial));
            extras
                .extend(delta.to_be_bytes().into_iter().chain(initial.to_be_bytes()).chain(number(exptime)));
        }
        Command::Flush { delay } => extras.extend(number(delay)),
        Command::Stat { what } => key = what,
        Command::Sasl(SaslMessage::Auth { mechanism, data }) => (key, value) = (mechanism, data),
        Command::Sasl(SaslMessage::Step { data }) => (key, value) = (b"PLAIN", data),
        Command::Noop | Command::Version | Command::Quit | Command::Sasl(SaslMessage::List) => {}
    }
    let body = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![0x80, request.head.opcode.0];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(body.to_be_bytes());
    packet.extend(request.head.opaque);
    packet.extend(named.to_be_bytes());
    packet.extend([&extras[..], key, value].concat());
    let limits = Limits { max_value: value.len(), access: Access::Authenticated };
    let parsed = parse(&packet, &limits);
    assert_eq!(parsed, Parsed::Request { request: *request, consumed: packet.len() }, "another request");
    packet
}
