//! Records, those of groups among them, delegations and appointments: any bytes are refused or come back
//! exactly.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{Appointment, Delegation, MAX_GROUP_MEMBERS, SignedRecord};

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
        if let Some(appointment) = delegation.appointment() {
            assert!(appointment.issuer() == delegation.issuer() && appointment.id() != delegation.id());
            assert!(delegation.expires() <= appointment.expires());
        }
    }
    if let Ok(appointment) = Appointment::decode(data) {
        assert_eq!(appointment.encode(), data);
        let _ = appointment.verify();
    }
});
