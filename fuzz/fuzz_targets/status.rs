//! What is asked of a running command, and what it answers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_cli::fuzzing::status(data));
