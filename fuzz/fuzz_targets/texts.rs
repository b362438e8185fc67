//! What people write on command lines and in files of entries.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| whimbrel_cli::fuzzing::texts(text));
