//! The output: animated and in colour on a terminal, plain lines otherwise.

use std::env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use super::cluster::Guard;
use super::database::{self, Database};
use super::history;
use super::measurement::Measurement;
use super::scenario::Scenario;

/// The largest width of the output, in characters.
pub(super) const WIDTH: usize = 78;
/// The width of a chart in columns.
const COLUMNS: usize = 64;
/// The height of a chart in lines.
const ROWS: usize = 5;
/// Bars in eighths of a line.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Moves the cursor to the start of the line and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// stdout and its capabilities.
pub(super) struct Screen {
    /// Whether a line can be redrawn.
    live: bool,
    colour: bool,
}

impl Screen {
    /// Detects the capabilities: `live` on a terminal other than `TERM=dumb`; colour unless `NO_COLOR` (no-color.org) is set.
    pub(super) fn stdout() -> Screen {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let live = io::stdout().is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        Screen { live, colour: live && set("NO_COLOR").is_none() }
    }

    pub(super) fn begin(&self, scenario: &Scenario) -> io::Result<()> {
        put(&introduction(scenario))
    }

    /// A run is about to start.
    pub(super) fn run_begins(&self, guard: Guard, scenario: &Scenario) -> io::Result<()> {
        if self.live {
            Ok(())
        } else {
            put(&format!("{} the guard, {} s …\n", word(guard), scenario.seconds))
        }
    }

    /// Draws the state of a run that began `at` ago.
    pub(super) fn progress(
        &self,
        guard: Guard,
        scenario: &Scenario,
        at: Duration,
        database: &Database,
    ) -> io::Result<()> {
        if !self.live {
            return Ok(());
        }
        let past = (at.as_secs_f64() / scenario.duration().as_secs_f64() * COLUMNS as f64) as usize;
        let columns = database::columns(&database.load(), scenario.duration(), COLUMNS);
        let mut bars = String::new();
        for &running in columns.iter().take(past + 1) {
            bars.push(BARS[eighths(running, scenario.clients, 1)]);
        }
        let running = database.running();
        let label = format!("{:<8}", word(guard));
        put(&format!("{CLEAR_LINE}{label}{}{running:>4}", self.paint(guard, &format!("{bars:<COLUMNS$}"))))
    }

    /// A run has ended.
    pub(super) fn run_ends(&self, guard: Guard, run: &Measurement) -> io::Result<()> {
        let start = if self.live { CLEAR_LINE } else { "" };
        let (rebuilds, requests) = (count(run.clients.rebuilds), count(run.clients.requests));
        let word = word(guard);
        put(&format!("{start}{word} the guard: {requests} requests, {rebuilds} rebuilds\n"))
    }

    /// After Ctrl-C: ends the line, so that the shell's prompt is on its own.
    pub(super) fn interrupted(&self) -> io::Result<()> {
        put("\n")
    }

    pub(super) fn end(
        &self,
        scenario: &Scenario,
        without: &Measurement,
        with: &Measurement,
    ) -> io::Result<()> {
        let mut text = String::from("\nConcurrent rebuilds at the database, on the same scale:\n");
        let scale = database::peak(&without.load).max(database::peak(&with.load));
        for (guard, run) in [(Guard::Off, without), (Guard::On, with)] {
            let _ = writeln!(text, "\n{} the guard", word(guard));
            text.push_str(&self.chart(guard, scenario, run, scale));
        }
        let _ = write!(
            text,
            "\n        M miss: the client rebuilds     W rebuilt value stored\n        \
             H hit                           S hit with the old value during a rebuild\n        \
             A column covers {} ms and shows the first of M, W, S, H that occurred\n        \
             in it, or nothing if there was no reply.\n\n",
            scenario.duration().as_millis() / COLUMNS as u128
        );
        let _ = write!(text, "{}\n{}\n", Table { without, with }, wrap(&summary(scenario, without, with)));
        put(&text)
    }

    /// The load of the database over time, and below it the trace of the first key.
    pub(super) fn chart(&self, guard: Guard, scenario: &Scenario, run: &Measurement, scale: usize) -> String {
        let columns = database::columns(&run.load, scenario.duration(), COLUMNS);
        let mut text = String::new();
        for (row, line) in bars(&columns, scale).into_iter().enumerate() {
            let label = if row == 0 { scale.to_string() } else { String::new() };
            let _ = writeln!(text, "{label:>6} ┤{}", self.paint(guard, line.trim_end()));
        }
        let _ = writeln!(text, "     0 ┼{}", "─".repeat(COLUMNS));
        let trace = history::timeline(&run.clients.trace, scenario.duration(), COLUMNS);
        let _ = writeln!(text, "page:1  {}", trace.trim_end());
        let _ = writeln!(text, "        {}", seconds(scenario.seconds));
        text
    }

