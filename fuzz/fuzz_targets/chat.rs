//! What one side of a chat says to the other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_cli::fuzzing::chat(data));
