//! Asks the servers for their slab classes, at the request of the admin server.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout};

use crate::admin::{ServerSlabs, Slabs, slab_classes};
use crate::clock::Clock;
use crate::proxy::{Proxy, SlabReply};
use crate::worker::Order;

/// The shortest time between two rounds of questions, however many ask.
const INTERVAL: Duration = Duration::from_secs(5);
/// The longest time for which a round waits for a server.
const SLABS_TIMEOUT: Duration = Duration::from_secs(1);
/// The most servers that are asked: the first ones of the configuration.
const MAX_SERVERS: usize = 64;

/// The replies to a round, with the time at which it began.
type Round = Option<(Instant, Arc<Slabs>)>;

/// What the servers were asked last, and what they have replied.
pub(super) struct AskedSlabs {
    workers: Arc<[mpsc::UnboundedSender<Order>]>,
    clock: Clock,
    /// When the last round began.
    began: Mutex<Option<Instant>>,
    /// The last one that has ended.
    last: Arc<watch::Sender<Round>>,
}

impl AskedSlabs {
    /// The servers are asked by the first of these workers.
    pub(super) fn new(workers: Arc<[mpsc::UnboundedSender<Order>]>, clock: Clock) -> AskedSlabs {
        AskedSlabs { workers, clock, began: Mutex::default(), last: Arc::new(watch::Sender::new(None)) }
    }

    /// The replies to the last round. Begins one if [`INTERVAL`] has passed, or waits for the one that is under way. A round goes on if
    /// whoever began it has left, so leaving and asking again begins no further one. `None`: the worker has not replied in time.
    pub(super) fn get(&self) -> impl Future<Output = Option<Arc<Slabs>>> + Send + use<> {
        let now = Instant::now();
        let began = {
            let mut began = self.began.lock().unwrap_or_else(PoisonError::into_inner);
            match *began {
                Some(began) if now - began < INTERVAL => began,
                _ => {
                    *began = Some(now);
                    self.begin(now);
                    now
                }
            }
        };
        let mut replies = self.last.subscribe();
        async move {
            let is_of_round = |last: &Round| last.as_ref().is_some_and(|(of, _)| *of >= began);
            let last = timeout(SLABS_TIMEOUT * 2, replies.wait_for(is_of_round)).await.ok()?.ok()?;
            last.as_ref().map(|(_, slabs)| Arc::clone(slabs))
        }
    }

    fn begin(&self, began: Instant) {
        let (reply, received) = oneshot::channel();
        let ask = move |proxy: Rc<Proxy>| {
            spawn_local(async move {
                // Nobody waits if the process stops.
                let _ = reply.send(proxy.slab_replies(MAX_SERVERS, SLABS_TIMEOUT).await);
            });
        };
        // A worker that has ended drops the question.
        let _ = self.workers.first().map(|worker| worker.send(Order::Ask(Box::new(ask))));
        let (last, at_ms) = (Arc::clone(&self.last), self.clock.now_ms());
        // Reading the replies takes the time of the admin thread, not of a worker.
        tokio::spawn(async move {
            let Ok((replies, omitted)) = received.await else { return };
            let servers = replies.into_iter().map(server).collect();
            last.send_replace(Some((began, Arc::new(Slabs { at_ms, servers, omitted }))));
        });
    }
}

fn server(SlabReply { pool, server, replies }: SlabReply) -> ServerSlabs {
    ServerSlabs { pool, server, classes: replies.map(|(slabs, items)| slab_classes(&slabs, &items)) }
}
