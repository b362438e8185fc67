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
        // Films are not known in the other process.
        let Self { socket, kept, voice, waiting, programs, head, beginning, film: _, first, squeezed } = self;
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
        let film = None;
        Ok(Self { socket, kept, voice, waiting, programs, head, beginning, film, first, squeezed })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn how_a_session_began_goes_on_with_it_and_that_of_an_older_process_is_not_known() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = Server::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let said = b"hello\r\nyo";
        server.beginning.sees(said);
        server.beginning.takes(said);
        let (told, mut body) = (server.head(9), Vec::new());
        assert!(told.ends_with(b"yohello\r\n"), "{told:?}");
        let (record, socket) = server.halt(&mut body).unwrap();
        let mut record = serde_json::to_value(record).unwrap();
        let going_on = |record: &serde_json::Value| {
            let record: ServerRecord = serde_json::from_value(record.clone()).unwrap();
            let socket = socket.try_clone().unwrap();
            Server::going_on(record, &mut Body::new(Vec::new()), socket).map(|server| server.head(9))
        };
        assert_eq!(going_on(&record).unwrap(), told);
        record["beginning"]["greeting"] = 10.into();
        assert!(going_on(&record).is_err(), "a greeting that is longer than what was said");
        record.as_object_mut().unwrap().remove("beginning");
        assert_eq!(going_on(&record).unwrap(), b"");
    }

    #[tokio::test]
    async fn a_film_that_was_entered_goes_on_from_there_in_another_process_and_is_none_any_more() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = Server::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let head = b"HTTP/1.1 200 OK\r\n\r\n";
        let beginning = b"\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff";
        let cluster = b"\x1f\x43\xb6\x75\xff\xa3\x88\x81\0\0\x80film";
        let all = [&head[..], beginning, cluster].concat();
        let (place, end) = ((all.len() - cluster.len()) as u64, all.len() as u64);
        server.came(vec![all.into()]);
        assert!(server.taken(end) && server.kept().is_empty());
        assert_eq!(server.entry(end).unwrap().place, place);
        server.goes_on_at(place);
        let mut body = Vec::new();
        let (record, socket) = server.halt(&mut body).unwrap();
        let server = Server::going_on(record, &mut Body::new(body), socket).unwrap();
        assert_eq!((server.kept().base(), server.kept().end()), (place, end));
        assert_eq!(&server.from(place, 99)[..], cluster);
        assert_eq!(server.entry(place), None);
    }
}
