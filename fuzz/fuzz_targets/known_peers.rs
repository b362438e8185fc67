//! The file of known peers: any text is refused or comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| whimbrel_names::fuzzing::known_peers(text));
