//! How the demo looks: moving and in colour on a terminal, plain lines everywhere else.

use std::env;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::time::Duration;

use super::cluster::Guard;
use super::database::{self, Database};
use super::{Demo, Side, history};

/// How wide all of it is at most, in characters.
const WIDTH: usize = 78;
/// How many parts of a side's time are drawn.
const COLUMNS: usize = 64;
/// How many lines a chart is high.
const ROWS: usize = 5;
/// Eighths of a line.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// To the first column of the terminal's line, and nothing behind it.
const AFRESH: &str = "\r\x1b[K";

/// Where it is shown, and what that can do.
pub(super) struct Screen {
    /// A line may be drawn over.
    live: bool,
    colour: bool,
}

impl Screen {
    /// stdout. It is live if it is a terminal that understands more than text; `NO_COLOR` (no-color.org) turns off colour
    /// and nothing else.
    pub(super) fn stdout() -> Screen {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let live = io::stdout().is_terminal() && set("TERM").is_none_or(|term| term != "dumb");
        Screen { live, colour: live && set("NO_COLOR").is_none() }
    }

    /// What will be seen.
    pub(super) fn begin(&self, demo: &Demo) -> io::Result<()> {
        put(&introduction(demo))
    }

    /// One side is about to be set up.
    pub(super) fn side_begins(&self, guard: Guard, demo: &Demo) -> io::Result<()> {
        if self.live { Ok(()) } else { put(&format!("{} the guard, {} s …\n", word(guard), demo.seconds)) }
    }

    /// One side is under way, since `at`.
    pub(super) fn progress(
        &self,
        guard: Guard,
        demo: &Demo,
        at: Duration,
        source: &Database,
    ) -> io::Result<()> {
        if !self.live {
            return Ok(());
        }
        let past = (at.as_secs_f64() / demo.lasts().as_secs_f64() * COLUMNS as f64) as usize;
        let columns = database::columns(&source.steps(), demo.lasts(), COLUMNS);
        let mut bars = String::new();
        for &running in columns.iter().take(past + 1) {
            bars.push(BARS[eighths(running, demo.clients, 1)]);
        }
        let running = source.running();
        let label = format!("{:<8}", word(guard));
        put(&format!("{AFRESH}{label}{}{running:>4}", self.paint(guard, &format!("{bars:<COLUMNS$}"))))
    }

    /// One side is over.
    pub(super) fn side_ends(&self, guard: Guard, side: &Side) -> io::Result<()> {
        let start = if self.live { AFRESH } else { "" };
        let (rebuilds, requests) = (count(side.seen.rebuilds), count(side.seen.requests));
        let word = word(guard);
        put(&format!("{start}{word} the guard: {requests} requests, {rebuilds} rebuilds\n"))
    }

    /// Ctrl-C: the shell's prompt is to stand on a line of its own.
    pub(super) fn interrupted(&self) -> io::Result<()> {
        put("\n")
    }

    /// Everything that was measured.
    pub(super) fn end(&self, demo: &Demo, without: &Side, with: &Side) -> io::Result<()> {
        let mut text = String::from("\nRebuilds that the source is doing at once, both on one scale:\n");
        let scale = database::peak(&without.steps).max(database::peak(&with.steps));
        for (guard, side) in [(Guard::Off, without), (Guard::On, with)] {
            let _ = writeln!(text, "\n{} the guard", word(guard));
            text.push_str(&self.chart(guard, demo, side, scale));
        }
        let _ = write!(
            text,
            "\n        M miss: the client rebuilds     W the rebuilt value is stored\n        \
             H hit                           S hit, on the old value meanwhile\n        \
             A column is {} ms and shows the first of M, W, S, H that happened in\n        \
             it; nothing if nobody was answered.\n\n",
            demo.lasts().as_millis() / COLUMNS as u128
        );
        let _ = write!(text, "{}\n{}\n", Table { without, with }, wrap(&summary(demo, without, with)));
        put(&text)
    }

