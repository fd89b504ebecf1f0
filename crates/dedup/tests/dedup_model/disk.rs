//! Applies the operations of a round to a real disk: files, links, roots that are moved, disks that are mounted.

use std::fs::{self, FileTimes};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode};
use tempfile::TempDir;

use crate::ops::{BIND, FIRST_MOUNT, FOLDERS, IGNORES, Location, MOUNT_POINTS, NAMES, Op, ROOTS, SIZES, Target};

/// More entries than a scan writes in one listing.
const MANY_FILES: usize = 600;

pub(crate) struct Disk {
    /// Removed after the disks are unmounted.
    folder: Option<TempDir>,
    base: PathBuf,
    /// Whether disks can be mounted.
    mounts: bool,
    /// Mounted disks, as pairs of mount point number and disk number.
    mounted: Vec<(usize, usize)>,
    /// Whether the bind mount exists.
    bound: bool,
    /// Whether anything was mounted or moved away, so that a file may be on another disk than before.
    pub(crate) has_changed: bool,
}

/// Returns a content. Contents of one size differ in one byte; number 0 is all zeros.
fn content(size: usize, number: u8) -> Vec<u8> {
    let mut content = vec![0; size];
    if let Some(byte) = content.get_mut(size * 2 / 5) {
        *byte = number;
    }
    content
}

impl Disk {
    pub(crate) fn new(mounts: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let base = fs::canonicalize(folder.path()).expect("its path");
        let disk = Disk { folder: Some(folder), base, mounts, mounted: Vec::new(), bound: false, has_changed: false };
        for path in ["away", "out/d", "r0", "r1", "m0", "m1"] {
            fs::create_dir_all(disk.base.join(path)).expect("a folder");
        }
        for (path, size, number) in [("out/o0", 100, 0), ("out/o1", 100, 1), ("out/o2", 65_537, 1)] {
            fs::write(disk.base.join(path), content(size, number)).expect("a file");
        }
        fs::write(disk.base.join("out/d/f0"), content(100, 1)).expect("a file");
        fs::write(disk.base.join("out/d/g.o"), content(5_000, 2)).expect("a file");
        disk
    }

    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    pub(crate) fn root(&self, number: usize) -> PathBuf {
        self.base.join(ROOTS[number])
    }

    /// Whether a root's folder is on a disk that is not mounted.
    fn is_on_unmounted_disk(&self, root: usize) -> bool {
        self.mounts && root >= FIRST_MOUNT && !self.mounted.iter().any(|(at, _)| *at == root - FIRST_MOUNT)
    }

    /// Whether a path is a mount point inside a root.
    pub(crate) fn is_inner_mount_point(&self, path: &Path) -> bool {
        self.mounts && MOUNT_POINTS[ROOTS.len() - FIRST_MOUNT..].iter().any(|point| path == self.base.join(point))
    }

    /// Whether a path is a root that is a mount point without a mounted disk.
    pub(crate) fn is_unmounted_root(&self, path: &Path) -> bool {
        let is_mounted = |point: usize| self.mounted.iter().any(|(at, _)| *at == point);
        let roots = MOUNT_POINTS[..ROOTS.len() - FIRST_MOUNT].iter().enumerate();
        self.mounts && roots.into_iter().any(|(at, point)| path == self.base.join(point) && !is_mounted(at))
    }

    /// Whether a mounted disk has timestamps in whole seconds, so that a change within a second cannot be seen from
    /// outside.
    pub(crate) fn has_coarse_times(&self) -> bool {
        self.mounted.iter().any(|(_, disk)| *disk == crate::ops::DISKS - 1)
    }

    fn folder(&self, at: Location) -> Option<PathBuf> {
        let root = self.root(at.root);
        (root.is_dir() && !self.is_on_unmounted_disk(at.root)).then(|| root.join(FOLDERS[at.folder]))
    }

    /// Returns an unused path, in a folder that is created if needed.
    fn unused_path(&self, at: Location) -> Option<PathBuf> {
        let folder = self.folder(at)?;
        fs::create_dir_all(&folder).ok()?;
        let path = folder.join(NAMES[at.name]);
        fs::symlink_metadata(&path).is_err().then_some(path)
    }

