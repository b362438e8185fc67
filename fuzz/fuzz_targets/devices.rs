//! What one device of a user says to another of the group, and leaves for it at a service.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    whimbrel_devices::fuzzing::message(data);
    whimbrel_devices::fuzzing::letter(data);
});
