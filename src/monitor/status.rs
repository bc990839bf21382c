//! What operators see of the failover: log lines, metrics, `/readyz` and the status page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::pool_status::PoolStatus;
use crate::failover::repair::RepairStatus;
use crate::failover::{View, Views};
use crate::metrics::{FailoverSource, FailoverState, PlacementsState, RepairState};
use crate::upstream::{FailoverSpec, PoolSpec};

/// What the monitor of a pool publishes.
pub struct Published {
    /// Where the keys of each server are; `None` if the places are fixed.
    pub views: Option<Arc<Views>>,
    /// The same for the other list of servers; `None` also if there is none.
    pub other_views: Option<Arc<Views>>,
    /// The state of each server of both lists; `None` if it does not fail over.
    pub(super) servers: Vec<Option<Arc<ServerStatus>>>,
    /// `None` if no marks are kept.
    pub(super) placements: Option<Arc<PoolStatus>>,
    /// The repair of copies; `None` if the pool does not fail over, or if no marks are kept.
    pub repair: Option<Arc<RepairStatus>>,
}

/// The state of all servers, by their index among the servers of all pools.
pub struct Status {
    /// Zero of the monotonic clock of [`Views`].
    start: Instant,
    servers: Vec<Option<Arc<ServerStatus>>>,
    /// The placements of each pool; `None` if all its servers are embedded.
    pools: Vec<Option<Arc<PoolStatus>>>,
    /// The repair of copies in each pool.
    repairs: Vec<Option<Arc<RepairStatus>>>,
}

/// The state of a server whose pool fails over. Written by the monitor's thread only.
pub(super) struct ServerStatus {
    /// How log lines and `/readyz` name it.
    pool: String,
    server: String,
    /// Of its pool; `None` if no marks are kept.
    placements: Option<Arc<PoolStatus>>,
    views: Arc<Views>,
    /// Its index in the pool.
    at: usize,
    /// The place of the latest view.
    place: AtomicU8,
    /// Whether there was a valid view when the monitor looked last.
    had_view: AtomicBool,
    /// Whether its keys stay away although it answers.
    drained: AtomicBool,
    is_suspicious: AtomicBool,
    unreachable_here: AtomicBool,
    moved_to_standby: AtomicU64,
    moved_back: AtomicU64,
    suspicions: AtomicU64,
    /// How long a planned move of its keys may take, by the configuration.
    longest_move: Duration,
    /// Whether the servers of its pool change.
    is_changing: bool,
    /// The window of the fleet in ms if it is not the configured one; 0 if it is.
    other_window: AtomicU64,
}

const UNKNOWN: u8 = 0;
const OWN: u8 = 1;
const STANDBY: u8 = 2;

/// What the monitor knows of a server at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Observation {
    /// The valid view, if there is one.
    pub(super) view: Option<View>,
    /// Whether requests wait for the next view, because a planned move is about to end.
    pub(super) is_moving: bool,
    /// Whether an operator has drained the server.
    pub(super) is_drained: bool,
    /// Whether this sidecar suspects the server to be dead.
    pub(super) is_suspicious: bool,
    /// Whether this sidecar has had no reply lately, although another one has.
    pub(super) unreachable_here: bool,
    /// The window in the server's record if it is not the configured one.
    pub(super) other_window: Option<Duration>,
}

/// One line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    MovedToStandby,
    Drained,
    MovedBack,
    ViewLost,
    ViewAgain,
    Suspected,
    UnreachableHere,
    ReachableHere,
    OtherWindow(Duration),
    SameWindow,
}

impl Status {
    /// The state of these pools, each with the number of its servers, and what its monitor publishes if it has one. `start` is zero
    /// of the clock of their views.
    pub fn new<'a>(
        start: Instant,
        pools: impl IntoIterator<Item = (usize, Option<&'a Arc<Published>>)>,
    ) -> Status {
        let mut status = Status { start, servers: Vec::new(), pools: Vec::new(), repairs: Vec::new() };
        for (servers, published) in pools {
            status.repairs.push(published.and_then(|published| published.repair.clone()));
            status.pools.push(published.and_then(|published| published.placements.clone()));
            match published {
                Some(published) => status.servers.extend(published.servers.iter().cloned()),
                None => status.servers.extend((0..servers).map(|_| None)),
            }
        }
        status
    }

    /// The placements of a pool; `None` if no marks are kept for it.
    pub fn pool(&self, pool: usize) -> Option<&Arc<PoolStatus>> {
        self.pools.get(pool)?.as_ref()
    }

