//! Files that commands write, which are either complete or absent.
//!
//! Each command decides on the content, and whether an existing file may be replaced.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use gristmill_store::private;
use gristmill_store::sqlite::{Draft, ExistingFile, PublishError};

/// Creates or replaces a file. It gets its name when its content is on disk; after an error the old file is unchanged.
pub(crate) fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let draft = Draft::beside(target);
    File::create_new(draft.path())?.write_all(content)?;
    draft.publish(ExistingFile::Replace).map_err(|error| match error {
        PublishError::Io(error) => error,
        PublishError::Exists => io::ErrorKind::AlreadyExists.into(),
    })
}

/// Creates a file that only its owner may read. The file must not exist; after an error it does not exist.
pub(crate) fn create_private(target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = private::create_new(target)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.inspect_err(|_| drop(std::fs::remove_file(target)))
}
