//! The rules as TOML, with what they are based on as comments.

use std::fmt::Write;
use std::time::Duration;

use super::propose::{Proposal, ProposedKind, ProposedPreset};
use crate::observed::Family;

/// What has been looked at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Looked {
    pub(super) at: String,
    pub(super) lasted: Duration,
    /// Events that are not in the recording.
    pub(super) dropped: u64,
}

pub(super) fn text(proposals: &[Proposal], looked: &Looked) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut page, proposals, looked);
    page
}

fn write_page(page: &mut String, proposals: &[Proposal], looked: &Looked) -> std::fmt::Result {
    let Looked { at, lasted, dropped } = looked;
    writeln!(page, "# Proposed by kennel suggest from {at}, over {}.", long(*lasted))?;
    let sum = |of: fn(&Family) -> u64| proposals.iter().map(|proposal| of(&proposal.family)).sum::<u64>();
    let (builds, spared) = (sum(|family| family.builds), sum(|family| family.spared));
    writeln!(
        page,
        "# {builds} builds (a miss, and the store that followed it), which took {}. A guard would have spared {spared} of them, {}.",
        short(sum(|family| family.build_micros)),
        short(sum(|family| family.spared_micros))
    )?;
    if *dropped > 0 {
        writeln!(
            page,
            "# {dropped} events are missing in the recording: what they would have changed is not known."
        )?;
    }
    writeln!(page, "#")?;
    writeln!(page, "# What this cannot know:")?;
    writeln!(
        page,
        "# - builds of other frontends: a guard spares those that overlap between frontends too, so the numbers are too small"
    )?;
    writeln!(
        page,
        "# - what happens at other times than this: other keys, longer builds, jobs of the night"
    )?;
    writeln!(page, "# - whether a value may be served for some time after its expiry (stale_for)")?;
    writeln!(
        page,
        "# - what changes a value: a tag is of use only if the application bumps it (docs/tags.md)"
    )?;
    writeln!(
        page,
        "# Begin with a part of the keys, and read each rule before you use it. The first rule that matches a key applies."
    )?;
    for proposal in proposals.iter().filter(|proposal| proposal.kind != ProposedKind::None) {
        write_rule(page, proposal)?;
    }
    let mut others = proposals.iter().filter(|proposal| proposal.kind == ProposedKind::None).peekable();
    if others.peek().is_some() {
        writeln!(
            page,
            "\n# No rule is proposed for these: nothing was stored after a miss, so a guard spares nothing."
        )?;
    }
    for Proposal { pattern, family, .. } in others {
        writeln!(
            page,
            "# {pattern}: {} misses, {} sets, {} adds, {} deletes",
            family.misses, family.sets, family.adds, family.deletes
        )?;
    }
    Ok(())
}

fn write_rule(page: &mut String, proposal: &Proposal) -> std::fmt::Result {
    let Proposal { name, pattern, kind, family } = proposal;
    writeln!(page)?;
    match kind {
        ProposedKind::Guarded { preset, .. } => {
            let share = family.spared * 100 / family.builds.max(1);
            writeln!(
                page,
                "# {} builds; a guard would have spared {} ({share} %): {} of {}. At most {} of one key at once.",
                family.builds,
                family.spared,
                short(family.spared_micros),
                short(family.build_micros),
                family.at_once
            )?;
            let quantile = |share| family.quantile(share).map_or(0, |time| time.as_micros() as u64);
            writeln!(
                page,
                "# A build took up to {} in half of the cases, up to {} in 95 of 100, and {} at most.",
                short(quantile(0.5)),
                short(quantile(0.95)),
                short(family.longest_micros)
            )?;
            if let Some(preset) = preset {
                write_reason(page, *preset, family)?;
            }
        }
        ProposedKind::Counter => writeln!(
            page,
            "# {} incr and decr, {} sets, {} adds. The keys are counters from then on: they begin anew, and have commands of their \
             own (docs/structures.md).",
            family.counts, family.sets, family.adds
        )?,
        ProposedKind::Lock => writeln!(
            page,
            "# {} adds that succeeded and {} that did not, {} deletes: locks. They have commands of their own (docs/structures.md).",
            family.adds, family.refused_adds, family.deletes
        )?,
        ProposedKind::Log => writeln!(
            page,
            "# {} append and prepend, {} sets, {} adds: entries of the last time. If they are a set of elements that come and go, \
             use kind = \"list\" without window. Both have commands of their own (docs/structures.md).",
            family.appends, family.sets, family.adds
        )?,
        ProposedKind::None => {}
    }
    writeln!(page, "[[rules]]\nname = {name:?}\nmatch = {pattern:?}")?;
    match kind {
        ProposedKind::Guarded { stale_for, cold_wait, max_rebuild, tags, preset } => {
            writeln!(page, "kind = \"guarded\"")?;
            writeln!(page, "stale_for = \"{}s\"", stale_for.as_secs())?;
            writeln!(page, "cold_wait = \"{}ms\"", cold_wait.as_millis())?;
            if let Some(max_rebuild) = max_rebuild {
                writeln!(page, "max_rebuild = \"{}s\"", max_rebuild.as_secs())?;
            }
            if cold_wait.as_secs() > 10 {
                writeln!(page, "cold_limit = \"{}ms\"", 2 * cold_wait.as_millis())?;
            }
            match preset {
                Some(ProposedPreset::Rails) => writeln!(page, "preset = \"rails\"")?,
                Some(ProposedPreset::Dogpile { max_ttl }) => {
                    writeln!(page, "preset = \"dogpile\"\nmax_ttl = \"{}s\"", max_ttl.as_secs())?;
                }
                None => {}
            }
            if !tags.is_empty() {
                writeln!(page, "tags = {tags:?}")?;
            }
            Ok(())
        }
        ProposedKind::Counter => writeln!(page, "kind = \"counter\""),
        ProposedKind::Lock => writeln!(page, "kind = \"lock\""),
        ProposedKind::Log => writeln!(page, "kind = \"log\"\nwindow = \"5m\""),
        ProposedKind::None => Ok(()),
    }
}

/// Why a preset is proposed.
fn write_reason(page: &mut String, preset: ProposedPreset, family: &Family) -> std::fmt::Result {
    let (from, to) = family.usual_ages().unwrap_or_default();
    let (done, library) = match preset {
        ProposedPreset::Rails => ("deleted the value and stored a new one", "as Rails does"),
        ProposedPreset::Dogpile { .. } => {
            ("stored a new value", "as dogpile.cache does; for Symfony, preset = \"symfony\" is enough")
        }
    };
    writeln!(
        page,
        "# {} times, a client that had not missed the key {done}, most at an age of {} to {}: the library keeps an expiry inside the \
         value, {library}.",
        family.renewals(),
        short(from.as_micros() as u64),
        short(to.as_micros() as u64)
    )
}

/// A duration in microseconds, with its unit.
fn short(micros: u64) -> String {
    match micros {
        ..1000 => format!("{micros} µs"),
        1000..1_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// A long duration in words.
fn long(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
