//! Checks the lists of empty files, empty folders and broken links against a naive walk.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gristmill_dedup::lists;

use crate::expect::Before;
use crate::ops::ScanOp;
use crate::round::{Check, Failure, Known, Round, fail};
use crate::rules::{Ignores, Rules};

/// What a walk of one root finds. Paths are absolute.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    empty_files: BTreeSet<PathBuf>,
    empty_folders: BTreeSet<PathBuf>,
    broken_links: BTreeSet<PathBuf>,
}

struct Walk<'a> {
    root: &'a Path,
    rules: &'a Rules,
    roots: &'a [PathBuf],
    found: Found,
}

impl Round {
    /// Checks the lists for the roots that a complete scan has just walked. Roots that follow links are left out.
    pub(crate) fn lists_are_right(&self, op: &ScanOp, before: &Before) -> Check {
        let paths: Vec<PathBuf> = before.roots.iter().map(|root| root.path.clone()).collect();
        for root in &before.chosen {
            let Known::Exactly(_) = self.registered[&root.path].known else { continue };
            if root.follow_links || before.refused.contains(&root.path) {
                continue;
            }
            let mut walk = Walk { root: &root.path, rules: &op.rules, roots: &paths, found: Found::default() };
            walk.folder(Path::new(""), Ignores::new());
            let listed = self.listed(root.id, &root.path)?;
            if listed != walk.found {
                let text = format!("{}: {listed:?} instead of {:?}", root.path.display(), walk.found);
                return fail("lists differ from the disk", text);
            }
        }
        Ok(())
    }

    fn listed(&self, id: i64, root: &Path) -> Check<Found> {
        let failed = |error: gristmill_dedup::Error| Failure { kind: "list failed", text: error.to_string() };
        let (store, only) = (self.store(), &[id]);
        let files = lists::empty_files(store, only).map_err(failed)?;
        let folders = lists::empty_folders(store, only).map_err(failed)?;
        let links = lists::broken_links(store, only).map_err(failed)?;
        Ok(Found {
            empty_files: files.into_iter().map(|file| root.join(file.path)).collect(),
            empty_folders: folders.into_iter().map(|folder| root.join(folder.path)).collect(),
            broken_links: links.into_iter().map(|link| root.join(link.path)).collect(),
        })
    }
}

impl Walk<'_> {
    /// Returns whether a folder is empty. Only the topmost empty folders are kept.
    fn folder(&mut self, path: &Path, mut ignores: Ignores) -> bool {
        let full = self.root.join(path);
        if let Ok(line) = fs::read_to_string(full.join(".gitignore")) {
            ignores.push((path.to_path_buf(), line.trim().to_owned()));
        }
        let device = fs::metadata(self.root).map(|found| found.dev()).ok();
        // Also if the folder of that root is gone.
        let contains_root = self.roots.iter().any(|root| root != self.root && root.starts_with(&full));
        let (mut is_empty, mut empty_inside) = (!contains_root, Vec::new());
        for entry in fs::read_dir(&full).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let (path, full) = (path.join(&name), full.join(&name));
            let found = fs::symlink_metadata(&full).expect("its metadata");
            let is_elsewhere = self.rules.one_file_system && Some(found.dev()) != device;
            let is_included = self.rules.matches_folder(&path, &ignores) && !self.rules.is_too_deep(&path);
            if found.is_dir() && is_included && !is_elsewhere && !self.roots.contains(&full) {
                match self.folder(&path, ignores.clone()) {
                    true => empty_inside.push(full),
                    false => is_empty = false,
                }
                continue;
            }
            is_empty = false;
            if found.is_symlink() && self.rules.matches_file(&path, &ignores) {
                // The target does not exist, or the link leads back to itself.
                let is_broken = fs::metadata(&full).is_err_and(|error| error.kind() != ErrorKind::PermissionDenied);
                if is_broken {
                    self.found.broken_links.insert(full);
                }
            } else if found.is_file() && found.len() == 0 {
                let matches_stat = self.rules.matches_stat(0, crate::model::mtime_ns(&found));
                if matches_stat && self.rules.matches_file(&path, &ignores) {
                    self.found.empty_files.insert(full);
                }
            }
        }
        let is_root = path.as_os_str().is_empty();
        if !is_empty || is_root {
            self.found.empty_folders.extend(empty_inside);
        }
        is_empty && !is_root
    }
}
