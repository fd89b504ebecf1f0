//! What a review found, each with the fault it had.

mod attempts;
mod dead;
mod ends;
mod hostile;
mod losses;
mod peers;
mod publishing;
pub(crate) mod raw;
