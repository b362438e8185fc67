//! The examples of `docs/protocol.md` §18 are what this crate writes.
#![allow(clippy::unwrap_used)]

use whimbrel_names::protocol::{Message, Numbered, Reply, Request, Response, encode, encode_frame};

/// The bytes of the block behind `<!-- example: NAME -->`, hexadecimal up to `;` on each line.
fn documented(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (_, rest) = document.split_once(&format!("<!-- example: {name} -->")).unwrap();
    let lines = rest.split("```").nth(1).unwrap().lines();
    let bytes = lines.filter_map(|line| line.split(';').next());
    bytes.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

fn in_hex(message: &impl Message) -> String {
    encode(message).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_requests_are_true() {
    let name = "ssh.laptop.user@example.org".parse().unwrap();
    let lookup = Numbered { number: 1, request: Request::Lookup { name } };
    assert_eq!(documented("lookup"), in_hex(&lookup));
    let name = "laptop.user@example.org".parse().unwrap();
    let watch = Numbered { number: 300, request: Request::Watch { name, after: Some(1_700_000_000_000) } };
    assert_eq!(documented("watch"), in_hex(&watch));
}

#[test]
fn the_replies_are_true() {
    let response = Response::Error { code: 30, message: "no such name".to_owned() };
    assert_eq!(documented("not found"), in_hex(&Reply::Response { request: 1, response }));
    let watching = Reply::Response { request: 300, response: Response::Watching };
    assert_eq!(documented("watching"), in_hex(&watching));
}

#[test]
fn the_meeting_is_true() {
    let meet = Numbered { number: 0, request: Request::Meet { slot: Some(300) } };
    assert_eq!(documented("meet"), in_hex(&meet));
    let response = Response::Meeting { slot: 300, seconds: 590 };
    assert_eq!(documented("meeting"), in_hex(&Reply::Response { request: 0, response }));
    let frame: String = encode_frame(b"hi").unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(documented("meeting frame"), frame);
}

/// Every code has a line, and no line has another number.
#[test]
fn every_error_code_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (_, rest) = document.split_once("| code | meaning | code | meaning |").unwrap();
    let rows = rest.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut found: Vec<u16> = rows
        .flat_map(|row| row.split('|').map(str::trim).map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|cell| cell.parse().ok())
        .collect();
    found.sort_unstable();
    let mut known: Vec<u16> = whimbrel_names::ErrorCode::ALL.iter().map(|code| code.number()).collect();
    known.sort_unstable();
    assert_eq!(found, known);
}
