//! The part of a connection that carries journals of durable messages.

use std::sync::atomic::Ordering;

use whimbrel_proto::{FlowError, Message, SendError, SendOptions};

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::ConnectionError;
use crate::flow::Flow;
use crate::shared::Wakers;

/// For notes, of which the end of a single one is not waited for.
const SILENT: SendOptions = SendOptions { tag: None, lifetime: None, retransmissions: None, silent: true };

impl Endpoint {
    /// Offers to carry journals on all connections that are made or accepted from now on.
    pub fn carry_journals(&self) {
        self.inner().journals.store(true, Ordering::Relaxed);
    }
}

impl Connection {
    /// The connection's channel for journals. What arrives on it is not among its
    /// [messages](Self::recv_message). Waits only until the connection is established. Cancel-safe.
    ///
    /// # Errors
    /// [`FlowError::Unsupported`] unless both endpoints [offered it](Endpoint::carry_journals) before the
    /// connection was made; [`FlowError::ConnectionClosed`] if it is over.
    pub async fn journal_channel(&self) -> Result<JournalChannel, FlowError> {
        loop {
            let settled = self.shared().news.of_connection();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if let Some(reason) = self.close_reason() {
                return Err(FlowError::ConnectionClosed(reason.code));
            }
            {
                let state = self.shared().lock();
                if let Some([notes, answers]) = state.engine.journal_flows() {
                    let flow = |id| Flow::lasting(self.handle.clone(), id);
                    return Ok(JournalChannel { notes: flow(notes), answers: flow(answers) });
                }
                if state.engine.is_established() {
                    return Err(FlowError::Unsupported);
                }
            }
            settled.await;
        }
    }
}

/// Carries what journals on both sides of a connection have to say to each other: two reliable, sequenced
/// flows each way. Keeps the connection alive.
#[derive(Debug, Clone)]
pub struct JournalChannel {
    notes: Flow,
    answers: Flow,
}

impl JournalChannel {
    /// Says something as a writer of messages. Waits while much waits to be acknowledged. Cancel-safe.
    ///
    /// # Errors
    /// [`SendError`], above all that the connection is over.
    pub async fn note(&self, note: Vec<u8>) -> Result<(), SendError> {
        self.notes.send(note, SILENT).await.map(drop)
    }

    /// Says something as a reader of messages. Waits while much waits to be acknowledged. Cancel-safe.
    ///
    /// # Errors
    /// [`SendError`], above all that the connection is over.
    pub async fn answer(&self, answer: Vec<u8>) -> Result<(), SendError> {
        self.answers.send(answer, SILENT).await.map(drop)
    }

    /// The next note or answer of the peer. One task waits at a time. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over.
    pub async fn recv(&self) -> Result<Message, ConnectionError> {
        let connection = self.connection();
        connection.next_message(|engine| engine.recv_journal(), Wakers::wait_for_journal).await
    }

    /// The connection that the channel belongs to.
    #[must_use]
    pub fn connection(&self) -> Connection {
        self.notes.connection()
    }
}
