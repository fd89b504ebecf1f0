//! A scan of a round: what the catalog must know of each root after it, and which files it must list.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gristmill_dedup::{ScanMode, ScanSummary};
use gristmill_store::catalog::Algorithm;
use gristmill_store::roots::Root;

use crate::catalog::{self, Rows};
use crate::model::{self, Files};
use crate::ops::ScanOp;
use crate::round::{Check, Known, Registered, Round, fail};
use crate::scans::{self, Child};

/// The catalog and the roots before a scan.
pub(crate) struct Before {
    /// All roots.
    pub(crate) roots: Vec<Root>,
    /// Those that the scan is of.
    pub(crate) chosen: Vec<Root>,
    rows: BTreeMap<PathBuf, Rows>,
    hashed: BTreeMap<PathBuf, Algorithm>,
    /// Roots that a scan must refuse: there is no folder, or an empty one that was not empty.
    refused: BTreeSet<PathBuf>,
}

impl Before {
    fn is_chosen(&self, path: &Path) -> bool {
        self.chosen.iter().any(|root| root.path == path)
    }
}

impl Round {
    /// Scans, and checks what it says and what the catalog says after it. None when it was not carried out.
    pub(crate) fn scan(&mut self, index: Option<usize>, op: &ScanOp) -> Check<Option<ScanSummary>> {
        let roots = self.roots()?;
        let wanted = scans::chosen(op, &roots);
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut before = self.before(op, roots, &wanted)?;
        let names: Vec<_> = before.chosen.iter().map(|root| root.name.as_str()).collect();
        self.log.push(format!("scan {} with {op:?}", names.join(" ")));
        if op.meanwhile.is_some() {
            return self.disturbed_scan(op, &wanted).map(|()| None);
        }
        let summary = match index {
            Some(index) if op.kill => {
                let child = Child { seed: self.seed, mounts: self.mounts, index };
                let killed = scans::run_and_kill(&self.disk.base().join("t.db"), child);
                self.killed = true;
                self.note(if killed { "was killed" } else { "ended before it was killed" });
                None
            }
            _ => match scans::run(self.store(), &wanted, op, &self.disk) {
                Ok(summary) => Some(summary),
                // All that it was to scan is not there.
                Err(error) if before.chosen.len() == 1 && before.refused.contains(&before.chosen[0].path) => {
                    self.note(&error.to_string());
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
            self.note(&format!(
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
        let refused = if op.mode == ScanMode::Hash { 0 } else { before.refused.len() };
        let errors = (refused + emptied.len()) as u64;
        if let Some(ended) = ended
            && ended.errors != errors
        {
            return fail("unexpected number of errors", format!("{} instead of {errors}", ended.errors));
        }
        self.learn(op, &before, ended.is_some());
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
                if op.mode == ScanMode::All
                    && before.chosen.len() == before.roots.len()
                    && before.refused.is_empty()
                {
                    self.listed_folders_are_equal()?;
                }
            }
            _ => self.groups_are_possible()?,
        }
        self.coverage_is_right(op, &before, summary.as_ref())?;
        self.unread_files_are_counted()?;
        Ok(summary)
    }

    /// A scan of a tree that changes meanwhile, or beside another scan. What it finds is not checked; later scans must.
    fn disturbed_scan(&mut self, op: &ScanOp, wanted: &[Root]) -> Check {
        let text = match scans::run(self.store(), wanted, op, &self.disk) {
            Ok(summary) => format!("interrupted {} errors {:?}", summary.interrupted, summary.error_samples),
            Err(error) => error.to_string(),
        };
        self.note(&text);
        for registered in self.registered.values_mut() {
            registered.known = Known::Partly;
        }
        self.unread_files_are_counted()
    }

    /// Folders inside roots that a disk was mounted on and that are empty now: an error, and nothing in them is gone.
    fn emptied(&self, summary: &ScanSummary) -> Vec<PathBuf> {
        let samples = summary.error_samples.iter();
        let folders = samples.filter_map(|sample| {
            sample.split_once(": empty now").or_else(|| sample.split_once(": not on the disk"))
        });
        let folders = folders.map(|(path, _)| PathBuf::from(path));
        folders.filter(|path| self.disk.is_inner_mount_point(path)).collect()
    }

    /// Roots that a disk was mounted on and that are on their parent's filesystem now: refused, whatever is in them.
    fn unmounted(&self, op: &ScanOp, summary: &ScanSummary) -> Vec<PathBuf> {
        let samples = summary.error_samples.iter();
        let roots = samples.filter_map(|sample| sample.split_once(": not on the disk"));
        let roots = roots.map(|(path, _)| PathBuf::from(path));
        roots.filter(|path| !op.allow_empty && self.disk.is_unmounted_root(path)).collect()
    }

    fn note(&mut self, text: &str) {
        self.log.push(format!("    {text}"));
    }

    fn before(&self, op: &ScanOp, roots: Vec<Root>, wanted: &[Root]) -> Check<Before> {
        let within = |root: &&Root| wanted.iter().any(|wanted| root.path.starts_with(&wanted.path));
        let chosen: Vec<Root> = roots.iter().filter(within).cloned().collect();
        let mut rows = BTreeMap::new();
        for root in &roots {
            rows.insert(root.path.clone(), catalog::rows(self.store(), root.id)?);
        }
        let mut refused = BTreeSet::new();
        for root in &chosen {
            let is_empty = fs::read_dir(&root.path).is_ok_and(|mut entries| entries.next().is_none());
            let was_filled = catalog::had_any(self.store(), root.id)?;
            if !root.path.is_dir() || is_empty && was_filled && !op.allow_empty {
                refused.insert(root.path.clone());
            }
        }
        let hashed = catalog::hashed(self.store(), &roots)?;
        Ok(Before { roots, chosen, rows, hashed, refused })
    }

    fn model_of(&self, path: &Path, registered: &Registered) -> Files {
        let roots: Vec<PathBuf> = self.registered.keys().cloned().collect();
        model::files(path, &registered.rules, registered.follow, &roots)
    }

    /// What the catalog must know after a scan.
    fn learn(&mut self, op: &ScanOp, before: &Before, ended: bool) {
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
                && self.is_there(&path, files)
                && !model::is_same(files, &self.model_of(&path, &registered))
            {
                // Files of other roots are read, too, and may be found changed.
                registered.known = Known::Partly;
            }
            self.registered.insert(path, registered);
        }
    }

    /// Whether the files of a root can be read now.
    pub(crate) fn is_there(&self, path: &Path, files: &Files) -> bool {
        path.is_dir() && (files.is_empty() || files.keys().any(|file| path.join(file).exists()))
    }

    /// Whether a disk that is not where its root is was scanned in another one: files that are one are listed as two.
    pub(crate) fn was_scanned_in_another_root(&self, path: &Path, files: &Files) -> bool {
        let others = self.registered.iter().filter(|(other, _)| *other != path);
        others
            .filter_map(
                |(_, other)| if let Known::Exactly(files) = &other.known { Some(files) } else { None },
            )
            .any(|other| {
                other
                    .values()
                    .any(|file| files.values().any(|own| own.has_same_inode(file) && own.links == 1))
            })
    }

    /// A file is marked missing only by a walk of its root, and only if it is not there.
    fn no_file_is_lost(&self, op: &ScanOp, before: &Before) -> Check {
        for root in &before.roots {
            let after = catalog::rows(self.store(), root.id)?;
            let is_walked = before.is_chosen(&root.path)
                && op.mode != ScanMode::Hash
                && !before.refused.contains(&root.path);
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

    /// The rows of every root that is known exactly are its files.
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
