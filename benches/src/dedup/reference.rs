//! Finds the equal files of a tree that was not generated here, by a plain comparison of all contents.
//!
//! Owns no code of Gristmill: it reads whole files, and takes files with one size and one SHA-256 as equal. Hard links
//! are names of one file; symbolic links, special files and files without content are skipped, and so are files and
//! folders that this user cannot read.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File, Metadata},
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::expected::{self, Expected};

/// Regular files of a tree and their equal files.
pub(super) struct Reference {
    /// Number of names: hard links count separately.
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) expected: Expected,
}

/// Identifies a file of several names.
type Identity = (u64, u64);

/// A file with all its names, relative to the tree and sorted.
struct FoundFile {
    names: Vec<PathBuf>,
    size: u64,
}

impl Reference {
    pub(super) fn of(root: &Path) -> io::Result<Reference> {
        let mut found = HashMap::new();
        walk(root, root, &mut found)?;
        let mut files: Vec<FoundFile> = found.into_values().collect();
        files.iter_mut().for_each(|file| file.names.sort());
        let names = files.iter().map(|file| file.names.len() as u64);
        let bytes = files.iter().map(|file| file.names.len() as u64 * file.size).sum();
        Ok(Reference { files: names.sum(), bytes, expected: to_expected(&files, &equal(root, &files)?) })
    }

    pub(super) fn metadata(&self) -> String {
        super::tree::metadata(self.files, self.bytes, &self.expected)
    }
}

fn walk(root: &Path, folder: &Path, found: &mut HashMap<Identity, FoundFile>) -> io::Result<()> {
    let context = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && folder != root => return Ok(()),
        entries => entries.map_err(context)?,
    };
    for entry in entries {
        let entry = entry.map_err(context)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(context)?);
        if kind.is_dir() {
            walk(root, &path, found)?;
        } else if kind.is_file() {
            let metadata = entry.metadata().map_err(context)?;
            let identity = identity(&metadata, found.len());
            let file = found.entry(identity).or_insert_with(|| FoundFile { names: Vec::new(), size: metadata.len() });
            file.names.push(path.strip_prefix(root).map_err(io::Error::other)?.to_path_buf());
        }
    }
    Ok(())
}

/// Returns the device and the inode number.
#[cfg(unix)]
fn identity(metadata: &Metadata, _: usize) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// Returns a number of its own for each name.
#[cfg(not(unix))]
fn identity(_: &Metadata, number: usize) -> Identity {
    (0, number as u64)
}

/// Returns the groups of files with equal contents.
fn equal<'a>(root: &Path, files: &'a [FoundFile]) -> io::Result<Vec<Vec<&'a FoundFile>>> {
    let mut sizes: HashMap<u64, Vec<&FoundFile>> = HashMap::new();
    for file in files.iter().filter(|file| file.size > 0) {
        sizes.entry(file.size).or_default().push(file);
    }
    let same_size: Vec<&FoundFile> = sizes.into_values().filter(|files| files.len() > 1).flatten().collect();
    let read = |file: &&'a FoundFile| match content_hash(&root.join(&file.names[0])) {
        Ok(hash) => Some(Ok(((file.size, hash), *file))),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(error) => Some(Err(io::Error::new(error.kind(), format!("{}: {error}", file.names[0].display())))),
    };
    let hashed: Vec<_> = same_size.par_iter().filter_map(read).collect::<io::Result<_>>()?;
    let mut groups: HashMap<_, Vec<&FoundFile>> = HashMap::new();
    hashed.into_iter().for_each(|(content, file)| groups.entry(content).or_default().push(file));
    Ok(groups.into_values().filter(|files| files.len() > 1).collect())
}

fn content_hash(path: &Path) -> io::Result<[u8; 32]> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn to_expected(files: &[FoundFile], equal: &[Vec<&FoundFile>]) -> Expected {
    let mut expected = Expected::default();
    let comparable = |name: &PathBuf| expected::comparable(name.as_os_str().as_encoded_bytes()).is_some();
    for group in equal {
        let names: Vec<&PathBuf> = group.iter().flat_map(|file| &file.names).collect();
        if names.iter().copied().all(comparable) {
            let mut group: Vec<String> = group.iter().map(|file| text(&file.names[0])).collect();
            group.sort();
            expected.groups.push(group);
        } else {
            // A name with a line end is printed as several lines.
            let lines =
                names.into_iter().flat_map(|name| text(name).split('\n').map(str::to_owned).collect::<Vec<_>>());
            expected.ignored.extend(lines);
        }
    }
    expected.groups.sort();
    let linked = files.iter().filter(|file| file.names.len() > 1 && file.names.iter().all(comparable));
    let links = linked.flat_map(|file| file.names[1..].iter().map(|name| (text(name), text(&file.names[0]))));
    expected.links = links.collect::<BTreeMap<_, _>>();
    expected
}

fn text(name: &Path) -> String {
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn tree(files: &[(&str, &str)]) -> Scratch {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        for (path, content) in files {
            let path = scratch.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        scratch
    }

    #[test]
    fn files_with_equal_contents_are_groups() {
        let tree = tree(&[
            ("b", "same"),
            (".hidden/a", "same"),
            (".gitignore", "*"),
            ("other", "diff"),
            ("empty", ""),
            ("empty 2", ""),
        ]);
        let reference = Reference::of(tree.path()).unwrap();
        assert_eq!((reference.files, reference.bytes), (6, 13));
        assert_eq!(reference.expected.groups, [[".hidden/a", "b"]]);
        assert!(Reference::of(&tree.path().join("missing")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn hard_links_are_one_file_and_symbolic_links_none() {
        let tree = tree(&[("a", "same"), ("b", "same"), ("z", "alone")]);
        let path = |name| tree.path().join(name);
        fs::hard_link(path("b"), path("a0")).unwrap();
        fs::hard_link(path("z"), path("z2")).unwrap();
        std::os::unix::fs::symlink("a", path("symbolic")).unwrap();
        let Reference { files, expected, .. } = Reference::of(tree.path()).unwrap();
        assert_eq!(files, 5);
        assert_eq!(expected.groups, [["a", "a0"]]);
        let links = [("b", "a0"), ("z2", "z")].map(|(name, first)| (name.to_owned(), first.to_owned()));
        assert_eq!(expected.links, links.into());
    }

    #[cfg(unix)]
    #[test]
    fn groups_with_line_ends_in_names_are_ignored() {
        let tree = tree(&[("a", "same"), ("line\nend", "same"), ("b", "here"), ("c", "here")]);
        let expected = Reference::of(tree.path()).unwrap().expected;
        assert_eq!(expected.groups, [["b", "c"]]);
        assert_eq!(expected.ignored, ["a", "line", "end"].map(str::to_owned).into());
    }
}
