//! iroh's own relay, whose certificate is made for it: relayed connections, and address discovery over QUIC,
//! as its public relays have them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Result;
use iroh::endpoint::{Builder, Incoming, presets};
use iroh::tls::CaTlsConfig;
use iroh::{Endpoint, RelayConfig, RelayMap, RelayMode, RelayUrl};
use iroh_relay::RelayQuicConfig;
use iroh_relay::server::{self, Server};
use rustls::pki_types::CertificateDer;

use super::{Channel, Handler, crypto};

const HTTPS: u16 = 443;
const HTTP: u16 = 80;
/// Where the relay answers questions for addresses.
const DISCOVERY: u16 = 7842;

/// Where a relay is, and what it is known by.
#[derive(Clone)]
pub(crate) struct RelayPlace {
    pub(crate) url: RelayUrl,
    certificate: CertificateDer<'static>,
}

impl RelayPlace {
    /// An endpoint that uses this relay alone, and looks nothing up.
    pub(crate) fn builder(&self) -> Builder {
        let quic = Some(RelayQuicConfig::new(DISCOVERY));
        let map = RelayMap::from(RelayConfig::new(self.url.clone(), quic));
        Endpoint::builder(presets::Empty)
            .crypto_provider(crypto::provider())
            .relay_mode(RelayMode::Custom(map))
            .clear_address_lookup()
            .ca_tls_config(CaTlsConfig::custom_roots([self.certificate.clone()]))
    }
}

/// Starts a relay that is reached at that address.
pub(crate) async fn relay(at: IpAddr) -> Result<(RelayPlace, Server)> {
    let (config, certificate) = crypto::server_at(vec![at.to_string()])?;
    let any = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let mut relay = server::RelayConfig::new(any(HTTP));
    let cert = server::CertConfig::Manual { server_config: config };
    relay.tls = Some(server::TlsConfig::new(any(HTTPS), cert));
    let mut whole = server::ServerConfig::default();
    whole.relay = Some(relay);
    whole.quic = Some(server::QuicConfig::new(any(DISCOVERY)));
    let server = Server::spawn(whole).await?;
    let url: RelayUrl = format!("https://{at}").parse()?;
    Ok((RelayPlace { url, certificate }, server))
}

/// Has `handler` serve each stream of each connection, from its early data on. An endpoint knows of a
/// connection whose handshake nobody waits for only that it is there: it stays at the relay.
pub(crate) async fn accept_early(endpoint: Endpoint, handler: Handler) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(serve_early(incoming, handler.clone()));
    }
}

async fn serve_early(incoming: Incoming, handler: Handler) -> Result<()> {
    let connection = incoming.accept()?.into_0rtt();
    while let Ok((send, receive)) = connection.accept_bi().await {
        tokio::spawn(handler(Channel::new(tokio::io::join(receive, send)).of(connection.clone())));
    }
    Ok(())
}

/// Has `handler` serve each stream of each connection, once its handshake is complete. From then on the
/// endpoint tells the client its addresses, and holes are punched.
pub(crate) async fn accept(endpoint: Endpoint, handler: Handler) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(serve(incoming, handler.clone()));
    }
}

async fn serve(incoming: Incoming, handler: Handler) -> Result<()> {
    let connection = incoming.accept()?.await?;
    while let Ok((send, receive)) = connection.accept_bi().await {
        tokio::spawn(handler(Channel::new(tokio::io::join(receive, send)).of(connection.clone())));
    }
    Ok(())
}
