//! The peers of `dedup`: their command lines and the parsers of their results.
//!
//! Each peer must report all groups of equal files of at least one byte, in hidden folders too and regardless of
//! .gitignore files, and must not follow symbolic links. Where that is not a peer's default, its arguments say so. No
//! peer is asked to repeat a comparison that it makes anyway, or to skip a check that makes its result certain.

use std::{
    borrow::Cow,
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use crate::process::CommandLine;

/// Groups of paths as bytes: not every program writes UTF-8.
pub(super) type Groups = Vec<Vec<Vec<u8>>>;

/// One program with one set of arguments.
pub(super) struct Candidate {
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    /// Arguments before those for the tree and the output file.
    args: &'static [&'static str],
    /// Arguments after `args` that differ between candidates of one program.
    settings: &'static [&'static str],
    /// Arguments that enable a cache for the next run; None if it has no cache.
    pub(super) cached: Option<&'static [&'static str]>,
    dialect: Dialect,
    /// Whether it is measured in the growth tables, over a million files.
    pub(super) growth: bool,
}

/// Form of the last arguments and of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// The tree is the last argument; groups separated by empty lines are printed on standard output.
    Fdupes,
    /// As `Fdupes`, with escaped paths.
    Fclones,
    /// As `Fdupes`, but the groups are written to a file.
    Rmlint,
    Rdfind,
    Czkawka,
}

pub(super) const PEERS: &[Candidate] = &[
    fclones("fclones", &[]).cached(&["--cache"]),
    fclones("fclones blake3", &["--hash-fn", "blake3"]).cached(&["--cache"]).in_growth(),
    // The disk of a virtual machine reports itself as rotating, so fclones reads it with one thread.
    fclones("fclones, as for an SSD", &["--threads", "default:8,8"]),
    fclones("fclones blake3, as for an SSD", &["--hash-fn", "blake3", "--threads", "default:8,8"]).cached(&["--cache"]),
    fdupes("yadf", "yadf", &["--no-empty", "--format", "fdupes"]).in_growth(),
    fdupes("yadf blake3", "yadf", &["--no-empty", "--format", "fdupes", "--algorithm", "blake3"]),
    Candidate {
        dialect: Dialect::Czkawka,
        // By default it caches nothing about small files.
        cached: Some(&[
            "--use-prehash-cache",
            "--minimal-prehash-cache-file-size",
            "1",
            "--minimal-cached-file-size",
            "1",
        ]),
        ..fdupes(
            "czkawka blake3",
            "czkawka_cli",
            &["dup", "--minimal-file-size", "1", "--search-method", "HASH", "--hash-type", "BLAKE3"],
        )
    },
    fdupes("jdupes", "jdupes", &["--recurse", "--quiet"]),
    fdupes("jdupes -Q", "jdupes", &["--recurse", "--quiet", "--quick"]),
    // rmlint can store checksums in extended attributes. That would write to the tree and change it for the other
    // peers. By default it compares the targets of symbolic links like contents of files.
    Candidate {
        dialect: Dialect::Rmlint,
        ..fdupes("rmlint", "rmlint", &["--types", "duplicates", "--hidden", "--no-followlinks"])
    },
    Candidate { dialect: Dialect::Rdfind, ..fdupes("rdfind", "rdfind", &["-makeresultsfile", "true"]) },
];

/// A program that prints as fdupes does, without a cache.
const fn fdupes(name: &'static str, program: &'static str, args: &'static [&'static str]) -> Candidate {
    Candidate { name, program, args, settings: &[], cached: None, dialect: Dialect::Fdupes, growth: false }
}

