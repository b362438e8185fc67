//! TLS records on their way to a socket.

/// A buffer that is filled at its end and written from its start. Its memory can be lent and taken
/// back, so that idle paths hold none, and is not zeroed again for each record.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Records {
    /// What waits to be written.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The first `n` waiting bytes were written.
    pub(crate) fn wrote(&mut self, n: usize) {
        self.start += n;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Room for `n` more bytes; [`filled`](Self::filled) says how many were used.
    pub(super) fn room(&mut self, n: usize) -> &mut [u8] {
        let needed = self.end + n;
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        &mut self.bytes[self.end..needed]
    }

    /// The first `n` bytes of the room were filled.
    pub(super) fn filled(&mut self, n: usize) {
        self.end += n;
    }

    /// Uses this memory, if there is none yet.
    pub(crate) fn lend(&mut self, memory: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            self.bytes = std::mem::take(memory);
        }
    }

    /// Gives the memory back, if nothing waits in it.
    pub(crate) fn reclaim(&mut self, memory: &mut Vec<u8>) {
        if self.start == self.end && memory.is_empty() {
            *memory = std::mem::take(&mut self.bytes);
        } else if self.start == self.end {
            self.bytes = Vec::new();
        }
    }
}
