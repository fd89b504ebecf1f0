//! Finding duplicates: Gristmill's `scan` and its peers over the same trees, each run in a process of its own, every
//! answer compared with the truth.
mod options;
mod profile;
mod random;
mod scratch;
mod tree;
mod truth;

use options::Options;
use std::path::{Path, PathBuf};
use tree::{Tree, Wanted};

/// Makes the trees and says where they are.
pub(crate) fn trees(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data(&options)?;
    for &profile in &options.profiles {
        let tree = Tree::get(Wanted { profile, scale: options.scale, seed: options.seed }, &data)?;
        println!(
            "{}: {} files, {} bytes, {} groups of {} files",
            tree.root.display(),
            tree.files,
            tree.bytes,
            tree.truth.groups.len(),
            tree.truth.files().count()
        );
    }
    Ok(())
}

/// The folder of the trees, absolute.
fn data(options: &Options) -> Result<PathBuf, String> {
    let chosen = match &options.data {
        Some(data) => data.clone(),
        None => {
            let program = std::env::current_exe().map_err(|error| error.to_string())?;
            let target = program.parent().and_then(Path::parent).ok_or("the program lies in no target folder")?;
            target.join("bench-data")
        }
    };
    std::path::absolute(&chosen).map_err(|error| format!("{}: {error}", chosen.display()))
}
