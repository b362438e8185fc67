//! iroh with a relay of its own in the lab, whose certificate is made for it: relayed connections, and address
//! discovery over QUIC, as its public relays have them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use iroh::endpoint::{Builder, Incoming, presets};
use iroh::tls::CaTlsConfig;
use iroh::{Endpoint, EndpointAddr, RelayConfig, RelayMap, RelayMode, RelayUrl};
use iroh_relay::RelayQuicConfig;
use iroh_relay::server::{self, Server};
use rustls::pki_types::CertificateDer;

use super::stage::{Connected, Stage};
use super::talk;
use crate::lab::Homes;
use crate::system::{Channel, Handler, crypto};

const HTTPS: u16 = 443;
const HTTP: u16 = 80;
/// Where the relay answers questions for addresses.
const DISCOVERY: u16 = 7842;
/// After an endpoint has a relay: by then it has asked for its own address.
const SETTLE: Duration = Duration::from_secs(1);

/// Fields are dropped in this order.
pub(super) struct Iroh {
    server: Endpoint,
    place: RelayPlace,
    _relay: Server,
}

/// Where a relay is, and what it is known by.
#[derive(Clone)]
pub(super) struct RelayPlace {
    pub(super) url: RelayUrl,
    certificate: CertificateDer<'static>,
}

impl RelayPlace {
    /// An endpoint that uses this relay alone, and looks nothing up.
    pub(super) fn builder(&self) -> Builder {
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
pub(super) async fn relay(at: IpAddr) -> Result<(RelayPlace, Server)> {
    let (config, certificate) = crypto::server_at(&at.to_string())?;
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

/// Has `handler` serve each stream of each connection.
pub(super) async fn accept(endpoint: Endpoint, handler: Handler) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(serve(incoming, handler.clone()));
    }
}

async fn serve(incoming: Incoming, handler: Handler) -> Result<()> {
    let connection = incoming.accept()?.await?;
    while let Ok((send, receive)) = connection.accept_bi().await {
        tokio::spawn(handler(Channel::new(tokio::io::join(receive, send))));
    }
    Ok(())
}

/// A client's endpoint, which is closed where it ran.
struct Closing {
    endpoint: Endpoint,
    runtime: tokio::runtime::Handle,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let endpoint = self.endpoint.clone();
        self.runtime.spawn(async move { endpoint.close().await });
    }
}

impl Iroh {
    pub(super) fn start(homes: &Homes) -> Result<Self> {
        let node = homes.relays.last().context("there is no host for a relay")?;
        let (place, relay) = node.wait("relay", relay(node.ip()))??;
        let starting = async {
            let endpoint = place.builder().alpns(vec![crypto::ALPN.to_vec()]).bind().await?;
            endpoint.online().await;
            anyhow::Ok(endpoint)
        };
        let server = homes.server.wait("serve", starting)?.context("iroh's server has no relay")?;
        homes.server.runtime.spawn(accept(server.clone(), talk::speaker()));
        std::thread::sleep(SETTLE);
        Ok(Self { server, place, _relay: relay })
    }
}

impl Stage for Iroh {
    fn connect(&self, homes: &Homes) -> Result<Connected> {
        let server = EndpointAddr::new(self.server.id()).with_relay_url(self.place.url.clone());
        let place = self.place.clone();
        let connecting = async {
            let endpoint = place.builder().bind().await?;
            endpoint.online().await;
            tokio::time::sleep(SETTLE).await;
            let began = Instant::now();
            let connection = endpoint.connect(server, crypto::ALPN).await?;
            let since = Instant::now();
            let (send, receive) = connection.open_bi().await?;
            let mut channel = Channel::new(tokio::io::join(receive, send));
            talk::begin(&mut channel).await?;
            anyhow::Ok((endpoint, connection, channel, [began, since]))
        };
        let (endpoint, connection, channel, times) = homes.client.wait("connect", connecting)??;
        let watched = connection.clone();
        let looks = move || {
            let paths = watched.paths();
            paths.iter().any(|path| path.is_ip() && path.is_selected())
        };
        let closing = Closing { endpoint, runtime: homes.client.runtime.handle().clone() };
        Ok(Connected::new(channel, times, looks, (connection, closing)))
    }
}
