//! The replies to gets of a binary client that are carried out together: one for each key, and one for the `noop` behind them.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::write::ShownVersion;
use super::written::Suspect;
use super::{Get, KeyGet, StructureRead};
use crate::error::Failure;
use crate::guard::{RawView, shown_cas};
use crate::metrics::{NO_RULE, Outcome};
use crate::protocol::binary::Head;
use crate::protocol::binary::reply::{put_done, put_hit, put_miss, put_translated};
use crate::protocol::reply::{Value, values};
use crate::proxy::observe::SeenKey;
use crate::proxy::replies::binary::{put_failure, put_value};
use crate::proxy::replies::large::LargeReply;
use crate::proxy::replies::outcome::ReadOutcome;
use crate::proxy::scope::CallScope;
use crate::proxy::structures::call::{counted_read, read_outcome};

/// What the replies repeat of the requests.
pub(in crate::proxy::call) struct BinaryGets {
    /// One for each key.
    heads: SmallVec<[Head; 1]>,
    /// The `noop` that ends the sequence.
    noop: Option<Head>,
}

impl BinaryGets {
    /// `heads`: one for each key.
    pub(in crate::proxy::call) fn new(heads: SmallVec<[Head; 1]>, noop: Option<Head>) -> BinaryGets {
        BinaryGets { heads, noop }
    }

    /// Adds the `noop` behind them. Returns false if they have another end.
    pub(in crate::proxy::call) fn end(&mut self, noop: Head) -> bool {
        let is_open = self.noop.is_none() && self.heads.last().is_some_and(|head| head.opcode.is_quiet());
        if is_open {
            self.noop = Some(noop);
        }
        is_open
    }
}

impl Get {
    /// Appends the replies. Returns the value of a single key if it is too large to copy, and the values that further commands must
    /// complete.
    pub(super) fn write_binary(
        &self,
        binary: &BinaryGets,
        scope: &CallScope<'_>,
        out: &mut BytesMut,
    ) -> (Option<LargeReply>, Vec<Suspect>) {
        let (mut large, mut suspects) = (None, Vec::new());
        let replies = self.take_replies(scope);
        // Each server replies in the order of the request, and leaves out missing keys.
        let texts = replies.iter().map(|server| server.received.iter().flat_map(|(bytes, _)| values(bytes)));
        let mut texts: SmallVec<[_; 4]> = texts.map(Iterator::peekable).collect();
        let missed = |head: Head, key: &[u8], failure: Option<Failure>, out: &mut BytesMut| match failure {
            Some(failure) => put_failure(head, failure, out),
            None => put_miss(head, key, out),
        };
        for (key, &head) in self.keys.iter().zip(&binary.heads) {
            match key {
                KeyGet::Raw { rule, server, at } => {
                    let (key, server) = (self.raw_key(at), *server as usize);
                    let value: Option<Value<'_>> = texts[server].next_if(|value| value.key == key);
                    let is_hit = match &value {
                        Some(value) if RawView::is_suspect(value.data.first().copied()) => {
                            self.put_suspect(value, server, Some(head), &mut suspects, scope, out)
                        }
                        Some(value) => {
                            let cas = value.cas.unwrap_or(0);
                            put_hit(head, key, value.flags, cas, value.data.len(), out);
                            out.extend_from_slice(value.data);
                            true
                        }
                        None => {
                            missed(head, key, replies[server].failure, out);
                            false
                        }
                    };
                    let outcome = if is_hit { Outcome::Hit } else { Outcome::Miss };
                    scope
                        .count(*rule as usize, outcome, || self.seen_raw(key, server as u32, value.as_ref()));
                }
                KeyGet::Tag(tag) => match self.take_tag(tag, scope) {
                    (Some(ShownVersion { text, cas }), _) => {
                        let _ = put_value(head, &tag.key, 0, cas, &Bytes::from(text), out);
                    }
                    (None, failure) => missed(head, &tag.key, failure, out),
                },
                KeyGet::Structure(at) => match &self.structures[*at] {
                    StructureRead::Refused(line) => {
                        scope.count(NO_RULE, Outcome::ClientError, SeenKey::none);
                        put_translated(head, line.as_bytes(), out);
                    }
                    StructureRead::Sent(run) => {
                        let plan = scope.proxy.structure(run.key());
                        let shown = scope.proxy.shows_failures(plan);
                        let read = run.outcome().map(|outcome| read_outcome(outcome, shown));
                        let read = read.unwrap_or(ReadOutcome::Miss(None));
                        let seen = || SeenKey::structure(run.key(), read.length(), scope.proxy);
                        scope.count(plan.rule, counted_read(&read), seen);
                        let key = &run.key().key;
                        match read {
                            ReadOutcome::Value(hit, marks) => {
                                put_hit(head, key, hit.flags, marks.cas, hit.payload.len(), out);
                                out.extend_from_slice(&hit.payload);
                            }
                            ReadOutcome::Failed(failure) => put_failure(head, failure, out),
                            _ => put_miss(head, key, out),
                        }
                    }
                    // All have been sent.
                    StructureRead::Unsent(key) => put_miss(head, &key.key, out),
                },
                KeyGet::Guarded(at) => {
                    let get = &self.guarded[*at];
                    let key = &get.key.key;
                    match get.outcome() {
                        Some(ReadOutcome::Value(hit, _)) => {
                            let cas = shown_cas(hit.cas.number, get.key.place.fence());
                            if self.keys.len() == 1 && binary.noop.is_none() {
                                large = put_value(head, key, hit.flags, cas, &hit.payload, out);
                            } else {
                                put_hit(head, key, hit.flags, cas, hit.payload.len(), out);
                                out.extend_from_slice(&hit.payload);
                            }
                        }
                        Some(ReadOutcome::Failed(failed)) => put_failure(head, *failed, out),
                        _ => put_miss(head, key, out),
                    }
                }
            }
        }
        for (server, left) in texts.iter_mut().enumerate() {
            if left.next().is_some() {
                self.distrust(server, &replies[server], scope);
            }
        }
        if let Some(noop) = binary.noop {
            put_done(noop, 0, out);
        }
        (large, suspects)
    }
}
