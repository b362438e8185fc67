//! A server that says to each request for one object what it is told to, in place of what it should.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::networks::{World, range};
use crate::support::{Origin, field};
use std::io::Write as _;

/// What a server says to the range, to the rest, and to the whole.
pub type Script = (&'static str, &'static str, &'static str);

pub const TOTAL: usize = 20_000;

/// `{}` stands for the bytes that were asked for.
pub fn scripted(world: &World, script: Script) -> Origin {
    let content: Vec<u8> = (0..TOTAL).map(|n| b'a' + (n % 23) as u8).collect();
    world.origin(move |head, _, stream| {
        let (first, last) = range(head, TOTAL).unwrap_or((0, TOTAL - 1));
        let is_head = head.starts_with("HEAD");
        let (say, part) = match field(head, "range") {
            Some("bytes=0-8191") => (script.0, &content[first..=last]),
            Some(_) => (script.1, &content[first..=last]),
            None => (script.2, &content[..]),
        };
        let part = if say.starts_with("200") { &content[..] } else { part };
        let length = format!("Content-Length: {}", part.len());
        let range = format!("Content-Range: bytes {first}-{last}/{TOTAL}");
        let head = say.replace("LENGTH", &length).replace("RANGE", &range);
        let (head, rest) = head.split_once("{}").unwrap_or((&head, ""));
        stream.write_all(format!("HTTP/1.1 {head}").as_bytes()).unwrap();
        if say.contains("{}") && !is_head {
            stream.write_all(part).unwrap();
            stream.write_all(rest.as_bytes()).unwrap();
        }
        !say.contains("close")
    })
}

pub const WHOLE: &str = "200 OK\r\nLENGTH\r\n\r\n{}";
pub const PART: &str = "206 Partial Content\r\nETag: \"a\"\r\nRANGE\r\nLENGTH\r\n\r\n{}";
