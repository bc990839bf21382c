//! `GET /metrics`: Prometheus's text format.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::reply;
use crate::metrics::CONTENT_TYPE;

pub(super) const ROUTE: Route =
    Route { path: "/metrics", verb: Verb::Get, needs: Needs::Look, reply: metrics };

fn metrics(asked: Asked) -> Replying {
    Box::pin(async move { reply(StatusCode::OK, CONTENT_TYPE, asked.view.metrics()) })
}
