//! Durable messages, for programs without an async runtime.

use std::time::Duration;

use whimbrel_base::EndpointId;
use whimbrel_transport::IntoTarget;

use super::Connection;
use super::runtime::Background;
use crate::{Owed, StateError};

/// As [`crate::State`]: messages that are on the disk when they are sent, and are delivered once although
/// either side is killed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use whimbrel::blocking::Endpoint;
/// use whimbrel::{Allow, ListenOptions};
///
/// # let folder = tempfile::tempdir()?;
/// # let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
/// let collector = Endpoint::bind(whimbrel::Endpoint::builder())?;
/// let collected = collector.open_state(theirs)?;
/// let calls = collector.listen_for_connections(ListenOptions::unnamed().allow(Allow::Any))?;
///
/// let meter = Endpoint::bind(whimbrel::Endpoint::builder())?;
/// let state = meter.open_state(ours)?;
/// let readings = state.dial(collector.ticket())?.flow("readings")?;
/// let receipt = readings.send("20.5 degrees")?; // on the disk
///
/// collected.attach(&calls.accept()?)?;
/// let message = collected.recv()?;
/// assert_eq!(message.data(), b"20.5 degrees");
/// message.ack()?; // it does not come again
/// receipt.acked()?;
/// # state.close();
/// # collected.close();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct State {
    state: crate::State,
    runtime: Background,
}

impl State {
    pub(super) fn new(state: crate::State, runtime: Background) -> Self {
        Self { state, runtime }
    }

    /// A peer that is dialled: from now on, and whenever this state is opened again; see
    /// [`crate::State::dial`].
    ///
    /// # Errors
    /// [`StateError`] if it is not clear whom to dial, or the disk does not take it.
    pub fn dial(&self, target: impl IntoTarget) -> Result<DurablePeer, StateError> {
        self.runtime.wait(self.state.dial(target)).map(|peer| self.peer(peer))
    }

    /// A peer that comes by itself: what is sent to it waits until a connection of it is
    /// [attached](Self::attach).
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it.
    pub fn expect(&self, peer: EndpointId) -> Result<DurablePeer, StateError> {
        self.runtime.wait(self.state.expect(peer)).map(|peer| self.peer(peer))
    }

    /// Has a connection carry durable messages, both ways; see [`crate::State::attach`].
    ///
    /// # Errors
    /// [`StateError::Unsupported`] unless both sides opened their state before the connection was made;
    /// [`StateError::Closed`] if it is over.
    pub fn attach(&self, connection: &Connection) -> Result<(), StateError> {
        self.runtime.wait(self.state.attach(connection.inner()))
    }

    /// Waits for the next message, of whichever peer and flow; see [`crate::State::recv`].
    ///
    /// # Errors
    /// [`StateError::Stopped`] once the state is closed.
    pub fn recv(&self) -> Result<DurableMessage, StateError> {
        self.runtime.wait(self.state.recv()).map(|message| self.message(message))
    }

    /// As [`recv`](Self::recv), for at most `limit`; `None` if none came.
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn recv_timeout(&self, limit: Duration) -> Result<Option<DurableMessage>, StateError> {
        let message = self.runtime.wait_for(limit, self.state.recv()).transpose()?;
        Ok(message.map(|message| self.message(message)))
    }

    /// Writes what waits for the disk, and closes the state: its directory is free afterwards.
    pub fn close(self) {
        self.runtime.wait(self.state.close());
    }

    fn peer(&self, peer: crate::DurablePeer) -> DurablePeer {
        DurablePeer { peer, runtime: self.runtime.clone() }
    }

    fn message(&self, message: crate::DurableMessage) -> DurableMessage {
        DurableMessage { message, runtime: self.runtime.clone() }
    }
}

/// As [`crate::DurablePeer`]: a peer that durable messages are for.
#[derive(Clone, Debug)]
pub struct DurablePeer {
    peer: crate::DurablePeer,
    runtime: Background,
}

impl DurablePeer {
    /// The durable flow with a label, of 1 to 64 bytes; the same one as before, if the state has it.
    ///
    /// # Errors
    /// [`StateError`] if the label is none, or the disk does not take it.
    pub fn flow(&self, label: &str) -> Result<DurableFlow, StateError> {
        let flow = self.runtime.wait(self.peer.flow(label))?;
        Ok(DurableFlow { flow, runtime: self.runtime.clone() })
    }

