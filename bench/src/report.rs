//! Medians and tables.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clients::Results;
use crate::contender::Contender;
use crate::loads::Load;
use crate::start;

/// One round of one contender.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Round {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time per request in µs: of the proxy, and of proxy, servers and clients together.
    pub(crate) proxy: Option<f64>,
    pub(crate) all: f64,
    /// In µs.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Reads counted by the servers, per key that the clients read.
    pub(crate) server_reads: f64,
    pub(crate) missing: u64,
    /// Rebuilds per second, and the maximum number of concurrent rebuilds of one key.
    pub(crate) rebuilds: f64,
    pub(crate) concurrent_rebuilds: u32,
    /// Memory per idle client of the proxy, in bytes, in the round that measured it.
    pub(crate) idle_client: Option<f64>,
    /// How the proxy's memory grew, if measured.
    pub(crate) growth: Option<Growth>,
}

/// Replies sent, and the proxy's memory at that moment, in bytes: early and at the end, both under load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Growth {
    pub(crate) replies: [u64; 2],
    pub(crate) memory: [u64; 2],
}

/// A contender's result for a load: its rounds, or why there are none.
pub(crate) struct Score {
    pub(crate) contender: Contender,
    pub(crate) rounds: Result<Vec<Round>, String>,
    /// Of the proxy, in bytes.
    pub(crate) peak_memory: Option<u64>,
}

impl Round {
    /// `server_reads` covers the whole run, like `results.reads`.
    pub(crate) fn new(results: &Results, proxy: Option<Duration>, all: Duration, server_reads: u64) -> Round {
        let (requests, seconds) = (results.requests as f64, results.elapsed.as_secs_f64());
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / requests;
        let us = |share| results.times.quantile(share) as f64 / 1e3;
        Round {
            rate: requests / seconds,
            proxy: proxy.map(each),
            all: each(all),
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            server_reads: server_reads as f64 / results.reads as f64,
            missing: results.missing,
            rebuilds: results.rebuilds as f64 / seconds,
            concurrent_rebuilds: results.concurrent_rebuilds,
            idle_client: None,
            growth: None,
        }
    }
}

/// Columns of every table, after the contender's name.
const COLUMNS: [&str; 8] =
    ["requests/s", "CPU µs", "all CPU µs", "p50 µs", "p99 µs", "p99.9 µs", "MiB", "server reads ÷ reads"];
/// The columns that follow if values expire, and
const OF_REBUILDS: [&str; 2] = ["rebuilds/s", "of one key at once"];
/// if they do not.
const RATIOS: [&str; 5] =
    ["CPU ÷ twemproxy", "requests/s ÷ twemproxy", "all CPU ÷ direct", "requests/s ÷ direct", "spread"];

/// The table of one load.
pub(crate) fn table(load: &Load, scores: &[Score]) -> String {
    let mut text = format!("### {}: {}\n\n", load.name, load.about);
    let rebuilt = load.expiry.is_some();
    let head = [&COLUMNS[..], if rebuilt { &OF_REBUILDS[..] } else { &RATIOS[..] }].concat();
    let head: Vec<&str> = [""].into_iter().chain(head).collect();
    row(&mut text, &head);
    row(&mut text, &vec!["---"; head.len()]);
    let rounds = |wanted| {
        let score = scores.iter().find(|score| score.contender == wanted)?;
        score.rounds.as_ref().ok().map(Vec::as_slice)
    };
    let (direct, twemproxy) = (rounds(Contender::Direct), rounds(Contender::Twemproxy));
    let mut notes = Vec::new();
    for score in scores {
        let name = score.contender.name();
        let own = match &score.rounds {
            Ok(own) => own.as_slice(),
            Err(why) => {
                notes.push(format!("{name} failed: {why}"));
                &[]
            }
        };
        let missing: u64 = own.iter().map(|round| round.missing).sum();
        if missing > 0 {
            notes.push(format!("{name}: {missing} keys were not there, and should have been."));
        }
        let of = |what: fn(&Round) -> Option<f64>| median(own.iter().filter_map(what));
        let mut cells = vec![
            name.to_owned(),
            number(of(|round| Some(round.rate)), 0),
            number(of(|round| round.proxy), 2),
            number(of(|round| Some(round.all)), 2),
            number(of(|round| Some(round.p50)), 0),
            number(of(|round| Some(round.p99)), 0),
            number(of(|round| Some(round.p999)), 0),
            score.peak_memory.map_or_else(String::new, mib),
            number(of(|round| Some(round.server_reads)), 2),
        ];
        if rebuilt {
            cells.push(number(of(|round| Some(round.rebuilds)), 1));
            cells.push(number(of(|round| Some(f64::from(round.concurrent_rebuilds))), 0));
        } else {
            for (other, what) in [
                (twemproxy, (|round| round.proxy) as fn(&Round) -> Option<f64>),
                (twemproxy, |round| Some(round.rate)),
                (direct, |round| Some(round.all)),
                (direct, |round| Some(round.rate)),
            ] {
                cells.push(number(other.and_then(|other| ratio(own, other, what)), 2));
            }
            cells.push(spread(own).map_or("".into(), |spread| format!("{:.0} %", spread * 100.0)));
        }
        row(&mut text, &cells);
    }
    let idle = line_of(scores, |rounds| {
        let bytes = median(rounds.iter().filter_map(|round| round.idle_client));
        Some(format!("{} B", number(Some(bytes?), 0)))
    });
    if let Some(idle) = idle {
        let _ = write!(text, "\nWhat an idle client that has read one key costs: {idle}\n");
    }
    let growth =
        || scores.iter().flat_map(|score| score.rounds.iter().flatten()).find_map(|round| round.growth);
    let grown = line_of(scores, |rounds| {
        let [early, last] = rounds.iter().find_map(|round| round.growth)?.memory.map(mib);
        Some(format!("{early} and {last}"))
    });
    if let (Some(Growth { replies: [early, last], .. }), Some(grown)) = (growth(), grown) {
        let [early, last] = [early, last].map(|replies| number(Some(replies as f64), 0));
        let _ = write!(text, "\nMiB resident after {early} replies and after {last}: {grown}\n");
    }
    for note in notes {
        let _ = write!(text, "\n**{note}**\n");
    }
    text
}

