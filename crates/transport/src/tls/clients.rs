//! Client configurations by peer. Through a relay the server name is the relay's token, so it does not say
//! whose key is expected: that is in the configuration. Direct dials have the same, without a name, so that a
//! ticket that came on either is good on both.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{
    ClientSessionStore, Resumption, TicketRequest, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, NamedGroup};
use whimbrel_base::EndpointId;

use super::names::server_name;
use super::tickets::Tickets;
use super::verifier::ExactServer;
use super::{FEW_TICKETS, TICKETS, TlsError};

/// Peers whose configurations are kept. One that is made anew costs a full handshake.
const MAX_KEPT: usize = 1024;

/// The configurations for dials over TCP.
pub(crate) struct PeerClients {
    usual: ClientConfig,
    provider: Arc<CryptoProvider>,
    tickets: Arc<Tickets>,
    kept: Mutex<HashMap<EndpointId, OfPeer>>,
}

impl fmt::Debug for PeerClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerClients")
    }
}

impl PeerClients {
    pub(super) fn new(usual: ClientConfig, provider: &Arc<CryptoProvider>, tickets: Arc<Tickets>) -> Self {
        Self { usual, provider: provider.clone(), tickets, kept: Mutex::default() }
    }

    /// For a dial to `peer` itself. Nothing in clear says whom it is for.
    pub(crate) fn direct(&self, peer: EndpointId) -> Result<Arc<ClientConfig>, TlsError> {
        self.config(peer, false)
    }

    /// For a dial to `peer` through a relay, which reads a token.
    pub(crate) fn relayed(&self, peer: EndpointId) -> Result<Arc<ClientConfig>, TlsError> {
        self.config(peer, true)
    }

    /// The same each time, with the verifier of the others for that peer: a ticket is good only with that of
    /// the handshake that it came in. Asks for as many tickets as are worth their making.
    fn config(&self, peer: EndpointId, is_named: bool) -> Result<Arc<ClientConfig>, TlsError> {
        let name = server_name(peer)?;
        let is_stocked = self.tickets.count(&name) >= TICKETS;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_KEPT && !kept.contains_key(&peer) {
            kept.clear();
        }
        let of_peer = kept.entry(peer).or_insert_with(|| OfPeer {
            verifier: Arc::new(ExactServer::new(&self.provider, peer)),
            tickets: Arc::new(TicketsOf { all: self.tickets.clone(), name }),
            configs: Default::default(),
        });
        let OfPeer { verifier, tickets, configs } = of_peer;
        let config = configs[usize::from(is_named) + 2 * usize::from(is_stocked)].get_or_insert_with(|| {
            let mut config = self.usual.clone();
            config.enable_sni = is_named;
            config.dangerous().set_certificate_verifier(verifier.clone());
            config.resumption = Resumption::store(tickets.clone());
            if is_stocked {
                let few = TicketRequest { new_session_count: FEW_TICKETS, resumption_count: FEW_TICKETS };
                config.send_ticket_request = Some(few);
            }
            Arc::new(config)
        });
        Ok(config.clone())
    }
}

/// What dials to one peer have in common.
struct OfPeer {
    verifier: Arc<ExactServer>,
    tickets: Arc<TicketsOf>,
    /// Without and with a server name; and the same, of those who have tickets enough.
    configs: [Option<Arc<ClientConfig>>; 4],
}

/// The tickets of one peer, whatever rustls calls them. Two peers may name one token: the one that lies must
/// not be taken for the other because it passes on a ticket of that one.
struct TicketsOf {
    all: Arc<Tickets>,
    name: ServerName<'static>,
}

impl fmt::Debug for TicketsOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TicketsOf").field(&self.name).finish()
    }
}

impl ClientSessionStore for TicketsOf {
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
    use whimbrel_base::{RelayToken, SecretKey};

    use super::*;
    use crate::tls::{TlsChannel, TlsIdentity};

    const TOKEN: RelayToken = RelayToken::from_bytes([7; 10]);
    const OTHER: RelayToken = RelayToken::from_bytes([8; 10]);

    /// What came of a handshake.
    #[derive(Debug, PartialEq, Eq)]
    enum Met {
        /// There was no ticket.
        InFull,
        /// Early data was taken.
        Resumed,
        /// There was a ticket, and its early data was not taken.
        Refused,
    }

