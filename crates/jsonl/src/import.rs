//! Imports JSONL files into SQLite tables.
//!
//! Runs the steps of an import: discover the files, inspect the database, load in passes until no file has to be read
//! again, and publish the result.

mod column;
mod dates;
pub(crate) mod discover;
mod entries;
pub(crate) mod existing;
mod file_load;
pub mod handle;
pub(crate) mod import_log;
pub(crate) mod key;
mod key_check;
pub(crate) mod layout;
pub(crate) mod names;
pub mod options;
pub(crate) mod output_db;
mod overflow_merge;
mod path_text;
mod pattern;
mod pipeline;
mod preflight;
mod rejects;
mod retype;
pub mod schema;
mod selection;
pub mod stats;
pub mod summary;
pub(crate) mod table;
mod transaction;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gristmill_store::private;

use self::discover::{Discovered, Source};
use self::handle::{ImportHandle, ImportPhase, add};
use self::options::{ImportOptions, MAX_LINE_BYTES, MAX_WORKERS, Target};
use self::output_db::OutputDb;
use self::path_text::path_text;
use self::pipeline::{FileJob, ReadStop};
use self::preflight::Preflight;
use self::summary::{FileOutcome, FileSummary, ImportSummary};
use self::transaction::ImportTx;
use self::writer::{Writer, quoted_list};
use crate::database::read_only;
use crate::error::{Error, Result};

