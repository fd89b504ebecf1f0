//! Tables of headers: what can be read is written as it came, type by type, and survives as JSON.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| __fuzz::table(data));
