//! What one device of a user says to another of the group.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_devices::fuzzing::message(data));
