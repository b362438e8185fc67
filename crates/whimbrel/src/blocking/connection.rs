//! Whole connections, for programs without an async runtime.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use whimbrel_base::{ConnectionId, EndpointId, Name};
use whimbrel_transport::{
    self as transport, Allow, CloseCode, CloseReason, ConnectionError, ConnectionEvent, FlowError,
    FlowOptions, HandOverError, Message, Side, SuspendError, Suspended,
};

use super::runtime::Background;
use super::{Flow, RecvHalf, SendHalf, Stream};

/// As [`crate::Connection`]: streams, messages, and all that a connection can do, each call waiting in its
/// thread. Cheap to clone; several threads may use one at the same time.
#[derive(Clone)]
pub struct Connection {
    connection: transport::Connection,
    runtime: Background,
    local_id: EndpointId,
}

impl Connection {
    pub(super) fn new(connection: transport::Connection, runtime: Background, local_id: EndpointId) -> Self {
        Self { connection, runtime, local_id }
    }

    /// Opens a stream; see [`crate::Connection::open_stream`]. The connection goes on when the stream ends.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub fn open_stream(&self) -> Result<Stream, ConnectionError> {
        self.runtime.wait(self.connection.open_stream()).map(|stream| self.stream(stream))
    }

    /// Waits for the next stream that the peer opens for both ways.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub fn accept_stream(&self) -> Result<Stream, ConnectionError> {
        self.runtime.wait(self.connection.accept_stream()).map(|stream| self.stream(stream))
    }

    /// Opens a stream on which this side alone writes; see [`crate::Connection::open_uni`].
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub fn open_uni(&self) -> Result<SendHalf, ConnectionError> {
        self.runtime.wait(self.connection.open_uni()).map(SendHalf::new)
    }

    /// Waits for the next stream that the peer opens to write on it alone.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub fn accept_uni(&self) -> Result<RecvHalf, ConnectionError> {
        self.runtime.wait(self.connection.accept_uni()).map(RecvHalf::new)
    }

    /// The streams that are open: how a program comes by them after
    /// [`Endpoint::resume`](super::Endpoint::resume).
    #[must_use]
    pub fn streams(&self) -> Vec<Stream> {
        self.connection.streams().into_iter().map(|stream| self.stream(stream)).collect()
    }

    /// Opens a flow of messages of one class, from this side to the peer.
    ///
    /// # Errors
    /// [`FlowError::Unsupported`] if the peer takes no messages; others tell what is wrong with the options.
    pub fn open_flow(&self, options: FlowOptions) -> Result<Flow, FlowError> {
        self.runtime.wait(self.connection.open_flow(options)).map(|flow| self.flow(flow))
    }

    /// The flows of this side that are open: how a program comes by them after
    /// [`Endpoint::resume`](super::Endpoint::resume).
    #[must_use]
    pub fn flows(&self) -> Vec<Flow> {
        self.connection.flows().into_iter().map(|flow| self.flow(flow)).collect()
    }

    /// Waits for the next message, on whichever of the peer's flows. Those that arrived before the connection
    /// ended can still be taken.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over and all messages are taken.
    pub fn recv_message(&self) -> Result<Message, ConnectionError> {
        self.runtime.wait(self.connection.recv_message())
    }

    /// As [`recv_message`](Self::recv_message), for at most `limit`; `None` if none came.
    ///
    /// # Errors
    /// As [`recv_message`](Self::recv_message).
    pub fn recv_message_timeout(&self, limit: Duration) -> Result<Option<Message>, ConnectionError> {
        self.runtime.wait_for(limit, self.connection.recv_message()).transpose()
    }

    /// Puts the connection to sleep; see [`crate::Connection::suspend`].
    ///
    /// # Errors
    /// [`SuspendError`]; the connection goes on then.
    pub fn suspend(&self, limit: Duration) -> Result<Suspended, SuspendError> {
        self.runtime.wait(self.connection.suspend(limit))
    }

    /// As [`suspend`](Self::suspend), for another key to wake; see [`crate::Connection::suspend_for`].
    ///
    /// # Errors
    /// [`SuspendError`]; the connection goes on then.
    pub fn suspend_for(&self, to: EndpointId, limit: Duration) -> Result<Suspended, SuspendError> {
        self.runtime.wait(self.connection.suspend_for(to, limit))
    }

    /// Hands the connection over to the endpoint at the other end of `over`, which
    /// [accepts](super::Endpoint::accept_hand_over) it; see [`crate::Connection::hand_over`].
    ///
    /// # Errors
    /// [`HandOverError`]; the connection goes on here then.
    pub fn hand_over(&self, over: &Self, limit: Duration) -> Result<(), HandOverError> {
        self.runtime.wait(self.connection.hand_over(&over.connection, limit))
    }

    /// To whom the peer may hand its end over; see [`crate::Connection::allow_hand_over`].
    pub fn allow_hand_over(&self, to: Allow) {
        self.connection.allow_hand_over(to);
    }

    /// Ends the connection in order: what was written on streams is delivered first. Waits for that, for at
    /// most `limit`.
    ///
    /// # Errors
    /// [`ConnectionError`] if the peer has not confirmed the end by then.
    pub fn close(&self, code: CloseCode, reason: &str, limit: Duration) -> Result<(), ConnectionError> {
        self.runtime.wait(self.connection.close(code, reason, limit))
    }

    /// Ends the connection without delivering what is left. Does not wait.
    pub fn abort(&self, code: CloseCode, reason: &str) {
        self.connection.abort(code, reason);
    }

    /// Waits until the connection is over, and says why.
    #[must_use]
    pub fn closed(&self) -> CloseReason {
        self.runtime.wait(self.connection.closed())
    }

    /// Why the connection is over; `None` if it is not.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.connection.close_reason()
    }

    /// What happens from now on: paths that come and go, moves, a peer that is out of reach.
    #[must_use]
    pub fn events(&self) -> Events {
        Events { events: self.connection.events(), runtime: self.runtime.clone() }
    }

    /// The connection's id, the same on both sides.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.connection.id()
    }

    /// The peer's identity, proved by its key.
    #[must_use]
    pub fn peer_id(&self) -> EndpointId {
        self.connection.peer_id()
    }

    /// The name that was connected to; on the accepting side the one that the peer asked for.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.connection.name()
    }

    /// Which side this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.connection.side()
    }

    /// The connection itself, for counters, limits and paths.
    #[must_use]
    pub fn inner(&self) -> &transport::Connection {
        &self.connection
    }

    fn stream(&self, stream: transport::Stream) -> Stream {
        Stream::accepted(stream, self.local_id)
    }

    fn flow(&self, flow: transport::Flow) -> Flow {
        Flow::new(flow, self.runtime.clone())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}

