//! Trees of files, each with a metadata file that lists its equal files.
//!
//! Owns the files of generated trees, and the form of the metadata file. `profile` decides the contents of a generated
//! tree; `real` downloads others; `cache` keeps a tree for later runs.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use super::{
    expected::{Expected, ExpectedBuilder, Recipe},
    profile::Profile,
};
use crate::{cache, options::value_name};

/// Modification time of the first file, in seconds since 1970; later files are slightly newer.
const FIRST_MODIFIED: u64 = 1_600_000_000;

/// Start of a metadata file.
pub(super) const SIGNATURE: &str = "gristmill-bench tree";

/// Changes when the same settings generate another tree.
const VERSION: u32 = 2;

/// Describes a tree to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TreeSpec {
    pub(super) profile: Profile,
    /// Multiplies the number of files, or the size of the big ones.
    pub(super) scale: f64,
    pub(super) seed: u64,
}

impl TreeSpec {
    /// Returns the name of the folder: at scale 1 the name of the profile.
    fn name(&self) -> String {
        let name = value_name(&self.profile);
        if self.scale == 1.0 { name } else { format!("{name}-x{}", self.scale) }
    }

    fn title(&self) -> String {
        format!("{SIGNATURE} {VERSION}: {}, scale {}, seed {}", value_name(&self.profile), self.scale, self.seed)
    }
}

/// A complete tree on disk.
pub(super) struct Tree {
    /// Absolute path of the tree.
    pub(super) root: PathBuf,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) expected: Expected,
    /// Whether it belongs to the system, where this user may lack the permission to read some files.
    pub(super) in_place: bool,
}

impl Tree {
    /// Returns the tree in `data`, which is generated if it is missing.
    pub(super) fn get(spec: TreeSpec, data: &Path) -> Result<Tree, String> {
        let root = data.join(spec.name());
        let (files, bytes, expected) = cache::get_or_make(&root, SIGNATURE, &spec.title(), read, |root| {
            let mut writer =
                TreeWriter { root: root.to_path_buf(), expected: ExpectedBuilder::default(), files: 0, bytes: 0 };
            spec.profile.write(&spec, &mut writer)?;
            Ok(metadata(writer.files, writer.bytes, &writer.expected.build()))
        })?;
        Ok(Tree { root, files, bytes, expected, in_place: false })
    }
}

/// Returns the text of a metadata file.
pub(super) fn metadata(files: u64, bytes: u64, expected: &Expected) -> String {
    format!("{files} files, {bytes} bytes\n\n{}", expected.to_text())
}

/// Parses a metadata file: number of files, number of bytes and expected groups.
pub(super) fn read(metadata: &str) -> Option<(u64, u64, Expected)> {
    let (counts, groups) = metadata.split_once('\n')?;
    let (files, bytes) = counts.strip_suffix(" bytes")?.split_once(" files, ")?;
    Some((files.parse().ok()?, bytes.parse().ok()?, Expected::from_text(groups)))
}

/// Writes files into a new tree and records the expected groups.
pub(super) struct TreeWriter {
    root: PathBuf,
    expected: ExpectedBuilder,
    files: u64,
    bytes: u64,
}

impl TreeWriter {
    pub(super) fn folder(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }

    /// Writes a new file with a modification time `age` seconds after the first.
    pub(super) fn file(&mut self, path: String, bytes: &[u8], recipe: Recipe, age: u64) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).open(self.root.join(&path))?;
        file.write_all(bytes)?;
        file.set_modified(UNIX_EPOCH + Duration::from_secs(FIRST_MODIFIED + age))?;
        self.files += 1;
        self.bytes += bytes.len() as u64;
        self.expected.add(path, bytes, recipe);
        Ok(())
    }

    pub(super) fn files(&self) -> u64 {
        self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::collections::HashMap;

    /// Returns every file with its bytes.
    fn contents(root: &Path) -> HashMap<String, Vec<u8>> {
        let mut found = HashMap::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let relative = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                    found.insert(relative, fs::read(path).unwrap());
                }
            }
        }
        found
    }

    #[test]
    fn expected_groups_match_the_bytes_on_disk() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        for (profile, scale) in
            [(Profile::Small, 0.02), (Profile::Big, 0.001), (Profile::Photos, 0.002), (Profile::Million, 0.002)]
        {
            let tree = Tree::get(TreeSpec { profile, scale, seed: 3 }, scratch.path()).unwrap();
            let contents = contents(&tree.root);
            assert_eq!(contents.len() as u64, tree.files);
            assert_eq!(contents.values().map(|bytes| bytes.len() as u64).sum::<u64>(), tree.bytes);
            let mut equal: HashMap<&[u8], Vec<String>> = HashMap::new();
            for (path, bytes) in contents.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                equal.entry(bytes).or_default().push(path.clone());
            }
            let mut groups: Vec<_> = equal.into_values().filter(|paths| paths.len() > 1).collect();
            groups.iter_mut().for_each(|paths| paths.sort());
            groups.sort();
            assert!(!groups.is_empty());
            assert!(tree.expected == Expected { groups, ..Expected::default() }, "{profile:?}");
        }
    }

    #[test]
    fn tree_is_reused_only_with_the_same_seed() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let get = |seed| Tree::get(TreeSpec { profile: Profile::Million, scale: 0.001, seed }, scratch.path());
        let first = get(1).unwrap();
        let marker = first.root.join("marker");
        fs::write(&marker, "").unwrap();
        assert_eq!(get(1).unwrap().expected, first.expected);
        assert!(marker.exists(), "the tree was generated again");
        assert_ne!(get(2).unwrap().expected, first.expected);
        assert!(!marker.exists(), "the tree of another seed was kept");
    }

    #[test]
    fn folder_without_metadata_is_not_removed() {
        let scratch = Scratch::new(&std::env::temp_dir()).unwrap();
        let foreign = scratch.path().join("photos");
        fs::create_dir(&foreign).unwrap();
        let error = Tree::get(TreeSpec { profile: Profile::Photos, scale: 1.0, seed: 1 }, scratch.path()).err();
        assert!(error.unwrap().contains("choose another folder"));
        assert!(foreign.exists());
    }
}
