//! Questions to the kernel over netlink: a dump has an end, a limit of time and one of length.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use std::io;
use std::time::Duration;

/// The kernel's answer takes milliseconds.
const LIMIT: Duration = Duration::from_secs(5);
/// Of more messages in one answer, those that come late are not looked at.
const MOST: usize = 1 << 16;

/// The kernel answers in datagrams as long as the buffer that was offered to it, up to 32 KiB.
const BUFFER: usize = 64 << 10;

/// A socket of one netlink family. After an error it has to be opened anew: an answer may be half read.
pub(crate) struct Kernel {
    socket: TokioSocket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Opens a socket. Must run inside a tokio runtime.
    pub(crate) fn open(family: isize) -> io::Result<Self> {
        let mut socket = TokioSocket::new(family)?;
        socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER) })
    }

    /// Asks for all there is, and hands what is answered to `take`.
    pub(crate) async fn dump<M>(&mut self, question: M, take: impl FnMut(M)) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.exchange(NLM_F_DUMP, question, take).await
    }

    /// Asks for one thing, or has one done, and waits until that is acknowledged.
    ///
    /// # Errors
    /// What the kernel says; [`io::ErrorKind::TimedOut`].
    pub(crate) async fn order<M>(&mut self, order: M, take: impl FnMut(M)) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.exchange(NLM_F_ACK, order, take).await
    }

    async fn exchange<M>(&mut self, flag: u16, question: M, mut take: impl FnMut(M)) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let answered = async {
            self.sequence = self.sequence.wrapping_add(1);
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_REQUEST | flag;
            header.sequence_number = self.sequence;
            let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
            packet.finalize();
            let mut bytes = vec![0; packet.buffer_len()];
            packet.serialize(&mut bytes);
            self.socket.send(&bytes).await?;
            let mut count = 0;
            loop {
                self.buffer.clear();
                self.socket.recv(&mut self.buffer).await?;
                if self.buffer.len() >= BUFFER {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a datagram of the kernel is cut off",
                    ));
                }
                if read(&self.buffer, self.sequence, &mut count, &mut take)? {
                    return Ok(());
                }
            }
        };
        tokio::time::timeout(LIMIT, answered).await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// Reads a datagram. True if the answer ends with it.
fn read<M: NetlinkDeserializable>(
    bytes: &[u8],
    sequence: u32,
    count: &mut usize,
    take: &mut impl FnMut(M),
) -> io::Result<bool> {
    let mut rest = bytes;
    while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let (message, others) = rest.split_at(length.next_multiple_of(4).clamp(4, rest.len()));
        rest = others;
        // Newer kernels say things that cannot be read here; what comes behind them still counts.
        let Ok(message) = NetlinkMessage::<M>::deserialize(message) else { continue };
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            // An acknowledgement has no code.
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(inner) => {
                *count += 1;
                if *count <= MOST {
                    take(inner);
                }
            }
            _ => {}
        }
    }
    Ok(false)
}
