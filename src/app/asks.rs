//! Questions of the admin server to the workers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::admin::NotExplained;
use crate::proxy::{AskedBy, Explanation, NearReport, Proxy};
use crate::worker::Order;

/// The most keys that are explained at a time: each may be a value of megabytes on a worker's connection.
const MAX_EXPLAINING: usize = 4;
/// The longest time that explaining a key takes.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Asks {
    workers: Arc<[mpsc::UnboundedSender<Order>]>,
    explaining: Arc<Semaphore>,
}

impl Asks {
    pub(super) fn new(workers: Vec<mpsc::UnboundedSender<Order>>) -> Asks {
        Asks { workers: workers.into(), explaining: Arc::new(Semaphore::new(MAX_EXPLAINING)) }
    }

    /// Where the workers are asked.
    pub(super) fn workers(&self) -> Arc<[mpsc::UnboundedSender<Order>]> {
        Arc::clone(&self.workers)
    }

    /// Has the first worker explain a key over its own connections, and each of them tell whether it keeps the key near.
    pub(super) fn explain(
        &self,
        key: Vec<u8>,
    ) -> impl Future<Output = Result<Explanation, NotExplained>> + Send + use<> {
        let Asks { workers, explaining } = self.clone();
        async move {
            let permit = explaining.try_acquire_owned().map_err(|_| NotExplained::Busy)?;
            let answer = async {
                let (reply, explained) = oneshot::channel();
                let asked = key.clone();
                let explain = move |proxy: std::rc::Rc<Proxy>| {
                    spawn_local(async move {
                        let explanation = proxy.explain(&asked, AskedBy::Sidecar).await;
                        // Whoever asked has given up. The permit is held until the servers have replied.
                        let _ = reply.send(explanation);
                        drop(permit);
                    });
                };
                let nears = near(&workers, &key);
                let first = workers.first().ok_or(NotExplained::NotServing)?;
                first.send(Order::Ask(Box::new(explain))).map_err(|_| NotExplained::NotServing)?;
                let mut explanation = explained.await.map_err(|_| NotExplained::NotServing)?;
                for (worker, near) in nears.into_iter().enumerate() {
                    let near = near.await.map_err(|_| NotExplained::NotServing)?;
                    let near = near.map(|for_ms| NearReport { worker, for_ms });
                    explanation.local.iter_mut().for_each(|local| local.near.extend(near.clone()));
                }
                Ok(explanation)
            };
            timeout(EXPLAIN_TIMEOUT, answer).await.unwrap_or(Err(NotExplained::TimedOut))
        }
    }
}

/// Asks each worker for how many milliseconds it keeps a key.
fn near(workers: &[mpsc::UnboundedSender<Order>], key: &[u8]) -> Vec<oneshot::Receiver<Option<u64>>> {
    let ask = |worker: &mpsc::UnboundedSender<Order>| {
        let ((reply, near), key) = (oneshot::channel(), key.to_vec());
        let look = move |proxy: std::rc::Rc<Proxy>| {
            let _ = reply.send(proxy.near_for(&key));
        };
        // A worker that has ended drops the question.
        let _ = worker.send(Order::Ask(Box::new(look)));
        near
    };
    workers.iter().map(ask).collect()
}
