//! Benchmarks of Gristmill against named peers, run as `cargo xtask bench NAME`.
//!
//! All candidates of a comparison are measured alternately in one run, several times; medians and ratios are printed.
//! Absolute times depend on the machine and its load, ratios much less.

mod amqp;
mod cache;
mod catalog;
mod comparison;
mod dedup;
mod import;
mod jobs;
mod options;
mod pool;
mod process;
mod program;
mod random;
mod scratch;
mod server;
mod task_sum;
mod threshold;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser};
use options::{CompareTaskOptions, TaskOptions};

/// Measure Gristmill against named peers
#[derive(Debug, Parser)]
#[command(name = "gristmill-benches", bin_name = "cargo xtask bench")]
enum Benchmark {
    /// trivial tasks through a pool of 2 workers, against rayon, crossbeam, tokio and others
    Pool(CompareTaskOptions),
    /// measure one candidate of `pool` once; started by `pool`
    PoolOne(TaskOptions),
    /// time per task and memory from 10^3 to 10^7 tasks
    PoolGrowth(TaskOptions),
    /// tasks through a durable queue on SQLite, against handwritten rusqlite, effectum and apalis
    Jobs(CompareTaskOptions),
    /// measure one candidate of `jobs` once; started by `jobs`
    JobsOne(TaskOptions),
    /// rates of `jobs` with 10^4 to 10^6 finished tasks in the table
    JobsGrowth(TaskOptions),
    /// finding duplicates: first scan, rescan, growth and memory, against fclones, yadf, czkawka and others
    Dedup(dedup::Options),
    /// read all folders and stat all files: the lower bound of a rescan
    DedupWalk { folder: PathBuf },
    /// generate or download the trees of `dedup` only
    DedupTrees(dedup::Options),
    /// questions to a catalog of 10^4 to 10^6 files: pages of groups, also during a scan, and first output of commands
    Catalog(catalog::Options),
    /// the HTTP API: group pages against the query itself, and requests per second against a bare axum handler
    Server(server::Options),
    /// serve one bare axum handler; started by `server`
    ServerBare,
    /// JSONL into SQLite: time, memory and growth, against a handwritten pipeline, DuckDB, sqlite-utils and others
    Import(import::Options),
    /// generate the folders of `import` only
    ImportData(import::Options),
    /// consumers of a RabbitMQ queue: messages per second, against lapin, amqprs, pika and amqp-consume
    Amqp(amqp::Options),
    /// run the consumer of gristmill once; started by `amqp`
    AmqpOne(amqp::ConsumeArgs),
    /// run and measure one program; started by `dedup`, `import` and `amqp`
    RunOne {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "REPORT PROGRAM ARGS")]
        args: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_none_or(|arg| arg == "--list") {
        for benchmark in Benchmark::command().get_subcommands() {
            println!("{:12} {}", benchmark.get_name(), benchmark.get_about().unwrap_or_default());
        }
        return ExitCode::SUCCESS;
    }
    let benchmark = match Benchmark::try_parse() {
        Ok(benchmark) => benchmark,
        Err(error) => {
            // If the message cannot be printed, the exit status still tells.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match run(benchmark) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(1)
        }
    }
}

fn run(benchmark: Benchmark) -> Result<(), String> {
    match benchmark {
        Benchmark::Pool(options) => pool::run(&options),
        Benchmark::PoolOne(options) => pool::run_one(&options),
        Benchmark::PoolGrowth(options) => pool::growth(&options),
        Benchmark::Jobs(options) => jobs::run(&options),
        Benchmark::JobsOne(options) => jobs::run_one(&options),
        Benchmark::JobsGrowth(options) => jobs::growth(&options),
        Benchmark::Dedup(options) => dedup::run(&options),
        Benchmark::DedupWalk { folder } => dedup::walk(&folder),
        Benchmark::DedupTrees(options) => dedup::trees(&options),
        Benchmark::Catalog(options) => catalog::run(&options),
        Benchmark::Server(options) => server::run(&options),
        Benchmark::ServerBare => server::bare(),
        Benchmark::Import(options) => import::run(&options),
        Benchmark::ImportData(options) => import::data(&options),
        Benchmark::Amqp(options) => amqp::run(&options),
        Benchmark::AmqpOne(args) => amqp::run_one(&args),
        Benchmark::RunOne { args } => process::run_one(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_definition_is_consistent() {
        Benchmark::command().debug_assert();
    }
}
