//! A server's TLS sessions, for another endpoint with the same key: its clients' tickets stay good.

use std::fmt;

use whimbrel_base::EndpointId;

use super::sessions::ServerTls;

/// Of TCP and QUIC. Sessions of 1 were QUIC's of versions that let clients clear the fixed bit (RFC 9287):
/// early data with those would end the connection, as QUIC no longer offers that.
const CARRIERS: [u8; 2] = [0, 2];

/// What the clients of an endpoint have tickets for: one list for each kind of carrier. The bytes are secret,
/// and of use to nobody without the endpoint's key.
///
/// Each session is good for one handshake (RFC 8446 §8.1), so an endpoint that gives them away forgets them:
/// a first flight is taken early by one of the two at most.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsSessions(Vec<u8>);

impl fmt::Debug for TlsSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsSessions({} bytes)", self.0.len())
    }
}

impl TlsSessions {
    /// The bytes, to be handed to another process of this host.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Takes bytes that another process handed over. What can't be read of them is left out: those clients
    /// shake hands in full.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(super) fn take_from(carriers: [&ServerTls; 2]) -> Self {
        let mut out = Vec::new();
        for (number, carrier) in CARRIERS.into_iter().zip(carriers) {
            for (peer, ticket, value) in carrier.take_all() {
                out.push(number);
                out.extend_from_slice(peer.as_bytes());
                for field in [ticket, value] {
                    out.extend_from_slice(&(field.len() as u32).to_be_bytes());
                    out.extend_from_slice(&field);
                }
            }
        }
        Self(out)
    }

    pub(super) fn put_into(&self, carriers: [&ServerTls; 2]) {
        let mut rest = &self.0[..];
        while let Some((number, peer, ticket, value)) = next(&mut rest) {
            if let Some(at) = CARRIERS.iter().position(|carrier| *carrier == number) {
                carriers[at].put(peer, ticket, value);
            }
        }
    }
}

/// The first session of what another process handed over: kind of carrier, peer, ticket, and what that stands
/// for.
pub(super) fn next(rest: &mut &[u8]) -> Option<(u8, EndpointId, Vec<u8>, Vec<u8>)> {
    let (&number, after) = rest.split_first()?;
    let (peer, after) = after.split_first_chunk::<32>()?;
    *rest = after;
    Some((number, EndpointId::from_bytes(peer), field(rest)?, field(rest)?))
}

fn field(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (field, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(field.to_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use rustls::quic;
    use whimbrel_base::SecretKey;

    use super::*;
    use crate::tls::names::server_name;
    use crate::tls::tickets::tests::{meet, meet_over_quic};
    use crate::tls::{TlsChannel, TlsIdentity};

    fn identity(key: &SecretKey) -> TlsIdentity {
        TlsIdentity::new(key).unwrap()
    }

    /// A first flight with early data, as it goes over the wire.
    fn flight(client: &TlsIdentity, server: EndpointId) -> Vec<u8> {
        let mut client = TlsChannel::client(client.clients.direct(server).unwrap(), server).unwrap();
        client.encrypt_early(b"early").unwrap();
        client.outgoing().waiting().to_vec()
    }

    /// Whether a server takes the early data of that.
    fn is_taken(server: &TlsIdentity, flight: &[u8]) -> bool {
        let mut server = TlsChannel::server(server.server.admitting()).unwrap();
        let mut plain = Vec::new();
        let _ = server.receive(&mut flight.to_vec(), &mut |data| plain.extend_from_slice(data));
        plain == b"early"
    }

    /// What a client that has early data to send says first over QUIC.
    fn hello(client: &TlsIdentity, server: EndpointId) -> Vec<u8> {
        let (config, name) = (client.quic_client.clone(), server_name(server).unwrap());
        let mut client = quic::ClientConnection::new(config, quic::Version::V1, name, vec![7; 100]).unwrap();
        let mut hello = Vec::new();
        let _ = client.write_hs(&mut hello);
        assert!(client.zero_rtt_keys().is_some(), "it has no ticket");
        hello
    }

    /// Whether a server would take early data behind that.
    fn is_taken_over_quic(server: &TlsIdentity, hello: &[u8]) -> bool {
        let config = server.quic_server.admitting();
        let mut server = quic::ServerConnection::new(config, quic::Version::V1, vec![7; 100]).unwrap();
        server.read_hs(hello).unwrap();
        server.zero_rtt_keys().is_some()
    }

    /// First flights of a client that has its tickets from `before`: what each endpoint takes of them, once
    /// it is passed on, and who plays them once more gets nothing of it either.
    fn each_is_taken_once(
        key: &SecretKey,
        before: &TlsIdentity,
        flights: [Vec<u8>; 3],
        is_taken: fn(&TlsIdentity, &[u8]) -> bool,
    ) {
        let after = identity(key);
        let [first, second, third] = flights;
        assert!(is_taken(before, &first));
        let sessions = before.give_sessions_away();
        // A handshake that is under way at the endpoint that leaves.
        assert!(!is_taken(before, &second));
        after.remember(&sessions);
        assert!(!is_taken(&after, &first), "the endpoint before has taken it");
        for flight in [&second, &third] {
            assert!(is_taken(&after, flight));
            assert!(!is_taken(&after, flight) && !is_taken(before, flight));
        }
    }

    #[test]
    fn a_first_flight_is_taken_early_once_by_the_endpoint_before_or_by_the_one_after() {
        let key = SecretKey::generate();
        let (before, client) = (identity(&key), identity(&SecretKey::generate()));
        meet(&client, Arc::unwrap_or_clone(before.server.admitting()), key.id());
        let flights = [(); 3].map(|()| flight(&client, key.id()));
        each_is_taken_once(&key, &before, flights, is_taken);
        let server = Arc::unwrap_or_clone(before.quic_server.admitting());
        meet_over_quic(client.quic_client.clone(), server, key.id());
        let hellos = [(); 3].map(|()| hello(&client, key.id()));
        each_is_taken_once(&key, &before, hellos, is_taken_over_quic);
    }

    #[test]
    fn sessions_are_passed_on_by_carrier_and_whatever_comes_is_read_or_left_out() {
        let key = SecretKey::generate();
        let (from, to) = (TlsIdentity::new(&key).unwrap(), TlsIdentity::new(&key).unwrap());
        let peers = [SecretKey::generate().id(), SecretKey::generate().id()];
        for n in 0..3u8 {
            let peer = peers[usize::from(n % 2)];
            from.server.put(peer, vec![n; 32], vec![7; 300]);
            from.quic_server.put(peer, vec![8, n], vec![9]);
        }
        let sessions = from.give_sessions_away();
        assert_eq!(from.give_sessions_away(), TlsSessions::from_bytes([]), "they are at one of the two");
        to.remember(&TlsSessions::from_bytes(sessions.as_bytes()));
        assert_eq!(to.give_sessions_away(), sessions);
        to.remember(&sessions);
        assert_eq!((to.server.take_all().len(), to.quic_server.take_all().len()), (3, 3));
        // One of QUIC's, as older versions wrote it.
        let mut old = vec![1; 33];
        old.extend([0, 0, 0, 1, 8, 0, 0, 0, 1, 9]);
        let fresh = TlsIdentity::new(&key).unwrap();
        fresh.remember(&TlsSessions::from_bytes(old));
        assert_eq!((fresh.server.take_all().len(), fresh.quic_server.take_all().len()), (0, 0));
        for length in 0..sessions.as_bytes().len() {
            TlsIdentity::new(&key)
                .unwrap()
                .remember(&TlsSessions::from_bytes(&sessions.as_bytes()[..length]));
        }
    }
}
