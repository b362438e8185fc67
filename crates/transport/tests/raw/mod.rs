//! A peer made by hand: TLS from rustls' ordinary interface, frames from the protocol crate, and nothing that
//! keeps it from lying.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme, StreamOwned,
};
use whimbrel_base::{ConnectionId, EndpointId, SecretKey};
use whimbrel_proto::fuzzing::frame::{Frame, Join};
use whimbrel_proto::{CloseCode, Connection as Engine, FirstFlight, PathId, segment};

pub(crate) const PROTOCOL: &[u8] = b"whimbrel/1";
/// No answer takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// A key and the TLS configuration that shows it.
pub(crate) struct Identity {
    pub(crate) key: SecretKey,
    config: Arc<ClientConfig>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let key = SecretKey::generate();
        let config = client_config(Some(&key), PROTOCOL);
        Self { key, config }
    }

    /// One that keeps the tickets that it is given.
    pub(crate) fn with_tickets() -> Self {
        let Self { key, config } = Self::new();
        let mut config = Arc::unwrap_or_clone(config);
        config.resumption = rustls::client::Resumption::in_memory_sessions(256);
        Self { key, config: Arc::new(config) }
    }

    /// TCP and TLS, and not a byte of the protocol.
    pub(crate) fn dial(&self, server: SocketAddr) -> io::Result<RawPath> {
        RawPath::dial(server, self.config.clone())
    }

    /// TCP and TLS, with these bytes as early data under a ticket. An error if there is no ticket for that.
    /// Returns once the server has finished its part of the handshake.
    pub(crate) fn dial_early(&self, server: SocketAddr, bytes: &[u8]) -> io::Result<RawPath> {
        // The tickets are shared with the configuration that this one is a copy of.
        let mut config = ClientConfig::clone(&self.config);
        config.enable_early_data = true;
        let mut tls = tls_client(Arc::new(config));
        let mut early = tls.early_data().ok_or_else(|| io::Error::other("no ticket for early data"))?;
        early.write_all(bytes)?;
        RawPath::over(server, tls)
    }
}

/// A configuration without tickets that takes any server. No key: no client certificate.
pub(crate) fn client_config(key: Option<&SecretKey>, protocol: &[u8]) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer));
    let mut config = match key {
        None => builder.with_no_client_auth(),
        Some(key) => {
            let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_pkcs8_der()));
            let signing = provider.key_provider.load_private_key(der).unwrap();
            let public = CertificateDer::from(key.id().to_spki_der());
            let certified = Arc::new(CertifiedKey::new(vec![public], signing));
            builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)))
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.3 only".into()))
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The bytes with which a TLS client begins.
pub(crate) fn client_hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut client = tls_client(client_config(Some(&SecretKey::generate()), PROTOCOL));
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn tls_client(config: Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config, ServerName::try_from("peer.invalid").unwrap()).unwrap()
}

/// One TCP connection with TLS on it.
pub(crate) struct RawPath {
    tls: StreamOwned<ClientConnection, TcpStream>,
    plain: Vec<u8>,
}

impl RawPath {
    /// Opens it as far as this side can tell.
    pub(crate) fn dial(server: SocketAddr, config: Arc<ClientConfig>) -> io::Result<Self> {
        Self::over(server, tls_client(config))
    }

    fn over(server: SocketAddr, tls: ClientConnection) -> io::Result<Self> {
        let socket = TcpStream::connect(server)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(LIMIT))?;
        let mut tls = StreamOwned::new(tls, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Self { tls, plain: Vec::new() })
    }

    /// Whether the server knew the ticket that was shown.
    pub(crate) fn is_resumed(&self) -> bool {
        self.tls.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Whether the server took what was sent before its answer.
    pub(crate) fn was_early(&self) -> bool {
        self.tls.conn.is_early_data_accepted()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    /// The next whole segment, without its length. An error if the server ends the path instead.
    pub(crate) fn segment(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some((body, used)) = segment::split(&self.plain).map_err(io::Error::other)? {
                let body = body.to_vec();
                self.plain.drain(..used);
                return Ok(body);
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 20 * 1024];
        match self.tls.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.plain.extend_from_slice(&buffer[..n]);
                Ok(())
            }
        }
    }

    /// The server's verdict on early data, which comes first of all where the server knew the ticket.
    pub(crate) fn verdict(&mut self) -> io::Result<u8> {
        while self.plain.is_empty() {
            self.read()?;
        }
        Ok(self.plain.remove(0))
    }

    /// The server's answer to the first flight.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let body = self.segment()?;
        Ok(Answer::read(&body))
    }
}