    /// Red without the guard, green with it.
    fn paint(&self, guard: Guard, text: &str) -> String {
        match (self.colour, guard) {
            (false, _) => text.to_owned(),
            (true, Guard::Off) => format!("\x1b[31m{text}\x1b[0m"),
            (true, Guard::On) => format!("\x1b[32m{text}\x1b[0m"),
        }
    }
}

/// Unlike `print!`, does not panic if the reader of a pipe has closed it.
pub(super) fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

pub(super) fn word(guard: Guard) -> &'static str {
    match guard {
        Guard::Off => "without",
        Guard::On => "with",
    }
}

fn introduction(scenario: &Scenario) -> String {
    let Scenario { clients, sidecars, memcacheds, keys, ttl, seconds, .. } = scenario;
    let text = format!(
        "{clients} clients read {keys} hot keys through {sidecars} sidecars from {memcacheds} memcacheds, all in this \
         process. Values have a TTL of {ttl} s, and a rebuild takes {}. The same load runs for {seconds} s without the \
         guard, then for {seconds} s with it.",
        time(scenario.rebuild)
    );
    format!("{}\n\n", wrap(&text))
}

/// The height of a bar in eighths of a line, in a chart of `rows` lines. A value above 0 is at least 1.
fn eighths(value: usize, scale: usize, rows: usize) -> usize {
    (value * rows * 8).div_ceil(scale.max(1)).min(rows * 8)
}

/// The lines of a chart, from the top.
fn bars(columns: &[usize], scale: usize) -> Vec<String> {
    let line = |below: usize| {
        let bar = |&value: &usize| BARS[eighths(value, scale, ROWS).saturating_sub(8 * below).min(8)];
        columns.iter().map(bar).collect()
    };
    (0..ROWS).rev().map(line).collect()
}

fn seconds(seconds: u32) -> String {
    let mut axis = String::new();
    for second in 0..seconds {
        let column = second as usize * COLUMNS / seconds as usize;
        let label = format!("{second} s");
        // Omit a label that would touch the previous one.
        if axis.is_empty() || axis.len() < column {
            axis = format!("{axis:<column$}{label}");
        }
    }
    axis
}

/// A number with commas between thousands.
pub(super) fn count(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in milliseconds, with one decimal below 10.
pub(super) fn time(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 9.95 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// The figures of both runs.
struct Table<'a> {
    without: &'a Measurement,
    with: &'a Measurement,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<38}{:>16}{:>16}", "", "without guard", "with guard")?;
        let mut row = |name: &str, cell: &dyn Fn(&Measurement) -> String| {
            writeln!(f, "{name:<38}{:>16}{:>16}", cell(self.without), cell(self.with))
        };
        row("requests", &|run| count(run.clients.requests))?;
        row("  failed", &|run| count(run.clients.failures))?;
        row("expiries, including the cold start", &|run| count(run.clients.expiries))?;
        row("rebuilds", &|run| count(run.clients.rebuilds))?;
        row("  per expiry, average", &|run| format!("{:.1}", run.clients.rebuilds_per_expiry()))?;
        row("  per expiry, maximum", &|run| count(run.clients.most_rebuilds))?;
        row("  concurrent, maximum", &|run| count(database::peak(&run.load)))?;
        row("time until a client has its value, p50", &|run| time(run.clients.p50))?;
        row("  p99", &|run| time(run.clients.p99))?;
        row("  maximum", &|run| time(run.clients.slowest))?;
        row("stale values served", &|run| count(run.stale))
    }
}

/// Two sentences, one per run.
fn summary(scenario: &Scenario, without: &Measurement, with: &Measurement) -> String {
    let outcome = |run: &Measurement| {
        format!(
            "was rebuilt {:.1} times on average and {} at most, up to {} rebuilds ran concurrently, and the slowest 1% of \
             requests took {} or longer",
            run.clients.rebuilds_per_expiry(),
            times(run.clients.most_rebuilds),
            database::peak(&run.load),
            time(run.clients.p99)
        )
    };
    let protected = with.clients.most_rebuilds <= 1 && database::peak(&with.load) <= scenario.keys;
    let second = if protected {
        format!(
            "With it, each was rebuilt once, at most {} rebuilds ran concurrently for {} keys, {} requests received the old \
             value meanwhile, and the slowest 1% took {} or longer.",
            database::peak(&with.load),
            scenario.keys,
            count(with.stale),
            time(with.clients.p99)
        )
    } else {
        format!("With it, the keys were NOT protected: an expired key {}.", outcome(with))
    };
    format!("Without the guard, an expired key {}. {second}", outcome(without))
}

/// Wraps text at [`WIDTH`] characters. A longer word gets a line of its own.
pub(super) fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

