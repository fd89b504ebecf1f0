//! `gristmill import`: folders of JSONL into tables of SQLite.
//!
//! Owns what was asked for. How far it has come is shown by `progress`, how it ended by `told`; what is done until then
//! is the importer's affair.

mod progress;
mod summary;

use std::path::PathBuf;
use std::sync::Arc;

use gristmill_jsonl::import::control::ImportHandle;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, MAX_LINE_BYTES, OnError, Target};
use gristmill_jsonl::import::schema::Schema;
use gristmill_jsonl::import::stats::{DateKind, stats};
use gristmill_jsonl::import::{import, summary::ImportSummary};

use self::summary::ImportSummaryView;
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{bytes, count_of, path, sanitize, thousands};
use crate::settings::{Raw, keys};
use crate::signals::Listener;

const EXAMPLES: &str = "\
Each file becomes a table that is named after it: map-moons.jsonl is map_moons; --table loads all of them into one. \
Files of a folder and all folders in it are taken when they end in .jsonl or .ndjson, with or without .gz or .zst, and \
are not hidden; a file that is named itself, or by a pattern in quotes, may be called anything, and - is standard input. \
Compressed input is also known by its first bytes. Links to nowhere, pipes and devices that a folder or a pattern has \
under such names are failures; the other files are loaded.

A file may also be a JSON array of objects, or objects spread over several lines: each is a row. One that is not JSON \
as a whole is a failure; a bad element costs itself.

Columns are found in all of the lines, none is missed: each key of the objects is one, in the order in which \
they come. Whole numbers are INTEGER, others REAL (NUMERIC where large whole ones are among them), true and false \
BOOLEAN (1 and 0), the rest TEXT; where lines disagree, the wider type wins, and numbers in a TEXT column keep their \
spelling. Decimals are rounded to a double, unless --exact-numbers makes them TEXT; whole numbers beyond 64 bits make it \
TEXT. Objects and arrays are kept as JSON text. A table that an import made gets new columns and wider types when \
more rows come; what does not fit the types of another table, or of a schema, is rejected. Where a column of numbers \
becomes TEXT in a later import, whole numbers keep their spelling, but 5.0 among them becomes 5, 1.50 becomes 1.5, and \
true among numbers becomes 1.

Primary key: the columns that are named, or else _key, _id or id, if all lines have it, never null and never twice. \
Lines without the key of their table are rejected.

A new database is built beside its place and moved there when it is complete. In one that exists each file is one \
transaction. What was loaded stands in the table _imports. Ctrl-C takes back what is not complete; with --resume a new \
database is kept aside, and the same command goes on. --upsert needs a key: the last line of a key wins, and columns \
that a line does not have stay as they are.

A line is rejected when it is no JSON object in UTF-8, has a key twice, half a surrogate pair, or does not fit. A file of \
which no line can be taken, or of which no line has any key, is a failure.

