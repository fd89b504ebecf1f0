//! A folder of JSONL files, with what is true of it. The files come from `dataset`, `cache` makes them once.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use super::{dataset::FILES, expected::Expected, phrases::PhrasePools};
use crate::cache;

/// The first words of a note; the number changes when the same settings would make another folder, or another note.
const SIGNATURE: &str = "gristmill-bench jsonl 1";

/// A folder that is there, whole.
pub(super) struct Folder {
    /// Absolute.
    pub(super) root: PathBuf,
    pub(super) scale: f64,
    pub(super) bytes: u64,
    pub(super) expected: Expected,
}

impl Folder {
    /// The folder in `data`, made if it is not there.
    pub(super) fn get(scale: f64, seed: u64, data: &Path) -> Result<Folder, String> {
        let root = data.join(format!("jsonl-x{scale}"));
        let title = format!("{SIGNATURE}: scale {scale}, seed {seed}");
        let (bytes, expected) = cache::get_or_make(&root, SIGNATURE, &title, read, |root| {
            let bytes = write(scale, seed, root)?;
            Ok(format!("{bytes} bytes\n{}", Expected::read(root)?.to_text()))
        })?;
        Ok(Folder { root, scale, bytes, expected })
    }

    pub(super) fn megabytes(&self) -> f64 {
        self.bytes as f64 / 1e6
    }
}

/// What a note says.
fn read(note: &str) -> Option<(u64, Expected)> {
    let (bytes, expected) = note.split_once(" bytes\n")?;
    Some((bytes.parse().ok()?, Expected::from_text(expected)?))
}

/// Writes the files, and says how many bytes they have.
fn write(scale: f64, seed: u64, root: &Path) -> io::Result<u64> {
    let pools = PhrasePools::new(seed);
    let write = |file: &super::file::File| {
        let path = root.join(format!("{}.jsonl", file.name));
        file.write(scale, seed, &pools, &mut fs::File::create_new(&path)?)?;
        Ok(fs::metadata(&path)?.len())
    };
    // One by one as threads come free: the large files are at the end, and not all in one thread's half.
    FILES.par_iter().with_max_len(1).map(write).sum()
}
