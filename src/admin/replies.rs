//! The reply to each path.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::http::HeaderValue;
use hyper::{Method, Response, StatusCode};

use super::page;
use super::readiness::Readiness;
use super::view::View;
use crate::metrics;

const TEXT: &str = "text/plain; charset=utf-8";

/// Replies to one request.
pub(super) async fn reply_to(
    method: &Method,
    path: &str,
    view: &dyn View,
    readiness: &Readiness,
) -> Response<Full<Bytes>> {
    let allowed: &[Method] = match path {
        "/" | "/metrics" | "/healthz" | "/readyz" => &[Method::GET, Method::HEAD],
        "/reload" => &[Method::POST],
        _ => {
            let help = "not found: try /, /metrics, /healthz or /readyz, or POST /reload\n";
            return reply(StatusCode::NOT_FOUND, TEXT, help);
        }
    };
    if !allowed.contains(method) {
        let names: Vec<_> = allowed.iter().map(Method::as_str).collect();
        let help = format!("only {}\n", names.join(" and "));
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, help);
        // Names of methods are valid in a header.
        if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
            refused.headers_mut().insert(ALLOW, names);
        }
        return refused;
    }
    match path {
        "/metrics" => reply(StatusCode::OK, metrics::CONTENT_TYPE, view.metrics()),
        "/reload" => match view.reload().await {
            Ok(changes) => reply(StatusCode::OK, TEXT, changes),
            Err(mistakes) => reply(StatusCode::UNPROCESSABLE_ENTITY, TEXT, mistakes),
        },
        "/healthz" => reply(StatusCode::OK, TEXT, "ok"),
        "/readyz" if readiness.is_ready() => {
            let lines = [vec!["ready".to_owned()], view.notes()].concat();
            reply(StatusCode::OK, TEXT, lines.join("\n"))
        }
        "/readyz" => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, readiness.word()),
        _ => {
            let page = page::render(&view.overview(), readiness.word());
            let mut page = reply(StatusCode::OK, "text/html; charset=utf-8", page);
            // Names are escaped. In case that fails, the policy forbids scripts and references.
            let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
            page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
            page
        }
    }
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
