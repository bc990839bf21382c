//! The reply of a text client's get, and what the replies of both protocols consist of.

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::written::Suspect;
use super::{Get, KeyGet, StructureRead, TagGet, tag_flags};
use crate::error::Failure;
use crate::guard::{Operation, RawView, ServerReply, version_millis};
use crate::metrics::{NO_RULE, Outcome};
use crate::protocol::reply::{Value, is_error_reply as is_error, values};
use crate::proxy::guarded::tag_servers::tag_version;
use crate::proxy::guarded::wire;
use crate::proxy::observe::SeenKey;
use crate::proxy::replies::classic::put_value_line;
use crate::proxy::replies::outcome::ReadOutcome;
use crate::proxy::scope::CallScope;
use crate::proxy::structures::call::{counted_read, read_outcome};
use crate::upstream::OnError;
use crate::upstream::pending_replies::Reply;

/// What one server has replied to the raw keys.
#[derive(Default)]
pub(super) struct ServerValues {
    /// The replies, with the epochs of the connections that they came over.
    pub(super) received: SmallVec<[(Bytes, u32); 1]>,
    /// Why keys without a value are errors, not misses.
    pub(super) failure: Option<Failure>,
}

/// The version of a tag as clients see it.
pub(super) struct ShownVersion {
    pub(super) text: String,
    pub(super) cas: u64,
}

impl Get {
    /// Whether a get that finds a server down is an error.
    fn fails(&self, pool: usize, scope: &CallScope<'_>) -> bool {
        scope.proxy.pools[pool].on_error() == OnError::Error
    }

    /// Takes the replies to the raw keys, for each server.
    pub(super) fn take_replies(&self, scope: &CallScope<'_>) -> SmallVec<[ServerValues; 4]> {
        let pending = &scope.client.pending;
        let take = |server: &super::ServerRead| {
            let mut values = ServerValues::default();
            for id in &server.ids {
                match pending.take(*id) {
                    Some(Reply::Answered { bytes, .. })
                        if is_error(&bytes) && self.fails(server.pool, scope) =>
                    {
                        values.failure = Some(Failure::Refused)
                    }
                    Some(Reply::Answered { bytes, epoch } | Reply::Part { bytes, epoch }) => {
                        values.received.push((bytes, epoch))
                    }
                    Some(Reply::Failed(failed)) if self.fails(server.pool, scope) => {
                        values.failure = Some(failed)
                    }
                    _ => {}
                }
            }
            values
        };
        self.servers.iter().map(take).collect()
    }

    /// The version of a tag, or why it is an error that there is none.
    pub(super) fn take_tag(
        &self,
        tag: &TagGet,
        scope: &CallScope<'_>,
    ) -> (Option<ShownVersion>, Option<Failure>) {
        let command = Operation::Get(tag_flags());
        // The larger version counts. A server that does not reply matters only if no other has a version.
        let ids = tag.ids.as_deref().unwrap_or_default();
        let no_view = tag.ids.is_none().then_some(Failure::NoView);
        let (mut latest, mut failed) = (None, no_view);
        for (reply, place) in ids.iter().filter_map(|id| scope.client.pending.take(*id)).zip(&tag.places) {
            match wire::decode_reply(&command, reply) {
                ServerReply::Item(found) => {
                    let version = tag_version(&found, place, scope.proxy.now());
                    latest = latest.max(version.map(|version| (version, found.cas.number)));
                }
                ServerReply::Failed(failure) => failed = Some(failure),
                _ => {}
            }
        }
        let shown =
            latest.map(|(version, cas)| ShownVersion { text: version_millis(version).to_string(), cas });
        let is_error = shown.is_none() && self.fails(scope.proxy.plan.tag_pool, scope);
        let outcome = if shown.is_some() { Outcome::Hit } else { Outcome::Miss };
        let name = tag.key.strip_prefix(&scope.proxy.plan.tag_prefix[..]).unwrap_or(&tag.key);
        let bytes = shown.as_ref().map_or(0, |shown| shown.text.len());
        scope.count(NO_RULE, outcome, || SeenKey::tag(name).with_bytes(bytes));
        (shown, failed.filter(|_| is_error))
    }

