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
    pub(crate) fn room(&mut self, n: usize) -> &mut [u8] {
        let needed = self.end + n;
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        &mut self.bytes[self.end..needed]
    }

    /// The first `n` bytes of the room were filled.
    pub(crate) fn filled(&mut self, n: usize) {
        self.end += n;
    }

    /// Appends what `f` appends. Its memory must only grow.
    pub(crate) fn append<R>(&mut self, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.bytes.truncate(self.end);
        let result = f(&mut self.bytes);
        self.end = self.bytes.len();
        result
    }

    /// Moves what waits in `other` behind what waits here.
    pub(crate) fn take(&mut self, other: &mut Self) {
        if self.waiting().is_empty() {
            std::mem::swap(self, other);
        } else {
            let waiting = other.waiting();
            self.room(waiting.len()).copy_from_slice(waiting);
            self.filled(waiting.len());
        }
        other.wrote(other.waiting().len());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn records(bytes: &[u8]) -> Records {
        let mut records = Records::default();
        records.room(bytes.len()).copy_from_slice(bytes);
        records.filled(bytes.len());
        records
    }

    #[test]
    fn what_is_taken_goes_behind_what_waits() {
        let (mut waiting, mut fresh) = (records(b"a full socket left this"), records(b", then this"));
        waiting.wrote(2);
        waiting.take(&mut fresh);
        assert_eq!(waiting.waiting(), b"full socket left this, then this");
        assert!(fresh.waiting().is_empty());
        fresh.take(&mut waiting);
        assert_eq!(fresh.waiting(), b"full socket left this, then this");
        assert!(waiting.waiting().is_empty());
    }
}
