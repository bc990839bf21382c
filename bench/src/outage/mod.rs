//! The loads `a-server-dies` and `a-server-hangs`: what the failure of one server does to the database and to the clients,
//! second by second.
//!
//! Each variant has servers and frontends of its own, and the variants run one after the other. The database is simulated: a
//! build of a value takes [`BUILD`], however many run.

mod client;
mod frontend;
mod plot;
mod record;
mod tables;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::contender::{Contender, Programs};
use client::{Client, Workload};
use frontend::Running;
use record::{Notes, Second};

/// Clients, distributed over the frontends.
const CLIENTS: usize = 40;
/// Hot keys of each server.
const KEYS_PER_SERVER: usize = 10;
const SERVERS: usize = 3;
/// Sidecars, or twemproxies.
const FRONTENDS: usize = 2;
/// The duration of a build.
const BUILD: Duration = Duration::from_millis(200);
/// The longest wait for a reply of a server: of Kennel (its default), of twemproxy (`timeout`), and of a client without a proxy.
const SERVER_TIMEOUT: Duration = Duration::from_millis(500);
/// The server that fails.
const VICTIM: usize = 0;
/// How long before the end of a hang the keys of the server are deleted.
const DELETE_BEFORE: Duration = Duration::from_secs(1);
/// Time before the first measured second.
const WARM: Duration = Duration::from_secs(1);
/// The longest sleep without a look at Ctrl-C.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// One of these loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    fault: Fault,
}

/// What happens to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// SIGKILL, then a restart without contents.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Hang,
}

/// All of them.
pub(crate) const OUTAGES: [Outage; 2] = [
    Outage {
        name: "a-server-dies",
        about: "one of 3 servers is killed, and restarted empty; second by second; only when named",
        fault: Fault::Kill,
    },
    Outage {
        name: "a-server-hangs",
        about: "one of 3 servers stops (SIGSTOP), and continues with its contents; the same",
        fault: Fault::Hang,
    },
];

impl Outage {
    /// The fault and its end, as in the tables and the plot.
    fn marks(self) -> [&'static str; 2] {
        match self.fault {
            Fault::Kill => ["killed", "restarted empty"],
            Fault::Hang => ["stopped", "continued"],
        }
    }
}

/// The phases of a run, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    pub(crate) healthy: usize,
    pub(crate) down: usize,
    pub(crate) back: usize,
}

impl Phases {
    /// Long enough for every default of Kennel: failing over, and coming back after `recover_after`.
    pub(crate) const FULL: Phases = Phases { healthy: 3, down: 10, back: 14 };
    /// Whether it works.
    pub(crate) const QUICK: Phases = Phases { healthy: 1, down: 3, back: 2 };

    fn total(self) -> usize {
        self.healthy + self.down + self.back
    }
}

/// The way to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// The clients distribute the keys themselves.
    Direct,
    Twemproxy,
    /// With `auto_eject_hosts`.
    Ejecting,
    /// One guarded rule; everything else at its default.
    Kennel,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Direct => "direct",
            Variant::Twemproxy => "twemproxy",
            Variant::Ejecting => "twemproxy, auto_eject_hosts",
            Variant::Kennel => "Kennel",
        }
    }

    /// Those of these contenders: `twemproxy` stands for both of its variants, `guarded` for Kennel.
    fn of(contenders: &[Contender]) -> Vec<Variant> {
        let pairs = [
            (Contender::Direct, Variant::Direct),
            (Contender::Twemproxy, Variant::Twemproxy),
            (Contender::Twemproxy, Variant::Ejecting),
            (Contender::KennelGuarded(0), Variant::Kennel),
        ];
        pairs.into_iter().filter(|(of, _)| contenders.contains(of)).map(|(_, variant)| variant).collect()
    }
}

/// What one variant did.
struct Course {
    variant: Variant,
    seconds: Vec<Second>,
}

/// Runs all variants of these contenders. Returns the tables, as Markdown, and the plot, as SVG.
pub(crate) fn measure(
    outage: Outage,
    phases: Phases,
    contenders: &[Contender],
    programs: &Programs,
    directory: &Path,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str),
) -> Result<(String, String), String> {
    let mut courses = Vec::new();
    for variant in Variant::of(contenders) {
        progress(&format!("{} {}", outage.name, variant.name()));
        let directory = directory.join(format!("{}-{variant:?}", outage.name));
        fs::create_dir(&directory).map_err(|error| error.to_string())?;
        let course = run(outage, phases, variant, programs, &directory, stop);
        courses.push(course.map_err(|error| format!("{}: {}: {error}", outage.name, variant.name()))?);
    }
    progress("");
    if courses.is_empty() {
        return Err(format!("{}: --only names no variant: direct, twemproxy or guarded", outage.name));
    }
    Ok((tables::all(outage, phases, &courses), plot::svg(outage, phases, &courses)))
}

fn run(
    outage: Outage,
    phases: Phases,
    variant: Variant,
    programs: &Programs,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Course, String> {
    let mut running = Running::start(variant, programs, directory)?;
    let keys = client::fill(variant, &running)?;
    let workload = Workload::new(keys, Instant::now() + WARM);
    let (healthy, down, total) = (phases.healthy, phases.healthy + phases.down, phases.total());
    let notes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| Client::new(number, variant, &running, &workload))
            .map(|client| scope.spawn(move || client.run()))
            .collect();
        let outcome = (|| {
            sleep_until(workload.start + seconds(healthy), stop)?;
            match outage.fault {
                Fault::Kill => running.kill(VICTIM),
                Fault::Hang => running.signal(VICTIM, "STOP")?,
            }
            if outage.fault == Fault::Hang {
                sleep_until(workload.start + seconds(down) - DELETE_BEFORE, stop)?;
                let client = Client::new(CLIENTS, variant, &running, &workload);
                scope.spawn(move || client.delete());
            }
            sleep_until(workload.start + seconds(down), stop)?;
            match outage.fault {
                Fault::Kill => running.restart(VICTIM, programs, directory)?,
                Fault::Hang => running.signal(VICTIM, "CONT")?,
            }
            sleep_until(workload.start + seconds(total), stop)
        })();
        workload.over.store(true, Ordering::Relaxed);
        if outcome.is_err() {
            // Clients may wait for a server that stands still.
            running.end();
        }
        let mut notes = Notes::default();
        for client in clients {
            notes.extend(client.join().map_err(|_| "a client panicked")??);
        }
        outcome.map(|()| notes)
    })?;
    Ok(Course { variant, seconds: record::by_second(&notes, total) })
}

fn seconds(n: usize) -> Duration {
    Duration::from_secs(n as u64)
}

fn sleep_until(end: Instant, stop: &AtomicBool) -> Result<(), String> {
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if stop.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        std::thread::sleep(left.min(CHECK_INTERVAL));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::CONTENDERS;

    #[test]
    fn all_contenders_are_all_variants_and_each_selects_its_own() {
        use Variant::*;
        assert_eq!(Variant::of(&CONTENDERS), [Direct, Twemproxy, Ejecting, Kennel]);
        assert_eq!(Variant::of(&[Contender::Twemproxy]), [Twemproxy, Ejecting]);
        assert_eq!(Variant::of(&[Contender::KennelRaw]), []);
    }

    #[test]
    fn one_load_with_all_variants_takes_less_than_two_minutes() {
        let variants = Variant::of(&CONTENDERS).len();
        assert!((seconds(Phases::FULL.total()) + WARM) * variants as u32 <= Duration::from_secs(112));
    }
}