/// fclones with some settings. By default it skips hidden files and those that .gitignore and .fdignore files exclude.
const fn fclones(name: &'static str, settings: &'static [&'static str]) -> Candidate {
    let all = fdupes(name, "fclones", &["group", "--format", "fdupes", "--hidden", "--no-ignore"]);
    Candidate { settings, dialect: Dialect::Fclones, ..all }
}

impl Candidate {
    const fn cached(self, args: &'static [&'static str]) -> Self {
        Candidate { cached: Some(args), ..self }
    }

    const fn in_growth(self) -> Self {
        Candidate { growth: true, ..self }
    }

    /// Returns the command line for a tree. With `rescan` it uses the cache of an earlier run, if the program has one.
    pub(super) fn command_line(&self, program: &Path, root: &Path, result: &Path, rescan: bool) -> CommandLine {
        let mut args: Vec<OsString> = self.args.iter().chain(self.settings).map(OsString::from).collect();
        let cached = self.cached.filter(|_| rescan);
        args.extend(cached.unwrap_or_default().iter().map(OsString::from));
        match self.dialect {
            Dialect::Fdupes | Dialect::Fclones => args.push(root.into()),
            Dialect::Rmlint => {
                let mut output = OsString::from("fdupes:");
                output.push(result);
                args.extend(["--output".into(), output, root.into()]);
            }
            Dialect::Rdfind => args.extend(["-outputname".into(), result.into(), root.into()]),
            Dialect::Czkawka => {
                if cached.is_none() {
                    args.push("--disable-cache".into());
                }
                args.extend(["--do-not-print-results".into(), "--file-to-save".into(), result.into()]);
                args.extend(["--directories".into(), root.into()]);
            }
        }
        // czkawka exits with 11 if it found duplicates.
        let success_codes: &[i32] = if self.dialect == Dialect::Czkawka { &[0, 11] } else { &[0] };
        CommandLine { program: program.to_path_buf(), args, success_codes }
    }

    /// Reads the reported groups.
    pub(super) fn read_groups(&self, stdout: &Path, result: &Path) -> io::Result<Groups> {
        Ok(match self.dialect {
            Dialect::Fdupes => parse_fdupes(&fs::read(stdout)?),
            Dialect::Fclones => unescape_groups(parse_fdupes(&fs::read(stdout)?)),
            Dialect::Rmlint => parse_fdupes(&fs::read(result)?),
            Dialect::Rdfind => rdfind(&fs::read(result)?),
            Dialect::Czkawka => czkawka(&fs::read(result)?),
        })
    }
}

/// Returns the command line of b3sum over the files that have duplicates, as many files at a time as a command line
/// holds: the time to read the files that must be read.
pub(super) fn b3sum_duplicates(xargs: PathBuf, b3sum: &Path, list: &Path) -> CommandLine {
    let args = ["--null".into(), "--arg-file".into(), list.into(), b3sum.into()];
    CommandLine { program: xargs, args: args.to_vec(), success_codes: &[0] }
}

/// Parses one path per line, with an empty line between groups.
pub(super) fn parse_fdupes(text: &[u8]) -> Groups {
    parse_groups(text, |line| (!line.is_empty()).then_some(line))
}

fn unescape_groups(mut groups: Groups) -> Groups {
    groups.iter_mut().flatten().for_each(|path| *path = unescape(path));
    groups
}

/// Resolves the escape sequences of fclones and b3sum: `\\`, `\n`, `\r`, `\t` and `\xFF`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let (byte, tail) = match (first, after) {
            (b'\\', [b'\\', tail @ ..]) => (b'\\', tail),
            (b'\\', [b'n', tail @ ..]) => (b'\n', tail),
            (b'\\', [b'r', tail @ ..]) => (b'\r', tail),
            (b'\\', [b't', tail @ ..]) => (b'\t', tail),
            (b'\\', [b'x', high, low, tail @ ..]) => hex(&[*high, *low]).map_or((*first, after), |byte| (byte, tail)),
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = tail;
    }
    bytes
}

/// Parses paths in quotation marks; any other line starts a new group.
fn czkawka(text: &[u8]) -> Groups {
    parse_groups(text, |line| line.trim_ascii().strip_prefix(b"\"")?.strip_suffix(b"\""))
}

