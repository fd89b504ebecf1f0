//! Generated folders that are kept and reused while they match the request.
//!
//! Owns the metadata file `FOLDER.truth` beside each folder, which holds the folder's description and its expected
//! results. A folder is removed only if a metadata file of this benchmark is beside it.

use std::{
    ffi::OsString,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// Returns the data of folder `root`, which is generated if it is missing or if its metadata has another `title`. Every
/// title starts with `signature`, which marks folders made by this benchmark. The text that `make` returns is stored in
/// the metadata file and parsed by `read`.
pub(crate) fn get_or_make<T>(
    root: &Path,
    signature: &str,
    title: &str,
    read: impl Fn(&str) -> Option<T>,
    make: impl FnOnce(&Path) -> io::Result<String>,
) -> Result<T, String> {
    let context = |error: io::Error| format!("{}: {error}", root.display());
    let metadata = metadata_path(root);
    let found = match fs::read_to_string(&metadata) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(format!("{}: {error}", metadata.display())),
    };
    let complete = |text: &str| read(text.strip_prefix(title)?.strip_prefix("\nwhole: ")?);
    if let Some(known) = found.as_deref().and_then(complete) {
        return Ok(known);
    }
    let made_here = found.is_some_and(|text| text.starts_with(signature));
    if root.try_exists().map_err(context)? {
        if !made_here {
            let root = root.display();
            return Err(format!("{root} exists and was not made by this benchmark; choose another folder with --data"));
        }
        fs::remove_dir_all(root).map_err(context)?;
    }
    eprintln!("generating {}", root.display());
    let data = root.parent().ok_or_else(|| format!("{} has no parent folder", root.display()))?;
    // The title is written before the folder, so that an incomplete folder is recognized and replaced.
    fs::create_dir_all(data).and_then(|()| fs::write(&metadata, format!("{title}\n"))).map_err(context)?;
    fs::create_dir(root).map_err(context)?;
    let text = format!("{title}\nwhole: {}", make(root).map_err(context)?);
    fs::write(&metadata, &text).map_err(context)?;
    complete(&text).ok_or_else(|| format!("{} is invalid", metadata.display()))
}

fn metadata_path(root: &Path) -> PathBuf {
    let mut name = OsString::from(root);
    name.push(".truth");
    name.into()
}
