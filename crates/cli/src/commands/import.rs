//! `gristmill import`: loads JSONL files into SQLite tables.
//!
//! Owns the options of an import. `progress` shows the running import and `summary` its result; `gristmill_jsonl`
//! imports.

mod progress;
mod summary;

use std::path::PathBuf;
use std::sync::Arc;

use gristmill_jsonl::import::handle::ImportHandle;
use gristmill_jsonl::import::options::{ExistingTable, ImportOptions, MAX_LINE_BYTES, OnError, Target};
use gristmill_jsonl::import::schema::Schema;
use gristmill_jsonl::import::stats::{DateKind, TableStats, stats};
use gristmill_jsonl::import::{import, summary::ImportSummary};

use self::summary::ImportSummaryView;
use super::value_parsers::size;
use crate::context::Context;
use crate::error::{Error, Outcome};
use crate::output::{path, sanitize};
use crate::settings::keys;
use crate::supervisor::with_progress;
use crate::units::{bytes, count_of, thousands};

const HELP: &str = "\
Files: each file becomes a table named after it (map-moons.jsonl becomes map_moons); --table loads all files into one \
table. From a folder and its subfolders, files that end in .jsonl or .ndjson are loaded, with or without .gz or .zst, \
except hidden ones. A file that is named, directly or by a quoted pattern, may have any name; - is standard input. \
Compression is also detected by the first bytes. Broken links, pipes and devices with such names in a folder or a \
pattern are failures; the other files are loaded. A file may also be a JSON array of objects, or objects spread over \
several lines; each object becomes a row, a bad element is rejected, and a file that is not JSON as a whole is a \
failure.

Columns: all lines are read to find the columns; each key becomes a column, in order of appearance. Whole numbers are \
INTEGER, other numbers REAL (NUMERIC if there are large whole numbers among them), true and false BOOLEAN (1 and 0), \
everything else TEXT. If lines disagree, the wider type is used, and numbers in a TEXT column keep their spelling. \
Decimals are rounded to a double unless --exact-numbers stores them as TEXT; whole numbers beyond 64 bits make the \
column TEXT. Objects and arrays are stored as JSON text.

Existing tables: a table that an import created gets new columns and wider types when needed. Values that do not fit \
the types of another table, or of a schema, are rejected. If a column of numbers becomes TEXT in a later import, whole \
numbers keep their spelling, but 5.0 becomes 5, 1.50 becomes 1.5, and true becomes 1. --upsert needs a primary key: \
the last line with a key is stored, and columns that a line does not have keep their values.

Primary key: the named columns, or otherwise _key, _id or id if all lines have it, never null and never twice. Lines \
without the key of their table are rejected.

Transactions: a new database is built in a temporary file and renamed when it is complete. In an existing database \
each file is one transaction. The table _imports records what was loaded. Ctrl-C rolls back incomplete files; with \
--resume, a new database is kept in its temporary file, and the same command resumes the import. If another program \
has locked the database, the import waits for up to 10 seconds.

Rejected lines: a line is rejected if it is not a JSON object in UTF-8, has a key twice or half a surrogate pair, or \
does not fit its table. A file without a valid line, or whose lines have no keys, is a failure.

