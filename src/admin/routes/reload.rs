//! `POST /reload`: reads the configuration again. 200 and what has changed, or 422 and the mistakes.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::{TEXT, reply};

pub(super) const ROUTE: Route =
    Route { path: "/reload", verb: Verb::Post, needs: Needs::Change, reply: reload };

fn reload(asked: Asked) -> Replying {
    Box::pin(async move {
        match asked.view.reload().await {
            Ok(changes) => reply(StatusCode::OK, TEXT, changes),
            Err(mistakes) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, mistakes),
        }
    })
}
