//! `kennel demo`: the same crowd before the same slow source, first without the guard, then with it.
//!
//! ```text
//!  crowd ── get, set ──▶ two sidecars ──▶ three memcacheds     all in this process, over loopback
//!    │ miss                  (raw, then guarded)
//!    └────▶ source: slow, counts how many rebuild at once
//! ```
//!
//! Nothing that is shown is known beforehand: every figure comes from what the clients, the source and the sidecars counted.
//! If the guard did not protect, the figures would say so.

mod clients;
mod history;
mod screen;
mod database;
mod cluster;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use clients::Workload;
use cluster::{Cluster, Guard};
use database::Step;
use history::Figures;
use screen::Screen;

/// What a shell takes an interrupted command to exit with.
const INTERRUPTED: u8 = 130;
/// How often the picture on a terminal is drawn anew.
const REDRAW: Duration = Duration::from_millis(100);

/// Who does what, for how long. The same on both sides.
#[derive(Debug, Clone, Copy)]
struct Demo {
    /// How long each of the two sides lasts, in seconds, from 1.
    seconds: u32,
    /// How many clients there are, divided over the sidecars.
    clients: usize,
    /// How many sidecars; they know nothing of each other.
    sidecars: usize,
    /// How many memcacheds, which all the sidecars share.
    memcacheds: usize,
    /// How many keys the clients choose from, from 1.
    keys: usize,
    /// The TTL that values are stored with, in seconds; from 2, so that a rebuild's end and the next expiry can be told apart.
    ttl: u32,
    /// How long a rebuild takes.
    rebuild: Duration,
    /// The longest that a client pauses between two requests; the shortest is half of it.
    pause: Duration,
}

impl Default for Demo {
    /// What `kennel demo` runs: 16 s, and what it takes to start and stop twice.
    fn default() -> Demo {
        Demo {
            seconds: 8,
            clients: 60,
            sidecars: 2,
            memcacheds: 3,
            keys: 3,
            ttl: 2,
            rebuild: Duration::from_millis(250),
            pause: Duration::from_millis(50),
        }
    }
}

/// One side, as it was measured.
struct Side {
    /// By the clients.
    seen: Figures,
    /// By the source.
    steps: Vec<Step>,
    /// By the sidecars.
    stale: usize,
}

/// Runs it on stdout and exits with 0, also if the reader of a pipe has gone; with 1 if it could not be started, with 130
/// on Ctrl-C.
pub fn run() -> ExitCode {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let demo = Demo::default();
    let screen = Screen::stdout();
    let code = LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            shown = demo.show(&screen) => match shown {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) if reader_gone(&*error) => ExitCode::SUCCESS,
                Err(error) => failed(&*error),
            },
            _ = tokio::signal::ctrl_c() => {
                // Nobody to tell if even this cannot be written.
                let _ = screen.interrupted();
                ExitCode::from(INTERRUPTED)
            }
        }
    });
    // A sidecar that is still stopping is not waited for.
    runtime.shutdown_background();
    code
}

fn failed(error: &dyn Error) -> ExitCode {
    eprintln!("kennel demo: {error}");
    ExitCode::FAILURE
}

fn reader_gone(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

impl Demo {
    /// How long one side lasts.
    fn lasts(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    async fn show(&self, screen: &Screen) -> Result<(), Box<dyn Error>> {
        screen.begin(self)?;
        let without = self.watch(Guard::Off, screen).await?;
        let with = self.watch(Guard::On, screen).await?;
        screen.end(self, &without, &with)?;
        Ok(())
    }

    /// One side, drawn while it runs.
    async fn watch(&self, guard: Guard, screen: &Screen) -> Result<Side, Box<dyn Error>> {
        screen.side_begins(guard, self)?;
        let side = self.side(guard, |at, scene| screen.progress(guard, self, at, &scene.source)).await?;
        screen.side_ends(guard, &side)?;
        Ok(side)
    }

    /// One side: a stage of its own, so that nothing of the other is left in a cache.
    async fn side(
        &self,
        guard: Guard,
        mut progress: impl FnMut(Duration, &Workload) -> io::Result<()>,
    ) -> Result<Side, Box<dyn Error>> {
        let stage = Cluster::start(self.sidecars, self.memcacheds, guard)?;
        let visitors = clients::gather((0..self.clients).map(|client| stage.address(client))).await?;
        let scene = Rc::new(Workload::new(*self));
        let drawing = async {
            let mut redraw = interval(REDRAW);
            redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
            loop {
                let now: Instant = redraw.tick().await;
                if let Err(error) = progress(now.saturating_duration_since(scene.start), &scene) {
                    return error;
                }
            }
        };
        tokio::select! {
            () = clients::run(visitors, &scene) => {}
            error = drawing => return Err(error.into()),
        }
        let stale = stage.stale_served();
        // Not here: Ctrl-C is listened to on this thread.
        tokio::task::spawn_blocking(|| stage.stop()).await?;
        let ledger = scene.ledger.replace(history::History::new(0, self.ttl));
        Ok(Side { seen: ledger.figures(), steps: scene.source.steps(), stale })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(demo: Demo, guard: Guard) -> Side {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, demo.side(guard, |_, _| Ok(()))).unwrap()
    }

    #[test]
    fn without_the_guard_a_crowd_piles_on_and_with_it_one_client_a_key_rebuilds() {
        let demo = Demo { seconds: 3, ..Demo::default() };
        let without = measure(demo, Guard::Off);
        assert_eq!(without.seen.failures, 0);
        assert!(database::peak(&without.steps) > demo.keys, "{} at once", database::peak(&without.steps));
        assert!(without.seen.most_rebuilds > 1 && without.seen.rebuilds > without.seen.expiries);
        assert_eq!(without.stale, 0);

        let with = measure(demo, Guard::On);
        assert_eq!(with.seen.failures, 0);
        assert!(database::peak(&with.steps) <= demo.keys, "{} at once", database::peak(&with.steps));
        assert_eq!(with.seen.most_rebuilds, 1, "rebuilds of one expiry");
        // Every key is rebuilt when it is cold, and in 3 s a value that lives for at most 2 s expires.
        assert!(with.seen.expiries > demo.keys, "{} expiries", with.seen.expiries);
        // What a client can tell to be stale is some of what the sidecars know to be.
        let told = with.seen.trace.iter().filter(|event| event.1 == history::Outcome::Stale).count();
        assert!(told > 0 && told <= with.stale, "{told} against {}", with.stale);
        // Both have ended by themselves, at the end.
        let last = |side: &Side| side.steps.last().copied().unwrap();
        for side in [&without, &with] {
            assert!(last(side).0 < demo.lasts() + demo.rebuild * 4 && last(side).1 == 0, "{:?}", last(side));
        }
    }
}
