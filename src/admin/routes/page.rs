//! `GET /`: the status page, its files, and what it shows, as JSON.
//!
//! The page asks for `/page.json` once a second. `since` is the number of the first point of the last hour that is wanted. The page
//! asks for keys separately, from `/leases` and `/hot`, because they may be switched off.

use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_FRAME_OPTIONS};
use hyper::http::HeaderValue;
use serde_json::{Value, json};

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::access::Feature;
use crate::admin::query::parameters;
use crate::admin::replies::{JSON, TEXT, reply};
use crate::admin::shown::{self, ShownKey};
use crate::admin::view::{ErrorRow, FleetRules, KeysAt, LeaseRow, Overview, PoolRow, RuleRow, ServerRow};
use crate::clock::utc;

pub(super) const PAGE: Route = file("/", |_| Box::pin(async { page() }));
pub(super) const SCRIPT: Route = file("/page.js", |_| {
    Box::pin(async { reply(StatusCode::OK, JAVASCRIPT, include_str!("../page/page.js")) })
});
pub(super) const STYLE: Route =
    file("/page.css", |_| Box::pin(async { reply(StatusCode::OK, CSS, include_str!("../page/page.css")) }));
pub(super) const PLOT_SCRIPT: Route = file("/uplot.js", |_| {
    Box::pin(async { reply(StatusCode::OK, JAVASCRIPT, include_str!("../page/uplot/uPlot.iife.min.js")) })
});
pub(super) const PLOT_STYLE: Route = file("/uplot.css", |_| {
    Box::pin(async { reply(StatusCode::OK, CSS, include_str!("../page/uplot/uPlot.min.css")) })
});
pub(super) const DATA: Route = Route { path: "/page.json", verb: Verb::Get, needs: Needs::Look, reply: data };
pub(super) const LEASES: Route =
    Route { path: "/leases", verb: Verb::Get, needs: Needs::Keys(Feature::Hot), reply: leases };

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
/// Everything comes from this server. Names reach the page as text only; in case that fails, this forbids what they could do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The most leases that are returned.
const MAX_LEASES_SHOWN: usize = 50;

const fn file(path: &'static str, reply: fn(Asked) -> Replying) -> Route {
    Route { path, verb: Verb::Get, needs: Needs::Look, reply }
}

fn page() -> hyper::Response<super::Body> {
    let mut page = reply(StatusCode::OK, "text/html; charset=utf-8", include_str!("../page/page.html"));
    let headers = page.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    page
}

fn data(asked: Asked) -> Replying {
    Box::pin(async move {
        let since = match since(&asked.query) {
            Ok(since) => since,
            Err(why) => return reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
        };
        let mut page = overview(&asked.view.overview(), asked.readiness.word(), &asked.view.notes());
        page["history"] = serde_json::to_value(asked.view.history(since)).unwrap_or_default();
        page["errors"] = asked.view.errors().iter().map(error).collect();
        reply(StatusCode::OK, JSON, shown::json(&page))
    })
}

fn since(query: &str) -> Result<u64, String> {
    let mut since = 0;
    for (name, value) in parameters(query)? {
        let text = String::from_utf8_lossy(&value);
        match &*name {
            "since" => {
                since = text.parse().map_err(|_| format!("since={text} must be the number of a point"))?;
            }
            _ => return Err(format!("{name} is no parameter: use since")),
        }
    }
    Ok(since)
}

fn leases(asked: Asked) -> Replying {
    Box::pin(async move {
        let rows = asked.view.leases(MAX_LEASES_SHOWN);
        let leases: Vec<Value> = rows.iter().map(lease).collect();
        reply(StatusCode::OK, JSON, shown::json(&json!({ "most": MAX_LEASES_SHOWN, "leases": leases })))
    })
}

fn lease(row: &LeaseRow) -> Value {
    let mut lease = serde_json::to_value(ShownKey::of(&row.key)).unwrap_or_default();
    lease["held_ms"] = row.held_ms.into();
    lease["waiters"] = row.waiters.into();
    lease
}

