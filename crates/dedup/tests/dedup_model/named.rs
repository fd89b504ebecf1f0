//! Checks scans of named files: each named file has the state that it has on the disk, and no other row changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gristmill_dedup::{ScanMode, ScanSummary};
use gristmill_store::roots::Root;

use crate::catalog::{self, FileRow, Rows};
use crate::expect::Before;
use crate::model::{self, Files};
use crate::ops::{Location, ScanOp};
use crate::round::{Check, Known, Registered, Round, fail};
use crate::rules::Rules;
use crate::scans::{self, Child};

/// The named files of one root.
struct Names<'a> {
    root: &'a Root,
    rules: &'a Rules,
    /// Paths relative to the root.
    paths: BTreeSet<PathBuf>,
    /// The files of the root that match the filters of the scan.
    files: Files,
}

impl Names<'_> {
    fn excludes_folder_of(&self, path: &Path) -> bool {
        path.parent().is_some_and(|folder| self.rules.excludes_folder(&self.root.path, folder))
    }
}

impl Round {
    pub(crate) fn named_scan(
        &mut self,
        index: Option<usize>,
        op: &ScanOp,
        locations: &[Location],
    ) -> Check<Option<ScanSummary>> {
        let roots = self.roots()?;
        let before = self.before(op, roots.clone(), &[])?;
        let paths: Vec<PathBuf> = locations.iter().map(|at| at.path(self.disk.base())).collect();
        self.log.push(format!("scan files {paths:?} with {op:?}"));
        if op.meanwhile.is_some() {
            return self.disturbed_scan(op, &[]).map(|()| None);
        }
        // A name without a folder has no root.
        let found: BTreeSet<PathBuf> = paths.iter().filter_map(|path| resolved(path)).collect();
        let names: Vec<Names<'_>> = roots.iter().map(|root| self.names_of(root, &roots, &found, op)).collect();
        let is_refused = |names: &&Names<'_>| !names.paths.is_empty() && self.is_unreachable(op, names.root, &before);
        let refused: BTreeSet<PathBuf> = names.iter().filter(is_refused).map(|names| names.root.path.clone()).collect();
        let summary = match index {
            Some(index) if op.kill => {
                let child = Child { seed: self.seed, mounts: self.mounts, index };
                let killed = scans::run_and_kill(&self.disk.base().join("t.db"), child);
                self.killed = true;
                self.log_detail(if killed { "was killed" } else { "ended before it was killed" });
                None
            }
            _ => match scans::run(self.store(), &[], op, &self.disk) {
                Ok(summary) => Some(summary),
                Err(error) if !refused.is_empty() || self.disk.has_changed => {
                    self.log_detail(&error.to_string());
                    None
                }
                Err(error) => return fail("scan failed", error.to_string()),
            },
        };
        let ended = summary.as_ref().filter(|summary| !summary.interrupted);
        let mut errors = paths.iter().filter(|path| resolved(path).is_none()).collect::<BTreeSet<_>>().len();
        errors += found.iter().filter(|path| !roots.iter().any(|root| path.starts_with(&root.path))).count();
        for names in &names {
            let rows = catalog::rows(self.store(), names.root.id)?;
            let earlier = &before.rows[&names.root.path];
            rows_of_others_are_unchanged(names, earlier, &rows)?;
            if ended.is_some() && !refused.contains(&names.root.path) {
                errors += self.named_rows_are_right(names, earlier, &rows)?;
            }
        }
        self.update_named(&names, ended.is_some(), &rows_after(self, &roots)?);
        if let Some(ended) = ended {
            let follows = roots.iter().any(|root| root.follow_links);
            if !self.disk.has_changed && refused.is_empty() && !follows && ended.errors != errors as u64 {
                return fail("unexpected number of errors", format!("{ended:?} instead of {errors}"));
            }
            if op.mode == ScanMode::All && !ended.roots.is_empty() {
                self.summary_counts_groups(ended)?;
                self.groups_are_right(op.algorithm, &before.hashed)?;
            }
        }
        // A scan without roots changes nothing, so it cannot leave anything unfinished.
        let effective = summary.as_ref().filter(|summary| !summary.roots.is_empty());
        self.coverage_is_right(op, &before, effective)?;
        self.unread_files_are_counted()?;
        Ok(None)
    }

    fn names_of<'a>(&self, root: &'a Root, roots: &[Root], found: &BTreeSet<PathBuf>, op: &'a ScanOp) -> Names<'a> {
        let innermost = |path: &Path| {
            let around = roots.iter().filter(|root| path.parent().is_some_and(|folder| folder.starts_with(&root.path)));
            around.max_by_key(|root| root.path.as_os_str().len()).map(|root| root.id)
        };
        let own = found.iter().filter(|path| innermost(path) == Some(root.id));
        let paths = own.filter_map(|path| Some(path.strip_prefix(&root.path).ok()?.to_path_buf())).collect();
        let now = Registered { rules: op.rules.clone(), ..Registered::default() };
        Names { root, rules: &op.rules, paths, files: self.model_of(&root.path, &now) }
    }

