//! The output of the second act: a memcached dies.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use super::cluster::Guard;
use super::database;
use super::measurement::Measurement;
use super::scenario::Scenario;
use super::screen::{Screen, count, put, time, word, wrap};

/// The part of a run at its end in which everything should be as before.
const LAST: Duration = Duration::from_secs(3);

pub(super) fn begin(scenario: &Scenario) -> io::Result<()> {
    put(&introduction(scenario))
}

pub(super) fn end(
    screen: &Screen,
    scenario: &Scenario,
    without: &Measurement,
    with: &Measurement,
) -> io::Result<()> {
    let mut text = String::from("\nConcurrent rebuilds at the database, on the same scale:\n");
    let scale = database::peak(&without.load).max(database::peak(&with.load));
    for (guard, run) in [(Guard::Off, without), (Guard::On, with)] {
        let _ = writeln!(text, "\n{} the guard", word(guard));
        text.push_str(&screen.chart(guard, scenario, run, scale));
    }
    let _ =
        write!(text, "\n{}\n{}\n", table(scenario, without, with), wrap(&summary(scenario, without, with)));
    put(&text)
}

fn introduction(scenario: &Scenario) -> String {
    let Scenario { clients, memcacheds, keys, seconds, .. } = scenario;
    let text = format!(
        "A server dies. The same {clients} clients read {keys} hot keys, whose values outlive the run, so that no rebuild is \
         needed. After {} s the memcached of page:1 dies, one of {memcacheds}, and stays dead. The sidecars agree on that, and keep \
         its guarded keys on the others. {seconds} s without the guard, then {seconds} s with it.",
        scenario.server_dies.unwrap_or_default().as_secs()
    );
    format!("\n\n{}\n\n", wrap(&text))
}

/// The rebuilds that began in the last part of a run.
fn in_the_end(scenario: &Scenario, run: &Measurement) -> usize {
    database::begun_since(&run.load, scenario.duration().saturating_sub(LAST))
}

/// The figures of both runs.
fn table(scenario: &Scenario, without: &Measurement, with: &Measurement) -> String {
    let mut text = format!("{:<38}{:>16}{:>16}\n", "", "without guard", "with guard");
    let mut row = |name: &str, cell: &dyn Fn(&Measurement) -> String| {
        let _ = writeln!(text, "{name:<38}{:>16}{:>16}", cell(without), cell(with));
    };
    row("requests", &|run| count(run.clients.requests));
    row("  failed", &|run| count(run.clients.failures));
    row("rebuilds", &|run| count(run.clients.rebuilds));
    row(&format!("  in the last {} s", LAST.as_secs()), &|run| count(in_the_end(scenario, run)));
    row("  concurrent, maximum", &|run| count(database::peak(&run.load)));
    row("  concurrent, of one key, maximum", &|run| count(run.most_of_one));
    row("rebuilt values that were not stored", &|run| count(run.clients.refused));
    row("time until a client has its value, p99", &|run| time(run.clients.p99));
    text
}

/// Two sentences, one per run.
fn summary(scenario: &Scenario, without: &Measurement, with: &Measurement) -> String {
    let outcome = |run: &Measurement| {
        format!(
            "{} rebuilds, up to {} of one key at once, and {} in the last {} s",
            count(run.clients.rebuilds),
            run.most_of_one,
            count(in_the_end(scenario, run)),
            LAST.as_secs()
        )
    };
    // Each sidecar permits one rebuild of a key at a time. Once the keys are on other servers, nothing is rebuilt.
    let protected = with.most_of_one <= scenario.sidecars && in_the_end(scenario, with) == 0;
    let verdict = if protected { "it cost" } else { "the database was NOT protected: it cost" };
    format!(
        "Without the guard, the dead memcached cost {}. With it, {verdict} {}.",
        outcome(without),
        outcome(with)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::history::Figures;
    use crate::cli::demo::screen::WIDTH;

    fn run(rebuilds: usize, most_of_one: usize, last: Duration) -> Measurement {
        let clients = Figures { requests: 9_999, rebuilds, refused: 1_234, ..Figures::default() };
        let load = vec![(Duration::from_secs(2), 7), (Duration::from_secs(3), 0), (last, 1)];
        Measurement { clients, load, most_of_one, stale: 0 }
    }

    #[test]
    fn the_figures_are_those_of_each_run_and_lines_fit() {
        let scenario = Scenario::a_server_dies();
        let (without, with) = (run(1_500, 9, Duration::from_secs(11)), run(12, 2, Duration::from_secs(8)));
        let table = table(&scenario, &without, &with);
        for (name, left, right) in [
            ("rebuilds", "1,500", "12"),
            ("  in the last 3 s", "1", "0"),
            ("  concurrent, of one key, maximum", "9", "2"),
            ("rebuilt values that were not stored", "1,234", "1,234"),
        ] {
            assert!(table.contains(&format!("{name:<38}{left:>16}{right:>16}\n")), "{name}:\n{table}");
        }
        let summary = summary(&scenario, &without, &with);
        assert!(
            summary.contains("With it, it cost 12 rebuilds, up to 2 of one key at once, and 0 in"),
            "{summary}"
        );
        for text in [introduction(&scenario), wrap(&summary), table] {
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
    }

    #[test]
    fn a_database_that_was_not_protected_is_reported() {
        let scenario = Scenario::a_server_dies();
        let without = run(1_500, 9, Duration::from_secs(11));
        for (most_of_one, last, protected) in [(2, 8, true), (3, 8, false), (2, 10, false)] {
            let text = summary(&scenario, &without, &run(12, most_of_one, Duration::from_secs(last)));
            assert_eq!(text.contains("NOT protected"), !protected, "{text}");
        }
    }
}
