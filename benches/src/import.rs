//! Benchmark of importing JSONL into SQLite: `gristmill import` and its peers import the same folders. Each run has its
//! own process, and every database is compared with the files.
//!
//! Owns the choice of folders and of the candidates measured on each. `dataset` lists the files of a folder and `file`
//! writes them; `expected` computes what a database must hold and `database_check` compares a database with it;
//! `candidate` lists the peers, `benchmark` measures the runs of one table, `report` prints the tables.

mod benchmark;
mod candidate;
mod database_check;
mod dataset;
mod digest;
mod expected;
mod field;
mod file;
mod folder;
mod line_writers;
mod options;
mod phrases;
mod report;

use candidate::{BEFORE, FLOOR, GRISTMILL, PEERS, Participant};
use folder::Folder;
pub(crate) use options::Options;

use crate::program::{self, gristmill_program};

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let data = program::data_dir(options.data.data.as_deref())?;
    let participants = participants(options)?;
    let reps = options.compare.reps(5);
    println!("seed {}, {reps} repetitions, alternating", options.data.seed);
    let mut benchmarks = Vec::new();
    for scale in options.scales() {
        let folder = Folder::get(scale, options.data.seed, &data)?;
        let benchmark = benchmark::measure_all(&folder, &participants, &options.compare, reps);
        benchmark.print();
        benchmarks.push(benchmark);
    }
    report::print_thresholds(&benchmarks);
    report::failure(&benchmarks).map_or(Ok(()), Err)
}

fn participants(options: &Options) -> Result<Vec<Participant>, String> {
    let gristmill = gristmill_program(options.data.gristmill.as_deref())?;
    let mut all = vec![
        Participant { candidate: &GRISTMILL, program: gristmill },
        Participant { candidate: &FLOOR, program: program::build_peer("floor")? },
    ];
    all.extend(options.compare.before.clone().map(|program| Participant { candidate: &BEFORE, program }));
    for candidate in PEERS.iter().filter(|candidate| options.compare.includes_peer(candidate.name)) {
        match candidate.locate() {
            Ok(program) => all.push(Participant { candidate, program }),
            Err(reason) => println!("{}: not measured, {reason}", candidate.name),
        }
    }
    Ok(all)
}

/// Generates the folders and prints their paths.
pub(crate) fn data(options: &Options) -> Result<(), String> {
    let data = program::data_dir(options.data.data.as_deref())?;
    for scale in options.scales() {
        let folder = Folder::get(scale, options.data.seed, &data)?;
        let (files, rows) = (folder.expected.tables.len(), folder.expected.rows());
        println!("{}: {files} files, {rows} lines, {} bytes", folder.root.display(), folder.bytes);
    }
    Ok(())
}
