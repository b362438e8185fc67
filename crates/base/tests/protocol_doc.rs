//! The examples of `docs/protocol.md` §§16 and 17 are what this crate writes, and reads.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use whimbrel_base::{Appointment, Delegation, Record, SecretKey, SignedRecord, Ticket, UnixTime};

/// What stands in the first block behind a marker.
fn block(marker: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (_, rest) = document.split_once(&format!("<!-- {marker} -->")).unwrap();
    rest.split("```").nth(1).unwrap().to_owned()
}

/// One line of text that is broken in the document.
fn text(name: &str) -> String {
    block(&format!("text: {name}")).split_whitespace().collect()
}

/// Hexadecimal up to `;` on each line.
fn hex(name: &str) -> String {
    let lines = block(&format!("example: {name}"));
    let bytes = lines.lines().filter_map(|line| line.split(';').next());
    bytes.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

fn in_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn user() -> SecretKey {
    SecretKey::from_bytes(&[0x01; 32])
}

fn laptop() -> SecretKey {
    SecretKey::from_bytes(&[0x02; 32])
}

const ISSUED: u64 = 1_700_000_000;

fn delegation() -> Delegation {
    let name = "laptop.user@example.org".parse().unwrap();
    let (from, to) = (UnixTime::from_secs(ISSUED), UnixTime::from_secs(ISSUED + 365 * 24 * 3600));
    Delegation::sign(name, laptop().id(), from, to, &user()).unwrap()
}

fn desk() -> SecretKey {
    SecretKey::from_bytes(&[0x03; 32])
}

fn appointment() -> Appointment {
    let name = "desk.user@example.org".parse().unwrap();
    let (from, to) = (UnixTime::from_secs(ISSUED), UnixTime::from_secs(ISSUED + 30 * 24 * 3600));
    Appointment::sign(name, desk().id(), from, to, &user()).unwrap()
}

#[test]
fn the_ids_and_the_ticket_are_true() {
    assert_eq!(text("ids"), format!("{}{}", user().id(), laptop().id()));
    let addrs = ["192.0.2.1:4480", "[2001:db8::1]:4480"].map(|addr| addr.parse().unwrap());
    let name = Some("laptop.user@example.org".parse().unwrap());
    let ticket = Ticket::new(laptop().id(), addrs, name);
    assert_eq!(text("ticket"), ticket.to_string());
    assert_eq!(text("ticket").parse(), Ok(ticket));
}

#[test]
fn the_delegation_is_true() {
    assert_eq!(hex("delegation"), in_hex(&delegation().encode()));
    assert_eq!(text("delegation"), delegation().to_string());
    assert_eq!(text("delegation").parse(), Ok(delegation()));
}

#[test]
fn the_appointment_is_true() {
    assert_eq!(hex("appointment"), in_hex(&appointment().encode()));
    assert_eq!(text("appointment"), appointment().to_string());
    assert_eq!(text("appointment").parse(), Ok(appointment()));
}

#[test]
fn the_renewal_is_true() {
    let day = 24 * 3600;
    let (from, to) = (UnixTime::from_secs(ISSUED + 4 * day), UnixTime::from_secs(ISSUED + 11 * day));
    let renewed = delegation().renew(&appointment(), from, to, &desk()).unwrap();
    // The document leaves out what it has above, behind the version.
    let documented = hex("renewal");
    let (version, rest) = documented.split_at(2);
    let bytes = format!("{version}{}{}{rest}", hex("delegation"), hex("appointment"));
    assert_eq!(in_hex(&renewed.encode()), bytes);
    assert_eq!(renewed.verify(), Ok(()));
}

#[test]
fn the_record_is_true() {
    let record = Record {
        name: "ssh.laptop.user@example.org".parse().unwrap(),
        id: laptop().id(),
        addrs: ["192.0.2.1:4480", "[2001:db8::1]:4480"].map(|addr| addr.parse().unwrap()).to_vec(),
        sequence: ISSUED * 1000,
        expires: UnixTime::from_secs(ISSUED + 604_800),
        lifetime: Duration::from_secs(3600),
        revoked: false,
    };
    let signed = SignedRecord::sign(record, &laptop(), Some(delegation())).unwrap();
    let bytes = in_hex(signed.encode());
    // The document leaves the delegation out, which stands before the signature.
    let documented = hex("record");
    let (fields, signature) = documented.split_at(documented.len() - 128);
    assert_eq!(bytes, format!("{fields}{}{signature}", hex("delegation")));
}
