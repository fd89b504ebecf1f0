//! Tests scans of real folders on a real disk: the files they find and read, and the catalog they leave.
//!
//! No test relies on timing. A scan that must be caught midway is held there by a rate limit that would keep it for
//! hours.

#![cfg(target_os = "linux")]

#[macro_use]
#[path = "../options/mod.rs"]
mod options;

mod brute_force;
mod catalog_queue;
mod catalog_states;
mod changing_files;
mod copies;
mod coverage;
mod filter_patterns;
mod filters;
mod fixture;
mod known_tree;
mod links;
mod lists;
mod named_files;
mod random_questions;
mod random_trees;
mod read_selection;
mod reclaimable;
mod removed_files;
mod roots;
mod same_file;
mod stop_and_resume;
mod unique;
mod unreadable;
mod unscanned_entries;