    /// A server has sent a value that was not requested.
    pub(super) fn distrust(&self, server: usize, values: &ServerValues, scope: &CallScope<'_>) {
        if let (server, Some((_, epoch))) = (&self.servers[server], values.received.last()) {
            scope.proxy.pools[server.pool].connections()[server.place.server].distrust(*epoch);
        }
    }

    /// Appends the reply. Returns the values of it that further commands must complete.
    pub(super) fn write(&self, scope: &CallScope<'_>, out: &mut BytesMut) -> Vec<Suspect> {
        let start = out.len();
        let mut suspects = Vec::new();
        let replies = self.take_replies(scope);
        let mut failure = replies.iter().find_map(|values| values.failure);
        // Each server replies in the order of the request, and leaves out missing keys.
        let texts = replies.iter().map(|server| server.received.iter().flat_map(|(bytes, _)| values(bytes)));
        let mut texts: SmallVec<[_; 4]> = texts.map(Iterator::peekable).collect();
        for key in &self.keys {
            match key {
                KeyGet::Raw { rule, server, at } => {
                    let key = self.raw_key(at);
                    let value: Option<Value<'_>> = texts[*server as usize].next_if(|value| value.key == key);
                    let is_hit = value.as_ref().is_some_and(|value| {
                        if RawView::is_suspect(value.data.first().copied()) {
                            return self.put_suspect(
                                value,
                                *server as usize,
                                None,
                                &mut suspects,
                                scope,
                                out,
                            );
                        }
                        out.extend_from_slice(value.raw);
                        true
                    });
                    let outcome = if is_hit { Outcome::Hit } else { Outcome::Miss };
                    scope.count(*rule as usize, outcome, || self.seen_raw(key, *server, value.as_ref()));
                }
                KeyGet::Tag(tag) => {
                    let (shown, failed) = self.take_tag(tag, scope);
                    failure = failure.or(failed);
                    if let Some(ShownVersion { text, cas }) = &shown {
                        put_value_line(out, &tag.key, 0, self.kind.cas.then_some(*cas), text.len());
                        out.extend_from_slice(text.as_bytes());
                        out.extend_from_slice(b"\r\n");
                    }
                }
                KeyGet::Structure(at) => {
                    let StructureRead::Sent(run) = &self.structures[*at] else { continue };
                    let plan = scope.proxy.structure(run.key());
                    let Some(outcome) = run.outcome() else { continue };
                    let read = read_outcome(outcome, scope.proxy.shows_failures(plan));
                    let seen = || SeenKey::structure(run.key(), read.length(), scope.proxy);
                    scope.count(plan.rule, counted_read(&read), seen);
                    match read {
                        ReadOutcome::Value(hit, marks) => {
                            let cas = self.kind.cas.then_some(marks.cas);
                            put_value_line(out, &run.key().key, hit.flags, cas, hit.payload.len());
                            out.extend_from_slice(&hit.payload);
                            out.extend_from_slice(b"\r\n");
                        }
                        ReadOutcome::Failed(failed) => failure = Some(failed),
                        _ => {}
                    }
                }
                KeyGet::Guarded(at) => {
                    let get = &self.guarded[*at];
                    match get.outcome() {
                        Some(ReadOutcome::Value(hit, _)) => {
                            self.put_value_line(out, get, hit);
                            out.extend_from_slice(&hit.payload);
                            out.extend_from_slice(b"\r\n");
                        }
                        Some(ReadOutcome::Failed(failed)) => failure = Some(*failed),
                        _ => {}
                    }
                }
            }
        }
        for (server, left) in texts.iter_mut().enumerate() {
            if left.next().is_some() {
                self.distrust(server, &replies[server], scope);
            }
        }
        let part = self.part.as_ref();
        match failure {
            // The error has replaced the rest of the reply.
            _ if part.is_some_and(|part| part.long_get.is_over()) => {
                out.truncate(start);
                suspects.clear();
            }
            None if part.is_some_and(|part| !part.last) => {}
            None => out.extend_from_slice(b"END\r\n"),
            Some(failure) => {
                out.truncate(start);
                suspects.clear();
                out.extend_from_slice(failure.line());
                if let Some(part) = part {
                    part.long_get.fail();
                }
            }
        }
        suspects
    }
}
