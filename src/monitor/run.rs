//! The task: one agreement for each server, driven round by round.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::copies::{self, Keys};
use super::link::Link;
use super::marks::{Marker, Marks, POLL, Withheld, fixed_views};
use super::pool_status::PoolStatus;
use super::status::{Observation, Published, ServerStatus, mono};
use super::ticks::Ticks;
use crate::clock::Clock;
use crate::failover::placements::{Kind, Step};
use crate::failover::repair::RepairStatus;
use crate::failover::{Agreement, COPIES, Command, Moment, Reply, View, Views};
use crate::random::Random;
use crate::upstream::pool::SharedPool;
use crate::upstream::ring::{identity_ids, placement_id};
use crate::upstream::server::Server;
use crate::upstream::{
    Address, BatchConnection, FailoverSpec, OtherKind, PoolSpec, ServerSpec, UnknownPlacement,
};

mod observe;
mod timing;

use timing::{millis, timing};

/// Rounds of a server per window. A reply may take as long as the time between two rounds.
const ROUNDS: u32 = 4;
/// By how much of it the time between two rounds is shortened at random, so that the sidecars of a fleet do not act in step.
const JITTER: f64 = 0.1;
/// The shortest time between the beginnings of two rounds is this part of a window, even if every round has something to write.
const SHORTEST_PAUSE: u32 = 32;
/// The pause between two rounds that restore copies at once.
const RESTORE_AGAIN: Duration = Duration::from_millis(5);
/// How many windows clients wait at the start for the first views. A new record is used after little more than one.
const FIRST_VIEWS: u32 = 2;

/// The task of one pool. It must run on one thread.
pub struct Monitor {
    /// The pool, and it with its other list of servers.
    pools: Vec<MonitoredPool>,
    published: Arc<Published>,
    /// Zero of the monotonic clock.
    start: Instant,
    clock: Clock,
}

/// A pool with servers that other processes reach too.
struct MonitoredPool {
    pool: Arc<SharedPool>,
    /// `None` if it does not fail over.
    failover: Option<Failover>,
    /// `None` if no marks are kept.
    placements: Option<Arc<PoolStatus>>,
    keyspace: String,
    /// The views that are withheld while a placement is in use that is not adjacent.
    withheld: Option<Arc<Views>>,
    /// The indexes of the servers that are not embedded.
    shared: Vec<usize>,
    /// The state of each server that operators see under this placement.
    status: Vec<Option<Arc<ServerStatus>>>,
    connect_timeout: Duration,
    /// How long replies may take.
    limit: Duration,
    /// The views of the previous placement, while values are taken over from there.
    previous: Option<Arc<Views>>,
}

impl MonitoredPool {
    /// A pool without marks. `views`: where the views are published.
    fn of(
        spec: &PoolSpec,
        pool: &Arc<SharedPool>,
        views: Option<Arc<Views>>,
        status: Vec<Option<Arc<ServerStatus>>>,
    ) -> MonitoredPool {
        let failover = spec.failover.as_ref().zip(views).map(|(failover, views)| Failover {
            spec: failover.clone(),
            views,
            placement: placement_id(&spec.servers, &spec.scheme),
            identities: identity_ids(&spec.servers),
        });
        let longest = failover.as_ref().map_or(POLL, |failover| failover.spec.window / ROUNDS);
        MonitoredPool {
            pool: Arc::clone(pool),
            failover,
            placements: None,
            keyspace: spec.keyspace.clone(),
            withheld: None,
            shared: Vec::new(),
            status,
            connect_timeout: spec.connect_timeout,
            limit: spec.request_timeout.min(longest),
            previous: None,
        }
    }

    /// The views of the previous placement, and the index of this server in it.
    fn previous(&self, server: usize) -> Option<(Arc<Views>, usize)> {
        let server = &self.pool.servers()[server];
        let at = self.pool.other()?.servers().iter().position(|other| Arc::ptr_eq(other, server))?;
        Some((Arc::clone(self.previous.as_ref()?), at))
    }
}

/// What the agreements on a pool's servers need.
struct Failover {
    spec: FailoverSpec,
    views: Arc<Views>,
    placement: u64,
    /// A number for each server.
    identities: Vec<u64>,
}

/// What takes part in the agreement on one server.
struct Participant {
    agreement: Agreement,
    /// The configured window in ms.
    window: u32,
    /// To the holders of the three copies; the first is the server itself.
    links: [Link; COPIES],
    keys: Keys,
    views: Arc<Views>,
    /// `None` if no marks are kept.
    marks: Option<Rc<Marks>>,
    /// The views of the previous placement, and the index of the server in it, while values are taken over from there.
    previous: Option<(Arc<Views>, usize)>,
    /// The index of the server in its pool.
    at: usize,
    /// `None` if operators see the state of the server under another placement.
    status: Option<Arc<ServerStatus>>,
    start: Instant,
    clock: Clock,
    random: Rc<RefCell<Random>>,
}

