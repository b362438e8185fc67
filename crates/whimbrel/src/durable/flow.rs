//! Sending durable messages.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::change::{Change, Done};
use super::error::StateError;
use super::hub::Open;
use super::wire::envelope;
use super::{MAX_MESSAGE, lock};

/// A sender that waits for room looks whether its state was closed so often.
const LOOK: Duration = Duration::from_secs(1);

/// A durable flow of messages to a peer, in order, each delivered once. Cheap to clone.
#[derive(Clone)]
pub struct DurableFlow {
    open: Arc<Open>,
    journal: u64,
    label: Arc<str>,
}

impl fmt::Debug for DurableFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableFlow({})", self.label)
    }
}

impl DurableFlow {
    pub(super) fn new(open: Arc<Open>, journal: u64, label: &str) -> Self {
        Self { open, journal, label: label.into() }
    }

    /// What the peer knows it by.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Sends a message of up to a mebibyte. When this returns, the message is on the disk, and will be
    /// delivered although this process or the machine dies now. Those that are sent at the same time share
    /// one wait for the disk. If this is given up, the message may have been sent or not.
    ///
    /// # Errors
    /// [`StateError::Full`] if as much waits for the peer as may;
    /// [`send_when_room`](Self::send_when_room) waits. After
    /// [`StateError::Io`] the message may have been sent all the same.
    pub async fn send(&self, data: impl Into<Vec<u8>>) -> Result<Receipt, StateError> {
        let (hub, journal, content) = (&self.open.0, self.journal, data.into());
        if content.len() > MAX_MESSAGE {
            return Err(StateError::TooLarge { size: content.len() });
        }
        let stamp = lock(&hub.ledger).stamp;
        let data = envelope(stamp, &content);
        let size = data.len();
        let admit = || lock(&hub.ledger).reserve(journal, size);
        match hub.store.write(Change::Append { journal, data }, admit).await? {
            Done::Appended(number) => self.receipt(number),
            _ => Err(StateError::Stopped),
        }
    }

    /// As [`send`](Self::send), but waits for room while as much waits for the peer as may: for `limit` at
    /// most, or for as long as it takes. If this is given up while it waits, nothing was sent.
    ///
    /// # Errors
    /// As [`send`](Self::send); [`StateError::Full`] after `limit`.
    pub async fn send_when_room(
        &self,
        data: impl Into<Vec<u8>>,
        limit: Option<Duration>,
    ) -> Result<Receipt, StateError> {
        let content = data.into();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let room = lock(&self.open.0.ledger).room(self.journal)?;
            let freed = room.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let full = match self.send(content.clone()).await {
                // Alone it would not fit either.
                Err(full @ StateError::Full { messages: 1.., .. }) => full,
                sent => return sent,
            };
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(full);
            }
            // What ends the wait otherwise shows when it looks again.
            let _ = tokio::time::timeout(left.map_or(LOOK, |left| left.min(LOOK)), freed).await;
        }
    }

    /// Waits until the peer's application has acknowledged all that was sent before, in earlier lives of this
    /// state too. Cancel-safe.
    ///
    /// # Errors
    /// As [`Receipt::acked`].
    pub async fn acked(&self) -> Result<(), StateError> {
        let last = lock(&self.open.0.ledger).progress(self.journal)?.0;
        self.receipt(last)?.acked().await
    }

    fn receipt(&self, number: u64) -> Result<Receipt, StateError> {
        let acked = lock(&self.open.0.ledger).progress(self.journal)?.1;
        Ok(Receipt { open: self.open.clone(), journal: self.journal, number, acked })
    }
}

/// A message that is on the disk. Dropped, it changes nothing.
pub struct Receipt {
    open: Arc<Open>,
    journal: u64,
    number: u64,
    acked: watch::Receiver<u64>,
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receipt({})", self.number)
    }
}

impl Receipt {
    /// The message's number in its flow, from 1 on, which its receiver sees too.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the peer's application has acknowledged this message, and all before it.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        *self.acked.borrow() >= self.number
    }

    /// Waits until the peer's application has acknowledged this message, and all before it. Cancel-safe.
    ///
    /// # Errors
    /// [`StateError::Stopped`] if the state is closed first, which loses nothing; [`StateError::Forgotten`],
    /// [`StateError::OlderCopy`].
    pub async fn acked(mut self) -> Result<(), StateError> {
        loop {
            if *self.acked.borrow_and_update() >= self.number {
                return Ok(());
            }
            lock(&self.open.0.ledger).check(self.journal)?;
            self.acked.changed().await.map_err(|_| StateError::Forgotten)?;
        }
    }
}
