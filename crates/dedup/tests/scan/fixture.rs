//! Test fixture: a folder on a real disk, a store next to it, and assertions about both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileTimes};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use gristmill_dedup::{Coverage, Result, ScanHandle, ScanMode, ScanOptions, ScanSummary, coverage, roots, scan};
use gristmill_store::catalog::{Algorithm, FileRow, FolderRef, Group, GroupQuery, KnownFile, SortBy};
use gristmill_store::roots::Root;
use gristmill_store::{Durability, Store};
use tempfile::TempDir;

pub(crate) const KIB: usize = 1 << 10;
pub(crate) const MIB: usize = 1 << 20;

pub(crate) const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::Blake3, Algorithm::Sha256, Algorithm::Sha512, Algorithm::Sha3];

/// Groups of equal files, as sets of paths.
pub(crate) type GroupSet = BTreeSet<BTreeSet<PathBuf>>;

/// A root called `tree`, a store, and room for other roots next to the tree.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) store: Store,
    pub(crate) root: Root,
}

/// Returns bytes that no other seed gives.
pub(crate) fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn open(path: PathBuf) -> Store {
    Store::options().durability(Durability::Normal).open(path).expect("a store")
}

pub(crate) fn set(paths: &[&str]) -> BTreeSet<PathBuf> {
    paths.iter().map(PathBuf::from).collect()
}

pub(crate) fn sets(groups: &[&[&str]]) -> GroupSet {
    groups.iter().map(|paths| set(paths)).collect()
}

pub(crate) fn mode(mode: ScanMode) -> ScanOptions {
    options!(ScanOptions { mode })
}

