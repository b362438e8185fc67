//! Heartbeats: what two agents say to each other on a stream that either opens.
//!
//! A heartbeat is [`BEAT`], its length (one byte) and a postcard value; the answer is one without the
//! [`BEAT`]. A stream that begins with [`MEET`] goes on as two devices bring each other up to date
//! (`whimbrel-devices`); for lists of devices see `listing`. `docs/protocol.md` has the bytes.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_devices::Digest;
use whimbrel_transport::{Connection, Stream};

use crate::presence::Said;

/// What a stream with a heartbeat begins with.
pub(super) const BEAT: &[u8; 4] = b"WHB1";
/// What a stream begins with on which differences are exchanged.
pub(super) const MEET: &[u8; 4] = b"WHB2";
/// For the other agent to say something, or to hear it.
pub(super) const WORD_LIMIT: Duration = Duration::from_secs(10);

/// What a heartbeat says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pulse {
    /// The version of the user's group, for the user's devices.
    pub(super) version: Option<Digest>,
    /// Whether the device is up, for those who may know.
    pub(super) presence: Option<Said>,
}

impl Pulse {
    /// Says this, and hears the answer.
    pub(super) async fn ask(self, connection: &Connection) -> io::Result<Self> {
        let asking = async {
            let mut stream = connection.open_stream().await.map_err(io::Error::other)?;
            stream.write_all(BEAT).await?;
            self.say(&mut stream).await?;
            Self::hear(&mut stream).await
        };
        tokio::time::timeout(WORD_LIMIT, asking).await.map_err(io::Error::from)?
    }

    /// Says it.
    pub(super) async fn say(self, stream: &mut Stream) -> io::Result<()> {
        let bytes = postcard::to_stdvec(&self).map_err(io::Error::other)?;
        let length = u8::try_from(bytes.len()).map_err(io::Error::other)?;
        stream.write_all(&[&[length][..], bytes.as_slice()].concat()).await?;
        stream.flush().await
    }

    /// Hears one.
    pub(super) async fn hear(stream: &mut Stream) -> io::Result<Self> {
        let mut bytes = vec![0_u8; stream.read_u8().await?.into()];
        stream.read_exact(&mut bytes).await?;
        Self::decode(&bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the other agent says something else"))
    }

    /// One that takes all of these bytes.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (pulse, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(pulse)
    }
}

/// Decodes whatever comes as a heartbeat; what is understood can be said again.
#[cfg(feature = "fuzzing")]
pub(super) fn decode_anything(bytes: &[u8]) {
    if let Some(pulse) = Pulse::decode(bytes) {
        let said = postcard::to_stdvec(&pulse).unwrap_or_default();
        assert_eq!(Pulse::decode(&said), Some(pulse));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What is written here is written in `docs/protocol.md`.
    #[test]
    fn the_bytes_of_a_heartbeat_are_those_of_the_protocol_and_nothing_else_is_one() {
        let digest = whimbrel_devices::Vector::default().digest();
        let said = Some(Said { away: true, seconds: 300 });
        let full = Pulse { version: Some(digest), presence: said };
        let bytes = postcard::to_stdvec(&full).unwrap();
        assert_eq!(bytes, [&[1_u8][..], digest.as_bytes().as_slice(), b"\x01\x01\xac\x02"].concat());
        assert_eq!(Pulse::decode(&bytes), Some(full));
        for end in 0..bytes.len() {
            assert_eq!(Pulse::decode(&bytes[..end]), None, "{end}");
        }
        assert_eq!(Pulse::decode(&[&bytes[..], b"x"].concat()), None);
        let nothing = Pulse { version: None, presence: None };
        assert_eq!(postcard::to_stdvec(&nothing).unwrap(), b"\0\0");
    }
}
