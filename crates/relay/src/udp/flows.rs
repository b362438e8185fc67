//! The relay's table: which servers take packets, where, and which of their clients are where.
//!
//! Generic over how datagrams leave: by numbers in tests, by sockets in the [service](crate::service). A
//! *way* is that and the address at its other end.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;
use whimbrel_base::routing::{self, ROUTED_ID, Routed};

use crate::limits::Limits;
use crate::rates::source;
use crate::spare::Key;
use crate::traffic::Line;
use crate::turns::Turns;
use crate::udp::ids::Ids;
use crate::udp::wire::{self, FIRST_HEADER};

pub use self::forward::{Dropped, Forward, Header};

mod forward;
mod handed_over;

/// A flow without a packet from the client for so long is forgotten. A client of QUIC sends one each 25 s at
/// least.
const IDLE: Duration = Duration::from_secs(90);
/// Before the client has shown that it hears the server: its address may be forged.
const UNPROVEN: Duration = Duration::from_secs(10);
/// A server that was not heard of for so long is elsewhere: it sends each 20 s.
const SERVER_IDLE: Duration = Duration::from_secs(90);
/// How often idle flows are looked for.
const SWEEP: Duration = Duration::from_secs(5);
/// A client that has not shown that it hears the server is sent this many times what it has sent (RFC 9000
/// §8.1), and what is left of the packet that reaches it: a server pads what validates an address (§8.2.1).
const AMPLIFICATION: u64 = 3;

/// Where numbers come from: at random, so that one tells nothing, and is not one of before.
type Numbers = fn() -> u64;

/// Figures of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStats {
    /// Flows now.
    pub flows: u64,
    /// Flows so far.
    pub flowed: u64,
    /// Datagrams that went nowhere.
    pub dropped: u64,
    /// Bytes passed on, in both directions.
    pub bytes: u64,
}

/// A server that holds a reservation.
#[derive(Debug)]
struct Server<O> {
    session: u64,
    key: Key,
    ids: Ids,
    /// The number of the newest `open`.
    newest: Option<u64>,
    at: Option<Place<O>>,
    /// Where it says that it is.
    claimed: Option<Claim<O>>,
    flows: usize,
}

/// A place of a server, before anything was heard from there but that.
#[derive(Debug)]
struct Claim<O> {
    out: O,
    at: SocketAddr,
    number: u64,
    nonce: u64,
}

/// Where a server takes packets.
#[derive(Debug)]
struct Place<O> {
    out: O,
    at: SocketAddr,
    heard: Instant,
}

/// One place of a client.
#[derive(Debug)]
struct Flow<O> {
    token: RelayToken,
    client: SocketAddr,
    out: O,
    /// Stands before packets until the server is known to know the flow.
    first: Box<[u8; FIRST_HEADER]>,
    /// Bytes from the client and to it, until it is proven.
    came: u64,
    went: u64,
    /// The server has sent something.
    is_answered: bool,
    /// What the server wants to be called by, as it has told this client in the newest packet with a long
    /// header.
    told: Option<[u8; ROUTED_ID]>,
    /// The client has sent what only somebody sends that hears the server.
    is_proven: bool,
    heard: Instant,
}

impl<O> Flow<O> {
    /// Whether a packet to that id shows that its sender hears the server. What goes on from elsewhere has
    /// heard of its ids there.
    fn shows(&self, id: &[u8; ROUTED_ID], ids: &Ids) -> bool {
        self.is_answered && self.told.map_or_else(|| ids.made(id), |told| told == *id)
    }

    fn is_over(&self, now: Instant) -> bool {
        let limit = if self.is_proven { IDLE } else { UNPROVEN };
        now.saturating_duration_since(self.heard) >= limit
    }
}

/// All flows of a relay.
#[derive(Debug)]
pub struct Flows<O> {
    limits: Limits,
    servers: HashMap<RelayToken, Server<O>>,
    flows: HashMap<u32, Flow<O>>,
    by_client: HashMap<(RelayToken, SocketAddr), u32>,
    /// Flows as they came, until their clients are proven: where there is no place, the oldest makes room.
    unproven: VecDeque<u32>,
    turns: Turns,
    line: Line,
    numbers: Numbers,
    swept: Option<Instant>,
    draining: bool,
    stats: FlowStats,
}

impl<O: Clone> Flows<O> {
    /// None yet. Flows have the numbers that `numbers` gives, and places of servers prove themselves by them.
    pub fn new(limits: Limits, numbers: fn() -> u64) -> Self {
        Self {
            servers: HashMap::new(),
            flows: HashMap::new(),
            by_client: HashMap::new(),
            unproven: VecDeque::new(),
            turns: Turns::new(&limits),
            line: Line::new(&limits),
            numbers,
            swept: None,
            draining: false,
            stats: FlowStats::default(),
            limits,
        }
    }

