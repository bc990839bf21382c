//! `GET /healthz`: whether the process can reply. Open to everybody, for probes.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::{TEXT, reply};

pub(super) const ROUTE: Route =
    Route { path: "/healthz", verb: Verb::Get, needs: Needs::Nothing, reply: healthz };

fn healthz(_: Asked) -> Replying {
    Box::pin(async { reply(StatusCode::OK, TEXT, "ok") })
}
