//! Questions of STUN and answers to them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_transport::fuzzing::stun(data));