impl Monitor {
    /// The monitor of a pool, given with its specification. `start` is zero of the monotonic clock of the views. `None` if all its
    /// servers are embedded.
    pub fn new(spec: &PoolSpec, pool: &Arc<SharedPool>, start: Instant, clock: Clock) -> Option<Monitor> {
        Monitor::of(spec, pool, start, clock, true)
    }

    /// The same for a process that runs for one command: it leaves no marks, and reads none. `None` if the pool does not fail over.
    pub fn without_marks(
        spec: &PoolSpec,
        pool: &Arc<SharedPool>,
        start: Instant,
        clock: Clock,
    ) -> Option<Monitor> {
        Monitor::of(spec, pool, start, clock, false)
    }

    fn of(
        spec: &PoolSpec,
        pool: &Arc<SharedPool>,
        start: Instant,
        clock: Clock,
        keeps_marks: bool,
    ) -> Option<Monitor> {
        let is_shared = |at: &usize| {
            !matches!(spec.servers[*at].address, Address::Embedded { .. } | Address::Discovered(_))
        };
        let shared: Vec<usize> = (0..spec.servers.len()).filter(is_shared).collect();
        let placements = (keeps_marks && !shared.is_empty())
            .then(|| Arc::new(PoolStatus::new(spec.name.clone(), step(spec), spec.unknown_placement)));
        if spec.failover.is_none() && placements.is_none() {
            return None;
        }
        let withholds = placements.is_some() && spec.unknown_placement == UnknownPlacement::Miss;
        let views = match (&spec.failover, withholds) {
            (Some(_), _) => Some(Views::new(spec.servers.len())),
            (None, true) => Some(fixed_views(spec.servers.len())),
            (None, false) => None,
        };
        let views = views.map(Arc::new);
        let status = |(at, server): (usize, &ServerSpec)| {
            let views = views.as_ref().filter(|_| spec.failover.is_some())?;
            Some(server_status(spec, server, placements.clone(), views, at))
        };
        let own: Vec<_> = spec.servers.iter().enumerate().map(status).collect();
        let mut pools = vec![MonitoredPool {
            placements: placements.clone(),
            withheld: views.clone().filter(|_| withholds),
            shared,
            ..MonitoredPool::of(spec, pool, views.clone(), own.clone())
        }];
        let repair = placements.is_some().then(|| {
            let placement = placement_id(&spec.servers, &spec.scheme);
            Arc::new(RepairStatus::new(spec.name.clone(), placement, spec.repair_rate))
        });
        let repair = repair.filter(|_| spec.failover.is_some());
        let mut published = Published { views, other_views: None, servers: own, placements, repair };
        if let Some((other, pool)) = spec.other_pool().zip(pool.other()) {
            let views = other.failover.as_ref().map(|_| Arc::new(Views::new(other.servers.len())));
            let is_further = |server: &ServerSpec| spec.further_servers().any(|further| further == server);
            let status = |(at, server): (usize, &ServerSpec)| {
                let views = views.as_ref().filter(|_| is_further(server))?;
                Some(server_status(spec, server, None, views, at))
            };
            let status: Vec<_> = other.servers.iter().enumerate().map(status).collect();
            let further = status.iter().zip(&other.servers).filter(|(_, server)| is_further(server));
            published.servers.extend(further.map(|(status, _)| status.clone()));
            published.other_views = views.clone();
            if views.is_some() {
                let kind = spec.other.as_ref().map(|other| other.kind);
                if kind == Some(OtherKind::Previous { take_over: true }) {
                    pools[0].previous = views.clone();
                }
                pools.push(MonitoredPool::of(&other, pool, views, status));
            }
        }
        Some(Monitor { pools, published: Arc::new(published), start, clock })
    }

    /// What the workers and operators see.
    pub fn published(&self) -> &Arc<Published> {
        &self.published
    }

