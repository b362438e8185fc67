//! The server's side of a session: the one TCP connection that never changes.

mod lasting;
mod reading;

pub(super) use lasting::ServerRecord;
pub(super) use reading::READ;

use super::beginning::Beginning;
use super::budget::{LEAST_KEPT, MOST_DOWN};
use super::entry::Entry;
use super::film::Film;
use super::message::LONGEST_HEAD;
use super::window::Window;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

/// Where less than this is kept the kernel holds no more either.
const SQUEEZED: usize = 256 * 1024;
/// What is written at once.
const WRITE: usize = 64 * 1024;

/// A server's connection, with what is under way in both directions.
pub(super) struct Server {
    socket: TcpStream,
    /// From the server, until the program has taken it.
    kept: Window,
    voice: Voice,
    /// From the programs, until the server's socket has taken it.
    waiting: Window,
    programs: Programs,
    head: Head,
    beginning: Beginning,
    /// If what it says may be one.
    film: Option<Box<Film>>,
    first: [u8; 2],
    /// What the kernel may hold unread, where that is less than it would.
    squeezed: Option<usize>,
}

/// How the server's direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Voice {
    GoesOn,
    /// It has said all.
    Ended,
    /// The connection broke. What came before may wait in the kernel.
    Breaks,
    /// The connection broke behind what is kept.
    Broken,
}

/// How the programs' direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Programs {
    GoOn,
    /// It ends behind what is waiting.
    End,
    /// The server was told so.
    Ended,
}

/// The beginning of what a server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Head {
    Coming(Vec<u8>),
    Whole(Vec<u8>),
    /// It is too long, or another protocol's.
    Unknown,
}

