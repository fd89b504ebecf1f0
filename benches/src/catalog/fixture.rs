//! Generated catalogs of 10^4 to 10^6 files, written through the store and kept for later runs.
//!
//! Owns the database files. `plan` decides their contents; `cache` keeps them. A catalog is generated again when the
//! schema of the store changes.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use gristmill_store::{
    Durability, Store,
    catalog::Batch,
    scans::{Duplicates, FinishedScan, Scan, ScanRequest, ScanScope, ScanTotals, WalkRecord},
};
use sha2::{Digest, Sha256};

use super::plan::Plan;
use crate::{cache, scratch::Scratch};

/// Start of a metadata file.
const SIGNATURE: &str = "gristmill-bench catalog";

/// Changes when the same settings generate another catalog.
const VERSION: u32 = 1;

const DATABASE: &str = "gristmill.db";

/// Files in a transaction, as in that of a scan.
const FILES_PER_BATCH: usize = 2_000;

const HOLDER: &str = "gristmill-bench";

/// A complete catalog on disk.
pub(crate) struct Fixture {
    folder: PathBuf,
    pub(crate) files: u64,
    pub(crate) duplicates: Duplicates,
}

impl Fixture {
    /// Returns the catalog in `data`, which is generated if it is missing.
    pub(crate) fn get(files: u64, seed: u64, data: &Path) -> Result<Fixture, String> {
        fs::create_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
        let folder = data.join(format!("catalog-{files}"));
        let title = format!("{SIGNATURE} {VERSION}: {files} files, seed {seed}, schema {}", schema(data)?);
        let duplicates = cache::get_or_make(&folder, SIGNATURE, &title, read, |folder| {
            let Duplicates { groups, files, reclaimable } = write(files, seed, folder).map_err(io::Error::other)?;
            Ok(format!("{groups} groups, {files} files, {reclaimable} bytes\n"))
        })?;
        Ok(Fixture { folder, files, duplicates })
    }

    /// Copies the database into a folder, so that the kept one does not change. Returns the path of the copy.
    pub(crate) fn copy_to(&self, folder: &Path) -> Result<PathBuf, String> {
        let copy = folder.join(DATABASE);
        fs::copy(self.folder.join(DATABASE), &copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        Ok(copy)
    }
}

fn read(metadata: &str) -> Option<Duplicates> {
    let mut numbers = metadata.split_whitespace().filter_map(|word| word.parse().ok());
    Some(Duplicates { groups: numbers.next()?, files: numbers.next()?, reclaimable: numbers.next()? })
}

fn write(files: u64, seed: u64, folder: &Path) -> Result<Duplicates, String> {
    let root = folder.join("root");
    fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let context = |error: gristmill_store::Error| format!("{}: {error}", folder.join(DATABASE).display());
    // A power cut may lose the catalog; the metadata file then does not exist.
    let store = Store::options().durability(Durability::Normal).open(folder.join(DATABASE)).map_err(context)?;
    let plan = Plan::new(files, seed);
    let root = store.roots().register(&root).map_err(context)?.id;
    let scan = begin_scan(&store, root).map_err(context)?;
    let mut totals = ScanTotals::default();
    let mut batch = Batch::default();
    let mut weight = 0;
    for (number, listing) in (0..).zip(plan.listings(scan.id, root)) {
        totals.folders += 1;
        totals.files += listing.new_files.len() as u64;
        totals.bytes += listing.new_files.iter().map(|(_, stat)| stat.size).sum::<u64>();
        weight += listing.weight();
        batch.listings.push((number, listing));
        if weight >= FILES_PER_BATCH {
            store.catalog().write(std::mem::take(&mut batch)).map_err(context)?;
            weight = 0;
        }
    }
    store.catalog().write(batch).map_err(context)?;
    let finished = FinishedScan { id: scan.id, root, totals, walk: Some(WalkRecord::default()) };
    // As at the end of a scan.
    store.catalog().refresh_groups().map_err(context)?;
    store.scans().finish(vec![finished], HOLDER, Some(("blake3", plan.duplicates))).map_err(context)?;
    Ok(plan.duplicates)
}

pub(crate) fn begin_scan(store: &Store, root: i64) -> gristmill_store::Result<Scan> {
    let holder = HOLDER.to_owned();
    let request = ScanRequest {
        root,
        holder,
        settings: String::new(),
        scope: ScanScope::default(),
        restart: true,
        is_alive: |_| Some(false),
    };
    store.scans().begin(request)
}

/// Returns the beginning of a hash of the schema that the store creates.
fn schema(data: &Path) -> Result<String, String> {
    let scratch = Scratch::new(data)?;
    let path = scratch.path().join(DATABASE);
    drop(Store::open(&path).map_err(|error| error.to_string())?);
    let read = || -> rusqlite::Result<String> {
        let sql = "SELECT coalesce(group_concat(sql, ';'), '') FROM (SELECT sql FROM sqlite_schema ORDER BY name)";
        rusqlite::Connection::open(&path)?.query_row(sql, [], |row| row.get(0))
    };
    let text = read().map_err(|error| format!("{}: {error}", path.display()))?;
    let hash = Sha256::digest(text.as_bytes());
    Ok(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use gristmill_store::catalog::GroupQuery;

    use super::*;

    #[test]
    fn store_finds_the_planned_groups_and_the_catalog_is_kept() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let fixture = Fixture::get(2_000, 5, scratch.path()).unwrap();
        let store = Store::open(fixture.folder.join(DATABASE)).unwrap();
        let groups = store.catalog().groups(&GroupQuery::default()).unwrap();
        let Duplicates { groups: total, files, reclaimable } = fixture.duplicates;
        assert!(total > 50, "{total}");
        assert_eq!((groups.total, groups.files, groups.reclaimable), (total, files, reclaimable));
        let root = &store.roots().list().unwrap()[0];
        assert_eq!((root.files, root.path.is_dir()), (Some(2_000), true));
        assert!(store.catalog().unscanned(root.id).unwrap().is_empty());
        assert!(store.scans().is_fully_compared(&[]).unwrap());

        fs::write(fixture.folder.join("marker"), "").unwrap();
        assert_eq!(Fixture::get(2_000, 5, scratch.path()).unwrap().duplicates, fixture.duplicates);
        assert!(fixture.folder.join("marker").exists(), "the catalog was generated again");
    }
}
