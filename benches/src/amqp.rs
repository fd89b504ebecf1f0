//! Benchmark of RabbitMQ consumers: Gristmill and its peers consume from the same broker. The broker is started for the
//! benchmark, each run has its own process, and every result is checked.
//!
//! Owns the choice of queues and of the candidates measured on each. `environment` starts the broker and fills its
//! queues, `candidate` lists the candidates, `gristmill` is Gristmill's consumer process, `benchmark` measures the runs
//! of one table, `recovery` measures the time to recover from a killed broker, `report` prints the tables.
//! `message_counter` counts the handled messages; the Rust peers use the same file.

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
pub(crate) use gristmill::{ConsumeArgs, run_one};
pub(crate) use options::Options;
use options::Part;

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let participants = Participant::all(&options.compare)?;
    let mut env = Environment::start()?;
    let (messages, reps) = (options.messages(), options.reps());
    println!("{messages} messages of {} bytes, {reps} repetitions, alternating", environment::BYTES);
    benchmark::warm_up(&mut env, &participants[0])?;
    let (mut rates, mut works) = (Vec::new(), Vec::new());
    if options.measures(Part::Rate) {
        for &kind in &options.queues {
            for prefetch in options.prefetches() {
                let benchmark = benchmark::rate(&mut env, &participants, options, kind, prefetch);
                report::print_rate(&benchmark);
                rates.push(benchmark);
            }
        }
    }
    if options.measures(Part::Work) {
        for workers in benchmark::WORKERS {
            works.push(benchmark::work(&mut env, &participants, options, workers));
        }
        report::print_work(&works);
    }
    if options.measures(Part::Recovery) {
        report::print_recovery(&recovery::measure(&mut env, &participants)?);
    }
    report::print_thresholds(&rates, &works);
    report::failure(rates.iter().chain(&works)).map_or(Ok(()), Err)
}