    /// A side's source over time, and below it the trace of the first key.
    fn chart(&self, guard: Guard, demo: &Demo, side: &Side, scale: usize) -> String {
        let columns = database::columns(&side.steps, demo.lasts(), COLUMNS);
        let mut text = String::new();
        for (row, line) in bars(&columns, scale).into_iter().enumerate() {
            let label = if row == 0 { scale.to_string() } else { String::new() };
            let _ = writeln!(text, "{label:>6} ┤{}", self.paint(guard, line.trim_end()));
        }
        let _ = writeln!(text, "     0 ┼{}", "─".repeat(COLUMNS));
        let trace = history::timeline(&side.seen.trace, demo.lasts(), COLUMNS);
        let _ = writeln!(text, "page:1  {}", trace.trim_end());
        let _ = writeln!(text, "        {}", seconds(demo.seconds));
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

/// Not `print!`, which panics when the reader has gone.
fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn word(guard: Guard) -> &'static str {
    match guard {
        Guard::Off => "without",
        Guard::On => "with",
    }
}

fn introduction(demo: &Demo) -> String {
    let Demo { clients, sidecars, memcacheds, keys, ttl, seconds, .. } = demo;
    let text = format!(
        "{clients} clients read {keys} hot keys through {sidecars} sidecars from {memcacheds} memcacheds, all in this \
         process. Values have a TTL of {ttl} s; to rebuild one takes {}. First {seconds} s without the guard, then \
         {seconds} s with it, under the same load.",
        time(demo.rebuild)
    );
    format!("{}\n\n", wrap(&text))
}

/// How many eighths of a line, of `rows` lines, a bar is high. What is not 0 is seen.
fn eighths(value: usize, scale: usize, rows: usize) -> usize {
    (value * rows * 8).div_ceil(scale.max(1)).min(rows * 8)
}

/// A chart's lines, from the top.
fn bars(columns: &[usize], scale: usize) -> Vec<String> {
    let line = |below: usize| {
        let bar = |&value: &usize| BARS[eighths(value, scale, ROWS).saturating_sub(8 * below).min(8)];
        columns.iter().map(bar).collect()
    };
    (0..ROWS).rev().map(line).collect()
}

/// The axis of a chart that lasts so long.
fn seconds(seconds: u32) -> String {
    let mut axis = String::new();
    for second in 0..seconds {
        let column = second as usize * COLUMNS / seconds as usize;
        let label = format!("{second} s");
        // A label that would touch the one before is left out.
        if axis.is_empty() || axis.len() < column {
            axis = format!("{axis:<column$}{label}");
        }
    }
    axis
}

/// With a comma between thousands.
fn count(n: usize) -> String {
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

/// In milliseconds, one decimal below 10.
fn time(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms < 9.95 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// The figures, side by side.
struct Table<'a> {
    without: &'a Side,
    with: &'a Side,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<38}{:>16}{:>16}", "", "without guard", "with guard")?;
        let mut row = |name: &str, cell: &dyn Fn(&Side) -> String| {
            writeln!(f, "{name:<38}{:>16}{:>16}", cell(self.without), cell(self.with))
        };
        row("requests", &|side| count(side.seen.requests))?;
        row("  that failed", &|side| count(side.seen.failures))?;
        row("expiries, the cold start included", &|side| count(side.seen.expiries))?;
        row("rebuilds", &|side| count(side.seen.rebuilds))?;
        row("  per expiry, on average", &|side| format!("{:.1}", side.seen.rebuilds_per_expiry()))?;
        row("  for one expiry, at most", &|side| count(side.seen.most_rebuilds))?;
        row("  at once, at most", &|side| count(database::peak(&side.steps)))?;
        row("until a client has its value, p50", &|side| time(side.seen.p50))?;
        row("  p99", &|side| time(side.seen.p99))?;
        row("  the slowest", &|side| time(side.seen.slowest))?;
        row("stale values served", &|side| count(side.stale))
    }
}

/// Two sentences, one a side.
fn summary(demo: &Demo, without: &Side, with: &Side) -> String {
    let piled = |side: &Side| {
        format!(
            "was rebuilt {:.1} times on average and {} at worst, up to {} rebuilds ran at once, and the slowest 1% of the \
             requests waited {} or longer",
            side.seen.rebuilds_per_expiry(),
            times(side.seen.most_rebuilds),
            database::peak(&side.steps),
            time(side.seen.p99)
        )
    };
    let held = with.seen.most_rebuilds <= 1 && database::peak(&with.steps) <= demo.keys;
    let second = if held {
        format!(
            "With it, each was rebuilt once, at most {} at once for {} keys, {} requests were served the old value \
             meanwhile, and the slowest 1% waited {} or longer.",
            database::peak(&with.steps),
            demo.keys,
            count(with.stale),
            time(with.seen.p99)
        )
    } else {
        format!("With it, the keys were NOT protected: an expired key {}.", piled(with))
    };
    format!("Without the guard, an expired key {}. {second}", piled(without))
}

/// Broken into lines of at most [`WIDTH`] characters, a longer word apart.
fn wrap(text: &str) -> String {
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
    use super::super::history::{Figures, Outcome};
    use super::*;

    const PLAIN: Screen = Screen { live: false, colour: false };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn side(expiries: usize, rebuilds: usize, most: usize, peak: usize, stale: usize) -> Side {
        let seen = Figures {
            requests: 12_345,
            expiries,
            rebuilds,
            most_rebuilds: most,
            p50: ms(1),
            p99: Duration::from_micros(251_700),
            trace: vec![(ms(0), Outcome::Miss), (ms(250), Outcome::Fill), (ms(300), Outcome::Hit)],
            ..Figures::default()
        };
        Side { seen, steps: vec![(ms(0), peak), (ms(249), 0)], stale }
    }

    #[test]
    fn bars_are_to_scale_and_the_least_is_still_seen() {
        let drawn = bars(&[0, 1, 20, 30, 60], 60);
        assert_eq!(drawn, ["    █", "    █", "   ▄█", "  ▆██", " ▁███"]);
        assert!(bars(&[0, 0], 0).iter().all(|line| line == "  "));
    }

    #[test]
    fn a_chart_is_the_same_width_in_every_part_and_fits_eighty_columns() {
        let demo = Demo::default();
        let chart = PLAIN.chart(Guard::Off, &demo, &side(1, 40, 40, 40, 0), 60);
        let lines: Vec<&str> = chart.lines().collect();
        assert_eq!(lines.len(), ROWS + 3);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{chart}");
        assert_eq!(lines[0], "    60 ┤");
        assert_eq!(lines[4], "       ┤██");
        assert_eq!(lines[6], "page:1  M W");
        assert_eq!(lines[7].find("7 s"), Some(8 + 7 * 8));
    }

    #[test]
    fn an_axis_leaves_out_what_would_not_fit() {
        assert_eq!(seconds(2), format!("{:<32}1 s", "0 s"));
        let crowded = seconds(60);
        assert!(crowded.starts_with("0 s 4 s 8 s 12 s"), "{crowded}");
        assert!(crowded.len() < 70);
    }

    #[test]
    fn colour_is_only_where_it_was_asked_for() {
        let painted =
            Screen { live: true, colour: true }.chart(Guard::On, &Demo::default(), &side(1, 1, 1, 1, 0), 1);
        assert!(painted.contains("\x1b[32m██\x1b[0m"));
        assert!(!PLAIN.chart(Guard::On, &Demo::default(), &side(1, 1, 1, 1, 0), 1).contains('\x1b'));
    }

    #[test]
    fn numbers_are_written_for_eyes() {
        assert_eq!([count(0), count(999), count(1000), count(1_234_567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [time(ms(0)), time(Duration::from_micros(1_250)), time(ms(250))],
            ["0.0 ms", "1.2 ms", "250 ms"]
        );
        assert_eq!(time(Duration::from_micros(9_960)), "10 ms");
    }

    #[test]
    fn the_table_has_a_column_a_side() {
        let (without, with) = (side(15, 291, 20, 58, 0), side(16, 16, 1, 3, 1210));
        let table = Table { without: &without, with: &with }.to_string();
        for (name, left, right) in [
            ("", "without guard", "with guard"),
            ("requests", "12,345", "12,345"),
            ("  per expiry, on average", "19.4", "1.0"),
            ("  for one expiry, at most", "20", "1"),
            ("  at once, at most", "58", "3"),
            ("  p99", "252 ms", "252 ms"),
            ("stale values served", "0", "1,210"),
        ] {
            let row = format!("{name:<38}{left:>16}{right:>16}\n");
            assert!(table.contains(&row), "{row:?} is not in:\n{table}");
        }
    }

    #[test]
    fn the_summary_says_what_the_figures_say() {
        let demo = Demo::default();
        let said = summary(&demo, &side(15, 291, 20, 58, 0), &side(16, 16, 1, 3, 1210));
        assert!(said.contains("rebuilt 19.4 times on average and 20 times at worst, up to 58"), "{said}");
        assert!(
            said.contains("each was rebuilt once, at most 3") && said.contains("1,210 requests"),
            "{said}"
        );
        assert_eq!((said.matches(". ").count(), said.ends_with('.')), (1, true), "two sentences: {said}");
    }

    #[test]
    fn text_is_wrapped_between_words_within_the_width() {
        let demo = Demo::default();
        let said = summary(&demo, &side(15, 291, 20, 58, 0), &side(16, 16, 1, 3, 1210));
        for text in [introduction(&demo), said] {
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
    fn a_guard_that_did_not_protect_is_not_praised() {
        let demo = Demo::default();
        for broken in [side(16, 17, 2, 3, 9), side(16, 16, 1, 4, 9)] {
            let said = summary(&demo, &side(15, 291, 20, 58, 0), &broken);
            assert!(said.contains("NOT protected") && !said.contains("each was rebuilt once"), "{said}");
        }
    }
}
