//! A listener that is used like [`std::net::TcpListener`].

use futures_util::FutureExt;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_base::{EndpointId, Name, Ticket};
use whimbrel_transport::{self as transport, Connection};

use super::wait::block;
use super::{Stream, runtime};

/// Streams that wait to be accepted. Further ones wait with their peers.
const BACKLOG: usize = 128;

/// Takes streams that peers open: each is a connection of its own if the peer uses [`Stream::connect`].
pub struct Listener {
    inner: Arc<Inner>,
}

struct Inner {
    endpoint: crate::Endpoint,
    name: Option<Name>,
    streams: Mutex<mpsc::Receiver<transport::Stream>>,
}

impl Listener {
    pub(super) fn start(endpoint: crate::Endpoint, listener: transport::Listener) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let name = listener.name().cloned();
        runtime::spawn(accept(listener, sender))?;
        Ok(Self { inner: Arc::new(Inner { endpoint, name, streams: Mutex::new(receiver) }) })
    }

    /// Waits for the next stream, and says whose it is.
    ///
    /// # Errors
    /// `NotConnected` once the endpoint is closed.
    pub fn accept(&self) -> io::Result<(Stream, EndpointId)> {
        let mut streams = self.inner.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = block(None, |cx| streams.poll_recv(cx)).flatten();
        let stream =
            stream.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the endpoint is closed"))?;
        let peer = stream.peer_id();
        Ok((Stream::accepted(stream, self.inner.endpoint.id()), peer))
    }

    /// All streams, as they come; ends when the endpoint is closed.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Another handle to this listener.
    ///
    /// # Errors
    /// Never; it is as in `std`.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { inner: self.inner.clone() })
    }

    /// The name that is listened for.
    pub fn name(&self) -> Option<&Name> {
        self.inner.name.as_ref()
    }

    /// Where others connect to, now, without any name service.
    pub fn ticket(&self) -> Ticket {
        self.inner.endpoint.ticket(self.inner.name.clone())
    }

    /// Who this is.
    pub fn local_id(&self) -> EndpointId {
        self.inner.endpoint.id()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("name", &self.inner.name).finish_non_exhaustive()
    }
}

/// Iterator over the streams of a [`Listener`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<io::Result<Stream>> {
        self.listener.accept().ok().map(|(stream, _)| Ok(stream))
    }
}

/// Takes connections, and their streams, for as long as there is somebody to accept them.
async fn accept(mut listener: transport::Listener, sender: mpsc::Sender<transport::Stream>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Some(connection) => {
                    connections.spawn(FutureExt::boxed(streams(connection, sender.clone())));
                }
                None => return,
            },
            Some(_) = connections.join_next() => {}
            () = sender.closed() => return,
        }
    }
}

async fn streams(connection: Connection, sender: mpsc::Sender<transport::Stream>) {
    while let Ok(stream) = connection.accept_stream().await {
        if sender.send(stream).await.is_err() {
            return;
        }
    }
}
