//! Items with descriptors on the control socket between two instances.
//!
//! ```text
//! item = length of the head (4) | length of the body (8) | head: JSON | body
//! ```
//!
//! Descriptors travel with the first byte of their item, two at most. Later versions add fields, which have
//! defaults; an item that is not known makes the newer instance give up, and the running one goes on.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use whimbrel_proxy::SessionHead;
use whimbrel_relay::estate::{Head, MAX_SOCKETS};

use crate::transfer::underway::SoFar;

const LENGTHS: usize = 4 + 8;
const MAX_HEAD: usize = 64 * 1024;
/// More than a connection with full windows has.
const MAX_BODY: usize = 1 << 30;
/// A line before the items begin: an older program answers with its whole state.
const MAX_LINE: usize = 16 << 20;

/// What is handed over, and what is said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Item {
    Begin {
        /// The endpoint's sockets are those of a service manager, and there are to be no others.
        fixed: bool,
        /// What printed tickets let their holders in by.
        #[serde(default)]
        secret: Option<[u8; 16]>,
        /// The keys that names in `--allow` stand for.
        #[serde(default)]
        followed: Vec<(String, [u8; 32])>,
        /// When these stop to stand for them, in unix seconds, for those that do. Older programs do not say
        /// it.
        #[serde(default)]
        ends: Option<Vec<(String, u64)>>,
    },
    /// A socket of the endpoint's; with its descriptor.
    Tcp,
    Udp,
    /// Where local programs connect; with its descriptor.
    Listener {
        /// A Unix socket at this path, or one for TCP.
        unix: Option<PathBuf>,
    },
    /// A connection, asleep; in the body. They are counted from 0.
    Connection,
    /// TLS sessions; in the body.
    Sessions,
    /// A local program's socket; with its descriptor. The body is what waits in both directions.
    Local {
        unix: bool,
        /// The number of its connection, and that of its stream there.
        stream: Option<(usize, u64)>,
        out: Way,
        back: Way,
    },
    /// A file on its way; the body is what came and was not used.
    File {
        stream: (usize, u64),
        so_far: SoFar,
    },
    /// A session of a gateway; with its server's descriptor. The body is what is under way.
    Session {
        head: Box<SessionHead>,
        /// The connection of its device and the streams there, the first one first.
        streams: Vec<(usize, u64)>,
    },
    /// A part of a relay (`whimbrel_relay::estate`); with as many descriptors as belong to it.
    Relay(Head),
    End,
    /// The newer instance has everything and could begin.
    Ready,
    /// It begins.
    Go,
}

/// How far one direction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Way {
    /// Bytes that were read and not written yet.
    pub(crate) waiting: usize,
    /// The end was passed on.
    pub(crate) ended: bool,
}

/// One end of the socket.
pub(crate) struct Wire {
    socket: UnixStream,
    descriptors: VecDeque<OwnedFd>,
}