    /// The repair of copies in a pool; `None` if it does not fail over.
    pub fn repair(&self, pool: usize) -> Option<&Arc<RepairStatus>> {
        self.repairs.get(pool)?.as_ref()
    }

    /// The rules of this process have this fingerprint from now on.
    pub fn set_rules(&self, fingerprint: u64) {
        self.pools.iter().flatten().for_each(|pool| pool.set_rules(fingerprint));
    }

    /// The servers that fail over.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ServerStatus>> {
        self.servers.iter().flatten()
    }

    /// The state of a server; `None` if it does not fail over.
    pub(super) fn server(&self, server: usize) -> Option<&ServerStatus> {
        self.servers.get(server)?.as_deref()
    }

    /// Where the guarded keys of a server are; the outer `None` if it does not fail over, the inner one without a valid view.
    pub fn view(&self, server: usize) -> Option<Option<View>> {
        let server = self.server(server)?;
        Some(server.views.get(server.at, self.now()))
    }

    /// Whether an operator has drained a server.
    pub fn is_drained(&self, server: usize) -> bool {
        self.server(server).is_some_and(ServerStatus::is_drained)
    }

    /// Problems of this sidecar, one line each, for `/readyz`.
    pub fn notes(&self) -> Vec<String> {
        let now = self.now();
        let note = |status: &ServerStatus| {
            let (pool, server) = (&status.pool, &status.server);
            if status.unreachable_here.load(Ordering::Relaxed) {
                return Some(format!(
                    "server {server} of pool {pool} is unreachable from here, but not from other sidecars"
                ));
            }
            if status.is_drained() {
                return Some(format!(
                    "server {server} of pool {pool} is drained: its keys stay on its standby servers until kennel server undrain"
                ));
            }
            let has_view = status.views.get(status.at, now).is_some();
            (!has_view && !status.is_withheld()).then(|| format!("server {server} of pool {pool}: where its keys are is unknown, so guarded ones are not served"))
        };
        let pools = self.pools.iter().flatten().flat_map(|pool| pool.notes());
        pools.chain(self.servers.iter().flatten().filter_map(|status| note(status))).collect()
    }

    pub(super) fn now(&self) -> u64 {
        mono(self.start)
    }
}

