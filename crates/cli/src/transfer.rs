//! Files that arrive whole, or are gone on with later.
//!
//! One stream a file. Messages are JSON behind a length of four bytes.
//!
//! ```text
//! sender                                receiver
//! offer: name, size             →
//!                               ←       want: how many bytes are there already, and their SHA-256
//!                                       refuse: why not
//! start: from there, or from 0  →
//! the bytes                     →
//! end: SHA-256 of all bytes     →
//!                               ←       done, or refuse
//! ```
//!
//! Several files and directories are a batch, with a stream of its own beside those of its files:
//!
//! ```text
//! offer: how many, bytes, names →
//!                               ←       accept, or refuse
//! (on streams of their own: each file, with the batch's number and the directories above it)
//! batch end: complete or not    →
//!                               ←       done, or refuse
//! ```
//!
//! The receiver keeps what has arrived in `.NAME.whimbrel-part`, which becomes `NAME` when the sum is right;
//! a directory when all of its files have arrived. A transfer that is started again does not send again what
//! both have. Where the receiver understands chunks, the bytes come in [`chunk`]s.

mod answers;
mod asking;
mod batch;
mod bundle;
mod chunk;
mod coming;
mod destination;
mod directory;
mod elsewhere;
mod filling;
mod inbox;
mod item;
mod message;
mod name;
pub(crate) mod outbox;
mod outcome;
pub(crate) mod outflow;
pub(crate) mod pace;
mod partial;
pub(crate) mod receiving;
pub(crate) mod sending;
pub(crate) mod several;
pub(crate) mod source;
pub(crate) mod spool;
pub(crate) mod together;
pub(crate) mod tree;
pub(crate) mod underway;

pub(crate) use self::asking::Asker;
pub(crate) use self::inbox::{Consent, Inbox, Limits};
pub(crate) use self::name::check as check_name;

use std::fs::File;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// Bytes that are read and sent at once.
const CHUNK: usize = 256 * 1024;

/// Why a transfer did not happen.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The connection ended: it can be gone on with.
    Lost(io::Error),
    /// The other side does not want to; its words.
    Refused(String),
    /// Something here is wrong.
    Here(anyhow::Error),
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Here(error)
    }
}

fn sum(hasher: &Sha256) -> String {
    hex(&hasher.clone().finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hashes the next `length` bytes of a file. Blocks.
fn hash_prefix(file: &mut File, length: u64) -> io::Result<Sha256> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut rest = file.take(length);
    loop {
        match rest.read(&mut buffer)? {
            0 if rest.limit() > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => return Ok(hasher),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Decodes what a peer may send, as the two sides do. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    if let Ok(message::Message::Offer(offer)) = message::Message::decode(bytes) {
        // Whatever it is called, it is either taken or refused.
        let _ = offer.above.iter().chain([&offer.name]).try_for_each(|name| name::check(name));
        if let Some(of) = &offer.batch {
            let _ = batch::Incoming::new(of, offer.size);
        }
    }
    // Of several files that move: what is no head is refused, and nothing is made of it.
    let _ = bundle::HeadIn::default().take(bytes);
    let mut rest = bytes;
    while let Some((word, body)) = rest.split_first_chunk() {
        let Ok(header) = chunk::Header::decode(u32::from_be_bytes(*word)) else { return };
        let (chunk::Header::Stored(length) | chunk::Header::Compressed(length)) = header else { return };
        let Some((body, after)) = body.split_at_checked(length) else { return };
        if matches!(header, chunk::Header::Compressed(_)) {
            assert!(chunk::expand(body).is_ok_and(|all| all.len() <= CHUNK) || chunk::expand(body).is_err());
        }
        rest = after;
    }
}
