//! Wraps the system calls that differ between platforms: opening folders, listing entries, reading metadata.
//!
//! On Linux all calls are relative to open folders, so that paths can be longer than `PATH_MAX`, and a folder that is
//! replaced by a symbolic link during the scan is not followed. On other systems the standard library is used; that
//! fallback is also compiled and tested on Linux.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(any(test, not(target_os = "linux")))]
mod portable;

#[cfg(target_os = "linux")]
pub(crate) use linux::{Folder, advise, file_stat, is_link_error, read_cached};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{Folder, advise, file_stat, is_link_error, read_cached};

use gristmill_store::catalog::{Stat, UNSTABLE_INODES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    File,
    Folder,
    Link,
    Special,
    /// The listing does not contain the type, so the metadata must be read.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryStat {
    pub(crate) kind: EntryKind,
    pub(crate) stat: Stat,
}

/// The expected access pattern of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Sequential,
    Random,
    /// A range that is read later: offset and length in bytes.
    WillNeed(u64, u64),
}

/// Separates the identity of a cloned filesystem from its device number.
const CLONE_DEVICE_SUFFIX: &str = " on device ";

/// Whether two identities can belong to one filesystem. A disk counts as a clone only while the original is mounted
/// too, and older catalogs do not record that inode numbers are unstable.
pub(crate) fn may_be_one_filesystem(a: &str, b: &str) -> bool {
    fn core(identity: &str) -> &str {
        let identity = identity.strip_prefix(UNSTABLE_INODES).unwrap_or(identity);
        identity.split_once(CLONE_DEVICE_SUFFIX).map_or(identity, |(before, _)| before)
    }
    core(a) == core(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{OsStr, OsString};
    use std::io::Read;
    use std::ops::ControlFlow;
    use std::path::Path;

    #[test]
    fn clone_without_its_original_is_the_same_filesystem() {
        let unstable = format!("{UNSTABLE_INODES}uuid 1");
        for (a, b, expected) in [
            ("uuid 1", "uuid 1 on device 7:1", true),
            ("uuid 1 on device 7:2", "uuid 1 on device 7:1", true),
            ("uuid 1", unstable.as_str(), true),
            ("uuid 1", "uuid 2", false),
            ("uuid 1 on device 7:1", "uuid 2 on device 7:1", false),
        ] {
            assert_eq!(may_be_one_filesystem(a, b), expected, "{a}, {b}");
        }
    }

    macro_rules! test_both_systems {
        ($($name:ident)*) => {
            mod on_linux { $(#[test] fn $name() { super::$name::<super::linux::Folder>(); })* }
            mod portable_fallback { $(#[test] fn $name() { super::$name::<super::portable::Folder>(); })* }
        };
    }

    /// Names the methods that both implementations have, for the tests.
    trait SystemFolder: Sized {
        fn open(path: &Path) -> std::io::Result<Self>;
        fn open_below(&self, path: &Path, follow: bool) -> std::io::Result<Self>;
        fn names(&self) -> Vec<(OsString, EntryKind)>;
        fn stat(&self, name: &str, follow: bool) -> std::io::Result<EntryStat>;
        fn open_file(&self, name: &str) -> std::io::Result<std::fs::File>;
    }

    macro_rules! impl_system_folder {
        ($folder:ty) => {
            impl SystemFolder for $folder {
                fn open(path: &Path) -> std::io::Result<Self> {
                    Self::open(path)
                }
                fn open_below(&self, path: &Path, follow: bool) -> std::io::Result<Self> {
                    self.open_below(path, follow)
                }
                fn names(&self) -> Vec<(OsString, EntryKind)> {
                    let mut names = Vec::new();
                    self.list(|name, kind| {
                        names.push((name.to_owned(), kind));
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                    names.sort_by(|(a, _), (b, _)| a.cmp(b));
                    names
                }
                fn stat(&self, name: &str, follow: bool) -> std::io::Result<EntryStat> {
                    self.stat(OsStr::new(name), follow)
                }
                fn open_file(&self, name: &str) -> std::io::Result<std::fs::File> {
                    self.open_file(OsStr::new(name))
                }
            }
        };
    }

    impl_system_folder!(linux::Folder);
    impl_system_folder!(portable::Folder);

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/file"), "words").unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        folder
    }

    fn entries_have_names_kinds_and_stats<F: SystemFolder>() {
        let folder = tree();
        let top = F::open(folder.path()).unwrap();
        let names = top.names();
        let expected = [("a", EntryKind::Folder), ("link", EntryKind::Link), ("socket", EntryKind::Special)];
        assert_eq!(names, expected.map(|(name, kind)| (name.into(), kind)));
        assert_eq!(top.stat("link", false).unwrap().kind, EntryKind::Link);
        assert_eq!(top.stat("link", true).unwrap().kind, EntryKind::Folder);
        let a = top.open_below(Path::new("a"), false).unwrap();
        let found = a.stat("file", false).unwrap();
        assert_eq!((found.kind, found.stat.size), (EntryKind::File, 5));
        let mut text = String::new();
        let mut file = a.open_file("file").unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "words");
        assert_eq!(file_stat(&file).unwrap().stat, found.stat);
        assert!(a.open_file("b").is_err() || file_stat(&a.open_file("b").unwrap()).unwrap().kind != EntryKind::File);
    }

    fn symlinks_are_refused_unless_followed<F: SystemFolder>() {
        let folder = tree();
        let top = F::open(folder.path()).unwrap();
        assert!(top.open_below(Path::new("link/b"), false).is_err());
        assert!(top.open_below(Path::new("link"), false).is_err());
        assert_eq!(top.open_below(Path::new("link"), true).unwrap().names().len(), 2);
        assert!(top.open_file("link").is_err());
    }

    fn missing_entries_are_reported_as_not_found<F: SystemFolder>() {
        let folder = tree();
        let top = F::open(folder.path()).unwrap();
        let not_found = std::io::ErrorKind::NotFound;
        assert_eq!(top.open_below(Path::new("no"), false).err().unwrap().kind(), not_found);
        assert_eq!(top.stat("no", false).err().unwrap().kind(), not_found);
        assert_eq!(top.open_file("no").err().unwrap().kind(), not_found);
    }

    test_both_systems! {
        entries_have_names_kinds_and_stats
        symlinks_are_refused_unless_followed
        missing_entries_are_reported_as_not_found
    }

    #[test]
    fn folder_opens_by_a_path_longer_than_path_max() {
        let folder = tempfile::tempdir().unwrap();
        let name = "n".repeat(250);
        let mut path = std::path::PathBuf::new();
        let mut here = linux::Folder::open(folder.path()).unwrap();
        for _ in 0..40 {
            here.make_folder(OsStr::new(&name)).unwrap();
            here = here.open_below(Path::new(&name), false).unwrap();
            path.push(&name);
        }
        assert!(path.as_os_str().len() > 8_000);
        let top = linux::Folder::open(folder.path()).unwrap();
        let (deep, found) = (top.open_below(&path, false).unwrap().own_stat().unwrap(), here.own_stat().unwrap());
        assert_eq!((deep.device, deep.inode), (found.device, found.inode));
    }
}
