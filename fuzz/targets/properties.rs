//! Headers of messages: properties that can be read are written as they came, and survive as JSON.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| __fuzz::properties(data));