/// Loads files, and all JSONL files of folders, or only checks them, depending on the target. `-` is standard input.
///
/// Problems with a line or a file are in the summary; an error means that the import as a whole failed. Even after a
/// power cut, a new database is either complete or absent, and an existing one has either all rows of a file or none.
pub fn import(
    given: &[PathBuf],
    target: &Target,
    options: &ImportOptions,
    handle: &Arc<ImportHandle>,
) -> Result<ImportSummary> {
    let started = Instant::now();
    check(options)?;
    let discovered = discover::discover(given, options)?;
    let names: Result<Vec<String>> =
        discovered.sources.iter().map(|source| options.table_name(&source.table)).collect();
    let names = names?;
    check_keys(options, &discovered.sources)?;
    let leaders = discover::first_files_of_tables(&discovered.sources, &names)?;
    let output_db = match target {
        Target::Database(path) => Some(OutputDb::open(path, options.resume)?),
        _ => None,
    };
    if let Some(output_db) = &output_db {
        check_not_an_input(output_db, &discovered, options.rejects.as_deref())?;
    }
    let db = output_db.as_ref().map(|output_db| output_db.connect(handle.cancel_token())).transpose()?;
    let mut files: Vec<FileSummary> =
        discovered.sources.iter().zip(&names).map(|(source, name)| file(source, name)).collect();
    let stems = discovered.sources.iter().map(|source| source.table.clone()).collect();
    let preview = match target {
        Target::Preview(path) if std::fs::metadata(path).is_ok_and(|found| found.len() > 0 || !found.is_file()) => {
            Some(read_only(path, handle.cancel_token())?)
        }
        _ => None,
    };
    let is_new = output_db.as_ref().is_some_and(OutputDb::is_new);
    let tables = match (db.as_ref().map(|db| &db.conn).or(preview.as_ref()), target) {
        (Some(conn), Target::Database(path) | Target::Preview(path)) => {
            let target = output_db.as_ref().map_or(path.as_path(), OutputDb::target);
            let (names, first_files, files) = (&names[..], &leaders[..], &mut files[..]);
            let mut preflight =
                Preflight { conn, target, is_draft: is_new, handle, options, names, first_files, files };
            preflight.inspect(&discovered.sources).map_err(|failure| failure.at(target))?
        }
        _ => HashMap::new(),
    };
    add(&handle.files, files.iter().filter(|file| file.outcome == FileOutcome::Waiting).count() as u64);
    let tx = db.map(|db| ImportTx::new(db, is_new));
    let mut writer = Writer::new(options, handle, target, tx, (files, stems, leaders))?;
    writer.tables = tables;
    handle.enter(ImportPhase::Loading);
    let folder = output_db.as_ref().map(|output_db| output_db.folder().to_owned());
    let loaded = run_passes(&mut writer, &discovered.sources, options, handle, target, folder.as_deref());
    let interrupted = handle.is_cancelled();
    if let Err(error) = loaded
        && !(interrupted && matches!(error, Error::Cancelled))
    {
        // Complete files stay. The first error is the one to report.
        let _ = writer.finish(true);
        // Does not open another file that has replaced the database.
        if let Some(output_db) = output_db.as_ref().filter(|_| !matches!(error, Error::Deleted(_) | Error::Replaced(_)))
        {
            output_db.recover();
        }
        return Err(error);
    }
    handle.enter(ImportPhase::Finishing);
    let requested = options.indexes.iter().chain(&options.primary_key).chain(&options.columns);
    let unmatched: Vec<String> = requested.filter(|name| !writer.matched.contains(*name)).cloned().collect();
    let (conn, mut summary) = writer.finish(interrupted)?;
    summary.interrupted = interrupted;
    for (path, why) in &discovered.errors {
        summary.files.push(failed_file(path, why));
    }
    // The table of a file that was not loaded may have the column.
    if *target != Target::ValidateOnly && summary.files.iter().all(|file| file.outcome == FileOutcome::Loaded) {
        summary.unmatched = unmatched;
    }
    summary.is_published = !is_new && output_db.is_some();
    if let (Some(output_db), Some(conn)) = (output_db, conn) {
        let has_any =
            summary.files.iter().any(|file| matches!(file.outcome, FileOutcome::Loaded | FileOutcome::Unchanged));
        if is_new && (interrupted || summary.stopped_by.is_some() || !has_any) {
            drop(conn);
            drop(output_db);
            // The draft was discarded, so no file is loaded.
            for file in summary.files.iter_mut().filter(|file| file.outcome == FileOutcome::Loaded) {
                file.outcome = FileOutcome::Waiting;
            }
        } else {
            output_db.publish(conn)?;
            summary.is_published = true;
        }
    }
    for file in &summary.files {
        summary.rows += if file.outcome == FileOutcome::Loaded { file.rows } else { 0 };
        summary.rejected += file.rejected;
        summary.bytes += if file.outcome == FileOutcome::Loaded { file.bytes } else { 0 };
    }
    if !matches!(target, Target::Database(_)) {
        for file in summary.files.iter_mut().filter(|file| file.outcome == FileOutcome::Loaded) {
            file.outcome = FileOutcome::Checked;
        }
    }
    summary.seconds = started.elapsed().as_secs_f64();
    Ok(summary)
}

fn check(options: &ImportOptions) -> Result<()> {
    let of_schema = options.schema.tables.values().map(|table| &table.primary_key);
    for key in of_schema.chain([&options.primary_key]) {
        let is_duplicate = |(at, name): &(usize, &String)| key[..*at].contains(name);
        if let Some((_, name)) = key.iter().enumerate().find(is_duplicate) {
            return Err(Error::Options(format!("the primary key has the column {name:?} twice; name it once")));
        }
    }
    selection::check(options)?;
    if options.workers > MAX_WORKERS {
        let text = format!("{} workers are too many; expected: 0 (one per core) to {MAX_WORKERS}", options.workers);
        return Err(Error::Options(text));
    }
    if options.block == 0 || options.max_line == 0 || options.max_line > MAX_LINE_BYTES {
        return Err(Error::Options(format!("--max-line is out of range; expected: 1 to {MAX_LINE_BYTES} bytes")));
    }
    Ok(())
}

/// Rejects `--primary-key` if the schema sets another key for every table.
fn check_keys(options: &ImportOptions, sources: &[Source]) -> Result<()> {
    let requested = &options.primary_key;
    let is_other = |source: &Source| options.key_of(&source.table) != requested;
    match sources.first() {
        Some(first) if !requested.is_empty() && sources.iter().all(is_other) => Err(Error::Options(format!(
            "the schema gives the table {:?} the primary key {}, but --primary-key is {}; leave out one of them",
            first.table,
            quoted_list(options.key_of(&first.table)),
            quoted_list(requested)
        ))),
        _ => Ok(()),
    }
}

