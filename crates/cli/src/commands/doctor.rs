//! `gristmill doctor`: checks the database file, and repairs what is safe to repair.

use std::io::Read;
use std::path::Path;

use gristmill_store::doctor::{Checkup, Finding, Severity};
use gristmill_store::private;
use serde_json::{Value, json};

use super::root_paths::with_path;
use crate::context::{CREATED_BY_ANY, Context, require_database, store_options};
use crate::error::{Error, Outcome};
use crate::hints::shell_word;
use crate::output::{Output, path as path_text};
use crate::settings::Settings;
use crate::units::{bytes, plural};

const HELP: &str = "\
Checks the database file, leases of dead workers, and the permissions of files. `gristmill verify` checks the \
duplicate catalog.

Without --repair, nothing is changed. With --repair, safe repairs are made: leases of dead workers are released, \
checkpoints of tasks finished more than a day ago are deleted, indexes that differ from their table are rebuilt, and \
the WAL is truncated. No task and no dead letter is deleted.

Exit status:
  0    healthy
  1    problems were found
  2    the database is damaged

Examples:
  gristmill doctor
  gristmill doctor --repair
  gristmill doctor --json | jq '.findings[] | .what'";

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Make the repairs that are safe
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<Outcome, Error> {
    let settings = context.settings()?;
    require_database(&settings, CREATED_BY_ANY)?;
    let options = store_options(&settings);
    let examine = || {
        options.examine(&settings.database, settings.worker.lease).map(|mut checkup| {
            checkup.findings.extend(database_open_to_others(&settings));
            checkup.findings.extend(settings_open_to_others(&settings));
            checkup.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
            checkup
        })
    };
    let mut checkup = examine().map_err(|error| as_damage(error, &settings.database))?;
    let mut repairs = None;
    if args.repair {
        // Commands of dead workers must not run beside the next attempt.
        gristmill_jobs::ProcessGroups::for_database(&settings.database).kill_orphans(None);
        repairs = Some(options.repair(&settings.database, &checkup, settings.worker.max_crashes)?);
        checkup = examine()?;
    }
    for finding in &mut checkup.findings {
        finding.next = context.hints.complete_commands(&finding.next);
    }
    for repair in repairs.iter_mut().flatten() {
        *repair = context.hints.complete_commands(repair);
    }
    let value = as_value(&checkup, &settings.database, repairs.as_deref())?;
    context.output.print(&value, |output| {
        let mut text = database_fields(output, &checkup, &path_text(&settings.database));
        text.push_str(&counts_text(output, &checkup));
        text.push_str(&findings_text(&checkup));
        text.push_str(&repairs_text(&checkup, repairs.as_deref()));
        text
    })?;
    Ok(outcome(&checkup))
}

/// Returns a finding if other users may open a settings file with a password.
fn settings_open_to_others(settings: &Settings) -> Option<Finding> {
    let file = settings.file_with_password.as_deref().filter(|file| private::is_open_to_others(file))?;
    Some(Finding {
        severity: Severity::Warning,
        what: format!("other users of this machine can read {}, which contains a password", path_text(file)),
        next: format!("chmod 600 {}", shell_word(file)),
    })
}

/// Returns a finding if other users may open files of the database or the default folder, as older versions created
/// them.
fn database_open_to_others(settings: &Settings) -> Option<Finding> {
    let database = &settings.database;
    let files = private::files_open_to_others(database);
    let folder = database.parent().filter(|_| settings.database_by_default);
    let folder = folder.filter(|folder| private::is_open_to_others(folder));
    let command = |mode: &str, paths: &[&Path]| {
        let words: Vec<_> = paths.iter().map(|path| shell_word(path)).collect();
        format!("chmod {mode} {}", words.join(" "))
    };
    let mut commands: Vec<String> = folder.map(|folder| command("700", &[folder])).into_iter().collect();
    if !files.is_empty() {
        commands.push(command("600", &files.iter().map(|path| path.as_path()).collect::<Vec<_>>()));
    }
    let named: Vec<_> = folder.into_iter().chain(files.iter().map(|path| path.as_path())).map(path_text).collect();
    (!named.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        what: format!(
            "other users of this machine can read {}, with commands, their output and messages",
            named.join(", ")
        ),
        next: commands.join(" && "),
    })
}

