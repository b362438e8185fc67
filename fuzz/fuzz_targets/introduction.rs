//! What the other side of a meeting by code says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_names::fuzzing::introduction(data));