/// What happens to a connection, as it happens; ends behind the connection's end.
#[derive(Debug)]
pub struct Events {
    events: transport::Events,
    runtime: Background,
}

impl Iterator for Events {
    type Item = ConnectionEvent;

    fn next(&mut self) -> Option<ConnectionEvent> {
        self.runtime.wait(self.events.next())
    }
}

/// Takes whole connections that others make, where a [`Listener`](super::Listener) takes their streams.
/// Several threads may accept at the same time.
pub struct Connections {
    listener: Mutex<transport::Listener>,
    name: Option<Name>,
    runtime: Background,
    local_id: EndpointId,
}

impl Connections {
    pub(super) fn new(listener: transport::Listener, runtime: Background, local_id: EndpointId) -> Self {
        let name = listener.name().cloned();
        Self { listener: Mutex::new(listener), name, runtime, local_id }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// `NotConnected` once the endpoint is closed.
    pub fn accept(&self) -> io::Result<Connection> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = self.runtime.wait(listener.accept());
        let closed = || io::Error::new(io::ErrorKind::NotConnected, "the endpoint is closed");
        let connection = connection.ok_or_else(closed)?;
        Ok(Connection::new(connection, self.runtime.clone(), self.local_id))
    }

    /// The name that is listened for.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("name", &self.name).finish_non_exhaustive()
    }
}
