//! `GET /trace`: a stream of what happens to keys, as server-sent events (the HTML standard, "Server-sent events").
//!
//! `key`, `rule`, `kind`, `server`, `outcome`, `slower` and `sample` select the events. Each is a JSON object in a `data:` line. An
//! event named `start` comes first, and one named `dropped` says how many events were lost because they were not read in time.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Frame};
use serde::Serialize;
use tokio::time::{Sleep, sleep};

use super::{Asked, Needs, Replying, Route, Verb};
use crate::admin::access::Feature;
use crate::admin::activity::Activity;
use crate::admin::query::parameters;
use crate::admin::replies::{TEXT, reply};
use crate::admin::shown::{ShownKey, json};
use crate::admin::view::View;
use crate::clock::utc;
use crate::trace::{Event, Filter, MAX_WATCHERS, Names, Watcher};

pub(super) const ROUTE: Route =
    Route { path: "/trace", verb: Verb::Stream, needs: Needs::Keys(Feature::Trace), reply: trace };

/// The interval of comments that show that the stream is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The most events of one worker that are written at a time.
const MAX_EVENTS: usize = 256;

fn trace(asked: Asked) -> Replying {
    Box::pin(async move {
        match EventStream::new(&asked.query, &*asked.view, asked.activity) {
            Ok(events) => {
                let mut stream = reply(StatusCode::OK, "text/event-stream", "");
                *stream.body_mut() = events.boxed_unsync();
                stream
            }
            Err((status, why)) => reply(status, TEXT, why),
        }
    })
}

/// A stream of events for one watcher.
struct EventStream {
    watcher: Watcher,
    has_begun: bool,
    keep_alive: Pin<Box<Sleep>>,
    activity: Activity,
}

/// One event, as it is sent.
#[derive(Serialize)]
struct EventJson<'a> {
    time: String,
    client: String,
    command: &'static str,
    #[serde(flatten)]
    key: ShownKey,
    rule: &'a str,
    kind: &'static str,
    outcome: &'static str,
    pool: &'a str,
    server: Option<&'a str>,
    us: u64,
    bytes: usize,
    letters: &'a str,
}

impl EventStream {
    /// The stream for the query of a request.
    ///
    /// # Errors
    /// The query has a mistake, or there are too many watchers.
    fn new(query: &str, view: &dyn View, activity: Activity) -> Result<EventStream, (StatusCode, String)> {
        let filter =
            filter(query, &view.names()).map_err(|why| (StatusCode::BAD_REQUEST, format!("{why}\n")))?;
        let watcher = view.watch(filter).ok_or_else(|| {
            let why = format!("{MAX_WATCHERS} watch already, which is the most at a time: end one of them\n");
            (StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        activity.begin_stream();
        Ok(EventStream { watcher, has_begun: false, keep_alive: Box::pin(sleep(KEEP_ALIVE)), activity })
    }

    /// What is to be sent next. It is called only when what was sent before has been taken.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        self.activity.update();
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Bytes::from_static(b"event: start\ndata: {}\n\n"));
        }
        let events = match self.watcher.poll_events(MAX_EVENTS, cx) {
            Poll::Ready(events) => events,
            Poll::Pending if self.keep_alive.as_mut().poll(cx).is_pending() => return Poll::Pending,
            Poll::Pending => Vec::new(),
        };
        self.keep_alive = Box::pin(sleep(KEEP_ALIVE));
        let mut text = Vec::new();
        let dropped = self.watcher.take_dropped();
        if dropped > 0 {
            text.extend_from_slice(format!("event: dropped\ndata: {{\"dropped\":{dropped}}}\n\n").as_bytes());
        }
        for event in &events {
            text.extend_from_slice(b"data: ");
            text.extend_from_slice(&json(&EventJson::of(event)));
            text.extend_from_slice(b"\n\n");
        }
        if text.is_empty() {
            text.extend_from_slice(b": alive\n\n");
        }
        Poll::Ready(text.into())
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.get_mut().poll_next(cx).map(|bytes| Some(Ok(Frame::data(bytes))))
    }
}

impl<'a> EventJson<'a> {
    fn of(event: &'a Event) -> EventJson<'a> {
        EventJson {
            time: utc(event.at_ms).unwrap_or_default(),
            client: event.client.to_string(),
            command: event.happened.command(),
            key: ShownKey::of(&event.key),
            rule: &event.rule,
            kind: event.kind,
            outcome: event.happened.outcome(),
            pool: &event.pool,
            server: event.server.as_deref(),
            us: u64::try_from(event.took.as_micros()).unwrap_or(u64::MAX),
            bytes: event.bytes,
            letters: event.letters.as_str(),
        }
    }
}

/// The conditions of a query. Names that do not exist are refused: nothing would ever be shown, as if nothing happened.
fn filter(query: &str, names: &Names) -> Result<Filter, String> {
    let mut filter = Filter::default();
    parameters(query)?.iter().try_for_each(|(name, value)| filter.set(name, value))?;
    filter.check(names)?;
    Ok(filter)
}
