//! TLS through relays: the server name is the relay's token, so it does not say whose key is expected. That is
//! in a configuration of its own for each peer and token.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup};
use whimbrel_base::{EndpointId, RelayToken};

use super::TlsError;
use super::tickets::Tickets;
use super::verifier::ExactServer;

/// Configurations kept. A peer whose configuration is made anew costs a full handshake.
const MAX_KEPT: usize = 1024;

/// Client configurations for dials through relays.
pub(crate) struct RelayedClients {
    usual: ClientConfig,
    provider: Arc<CryptoProvider>,
    tickets: Arc<Tickets>,
    kept: Mutex<HashMap<(EndpointId, RelayToken), Arc<ClientConfig>>>,
}

impl fmt::Debug for RelayedClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayedClients")
    }
}

impl RelayedClients {
    pub(super) fn new(usual: ClientConfig, provider: &Arc<CryptoProvider>, tickets: Arc<Tickets>) -> Self {
        Self { usual, provider: provider.clone(), tickets, kept: Mutex::default() }
    }

    /// For a dial to `peer` by its token. The same each time: a ticket is good only for the configuration that
    /// it came to.
    pub(crate) fn config(&self, peer: EndpointId, token: RelayToken) -> Result<Arc<ClientConfig>, TlsError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = kept.get(&(peer, token)) {
            return Ok(config.clone());
        }
        let mut config = self.usual.clone();
        config.enable_sni = true; // what the relay reads
        config.dangerous().set_certificate_verifier(Arc::new(ExactServer::new(&self.provider, peer)));
        let of_peer = OfPeer { all: self.tickets.clone(), name: ticket_name(peer, token)? };
        config.resumption = Resumption::store(Arc::new(of_peer));
        let config = Arc::new(config);
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert((peer, token), config.clone());
        Ok(config)
    }
}

/// The TLS name that a relay reads.
pub(super) fn token_name(token: RelayToken) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(token.to_string()).map_err(|_| TlsError::Internal("a token that is no host name"))
}

/// Under what the tickets of a peer behind a token are kept. Two peers may name one token; the one that lies
/// must not be taken for the other because it passes on a ticket of that one.
fn ticket_name(peer: EndpointId, token: RelayToken) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(format!("{token}.{peer}")).map_err(|_| TlsError::NoIdentity)
}

/// The tickets of one peer behind one token, whatever rustls calls them.
struct OfPeer {
    all: Arc<Tickets>,
    name: ServerName<'static>,
}

impl fmt::Debug for OfPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OfPeer").field(&self.name).finish()
    }
}

impl ClientSessionStore for OfPeer {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.all.insert_tls13_ticket(self.name.clone(), value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.all.take_tls13_ticket(&self.name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;
    use crate::tls::{TlsChannel, TlsIdentity};

    const TOKEN: RelayToken = RelayToken::from_bytes([7; 10]);

    fn pump(from: &mut TlsChannel, to: &mut TlsChannel) -> Result<(), TlsError> {
        let out = from.outgoing();
        let mut wire = out.waiting().to_vec();
        out.wrote(wire.len());
        to.receive(&mut wire, &mut |_| {}).map(|_| ())
    }

    /// A handshake through a relay that names `token`; tells whether early data had room, by a ticket.
    fn meet(client: &TlsIdentity, server: &TlsIdentity, expected: EndpointId) -> Result<bool, TlsError> {
        let config = client.relayed.config(expected, TOKEN)?;
        let mut client = TlsChannel::relayed_client(config, TOKEN)?;
        let has_ticket = client.early_room() > 0;
        let mut server = TlsChannel::server(server.server.admitting())?;
        for _ in 0..3 {
            pump(&mut client, &mut server)?;
            pump(&mut server, &mut client)?;
        }
        assert!(client.is_open() && server.is_open());
        Ok(has_ticket)
    }

    #[test]
    fn a_peer_behind_a_relay_is_known_by_its_key_and_resumes_under_its_token() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&theirs).unwrap());
        assert!(!meet(&client, &server, theirs.id()).unwrap());
        assert!(meet(&client, &server, theirs.id()).unwrap());
    }

    #[test]
    fn a_peer_that_names_anothers_token_is_not_taken_for_that_one_nor_that_one_for_it() {
        let (ours, honest, liar) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&honest).unwrap());
        assert!(!meet(&client, &server, honest.id()).unwrap());
        // There is a ticket for the token, which the liar's name must not find.
        let wrong = meet(&client, &server, liar.id());
        assert!(matches!(wrong, Err(TlsError::Rustls(rustls::Error::InvalidCertificate(_)))), "{wrong:?}");
        assert!(meet(&client, &server, honest.id()).unwrap(), "its tickets are still there");
    }
}
