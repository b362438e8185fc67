//! Introductions: two people who tell each other three words, and thereby two machines that know each other's
//! keys.
//!
//! They meet at the name service ([`Meeting`]), in the slot that the first word names. The other two words
//! are the secret of a key exchange between them, in which a wrong guess teaches nothing and can be made
//! once: the meeting has one joiner, and ends for both at the first mistake. So neither a stranger nor the
//! name service itself gets between them, unless it guesses 22 bits at the first try.
//!
//! ```text
//! frame      hello    1, version 1, role (0 opener, 1 joiner), endpoint id, SPAKE2 message (33 bytes)
//!            proof    2, HMAC-SHA-256 of "proof" 0 role transcript; the joiner's comes first
//!            sealed   3, ChaCha20-Poly1305 of a message, keyed by the HMAC of "seal" 0 role transcript
//!            failed   4: the code was wrong
//! transcript "whimbrel introduction v1" 0, slot (2 bytes), the opener's hello, the joiner's hello (without the 1)
//! ```
//! All HMACs are keyed with SPAKE2's result (RFC 9382, group Ed25519, identities `whimbrel opener` and
//! `whimbrel joiner`, password: the numbers of the two secret words, 2 bytes each). A sealed message's nonce
//! is its number in its direction, from 0, in the last four of twelve bytes.

use std::time::Duration;

use whimbrel_base::EndpointId;

use crate::protocol::MAX_MEETING_FRAME;
use crate::resolver::{Meeting, MeetingError};

mod code;
mod handshake;

pub use self::code::{Code, CodeError};
pub use self::handshake::Role;
use self::handshake::{Handshake, Sealing};

/// The longest message between two who were introduced, in bytes.
pub const MAX_MESSAGE: usize = MAX_MEETING_FRAME - 1 - 16;

/// How long the other side may take for a step once it is there.
const STEP: Duration = Duration::from_secs(30);

const HELLO: u8 = 1;
const PROOF: u8 = 2;
const SEALED: u8 = 3;
const FAILED: u8 = 4;

/// Introduces this endpoint to whoever knows the code. An opener waits for the other side for as long as the
/// meeting lasts.
///
/// Not cancel-safe: what was dropped half-way has used the code up.
///
/// # Errors
/// [`IntroductionError`]; the code is used up then.
pub async fn introduce(
    mut meeting: Meeting,
    role: Role,
    code: &Code,
    id: EndpointId,
) -> Result<Introduced, IntroductionError> {
    let handshake = Handshake::new(role, code, id);
    send(&mut meeting, HELLO, handshake.hello()).await?;
    let hello = match role {
        Role::Opener => meeting.recv().await?,
        Role::Joiner => within(meeting.recv()).await??,
    };
    let Some(agreed) = expect(&hello, HELLO).ok().and_then(|hello| handshake.finish(hello)) else {
        return Err(fail(meeting, IntroductionError::Protocol).await);
    };
    if role == Role::Joiner {
        send(&mut meeting, PROOF, &agreed.proof()).await?;
    }
    let proof = match within(meeting.recv()).await? {
        Ok(proof) => proof,
        // Whoever finds the code wrong says so, and may be gone before that was heard.
        Err(MeetingError::Ended) if role == Role::Joiner => return Err(IntroductionError::WrongCode),
        Err(error) => return Err(error.into()),
    };
    match expect(&proof, PROOF) {
        Ok(proof) if agreed.accepts(proof) => {}
        Ok(_) => return Err(fail(meeting, IntroductionError::WrongCode).await),
        Err(error) => return Err(fail(meeting, error).await),
    }
    if role == Role::Opener {
        send(&mut meeting, PROOF, &agreed.proof()).await?;
    }
    Ok(Introduced { meeting, peer: agreed.peer(), sealing: agreed.sealing() })
}

/// A private, authenticated way to somebody who knew the code. It lasts as long as the meeting.
#[derive(Debug)]
pub struct Introduced {
    meeting: Meeting,
    peer: EndpointId,
    sealing: Sealing,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealing")
    }
}

