//! When a server lacks copies, and who repairs it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::marks::{Marks, RENEW, Seen};
use super::pass::{Pace, Pass};
use super::walk::Wanted;
use crate::failover::View;
use crate::failover::repair::{RepairCounts, RepairMark, RepairOrder, RepairStatus};
use crate::proxy::pipeline::Proxy;
use crate::proxy::place::restored;
use crate::upstream::BatchConnection;

/// How often the marks are read.
const POLL: Duration = Duration::from_secs(2);
/// The pause before a run is begun again that could not be completed.
const RETRY: Duration = Duration::from_secs(30);
/// Copies per second of a run that an operator asks for where none runs by itself.
const RATE_OF_ORDERS: u32 = 2_000;
/// How long it waits for the records of where keys are. Whoever restores them gives up after one window.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to reply.
const LIMIT: Duration = Duration::from_secs(2);

impl Proxy {
    /// Repairs the copies of all pools until it is dropped. Of all workers, one does it at a time.
    pub async fn repair(self: Rc<Self>) {
        let _only_one = self.repairing.lock().await;
        let mut pools = JoinSet::new();
        for (pool, status) in self.repairs.iter().enumerate() {
            let Some(status) = status else { continue };
            let has_copies = self.plan.structures.iter().any(|of| of.pool == pool && of.kind.is_copied());
            status.set_used(has_copies);
            if has_copies {
                let repairs = PoolRepair::new(Rc::clone(&self), pool, Arc::clone(status));
                pools.spawn_local(repairs.run());
            }
        }
        while pools.join_next().await.is_some() {}
    }
}

/// Tells who asked for a run that it was interrupted, if this is dropped.
struct Interrupted<'a> {
    status: &'a RepairStatus,
    order: Option<RepairOrder>,
}

impl Drop for Interrupted<'_> {
    fn drop(&mut self) {
        let why = "the sidecar has read its configuration again, or ends: ask again".to_owned();
        self.status.end(self.order, RepairCounts::default(), Some(why));
    }
}

/// The repair of one pool.
struct PoolRepair {
    proxy: Rc<Proxy>,
    pool: usize,
    status: Arc<RepairStatus>,
    marks: Marks,
    /// When a run may begin that nobody asks for.
    not_before: Instant,
}

impl PoolRepair {
    fn new(proxy: Rc<Proxy>, pool: usize, status: Arc<RepairStatus>) -> PoolRepair {
        let connections = connections(&proxy, pool);
        let marks = Marks::new(status.pool(), status.placement(), proxy.sidecar, connections, LIMIT);
        PoolRepair { proxy, pool, status, marks, not_before: Instant::now() }
    }

