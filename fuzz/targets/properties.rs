//! Properties of messages: those that can be decoded are encoded to the same bytes, also through JSON.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| __fuzz::properties(data));
