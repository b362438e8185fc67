//! One path's TLS channel: plaintext segments above, TLS records below, no I/O of its own.
//!
//! Built on rustls' unbuffered API, so that an idle path holds no buffers, and many records can be
//! decrypted from one large read.
//!
//! That API does not tell a client whether its early data was taken. So, after a resumed handshake,
//! the server's first plaintext byte is a verdict: 1 when early data arrived, 0 when the handshake
//! ended without. A client whose early data was not taken sends it again, before anything else.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, TransmitTlsData, UnbufferedStatus};
use rustls::{ClientConfig, HandshakeKind, ServerConfig};
use whimbrel_base::{EndpointId, RelayToken};

use super::names::{server_name, token_name};
use super::records::Records;
use super::sealed::{self, Kernel, Opener, Sealer};
use super::{MAX_EARLY_DATA, TlsError};

/// A record's header, content type and tag.
const RECORD_OVERHEAD: usize = 64;

enum Role {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
    /// The handshake is long over: records are sealed and opened elsewhere.
    Released(Option<EndpointId>),
}

/// Encrypts and decrypts one path.
pub(crate) struct TlsChannel {
    role: Role,
    outgoing: Records,
    /// Client: plaintext sent as early data, kept until it is known that the server took it.
    early: Option<Vec<u8>>,
    /// The verdict on early data was read or written.
    verdict: bool,
    /// Server: early data arrived.
    early_arrived: bool,
    /// Application data may be encrypted.
    open: bool,
    /// What protects all further records, to be taken when those that wait here are on their way.
    sealer: Option<Sealer>,
}

impl TlsChannel {
    /// Dials the peer itself.
    pub(crate) fn client(config: Arc<ClientConfig>, peer: EndpointId) -> Result<Self, TlsError> {
        Self::client_of(config, server_name(peer)?)
    }

    /// Dials through a relay, which reads the token. The configuration says whose key is expected.
    pub(crate) fn relayed_client(config: Arc<ClientConfig>, token: RelayToken) -> Result<Self, TlsError> {
        Self::client_of(config, token_name(token)?)
    }

