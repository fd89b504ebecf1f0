//! Folders of JSONL into tables of SQLite.
//!
//! Owns the order of things: find the files, look at the database, load in rounds until nothing has to be read again,
//! and only then let the result be seen.

pub mod control;
mod find;
mod key;
mod layout;
mod ledger;
mod names;
pub mod options;
mod place;
mod rejects;
pub mod schema;
pub mod stats;
mod stream;
pub mod summary;
mod table;
mod writer;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rusqlite::{Connection, OptionalExtension};

use self::control::{Control, Phase, add};
use self::find::{Found, Source};
use self::key::Plan;
use self::layout::{Layout, OldColumn};
use self::options::{Existing, LONGEST_LINE, MAX_WORKERS, Options, Target};
use self::place::Place;
use self::stream::Ticket;
use self::summary::{FileSummary, Outcome, Summary};
use self::table::Way;
use self::writer::{Ended, Known, Next, Writer};
use crate::error::{Error, Result};
use crate::keys::Fate;
use crate::kinds::Type;
use crate::source;

/// Loads files, and all files of folders, or only looks at them, as the target says. `-` is standard input.
///
/// What concerns a line or a file is in the summary; an error is what keeps the whole from being done. Whatever
/// happens, even a power cut: a new database is either complete or not there, and one that was there has each
/// file either wholly or not at all.
pub fn import(
    given: &[PathBuf],
    target: &Target,
    options: &Options,
    control: &Arc<Control>,
) -> Result<Summary> {
    let started = Instant::now();
    check(options)?;
    let found = find::find(given, options)?;
    let names: Result<Vec<String>> =
        found.sources.iter().map(|source| options.table_name(&source.table)).collect();
    let names = names?;
    find::no_name_twice(&names)?;
    let place = writer::database(target).map(|path| Place::open(path, options.resume)).transpose()?;
    if let Some(place) = &place {
        not_an_input(place, &found, options.rejects.as_deref())?;
    }
    let conn = place.as_ref().map(|place| place.connect(control)).transpose()?;
    let mut files: Vec<FileSummary> =
        found.sources.iter().zip(&names).map(|(source, name)| file(source, name)).collect();
    let stems = found.sources.iter().map(|source| source.table.clone()).collect();
    let known = match (&conn, &place) {
        (Some(conn), Some(place)) => {
            let sqlite = |error: rusqlite::Error| Error::sqlite(place.target(), &error);
            let mut desk = Desk { conn, place, control, options, names: &names, files: &mut files };
            desk.look(&found.sources).map_err(sqlite)??
        }
        _ => HashMap::new(),
    };
    add(&control.files, files.iter().filter(|file| file.outcome == Outcome::Waiting).count() as u64);
    let is_new = place.as_ref().is_some_and(Place::is_new);
    let mut writer = Writer::new(options, control, target, conn, is_new, (files, stems))?;
    writer.known = known;
    control.enter(Phase::Loading);
    let folder = place.as_ref().map(|place| place.folder().to_owned());
    let loaded = rounds(&mut writer, &found.sources, options, control, target, folder.as_deref());
    let interrupted = control.is_stopped();
    if let Err(error) = loaded
        && !(interrupted && error == Error::Stopped)
    {
        // What is complete stays; the reason is more worth telling than a second one.
        let _ = writer.end_all(true);
        if let Some(place) = &place {
            place.recover();
        }
        return Err(error);
    }
    control.enter(Phase::Finishing);
    let asked = options.indexes.iter().chain(&options.primary_key);
    let unmatched: Vec<String> = asked.filter(|name| !writer.matched.contains(*name)).cloned().collect();
    let Ended { conn, files, examples, stopped_by } = writer.end_all(interrupted)?;
    let mut summary = Summary { files, examples, stopped_by, interrupted, ..Summary::default() };
    for (path, why) in &found.troubles {
        summary.files.push(trouble(path, why));
    }
    let is_any = |outcome: &[Outcome]| summary.files.iter().any(|file| outcome.contains(&file.outcome));
    if is_any(&[Outcome::Loaded]) && !is_any(&[Outcome::Waiting]) && *target != Target::Nothing {
        summary.unmatched = unmatched;
    }
    summary.is_published = !is_new && place.is_some();
    if let (Some(place), Some(conn)) = (place, conn) {
        let has_any =
            summary.files.iter().any(|file| matches!(file.outcome, Outcome::Loaded | Outcome::Unchanged));
        if is_new && (interrupted || summary.stopped_by.is_some() || !has_any) {
            drop(conn);
            drop(place);
            // They are not there, whatever became of them.
            for file in summary.files.iter_mut().filter(|file| file.outcome == Outcome::Loaded) {
                file.outcome = Outcome::Waiting;
            }
        } else {
            place.publish(conn)?;
            summary.is_published = true;
        }
    }
    for file in &summary.files {
        summary.rows += if file.outcome == Outcome::Loaded { file.rows } else { 0 };
        summary.rejected += file.rejected;
        summary.bytes += if file.outcome == Outcome::Loaded { file.bytes } else { 0 };
    }
    summary.seconds = started.elapsed().as_secs_f64();
    Ok(summary)
}

