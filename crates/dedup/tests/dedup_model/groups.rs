//! Checks the listed groups and the reported coverage.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;

use gristmill_dedup::{ScanMode, ScanSummary, coverage};
use gristmill_store::catalog::{Algorithm, GroupQuery};

use crate::catalog::{self, ListedGroup};
use crate::expect::Before;
use crate::model::{self, Groups, Version};
use crate::ops::ScanOp;
use crate::round::{Check, Failure, Known, Registered, Round, fail};

impl Round {
    /// Checks that the counts of a scan's summary equal those of the catalog.
    pub(crate) fn summary_counts_groups(&self, summary: &ScanSummary) -> Check {
        let groups = self.store().catalog().groups(&GroupQuery::default())?;
        let stated = (summary.duplicate_groups, summary.duplicate_files, summary.reclaimable_bytes);
        let found = (groups.total, groups.files, groups.reclaimable);
        if stated != found {
            return fail("summary differs from the catalog", format!("{stated:?} instead of {found:?}"));
        }
        Ok(())
    }

    /// Checks that the groups of all exactly known roots are those that a byte comparison finds. `hashed` are the files
    /// with a hash before the last scan.
    pub(crate) fn groups_are_right(&self, algorithm: Algorithm, hashed: &BTreeMap<PathBuf, Algorithm>) -> Check {
        let roots = self.roots()?;
        let mut only = Vec::new();
        let mut files: Vec<(PathBuf, &Version, String)> = Vec::new();
        let own = algorithm.as_str().to_owned();
        for root in &roots {
            let registered = &self.registered[&root.path];
            let Known::Exactly(known) = &registered.known else { continue };
            let is_reachable = self.is_reachable(&root.path, known);
            if !is_reachable && self.was_scanned_in_another_root(&root.path, known) {
                continue;
            }
            only.push(root.id);
            for (path, version) in known {
                let full = root.path.join(path);
                // A file that cannot be read now keeps its earlier hash, if any.
                let class = match hashed.get(&full) {
                    _ if is_reachable => own.clone(),
                    Some(algorithm) => algorithm.as_str().to_owned(),
                    None => format!("unread {}", full.display()),
                };
                files.push((full, version, class));
            }
        }
        if only.is_empty() {
            return Ok(());
        }
        let listed = catalog::groups(self.store(), &roots, &only)?;
        matches_the_model(&listed, &model::groups(files))
    }

    /// Checks that coverage reported as complete is complete, and that it is complete after a complete scan.
    pub(crate) fn coverage_is_right(&self, op: &ScanOp, before: &Before, summary: Option<&ScanSummary>) -> Check {
        let coverage = coverage(self.store(), &[])
            .map_err(|error| Failure { kind: "coverage failed", text: error.to_string() })?;
        for root in self.registered.keys().filter(|root| !root.is_dir()) {
            if !coverage.absent_roots.contains(root) {
                return fail("absent root is not reported", format!("{}: {coverage:?}", root.display()));
            }
        }
        if coverage.complete {
            let is_known = |registered: &Registered| registered.was_walked && !registered.is_unfinished;
            if let Some((root, _)) = self.registered.iter().find(|(_, registered)| !is_known(registered)) {
                let text = format!("{}: {coverage:?}", root.display());
                return fail("coverage is called complete without a complete scan", text);
            }
            if summary.is_some_and(|summary| summary.interrupted) {
                return fail("coverage is called complete after an unfinished scan", format!("{coverage:?}"));
            }
            // Then no file is left to compare, not even in unreachable roots.
            let mut all = BTreeMap::new();
            for (root, registered) in &self.registered {
                if let Known::Exactly(files) = &registered.known {
                    all.extend(files.keys().map(|path| (root.join(path), op.algorithm)));
                }
            }
            return self.groups_are_right(op.algorithm, &all);
        }
        let is_exact = |(path, root): (&PathBuf, &Registered)| match &root.known {
            Known::Exactly(files) => self.is_reachable(path, files),
            _ => false,
        };
        let is_read = summary.is_some_and(|summary| !summary.interrupted && summary.errors == 0);
        if is_read
            && op.mode == ScanMode::All
            && before.chosen.len() == before.roots.len()
            && self.registered.iter().all(is_exact)
        {
            return fail("coverage is called incomplete after a complete scan", format!("{coverage:?}"));
        }
        Ok(())
    }

