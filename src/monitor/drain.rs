//! Draining a server: an operator has its keys moved to their standby servers before it is stopped, and back afterwards.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::status::{ServerStatus, Status};
use crate::failover::{View, Wish};

/// How long the keys may take to move, or to return, beyond what the configuration says.
const LIMIT: Duration = Duration::from_secs(30);
/// After a drain: how long what is in flight in the old place, through any sidecar, has to end before the server is stopped.
const IN_FLIGHT: Duration = Duration::from_secs(1);
/// How long another server may take to be known as in use.
const SETTLES: Duration = Duration::from_secs(3);
/// The pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Why the keys of a server were not moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotMoved {
    /// No pool has a server of this name. Those that there are.
    Unknown(String, Vec<String>),
    /// Its pool does not fail over.
    NoFailover(String),
    /// It is drained, or not.
    Already(String, Wish),
    /// Its keys are away because it does not answer, and return by themselves.
    Failed(String),
    /// Another server of the pool, which may be the standby server of some keys, is away or does not answer.
    OtherAway(String, String),
    /// The servers of its pool change.
    Changing(String),
    /// They have not moved so far.
    TimedOut(String, Wish),
}

impl fmt::Display for NotMoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotMoved::Unknown(name, known) => {
                write!(f, "no pool has a server {name}: there are {}", known.join(", "))
            }
            NotMoved::NoFailover(name) => {
                write!(f, "the pool of server {name} does not fail over, so its keys have no standby server")
            }
            NotMoved::Already(name, Wish::Drain) => write!(f, "server {name} is drained already"),
            NotMoved::Already(name, Wish::Return) => {
                write!(f, "server {name} is not drained: its keys are on it")
            }
            NotMoved::Failed(name) => write!(
                f,
                "server {name} is not drained: its keys are on their standby servers because it has failed, and return by themselves"
            ),
            NotMoved::OtherAway(name, other) => write!(
                f,
                "server {other} is away or does not answer, and is the standby server of some keys of {name}: one server of a pool at a time"
            ),
            NotMoved::Changing(name) => {
                write!(
                    f,
                    "the servers of the pool of {name} are being changed: drain it before or afterwards"
                )
            }
            NotMoved::TimedOut(name, Wish::Drain) => {
                write!(f, "the keys of server {name} have not moved: the log, and kennel fleet, tell why")
            }
            NotMoved::TimedOut(name, Wish::Return) => write!(
                f,
                "server {name} is no longer drained, but its keys have not returned yet: they do once it has answered for recover_after"
            ),
        }
    }
}

impl Status {
    /// Has the keys of the servers of this name moved to their standby servers, or lets them return, and waits for it. `names`: the
    /// servers of all pools.
    ///
    /// # Errors
    /// Why they have not moved.
    pub async fn move_keys(&self, name: &str, wish: Wish, names: &[String]) -> Result<String, NotMoved> {
        let named: Vec<Arc<ServerStatus>> =
            self.all().filter(|server| server.name().0 == name).map(Arc::clone).collect();
        if named.is_empty() {
            return Err(match names.iter().any(|known| known == name) {
                true => NotMoved::NoFailover(name.into()),
                false => NotMoved::Unknown(name.into(), names.to_vec()),
            });
        }
        // The last move may have ended elsewhere only so far.
        let until = Instant::now() + SETTLES;
        while let Err(why) = named.iter().try_for_each(|server| self.refuse(server, wish)) {
            if Instant::now() >= until || !matches!(why, NotMoved::OtherAway(..)) {
                return Err(why);
            }
            sleep(LOOK_AGAIN).await;
        }
        let limit = named.iter().map(|server| server.longest_move()).max().unwrap_or_default();
        let until = Instant::now() + limit + LIMIT;
        let ask = |wish| named.iter().for_each(|server| server.views().0.ask(server.views().1, wish));
        // Withdrawn even if nobody waits any more.
        let _asked = Asked(&named);
        ask(Some(wish));
        while !named.iter().all(|server| self.has_moved(server, wish)) {
            if Instant::now() >= until {
                return Err(NotMoved::TimedOut(name.into(), wish));
            }
            sleep(LOOK_AGAIN).await;
        }
        if wish == Wish::Drain {
            sleep(IN_FLIGHT).await;
        }
        let pools: Vec<_> = named.iter().map(|server| server.name().1).collect();
        let pools = pools.join(", ");
        Ok(match wish {
            Wish::Drain => {
                format!(
                    "drained: the guarded keys, tags and copies of {name} (pool {pools}) are on their standby servers\n"
                )
            }
            Wish::Return => {
                format!("the guarded keys, tags and copies of {name} (pool {pools}) are on it again\n")
            }
        })
    }

    fn refuse(&self, server: &Arc<ServerStatus>, wish: Wish) -> Result<(), NotMoved> {
        let (name, pool) = server.name();
        if server.is_changing() {
            return Err(NotMoved::Changing(name.into()));
        }
        match (wish, self.place(server)) {
            (_, Some(View { standby: true, .. })) if server.is_drained() => match wish {
                Wish::Drain => return Err(NotMoved::Already(name.into(), wish)),
                Wish::Return => return Ok(()),
            },
            (Wish::Return, Some(View { standby: true, .. })) => return Err(NotMoved::Failed(name.into())),
            (Wish::Return, _) => return Err(NotMoved::Already(name.into(), wish)),
            _ => {}
        }
        let is_away = |other: &&Arc<ServerStatus>| {
            !Arc::ptr_eq(other, server)
                && other.name().1 == pool
                && (other.is_silent() || self.place(other).is_none_or(|view| view.standby))
        };
        match self.all().find(is_away) {
            Some(other) => Err(NotMoved::OtherAway(name.into(), other.name().0.into())),
            None => Ok(()),
        }
    }

    fn place(&self, server: &ServerStatus) -> Option<View> {
        let (views, at) = server.views();
        views.get(at, self.now())
    }

    fn has_moved(&self, server: &ServerStatus, wish: Wish) -> bool {
        let wanted = |view: View| match wish {
            Wish::Drain => view.standby && server.is_drained(),
            Wish::Return => !view.standby,
        };
        self.place(server).is_some_and(wanted)
    }
}

/// Withdraws what was asked for.
struct Asked<'a>(&'a [Arc<ServerStatus>]);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        for (views, at) in self.0.iter().map(|server| server.views()) {
            views.ask(at, None);
        }
    }
}
