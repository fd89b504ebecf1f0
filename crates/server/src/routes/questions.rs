//! Questions to the catalog: identical, similar and contained folders, files without a copy, empty files and folders,
//! broken links.
//!
//! Every answer says whether it is complete.

use std::path::PathBuf;

use axum::Json;
use axum::extract::State;
use gristmill_dedup::Coverage;
use gristmill_dedup::folders::{self, FolderOptions};
use gristmill_dedup::lists;
use gristmill_dedup::unique::{UniqueFile, UniqueOptions, UniqueSummary, unique};
use gristmill_store::display_path;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Problems, page_limit};
use crate::app::{App, AppState};
use crate::extract::QueryArgs;
use crate::problem::Result;

const DEFAULT_PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(coverage))
        .routes(routes!(unique_files))
        .routes(routes!(identical_folders))
        .routes(routes!(empty_files))
        .routes(routes!(empty_folders))
        .routes(routes!(broken_links))
}

#[derive(Debug, Serialize, ToSchema)]
struct CatalogCoverage {
    /// Whether every file of every root was found and compared, as far as filters include it.
    complete: bool,
    /// What is missing.
    #[schema(value_type = Object)]
    coverage: Coverage,
}

/// Says whether the catalog is complete: what scans have not found, read or compared.
#[utoipa::path(get, path = "/coverage", tag = "questions",
    responses((status = 200, body = CatalogCoverage), Problems))]
async fn coverage(State(app): State<App>) -> Result<Json<CatalogCoverage>> {
    app.run_long(|app| {
        let coverage = gristmill_dedup::coverage(&app.store, &[])?;
        Ok(Json(CatalogCoverage { complete: coverage.complete, coverage }))
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UniqueParams {
    /// Folder whose files are listed: path or name of a root, or path of a folder in one.
    inside: String,
    /// Folder in which copies count; all others if it is left out.
    not_in: Option<String>,
    /// Minimum size of a file in bytes; 1 if it is left out.
    min_size: Option<u64>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Number of files to skip.
    offset: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
struct UniqueList {
    #[schema(value_type = Vec<Object>)]
    items: Vec<UniqueFile>,
    /// Number of all files, those without a copy and the undecided ones.
    total: u64,
    /// Totals, and how complete they are.
    #[schema(value_type = Object)]
    summary: UniqueSummary,
}

/// Lists the files of a folder without a copy elsewhere, largest first, then those that may have one.
#[utoipa::path(get, path = "/unique", tag = "questions", params(UniqueParams),
    responses((status = 200, body = UniqueList), Problems))]
async fn unique_files(State(app): State<App>, QueryArgs(params): QueryArgs<UniqueParams>) -> Result<Json<UniqueList>> {
    let limit = page_limit(params.limit, DEFAULT_PAGE, MAX_PAGE)?;
    let mut options = UniqueOptions::default();
    options.inside = vec![PathBuf::from(params.inside)];
    options.not_in = params.not_in.into_iter().map(PathBuf::from).collect();
    options.min_size = params.min_size.unwrap_or(1);
    let offset = params.offset.unwrap_or(0);
    app.run_long(move |app| {
        let found = unique(&app.store, &options)?;
        let items = found.page(offset, limit)?;
        Ok(Json(UniqueList { items, total: found.len() as u64, summary: found.summary().clone() }))
    })
    .await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Number of items to skip.
    offset: Option<usize>,
    /// Only items in this root.
    library_id: Option<i64>,
}

impl ListParams {
    fn roots(&self) -> Vec<i64> {
        self.library_id.into_iter().collect()
    }

    /// Cuts a list to its page.
    fn page<T, U>(&self, items: Vec<T>, convert: impl FnMut(T) -> U) -> Result<(Vec<U>, u64)> {
        let limit = page_limit(self.limit, DEFAULT_PAGE, MAX_PAGE)?;
        let total = items.len() as u64;
        Ok((items.into_iter().skip(self.offset.unwrap_or(0)).take(limit).map(convert).collect(), total))
    }
}

/// An entry of a list.
#[derive(Debug, Serialize, ToSchema)]
struct Entry {
    library_id: i64,
    /// Path relative to the root. Bytes that are not UTF-8 are replaced.
    relative_path: String,
    /// Only for broken links: what the link leads to.
    target: Option<String>,
    /// Only for empty folders: number of folders in and below it, itself included.
    folders: Option<u64>,
}

impl Entry {
    fn new(library_id: i64, path: &std::path::Path) -> Self {
        Entry { library_id, relative_path: display_path(path), target: None, folders: None }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct EntryList {
    items: Vec<Entry>,
    total: u64,
    /// Whether all folders of the roots have been listed, as far as filters include them.
    complete: bool,
    /// Roots whose last scan had filters. What these excluded is in no list.
    filtered_roots: Vec<String>,
}

impl EntryList {
    fn new(app: &AppState, params: &ListParams, (items, total): (Vec<Entry>, u64)) -> Result<Json<Self>> {
        let coverage = lists::list_coverage(&app.store, &params.roots())?;
        let filtered_roots = coverage.filtered_roots.iter().map(PathBuf::as_path).map(display_path).collect();
        Ok(Json(EntryList { items, total, complete: coverage.complete, filtered_roots }))
    }
}

/// Lists the files without content, by path.
#[utoipa::path(get, path = "/empty-files", tag = "questions", params(ListParams),
    responses((status = 200, body = EntryList), Problems))]
async fn empty_files(State(app): State<App>, QueryArgs(params): QueryArgs<ListParams>) -> Result<Json<EntryList>> {
    app.run_long(move |app| {
        let found = lists::empty_files(&app.store, &params.roots())?;
        let page = params.page(found, |file| Entry::new(file.root, &file.path))?;
        EntryList::new(app, &params, page)
    })
    .await
}

/// Lists the topmost empty folders, by path.
#[utoipa::path(get, path = "/empty-folders", tag = "questions", params(ListParams),
    responses((status = 200, body = EntryList), Problems))]
