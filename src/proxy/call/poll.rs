//! A request in flight, and how it is run to its end.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::get::Get;
use crate::guard::TagName;
use crate::metrics::{Command, Outcome};
use crate::protocol::binary::Head;
use crate::protocol::binary::reply::{is_packet, put_translated};
use crate::proxy::client::Client;
use crate::proxy::guarded::invalidation::{Invalidation, changes};
use crate::proxy::guarded::meta_get::MetaGet;
use crate::proxy::guarded::tag_get::TagGet;
use crate::proxy::guarded::write::GuardedWrite;
use crate::proxy::observe::LargeRead;
use crate::proxy::pipeline::Proxy;
use crate::proxy::raw::flush_all::FlushAll;
use crate::proxy::raw::forward::Forward;
use crate::proxy::raw::stats::Statistics;
use crate::proxy::replies::large::{LargeReply, write_reply};
use crate::proxy::scope::{AccessSet, CallScope, QueuePosition};
use crate::proxy::structures::call::StructureCall;
use crate::trace::Timing;

/// A request in flight.
pub struct Call {
    pub(super) command: Command,
    pub(super) began: Instant,
    /// noreply: there is no reply, whatever happens.
    pub(super) quiet: bool,
    /// For a binary client: what its reply repeats of the request.
    pub(super) head: Option<Head>,
    pub(super) accesses: AccessSet,
    /// The tags that it bumps if it changes its key.
    pub(super) invalidates: Box<[TagName]>,
    /// Where its time goes.
    pub(super) timing: Timing,
    pub(super) kind: Kind,
}

/// What a call does.
pub(super) enum Kind {
    /// The reply is known.
    Reply(Bytes),
    Forward(Forward),
    /// What the client sends behind it must wait.
    InOrder(Box<Forward>),
    FlushAll(Box<FlushAll>),
    Statistics(Box<Statistics>),
    Get(Box<Get>),
    MetaGet(Box<MetaGet>),
    TagGet(Box<TagGet>),
    Guarded(Box<GuardedWrite>),
    Structure(Box<StructureCall>),
    Invalidation(Box<Invalidation>),
    /// Touches without replies, and the reply that follows them.
    Touches(Vec<Call>, Bytes),
}

impl Kind {
    /// Forwards a command that may change its key.
    pub(super) fn change(forward: Forward) -> Kind {
        if forward.looks_first() { Kind::InOrder(Box::new(forward)) } else { Kind::Forward(forward) }
    }
}

impl Call {
    /// A call that begins now. It has a reply, and neither reads nor writes a guarded key, nor bumps a tag.
    pub(super) fn new(command: Command, kind: Kind, client: &Client) -> Call {
        Call {
            command,
            began: client.turn_time(),
            quiet: false,
            head: None,
            accesses: AccessSet::default(),
            invalidates: Box::default(),
            timing: Timing::default(),
            kind,
        }
    }

    /// The guarded keys that it reads or writes.
    pub fn accesses(&self) -> &AccessSet {
        &self.accesses
    }

    /// The number of keys that it reads, which limits the number of values in its reply.
    pub fn reads(&self) -> usize {
        match &self.kind {
            Kind::Reply(_) => 0,
            Kind::Get(get) => get.reads(),
            Kind::Touches(touches, _) => touches.len(),
            Kind::Forward(_)
            | Kind::InOrder(_)
            | Kind::FlushAll(_)
            | Kind::Statistics(_)
            | Kind::MetaGet(_)
            | Kind::TagGet(_)
            | Kind::Guarded(_)
            | Kind::Structure(_)
            | Kind::Invalidation(_) => 1,
        }
    }

    /// Whether it must be polled while an earlier call is in flight, because its guarded keys take more than one round trip.
    pub fn is_active(&self) -> bool {
        match &self.kind {
            Kind::Get(get) => !get.only_waits(),
            Kind::MetaGet(_)
            | Kind::Guarded(_)
            | Kind::Structure(_)
            | Kind::Invalidation(_)
            | Kind::Touches(..) => true,
            Kind::Reply(_)
            | Kind::Forward(_)
            | Kind::InOrder(_)
            | Kind::TagGet(_)
            | Kind::FlushAll(_)
            | Kind::Statistics(_) => !self.invalidates.is_empty(),
        }
    }

    /// Whether it waits for a build of another client. On a shared connection, what follows is carried out meanwhile.
    pub fn waits_for_build(&self) -> bool {
        match &self.kind {
            Kind::Get(get) => get.waits_for_build(),
            Kind::MetaGet(get) => get.waits_for_build(),
            _ => false,
        }
    }

    /// Whether no further request of the client may begin before it has ended. A flush reaches the servers one after the other, and
    /// what is sent behind it must not be flushed. A command that looks at its item first is sent only afterwards.
    pub fn is_barrier(&self) -> bool {
        matches!(self.kind, Kind::FlushAll(_) | Kind::InOrder(_))
    }

    /// Whether it may change, or create, the item of this raw key.
    pub fn may_change(&self, key: &[u8]) -> bool {
        match &self.kind {
            Kind::Forward(forward) => forward.may_change(key),
            Kind::InOrder(forward) => forward.may_change(key),
            Kind::Get(get) => get.may_remove(key),
            Kind::FlushAll(_) => true,
            Kind::Touches(touches, _) => touches.iter().any(|touch| touch.may_change(key)),
            _ => false,
        }
    }

    /// Whether it only waits for a server reply that has not arrived.
    pub fn waits(&self, client: &Client) -> bool {
        match &self.kind {
            Kind::Forward(forward) => !forward.has_arrived(client),
            Kind::InOrder(forward) => !forward.has_arrived(client),
            Kind::TagGet(get) => get.waits(client),
            _ => false,
        }
    }

