//! `kennel fleet`: what the marks in the pools tell of the sidecars of the fleet, as a running sidecar sees it.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::arguments::Sidecar;
use crate::config::Location;

/// The longest time that a sidecar is given to reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Prints the placements and rules in use of each pool, and where its keys are. `location`: of the configuration.
/// Returns 1, and prints the reason to stderr, if the sidecar cannot be asked.
pub fn run(sidecar: &Sidecar, json: bool, location: &Location) -> ExitCode {
    match fleet(sidecar, json, location) {
        Ok(text) => {
            // The output may be closed: then there is nobody to tell.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(why) => {
            let _ = writeln!(io::stderr(), "kennel fleet: {why}");
            ExitCode::FAILURE
        }
    }
}

fn fleet(sidecar: &Sidecar, json: bool, location: &Location) -> Result<String, String> {
    let client = sidecar.client(location)?;
    // Without the history.
    let page =
        client.get(&format!("/page.json?since={}", u64::MAX), TIMEOUT).map_err(|why| why.to_string())?;
    let page: Value =
        serde_json::from_str(&page).map_err(|why| format!("the reply is not a status page: {why}"))?;
    let pools = page["pools"].as_array().cloned().unwrap_or_default();
    Ok(match json {
        true => format!("{}\n", serde_json::json!({ "pools": pools })),
        false => pools.iter().map(table).collect::<Vec<_>>().join("\n"),
    })
}

/// A pool as text.
fn table(pool: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let mut text = format!("pool {}\n", word(&pool["name"]));
    match pool["placement"].as_str() {
        Some(own) => {
            let _ = writeln!(text, "  placement  {own}  this sidecar");
        }
        None => text.push_str("  no marks: its servers are inside this process\n"),
    }
    for other in pool["unknown_placements"].as_array().into_iter().flatten() {
        let _ = writeln!(text, "  placement  {}  other sidecars, not adjacent", word(other));
    }
    let own = &pool["rules"]["own"];
    let in_use = pool["rules"]["in_use"].as_array().cloned().unwrap_or_default();
    for rules in &in_use {
        let of = if rules["fingerprint"] == *own { "as this sidecar" } else { "other sidecars" };
        let [fingerprint, version, since] = ["fingerprint", "version", "since"].map(|key| word(&rules[key]));
        let _ = writeln!(text, "  rules      {fingerprint}  kennel {version}  since {since}  {of}");
    }
    for server in pool["servers"].as_array().into_iter().flatten() {
        let keys = match server["keys"].as_str() {
            Some("standby") => "its keys are on its standby servers",
            Some("drained") => "its keys are on its standby servers: it is drained",
            Some("unknown") => "where its keys are is unknown here",
            _ => "its keys are on it",
        };
        let _ = writeln!(text, "  server     {}  {}, {keys}", word(&server["name"]), word(&server["state"]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_listed_with_its_placements_rules_and_places() {
        let pool = serde_json::json!({
            "name": "main",
            "placement": "0a",
            "unknown_placements": ["0b"],
            "rules": { "own": "01", "in_use": [
                { "fingerprint": "01", "version": "0.1.0", "since": "2026-11-27T20:00:00Z" },
                { "fingerprint": "02", "version": "0.2.0", "since": "2026-11-27T21:00:00Z" },
            ] },
            "servers": [{ "name": "a:11211", "state": "up", "keys": "standby" }, { "name": "b:11211", "state": "down" },
                        { "name": "c:11211", "state": "up", "keys": "drained" }],
        });
        let expected = "pool main\n  placement  0a  this sidecar\n  placement  0b  other sidecars, not adjacent\n  rules      01  kennel \
                        0.1.0  since 2026-11-27T20:00:00Z  as this sidecar\n  rules      02  kennel 0.2.0  since \
                        2026-11-27T21:00:00Z  other sidecars\n  server     a:11211  up, its keys are on its standby servers\n  server     \
                        b:11211  down, its keys are on it\n  server     c:11211  up, its keys are on its standby servers: it is drained\n";
        assert_eq!(table(&pool), expected);
        let embedded = serde_json::json!({ "name": "main", "placement": null, "servers": [] });
        assert_eq!(table(&embedded), "pool main\n  no marks: its servers are inside this process\n");
    }
}
