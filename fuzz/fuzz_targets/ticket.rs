//! What people type: tickets, names, ids. What parses, prints and parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{Delegation, EndpointId, Name, Ticket};

fuzz_target!(|text: &str| {
    if let Ok(ticket) = text.parse::<Ticket>() {
        assert_eq!(ticket.to_string().parse::<Ticket>().ok(), Some(ticket));
    }
    if let Ok(name) = text.parse::<Name>() {
        assert_eq!(name.to_string().parse::<Name>().ok(), Some(name));
    }
    if let Ok(id) = text.parse::<EndpointId>() {
        assert_eq!(id.to_string().parse::<EndpointId>().ok(), Some(id));
    }
    let _ = text.parse::<Delegation>();
});
