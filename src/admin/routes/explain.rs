//! `GET /explain?key=KEY`: what is known of a key, as text, or as JSON with `format=json` or `Accept: application/json`.
//! `base64=1`: the key is in base64.

use hyper::StatusCode;

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::access::Feature;
use crate::admin::query::parameters;
use crate::admin::replies::{JSON, TEXT, reply};
use crate::admin::view::NotExplained;
use crate::protocol::base64;
use crate::proxy::key_error;

pub(super) const ROUTE: Route =
    Route { path: "/explain", verb: Verb::Get, needs: Needs::Keys(Feature::Explain), reply: explain };

const USAGE: &str =
    "GET /explain?key=KEY, with KEY percent-encoded; &base64=1 if it is base64; &format=json for JSON\n";

fn explain(asked: Asked) -> Replying {
    Box::pin(async move {
        let (key, json) = match parse(&asked) {
            Ok(parsed) => parsed,
            Err(why) => return reply(StatusCode::BAD_REQUEST, TEXT, format!("{why}\n{USAGE}")),
        };
        match asked.view.explain(key).await {
            Ok(explanation) if json => match serde_json::to_vec(&explanation) {
                Ok(body) => reply(StatusCode::OK, JSON, [&body[..], b"\n"].concat()),
                Err(error) => reply(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
            },
            Ok(explanation) => reply(StatusCode::OK, TEXT, explanation.to_string()),
            Err(why) => {
                let why = match why {
                    NotExplained::Busy => "too many keys are being explained: try again",
                    NotExplained::TimedOut => "a worker or a server has not replied in time",
                    NotExplained::NotServing => "the sidecar is starting or stopping",
                };
                reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
            }
        }
    })
}

/// The key, and whether JSON is wanted.
fn parse(asked: &Asked) -> Result<(Vec<u8>, bool), String> {
    let (mut key, mut is_base64, mut json) = (None, false, asked.accept.contains("application/json"));
    for (name, value) in parameters(&asked.query)? {
        match (&*name, &value[..]) {
            ("key", _) if key.is_some() => return Err("key is given twice".to_owned()),
            ("key", _) => key = Some(value),
            ("base64", b"" | b"1" | b"true") => is_base64 = true,
            ("base64", b"0" | b"false") => is_base64 = false,
            ("base64", _) => return Err("base64 must be 1 or 0".to_owned()),
            ("format", b"json") => json = true,
            ("format", b"text") => json = false,
            ("format", _) => return Err("format must be json or text".to_owned()),
            _ => return Err(format!("unknown parameter {}", crate::proxy::shown(name.as_bytes()))),
        }
    }
    let key = key.ok_or("key is missing")?;
    let key = match is_base64 {
        true => from_base64(key).ok_or("the key is not base64")?,
        false => key,
    };
    key_error(&key).map_or(Ok((key, json)), Err)
}

/// A `+` that was not percent-encoded has become a space.
fn from_base64(mut text: Vec<u8>) -> Option<Vec<u8>> {
    text.iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = b'+');
    base64::decode_strictly(&text)
}
