//! What became of what came on a stream.

use std::path::PathBuf;

use whimbrel_transport::SendHalf;

use super::Trouble;
use super::message::{self, Message};

/// What arrived.
pub(crate) enum Arrived {
    File(Received),
    /// A batch, with the directories that are whole now.
    Batch(Vec<PathBuf>),
    /// A part of a batch that needs no word: an empty directory.
    Nothing,
}

/// A file that arrived.
pub(crate) struct Received {
    pub(crate) file: PathBuf,
    pub(crate) size: u64,
    /// Bytes that were there before.
    pub(crate) resumed_from: u64,
    pub(crate) sha256: String,
}

/// How a stream of the sender's ended.
pub(crate) struct Outcome {
    /// Whether a batch goes on that it belongs to.
    pub(crate) part: bool,
    pub(crate) result: Result<Arrived, Trouble>,
    /// On which the sender has to hear of it.
    pub(super) unconfirmed: Option<SendHalf>,
}

impl Outcome {
    /// Tells the sender that a part of a batch is here, once it was told to this side's user: what ends the
    /// batch comes behind it then.
    pub(crate) fn confirmation(&mut self) -> Confirmation {
        Confirmation(self.unconfirmed.take())
    }
}

/// What the sender of a part still has to hear.
pub(crate) struct Confirmation(Option<SendHalf>);

impl Confirmation {
    pub(crate) async fn send(self) {
        if let Some(mut write) = self.0 {
            done(&mut write).await;
        }
    }
}

/// All is there: that the sender may not hear of it is the sender's trouble only.
pub(super) async fn done(write: &mut SendHalf) {
    let _ = message::write(write, &Message::Done).await;
    let _ = write.stream().finish();
}
