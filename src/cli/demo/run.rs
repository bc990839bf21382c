//! The demonstration: runs the scenario without and with the guard, and displays the result.

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::runtime;
use tokio::task::LocalSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::clients::{self, Workload};
use super::cluster::{Cluster, Guard};
use super::history::History;
use super::measurement::Measurement;
use super::scenario::Scenario;
use super::screen::Screen;
use super::second_act;

/// The exit code of a command that SIGINT ended, by shell convention.
const INTERRUPTED: u8 = 130;
/// The interval at which the chart on a terminal is redrawn.
const REDRAW: Duration = Duration::from_millis(100);

/// Runs the demonstration on stdout. Returns 0, also if the reader of a pipe has closed it; 1 if it could not be started; 130 on
/// Ctrl-C.
pub fn run() -> ExitCode {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let screen = Screen::stdout();
    let code = LocalSet::new().block_on(&runtime, async {
        tokio::select! {
            shown = show(&screen) => match shown {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) if is_closed_pipe(&*error) => ExitCode::SUCCESS,
                Err(error) => failed(&*error),
            },
            _ = tokio::signal::ctrl_c() => {
                // If stdout is closed, there is nothing to do about it.
                let _ = screen.interrupted();
                ExitCode::from(INTERRUPTED)
            }
        }
    });
    // Do not wait for a sidecar that is still stopping.
    runtime.shutdown_background();
    code
}

fn failed(error: &dyn Error) -> ExitCode {
    eprintln!("kennel demo: {error}");
    ExitCode::FAILURE
}

fn is_closed_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn show(screen: &Screen) -> Result<(), Box<dyn Error>> {
    let scenario = &Scenario::default();
    screen.begin(scenario)?;
    let without = measure_and_draw(scenario, Guard::Off, screen).await?;
    let with = measure_and_draw(scenario, Guard::On, screen).await?;
    screen.end(scenario, &without, &with)?;

    let scenario = &Scenario::a_server_dies();
    second_act::begin(scenario)?;
    let without = measure_and_draw(scenario, Guard::Off, screen).await?;
    let with = measure_and_draw(scenario, Guard::On, screen).await?;
    second_act::end(screen, scenario, &without, &with)?;
    Ok(())
}

async fn measure_and_draw(
    scenario: &Scenario,
    guard: Guard,
    screen: &Screen,
) -> Result<Measurement, Box<dyn Error>> {
    screen.run_begins(guard, scenario)?;
    let draw = |at, workload: &Workload| screen.progress(guard, scenario, at, &workload.database);
    let measured = measure(scenario, guard, draw).await?;
    screen.run_ends(guard, &measured)?;
    Ok(measured)
}

/// One run, with a cluster of its own, so that no value of the other run is cached.
async fn measure(
    scenario: &Scenario,
    guard: Guard,
    mut progress: impl FnMut(Duration, &Workload) -> io::Result<()>,
) -> Result<Measurement, Box<dyn Error>> {
    let cluster = Cluster::start(scenario.sidecars, scenario.memcacheds, guard)?;
    let mut clients = clients::connect((0..scenario.clients).map(|client| cluster.address(client))).await?;
    if let (Some(_), Some(client)) = (scenario.server_dies, clients.first_mut()) {
        clients::store_all(client, scenario).await?;
    }
    let workload = Rc::new(Workload::new(*scenario));
    let drawing = async {
        let mut redraw = interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let now: Instant = redraw.tick().await;
            if let Err(error) = progress(now.saturating_duration_since(workload.start), &workload) {
                return error;
            }
        }
    };
    let dying = async {
        let Some(after) = scenario.server_dies else { return std::future::pending().await };
        sleep_until(workload.start + after).await;
        match cluster.kill_holder(&clients::name(0)).await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    tokio::select! {
        () = clients::run(clients, &workload) => {}
        error = dying => return Err(error.into()),
        error = drawing => return Err(error.into()),
    }
    let stale = cluster.stale_served();
    // On another thread, because this one must handle Ctrl-C.
    tokio::task::spawn_blocking(|| cluster.stop()).await?;
    let (load, most_of_one) = (workload.database.load(), workload.database.most_of_one());
    let history = workload.history.replace(History::new(0, scenario.ttl));
    Ok(Measurement { clients: history.figures(), load, most_of_one, stale })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::database::peak;
    use crate::cli::demo::history::Outcome;

    fn measured(scenario: Scenario, guard: Guard) -> Measurement {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, measure(&scenario, guard, |_, _| Ok(()))).unwrap()
    }

    #[test]
    fn without_the_guard_a_dead_server_costs_a_rebuild_a_request_and_only_its_keys() {
        let dies = Some(Duration::from_secs(1));
        let scenario = Scenario { seconds: 3, server_dies: dies, ..Scenario::a_server_dies() };
        let without = measured(scenario, Guard::Off);
        assert_eq!(without.clients.failures, 0);
        let before = without.load.first().copied().unwrap();
        assert!(before.0 >= Duration::from_secs(1), "the values were stored before: {before:?}");
        assert!(
            without.most_of_one > 1 && without.clients.refused > scenario.keys,
            "{}",
            without.most_of_one
        );
        let letters = |of| without.clients.trace.iter().filter(|event| event.1 == of).count();
        assert_eq!(letters(Outcome::Fill), 0, "the first key's server is the one that died");
        assert!(letters(Outcome::Hit) > 0 && letters(Outcome::Miss) > 1);
    }

    #[test]
    fn without_the_guard_many_clients_rebuild_and_with_it_one_per_key() {
        let scenario = Scenario { seconds: 3, ..Scenario::default() };
        let without = measured(scenario, Guard::Off);
        assert_eq!(without.clients.failures, 0);
        assert!(peak(&without.load) > scenario.keys, "{} at once", peak(&without.load));
        assert!(without.clients.most_rebuilds > 1 && without.clients.rebuilds > without.clients.expiries);
        assert_eq!(without.stale, 0);

        let with = measured(scenario, Guard::On);
        assert_eq!(with.clients.failures, 0);
        assert!(peak(&with.load) <= scenario.keys, "{} at once", peak(&with.load));
        assert_eq!(with.clients.most_rebuilds, 1, "rebuilds of one expiry");
        // Every key is rebuilt when it is cold, and a value whose TTL is 2 s expires within 3 s.
        assert!(with.clients.expiries > scenario.keys, "{} expiries", with.clients.expiries);
        // Clients can identify only some of the values that sidecars serve stale.
        let seen = with.clients.trace.iter().filter(|event| event.1 == Outcome::Stale).count();
        assert!(seen > 0 && seen <= with.stale, "{seen} against {}", with.stale);
        // Both runs ended by themselves.
        let last = |run: &Measurement| run.load.last().copied().unwrap();
        for run in [&without, &with] {
            assert!(
                last(run).0 < scenario.duration() + scenario.rebuild * 4 && last(run).1 == 0,
                "{:?}",
                last(run)
            );
        }
    }
}
