//! One guarded key of one request on its way: carries what the guard asks to the servers and their answers back, and waits
//! when it says so.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};

use super::desk::wake_all;
use super::tag_reads::known;
use super::{Proxy, wire};
use crate::guard::leases::{Admission, Owner};
use crate::guard::{
    Commands, Event, Inputs, ItemRef, Machine, Now, Operation, Policy, Replies, ServerReply, Step, TagName,
    TagNames, envelope::lock_key,
};
use crate::metrics::{Limit, WaitEnd};
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// A guarded key with all that its rule says about it.
#[derive(Debug, Clone)]
pub(super) struct GuardedKey {
    /// How: an index into the plan's guards.
    pub(super) guard: usize,
    /// Where the key lies: the place of its server in the pool.
    pub(super) place: usize,
    /// The key.
    pub(super) key: SmallVec<[u8; 32]>,
    /// The names of its tags.
    pub(super) tags: SmallVec<[TagName; 2]>,
    /// How many of them are not of its rule, but came with a value.
    pub(super) learnt: usize,
}

impl GuardedKey {
    /// The tags that its rule does not name.
    pub(super) fn learnt(&self) -> TagNames {
        self.tags[self.tags.len() - self.learnt..].to_vec()
    }

    /// The same key, with tags that its rule does not name.
    pub(super) fn with_tags(&self, tags: TagNames) -> GuardedKey {
        let mut of = self.clone();
        of.learnt += tags.len();
        of.tags.extend(tags);
        of
    }
}

/// A machine of the guard, running.
#[derive(Debug)]
pub(super) struct Driver<M> {
    machine: M,
    asks: Commands,
    answers: SmallVec<[PendingReply; 4]>,
    /// When `asks` were sent.
    asked: Now,
    wait: Option<Box<Wait>>,
    /// The key with the tags that the machine has learnt.
    learnt: Option<Box<GuardedKey>>,
    /// For whom it may wait.
    reader: Option<Owner>,
}

#[derive(Debug)]
enum PendingReply {
    Reply(ReplyId),
    /// Known without asking.
    Known(ServerReply),
}

#[derive(Debug)]
struct Wait {
    waiter: u64,
    bell: oneshot::Receiver<WaitEnd>,
    until: Pin<Box<Sleep>>,
}

impl<M: Machine> Driver<M> {
    /// Sends what the machine asked first.
    pub(super) fn start(
        machine: M,
        asks: Commands,
        of: &GuardedKey,
        proxy: &Proxy,
        inbox: &Rc<PendingReplies>,
    ) -> Driver<M> {
        let mut operation = Driver { asks, ..Driver::idle(machine, proxy.now()) };
        if M::CHANGES {
            proxy.note_change(of);
        }
        operation.send(of, proxy, inbox);
        operation
    }

    /// For a machine whose first questions have been asked and answered without it: it is to be [told](Operation::tell).
    pub(super) fn idle(machine: M, asked: Now) -> Driver<M> {
        let (asks, answers) = (Commands::new(), SmallVec::new());
        Driver { machine, asks, answers, asked, wait: None, learnt: None, reader: None }
    }

    /// For this client, which does not wait for what it builds itself.
    pub(super) fn read_by(self, reader: Owner) -> Driver<M> {
        Driver { reader: Some(reader), ..self }
    }

    fn send(&mut self, of: &GuardedKey, proxy: &Proxy, inbox: &Rc<PendingReplies>) {
        self.answers =
            proxy.send(&self.asks, of, self.asked, inbox, PendingReply::Reply, PendingReply::Known);
    }

    /// Goes on as far as the answers that are here allow. `patient`: whether it may wait for another client.
    pub(super) fn poll(
        &mut self,
        of: &GuardedKey,
        patient: bool,
        proxy: &Rc<Proxy>,
        inbox: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        self.go_on(None, of, patient, proxy, inbox, cx)
    }

    /// Tells an idle machine these answers, and goes on.
    pub(super) fn tell(
        &mut self,
        answers: Replies,
        of: &GuardedKey,
        patient: bool,
        proxy: &Rc<Proxy>,
        inbox: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        self.go_on(Some(Event::Replies(answers)), of, patient, proxy, inbox, cx)
    }