async fn empty_folders(State(app): State<App>, QueryArgs(params): QueryArgs<ListParams>) -> Result<Json<EntryList>> {
    app.run_long(move |app| {
        let found = lists::empty_folders(&app.store, &params.roots())?;
        let entry = |folder: lists::EmptyFolder| Entry {
            folders: Some(folder.folders),
            ..Entry::new(folder.root, &folder.path)
        };
        let page = params.page(found, entry)?;
        EntryList::new(app, &params, page)
    })
    .await
}

/// Lists the broken symbolic links, by path.
#[utoipa::path(get, path = "/broken-links", tag = "questions", params(ListParams),
    responses((status = 200, body = EntryList), Problems))]
async fn broken_links(State(app): State<App>, QueryArgs(params): QueryArgs<ListParams>) -> Result<Json<EntryList>> {
    app.run_long(move |app| {
        let found = lists::broken_links(&app.store, &params.roots())?;
        let entry = |link: gristmill_store::catalog::ListedLink| Entry {
            target: Some(display_path(&link.target)),
            ..Entry::new(link.root, &link.path)
        };
        let page = params.page(found, entry)?;
        EntryList::new(app, &params, page)
    })
    .await
}

#[derive(Debug, Serialize, ToSchema)]
struct IdenticalFolders {
    /// Whether they are identical; if not, they may differ in entries that were not scanned.
    identical: bool,
    folders: Vec<Entry>,
    files: u64,
    bytes: u64,
    reclaimable_bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct IdenticalFolderList {
    items: Vec<IdenticalFolders>,
    total: u64,
    /// Whether all files were compared that can be.
    complete: bool,
}

/// Lists groups of identical folders, those with most reclaimable space first.
#[utoipa::path(get, path = "/folders/identical", tag = "questions", params(ListParams),
    responses((status = 200, body = IdenticalFolderList), Problems))]
async fn identical_folders(
    State(app): State<App>,
    QueryArgs(params): QueryArgs<ListParams>,
) -> Result<Json<IdenticalFolderList>> {
    app.run_long(move |app| {
        let mut options = FolderOptions::default();
        options.roots = params.roots();
        let found = folders::find_identical(&app.store, &options)?;
        let convert = |group: folders::FolderGroup| IdenticalFolders {
            identical: group.identical,
            folders: group.folders.iter().map(|folder| Entry::new(folder.root, &folder.path)).collect(),
            files: group.files,
            bytes: group.bytes,
            reclaimable_bytes: group.reclaimable,
        };
        let (items, total) = params.page(found, convert)?;
        let complete = gristmill_dedup::coverage(&app.store, &params.roots())?.complete;
        Ok(Json(IdenticalFolderList { items, total, complete }))
    })
    .await
}
