//! Runs a state machine of the guard for one key of one request: sends its commands to the servers, passes the replies back, and
//! waits for another client when the machine says so.

use smallvec::SmallVec;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::round_trip::CommandReply;
use super::tag_take_over::TagTakeOver;
use crate::error::Failure;
use crate::guard::leases::{Admission, Owner};
use crate::guard::{
    Commands, Event, ItemRef, Machine, Now, Operation, Policy, Replies, ServerCommand, ServerReply, Step,
};
use crate::metrics::{Limit, WaitEnd};
use crate::proxy::client::Client;
use crate::proxy::client::connection_use::ListenerClients;
use crate::proxy::client::process::{Membership, ProcessWait};
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::upstream::pending_replies::PendingReplies;

/// A running state machine.
#[derive(Debug)]
pub(super) struct Driver<M> {
    machine: M,
    commands: Commands,
    replies: SmallVec<[CommandReply; 4]>,
    /// When `commands` were sent.
    sent_at: Now,
    wait: Option<Box<Wait>>,
    /// The last replies, while tags that are missing in them are taken over.
    take_over: Option<Box<TagTakeOver>>,
    /// The key with the tags that the machine has added.
    added_tags: Option<Box<GuardedKey>>,
    /// The client that may wait.
    reader: Option<Reader>,
}

#[derive(Debug)]
struct Reader {
    owner: Owner,
    listener: Arc<ListenerClients>,
    membership: Rc<Membership>,
    /// When its first wait began, on the monotonic clock in ms.
    waits_since: Option<u64>,
}

#[derive(Debug)]
struct Wait {
    waiter: u64,
    woken: oneshot::Receiver<WaitEnd>,
    /// Ends it if its client process needs a connection.
    process: ProcessWait,
    timer: Pin<Box<Sleep>>,
    limits: crate::guard::Wait,
    /// Why it ends with the last of these limits.
    limit: WaitEnd,
    /// When it began, on the monotonic clock in ms.
    began: u64,
}

/// No connection.
const ANOTHER: Owner = Owner { connection: u64::MAX, peers: u64::MAX };

/// Whether the server had no memory for the stub of a get. If it has none for a value, the connection notes that.
fn is_full(operation: &Operation, reply: &ServerReply) -> bool {
    matches!((operation, reply), (Operation::Get(flags), ServerReply::Absent) if flags.vivify.is_some())
}

impl Reader {
    fn has_hung_up(&self) -> bool {
        self.membership.has_hung_up()
    }

    /// Limits all waits of the request together by what is known of the clients of its listener. Returns how a wait is to be counted
    /// that ends by its limit.
    fn limit(&mut self, limits: &mut crate::guard::Wait, now: Now, policy: &Policy) -> WaitEnd {
        let since = *self.waits_since.get_or_insert(now.mono);
        if self.listener.is_shared() {
            // The replies to all requests behind it wait too.
            limits.until = limits
                .until
                .min(since.saturating_add(u64::try_from(policy.cold_wait.as_millis()).unwrap_or(u64::MAX)));
        }
        match self.listener.patience_ms().map(|patience| since.saturating_add(patience)) {
            Some(until) if until < limits.until => {
                limits.until = until;
                WaitEnd::Shortened
            }
            _ => WaitEnd::TimedOut,
        }
    }
}

