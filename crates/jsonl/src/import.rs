//! Folders of JSONL into tables of SQLite.
//!
//! Owns the order of things: find the files, look at the database, load in rounds until nothing has to be read again,
//! and only then let the result be seen.

mod base;
mod column;
pub mod control;
mod dates;
mod desk;
mod entries;
pub(crate) mod find;
mod gathered;
pub(crate) mod key;
mod key_check;
pub(crate) mod layout;
pub(crate) mod ledger;
mod loading;
pub(crate) mod names;
pub mod options;
mod path_text;
mod pattern;
pub(crate) mod place;
mod rejects;
mod retype;
pub mod schema;
mod selection;
pub mod stats;
pub(crate) mod stock;
mod stream;
pub mod summary;
pub(crate) mod table;
mod writer;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use self::base::Base;
use self::control::{ImportHandle, ImportPhase, add};
use self::desk::Desk;
use self::find::{Found, Source};
use self::options::{ImportOptions, MAX_LINE_BYTES, MAX_WORKERS, Target};
use self::path_text::path_text;
use self::place::Place;
use self::rejects::private;
use self::stream::{Demand, Ticket};
use self::summary::{FileOutcome, FileSummary, ImportSummary};
use self::writer::{Ended, Next, Writer, shown};
use crate::error::{Error, Result};
use crate::source;

/// Loads files, and all files of folders, or only looks at them, as the target says. `-` is standard input.
///
/// What concerns a line or a file is in the summary; an error is what keeps the whole from being done. Whatever
/// happens, even a power cut: a new database is either complete or not there, and one that was there has each
/// file either wholly or not at all.
pub fn import(
    given: &[PathBuf],
    target: &Target,
    options: &ImportOptions,
    control: &Arc<ImportHandle>,
) -> Result<ImportSummary> {
    let started = Instant::now();
    check(options)?;
    let found = find::find(given, options)?;
    let names: Result<Vec<String>> =
        found.sources.iter().map(|source| options.table_name(&source.table)).collect();
    let names = names?;
    check_keys(options, &found.sources)?;
    let leaders = find::leaders(&found.sources, &names)?;
    let place = match target {
        Target::Database(path) => Some(Place::open(path, options.resume)?),
        _ => None,
    };
    if let Some(place) = &place {
        not_an_input(place, &found, options.rejects.as_deref())?;
    }
    let conn = place.as_ref().map(|place| place.connect(control)).transpose()?;
    let mut files: Vec<FileSummary> =
        found.sources.iter().zip(&names).map(|(source, name)| file(source, name)).collect();
    let stems = found.sources.iter().map(|source| source.table.clone()).collect();
    let preview = match target {
        Target::Preview(path)
            if std::fs::metadata(path).is_ok_and(|found| found.len() > 0 || !found.is_file()) =>
        {
            Some(place::read_only(path)?)
        }
        _ => None,
    };
    let is_draft = place.as_ref().is_some_and(Place::is_new);
    let known = match (conn.as_ref().or(preview.as_ref()), target) {
        (Some(conn), Target::Database(path) | Target::Preview(path)) => {
            let target = place.as_ref().map_or(path.as_path(), Place::target);
            let sqlite = |error: rusqlite::Error| Error::sqlite(target, &error);
            let (names, leaders, files) = (&names[..], &leaders[..], &mut files[..]);
            let mut desk = Desk { conn, target, is_draft, control, options, names, leaders, files };
            desk.look(&found.sources).map_err(sqlite)??
        }
        _ => HashMap::new(),
    };
    add(&control.files, files.iter().filter(|file| file.outcome == FileOutcome::Waiting).count() as u64);
    let is_new = place.as_ref().is_some_and(Place::is_new);
    let base = conn.zip(place.as_ref()).map(|(conn, place)| Base::new(conn, place, control));
    let mut writer = Writer::new(options, control, target, base, (files, stems, leaders))?;
    writer.known = known;
    control.enter(ImportPhase::Loading);
    let folder = place.as_ref().map(|place| place.folder().to_owned());
    let loaded = rounds(&mut writer, &found.sources, options, control, target, folder.as_deref());
    let interrupted = control.is_cancelled();
    if let Err(error) = loaded
        && !(interrupted && error == Error::Cancelled)
    {
        // What is complete stays; the first error is the one to report.
        let _ = writer.end_all(true);
        // Another file under the name of the database is not opened.
        if let Some(place) = place.as_ref().filter(|_| !matches!(error, Error::Replaced(_))) {
            place.recover();
        }
        return Err(error);
    }
    control.enter(ImportPhase::Finishing);
    let asked = options.indexes.iter().chain(&options.primary_key).chain(&options.columns);
    let unmatched: Vec<String> = asked.filter(|name| !writer.matched.contains(*name)).cloned().collect();
    let Ended { conn, files, examples, stopped_by } = writer.end_all(interrupted)?;
    let mut summary = ImportSummary { files, examples, stopped_by, interrupted, ..ImportSummary::default() };
    for (path, why) in &found.troubles {
        summary.files.push(trouble(path, why));
    }
    // A table of a file that was not loaded now may well have the column.
    if *target != Target::ValidateOnly && summary.files.iter().all(|file| file.outcome == FileOutcome::Loaded)
    {
        summary.unmatched = unmatched;
    }
    summary.is_published = !is_new && place.is_some();
    if let (Some(place), Some(conn)) = (place, conn) {
        let has_any = summary
            .files
            .iter()
            .any(|file| matches!(file.outcome, FileOutcome::Loaded | FileOutcome::Unchanged));
        if is_new && (interrupted || summary.stopped_by.is_some() || !has_any) {
            drop(conn);
            drop(place);
            // They are not there, whatever became of them.
            for file in summary.files.iter_mut().filter(|file| file.outcome == FileOutcome::Loaded) {
                file.outcome = FileOutcome::Waiting;
            }
        } else {
            place.publish(conn)?;
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
        let is_twice = |(at, name): &(usize, &String)| key[..*at].contains(name);
        if let Some((_, name)) = key.iter().enumerate().find(is_twice) {
            return Err(Error::Invalid(format!(
                "the primary key has the column {name:?} twice; name it once"
            )));
        }
    }
    selection::check(options)?;
    if options.workers > MAX_WORKERS {
        let text =
            format!("{} workers are too many; legal: 0 (one a core) to {MAX_WORKERS}", options.workers);
        return Err(Error::Invalid(text));
    }
    if options.block == 0 || options.max_line == 0 || options.max_line > MAX_LINE_BYTES {
        return Err(Error::Invalid(format!("a line can be limited to 1 to {MAX_LINE_BYTES} bytes")));
    }
    Ok(())
}

/// Refuses a primary key for which there is no table: the schema gives all of them another.
fn check_keys(options: &ImportOptions, sources: &[Source]) -> Result<()> {
    let wanted = &options.primary_key;
    let is_other = |source: &Source| options.key_of(&source.table) != wanted;
    match sources.first() {
        Some(first) if !wanted.is_empty() && sources.iter().all(is_other) => Err(Error::Invalid(format!(
            "the schema gives the table {:?} the primary key {}, and --primary-key is {}; leave out one of them",
            first.table,
            shown(options.key_of(&first.table)),
            shown(wanted)
        ))),
        _ => Ok(()),
    }
}

fn not_an_input(place: &Place, found: &Found, rejects: Option<&Path>) -> Result<()> {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    let target = canonical(place.target());
    let absolute = |path: &Path| std::path::absolute(path).ok();
    if rejects.is_some_and(|rejects| absolute(rejects) == absolute(place.target())) {
        return Err(Error::Invalid("the rejects need a file of their own, not the database".to_owned()));
    }
    match found
        .sources
        .iter()
        .find(|source| target.is_some() && source.path.as_deref().and_then(canonical) == target)
    {
        Some(source) => {
            Err(Error::Invalid(format!("{} cannot be both read and the database", source.shown())))
        }
        None => Ok(()),
    }
}

fn file(source: &Source, name: &str) -> FileSummary {
    FileSummary {
        source: source.path.as_ref().map_or_else(
            || source.shown(),
            |path| path_text(&std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())),
        ),
        table: name.to_owned(),
        outcome: FileOutcome::Waiting,
        action: None,
        rows: 0,
        rejected: 0,
        blank: 0,
        bytes: source.bytes,
        columns: Vec::new(),
        primary_key: None,
        sql: None,
        unmatched: Vec::new(),
        notes: Vec::new(),
    }
}

