//! Runs a scan of a round and checks which files the catalog lists afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gristmill_dedup::{ScanMode, ScanSummary, roots};
use gristmill_store::catalog::Algorithm;
use gristmill_store::roots::Root;

use crate::catalog::{self, Rows};
use crate::model::{self, Files};
use crate::ops::ScanOp;
use crate::round::{Check, Failure, Known, Registered, Round, fail};
use crate::scans::{self, Child};

/// State of the catalog and the roots before a scan.
pub(crate) struct Before {
    /// All registered roots.
    pub(crate) roots: Vec<Root>,
    /// The roots that the scan covers.
    pub(crate) chosen: Vec<Root>,
    pub(crate) rows: BTreeMap<PathBuf, Rows>,
    pub(crate) hashed: BTreeMap<PathBuf, Algorithm>,
    /// Roots that the scan must refuse: the folder is missing, or is empty and had files. A scan that does not walk
    /// also refuses one on another disk than before.
    pub(crate) refused: BTreeSet<PathBuf>,
}

impl Before {
    pub(crate) fn is_chosen(&self, path: &Path) -> bool {
        self.chosen.iter().any(|root| root.path == path)
    }
}

impl Round {
    /// Scans, and checks the summary and the catalog. Returns `None` if the scan was not carried out.
    pub(crate) fn scan(&mut self, index: Option<usize>, op: &ScanOp) -> Check<Option<ScanSummary>> {
        let roots = self.roots()?;
        if let Some(names) = &op.named {
            return self.named_scan(index, op, names);
        }
        let requested = scans::chosen(op, &roots);
        if requested.is_empty() {
            return Ok(None);
        }
        let mut before = self.before(op, roots, &requested)?;
        let names: Vec<_> = before.chosen.iter().map(|root| root.name.as_str()).collect();
        self.log.push(format!("scan {} with {op:?}", names.join(" ")));
        if op.meanwhile.is_some() {
            return self.disturbed_scan(op, &requested).map(|()| None);
        }
        let summary = match index {
            Some(index) if op.kill => {
                let child = Child { seed: self.seed, mounts: self.mounts, index };
                let killed = scans::run_and_kill(&self.disk.base().join("t.db"), child);
                self.killed = true;
                self.log_detail(if killed { "was killed" } else { "ended before it was killed" });
                None
            }
            _ => match scans::run(self.store(), &requested, op, &self.disk) {
                Ok(summary) => Some(summary),
                // The only root of the scan cannot be reached.
                Err(error) if before.chosen.len() == 1 && before.refused.contains(&before.chosen[0].path) => {
                    self.log_detail(&error.to_string());
                    None
                }
                Err(error) => return fail("scan failed", error.to_string()),
            },
        };
        let ended = summary.as_ref().filter(|summary| !summary.interrupted);
        if let Some(ended) = ended.filter(|_| matches!(op.mode, ScanMode::All | ScanMode::Hash)) {
            self.summary_counts_groups(ended)?;
        }
        if let Some(summary) = &summary {
            self.log_detail(&format!(
                "interrupted {} resumed {} new {} changed {} removed {} read {} errors {:?}",
                summary.interrupted,
                summary.resumed,
                summary.new_files,
                summary.changed_files,
                summary.removed_files,
                summary.read_files,
                summary.error_samples,
            ));
        }
        before.refused.extend(ended.map(|ended| self.unmounted(op, ended)).unwrap_or_default());
        let emptied = ended.map(|ended| self.emptied(ended)).unwrap_or_default();
        let errors = (before.refused.len() + emptied.len()) as u64;
        if let Some(ended) = ended
            && ended.errors != errors
        {
            return fail("unexpected number of errors", format!("{} instead of {errors}", ended.errors));
        }
        self.update_known(op, &before, ended.is_some());
        self.update_walked(op, &before, summary.as_ref());
        for (path, registered) in &mut self.registered {
            if emptied.iter().any(|folder| folder.starts_with(path)) {
                registered.known = Known::Partly;
            }
        }
        self.no_file_is_lost(op, &before)?;
        self.files_are_listed()?;
        match ended {
            Some(_) if matches!(op.mode, ScanMode::All | ScanMode::Hash) => {
                self.groups_are_right(op.algorithm, &before.hashed)?;
                if op.mode == ScanMode::All && before.chosen.len() == before.roots.len() && before.refused.is_empty() {
                    self.listed_folders_are_equal()?;
                }
            }
            _ => self.groups_are_possible()?,
        }
        self.coverage_is_right(op, &before, summary.as_ref())?;
        self.unread_files_are_counted()?;
        if ended.is_some() && emptied.is_empty() && matches!(op.mode, ScanMode::All | ScanMode::Walk) {
            self.lists_are_right(op, &before)?;
        }
        Ok(summary)
    }

