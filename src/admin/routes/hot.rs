//! `GET /hot`: the hottest keys now, as JSON.
//!
//! `by` is requests (the default), bytes, misses, rebuild or spared; `rule` a rule's name, `key` a pattern, `limit` the number of keys.

use hyper::StatusCode;
use serde::Serialize;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::access::Feature;
use crate::admin::query::parameters;
use crate::admin::replies::{JSON, TEXT, reply};
use crate::admin::shown::{ShownKey, json};
use crate::admin::view::{HotQuery, View};
use crate::hot::{COUNTERS, HALF_LIFE, HotReport, MAX_KEYS, Measure, Rate};
use crate::trace::{Glob, shown_key};

pub(super) const ROUTE: Route =
    Route { path: "/hot", verb: Verb::Get, needs: Needs::Keys(Feature::Hot), reply: hot };

/// The number of keys of a reply without `limit`.
const DEFAULT_LIMIT: usize = 50;

fn hot(asked: Asked) -> Replying {
    Box::pin(async move {
        match page(&asked.query, &*asked.view) {
            Ok(json) => reply(StatusCode::OK, JSON, json),
            Err(why) => reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n")),
        }
    })
}

fn parse(query: &str) -> Result<HotQuery, String> {
    let mut wanted = HotQuery { by: Measure::Requests, rule: None, key: None, limit: DEFAULT_LIMIT };
    for (name, value) in parameters(query)? {
        let text = String::from_utf8_lossy(&value);
        match &*name {
            "by" => {
                let measure = Measure::ALL.into_iter().find(|measure| measure.word() == text);
                let words = Measure::ALL.map(Measure::word).join(", ");
                wanted.by = measure.ok_or_else(|| format!("by={text} must be one of {words}"))?;
            }
            "rule" => wanted.rule = Some(text.into_owned()),
            "key" => wanted.key = Some(Glob::parse(&value).map_err(|why| format!("key={text} {why}"))?),
            "limit" => {
                let limit = text.parse().ok().filter(|limit| (1..=MAX_KEYS).contains(limit));
                wanted.limit = limit.ok_or_else(|| format!("limit={text} must be 1 to {MAX_KEYS}"))?;
            }
            _ => return Err(format!("{name} is no parameter: use by, rule, key or limit")),
        }
    }
    Ok(wanted)
}

#[derive(Serialize)]
struct HotJson<'a> {
    by: &'static str,
    seconds: f64,
    half_life_seconds: f64,
    counters: usize,
    counted_one_of: u32,
    keys: Vec<KeyJson<'a>>,
}

#[derive(Serialize)]
struct KeyJson<'a> {
    #[serde(flatten)]
    key: ShownKey,
    rule: &'a str,
    requests: Option<RateJson>,
    bytes: Option<RateJson>,
    misses: Option<RateJson>,
    rebuild: Option<RateJson>,
    spared: Option<RateJson>,
}

#[derive(Serialize)]
struct RateJson {
    per_second: f64,
    error: f64,
}

impl RateJson {
    fn of(rate: Option<Rate>) -> Option<RateJson> {
        rate.map(|Rate { value, error }| RateJson { per_second: rounded(value), error: rounded(error) })
    }
}

/// To six digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// The reply to a request with this query.
///
/// # Errors
/// The query has a mistake: a sentence.
fn page(query: &str, view: &dyn View) -> Result<Vec<u8>, String> {
    let wanted = parse(query)?;
    if let Some(rule) = &wanted.rule {
        view.names().check_rule(rule).map_err(|why| format!("rule={} {why}", shown_key(rule.as_bytes())))?;
    }
    let (HotReport { seconds, counted_one_of, keys }, rules) = view.hot(&wanted);
    let keys = keys.iter().map(|key| {
        let [requests, bytes, misses, rebuild, spared] = key.rates.map(RateJson::of);
        let rule = rules.get(key.rule).map_or("none", |rule| rule);
        KeyJson { key: ShownKey::of(&key.key), rule, requests, bytes, misses, rebuild, spared }
    });
    Ok(json(&HotJson {
        by: wanted.by.word(),
        seconds: rounded(seconds),
        half_life_seconds: HALF_LIFE.as_secs_f64(),
        counters: COUNTERS,
        counted_one_of,
        keys: keys.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_is_wanted_and_a_mistake_what_would_be_right() {
        let wanted = parse("by=misses&rule=pages&key=blog:*&limit=7").unwrap();
        let key = Some(Glob::parse(b"blog:*").unwrap());
        assert_eq!(wanted, HotQuery { by: Measure::Misses, rule: Some("pages".into()), key, limit: 7 });
        for (query, expected) in [
            ("by=size", "by=size must be one of requests, bytes, misses, rebuild, spared"),
            ("limit=0", "limit=0 must be 1 to 1000"),
            ("limit=1001", "limit=1001 must be 1 to 1000"),
            ("sort=x", "sort is no parameter: use by, rule, key or limit"),
        ] {
            assert_eq!(parse(query).unwrap_err(), expected);
        }
    }
}
