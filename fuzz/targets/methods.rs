//! Methods of a broker: any payload is read or refused, and what both sides can say is written as it was read.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| __fuzz::method(data));
