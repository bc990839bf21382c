//! The tables, in Markdown.

use std::fmt::Write as _;
use std::time::Duration;

use super::record::Second;
use super::{Course, Outage, Phases};

/// The hit ratio, in percent, from which on a variant has recovered.
const RECOVERED: f64 = 95.0;

/// One line for each variant, and then its seconds.
pub(crate) fn all(outage: Outage, phases: Phases, courses: &[Course]) -> String {
    let [fault, end] = outage.marks();
    let mut text = format!(
        "### {}\n\nFrom second {} to {} the server is {fault}, then it is {end}.\n\n| | rebuilds | most in a second | of one key at \
         once | hit ratio meanwhile | hits again after | deleted values | refused sets | p99 of other keys before, meanwhile |\n\
         |---|---|---|---|---|---|---|---|---|\n",
        outage.name,
        phases.healthy,
        phases.healthy + phases.down
    );
    for course in courses {
        let seconds = &course.seconds;
        let (before, rest) = seconds.split_at(phases.healthy);
        let down = &rest[..phases.down];
        let sum = |of: fn(&Second) -> usize| rest.iter().map(of).sum::<usize>();
        let most = |of: fn(&Second) -> usize| rest.iter().map(of).max().unwrap_or(0);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.0} % | {} | {} | {} | {}, {} |",
            course.variant.name(),
            sum(|second| second.builds),
            most(|second| second.builds),
            most(|second| second.at_once),
            hit_ratio(down),
            recovery(down),
            sum(|second| second.deleted),
            sum(|second| second.refused),
            time(worst(before)),
            time(worst(down)),
        );
    }
    for course in courses {
        let _ = write!(
            text,
            "\n{}:\n\n| second | requests | hit ratio | old values | deleted values | errors | rebuilds | of one key at once | refused sets | p99 of \
             other keys |\n|---|---|---|---|---|---|---|---|---|---|\n",
            course.variant.name()
        );
        for (n, second) in course.seconds.iter().enumerate() {
            let mark = match n {
                n if n == phases.healthy => format!(" {fault}"),
                n if n == phases.healthy + phases.down => format!(" {end}"),
                _ => String::new(),
            };
            let _ = writeln!(
                text,
                "| {n}{mark} | {} | {:.1} % | {} | {} | {} | {} | {} | {} | {} |",
                second.reads,
                second.hit_ratio(),
                second.old,
                second.deleted,
                second.failed,
                second.builds,
                second.at_once,
                second.refused,
                time(second.p99),
            );
        }
    }
    text
}

/// The hit ratio of these seconds together.
fn hit_ratio(seconds: &[Second]) -> f64 {
    let sum = |of: fn(&Second) -> usize| seconds.iter().map(of).sum();
    Second { reads: sum(|second| second.reads), hits: sum(|second| second.hits), ..Second::default() }
        .hit_ratio()
}

/// The number of the first of these seconds from which on all have recovered.
fn recovery(seconds: &[Second]) -> String {
    let low = seconds.iter().rposition(|second| second.hit_ratio() < RECOVERED).map_or(0, |n| n + 1);
    if low == seconds.len() { "never".to_owned() } else { format!("{low} s") }
}

fn worst(seconds: &[Second]) -> Duration {
    seconds.iter().map(|second| second.p99).max().unwrap_or_default()
}

fn time(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outage::{OUTAGES, Variant};

    fn seconds(hits: &[usize]) -> Vec<Second> {
        hits.iter().map(|hits| Second { reads: 100, hits: *hits, builds: 7, ..Second::default() }).collect()
    }

    #[test]
    fn recovery_is_the_second_from_which_on_all_have_hits() {
        let after = |hits: &[usize]| recovery(&seconds(hits));
        assert_eq!(after(&[20, 96, 40, 99, 95]), "3 s");
        assert_eq!(after(&[100, 100]), "0 s");
        assert_eq!(after(&[100, 94]), "never");
        assert_eq!(hit_ratio(&seconds(&[20, 40])), 30.0);
    }

    #[test]
    fn what_happens_before_the_fault_is_not_counted_as_its_effect() {
        let course = Course { variant: Variant::Kennel, seconds: seconds(&[0, 60, 100, 100]) };
        let text = all(OUTAGES[0], Phases { healthy: 1, down: 2, back: 1 }, &[course]);
        assert!(text.contains("| Kennel | 21 | 7 | 0 | 80 % | 1 s | 0 | 0 | 0.0 ms, 0.0 ms |"), "{text}");
        assert!(text.contains("\n| 1 killed | 100 | 60.0 % |") && text.contains("\n| 3 restarted empty |"));
    }
}
