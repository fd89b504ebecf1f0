//! The expected groups of equal files of a tree. Those of a generated tree follow from how its files were generated and
//! are never read back from disk; those of a real tree come from `reference`.
//!
//! Owns the comparison of a result with them, and which names it can compare. `candidate` parses the results.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Groups of equal, non-empty files. Paths are relative to the tree and sorted, as are the groups.
///
/// Programs list one or all of several hard links of a file. Each link is therefore compared as the first name of the
/// file, and a group with hard links of only one file is no group.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) groups: Vec<Vec<String>>,
    /// First name of each further hard link.
    pub(super) links: BTreeMap<String, String>,
    /// Lines of a result whose group is not compared: a file in it has a name that not all programs print unchanged.
    pub(super) ignored: BTreeSet<String>,
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
        Expected { groups, ..Expected::default() }
    }
}

/// Returns a name as text if all programs print it unchanged and in one line. Programs replace or escape bytes that are
/// not UTF-8, and control characters.
pub(super) fn comparable(name: &[u8]) -> Option<&str> {
    let is_replaced = |char: char| char.is_control() || char == char::REPLACEMENT_CHARACTER;
    std::str::from_utf8(name).ok().filter(|name| !name.contains(is_replaced))
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
    pub(super) fn mistakes(&self, root: &str, result: &[Vec<Vec<u8>>]) -> Mistakes {
        let mut expected: HashSet<Vec<&str>> =
            self.groups.iter().map(|paths| paths.iter().map(String::as_str).collect()).collect();
        let mut false_groups = 0;
        let inside = format!("{root}/");
        for group in result {
            let lines: Option<Vec<&str>> = group.iter().map(|line| comparable(line)).collect();
            let Some(lines) = lines else { continue };
            let names: Vec<&str> = lines.iter().map(|line| line.strip_prefix(&inside).unwrap_or(line)).collect();
            if names.iter().any(|name| self.ignored.contains(*name)) {
                continue;
            }
            let files = self.files_of(&names);
            let is_valid = lines.iter().all(|line| line.starts_with(&inside)) && are_distinct(&names);
            let only_links = files.len() == 1 && names.len() > 1;
            // Removed, so that a group reported twice is false the second time.
            if !is_valid || !(only_links || expected.remove(&files)) {
                false_groups += 1;
            }
        }
        Mistakes { missed: expected.len(), false_groups }
    }

    /// Returns the sorted first names of the files that have these names.
    fn files_of<'a>(&'a self, names: &[&'a str]) -> Vec<&'a str> {
        let files: BTreeSet<&str> =
            names.iter().map(|name| self.links.get(*name).map_or(*name, String::as_str)).collect();
        files.into_iter().collect()
    }

    /// Writes one path per line, with an empty line after each group. Further lines begin with a tab, which is in no
    /// path: `link`, a name and the first name of its file; `ignored` and a line of a result.
    pub(super) fn to_text(&self) -> String {
        let groups = self.groups.iter().map(|group| group.join("\n") + "\n\n");
        let links = self.links.iter().map(|(name, first)| format!("{LINK}{name}\t{first}\n"));
        let ignored = self.ignored.iter().map(|line| format!("{IGNORED}{line}\n"));
        groups.chain(links).chain(ignored).collect()
    }

    pub(super) fn from_text(text: &str) -> Expected {
        let mut expected = Expected::default();
        let mut group = Vec::new();
        for line in text.split('\n') {
            if let Some((name, first)) = line.strip_prefix(LINK).and_then(|link| link.split_once('\t')) {
                expected.links.insert(name.to_owned(), first.to_owned());
            } else if let Some(ignored) = line.strip_prefix(IGNORED) {
                expected.ignored.insert(ignored.to_owned());
            } else if !line.is_empty() {
                group.push(line.to_owned());
            } else if !group.is_empty() {
                expected.groups.push(std::mem::take(&mut group));
            }
        }
        expected
    }
}

fn are_distinct(names: &[&str]) -> bool {
    names.iter().collect::<HashSet<_>>().len() == names.len()
}

const LINK: &str = "\tlink\t";
const IGNORED: &str = "\tignored\t";

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
        let result: Vec<Vec<Vec<u8>>> =
            result.iter().map(|group| group.iter().map(|path| path.as_bytes().to_vec()).collect()).collect();
        assert_eq!(expected().mistakes("/t", &result), Mistakes { missed, false_groups });
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

    /// The file `a` of the group `a`, `b` has a further name, as has `alone`.
    fn linked() -> Expected {
        let groups = vec![vec!["a".to_owned(), "b".into()]];
        let links = [("a2".to_owned(), "a".to_owned()), ("alone2".into(), "alone".into())];
        Expected { groups, links: links.into(), ignored: ["odd".to_owned(), "part of a name".into()].into() }
    }

    #[track_caller]
    fn check_linked(result: &[&[&[u8]]], missed: usize, false_groups: usize) {
        let result: Vec<Vec<Vec<u8>>> =
            result.iter().map(|group| group.iter().map(|line| [b"/t/", *line].concat()).collect()).collect();
        assert_eq!(linked().mistakes("/t", &result), Mistakes { missed, false_groups });
    }

    #[test]
    fn hard_links_count_as_the_first_name_of_their_file() {
        check_linked(&[&[b"b", b"a2"]], 0, 0);
        check_linked(&[&[b"a", b"a2", b"b"], &[b"alone", b"alone2"]], 0, 0);
        check_linked(&[&[b"a", b"a2"]], 1, 0);
        check_linked(&[&[b"a", b"b"], &[b"alone"]], 0, 1);
        check_linked(&[&[b"a", b"a", b"b"]], 1, 1);
    }

    #[test]
    fn groups_with_names_that_programs_change_are_not_compared() {
        check_linked(&[&[b"a", b"b"], &[b"odd", b"other"], &[b"x", b"\xff"], &[b"x", "\u{fffd}".as_bytes()]], 0, 0);
        let pieces = vec![b"/t/odd".to_vec(), b"part of a name".to_vec()];
        assert_eq!(linked().mistakes("/t", &[pieces]), Mistakes { missed: 1, false_groups: 0 });
        for (name, is_comparable) in
            [(&b"a b"[..], true), ("\u{e9}".as_bytes(), true), (b"a\nb", false), (b"\xe9", false)]
        {
            assert_eq!(comparable(name).is_some(), is_comparable, "{}", name.escape_ascii());
        }
    }

    #[test]
    fn expected_groups_survive_a_round_trip_as_text() {
        for expected in [expected(), linked(), Expected::default()] {
            assert_eq!(Expected::from_text(&expected.to_text()), expected);
        }
        let spaces = Expected { groups: vec![vec![" a".into(), "b ".into()]], ..Expected::default() };
        assert_eq!(Expected::from_text(&spaces.to_text()), spaces);
    }
}
