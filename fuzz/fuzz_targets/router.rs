//! What a router answers that is asked to let a port in or to pass one on, by PCP and by UPnP.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    whimbrel_portmap::fuzzing::answer(data);
    whimbrel_portmap::fuzzing::device(data);
});