    /// What waits for the peer.
    #[must_use]
    pub fn owed(&self) -> Owed {
        self.peer.owed()
    }

    /// Why the peer was not reached when it was dialled last; `None` if it was, or is not dialled.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.peer.problem()
    }

    /// Forgets the peer: it is not dialled any more, and what waits for it is lost.
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it; nothing has happened then.
    pub fn forget(self) -> Result<(), StateError> {
        self.runtime.wait(self.peer.forget())
    }
}

/// As [`crate::DurableFlow`]: durable messages to a peer, in order, each delivered once.
#[derive(Clone, Debug)]
pub struct DurableFlow {
    flow: crate::DurableFlow,
    runtime: Background,
}

impl DurableFlow {
    /// What the peer knows it by.
    #[must_use]
    pub fn label(&self) -> &str {
        self.flow.label()
    }

    /// Sends a message of up to a mebibyte. When this returns, the message is on the disk.
    ///
    /// # Errors
    /// [`StateError::Full`] if as much waits for the peer as may; see [`crate::DurableFlow::send`].
    pub fn send(&self, data: impl Into<Vec<u8>>) -> Result<Receipt, StateError> {
        self.runtime.wait(self.flow.send(data)).map(|receipt| self.receipt(receipt))
    }

    /// As [`send`](Self::send), but waits for room: for `limit` at most, or for as long as it takes.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`StateError::Full`] after `limit`.
    pub fn send_when_room(
        &self,
        data: impl Into<Vec<u8>>,
        limit: Option<Duration>,
    ) -> Result<Receipt, StateError> {
        self.runtime.wait(self.flow.send_when_room(data, limit)).map(|receipt| self.receipt(receipt))
    }

    /// Waits until the peer's program has acknowledged all that was sent before.
    ///
    /// # Errors
    /// As [`Receipt::acked`].
    pub fn acked(&self) -> Result<(), StateError> {
        self.runtime.wait(self.flow.acked())
    }

    fn receipt(&self, receipt: crate::Receipt) -> Receipt {
        Receipt { receipt, runtime: self.runtime.clone() }
    }
}

/// A message that is on the disk. Dropped, it changes nothing.
#[derive(Debug)]
pub struct Receipt {
    receipt: crate::Receipt,
    runtime: Background,
}

impl Receipt {
    /// The message's number in its flow, from 1 on, which its receiver sees too.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.receipt.number()
    }

    /// Whether the peer's program has acknowledged this message, and all before it.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        self.receipt.is_acked()
    }

    /// Waits until the peer's program has acknowledged this message, and all before it.
    ///
    /// # Errors
    /// [`StateError::Stopped`] if the state is closed first, which loses nothing; [`StateError::Forgotten`],
    /// [`StateError::OlderCopy`].
    pub fn acked(self) -> Result<(), StateError> {
        self.runtime.wait(self.receipt.acked())
    }
}

/// A durable message that arrived. Dropped without [`ack`](Self::ack), it comes again when the state is
/// opened the next time.
#[derive(Debug)]
pub struct DurableMessage {
    message: crate::DurableMessage,
    runtime: Background,
}

impl DurableMessage {
    /// The endpoint that sent it.
    #[must_use]
    pub fn peer(&self) -> EndpointId {
        self.message.peer()
    }

    /// The flow's label.
    #[must_use]
    pub fn label(&self) -> &str {
        self.message.label()
    }

    /// Its number in its flow, from 1 on; see [`crate::DurableMessage::number`].
    #[must_use]
    pub fn number(&self) -> u64 {
        self.message.number()
    }

    /// The content.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.message.data()
    }

    /// The content.
    #[must_use]
    pub fn into_data(self) -> Vec<u8> {
        self.message.into_data()
    }

    /// Acknowledges the message: when this returns, that is on the disk, and the message does not come again.
    ///
    /// # Errors
    /// [`StateError`] if the disk does not take it: it can be tried again.
    pub fn ack(&self) -> Result<(), StateError> {
        self.runtime.wait(self.message.ack())
    }
}