fn error(error: &ErrorRow) -> Value {
    json!({
        "at": utc(error.at_ms),
        "level": if error.is_error { "error" } else { "warning" },
        "of": error.of,
        "from": error.from,
        "text": error.text,
        "count": error.count,
    })
}

/// All but the history and the errors. `state` is the word that `/readyz` starts with, `notes` are its further lines.
fn overview(overview: &Overview, state: &str, notes: &[String]) -> Value {
    let Overview { version, uptime, config, pools, rules, discovery } = overview;
    let set = config.set.iter().map(|(key, value)| json!({ "key": key, "value": value }));
    let entries = discovery.iter().flat_map(|pool| {
        pool.entries.iter().map(move |entry| {
            json!({
                "pool": pool.pool,
                "entry": entry.entry,
                "servers": entry.servers,
                "found_at": entry.last_success_ms.and_then(utc),
                "error": entry.error,
                "step": pool.step,
            })
        })
    });
    json!({
        "version": version,
        "state": state,
        "uptime_seconds": uptime.as_secs(),
        "notes": notes,
        "config": {
            "hash": config.hash,
            "read_at": utc(config.read_ms),
            "errors": config.errors,
            "set": set.collect::<Vec<_>>(),
        },
        "pools": pools.iter().map(pool).collect::<Vec<_>>(),
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
        "discovery": entries.collect::<Vec<_>>(),
    })
}

fn pool(pool: &PoolRow) -> Value {
    let placements = pool.placements.as_ref();
    json!({
        "name": pool.name,
        "servers": pool.servers.iter().map(server).collect::<Vec<_>>(),
        "placement": placements.map(|placements| &placements.own),
        "unknown_placements": placements.map_or(&[][..], |placements| &placements.unknown),
        "rules": pool.rules.as_ref().map(|(own, in_use)| json!({
            "own": own,
            "in_use": in_use.iter().map(fleet_rules).collect::<Vec<_>>(),
        })),
    })
}

fn fleet_rules(rules: &FleetRules) -> Value {
    json!({ "fingerprint": rules.fingerprint, "version": rules.version, "since": utc(rules.since_ms) })
}

fn server(server: &ServerRow) -> Value {
    let state = match server.up {
        Some(true) if server.sick => "sick",
        Some(true) => "up",
        Some(false) => "down",
        None => "unknown",
    };
    let keys = server.keys.map(|keys| match keys {
        KeysAt::Own => "own",
        KeysAt::Standby => "standby",
        KeysAt::Drained => "drained",
        KeysAt::Unknown => "unknown",
    });
    json!({
        "name": server.name,
        "state": state,
        "keys": keys,
        "share": server.share,
        "standby": server.standby,
        // A number in JSON loses digits in a browser.
        "fence": server.fence.map(|fence| fence.to_string()),
    })
}