    async fn run(mut self) {
        loop {
            // Not in step with other sidecars.
            let pause = self.proxy.random.borrow_mut().below(POLL.as_millis() as u64);
            sleep(POLL / 2 + Duration::from_millis(pause)).await;
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        let order = self.status.take_order();
        let status = Arc::clone(&self.status);
        let interrupted = Interrupted { status: &status, order };
        self.turn_for(order).await;
        std::mem::forget(interrupted);
    }

    async fn turn_for(&mut self, order: Option<RepairOrder>) {
        let Some(views) = self.views() else {
            if order.is_some() {
                let why = "where the keys of a server are is unknown at the moment".to_owned();
                self.status.end(order, RepairCounts::default(), Some(why));
            }
            return;
        };
        if order == Some(RepairOrder::Count) {
            let mut wanted = Wanted::nothing(self.pool, views);
            let all: Vec<usize> = (0..wanted.views.len()).collect();
            all.iter().for_each(|server| wanted.add(*server, &all));
            let (counts, end) = self.pass(wanted, true).await;
            self.status.end(order, counts, end.err());
            return;
        }
        let seen = self.marks.read().await;
        let at_home = |at: &usize| !views[*at].standby;
        let due = |at: usize| match &seen[at] {
            Seen::Free(mark) if order.is_none() => mark.due(&views, at),
            _ => RepairMark::default().due(&views, at),
        };
        let lacking: Vec<(usize, Vec<usize>)> = (0..views.len())
            .filter(at_home)
            .map(|at| (at, due(at)))
            .filter(|(_, due)| !due.is_empty())
            .collect();
        self.status.set_due(lacking.len());
        if lacking.is_empty() {
            // Another sidecar may have stored what this one has found.
            self.status.clear();
        }
        // One that says nothing may be whole: it is asked again.
        let repairable: Vec<_> =
            lacking.into_iter().filter(|(at, _)| order.is_some() || seen[*at] != Seen::Silent).collect();
        if repairable.is_empty()
            || order.is_none() && (self.status.rate() == 0 || Instant::now() < self.not_before)
        {
            return;
        }
        if order.is_some() && repairable.iter().any(|(at, _)| seen[*at] == Seen::Leased) {
            // Once the other one is done, or has lost its leases.
            self.status.postpone();
            return;
        }
        self.repair(views, repairable, &seen, order).await;
    }

    async fn repair(
        &mut self,
        views: Vec<View>,
        lacking: Vec<(usize, Vec<usize>)>,
        seen: &[Seen],
        order: Option<RepairOrder>,
    ) {
        let mark = RepairMark::of(&views);
        let is_home = views.iter().all(|view| !view.standby);
        let mut wanted = Wanted::nothing(self.pool, views);
        let (mut own, mut problem) = (Vec::new(), None);
        for (at, due) in &lacking {
            if seen[*at] != Seen::Leased && self.marks.take(*at).await {
                wanted.add(*at, due);
                own.push(*at);
            } else if order.is_some() {
                let label = self.proxy.pools[self.pool].connections()[*at].server().label();
                problem = Some(format!("{label} does not reply, or another sidecar repairs it"));
            }
        }
        if own.is_empty() {
            if order.is_some() {
                self.status.end(order, RepairCounts::default(), problem);
            }
            return;
        }
        let (counts, mut end) = self.pass_under_leases(wanted, &own).await;
        // So that the next server may restart.
        if end.is_ok() && is_home && !self.restore().await {
            end = Err("not all records of where keys are have their three copies".to_owned());
        }
        let mut marked = 0;
        for at in &own {
            marked += usize::from(self.marks.end(*at, end.is_ok().then_some(&mark)).await);
        }
        if end.is_ok() && marked < own.len() {
            end = Err("a server was lost meanwhile".to_owned());
        }
        self.status.set_due(lacking.len() - marked);
        let name = self.status.pool();
        if end.is_ok() {
            info!(pool = name, servers = own.len(), found = %counts, "both copies of all values are there");
        } else {
            self.not_before = Instant::now() + RETRY;
        }
        let away = (!is_home).then(|| {
            "keys of a server are on its standby servers: until they have returned, no other server may restart".to_owned()
        });
        let problem = end.err().or(problem).or_else(|| away.filter(|_| order.is_some()));
        if self.status.end(order, counts, problem.clone())
            && let Some(problem) = problem
        {
            warn!(pool = name, found = %counts, "not all values have two copies: {problem}");
        }
    }

    /// Returns once two of the three copies of each record are left whichever server is lost next.
    async fn restore(&self) -> bool {
        let views = self.proxy.views[self.pool].clone();
        timeout(RESTORE_TIMEOUT, restored(views.as_slice())).await.unwrap_or(false)
    }

    /// A run for which the leases of these servers are renewed.
    async fn pass_under_leases(
        &mut self,
        wanted: Wanted,
        own: &[usize],
    ) -> (RepairCounts, Result<(), String>) {
        let (proxy, status, pool) = (Rc::clone(&self.proxy), Arc::clone(&self.status), self.pool);
        let mut pass = pass(&proxy, pool, &status, wanted, false);
        let marks = &mut self.marks;
        let renewing = async {
            loop {
                sleep(RENEW).await;
                for at in own {
                    if !marks.renew(*at).await {
                        return Err("a server was lost meanwhile".to_owned());
                    }
                }
            }
        };
        let end = tokio::select! {
            biased;
            end = pass.run() => end,
            lost = renewing => lost,
        };
        (pass.counts, end)
    }

    async fn pass(&self, wanted: Wanted, only_count: bool) -> (RepairCounts, Result<(), String>) {
        let mut pass = pass(&self.proxy, self.pool, &self.status, wanted, only_count);
        let end = pass.run().await;
        (pass.counts, end)
    }

    /// Where the keys of all servers are; `None` if that is not known of one.
    fn views(&self) -> Option<Vec<View>> {
        let servers = self.proxy.pools[self.pool].connections().len();
        (0..servers).map(|server| self.proxy.view(self.pool, server)).collect()
    }
}

fn pass<'a>(
    proxy: &'a Rc<Proxy>,
    pool: usize,
    status: &'a RepairStatus,
    wanted: Wanted,
    only_count: bool,
) -> Pass<'a> {
    status.clear();
    let rate = if status.rate() == 0 { RATE_OF_ORDERS } else { status.rate() };
    let servers = connections(proxy, pool);
    Pass {
        proxy,
        wanted,
        only_count,
        status,
        servers,
        limit: LIMIT,
        pace: Pace::new(rate),
        counts: RepairCounts::default(),
    }
}

/// Connections of their own: nothing waits behind requests of clients, or fails with them.
fn connections(proxy: &Proxy, pool: usize) -> Vec<BatchConnection> {
    let connections = proxy.pools[pool].connections();
    connections.iter().map(|to| BatchConnection::new(to.shared_server())).collect()
}