    /// Shares the line with what is passed on otherwise.
    pub(crate) fn on_line(self, line: Line) -> Self {
        Self { line, ..self }
    }

    /// What was done, and is there.
    pub fn stats(&self) -> FlowStats {
        FlowStats { flows: self.flows.len() as u64, ..self.stats }
    }

    /// A reservation was given. Where its server took packets before is used until it says where it does now.
    pub fn reserve(&mut self, token: RelayToken, session: u64, key: Key, ids: Ids) {
        let at = self.servers.remove(&token).and_then(|before| before.at);
        let mut flows = 0;
        for (number, flow) in self.flows.iter_mut().filter(|(_, flow)| flow.token == token) {
            *flow.first = wire::first_header(&key, *number, flow.client);
            flows += 1;
        }
        self.servers.insert(token, Server { session, key, ids, newest: None, at, claimed: None, flows });
    }

    /// A reservation has ended, unless another session took its place. Its flows are kept for a while: the
    /// server may come back.
    pub fn release(&mut self, token: RelayToken, session: u64) {
        if self.servers.get(&token).is_some_and(|server| server.session == session) {
            self.servers.remove(&token);
        }
    }

    /// Whether a reservation has this token. If not, an id that looks like it may be a client's own choice.
    pub fn serves(&self, token: RelayToken) -> bool {
        self.servers.contains_key(&token)
    }

    /// From now on there are no further flows.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Ends all flows.
    pub fn clear(&mut self) {
        self.flows.clear();
        self.by_client.clear();
        self.unproven.clear();
        self.servers.values_mut().for_each(|server| server.flows = 0);
    }

    /// A server says where it takes packets: there. That counts once it is [confirmed](Self::confirm), unless
    /// it is where it was before. Returns the answer.
    ///
    /// # Errors
    /// [`Dropped`] if it is not to be answered.
    pub fn open(
        &mut self,
        datagram: &[u8],
        token: RelayToken,
        number: u64,
        out: &O,
        from: SocketAddr,
        now: Instant,
    ) -> Result<Vec<u8>, Dropped> {
        let server = self.servers.get_mut(&token);
        let is_new = |server: &Server<O>| server.newest.is_none_or(|newest| number > newest);
        match server {
            Some(server) if is_new(server) && wire::is_open_of(&server.key, datagram) => {
                server.newest = Some(number);
                if let Some(place) = server.at.as_mut().filter(|place| place.at == from) {
                    place.heard = now;
                    return Ok(wire::opened(&server.key, number, 0));
                }
                // Answers may be slow, so that it is asked again meanwhile: all of them are good.
                let nonce = match &server.claimed {
                    Some(claim) if claim.at == from => claim.nonce,
                    _ => (self.numbers)().max(1),
                };
                server.claimed = Some(Claim { out: out.clone(), at: from, number, nonce });
                Ok(wire::opened(&server.key, number, nonce))
            }
            Some(_) => Err(self.drop(Dropped::Forged)),
            None => Err(self.drop(Dropped::NoServer)),
        }
    }

    /// Something that was sent to where a server says that it is has come back from there: packets go there
    /// from now on. Returns the answer.
    ///
    /// # Errors
    /// [`Dropped`] if it is not to be answered.
    pub fn confirm(
        &mut self,
        token: RelayToken,
        nonce: u64,
        from: SocketAddr,
        now: Instant,
    ) -> Result<Vec<u8>, Dropped> {
        let Some(server) = self.servers.get_mut(&token) else { return Err(self.drop(Dropped::NoServer)) };
        let is_true = |claim: &mut Claim<O>| claim.nonce == nonce && claim.at == from;
        let Some(Claim { out, at, number, .. }) = server.claimed.take_if(is_true) else {
            return Err(self.drop(Dropped::Forged));
        };
        server.at = Some(Place { out, at, heard: now });
        Ok(wire::opened(&server.key, number, 0))
    }

    /// A packet of a client. Where it goes.
    ///
    /// # Errors
    /// [`Dropped`] if it goes nowhere.
    pub fn from_client(
        &mut self,
        routed: Routed,
        size: usize,
        out: &O,
        from: SocketAddr,
        now: Instant,
    ) -> Result<Forward<O>, Dropped> {
        self.sweep(now);
        let Routed { token, id } = routed;
        let number = match self.by_client.get(&(token, from)) {
            Some(number) => *number,
            None => self.begin(token, out, from, now).map_err(|why| self.drop(why))?,
        };
        let server = self.servers.get(&token).and_then(|server| Some((&server.ids, server.at.as_ref()?)));
        let server = server.filter(|(_, place)| now.saturating_duration_since(place.heard) < SERVER_IDLE);
        let (Some((ids, place)), Some(flow)) = (server, self.flows.get_mut(&number)) else {
            return Err(self.drop(Dropped::NoServer));
        };
        // Its client is there, whether or not there is room for what it says.
        flow.heard = now;
        if !self.line.takes(token, source(from.ip()), size, now) {
            return Err(self.drop(Dropped::TooMuch));
        }
        flow.came += size as u64;
        flow.is_proven = flow.is_proven || flow.shows(&id, ids);
        let header = if flow.is_answered {
            Header::Data(wire::data_header(number))
        } else {
            Header::First(*flow.first)
        };
        self.stats.bytes += size as u64;
        Ok(Forward { out: place.out.clone(), to: place.at, header })
    }