/// A line with this value of each contender that has one.
fn line_of(scores: &[Score], what: impl Fn(&[Round]) -> Option<String>) -> Option<String> {
    let all = scores.iter().filter_map(|score| {
        let value = what(score.rounds.as_ref().ok()?)?;
        Some(format!("{} {value}", score.contender.name()))
    });
    Some(all.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty())
}

/// CPU time per request of each proxy in µs, one line per load: how it grows.
pub(crate) fn growth(all: &[(&Load, Vec<Score>)]) -> String {
    let mut text = "### CPU µs a request of the proxy\n\n".to_owned();
    let mut names: Vec<Contender> = Vec::new();
    for score in all.iter().flat_map(|(_, scores)| scores) {
        if score.contender != Contender::Direct && !names.contains(&score.contender) {
            names.push(score.contender);
        }
    }
    let head = ["load"].into_iter().chain(names.iter().map(|name| name.name()));
    row(&mut text, &head.collect::<Vec<_>>());
    row(&mut text, &vec!["---"; names.len() + 1]);
    for (load, scores) in all {
        let cell = |name: &Contender| {
            let rounds = scores.iter().find(|score| score.contender == *name)?.rounds.as_ref().ok()?;
            median(rounds.iter().filter_map(|round| round.proxy))
        };
        let cells = [load.name.to_owned()].into_iter().chain(names.iter().map(|name| number(cell(name), 2)));
        row(&mut text, &cells.collect::<Vec<_>>());
    }
    text
}

/// Start times.
pub(crate) fn starts(all: &[(Contender, Vec<Duration>)]) -> String {
    let mut text = format!("### {}: {}\n\n", start::NAME, start::ABOUT);
    row(&mut text, &["", "median ms", "worst ms"]);
    row(&mut text, &["---"; 3]);
    for (contender, times) in all {
        let ms = || times.iter().map(|time| time.as_secs_f64() * 1e3);
        let worst = ms().max_by(f64::total_cmp);
        // Kennel is the same program for every load.
        let name = if *contender == Contender::KennelRaw { "kennel" } else { contender.name() };
        row(&mut text, &[name.to_owned(), number(median(ms()), 1), number(worst, 1)]);
    }
    text
}

/// The median of the ratios between rounds of the same number: a slower machine slows both.
fn ratio(own: &[Round], other: &[Round], what: fn(&Round) -> Option<f64>) -> Option<f64> {
    median(own.iter().zip(other).filter_map(|(own, other)| Some(what(own)? / what(other)?)))
}

