//! The end of a conversation with a client.

use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// For so long a client that is turned away, or hung up on, may take to hear why.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Ends a conversation so that the last word is heard: what is closed with something unread is reset, and the
/// client may not read what was said before.
pub(crate) async fn part(stream: &mut UnixStream) {
    let mut rest = [0; 4096];
    let ended = async {
        if stream.shutdown().await.is_ok() {
            while let Ok(1..) = stream.read(&mut rest).await {}
        }
    };
    let _ = tokio::time::timeout(TOLD_WITHIN, ended).await;
}