    /// Runs as far as it can. When it is done, the reply has been appended to `out`, except for a part that is too large to
    /// copy: that is returned, and must be written after `out`.
    pub fn poll(
        &mut self,
        proxy: &Rc<Proxy>,
        client: &Client,
        position: QueuePosition<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        client.pending.begin_turn(self.timing);
        let polled = self.run(proxy, client, position, cx, out);
        self.timing = client.pending.timing();
        polled
    }

    fn run(
        &mut self,
        proxy: &Rc<Proxy>,
        client: &Client,
        position: QueuePosition<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<LargeReply>> {
        let scope = CallScope::new(proxy, client, self.command, self.began, position);
        let length = out.len();
        let polled = match &mut self.kind {
            Kind::Reply(_) if self.quiet => Poll::Ready(()),
            Kind::Reply(bytes) => return Poll::Ready(write_reply(bytes, b"", out)),
            Kind::Forward(forward) => {
                let (outcome, large) = ready!(forward.poll(&scope, out));
                ready!(self.done(outcome, length, &scope, cx, out));
                return Poll::Ready(large);
            }
            Kind::InOrder(forward) => {
                let (outcome, large) = ready!(forward.poll(&scope, out));
                ready!(self.done(outcome, length, &scope, cx, out));
                return Poll::Ready(large);
            }
            Kind::FlushAll(flush) => flush.poll(&scope, cx, out),
            Kind::Statistics(statistics) => statistics.poll(&scope, out),
            Kind::Get(get) => {
                let large = ready!(get.poll(&scope, cx, out));
                proxy.count_errors(&out[length..]);
                return Poll::Ready(large);
            }
            // An `mg` is never quiet here.
            Kind::MetaGet(get) => {
                let large = ready!(get.poll(&scope, cx, out));
                proxy.count_errors(&out[length..]);
                return Poll::Ready(large);
            }
            Kind::TagGet(get) => {
                ready!(get.poll(&scope, out));
                proxy.count_errors(&out[length..]);
                Poll::Ready(())
            }
            Kind::Guarded(write) => match write.poll(&scope, cx, out) {
                Poll::Ready(outcome) => self.done(outcome, length, &scope, cx, out),
                Poll::Pending => Poll::Pending,
            },
            Kind::Structure(call) => match call.poll(&scope, cx, out) {
                Poll::Ready(outcome) => self.done(outcome, length, &scope, cx, out),
                Poll::Pending => Poll::Pending,
            },
            Kind::Invalidation(invalidation) => {
                ready!(invalidation.poll(&scope, cx, out));
                proxy.count_errors(&out[length..]);
                Poll::Ready(())
            }
            Kind::Touches(touches, reply) => {
                touches.retain_mut(|touch| touch.poll(proxy, client, position, cx, out).is_pending());
                match touches.is_empty() {
                    true => {
                        out.extend_from_slice(reply);
                        Poll::Ready(())
                    }
                    false => Poll::Pending,
                }
            }
        };
        if self.quiet && polled.is_ready() {
            out.truncate(length);
        }
        self.translate(length, out);
        polled.map(|()| None)
    }

    /// For a binary client, turns the lines that have been appended to `out` at `length` into packets.
    fn translate(&self, length: usize, out: &mut BytesMut) {
        if let Some(head) = self.head
            && out.len() > length
            && !is_packet(&out[length..])
        {
            let text = out.split_off(length);
            put_translated(head, &text, out);
        }
    }

    /// The command has this outcome, and its reply has been appended to `out` at `length` unless it is large. The call is done,
    /// unless tags must be bumped.
    fn done(
        &mut self,
        outcome: Outcome,
        length: usize,
        scope: &CallScope<'_>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<()> {
        // Requests that the parser has refused have been counted.
        if self.command != Command::Other {
            scope.proxy.count_errors(&out[length..]);
        }
        self.translate(length, out);
        let invalidates = std::mem::take(&mut self.invalidates);
        let reply =
            if self.quiet || !invalidates.is_empty() { out.split_off(length) } else { BytesMut::new() };
        if invalidates.is_empty() || !changes(self.command, outcome) {
            if !self.quiet {
                out.unsplit(reply);
            }
            return Poll::Ready(());
        }
        let CallScope { proxy, client, position, .. } = *scope;
        let invalidates = SmallVec::from_vec(invalidates.into_vec());
        self.kind = Kind::Invalidation(Box::new(Invalidation::begin(invalidates, reply, proxy, client)));
        self.run(proxy, client, position, cx, out).map(|_| ())
    }

    /// What is known of the request when its large value is about to be written. `None` if it is for several keys.
    pub fn large_read(&self, proxy: &Proxy) -> Option<LargeRead<'_>> {
        let (key, rule) = match &self.kind {
            Kind::Forward(forward) => forward.key_and_rule(),
            Kind::InOrder(forward) => forward.key_and_rule(),
            Kind::Get(get) => get.only_guarded().map(|key| (&key.key[..], proxy.rule_of(key.guard)))?,
            Kind::MetaGet(get) => (&get.key().key[..], proxy.rule_of(get.key().guard)),
            _ => return None,
        };
        Some(LargeRead { command: self.command, key, rule, began: self.began, timing: self.timing })
    }

    /// Keeps the reply of a call that is done before earlier calls are.
    pub fn keep(&mut self, reply: Bytes) {
        self.kind = Kind::Reply(reply);
        self.accesses = AccessSet::default();
        self.quiet = false;
    }
}
