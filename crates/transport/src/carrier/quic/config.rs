//! How Whimbrel uses QUIC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, ServerConfig,
    TransportConfig, VarInt,
};
use sha2::Sha256;
use whimbrel_base::routing::{OWN_ID, ROUTED_ID, own_id, routed_id};
use whimbrel_base::{RelayToken, SecretKey};

use super::congestion::{Factory, Observed};
use super::datagrams::{RECEIVE_BUFFER, SEND_BUFFER};
use super::socket::Envelope;
use super::window::FIRST_WINDOW;
use crate::tls::{ArrivingSessions, ServerTls, TlsError, TlsIdentity};

/// Bytes that a peer may send on the stream ahead of what was read. What bounds it is the window of the
/// connection.
const STREAM_WINDOW: u32 = 16 << 20;
/// NATs forget UDP flows after 30 s and more.
const KEEP_ALIVE: Duration = Duration::from_secs(25);
/// A side asks for signs of life itself, at the latest after twice its keepalive time. What stays
/// unanswered for longer than this many of them is gone.
const KEEPALIVES_TO_LIVE: u32 = 3;
const SHORTEST_IDLE: Duration = Duration::from_secs(120);
const LONGEST_IDLE: Duration = Duration::from_secs(24 * 3600);
/// What a first round trip is expected to take (RFC 9002 §6.2.2), and the least where the last ones were
/// shorter: the way may be another now.
const USUAL_RTT: Duration = Duration::from_millis(333);
const SHORTEST_RTT: Duration = Duration::from_millis(30);
/// Incoming handshakes that wait for us, and their bytes.
const MAX_INCOMING: usize = 256;
const INCOMING_BYTES: u64 = 64 * 1024;
const INCOMING_BYTES_TOTAL: u64 = 4 << 20;

/// Everything that the QUIC carriers of one endpoint share.
pub(crate) struct QuicConfig {
    client: Arc<QuicClientConfig>,
    /// Of sockets. Each connection that comes in has one of its own.
    server: Arc<QuicServerConfig>,
    arriving: ServerTls,
    key: SecretKey,
    keepalive: Duration,
}

/// What one connection that comes in is accepted with.
pub(crate) struct Accepting {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) observed: Arc<Observed>,
    pub(crate) sessions: Arc<ArrivingSessions>,
}

impl std::fmt::Debug for QuicConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuicConfig")
    }
}

impl QuicConfig {
    pub(crate) fn new(key: &SecretKey, tls: &TlsIdentity, keepalive: Duration) -> Result<Self, TlsError> {
        let refused = |_| TlsError::Internal("no cipher suite for QUIC");
        Ok(Self {
            client: Arc::new(tls.quic_client.clone().try_into().map_err(refused)?),
            server: Arc::new(tls.quic_server.arriving().0.try_into().map_err(refused)?),
            arriving: tls.quic_server.clone(),
            key: key.clone(),
            keepalive,
        })
    }

    /// For a socket that connections are accepted on.
    pub(crate) fn listening(&self, at: SocketAddr) -> EndpointConfig {
        endpoint(ResetKey::derive(&self.key, &at), || Box::new(ConnectionIds))
    }

    /// For connections that relays pass on by this token, in this envelope.
    pub(crate) fn relayed(&self, token: RelayToken, envelope: Arc<dyn Envelope>) -> EndpointConfig {
        endpoint(ResetKey::derive(&self.key, &token), move || Box::new(RelayedIds(envelope.clone())))
    }

    /// For a socket that one connection is dialled from.
    pub(crate) fn dialling(&self) -> EndpointConfig {
        endpoint(ResetKey(rand::random()), || Box::new(ConnectionIds))
    }