    /// Whether the folder of a root is missing, or empty although it had files.
    fn is_unreachable(&self, op: &ScanOp, root: &Root, before: &Before) -> bool {
        let is_empty = fs::read_dir(&root.path).is_ok_and(|mut entries| entries.next().is_none());
        let had_files = before.rows[&root.path].values().any(|row| !row.missing);
        !root.path.is_dir() || is_empty && had_files && !op.allow_empty
    }

    /// Checks the rows of named files. Returns the number of names that are errors.
    fn named_rows_are_right(&self, names: &Names<'_>, before: &Rows, after: &Rows) -> Check<usize> {
        let mut errors = 0;
        for path in &names.paths {
            let (earlier, now) = (before.get(path), after.get(path));
            let metadata = fs::symlink_metadata(names.root.path.join(path));
            let missing = earlier.map(|row| FileRow { missing: true, ..*row });
            let is_link = metadata.as_ref().is_ok_and(|metadata| metadata.is_symlink());
            let expected = match (&metadata, names.files.get(path)) {
                (Err(_), _) => missing,
                (Ok(found), Some(_)) if found.is_file() => {
                    Some(FileRow { size: found.len(), missing: false, excluded: false })
                }
                // Skipped.
                (Ok(found), _) if found.is_file() || is_link => earlier.copied(),
                (Ok(found), _) => {
                    let is_excluded = names.excludes_folder_of(path);
                    errors += usize::from(found.is_dir() && !is_excluded);
                    if is_excluded { earlier.copied() } else { missing }
                }
            };
            let is_excluded = metadata.is_err() && names.excludes_folder_of(path);
            errors += usize::from(metadata.is_err() && earlier.is_none() && !is_excluded);
            // A file on another disk, or behind a link that is followed, may be refused.
            let may_differ = self.disk.has_changed || is_link && names.root.follow_links;
            let is_unchanged = now == earlier && (may_differ || is_excluded);
            if now.copied() != expected && !is_unchanged && !(may_differ && is_link) {
                let text = format!("{}: {now:?} instead of {expected:?}", names.root.path.join(path).display());
                return fail("wrong row of a named file", text);
            }
        }
        Ok(errors)
    }

    /// Updates the files that the catalog must have.
    fn update_named(&mut self, names: &[Names<'_>], ended: bool, rows: &BTreeMap<PathBuf, Rows>) {
        for names in names {
            let path = &names.root.path;
            let mut registered = self.registered[path].clone();
            let is_sure = names.paths.is_empty() || ended && !self.disk.has_changed;
            if !is_sure {
                registered.known = Known::Partly;
            } else if let Known::Exactly(files) = &mut registered.known {
                let is_listed = |file: &Path| rows[path].get(file).is_some_and(|row| !row.missing && !row.excluded);
                for file in &names.paths {
                    match names.files.get(file).filter(|_| is_listed(file)) {
                        Some(version) => drop(files.insert(file.clone(), version.clone())),
                        None if !is_listed(file) => drop(files.remove(file)),
                        None => {}
                    }
                }
                let files = files.clone();
                if self.is_reachable(path, &files) && !model::is_same(&files, &self.model_of(path, &registered)) {
                    registered.known = Known::Partly;
                }
            } else if !names.paths.is_empty() {
                registered.known = Known::Partly;
            }
            self.registered.insert(path.clone(), registered);
        }
    }
}

/// Returns the path with the links of its folder resolved, or `None` if the folder does not exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    let folder = fs::canonicalize(path.parent()?).ok().filter(|folder| folder.is_dir())?;
    Some(folder.join(path.file_name()?))
}

fn rows_after(round: &Round, roots: &[Root]) -> Check<BTreeMap<PathBuf, Rows>> {
    let mut rows = BTreeMap::new();
    for root in roots {
        rows.insert(root.path.clone(), catalog::rows(round.store(), root.id)?);
    }
    Ok(rows)
}

fn rows_of_others_are_unchanged(names: &Names<'_>, before: &Rows, after: &Rows) -> Check {
    let other = |rows: &Rows| {
        let rows = rows.iter().filter(|(path, _)| !names.paths.contains(*path));
        rows.map(|(path, row)| (path.clone(), *row)).collect::<Rows>()
    };
    if other(before) != other(after) {
        let text = format!("{}: {:?} instead of {:?}", names.root.path.display(), other(after), other(before));
        return fail("scan of named files changed another row", text);
    }
    Ok(())
}