    /// Updates which roots were scanned completely. Where a scan was killed is not known.
    fn update_walked(&mut self, op: &ScanOp, before: &Before, summary: Option<&ScanSummary>) {
        let walks = matches!(op.mode, ScanMode::All | ScanMode::Walk);
        for (path, registered) in &mut self.registered {
            if !before.is_chosen(path) || !walks {
                continue;
            }
            registered.is_unfinished = summary.is_some_and(|summary| summary.interrupted);
            if summary.is_none_or(|summary| !summary.interrupted) {
                registered.was_walked |= !before.refused.contains(path);
            }
        }
    }

    /// Scans while files change or another scan runs. The result is not checked here, but by later scans.
    pub(crate) fn disturbed_scan(&mut self, op: &ScanOp, requested: &[Root]) -> Check {
        let text = match scans::run(self.store(), requested, op, &self.disk) {
            Ok(summary) => format!("interrupted {} errors {:?}", summary.interrupted, summary.error_samples),
            Err(error) => error.to_string(),
        };
        self.log_detail(&text);
        for registered in self.registered.values_mut() {
            registered.known = Known::Partly;
            (registered.was_walked, registered.is_unfinished) = (true, false);
        }
        self.unread_files_are_counted()
    }

    /// Mount points inside roots that are unmounted now: reported as errors, and their files are not marked missing.
    fn emptied(&self, summary: &ScanSummary) -> Vec<PathBuf> {
        let samples = summary.error_samples.iter();
        let folders = samples
            .filter_map(|sample| sample.split_once(": empty now").or_else(|| sample.split_once(": not on the disk")));
        let folders = folders.map(|(path, _)| PathBuf::from(path));
        folders.filter(|path| self.disk.is_inner_mount_point(path)).collect()
    }

    /// Roots whose disk is unmounted: refused, whatever their folder contains.
    fn unmounted(&self, op: &ScanOp, summary: &ScanSummary) -> Vec<PathBuf> {
        let samples = summary.error_samples.iter();
        let roots = samples.filter_map(|sample| sample.split_once(": not on the disk"));
        let roots = roots.map(|(path, _)| PathBuf::from(path));
        roots.filter(|path| !op.allow_empty && self.disk.is_unmounted_root(path)).collect()
    }

    pub(crate) fn log_detail(&mut self, text: &str) {
        self.log.push(format!("    {text}"));
    }

    pub(crate) fn before(&self, op: &ScanOp, roots: Vec<Root>, requested: &[Root]) -> Check<Before> {
        let within = |root: &&Root| requested.iter().any(|requested| root.path.starts_with(&requested.path));
        let chosen: Vec<Root> = roots.iter().filter(within).cloned().collect();
        let mut rows = BTreeMap::new();
        for root in &roots {
            rows.insert(root.path.clone(), catalog::rows(self.store(), root.id)?);
        }
        let mut refused = BTreeSet::new();
        if op.mode == ScanMode::Hash {
            let absent = roots::absent(self.store())
                .map_err(|error| Failure { kind: "roots cannot be checked", text: error.to_string() })?;
            let is_chosen = |root: &Root| chosen.iter().any(|chosen| chosen.id == root.id);
            refused.extend(absent.into_iter().filter(is_chosen).map(|root| root.path));
        }
        for root in chosen.iter().filter(|_| op.mode != ScanMode::Hash) {
            let is_empty = fs::read_dir(&root.path).is_ok_and(|mut entries| entries.next().is_none());
            let was_filled = catalog::has_entries(self.store(), root.id)?;
            if !root.path.is_dir() || is_empty && was_filled && !op.allow_empty {
                refused.insert(root.path.clone());
            }
        }
        let hashed = catalog::hashed(self.store(), &roots)?;
        Ok(Before { roots, chosen, rows, hashed, refused })
    }

