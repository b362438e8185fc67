//! The messages of a transfer.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

pub(super) const VERSION: u32 = 1;

/// No message is longer.
const MAX: u32 = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Message {
    Offer { version: u32, name: String, size: u64 },
    Want { offset: u64, sha256: String },
    Start { offset: u64 },
    End { sha256: String },
    Done,
    Refuse { reason: String },
}

pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length =
        u32::try_from(body.len()).ok().filter(|n| *n <= MAX).ok_or_else(|| io::Error::other("too long"))?;
    to.write_all(&[&length.to_be_bytes()[..], &body].concat()).await
}

pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    let length = from.read_u32().await?;
    if length > MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn messages_come_back_and_nonsense_is_refused() {
        let offer = Message::Offer { version: 1, name: "é\"\n".into(), size: u64::MAX };
        let mut bytes = Vec::new();
        write(&mut bytes, &offer).await.unwrap();
        assert_eq!(read(&mut &bytes[..]).await.unwrap(), offer);
        assert!(read(&mut &bytes[..bytes.len() - 1]).await.is_err());
        assert!(read(&mut &[0xff; 64][..]).await.is_err());
        assert!(read(&mut &[0, 0, 0, 2, b'{', b'}'][..]).await.is_err());
    }
}
