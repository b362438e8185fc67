//! What people type: tickets, names, ids. What parses, prints and parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_base::{Delegation, EndpointId, Member, Name, RelayPlace, RelayToken, SecretKey, Ticket};
use whimbrel_names::{Code, Pin, Rule, ServiceAddress};
use whimbrel_transport::{Carriers, InterfaceRule, Policy};

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
    if let Ok(code) = text.parse::<Code>() {
        assert_eq!(code.to_string().parse::<Code>(), Ok(code));
    }
    if let Ok(pin) = text.parse::<Pin>() {
        assert_eq!(pin.to_string().parse::<Pin>(), Ok(pin));
    }
    if let Ok(token) = text.parse::<RelayToken>() {
        assert_eq!(token.to_string().parse::<RelayToken>().ok(), Some(token));
    }
    if let Ok(address) = text.parse::<ServiceAddress>() {
        assert_eq!(address.to_string().parse::<ServiceAddress>().ok(), Some(address));
    }
    if let Ok(member) = text.parse::<Member>() {
        assert_eq!(member.to_string().parse::<Member>().ok(), Some(member));
    }
    let _ = (text.parse::<Delegation>(), text.parse::<RelayPlace>(), text.parse::<Rule>());
    let _ = (text.parse::<Carriers>(), text.parse::<InterfaceRule>(), text.parse::<Policy>());
    // What the owner of a domain says in DNS.
    let _ = whimbrel_names::proof::check_proof("example.org", SecretKey::from_bytes(&[1; 32]).id(), [text]);
});
