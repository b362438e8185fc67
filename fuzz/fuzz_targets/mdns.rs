//! Records that are told in the local network.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_lan::fuzzing::record(data));
