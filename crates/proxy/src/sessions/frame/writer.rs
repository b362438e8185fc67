//! Frames, as they are said.

use super::{BYTES, Frame, LONGEST, put, put_head};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use whimbrel_transport::SendHalf;

/// No writer gathers more bytes of the connection, nor counts, before it is written out, but for one frame.
/// It is what a stream takes at once where there are many: what waits behind that is only held twice.
pub(super) const GATHERED: usize = 2 * LONGEST;
/// Less is copied behind what was said before: a chunk takes some memory of its own.
const SMALL: usize = 2048;

/// Where frames go: bytes in chunks of any length.
pub(in crate::sessions) trait Taker {
    /// Takes away some bytes from the front, at least one, and returns how many. Cancel-safe.
    fn take(&mut self, chunks: &mut VecDeque<Bytes>) -> impl Future<Output = io::Result<usize>> + Send;

    /// Nothing more will be said.
    fn end(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

impl Taker for SendHalf {
    fn take(&mut self, chunks: &mut VecDeque<Bytes>) -> impl Future<Output = io::Result<usize>> + Send {
        // In the memory that they came in.
        self.write_chunks(chunks)
    }

    async fn end(&mut self) -> io::Result<()> {
        self.stream().finish()
    }
}

/// Writes frames to a stream. Bytes of the connection stay where they are.
pub(in crate::sessions) struct Writer<W> {
    to: W,
    chunks: VecDeque<Bytes>,
    /// What is said behind those.
    tail: BytesMut,
    /// Of both.
    gathered: usize,
    /// The newest count, while there is no room for it. It says all that older ones said.
    count: Option<u64>,
}

impl<W: Taker> Writer<W> {
    pub(in crate::sessions) fn new(to: W) -> Self {
        Self { to, chunks: VecDeque::new(), tail: BytesMut::new(), gathered: 0, count: None }
    }

    /// One that was halted before it had said this.
    pub(in crate::sessions) fn going_on(to: W, out: &[u8], count: Option<u64>) -> Self {
        let mut writer = Self { count, ..Self::new(to) };
        writer.say_plain(out);
        writer
    }

    /// Halts: what is still to be said is returned.
    pub(in crate::sessions) fn halt(self) -> (W, Vec<u8>, Option<u64>) {
        let mut out = Vec::with_capacity(self.gathered);
        self.chunks.iter().for_each(|chunk| out.extend_from_slice(chunk));
        out.extend_from_slice(&self.tail);
        (self.to, out, self.count)
    }

    /// How many bytes are gathered.
    pub(in crate::sessions) fn gathered(&self) -> usize {
        self.gathered
    }

    pub(in crate::sessions) fn say(&mut self, frame: &Frame) {
        match frame {
            Frame::Count(count) if !self.has_room() => self.count = Some(*count),
            _ => self.put(|tail| frame.put(tail)),
        }
    }

    /// Bytes of the connection: no more than one frame has room for.
    pub(in crate::sessions) fn say_data(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL {
            return self.put(|tail| put(tail, BYTES, &bytes));
        }
        self.put(|tail| put_head(tail, BYTES, bytes.len()));
        self.chunks.push_back(self.tail.split().freeze());
        self.gathered += bytes.len();
        self.chunks.push_back(bytes);
    }

    /// What is no frame: the words before them.
    pub(in crate::sessions) fn say_plain(&mut self, bytes: &[u8]) {
        self.put(|tail| tail.extend_from_slice(bytes));
    }

    fn put(&mut self, put: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        put(&mut self.tail);
        self.gathered += self.tail.len() - before;
    }

    /// Whether there is room for more bytes of the connection.
    pub(in crate::sessions) fn has_room(&self) -> bool {
        self.gathered < GATHERED
    }

    /// Writes some of what is to be said; waits for ever if there is nothing. Cancel-safe.
    pub(in crate::sessions) async fn write(&mut self) -> io::Result<()> {
        if self.gathered == 0 {
            return std::future::pending().await;
        }
        // One small chunk after the other would be many.
        if self.chunks.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
        let n = self.to.take(&mut self.chunks).await?;
        if n == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        self.gathered -= n;
        if self.has_room()
            && let Some(count) = self.count.take()
        {
            self.say(&Frame::Count(count));
        }
        if self.gathered == 0 {
            (self.chunks, self.tail) = (VecDeque::new(), BytesMut::new());
        }
        Ok(())
    }

    /// Where it goes.
    pub(in crate::sessions) fn inner(&self) -> &W {
        &self.to
    }

    /// Writes all, and ends the stream.
    pub(in crate::sessions) async fn finish(mut self) -> io::Result<()> {
        while self.gathered > 0 {
            self.write().await?;
        }
        self.to.end().await
    }
}
