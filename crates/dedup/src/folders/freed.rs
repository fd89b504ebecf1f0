//! Computes the space that removing copies of folders frees.
//!
//! Owns the rule that a file's space is freed only when its last name is removed.

use super::tree::{File, NameHash, Tree};

/// Space freed by removing files, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) allocated: u64,
    pub(super) size: u64,
}

/// Index of the files that have, or may have, several names.
pub(super) struct LinkTable {
    /// For each name: its file, whether it was reached through a symbolic link, and whether the link count is 1.
    /// Sorted.
    names: Vec<(i64, bool, bool)>,
}

impl LinkTable {
    pub(super) fn new(tree: &Tree<NameHash>) -> Self {
        let linked = tree.files.iter().filter(|file| file.may_have_other_names());
        let mut names: Vec<_> = linked.map(|file| (file.inode, file.via_symlink, file.is_single)).collect();
        names.sort_unstable();
        LinkTable { names }
    }

    /// Returns the space that is freed if only the folder that uses most space is kept, the first of equals by path.
    pub(super) fn freed(&self, tree: &Tree<NameHash>, members: &[u32]) -> Freed {
        // Sorted lists, not sets, because half of a catalog may be a copy of the other half.
        let files = |member: &u32| tree.files[tree.folders[*member as usize].all()].iter();
        let on_disk = |member: &u32| -> u64 {
            let mut inodes: Vec<_> = files(member).map(|file| (file.inode, file.allocated)).collect();
            inodes.sort_unstable();
            inodes.dedup_by_key(|(inode, _)| *inode);
            inodes.iter().map(|(_, allocated)| allocated).sum()
        };
        let kept = members.iter().rev().max_by_key(|member| on_disk(member));
        let removed: Vec<u32> = members.iter().filter(|member| Some(*member) != kept).copied().collect();
        self.freed_without(tree, &removed)
    }

    /// Returns the space that is freed if these folders are removed.
    pub(super) fn freed_without(&self, tree: &Tree<NameHash>, folders: &[u32]) -> Freed {
        let files = |folder: &u32| tree.files[tree.folders[*folder as usize].all()].iter();
        let mut removed: Vec<&File<NameHash>> = folders.iter().flat_map(files).collect();
        removed.sort_unstable_by_key(|file| file.inode);
        let mut freed = Freed::default();
        for names in removed.chunk_by(|a, b| a.inode == b.inode) {
            if !names[0].may_have_other_names() || self.is_freed_with(names) {
                freed.allocated += names[0].allocated;
                freed.size += names[0].size;
            }
        }
        freed
    }

    /// Whether removing these names frees their file: it has no other names and was not reached through a symbolic
    /// link. Other paths to a file with link count 1 lead to the same name.
    fn is_freed_with(&self, names: &[&File<NameHash>]) -> bool {
        let inode = names[0].inode;
        let from = self.names.partition_point(|(other, ..)| *other < inode);
        let all = self.names[from..].iter().take_while(|(other, ..)| *other == inode);
        let has_one_name = all.clone().all(|(.., is_single)| *is_single);
        has_one_name || all.clone().count() == names.len() && !all.clone().any(|(_, via_symlink, _)| *via_symlink)
    }
}