/// What the server says to a first flight.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    Joined,
    Refused(CloseCode),
}

impl Answer {
    pub(crate) fn read(body: &[u8]) -> Self {
        // Kind, length in two bytes, then the code of a refusal, which is small enough to be one byte.
        match body[0] {
            0x02 => Self::Accepted,
            0x06 => Self::Joined,
            0x08 => Self::Refused(CloseCode(body[3].into())),
            other => panic!("a first answer of kind {other:#x}"),
        }
    }
}

/// A segment of one frame.
pub(crate) fn segment_of(frame: &Frame<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    frame.encode(&mut body);
    with_length(&body)
}

/// A segment with that body.
pub(crate) fn with_length(body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len()).unwrap() | 0x4000;
    [&length.to_be_bytes(), body].concat()
}

/// A client whose engine is honest, and whose paths are made by hand.
pub(crate) struct RawClient {
    pub(crate) engine: Engine,
    pub(crate) first: RawPath,
}

impl RawClient {
    /// Connects.
    pub(crate) fn open(identity: &Identity, server: SocketAddr, server_id: EndpointId) -> Self {
        Self::open_hearing(identity, server, server_id, Vec::new())
    }

    /// Connects, and says that it hears notices at these addresses.
    pub(crate) fn open_hearing(
        identity: &Identity,
        server: SocketAddr,
        server_id: EndpointId,
        notice_addresses: Vec<SocketAddr>,
    ) -> Self {
        let (id, random) = (ConnectionId::random(), SecretKey::generate().to_bytes());
        let mut config = whimbrel_proto::Config::default();
        config.params.notice_addresses = notice_addresses;
        let mut engine = Engine::client(config, id, identity.key.id(), server_id, random, Instant::now());
        let mut first = identity.dial(server).unwrap();
        let path = engine.open_path(Instant::now(), None, 64 * 1024).unwrap();
        first.send(&next_segment(&mut engine, path)).unwrap();
        let body = first.segment().unwrap();
        assert_eq!(Answer::read(&body), Answer::Accepted);
        engine.handle_segment(Instant::now(), path, &body).unwrap();
        assert!(engine.is_established());
        Self { engine, first }
    }

    /// A genuine JOIN for one more path.
    pub(crate) fn join(&mut self) -> Join {
        let path = self.engine.open_path(Instant::now(), None, 64 * 1024).unwrap();
        let bytes = next_segment(&mut self.engine, path);
        let (body, _) = segment::split(&bytes).unwrap().unwrap();
        match FirstFlight::decode(body).unwrap() {
            FirstFlight::Join(join) => join,
            other => panic!("{other:?} instead of a JOIN"),
        }
    }

    /// Whether the server still answers on the first path.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.engine.ping(Instant::now(), PathId(0));
        let bytes = next_segment(&mut self.engine, PathId(0));
        self.first.send(&bytes).is_ok() && self.first.segment().is_ok()
    }
}

fn next_segment(engine: &mut Engine, path: PathId) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(engine.poll_transmit(Instant::now(), path, &mut bytes));
    bytes
}

/// Offers a JOIN on a fresh TCP connection.
pub(crate) fn offer(identity: &Identity, server: SocketAddr, join: Join) -> Answer {
    let mut path = identity.dial(server).unwrap();
    path.send(&segment_of(&Frame::Join(join))).unwrap();
    path.answer().unwrap()
}
