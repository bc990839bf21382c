//! The parts of a reply.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::http::HeaderValue;
use hyper::{Response, StatusCode};

/// The body of a reply: whole, or a stream.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The content type of text.
pub(super) const TEXT: &str = "text/plain; charset=utf-8";
/// The content type of JSON.
pub(super) const JSON: &str = "application/json";

/// A reply with a whole body.
pub(super) fn reply(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut reply = Response::new(Full::new(body.into()).boxed_unsync());
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