    /// Checks that, if no file counts as unread, unchanged equal files are in one group. Applies after any scan, also a
    /// cancelled or killed one.
    pub(crate) fn unread_files_are_counted(&self) -> Check {
        let coverage = coverage(self.store(), &[])
            .map_err(|error| Failure { kind: "coverage failed", text: error.to_string() })?;
        if coverage.unread_files > 0 {
            return Ok(());
        }
        let roots = self.roots()?;
        let mut stats = BTreeMap::new();
        self.store().catalog().for_each_file(|row| {
            if row.stat.size > 0 {
                stats.insert(row.id, row.stat);
            }
            ControlFlow::Continue(())
        })?;
        let mut alike: BTreeMap<Vec<u8>, BTreeMap<PathBuf, (u64, u64)>> = BTreeMap::new();
        for file in self.store().catalog().files_at(&stats.keys().copied().collect::<Vec<_>>())? {
            let Some(root) = roots.iter().find(|root| root.id == file.root) else { continue };
            let (path, stat) = (root.path.join(&file.path), stats[&file.id]);
            let Some(inode) = model::inode_if_same(&path, &stat) else { continue };
            let Ok(bytes) = std::fs::read(&path) else { continue };
            alike.entry(bytes).or_default().insert(path, inode);
        }
        let listed = catalog::groups(self.store(), &roots, &[])?;
        for files in alike.values().filter(|files| files.values().collect::<BTreeSet<_>>().len() > 1) {
            if !listed.iter().any(|listed| files.keys().all(|path| listed.members.contains(path))) {
                return fail("unlisted duplicates are not called unread", format!("{files:?}\n{coverage:?}"));
            }
        }
        Ok(())
    }

    /// Checks that the files of each group are equal, for scans that do not compare everything.
    pub(crate) fn groups_are_possible(&self) -> Check {
        let roots = self.roots()?;
        let mut only = Vec::new();
        let mut files: BTreeMap<PathBuf, &Version> = BTreeMap::new();
        for root in &roots {
            let Known::Exactly(known) = &self.registered[&root.path].known else { continue };
            only.push(root.id);
            files.extend(known.iter().map(|(path, version)| (root.path.join(path), version)));
        }
        if only.is_empty() {
            return Ok(());
        }
        for ListedGroup { members, .. } in catalog::groups(self.store(), &roots, &only)? {
            let contents: BTreeSet<_> = members.iter().map(|path| files.get(path).map(|file| &file.bytes)).collect();
            if contents.len() > 1 || contents.contains(&None) {
                return fail("files of a listed group differ", format!("{members:?}"));
            }
        }
        Ok(())
    }
}

fn matches_the_model(listed: &[ListedGroup], expected: &Groups) -> Check {
    let members: BTreeSet<_> = listed.iter().map(|listed| &listed.members).collect();
    let expected_members: BTreeSet<_> = expected.keys().collect();
    if members != expected_members {
        let missed: Vec<_> = expected_members.difference(&members).collect();
        let extra: Vec<_> = members.difference(&expected_members).collect();
        return fail("groups differ from the model", format!("missed {missed:?}\nlisted in error {extra:?}"));
    }
    for ListedGroup { members, group } in listed {
        let alike = &expected[members];
        if group.copies != alike.copies {
            let text = format!("{members:?}: {} instead of {}", group.copies, alike.copies);
            return fail("wrong number of copies", text);
        }
        if group.reclaimable != alike.reclaimable {
            let text = format!("{members:?}: {} instead of {}", group.reclaimable, alike.reclaimable);
            return fail("wrong reclaimable bytes", text);
        }
    }
    Ok(())
}
