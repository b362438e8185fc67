//! What a peer says of journals of durable messages.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel::fuzzing::durable(data));
