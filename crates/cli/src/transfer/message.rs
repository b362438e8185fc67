//! The messages of a transfer.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// One file of a known size: what every program speaks.
pub(super) const ONE_FILE: u32 = 1;
/// Batches, directories, and files of unknown size.
pub(super) const VERSION: u32 = 2;

/// No message is longer.
const MAX: u32 = 16 * 1024;
/// Directories above a file, at most.
pub(super) const MAX_DEPTH: usize = 32;
/// Names that a batch is introduced with, at most.
pub(super) const MAX_SHOWN: usize = 20;

/// A message. Fields that programs of before do not know have defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Message {
    Offer(Offer),
    /// The batch may come.
    Accept,
    Want {
        offset: u64,
        sha256: String,
        /// The receiver understands chunks.
        #[serde(default, skip_serializing_if = "is_false")]
        chunks: bool,
    },
    Start {
        offset: u64,
        /// The bytes come in chunks, compressed where that helps.
        #[serde(default, skip_serializing_if = "is_false")]
        chunks: bool,
    },
    End {
        sha256: String,
    },
    /// The end of a batch, of which everything has arrived, or not.
    BatchEnd {
        complete: bool,
    },
    Done,
    Refuse {
        reason: String,
    },
}

/// A file, a directory, or a batch of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) version: u32,
    pub(super) name: String,
    /// In bytes; of all files, for a batch.
    pub(super) size: u64,
    /// The size is not known before the end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) open_ended: bool,
    /// An empty directory, and no file.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) directory: bool,
    /// The directories that lead to it, from the top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) above: Vec<String>,
    /// The batch that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) part_of: Option<u64>,
    /// This begins a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<Batch>,
}

/// Several files that are accepted or refused together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// Chosen by the sender; unique among its batches.
    pub(super) id: u64,
    /// Files, and directories without any.
    pub(super) entries: u64,
    /// Names without a directory above them.
    pub(super) names: u64,
    /// The first of these names.
    pub(super) shown: Vec<String>,
}

impl Offer {
    /// The names that lead to it, with its own.
    pub(super) fn path(&self) -> String {
        let names: Vec<&str> = self.above.iter().chain([&self.name]).map(String::as_str).collect();
        names.join("/")
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Message {
    /// Reads a message's body.
    pub(super) fn decode(body: &[u8]) -> io::Result<Self> {
        let message: Self = serde_json::from_slice(body)?;
        if let Self::Offer(offer) = &message {
            let shown = offer.batch.as_ref().map_or(0, |batch| batch.shown.len());
            if offer.above.len() > MAX_DEPTH || shown > MAX_SHOWN {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message has too many parts"));
            }
        }
        Ok(message)
    }
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
    Message::decode(&body)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn messages_come_back_and_nonsense_is_refused() {
        let offer = Offer { version: 1, name: "é\"\n".into(), size: u64::MAX, ..Offer::default() };
        let offer = Message::Offer(offer);
        let mut bytes = Vec::new();
        write(&mut bytes, &offer).await.unwrap();
        assert_eq!(read(&mut &bytes[..]).await.unwrap(), offer);
        assert!(read(&mut &bytes[..bytes.len() - 1]).await.is_err());
        assert!(read(&mut &[0xff; 64][..]).await.is_err());
        assert!(read(&mut &[0, 0, 0, 2, b'{', b'}'][..]).await.is_err());
    }

    #[test]
    fn messages_of_programs_of_before_are_understood_and_look_as_ever_to_them() {
        let text = r#"{"type":"offer","version":1,"name":"f","size":5}"#;
        let offer = Message::Offer(Offer { version: 1, name: "f".into(), size: 5, ..Offer::default() });
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), offer);
        assert_eq!(serde_json::to_string(&offer).unwrap(), text);
        let text = r#"{"type":"start","offset":7}"#;
        let start = Message::Start { offset: 7, chunks: false };
        assert_eq!(Message::decode(text.as_bytes()).unwrap(), start);
        assert_eq!(serde_json::to_string(&start).unwrap(), text);
    }

    #[test]
    fn an_offer_with_too_many_directories_above_is_refused() {
        let above = vec!["a".to_owned(); MAX_DEPTH + 1];
        let offer = Message::Offer(Offer { above, ..Offer::default() });
        assert!(Message::decode(&serde_json::to_vec(&offer).unwrap()).is_err());
    }
}