A schema file sets names, types and keys; what it does not mention is inferred:
  [tables.types]
  name = \"item_types\"              # name of the table
  primary_key = \"_key\"             # or several columns: [\"year\", \"number\"]
  indexes = [\"groupID\"]
  others = \"skip\"                  # keys not listed here: infer (default), skip or reject
  [tables.types.columns]
  radius = { type = \"real\" }       # integer, real, numeric, boolean, text or any; lines with
                                   # other values are rejected
  groupID = { name = \"group_id\" }
  description = { skip = true }
  \"position.x\" = { type = \"real\" } # with --flatten: keys joined by dots
  [tables.notes]
  skip = true                      # do not load this file

Exit status:
  0    success; no line was rejected, or --on-error skip or --max-errors allowed it
  1    a wrong argument; a file that could not be loaded; a named column that is missing; a rejected
       line (loaded rows stay, except with --on-error fail or more than --max-errors)
  2    system failure: a full disk, a damaged database
  3    another program kept the database locked for more than 10 seconds
  130  interrupted; incomplete files were rolled back

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
    after_help = HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "gristmill import [OPTIONS] <DIR|FILE>... --into <DATABASE>\n       \
                      gristmill import [OPTIONS] <DIR|FILE>... --dry-run|--validate\n       \
                      gristmill import stats <DATABASE>"
)]
pub(crate) struct Args {
    /// Folders and files to load, or - for standard input
    #[arg(value_name = "DIR|FILE", required = true)]
    paths: Vec<PathBuf>,

    /// SQLite database to load into; created if it does not exist
    #[arg(long, value_name = "DATABASE", conflicts_with = "validate")]
    into: Option<PathBuf>,

    /// Show the tables that would be created, and write nothing; with --into, also the changes to existing tables.
    /// Lines are rejected as by an import, except by constraints of existing tables other than the primary key
    #[arg(long, conflicts_with = "validate")]
    dry_run: bool,

    /// Check the lines, and write nothing; primary keys are checked only by --dry-run
    #[arg(long, conflicts_with_all = ["primary_key", "index", "upsert"])]
    validate: bool,

    /// Number of workers that parse, 0 to 32; 0 is one for each core [default: setting import.workers, 4]
    #[arg(long, value_name = "N")]
    workers: Option<String>,

    /// Skip files that were loaded before and have not changed, and resume an interrupted import. Row counts and column
    /// names of their tables are checked; changed values are not noticed
    #[arg(long)]
    resume: bool,

    /// Replace existing tables; with --resume, a table is kept if only the named files were loaded into it, each once,
    /// and have not changed
    #[arg(long, help_heading = "Existing tables", conflicts_with_all = ["append", "upsert"])]
    replace: bool,

    /// Add rows to existing tables; a file that changed is added as a whole again
    #[arg(long, help_heading = "Existing tables", conflicts_with = "upsert")]
    append: bool,

    /// Update rows with an existing primary key, and add the others
    #[arg(long, help_heading = "Existing tables")]
    upsert: bool,

    /// Load all files into this table, in the order in which they are named or sorted in their folder, as if they were
    /// one file. Required for standard input
    #[arg(long, value_name = "NAME", help_heading = "Tables and columns")]
    table: Option<String>,

    /// Add a column with the path of each row's file, as it was given
    #[arg(long, value_name = "NAME", help_heading = "Tables and columns")]
    filename_column: Option<String>,

    /// Load only these keys, separated by commas; with --flatten, a nested key is written a.b
    #[arg(long, value_name = "KEYS", value_delimiter = ',', help_heading = "Tables and columns")]
    columns: Vec<String>,

    /// Load only the first N rows of each table; rejected lines do not count. A file that was not read to its end is
    /// never skipped by --resume
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "resume",
          help_heading = "Tables and columns")]
    limit: Option<u64>,

    /// Flatten objects into columns: {"name":{"en":…}} becomes name_en; DEPTH limits the levels [default depth: 32]
    #[arg(long, value_name = "DEPTH", num_args = 0..=1, require_equals = true, default_missing_value = "32",
          value_parser = clap::value_parser!(u8).range(0..=32), help_heading = "Tables and columns")]
    flatten: Option<u8>,

    /// Keep only these languages of localised objects such as {"de":…,"en":…}; objects with none of them stay unchanged
    #[arg(long, value_name = "TAGS", value_delimiter = ',', help_heading = "Tables and columns")]
    languages: Vec<String>,

    /// Primary key of tables that have these columns; lines without it or with a repeated one are rejected
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', help_heading = "Tables and columns")]
    primary_key: Vec<String>,

    /// Create an index in tables that have this column, after the rows are loaded; repeatable
    #[arg(long, value_name = "COLUMN", help_heading = "Tables and columns")]
    index: Vec<String>,

    /// Schema file with names, types and keys of tables and columns; see the example below
    #[arg(long, value_name = "FILE.toml", help_heading = "Tables and columns")]
    schema: Option<PathBuf>,

    /// Store decimals that a double would round as TEXT [default: setting import.exact_numbers, false]
    #[arg(long, help_heading = "Tables and columns")]
    exact_numbers: bool,

    /// On a bad line, skip it and exit with 0 (skip), or stop and roll back (fail) [default: skip it and exit with 1]
    #[arg(long, value_name = "WHAT", value_parser = ["skip", "fail"], help_heading = "Bad lines")]
    on_error: Option<String>,

    /// Skip at most N bad lines and exit with 0; stop and roll back if there are more
    #[arg(long, value_name = "N", help_heading = "Bad lines")]
    max_errors: Option<u64>,

    /// Append all bad lines to this file, as JSONL with file, line, column (in bytes, from 1), reason, and the line as
    /// raw, or as raw_hex if it is not UTF-8; truncated is true if only the beginning of the line is included
    #[arg(long, value_name = "FILE", help_heading = "Bad lines")]
    rejects: Option<PathBuf>,

    /// Exit with 1 if a line was rejected, whatever else is given
    #[arg(long, help_heading = "Bad lines")]
    strict: bool,

    /// Maximum length of a line, up to 900000000 bytes [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Bad lines")]
    max_line: Option<u64>,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Show the tables of a database: rows, sizes and sources
    #[command(after_help = STATS)]
    Stats {
        /// SQLite database
        #[arg(value_name = "DATABASE")]
        database: PathBuf,
    },
}

const STATS: &str = "\
Reads the whole database and changes nothing.

