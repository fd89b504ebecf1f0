//! Gives a complete file its final name; readers never see an incomplete one.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

#[derive(Debug)]
pub(crate) enum PublishError {
    /// A file with the target name exists.
    Exists,
    Io(io::Error),
}

impl From<io::Error> for PublishError {
    fn from(error: io::Error) -> Self {
        PublishError::Io(error)
    }
}

/// Renames a draft to its target, with an fsync before and after. `replaces` decides about an existing file.
pub(crate) fn publish(
    draft: &Path,
    target: &Path,
    replaces: impl Fn(&fs::Metadata) -> bool,
) -> Result<(), PublishError> {
    File::open(draft)?.sync_all()?;
    match fs::metadata(target) {
        Ok(found) if replaces(&found) => fs::rename(draft, target)?,
        Ok(_) => return Err(PublishError::Exists),
        // Unlike a rename, a link does not replace a file created meanwhile. Some file systems have no links.
        Err(_) => match fs::hard_link(draft, target) {
            Ok(()) => fs::remove_file(draft)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(PublishError::Exists),
            Err(_) => fs::rename(draft, target)?,
        },
    }
    File::open(folder_of(target))?.sync_all()?;
    Ok(())
}

/// Returns the folder of a file; `.` for a bare file name.
pub(crate) fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
