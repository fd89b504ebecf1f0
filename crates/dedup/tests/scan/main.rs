//! Scans of real folders on a real disk: what they find, what they read, what they leave behind.
//!
//! Nothing here waits for time. A scan that is to be caught in the middle is held there by a limit on its reading
//! that would keep it for hours.

#![cfg(target_os = "linux")]

mod brute_force;
mod catalog_states;
mod changing_files;
mod coverage;
mod filters;
mod fixture;
mod known_tree;
mod links;
mod random_trees;
mod read_selection;
mod reclaimable;
mod removed_files;
mod roots;
mod same_file;
mod stop_and_resume;
mod unreadable;
mod unscanned_entries;
