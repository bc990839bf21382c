//! Takes a value over from the previous placement, while the servers of its pool change.

use std::task::Poll;

use super::wire;
use crate::guard::leases::MissToken;
use crate::guard::{GetFlags, Item, ItemRef, Operation, ReadEnd, ServerCommand, ServerReply, take_over};
use crate::metrics::WaitEnd;
use crate::proxy::client::Client;
use crate::proxy::key::GuardedKey;
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::Standing;
use crate::upstream::OtherKind;
use crate::upstream::pending_replies::ReplyId;

/// A take-over in flight.
pub(super) struct TakeOver {
    /// The win of the key, for which there was nothing in its new place.
    won: ReadEnd,
    /// The key in the previous placement.
    elsewhere: GuardedKey,
    state: State,
}

enum State {
    Reading(ReplyId),
    Storing(ReplyId),
}

/// What is read in the previous place. It leaves no stub there.
const READ: ServerCommand =
    ServerCommand { item: ItemRef::Value, operation: Operation::Get(GetFlags::VALUE) };

impl TakeOver {
    /// Begins a take-over, if the end of this read of `key` is a win without a value.
    pub(super) fn begin(end: &ReadEnd, key: &GuardedKey, proxy: &Proxy, client: &Client) -> Option<TakeOver> {
        let pool = proxy.plan.guards[key.guard].pool;
        let (other, OtherKind::Previous { take_over: true }) = proxy.other(pool)? else { return None };
        if !matches!(end, ReadEnd::Won { old: None, .. }) || !proxy.policy_of(key).serves_stale() {
            return None;
        }
        let elsewhere = proxy.elsewhere(key).filter(GuardedKey::has_view)?;
        if proxy.is_same_server(pool, &key.place, &elsewhere.place) {
            return None;
        }
        let encode = |out: &mut _| wire::encode(&READ.operation, &key.key, out);
        let id = other.connection_of(&elsewhere).send_guard(&client.pending, None, encode);
        Some(TakeOver { won: end.clone(), elsewhere, state: State::Reading(id) })
    }

    /// Goes on with it. Returns the win if there is nothing to take over. Otherwise there is something to read in the new place.
    pub(super) fn poll(&mut self, key: &GuardedKey, proxy: &Proxy, client: &Client) -> Poll<Option<ReadEnd>> {
        let pending = &client.pending;
        let (State::Reading(id) | State::Storing(id)) = self.state;
        let Some(reply) = pending.take(id) else { return Poll::Pending };
        if let State::Storing(_) = self.state {
            // Whether it was stored, or another client has changed the item. Those who wait for the value of the stub are served it.
            proxy.wake(&key.key, WaitEnd::Filled);
            return Poll::Ready(None);
        }
        let store = match (wire::decode(&READ, reply), &self.won) {
            (ServerReply::Item(item), ReadEnd::Won { lease, .. }) => self.store(&item, lease, key, proxy),
            _ => None,
        };
        let Some(store) = store else { return Poll::Ready(Some(self.won.clone())) };
        let encode = |out: &mut _| wire::encode(&store.operation, &key.key, out);
        let epoch = wire::depends_on(&store.operation);
        let id = proxy.connection_of(key).send_guard(pending, epoch, encode);
        self.state = State::Storing(id);
        Poll::Pending
    }

    /// The command that stores what was found, if both places still have the fences that they had.
    fn store(&self, item: &Item, miss: &MissToken, key: &GuardedKey, proxy: &Proxy) -> Option<ServerCommand> {
        let pool = proxy.plan.guards[key.guard].pool;
        let (other, _) = proxy.other(pool)?;
        let is_valid = other.standing(pool, &self.elsewhere.place) == Standing::Valid
            && proxy.standing(pool, &key.place) == Standing::Valid;
        let inputs = proxy.inputs(key, proxy.policy_of(key), proxy.now(), false);
        take_over(item, |fence| self.elsewhere.place.counts(fence), miss, &inputs).filter(|_| is_valid)
    }
}
