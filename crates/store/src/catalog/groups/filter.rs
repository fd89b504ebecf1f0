//! Filters by the files of a group.
//!
//! Owns which groups have a matching file, and which files count as copies.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::GroupQuery;
use super::evaluate::GroupMember;
use crate::options::options;
use crate::rows::string_enum;

options! {
    /// Selects files. A file matches if all given conditions hold for it.
    #[derive(Clone, Debug)]
    pub struct FileFilter {
        /// Text that the absolute path contains, without regard to case.
        pub contains: Option<String> = None,
        /// Extensions without the dot, without regard to case; the file has one of them.
        pub extensions: Vec<String> = Vec::new(),
        /// The file is of one of these types.
        pub types: Vec<FileType> = Vec::new(),
        /// Earliest modification time in nanoseconds since 1970.
        pub modified_since: Option<i64> = None,
        /// Modification time in nanoseconds since 1970 from which on files do not match.
        pub modified_before: Option<i64> = None,
        /// Test of the absolute path.
        pub path: Option<PathTest> = None,
    }
}

string_enum! {
    "a type of files",
    /// Type of a file, by its extension.
    pub enum FileType {
        /// Images, as the protocol makes thumbnails of them, and other common formats.
        Image = "image",
        /// Videos, as the protocol makes thumbnails of them.
        Video = "video",
        /// Music and recordings.
        Audio = "audio",
        /// Texts, tables and presentations.
        Document = "document",
        /// Archives and disk images.
        Archive = "archive",
    }
}

impl FileType {
    /// Returns the extensions of the type, in lower case.
    pub fn extensions(self) -> &'static [&'static str] {
        match self {
            FileType::Image => {
                &["jpg", "jpeg", "png", "bmp", "gif", "tif", "tiff", "webp", "heic", "avif", "svg", "raw", "dng"]
            }
            FileType::Video => &["mp4", "mov", "m4v", "avi", "mkv", "webm", "mpeg", "mpg", "wmv"],
            FileType::Audio => &["mp3", "flac", "m4a", "aac", "ogg", "opus", "wav", "wma", "aiff"],
            FileType::Document => &[
                "pdf", "doc", "docx", "odt", "rtf", "txt", "md", "xls", "xlsx", "ods", "csv", "ppt", "pptx", "odp",
                "epub",
            ],
            FileType::Archive => &["zip", "tar", "gz", "tgz", "bz2", "xz", "zst", "7z", "rar", "iso", "img"],
        }
    }
}

/// A test of absolute paths, with a name that identifies it.
#[derive(Clone)]
pub struct PathTest {
    name: String,
    test: Arc<dyn Fn(&Path) -> bool + Send + Sync>,
}

impl PathTest {
    /// Makes a test. Tests of the same name must accept the same paths.
    pub fn new(name: impl Into<String>, test: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        PathTest { name: name.into(), test: Arc::new(test) }
    }
}

impl fmt::Debug for PathTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathTest").field(&self.name).finish()
    }
}

impl FileFilter {
    /// Whether every file matches.
    pub fn is_empty(&self) -> bool {
        let FileFilter { contains, extensions, types, modified_since, modified_before, path } = self;
        contains.is_none()
            && extensions.is_empty()
            && types.is_empty()
            && modified_since.is_none()
            && modified_before.is_none()
            && path.is_none()
    }

    fn matches(&self, found: &GroupMember) -> bool {
        let FileFilter { extensions, types, modified_since, modified_before, path, .. } = self;
        let mtime = found.member.stat.mtime_ns;
        let contains = |part: &String| found.absolute.to_lowercase().contains(&part.to_lowercase());
        let extension = || found.member.path.extension().and_then(OsStr::to_str).unwrap_or_default().to_lowercase();
        let has_extension = || extensions.iter().any(|wanted| wanted.to_lowercase() == extension());
        let has_type = || types.iter().any(|kind| kind.extensions().contains(&extension().as_str()));
        modified_since.is_none_or(|since| mtime >= since)
            && modified_before.is_none_or(|before| mtime < before)
            && self.contains.as_ref().is_none_or(contains)
            && (extensions.is_empty() || has_extension())
            && (types.is_empty() || has_type())
            && path.as_ref().is_none_or(|path| (path.test)(&found.absolute_path()))
    }
}

/// The files of a group that count as copies of each other.
pub(super) struct Copies<'a> {
    pub(super) members: Vec<&'a GroupMember>,
    /// Copies in reference folders. If there are any, all of `members` are reclaimable.
    pub(super) kept: Vec<&'a GroupMember>,
    /// Number of roots with any of them.
    pub(super) roots: usize,
}

/// Splits the files of a group into the copies that match the query; none if no file matches its filter.
pub(super) fn copies<'a>(query: &GroupQuery, members: &'a [GroupMember]) -> Vec<Copies<'a>> {
    let counts = |found: &&GroupMember| is_in_root(query, found) || is_in_reference(query, found);
    let members: Vec<&GroupMember> = members.iter().filter(counts).collect();
    if !query.files.is_empty() && !members.iter().any(|found| query.files.matches(found)) {
        return Vec::new();
    }
    let sets = if query.match_names { by_name(members) } else { vec![members] };
    let apart = sets.into_iter().filter_map(|members| match query.reference.is_empty() {
        true => Some(Copies { roots: roots(&members), members, kept: Vec::new() }),
        false => outside_reference(query, members),
    });
    apart.collect()
}

fn is_in_root(query: &GroupQuery, found: &GroupMember) -> bool {
    query.roots.is_empty() || query.roots.contains(&found.member.root)
}

fn is_in_reference(query: &GroupQuery, found: &GroupMember) -> bool {
    !query.reference.is_empty() && {
        let path = found.absolute_path();
        query.reference.iter().any(|folder| path.starts_with(folder))
    }
}

fn by_name(members: Vec<&GroupMember>) -> Vec<Vec<&GroupMember>> {
    let mut names: BTreeMap<&OsStr, Vec<&GroupMember>> = BTreeMap::new();
    for found in members {
        names.entry(found.member.path.file_name().unwrap_or_default()).or_default().push(found);
    }
    names.into_values().filter(|members| members.len() > 1).collect()
}

/// Returns the files outside of the reference folders, if a copy is inside. Another name of a file inside is no copy.
fn outside_reference<'a>(query: &GroupQuery, members: Vec<&'a GroupMember>) -> Option<Copies<'a>> {
    let roots = roots(&members);
    let (kept, members): (Vec<_>, Vec<_>) = members.into_iter().partition(|found| is_in_reference(query, found));
    let inside: HashSet<i64> = kept.iter().map(|found| found.file).collect();
    let outside: Vec<_> = members.into_iter().filter(|found| !inside.contains(&found.file)).collect();
    (!kept.is_empty() && !outside.is_empty()).then_some(Copies { members: outside, kept, roots })
}

fn roots(members: &[&GroupMember]) -> usize {
    members.iter().map(|found| found.member.root).collect::<HashSet<i64>>().len()
}
