//! Bytes of a session that was halted, taken one part after the other.

use std::io::{self, ErrorKind};

/// Bytes that were under way, taken one part after the other.
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, n: usize) -> io::Result<Vec<u8>> {
        if n > self.0.len() {
            return Err(missing());
        }
        let rest = self.0.split_off(n);
        Ok(std::mem::replace(&mut self.0, rest))
    }
}

/// What is handed over is not what it says.
pub(super) fn missing() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a session was handed over in part")
}