fn check_not_an_input(output_db: &OutputDb, discovered: &Discovered, rejects: Option<&Path>) -> Result<()> {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    let target = canonical(output_db.target());
    let absolute = |path: &Path| std::path::absolute(path).ok();
    if rejects.is_some_and(|rejects| absolute(rejects) == absolute(output_db.target())) {
        return Err(Error::Options("--rejects names the database; name another file".to_owned()));
    }
    let mut inputs = discovered.sources.iter().filter_map(|source| source.path.as_deref());
    match inputs.find(|path| target.is_some() && canonical(path) == target) {
        Some(path) => Err(Error::path(path, "cannot be both an input and the database")),
        None => Ok(()),
    }
}

fn file(source: &Source, name: &str) -> FileSummary {
    let text = source.path.as_deref().map_or_else(|| source.display(), absolute_text);
    FileSummary { source: text, table: name.to_owned(), bytes: source.bytes, ..FileSummary::default() }
}

fn failed_file(path: &Path, why: &str) -> FileSummary {
    let outcome = FileOutcome::Failed(why.to_owned());
    FileSummary { source: absolute_text(path), outcome, ..FileSummary::default() }
}

fn absolute_text(path: &Path) -> String {
    path_text(&std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
}

/// Loads the waiting files, and repeats for those that have to be read again.
fn run_passes(
    writer: &mut Writer<'_>,
    sources: &[Source],
    options: &ImportOptions,
    handle: &Arc<ImportHandle>,
    target: &Target,
    folder: Option<&Path>,
) -> Result<()> {
    let is_waiting = |index: &usize| writer.files[*index].outcome == FileOutcome::Waiting;
    let mut todo: Vec<usize> = (0..sources.len()).filter(is_waiting).collect();
    let mut copies: HashMap<usize, Arc<File>> = HashMap::new();
    for index in todo.iter().filter(|index| !sources[**index].is_file && *target != Target::ValidateOnly) {
        copies.insert(*index, Arc::new(unnamed_file(folder)?));
    }
    while !todo.is_empty() && !handle.is_cancelled() {
        let mut stop_of_table: HashMap<usize, ReadStop> = HashMap::new();
        let jobs: Vec<FileJob> = todo
            .iter()
            .map(|&index| {
                let source = sources[index].clone();
                let leader = writer.add_to_pass(index);
                add(&handle.bytes, source.bytes);
                let layout = writer.tables.get(&leader).map(|state| state.shape.layout.clone()).unwrap_or_default();
                let schema = options.schema.tables.get(&source.table);
                let mut parse_options = layout.parse_options(options, schema);
                selection::apply(&mut parse_options, options, schema, &source.display());
                let copy = copies.get(&index).cloned();
                let stop = stop_of_table.entry(leader).or_insert_with(|| ReadStop::new(handle)).clone();
                FileJob { index, source, parse_options: Arc::new(parse_options), stop, copy }
            })
            .collect();
        let stops: HashMap<usize, ReadStop> = jobs.iter().map(|job| (job.index, job.stop.clone())).collect();
        let mut pass = pipeline::start(jobs, options, handle, &writer.buffers)?;
        for outcome in pass.results.by_ref() {
            let item = outcome.result.map_err(|failure| Error::Worker(Arc::new(failure)))?;
            if handle.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let written = writer.on_event(item.index, item.event, &stops[&item.index]);
            if written.is_err() || writer.stopped_by.is_some() {
                pass.pool.cancel();
                return written;
            }
        }
        todo = std::mem::take(&mut writer.reload);
    }
    if handle.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

fn unnamed_file(folder: Option<&Path>) -> Result<File> {
    let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
    private::create_unnamed(&folder).map_err(|error| Error::io("create a temporary file in", &folder, error))
}
