//! `GET /slabs`: the slab classes of each server, as JSON.
//!
//! The status page asks for it, and each reply costs the servers at most what one reply in 5 s costs: see `View::slabs`.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::replies::{JSON, TEXT, reply};
use crate::admin::shown;
use crate::admin::slabs::{ServerSlabs, SlabClass, Slabs};
use crate::clock::utc;

pub(super) const ROUTE: Route = Route { path: "/slabs", verb: Verb::Get, needs: Needs::Look, reply: slabs };

fn slabs(asked: Asked) -> Replying {
    Box::pin(async move {
        match asked.view.slabs().await {
            Some(slabs) => reply(StatusCode::OK, JSON, shown::json(&page(&slabs))),
            None => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "no worker has replied in time\n"),
        }
    })
}

fn page(slabs: &Slabs) -> Value {
    json!({
        "at": utc(slabs.at_ms),
        "omitted": slabs.omitted,
        "servers": slabs.servers.iter().map(server).collect::<Vec<_>>(),
    })
}

fn server(ServerSlabs { pool, server, classes }: &ServerSlabs) -> Value {
    let (classes, error) = match classes {
        Ok(classes) => (classes.iter().map(class).collect::<Vec<_>>(), None),
        Err(why) => (Vec::new(), Some(why)),
    };
    json!({ "pool": pool, "server": server, "classes": classes, "error": error })
}

fn class(class: &SlabClass) -> Value {
    json!({
        "class": class.class,
        "chunk_size": class.chunk_size,
        "chunks_per_page": class.chunks_per_page,
        "total_pages": class.total_pages,
        "total_chunks": class.total_chunks,
        "used_chunks": class.used_chunks,
        "evicted": class.evicted,
        "evicted_time": class.evicted_time,
    })
}
