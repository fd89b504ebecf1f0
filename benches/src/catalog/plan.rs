//! Contents of a generated catalog: which files it has and which of them are equal.
//!
//! Owns names, sizes and hashes, which follow from the seed. A fifth of the files is in groups of two to five: half of
//! those files in copied folders, of which half are identical and half share 30 of their 40 files; the others anywhere.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use fastrand::Rng;
use gristmill_store::{
    catalog::{Algorithm, Digest, FolderRef, Listing, ListingStatus, Stat},
    scans::Duplicates,
};

use crate::random;

pub(super) const FILES_PER_FOLDER: u64 = 40;

/// Files at the beginning of a similar folder that its copies have too.
const SHARED_PER_FOLDER: u64 = 30;

/// Modification time of the first file, in nanoseconds since 1970.
const FIRST_MODIFIED: i64 = 1_600_000_000_000_000_000;

/// Streams of random numbers for sizes and hashes: of groups, and of files without a duplicate.
const CHOICES: u64 = u64::MAX;
const GROUPS: u64 = 1 << 40;
const SINGLES: u64 = 2 << 40;

const PLACES: [&str; 6] = ["Documents", "Pictures", "Projects", "Backup of the laptop", "Music", "Archive"];
const TOPICS: [&str; 7] = ["invoices", "holiday", "website", "measurements", "recordings", "reports", "scans"];
const STEMS: [&str; 8] = ["IMG", "draft", "summary", "track", "index", "figure", "letter to the office", "export"];
const EXTENSIONS: [&str; 9] = ["jpg", "pdf", "txt", "mp3", "html", "png", "docx", "json", "csv"];

/// The files of a catalog.
pub(super) struct Plan {
    seed: u64,
    files: u64,
    /// Group of each file.
    groups: Vec<Option<u32>>,
    pub(super) duplicates: Duplicates,
}

impl Plan {
    pub(super) fn new(files: u64, seed: u64) -> Plan {
        let choices = &mut random::stream(seed, CHOICES);
        let mut plan = Plan { seed, files, groups: vec![None; files as usize], duplicates: Duplicates::default() };
        let duplicates = files / 5;
        let mut folders: Vec<u64> = (0..files / FILES_PER_FOLDER).collect();
        choices.shuffle(&mut folders);
        for shared in [FILES_PER_FOLDER, SHARED_PER_FOLDER].into_iter().cycle() {
            if plan.duplicates.files >= duplicates / 2 {
                break;
            }
            let copies = copies(choices).min(folders.len());
            let copied = folders.split_off(folders.len() - copies);
            if copies < 2 {
                break;
            }
            for nth in 0..shared {
                plan.add_group(copied.iter().map(|folder| folder * FILES_PER_FOLDER + nth));
            }
        }
        let mut rest: Vec<u64> = (0..files).filter(|file| plan.groups[*file as usize].is_none()).collect();
        choices.shuffle(&mut rest);
        while plan.duplicates.files < duplicates {
            let copies = copies(choices).min(rest.len());
            if copies < 2 {
                break;
            }
            plan.add_group(rest.split_off(rest.len() - copies).into_iter());
        }
        plan
    }

    fn add_group(&mut self, files: impl ExactSizeIterator<Item = u64>) {
        let (group, copies) = (self.duplicates.groups, files.len() as u64);
        self.duplicates.groups += 1;
        self.duplicates.files += copies;
        self.duplicates.reclaimable += self.stat(GROUPS + group, 0).allocated * (copies - 1);
        files.for_each(|file| self.groups[file as usize] = Some(group as u32));
    }

    /// Returns the listing of every folder, parents before their subfolders.
    pub(super) fn listings(&self, scan: i64, root: i64) -> impl Iterator<Item = Listing> {
        (0..self.files.div_ceil(FILES_PER_FOLDER)).flat_map(move |folder| {
            let path = folder_path(folder);
            let is_new = |path: &&Path| folder == 0 || !folder_path(folder - 1).starts_with(path);
            let mut parents: Vec<PathBuf> =
                path.ancestors().skip(1).take_while(is_new).map(Path::to_path_buf).collect();
            parents.reverse();
            let whole = move |path| Listing {
                status: ListingStatus::Whole,
                ..Listing::new(scan, FolderRef { root, id: None, path })
            };
            let mut listing = whole(path);
            for file in (folder * FILES_PER_FOLDER..self.files).take(FILES_PER_FOLDER as usize) {
                self.add_file(file, &mut listing);
            }
            parents.into_iter().map(whole).chain([listing])
        })
    }

