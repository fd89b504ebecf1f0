//! Compares the catalog with a model that compares all bytes, over random trees, edits, scans, stops and kills.
//!
//! A round is a list of operations derived from a seed: files are written, rewritten, moved and linked, roots are
//! registered, moved and removed, disks are mounted and unmounted, and scans with various options are stopped or
//! killed. After each operation the catalog must be consistent. After each scan it must list the files and groups that
//! a naive walk and a byte comparison find, as far as the scan was complete. `cargo xtask check dedup` runs many
//! rounds.

#![cfg(target_os = "linux")]

#[macro_use]
#[path = "../options/mod.rs"]
mod options;

mod catalog;
mod disk;
mod expect;
mod folders;
mod groups;
mod lists;
mod model;
mod named;
mod ops;
mod round;
mod rules;
mod scans;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::ops::Op;
use crate::round::Failure;

/// Number of rounds in `cargo test`; `cargo xtask check dedup` runs more.
const ROUNDS: u64 = 60;

/// Number of runs of each reduced round, because the point at which a scan stops depends on thread timing.
const TRIES: usize = 3;

#[test]
fn catalog_lists_what_comparing_bytes_finds() {
    let mounts = disk::can_mount();
    if !mounts {
        println!("disks cannot be mounted here: roots on mounted disks are not tested");
    }
    gristmill_check::run("dedup", ROUNDS, |seed| {
        let ops: Vec<(usize, Op)> = ops::choose(seed, mounts).into_iter().enumerate().collect();
        let Err((failure, log)) = attempt(seed, mounts, &ops) else { return Ok(()) };
        Err(reduced(seed, mounts, &ops, (failure, log)))
    });
}

#[test]
#[ignore = "run by the other test, in a process that is killed"]
fn scan_and_be_killed() {
    let _ = scans::be_killed();
}

fn attempt(seed: u64, mounts: bool, ops: &[(usize, Op)]) -> Result<(), (Failure, Vec<String>)> {
    catch_unwind(AssertUnwindSafe(|| round::run(seed, mounts, ops))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err((Failure { kind: "panic", text: text.unwrap_or_default() }, Vec::new()))
    })
}

/// Describes the shortest list of operations that fails in the same way.
fn reduced(seed: u64, mounts: bool, ops: &[(usize, Op)], mut last: (Failure, Vec<String>)) -> String {
    let kind = last.0.kind;
    let kept = gristmill_check::reduce(ops, |ops| {
        (0..TRIES).any(|_| match attempt(seed, mounts, ops) {
            Err(found) if found.0.kind == kind => {
                last = found;
                true
            }
            _ => false,
        })
    });
    let (Failure { kind, text }, log) = last;
    let ops: Vec<String> = kept.iter().map(|(index, op)| format!("  {index}: {op:?}")).collect();
    format!("{kind}: {text}\noperations:\n{}\nlog:\n  {}", ops.join("\n"), log.join("\n  "))
}
