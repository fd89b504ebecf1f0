//! A tree of files with the cases that a scan must handle.
//!
//! Owns the contents of a tree and its changes between scans. The same seed gives the same names and contents; times
//! and inodes are the file system's. Knows nothing about scans.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use gristmill_check::Rng;

const FOLDER_COUNT: usize = 160;
const FILE_COUNT: usize = 1_000;
const LARGE_FILE_COUNT: usize = 40;

/// Files of the wide folder, more than a walk writes in one batch.
const WIDE_FOLDER_FILES: usize = 1_100;

/// Sizes that many small files share; other files have a random size.
const COMMON_SIZES: [u64; 8] = [1, 7, 64, 100, 1_000, 4_096, 10_000, 65_536];

/// Sizes of large files: from just above the size that is hashed at once to files with sampled blocks in the middle.
const LARGE_SIZES: [u64; 4] = [65_537, 120_000, 200_000, 1_048_577];

pub(crate) struct Tree {
    pub(crate) top: PathBuf,
    /// Folder outside of the tree that symbolic links lead to.
    outside: PathBuf,
    /// Folder for paths that are removed from the tree for a while.
    stash: PathBuf,
    stashed: Vec<PathBuf>,
    rng: Rng,
    names_created: u64,
}

impl Tree {
    /// Generates a tree in a folder. With `locked`, parts of it cannot be read.
    pub(crate) fn generate(parent: &Path, rng: Rng, locked: bool) -> io::Result<Self> {
        let [top, outside, stash] = ["tree", "outside", "stash"].map(|name| parent.join(name));
        for folder in [&top, &outside, &stash] {
            fs::create_dir_all(folder)?;
        }
        let mut tree = Tree { top, outside, stash, stashed: Vec::new(), rng, names_created: 0 };
        tree.populate()?;
        if locked {
            tree.add_unreadable()?;
        }
        Ok(tree)
    }

    /// Returns a folder that always exists; in some rounds it is a second root.
    pub(crate) fn inner(&self) -> PathBuf {
        self.top.join("inner")
    }

    fn populate(&mut self) -> io::Result<()> {
        fs::create_dir(self.inner())?;
        let mut folders = vec![self.top.clone(), self.inner()];
        while folders.len() < FOLDER_COUNT {
            let name = self.unique_name("d");
            let folder = self.pick(&folders).join(name);
            if folder.strip_prefix(&self.top).is_ok_and(|path| path.components().count() <= 7) {
                fs::create_dir(&folder)?;
                folders.push(folder);
            }
        }
        for _ in 0..FILE_COUNT {
            let folder = self.pick(&folders);
            self.write_small_file(&folder)?;
        }
        let wide = self.top.join("fat");
        fs::create_dir(&wide)?;
        for number in 0..WIDE_FOLDER_FILES {
            // Most share a size with others, so they are read while the folder is walked, which takes longer.
            if number % 3 == 0 {
                self.write_small_file(&wide)?;
            } else {
                let (kind, name) = (self.rng.u64(0..400), self.unique_name("fat"));
                fs::write(wide.join(name), content(kind, COMMON_SIZES[5]))?;
            }
        }
        for _ in 0..LARGE_FILE_COUNT {
            let folder = self.pick(&folders);
            self.write_large_file(&folder)?;
        }
        for file in self.files(40)? {
            let folder = self.pick(&folders);
            fs::hard_link(file, folder.join(self.unique_name("hard")))?;
        }
        self.create_links(&folders)
    }

    /// Creates symbolic links to files and folders inside and outside of the tree, to its top, and to a missing path.
    fn create_links(&mut self, folders: &[PathBuf]) -> io::Result<()> {
        let beyond = self.outside.join("beyond");
        fs::create_dir(&beyond)?;
        for _ in 0..30 {
            self.write_small_file(&beyond)?;
        }
        let outside = self.outside.clone();
        self.write_small_file(&outside)?;
        let outside_file = files_below(&outside)?.swap_remove(0);
        let mut targets = vec![outside, beyond, outside_file, self.top.clone(), PathBuf::from("../nowhere")];
        targets.extend(self.files(1)?);
        for target in targets.iter().chain(&targets[..3]) {
            let link = self.pick(folders).join(self.unique_name("link"));
            symlink(target, link)?;
        }
        Ok(())
    }

