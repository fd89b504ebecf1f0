//! Thumbnails of the shared protocol: request, show, metrics, clean-up.

use std::path::Path;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use gristmill_store::catalog::Stat;
use gristmill_store::cleanup::CleanupRow;
use gristmill_store::thumbnails::{
    CAPACITY, MediaType, NewThumbnail, ThumbFormat, ThumbMetrics, ThumbStatus, ThumbnailRow,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, parsed};
use crate::app::{App, AppState};
use crate::extract::{JsonBody, PathArgs};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

/// Version of the keys and the files of thumbnails.
const VERSION: u32 = 2;

const DEFAULT_DIMENSION: u32 = 256;
const MAX_DIMENSION: u32 = 4_096;
const MAX_DELAY: u64 = 86_400;

/// Extensions of files that thumbnails are made of.
const IMAGES: [&str; 8] = ["jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp"];
const VIDEOS: [&str; 9] = ["mp4", "mov", "m4v", "avi", "mkv", "webm", "mpeg", "mpg", "wmv"];

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(request))
        .routes(routes!(metrics))
        .routes(routes!(show))
        .routes(routes!(cleanup))
}

/// A thumbnail, as the protocol has it.
#[derive(Debug, Serialize, ToSchema)]
struct Thumbnail {
    #[serde(flatten)]
    row: ThumbnailRow,
    /// Path of its content, if it is ready.
    content_url: Option<String>,
}

impl Thumbnail {
    fn new(app: &AppState, row: ThumbnailRow) -> Json<Self> {
        let is_ready = row.status == ThumbStatus::Ready;
        let content_url = is_ready.then(|| format!("{}/api/v1/thumbs/{}/content", app.base_path, row.thumb_key));
        Json(Thumbnail { row, content_url })
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ThumbnailRequest {
    #[schema(minimum = 1)]
    file_id: i64,
    /// 256 if it is left out.
    #[schema(minimum = 1, maximum = 4096)]
    max_dimension: Option<u32>,
    /// jpeg (the default) or webp.
    #[schema(value_type = Option<ThumbFormat>)]
    output_format: Option<String>,
}

/// Requests a thumbnail of a file. An existing one is returned. 409 if the file is neither an image nor a video, 429 if
/// too many wait.
#[utoipa::path(post, path = "/thumbs/request", tag = "thumbnails", request_body = ThumbnailRequest,
    responses((status = 202, body = Thumbnail), Problems))]
async fn request(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<ThumbnailRequest>,
) -> Result<(StatusCode, Json<Thumbnail>)> {
    let format = parsed(body.output_format.as_deref(), "output_format", ThumbFormat::parse, ThumbFormat::ALL)?;
    let format = format.unwrap_or(ThumbFormat::Jpeg);
    let max_dimension = body.max_dimension.unwrap_or(DEFAULT_DIMENSION);
    if body.file_id < 1 {
        return Err(Problem::invalid(format!("invalid file_id {}; expected 1 or more", body.file_id)));
    }
    if !(1..=MAX_DIMENSION).contains(&max_dimension) {
        return Err(Problem::invalid(format!("invalid max_dimension {max_dimension}; expected 1 to {MAX_DIMENSION}")));
    }
    let thumbnail = app
        .change(
            caller,
            "request thumbnail",
            |_| 1,
            move |app| {
                let new = new_thumbnail(app, body.file_id, max_dimension, format)?;
                Ok(Thumbnail::new(app, app.store.thumbnails().request(new, CAPACITY)?))
            },
        )
        .await?;
    Ok((StatusCode::ACCEPTED, thumbnail))
}

/// Returns the row of a thumbnail to be requested.
fn new_thumbnail(app: &AppState, file_id: i64, max_dimension: u32, format: ThumbFormat) -> Result<NewThumbnail> {
    let (root, path, stat) = app.store.catalog().file_location(file_id)?;
    let media_type = media_type(&path).ok_or_else(|| {
        Problem::conflict(format!("file {file_id} is neither an image nor a video that thumbnails are made of"))
    })?;
    let group_key = app.store.catalog().group_of(root.id, &path)?.map(|key| key.to_string());
    let Stat { size, mtime_ns, .. } = stat;
    let identity = group_key.clone().unwrap_or_else(|| format!("meta:{size}:{mtime_ns}"));
    let key = format!("{file_id}:{identity}:{max_dimension}:{}:thumb-v{VERSION}", format.as_str());
    let thumb_key = hex(&Sha256::digest(key.as_bytes()));
    let extension = if format == ThumbFormat::Jpeg { "jpg" } else { "webp" };
    let output_relpath = format!("{}/{}/{thumb_key}.{extension}", &thumb_key[..2], &thumb_key[2..4]);
    Ok(NewThumbnail {
        file_id,
        group_key,
        media_type,
        format,
        max_dimension,
        version: VERSION,
        source_size_bytes: i64::try_from(size).unwrap_or(i64::MAX),
        source_mtime_ns: mtime_ns,
        output_relpath,
        thumb_key,
    })
}

fn media_type(path: &Path) -> Option<MediaType> {
    let extension = path.extension()?.to_string_lossy().to_lowercase();
    match extension.as_str() {
        extension if IMAGES.contains(&extension) => Some(MediaType::Image),
        extension if VIDEOS.contains(&extension) => Some(MediaType::Video),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a thumbnail.
#[utoipa::path(get, path = "/thumbs/{key}", tag = "thumbnails", params(("key" = String, Path,)),
    responses((status = 200, body = Thumbnail), Problems))]
async fn show(State(app): State<App>, PathArgs(key): PathArgs<String>) -> Result<Json<Thumbnail>> {
    app.run(move |app| Ok(Thumbnail::new(app, app.store.thumbnails().get(&key)?))).await
}

/// Returns the numbers of thumbnails and clean-ups that wait.
#[utoipa::path(get, path = "/thumbs/metrics", tag = "thumbnails",
    responses((status = 200, body = ThumbMetrics), Problems))]
async fn metrics(State(app): State<App>) -> Result<Json<ThumbMetrics>> {
    app.run(|app| Ok(Json(app.store.thumbnails().metrics()?))).await
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Cleanup {
    #[schema(min_length = 1, max_length = 256)]
    group_key: String,
    /// 0 if it is left out.
    #[schema(maximum = 86400)]
    delay_seconds: Option<u64>,
}

/// Schedules the removal of a group's thumbnails. 409 if that is running.
#[utoipa::path(post, path = "/thumbs/cleanup/group", tag = "thumbnails", request_body = Cleanup,
    responses((status = 200, body = CleanupRow), Problems))]
async fn cleanup(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    JsonBody(body): JsonBody<Cleanup>,
) -> Result<Json<CleanupRow>> {
    let delay = body.delay_seconds.unwrap_or(0);
    if delay > MAX_DELAY {
        return Err(Problem::invalid(format!("invalid delay_seconds {delay}; expected 0 to {MAX_DELAY}")));
    }
    let row = app
        .change(
            caller,
            "schedule clean-up",
            |_| 1,
            move |app| {
                let execute_after = app.store.now().plus(Duration::from_secs(delay));
                Ok(app.store.cleanups().schedule(&body.group_key, execute_after)?)
            },
        )
        .await?;
    Ok(Json(row))
}
