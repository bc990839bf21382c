//! `GET /observed`: what has happened to the families of observed keys since counting began, as JSON. `kennel suggest` reads it.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Serialize;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::access::Feature;
use crate::admin::replies::{JSON, reply};
use crate::admin::shown::json;
use crate::admin::view::ObservedKeys;
use crate::observed::Family;

pub(super) const ROUTE: Route =
    Route { path: "/observed", verb: Verb::Get, needs: Needs::Keys(Feature::Hot), reply: observed };

#[derive(Serialize)]
struct ObservedJson<'a> {
    seconds: f64,
    keys_are_shown: bool,
    families: &'a BTreeMap<String, Family>,
}

fn observed(asked: Asked) -> Replying {
    Box::pin(async move {
        let ObservedKeys { keys_are_shown, seconds, families } = asked.view.observed();
        let page = ObservedJson { seconds, keys_are_shown, families: &families.families };
        reply(StatusCode::OK, JSON, json(&page))
    })
}
