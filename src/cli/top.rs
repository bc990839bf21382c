//! `kennel top`: the hottest keys of a running sidecar. `page` is what the sidecar sends, `plain` the table for pipes, and `screen` the
//! one of a terminal.

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use super::admin_client::{AdminClient, add_parameter};
use super::arguments::TopArguments;
use crate::config::Location;
use crate::hot::{MAX_KEYS, Measure};
use page::HotPage;

mod page;
mod plain;
mod screen;

/// The longest time that a sidecar is given to reply.
const SIDECAR_TIMEOUT: Duration = Duration::from_secs(5);

/// The most keys of a table that is printed once, unless another number is given.
const DEFAULT_KEYS: usize = 50;

/// What is asked of which sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    client: AdminClient,
    /// Parameters without `by`.
    query: String,
}

/// Shows the hottest keys: live if stdout is a terminal, else once. `location`: of the configuration. Returns 1, and
/// prints the reason to stderr, if an argument is invalid or the sidecar cannot be reached.
pub fn run(arguments: &TopArguments, location: &Location) -> ExitCode {
    match top(arguments, location) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The exit code matters even if stderr is closed.
            let _ = writeln!(io::stderr(), "kennel top: {why}");
            ExitCode::FAILURE
        }
    }
}

fn top(arguments: &TopArguments, location: &Location) -> Result<(), String> {
    let TopArguments { sidecar, by, rule, key, once, json, limit } = arguments;
    let by = Measure::ALL
        .into_iter()
        .find(|order| order.word() == by)
        .ok_or_else(|| format!("--by={by} must be one of {}", Measure::ALL.map(Measure::word).join(", ")))?;
    let is_live = !*once && !*json && io::stdout().is_terminal();
    let limit = limit.unwrap_or(if is_live { MAX_KEYS } else { DEFAULT_KEYS });
    if !(1..=MAX_KEYS).contains(&limit) {
        return Err(format!("--limit={limit} must be 1 to {MAX_KEYS}"));
    }
    let mut query = String::new();
    add_parameter(&mut query, "limit", limit.to_string().as_bytes());
    if let Some(rule) = rule {
        add_parameter(&mut query, "rule", rule.as_bytes());
    }
    if let Some(key) = key {
        add_parameter(&mut query, "key", key.as_bytes());
    }
    let source = Source { client: sidecar.client(location)?, query };
    if is_live {
        return screen::run(&source, by);
    }
    let text = source.fetch(by)?;
    let text = match json {
        true => text + "\n",
        false => plain::table(&HotPage::parse(&text)?, by),
    };
    // The output may be closed: then there is nobody to tell.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

impl Source {
    /// The sidecar's JSON.
    fn fetch(&self, by: Measure) -> Result<String, String> {
        let mut query = self.query.clone();
        add_parameter(&mut query, "by", by.word().as_bytes());
        self.client.get(&format!("/hot{query}"), SIDECAR_TIMEOUT).map_err(|why| why.to_string())
    }
}
