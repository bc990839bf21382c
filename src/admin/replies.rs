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
pub(super) fn reply_to(
    method: &Method,
    path: &str,
    view: &dyn View,
    readiness: &Readiness,
) -> Response<Full<Bytes>> {
    if !matches!(path, "/" | "/metrics" | "/healthz" | "/readyz") {
        return reply(StatusCode::NOT_FOUND, TEXT, "not found: try /, /metrics, /healthz or /readyz\n");
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match path {
        "/metrics" => reply(StatusCode::OK, metrics::CONTENT_TYPE, view.metrics()),
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
