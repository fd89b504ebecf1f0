//! Finds folders with the same contents by signatures computed bottom-up.
//!
//! Owns the definition of identical folders. A folder's signature is a hash of the contents of its files and the
//! signatures of its subfolders, both sorted. A folder never has the signature of a folder below it, which has fewer
//! subfolders. A folder has no signature if a content or folder in or below it is unknown or unique.
//!
//! Each folder has two signatures: one of the scanned files, and one that also covers the skipped entries. Folders are
//! identical if the second is equal. If only the first is equal, they are identical as far as they were scanned.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::tree::{File, Folder, NameHash, Tree, UNIQUE, UNKNOWN};

/// Class of a folder that equals no other.
pub(super) const NO_CLASS: u32 = 0;

/// The class number of each folder. A class has at least two members.
pub(super) struct Classes {
    of: Vec<u32>,
    /// Members of each class in the order of folders. The first item is class 1.
    members: Vec<Vec<u32>>,
}

type Signature = [u8; 32];

pub(super) struct FolderClasses {
    pub(super) identical: Classes,
    pub(super) scanned: Classes,
}

impl FolderClasses {
    /// Computes the classes of the selected folders. `names` compares names too.
    pub(super) fn new(tree: &Tree<NameHash>, names: bool, is_selected: impl Fn(u32) -> bool) -> Self {
        let mut signatures = vec![Signatures::default(); tree.folders.len()];
        // Subfolders come after their parent, so reverse order computes them first.
        for at in (0..tree.folders.len()).rev() {
            signatures[at] = Signatures::of(tree, at as u32, names, &signatures);
        }
        let classes = |signature: fn(&Signatures) -> Option<Signature>| {
            let signatures = signatures.iter().map(signature).collect::<Vec<_>>();
            Classes::new(tree, &signatures, &is_selected)
        };
        FolderClasses { identical: classes(|both| both.all), scanned: classes(|both| both.scanned) }
    }

    /// Whether these folders, whose scanned files are the same, are identical.
    pub(super) fn is_identical(&self, members: &[u32]) -> bool {
        let class = |at: &u32| self.identical.of(*at);
        let first = members.first().map_or(NO_CLASS, class);
        first != NO_CLASS && members.iter().all(|at| class(at) == first)
    }
}

impl Classes {
    fn new(tree: &Tree<NameHash>, signatures: &[Option<Signature>], selected: &dyn Fn(u32) -> bool) -> Self {
        let mut sorted: Vec<u32> = (0..tree.folders.len() as u32)
            .filter(|&at| signatures[at as usize].is_some() && tree.folders[at as usize].count() > 0 && selected(at))
            .collect();
        sorted.sort_unstable_by_key(|&at| (signatures[at as usize], at));
        let mut classes = Classes { of: vec![NO_CLASS; tree.folders.len()], members: Vec::new() };
        for same in sorted.chunk_by(|&a, &b| signatures[a as usize] == signatures[b as usize]) {
            if same.len() > 1 {
                classes.members.push(same.to_vec());
                let number = classes.members.len() as u32;
                same.iter().for_each(|&at| classes.of[at as usize] = number);
            }
        }
        classes
    }

    pub(super) fn of(&self, folder: u32) -> u32 {
        self.of[folder as usize]
    }

    /// Members of a class. Empty for `NO_CLASS`.
    pub(super) fn members(&self, class: u32) -> &[u32] {
        class.checked_sub(1).map_or(&[], |at| self.members[at as usize].as_slice())
    }

