//! What was observed, and the checks against the promises.
//!
//! The simulation's checker is not used here: it works in simulated time, identifies each value by an index and each policy by
//! its plan, and requires exactly one rebuild where nothing fails. Here, values are identified by their contents, time is real,
//! something fails all the time, and a classic client cannot tell whether a value is stale.

use std::collections::HashMap;

/// What a key's rule and its writers guarantee.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) name: String,
    /// How long a stored value is fresh, and how long it may be served after that, in seconds.
    pub(super) ttl: u64,
    pub(super) stale_for: u64,
}

/// Something that one actor did or observed. Times are in microseconds since the start.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// An index.
    pub(super) key: usize,
    /// The actor, and its sidecar.
    pub(super) actor: (usize, usize),
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) what: Observation,
}

#[derive(Debug, Clone)]
pub(super) enum Observation {
    /// A value; `stale`: it was marked as stale.
    Served {
        version: u64,
        write: u64,
        stale: bool,
    },
    /// A value of another key, or of none.
    WrongValue(String),
    Missed,
    /// An error with a reason.
    Refused,
    /// A value from this version of the source was sent. `blind`: without a miss.
    Wrote {
        version: u64,
        write: u64,
        blind: bool,
        stored: bool,
    },
    /// The source had changed to this version.
    Invalidated {
        version: u64,
        acked: bool,
    },
    /// There was no response within the limit.
    TimedOut,
    /// The connection ended, and its sidecar was killed.
    Lost,
    /// The connection ended, and its sidecar was not killed.
    Closed,
}

/// How often each event happened, to check that the run covered it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    pub(super) fresh: u64,
    pub(super) stale: u64,
    pub(super) missed: u64,
    pub(super) refused: u64,
    pub(super) stored: u64,
    pub(super) blind: u64,
    pub(super) acked: u64,
    pub(super) unacked: u64,
    pub(super) lost: u64,
    /// In microseconds.
    pub(super) longest: u64,
}

/// The longest duration of a request: the longest wait that a rule permits, the rounds of a read with a timeout each, and a
/// margin for an overloaded machine.
const PATIENCE: u64 = 8_000_000;
/// How much longer an expired value may be served, beside the time for which its server was suspended: the seconds that a server
/// counts, and a margin for an overloaded machine.
const SLACK: u64 = 2_000_000;

/// The events of a key after a write that a report considers.
const AFTER_WRITE: usize = 400;

/// The first violation, with the history of its key. No server was suspended for longer than `suspended` seconds: its clock stands
/// still meanwhile.
pub(super) fn check(events: &[Event], keys: &[Key], suspended: u64) -> Result<Coverage, String> {
    let slack = SLACK + suspended * 1_000_000;
    let mut coverage = Coverage::default();
    for (index, key) in keys.iter().enumerate() {
        let mut of: Vec<&Event> = events.iter().filter(|event| event.key == index).collect();
        of.sort_by_key(|event| event.begin);
        if let Err((violation, at)) = check_key(&of, key, slack, &mut coverage) {
            return Err(format!("{}: {violation}\n{}", key.name, describe(&of, at)));
        }
    }
    Ok(coverage)
}

