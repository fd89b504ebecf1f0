//! Folders with the same in them, found by signatures made from the inside out.
//!
//! Owns what "identical" means. A folder's signature is a hash of the contents of its files and the signatures of
//! its folders, both sorted; so a folder never has that of one below it, which has fewer folders. It has none
//! when something in it or below is unknown, or is nowhere else.
//!
//! There are two of each: one of what was scanned; and one of everything, which also hashes the entries that were passed
//! over. Folders are identical by the second. If only the first is the same, they are identical as far as was scanned.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::tree::{File, Folder, NameHash, Tree, UNIQUE, UNKNOWN};

/// A folder that is like no other.
pub(super) const NO_CLASS: u32 = 0;

/// For each folder the number of its class; classes have two members or more.
pub(super) struct Classes {
    of: Vec<u32>,
    /// The members of each, in the order of folders, beginning with class 1.
    members: Vec<Vec<u32>>,
}

type Signature = [u8; 32];

/// Which folders are the same.
pub(super) struct FolderClasses {
    /// Those that are identical.
    pub(super) identical: Classes,
    /// Those in which everything that was scanned is the same.
    pub(super) scanned: Classes,
}

impl FolderClasses {
    /// Of the folders that are `wanted`.
    pub(super) fn new(tree: &Tree<NameHash>, names: bool, is_selected: impl Fn(u32) -> bool) -> Self {
        let mut signatures = vec![Signatures::default(); tree.folders.len()];
        // Those in a folder come after it.
        for at in (0..tree.folders.len()).rev() {
            signatures[at] = Signatures::of(tree, at as u32, names, &signatures);
        }
        let classes = |signature: fn(&Signatures) -> Option<Signature>| {
            let signatures = signatures.iter().map(signature).collect::<Vec<_>>();
            Classes::new(tree, &signatures, &is_selected)
        };
        FolderClasses { identical: classes(|both| both.all), scanned: classes(|both| both.scanned) }
    }

    /// Whether these folders, in which everything that was scanned is the same, are identical.
    pub(super) fn is_identical(&self, members: &[u32]) -> bool {
        let class = |at: &u32| self.identical.of(*at);
        let first = members.first().map_or(NO_CLASS, class);
        first != NO_CLASS && members.iter().all(|at| class(at) == first)
    }
}

impl Classes {
    /// Of folders with equal signatures.
    fn new(
        tree: &Tree<NameHash>,
        signatures: &[Option<Signature>],
        is_selected: &dyn Fn(u32) -> bool,
    ) -> Self {
        let mut sorted: Vec<u32> = (0..tree.folders.len() as u32)
            .filter(|&at| {
                signatures[at as usize].is_some() && tree.folders[at as usize].count() > 0 && is_selected(at)
            })
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

    /// The folders of a class.
    pub(super) fn members(&self, class: u32) -> &[u32] {
        class.checked_sub(1).map_or(&[], |at| self.members[at as usize].as_slice())
    }

    /// Classes that say more than others do: not those whose every member lies in a member of one other class. A folder
    /// that several paths lead to is one member.
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

/// Of folders that hold the very same files, by a bind mount or a symbolic link, only the first.
fn distinct_members(tree: &Tree<NameHash>, members: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let mut is_other = |member: &&u32| {
        let files = &tree.files[tree.folders[**member as usize].all()];
        let mut spaces: Vec<i64> = files.iter().map(File::inode_row).collect();
        spaces.sort_unstable();
        !files.iter().any(File::has_other_paths) || seen.insert(spaces)
    };
    members.iter().filter(|member| is_other(member)).copied().collect()
}

/// The signatures of a folder.
#[derive(Clone, Copy, Default)]
struct Signatures {
    /// Of what was scanned.
    scanned: Option<Signature>,
    /// Of everything in it.
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
            let inner = |child: u32| {
                Some((name(tree.folders[child as usize].name), signature(&known[child as usize])?))
            };
            let mut folders: Vec<_> = tree.children(at).map(inner).collect::<Option<_>>()?;
            folders.sort_unstable();
            Some(folders)
        };
        let (inner, all) = (folders(|both| both.scanned), folders(|both| both.all));
        let scanned = inner.as_ref().map(|inner| hash(&files, inner, None));
        let all = match (all, skipped(folder, names)) {
            // Mostly nothing was passed over.
            (Some(all), Some(None)) if Some(&all) == inner.as_ref() => scanned,
            (Some(all), Some(skipped)) => Some(hash(&files, &all, skipped)),
            _ => None,
        };
        Signatures { scanned, all }
    }
}

/// The digest of what was passed over in a folder. None if something there is not known.
fn skipped(folder: &Folder, names: bool) -> Option<Option<u128>> {
    let skipped = folder.skipped.filter(|skipped| skipped.unknown == 0)?;
    let digest = if names { skipped.named } else { skipped.unnamed };
    Some((skipped.entries > 0).then_some(digest))
}

fn hash(files: &[(NameHash, u32)], folders: &[(NameHash, Signature)], skipped: Option<u128>) -> Signature {
    let mut hasher = blake3::Hasher::new();
    // Counted, so that no list is the beginning of another.
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