    pub(crate) fn model_of(&self, path: &Path, registered: &Registered) -> Files {
        let roots: Vec<PathBuf> = self.registered.keys().cloned().collect();
        model::files(path, &registered.rules, registered.follow, &roots)
    }

    /// Updates the files that the catalog must have after a scan.
    fn update_known(&mut self, op: &ScanOp, before: &Before, ended: bool) {
        for (path, mut registered) in self.registered.clone() {
            let is_chosen = before.is_chosen(&path) && op.mode != ScanMode::Hash;
            if is_chosen && before.refused.contains(&path) {
                continue;
            }
            if is_chosen && ended && op.mode != ScanMode::Refresh {
                registered.rules = op.rules.clone();
                registered.follow = before.roots.iter().any(|root| root.path == path && root.follow_links);
                registered.known = Known::Exactly(self.model_of(&path, &registered));
            } else if is_chosen {
                registered.known = Known::Partly;
            } else if let Known::Exactly(files) = &registered.known
                && self.is_reachable(&path, files)
                && !model::is_same(files, &self.model_of(&path, &registered))
            {
                // Files of other roots are read too, and may be found changed.
                registered.known = Known::Partly;
            }
            self.registered.insert(path, registered);
        }
    }

    /// Whether the files of a root can be read now.
    pub(crate) fn is_reachable(&self, path: &Path, files: &Files) -> bool {
        path.is_dir() && (files.is_empty() || files.keys().any(|file| path.join(file).exists()))
    }

    /// Whether files of an unreachable root were also scanned in another root, because their disk is mounted there. The
    /// catalog then lists one file as two.
    pub(crate) fn was_scanned_in_another_root(&self, path: &Path, files: &Files) -> bool {
        let others = self.registered.iter().filter(|(other, _)| *other != path);
        others.filter_map(|(_, other)| if let Known::Exactly(files) = &other.known { Some(files) } else { None }).any(
            |other| other.values().any(|file| files.values().any(|own| own.has_same_inode(file) && own.links == 1)),
        )
    }

    /// Checks that only a walk of its root marks a file missing, and only if the file does not exist.
    fn no_file_is_lost(&self, op: &ScanOp, before: &Before) -> Check {
        for root in &before.roots {
            let after = catalog::rows(self.store(), root.id)?;
            let is_walked =
                before.is_chosen(&root.path) && op.mode != ScanMode::Hash && !before.refused.contains(&root.path);
            let lost = before.rows[&root.path]
                .iter()
                .filter(|(path, row)| !row.missing && after.get(*path).is_none_or(|row| row.missing));
            let lost: Vec<&PathBuf> = lost.map(|(path, _)| path).collect();
            if lost.is_empty() {
                continue;
            }
            if !is_walked {
                let text = format!("{}: {lost:?}", root.path.display());
                return fail("root that was not walked lost files", text);
            }
            let mut now = Registered { rules: op.rules.clone(), ..Registered::default() };
            now.follow = root.follow_links;
            let files = self.model_of(&root.path, &now);
            if let Some(path) = lost.iter().find(|path| files.contains_key(**path)) {
                let text = format!("{}", root.path.join(path).display());
                return fail("existing file is marked missing", text);
            }
        }
        Ok(())
    }

    /// Checks that the rows of every exactly known root are its files.
    fn files_are_listed(&self) -> Check {
        for root in self.roots()? {
            let Known::Exactly(files) = &self.registered[&root.path].known else { continue };
            let rows = catalog::rows(self.store(), root.id)?;
            let listed: BTreeMap<_, _> = rows
                .into_iter()
                .filter(|(_, row)| !row.missing && !row.excluded)
                .map(|(path, row)| (path, row.size))
                .collect();
            let expected: BTreeMap<_, _> =
                files.iter().map(|(path, file)| (path.clone(), file.bytes.len() as u64)).collect();
            if listed != expected {
                let text = format!("{}: {listed:?} instead of {expected:?}", root.path.display());
                return fail("listed files differ from the disk", text);
            }
        }
        Ok(())
    }
}
