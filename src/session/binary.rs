//! Begins the requests of a client that speaks the binary protocol.

use bytes::{Buf, BytesMut};
use smallvec::SmallVec;

use super::state::{Session, State, look_again};
use super::{LARGE_REQUEST, MAX_PART, Progress, conflicts};
use crate::auth::Answer;
use crate::handshake::MAX_WRONG;
use crate::metrics::{AuthOutcome, Limit};
use crate::protocol::binary::parse::{Access, Command, Limits, Parsed, Refused, Request, parse};
use crate::protocol::binary::reply::put_text;
use crate::protocol::binary::{Head, Operation};
use crate::proxy::{AccessSet, Call, is_text_key};

/// Gets that a client has sent one behind the other.
#[derive(Default)]
struct Sequence<'a> {
    gets: SmallVec<[(Head, &'a [u8]); 8]>,
    /// The `noop` that ends them.
    noop: Option<Head>,
    /// The length of all their packets in bytes.
    consumed: usize,
}

impl<'a> Sequence<'a> {
    /// The quiet gets at the front of `input`, at most `most`, and the get or `noop` behind them. Only keys that text commands can
    /// name are taken.
    fn read(input: &'a [u8], limits: &Limits, most: usize) -> Sequence<'a> {
        let mut sequence = Sequence::default();
        while sequence.noop.is_none() && sequence.gets.last().is_none_or(|(head, _)| head.opcode.is_quiet()) {
            let rest = &input[sequence.consumed..];
            let Parsed::Request { request: Request { head, command }, consumed } = parse(rest, limits) else {
                break;
            };
            match command {
                Command::Get { key, exptime: None } if sequence.gets.len() < most && is_text_key(key) => {
                    sequence.gets.push((head, key));
                }
                Command::Noop if !sequence.gets.is_empty() => sequence.noop = Some(head),
                _ => break,
            }
            sequence.consumed += consumed;
        }
        sequence
    }
}

impl<S> Session<'_, S> {
    /// Begins the request at the front of the input, or several gets at once.
    pub(super) fn begin_binary(&mut self) -> Progress {
        if self.connected != Some(self.number) {
            let is_connecting = self.proxy.is_connecting();
            if is_connecting && !self.calls.is_empty() {
                return Progress::Blocked;
            }
            self.connected = Some(self.number).filter(|_| !is_connecting);
        }
        let access = self.sasl.as_ref().map_or(Access::Open, |sasl| sasl.access());
        let limits = Limits { max_value: self.limits.max_value, access };
        let (proxy, client) = (&self.proxy, &self.client);
        match parse(&self.input, &limits) {
            Parsed::Incomplete { at_least } => Progress::Incomplete { at_least },
            Parsed::NoPacket => {
                self.state = State::Finishing;
                Progress::Continue
            }
            Parsed::Request { request, consumed } => {
                if consumed >= LARGE_REQUEST && proxy.is_congested(&client.pending) {
                    return Progress::Blocked;
                }
                if proxy.holds_command(&request.command) {
                    self.held = look_again();
                    return Progress::Blocked;
                }
                let Request { head, command } = request;
                let is_quiet_get = head.opcode.is_quiet()
                    && matches!(command, Command::Get { key, exptime: None } if is_text_key(key));
                if is_quiet_get {
                    return self.begin_sequence(&limits);
                }
                match command {
                    // The gets before it may still wait for another client: nothing but this follows them.
                    Command::Noop if self.in_sequence => {
                        let last = self.calls.back_mut();
                        if last.is_some_and(|pending| pending.call.end_gets(head, &self.proxy, &self.client))
                        {
                            self.input.advance(consumed);
                            self.missing = 0;
                            self.in_sequence = false;
                            return Progress::Begun;
                        }
                    }
                    Command::Sasl(message) => {
                        if let Some(sasl) = &mut self.sasl {
                            let Answer { status, text, verdict } = sasl.answer(&message);
                            if let Some(verdict) = verdict {
                                proxy.metrics().authentication(verdict.outcome());
                            }
                            let mut reply = BytesMut::new();
                            put_text(head, status, text, &mut reply);
                            // Who has authenticated may guess no more of other users' passwords than who has not.
                            if sasl.wrong() >= MAX_WRONG {
                                proxy.metrics().authentication(AuthOutcome::CutOff);
                                self.state = State::Finishing;
                            }
                            let call = Call::known(reply.freeze(), client);
                            self.in_sequence = false;
                            return self.enqueue(call, consumed);
                        }
                    }
                    _ => {}
                }
                let (calls, active, shared) = (&self.calls, self.active, client.listener.is_shared());
                let in_flight = self.in_flight.as_deref();
                let conflicts = |set: &AccessSet| conflicts(calls, in_flight, active, shared, set);
                let Some(call) = Call::binary(&request, proxy, client, conflicts) else {
                    return Progress::Blocked;
                };
                self.in_sequence = false;
                if head.opcode.operation() == Operation::Quit {
                    self.state = State::Finishing;
                }
                self.enqueue(call, consumed)
            }
            Parsed::Refused(refused) => {
                // The servers may have reported a larger limit since.
                let max_value = proxy.max_value();
                if refused.skip_data > 0 && max_value > self.limits.max_value {
                    self.limits.max_value = max_value;
                    return Progress::Continue;
                }
                let (calls, active, shared) = (&self.calls, self.active, client.listener.is_shared());
                let in_flight = self.in_flight.as_deref();
                let conflicts = |set: &AccessSet| conflicts(calls, in_flight, active, shared, set);
                let Some(call) = Call::refuse_binary(&refused, proxy, client, conflicts) else {
                    return Progress::Blocked;
                };
                let Refused { consumed, skip_data, close, .. } = refused;
                if skip_data > self.limits.max_value as u64 {
                    proxy.metrics().limit_reached(Limit::Value);
                }
                if close {
                    self.state = State::Finishing;
                }
                self.skip_data = skip_data;
                self.in_sequence = false;
                self.enqueue(call, consumed)
            }
        }
    }

    /// Begins the gets at the front of the input as one call.
    fn begin_sequence(&mut self, limits: &Limits) -> Progress {
        let Sequence { gets, noop, consumed } =
            Sequence::read(&self.input, limits, self.window.min(MAX_PART));
        if self.proxy.holds_gets(gets.iter().map(|(_, key)| *key)) {
            self.held = look_again();
            return Progress::Blocked;
        }
        let is_ended = noop.is_some() || gets.last().is_some_and(|(head, _)| !head.opcode.is_quiet());
        let (calls, active, shared) = (&self.calls, self.active, self.client.listener.is_shared());
        let in_flight = self.in_flight.as_deref();
        let conflicts = |set: &AccessSet| conflicts(calls, in_flight, active, shared, set);
        let call = Call::binary_gets(&gets, noop, self.in_sequence, &self.proxy, &self.client, conflicts);
        drop(gets);
        let Some(call) = call else { return Progress::Blocked };
        self.in_sequence = !is_ended;
        self.enqueue(call, consumed)
    }
}