    fn go_on(
        &mut self,
        mut next: Option<Event>,
        of: &GuardedKey,
        patient: bool,
        proxy: &Rc<Proxy>,
        inbox: &Rc<PendingReplies>,
        cx: &mut Context<'_>,
    ) -> Poll<M::End> {
        let mut learnt = self.learnt.take();
        let polled = loop {
            let of = learnt.as_deref().unwrap_or(of);
            let event = match (next.take(), &self.wait) {
                (Some(event), _) => event,
                (None, Some(_)) => match self.poll_wait(of, patient, proxy, cx) {
                    Poll::Ready(event) => event,
                    Poll::Pending => break Poll::Pending,
                },
                (None, None) => match self.poll_answers(of, proxy, inbox) {
                    Poll::Ready(answers) => Event::Replies(answers),
                    Poll::Pending => break Poll::Pending,
                },
            };
            let now = proxy.now();
            let policy = proxy.policy(of.guard);
            let scene = proxy.scene(of, policy, now, patient);
            match self.machine.resume(event, &scene) {
                Step::Done(end) => {
                    if M::CHANGES {
                        // Before anybody is told. The cache of tags first: whoever reads behind the note must not find there
                        // what was before it.
                        if M::bumped(&end) {
                            of.tags.iter().for_each(|tag| proxy.tag_cache.written(tag));
                        }
                        proxy.note_change(of);
                    }
                    break Poll::Ready(end);
                }
                Step::Send(asks) => {
                    (self.asks, self.asked) = (asks, now);
                    self.send(of, proxy, inbox);
                }
                Step::AddTags(tags) => {
                    learnt = Some(Box::new(of.with_tags(tags)));
                    next = Some(Event::TagsAdded);
                }
                Step::Wait(until) => next = self.wait(until, of, policy, now, proxy),
            }
        };
        self.learnt = learnt;
        polled
    }

    /// The machine, as far as it has come.
    pub(super) fn machine(&self) -> &M {
        &self.machine
    }

    /// Whether it waits for another client.
    pub(super) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    fn poll_answers(&mut self, of: &GuardedKey, proxy: &Proxy, inbox: &PendingReplies) -> Poll<Replies> {
        let missing = |awaited: &PendingReply| matches!(awaited, PendingReply::Reply(ticket) if !inbox.is_here(*ticket));
        if self.answers.iter().any(missing) {
            return Poll::Pending;
        }
        let answers = self.asks.iter().zip(self.answers.drain(..)).map(|(ask, awaited)| match awaited {
            PendingReply::Known(answer) => answer,
            PendingReply::Reply(ticket) => {
                let Some(reply) = inbox.take(ticket) else {
                    return ServerReply::Failed(crate::error::Failure::Down);
                };
                let answer = wire::decode(ask, reply);
                // What machines read of tags is not noted: they are few.
                if let (ItemRef::Tag(index) | ItemRef::TagCopy(index), ServerReply::Stored(_)) =
                    (ask.at, &answer)
                {
                    proxy.tag_cache.written(&of.tags[usize::from(index)]);
                }
                answer
            }
        });
        Poll::Ready(answers.collect())
    }

    /// Begins to wait. What it gives is what the machine is to be told if that would be in vain.
    fn wait(
        &mut self,
        until: u64,
        of: &GuardedKey,
        policy: &Policy,
        now: Now,
        proxy: &Rc<Proxy>,
    ) -> Option<Event> {
        // Nobody else is ever told to wait.
        let Some(reader) = self.reader else { return Some(Event::WaitEnded) };
        let (bell, hears) = oneshot::channel();
        let admission = proxy.desk.of(&of.key).wait(&of.key, reader, now, policy, bell);
        let (waiter, poll) = match admission {
            Admission::Waits { waiter, poll } => (waiter, poll),
            Admission::Refused => return Some(Event::WaitEnded),
            Admission::Full => {
                proxy.metrics.limit_reached(Limit::Waiters);
                return Some(Event::WaitEnded);
            }
        };
        if let Some(pace) = poll {
            proxy.clone().poll_key(of.clone(), pace);
        }
        proxy.metrics.wait_began();
        let time = Duration::from_millis(until.saturating_sub(now.mono));
        self.wait = Some(Box::new(Wait { waiter, bell: hears, until: Box::pin(sleep(time)) }));
        None
    }