    /// For one connection that is dialled, through a relay if there is a token, to a peer to which a round
    /// trip took `rtt` lately.
    pub(crate) fn client(
        &self,
        rtt: Option<Duration>,
        through: Option<RelayToken>,
    ) -> (ClientConfig, Arc<Observed>) {
        let observed = Arc::new(Observed::default());
        let mut transport = self.transport(&observed);
        transport.keep_alive_interval(Some(self.keepalive.min(KEEP_ALIVE)));
        if let Some(rtt) = rtt {
            // A lost first flight is sent again after three of these (RFC 9002 §6.2.2).
            transport.initial_rtt(rtt.clamp(SHORTEST_RTT, USUAL_RTT));
        }
        let mut config = ClientConfig::new(self.client.clone());
        config.transport_config(Arc::new(transport));
        if let Some(token) = through {
            // What the relay reads.
            let id = move || ConnectionId::new(&routed_id(token, rand::random::<[u8; ROUTED_ID]>()));
            config.initial_dst_cid_provider(Arc::new(id));
        }
        (config, observed)
    }

    /// For connections that come in; each is given a transport of its own by [`accepted`](Self::accepted).
    pub(crate) fn server(&self) -> ServerConfig {
        let mut config = ServerConfig::with_crypto(self.server.clone());
        config.max_incoming(MAX_INCOMING);
        config.incoming_buffer_size(INCOMING_BYTES);
        config.incoming_buffer_size_total(INCOMING_BYTES_TOTAL);
        config.transport_config(Arc::new(self.transport(&Arc::default())));
        config
    }

    /// `server`, for one connection that came in.
    pub(crate) fn accepted(&self, server: &ServerConfig) -> Accepting {
        let observed = Arc::new(Observed::default());
        let (tls, sessions) = self.arriving.arriving();
        let mut config = server.clone();
        #[expect(clippy::expect_used, reason = "a copy of what `new` has tried")]
        let crypto =
            QuicServerConfig::try_from(tls).expect("the cipher suites of `server` have one for QUIC");
        config.crypto = Arc::new(crypto);
        config.transport_config(Arc::new(self.transport(&observed)));
        Accepting { config: Arc::new(config), observed, sessions }
    }

    fn transport(&self, observed: &Arc<Observed>) -> TransportConfig {
        let idle = (self.keepalive * KEEPALIVES_TO_LIVE).clamp(SHORTEST_IDLE, LONGEST_IDLE);
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(1u32.into());
        // Other streams are not read.
        transport.max_concurrent_uni_streams(0u32.into());
        transport.datagram_receive_buffer_size(Some(RECEIVE_BUFFER));
        transport.datagram_send_buffer_size(SEND_BUFFER);
        transport.stream_receive_window(STREAM_WINDOW.into());
        transport.receive_window(FIRST_WINDOW.into());
        transport.max_idle_timeout(IdleTimeout::try_from(idle).ok());
        transport.congestion_controller_factory(Arc::new(Factory(observed.clone())));
        transport
    }
}

fn endpoint(
    reset_key: ResetKey,
    ids: impl Fn() -> Box<dyn ConnectionIdGenerator> + Send + Sync + 'static,
) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(reset_key));
    config.cid_generator(ids);
    // Others share the port, and are told from QUIC by this bit (RFC 9443 §3).
    config.grease_quic_bit(false);
    config
}

/// What a QUIC connection is closed with: the engine has said everything else.
pub(crate) const NO_ERROR: VarInt = VarInt::from_u32(0);