impl Introduced {
    /// The other side's endpoint id.
    pub fn peer(&self) -> EndpointId {
        self.peer
    }

    /// Sends a message of at most [`MAX_MESSAGE`] bytes. Not cancel-safe.
    ///
    /// # Errors
    /// [`IntroductionError`].
    pub async fn send(&mut self, message: &[u8]) -> Result<(), IntroductionError> {
        if message.len() > MAX_MESSAGE {
            return Err(IntroductionError::TooLarge(message.len()));
        }
        let sealed = self.sealing.seal(message).ok_or(IntroductionError::Protocol)?;
        send(&mut self.meeting, SEALED, &sealed).await
    }

    /// Waits for the next message, for half a minute at most. Cancel-safe.
    ///
    /// # Errors
    /// [`IntroductionError`].
    pub async fn recv(&mut self) -> Result<Vec<u8>, IntroductionError> {
        let frame = within(self.meeting.recv()).await??;
        let sealed = expect(&frame, SEALED)?;
        self.sealing.open(sealed).ok_or(IntroductionError::Protocol)
    }

    /// Ends the meeting once the service has all that was sent.
    ///
    /// # Errors
    /// [`IntroductionError`] when the other side will not get all of it.
    pub async fn close(self) -> Result<(), IntroductionError> {
        Ok(self.meeting.close().await?)
    }
}

async fn send(meeting: &mut Meeting, kind: u8, content: &[u8]) -> Result<(), IntroductionError> {
    let mut frame = Vec::with_capacity(1 + content.len());
    frame.push(kind);
    frame.extend_from_slice(content);
    Ok(within(meeting.send(&frame)).await??)
}

/// A frame's content, if it is of this kind.
fn expect(frame: &[u8], kind: u8) -> Result<&[u8], IntroductionError> {
    match frame.split_first() {
        Some((found, content)) if *found == kind => Ok(content),
        Some((&FAILED, _)) => Err(IntroductionError::WrongCode),
        _ => Err(IntroductionError::Protocol),
    }
}

/// Hears whatever the other side says: without the code it proves nothing. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn hear_anything(bytes: &[u8]) {
    let id = EndpointId::from_bytes(&[1; 32]);
    let (hello, rest) = bytes.split_at(bytes.len().min(1 + handshake::HELLO));
    let (Ok(hello), Ok(code)) = (expect(hello, HELLO), "zoo-zoo-zoo".parse::<Code>()) else { return };
    for role in [Role::Opener, Role::Joiner] {
        let Some(agreed) = Handshake::new(role, &code, id).finish(hello) else { continue };
        assert!(!agreed.accepts(rest) && agreed.sealing().open(rest).is_none(), "{:?}", agreed.peer());
    }
}

/// Tells the other side that it failed, if it does not know yet.
async fn fail(mut meeting: Meeting, error: IntroductionError) -> IntroductionError {
    // It failed already: whether the other side hears of it changes nothing.
    if send(&mut meeting, FAILED, &[]).await.is_ok() {
        let _ = meeting.close().await;
    }
    error
}

async fn within<T>(step: impl Future<Output = T>) -> Result<T, IntroductionError> {
    tokio::time::timeout(STEP, step).await.map_err(|_| IntroductionError::Silent)
}

/// Why two were not introduced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntroductionError {
    /// The other side used another secret: mistyped, or a guess.
    #[error("the code was wrong, and is void now; make a new one and tell it again")]
    WrongCode,
    /// The other side says something that it must not.
    #[error("the other side breaks the protocol; is it of the same version?")]
    Protocol,
    /// The other side takes too long.
    #[error("the other side is silent; make a new code and try again")]
    Silent,
    /// The message is too large.
    #[error("a message has at most {MAX_MESSAGE} bytes, this has {0}")]
    TooLarge(usize),
    /// The meeting is over.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
}
