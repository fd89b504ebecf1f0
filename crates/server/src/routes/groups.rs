//! Duplicate groups: pages, files of a group, marks, ignored groups.

use axum::Json;
use axum::extract::{Extension, State};
use gristmill_store::catalog::{
    FileFilter, FileType, GroupFile, GroupKey, GroupQuery, GroupState, GroupSummary, Ignored, SortBy,
};
use gristmill_store::{Page, UtcTime};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Changed, Problems, page_limit};
use crate::app::{App, AppState};
use crate::extract::{JsonBody, PathArgs, QueryArgs};
use crate::problem::{Problem, Result};
use crate::security::credentials::Caller;

/// Default and maximum number of groups or files on a page.
const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

/// Smallest distance between two marks.
const MIN_MARK_DISTANCE: usize = 50;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(marks))
        .routes(routes!(files))
        .routes(routes!(refresh))
        .routes(routes!(ignore))
}

/// Filters and order of groups.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GroupParams {
    /// 1 to 1,000; 100 if it is left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// The `next_cursor` of the previous page. It is valid for one order.
    cursor: Option<String>,
    /// count (the default), reclaimable, size or path.
    #[param(pattern = "^(count|reclaimable|size|path)$")]
    sort: Option<String>,
    /// Only groups with a file in this root.
    library_id: Option<i64>,
    /// Only groups with a file whose path contains this text.
    path: Option<String>,
    /// Only groups with a file of this type: image, video, audio, document or archive.
    #[serde(rename = "type")]
    #[param(pattern = "^(image|video|audio|document|archive)$")]
    file_type: Option<String>,
    /// Minimum size of the files in bytes; 0 if it is left out.
    min_size: Option<u64>,
    /// Minimum number of copies; 1 if it is left out: several names of one file are a group too, as in the protocol.
    min_count: Option<u64>,
    /// Only groups with files in several roots.
    across_roots: Option<bool>,
    /// What happens to ignored groups: hidden (the default), only or included.
    #[param(pattern = "^(hidden|only|included)$")]
    ignored: Option<String>,
    /// Only for marks: number of groups between two marks.
    #[param(minimum = 50)]
    every: Option<usize>,
}

/// The state of the list of groups.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub(crate) struct ListState {
    /// Whether no file has changed since the groups were evaluated. `POST /duplicates/refresh` evaluates them.
    current: bool,
    /// Grows when a group changes.
    version: i64,
    evaluated_at: Option<UtcTime>,
}

impl From<GroupState> for ListState {
    fn from(state: GroupState) -> Self {
        ListState { current: state.is_current, version: state.version, evaluated_at: state.refreshed_at }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct GroupList {
    items: Vec<GroupSummary>,
    next_cursor: Option<String>,
    state: ListState,
}

/// Lists groups of files with the same content.
#[utoipa::path(get, path = "/duplicates/groups", tag = "duplicates", params(GroupParams),
    responses((status = 200, body = GroupList), Problems))]
async fn list(State(app): State<App>, QueryArgs(params): QueryArgs<GroupParams>) -> Result<Json<GroupList>> {
    let query = params.query()?.limit(page_limit(params.limit, DEFAULT_PAGE, MAX_PAGE)?);
    let reads_files = params.path.is_some() || params.file_type.is_some();
    let work = move |app: &AppState| {
        let found = app.store.catalog().group_page(&query, params.cursor.as_deref())?;
        let Page { items, next_cursor } = found.page;
        Ok(Json(GroupList { items, next_cursor, state: found.state.into() }))
    };
    if reads_files { app.run_long(work).await } else { app.run(work).await }
}

#[derive(Debug, Serialize, ToSchema)]
struct Marks {
    /// Number of matching groups.
    total: u64,
    /// Number of groups between two cursors.
    every: usize,
    /// The page after `cursors[n]` begins with group `(n + 1) * every`, counted from 0.
    cursors: Vec<String>,
    state: ListState,
}

/// Returns the number of matching groups, and cursors at regular distances: a client reaches any group with one of them
/// and one page.
#[utoipa::path(get, path = "/duplicates/groups/marks", tag = "duplicates", params(GroupParams),
    responses((status = 200, body = Marks), Problems))]