impl Server {
    pub(super) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            kept: Window::default(),
            voice: Voice::GoesOn,
            waiting: Window::default(),
            programs: Programs::GoOn,
            head: Head::Coming(Vec::new()),
            beginning: Beginning::new(),
            film: None,
            first: [0; 2],
            squeezed: None,
        }
    }

    /// What came, and was not taken yet.
    pub(super) fn kept(&self) -> &Window {
        &self.kept
    }

    /// What programs sent, and the server's socket did not take yet.
    pub(super) fn waiting(&self) -> &Window {
        &self.waiting
    }

    /// Whether nothing comes of the server any more, and all that came is kept.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.voice, Voice::Ended | Voice::Broken)
    }

    /// Whether the connection broke. What came before is kept.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.voice, Voice::Breaks | Voice::Broken)
    }

    /// Whether nothing more is passed on to the server.
    pub(super) fn takes_no_more(&self) -> bool {
        self.has_heard_all() || self.is_broken()
    }

    /// Whether programs have ended their direction.
    pub(super) fn has_heard_all(&self) -> bool {
        self.programs != Programs::GoOn
    }

    /// Whether both directions have ended, or broke, and all was taken.
    pub(super) fn is_over(&self) -> bool {
        let is_all = self.has_ended() && self.kept.is_empty();
        is_all && (self.programs == Programs::Ended || self.is_broken())
    }

    /// Whether only what programs sent is left to be passed on: no device is needed for that.
    pub(super) fn needs_no_device(&self) -> bool {
        self.has_ended() && self.kept.is_empty() && self.takes_no_more()
    }

    /// Whether the programs' bytes are under keys that only the first program has.
    pub(super) fn is_tls(&self) -> bool {
        // A handshake record of any version (RFC 8446, §5.1). Who sent but one byte may be about to send one.
        matches!((self.first, self.waiting.end()), ([22, 3], 2..) | ([22, _], 1))
    }

    /// What a device is told that has the session from this offset on: the head of HTTP that the server's
    /// words begin with, if they do, or how a text protocol began.
    pub(super) fn head(&self, offset: u64) -> Vec<u8> {
        match &self.head {
            Head::Whole(head) => head.clone(),
            Head::Coming(_) | Head::Unknown => self.beginning.told(offset),
        }
    }

    /// A program has taken what is before this offset. False if that never came.
    pub(super) fn taken(&mut self, to: u64) -> bool {
        let mut at = self.kept.base();
        while self.beginning.is_kept() && at < to {
            let some = self.kept.from(at, usize::try_from(to - at).unwrap_or(usize::MAX));
            if some.is_empty() {
                break;
            }
            self.beginning.takes(&some);
            at += some.len() as u64;
        }
        if let Some(film) = &mut self.film {
            film.takes(&self.kept, to);
        }
        self.kept.release(to)
    }

    /// Some bytes that came, at most so many, from an offset on: also such as were taken, if a player may go
    /// on there.
    pub(super) fn from(&self, offset: u64, most: usize) -> Bytes {
        match &self.film {
            Some(film) if offset < self.kept.base() => film.from(offset, most),
            _ => self.kept.from(offset, most),
        }
    }

    /// Where a player can go on in the place of the program, which is at this offset.
    pub(super) fn entry(&self, offset: u64) -> Option<Entry> {
        // Its device takes no more at once.
        let room = MOST_DOWN.saturating_sub(self.kept.len());
        self.film.as_ref()?.entry(offset, room)
    }

    /// A program goes on at this offset, which may be before that of the one before.
    pub(super) fn goes_on_at(&mut self, offset: u64) {
        if let Some(film) = &mut self.film {
            film.give_back(offset, &mut self.kept);
        }
    }

    /// How many bytes are kept for players that might go on.
    pub(super) fn kept_of_film(&self) -> usize {
        self.film.as_ref().map_or(0, |film| film.kept())
    }

    /// Keeps less for players: first none of what programs have taken, and then, if that was none, nothing
    /// that is much.
    pub(super) fn keep_less_of_film(&mut self) {
        if self.film.as_mut().is_some_and(|film| !film.makes_room()) {
            self.film = None;
        }
    }

    /// Bytes of a program, for the server. They are lost if that broke the connection.
    pub(super) fn send(&mut self, bytes: Bytes) {
        let known = usize::try_from(self.waiting.end()).unwrap_or(usize::MAX).min(self.first.len());
        self.first[known..].iter_mut().zip(&bytes).for_each(|(first, byte)| *first = *byte);
        if !bytes.is_empty() {
            self.beginning.hears();
        }
        self.waiting.push(bytes);
        if self.is_broken() {
            self.waiting.release(self.waiting.end());
        }
    }

    /// Programs have nothing more to say.
    pub(super) fn end(&mut self) {
        if self.programs == Programs::GoOn {
            self.programs = Programs::End;
        }
    }

    /// Waits until something can be read, if it is to be, or written, if there is something. Cancel-safe.
    pub(super) async fn ready(&self, is_to_read: bool) -> io::Result<Ready> {
        let reads = is_to_read && self.voice == Voice::GoesOn;
        let interest = match (reads, !self.waiting.is_empty()) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => return std::future::pending().await,
        };
        self.socket.ready(interest).await
    }

    /// Has the kernel hold hardly more unread than is kept, where `most` of that is little. By itself it
    /// would hold megabytes for each server that waits, and a thousand of those have it give all connections
    /// of the host a window of a few packets (tcp_mem of tcp(7)).
    pub(super) fn squeeze(&mut self, most: usize) {
        let most = most.max(LEAST_KEPT);
        let has_room = self.squeezed.is_some_and(|squeezed| most >= 2 * squeezed);
        if has_room || (self.squeezed.is_none() && most < SQUEEZED) {
            // Without it only more memory is used.
            let _ = socket2::SockRef::from(&self.socket).set_recv_buffer_size(most);
            self.squeezed = Some(most);
        }
    }

    /// Does what is possible. Keeps no more than `most`. After an error the connection is broken.
    pub(super) fn go_on(&mut self, ready: Ready, most: usize) -> io::Result<()> {
        if ready.is_readable() && self.voice == Voice::GoesOn {
            self.read(most)?;
        }
        if ready.is_writable() { self.write() } else { Ok(()) }
    }

    /// The connection broke. What came before is kept until a program has taken it.
    pub(super) fn breaks(&mut self) {
        if !self.is_broken() {
            self.voice = Voice::Breaks;
            self.waiting.release(self.waiting.end());
        }
    }

    /// Ends the programs' direction once all is written.
    pub(super) fn pass_end_on(&mut self) -> io::Result<()> {
        if self.programs == Programs::End && self.waiting.is_empty() && !self.is_broken() {
            socket2::SockRef::from(&self.socket).shutdown(Shutdown::Write)?;
            self.programs = Programs::Ended;
        }
        Ok(())
    }

    /// Makes the end of the connection a break: the server learns that bytes are missing.
    pub(super) fn break_off(&self) {
        // Without it the end is an ordinary one, which is the best that is left then.
        let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }

    fn read(&mut self, most: usize) -> io::Result<()> {
        let room = most.saturating_sub(self.kept.len()).min(READ);
        if room == 0 {
            return Ok(());
        }
        let mut short = Vec::new();
        let read = self.socket.try_io(Interest::READABLE, || {
            let pieces = reading::read(&self.socket, room)?;
            let bytes: usize = pieces.iter().map(Bytes::len).sum();
            if (1..room).contains(&bytes) {
                // The socket is empty: told so, the runtime does not have it read again to find that. Or it
                // is at a mark of urgent bytes (RFC 6093): what is behind that is read with what comes next,
                // or the end, as the runtime's own reads do.
                short = pieces;
                return Err(ErrorKind::WouldBlock.into());
            }
            Ok(pieces)
        });
        match read {
            Ok(pieces) if pieces.is_empty() => self.voice = Voice::Ended,
            Ok(pieces) => self.came(pieces),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.came(short),
            // It is read again: the runtime still takes it for readable.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Takes what a server sent before it broke the connection, if it did, as far as there is room.
    pub(super) fn read_what_is_left(&mut self, most: usize) {
        while self.voice == Voice::Breaks && self.kept.len() < most {
            match reading::read(&self.socket, most - self.kept.len()) {
                Ok(pieces) if !pieces.is_empty() => self.came(pieces),
                // It is broken already: nothing follows from another error.
                Ok(_) | Err(_) => self.voice = Voice::Broken,
            }
        }
    }

    fn came(&mut self, pieces: Vec<Bytes>) {
        pieces.into_iter().for_each(|bytes| self.comes(bytes));
    }

    fn comes(&mut self, bytes: Bytes) {
        let was_coming = matches!(self.head, Head::Coming(_));
        self.head.see(&bytes);
        self.beginning.sees(&bytes);
        if let (true, Head::Whole(head)) = (was_coming, &self.head) {
            self.film = Film::new(head).map(Box::new);
        }
        if let Some(film) = &mut self.film {
            film.sees(self.kept.end(), &bytes);
        }
        if self.film.as_ref().is_some_and(|film| film.is_of_no_use()) {
            self.film = None;
        }
        self.kept.push(bytes);
    }

    fn write(&mut self) -> io::Result<()> {
        match self.socket.try_write_vectored(&self.waiting.first(WRITE)) {
            Ok(n) => {
                self.waiting.release(self.waiting.base() + n as u64);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Head {
    fn see(&mut self, bytes: &[u8]) {
        let Self::Coming(head) = self else { return };
        let room = LONGEST_HEAD - head.len();
        head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        let magic = b"HTTP/1.";
        let n = head.len().min(magic.len());
        if head[..n] != magic[..n] {
            *self = Self::Unknown;
        } else if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            // What came behind it is not kept with it, for as long as the session lasts.
            *self = Self::Whole(head[..at + 4].to_vec());
        } else if head.len() == LONGEST_HEAD {
            *self = Self::Unknown;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn tls_is_known_by_its_first_bytes_however_they_come() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let says = async |pieces: &[&[u8]]| {
            let mut server = Server::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            let said = pieces.iter().map(|piece| {
                server.send(Bytes::copy_from_slice(piece));
                server.is_tls()
            });
            said.collect::<Vec<_>>()
        };
        assert_eq!(says(&[&[22, 3, 1]]).await, [true]);
        assert_eq!(says(&[&[22], &[3], &[1]]).await, [true, true, true]);
        assert_eq!(says(&[&[22], b"x", &[3]]).await, [true, false, false]);
        assert_eq!(says(&[b"G", &[22, 3]]).await, [false, false]);
        assert_eq!(says(&[b"", &[3, 22]]).await, [false, false]);
    }

    #[tokio::test]
    async fn the_kernel_holds_little_where_little_is_kept_and_more_once_that_may_grow() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut server = Server::new(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let holds = |server: &Server| socket2::SockRef::from(&server.socket).recv_buffer_size().unwrap();
        let before = holds(&server);
        server.squeeze(SQUEEZED);
        assert_eq!(holds(&server), before, "it is left to the kernel");
        server.squeeze(1);
        // The kernel counts what it needs beside the bytes.
        assert!((LEAST_KEPT..=2 * LEAST_KEPT).contains(&holds(&server)), "{}", holds(&server));
        server.squeeze(2 * LEAST_KEPT - 1);
        assert!(holds(&server) <= 2 * LEAST_KEPT, "each time that it is asked costs something");
        server.squeeze(2 * LEAST_KEPT);
        assert!(holds(&server) > 2 * LEAST_KEPT, "{}", holds(&server));
    }

    fn seen(pieces: &[&[u8]]) -> Option<Vec<u8>> {
        let mut head = Head::Coming(Vec::new());
        pieces.iter().for_each(|piece| head.see(piece));
        match head {
            Head::Whole(head) => Some(head),
            Head::Coming(_) | Head::Unknown => None,
        }
    }

    #[test]
    fn a_head_of_http_is_found_in_pieces_and_nothing_else_is_one() {
        let head = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n";
        let all = [&head[..], b"hello\r\n\r\n"].concat();
        assert_eq!(seen(&[&all]).as_deref(), Some(&head[..]));
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(seen(&bytes).as_deref(), Some(&head[..]));
        let behind = [&head[..], &vec![b'x'; LONGEST_HEAD]].concat();
        let found = seen(&[&behind]).unwrap();
        assert_eq!(found.capacity(), head.len(), "what came behind it takes no memory");
        assert_eq!(seen(&[&head[..20]]), None);
        assert_eq!(seen(&[b"220 mail\r\n\r\n"]), None);
        assert_eq!(seen(&[b"HTTP/1.1 200 OK\r\n", &vec![b'x'; 2 * LONGEST_HEAD], b"\r\n\r\n"]), None);
    }
}