/// The spread of the rounds' CPU times, relative to their median.
fn spread(rounds: &[Round]) -> Option<f64> {
    if rounds.len() < 2 {
        return None;
    }
    let times = || rounds.iter().map(|round| round.proxy.unwrap_or(round.all));
    let (low, high) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    median(times()).map(|median| (high - low) / median)
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = numbers.filter(|number| number.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    let (low, high) = (all.get(all.len().checked_sub(1)? / 2)?, all.get(all.len() / 2)?);
    Some((low + high) / 2.0)
}

fn number(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(String::new, |number| grouped(&format!("{number:.decimals$}")))
}

fn mib(bytes: u64) -> String {
    number(Some(bytes as f64 / f64::from(1 << 20)), 1)
}

/// 1234567.8 as 1,234,567.8.
fn grouped(digits: &str) -> String {
    let whole = digits.find('.').unwrap_or(digits.len());
    let mut text = String::new();
    for (i, digit) in digits.char_indices() {
        if i > 0 && i < whole && (whole - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn row(text: &mut String, cells: &[impl AsRef<str>]) {
    let cells: Vec<&str> = cells.iter().map(AsRef::as_ref).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loads::LOADS;

    fn round(rate: f64, proxy: Option<f64>, all: f64) -> Round {
        Round { rate, proxy, all, ..Round::default() }
    }

    fn score(contender: Contender, rounds: Vec<Round>) -> Score {
        Score { contender, rounds: Ok(rounds), peak_memory: None }
    }

    #[test]
    fn the_median_is_the_one_in_the_middle_or_between_the_two() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }

    #[test]
    fn ratios_are_of_rounds_side_by_side_and_not_of_medians() {
        // The machine became ten times slower after the first round, for both alike.
        let slow =
            [round(100.0, Some(1.0), 2.0), round(10.0, Some(10.0), 20.0), round(10.0, Some(10.0), 20.0)];
        let half = [round(200.0, Some(0.5), 1.0), round(20.0, Some(5.0), 10.0), round(20.0, Some(5.0), 10.0)];
        assert_eq!(ratio(&half, &slow, |round| round.proxy), Some(0.5));
        assert_eq!(ratio(&half[..1], &slow, |round| Some(round.rate)), Some(2.0));
        assert_eq!(ratio(&slow, &[round(1.0, None, 1.0)], |round| round.proxy), None);
    }

    #[test]
    fn a_table_has_a_line_for_each_contender_and_names_those_that_failed() {
        let scores = [
            score(Contender::Direct, vec![round(4000.0, None, 10.0)]),
            score(Contender::Twemproxy, vec![round(1000.0, Some(8.0), 30.0)]),
            score(
                Contender::KennelRaw,
                vec![Round { missing: 3, server_reads: 0.25, ..round(2000.0, Some(4.0), 20.0) }],
            ),
            Score {
                contender: Contender::KennelGuarded(0),
                rounds: Err("connection closed".into()),
                peak_memory: None,
            },
        ];
        let text = table(&LOADS[0], &scores);
        assert!(
            text.contains(
                "| kennel raw | 2,000 | 4.00 | 20.00 | 0 | 0 | 0 |  | 0.25 | 0.50 | 2.00 | 2.00 | 0.50 |  |"
            ),
            "{text}"
        );
        assert!(text.contains("**guarded failed: connection closed**"), "{text}");
        assert!(text.contains("**kennel raw: 3 keys were not there"), "{text}");
        assert!(!text.contains("idle"), "{text}");
        assert!(growth(&[(&LOADS[0], scores.into())]).contains("| get | 8.00 | 4.00 |  |"));
    }

    #[test]
    fn the_cost_of_an_idle_client_is_printed_below_the_table_for_each_proxy() {
        let weighed = |bytes| Round { idle_client: bytes, ..round(1.0, None, 1.0) };
        let scores = [
            score(Contender::Direct, vec![weighed(None)]),
            score(Contender::Twemproxy, vec![weighed(Some(1234.4)), weighed(None)]),
            score(Contender::KennelRaw, vec![weighed(Some(-0.6))]),
        ];
        let line = "What an idle client that has read one key costs: twemproxy 1,234 B; kennel raw -1 B\n";
        assert!(table(&LOADS[0], &scores).contains(line));
    }

    #[test]
    fn memory_growth_is_printed_below_the_table_for_each_proxy() {
        let grown = |memory| Round {
            growth: Some(Growth { replies: [1_000_000, 10_000_000], memory }),
            ..Round::default()
        };
        let scores = [
            score(Contender::Twemproxy, vec![grown([2 << 20, 4 << 20])]),
            score(Contender::KennelRaw, vec![grown([3 << 20, 3 << 20])]),
        ];
        let line = "MiB resident after 1,000,000 replies and after 10,000,000: twemproxy 2.0 and 4.0; kennel raw 3.0 and 3.0\n";
        assert!(table(&LOADS[0], &scores).contains(line));
    }

    #[test]
    fn starts_are_reported_by_median_and_maximum() {
        let times = [4, 2, 9].map(Duration::from_millis).to_vec();
        assert!(starts(&[(Contender::KennelRaw, times)]).ends_with("| kennel | 4.0 | 9.0 |\n"));
    }

    #[test]
    fn the_page_has_every_column_in_the_order_of_the_tables() {
        let page = include_str!("../README.md");
        let table = page.split("| column | what it is |\n|---|---|\n").nth(1).unwrap();
        let cells = table.lines().map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
        let names: Vec<&str> = cells.flat_map(|cell| cell.split(", ")).collect();
        assert_eq!(names, [&COLUMNS[..], &RATIOS[..], &OF_REBUILDS[..]].concat());
    }

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(["1", "123", "1234", "1234567.89"].map(grouped), ["1", "123", "1,234", "1,234,567.89"]);
    }
}