    fn client_of(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, TlsError> {
        let connection = UnbufferedClientConnection::new(config, name)?;
        let mut channel = Self::new(Role::Client(Box::new(connection)));
        channel.receive(&mut [], &mut |_| {})?; // writes the ClientHello
        Ok(channel)
    }

    pub(crate) fn server(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        Ok(Self::new(Role::Server(Box::new(UnbufferedServerConnection::new(config)?))))
    }

    fn new(role: Role) -> Self {
        Self {
            role,
            outgoing: Records::default(),
            early: None,
            verdict: false,
            early_arrived: false,
            open: false,
            sealer: None,
        }
    }

    /// The peer's identity, once its key or ticket was verified.
    pub(crate) fn peer(&self) -> Option<EndpointId> {
        let certificates = match &self.role {
            Role::Client(c) => c.peer_certificates(),
            Role::Server(c) => c.peer_certificates(),
            Role::Released(peer) => return *peer,
        };
        EndpointId::from_spki_der(certificates?.first()?).ok()
    }

    /// Application data may be encrypted now.
    pub(crate) fn is_open(&self) -> bool {
        // Nothing may overtake early data that might have to be sent again.
        self.open && self.early.is_none()
    }

    fn is_resumed(&self) -> bool {
        let kind = match &self.role {
            Role::Client(c) => c.handshake_kind(),
            Role::Server(c) => c.handshake_kind(),
            Role::Released(_) => None,
        };
        kind == Some(HandshakeKind::Resumed)
    }

    fn is_handshaking(&self) -> bool {
        match &self.role {
            Role::Client(c) => c.is_handshaking(),
            Role::Server(c) => c.is_handshaking(),
            Role::Released(_) => false,
        }
    }

    /// Ends rustls' part once the handshake and what belongs to it is over: what comes in from now on is for
    /// the opener, and what goes out for the [`sealer`](Self::take_sealer). `rest` is what
    /// [`receive`](Self::receive) left of its input. `None` if it is too early.
    ///
    /// # Errors
    /// [`TlsError`] if rustls does not give the secrets away; the channel is of no use then.
    pub(crate) fn release(&mut self, rest: &[u8]) -> Result<Option<Opener>, TlsError> {
        let settled = match &self.role {
            Role::Client(_) => self.is_open() && (self.verdict || !self.is_resumed()),
            Role::Server(_) => self.is_open() && self.verdict,
            Role::Released(_) => false,
        };
        // A whole record that was left is part of a message that rustls has not seen the end of.
        if !settled || self.is_handshaking() || holds_record(rest) {
            return Ok(None);
        }
        let released = Role::Released(self.peer());
        let (secrets, kernel) = match std::mem::replace(&mut self.role, released) {
            Role::Client(client) => {
                let (secrets, kernel) = client.dangerous_into_kernel_connection()?;
                (secrets, Kernel::Client(kernel))
            }
            Role::Server(server) => {
                let (secrets, kernel) = server.dangerous_into_kernel_connection()?;
                (secrets, Kernel::Server(kernel))
            }
            Role::Released(_) => return Ok(None),
        };
        let (sealer, opener) = sealed::protect(secrets, kernel)?;
        self.sealer = Some(sealer);
        Ok(Some(opener))
    }

    /// What seals everything behind the records that wait [here](Self::outgoing), once.
    pub(crate) fn take_sealer(&mut self) -> Option<Sealer> {
        self.sealer.take()
    }

    /// How many bytes may be sent before the server answers; 0 without a ticket.
    pub(crate) fn early_room(&mut self) -> usize {
        let sent = self.early.as_ref().map_or(0, Vec::len);
        let Role::Client(client) = &mut self.role else {
            return 0;
        };
        if self.open {
            return 0;
        }
        let Ok(ConnectionState::TransmitTlsData(mut transmit)) = client.process_tls_records(&mut []).state
        else {
            return 0;
        };
        if !may_be_early(&mut transmit) {
            return 0;
        }
        (MAX_EARLY_DATA as usize).saturating_sub(sent)
    }

    /// Takes records from the start of `incoming`, hands their plaintext to `sink`, and returns how
    /// many bytes were used up; the rest is an incomplete record, to be offered again with more.
    pub(crate) fn receive(
        &mut self,
        incoming: &mut [u8],
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TlsError> {
        let fresh = !incoming.is_empty();
        let mut used = 0;
        loop {
            let expect_verdict = matches!(self.role, Role::Client(_)) && !self.verdict;
            let mut first = Vec::new();
            let mut keep = |plain: &[u8]| first.extend_from_slice(plain);
            let output: &mut dyn FnMut(&[u8]) = if expect_verdict { &mut keep } else { &mut *sink };
            let out = &mut self.outgoing;
            let (discard, outcome) = match &mut self.role {
                Role::Client(client) => {
                    let UnbufferedStatus { discard, state } =
                        client.process_tls_records(&mut incoming[used..]);
                    (discard, step_client(state?, fresh, out, output)?)
                }
                Role::Server(server) => {
                    let UnbufferedStatus { discard, state } =
                        server.process_tls_records(&mut incoming[used..]);
                    (discard, step_server(state?, out, output)?)
                }
                Role::Released(_) => return Err(TlsError::Internal("released")),
            };
            used += discard;
            if !first.is_empty() {
                let rest = self.read_verdict(&first)?;
                sink(rest);
            }
            match outcome {
                Outcome::Again => {}
                Outcome::Blocked => break,
                Outcome::Open => {
                    self.open = true;
                    break;
                }
                Outcome::EarlyData => self.early_arrived = true,
            }
        }
        self.settle_early_data()?;
        Ok(used)
    }

    /// Client: the first plaintext after a resumed handshake starts with the verdict.
    fn read_verdict<'a>(&mut self, first: &'a [u8]) -> Result<&'a [u8], TlsError> {
        self.verdict = true;
        if !self.is_resumed() {
            return Ok(first);
        }
        let (&verdict, rest) = first.split_first().ok_or(TlsError::Internal("empty verdict"))?;
        if verdict == 1 {
            self.early = None;
        }
        Ok(rest)
    }

    /// Server: states the verdict once it is known. Client: sends early data again that was not taken.
    fn settle_early_data(&mut self) -> Result<(), TlsError> {
        if !self.open {
            return Ok(());
        }
        match &self.role {
            Role::Server(_) if !self.verdict && (self.early_arrived || !self.is_handshaking()) => {
                self.verdict = true;
                if self.is_resumed() {
                    self.encrypt(&[u8::from(self.early_arrived)])?;
                }
            }
            // A full handshake means that the ticket, and with it the early data, was ignored.
            Role::Client(_) if self.verdict || !self.is_resumed() => {
                if let Some(early) = self.early.take().filter(|e| !e.is_empty()) {
                    tracing::debug!(bytes = early.len(), "early data refused, sending it again");
                    self.encrypt(&early)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Encrypts `plaintext`; only while [`is_open`](Self::is_open).
    pub(crate) fn encrypt(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        let out = &mut self.outgoing;
        loop {
            let done = match &mut self.role {
                Role::Client(c) => encrypt_step(c.process_tls_records(&mut []).state?, plaintext, out)?,
                Role::Server(c) => encrypt_step(c.process_tls_records(&mut []).state?, plaintext, out)?,
                Role::Released(_) => return Err(TlsError::Internal("released")),
            };
            if done {
                return Ok(());
            }
        }
    }

    /// Encrypts `plaintext` as early data; the caller keeps within [`early_room`](Self::early_room).
    pub(crate) fn encrypt_early(&mut self, plaintext: &[u8]) -> Result<(), TlsError> {
        let Role::Client(client) = &mut self.role else {
            return Err(TlsError::Internal("early data from a server"));
        };
        let Ok(ConnectionState::TransmitTlsData(mut transmit)) = client.process_tls_records(&mut []).state
        else {
            return Err(TlsError::Internal("early data after its time"));
        };
        let mut early =
            transmit.may_encrypt_early_data().ok_or(TlsError::Internal("early data without a ticket"))?;
        let n = early
            .encrypt(plaintext, self.outgoing.room(plaintext.len() + RECORD_OVERHEAD))
            .map_err(|_| TlsError::Internal("early data does not fit"))?;
        self.outgoing.filled(n);
        self.early.get_or_insert_default().extend_from_slice(plaintext);
        Ok(())
    }

    /// Tells the peer that nothing follows.
    pub(crate) fn close(&mut self) {
        let room = self.outgoing.room(RECORD_OVERHEAD);
        let n = match &mut self.role {
            Role::Client(c) => match c.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(mut w)) => w.queue_close_notify(room).unwrap_or(0),
                _ => 0,
            },
            Role::Server(c) => match c.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(mut w)) => w.queue_close_notify(room).unwrap_or(0),
                _ => 0,
            },
            Role::Released(_) => 0,
        };
        self.outgoing.filled(n);
    }

