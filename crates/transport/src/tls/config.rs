//! TLS configurations of one endpoint.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, version};
use whimbrel_base::SecretKey;

use super::clients::PeerClients;
use super::passed_on::TlsSessions;
use super::sessions::ServerTls;
use super::tickets::Tickets;
use super::verifier::{AnyPeer, ExpectedServer};
use super::{MAX_EARLY_DATA, TICKETS, TlsError};

const ALPN: &[u8] = b"whimbrel/1";

/// What an endpoint needs to dial and to accept.
#[derive(Debug, Clone)]
pub(crate) struct TlsIdentity {
    /// For dials over TCP.
    pub(crate) clients: Arc<PeerClients>,
    pub(crate) server: ServerTls,
    pub(crate) quic_client: Arc<ClientConfig>,
    pub(crate) quic_server: ServerTls,
    /// Those of `clients`.
    #[cfg(test)]
    pub(super) tickets: Arc<Tickets>,
}

impl TlsIdentity {
    pub(crate) fn new(key: &SecretKey) -> Result<Self, TlsError> {
        let provider = provider();
        let signing = provider
            .key_provider
            .load_private_key(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.to_pkcs8_der())))?;
        let public = CertificateDer::from(key.id().to_spki_der());
        let certified = Arc::new(CertifiedKey::new(vec![public], signing));

        let mut server = server_config(&provider, &certified)?;
        server.max_early_data_size = MAX_EARLY_DATA;
        // Records are sealed and opened by `sealed.rs` after the handshake.
        server.enable_secret_extraction = true;
        // On resumption the client is known from its ticket: answer before its Finished.
        server.send_half_rtt_data = true;
        let mut quic_server = server_config(&provider, &certified)?;
        // QUIC limits early data by its flow control (RFC 9001 §4.6.1).
        quic_server.max_early_data_size = u32::MAX;
        // Each configuration has tickets of its own: those of one carrier are no good on another.
        let (tickets, quic_tickets) = (Arc::default(), Arc::default());
        let mut client = client_config(&provider, &certified, &tickets)?;
        client.enable_secret_extraction = true;
        Ok(Self {
            clients: Arc::new(PeerClients::new(client, &provider, Arc::clone(&tickets))),
            server: ServerTls::new(server),
            quic_client: Arc::new(client_config(&provider, &certified, &quic_tickets)?),
            quic_server: ServerTls::new(quic_server),
            #[cfg(test)]
            tickets,
        })
    }

    /// Takes out what clients have tickets for: nobody is taken early here any more who has had one until
    /// now.
    pub(crate) fn give_sessions_away(&self) -> TlsSessions {
        TlsSessions::take_from([&self.server, &self.quic_server])
    }

    /// Remembers sessions of another endpoint with the same key.
    pub(crate) fn remember(&self, sessions: &TlsSessions) {
        sessions.put_into([&self.server, &self.quic_server]);
    }
}

fn client_config(
    provider: &Arc<CryptoProvider>,
    key: &Arc<CertifiedKey>,
    tickets: &Arc<Tickets>,
) -> Result<ClientConfig, TlsError> {
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ExpectedServer::new(provider)))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key.clone())));
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.enable_sni = false; // the name would tell onlookers whom we dial
    client.enable_early_data = true;
    client.resumption = rustls::client::Resumption::store(tickets.clone());
    Ok(client)
}

fn server_config(provider: &Arc<CryptoProvider>, key: &Arc<CertifiedKey>) -> Result<ServerConfig, TlsError> {
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(Arc::new(AnyPeer::new(provider)))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key.clone())));
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.send_tls13_tickets = TICKETS;
    server.max_tls13_tickets = TICKETS;
    Ok(server)
}

fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::{cipher_suite as suite, kx_group as group};
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
        ],
        // What is recorded today stays secret once there are quantum computers. A ClientHello then needs
        // more than one small packet: see `manager/attempt.rs` for where large ones vanish.
        kx_groups: vec![group::X25519MLKEM768, group::X25519, group::SECP256R1],
        ..aws_lc_rs::default_provider()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::tls::tickets::tests::meet_over_quic;

    #[test]
    fn keys_are_exchanged_in_that_way_over_quic_too() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let client = TlsIdentity::new(&ours).unwrap().quic_client;
        let server = TlsIdentity::new(&theirs).unwrap().quic_server.admitting();
        let met = meet_over_quic(client, Arc::unwrap_or_clone(server), theirs.id());
        let group = met.negotiated_key_exchange_group().unwrap().name();
        assert_eq!(group, rustls::NamedGroup::X25519MLKEM768);
    }
}
