//! Files to be scanned: what a disk has in it that a scan must get right.
//!
//! Owns what is in a tree and what happens to it between two scans. The same chance makes the same names and
//! contents; times and inodes are the file system's. Nothing here knows what a scan makes of it.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::chance::Chance;

const FOLDERS: usize = 160;
const FILES: usize = 1_000;
const LARGE: usize = 40;

/// More than a walk writes at once of one folder.
const FAT: usize = 1_100;

/// Sizes that many small files have; others have one of their own.
const SIZES: [u64; 8] = [1, 7, 64, 100, 1_000, 4_096, 10_000, 65_536];

/// From just above what is read at once to what has blocks in its middle.
const LARGE_SIZES: [u64; 4] = [65_537, 120_000, 200_000, 1_048_577];

pub(crate) struct Tree {
    pub(crate) top: PathBuf,
    /// What links lead to.
    outside: PathBuf,
    /// What is gone for a while.
    stash: PathBuf,
    stashed: Vec<PathBuf>,
    chance: Chance,
    made: u64,
}

impl Tree {
    /// Plants a tree in a folder. `locked`: some of it may not be read.
    pub(crate) fn plant(within: &Path, chance: Chance, locked: bool) -> io::Result<Self> {
        let [top, outside, stash] = ["tree", "outside", "stash"].map(|name| within.join(name));
        for folder in [&top, &outside, &stash] {
            fs::create_dir_all(folder)?;
        }
        let mut tree = Tree { top, outside, stash, stashed: Vec::new(), chance, made: 0 };
        tree.grow()?;
        if locked {
            tree.forbid()?;
        }
        Ok(tree)
    }

    /// A folder that is there from the beginning to the end: a root of its own in some rounds.
    pub(crate) fn inner(&self) -> PathBuf {
        self.top.join("inner")
    }

    fn grow(&mut self) -> io::Result<()> {
        fs::create_dir(self.inner())?;
        let mut folders = vec![self.top.clone(), self.inner()];
        while folders.len() < FOLDERS {
            let name = self.name("d");
            let folder = self.one_of(&folders).join(name);
            if folder.strip_prefix(&self.top).is_ok_and(|path| path.components().count() <= 7) {
                fs::create_dir(&folder)?;
                folders.push(folder);
            }
        }
        for _ in 0..FILES {
            let folder = self.one_of(&folders);
            self.small(&folder)?;
        }
        let fat = self.top.join("fat");
        fs::create_dir(&fat)?;
        for number in 0..FAT {
            // Most have a size that others have: they are read while the folder is looked at, which takes a while.
            if number % 3 == 0 {
                self.small(&fat)?;
            } else {
                let (kind, name) = (self.chance.within(0..400), self.name("fat"));
                fs::write(fat.join(name), content(kind, SIZES[5]))?;
            }
        }
        for _ in 0..LARGE {
            let folder = self.one_of(&folders);
            self.large(&folder)?;
        }
        for file in self.files(40)? {
            let folder = self.one_of(&folders);
            fs::hard_link(file, folder.join(self.name("hard")))?;
        }
        self.links(&folders)
    }

    /// Links to files and folders, in and out of the tree, up and to nowhere.
    fn links(&mut self, folders: &[PathBuf]) -> io::Result<()> {
        let beyond = self.outside.join("beyond");
        fs::create_dir(&beyond)?;
        for _ in 0..30 {
            self.small(&beyond)?;
        }
        let outside = self.outside.clone();
        self.small(&outside)?;
        let one = files_below(&outside)?.swap_remove(0);
        let mut targets = vec![outside, beyond, one, self.top.clone(), PathBuf::from("../nowhere")];
        targets.extend(self.files(1)?);
        for target in targets.iter().chain(&targets[..3]) {
            let link = self.one_of(folders).join(self.name("link"));
            symlink(target, link)?;
        }
        Ok(())
    }

    /// What may not be read.
    fn forbid(&mut self) -> io::Result<()> {
        let folder = self.top.join("locked");
        fs::create_dir(&folder)?;
        self.small(&folder)?;
        for (name, size) in [("locked small", SIZES[4]), ("locked large", LARGE_SIZES[1])] {
            let file = self.inner().join(name);
            fs::write(&file, content(1, size))?;
            lock(&file, true)?;
        }
        lock(&folder, true)
    }