    fn poll_wait(
        &mut self,
        of: &GuardedKey,
        patient: bool,
        proxy: &Proxy,
        cx: &mut Context<'_>,
    ) -> Poll<Event> {
        let Some(wait) = &mut self.wait else { return Poll::Ready(Event::WaitEnded) };
        let end = match Pin::new(&mut wait.bell).poll(cx) {
            // Nobody forgets a waiter without ringing; if they did, it is best to look again.
            Poll::Ready(end) => end.unwrap_or(WaitEnd::Freed),
            _ if wait.until.as_mut().poll(cx).is_ready() => WaitEnd::TimedOut,
            _ if !patient => WaitEnd::Hurried,
            _ => return Poll::Pending,
        };
        let waiter = wait.waiter;
        self.wait = None;
        proxy.metrics.wait_ended(proxy.metric(of.guard), end);
        if matches!(end, WaitEnd::Filled | WaitEnd::Freed) {
            return Poll::Ready(Event::Woken);
        }
        proxy.desk.of(&of.key).leave(&of.key, waiter);
        Poll::Ready(Event::WaitEnded)
    }
}

impl Proxy {
    /// Sends a round of commands, each to its server.
    fn send<T>(
        &self,
        asks: &Commands,
        of: &GuardedKey,
        now: Now,
        inbox: &Rc<PendingReplies>,
        reply: impl Fn(ReplyId) -> T,
        known: impl Fn(ServerReply) -> T,
    ) -> SmallVec<[T; 4]> {
        let home = self.home(of);
        let send = |ask: &crate::guard::ServerCommand| {
            let seen = wire::depends_on(&ask.what);
            let on = |connection: &crate::upstream::connection::Connection, key: &[u8]| {
                reply(connection.ask(inbox, seen, |out| wire::encode(&ask.what, key, out)))
            };
            match ask.at {
                ItemRef::Value => on(home, &of.key),
                ItemRef::Lock => on(home, &lock_key(&of.key)),
                ItemRef::Tag(index) | ItemRef::TagCopy(index) => {
                    let name = &of.tags[usize::from(index)];
                    // A bump counts on what is stored now, and on its CAS.
                    let bumps = of.guard == self.plan.tag_guard;
                    if !bumps && let Some(version) = self.cached_tag(name, &ask.what, now) {
                        return known(version);
                    }
                    let mut key: SmallVec<[u8; 64]> = SmallVec::from_slice(&self.plan.tag_prefix);
                    key.extend_from_slice(name);
                    on(self.tag_connection(&key, matches!(ask.at, ItemRef::TagCopy(_))), &key)
                }
            }
        };
        asks.iter().map(send).collect()
    }

    /// Asks outside any request, and waits for the answers.
    pub(super) async fn ask(&self, asks: Commands, of: &GuardedKey) -> Replies {
        let inbox = Rc::new(PendingReplies::default());
        let tickets = self.send(&asks, of, self.now(), &inbox, Ok, Err);
        let mut answers = Replies::new();
        for (ask, ticket) in asks.iter().zip(tickets) {
            answers.push(match ticket {
                Ok(ticket) => wire::decode(ask, inbox.receive(ticket).await),
                Err(known) => known,
            });
        }
        answers
    }

    pub(super) fn scene<'a>(
        &self,
        of: &'a GuardedKey,
        policy: &'a Policy,
        now: Now,
        patient: bool,
    ) -> Inputs<'a> {
        Inputs {
            policy,
            tags: &of.tags,
            learnt: of.learnt,
            sidecar: self.sidecar,
            room: self.home(of).server().room(of.key.len()),
            copies: self.plan.tag_copies,
            now,
            patient,
            chance: self.chance.borrow_mut().unit(),
        }
    }

    /// The version of a tag as this sidecar read it less than `tags.cache` ago.
    fn cached_tag(&self, name: &TagName, what: &Operation, now: Now) -> Option<ServerReply> {
        let Operation::Get(_) = what else { return None };
        self.tag_cache.get(name, now.mono).map(known)
    }

    /// Wakes whoever waits for a key.
    pub(super) fn wake(&self, key: &[u8], why: WaitEnd) {
        let bells = self.desk.of(key).wake(key);
        wake_all(bells, why);
    }
}