impl<M: Machine> Driver<M> {
    /// Sends the first commands of the machine.
    pub(super) fn start(
        machine: M,
        commands: Commands,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Driver<M> {
        let mut driver = Driver { commands, ..Driver::without_commands(machine, proxy.now()) };
        if M::CHANGES {
            proxy.note_change(key);
        }
        driver.send(key, proxy, pending);
        driver
    }

    /// For a machine whose first commands have been sent without it: [`Driver::resume_with`] passes it the replies.
    pub(super) fn without_commands(machine: M, sent_at: Now) -> Driver<M> {
        let (commands, replies) = (Commands::new(), SmallVec::new());
        Driver {
            machine,
            commands,
            replies,
            sent_at,
            wait: None,
            take_over: None,
            added_tags: None,
            reader: None,
        }
    }

    /// For a read of this client, which does not wait for its own rebuild.
    pub(super) fn for_reader(self, client: &Client) -> Driver<M> {
        let membership = Rc::clone(client.membership());
        let (owner, listener, waits_since) = (client.owner, Arc::clone(&client.listener), None);
        let reader = Reader { owner, listener, membership, waits_since };
        Driver { reader: Some(reader), ..self }
    }

    /// A machine reads nothing but tags once more if what it has read of them is too old.
    fn discard_cached_tags(&self, key: &GuardedKey, proxy: &Proxy) {
        let tag = |command: &ServerCommand| match (&command.operation, command.item) {
            (Operation::Get(_), ItemRef::Tag(tag)) => Some(usize::from(tag)),
            _ => None,
        };
        let is_tag = |item| matches!(item, ItemRef::Tag(_) | ItemRef::TagCopy(_));
        if self.commands.iter().all(|command| is_tag(command.item)) {
            self.commands.iter().filter_map(tag).for_each(|tag| proxy.tag_cache.written(&key.tags[tag]));
        }
    }

    fn send(&mut self, key: &GuardedKey, proxy: &Proxy, pending: &Rc<PendingReplies>) {
        self.replies = proxy.send(
            &self.commands,
            key,
            self.sent_at,
            pending,
            CommandReply::Pending,
            CommandReply::Known,
        );
    }

    /// Runs as far as the replies that have arrived allow. `may_wait`: whether it may wait for another client.
    pub(super) fn poll(
        &mut self,
        key: &GuardedKey,
        may_wait: bool,
        proxy: &Rc<Proxy>,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        self.run(None, key, may_wait, proxy, pending, cx)
    }

    /// Passes these replies to a machine [without commands](Driver::without_commands), and runs it.
    pub(super) fn resume_with(
        &mut self,
        replies: Replies,
        key: &GuardedKey,
        may_wait: bool,
        proxy: &Rc<Proxy>,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        if !proxy.takes_tags_over(key) {
            return self.run(Some(Event::Replies(replies)), key, may_wait, proxy, pending, cx);
        }
        let copies = |tag| [Some(ItemRef::Tag(tag)), proxy.plan.tag_copies.then_some(ItemRef::TagCopy(tag))];
        let items = [Some(ItemRef::Value)].into_iter().chain((0..).flat_map(copies).filter(Option::is_some));
        let next = self.without_missing_tags(replies, items, key, proxy, pending);
        self.run(next, key, may_wait, proxy, pending, cx)
    }

    fn run(
        &mut self,
        mut next: Option<Event>,
        key: &GuardedKey,
        may_wait: bool,
        proxy: &Rc<Proxy>,
        pending: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        let mut added_tags = self.added_tags.take();
        let polled = loop {
            let key = added_tags.as_deref().unwrap_or(key);
            let event = match (next.take(), &self.wait) {
                (Some(event), _) => event,
                (None, Some(_)) => match self.poll_wait(key, may_wait, proxy, pending, cx) {
                    Poll::Ready(event) => event,
                    Poll::Pending => break Poll::Pending,
                },
                (None, None) if self.take_over.is_some() => match self.poll_take_over(key, proxy, pending) {
                    Some(replies) => Event::Replies(replies),
                    None => break Poll::Pending,
                },
                (None, None) => match self.poll_replies(key, proxy, pending) {
                    Poll::Ready(replies) if !proxy.takes_tags_over(key) => Event::Replies(replies),
                    Poll::Ready(replies) => {
                        let commands = std::mem::take(&mut self.commands);
                        let read = |command: &ServerCommand| {
                            matches!(command.operation, Operation::Get(_)).then_some(command.item)
                        };
                        let items = commands.iter().map(read);
                        next = self.without_missing_tags(replies, items, key, proxy, pending);
                        continue;
                    }
                    Poll::Pending => break Poll::Pending,
                },
            };
            let now = proxy.now();
            let policy = proxy.policy_of(key);
            let inputs = proxy.inputs(key, policy, now, may_wait);
            let has_read = matches!(event, Event::Replies(_));
            match self.machine.resume(event, &inputs) {
                Step::Done(mut end) => {
                    if let Some(failed) = M::failed(Failure::NoView)
                        && !proxy.is_in_place(key)
                    {
                        end = failed;
                    }
                    if M::CHANGES {
                        // Before the command is acknowledged. The tag cache comes first: a read that begins after the change has
                        // been noted must not find the old version there.
                        if M::bumped(&end) {
                            key.tags.iter().for_each(|tag| proxy.tag_cache.written(tag));
                        }
                        proxy.note_change(key);
                    }
                    break Poll::Ready(end);
                }
                Step::Send(commands) => {
                    (self.commands, self.sent_at) = (commands, now);
                    if has_read {
                        self.discard_cached_tags(key, proxy);
                    }
                    self.send(key, proxy, pending);
                }
                Step::AddTags(tags) => {
                    added_tags = Some(Box::new(proxy.with_tags(key, tags)));
                    next = Some(Event::TagsAdded);
                }
                Step::Wait(limits) => next = self.wait(limits, key, policy, now, proxy),
            }
        };
        self.added_tags = added_tags;
        polled
    }

    /// These replies to the reads of `items` as an event for the machine. `None`: tags that are missing in them are taken over from
    /// the previous placement first.
    fn without_missing_tags(
        &mut self,
        mut replies: Replies,
        items: impl Iterator<Item = Option<ItemRef>>,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<Event> {
        let items: SmallVec<[_; 4]> = items.take(replies.len()).collect();
        self.take_over = TagTakeOver::begin(&items, &mut replies, key, proxy, pending).map(Box::new);
        self.take_over.is_none().then_some(Event::Replies(replies))
    }

    fn poll_take_over(
        &mut self,
        key: &GuardedKey,
        proxy: &Proxy,
        pending: &Rc<PendingReplies>,
    ) -> Option<Replies> {
        let replies = self.take_over.as_mut()?.poll(key, proxy, pending)?;
        self.take_over = None;
        Some(replies)
    }

    pub(super) fn machine(&self) -> &M {
        &self.machine
    }

    /// Whether it waits for another client.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    fn poll_replies(&mut self, key: &GuardedKey, proxy: &Proxy, pending: &PendingReplies) -> Poll<Replies> {
        let missing =
            |reply: &CommandReply| matches!(reply, CommandReply::Pending(id) if !pending.has_arrived(*id));
        if self.replies.iter().any(missing) {
            return Poll::Pending;
        }
        let replies = self.commands.iter().zip(self.replies.drain(..)).map(|(command, reply)| {
            let reply = reply.take(command, pending);
            // Tag versions that machines read are not cached, because they are rare.
            if let ItemRef::Tag(index) | ItemRef::TagCopy(index) = command.item {
                let name = &key.tags[usize::from(index)];
                if is_full(&command.operation, &reply) {
                    proxy.note_full_tag(name, matches!(command.item, ItemRef::TagCopy(_)));
                }
                match &reply {
                    ServerReply::Stored(_) => proxy.tag_cache.written(name),
                    found => proxy.note_tag(name, found),
                }
            } else if is_full(&command.operation, &reply) {
                proxy.connection_of(key).server().note_full();
            }
            reply
        });
        Poll::Ready(replies.collect())
    }

    /// Begins to wait. Returns the event for the machine if waiting is not possible.
    fn wait(
        &mut self,
        mut limits: crate::guard::Wait,
        key: &GuardedKey,
        policy: &Policy,
        now: Now,
        proxy: &Rc<Proxy>,
    ) -> Option<Event> {
        // Only reads wait.
        let Some(reader) = &mut self.reader else { return Some(Event::WaitEnded) };
        let (waker, woken) = oneshot::channel();
        let cold = limits.let_through_at.is_some();
        // The builder of a shared connection is another task.
        let owner = if cold && reader.listener.is_shared() { ANOTHER } else { reader.owner };
        let admission = proxy.leases.shard(&key.key).wait(&key.key, owner, now, policy, cold, waker);
        let (waiter, poll) = match admission {
            Admission::Waits { waiter, poll } => (waiter, poll),
            Admission::Refused => return Some(Event::WaitEnded),
            Admission::Full => {
                proxy.metrics.limit_reached(Limit::Waiters);
                return Some(Event::WaitEnded);
            }
        };
        if let Some(rate) = poll {
            proxy.clone().poll_key(key.clone(), rate);
        }
        proxy.metrics.wait_began();
        let limit = reader.limit(&mut limits, now, policy);
        let process = reader.membership.begin_wait(|| proxy.builds(reader.owner));
        let timer = Box::pin(sleep(limits.pause(now.mono)));
        self.wait = Some(Box::new(Wait { waiter, woken, process, timer, limits, limit, began: now.mono }));
        None
    }

    fn poll_wait(
        &mut self,
        key: &GuardedKey,
        may_wait: bool,
        proxy: &Proxy,
        pending: &PendingReplies,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        let Some(wait) = &mut self.wait else { return Poll::Ready(Event::WaitEnded) };
        let end = match Pin::new(&mut wait.woken).poll(cx) {
            // The table wakes each waiter that it removes. If it did not, the machine would read again.
            Poll::Ready(end) => end.unwrap_or(WaitEnd::Freed),
            Poll::Pending if !may_wait => match self.reader.as_ref().is_some_and(Reader::has_hung_up) {
                true => WaitEnd::HungUp,
                false => WaitEnd::Pipelined,
            },
            Poll::Pending if wait.process.poll(cx).is_ready() => WaitEnd::GaveWay,
            Poll::Pending => loop {
                if wait.timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                let now = proxy.now();
                if now.mono >= wait.limits.until || wait.limits.let_through_at.is_none() {
                    break wait.limit;
                }
                let policy = proxy.policy(key.guard);
                match proxy.leases.shard(&key.key).let_through(&key.key, now, policy) {
                    Ok(()) => break WaitEnd::LetThrough,
                    Err(again) => wait.limits.let_through_at = Some(again),
                }
                wait.timer.set(sleep(wait.limits.pause(now.mono)));
            },
        };
        let (waiter, began) = (wait.waiter, wait.began);
        self.wait = None;
        pending.note_build(Duration::from_millis(proxy.now().mono.saturating_sub(began)));
        proxy.metrics.wait_ended(proxy.rule_of(key.guard), end);
        if matches!(end, WaitEnd::Filled | WaitEnd::Freed) {
            return Poll::Ready(Event::Woken);
        }
        proxy.leases.shard(&key.key).stop_waiting(&key.key, waiter);
        Poll::Ready(if end == WaitEnd::LetThrough { Event::LetThrough } else { Event::WaitEnded })
    }
}
