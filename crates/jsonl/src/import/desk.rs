//! Looks at what the database has before anything is written.
//!
//! Owns what may be done with a table that is there already, and which files need not be loaded again.

use std::collections::HashMap;
use std::fs::File;

use rusqlite::{Connection, OptionalExtension};

use super::control::Control;
use super::find::Source;
use super::key::Plan;
use super::layout::{Layout, OldColumn};
use super::loading::Known;
use super::options::{Existing, Options};
use super::place::Place;
use super::summary::{FileSummary, Outcome};
use super::table::{self, Way};
use super::{ledger, names};
use crate::error::{Error, Result};
use crate::keys::Fate;
use crate::kinds::Type;
use crate::source;

pub(crate) struct Desk<'a> {
    pub(crate) conn: &'a Connection,
    pub(crate) place: &'a Place,
    pub(crate) control: &'a Control,
    pub(crate) options: &'a Options,
    pub(crate) names: &'a [String],
    pub(crate) files: &'a mut [FileSummary],
}

type Sql<T> = rusqlite::Result<T>;

impl Desk<'_> {
    pub(crate) fn look(&mut self, sources: &[Source]) -> Sql<Result<HashMap<usize, Known>>> {
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