A schema file fixes what it names, and leaves the rest to be found:
  [tables.types]
  name = \"item_types\"              # another name for the table
  primary_key = \"_key\"             # or several: [\"year\", \"number\"]
  indexes = [\"groupID\"]
  others = \"skip\"                  # keys not named here: infer (the default), skip or reject
  [tables.types.columns]
  radius = { type = \"real\" }       # integer, real, numeric, boolean, text or any; what does
                                     # not fit costs its line
  groupID = { name = \"group_id\" }
  description = { skip = true }
  \"position.x\" = { type = \"real\" } # with --flatten: the keys, with dots
  [tables.notes]
  skip = true                        # leave the file out

Exit codes:
  0    done; no line was rejected, or --on-error skip or --max-errors allowed it
  1    a wrong argument; a file that could not be loaded; a named column that is missing; a rejected
       line (what was loaded stays, but not with --on-error fail or more than --max-errors)
  2    the system failed: a full disk, a damaged database
  3    another program kept the database locked for more than 10 seconds
  130  interrupted; nothing half-done is left

Examples:
  gristmill import sde/ --into sde.db
  gristmill import events.jsonl.zst --into logs.db --append --rejects bad.jsonl
  zcat dump.gz | gristmill import - --table users --into app.db --primary-key user_id
  gristmill import 'logs/**/*.gz' --table logs --filename-column file --into logs.db
  gristmill import sde/ --dry-run --flatten --languages en,de
  gristmill import sde/ --into sde.db --append --dry-run
  gristmill import stats sde.db";

#[derive(Debug, clap::Args)]
#[command(
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "gristmill import [OPTIONS] <DIR|FILE>... --into <DATABASE>\n       \
                      gristmill import [OPTIONS] <DIR|FILE>... --dry-run|--validate\n       \
                      gristmill import stats <DATABASE>"
)]
pub(crate) struct Args {
    /// Folders, files, or - for standard input
    #[arg(value_name = "DIR|FILE", required = true)]
    paths: Vec<PathBuf>,

    /// The SQLite database to load into; created if it does not exist
    #[arg(long, value_name = "DATABASE", conflicts_with = "validate")]
    into: Option<PathBuf>,

    /// Show the tables that would be made, and write nothing; with --into, also what would become of the tables that the
    /// database has. Lines are rejected as by the import, but for constraints of those tables other than the primary key
    #[arg(long, conflicts_with = "validate")]
    dry_run: bool,

    /// Check the lines, and write nothing. Primary keys are checked by --dry-run
    #[arg(long, conflicts_with_all = ["primary_key", "index", "upsert"])]
    validate: bool,

    /// How many workers parse, 0 to 32; 0 for one a core [default: the setting import.workers]
    #[arg(long, value_name = "NUMBER")]
    workers: Option<String>,

    /// Leave out files that were loaded before and have not changed; keep what is complete when stopped, and go
    /// on from there. Of their tables the number of rows and the names of columns are checked; values that were
    /// changed since are not noticed
    #[arg(long)]
    resume: bool,

    /// A table that exists is made anew; with --resume it is kept if only the named files were loaded into it,
    /// each once, and have not changed
    #[arg(long, help_heading = "Tables that are there", conflicts_with_all = ["append", "upsert"])]
    replace: bool,

    /// A table that exists gets more rows
    #[arg(long, help_heading = "Tables that are there", conflicts_with = "upsert")]
    append: bool,

    /// Rows with a known primary key are updated, others added
    #[arg(long, help_heading = "Tables that are there")]
    upsert: bool,

    /// Load all files into this one table, in the order in which they are named or sorted in their folder, as if they
    /// were one file. Required for standard input
    #[arg(long, value_name = "NAME", help_heading = "Tables and columns")]
    table: Option<String>,

    /// Add a column with the path of each row's file, as it was named
    #[arg(long, value_name = "NAME", help_heading = "Tables and columns")]
    filename_column: Option<String>,

    /// Load only these keys, separated by commas; with --flatten a key in an object is written a.b
    #[arg(long, value_name = "KEYS", value_delimiter = ',', help_heading = "Tables and columns")]
    columns: Vec<String>,

    /// Load at most this many rows into each table, the first ones; rejected lines do not count. A file that was not read
    /// to its end is never left out by --resume
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "resume",
          help_heading = "Tables and columns")]
    limit: Option<u64>,

    /// Spread objects into columns: {"name":{"en":…}} is name_en. A depth says how many levels
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true, default_missing_value = "32",
          value_parser = clap::value_parser!(u8).range(0..=32), help_heading = "Tables and columns")]
    flatten: Option<u8>,

    /// Of localised objects, such as {"de":…,"en":…}, keep only these languages; those that have none stay
    #[arg(long, value_name = "TAGS", value_delimiter = ',', help_heading = "Tables and columns")]
    languages: Vec<String>,

    /// The primary key, of tables that have these columns; lines without it, or with one that was there, are rejected
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', help_heading = "Tables and columns")]
    primary_key: Vec<String>,

    /// Make an index when the rows are there, in tables that have the column; may be given several times
    #[arg(long, value_name = "COLUMN", help_heading = "Tables and columns")]
    index: Vec<String>,

    /// Fix names, types and keys of tables and columns; below is such a file
    #[arg(long, value_name = "FILE.toml", help_heading = "Tables and columns")]
    schema: Option<PathBuf>,

    /// Keep decimals that a double would round as TEXT [default: the setting import.exact_numbers]
    #[arg(long, help_heading = "Tables and columns")]
    exact_numbers: bool,

    /// What to do at a bad line: skip it and exit with 0, or stop and take back (fail) [default: skip it and exit with 1]
    #[arg(long, value_name = "WHAT", value_parser = ["skip", "fail"], help_heading = "Bad lines")]
    on_error: Option<String>,

    /// Skip up to this many bad lines and exit with 0; stop and take back when there are more
    #[arg(long, value_name = "NUMBER", help_heading = "Bad lines")]
    max_errors: Option<u64>,

    /// Append all bad lines to this file, as JSONL with file, line, column (counted in bytes, from 1), reason, and the
    /// line as raw, or as raw_hex where it is no text; truncated is true where only the beginning of the line is there
    #[arg(long, value_name = "FILE", help_heading = "Bad lines")]
    rejects: Option<PathBuf>,

    /// Exit with 1 when a line was rejected, whatever else is given
    #[arg(long, help_heading = "Bad lines")]
    strict: bool,

    /// The longest line that is read, up to 900000000 bytes [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Bad lines")]
    max_line: Option<u64>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the tables of a database: rows, sizes, and where they came from
    #[command(after_help = STATS)]
    Stats {
        /// The database
        #[arg(value_name = "DATABASE")]
        database: PathBuf,
    },
}

