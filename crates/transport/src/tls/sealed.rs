//! Record protection once the handshake is over (RFC 8446 §5.2): plaintext is sealed and opened where it
//! lies, while rustls' own record layer copies it twice. The two directions share no lock.
//!
//! rustls makes the handshake and keeps what outlives it: the secrets that key updates need, and session
//! tickets.

#[cfg(feature = "fuzzing")]
mod anything;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{self, AeadKey, Iv};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, PeerMisbehaved};

use super::{TlsError, tickets};

#[cfg(feature = "fuzzing")]
pub(super) use anything::open_anything_after;

/// Content type, version and length.
const HEADER: usize = 5;
const TAG: usize = 16;
/// Most that one record may hold, without its content type.
const MAX_PLAINTEXT: usize = 1 << 14;
/// Most that may follow a record's header.
const MAX_CIPHERTEXT: usize = MAX_PLAINTEXT + 256;
/// Longest handshake message that is put together.
const MAX_MESSAGE: usize = 0xffff;
/// Key updates that the peer may send with no data between.
const MAX_UPDATES: u32 = 32;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// What rustls keeps of a connection.
pub(super) enum Kernel {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Kernel {
    /// How many records one key may protect.
    fn limit(&self) -> u64 {
        let suite = match self {
            Self::Client(kernel) => kernel.negotiated_cipher_suite(),
            Self::Server(kernel) => kernel.negotiated_cipher_suite(),
        };
        suite.tls13().map_or(0, |suite| suite.common.confidentiality_limit)
    }

    fn next_sending(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(kernel) => kernel.update_tx_secret(),
            Self::Server(kernel) => kernel.update_tx_secret(),
        }
    }

    fn next_receiving(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(kernel) => kernel.update_rx_secret(),
            Self::Server(kernel) => kernel.update_rx_secret(),
        }
    }

    fn ticket(&mut self, message: &[u8]) -> Result<(), Error> {
        match self {
            Self::Client(kernel) => {
                tickets::of_size(message.len(), || kernel.handle_new_session_ticket(message))
            }
            Self::Server(_) => Err(unexpected()),
        }
    }
}

/// What both directions need now and then.
struct Common {
    kernel: Mutex<Kernel>,
    /// The peer asked for a key update, and nothing was sent since.
    update_wanted: AtomicBool,
}

impl Common {
    fn with_kernel<R>(&self, f: impl FnOnce(&mut Kernel) -> R) -> R {
        f(&mut self.kernel.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes both directions of what the handshake came to.
pub(super) fn protect(secrets: ExtractedSecrets, kernel: Kernel) -> Result<(Sealer, Opener), TlsError> {
    // A key update takes a record itself: it begins long before the last.
    let limit = kernel.limit() / 2;
    let common = Arc::new(Common { kernel: Mutex::new(kernel), update_wanted: AtomicBool::new(false) });
    let (sending, receiving) = (Key::new(&secrets.tx.1)?, Key::new(&secrets.rx.1)?);
    let sealer =
        Sealer { key: sending, sequence: secrets.tx.0, limit, failed: false, common: common.clone() };
    let opener = Opener {
        key: receiving,
        sequence: secrets.rx.0,
        message: Vec::new(),
        updates: 0,
        closed: false,
        common,
    };
    Ok((sealer, opener))
}

/// One direction's key until its next update.
struct Key {
    aead: LessSafeKey,
    iv: Iv,
}

impl Key {
    fn new(secrets: &ConnectionTrafficSecrets) -> Result<Self, TlsError> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(TlsError::Internal("a cipher that was not offered")),
        };
        Self::of(algorithm, AeadKey::as_ref(key), iv)
    }

    fn of(algorithm: &'static aws_lc_rs::aead::Algorithm, key: &[u8], iv: &Iv) -> Result<Self, TlsError> {
        let key =
            UnboundKey::new(algorithm, key).map_err(|_| TlsError::Internal("a key of another length"))?;
        let iv = iv.as_ref().try_into().map(<[u8; 12]>::into);
        Ok(Self {
            aead: LessSafeKey::new(key),
            iv: iv.map_err(|_| TlsError::Internal("IV of another length"))?,
        })
    }

    fn nonce(&self, sequence: u64) -> Nonce {
        Nonce::assume_unique_for_key(cipher::Nonce::new(&self.iv, sequence).0)
    }
}

/// Seals records, one after the other.
pub(crate) struct Sealer {
    key: Key,
    sequence: u64,
    /// After so many records the key is changed.
    limit: u64,
    /// A record could not be sealed: its content is lost, and with it the count of what was sent.
    failed: bool,
    common: Arc<Common>,
}

impl Sealer {
    /// Appends one record to `out` with what `fill` appends to it, at most 16 KiB; none if that is nothing. A
    /// key update that is due goes before.
    ///
    /// # Errors
    /// [`TlsError`] when the record is too long or sealing fails, and ever after: what was filled in is lost.
    pub(crate) fn record<R>(
        &mut self,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> Result<R, TlsError> {
        if self.sequence >= self.limit || self.common.update_wanted.load(Ordering::Relaxed) {
            self.update(out)?;
        }
        out.reserve(HEADER + MAX_PLAINTEXT + 1 + TAG);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let result = fill(out);
        if out.len() == start + HEADER {
            out.truncate(start);
        } else {
            self.seal(out, start, APPLICATION_DATA)?;
        }
        Ok(result)
    }

    /// Appends close_notify: nothing follows.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.short(out, ALERT, &[WARNING, AlertDescription::CloseNotify.into()])
    }

