//! Consumers of a RabbitMQ queue: Gristmill and its peers at the same broker, which is started for it, each run in a
//! process of its own, every answer checked.
//!
//! Owns the programme: which queues, who takes part where. `environment` has the broker and fills its queues; `candidate` knows
//! who takes part and `gristmill` is Gristmill's process; `benchmark` measures a table's worth of runs, `recovery` what a broker
//! that is killed costs, `report` tells what they say. `counter` counts what is handled, in every process of Rust alike.

mod benchmark;
mod candidate;
mod environment;
mod gristmill;
mod message_counter;
mod options;
mod recovery;
mod report;

use candidate::Participant;
use environment::Environment;
pub(crate) use gristmill::one;
use options::Part;

/// The benchmark.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = options::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let participants = Participant::all(&options)?;
    let mut environment = Environment::start()?;
    println!(
        "{} messages of {} bytes, {} repetitions in turns",
        options.messages,
        environment::BYTES,
        options.reps
    );
    benchmark::warm_up(&mut environment, &participants[0])?;
    let (mut rates, mut works) = (Vec::new(), Vec::new());
    if options.parts.contains(&Part::Rate) {
        for &kind in &options.queues {
            for &prefetch in &options.prefetches {
                let benchmark = benchmark::rate(&mut environment, &participants, &options, kind, prefetch)?;
                report::print_rate(&benchmark);
                rates.push(benchmark);
            }
        }
    }
    if options.parts.contains(&Part::Work) {
        for workers in benchmark::WORKERS {
            works.push(benchmark::work(&mut environment, &participants, &options, workers)?);
        }
        report::print_work(&works);
    }
    if options.parts.contains(&Part::Recovery) {
        report::print_recovery(&recovery::measure(&mut environment, &participants)?);
    }
    report::print_thresholds(&rates, &works);
    report::failure(rates.iter().chain(&works)).map_or(Ok(()), Err)
}
