//! Parses the input and begins a call for each request.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Buf;

use super::state::{ClientProtocol, PendingCall, Session, State};
use crate::metrics::Limit;
use crate::protocol;
use crate::protocol::binary::{self, Detected};
use crate::protocol::long_get::{LongGet, Part};
use crate::protocol::parse::parse;
use crate::protocol::request::{Parsed, Refused, Request};
use crate::proxy::{AccessSet, Call};

/// The most keys of one part of a get. A get for more keys is processed in parts.
const MAX_PART: usize = 128;
/// A request of at least this many bytes does not begin while a server is slow to accept what is sent to it.
const LARGE_REQUEST: usize = 16 * 1024;

/// The result of one step of the parser.
enum Progress {
    /// A call has begun.
    Begun,
    /// Something else was parsed: the parser must run again.
    Continue,
    /// The request at the front must wait for an earlier one.
    Blocked,
    /// At least this many bytes are missing.
    Incomplete { at_least: usize },
}

impl<S> Session<'_, S> {
    /// Begins a call for each complete request, as far as the limits allow. Returns whether any has begun.
    pub(super) fn parse(&mut self) -> bool {
        let mut begun = false;
        while self.state == State::Open && self.has_room() {
            let skipped = self.skip_data.min(self.input.len() as u64);
            self.input.advance(skipped as usize);
            self.skip_data -= skipped;
            if self.input.is_empty() {
                self.missing = 1;
                if self.eof {
                    self.state = State::Finishing;
                }
                break;
            }
            let progress = match (self.protocol, &self.long_get) {
                (None, _) => self.detect_protocol(),
                (_, Some(_)) => self.begin_part(),
                _ => self.begin_request(),
            };
            match progress {
                Progress::Begun => begun = true,
                Progress::Continue => {}
                Progress::Blocked => {
                    self.missing = 0;
                    break;
                }
                Progress::Incomplete { at_least } => {
                    self.missing = at_least.max(1);
                    if self.eof {
                        self.state = State::Finishing;
                    }
                    break;
                }
            }
        }
        begun
    }

    /// Detects the protocol by the first bytes of the connection, and refuses the binary one.
    fn detect_protocol(&mut self) -> Progress {
        match binary::detect(&self.input) {
            Detected::Text => {
                self.protocol = Some(ClientProtocol::Text);
                Progress::Continue
            }
            Detected::Incomplete(at_least) => Progress::Incomplete { at_least },
            Detected::Binary(reply) => {
                self.protocol = Some(ClientProtocol::Binary);
                self.proxy.metrics().client_binary();
                self.output.tail.extend_from_slice(&reply);
                self.input.clear();
                self.state = State::Finishing;
                Progress::Continue
            }
        }
    }

    /// Begins the request at the front of the input.
    fn begin_request(&mut self) -> Progress {
        if let Some(begun) = LongGet::begin_unterminated(&self.input) {
            return match begun {
                Ok((long_get, head)) => self.begin_long_get(long_get, head),
                Err(reply) => self.refuse_and_close(reply),
            };
        }
        let (calls, active) = (&self.calls, self.active);
        let conflicts = |set: &AccessSet| conflicts(calls, active, set);
        let (call, closes, skip_data, consumed) = match parse(&self.input, &self.limits) {
            Parsed::Incomplete { at_least } => return Progress::Incomplete { at_least },
            Parsed::Request { request, consumed } => {
                let most = self.window.min(MAX_PART);
                // Each key takes at least two bytes, with the space before it.
                if consumed > 2 * most
                    && let Some((long_get, head)) = LongGet::begin_whole(&self.input, &request, most)
                {
                    return self.begin_long_get(long_get, head);
                }
                if consumed >= LARGE_REQUEST && self.proxy.is_congested(&self.client.pending) {
                    return Progress::Blocked;
                }
                let call = Call::begin(&request, &self.proxy, &self.client, conflicts);
                (call, matches!(request, Request::Quit), 0, consumed)
            }
            Parsed::Refused(refused) => {
                // The servers may have reported a larger limit since.
                let max_value = self.proxy.max_value();
                if refused.skip_data > 0 && max_value > self.limits.max_value {
                    self.limits.max_value = max_value;
                    return Progress::Continue;
                }
                let call = Call::refuse(&refused, &self.proxy, &self.client, conflicts);
                if call.is_some() {
                    self.count_refusal(&refused);
                }
                (call, refused.close, refused.skip_data, refused.consumed)
            }
        };
        let Some(call) = call else { return Progress::Blocked };
        if closes {
            self.state = State::Finishing;
        }
        self.skip_data = skip_data;
        self.enqueue(call, consumed)
    }

    /// Appends a call whose request is the first `consumed` bytes of the input.
    fn enqueue(&mut self, call: Call, consumed: usize) -> Progress {
        let pending = PendingCall { reads: call.reads(), bytes: consumed, call };
        self.active += usize::from(pending.call.is_active());
        self.reads += pending.reads;
        self.request_bytes += pending.bytes;
        if self.calls.capacity() == 0 {
            self.calls = self.queue_pool.take_buffer();
        }
        self.calls.push_back(pending);
        self.input.advance(consumed);
        self.missing = 0;
        Progress::Begun
    }

    fn count_refusal(&self, refused: &Refused<'_>) {
        let metrics = self.proxy.metrics();
        if refused.skip_data > self.limits.max_value as u64 {
            metrics.limit_reached(Limit::Value);
        }
        if refused.close && refused.consumed > protocol::MAX_LINE {
            metrics.limit_reached(Limit::Line);
        }
    }

    /// Begins a get whose keys are read in parts. `head` is the length of what precedes the keys.
    fn begin_long_get(&mut self, long_get: LongGet, head: usize) -> Progress {
        self.input.advance(head);
        self.long_get = Some((long_get, Rc::default()));
        Progress::Continue
    }

    /// Begins to read the next keys of a long get.
    fn begin_part(&mut self) -> Progress {
        let Some((long_get, line)) = &self.long_get else { return Progress::Continue };
        match long_get.part(&self.input, self.window.min(MAX_PART)) {
            Part::Incomplete => Progress::Incomplete { at_least: 1 },
            Part::Spaces(spaces) => {
                self.input.advance(spaces);
                Progress::Continue
            }
            Part::Refused(reply) => self.refuse_and_close(reply),
            Part::Keys { request, consumed, last } => {
                let (calls, active) = (&self.calls, self.active);
                let conflicts = |set: &AccessSet| conflicts(calls, active, set);
                let call = Call::part(&request, line, last, &self.proxy, &self.client, conflicts);
                let Some(call) = call else { return Progress::Blocked };
                if last {
                    self.long_get = None;
                }
                self.enqueue(call, consumed)
            }
        }
    }

    /// Discards the input, sends `reply` and closes the connection, because of an error in a long get.
    fn refuse_and_close(&mut self, reply: &'static [u8]) -> Progress {
        let consumed = self.input.len();
        let refused = Refused { close: true, ..Refused::new(consumed, reply) };
        self.count_refusal(&refused);
        self.state = State::Finishing;
        match Call::refuse(&refused, &self.proxy, &self.client, |_| false) {
            Some(call) => self.enqueue(call, consumed),
            None => Progress::Blocked,
        }
    }
}

/// Whether a request that accesses `set` conflicts with one in flight. `active` is the number of active calls.
fn conflicts(calls: &VecDeque<PendingCall>, active: usize, set: &AccessSet) -> bool {
    active > 0 && calls.iter().any(|pending| pending.call.accesses().conflicts(set))
}