    /// Returns one of the files in the roots.
    fn file(&self, number: usize) -> Option<PathBuf> {
        let mut files = Vec::new();
        let mut next: Vec<PathBuf> = ["r0", "r1", "m0", "m1"].map(|path| self.base.join(path)).into();
        while let Some(folder) = next.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() && entry.file_name() != "lost+found" => next.push(entry.path()),
                    Ok(kind) if kind.is_file() => files.push(entry.path()),
                    _ => {}
                }
            }
        }
        files.sort();
        (!files.is_empty()).then(|| files.swap_remove(number % files.len()))
    }

    /// Applies an operation. Returns a description, or `None` if it could not be applied.
    pub(crate) fn apply(&mut self, op: &Op) -> Option<String> {
        self.has_changed |= matches!(op, Op::Mount { .. } | Op::Bind | Op::MoveRootAway(_));
        match *op {
            Op::Mount { point, disk } => self.mount(point, disk),
            Op::Unmount { point } => self.unmount(point),
            Op::Bind => self.bind(),
            Op::Unbind => self.unbind(),
            Op::MoveRootAway(root) => self.rename(&self.root(root), &self.away(root)),
            Op::MoveRootBack(root) => self.move_back(root),
            _ => self.change(op),
        }
    }

    /// Applies an operation that changes only files and folders.
    pub(crate) fn change(&self, op: &Op) -> Option<String> {
        self.edit(op).ok().flatten()
    }

    fn away(&self, root: usize) -> PathBuf {
        self.base.join("away").join(ROOTS[root].replace('/', " "))
    }

    pub(crate) fn move_back(&self, root: usize) -> Option<String> {
        // A folder that was created there meanwhile stays.
        if self.root(root).exists() { None } else { self.rename(&self.away(root), &self.root(root)) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Option<String> {
        fs::rename(from, to).ok().map(|()| format!("mv {} {}", self.short(from), self.short(to)))
    }

    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.base).unwrap_or(path).display().to_string()
    }

    fn edit(&self, op: &Op) -> io::Result<Option<String>> {
        let text = match *op {
            Op::Write { at, size, content: number, sparse } => {
                let Some(folder) = self.folder(at) else { return Ok(None) };
                fs::create_dir_all(&folder)?;
                let path = folder.join(NAMES[at.name]);
                if !path.is_file() && fs::symlink_metadata(&path).is_ok() {
                    return Ok(None);
                }
                let size = SIZES[size];
                if sparse {
                    fs::File::create(&path)?.set_len(size as u64)?;
                    format!("truncate -s {size} {}", self.short(&path))
                } else {
                    fs::write(&path, content(size, number))?;
                    format!("write {} {size} bytes of content {number}", self.short(&path))
                }
            }
            Op::ManyFiles { at, content: number } => {
                let Some(folder) = self.folder(at) else { return Ok(None) };
                fs::create_dir_all(&folder)?;
                for file in 0..MANY_FILES {
                    fs::write(folder.join(format!("n{file}")), content(1 + file % 7, number))?;
                }
                format!("{MANY_FILES} files in {}", self.short(&folder))
            }
            Op::Rewrite { file, content: number } => {
                let Some(path) = self.file(file) else { return Ok(None) };
                let before = fs::metadata(&path)?;
                fs::write(&path, content(usize::try_from(before.len()).unwrap_or(0), number))?;
                set_time(&path, before.modified()?)?;
                format!("rewrite {} with content {number}, same size and time", self.short(&path))
            }
            Op::Touch { file, day } => {
                let Some(path) = self.file(file) else { return Ok(None) };
                set_time(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400))?;
                format!("touch -d 'day {day} of 1970' {}", self.short(&path))
            }
            Op::Chmod { file } => {
                let Some(path) = self.file(file) else { return Ok(None) };
                let mode = fs::metadata(&path)?.permissions().mode();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode ^ 0o011))?;
                format!("chmod {}", self.short(&path))
            }
            Op::Remove { file } => {
                let Some(path) = self.file(file) else { return Ok(None) };
                fs::remove_file(&path)?;
                format!("rm {}", self.short(&path))
            }
            Op::Rename { file, to } => return Ok(self.apply_to(file, to, "mv", |from, to| fs::rename(from, to))),
            Op::Copy { file, to } => {
                return Ok(self.apply_to(file, to, "cp", |from, to| fs::write(to, fs::read(from)?)));
            }
            Op::HardLink { file, to } => {
                return Ok(self.apply_to(file, to, "ln", |from, to| fs::hard_link(from, to)));
            }
            Op::Symlink { at, target } => {
                let Some(path) = self.unused_path(at) else { return Ok(None) };
                let target = match target {
                    Target::OutsideFile(number) => self.base.join(format!("out/o{number}")),
                    Target::OutsideFolder => self.base.join("out/d"),
                    Target::Nothing => self.base.join("out/nothing"),
                    Target::Parent => PathBuf::from(".."),
                    Target::Root(number) => self.root(number),
                };
                symlink(&target, &path)?;
                format!("ln -s {} {}", self.short(&target), self.short(&path))
            }
            Op::Fifo { at } => {
                let Some(path) = self.unused_path(at) else { return Ok(None) };
                rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR, 0)?;
                format!("mkfifo {}", self.short(&path))
            }
            Op::Ignore { at, line } => {
                let Some(folder) = self.folder(at) else { return Ok(None) };
                fs::create_dir_all(&folder)?;
                fs::write(folder.join(".gitignore"), IGNORES[line])?;
                format!("echo '{}' > {}/.gitignore", IGNORES[line], self.short(&folder))
            }
            Op::MoveFolder { from, to } => {
                let (Some(from), Some(to)) = (self.folder(from), self.folder(to)) else { return Ok(None) };
                // The folder would be replaced.
                if self.is_bound(&to) {
                    return Ok(None);
                }
                if let Some(parent) = to.parent() {
                    fs::create_dir_all(parent)?;
                }
                return Ok(self.rename(&from, &to));
            }
            Op::RemoveFolder { at } if at.folder > 0 => {
                let Some(folder) = self.folder(at).filter(|folder| !self.is_bound(folder)) else { return Ok(None) };
                fs::remove_dir_all(&folder)?;
                format!("rm -r {}", self.short(&folder))
            }
            Op::Swap { at, content: number } if at.folder > 0 => {
                let Some(folder) = self.folder(at).filter(|folder| !self.is_bound(folder)) else { return Ok(None) };
                if folder.is_dir() {
                    fs::remove_dir_all(&folder)?;
                    fs::write(&folder, content(100, number))?;
                    format!("{} becomes a file, 100 bytes of content {number}", self.short(&folder))
                } else {
                    fs::remove_file(&folder)?;
                    fs::create_dir(&folder)?;
                    format!("{} becomes a folder", self.short(&folder))
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(text))
    }

    fn apply_to(
        &self,
        file: usize,
        to: Location,
        command: &str,
        act: impl Fn(&Path, &Path) -> io::Result<()>,
    ) -> Option<String> {
        let (from, to) = (self.file(file)?, self.unused_path(to)?);
        act(&from, &to).ok().map(|()| format!("{command} {} {}", self.short(&from), self.short(&to)))
    }

    fn mount(&mut self, point: usize, disk: usize) -> Option<String> {
        if !self.mounts || self.mounted.iter().any(|(at, mounted)| *at == point || *mounted == disk) {
            return None;
        }
        let image = self.base.join(format!("disk {disk}"));
        let path = self.base.join(MOUNT_POINTS[point]);
        fs::create_dir_all(&path).ok()?;
        if !image.exists() {
            make_image(&image, disk == crate::ops::DISKS - 1)?;
        }
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path))?;
        let _ = fs::remove_dir(path.join("lost+found"));
        self.mounted.push((point, disk));
        Some(format!("mount disk {disk} at {}", MOUNT_POINTS[point]))
    }

    fn unmount(&mut self, point: usize) -> Option<String> {
        let index = self.mounted.iter().position(|(at, _)| *at == point)?;
        run(Command::new("umount").arg(self.base.join(MOUNT_POINTS[point])))?;
        self.mounted.remove(index);
        Some(format!("umount {}", MOUNT_POINTS[point]))
    }

    /// Whether the folder of the bind mount is this one or below it. If it is removed, its mount cannot be listed.
    fn is_bound(&self, folder: &Path) -> bool {
        self.bound && self.base.join(BIND.0).starts_with(folder)
    }

    fn bind(&mut self) -> Option<String> {
        let (folder, point) = (self.base.join(BIND.0), self.base.join(BIND.1));
        // Roots that were moved away are not created again.
        if self.bound || !self.root(0).is_dir() || !self.root(1).is_dir() {
            return None;
        }
        fs::create_dir_all(&folder).and_then(|()| fs::create_dir_all(&point)).ok()?;
        run(Command::new("mount").arg("--bind").arg(&folder).arg(&point))?;
        self.bound = true;
        Some(format!("mount --bind {} {}", BIND.0, BIND.1))
    }

    fn unbind(&mut self) -> Option<String> {
        if !self.bound {
            return None;
        }
        run(Command::new("umount").arg(self.base.join(BIND.1)))?;
        self.bound = false;
        Some(format!("umount {}", BIND.1))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Reads the system's mount table, because a folder that contains a mount point may have been renamed.
        let base = self.base.display().to_string();
        let has_mounts = self.bound || !self.mounted.is_empty();
        let table = has_mounts.then(|| fs::read_to_string("/proc/self/mounts").ok()).flatten();
        for line in table.iter().flat_map(|table| table.lines()) {
            if let Some(path) = line.split(' ').nth(1).filter(|path| path.starts_with(&base)) {
                run(Command::new("umount").arg("-l").arg(path.replace("\\040", " ")));
            }
        }
        drop(self.folder.take());
    }
}

/// Whether this process may mount disks.
pub(crate) fn can_mount() -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let mut disk = Disk {
        base: folder.path().to_owned(),
        folder: Some(folder),
        mounts: true,
        mounted: Vec::new(),
        bound: false,
        has_changed: false,
    };
    disk.mount(0, 0).is_some() && disk.unmount(0).is_some()
}

fn make_image(path: &Path, is_coarse: bool) -> Option<()> {
    fs::File::create(path).and_then(|file| file.set_len(8 << 20)).ok()?;
    let mut command = match is_coarse {
        true => Command::new("mkfs.ext2"),
        false => Command::new("mkfs.ext4"),
    };
    let options: &[&str] = if is_coarse { &["-I", "128"] } else { &["-O", "^has_journal"] };
    run(command.args(["-q", "-F"]).args(options).arg(path))
}

fn run(command: &mut Command) -> Option<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then_some(())
}

fn set_time(path: &Path, time: SystemTime) -> io::Result<()> {
    fs::File::options().write(true).open(path)?.set_times(FileTimes::new().set_modified(time))
}