    /// Returns the outermost classes: without those whose members are all inside members of one other class. A folder
    /// that is reached by several paths counts as one member.
    pub(super) fn outermost<'a>(&'a self, tree: &Tree<NameHash>) -> Vec<Cow<'a, [u32]>> {
        let has_other_paths = tree.files.iter().any(File::has_other_paths);
        let listed = self.members.iter().map(|members| match has_other_paths {
            true => Cow::Owned(distinct_members(tree, members)),
            false => Cow::Borrowed(members.as_slice()),
        });
        let mut listed: Vec<Cow<'a, [u32]>> = listed.collect();
        let is_listed: Vec<bool> = listed.iter().map(|members| members.len() > 1).collect();
        let above = |folder: u32| -> BTreeSet<u32> {
            let classes = tree.above(folder).map(|at| self.of(at));
            classes.filter(|&class| class != NO_CLASS && is_listed[class as usize - 1]).collect()
        };
        listed.retain(|members| {
            let mut common: Option<BTreeSet<u32>> = None;
            for &member in members.iter() {
                let above = above(member);
                let left: BTreeSet<u32> = match common {
                    None => above,
                    Some(common) => common.intersection(&above).copied().collect(),
                };
                if left.is_empty() {
                    return members.len() > 1;
                }
                common = Some(left);
            }
            false
        });
        listed
    }
}

/// Removes members that contain the same files as an earlier one because of a bind mount or symbolic link.
fn distinct_members(tree: &Tree<NameHash>, members: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let mut is_other = |member: &&u32| {
        let files = &tree.files[tree.folders[**member as usize].all()];
        let mut inodes: Vec<i64> = files.iter().map(|file| file.inode).collect();
        inodes.sort_unstable();
        !files.iter().any(File::has_other_paths) || seen.insert(inodes)
    };
    members.iter().filter(|member| is_other(member)).copied().collect()
}

#[derive(Clone, Copy, Default)]
struct Signatures {
    scanned: Option<Signature>,
    all: Option<Signature>,
}

impl Signatures {
    fn of(tree: &Tree<NameHash>, at: u32, names: bool, known: &[Signatures]) -> Self {
        let folder = &tree.folders[at as usize];
        let name = |name: NameHash| if names { name } else { NameHash::default() };
        let mut files = Vec::with_capacity(folder.own().len());
        for file in &tree.files[folder.own()] {
            if file.content == UNIQUE || file.content == UNKNOWN {
                return Signatures::default();
            }
            files.push((name(file.name), file.content));
        }
        if !folder.whole {
            return Signatures::default();
        }
        files.sort_unstable();
        let folders = |signature: fn(&Signatures) -> Option<Signature>| {
            let inner =
                |child: u32| Some((name(tree.folders[child as usize].name), signature(&known[child as usize])?));
            let mut folders: Vec<_> = tree.children(at).map(inner).collect::<Option<_>>()?;
            folders.sort_unstable();
            Some(folders)
        };
        let (inner, all) = (folders(|both| both.scanned), folders(|both| both.all));
        let scanned = inner.as_ref().map(|inner| hash(&files, inner, None));
        let all = match (all, skipped(folder, names)) {
            // No entry was skipped, as in most folders.
            (Some(all), Some(None)) if Some(&all) == inner.as_ref() => scanned,
            (Some(all), Some(skipped)) => Some(hash(&files, &all, skipped)),
            _ => None,
        };
        Signatures { scanned, all }
    }
}

/// Digest of the skipped entries of a folder. The outer `None` means that some of them are unknown, the inner one that
/// there are none.
fn skipped(folder: &Folder, names: bool) -> Option<Option<u128>> {
    let skipped = folder.skipped.filter(|skipped| skipped.unknown == 0)?;
    let digest = if names { skipped.named } else { skipped.unnamed };
    Some((skipped.entries > 0).then_some(digest))
}

fn hash(files: &[(NameHash, u32)], folders: &[(NameHash, Signature)], skipped: Option<u128>) -> Signature {
    let mut hasher = blake3::Hasher::new();
    // The length prevents one list from being a prefix of another.
    hasher.update(&(files.len() as u64).to_le_bytes());
    for (name, content) in files {
        hasher.update(name).update(&content.to_le_bytes());
    }
    hasher.update(&(folders.len() as u64).to_le_bytes());
    for (name, signature) in folders {
        hasher.update(name).update(signature);
    }
    if let Some(digest) = skipped {
        hasher.update(&digest.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}