    fn begin(
        &mut self,
        token: RelayToken,
        out: &O,
        client: SocketAddr,
        now: Instant,
    ) -> Result<u32, Dropped> {
        if self.draining || !self.turns.of_address(client.ip(), now) {
            return Err(Dropped::TooMany);
        }
        let server = self.servers.get(&token).filter(|server| server.at.is_some());
        let of_server = server.ok_or(Dropped::NoServer)?.flows;
        if !self.turns.of_reservation(token, client.ip(), now)
            || of_server >= self.limits.flows_per_reservation
            || !self.make_room()
        {
            return Err(Dropped::TooMany);
        }
        let server = self.servers.get_mut(&token).ok_or(Dropped::NoServer)?;
        let mut number = (self.numbers)() as u32;
        while self.flows.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        let first = Box::new(wire::first_header(&server.key, number, client));
        let (out, is_answered, told, is_proven) = (out.clone(), false, None, false);
        let (came, went, heard) = (0, 0, now);
        let flow = Flow { token, client, out, first, came, went, is_answered, told, is_proven, heard };
        server.flows += 1;
        self.flows.insert(number, flow);
        self.by_client.insert((token, client), number);
        self.unproven.push_back(number);
        self.stats.flowed += 1;
        Ok(number)
    }

    /// A packet of a server for a client. Where it goes.
    ///
    /// # Errors
    /// [`Dropped`] if it goes nowhere.
    pub fn from_server(
        &mut self,
        number: u32,
        packet: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Result<Forward<O>, Dropped> {
        let result = self.take_from_server(number, packet, from, now);
        result.map_err(|why| self.drop(why))
    }

    fn take_from_server(
        &mut self,
        number: u32,
        packet: &[u8],
        from: SocketAddr,
        now: Instant,
    ) -> Result<Forward<O>, Dropped> {
        let flow = self.flows.get_mut(&number).ok_or(Dropped::NoFlow)?;
        let server = self.servers.get_mut(&flow.token).and_then(|server| server.at.as_mut());
        let server = server.filter(|place| place.at == from).ok_or(Dropped::NoFlow)?;
        server.heard = now;
        flow.is_answered = true;
        if !flow.is_proven && flow.went >= flow.came * AMPLIFICATION {
            return Err(Dropped::Unproven);
        }
        // What goes nowhere takes nothing of the share.
        if !self.line.takes(flow.token, source(flow.client.ip()), packet.len(), now) {
            return Err(Dropped::TooMuch);
        }
        if !flow.is_proven {
            flow.went += packet.len() as u64;
            flow.told = routing::source_id(packet).or(flow.told);
        }
        self.stats.bytes += packet.len() as u64;
        Ok(Forward { out: flow.out.clone(), to: flow.client, header: Header::None })
    }

    /// The server has forgotten where the client of a flow is: it is told again.
    pub fn unknown(&mut self, number: u32, from: SocketAddr) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let place = self.servers.get(&flow.token).and_then(|server| server.at.as_ref());
        if place.is_some_and(|place| place.at == from) {
            flow.is_answered = false;
        }
    }

    /// Whether there is a place for another flow. If there is none, the oldest makes room whose client has
    /// not shown that it hears the server: as long as they can be forged, flows must not keep others out.
    fn make_room(&mut self) -> bool {
        while self.flows.len() >= self.limits.flows {
            let Some(oldest) = self.unproven.pop_front() else { return false };
            if self.flows.get(&oldest).is_some_and(|flow| !flow.is_proven)
                && let Some(flow) = self.flows.remove(&oldest)
            {
                self.unlink(&flow);
            }
        }
        true
    }

    /// A flow was taken out.
    fn unlink(&mut self, flow: &Flow<O>) {
        self.by_client.remove(&(flow.token, flow.client));
        if let Some(server) = self.servers.get_mut(&flow.token) {
            server.flows = server.flows.saturating_sub(1);
        }
    }

    /// Forgets what is idle, now and then.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|at| now.saturating_duration_since(at) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        let over: Vec<_> = self.flows.extract_if(|_, flow| flow.is_over(now)).collect();
        over.iter().for_each(|(_, flow)| self.unlink(flow));
        let flows = &self.flows;
        self.unproven.retain(|number| flows.get(number).is_some_and(|flow| !flow.is_proven));
    }

    fn drop(&mut self, why: Dropped) -> Dropped {
        self.stats.dropped += 1;
        why
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