async fn marks(State(app): State<App>, QueryArgs(params): QueryArgs<GroupParams>) -> Result<Json<Marks>> {
    let every = params.every.unwrap_or(500);
    if every < MIN_MARK_DISTANCE {
        return Err(Problem::invalid(format!("invalid value {every} of every; expected at least {MIN_MARK_DISTANCE}")));
    }
    let query = params.query()?;
    app.run_long(move |app| {
        let marks = app.store.catalog().group_marks(&query, every)?;
        Ok(Json(Marks { total: marks.total, every, cursors: marks.cursors.to_vec(), state: marks.state.into() }))
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FileParams {
    /// 1 to 1,000; 100 if it is left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Id of the last file of the previous page.
    #[param(pattern = "^[0-9]{1,18}$")]
    cursor: Option<String>,
}

/// The group in a path. Handlers parse the text themselves.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
struct KeyParam {
    /// Algorithm, a colon, and the hash in hexadecimal digits.
    #[param(pattern = "^((blake3|sha256|sha3-256):[0-9a-fA-F]{64}|sha512:[0-9a-fA-F]{128})$")]
    #[allow(dead_code, reason = "only described")]
    group_key: String,
}

/// Lists the files of a group. An unknown group has none.
#[utoipa::path(get, path = "/duplicates/groups/{group_key}/files", tag = "duplicates",
    params(KeyParam, FileParams),
    responses((status = 200, body = Page<GroupFile>), Problems))]
async fn files(
    State(app): State<App>,
    PathArgs(key): PathArgs<String>,
    QueryArgs(params): QueryArgs<FileParams>,
) -> Result<Json<Page<GroupFile>>> {
    let key: GroupKey = parse_key(&key)?;
    let limit = page_limit(params.limit, DEFAULT_PAGE, MAX_PAGE)?;
    app.run(move |app| Ok(Json(app.store.catalog().group_files(&key, params.cursor.as_deref(), limit)?))).await
}

#[derive(Debug, Serialize, ToSchema)]
struct Refreshed {
    /// Number of groups that were evaluated.
    evaluated: u64,
}

/// Evaluates the groups whose files have changed.
#[utoipa::path(post, path = "/duplicates/refresh", tag = "duplicates",
    responses((status = 200, body = Refreshed), Problems))]
async fn refresh(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Json<Refreshed>> {
    let evaluated = app
        .change(
            caller,
            "evaluate groups",
            |evaluated| *evaluated,
            |app| Ok(app.store.catalog().refresh_groups()?.evaluated),
        )
        .await?;
    Ok(Json(Refreshed { evaluated }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Ignore {
    /// Whether the group is ignored. False takes it back.
    ignored: bool,
}

/// Ignores a group, or takes that back. An ignored group is in no list unless it is asked for.
#[utoipa::path(put, path = "/duplicates/groups/{group_key}/ignored", tag = "duplicates",
    params(KeyParam),
    request_body = Ignore, responses((status = 200, body = Changed), Problems))]
async fn ignore(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathArgs(key): PathArgs<String>,
    JsonBody(body): JsonBody<Ignore>,
) -> Result<Json<Changed>> {
    let key = parse_key(&key)?;
    let action = if body.ignored { "ignore group" } else { "list group again" };
    let changed = app
        .change(
            caller,
            action,
            |changed| u64::from(*changed),
            move |app| Ok(app.store.catalog().ignore_group(key, body.ignored)?),
        )
        .await?;
    Ok(Json(Changed { changed: changed.into() }))
}

fn parse_key(text: &str) -> Result<GroupKey> {
    Ok(text.parse()?)
}

impl GroupParams {
    fn query(&self) -> Result<GroupQuery> {
        let one_of = |what: &str, given: &str, known: &[&str]| {
            Problem::invalid(format!("unknown {what} {given:?}; expected one of {}", known.join(", ")))
        };
        let sort = match self.sort.as_deref() {
            None | Some("count") => SortBy::Count,
            Some("reclaimable") => SortBy::Reclaimable,
            Some("size") => SortBy::Size,
            Some("path") => SortBy::Path,
            Some(other) => return Err(one_of("order", other, &["count", "reclaimable", "size", "path"])),
        };
        let ignored = match self.ignored.as_deref() {
            None | Some("hidden") => Ignored::Hidden,
            Some("only") => Ignored::Only,
            Some("included") => Ignored::Included,
            Some(other) => return Err(one_of("value of ignored", other, &["hidden", "only", "included"])),
        };
        let mut files = FileFilter::default();
        if let Some(text) = self.path.clone().filter(|text| !text.is_empty()) {
            files.contains = Some(text);
        }
        if let Some(given) = self.file_type.as_deref() {
            let known: Vec<&str> = FileType::ALL.iter().map(|known| known.as_str()).collect();
            files.types = vec![FileType::parse(given).ok_or_else(|| one_of("type", given, &known))?];
        }
        let mut query = GroupQuery::default().sort(sort).ignored(ignored).files(files);
        query.in_root = self.library_id;
        query.across_roots = self.across_roots.unwrap_or(false);
        query.min_size = self.min_size.unwrap_or(0);
        query.min_count = self.min_count.unwrap_or(1);
        Ok(query)
    }
}