fn times(n: usize) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::history::{Figures, Outcome};

    const PLAIN: Screen = Screen { live: false, colour: false };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn run(expiries: usize, rebuilds: usize, most: usize, peak: usize, stale: usize) -> Measurement {
        let clients = Figures {
            requests: 12_345,
            expiries,
            rebuilds,
            most_rebuilds: most,
            p50: ms(1),
            p99: Duration::from_micros(251_700),
            trace: vec![(ms(0), Outcome::Miss), (ms(250), Outcome::Fill), (ms(300), Outcome::Hit)],
            ..Figures::default()
        };
        Measurement { clients, load: vec![(ms(0), peak), (ms(249), 0)], most_of_one: 1, stale }
    }

    #[test]
    fn bars_are_to_scale_and_the_smallest_is_visible() {
        let drawn = bars(&[0, 1, 20, 30, 60], 60);
        assert_eq!(drawn, ["    █", "    █", "   ▄█", "  ▆██", " ▁███"]);
        assert!(bars(&[0, 0], 0).iter().all(|line| line == "  "));
    }

    #[test]
    fn a_chart_is_the_same_width_in_every_part_and_fits_eighty_columns() {
        let scenario = Scenario::default();
        let chart = PLAIN.chart(Guard::Off, &scenario, &run(1, 40, 40, 40, 0), 60);
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines.len(), ROWS + 3);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{chart}");
        assert_eq!(lines[0], "    60 ┤");
        assert_eq!(lines[4], "       ┤██");
        assert_eq!(lines[6], "page:1  M W");
        assert_eq!(lines[7].find("7 s"), Some(8 + 7 * 8));
    }

    #[test]
    fn an_axis_omits_labels_that_do_not_fit() {
        assert_eq!(seconds(2), format!("{:<32}1 s", "0 s"));
        let minute = seconds(60);
        assert!(minute.starts_with("0 s 4 s 8 s 12 s"), "{minute}");
        assert!(minute.len() < 70);
    }

    #[test]
    fn colour_is_used_only_if_enabled() {
        let painted = Screen { live: true, colour: true }.chart(
            Guard::On,
            &Scenario::default(),
            &run(1, 1, 1, 1, 0),
            1,
        );
        assert!(painted.contains("\x1b[32m██\x1b[0m"));
        assert!(!PLAIN.chart(Guard::On, &Scenario::default(), &run(1, 1, 1, 1, 0), 1).contains('\x1b'));
    }

    #[test]
    fn numbers_are_formatted_for_reading() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [time(ms(0)), time(Duration::from_micros(1_250)), time(ms(250))],
            ["0.0 ms", "1.2 ms", "250 ms"]
        );
        assert_eq!(time(Duration::from_micros(9_960)), "10 ms");
    }

    #[test]
    fn the_table_has_one_column_per_run() {
        let (without, with) = (run(15, 291, 20, 58, 0), run(16, 16, 1, 3, 1210));
        let table = Table { without: &without, with: &with }.to_string();
        for (name, left, right) in [
            ("", "without guard", "with guard"),
            ("requests", "12,345", "12,345"),
            ("  per expiry, average", "19.4", "1.0"),
            ("  per expiry, maximum", "20", "1"),
            ("  concurrent, maximum", "58", "3"),
            ("  p99", "252 ms", "252 ms"),
            ("stale values served", "0", "1,210"),
        ] {
            let row = format!("{name:<38}{left:>16}{right:>16}\n");
            assert!(table.contains(&row), "{row:?} is not in:\n{table}");
        }
    }

    #[test]
    fn the_summary_has_the_figures() {
        let scenario = Scenario::default();
        let text = summary(&scenario, &run(15, 291, 20, 58, 0), &run(16, 16, 1, 3, 1210));
        assert!(text.contains("rebuilt 19.4 times on average and 20 times at most, up to 58"), "{text}");
        assert!(
            text.contains("each was rebuilt once, at most 3") && text.contains("1,210 requests"),
            "{text}"
        );
        assert_eq!((text.matches(". ").count(), text.ends_with('.')), (1, true), "two sentences: {text}");
    }

    #[test]
    fn text_is_wrapped_between_words_within_the_width() {
        let scenario = Scenario::default();
        let text = summary(&scenario, &run(15, 291, 20, 58, 0), &run(16, 16, 1, 3, 1210));
        for text in [introduction(&scenario), text] {
            let wrapped = wrap(&text);
            assert!(
                wrapped.lines().count() > 2 && wrapped.lines().all(|line| line.len() <= WIDTH),
                "{wrapped}"
            );
            assert_eq!(wrapped.replace('\n', " "), text.split_whitespace().collect::<Vec<_>>().join(" "));
        }
        let long = "x".repeat(WIDTH + 1);
        assert_eq!(wrap(&format!("a {long} b")), format!("a\n{long}\nb"));
    }

    #[test]
    fn a_guard_that_did_not_protect_is_reported() {
        let scenario = Scenario::default();
        for broken in [run(16, 17, 2, 3, 9), run(16, 16, 1, 4, 9)] {
            let text = summary(&scenario, &run(15, 291, 20, 58, 0), &broken);
            assert!(text.contains("NOT protected") && !text.contains("each was rebuilt once"), "{text}");
        }
    }
}
