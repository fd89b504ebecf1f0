//! Finding duplicates: Gristmill's `scan` and its peers over the same trees, each run in a process of its own, every
//! answer compared with the expected.
//!
//! Owns the programme: which trees, who takes part where. Trees are made by `tree` from what `profile` describes;
//! `candidate` knows the peers, `benchmark` measures a table's worth of runs, `report` tells what they say.

mod benchmark;
mod candidate;
mod expected;
mod options;
mod profile;
mod report;
mod tree;
mod walk;

use std::path::Path;

use benchmark::{Benchmark, Participant, Setting};
use options::Options;
use profile::Profile;
use tree::{Tree, TreeSpec};

use crate::{
    process,
    program::{data_dir, find_program, gristmill_program},
};

/// Parts of the full tree of a million files over which growth is told.
const GROWTH: [f64; 3] = [0.01, 0.1, 1.0];

/// The benchmark.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data_dir(options.data.as_deref())?;
    let gristmill = gristmill_program(options.gristmill.as_deref())?;
    let cold = options.cold && process::can_drop_caches();
    if options.cold && !cold {
        println!("cold: NOT MEASURED, this process may not empty the system's caches (root may)");
    }
    let temperatures: Vec<bool> = [(options.warm, false), (cold, true)]
        .iter()
        .filter(|(selected, _)| *selected)
        .map(|(_, cold)| *cold)
        .collect();
    println!("scale {}, seed {}, {} repetitions in turns", options.scale, options.seed, options.reps);
    let mut benchmarks = Vec::new();
    for &profile in &options.profiles {
        let parts: &[f64] = if profile == Profile::Million { &GROWTH } else { &[1.0] };
        for part in parts {
            let tree =
                Tree::get(TreeSpec { profile, scale: options.scale * part, seed: options.seed }, &data)?;
            for setting in settings(profile, &temperatures) {
                let participants = participants(setting, &options, &gristmill);
                let benchmark: Benchmark =
                    benchmark::measure_all(setting, &tree, &participants, options.reps)?;
                benchmark.print();
                benchmarks.push(benchmark);
            }
        }
    }
    report::print_thresholds(&benchmarks);
    if report::gristmill_failed(&benchmarks) {
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
    let mut all = vec![Participant::Gristmill(gristmill.to_path_buf())];
    all.extend(options.before.clone().map(Participant::Before));
    for candidate in candidate::PEERS {
        let selected =
            |names: &Vec<String>| names.iter().any(|name| candidate.name.starts_with(name.as_str()));
        if !options.peers.as_ref().is_none_or(selected)
            || (setting.profile == Profile::Million && !candidate.in_growth)
        {
            continue;
        }
        match find_program(candidate.program) {
            Some(program) => all.push(Participant::Peer(candidate, program)),
            None => println!("{}: not measured, {} is not there", candidate.name, candidate.program),
        }
    }
    if setting.again {
        all.push(Participant::Walk);
    } else if let (Some(xargs), Some(b3sum)) = (find_program("xargs"), find_program("b3sum")) {
        all.push(Participant::Sums { xargs, b3sum });
    }
    all
}

/// Makes the trees and says where they are.
pub(crate) fn trees(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data_dir(options.data.as_deref())?;
    for &profile in &options.profiles {
        let tree = Tree::get(TreeSpec { profile, scale: options.scale, seed: options.seed }, &data)?;
        println!(
            "{}: {} files, {} bytes, {} groups of {} files",
            tree.root.display(),
            tree.files,
            tree.bytes,
            tree.expected.groups.len(),
            tree.expected.files().count()
        );
    }
    Ok(())
}

/// The floor of rescans, in a process of its own.
pub(crate) fn walk(args: &[String]) -> Result<(), String> {
    let [root] = args else {
        return Err("dedup-walk FOLDER".into());
    };
    let (files, bytes) = walk::walk(Path::new(root)).map_err(|error| format!("{root}: {error}"))?;
    println!("{files} files, {bytes} bytes");
    Ok(())
}