    /// Hands over what waits, behind what is left in `wire`; returns the plaintext that came out.
    fn pump(from: &mut TlsChannel, to: &mut TlsChannel, wire: &mut Vec<u8>) -> Result<Vec<u8>, TlsError> {
        let out = from.outgoing();
        wire.extend_from_slice(out.waiting());
        out.wrote(out.waiting().len());
        let mut plain = Vec::new();
        let used = to.receive(wire, &mut |data| plain.extend_from_slice(data))?;
        wire.drain(..used);
        Ok(plain)
    }

    /// A handshake with `expected`, through a relay if there is a token.
    fn meet(
        client: &TlsIdentity,
        server: &TlsIdentity,
        expected: EndpointId,
        token: Option<RelayToken>,
    ) -> Result<Met, TlsError> {
        let mut client = match token {
            None => TlsChannel::client(client.clients.direct(expected)?, expected)?,
            Some(token) => TlsChannel::relayed_client(client.clients.relayed(expected)?, token)?,
        };
        let has_ticket = client.early_room() > 0;
        if has_ticket {
            client.encrypt_early(b"early")?;
        }
        let mut server = TlsChannel::server(server.server.admitting())?;
        let (mut there, mut back) = (Vec::new(), Vec::new());
        let was_taken = pump(&mut client, &mut server, &mut there)? == b"early";
        pump(&mut server, &mut client, &mut back)?;
        for _ in 0..3 {
            pump(&mut client, &mut server, &mut there)?;
            pump(&mut server, &mut client, &mut back)?;
        }
        assert!(client.is_open() && server.is_open());
        Ok(match (has_ticket, was_taken) {
            (false, _) => Met::InFull,
            (true, true) => Met::Resumed,
            (true, false) => Met::Refused,
        })
    }

    #[test]
    fn a_ticket_is_good_under_each_token_and_on_direct_paths_whichever_it_came_under() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let names = [None, Some(TOKEN), Some(OTHER)];
        for first in names {
            let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&theirs).unwrap());
            assert_eq!(meet(&client, &server, theirs.id(), first).unwrap(), Met::InFull);
            for next in names.into_iter().chain(names) {
                let met = meet(&client, &server, theirs.id(), next).unwrap();
                assert_eq!(met, Met::Resumed, "{first:?}, then {next:?}");
            }
        }
    }

    #[test]
    fn a_server_that_was_started_anew_takes_no_ticket_of_before() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&theirs).unwrap());
        assert_eq!(meet(&client, &server, theirs.id(), Some(TOKEN)).unwrap(), Met::InFull);
        let server = TlsIdentity::new(&theirs).unwrap();
        assert_eq!(meet(&client, &server, theirs.id(), None).unwrap(), Met::Refused);
    }

    /// As another version of rustls may have written it, or another process that passed its sessions on.
    #[test]
    fn a_session_that_cannot_be_read_costs_a_full_handshake_and_no_error() {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&theirs).unwrap());
        assert_eq!(meet(&client, &server, theirs.id(), Some(TOKEN)).unwrap(), Met::InFull);
        let ways: [fn(Vec<u8>) -> Vec<u8>; 4] = [
            |_| Vec::new(),
            |_| vec![1, 255],
            |value| value.into_iter().take(5).collect(),
            |value| [7].into_iter().chain(value.into_iter().skip(1)).collect(),
        ];
        for (number, spoil) in ways.into_iter().enumerate() {
            for (peer, ticket, value) in server.server.take_all() {
                server.server.put(peer, ticket, spoil(value));
            }
            let met = meet(&client, &server, theirs.id(), Some(OTHER)).unwrap();
            assert_eq!(met, Met::Refused, "{number}");
        }
        assert_eq!(meet(&client, &server, theirs.id(), None).unwrap(), Met::Resumed, "by one of the last");
    }

    #[test]
    fn a_peer_that_names_anothers_token_is_not_taken_for_that_one_nor_that_one_for_it() {
        let (ours, honest, liar) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let (client, server) = (TlsIdentity::new(&ours).unwrap(), TlsIdentity::new(&honest).unwrap());
        assert_eq!(meet(&client, &server, honest.id(), Some(TOKEN)).unwrap(), Met::InFull);
        // There is a ticket of the honest one, which the liar's name must not find.
        let wrong = meet(&client, &server, liar.id(), Some(TOKEN));
        assert!(matches!(wrong, Err(TlsError::Rustls(rustls::Error::InvalidCertificate(_)))), "{wrong:?}");
        let met = meet(&client, &server, honest.id(), Some(TOKEN)).unwrap();
        assert_eq!(met, Met::Resumed, "its tickets are still there");
    }
}
