//! What a relay says on the control stream.

use std::io;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_transport::RecvHalf;

use crate::wire::Message;

/// What the relay says, read in a task of its own: to read a message is not cancel-safe.
pub(super) struct Messages {
    read: mpsc::Receiver<io::Result<Message>>,
    _task: JoinSet<()>,
}

impl Messages {
    pub(super) fn of(mut stream: RecvHalf) -> Self {
        let (sender, read) = mpsc::channel(16);
        let mut task = JoinSet::new();
        task.spawn(FutureExt::boxed(async move {
            loop {
                let message = Message::read(&mut stream).await;
                let is_last = message.is_err();
                if sender.send(message).await.is_err() || is_last {
                    return;
                }
            }
        }));
        Self { read, _task: task }
    }

    /// The next message. Cancel-safe.
    pub(super) async fn next(&mut self) -> io::Result<Message> {
        self.read.recv().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))
    }
}