impl Wire {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, descriptors: VecDeque::new() }
    }

    /// Sends a line before the items begin.
    pub(crate) async fn send_line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.socket.write_all(&bytes).await
    }

    /// Receives a line, or what there is before the end.
    pub(crate) async fn receive_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            match self.fill(&mut byte).await {
                Ok(()) if byte[0] == b'\n' => return Ok(line),
                Ok(()) if line.len() < MAX_LINE => line.push(byte[0]),
                Ok(()) => return Err(ErrorKind::InvalidData.into()),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(line),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends an item with nothing beside it.
    pub(crate) async fn say(&mut self, item: &Item) -> io::Result<()> {
        self.send(item, &[], &[]).await
    }

    pub(super) async fn send(
        &mut self,
        item: &Item,
        body: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let head = serde_json::to_vec(item)?;
        let mut first = Vec::with_capacity(LENGTHS + head.len());
        first.extend_from_slice(&(head.len() as u32).to_be_bytes());
        first.extend_from_slice(&(body.len() as u64).to_be_bytes());
        first.extend_from_slice(&head);
        let sent =
            self.socket.async_io(Interest::WRITABLE, || send_with(&self.socket, &first, descriptors)).await?;
        self.socket.write_all(&first[sent..]).await?;
        self.socket.write_all(body).await
    }

    /// The next item with its body. Its descriptor, if it has one, is [taken](Self::descriptor) next.
    ///
    /// # Errors
    /// What the system says; [`ErrorKind::UnexpectedEof`] when the other instance has ended;
    /// [`ErrorKind::InvalidData`] for an item that is not known.
    pub(crate) async fn receive(&mut self) -> io::Result<(Item, Vec<u8>)> {
        let mut lengths = [0; LENGTHS];
        self.fill(&mut lengths).await?;
        let (head, body) = lengths.split_at(4);
        let head = u32::from_be_bytes(head.try_into().unwrap_or_default()) as usize;
        let body = u64::from_be_bytes(body.try_into().unwrap_or_default());
        let body = usize::try_from(body).ok().filter(|body| *body <= MAX_BODY && head <= MAX_HEAD);
        let Some(body) = body else { return Err(ErrorKind::InvalidData.into()) };
        let (mut head, mut body) = (vec![0; head], vec![0; body]);
        self.fill(&mut head).await?;
        self.fill(&mut body).await?;
        Ok((serde_json::from_slice(&head)?, body))
    }

    /// The oldest descriptor that came and was not taken.
    pub(super) fn descriptor(&mut self) -> io::Result<OwnedFd> {
        let missing = || io::Error::new(ErrorKind::InvalidData, "an item came without its descriptor");
        self.descriptors.pop_front().ok_or_else(missing)
    }

    async fn fill(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let Self { socket, descriptors } = self;
            let n = socket.async_io(Interest::READABLE, || receive_with(socket, into, descriptors)).await?;
            if n == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            into = &mut into[n..];
        }
        Ok(())
    }
}

fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive_with(
    socket: &UnixStream,
    into: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    // No two items' descriptors come with one call.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // This process may have no more open files.
        return Err(io::Error::other("a descriptor was lost on the way; raise the limit of open files"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn items_come_with_their_bodies_and_descriptors_in_order() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut one, mut other) = (Wire::new(one), Wire::new(other));
        let pairs: Vec<_> = (0..100).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
        let body = vec![7; 300_000];
        let way = Way { waiting: 3, ended: true };
        let item = |n| Item::Local { unix: true, stream: Some((n, 5)), out: way, back: Way::default() };
        let sending = async {
            one.send_line(&"hello").await.unwrap();
            for (n, (near, _)) in pairs.iter().enumerate() {
                one.send(&item(n), &body[n..], &[near.as_fd()]).await.unwrap();
            }
            one.say(&Item::End).await.unwrap();
        };
        let receiving = async {
            assert_eq!(other.receive_line().await.unwrap(), b"\"hello\"");
            for (n, (_, far)) in pairs.iter().enumerate() {
                assert_eq!(other.receive().await.unwrap(), (item(n), body[n..].to_vec()));
                let mut socket = std::os::unix::net::UnixStream::from(other.descriptor().unwrap());
                socket.write_all(&[n as u8]).unwrap();
                let mut byte = [0];
                (&*far).read_exact(&mut byte).unwrap();
                assert_eq!(byte[0], n as u8);
            }
            assert_eq!(other.receive().await.unwrap().0, Item::End);
            assert!(other.descriptor().is_err());
        };
        tokio::join!(sending, receiving);
        drop(one);
        assert_eq!(other.receive().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_later_versions_add_to_an_item_is_passed_over() {
        let later = r#"{"begin":{"fixed":true,"followed":[],"later":{"x":1}}}"#;
        let begin = Item::Begin { fixed: true, secret: None, followed: Vec::new(), ends: None };
        assert_eq!(serde_json::from_str::<Item>(later).unwrap(), begin);
        let earlier = r#"{"begin":{"fixed":true}}"#;
        assert_eq!(serde_json::from_str::<Item>(earlier).unwrap(), begin);
    }

    #[tokio::test]
    async fn what_is_not_known_or_too_large_is_an_error() {
        for bytes in [
            &b"\0\0\0\x07\0\0\0\0\0\0\0\0\"other\""[..],
            &[0xff; 12][..],
            &[0, 0, 0, 1, 0xff, 0, 0, 0, 0, 0, 0, 0],
        ] {
            let (mut one, other) = UnixStream::pair().unwrap();
            one.write_all(bytes).await.unwrap();
            let error = Wire::new(other).receive().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
    }
}
