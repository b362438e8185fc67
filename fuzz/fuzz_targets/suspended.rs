//! Connections that were put to sleep, as they are kept and sealed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_transport::fuzzing::suspended(data));
