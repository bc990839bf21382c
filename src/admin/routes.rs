//! What there is to ask, one file for each path.
//!
//! A route names its path, its method and what it needs; `access` decides before it is called. To add one, add a file with a
//! `ROUTE` and a line in [`ROUTES`].

mod explain;
mod healthz;
mod hot;
mod metrics;
mod observed;
mod page;
mod readyz;
mod reload;
mod servers;
mod settings;
mod slabs;
mod trace;

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use hyper::header::{ALLOW, HeaderMap};
use hyper::http::HeaderValue;
use hyper::{Method, Response, StatusCode};

use super::access::{Access, Needs};
use super::activity::Activity;
use super::readiness::Readiness;
use super::replies::{Body, TEXT, reply};
use super::view::View;

const ROUTES: &[Route] = &[
    page::PAGE,
    page::DATA,
    page::LEASES,
    page::SCRIPT,
    page::STYLE,
    page::PLOT_SCRIPT,
    page::PLOT_STYLE,
    metrics::ROUTE,
    healthz::ROUTE,
    readyz::ROUTE,
    settings::ROUTE,
    explain::ROUTE,
    hot::ROUTE,
    observed::ROUTE,
    trace::ROUTE,
    slabs::ROUTE,
    reload::ROUTE,
    servers::DRAIN,
    servers::UNDRAIN,
];

struct Route {
    path: &'static str,
    verb: Verb,
    needs: Needs,
    reply: fn(Asked) -> Replying,
}

/// The method of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Get,
    /// GET: a stream that ends with the connection.
    Stream,
    Post,
}

/// A reply that is being made.
type Replying = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// What a route may use.
struct Asked {
    /// What follows `?`, empty if there is none.
    query: String,
    /// The Accept header, empty if there is none.
    accept: String,
    /// Whether the client has shown who it is, or does not need to.
    is_known: bool,
    view: Arc<dyn View>,
    readiness: Readiness,
    activity: Activity,
}

/// Replies to one request.
pub(super) async fn reply_to(
    method: &Method,
    (path, query): (&str, &str),
    (headers, from): (&HeaderMap, IpAddr),
    access: &Access,
    view: &Arc<dyn View>,
    readiness: &Readiness,
    activity: &Activity,
) -> Response<Body> {
    let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
        let gets = ROUTES.iter().filter(|route| route.verb != Verb::Post).map(|route| route.path);
        let gets = gets.collect::<Vec<_>>().join(", ");
        let posts = ROUTES.iter().filter(|route| route.verb == Verb::Post).map(|route| route.path);
        let posts = posts.collect::<Vec<_>>().join(", ");
        return reply(StatusCode::NOT_FOUND, TEXT, format!("not found: try {gets}, or POST {posts}\n"));
    };
    if !route.verb.methods().contains(method) {
        let names: Vec<_> = route.verb.methods().iter().map(Method::as_str).collect();
        let help = format!("only {}\n", names.join(" and "));
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, help);
        // Names of methods are valid in a header.
        if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
            refused.headers_mut().insert(ALLOW, names);
        }
        return refused;
    }
    if let Err(refused) = access.check(route.needs, headers, from) {
        return refused.reply();
    }
    let accept = headers.get("accept").and_then(|accept| accept.to_str().ok()).unwrap_or_default().to_owned();
    let asked = Asked {
        query: query.to_owned(),
        accept,
        is_known: access.check(Needs::Look, headers, from).is_ok(),
        view: Arc::clone(view),
        readiness: readiness.clone(),
        activity: activity.clone(),
    };
    (route.reply)(asked).await
}

impl Verb {
    fn methods(self) -> &'static [Method] {
        match self {
            Verb::Get => &[Method::GET, Method::HEAD],
            Verb::Stream => &[Method::GET],
            Verb::Post => &[Method::POST],
        }
    }
}
