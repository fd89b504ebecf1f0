//! JSONL into SQLite: `gristmill import` and its peers over the same folders, each run in a process of its own, every
//! database compared with the files.
//!
//! Owns the programme: which folders, who takes part where. `dataset` says what is in a folder and `file` writes it;
//! `expected` knows what a database must hold and `answer` what one does; `candidate` knows the peers, `benchmark` measures a
//! table's worth of runs, `report` tells what they say.

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
use options::Options;

use crate::program::{self, gristmill_program};

/// The benchmark.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = program::data_dir(options.data.as_deref())?;
    let participants = participants(&options)?;
    println!("seed {}, {} repetitions in turns", options.seed, options.reps);
    let mut benchmarks = Vec::new();
    for &scale in &options.scales {
        let folder = Folder::get(scale, options.seed, &data)?;
        let benchmark = benchmark::measure_all(&folder, &participants, &options)?;
        benchmark.print();
        benchmarks.push(benchmark);
    }
    report::print_thresholds(&benchmarks);
    report::failure(&benchmarks).map_or(Ok(()), Err)
}

fn participants(options: &Options) -> Result<Vec<Participant>, String> {
    let mut all = vec![
        Participant { candidate: &GRISTMILL, program: gristmill_program(options.gristmill.as_deref())? },
        Participant { candidate: &FLOOR, program: program::build_peer("floor")? },
    ];
    all.extend(options.before.clone().map(|program| Participant { candidate: &BEFORE, program }));
    for candidate in PEERS.iter().filter(|candidate| options.includes_peer(candidate.name)) {
        match candidate.locate() {
            Ok(program) => all.push(Participant { candidate, program }),
            Err(why) => println!("{}: not measured, {why}", candidate.name),
        }
    }
    Ok(all)
}

/// Makes the folders and says where they are.
pub(crate) fn data(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = program::data_dir(options.data.as_deref())?;
    for &scale in &options.scales {
        let folder = Folder::get(scale, options.seed, &data)?;
        let (files, rows) = (folder.expected.tables.len(), folder.expected.rows());
        println!("{}: {files} files, {rows} lines, {} bytes", folder.root.display(), folder.bytes);
    }
    Ok(())
}