    fn add_file(&self, file: u64, listing: &mut Listing) {
        let group = self.groups[file as usize];
        let stream = group.map_or(SINGLES + file, |group| GROUPS + u64::from(group));
        // Of the files without a duplicate, one in ten was read.
        let digest = match group {
            Some(_) => Some(Digest::shared(Algorithm::Blake3, self.hash(stream))),
            None if file.is_multiple_of(10) => Some(Digest::unshared(Algorithm::Blake3, self.hash(stream))),
            None => None,
        };
        listing.contents.extend(digest.map(|digest| (listing.new_files.len() as u32, digest)));
        listing.new_files.push((file_name(file), self.stat(stream, file)));
    }

    fn hash(&self, stream: u64) -> Vec<u8> {
        hash(&mut random::stream(self.seed, stream))
    }

    fn stat(&self, stream: u64, file: u64) -> Stat {
        stat(&mut random::stream(self.seed, stream), file)
    }
}

/// Returns the number of copies of a content.
fn copies(choices: &mut Rng) -> usize {
    choices.usize(2..6)
}

pub(super) fn hash(random: &mut Rng) -> Vec<u8> {
    let mut hash = vec![0; 32];
    random.fill(&mut hash);
    hash
}

/// Returns the metadata of a file with a random size: half of them up to 8 KB, a few above 100 MB.
pub(super) fn stat(random: &mut Rng, file: u64) -> Stat {
    let size = (9.0 + 2.6 * random::normal(random)).exp().clamp(1.0, 4e9) as u64;
    let modified = FIRST_MODIFIED + file as i64 * 1_000_000_007;
    let times = Stat { mtime_ns: modified, ctime_ns: modified, ..Stat::default() };
    Stat { size, allocated: size.next_multiple_of(4_096), inode: file + 1_000, device: 7, ..times }
}

fn folder_path(folder: u64) -> PathBuf {
    let (year, topic) = (folder / 400, folder / 20);
    let [place, topic_name] = [PLACES[year as usize % PLACES.len()], TOPICS[topic as usize % TOPICS.len()]];
    [format!("{place} {year:03}"), format!("{topic_name} {:02}", topic % 20), format!("part-{:02}", folder % 20)]
        .iter()
        .collect()
}

pub(super) fn file_name(file: u64) -> OsString {
    let [stem, extension] = [STEMS[file as usize / 3 % STEMS.len()], EXTENSIONS[file as usize % EXTENSIONS.len()]];
    format!("{stem}_{file:07}.{extension}").into()
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn groups_match_the_listed_files() {
        let plan = Plan::new(5_010, 3);
        let listings: Vec<Listing> = plan.listings(1, 1).collect();
        let files: Vec<_> = listings.iter().flat_map(|listing| &listing.new_files).collect();
        assert_eq!(files.len(), 5_010);
        let folders: HashSet<_> = listings.iter().map(|listing| &listing.folder.path).collect();
        assert_eq!(folders.len(), listings.len(), "a folder is listed twice");
        assert!(folders.iter().all(|path| path.parent().is_none_or(|parent| folders.contains(&parent.to_path_buf()))));

        let mut equal: HashMap<&[u8], Vec<Stat>> = HashMap::new();
        for listing in &listings {
            for (nth, digest) in &listing.contents {
                equal.entry(&digest.hash).or_default().push(listing.new_files[*nth as usize].1);
            }
        }
        let groups: Vec<_> = equal.into_values().filter(|stats| stats.len() > 1).collect();
        assert!(groups.iter().all(|stats| stats.len() <= 5 && stats.iter().all(|stat| stat.size == stats[0].size)));
        let reclaimable = groups.iter().map(|stats| stats[0].allocated * (stats.len() as u64 - 1)).sum();
        let files = groups.iter().map(|stats| stats.len() as u64).sum();
        assert_eq!(Duplicates { groups: groups.len() as u64, files, reclaimable }, plan.duplicates);
        assert!((1_000..1_010).contains(&files), "{files}");

        let contents = |listing: &Listing| listing.contents.iter().map(|(_, digest)| digest.hash.clone()).collect();
        let folders: Vec<HashSet<Vec<u8>>> = listings.iter().map(contents).collect();
        let is_copied = |folder: &&HashSet<Vec<u8>>| folder.len() == FILES_PER_FOLDER as usize;
        let copies = |folder: &HashSet<Vec<u8>>| folders.iter().filter(|other| *other == folder).count();
        let identical = folders.iter().filter(is_copied).filter(|folder| copies(folder) > 1).count();
        assert!(identical >= 2, "{identical} identical folders");
    }
}
