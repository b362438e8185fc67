//! What sees TCP connections before the endpoint does: a relay takes those that are for somebody else.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use tokio::net::TcpStream;

/// Looks at what TCP connections that come in send first, and takes over those that are not for this endpoint.
/// Until then each of them holds a place among the peers in their handshake, with their bounds in number and
/// time; one that has said enough when it is accepted needs none.
pub trait Front: Send + Sync + 'static {
    /// Sets on a TCP socket what one needs that is [taken](Self::take), beside what the endpoint sets. On a
    /// listener, where those that come from then on have it from there; otherwise on each before it is taken.
    /// What is not taken is set up for the endpoint again, without keep-alive. By default nothing.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    fn prepare(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let _ = socket;
        Ok(())
    }

    /// What is to be done with a connection that began with these bytes. Called again with more of them after
    /// [`Look::More`]; must come to an end within 16 KiB.
    fn look(&self, first: &[u8]) -> Look;

    /// Takes a connection over, for which [`look`](Self::look) said so. Must not block: it may be the task
    /// that accepts others which calls.
    fn take(&self, fronted: Fronted);

    /// The endpoint [lets nobody in any more](crate::Endpoint::stop_listening), and it could not be told yet what is
    /// to be done with this connection: whoever goes on has it [looked at](crate::Endpoint::accept_fronted) further.
    /// Must not block. By default it ends.
    fn leave(&self, fronted: Fronted) {
        drop(fronted);
    }
}

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It cannot be told yet.
    More,
    /// It is for the endpoint.
    Pass,
    /// It is taken over.
    Take,
}

/// A connection that is taken over.
#[derive(Debug)]
pub struct Fronted {
    /// Its socket.
    pub socket: TcpStream,
    /// Where it comes from.
    pub remote: SocketAddr,
    /// What was read from it.
    pub first: Vec<u8>,
}
