//! What a router answers that is asked to let a port in.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_portmap::fuzzing::answer(data));