    /// Appends the alert that says why this side breaks off.
    pub(crate) fn refuse(&mut self, out: &mut Vec<u8>, why: &TlsError) -> Result<(), TlsError> {
        let alert = match why {
            TlsError::Rustls(Error::DecryptError) => AlertDescription::BadRecordMac,
            TlsError::Rustls(Error::PeerSentOversizedRecord) => AlertDescription::RecordOverflow,
            // The peer broke off itself.
            TlsError::Rustls(Error::AlertReceived(_)) => return Ok(()),
            TlsError::Internal(_) => AlertDescription::InternalError,
            _ => AlertDescription::UnexpectedMessage,
        };
        self.short(out, ALERT, &[FATAL, alert.into()])
    }

    /// Says that the next record has another key, and takes that.
    fn update(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.common.update_wanted.store(false, Ordering::Relaxed);
        self.short(out, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0])?;
        let (sequence, secrets) = self.common.with_kernel(Kernel::next_sending)?;
        self.key = Key::new(&secrets)?;
        self.sequence = sequence;
        Ok(())
    }

    fn short(&mut self, out: &mut Vec<u8>, kind: u8, content: &[u8]) -> Result<(), TlsError> {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(content);
        self.seal(out, start, kind)
    }

    /// Seals what follows the room for a header at `start`, or takes it back and never seals again.
    fn seal(&mut self, out: &mut Vec<u8>, start: usize, kind: u8) -> Result<(), TlsError> {
        let result =
            if self.failed { Err(Error::EncryptError.into()) } else { self.seal_or_fail(out, start, kind) };
        if result.is_err() {
            self.failed = true;
            out.truncate(start);
        }
        result
    }

    fn seal_or_fail(&mut self, out: &mut Vec<u8>, start: usize, kind: u8) -> Result<(), TlsError> {
        let body = start + HEADER;
        if out.len() - body > MAX_PLAINTEXT {
            return Err(TlsError::Internal("record too long"));
        }
        out.push(kind);
        let length =
            u16::try_from(out.len() - body + TAG).map_err(|_| TlsError::Internal("record too long"))?;
        let [high, low] = length.to_be_bytes();
        let header = [APPLICATION_DATA, 3, 3, high, low];
        out[start..body].copy_from_slice(&header);
        let nonce = self.key.nonce(self.sequence);
        let sealed = self.key.aead.seal_in_place_separate_tag(nonce, Aad::from(header), &mut out[body..]);
        out.extend_from_slice(sealed.map_err(|_| Error::EncryptError)?.as_ref());
        // A number that was used once is never used again, whatever becomes of the record.
        self.sequence += 1;
        Ok(())
    }
}

/// Opens records, one after the other.
pub(crate) struct Opener {
    key: Key,
    sequence: u64,
    /// A handshake message that is not whole yet.
    message: Vec<u8>,
    /// Key updates since the last data.
    updates: u32,
    /// close_notify came: what follows is not looked at.
    closed: bool,
    common: Arc<Common>,
}

