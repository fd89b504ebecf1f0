//! Files that are seen only when they are complete.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Why a complete file did not get its name.
#[derive(Debug)]
pub(crate) enum PublishError {
    /// There is a file of that name.
    Taken,
    Io(io::Error),
}

impl From<io::Error> for PublishError {
    fn from(error: io::Error) -> Self {
        PublishError::Io(error)
    }
}

/// Gives a draft its name, on disk before and after. `replaces` says whether a file that has the name may go.
pub(crate) fn publish(
    draft: &Path,
    target: &Path,
    replaces: impl Fn(&fs::Metadata) -> bool,
) -> Result<(), PublishError> {
    File::open(draft)?.sync_all()?;
    match fs::metadata(target) {
        Ok(found) if replaces(&found) => fs::rename(draft, target)?,
        Ok(_) => return Err(PublishError::Taken),
        // A link does not replace a file that was made meanwhile, as a rename would. Some file systems have no links.
        Err(_) => match fs::hard_link(draft, target) {
            Ok(()) => fs::remove_file(draft)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(PublishError::Taken),
            Err(_) => fs::rename(draft, target)?,
        },
    }
    File::open(folder_of(target))?.sync_all()?;
    Ok(())
}

/// The folder of a file, which may be named without one.
pub(crate) fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
