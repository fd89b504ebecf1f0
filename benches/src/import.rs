//! JSONL into SQLite: `gristmill import` and its peers over the same folders, each run in a process of its own, every
//! database compared with the files.
//!
//! Owns the programme: which folders, who takes part where. `catalog` says what is in a folder and `file` writes it;
//! `truth` knows what a database must hold and `answer` what one does; `contender` knows the peers, `scene` measures a
//! table's worth of runs, `report` tells what they say.

mod answer;
mod catalog;
mod contender;
mod digest;
mod field;
mod file;
mod folder;
mod options;
mod report;
mod scene;
mod shape;
mod truth;
mod words;

use contender::{BEFORE, FLOOR, OURS, PEERS, Participant};
use folder::Folder;
use options::Options;

use crate::program::{self, built};

/// The benchmark.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = program::data(options.data.as_deref())?;
    let participants = participants(&options)?;
    println!("seed {}, {} repetitions in turns", options.seed, options.reps);
    let mut scenes = Vec::new();
    for &scale in &options.scales {
        let folder = Folder::get(scale, options.seed, &data)?;
        let scene = scene::play(&folder, &participants, &options)?;
        scene.print();
        scenes.push(scene);
    }
    report::print_bars(&scenes);
    report::failure(&scenes).map_or(Ok(()), Err)
}

fn participants(options: &Options) -> Result<Vec<Participant>, String> {
    let mut all = vec![
        Participant { contender: &OURS, program: built(options.gristmill.as_deref())? },
        Participant { contender: &FLOOR, program: program::peer("floor")? },
    ];
    all.extend(options.before.clone().map(|program| Participant { contender: &BEFORE, program }));
    for contender in PEERS.iter().filter(|contender| options.asks_for(contender.name)) {
        match contender.found() {
            Ok(program) => all.push(Participant { contender, program }),
            Err(why) => println!("{}: not measured, {why}", contender.name),
        }
    }
    Ok(all)
}

/// Makes the folders and says where they are.
pub(crate) fn data(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let data = program::data(options.data.as_deref())?;
    for &scale in &options.scales {
        let folder = Folder::get(scale, options.seed, &data)?;
        let (files, rows) = (folder.truth.tables.len(), folder.truth.rows());
        println!("{}: {files} files, {rows} lines, {} bytes", folder.root.display(), folder.bytes);
    }
    Ok(())
}
