//! Frames of a broker: any bytes, in any pieces, and no panic; what is read does not depend on the pieces.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((sizes, bytes)) = data.split_first_chunk::<3>() else { return };
    __fuzz::frames(sizes, bytes);
});
