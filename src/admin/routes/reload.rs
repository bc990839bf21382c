//! `POST /reload`: reads the configuration again. 200 and what has changed, or 422 and the mistakes, or what it would lose.
//! `force=1`: takes it even if it loses something. `dry_run=1`: tells what would change, and changes nothing.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::query::parameters;
use crate::admin::replies::{TEXT, reply};
use crate::takeover::ReloadMode;

pub(super) const ROUTE: Route =
    Route { path: "/reload", verb: Verb::Post, needs: Needs::Change, reply: reload };

const USAGE: &str = "POST /reload; ?force=1 takes what would lose something; ?dry_run=1 changes nothing\n";

fn reload(asked: Asked) -> Replying {
    Box::pin(async move {
        let mode = match mode(&asked.query) {
            Ok(mode) => mode,
            Err(why) => return reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n{USAGE}")),
        };
        match asked.view.reload(mode).await {
            Ok(changes) => reply(StatusCode::OK, TEXT, changes),
            Err(mistakes) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, mistakes),
        }
    })
}

fn mode(query: &str) -> Result<ReloadMode, String> {
    let (mut force, mut dry_run) = (false, false);
    for (name, value) in parameters(query)? {
        let value = match &value[..] {
            b"" | b"1" | b"true" => true,
            b"0" | b"false" => false,
            _ => return Err(format!("{} must be 1 or 0", crate::proxy::shown(name.as_bytes()))),
        };
        match &*name {
            "force" => force = value,
            "dry_run" | "dry-run" => dry_run = value,
            _ => return Err(format!("unknown parameter {}", crate::proxy::shown(name.as_bytes()))),
        }
    }
    match (force, dry_run) {
        (true, true) => Err("force and dry_run exclude each other".to_owned()),
        (true, false) => Ok(ReloadMode::Force),
        (false, true) => Ok(ReloadMode::DryRun),
        (false, false) => Ok(ReloadMode::Careful),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_careful_unless_it_is_told_otherwise() {
        for (query, expected) in [
            ("", ReloadMode::Careful),
            ("force=0", ReloadMode::Careful),
            ("force=1", ReloadMode::Force),
            ("force", ReloadMode::Force),
            ("dry_run=true", ReloadMode::DryRun),
        ] {
            assert_eq!(mode(query), Ok(expected), "{query}");
        }
        for query in ["force=yes", "forced=1", "force=1&dry_run=1"] {
            assert!(mode(query).is_err(), "{query}");
        }
    }
}
