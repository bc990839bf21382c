//! Which machine carries out a client's command.

use super::counter;
use super::machine::Machine;
use super::request::Request;
use super::settings::Kind;

/// The length of the kind's own key in a key of a client: what follows it names a part. `prefix`: the length of the text that
/// every key of the rule begins with.
pub fn split(kind: &Kind, _prefix: usize, key: &[u8]) -> usize {
    match kind {
        Kind::Counter(_) => key.len(),
    }
}

/// The error for a command that this kind does not have, which names those that it has.
pub fn commands_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Counter(_) => counter::COMMANDS,
    }
}

/// Begins a client's command. `key`: what the client sent, of which the first `length` bytes are the kind's own key. `now`: wall
/// time in ms. The error is a line with its CRLF.
pub fn begin(
    kind: &Kind,
    key: &[u8],
    _length: usize,
    request: Request<'_>,
    now: u64,
) -> Result<Box<dyn Machine>, &'static str> {
    Ok(match kind {
        Kind::Counter(settings) => Box::new(counter::begin(settings, key, request, now)?),
    })
}