fn parse_groups<'a>(text: &'a [u8], path: impl Fn(&'a [u8]) -> Option<&'a [u8]>) -> Groups {
    let mut groups = vec![Vec::new()];
    for line in text.split(|byte| *byte == b'\n') {
        match (path(line), groups.last_mut()) {
            (Some(path), Some(group)) => group.push(path.to_vec()),
            (None, Some(group)) if !group.is_empty() => groups.push(Vec::new()),
            _ => {}
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// Parses seven words and a path per line. The second word is the number of the group, negative for all but its first
/// file.
fn rdfind(text: &[u8]) -> Groups {
    group_by(text, |line| {
        let words: Vec<&[u8]> = line.splitn(8, |byte| *byte == b' ').collect();
        let [kind, number, _, _, _, _, _, path] = words[..] else { return None };
        kind.starts_with(b"DUPTYPE_").then_some((number.strip_prefix(b"-").unwrap_or(number), Cow::Borrowed(path)))
    })
}

/// Parses a checksum, two spaces and a path per line; paths with equal checksums form a group. A line with an escaped
/// path begins with a backslash.
pub(super) fn parse_sums(text: &[u8]) -> Groups {
    group_by(text, |line| {
        let escaped = line.strip_prefix(b"\\");
        let line = escaped.unwrap_or(line);
        let at = line.windows(2).position(|pair| pair == b"  ")?;
        let path = &line[at + 2..];
        Some((&line[..at], if escaped.is_some() { Cow::Owned(unescape(path)) } else { Cow::Borrowed(path) }))
    })
}

/// Groups the paths by the key of their lines.
fn group_by<'a>(text: &'a [u8], key_and_path: impl Fn(&'a [u8]) -> Option<(&'a [u8], Cow<'a, [u8]>)>) -> Groups {
    let mut groups: HashMap<&[u8], Vec<Vec<u8>>> = HashMap::new();
    for (key, path) in text.split(|byte| *byte == b'\n').filter_map(key_and_path) {
        groups.entry(key).or_default().push(path.into_owned());
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mut groups: Groups) {
        groups.iter_mut().for_each(|group| group.sort());
        groups.sort();
        let joined: Vec<String> = groups.iter().map(|group| String::from_utf8(group.join(&b'|')).unwrap()).collect();
        assert_eq!(joined, ["/t/a|/t/b c", "/t/d|/t/e|/t/f"]);
    }

    #[test]
    fn groups_are_parsed_in_every_dialect() {
        check(parse_fdupes(b"/t/a\n/t/b c\n\n/t/d\n/t/e\n/t/f\n"));
        check(parse_fdupes(b"\n/t/a\n/t/b c\n\n\n/t/f\n/t/d\n/t/e\n\n"));
        check(czkawka(
            b"Results of searching\n---- Size 5 B (5) - 2 files\n\"/t/a\"\n\"/t/b c\"\n\n\
              ---- Size 4 B (4) - 3 files\n\"/t/d\"\n\"/t/e\"\n\"/t/f\"\n",
        ));
        check(rdfind(
            b"# Automatically generated\n# duptype id depth size device inode priority name\n\
              DUPTYPE_FIRST_OCCURRENCE 3 0 6 65024 11 1 /t/a\nDUPTYPE_WITHIN_SAME_TREE -3 0 6 65024 12 1 /t/b c\n\
              DUPTYPE_FIRST_OCCURRENCE 5 0 6 65024 13 1 /t/d\nDUPTYPE_WITHIN_SAME_TREE -5 0 6 65024 14 1 /t/e\n\
              DUPTYPE_WITHIN_SAME_TREE -5 0 6 65024 15 1 /t/f\n# end of file\n",
        ));
        check(parse_sums(b"0a  /t/a\n0b  /t/d\n0a  /t/b c\n0b  /t/e\n0b  /t/f\n"));
        check(parse_sums(b"0a  /t/a\n\\0b  /t/d\n0a  /t/b c\n0b  /t/e\n0b  /t/f\n"));
        assert!(parse_fdupes(b"").is_empty() && rdfind(b"").is_empty() && czkawka(b"\n\n").is_empty());
    }

    #[test]
    fn escaped_paths_are_unescaped() {
        for (text, path) in [
            (r"/t/unit\\x2d.slice", &br"/t/unit\x2d.slice"[..]),
            (r"/t/a\nb\tc", b"/t/a\nb\tc"),
            (r"/t/\xE9", b"/t/\xe9"),
            (r"/t/\q\", br"/t/\q\"),
        ] {
            assert_eq!(unescape(text.as_bytes()), path, "{text}");
        }
        let lines = br"\0a  /t/a\\b";
        assert_eq!(parse_sums(lines), [[br"/t/a\b".to_vec()]]);
    }
}