    /// Records to write.
    pub(crate) fn outgoing(&mut self) -> &mut Records {
        &mut self.outgoing
    }
}

/// What one step of the TLS state machine came to.
enum Outcome {
    /// Call again.
    Again,
    /// Nothing more to do without more input.
    Blocked,
    /// The channel may carry application data, and nothing is left to read.
    Open,
    /// Early data was handed to the sink.
    EarlyData,
}

/// A record is there from its header to its end.
fn holds_record(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, high, low, rest @ ..]
        if rest.len() >= usize::from(u16::from_be_bytes([*high, *low])))
}

fn may_be_early(transmit: &mut TransmitTlsData<'_, ClientConnectionData>) -> bool {
    transmit.may_encrypt_early_data().is_some()
}

fn step_client(
    state: ConnectionState<'_, '_, ClientConnectionData>,
    fresh: bool,
    out: &mut Records,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<Outcome, TlsError> {
    if let ConnectionState::TransmitTlsData(mut transmit) = state {
        // Until the server answers, stay where early data may be added.
        if !fresh && may_be_early(&mut transmit) {
            return Ok(Outcome::Blocked);
        }
        transmit.done();
        return Ok(Outcome::Again);
    }
    step(state, out, sink)
}

fn step_server(
    state: ConnectionState<'_, '_, ServerConnectionData>,
    out: &mut Records,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<Outcome, TlsError> {
    if let ConnectionState::ReadEarlyData(mut early) = state {
        while let Some(record) = early.next_record() {
            sink(record?.payload);
        }
        return Ok(Outcome::EarlyData);
    }
    step(state, out, sink)
}

fn step<Data>(
    state: ConnectionState<'_, '_, Data>,
    out: &mut Records,
    sink: &mut dyn FnMut(&[u8]),
) -> Result<Outcome, TlsError> {
    Ok(match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                sink(record?.payload);
            }
            Outcome::Again
        }
        ConnectionState::EncodeTlsData(mut encode) => {
            append(out, |room| encode.encode(room))?;
            Outcome::Again
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Outcome::Again
        }
        // The TCP stream's end follows, and tells the same.
        ConnectionState::PeerClosed => Outcome::Again,
        ConnectionState::WriteTraffic(_) => Outcome::Open,
        ConnectionState::BlockedHandshake | ConnectionState::Closed => Outcome::Blocked,
        _ => return Err(TlsError::Internal("unexpected state")),
    })
}

/// Returns true when `plaintext` was encrypted, false when a handshake message had to go first.
fn encrypt_step<Data>(
    state: ConnectionState<'_, '_, Data>,
    plaintext: &[u8],
    out: &mut Records,
) -> Result<bool, TlsError> {
    match state {
        ConnectionState::WriteTraffic(mut traffic) => {
            let records = plaintext.len() / (16 * 1024) + 1;
            let room = out.room(plaintext.len() + records * RECORD_OVERHEAD);
            let n = match traffic.encrypt(plaintext, room) {
                Ok(n) => n,
                Err(EncryptError::InsufficientSize(e)) => traffic
                    .encrypt(plaintext, out.room(e.required_size))
                    .map_err(|_| TlsError::Internal("record does not fit"))?,
                Err(EncryptError::EncryptExhausted) => return Err(TlsError::Internal("keys used up")),
            };
            out.filled(n);
            Ok(true)
        }
        ConnectionState::EncodeTlsData(mut encode) => {
            append(out, |room| encode.encode(room))?;
            Ok(false)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(false)
        }
        _ => Err(TlsError::Internal("not open for application data")),
    }
}

fn append(
    out: &mut Records,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), TlsError> {
    let mut room = 1024;
    loop {
        match encode(out.room(room)) {
            Ok(n) => {
                out.filled(n);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(e)) => room = e.required_size,
            Err(EncodeError::AlreadyEncoded) => return Err(TlsError::Internal("encoded twice")),
        }
    }
}

#[cfg(test)]
mod tests;
