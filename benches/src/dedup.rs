//! Benchmark of finding duplicates: `gristmill scan` and its peers scan the same trees. Each run has its own process,
//! and every result is compared with the expected groups.
//!
//! Owns the choice of trees and of the candidates measured on each. `tree` generates the trees that `profile`
//! describes, `candidate` lists the peers, `benchmark` measures the runs of one table, `report` prints the tables.

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

/// Scales of the tree of a million files over which growth is measured.
const GROWTH: [f64; 3] = [0.01, 0.1, 1.0];

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = data_dir(options.data.as_deref())?;
    let gristmill = gristmill_program(options.gristmill.as_deref())?;
    let cold = options.cold && process::can_drop_caches();
    if options.cold && !cold {
        println!("cold: NOT MEASURED, only root can empty the file caches of the system");
    }
    let temperatures: Vec<bool> =
        [(options.warm, false), (cold, true)].iter().filter(|(selected, _)| *selected).map(|(_, cold)| *cold).collect();
    println!("scale {}, seed {}, {} repetitions, alternating", options.scale, options.seed, options.reps);
    let mut benchmarks = Vec::new();
    for &profile in &options.profiles {
        let parts: &[f64] = if profile == Profile::Million { &GROWTH } else { &[1.0] };
        for part in parts {
            let tree = Tree::get(TreeSpec { profile, scale: options.scale * part, seed: options.seed }, &data)?;
            for setting in settings(profile, &temperatures) {
                let participants = participants(setting, &options, &gristmill);
                let benchmark: Benchmark = benchmark::measure_all(setting, &tree, &participants, options.reps)?;
                benchmark.print();
                benchmarks.push(benchmark);
            }
        }
    }
    report::print_thresholds(&benchmarks);
    if report::gristmill_failed(&benchmarks) {
        Err("a result of gristmill was wrong or missing".into())
    } else {
        Ok(())
    }
}

/// Growth is measured with warm caches only: with cold ones the disk would be measured.
fn settings(profile: Profile, temperatures: &[bool]) -> Vec<Setting> {
    let temperatures = temperatures.iter().filter(|cold| !**cold || profile != Profile::Million);
    let both = temperatures.flat_map(|&cold| [false, true].map(|rescan| Setting { profile, rescan, cold }));
    both.collect()
}

fn participants(setting: Setting, options: &Options, gristmill: &Path) -> Vec<Participant> {
    let mut all = vec![Participant::Gristmill(gristmill.to_path_buf())];
    all.extend(options.before.clone().map(Participant::Before));
    for candidate in candidate::PEERS {
        let selected = |names: &Vec<String>| names.iter().any(|name| candidate.name.starts_with(name.as_str()));
        if !options.peers.as_ref().is_none_or(selected) || (setting.profile == Profile::Million && !candidate.growth) {
            continue;
        }
        match find_program(candidate.program) {
            Some(program) => all.push(Participant::Peer(candidate, program)),
            None => println!("{}: not measured, {} is not installed", candidate.name, candidate.program),
        }
    }
    if setting.rescan {
        all.push(Participant::Walk);
    } else if let (Some(xargs), Some(b3sum)) = (find_program("xargs"), find_program("b3sum")) {
        all.push(Participant::Sums { xargs, b3sum });
    }
    all
}

/// Generates the trees and prints their paths.
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

/// Runs the walk that is the lower bound of a rescan, in this process.
pub(crate) fn walk(args: &[String]) -> Result<(), String> {
    let [root] = args else {
        return Err("usage: dedup-walk FOLDER".into());
    };
    let (files, bytes) = walk::walk(Path::new(root)).map_err(|error| format!("{root}: {error}"))?;
    println!("{files} files, {bytes} bytes");
    Ok(())
}
