//! TLS records, by strangers and by a peer that says anything under the right keys.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| whimbrel_transport::fuzzing::tls(data));
