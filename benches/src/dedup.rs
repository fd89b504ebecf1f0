//! Finding duplicates: Gristmill's `scan` and its peers over the same trees, each run in a process of its own, every
//! answer compared with the truth.
//!
//! Owns the programme: which trees, who takes part where. Trees are made by `tree` from what `profile` describes;
//! `contender` knows the peers, `process` measures one run, `scene` a table's worth of them, `report` tells what they say.

mod contender;
mod options;
mod process;
mod profile;
mod random;
mod report;
mod scene;
mod scratch;
mod tree;
mod truth;
mod walk;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use options::Options;
use process::found;
pub(crate) use process::one;
use profile::Profile;
use scene::{Participant, Scene, Setting};
use tree::{Tree, Wanted};

/// Parts of the full tree of a million files over which growth is told.
const GROWTH: [f64; 3] = [0.01, 0.1, 1.0];

/// The benchmark.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data(&options)?;
    let gristmill = match &options.gristmill {
        Some(program) => std::path::absolute(program).map_err(|error| error.to_string())?,
        None => build()?,
    };
    let cold = options.cold && process::can_cool();
    if options.cold && !cold {
        println!("cold: NOT MEASURED, this process may not empty the system's caches (root may)");
    }
    let temperatures: Vec<bool> = [(options.warm, false), (cold, true)]
        .iter()
        .filter(|(asked, _)| *asked)
        .map(|(_, cold)| *cold)
        .collect();
    println!("scale {}, seed {}, {} repetitions in turns", options.scale, options.seed, options.reps);
    let mut scenes = Vec::new();
    for &profile in &options.profiles {
        let parts: &[f64] = if profile == Profile::Million { &GROWTH } else { &[1.0] };
        for part in parts {
            let tree = Tree::get(Wanted { profile, scale: options.scale * part, seed: options.seed }, &data)?;
            for setting in settings(profile, &temperatures) {
                let participants = participants(setting, &options, &gristmill);
                let scene: Scene = scene::play(setting, &tree, &participants, options.reps)?;
                scene.print();
                scenes.push(scene);
            }
        }
    }
    report::print_bars(&scenes);
    if report::ours_failed(&scenes) {
        Err("gristmill's answer was wrong, or none came".into())
    } else {
        Ok(())
    }
}

/// Growth is told with full caches: with empty ones it would be the disk's.
fn settings(profile: Profile, temperatures: &[bool]) -> Vec<Setting> {
    let temperatures = temperatures.iter().filter(|cold| !**cold || profile != Profile::Million);
    let both = temperatures.flat_map(|&cold| [false, true].map(|again| Setting { profile, again, cold }));
    both.collect()
}

fn participants(setting: Setting, options: &Options, gristmill: &Path) -> Vec<Participant> {
    let mut all = vec![Participant::Ours(gristmill.to_path_buf())];
    for contender in contender::PEERS {
        let asked = |names: &Vec<String>| names.iter().any(|name| contender.name.starts_with(name.as_str()));
        if !options.peers.as_ref().is_none_or(asked)
            || (setting.profile == Profile::Million && !contender.grows)
        {
            continue;
        }
        match found(contender.program) {
            Some(program) => all.push(Participant::Peer(contender, program)),
            None => println!("{}: not measured, {} is not there", contender.name, contender.program),
        }
    }
    if setting.again {
        all.push(Participant::Walk);
    } else if let (Some(xargs), Some(b3sum)) = (found("xargs"), found("b3sum")) {
        all.push(Participant::Sums { xargs, b3sum });
    }
    all
}

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

/// The floor of rescans, in a process of its own.
pub(crate) fn walk(words: &[String]) -> Result<(), String> {
    let [root] = words else {
        return Err("dedup-walk FOLDER".into());
    };
    let (files, bytes) = walk::walk(Path::new(root)).map_err(|error| format!("{root}: {error}"))?;
    println!("{files} files, {bytes} bytes");
    Ok(())
}

/// The folder of the trees, absolute.
fn data(options: &Options) -> Result<PathBuf, String> {
    let chosen = match &options.data {
        Some(data) => data.clone(),
        None => target()?.join("bench-data"),
    };
    std::path::absolute(&chosen).map_err(|error| format!("{}: {error}", chosen.display()))
}

/// The target folder that we lie in.
fn target() -> Result<PathBuf, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let target = program.parent().and_then(Path::parent).ok_or("the program lies in no target folder")?;
    Ok(target.to_path_buf())
}

/// Builds the program that is measured, as users have it.
fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Cargo tells where our manifest is as it starts us; the path we were built with is second best.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&here).parent().ok_or("the benchmarks lie in no workspace")?;
    let target = target()?;
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--release", "-p", "gristmill", "--bin", "gristmill", "--target-dir"]);
    let status =
        command.arg(&target).current_dir(root).status().map_err(|error| format!("cargo: {error}"))?;
    if !status.success() {
        return Err("gristmill does not build".into());
    }
    Ok(target.join("release").join(format!("gristmill{}", std::env::consts::EXE_SUFFIX)))
}