const STATS: &str = "\
All of the database is read, but nothing of it is changed.

Examples:
  gristmill import stats sde.db
  gristmill import stats sde.db --json | jq '.tables[] | select(.errors > 0)'";

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    if let Some(Command::Stats { database }) = &args.command {
        return show_stats(database, context);
    }
    if let Some(text) = &args.workers {
        let key = &keys::IMPORT_WORKERS;
        context.flags.values.insert(key.name, ("--workers", Raw::One(text.into())));
    }
    let target = match (&args.into, args.dry_run, args.validate) {
        (Some(path), true, _) => Target::Preview(path.clone()),
        (Some(path), _, _) => Target::Database(path.clone()),
        (None, true, _) => Target::Schema,
        (None, _, true) => Target::ValidateOnly,
        _ => {
            let text =
                "where to? Name a database with --into FILE.db; --dry-run shows the tables it would get";
            return Err(Error::Setting(text.to_owned()));
        }
    };
    let options = options(args, context)?;
    let control = Arc::new(ImportHandle::default());
    let signals = Listener::start(1, {
        let control = control.clone();
        move || control.cancel()
    })?;
    let shown = progress::show(&control, context.quiet);
    let result = import(&args.paths, &target, &options, &control);
    shown.end();
    signals.stop();
    let summary = match result {
        Err(gristmill_jsonl::Error::Cancelled) => {
            ImportSummary { interrupted: true, ..ImportSummary::default() }
        }
        result => result?,
    };
    let told = ImportSummaryView {
        summary: &summary,
        target: &target,
        resume: args.resume,
        rejects: args.rejects.as_deref(),
    };
    let outcome = if summary.interrupted {
        Outcome::Interrupted
    } else if has_user_error(&summary, args.allows_rejected_lines()) {
        Outcome::UserError
    } else {
        Outcome::Done
    };
    context.output.summary(&summary, outcome, |output| told.text(output))?;
    Ok(outcome)
}

/// Whether something is left for the user to put right.
fn has_user_error(summary: &ImportSummary, may_lose_lines: bool) -> bool {
    summary.has_failures()
        || summary.stopped_by.is_some()
        || !summary.unmatched.is_empty()
        || summary.files.iter().any(|file| !file.unmatched.is_empty())
        || (summary.rejected > 0 && !may_lose_lines)
}