    /// Runs until it is dropped. Cancels `known` once there is a view of every server, or has had time enough to appear.
    pub async fn run(self, mut random: Random, known: CancellationToken) {
        let mut tasks = JoinSet::new();
        let first_views = TaskTracker::new();
        let mut longest = Duration::ZERO;
        let seeds = Rc::new(RefCell::new(Random::seeded(random.below(u64::MAX))));
        for pool in &self.pools {
            let links = links(pool, &mut tasks);
            let marks = self.marks(pool);
            let mut ticks = None;
            if let Some(failover) = &pool.failover {
                longest = longest.max(failover.spec.window * FIRST_VIEWS + pool.connect_timeout);
                let interval = failover.spec.window / ROUNDS;
                let of_rounds = Ticks::default();
                tasks.spawn_local(tick_every(
                    interval,
                    Random::seeded(random.below(u64::MAX)),
                    of_rounds.clone(),
                ));
                for participant in self.participants(pool, failover, &links, marks.as_ref(), &seeds) {
                    tasks.spawn_local(participant.run(of_rounds.clone(), first_views.token()));
                }
                // The marks are read in the same batch as the records.
                ticks = (interval <= POLL).then_some(of_rounds);
            }
            let Some(marks) = marks else { continue };
            let ticks = ticks.unwrap_or_else(|| {
                let ticks = Ticks::default();
                tasks.spawn_local(tick_every(POLL, Random::seeded(random.below(u64::MAX)), ticks.clone()));
                ticks
            });
            let of_list =
                pool.shared.iter().map(|&at| (Arc::clone(&pool.pool.servers()[at]), links[at].clone()));
            let further = pool.pool.further_servers().map(|server| {
                let link = link(server, pool, &mut tasks);
                (Arc::clone(server), link)
            });
            let marked: Vec<_> = of_list.chain(further).collect();
            for (at, (server, link)) in marked.into_iter().enumerate() {
                let (marks, random) = (Rc::clone(&marks), Rc::clone(&seeds));
                tasks.spawn_local(Marker { marks, link, server, at, random }.run(ticks.clone()));
            }
        }
        first_views.close();
        tokio::select! {
            biased;
            () = first_views.wait() => {}
            () = sleep(longest) => {}
        }
        known.cancel();
        // The tasks do not end. When this is dropped, they are aborted.
        while tasks.join_next().await.is_some() {}
    }

    fn marks(&self, pool: &MonitoredPool) -> Option<Rc<Marks>> {
        let status = Arc::clone(pool.placements.as_ref()?);
        let servers = pool.pool.servers().len();
        let withheld = Withheld::new(pool.withheld.clone(), servers, pool.failover.is_none());
        Some(Rc::new(Marks::new(&pool.keyspace, status, withheld, self.start, self.clock.clone())))
    }

    fn participants(
        &self,
        pool: &MonitoredPool,
        failover: &Failover,
        links: &[Link],
        marks: Option<&Rc<Marks>>,
        random: &Rc<RefCell<Random>>,
    ) -> Vec<Participant> {
        let participant = |(at, identity): (usize, &u64)| {
            let keys = Keys::new(failover.placement, *identity);
            Participant {
                agreement: Agreement::new(timing(&failover.spec), self.mono()),
                window: millis(failover.spec.window),
                links: keys.holders(pool.pool.ring(), at).map(|holder| links[holder].clone()),
                keys,
                views: Arc::clone(&failover.views),
                marks: marks.cloned(),
                previous: pool.previous(at),
                at,
                status: pool.status[at].clone(),
                start: self.start,
                clock: self.clock.clone(),
                random: Rc::clone(random),
            }
        };
        failover.identities.iter().enumerate().map(participant).collect()
    }

    fn mono(&self) -> u64 {
        mono(self.start)
    }
}

impl Participant {
    /// Takes part until it is dropped. `waiting` is dropped with the first view.
    async fn run(mut self, mut ticks: Ticks, waiting: TaskTrackerToken) {
        let mut waiting = Some(waiting);
        let views = Arc::clone(&self.views);
        views.keep(self.at);
        // The request to restore the copies that is being carried out, and until when.
        let mut restoring: Option<(u64, Instant)> = None;
        let shortest_pause = Duration::from_millis(u64::from(self.window)) / SHORTEST_PAUSE;
        loop {
            let began = Instant::now();
            let own = self.previous_view().filter(|previous| !previous.standby);
            self.agreement.inherit(own.map(|previous| previous.fence));
            self.agreement.restore(restoring.is_some());
            self.agreement.wish(views.asked(self.at));
            let mut commands = self.agreement.begin(mono(self.start));
            while !commands.is_empty() {
                let replies = self.send(&commands).await;
                let moment = Moment { mono: mono(self.start), wall: self.clock.now_ms() };
                let random = self.random.borrow_mut().below(u64::MAX);
                commands = self.agreement.resume(&replies, moment, random);
                self.publish();
            }
            if self.publish() && self.has_inherited() {
                drop(waiting.take());
            }
            if let Some((number, until)) = restoring {
                let is_whole = self.agreement.is_whole().or((Instant::now() >= until).then_some(false));
                let Some(is_whole) = is_whole else {
                    sleep(RESTORE_AGAIN).await;
                    continue;
                };
                views.end_restoring(self.at, number, is_whole);
                restoring = None;
            }
            let asked = poll_fn(|cx| views.poll_asked(self.at, cx));
            let mut asked = pin!(asked);
            let number = tokio::select! {
                () = sleep_until(began + shortest_pause) => None,
                number = &mut asked => Some(number),
            };
            if let Some(number) = number {
                restoring = Some((number, Instant::now() + Duration::from_millis(u64::from(self.window))));
                continue;
            }
            let due = self.start + Duration::from_millis(self.agreement.due());
            tokio::select! {
                biased;
                () = ticks.next() => {}
                () = sleep_until(due) => {}
                () = self.links[0].ended() => {}
                number = &mut asked => {
                    restoring = Some((number, Instant::now() + Duration::from_millis(u64::from(self.window))));
                }
            }
            // The view may have ended meanwhile.
            self.observe();
        }
    }

