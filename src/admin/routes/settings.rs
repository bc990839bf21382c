//! `GET /config`: the settings in force as a configuration file, with what the environment has set. Files are named, not shown.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::{TEXT, reply};

pub(super) const ROUTE: Route =
    Route { path: "/config", verb: Verb::Get, needs: Needs::Look, reply: settings };

fn settings(asked: Asked) -> Replying {
    Box::pin(async move { reply(StatusCode::OK, TEXT, asked.view.written().to_string()) })
}
