//! Scans of real folders on a real disk: what they find, what they read, what they leave behind.
//!
//! Nothing here waits for time. A scan that is to be caught in the middle is held there by a limit on its reading
//! that would keep it for hours.

#![cfg(target_os = "linux")]

mod bed;
mod brute;
mod coverage;
mod errors;
mod filters;
mod gone;
mod known;
mod links;
mod one_file;
mod random;
mod reading;
mod roots;
mod space;
mod states;
mod stop;
mod unscanned;
mod unstable;
