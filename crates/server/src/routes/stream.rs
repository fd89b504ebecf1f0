//! The stream of live events (server-sent events).

use std::io;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;
use tokio::time::Instant;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Problems;
use crate::app::App;
use crate::channel_body::channel_body;
use crate::events::{Missed, Topic};
use crate::extract::QueryArgs;
use crate::problem::{Problem, Result};

/// Interval of the lines that keep an idle stream open.
const PING_INTERVAL: Duration = Duration::from_secs(15);

/// Time in which a client must take what is sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Streams that are open at the same time: fewer than connections.
pub(crate) const MAX_STREAMS: usize = 128;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventParams {
    /// Topics, separated by commas: jobs, tasks, dead-letters, groups, roots. All if it is left out.
    topics: Option<String>,
    /// Id of the last event that was received, as in the header `Last-Event-ID`.
    last_event_id: Option<String>,
}

/// Streams events as they happen. After an interruption the stream continues with the events that were missed, or with
/// one event `resync` if they are not kept any more: then everything has to be asked for again.
#[utoipa::path(get, path = "/events", tag = "events", params(EventParams),
    responses((status = 200, body = String, content_type = "text/event-stream"), Problems))]
async fn events(
    State(app): State<App>,
    headers: HeaderMap,
    QueryArgs(params): QueryArgs<EventParams>,
) -> Result<Response> {
    let topics = topics(params.topics.as_deref())?;
    let given = headers.get("last-event-id").and_then(|id| id.to_str().ok().map(str::to_owned));
    let given = given.or(params.last_event_id);
    let permit = app.streams.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{MAX_STREAMS} event streams are open; close some");
        Problem::new(StatusCode::TOO_MANY_REQUESTS, detail)
    })?;
    let (sender, body) = channel_body();
    tokio::spawn(send_events(app, topics, given, sender, permit));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        // Reverse proxies must not collect events.
        (header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    Ok((headers, body).into_response())
}

fn topics(given: Option<&str>) -> Result<Vec<Topic>> {
    let Some(given) = given else { return Ok(Topic::ALL.to_vec()) };
    let parse = |text: &str| {
        Topic::parse(text.trim()).ok_or_else(|| {
            let known = Topic::ALL.map(Topic::as_str).join(", ");
            Problem::invalid(format!("unknown topic {text:?}; expected some of {known}"))
        })
    };
    given.split(',').map(parse).collect()
}

/// Sends events until the client goes, or the server stops.
async fn send_events(
    app: App,
    topics: Vec<Topic>,
    after: Option<String>,
    sender: Sender<io::Result<Bytes>>,
    _permit: OwnedSemaphorePermit,
) {
    let mut changed = app.events.subscribe();
    let mut last = match after.as_deref() {
        None => *changed.borrow_and_update(),
        Some(id) => match app.events.number(id) {
            Some(number) => number,
            // An event of an earlier server.
            None => {
                let last = *changed.borrow_and_update();
                if sender.send(Ok(resync(&app.events.id(last)))).await.is_err() {
                    return;
                }
                last
            }
        },
    };
    // Tells the client at once that the stream is open.
    let mut text = "retry: 2000\n\n".to_owned();
    let mut ping_at = Instant::now() + PING_INTERVAL;
    loop {
        match app.events.after(last) {
            Missed::Resync(number) => {
                text.push_str(&String::from_utf8_lossy(&resync(&app.events.id(number))));
                last = number;
            }
            Missed::Events(events) => {
                for event in events {
                    last = event.number;
                    if topics.contains(&event.topic) {
                        let (id, topic) = (app.events.id(event.number), event.topic.as_str());
                        text.push_str(&format!("id: {id}\nevent: {topic}\ndata: {}\n\n", event.data));
                    }
                }
            }
        }
        if !text.is_empty() {
            let sent = tokio::time::timeout(SEND_TIMEOUT, sender.send(Ok(std::mem::take(&mut text).into()))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
            ping_at = Instant::now() + PING_INTERVAL;
        }
        tokio::select! {
            () = app.stop.cancelled() => return,
            () = sender.closed() => return,
            changed = changed.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(ping_at) => text.push_str(": ping\n\n"),
        }
    }
}

fn resync(id: &str) -> Bytes {
    format!("id: {id}\nevent: resync\ndata: {{}}\n\n").into()
}
