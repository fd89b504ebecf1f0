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
pub(crate) use linux::{Folder, advise, file_stat, is_link_error, path_stat, read_cached};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{Folder, advise, file_stat, is_link_error, path_stat, read_cached};

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

/// Converts the bytes of a name or of the text of a link.
#[cfg(unix)]
pub(crate) fn os_string(bytes: &[u8]) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
pub(crate) fn os_string(bytes: &[u8]) -> std::ffi::OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
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

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/file"), "words").unwrap();
        std::os::unix::fs::symlink("a", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        folder
    }

    /// Defines tests that both implementations pass.
    macro_rules! folder_tests {
        ($($module:ident: $folder:ty;)*) => { $(mod $module {
            use super::*;

            fn open(folder: &tempfile::TempDir) -> $folder {
                <$folder>::open(folder.path()).unwrap()
            }

            fn names(folder: &$folder) -> Vec<(OsString, EntryKind)> {
                let mut names = Vec::new();
                let listed = folder.list(|name, kind| {
                    names.push((name.to_owned(), kind));
                    ControlFlow::Continue(())
                });
                listed.unwrap();
                names.sort_by(|(a, _), (b, _)| a.cmp(b));
                names
            }

            #[test]
            fn entries_have_names_kinds_and_stats() {
                let folder = tree();
                let top = open(&folder);
                let expected = [("a", EntryKind::Folder), ("link", EntryKind::Link), ("socket", EntryKind::Special)];
                assert_eq!(names(&top), expected.map(|(name, kind)| (name.into(), kind)));
                assert_eq!(top.stat(OsStr::new("link"), false).unwrap().kind, EntryKind::Link);
                assert_eq!(top.stat(OsStr::new("link"), true).unwrap().kind, EntryKind::Folder);
                let a = top.open_below(Path::new("a"), false).unwrap();
                let found = a.stat(OsStr::new("file"), false).unwrap();
                assert_eq!((found.kind, found.stat.size), (EntryKind::File, 5));
                let mut text = String::new();
                let mut file = a.open_file(OsStr::new("file")).unwrap();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, "words");
                assert_eq!(file_stat(&file).unwrap().stat, found.stat);
                let opened = a.open_file(OsStr::new("b"));
                assert!(opened.is_err() || file_stat(&opened.unwrap()).unwrap().kind != EntryKind::File);
            }

            #[test]
            fn symlinks_are_refused_unless_followed() {
                let folder = tree();
                let top = open(&folder);
                assert!(top.open_below(Path::new("link/b"), false).is_err());
                assert!(top.open_below(Path::new("link"), false).is_err());
                assert_eq!(names(&top.open_below(Path::new("link"), true).unwrap()).len(), 2);
                assert!(top.open_file(OsStr::new("link")).is_err());
            }

            #[test]
            fn missing_entries_are_reported_as_not_found() {
                let folder = tree();
                let (top, no) = (open(&folder), OsStr::new("no"));
                let kinds = [
                    top.open_below(Path::new(no), false).err().unwrap().kind(),
                    top.stat(no, false).err().unwrap().kind(),
                    top.open_file(no).err().unwrap().kind(),
                ];
                assert_eq!(kinds, [std::io::ErrorKind::NotFound; 3]);
            }
        })* };
    }

    folder_tests! {
        on_linux: linux::Folder;
        portable_fallback: portable::Folder;
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
