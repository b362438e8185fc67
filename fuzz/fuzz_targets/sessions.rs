//! TLS sessions that another endpoint with the same key hands over.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_transport::fuzzing::sessions(data));
