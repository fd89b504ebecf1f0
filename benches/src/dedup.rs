//! Benchmark of finding duplicates: `gristmill scan` and its peers scan the same trees. Each run has its own process,
//! and every result is compared with the expected groups.
//!
//! Owns the choice of trees and of the candidates measured on each. `tree` generates the trees that `profile`
//! describes, `real` downloads trees of packages, `reference` finds their equal files, `candidate` lists the peers,
//! `benchmark` measures the runs of one table, `report` prints the tables.

mod benchmark;
mod candidate;
mod expected;
mod options;
mod profile;
mod real;
mod reference;
mod report;
mod selection;
mod tree;
mod walk;

use std::path::Path;

use benchmark::{Participant, Setting};
pub(crate) use options::Options;
use profile::Profile;
use selection::TreeKind;
use tree::{Tree, TreeSpec};

use crate::{
    options::CompareOptions,
    process,
    program::{data_dir, find_program, gristmill_program},
};

const MILLION: TreeKind = TreeKind::Generated(Profile::Million);

/// Scales of the tree of a million files over which growth is measured.
const GROWTH: [f64; 3] = [0.01, 0.1, 1.0];

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let data = data_dir(options.data.data.as_deref())?;
    let gristmill = gristmill_program(options.data.gristmill.as_deref())?;
    let (warm, mut cold) = options.warm_and_cold();
    if cold && !process::can_drop_caches() {
        cold = false;
        println!("cold: NOT MEASURED, only root can empty the file caches of the system");
    }
    let (scale, seed, reps) = (options.scale(), options.data.seed, options.compare.reps(3));
    println!("scale {scale}, seed {seed}, {reps} repetitions, alternating");
    let mut benchmarks = Vec::new();
    for kind in options.trees() {
        for scale in scales(kind, scale) {
            let tree = match get(kind, scale, options, &data) {
                Ok(tree) => tree,
                Err(reason) if kind.is_real() => {
                    println!("\n{}: NOT MEASURED, {reason}", kind.name());
                    continue;
                }
                Err(reason) => return Err(reason),
            };
            for setting in settings(kind, warm, cold) {
                let participants = participants(setting, &options.compare, &gristmill);
                let benchmark = benchmark::measure_all(setting, &tree, &participants, reps, &data)?;
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

fn scales(kind: TreeKind, scale: f64) -> Vec<f64> {
    let parts: &[f64] = if kind == MILLION { &GROWTH } else { &[1.0] };
    parts.iter().map(|part| scale * part).collect()
}

fn get(kind: TreeKind, scale: f64, options: &Options, data: &Path) -> Result<Tree, String> {
    match kind {
        TreeKind::Generated(profile) => Tree::get(TreeSpec { profile, scale, seed: options.data.seed }, data),
        TreeKind::Real(tree) => tree.get(data),
    }
}

/// Growth is measured with warm caches only: with cold ones the disk would be measured.
fn settings(tree: TreeKind, warm: bool, cold: bool) -> Vec<Setting> {
    let cold = cold && tree != MILLION;
    let temperatures = [(warm, false), (cold, true)].into_iter().filter(|(selected, _)| *selected);
    temperatures.flat_map(|(_, cold)| [false, true].map(|rescan| Setting { tree, rescan, cold })).collect()
}

fn participants(setting: Setting, options: &CompareOptions, gristmill: &Path) -> Vec<Participant> {
    let mut all = vec![Participant::Gristmill(gristmill.to_path_buf())];
    all.extend(options.before.clone().map(Participant::Before));
    for candidate in candidate::PEERS {
        if !options.includes_peer(candidate.name) || (setting.tree == MILLION && !candidate.growth) {
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

/// Generates or downloads the trees and prints their paths.
pub(crate) fn trees(options: &Options) -> Result<(), String> {
    let data = data_dir(options.data.data.as_deref())?;
    for kind in options.trees() {
        match get(kind, options.scale(), options, &data) {
            Ok(tree) => println!(
                "{}: {} files, {} bytes, {} groups of {} files",
                tree.root.display(),
                tree.files,
                tree.bytes,
                tree.expected.groups.len(),
                tree.expected.files().count()
            ),
            Err(reason) if kind.is_real() => println!("{}: not available, {reason}", kind.name()),
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}

/// Runs the walk that is the lower bound of a rescan, in this process.
pub(crate) fn walk(root: &Path) -> Result<(), String> {
    let (files, bytes) = walk::walk(root).map_err(|error| format!("{}: {error}", root.display()))?;
    println!("{files} files, {bytes} bytes");
    Ok(())
}
