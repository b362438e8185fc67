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
//! The receiver keeps what has arrived in `.NAME.whimbrel-part`, which becomes `NAME` when the sum is
//! right. Whoever dies is started again, and the bytes that both have are not sent again.

mod message;
mod partial;
pub(crate) mod receiving;
pub(crate) mod sending;

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
    hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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
