//! `kennel suggest`: rules for the keys that a sidecar has observed, or that a recording has. `recording` reads a recording, `propose`
//! finds the rules, and `page` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;

use super::arguments::SuggestArguments;
use crate::config::{self, Config, Location};
use crate::observed::{Families, Family};
use page::Looked;
use recording::Recording;

mod page;
mod propose;
mod recording;
#[cfg(test)]
mod tests;

/// The longest time that a sidecar is given to reply.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);

/// The reply to `GET /observed`.
#[derive(Debug, Deserialize)]
struct ObservedPage {
    seconds: f64,
    keys_are_shown: bool,
    families: BTreeMap<String, Family>,
}

/// Prints the rules. `location`: of the configuration. Returns 1, and prints the reason to stderr, if there is nothing
/// from which rules could be made.
pub fn run(arguments: &SuggestArguments, location: &Location) -> ExitCode {
    match suggest(arguments, location) {
        Ok(text) => {
            // The output may be closed: then there is nobody to tell.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            // The exit code matters even if stderr is closed.
            let _ = writeln!(io::stderr(), "kennel suggest: {why}");
            ExitCode::FAILURE
        }
    }
}

fn suggest(arguments: &SuggestArguments, location: &Location) -> Result<String, String> {
    let SuggestArguments { sidecar, recording, file } = arguments;
    let recording = recording.as_deref().or(file.as_deref());
    // A file that was found belongs to the sidecar of this machine.
    let config = match recording.is_none() && sidecar.admin.is_none() {
        true => location.path(),
        false => location.named(),
    };
    let taken = config.map_or_else(|| Ok(BTreeSet::new()), names)?;
    let (families, looked) = match recording {
        Some(path) => of_recording(path)?,
        None => {
            let client = sidecar.client(location)?;
            let reply = client.get("/observed", SIDECAR_TIMEOUT).map_err(|why| why.to_string())?;
            of_sidecar(&client.address, &reply)?
        }
    };
    Ok(page::text(&propose::propose(&families, &taken), &looked))
}

/// The names of the rules that a configuration has.
fn names(path: &Path) -> Result<BTreeSet<String>, String> {
    let config = Config::load(Some(path), config::environment()).map_err(|errors| errors.to_string())?;
    Ok(config.rules.into_iter().map(|rule| rule.name).collect())
}

fn of_recording(path: &Path) -> Result<(Families, Looked), String> {
    let file = path.display();
    let failed = |why: String| format!("{file}: {why}");
    let read = match path.as_os_str() == "-" {
        true => Recording::read(io::stdin().lock()),
        false => File::open(path)
            .map_err(|error| error.to_string())
            .and_then(|open| Recording::read(BufReader::new(open))),
    };
    let Recording { families, lasted, events, dropped } = read.map_err(failed)?;
    let looked = Looked { at: format!("the recording {file}, {events} events"), lasted, dropped };
    Ok((families, looked))
}

fn of_sidecar(address: &str, reply: &str) -> Result<(Families, Looked), String> {
    let page: ObservedPage = serde_json::from_str(reply)
        .map_err(|error| format!("{address}: the sidecar's reply is not understood: {error}"))?;
    if !page.keys_are_shown {
        return Err(format!(
            "{address}: log.keys hides parts of the keys there, so their patterns are not known"
        ));
    }
    if page.families.is_empty() {
        return Err(format!(
            "{address}: nothing has been observed: set kind = \"observe\" in a rule, or all = true in [observe], reload, and wait \
             for an hour of usual load"
        ));
    }
    let lasted = Duration::try_from_secs_f64(page.seconds).unwrap_or_default();
    Ok((Families::of(page.families), Looked { at: format!("the sidecar at {address}"), lasted, dropped: 0 }))
}
