//! Addresses of brokers: any text is read or refused, what is shown leads to the same place, and no error repeats a password.

#![no_main]

use gristmill_amqp::__fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = str::from_utf8(data) {
        __fuzz::uri(text);
    }
});
