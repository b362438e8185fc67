//! Records and delegations: any bytes are refused or come back exactly.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{Delegation, SignedRecord};

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = SignedRecord::decode(data) {
        assert_eq!(record.encode(), data);
        let _ = record.verify();
    }
    if let Ok(delegation) = Delegation::decode(data) {
        assert_eq!(delegation.encode(), data);
        let _ = delegation.verify();
    }
});