impl Opener {
    /// Opens the records at the start of `incoming` where they lie, hands their plaintext to `sink`, and
    /// returns how many bytes were used up; the rest is an incomplete record, to be offered again with more.
    ///
    /// # Errors
    /// [`TlsError`] for a record that is forged, too long, or not allowed now; nothing may be opened behind
    /// it.
    pub(crate) fn open(
        &mut self,
        incoming: &mut [u8],
        mut sink: impl FnMut(&[u8]),
    ) -> Result<usize, TlsError> {
        let mut used = 0;
        while let Some((header, rest)) = incoming[used..].split_first_chunk_mut::<HEADER>() {
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if header[0] != APPLICATION_DATA {
                return Err(unexpected().into());
            }
            if length > MAX_CIPHERTEXT {
                return Err(Error::PeerSentOversizedRecord.into());
            }
            let Some(record) = rest.get_mut(..length) else {
                break;
            };
            used += HEADER + length;
            if !self.closed {
                self.open_one(*header, record, &mut sink)?;
            }
        }
        Ok(used)
    }

    /// The peer waits for an answer that the sealer gives with its next record.
    pub(crate) fn owes_update(&self) -> bool {
        self.common.update_wanted.load(Ordering::Relaxed)
    }

    fn open_one(
        &mut self,
        header: [u8; HEADER],
        record: &mut [u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        let nonce = self.key.nonce(self.sequence);
        let opened = self.key.aead.open_in_place(nonce, Aad::from(header), record);
        let plain = opened.map_err(|_| Error::DecryptError)?;
        self.sequence += 1;
        // Zeros may follow the content type (RFC 8446 §5.4).
        let end = plain.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or(Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext))?;
        let (content, kind) = (&plain[..end], plain[end]);
        if content.len() > MAX_PLAINTEXT {
            return Err(Error::PeerSentOversizedRecord.into());
        }
        match kind {
            APPLICATION_DATA if self.message.is_empty() => {
                if !content.is_empty() {
                    self.updates = 0;
                    sink(content);
                }
                Ok(())
            }
            HANDSHAKE if !content.is_empty() => self.take_handshake(content),
            ALERT if self.message.is_empty() => self.take_alert(content),
            _ => Err(unexpected().into()),
        }
    }

    fn take_alert(&mut self, content: &[u8]) -> Result<(), TlsError> {
        let &[_, description] = content else {
            return Err(unexpected().into());
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => self.closed = true,
            AlertDescription::UserCanceled => {}
            other => return Err(Error::AlertReceived(other).into()),
        }
        Ok(())
    }

    fn take_handshake(&mut self, content: &[u8]) -> Result<(), TlsError> {
        let mut bytes = std::mem::take(&mut self.message);
        bytes.extend_from_slice(content);
        let mut rest = &bytes[..];
        while let Some((&[kind, a, b, c], behind)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > MAX_MESSAGE {
                return Err(unexpected().into());
            }
            let Some((body, behind)) = behind.split_at_checked(length) else {
                break;
            };
            rest = behind;
            match (kind, body) {
                (NEW_SESSION_TICKET, ticket) => self.common.with_kernel(|kernel| kernel.ticket(ticket))?,
                (KEY_UPDATE, &[request @ (0 | 1)]) => self.update(request == 1, rest.is_empty())?,
                _ => return Err(unexpected().into()),
            }
        }
        self.message = rest.to_vec();
        Ok(())
    }

    fn update(&mut self, answer: bool, last: bool) -> Result<(), TlsError> {
        self.updates += 1;
        if !last {
            return Err(Error::PeerMisbehaved(PeerMisbehaved::KeyEpochWithPendingFragment).into());
        }
        if self.updates > MAX_UPDATES {
            return Err(Error::PeerMisbehaved(PeerMisbehaved::TooManyKeyUpdateRequests).into());
        }
        let (sequence, secrets) = self.common.with_kernel(Kernel::next_receiving)?;
        self.key = Key::new(&secrets)?;
        self.sequence = sequence;
        if answer {
            self.common.update_wanted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A record or message that has no place here.
fn unexpected() -> Error {
    Error::InappropriateMessage { expect_types: Vec::new(), got_type: rustls::ContentType::Unknown(0) }
}

#[cfg(test)]
mod tests;
