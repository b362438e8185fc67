//! The examples of `docs/protocol.md` §18 are what this crate writes.
#![allow(clippy::unwrap_used)]

use whimbrel_names::protocol::{Message, Numbered, Reply, Request, Response, encode};

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
