//! The expected groups of equal files of a tree. They follow from how the files were generated and are never read back
//! from disk.
//!
//! Owns the comparison of a result with them. `candidate` parses the results.

use std::collections::{HashMap, HashSet};

/// Groups of equal, non-empty files. Paths are relative to the tree and sorted, as are the groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) groups: Vec<Vec<String>>,
}

/// Identifies how the bytes of a file were generated. Equal recipes give equal bytes; different recipes give different
/// bytes, except for files of a few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe(pub(super) &'static str, pub(super) [u64; 3]);

/// Identifies a content within its tree.
#[derive(PartialEq, Eq, Hash)]
enum Content {
    /// So few bytes that different recipes can be equal by chance: compared by value.
    Short(Vec<u8>),
    Generated(Recipe, usize),
}

/// Collects the expected groups while a tree is generated.
#[derive(Default)]
pub(super) struct ExpectedBuilder {
    files: HashMap<Content, Vec<String>>,
}

impl ExpectedBuilder {
    pub(super) fn add(&mut self, path: String, bytes: &[u8], recipe: Recipe) {
        let content =
            if bytes.len() <= 32 { Content::Short(bytes.to_vec()) } else { Content::Generated(recipe, bytes.len()) };
        if !bytes.is_empty() {
            self.files.entry(content).or_default().push(path);
        }
    }

    pub(super) fn build(self) -> Expected {
        let mut groups: Vec<_> = self.files.into_values().filter(|paths| paths.len() > 1).collect();
        groups.iter_mut().for_each(|paths| paths.sort());
        groups.sort();
        Expected { groups }
    }
}

/// Number of groups by which a result differs from the expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mistakes {
    pub(super) missed: usize,
    pub(super) false_groups: usize,
}

impl Mistakes {
    /// Describes the mistakes, if there are any.
    pub(super) fn description(self) -> Option<String> {
        let Mistakes { missed, false_groups } = self;
        (self != Mistakes::default()).then(|| format!("missed {missed} groups, {false_groups} false"))
    }
}

impl Expected {
    pub(super) fn files(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flatten()
    }

    /// Compares groups of absolute paths under `root` with the expected ones. A group that does not match exactly
    /// counts as false, and the expected one as missed. A path outside of `root` makes its group false.
    pub(super) fn mistakes(&self, root: &str, mut result: Vec<Vec<Vec<u8>>>) -> Mistakes {
        result.iter_mut().for_each(|group| group.sort());
        let mut expected: HashSet<Vec<&[u8]>> =
            self.groups.iter().map(|paths| paths.iter().map(String::as_bytes).collect()).collect();
        let mut false_groups = 0;
        let inside = [root.as_bytes(), b"/"].concat();
        for group in &result {
            let relative: Option<Vec<&[u8]>> = group.iter().map(|path| path.strip_prefix(&inside[..])).collect();
            // Removed, so that a group reported twice is false the second time.
            if !relative.is_some_and(|paths| expected.remove(&paths)) {
                false_groups += 1;
            }
        }
        Mistakes { missed: expected.len(), false_groups }
    }

    /// Writes one path per line, with an empty line after each group.
    pub(super) fn to_text(&self) -> String {
        self.groups.iter().map(|group| group.join("\n") + "\n\n").collect()
    }

    pub(super) fn from_text(text: &str) -> Expected {
        let groups = text.split("\n\n").map(str::trim).filter(|group| !group.is_empty());
        Expected { groups: groups.map(|group| group.lines().map(str::to_owned).collect()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        let mut expected = ExpectedBuilder::default();
        for (path, bytes, number) in [
            ("b", &[1; 40][..], 1),
            ("a", &[1; 40], 1),
            ("alone", &[2; 40], 2),
            ("x y", b"?", 3),
            ("other recipe, same few bytes", b"?", 4),
            ("empty", b"", 5),
            ("empty too", b"", 5),
        ] {
            expected.add(path.into(), bytes, Recipe("test", [number, 0, 0]));
        }
        expected.build()
    }

    #[track_caller]
    fn check(result: &[&[&str]], missed: usize, false_groups: usize) {
        let result = result.iter().map(|group| group.iter().map(|path| path.as_bytes().to_vec()).collect());
        assert_eq!(expected().mistakes("/t", result.collect()), Mistakes { missed, false_groups });
    }

    #[test]
    fn mistakes_are_counted_by_group() {
        let few: &[&str] = &["/t/other recipe, same few bytes", "/t/x y"];
        check(&[&["/t/b", "/t/a"], few], 0, 0);
        check(&[few], 1, 0);
        check(&[&["/t/a", "/t/b", "/t/alone"], few], 1, 1);
        check(&[&["/t/a", "/t/b"], &["/t/a", "/t/b"], few], 0, 1);
        check(&[&["/t/a", "/t/b"], &["/t/empty", "/t/empty too"], few], 0, 1);
        check(&[&["/elsewhere/a", "/elsewhere/b"], few], 1, 1);
        check(&[], 2, 0);
    }

    #[test]
    fn expected_groups_survive_a_round_trip_as_text() {
        assert_eq!(Expected::from_text(&expected().to_text()), expected());
        assert_eq!(Expected::from_text(""), Expected::default());
    }
}
