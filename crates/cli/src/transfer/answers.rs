//! What a receiver answers.

use std::time::Duration;

use anyhow::anyhow;
use whimbrel_transport::{RecvHalf, SendHalf};

use super::Trouble;
use super::message::{self, Message};
use crate::tunnel::BROKEN;

/// How long to wait for the reason of a receiver that stopped to read.
const REASON_LIMIT: Duration = Duration::from_secs(5);

/// What the receiver has of a file.
pub(super) struct Wanted {
    /// So many bytes.
    pub(super) offset: u64,
    /// Their SHA-256.
    pub(super) sha256: String,
    /// It understands chunks.
    pub(super) chunks: bool,
}

/// Waits for what is wanted of a file.
pub(super) async fn want(read: &mut RecvHalf) -> Result<Wanted, Trouble> {
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Want { offset, sha256, chunks } => Ok(Wanted { offset, sha256, chunks }),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(unexpected())),
    }
}

/// Waits until the receiver has everything.
pub(super) async fn done(read: &mut RecvHalf) -> Result<(), Trouble> {
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Done => Ok(()),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(unexpected())),
    }
}

pub(super) fn unexpected() -> anyhow::Error {
    anyhow!("the receiver answers something else; is it a `whimbrel receive`?")
}

/// The receiver may have said why, and then stopped to read or ended; its words are here then.
pub(super) async fn with_reason<T>(
    read: &mut RecvHalf,
    write: &SendHalf,
    result: Result<T, Trouble>,
) -> Result<T, Trouble> {
    match result {
        Err(Trouble::Lost(error)) => match tokio::time::timeout(REASON_LIMIT, message::read(read)).await {
            Ok(Ok(Message::Refuse { reason })) => Err(Trouble::Refused(reason)),
            _ => Err(Trouble::Lost(error)),
        },
        Err(Trouble::Here(error)) => {
            write.stream().reset(BROKEN);
            Err(Trouble::Here(error))
        }
        other => other,
    }
}
