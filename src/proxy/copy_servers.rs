//! The servers of the two copies of one key, for what outlives a request and the configuration under which it began.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::key::StructureKey;
use super::kind_wire::{self, Expected};
use super::pipeline::Proxy;
use crate::clock::Clock;
use crate::error::Failure;
use crate::failover::Views;
use crate::kinds::{
    Command, Inputs, ItemKey, KEPT_WITHOUT_VALUE, Machine, Outcome, Replies, Reply, Side, Step, complete,
    copy_key,
};
use crate::random::Random;
use crate::upstream::connection::Connection;
use crate::upstream::pending_replies::{PendingReplies, ReplyId};

/// Where the two copies of a key may be.
pub(crate) struct CopyServers {
    copies: [Homes; 2],
    views: Arc<Views>,
    /// Zero of the clock of the views.
    start: Instant,
    clock: Clock,
    random: RefCell<Random>,
}

/// The servers of one copy.
struct Homes {
    /// The index of the one that the ring names.
    home: usize,
    at_home: Rc<Connection>,
    standby: Rc<Connection>,
}

/// Where a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CopyPlace {
    fence: u64,
    is_standby: bool,
}

impl CopyServers {
    /// Those of a key in a pool, which must fail over: otherwise `None`.
    pub(crate) fn new(proxy: &Proxy, pool: usize, own: &[u8]) -> Option<CopyServers> {
        let of = &proxy.pools[pool];
        let copies = [false, true].map(|copy| {
            let home = if copy { of.second_server_index(own) } else { of.server_index(own) };
            let connection = |at: usize| Rc::clone(&of.connections()[at]);
            Homes { home, at_home: connection(home), standby: connection(of.standby_of_copy(own, copy)) }
        });
        let seed = proxy.random.borrow_mut().any();
        Some(CopyServers {
            copies,
            views: proxy.views[pool].clone()?,
            start: proxy.start,
            clock: proxy.clock.clone(),
            random: RefCell::new(Random::seeded(seed)),
        })
    }

    /// Where a copy is now; `None` if no view is valid.
    fn place(&self, side: Side) -> Option<CopyPlace> {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let view = self.views.get(self.homes(side).home, now)?;
        Some(CopyPlace { fence: view.fence, is_standby: view.standby })
    }

    /// The connection to the server of that place.
    fn connection(&self, side: Side, place: CopyPlace) -> &Connection {
        let homes = self.homes(side);
        if place.is_standby { &homes.standby } else { &homes.at_home }
    }

    fn inputs(&self) -> Inputs {
        Inputs { now: self.clock.now_ms(), random: self.random.borrow_mut().any() }
    }

    fn homes(&self, side: Side) -> &Homes {
        &self.copies[usize::from(side == Side::Second)]
    }

    /// Runs a machine outside any request.
    pub(crate) async fn run(&self, machine: &mut (dyn Machine + '_)) -> Outcome {
        let pending = Rc::new(PendingReplies::default());
        // As a command of a client does, it knows the places from its beginning on.
        let places = [Side::First, Side::Second].map(|side| self.place(side));
        let place = |side| places[usize::from(side == Side::Second)];
        let is_valid = |side| place(side).is_some() && self.place(side) == place(side);
        let mut replies = Replies::new();
        loop {
            let commands = match machine.resume(replies, &self.inputs()) {
                Step::Done(outcome) => return outcome,
                Step::SendCopies(commands) => commands,
                Step::Send(_) => return Outcome::Failed(Failure::Refused),
            };
            let sent: Vec<_> = commands
                .into_iter()
                .map(|(side, command)| {
                    let place: Option<CopyPlace> = place(side).filter(|_| is_valid(side));
                    let id = place.and_then(|place| {
                        let key = copy_key(&command.key, side, place.fence).ok()?;
                        let command = Command { key, ..command.clone() };
                        Some(send(&command, self.connection(side, place), &pending))
                    });
                    (side, command, id)
                })
                .collect();
            replies = Replies::new();
            for (side, command, id) in sent {
                let reply = match id {
                    Some(id) => received(&command, id, &pending).await,
                    None => Reply::Failed(Failure::Down),
                };
                // What was done in a place that has ended is not known by whoever uses the new one.
                replies.push(if is_valid(side) { reply } else { Reply::Failed(Failure::Down) });
            }
        }
    }
}

/// Sends a command over this connection.
pub(crate) fn send(command: &Command, connection: &Connection, pending: &Rc<PendingReplies>) -> ReplyId {
    let (expected, epoch) = (Expected::of(&command.operation), command.operation.epoch());
    let encode = |out: &mut _| kind_wire::encode(command, out);
    connection.send_guard_shaped(pending, expected.shape(), epoch, encode)
}

/// The reply to this command.
pub(crate) async fn received(command: &Command, id: ReplyId, pending: &PendingReplies) -> Reply {
    kind_wire::decode(Expected::of(&command.operation), pending.receive(id).await)
}

impl Proxy {
    /// Completes what a command on this structure has left half done in these items, as soon as both copies can be reached. The record
    /// of a deleted value does not live for longer.
    pub(crate) fn complete_later(&self, key: &StructureKey, items: Vec<ItemKey>) {
        for item in items {
            let Some(servers) = CopyServers::new(self, self.structure_pool(key), key.own_key()) else {
                return;
            };
            let of = item.clone();
            let is_complete =
                async move || !matches!(servers.run(&mut *complete(of.clone())).await, Outcome::Failed(_));
            self.unfinished.complete_later(item, Duration::from_millis(KEPT_WITHOUT_VALUE), is_complete);
        }
    }

    fn structure_pool(&self, key: &StructureKey) -> usize {
        self.plan.structures[key.structure].pool
    }
}
