//! Methods of a broker: any payload is parsed or refused, and methods that clients send too are encoded as decoded.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| __fuzz::method(data));