fn check(options: &Options) -> Result<()> {
    if options.workers > MAX_WORKERS {
        let text =
            format!("{} workers are too many; legal: 0 (one a core) to {MAX_WORKERS}", options.workers);
        return Err(Error::Invalid(text));
    }
    if options.block == 0 || options.max_line == 0 || options.max_line > LONGEST_LINE {
        return Err(Error::Invalid(format!("a line can be limited to 1 to {LONGEST_LINE} bytes")));
    }
    Ok(())
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
            |path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string(),
        ),
        table: name.to_owned(),
        outcome: Outcome::Waiting,
        rows: 0,
        rejected: 0,
        blank: 0,
        bytes: source.bytes,
        columns: Vec::new(),
        primary_key: None,
        sql: None,
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
    FileSummary { outcome: Outcome::Failed(why.to_owned()), ..file(&source, "") }
}

/// Loads what is to be loaded, and again what turned out to be otherwise.
fn rounds(
    writer: &mut Writer<'_>,
    sources: &[Source],
    options: &Options,
    control: &Arc<Control>,
    target: &Target,
    folder: Option<&Path>,
) -> Result<()> {
    let is_waiting = |index: &usize| writer.files[*index].outcome == Outcome::Waiting;
    let mut todo: Vec<usize> = (0..sources.len()).filter(is_waiting).collect();
    let mut copies: HashMap<usize, Arc<File>> = HashMap::new();
    for index in todo.iter().filter(|index| !sources[**index].is_file && *target != Target::Nothing) {
        copies.insert(*index, Arc::new(nameless(folder)?));
    }
    while !todo.is_empty() && !control.is_stopped() {
        let tickets: Vec<Ticket> = todo
            .iter()
            .map(|&index| {
                let source = sources[index].clone();
                add(&control.bytes, source.bytes);
                let layout = writer.known.get(&index).map(|known| known.layout.clone()).unwrap_or_default();
                let form = Arc::new(layout.form(options, options.schema.tables.get(&source.table)));
                let copy = copies.get(&index).cloned();
                Ticket { index, source, form, abandoned: Arc::new(AtomicBool::new(false)), copy }
            })
            .collect();
        let abandoned: HashMap<usize, Arc<AtomicBool>> =
            tickets.iter().map(|ticket| (ticket.index, ticket.abandoned.clone())).collect();
        let (pool, results) = stream::start(tickets, options, control, &writer.spare)?;
        for outcome in results {
            let item = outcome.result.map_err(|failure| Error::System(failure.to_string()))?;
            if control.is_stopped() {
                return Err(Error::Stopped);
            }
            let next =
                abandoned.get(&item.index).map(|abandoned| writer.take(item.index, item.event, abandoned));
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
    if control.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
}

/// A file that is gone when nobody has it open any more.
fn nameless(folder: Option<&Path>) -> Result<File> {
    let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
    let path = folder.join(format!(".gristmill-import-input-{}", std::process::id()));
    let failed = |error: std::io::Error| Error::io("write", &path, &error);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

/// Looks at what the database has before anything is written.
struct Desk<'a> {
    conn: &'a Connection,
    place: &'a Place,
    control: &'a Control,
    options: &'a Options,
    names: &'a [String],
    files: &'a mut [FileSummary],
}

type Sql<T> = rusqlite::Result<T>;

impl Desk<'_> {
    fn look(&mut self, sources: &[Source]) -> Sql<Result<HashMap<usize, Known>>> {
        let ours = "SELECT 1 FROM sqlite_schema WHERE name IN ('job_locks', 'wal_maintenance_jobs') LIMIT 1 OFFSET 1";
        if self.conn.prepare(ours)?.exists([])? {
            return Ok(Err(Error::Invalid(format!(
                "{} is Gristmill's own database; name another file for the tables",
                self.place.target().display()
            ))));
        }
        if let Some(error) = self.not_our_ledger()? {
            return Ok(Err(error));
        }
        self.drop_others()?;
        let mut all = HashMap::new();
        let mut refused = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let name = &self.names[index];
            let found: Option<(String, String)> = self
                .conn
                .query_row(
                    "SELECT type, name FROM sqlite_schema WHERE lower(name) = lower(?1) AND type IN ('table', 'view')",
                    [name],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            let Some((kind, there)) = found else {
                // A file may have made no table.
                if self.options.resume {
                    self.is_unchanged(index, source)?;
                }
                continue;
            };
            if kind == "view" {
                let text = format!(
                    "{name:?} is a view in {}; give the table another name",
                    self.place.target().display()
                );
                return Ok(Err(Error::Invalid(text)));
            }
            if self.options.resume && self.is_unchanged(index, source)? {
                continue;
            }
            let mut known = Known::default();
            match self.options.existing {
                _ if self.place.is_new() => known.is_replaced = true,
                Existing::Refuse => refused.push(name.as_str()),
                Existing::Replace => known.is_replaced = true,
                Existing::Append | Existing::Upsert => match self.old(&there)? {
                    Ok(old) => known = old,
                    Err(error) => return Ok(Err(error)),
                },
            }
            all.insert(index, known);
        }
        Ok(if refused.is_empty() { Ok(all) } else { Err(self.refusal(&refused)) })
    }

    /// The name may be somebody else's already.
    fn not_our_ledger(&self) -> Sql<Option<Error>> {
        let columns: Vec<String> = {
            let mut statement = self.conn.prepare("SELECT name FROM pragma_table_info(?1)")?;
            let names = statement.query_map([names::LEDGER], |row| row.get(0))?;
            names.collect::<Sql<_>>()?
        };
        let is_ours = columns.is_empty()
            || ["blake3", "renamed", "options"]
                .iter()
                .all(|name| columns.iter().any(|column| column == name));
        Ok((!is_ours).then(|| {
            let (target, ledger) = (self.place.target().display(), names::LEDGER);
            Error::Invalid(format!(
                "{target} has a table {ledger} that is not ours, and we need one of that name; rename it"
            ))
        }))
    }

    /// What an import that was stopped had built of files that are not asked for any more.
    fn drop_others(&self) -> Sql<()> {
        if !self.place.is_new() {
            return Ok(());
        }
        let tables: Vec<String> = {
            let mut statement =
                self.conn.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> ?1")?;
            let names = statement.query_map([names::LEDGER], |row| row.get(0))?;
            names.collect::<Sql<_>>()?
        };
        for table in tables.iter().filter(|table| !self.names.contains(table)) {
            self.conn.execute_batch(&format!("DROP TABLE {}", names::quoted(table)))?;
            self.conn.execute(r#"DELETE FROM "_imports" WHERE "table" = ?1"#, [table])?;
        }
        Ok(())
    }

    fn refusal(&self, tables: &[&str]) -> Error {
        let (since, or) = match self.options.resume {
            true => (", from files, or with options, that have changed since", ""),
            false => ("", ", or --resume to leave out files that were loaded before and have not changed"),
        };
        let shown: Vec<&str> = tables.iter().copied().take(10).collect();
        let more = if tables.len() > shown.len() { ", …" } else { "" };
        Error::Invalid(format!(
            "{} has the {} {}{more} already{since}; say --replace, --append or --upsert{or}",
            self.place.target().display(),
            if tables.len() == 1 { "table" } else { "tables" },
            shown.join(", ")
        ))
    }

    /// Whether the file was loaded before, as it is now.
    fn is_unchanged(&mut self, index: usize, source: &Source) -> Sql<bool> {
        let file = &mut self.files[index];
        let Some(path) = source.path.as_ref().filter(|_| source.is_file) else { return Ok(false) };
        let Some(entry) = ledger::last(self.conn, &file.table, &file.source)? else { return Ok(false) };
        let now = File::open(path).and_then(|file| source::size_and_time(&file));
        let Ok((bytes, modified)) = now else { return Ok(false) };
        if entry.options != self.options.shape() || entry.print.bytes != bytes {
            return Ok(false);
        }
        let same = entry.print.modified == modified
            || source::hash(path, self.control).is_ok_and(|hash| hash == entry.print.hash);
        if same {
            file.outcome = Outcome::Unchanged;
            file.rows = entry.rows;
            file.rejected = entry.errors;
        }
        Ok(same)
    }

    /// What is known of a table that gets more rows.
    fn old(&self, name: &str) -> Sql<Result<Known>> {
        let mut statement = self.conn.prepare("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?1)")?;
        let columns = statement.query_map([name], |row| {
            Ok((
                row.get::<_, String>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, i64>(3)?,
            ))
        })?;
        let columns: Vec<_> = columns.collect::<Sql<_>>()?;
        let (columns, hidden): (Vec<_>, Vec<_>) = columns.into_iter().partition(|column| column.3 == 0);
        let hidden: Vec<String> = hidden.into_iter().map(|column| column.0).collect();
        let is_ours = ledger::is_ours(self.conn, name)?;
        let sql: String = self.conn.query_row(
            "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1",
            [name],
            |row| row.get(0),
        )?;
        let typed = columns.iter().map(|(name, kind, key, _)| {
            let declared = Type::declared(kind);
            let fate = declared.map_or(Fate::Loose, Fate::Fixed);
            let kind = declared.unwrap_or(Type::Any);
            let is_number = matches!(kind, Type::Integer | Type::Real | Type::Boolean);
            let can_widen =
                is_ours && is_number && *key == 0 && table::definition(&sql, name, kind).is_some();
            OldColumn { name: name.clone(), fate, kind, can_widen }
        });
        let typed = typed.collect();
        let layout = Layout::of_table(typed, &hidden, &ledger::renamed(self.conn, name)?);
        let mut keys: Vec<(i64, usize)> = columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.2 > 0)
            .map(|(index, column)| (column.2, index))
            .collect();
        keys.sort_unstable();
        let mut keys: Vec<usize> = keys.into_iter().map(|(_, index)| index).collect();
        let way = if self.options.existing == Existing::Upsert { Way::Upsert } else { Way::Insert };
        if way == Way::Upsert {
            if let Some(wanted) = &self.options.primary_key
                && let Some(index) = layout.column(wanted)
                && keys != [index]
                && self.is_unique(name, &layout.columns[index].name)?
            {
                keys = vec![index];
            }
            if keys.is_empty() {
                let text = format!(
                    "the table {name:?} has no primary key, so --upsert cannot know which rows are the same; \
                     name a column with a unique index as --primary-key, or use --append or --replace"
                );
                return Ok(Err(Error::Invalid(text)));
            }
        }
        Ok(Ok(Known { layout, plan: Plan::Kept(keys), is_old: true, way: Some(way), ..Known::default() }))
    }

    fn is_unique(&self, table: &str, column: &str) -> Sql<bool> {
        let mut statement = self.conn.prepare(
            "SELECT 1 FROM pragma_index_list(?1) AS l
             WHERE l.\"unique\" AND NOT l.partial
             AND (SELECT group_concat(name) FROM pragma_index_info(l.name)) = ?2",
        )?;
        statement.exists([table, column])
    }
}
