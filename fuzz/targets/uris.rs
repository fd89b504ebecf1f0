//! URIs of brokers: any text is parsed or refused, the displayed form parses to the same address, and no error contains
//! a password.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = str::from_utf8(data) {
        __fuzz::uri(text);
    }
});
