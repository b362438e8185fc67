//! The relay's part for QUIC: sees each datagram first, and forwards those that are for others.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use whimbrel_base::routing::{self, Routed};
use whimbrel_base::{RelayToken, random_bytes};
use whimbrel_transport::{DatagramFront, Outlet};

use super::lock;
use crate::alias::Aliases;
use crate::estate::{Counters, Head, Out};
use crate::limits::Limits;
use crate::reservations::RelayStats;
use crate::spare::Key;
use crate::traffic::Line;
use crate::udp::flows::{Dropped, Flows, Forward, Header};
use crate::udp::ids::Ids;
use crate::udp::wire::{self, FromServer};

/// A datagram with what stands before it: as much as a link of 9000 bytes takes.
const ROOM: usize = 9216;

/// What fits with the longest header wherever IPv6 does.
const SMALL: usize = 1200;

/// Forwards datagrams between clients and servers.
pub(super) struct Ferry {
    flows: Mutex<Flows<Outlet>>,
    /// Tokens for single clients.
    aliases: Arc<Aliases>,
}

impl Ferry {
    pub(super) fn new(limits: Limits, line: Line, aliases: Arc<Aliases>) -> Self {
        let flows = Flows::new(limits, || u64::from_be_bytes(random_bytes()));
        Self { flows: Mutex::new(flows.on_line(line)), aliases }
    }

    pub(super) fn flows(&self) -> MutexGuard<'_, Flows<Outlet>> {
        lock(&self.flows)
    }

    /// What a packet's id says, with the token of the reservation that it leads to.
    fn routed(&self, datagram: &[u8]) -> Option<Routed> {
        let routed = routing::routed(datagram)?;
        Some(Routed { token: self.aliases.resolve(routed.token), ..routed })
    }

    /// A reservation was given.
    pub(super) fn reserve(&self, token: RelayToken, session: u64, key: Key, ids: Ids) {
        self.flows().reserve(token, session, key, ids);
    }

    /// The session has ended.
    pub(super) fn release(&self, token: RelayToken, session: u64) {
        self.flows().release(token, session);
    }

    /// From now on there are no further clients.
    pub(super) fn drain(&self) {
        self.flows().drain();
    }

    /// Forwards nothing any more, until servers open their flows again.
    pub(super) fn clear(&self) {
        self.flows().clear();
    }

    /// What the ferry of another relay goes on with.
    pub(super) fn hand_over(&self, now: Instant, counters: &mut Counters) -> Vec<Head> {
        let place = |outlet: &Outlet| {
            let (bound, source) = outlet.place();
            Out { bound, source }
        };
        self.flows().hand_over(now, place, counters)
    }

    /// The figures with those of QUIC.
    pub(super) fn stats(&self, of_tcp: RelayStats) -> RelayStats {
        let flows = self.flows().stats();
        RelayStats {
            bytes: of_tcp.bytes + flows.bytes,
            flows: flows.flows,
            flowed: flows.flowed,
            dropped: flows.dropped,
            ..of_tcp
        }
    }
}

impl DatagramFront for Ferry {
    fn take(&self, datagram: &[u8], from: SocketAddr, outlet: &Outlet) -> bool {
        let of_server = wire::read_from_server(datagram);
        // Before anything is locked: all datagrams wait for that.
        let routed = if of_server.is_none() { self.routed(datagram) } else { None };
        let (now, mut flows) = (Instant::now(), self.flows());
        match of_server {
            Some(FromServer::Data { flow, packet }) => {
                let forward = flows.from_server(flow, packet, from, now);
                drop(flows);
                pass_on(forward, packet, from);
            }
            Some(FromServer::Unknown { flow }) => flows.unknown(flow, from),
            Some(FromServer::Open { token, number }) => {
                let answer = flows.open(datagram, token, number, outlet, from, now);
                drop(flows);
                reply(answer, from, outlet);
            }
            Some(FromServer::Confirm { token, nonce }) => {
                let answer = flows.confirm(token, nonce, from, now);
                drop(flows);
                reply(answer, from, outlet);
            }
            None => {
                let routed = routed.filter(|routed| flows.serves(routed.token));
                let Some(routed) = routed else { return false };
                let forward = flows.from_client(routed, datagram.len(), outlet, from, now);
                drop(flows);
                pass_on(forward, datagram, from);
            }
        }
        true
    }
}

/// Answers a server.
fn reply(answer: Result<Vec<u8>, Dropped>, to: SocketAddr, outlet: &Outlet) {
    match answer {
        Ok(answer) => outlet.send(&answer, to),
        Err(why) => tracing::debug!(%to, %why, "no packets are sent there"),
    }
}

/// Sends a packet on, if it goes anywhere.
fn pass_on(forward: Result<Forward<Outlet>, Dropped>, packet: &[u8], from: SocketAddr) {
    let Forward { out, to, header } = match forward {
        Ok(forward) => forward,
        Err(why) => return tracing::trace!(%from, %why, "a datagram goes nowhere"),
    };
    match header {
        Header::None => out.send(packet, to),
        Header::Data(header) => send(&out, &header, packet, to),
        Header::First(header) if packet.len() <= SMALL => send(&out, &header, packet, to),
        // Together they might not fit where the packet alone does.
        Header::First(header) => {
            out.send(&header, to);
            send(&out, &wire::data_header_of(&header), packet, to);
        }
    }
}

fn send(out: &Outlet, header: &[u8], packet: &[u8], to: SocketAddr) {
    let mut room = [0; ROOM];
    // No packet of QUIC is larger, and what is lost is sent again.
    if let Some(whole) = room.get_mut(..header.len() + packet.len()) {
        whole[..header.len()].copy_from_slice(header);
        whole[header.len()..].copy_from_slice(packet);
        out.send(whole, to);
    }
}
