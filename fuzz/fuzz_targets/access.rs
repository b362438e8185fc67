//! What a client of the multi-access manager says, and what is decided for it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_multiaccess::fuzzing::client(data));