/// Turns "not a database" into damage if the file begins with the magic bytes of SQLite.
fn as_damage(error: gristmill_store::Error, path: &Path) -> Error {
    let begins = || {
        let mut start = [0; MAGIC.len()];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
        read.is_ok() && &start == MAGIC
    };
    match error {
        gristmill_store::Error::NotADatabase(_) if begins() => Error::System(format!(
            "{} begins like a database but cannot be read: it is truncated, or its first page is damaged. To fix it: {}",
            path_text(path),
            gristmill_store::damage::advice(path)
        )),
        other => other.into(),
    }
}

/// First bytes of every SQLite database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

fn outcome(checkup: &Checkup) -> Outcome {
    match checkup.worst() {
        None | Some(Severity::Note) => Outcome::Done,
        Some(Severity::Warning) => Outcome::UserError,
        Some(Severity::Damage) => Outcome::Failed,
    }
}

fn health(checkup: &Checkup) -> &'static str {
    match outcome(checkup) {
        Outcome::Done => "healthy",
        Outcome::Failed => "damaged",
        _ => "findings",
    }
}

fn as_value(checkup: &Checkup, path: &Path, repairs: Option<&[String]>) -> Result<Value, Error> {
    let mut object = super::to_object(checkup)?;
    object.extend(with_path(path));
    object.insert("health".to_owned(), json!(health(checkup)));
    object.insert("repairs".to_owned(), json!(repairs));
    Ok(Value::Object(object))
}

fn database_fields(output: &Output, checkup: &Checkup, path: &str) -> String {
    let pages = format!("{} of {}, {} free", checkup.pages, plural(checkup.page_bytes, "byte"), checkup.free_pages);
    let mode = checkup.journal_mode.as_deref().unwrap_or("unknown");
    output.fields(&[
        ("database", Some(path.to_owned())),
        ("size", Some(format!("{}, WAL {}", bytes(checkup.file_bytes), bytes(checkup.wal_bytes)))),
        ("pages", Some(pages)),
        ("schema", checkup.schema_version.map(|version| version.to_string())),
        ("sqlite", Some(format!("{}, journal {mode}, synchronous {}", checkup.sqlite_version, checkup.synchronous))),
    ])
}

fn counts_text(output: &Output, checkup: &Checkup) -> String {
    let rows: Vec<Vec<String>> = checkup
        .counts
        .iter()
        .flat_map(|(table, counts)| {
            counts.iter().map(move |(status, count)| vec![(*table).to_owned(), status.clone(), count.to_string()])
        })
        .collect();
    if rows.is_empty() { String::new() } else { format!("\n{}", output.table(&["TABLE", "STATUS", "ROWS"], rows)) }
}

fn findings_text(checkup: &Checkup) -> String {
    if checkup.findings.is_empty() {
        return "\nhealthy: no problems found\n".to_owned();
    }
    let texts = checkup.findings.iter().map(|finding| {
        let severity = match finding.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Damage => "damage",
        };
        format!("\n{severity}: {}\n  next: {}\n", finding.what, finding.next)
    });
    texts.collect()
}

fn repairs_text(checkup: &Checkup, repairs: Option<&[String]>) -> String {
    match repairs {
        None => String::new(),
        Some([]) if checkup.worst() == Some(Severity::Damage) => {
            "\nnothing was repaired: changing a damaged file is not safe\n".to_owned()
        }
        Some([]) => "\nnothing to repair\n".to_owned(),
        Some(repairs) => repairs.iter().map(|repair| format!("\nrepaired: {repair}")).collect::<String>() + "\n",
    }
}