/// A filesystem that is mounted until this is dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a tmpfs. Prints a note and returns `None` if that is not permitted, so that the test checks less.
    pub(crate) fn new(path: &Path) -> Option<Self> {
        Mounted::with(&["-t", "tmpfs", "-o", "size=64m"], Path::new("tmpfs"), path)
    }

    /// Mounts a disk image.
    pub(crate) fn image(image: &Path, path: &Path) -> Option<Self> {
        Mounted::with(&["-o", "loop"], image, path)
    }

    /// Bind-mounts a folder.
    pub(crate) fn bind(folder: &Path, path: &Path) -> Option<Self> {
        Mounted::with(&["--bind"], folder, path)
    }

    /// Mounts an overlay of two folders. `upper` must be empty.
    pub(crate) fn overlay(lower: &Path, upper: &Path, path: &Path) -> Option<Self> {
        let (files, work) = (upper.join("files"), upper.join("work"));
        [&files, &work].into_iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
        let [lower, upper, work] = [lower, &files, &work].map(Path::display);
        let folders = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        Mounted::with(&["-t", "overlay", "-o", &folders], Path::new("overlay"), path)
    }

    fn with(options: &[&str], source: &Path, path: &Path) -> Option<Self> {
        fs::create_dir_all(path).expect("a folder");
        match std::process::Command::new("mount").args(options).arg(source).arg(path).output() {
            Ok(output) if output.status.success() => Some(Mounted(path.to_path_buf())),
            refused => {
                eprintln!("NOT EXERCISED, because a filesystem cannot be mounted here: {refused:?}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A process that another test is starting may hold our file descriptor until it executes its program.
        let unmount = || {
            let ended = std::process::Command::new("umount").arg(&self.0).output();
            ended.is_ok_and(|output| output.status.success())
        };
        let since = std::time::Instant::now();
        while !unmount() {
            let is_late = since.elapsed() > std::time::Duration::from_secs(30);
            if is_late && !std::thread::panicking() {
                panic!("cannot unmount {}", self.0.display());
            } else if is_late {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("tree")).expect("a tree");
        let store = open(folder.path().join("t.db"));
        let path = roots::resolve(&folder.path().join("tree")).expect("a folder");
        let root = store.roots().register(&path).expect("a root");
        Fixture { folder, store, root }
    }

    /// Creates files from path, seed and size.
    pub(crate) fn of(files: &[(&str, u64, usize)]) -> Self {
        let fixture = Fixture::new();
        files.iter().for_each(|(path, seed, size)| fixture.write(path, &bytes(*seed, *size)));
        fixture
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.path.join(path)
    }

    /// A path next to the root.
    pub(crate) fn outside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.path.parent().expect("a folder").join(path)
    }

    pub(crate) fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        write(&self.at(path), bytes);
    }

    pub(crate) fn link(&self, from: &str, to: &str) {
        fs::hard_link(self.at(from), self.at(to)).expect("a hard link");
    }

    pub(crate) fn symlink(&self, target: impl AsRef<Path>, name: &str) {
        symlink(target, self.at(name)).expect("a link");
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.at(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
    }

    /// Removes a symbolic link, wherever it leads.
    pub(crate) fn remove_link(&self, path: &str) {
        fs::remove_file(self.at(path)).expect("removed");
    }

    /// Moves a folder or file out of the root, to `away`. Moving a folder does not change its files, not even their
    /// change times.
    pub(crate) fn move_away(&self, path: &str) {
        fs::create_dir_all(self.outside("away")).expect("a folder");
        fs::rename(self.at(path), self.outside("away").join(path)).expect("moved");
    }

    pub(crate) fn move_back(&self, path: &str) {
        fs::rename(self.outside("away").join(path), self.at(path)).expect("moved");
    }

    /// Registers another folder as a root, and creates it if needed.
    pub(crate) fn register(&self, path: &Path) -> Root {
        fs::create_dir_all(path).expect("a folder");
        self.store.roots().register(&roots::resolve(path).expect("a folder")).expect("a root")
    }

    #[track_caller]
    pub(crate) fn scan(&self) -> ScanSummary {
        self.scan_with(&ScanOptions::default())
    }

    #[track_caller]
    pub(crate) fn scan_with(&self, options: &ScanOptions) -> ScanSummary {
        self.scan_all(std::slice::from_ref(&self.root), options)
    }

    #[track_caller]
    pub(crate) fn scan_all(&self, roots: &[Root], options: &ScanOptions) -> ScanSummary {
        let summary = self.try_scan(roots, options, &Arc::default()).expect("a scan");
        assert!(!summary.interrupted);
        self.assert_sound();
        summary
    }

    pub(crate) fn try_scan(
        &self,
        roots: &[Root],
        options: &ScanOptions,
        handle: &Arc<ScanHandle>,
    ) -> Result<ScanSummary> {
        scan(&self.store, roots, options, handle)
    }

    /// Checks that the rows are consistent.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        for check in self.store.catalog().verify().expect("a check") {
            assert_eq!(check.broken, 0, "{}", check.name);
        }
    }

    pub(crate) fn group_list(&self) -> Vec<Group> {
        let query = GroupQuery::default().sort(SortBy::Path);
        self.store.catalog().groups(&query).expect("groups").groups
    }

    /// All groups, by paths relative to `folder`.
    pub(crate) fn groups_under(&self, folder: &Path) -> GroupSet {
        let roots = self.roots();
        let path = |root: i64, path: &Path| {
            let full = roots[&root].join(path);
            full.strip_prefix(folder).expect("inside").to_path_buf()
        };
        let members = |group: &Group| group.members.iter().map(|m| path(m.root, &m.path)).collect();
        self.group_list().iter().map(members).collect()
    }

    /// All groups, by paths relative to the tree.
    pub(crate) fn groups(&self) -> GroupSet {
        self.groups_under(&self.root.path)
    }

    #[track_caller]
    pub(crate) fn assert_groups(&self, groups: &[&[&str]]) {
        assert_eq!(self.groups(), sets(groups));
    }

    fn roots(&self) -> BTreeMap<i64, PathBuf> {
        let roots = self.store.roots().list().expect("roots");
        roots.into_iter().map(|root| (root.id, root.path)).collect()
    }

    /// Every file of a root that has a row, missing or not.
    pub(crate) fn files_of(&self, root: i64) -> BTreeMap<PathBuf, KnownFile> {
        let catalog = self.store.catalog();
        let mut next = vec![catalog.root_folder(root).expect("its root folder")];
        let mut files = BTreeMap::new();
        while let Some(folder) = next.pop() {
            let known = catalog.known_entries(&folder, true).expect("its files");
            files.extend(known.files.into_iter().map(|(name, file)| (folder.path.join(name), file)));
            next.extend(known.folders.into_iter().map(|(name, inner)| FolderRef {
                root,
                id: Some(inner.id),
                path: folder.path.join(name),
            }));
        }
        files
    }

    pub(crate) fn files(&self) -> BTreeMap<PathBuf, KnownFile> {
        self.files_of(self.root.id)
    }

    /// Files of the tree that are neither missing nor excluded in the catalog.
    pub(crate) fn present(&self) -> BTreeSet<PathBuf> {
        let is_present = |file: &KnownFile| !file.missing && !file.excluded;
        self.files().into_iter().filter(|(_, file)| is_present(file)).map(|(path, _)| path).collect()
    }

    pub(crate) fn coverage(&self) -> Coverage {
        coverage(&self.store, &[]).expect("an answer")
    }

    #[track_caller]
    pub(crate) fn assert_files(&self, paths: &[&str]) {
        assert_eq!(self.present(), set(paths));
    }

    /// Rows of all existing files, by absolute path.
    pub(crate) fn rows(&self) -> BTreeMap<PathBuf, FileRow> {
        let mut rows = Vec::new();
        let collect_row = |row: &FileRow| {
            rows.push(row.clone());
            std::ops::ControlFlow::Continue(())
        };
        self.store.catalog().for_each_file(collect_row).expect("rows");
        let roots = self.roots();
        let catalog = self.store.catalog();
        let full = |row: FileRow| {
            let at = catalog.files_at(&[row.id]).expect("a file").remove(0);
            (roots[&at.root].join(at.path), row)
        };
        rows.into_iter().map(full).collect()
    }

    #[track_caller]
    pub(crate) fn row(&self, path: &str) -> FileRow {
        self.rows().remove(&self.at(path)).unwrap_or_else(|| panic!("{path} has a row"))
    }
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
    fs::write(path, bytes).expect("a file");
}

/// Writes other bytes of the same size and restores the modification time. Only the change time differs.
pub(crate) fn rewrite_secretly(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).expect("a file");
    assert_eq!(before.len(), bytes.len() as u64);
    fs::write(path, bytes).expect("written");
    set_time(path, before.modified().expect("a time"));
}

pub(crate) fn set_time(path: &Path, time: SystemTime) {
    let file = fs::File::options().write(true).open(path).expect("a file");
    file.set_times(FileTimes::new().set_modified(time)).expect("its time");
}

pub(crate) fn day(number: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(number * 86_400)
}
