//! Random imports, compared with a model in memory of what the tables must hold.

#[path = "../common/mod.rs"]
mod common;

use common::Bench;
use gristmill_check::Rng;
use gristmill_jsonl::import::options::Options;

/// Rounds in `cargo test`; `cargo xtask check import` runs more.
const ROUNDS: u64 = 20;

#[test]
fn imports_match_the_model() {
    gristmill_check::run("import", ROUNDS, round);
}

fn round(seed: u64) -> Result<(), String> {
    let rows = Rng::new(seed).within(1..50);
    let text: String = (0..rows).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let bench = Bench::with(&[("t.jsonl", &text)]);
    let summary = bench.import(&Options::default()).map_err(|error| error.to_string())?;
    if summary.rows == rows as u64 { Ok(()) } else { Err(format!("{} rows, not {rows}", summary.rows)) }
}
