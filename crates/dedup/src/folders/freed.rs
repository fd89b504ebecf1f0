//! What removing copies of folders frees on their disks.
//!
//! Owns that a file is freed only with its last name.

use super::tree::{File, NameHash, Tree};

/// Bytes that are freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Freed {
    /// As they are allocated on the disk.
    pub(super) allocated: u64,
    /// The size of the files.
    pub(super) size: u64,
}

/// Files with several names.
pub(super) struct LinkTable {
    /// For each name which file it is of, whether a symbolic link led there, and whether the link count is 1; sorted.
    names: Vec<(i64, bool, bool)>,
}

impl LinkTable {
    pub(super) fn new(tree: &Tree<NameHash>) -> Self {
        let linked = tree.files.iter().filter(|file| file.may_have_other_names());
        let mut names: Vec<_> =
            linked.map(|file| (file.inode_row(), file.via_symlink, file.is_single)).collect();
        names.sort_unstable();
        LinkTable { names }
    }

    /// What is freed if of these folders only the one that takes most is kept, the first of equal ones by path.
    pub(super) fn freed(&self, tree: &Tree<NameHash>, members: &[u32]) -> Freed {
        // Sorted lists, not sets: half a catalog may be the copy of the other half.
        let files = |member: &u32| tree.files[tree.folders[*member as usize].all()].iter();
        let on_disk = |member: &u32| -> u64 {
            let mut spaces: Vec<_> = files(member).map(|file| (file.inode_row(), file.allocated)).collect();
            spaces.sort_unstable();
            spaces.dedup_by_key(|(space, _)| *space);
            spaces.iter().map(|(_, allocated)| allocated).sum()
        };
        let kept = members.iter().rev().max_by_key(|member| on_disk(member));
        let removed = members.iter().filter(|member| Some(*member) != kept);
        let mut removed: Vec<&File<NameHash>> = removed.flat_map(files).collect();
        removed.sort_unstable_by_key(|file| file.inode_row());
        let mut freed = Freed::default();
        for names in removed.chunk_by(|a, b| a.inode_row() == b.inode_row()) {
            if !names[0].may_have_other_names() || self.is_freed_with(names) {
                freed.allocated += names[0].allocated;
                freed.size += names[0].size;
            }
        }
        freed
    }

    /// Whether a file is freed when these names are removed: it has no others, and lies where they are. Other paths to a
    /// file whose link count is 1 lead to the same name.
    fn is_freed_with(&self, names: &[&File<NameHash>]) -> bool {
        let space = names[0].inode_row();
        let from = self.names.partition_point(|(other, ..)| *other < space);
        let all = self.names[from..].iter().take_while(|(other, ..)| *other == space);
        let has_one_name = all.clone().all(|(.., is_single)| *is_single);
        has_one_name
            || all.clone().count() == names.len() && !all.clone().any(|(_, via_symlink, _)| *via_symlink)
    }
}
