//! Frames of a broker: no bytes cause a panic, and the result does not depend on the pieces in which they arrive.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((sizes, bytes)) = data.split_first_chunk::<3>() else { return };
    __fuzz::frames(sizes, bytes);
});
