//! Records, those of groups among them, and delegations: any bytes are refused or come back exactly.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{Delegation, MAX_GROUP_MEMBERS, SignedRecord};

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = SignedRecord::decode(data) {
        assert_eq!(record.encode(), data);
        let _ = record.verify();
        if let Some(members) = record.members() {
            assert!(members.len() <= MAX_GROUP_MEMBERS && members.is_sorted_by(|a, b| a < b));
            assert!(record.record().addrs.is_empty() && !record.record().revoked);
        }
    }
    if let Ok(delegation) = Delegation::decode(data) {
        assert_eq!(delegation.encode(), data);
        let _ = delegation.verify();
    }
});