    /// Creates a folder and files that cannot be read.
    fn add_unreadable(&mut self) -> io::Result<()> {
        let folder = self.top.join("locked");
        fs::create_dir(&folder)?;
        self.write_small_file(&folder)?;
        for (name, size) in [("locked small", COMMON_SIZES[4]), ("locked large", LARGE_SIZES[1])] {
            let file = self.inner().join(name);
            fs::write(&file, content(1, size))?;
            set_locked(&file, true)?;
        }
        set_locked(&folder, true)
    }

    /// Makes the unreadable folder readable, so that it can be removed.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        let locked = self.top.join("locked");
        if locked.exists() { set_locked(&locked, false) } else { Ok(()) }
    }

    /// Moves some folders and files out of the tree for a while.
    pub(crate) fn stash_some(&mut self) -> io::Result<()> {
        for folder in self.folders(4)? {
            self.stash_path(folder)?;
        }
        for file in self.files(10)? {
            self.stash_path(file)?;
        }
        Ok(())
    }

    fn stash_path(&mut self, path: PathBuf) -> io::Result<()> {
        if !path.exists() {
            // It was moved with its parent folder.
            return Ok(());
        }
        fs::rename(&path, self.stash.join(self.stashed.len().to_string()))?;
        self.stashed.push(path);
        Ok(())
    }

    /// Changes the tree as users do: restores, creates, changes, moves and removes paths.
    pub(crate) fn change(&mut self) -> io::Result<()> {
        for number in (0..self.stashed.len()).filter(|number| number % 3 != 0) {
            let original = self.stashed[number].clone();
            // Its parent folder may be stashed too.
            if original.parent().is_some_and(Path::exists) && !original.exists() {
                fs::rename(self.stash.join(number.to_string()), original)?;
            }
        }
        for folder in self.folders(4)?.iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder)?;
        }
        for folder in self.folders(2)?.iter().filter(|folder| folder.exists()) {
            let name = self.unique_name("moved");
            fs::rename(folder, self.top.join(name))?;
        }
        let folders = self.folders(12)?;
        let mut files = self.files(93)?.into_iter();
        for file in files.by_ref().take(40) {
            fs::remove_file(file)?;
        }
        for (file, folder) in files.by_ref().take(12).zip(&folders) {
            fs::rename(file, folder.join(self.unique_name("moved")))?;
        }
        for (number, file) in files.by_ref().take(40).enumerate() {
            let size = fs::metadata(&file)?.len();
            // A file that is written in place changes under its other names too; a replaced one does not.
            if number % 4 == 0 {
                fs::remove_file(&file)?;
            }
            let size = if number % 4 == 1 { size + 1 } else { size };
            fs::write(&file, content(self.rng.u64(0..6), size))?;
        }
        for folder in folders.iter().take(3) {
            let new = folder.join(self.unique_name("new"));
            fs::create_dir(&new)?;
            for _ in 0..20 {
                self.write_small_file(&new)?;
            }
            self.write_large_file(&new)?;
            self.write_large_file(folder)?;
            self.write_small_file(folder)?;
        }
        // Replaces files by folders, and a folder by a file.
        for file in files {
            fs::remove_file(&file)?;
            fs::create_dir(&file)?;
            self.write_small_file(&file)?;
        }
        for folder in self.folders(1)? {
            fs::remove_dir_all(&folder)?;
            fs::write(&folder, content(1, COMMON_SIZES[4]))?;
        }
        if !self.top.join("locked").exists() {
            return Ok(());
        }
        // Makes unreadable paths readable, and a new file unreadable.
        set_locked(&self.inner().join("locked small"), false)?;
        set_locked(&self.top.join("locked"), false)?;
        fs::write(self.inner().join("locked too"), content(2, COMMON_SIZES[4]))?;
        set_locked(&self.inner().join("locked too"), true)
    }

    /// Writes a small file: empty, or equal to many or few others.
    fn write_small_file(&mut self, folder: &Path) -> io::Result<()> {
        let size = match self.rng.u64(0..100) {
            0..4 => 0,
            4..70 => COMMON_SIZES[self.rng.usize(..COMMON_SIZES.len() - 1)],
            70..72 => COMMON_SIZES[COMMON_SIZES.len() - 1],
            _ => self.rng.u64(2..20_000),
        };
        let kind = if self.rng.percent(50) { self.rng.u64(0..12) } else { self.rng.u64(..) };
        let name = self.unique_name("f");
        fs::write(folder.join(name), content(kind, size))
    }

    /// Writes a large file, equal to others or differing in one byte that is not in a sample.
    fn write_large_file(&mut self, folder: &Path) -> io::Result<()> {
        let size = LARGE_SIZES[self.rng.usize(..LARGE_SIZES.len())];
        let mut bytes = content(self.rng.u64(0..3), size);
        if self.rng.percent(40) {
            // Between the samples at the ends, the middle and the quarters, for all of the sizes.
            let middle = bytes.len() * 3 / 8;
            bytes[middle] ^= 1 << self.rng.u64(0..3);
        }
        let name = self.unique_name("large");
        fs::write(folder.join(name), bytes)
    }

    /// Returns a unique name; a few are not UTF-8 or have characters that need escaping.
    fn unique_name(&mut self, kind: &str) -> OsString {
        self.names_created += 1;
        let mut name = format!("{kind}{:x}", self.names_created).into_bytes();
        match self.rng.u64(0..40) {
            0 => name.extend([0xff, 0xfe, b'x']),
            1 => name.extend("ä 日本".as_bytes()),
            2 => name.extend(b" \n%'\\"),
            3 => name.insert(0, b'.'),
            _ => {}
        }
        OsString::from_vec(name)
    }

    fn pick(&mut self, paths: &[PathBuf]) -> PathBuf {
        paths[self.rng.usize(..paths.len())].clone()
    }

    /// Returns random folders that may be moved or removed. Some may be inside others.
    fn folders(&mut self, count: usize) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        walk(&self.top, &mut |path, kind| {
            if kind.is_dir() {
                folders.push(path.to_path_buf());
            }
        })?;
        let spared = ["inner", "fat", "locked"].map(|name| self.top.join(name));
        folders.retain(|path| !spared.contains(path));
        // Only the deeper half, because removing a high folder would remove most of the tree.
        folders.sort_by_key(|path| (path.components().count(), path.clone()));
        let deeper = folders.split_off(folders.len() / 2);
        Ok(self.pick_many(deeper, count))
    }

    /// Returns random files that may be moved or removed.
    fn files(&mut self, count: usize) -> io::Result<Vec<PathBuf>> {
        let mut files = files_below(&self.top)?;
        files.retain(|path| !path.to_string_lossy().contains("locked"));
        Ok(self.pick_many(files, count))
    }

    fn pick_many(&mut self, mut paths: Vec<PathBuf>, count: usize) -> Vec<PathBuf> {
        let count = count.min(paths.len());
        (0..count).map(|_| paths.swap_remove(self.rng.usize(..paths.len()))).collect()
    }
}

/// Returns bytes that depend only on `kind`, repeated up to `size`.
fn content(kind: u64, size: u64) -> Vec<u8> {
    let mut rng = Rng::new(kind);
    let size = usize::try_from(size).unwrap_or(0);
    let block: Vec<u8> = (0..size.min(4_096).div_ceil(8)).flat_map(|_| rng.u64(..).to_le_bytes()).collect();
    block.into_iter().cycle().take(size).collect()
}

fn walk(folder: &Path, visit: &mut impl FnMut(&Path, fs::FileType)) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        visit(&path, kind);
        if kind.is_dir() && path.file_name().is_some_and(|name| name != "locked") {
            walk(&path, visit)?;
        }
    }
    Ok(())
}

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    walk(folder, &mut |path, kind| {
        if kind.is_file() {
            files.push(path.to_path_buf());
        }
    })?;
    files.sort();
    Ok(files)
}

fn set_locked(path: &Path, locked: bool) -> io::Result<()> {
    let mode = if locked { 0 } else { 0o755 };
    fs::set_permissions(path, Permissions::from_mode(mode))
}
