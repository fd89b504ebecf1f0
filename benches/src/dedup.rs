//! Finding duplicates: Gristmill's `scan` and its peers over the same trees, each run in a process of its own, every
//! answer compared with the truth.
//!
//! Owns the programme: which trees, who takes part where. Trees are made by `tree` from what `profile` describes;
//! `contender` knows the peers, `scene` measures a table's worth of runs, `report` tells what they say.

mod contender;
mod options;
mod profile;
mod report;
mod scene;
mod tree;
mod truth;
mod walk;

use std::path::Path;

use options::Options;
use profile::Profile;
use scene::{Participant, Scene, Setting};
use tree::{Tree, Wanted};

use crate::{
    process,
    program::{built, data, found},
};

/// Parts of the full tree of a million files over which growth is told.
const GROWTH: [f64; 3] = [0.01, 0.1, 1.0];

/// The benchmark.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data(options.data.as_deref())?;
    let gristmill = built(options.gristmill.as_deref())?;
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
    all.extend(options.before.clone().map(Participant::Before));
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
    let data = data(options.data.as_deref())?;
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
