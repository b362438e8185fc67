//! The worked examples of `docs/protocol.md` are what the engine puts on the wire.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use whimbrel_base::{ConnectionId, SecretKey};
use whimbrel_proto::notice::Notice;
use whimbrel_proto::{Config, Connection, FirstFlight, PathId, segment};

/// The bytes of the block behind `<!-- example: NAME -->`: hexadecimal up to `;` on each line.
fn documented(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    let text = std::fs::read_to_string(path).unwrap();
    let marker = format!("<!-- example: {name} -->");
    let (_, rest) = text.split_once(&marker).unwrap();
    let block = rest.split("```").nth(1).unwrap();
    let digits: String = block
        .lines()
        .skip(1)
        .filter_map(|line| line.split(';').next())
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn assert_documented(name: &str, bytes: &[u8]) {
    assert_eq!(hex(&documented(name)), hex(bytes), "example {name}");
}

#[test]
fn the_examples_are_true() {
    let (client_key, server_key) = (SecretKey::from_bytes(&[0x01; 32]), SecretKey::from_bytes(&[0x02; 32]));
    assert_documented("client id", client_key.id().as_bytes());
    assert_documented("server id", server_key.id().as_bytes());
    let now = Instant::now();
    let mut config = Config::default();
    config.params.target = Some("ssh.laptop.user@example.org".to_owned());
    let id = ConnectionId::from_bytes(&[0x11; 16]);
    let mut client = Connection::client(config, id, client_key.id(), server_key.id(), [0xaa; 32], now);
    let path = client.open_path(now, None, 14_000).unwrap();
    let stream = client.open_stream().unwrap();
    client.write(stream, b"hello").unwrap();
    let mut wire = Vec::new();
    assert!(client.poll_transmit(now, path, &mut wire));
    assert_documented("open segment", &wire);

    let (body, _) = segment::split(&wire).unwrap().unwrap();
    let Ok(FirstFlight::Open(open)) = FirstFlight::decode(body) else { panic!("an OPEN") };
    let mut server =
        Connection::server(Config::default(), &open, server_key.id(), client_key.id(), [0xbb; 32], now);
    server.handle_segment(now, PathId(0), body).unwrap();
    let mut wire = Vec::new();
    assert!(server.poll_transmit(now, PathId(0), &mut wire));
    assert_documented("accept segment", &wire);
    let (body, _) = segment::split(&wire).unwrap().unwrap();
    client.handle_segment(now, PathId(0), body).unwrap();

    client.path_lost(now, PathId(0));
    let path = client.open_path(now, None, 14_000).unwrap();
    let mut wire = Vec::new();
    assert!(client.poll_transmit(now, path, &mut wire));
    assert_documented("join segment", &wire);

    let key = server.notice_key().unwrap();
    let notice = Notice::Moved { sequence: 1, addresses: vec!["192.0.2.1:4480".parse().unwrap()] };
    assert_documented("notice", &key.seal(&notice));
}