fn check_key<'a>(
    of: &[&'a Event],
    key: &Key,
    slack: u64,
    coverage: &mut Coverage,
) -> Result<(), (String, &'a Event)> {
    let mut writes = HashMap::new();
    let mut moves = Vec::new();
    for event in of {
        match event.what {
            Observation::Wrote { write, .. } => drop(writes.insert(write, *event)),
            Observation::Invalidated { version, acked: true } => {
                moves.push((event.end, event.begin, version))
            }
            _ => {}
        }
    }
    moves.sort_unstable();
    // The newest version acknowledged by each of these moments.
    let newest: Vec<u64> = moves
        .iter()
        .scan(0, |newest, (_, _, version)| {
            *newest = (*newest).max(*version);
            Some(*newest)
        })
        .collect();
    for event in of {
        let violation = |why: String| Err((format!("{why}: {event:?}"), *event));
        count(event, coverage);
        if event.end - event.begin > PATIENCE {
            return violation("promise 4: it took too long".into());
        }
        match &event.what {
            Observation::WrongValue(what) => {
                return violation(format!("promise 6: {what:?} is not a value of it"));
            }
            Observation::TimedOut => return violation("promise 7: no response".into()),
            Observation::Closed => return violation("promise 7: the connection was closed".into()),
            Observation::Served { version, write, stale } => {
                let Some((written, Observation::Wrote { version: sent, blind, stored, .. })) =
                    writes.get(write).map(|event| (event, &event.what))
                else {
                    return violation("promise 6: a value that no actor wrote".into());
                };
                if version != sent {
                    return violation(format!("promise 6: another value than was written: {written:?}"));
                }
                let before = moves.partition_point(|(end, _, _)| *end < event.begin);
                let floor = before.checked_sub(1).map_or(0, |last| newest[last]);
                // What was stored without a miss is as new as its set, and a set ends with its response, whatever that is.
                let killed = |(_, begin, newer): &&(u64, u64, u64)| {
                    newer > version && (!blind || written.end < *begin)
                };
                if !stale
                    && *version < floor
                    && let Some((_, begin, newer)) = moves[..before].iter().find(killed)
                {
                    let why = format!("promise 2: {newer} was acknowledged (begun at {begin})");
                    return violation(format!("{why}, and this is of {written:?}"));
                }
                let lasts = (key.ttl + if *stale { key.stale_for } else { 0 }) * 1_000_000;
                if *stored && event.begin > written.end + lasts + slack {
                    return violation(format!("promise 3: served too long after {written:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn count(event: &Event, coverage: &mut Coverage) {
    *match event.what {
        Observation::Served { stale: false, .. } => &mut coverage.fresh,
        Observation::Served { .. } => &mut coverage.stale,
        Observation::Missed => &mut coverage.missed,
        Observation::Wrote { blind: true, stored: true, .. } => &mut coverage.blind,
        Observation::Wrote { stored: true, .. } => &mut coverage.stored,
        Observation::Refused | Observation::Wrote { .. } => &mut coverage.refused,
        Observation::Invalidated { acked: true, .. } => &mut coverage.acked,
        Observation::Invalidated { .. } => &mut coverage.unacked,
        _ => &mut coverage.lost,
    } += 1;
    coverage.longest = coverage.longest.max(event.end - event.begin);
}

/// Whether `event` wrote the value that `served` has.
fn wrote_what_was_served(event: &Event, served: &Event) -> bool {
    match (&event.what, &served.what) {
        (Observation::Wrote { write, .. }, Observation::Served { write: of, .. }) => write == of,
        _ => false,
    }
}

/// The key's history up to then: all writes and invalidations, and the last replies.
fn describe(of: &[&Event], at: &Event) -> String {
    let until: Vec<_> = of.iter().filter(|event| event.begin <= at.end).collect();
    let recent = until.len().saturating_sub(60);
    let tells = |(place, event): (usize, &&&Event)| {
        let says = place >= recent
            || matches!(event.what, Observation::Wrote { .. } | Observation::Invalidated { .. });
        let Event { begin, end, actor, what, .. } = **event;
        says.then(|| format!("{begin:>11} .. {end:>11} actor {} by sidecar {}: {what:?}", actor.0, actor.1))
    };
    let lines: Vec<String> = until.iter().enumerate().filter_map(tells).collect();
    // A value that was served long after it was written: also what happened to the key then.
    let written = until.iter().position(|event| wrote_what_was_served(event, at)).unwrap_or(until.len());
    let then = until[written..].iter().enumerate().take(AFTER_WRITE).filter_map(tells);
    let mut text = then.collect::<Vec<_>>().join("\n");
    text.push_str("\n...\n");
    text + &lines[lines.len().saturating_sub(150)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: u64, end: u64, what: Observation) -> Event {
        Event { key: 0, actor: (1, 0), begin, end, what }
    }

    fn wrote(begin: u64, end: u64, version: u64, blind: bool) -> Event {
        at(begin, end, Observation::Wrote { version, write: version, blind, stored: true })
    }

    fn served(begin: u64, version: u64, stale: bool) -> Event {
        at(begin, begin + 5, Observation::Served { version, write: version, stale })
    }

    fn moved(begin: u64, end: u64, version: u64, acked: bool) -> Event {
        at(begin, end, Observation::Invalidated { version, acked })
    }

    fn judged(events: &[Event]) -> Result<Coverage, String> {
        check(events, &[Key { name: "k".into(), ttl: 2, stale_for: 3 }], 1)
    }

    fn breaks(promise: u8, events: &[Event]) {
        let violation = judged(events).expect_err("a promise is violated");
        assert!(violation.contains(&format!("promise {promise}:")), "{violation}");
    }

    #[test]
    fn an_honest_history_is_one() {
        let coverage = judged(&[
            wrote(10, 20, 1, false),
            served(15, 1, false),
            moved(30, 40, 2, true),
            // Begun before it was acknowledged.
            served(39, 1, false),
            served(41, 1, true),
            wrote(50, 60, 2, false),
            served(70, 2, false),
            moved(80, 90, 3, false),
            served(95, 2, false),
        ]);
        assert_eq!(coverage.map(|coverage| (coverage.fresh, coverage.stale, coverage.acked)), Ok((4, 1, 1)));
    }

    #[test]
    fn an_old_value_served_as_fresh_after_the_acknowledgement_is_found() {
        breaks(2, &[wrote(10, 20, 1, false), moved(30, 40, 2, true), served(41, 1, false)]);
        // Stored late; but a client with a miss may not store late.
        breaks(2, &[wrote(10, 50, 1, false), moved(30, 40, 2, true), served(60, 1, false)]);
        // An older invalidation that is acknowledged later does not hide it.
        let late = [moved(30, 40, 3, true), moved(25, 45, 2, true), wrote(10, 20, 2, false)];
        breaks(2, &[&late[..], &[served(50, 2, false)]].concat());
    }

    #[test]
    fn a_set_without_a_miss_may_come_behind_an_invalidation_that_it_overlaps_and_no_other() {
        let events = |end| [wrote(10, end, 1, true), moved(30, 40, 2, true), served(60, 1, false)];
        assert!(judged(&events(35)).is_ok());
        breaks(2, &events(29));
    }

    #[test]
    fn what_is_served_for_too_long_is_found() {
        let after = |seconds: u64| 20 + SLACK + (1 + seconds) * 1_000_000;
        for (stale, lasts) in [(false, 2), (true, 5)] {
            assert!(judged(&[wrote(10, 20, 1, false), served(after(lasts), 1, stale)]).is_ok());
            breaks(3, &[wrote(10, 20, 1, false), served(after(lasts) + 1, 1, stale)]);
        }
    }

    #[test]
    fn long_waits_and_wrong_replies_and_closed_connections_are_found() {
        breaks(4, &[at(0, PATIENCE + 1, Observation::Missed)]);
        breaks(6, &[at(0, 1, Observation::WrongValue("other 1 1".into()))]);
        breaks(6, &[served(10, 1, false)]);
        let write = Observation::Wrote { version: 2, write: 1, blind: false, stored: true };
        breaks(6, &[at(0, 1, write), served(10, 1, false)]);
        breaks(7, &[at(0, 1, Observation::TimedOut)]);
        breaks(7, &[at(0, 1, Observation::Closed)]);
    }
}
