//! Consumers of a RabbitMQ queue: Gristmill and its peers at the same broker, which is started for it, each run in a
//! process of its own, every answer checked.
//!
//! Owns the programme: which queues, who takes part where. `stage` has the broker and fills its queues; `contender` knows
//! who takes part and `ours` is Gristmill's process; `scene` measures a table's worth of runs, `recovery` what a broker
//! that is killed costs, `report` tells what they say. `tally` counts what is handled, in every process of Rust alike.

mod contender;
mod options;
mod ours;
mod recovery;
mod report;
mod scene;
mod stage;
mod tally;

use contender::Participant;
use options::Part;
pub(crate) use ours::one;
use stage::Stage;

/// The benchmark.
pub(crate) fn run(words: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(words)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let participants = Participant::all(&options)?;
    let mut stage = Stage::set()?;
    println!(
        "{} messages of {} bytes, {} repetitions in turns",
        options.messages,
        stage::BYTES,
        options.reps
    );
    scene::warm_up(&mut stage, &participants[0])?;
    let (mut rates, mut works) = (Vec::new(), Vec::new());
    if options.parts.contains(&Part::Rate) {
        for &kind in &options.queues {
            for &prefetch in &options.prefetches {
                let scene = scene::rate(&mut stage, &participants, &options, kind, prefetch)?;
                report::print_rate(&scene);
                rates.push(scene);
            }
        }
    }
    if options.parts.contains(&Part::Work) {
        for workers in scene::WORKERS {
            works.push(scene::work(&mut stage, &participants, &options, workers)?);
        }
        report::print_work(&works);
    }
    if options.parts.contains(&Part::Recovery) {
        report::print_recovery(&recovery::play(&mut stage, &participants)?);
    }
    report::print_bars(&rates, &works);
    report::failure(rates.iter().chain(&works)).map_or(Ok(()), Err)
}