impl Args {
    /// Whether the user asked for bad lines to be skipped.
    fn allows_rejected_lines(&self) -> bool {
        let skips = self.on_error.as_deref() == Some("skip") || self.max_errors.is_some();
        skips && !self.strict && !self.validate
    }
}

fn options(args: &Args, context: &Context) -> Result<ImportOptions, Error> {
    let max_line = args.max_line.map(|bytes| match usize::try_from(bytes) {
        Ok(bytes @ 1..=MAX_LINE_BYTES) => Ok(bytes),
        _ => Err(Error::Setting(format!(
            "--max-line {bytes} is not legal; legal: a size from 1B to {MAX_LINE_BYTES}B"
        ))),
    });
    if let Some(wrong) = args.languages.iter().find(|tag| !is_tag(tag)) {
        return Err(Error::Setting(format!(
            "--languages {wrong:?} is not legal; legal: tags such as en, de or pt-BR, with commas between them"
        )));
    }
    let (defaults, settings) = (ImportOptions::default(), context.settings()?);
    Ok(ImportOptions {
        workers: settings.import_workers,
        exact_numbers: args.exact_numbers || settings.import_exact_numbers,
        existing: match (args.replace, args.append, args.upsert) {
            (true, _, _) => ExistingTable::Replace,
            (_, true, _) => ExistingTable::Append,
            (_, _, true) => ExistingTable::Upsert,
            _ => ExistingTable::Refuse,
        },
        on_error: match (args.on_error.as_deref(), args.max_errors) {
            (Some("fail"), _) => OnError::Fail,
            (_, Some(most)) => OnError::FailAfter(most),
            _ => OnError::Skip,
        },
        flatten: args.flatten.map_or(0, usize::from),
        languages: args.languages.clone(),
        primary_key: args.primary_key.clone(),
        indexes: args.index.clone(),
        schema: args.schema.as_deref().map(Schema::read).transpose()?.unwrap_or_default(),
        table: args.table.clone(),
        filename_column: args.filename_column.clone(),
        columns: args.columns.clone(),
        limit: args.limit,
        resume: args.resume,
        rejects: args.rejects.clone(),
        max_line: max_line.transpose()?.unwrap_or(defaults.max_line),
        ..defaults
    })
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn show_stats(database: &std::path::Path, context: &Context) -> Result<Outcome, Error> {
    let stats = stats(database)?;
    context.output.print(&stats, |output| {
        let rows: Vec<Vec<String>> = stats
            .tables
            .iter()
            .map(|table| {
                vec![
                    table.table.clone(),
                    thousands(table.rows),
                    table.columns.to_string(),
                    bytes(table.bytes),
                    bytes(table.index_bytes),
                    table.errors.map(thousands).unwrap_or_default(),
                    table
                        .loaded_at
                        .as_deref()
                        .map(|time| time.chars().take(19).collect())
                        .unwrap_or_default(),
                    match (&table.source, table.sources) {
                        (Some(last), 2..) => format!("{}, last {last}", count_of(table.sources, "file")),
                        (last, _) => last.clone().unwrap_or_default(),
                    },
                ]
            })
            .collect();
        let headers = ["TABLE", "ROWS", "COLUMNS", "SIZE", "INDEXES", "REJECTED", "LOADED", "FROM"];
        let total: u64 = stats.tables.iter().map(|table| table.rows).sum();
        let table = output.table(&headers, &rows);
        let place = path(database);
        let tables = count_of(stats.tables.len() as u64, "table");
        let mut dates = String::new();
        for table in &stats.tables {
            for date in &table.dates {
                let kind = match date.kind {
                    DateKind::Date => "dates",
                    DateKind::DateTime => "dates with times",
                    DateKind::Time => "times",
                };
                dates.push_str(&format!(
                    "{}.{}: {kind} (ISO 8601)\n",
                    sanitize(&table.table),
                    sanitize(&date.column)
                ));
            }
        }
        format!("{table}{dates}{place}: {tables}, {}, {}", count_of(total, "row"), bytes(stats.bytes))
    })?;
    Ok(Outcome::Done)
}