/// The time of the monotonic clock, in ms, rounded down.
pub(super) fn mono(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl FailoverSource for Status {
    fn state(&self, server: usize) -> Option<FailoverState> {
        let status = self.server(server)?;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Some(FailoverState {
            standby: match status.place.load(Ordering::Relaxed) {
                UNKNOWN => None,
                place => Some(place == STANDBY),
            },
            drained: status.is_drained(),
            view_valid: status.views.get(status.at, self.now()).is_some(),
            unreachable_here: status.unreachable_here.load(Ordering::Relaxed),
            moved_to_standby: count(&status.moved_to_standby),
            moved_back: count(&status.moved_back),
            suspicions: count(&status.suspicions),
        })
    }

    fn placements(&self) -> Vec<PlacementsState> {
        self.pools.iter().flatten().map(|pool| pool.state()).collect()
    }

    fn repairs(&self) -> Vec<RepairState> {
        let state = |repair: &Arc<RepairStatus>| RepairState {
            pool: repair.pool().to_owned(),
            servers_due: repair.servers_due(),
            missing: repair.missing(),
            repaired: repair.repaired(),
        };
        self.repairs.iter().flatten().filter(|repair| repair.is_used()).map(state).collect()
    }
}

impl ServerStatus {
    /// A server of which nothing is known: its name, and where its view is published.
    pub(super) fn new(
        pool: String,
        server: String,
        placements: Option<Arc<PoolStatus>>,
        views: Arc<Views>,
        at: usize,
    ) -> ServerStatus {
        ServerStatus {
            pool,
            server,
            longest_move: Duration::ZERO,
            is_changing: false,
            placements,
            views,
            at,
            place: AtomicU8::new(UNKNOWN),
            had_view: AtomicBool::new(false),
            drained: AtomicBool::new(false),
            is_suspicious: AtomicBool::new(false),
            unreachable_here: AtomicBool::new(false),
            moved_to_standby: AtomicU64::new(0),
            moved_back: AtomicU64::new(0),
            suspicions: AtomicU64::new(0),
            other_window: AtomicU64::new(0),
        }
    }

    /// The same, of a pool with this specification.
    pub(super) fn of(self, spec: &PoolSpec) -> ServerStatus {
        let longest = |failover: &FailoverSpec| failover.window * 4 + failover.recover_after;
        ServerStatus {
            longest_move: spec.failover.as_ref().map_or(Duration::ZERO, longest),
            is_changing: spec.other.is_some(),
            ..self
        }
    }

    /// Its name and that of its pool.
    pub(super) fn name(&self) -> (&str, &str) {
        (&self.server, &self.pool)
    }

    /// How long a planned move of its keys may take, by the configuration.
    pub(super) fn longest_move(&self) -> Duration {
        self.longest_move
    }

    /// Whether the servers of its pool change.
    pub(super) fn is_changing(&self) -> bool {
        self.is_changing
    }

    /// Where its view is published, and its index there.
    pub(super) fn views(&self) -> (&Views, usize) {
        (&self.views, self.at)
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained.load(Ordering::Relaxed)
    }

    /// Whether it does not answer this sidecar, as far as it has noticed.
    pub(super) fn is_silent(&self) -> bool {
        self.is_suspicious.load(Ordering::Relaxed) || self.unreachable_here.load(Ordering::Relaxed)
    }

    fn is_withheld(&self) -> bool {
        self.placements.as_ref().is_some_and(|placements| placements.withholds())
    }

    /// Notes what is known now, and logs what has changed.
    pub(super) fn observe(&self, observed: Observation) {
        for change in self.changes(observed) {
            self.log(change);
        }
    }

    fn changes(&self, observed: Observation) -> Vec<Change> {
        let mut changes = Vec::new();
        let became = |flag: &AtomicBool, now: bool| flag.swap(now, Ordering::Relaxed) != now;
        if observed.view.is_some() {
            self.drained.store(observed.is_drained, Ordering::Relaxed);
        }
        let had_view = match observed.view {
            None if observed.is_moving => self.had_view.load(Ordering::Relaxed),
            view => self.had_view.swap(view.is_some(), Ordering::Relaxed),
        };
        let before = match observed.view {
            Some(view) => self.place.swap(if view.standby { STANDBY } else { OWN }, Ordering::Relaxed),
            None => self.place.load(Ordering::Relaxed),
        };
        match (before, observed.view) {
            (OWN | UNKNOWN, Some(View { standby: true, .. })) => {
                if before == OWN {
                    self.moved_to_standby.fetch_add(1, Ordering::Relaxed);
                }
                changes.push(if observed.is_drained { Change::Drained } else { Change::MovedToStandby });
            }
            (STANDBY, Some(View { standby: false, .. })) => {
                self.moved_back.fetch_add(1, Ordering::Relaxed);
                changes.push(Change::MovedBack);
            }
            (OWN | STANDBY, Some(_)) if !had_view => changes.push(Change::ViewAgain),
            (_, None) if had_view && !observed.is_moving => changes.push(Change::ViewLost),
            _ => {}
        }
        if became(&self.is_suspicious, observed.is_suspicious) && observed.is_suspicious {
            self.suspicions.fetch_add(1, Ordering::Relaxed);
            // Whoever has drained it stops it.
            if !observed.is_drained {
                changes.push(Change::Suspected);
            }
        }
        if became(&self.unreachable_here, observed.unreachable_here) {
            let unreachable = observed.unreachable_here;
            changes.push(if unreachable { Change::UnreachableHere } else { Change::ReachableHere });
        }
        let window =
            observed.other_window.map_or(0, |window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX));
        if self.other_window.swap(window, Ordering::Relaxed) != window {
            changes.push(observed.other_window.map_or(Change::SameWindow, Change::OtherWindow));
        }
        changes
    }

    fn log(&self, change: Change) {
        let (pool, server) = (&self.pool[..], &self.server[..]);
        match change {
            Change::MovedToStandby => {
                warn!(pool, server, "failed over: its guarded keys and tags are on its standby servers");
            }
            Change::Drained => {
                info!(pool, server, "drained: its guarded keys and tags are on its standby servers");
            }
            Change::MovedBack => {
                info!(pool, server, "failed back: its guarded keys and tags are on the server again");
            }
            Change::ViewLost => warn!(
                pool,
                server,
                "no valid view: where its keys are is unknown, so guarded ones are misses and cannot be changed"
            ),
            Change::ViewAgain => info!(pool, server, "valid view again: its guarded keys are served"),
            Change::Suspected => warn!(pool, server, "does not reply: suspected to be dead"),
            Change::UnreachableHere => warn!(
                pool,
                server, "unreachable from here, but not from other sidecars: check the network of this host"
            ),
            Change::ReachableHere => info!(pool, server, "reachable from here again"),
            Change::OtherWindow(fleet) => warn!(
                pool,
                server,
                ?fleet,
                "the fleet uses another window than this sidecar's configuration; the fleet's is in force"
            ),
            Change::SameWindow => info!(pool, server, "the fleet uses the configured window"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_PLACE: View = View { fence: 7, standby: false, inherited: 0 };
    const AWAY: View = View { fence: 8, standby: true, inherited: 0 };

    fn status() -> (Status, Arc<Views>) {
        let views = Arc::new(Views::new(2));
        let server = Arc::new(ServerStatus::new("main".into(), "b:1".into(), None, Arc::clone(&views), 1));
        let (servers, placements) = (vec![None, Some(server)], None);
        let (other_views, views_of) = (None, Some(Arc::clone(&views)));
        let published =
            Arc::new(Published { views: views_of, other_views, servers, placements, repair: None });
        (Status::new(Instant::now(), [(2, Some(&published))]), views)
    }

    fn with(view: Option<View>) -> Observation {
        Observation { view, ..Observation::default() }
    }

    #[test]
    fn each_change_is_reported_once() {
        let (status, _) = status();
        let server = status.server(1).unwrap();
        let later = Duration::from_secs(3);
        for (observed, expected) in [
            (with(None), &[][..]),
            (with(Some(OWN_PLACE)), &[]),
            (with(Some(OWN_PLACE)), &[]),
            (Observation { is_suspicious: true, ..with(Some(OWN_PLACE)) }, &[Change::Suspected]),
            (Observation { is_suspicious: true, ..with(None) }, &[Change::ViewLost]),
            (with(Some(AWAY)), &[Change::MovedToStandby]),
            (with(Some(View { fence: 9, ..AWAY })), &[]),
            (with(None), &[Change::ViewLost]),
            (with(Some(AWAY)), &[Change::ViewAgain]),
            (with(Some(OWN_PLACE)), &[Change::MovedBack]),
            (Observation { is_moving: true, ..with(None) }, &[]),
            (Observation { is_drained: true, ..with(Some(AWAY)) }, &[Change::Drained]),
            (with(Some(OWN_PLACE)), &[Change::MovedBack]),
            (
                Observation { unreachable_here: true, other_window: Some(later), ..with(Some(OWN_PLACE)) },
                &[Change::UnreachableHere, Change::OtherWindow(later)],
            ),
            (with(Some(OWN_PLACE)), &[Change::ReachableHere, Change::SameWindow]),
        ] {
            assert_eq!(server.changes(observed), expected, "{observed:?}");
        }
        let state = status.state(1).unwrap();
        assert_eq!((state.moved_to_standby, state.moved_back, state.suspicions), (2, 2, 1));
        assert_eq!(state.standby, Some(false));
    }

    #[test]
    fn a_sidecar_that_starts_beside_a_fleet_that_failed_over_says_so_and_counts_no_move() {
        let (status, _) = status();
        assert_eq!(status.server(1).unwrap().changes(with(Some(AWAY))), [Change::MovedToStandby]);
        assert_eq!(status.state(1).unwrap().moved_to_standby, 0);
    }

    #[test]
    fn a_view_that_has_ended_is_shown_as_such_even_if_the_monitor_is_stuck() {
        let (status, views) = status();
        assert_eq!((status.state(0), status.view(0)), (None, None));
        assert_eq!(status.state(1).map(|state| (state.standby, state.view_valid)), Some((None, false)));
        views.publish(1, Some((OWN_PLACE, u64::MAX >> 1)));
        status.server(1).unwrap().observe(with(Some(OWN_PLACE)));
        assert_eq!(status.view(1), Some(Some(OWN_PLACE)));
        assert_eq!(status.notes(), [] as [&str; 0]);
        views.publish(1, Some((OWN_PLACE, 0)));
        assert!(!status.state(1).unwrap().view_valid);
        let unknown =
            "server b:1 of pool main: where its keys are is unknown, so guarded ones are not served";
        assert_eq!(status.notes(), [unknown]);
        let unreachable = Observation { unreachable_here: true, ..with(None) };
        status.server(1).unwrap().observe(unreachable);
        let here = "server b:1 of pool main is unreachable from here, but not from other sidecars";
        assert_eq!(status.notes(), [here]);
    }
}
