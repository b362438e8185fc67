//! The stream on which a server and the relay talk, so that it can be left between any two bytes.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use crate::wire::{MAX_MESSAGE, Message};

/// Bytes that are read at once.
const PIECE: usize = 256;

/// A stream, with what came of the next message, and what is still to be said. Both are bounded: nothing is
/// read while a whole message is there, and orders wait in a bounded queue.
pub(super) struct Talk {
    read: RecvHalf,
    write: SendHalf,
    came: Vec<u8>,
    unsaid: Vec<u8>,
}

impl Talk {
    pub(super) fn new(stream: Stream) -> Self {
        Self::going_on(stream, Vec::new(), Vec::new())
    }

    pub(super) fn going_on(stream: Stream, came: Vec<u8>, unsaid: Vec<u8>) -> Self {
        let (read, write) = stream.into_split();
        Self { read, write, came, unsaid }
    }

    /// The stream's number.
    pub(super) fn id(&self) -> u64 {
        self.read.stream().id()
    }

    /// What came, and what is unsaid. The stream must be asleep, or it ends.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<u8>) {
        (self.came, self.unsaid)
    }

    /// Says something, as soon as there is room for it.
    pub(super) fn say(&mut self, message: &Message) {
        self.unsaid.extend(message.encode());
    }

    /// Whether everything was said.
    pub(super) fn has_said_all(&self) -> bool {
        self.unsaid.is_empty()
    }

    /// Whether what is unsaid is little: a server that reads nothing is not answered for ever.
    pub(super) fn has_room(&self) -> bool {
        self.unsaid.len() < 4 * MAX_MESSAGE
    }

    /// The next message that is known; or nothing, once all that was unsaid has been said. Cancel-safe.
    ///
    /// # Errors
    /// When the stream ends, or holds something else.
    pub(super) async fn step(&mut self) -> io::Result<Option<Message>> {
        loop {
            while let Some((message, length)) = whole(&self.came)? {
                self.came.drain(..length);
                if message.is_some() {
                    return Ok(message);
                }
            }
            let mut piece = [0; PIECE];
            tokio::select! {
                count = self.read.read(&mut piece) => match count? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    count => self.came.extend_from_slice(&piece[..count]),
                },
                said = self.write.write(&self.unsaid), if !self.unsaid.is_empty() => {
                    self.unsaid.drain(..said?);
                    if self.unsaid.is_empty() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// The next message that is known. Cancel-safe.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(super) async fn next(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.step().await? {
                return Ok(message);
            }
        }
    }

    /// Says what is unsaid, and waits until the server has it. Cancel-safe.
    ///
    /// # Errors
    /// When the stream ends.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        while !self.unsaid.is_empty() {
            let said = self.write.write(&self.unsaid).await?;
            self.unsaid.drain(..said);
        }
        self.write.stream().drained().await?;
        Ok(())
    }
}

/// The message that `bytes` begin with, `None` if it is not known, and its length; nothing if it is not
/// whole.
fn whole(bytes: &[u8]) -> io::Result<Option<(Option<Message>, usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes(*length));
    if length == 0 || length > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    rest.get(..length).map(|message| Ok((Message::decode(message)?, length + 2))).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_or_not_and_unknown_ones_are_stepped_over() {
        let known = Message::Left(70_000);
        let bytes = [known.encode(), vec![0, 2, 200, 9, 7]].concat();
        let length = known.encode().len();
        for cut in 0..length {
            assert_eq!(whole(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(whole(&bytes).unwrap(), Some((Some(known), length)));
        assert_eq!(whole(&bytes[length..]).unwrap(), Some((None, 4)));
        for wrong in [&[0, 0][..], &[255, 255, 1], &[0, 1, 66]] {
            assert_eq!(whole(wrong).unwrap_err().kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
    }
}
