//! `GET /readyz`: whether clients are accepted. Open to everybody, for probes; the problems only to those who may look.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::{TEXT, reply};

pub(super) const ROUTE: Route =
    Route { path: "/readyz", verb: Verb::Get, needs: Needs::Nothing, reply: readyz };

fn readyz(asked: Asked) -> Replying {
    Box::pin(async move {
        let Asked { readiness, view, is_known, .. } = asked;
        if !readiness.is_ready() {
            return reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, readiness.word());
        }
        let notes = if is_known { view.notes() } else { Vec::new() };
        let lines = [vec!["ready".to_owned()], notes].concat();
        reply(StatusCode::OK, TEXT, lines.join("\n"))
    })
}
