//! A server's connection that is halted, and goes on later.

use super::{Head, Programs, Server, Voice};
use crate::sessions::beginning::Beginning;
use crate::sessions::message::LONGEST_HEAD;
use crate::sessions::parts::{Body, missing};
use crate::sessions::window::Window;
use serde::{Deserialize, Serialize};
use std::io;
use tokio::net::TcpStream;

/// How far a server's connection is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sessions) struct ServerRecord {
    /// Where what is kept begins, and how many bytes that are; likewise what waits.
    kept: (u64, usize),
    waiting: (u64, usize),
    voice: Voice,
    programs: Programs,
    head: Head,
    first: [u8; 2],
    /// What its kernel was told to hold at most: that stays with the connection.
    #[serde(default)]
    squeezed: Option<usize>,
    /// An older process did not look at it.
    #[serde(default)]
    beginning: Beginning,
}

impl Server {
    /// Halts. Bytes that are under way are put behind others.
    pub(in crate::sessions) fn halt(
        self,
        body: &mut Vec<u8>,
    ) -> io::Result<(ServerRecord, std::net::TcpStream)> {
        let Self { socket, kept, voice, waiting, programs, head, beginning, first, squeezed } = self;
        let mut put = |window: &Window| {
            body.extend_from_slice(&window.to_vec());
            (window.base(), window.len())
        };
        let (kept, waiting) = (put(&kept), put(&waiting));
        let record = ServerRecord { kept, waiting, voice, programs, head, first, squeezed, beginning };
        Ok((record, socket.into_std()?))
    }

    /// It goes on: its end is an ordinary one again, unless it is broken off.
    pub(in crate::sessions) fn go_on_whole(&self) {
        // Without it the server sees a break at the end, and knows that something is missing.
        let _ = socket2::SockRef::from(&self.socket).set_linger(None);
    }

    /// Goes on where it was halted.
    pub(in crate::sessions) fn going_on(
        record: ServerRecord,
        body: &mut Body,
        socket: std::net::TcpStream,
    ) -> io::Result<Self> {
        let ServerRecord { kept, waiting, voice, programs, head, first, squeezed, beginning } = record;
        let is_long = matches!(&head, Head::Coming(begin) | Head::Whole(begin) if begin.len() > LONGEST_HEAD);
        if is_long || !beginning.is_possible() {
            return Err(missing());
        }
        let mut window =
            |(base, length): (u64, usize)| Ok::<_, io::Error>(Window::with(base, &body.take(length)?));
        let (kept, waiting) = (window(kept)?, window(waiting)?);
        let socket = TcpStream::from_std(socket)?;
        Ok(Self { socket, kept, voice, waiting, programs, head, beginning, first, squeezed })
    }
}
