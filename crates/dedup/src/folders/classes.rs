//! Folders with the same in them, told by signatures made from the inside out.
//!
//! Owns what "identical" means. A folder's signature is a hash of the contents of its files and the signatures of
//! its folders, both sorted; so a folder never has that of one below it, which has fewer folders. It has none
//! when something in it or below is unknown, or is nowhere else.

use std::collections::BTreeSet;

use super::tree::{ALONE, NameHash, Tree, UNKNOWN};

/// A folder that is like no other.
pub(super) const NONE: u32 = 0;

/// For each folder the number of its class; classes have two members or more.
pub(super) struct Classes {
    of: Vec<u32>,
    /// The members of each, in the order of folders, beginning with class 1.
    members: Vec<Vec<u32>>,
}

type Signature = [u8; 32];

impl Classes {
    /// Of the folders that are `wanted`.
    pub(super) fn new(tree: &Tree<NameHash>, names: bool, wanted: impl Fn(u32) -> bool) -> Self {
        let signatures = signatures(tree, names);
        let mut sorted: Vec<u32> = (0..tree.folders.len() as u32)
            .filter(|&at| {
                signatures[at as usize].is_some() && tree.folders[at as usize].count() > 0 && wanted(at)
            })
            .collect();
        sorted.sort_unstable_by_key(|&at| (signatures[at as usize], at));
        let mut classes = Classes { of: vec![NONE; tree.folders.len()], members: Vec::new() };
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

    /// Classes that say more than others do: not those whose every member lies in a member of one other class.
    pub(super) fn top_most(self, tree: &Tree<NameHash>) -> impl Iterator<Item = Vec<u32>> {
        let Classes { of, members } = self;
        let above = move |folder: u32| -> BTreeSet<u32> {
            tree.above(folder).map(|at| of[at as usize]).filter(|&class| class != NONE).collect()
        };
        members.into_iter().filter(move |members| {
            let mut common: Option<BTreeSet<u32>> = None;
            for &member in members {
                let above = above(member);
                let left: BTreeSet<u32> = match common {
                    None => above,
                    Some(common) => common.intersection(&above).copied().collect(),
                };
                if left.is_empty() {
                    return true;
                }
                common = Some(left);
            }
            false
        })
    }
}

fn signatures(tree: &Tree<NameHash>, names: bool) -> Vec<Option<Signature>> {
    let mut signatures = vec![None; tree.folders.len()];
    // Those in a folder come after it.
    for at in (0..tree.folders.len()).rev() {
        signatures[at] = signature(tree, at as u32, names, &signatures);
    }
    signatures
}

fn signature(tree: &Tree<NameHash>, at: u32, names: bool, known: &[Option<Signature>]) -> Option<Signature> {
    let folder = &tree.folders[at as usize];
    if !folder.whole {
        return None;
    }
    let name = |name: NameHash| if names { name } else { NameHash::default() };
    let mut files = Vec::with_capacity(folder.own().len());
    for file in &tree.files[folder.own()] {
        if file.content == ALONE || file.content == UNKNOWN {
            return None;
        }
        files.push((name(file.label), file.content));
    }
    files.sort_unstable();
    let mut folders = Vec::new();
    for child in tree.children(at) {
        folders.push((name(tree.folders[child as usize].name), known[child as usize]?));
    }
    folders.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    // Counted, so that no list is the beginning of another.
    hasher.update(&(files.len() as u64).to_le_bytes());
    for (name, content) in &files {
        hasher.update(name).update(&content.to_le_bytes());
    }
    for (name, signature) in &folders {
        hasher.update(name).update(signature);
    }
    Some(*hasher.finalize().as_bytes())
}
