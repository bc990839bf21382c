//! Polls the calls of a client and appends their replies in order.

use std::task::{Context, Poll};

use bytes::BytesMut;

use super::state::{MAX_OUTPUT, READ_SIZE, Session, State, window};
use crate::proxy::{LargeReply, QueuePosition};

impl<S> Session<'_, S> {
    /// Appends the replies of the calls at the front that are done, and polls the other active calls.
    pub(super) fn poll_calls(&mut self, cx: &mut Context<'_>) {
        self.client.new_turn();
        let Session {
            proxy,
            client,
            budget,
            calls,
            in_flight,
            active,
            reads,
            request_bytes,
            typical_value,
            output,
            large_read,
            input,
            eof,
            state,
            ..
        } = self;
        // A call may wait for another client only if no request of its own client is behind it, or its client has declared that it
        // does not mind.
        let shared = client.listener.is_shared();
        let no_input = (shared || input.is_empty()) && !*eof && *state == State::Open;
        // The output of a client that has gone is discarded, so it needs no limit.
        let max_output = if *state == State::Gone { usize::MAX } else { MAX_OUTPUT };
        // Every call behind the front one counts, even if it is done and only waits to be written.
        while output.len() < max_output {
            let alone = shared || calls.len() == 1;
            let (front, behind) = calls.as_mut_slices();
            let Some((front, rest)) = front.split_first_mut() else { break };
            if front.call.waits(client) {
                break;
            }
            let changes_behind =
                |key: &[u8]| rest.iter().chain(&*behind).any(|pending| pending.call.may_change(key));
            let (is_active, position, before) = (
                front.call.is_active(),
                QueuePosition { first: true, may_wait: no_input && alone, changes_behind: &changes_behind },
                output.len(),
            );
            if output.tail.capacity() == 0 {
                output.tail = budget.take_buffer(READ_SIZE);
            }
            let Poll::Ready(large) = front.call.poll(proxy, client, position, cx, &mut output.tail) else {
                break;
            };
            if let Some(LargeReply { bytes, trailer }) = large {
                proxy.note_large_read(front.call.large_read(proxy), large_read);
                output.push_large(bytes, |text| client.pending.keep(text));
                output.tail.extend_from_slice(trailer);
            }
            let replied = output.len() - before;
            let value = if front.reads > 1 { replied / front.reads } else { replied };
            let recent = value.max((*typical_value * 7 + value) / 8);
            if recent != std::mem::replace(typical_value, recent) {
                self.window = window(recent);
            }
            *active -= usize::from(is_active);
            *reads -= front.reads;
            *request_bytes -= front.bytes;
            if let Some(in_flight) = in_flight {
                in_flight.remove(front.call.accesses());
            }
            calls.pop_front();
        }
        if calls.is_empty() {
            *in_flight = None;
        }
        if *active == 0 {
            return;
        }
        let last = calls.len().saturating_sub(1);
        for (at, pending) in
            calls.iter_mut().enumerate().skip(1).filter(|(_, pending)| pending.call.is_active())
        {
            let mut reply = BytesMut::new();
            // What is behind matters only to the first.
            let (may_wait, changes_behind) = (no_input && (shared || at == last), &|_: &[u8]| true);
            let position = QueuePosition { first: false, may_wait, changes_behind };
            if let Poll::Ready(large) = pending.call.poll(proxy, client, position, cx, &mut reply) {
                if let Some(LargeReply { bytes, trailer }) = large {
                    reply.extend_from_slice(&bytes);
                    reply.extend_from_slice(trailer);
                }
                if let Some(in_flight) = in_flight {
                    in_flight.remove(pending.call.accesses());
                }
                pending.call.keep(client.pending.keep(reply.freeze()));
                *active -= 1;
            }
        }
    }
}
