//! A generated folder of JSONL files with the expected contents of its database. `dataset` lists the files; `cache`
//! keeps the folder for later runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rayon::prelude::*;

use super::{dataset::FILES, expected::Expected, phrases::PhrasePools};
use crate::cache;

/// Start of a metadata file.
const SIGNATURE: &str = "gristmill-bench jsonl";

/// Changes when the same settings generate another folder or other metadata.
const VERSION: u32 = 2;

/// A complete folder on disk.
pub(super) struct Folder {
    /// Absolute path of the folder.
    pub(super) root: PathBuf,
    pub(super) scale: f64,
    pub(super) bytes: u64,
    pub(super) expected: Expected,
}

impl Folder {
    /// Returns the folder in `data`, which is generated if it is missing.
    pub(super) fn get(scale: f64, seed: u64, data: &Path) -> Result<Folder, String> {
        let root = data.join(format!("jsonl-x{scale}"));
        let title = format!("{SIGNATURE} {VERSION}: scale {scale}, seed {seed}");
        let (bytes, expected) = cache::get_or_make(&root, SIGNATURE, &title, read, |root| {
            let bytes = write(scale, seed, root)?;
            Ok(format!("{bytes} bytes\n{}", Expected::read(root)?.to_text()))
        })?;
        Ok(Folder { root, scale, bytes, expected })
    }
}

/// Parses a metadata file: number of bytes and expected digests.
fn read(metadata: &str) -> Option<(u64, Expected)> {
    let (bytes, expected) = metadata.split_once(" bytes\n")?;
    Some((bytes.parse().ok()?, Expected::from_text(expected)?))
}

/// Writes the files and returns their total size in bytes.
fn write(scale: f64, seed: u64, root: &Path) -> io::Result<u64> {
    let pools = PhrasePools::new(seed);
    let write = |file: &super::file::File| {
        let path = root.join(format!("{}.jsonl", file.name));
        file.write(scale, seed, &pools, &mut fs::File::create_new(&path)?)?;
        Ok(fs::metadata(&path)?.len())
    };
    // One file at a time: the large files are at the end and must not all be given to one thread.
    FILES.par_iter().with_max_len(1).map(write).sum()
}