Examples:
  gristmill import stats sde.db
  gristmill import stats sde.db --json | jq '.tables[] | select(.errors > 0)'";

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<Outcome, Error> {
    if let Some(Command::Stats { database }) = &args.command {
        return show_stats(database, context);
    }
    context.flags.add(&keys::IMPORT_WORKERS, "--workers", args.workers.as_ref());
    let target = match (&args.into, args.dry_run, args.validate) {
        (Some(path), true, _) => Target::Preview(path.clone()),
        (Some(path), _, _) => Target::Database(path.clone()),
        (None, true, _) => Target::Schema,
        (None, _, true) => Target::ValidateOnly,
        _ => {
            let text = "no database given; name one with --into FILE.db, or use --dry-run to see the tables";
            return Err(Error::Setting(text.to_owned()));
        }
    };
    let options = options(args, context)?;
    let control = Arc::new(ImportHandle::default());
    let cancelled = control.clone();
    let result = with_progress(
        context.quiet,
        move || cancelled.cancel(),
        progress::lines(&control),
        || import(&args.paths, &target, &options, &control),
    )?;
    let summary = match result {
        Err(gristmill_jsonl::Error::Cancelled) => ImportSummary { interrupted: true, ..ImportSummary::default() },
        result => result?,
    };
    let view =
        ImportSummaryView { summary: &summary, target: &target, resume: args.resume, rejects: args.rejects.as_deref() };
    let outcome = if summary.interrupted {
        Outcome::Interrupted
    } else if has_user_error(&summary, args.allows_rejected_lines()) {
        Outcome::UserError
    } else {
        Outcome::Done
    };
    context.output.summary(&summary, outcome, |output| view.text(output))
}

/// Returns true if the user has to act on the result.
fn has_user_error(summary: &ImportSummary, allows_rejected_lines: bool) -> bool {
    summary.has_failures()
        || summary.stopped_by.is_some()
        || !summary.unmatched.is_empty()
        || summary.files.iter().any(|file| !file.unmatched.is_empty())
        || (summary.rejected > 0 && !allows_rejected_lines)
}

impl Args {
    /// Returns true if the user allowed bad lines to be skipped.
    fn allows_rejected_lines(&self) -> bool {
        let skips = self.on_error.as_deref() == Some("skip") || self.max_errors.is_some();
        skips && !self.strict && !self.validate
    }
}

fn options(args: &Args, context: &Context) -> Result<ImportOptions, Error> {
    let max_line = args.max_line.map(|bytes| match usize::try_from(bytes) {
        Ok(bytes @ 1..=MAX_LINE_BYTES) => Ok(bytes),
        _ => Err(Error::Setting(format!(
            "--max-line {bytes} is not allowed; expected: a size from 1B to {MAX_LINE_BYTES}B"
        ))),
    });
    if let Some(wrong) = args.languages.iter().find(|tag| !is_tag(tag)) {
        return Err(Error::Setting(format!(
            "--languages {wrong:?} is not allowed; expected: tags such as en, de or pt-BR, separated by commas"
        )));
    }
    let settings = context.settings()?;
    let mut options = ImportOptions::default();
    options.workers = settings.import.workers.unwrap_or(0);
    options.exact_numbers = args.exact_numbers || settings.import.exact_numbers;
    options.existing = match (args.replace, args.append, args.upsert) {
        (true, _, _) => ExistingTable::Replace,
        (_, true, _) => ExistingTable::Append,
        (_, _, true) => ExistingTable::Upsert,
        _ => ExistingTable::Refuse,
    };
    options.on_error = match (args.on_error.as_deref(), args.max_errors) {
        (Some("fail"), _) => OnError::Fail,
        (_, Some(max)) => OnError::FailAfter(max),
        _ => OnError::Skip,
    };
    options.flatten = args.flatten.map_or(0, usize::from);
    options.languages = args.languages.clone();
    options.primary_key = args.primary_key.clone();
    options.indexes = args.index.clone();
    options.schema = args.schema.as_deref().map(Schema::read).transpose()?.unwrap_or_default();
    options.table = args.table.clone();
    options.filename_column = args.filename_column.clone();
    options.columns = args.columns.clone();
    options.limit = args.limit;
    options.resume = args.resume;
    options.rejects = args.rejects.clone();
    options.max_line = max_line.transpose()?.unwrap_or(options.max_line);
    Ok(options)
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn show_stats(database: &std::path::Path, context: &Context) -> Result<Outcome, Error> {
    let stats = stats(database)?;
    context.output.print(&stats, |output| {
        let row = |table: &TableStats| {
            let loaded_at = table.loaded_at.as_deref().unwrap_or_default();
            vec![
                table.table.clone(),
                thousands(table.rows),
                table.columns.to_string(),
                bytes(table.bytes),
                bytes(table.index_bytes),
                table.errors.map(thousands).unwrap_or_default(),
                loaded_at.chars().take(19).collect::<String>().replace('T', " "),
                match (&table.source, table.sources) {
                    (Some(last), 2..) => format!("{}, last {last}", count_of(table.sources, "file")),
                    (last, _) => last.clone().unwrap_or_default(),
                },
            ]
        };
        let headers = ["TABLE", "ROWS", "COLUMNS", "SIZE", "INDEXES", "REJECTED", "LOADED (UTC)", "SOURCE"];
        let total: u64 = stats.tables.iter().map(|table| table.rows).sum();
        let table = output.uncut_table(&headers, stats.tables.iter().map(row));
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
                dates.push_str(&format!("{}.{}: {kind} (ISO 8601)\n", sanitize(&table.table), sanitize(&date.column)));
            }
        }
        format!("{table}{dates}{place}: {tables}, {}, {}", count_of(total, "row"), bytes(stats.bytes))
    })
}