    /// Lets everybody read what could not be, so that it can be removed.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        let locked = self.top.join("locked");
        if locked.exists() { lock(&locked, false) } else { Ok(()) }
    }

    /// Takes some of it away for a while.
    pub(crate) fn hide(&mut self) -> io::Result<()> {
        for folder in self.folders(4)? {
            self.put_away(folder)?;
        }
        for file in self.files(10)? {
            self.put_away(file)?;
        }
        Ok(())
    }

    fn put_away(&mut self, path: PathBuf) -> io::Result<()> {
        if !path.exists() {
            // Went with a folder around it.
            return Ok(());
        }
        fs::rename(&path, self.stash.join(self.stashed.len().to_string()))?;
        self.stashed.push(path);
        Ok(())
    }

    /// What happens to a tree in use: some comes back, some is new, changed, moved or gone.
    pub(crate) fn change(&mut self) -> io::Result<()> {
        for number in (0..self.stashed.len()).filter(|number| number % 3 != 0) {
            let place = self.stashed[number].clone();
            // Its folder may be away itself.
            if place.parent().is_some_and(Path::exists) && !place.exists() {
                fs::rename(self.stash.join(number.to_string()), place)?;
            }
        }
        for folder in self.folders(4)?.iter().filter(|folder| folder.exists()) {
            fs::remove_dir_all(folder)?;
        }
        for folder in self.folders(2)?.iter().filter(|folder| folder.exists()) {
            let name = self.name("moved");
            fs::rename(folder, self.top.join(name))?;
        }
        let folders = self.folders(12)?;
        let mut files = self.files(93)?.into_iter();
        for file in files.by_ref().take(40) {
            fs::remove_file(file)?;
        }
        for (file, folder) in files.by_ref().take(12).zip(&folders) {
            fs::rename(file, folder.join(self.name("moved")))?;
        }
        for (number, file) in files.by_ref().take(40).enumerate() {
            let size = fs::metadata(&file)?.len();
            // Written in place, a file's other names change with it; replaced, they do not.
            if number % 4 == 0 {
                fs::remove_file(&file)?;
            }
            let size = if number % 4 == 1 { size + 1 } else { size };
            fs::write(&file, content(self.chance.within(0..6), size))?;
        }
        for folder in folders.iter().take(3) {
            let new = folder.join(self.name("new"));
            fs::create_dir(&new)?;
            for _ in 0..20 {
                self.small(&new)?;
            }
            self.large(&new)?;
            self.large(folder)?;
            self.small(folder)?;
        }
        // A folder where a file was, and a file where a folder was.
        for file in files {
            fs::remove_file(&file)?;
            fs::create_dir(&file)?;
            self.small(&file)?;
        }
        for folder in self.folders(1)? {
            fs::remove_dir_all(&folder)?;
            fs::write(&folder, content(1, SIZES[4]))?;
        }
        if !self.top.join("locked").exists() {
            return Ok(());
        }
        // What could not be read can be, and the other way round.
        lock(&self.inner().join("locked small"), false)?;
        lock(&self.top.join("locked"), false)?;
        fs::write(self.inner().join("locked too"), content(2, SIZES[4]))?;
        lock(&self.inner().join("locked too"), true)
    }

    /// A small file: empty, or like many others, or like few.
    fn small(&mut self, folder: &Path) -> io::Result<()> {
        let size = match self.chance.within(0..100) {
            0..4 => 0,
            4..70 => SIZES[self.chance.index(SIZES.len() - 1)],
            70..72 => SIZES[SIZES.len() - 1],
            _ => self.chance.within(2..20_000),
        };
        let kind = if self.chance.percent(50) { self.chance.within(0..12) } else { self.chance.number() };
        let name = self.name("f");
        fs::write(folder.join(name), content(kind, size))
    }

    /// A large file: like others, or like them up to one byte where nobody looks first.
    fn large(&mut self, folder: &Path) -> io::Result<()> {
        let size = LARGE_SIZES[self.chance.index(LARGE_SIZES.len())];
        let mut bytes = content(self.chance.within(0..3), size);
        if self.chance.percent(40) {
            // Between the blocks at the edges, the middle and the quarters, for all of the sizes.
            let middle = bytes.len() * 3 / 8;
            bytes[middle] ^= 1 << self.chance.within(0..3);
        }
        let name = self.name("large");
        fs::write(folder.join(name), bytes)
    }

    /// A name that nothing else has; now and then one that is no text, or that upsets a careless program.
    fn name(&mut self, kind: &str) -> OsString {
        self.made += 1;
        let mut name = format!("{kind}{:x}", self.made).into_bytes();
        match self.chance.within(0..40) {
            0 => name.extend([0xff, 0xfe, b'x']),
            1 => name.extend("ä 日本".as_bytes()),
            2 => name.extend(b" \n%'\\"),
            3 => name.insert(0, b'.'),
            _ => {}
        }
        OsString::from_vec(name)
    }

    fn one_of(&mut self, paths: &[PathBuf]) -> PathBuf {
        paths[self.chance.index(paths.len())].clone()
    }

    /// Folders that may be moved or removed. Some may be inside others.
    fn folders(&mut self, count: usize) -> io::Result<Vec<PathBuf>> {
        let mut folders = Vec::new();
        walk(&self.top, &mut |path, kind| {
            if kind.is_dir() {
                folders.push(path.to_path_buf());
            }
        })?;
        let spared = ["inner", "fat", "locked"].map(|name| self.top.join(name));
        folders.retain(|path| !spared.contains(path));
        // The deeper half: else a few choices would take most of the tree away.
        folders.sort_by_key(|path| (path.components().count(), path.clone()));
        let deeper = folders.split_off(folders.len() / 2);
        Ok(self.some_of(deeper, count))
    }

    /// Files that may be moved or removed.
    fn files(&mut self, count: usize) -> io::Result<Vec<PathBuf>> {
        let mut files = files_below(&self.top)?;
        files.retain(|path| !path.to_string_lossy().contains("locked"));
        Ok(self.some_of(files, count))
    }

    fn some_of(&mut self, mut paths: Vec<PathBuf>, count: usize) -> Vec<PathBuf> {
        let count = count.min(paths.len());
        (0..count).map(|_| paths.swap_remove(self.chance.index(paths.len()))).collect()
    }
}

/// Bytes that follow from a number.
fn content(kind: u64, size: u64) -> Vec<u8> {
    let mut chance = Chance::new(kind);
    let size = usize::try_from(size).unwrap_or(0);
    let block: Vec<u8> =
        (0..size.min(4_096).div_ceil(8)).flat_map(|_| chance.number().to_le_bytes()).collect();
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

fn lock(path: &Path, locked: bool) -> io::Result<()> {
    let mode = if locked { 0 } else { 0o755 };
    fs::set_permissions(path, Permissions::from_mode(mode))
}
