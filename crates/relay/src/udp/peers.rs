//! A server's table: which flow at its relay is which client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Clients that are known at once; further ones are turned away until others were idle for long.
const MAX_PEERS: usize = 8192;
/// QUIC's own keepalive comes each 25 s (`docs/protocol.md` §2a).
const IDLE: Duration = Duration::from_secs(120);
/// Before a second packet that came after an answer: the address may be forged.
const FLEETING: Duration = Duration::from_secs(10);
/// To look for idle ones takes time.
const SWEEP: Duration = Duration::from_secs(1);

/// The clients of one reservation.
#[derive(Debug, Default)]
pub struct Peers {
    by_flow: HashMap<u32, Peer>,
    /// The newest flow of each client.
    by_address: HashMap<SocketAddr, u32>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Peer {
    at: SocketAddr,
    heard: Instant,
    /// The relay takes it for known, and so has sent something after an answer.
    is_known: bool,
}

impl Peer {
    fn is_over(&self, now: Instant) -> bool {
        let limit = if self.is_known { IDLE } else { FLEETING };
        now.saturating_duration_since(self.heard) >= limit
    }
}

impl Peers {
    /// A packet came from there, in this flow. False if there is no place for another client.
    pub fn meet(&mut self, flow: u32, at: SocketAddr, now: Instant) -> bool {
        if self.by_flow.len() >= MAX_PEERS && !self.by_flow.contains_key(&flow) {
            self.forget_idle(now);
            if self.by_flow.len() >= MAX_PEERS {
                return false;
            }
        }
        let is_known = self.by_flow.get(&flow).is_some_and(|peer| peer.at == at && peer.is_known);
        if let Some(before) =
            self.by_flow.insert(flow, Peer { at, heard: now, is_known }).filter(|before| before.at != at)
            && self.by_address.get(&before.at) == Some(&flow)
        {
            self.by_address.remove(&before.at);
        }
        self.by_address.insert(at, flow);
        true
    }

    /// Where the client of a flow is, from which a packet came. `None` if that is not known.
    pub fn heard(&mut self, flow: u32, now: Instant) -> Option<SocketAddr> {
        let peer = self.by_flow.get_mut(&flow)?;
        (peer.heard, peer.is_known) = (now, true);
        Some(peer.at)
    }

    /// The flow by which a client is reached.
    pub fn flow(&self, at: SocketAddr) -> Option<u32> {
        self.by_address.get(&at).copied()
    }

    fn forget_idle(&mut self, now: Instant) {
        if self.swept.is_some_and(|at| now.saturating_duration_since(at) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        self.by_flow.retain(|_, peer| !peer.is_over(now));
        let known = &self.by_flow;
        self.by_address.retain(|_, flow| known.contains_key(flow));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([198, 51, 100, 7], port))
    }

    #[test]
    fn a_client_is_reached_by_its_newest_flow() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        assert_eq!((peers.heard(1, now), peers.flow(at(1))), (None, None));
        assert!(peers.meet(1, at(1), now) && peers.meet(2, at(2), now));
        assert_eq!((peers.heard(1, now), peers.flow(at(1))), (Some(at(1)), Some(1)));
        assert!(peers.meet(3, at(1), now));
        assert_eq!((peers.flow(at(1)), peers.heard(1, now)), (Some(3), Some(at(1))));
        // A relay that was started again counts from elsewhere.
        assert!(peers.meet(2, at(9), now));
        assert_eq!((peers.flow(at(2)), peers.flow(at(9))), (None, Some(2)));
    }

    #[test]
    fn there_are_never_too_many_clients_and_idle_ones_make_room() {
        let (mut peers, now) = (Peers::default(), Instant::now());
        let met = (0..10_000).filter(|n| peers.meet(*n, at(*n as u16), now)).count();
        assert_eq!((met, peers.by_flow.len(), peers.by_address.len()), (MAX_PEERS, MAX_PEERS, MAX_PEERS));
        assert!(peers.meet(5, at(5), now), "it is known");
        assert!(peers.heard(7, now).is_some());
        let soon = now + FLEETING;
        assert!(peers.meet(20_000, at(20_000), soon), "the others never went on");
        assert_eq!((peers.by_flow.len(), peers.by_address.len()), (2, 2));
        assert_eq!(peers.flow(at(7)), Some(7));
    }
}
