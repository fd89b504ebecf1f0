//! Reading while walking.
//!
//! Owns which small files are read at once: new ones of a size that another new file has, too. They are duplicates
//! as likely as any that a plan would find, their folder is open, and their inodes are still in memory. On a tree
//! that is scanned for the first time this is most of the reading; it goes on while the catalog is written, and on a
//! cold disk the walk and the reading wait for it together. What it passes over, the plan finds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gristmill_store::catalog::{Algorithm, FileRef, Finding, Reading, Stat};

use crate::progress::{Control, add};
use crate::read::{self, Goal, SMALL};
use crate::reader::{Budget, Paced};
use crate::sys::Folder;

/// A lock for each of so many parts.
const PARTS: usize = 64;

/// A new file that can be read when its row is on its way.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// Its root, open, and whether links are followed there.
    pub(crate) top: Arc<Folder>,
    pub(crate) follow: bool,
    /// Its folder's path in the root.
    pub(crate) folder: Arc<Path>,
    pub(crate) name: OsString,
    pub(crate) stat: Stat,
    pub(crate) file: FileRef,
}

/// What is known of a size: its only file so far, or that there are several. There are as many sizes as a small file can
/// have.
type Sizes = HashMap<u64, Option<Fresh>>;

pub(crate) struct Eager {
    pub(crate) algorithm: Algorithm,
    /// Read all, whatever their size.
    pub(crate) every: bool,
    pub(crate) control: Arc<Control>,
    pub(crate) budget: Arc<Budget>,
    parts: Vec<Mutex<Sizes>>,
}

impl Eager {
    pub(crate) fn new(algorithm: Algorithm, every: bool, control: Arc<Control>, budget: Arc<Budget>) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::default()).collect();
        Eager { algorithm, every, control, budget, parts }
    }

    /// Takes a new file, and gives back what is to be read now: nothing, the file, or the file and the one before.
    pub(crate) fn meet(&self, fresh: Fresh) -> (Option<Fresh>, Option<Fresh>) {
        let size = fresh.stat.size;
        if size == 0 || size > SMALL {
            return (None, None);
        }
        if self.every {
            return (Some(fresh), None);
        }
        let part = (size as usize) % PARTS;
        let Some(sizes) = self.parts.get(part) else { return (None, None) };
        let mut sizes = sizes.lock().unwrap_or_else(PoisonError::into_inner);
        match sizes.entry(size) {
            Entry::Occupied(mut known) => (Some(fresh), known.get_mut().take()),
            Entry::Vacant(vacant) => {
                vacant.insert(Some(fresh));
                (None, None)
            }
        }
    }

    /// Reads a file. Nothing when the scan is to stop, or it cannot be read.
    pub(crate) fn read(&self, folder: &Folder, fresh: &Fresh) -> Option<Reading> {
        let pace = Paced { control: &self.control, budget: &self.budget };
        let Fresh { name, stat, file, .. } = fresh;
        let goal = Goal::Content(self.algorithm);
        add(&self.control.to_read, 1);
        add(&self.control.bytes_to_read, stat.size);
        let (found, finding) = read::file(|| folder.file(name), stat, goal, &pace)?;
        // What cannot be read now, the plan tries once more, and records.
        if matches!(finding, Finding::Failed(_)) {
            return None;
        }
        add(&self.control.read, u64::from(finding != Finding::Gone));
        add(&self.control.read_through, u64::from(matches!(finding, Finding::Content(..))));
        let differs = found != *stat;
        if differs || finding == Finding::Gone {
            add(&self.control.surprises, 1);
        }
        Some(Reading { file: *file, stat: found, finding, shared: false, differs })
    }
}