    /// Sends the commands of a round. If the view ends before the replies have arrived, operators see that.
    async fn send(&self, commands: &[Command]) -> Vec<Reply> {
        let mut sending = pin!(copies::send(&self.links, &self.keys, commands));
        if let Some((_, until)) = self.agreement.view(mono(self.start)) {
            let end = self.start + Duration::from_millis(until);
            tokio::select! {
                biased;
                replies = &mut sending => return replies,
                () = sleep_until(end) => self.observe(),
            }
        }
        sending.await
    }

    /// Publishes the view, unless it is withheld. Returns whether there is one.
    fn publish(&self) -> bool {
        let view = self.agreement.view(mono(self.start));
        let is_withheld = self.marks.as_ref().is_some_and(|marks| marks.withholds());
        self.views.publish(self.at, view.filter(|_| !is_withheld));
        self.views.hold(self.at, self.agreement.hold(mono(self.start)).filter(|_| !is_withheld));
        self.observe();
        view.is_some()
    }

    /// Whether what is on the server counts, as far as it does in the previous placement. Otherwise a process that begins to read
    /// by the new placement would rebuild all of it.
    fn has_inherited(&self) -> bool {
        let (Some(_), Some((view, _))) = (&self.previous, self.agreement.view(mono(self.start))) else {
            return self.previous.is_none();
        };
        match self.previous_view() {
            Some(previous) if !previous.standby && !view.standby => view.inherited == previous.fence,
            previous => previous.is_some(),
        }
    }

    /// The view of the server in the previous placement.
    fn previous_view(&self) -> Option<View> {
        let (views, at) = self.previous.as_ref()?;
        views.get(*at, mono(self.start))
    }

    fn observe(&self) {
        let Some(server) = &self.status else { return };
        let status = self.agreement.status(mono(self.start));
        let lasting = status.record.filter(|record| !record.leaving);
        let window = lasting.map(|record| record.window).filter(|window| *window != self.window);
        server.observe(Observation {
            view: status.view,
            is_moving: self.agreement.hold(mono(self.start)).is_some(),
            is_drained: status.record.is_some_and(|record| record.standby && record.drained),
            is_suspicious: status.suspects,
            unreachable_here: status.alone,
            other_window: window.map(|window| Duration::from_millis(window.into())),
        });
    }
}

/// The state of a server of which nothing is known.
fn server_status(
    spec: &PoolSpec,
    server: &ServerSpec,
    placements: Option<Arc<PoolStatus>>,
    views: &Arc<Views>,
    at: usize,
) -> Arc<ServerStatus> {
    let status = ServerStatus::new(spec.name.clone(), server.label(), placements, Arc::clone(views), at);
    Arc::new(status.of(spec))
}

/// A connection to each server of a pool.
fn links(pool: &MonitoredPool, tasks: &mut JoinSet<()>) -> Vec<Link> {
    pool.pool.servers().iter().map(|server| link(server, pool, tasks)).collect()
}

fn link(server: &Arc<Server>, pool: &MonitoredPool, tasks: &mut JoinSet<()>) -> Link {
    let (link, task) = Link::new(BatchConnection::new(Arc::clone(server)), pool.limit);
    tasks.spawn_local(task);
    link
}

/// Which step of a change of its servers this pool is in.
pub fn step(spec: &PoolSpec) -> Step {
    let (reads, Some(other)) = (placement_id(&spec.servers, &spec.scheme), &spec.other) else {
        return Step::only(placement_id(&spec.servers, &spec.scheme));
    };
    let kind = match other.kind {
        OtherKind::Next => Kind::Next,
        OtherKind::Previous { take_over: true } => Kind::TakeOver,
        OtherKind::Previous { take_over: false } => Kind::Previous,
    };
    Step { reads, other: placement_id(&other.servers, &other.scheme), kind }
}

async fn tick_every(interval: Duration, mut random: Random, ticks: Ticks) {
    loop {
        sleep(random.jitter(interval, JITTER)).await;
        ticks.tick();
    }
}