fn rule(rule: &RuleRow) -> Value {
    json!({
        "name": rule.name,
        "kind": rule.kind,
        "hits": rule.hits,
        "stale": rule.stale,
        "misses": rule.misses,
        "writes": rule.writes,
        "errors": rule.errors,
        "rebuilds": rule.rebuilds,
        "served_meanwhile": rule.served_meanwhile,
        "build_seconds": rule.build_seconds,
        "observed": {
            "builds": rule.observed.builds,
            "spared_builds": rule.observed.spared,
            "builds_at_once": rule.observed.at_once,
            "build_seconds": rule.observed.build_seconds,
            "spared_build_seconds": rule.observed.spared_seconds,
            "guarded_builds": rule.observed.guarded,
            "guarded_overlapping_builds": rule.observed.guarded_overlapping,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::view::{ConfigState, Placements};
    use crate::metrics::{DiscoveredEntry, DiscoveredPool};

    #[test]
    fn the_state_of_the_sidecar_is_shown_as_json() {
        let up = ServerRow {
            name: "a".to_owned(),
            up: Some(true),
            keys: Some(KeysAt::Own),
            share: 0.5,
            standby: vec![(1, 1.0)],
            fence: Some(u64::MAX),
            ..ServerRow::default()
        };
        let sick = ServerRow { name: "b".to_owned(), sick: true, keys: Some(KeysAt::Standby), ..up.clone() };
        let down = ServerRow { up: Some(false), keys: Some(KeysAt::Unknown), ..up.clone() };
        let servers = vec![up, sick, down, ServerRow::default()];
        let placements = Some(Placements { own: "0a".to_owned(), unknown: vec!["0b".to_owned()] });
        let used = FleetRules { fingerprint: "0c".to_owned(), version: "1".to_owned(), since_ms: 0 };
        let rules = Some(("0c".to_owned(), vec![used]));
        let entry =
            DiscoveredEntry { entry: "dns+b:1".to_owned(), last_success_ms: Some(0), ..Default::default() };
        let all = Overview {
            version: "1".to_owned(),
            config: ConfigState {
                set: vec![("log.level".to_owned(), "debug".to_owned())],
                errors: vec!["line 3".to_owned()],
                ..ConfigState::default()
            },
            pools: vec![PoolRow { name: "main".to_owned(), servers, placements, rules }],
            rules: vec![RuleRow { name: "r".to_owned(), hits: 7, ..RuleRow::default() }],
            discovery: vec![DiscoveredPool { entries: vec![entry], step: 2, ..DiscoveredPool::default() }],
            ..Overview::default()
        };
        let page = overview(&all, "ready", &["a note".to_owned()]);
        let server = |at: usize, field: &str| page["pools"][0]["servers"][at][field].clone();
        assert_eq!([0, 1, 2, 3].map(|at| server(at, "state")), ["up", "sick", "down", "unknown"]);
        assert_eq!([0, 1, 2].map(|at| server(at, "keys")), ["own", "standby", "unknown"]);
        assert_eq!((server(3, "keys"), server(3, "fence")), (Value::Null, Value::Null));
        assert_eq!(server(0, "fence"), "18446744073709551615");
        assert_eq!(server(0, "standby"), json!([[1, 1.0]]));
        assert_eq!(page["config"]["set"], json!([{ "key": "log.level", "value": "debug" }]));
        assert_eq!((&page["config"]["errors"][0], &page["notes"][0]), (&json!("line 3"), &json!("a note")));
        assert_eq!(page["pools"][0]["unknown_placements"], json!(["0b"]));
        let rules = &page["pools"][0]["rules"];
        assert_eq!((&rules["own"], &rules["in_use"][0]["version"]), (&json!("0c"), &json!("1")));
        assert!(
            rules["in_use"][0]["since"].as_str().is_some_and(|since| since.starts_with("1970")),
            "{rules}"
        );
        assert_eq!(
            (&page["rules"][0]["hits"], &page["rules"][0]["build_seconds"]),
            (&json!(7), &Value::Null)
        );
        assert_eq!((&page["discovery"][0]["step"], &page["state"]), (&json!(2), &json!("ready")));
    }

    #[test]
    fn the_page_loads_its_own_files_only_and_has_no_inline_script_or_style() {
        let page = include_str!("../page/page.html");
        let paths = [SCRIPT.path, STYLE.path, PLOT_SCRIPT.path, PLOT_STYLE.path];
        let references = page.split(" src=\"").skip(1).chain(
            page.split("<link ")
                .skip(1)
                .map(|link| link.split_once("href=\"").expect("a link has an address").1),
        );
        let mut found: Vec<&str> = references.filter_map(|rest| rest.split('"').next()).collect();
        found.retain(|path| *path != "data:,");
        found.sort_unstable();
        let mut expected = paths.to_vec();
        expected.sort_unstable();
        assert_eq!(found, expected);
        for forbidden in ["<style", "style=", " onclick", "http://", "https://", "<script>"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let script = include_str!("../page/page.js");
        for forbidden in ["innerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"] {
            assert!(!script.contains(forbidden), "{forbidden}");
        }
        assert!(include_str!("../page/page.css").contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_wrong_parameter_is_refused() {
        assert_eq!(since("since=7"), Ok(7));
        assert_eq!(since("since=-1").unwrap_err(), "since=-1 must be the number of a point");
        assert_eq!(since("x=1").unwrap_err(), "x is no parameter: use since");
    }
}