/// Random connection ids whose first bit is set. Notices are heard on the same socket: the second byte of a
/// packet with a short header is then never that of a notice (docs/protocol.md §13). The second bit is not
/// set: a relay takes no packet for another's.
struct ConnectionIds;

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&own_id(rand::random::<[u8; OWN_ID]>()))
    }

    fn cid_len(&self) -> usize {
        OWN_ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Connection ids by which relays know whom packets are for.
struct RelayedIds(Arc<dyn Envelope>);

impl ConnectionIdGenerator for RelayedIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.0.connection_id())
    }

    fn cid_len(&self) -> usize {
        ROUTED_ID
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Bytes that SHA-256 takes at a time (FIPS 180-4 §1).
const SHA256_BLOCK: usize = 64;

/// Derived from the endpoint's key, so that a server that was restarted can tell old connections at once that
/// they are gone (RFC 9000 §10.3), as TCP does; and from the socket's address, because who shares a key among
/// sockets can be made to reset the connections of one by packets to another (§21.11).
struct ResetKey([u8; 32]);

impl ResetKey {
    fn derive(key: &SecretKey, at: &impl std::fmt::Display) -> Self {
        let what = format!("whimbrel quic stateless reset v1 {at}");
        Self(hmac(&key.to_bytes(), what.as_bytes()))
    }
}

fn mac(key: &[u8; 32], data: &[u8]) -> Hmac<Sha256> {
    // A key shorter than a block is padded with zeros (RFC 2104 §2). A whole block cannot be refused.
    let mut block = [0; SHA256_BLOCK];
    block[..key.len()].copy_from_slice(key);
    let mut mac = <Hmac<Sha256> as KeyInit>::new(&block.into());
    mac.update(data);
    mac
}

fn hmac(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    mac(key, data).finalize().into_bytes().into()
}

impl quinn::crypto::HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(&hmac(&self.0, data));
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), quinn::crypto::CryptoError> {
        mac(&self.0, data).verify_slice(signature).map_err(|_| quinn::crypto::CryptoError)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use quinn::Endpoint;

    use super::*;

    #[test]
    fn a_reset_key_is_hmac_with_sha_256() {
        // RFC 4231 §4.2, whose key is shorter than ours: the zeros behind it are HMAC's own padding.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let expected = [
            0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b,
            0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83, 0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7,
        ];
        assert_eq!(hmac(&key, b"Hi There"), expected);
    }

    fn somebody() -> (SecretKey, QuicConfig) {
        let key = SecretKey::generate();
        let tls = TlsIdentity::new(&key).unwrap();
        let config = QuicConfig::new(&key, &tls, Duration::from_secs(60)).unwrap();
        (key, config)
    }

    /// An endpoint at any free port of loopback.
    fn endpoint(config: EndpointConfig, server: Option<ServerConfig>) -> Endpoint {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Endpoint::new(config, server, socket, Arc::new(quinn::TokioRuntime)).unwrap()
    }

    /// Answers the first byte of each connection that comes in.
    async fn serve(endpoint: Endpoint, config: QuicConfig) {
        let server = config.server();
        while let Some(incoming) = endpoint.accept().await {
            let Accepting { config, sessions, .. } = config.accepted(&server);
            let Ok(connecting) = incoming.accept_with(config) else { continue };
            tokio::spawn(async move {
                let Ok((connection, _)) = connecting.into_0rtt() else { return };
                let (mut send, mut recv) = connection.accept_bi().await.unwrap();
                recv.read_chunk(1, true).await.unwrap();
                sessions.admit(super::super::peer(&connection).unwrap());
                send.write_all(b"!").await.unwrap();
                connection.closed().await;
            });
        }
    }

    #[tokio::test]
    async fn twenty_moves_with_three_dead_dials_each_stay_in_early_data() {
        let (key, server) = somebody();
        let listening = endpoint(EndpointConfig::default(), Some(server.server()));
        let alive = listening.local_addr().unwrap();
        let served = tokio::spawn(serve(listening, server));
        let (_, client) = somebody();
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dead = silent.local_addr().unwrap();
        let dialling = endpoint(client.dialling(), None);
        let name = key.id().to_string();
        for number in 0..=20 {
            let dial = |to| dialling.connect_with(client.client(None, None).0, to, &name).unwrap();
            if number > 0 {
                for _ in 0..3 {
                    // Nobody answers, and the attempt is given up.
                    assert!(dial(dead).into_0rtt().is_ok(), "move {number}");
                }
            }
            let (connection, accepted) = match dial(alive).into_0rtt() {
                Ok((connection, accepted)) => (connection, Some(accepted)),
                Err(connecting) => (connecting.await.unwrap(), None),
            };
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            send.write_all(b"?").await.unwrap();
            recv.read_chunk(1, true).await.unwrap().unwrap();
            match accepted {
                Some(accepted) => assert!(accepted.await, "move {number}"),
                None => assert_eq!(number, 0, "no ticket was left"),
            }
            // Tickets follow the handshake.
            tokio::time::sleep(Duration::from_millis(20)).await;
            connection.close(NO_ERROR, b"");
        }
        served.abort();
    }
}