fn trouble(path: &Path, why: &str) -> FileSummary {
    let source = Source {
        path: Some(path.to_owned()),
        table: String::new(),
        packing: source::Packing::Plain,
        bytes: 0,
        is_file: false,
    };
    FileSummary { outcome: FileOutcome::Failed(why.to_owned()), ..file(&source, "") }
}

/// Loads what is to be loaded, and again what turned out to be otherwise.
fn rounds(
    writer: &mut Writer<'_>,
    sources: &[Source],
    options: &ImportOptions,
    control: &Arc<ImportHandle>,
    target: &Target,
    folder: Option<&Path>,
) -> Result<()> {
    let is_waiting = |index: &usize| writer.files[*index].outcome == FileOutcome::Waiting;
    let mut todo: Vec<usize> = (0..sources.len()).filter(is_waiting).collect();
    let mut copies: HashMap<usize, Arc<File>> = HashMap::new();
    for index in todo.iter().filter(|index| !sources[**index].is_file && *target != Target::ValidateOnly) {
        copies.insert(*index, Arc::new(nameless(folder)?));
    }
    while !todo.is_empty() && !control.is_cancelled() {
        let mut of_group: HashMap<usize, Arc<Demand>> = HashMap::new();
        let tickets: Vec<Ticket> = todo
            .iter()
            .map(|&index| {
                let source = sources[index].clone();
                let leader = writer.expect(index);
                add(&control.bytes, source.bytes);
                let layout = writer.known.get(&leader).map(|known| known.layout.clone()).unwrap_or_default();
                let schema = options.schema.tables.get(&source.table);
                let mut form = layout.form(options, schema);
                selection::apply(&mut form, options, schema, &source.shown());
                let copy = copies.get(&index).cloned();
                let demand = of_group.entry(leader).or_default().clone();
                Ticket { index, source, form: Arc::new(form), demand, copy }
            })
            .collect();
        let demands: HashMap<usize, Arc<Demand>> =
            tickets.iter().map(|ticket| (ticket.index, ticket.demand.clone())).collect();
        let (pool, results) = stream::start(tickets, options, control, &writer.spare)?;
        for outcome in results {
            let item = outcome.result.map_err(|failure| Error::System(failure.to_string()))?;
            if control.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let next = demands.get(&item.index).map(|demand| writer.take(item.index, item.event, demand));
            match next {
                Some(Ok(Next::GoOn)) | None => {}
                Some(Ok(Next::Stop)) => {
                    pool.cancel();
                    return Ok(());
                }
                Some(Err(error)) => {
                    pool.cancel();
                    return Err(error);
                }
            }
        }
        todo = std::mem::take(&mut writer.again);
    }
    if control.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
}

/// A file that is gone when nobody has it open any more.
fn nameless(folder: Option<&Path>) -> Result<File> {
    let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
    let path = folder.join(format!(".gristmill-import-input-{}", std::process::id()));
    let failed = |error: std::io::Error| Error::io("write", &path, &error);
    let file = private().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}
