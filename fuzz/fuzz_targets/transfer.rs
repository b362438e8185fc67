//! The messages and the chunks of a transfer, as either side may send them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_cli::fuzzing::transfer(data));
