//! The relay's rules, without sockets: who has which token, which spares wait for clients, which clients wait
//! for spares, and how many there may be of each.
//!
//! Generic over what a spare and a client are: here they are numbers in tests, and sockets in the
//! [service](crate::service).

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_base::{EndpointId, RelayToken};

use crate::limits::Limits;
use crate::spare::{Key, Offer, Used};
use crate::turns::Turns;

pub use self::stats::RelayStats;

pub(crate) mod handed_over;
mod room;
mod stats;

/// Why a client or a spare is turned away, or there is no reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No reservation has the token.
    #[error("no reservation has this token")]
    UnknownToken,
    /// The spare's proof is wrong, or was used.
    #[error("the proof is wrong, or was used before")]
    Forged,
    /// There are enough spares.
    #[error("there are enough spares")]
    EnoughSpares,
    /// Too many come, or are there.
    #[error("too many connections")]
    TooMany,
    /// There is no place for another reservation.
    #[error("this relay has no place for another reservation; use another relay")]
    Full,
    /// The relay is about to stop.
    #[error("this relay is about to stop")]
    Draining,
    /// No spare came in time.
    #[error("no spare came in time")]
    Late,
}

/// Which reservation of an owner: a later one for the same token replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    token: RelayToken,
    /// Counts reservations.
    generation: u64,
}

/// A client and a spare that belong together, to be spliced.
#[derive(Debug, PartialEq, Eq)]
pub struct Match<S, C> {
    /// The spare.
    pub spare: S,
    /// The client.
    pub client: C,
    /// What to forget when it is over.
    pub splice: Splice,
    /// A splice that makes room for this one: it is to be ended.
    pub displaced: Option<Splice>,
}

/// A spliced connection, as the table knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Splice {
    token: RelayToken,
    /// Of the spare.
    pub number: u64,
    origin: u32,
    generation: u64,
}

impl Splice {
    /// Whose reservation it is of.
    pub fn token(&self) -> RelayToken {
        self.token
    }
}

/// What comes of a client.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived<S, C> {
    /// There is a spare.
    Matched(Match<S, C>),
    /// It waits, under this number. The server is to be asked for spares.
    Waits(u64),
}

#[derive(Debug)]
struct Waiting<S> {
    spare: S,
    offer: Offer,
}

#[derive(Debug)]
struct Reservation<S, C> {
    owner: EndpointId,
    generation: u64,
    key: Key,
    used: Used,
    spares: VecDeque<Waiting<S>>,
    clients: VecDeque<(u64, C)>,
}

/// All reservations of a relay.
#[derive(Debug)]
pub struct Reservations<S, C> {
    limits: Limits,
    by_token: HashMap<RelayToken, Reservation<S, C>>,
    turns: Turns,
    generations: u64,
    clients: u64,
    /// Clients that wait.
    waiting: usize,
    /// By token: they outlive their reservations, unless it is said otherwise.
    splices: HashMap<RelayToken, HashSet<Splice>>,
    spliced: usize,
    draining: bool,
    stats: RelayStats,
}

impl<S, C> Reservations<S, C> {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            by_token: HashMap::new(),
            turns: Turns::new(&limits),
            generations: 0,
            clients: 0,
            waiting: 0,
            splices: HashMap::new(),
            spliced: 0,
            draining: false,
            stats: RelayStats::default(),
            limits,
        }
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What was done, and is there.
    pub fn stats(&self) -> RelayStats {
        let of =
            |count: fn(&Reservation<S, C>) -> usize| self.by_token.values().map(count).sum::<usize>() as u64;
        RelayStats {
            reservations: self.by_token.len() as u64,
            spares: of(|reservation| reservation.spares.len()),
            waiting: self.waiting as u64,
            splices: self.spliced as u64,
            ..self.stats
        }
    }

    /// Gives `owner` a reservation for its token, in place of the one that it may have had for it: what is
    /// spliced goes on.
    ///
    /// # Errors
    /// [`Refusal`] when there is no place, or the relay drains.
    pub fn reserve(&mut self, owner: EndpointId, token: RelayToken, key: Key) -> Result<Holding, Refusal> {
        let result = match self.by_token.get(&token) {
            _ if self.draining => Err(Refusal::Draining),
            // The token is made from the owner's id: that of another one would be a collision of 80 bits.
            Some(taken) if taken.owner != owner => Err(Refusal::Full),
            None if self.by_token.len() >= self.limits.reservations => Err(Refusal::Full),
            _ => Ok(()),
        };
        result.inspect_err(|_| self.stats.reservations_refused += 1)?;
        self.generations += 1;
        let generation = self.generations;
        let old = self.by_token.remove(&token);
        let clients = old.map(|old| old.clients).unwrap_or_default();
        let (used, spares) = (Used::default(), VecDeque::new());
        self.by_token.insert(token, Reservation { owner, generation, key, used, spares, clients });
        Ok(Holding { token, generation })
    }

    /// Notes a reservation that was refused elsewhere.
    pub fn refused(&mut self) {
        self.stats.reservations_refused += 1;
    }

    /// Ends a reservation, unless another one took its place. What is spliced goes on: its sockets tell when
    /// its server is gone.
    pub fn release(&mut self, holding: Holding) {
        if self.by_token.get(&holding.token).is_some_and(|found| found.generation == holding.generation) {
            let ended = self.by_token.remove(&holding.token);
            self.waiting -= ended.map_or(0, |ended| ended.clients.len());
        }
    }

    /// The server has left an address: spares from there go, and the splices are returned that are dead, and
    /// are to be [ended](Self::ended).
    pub fn left(&mut self, holding: Holding, origin: u32) -> Vec<Splice> {
        let Some(reservation) = self.by_token.get_mut(&holding.token) else { return Vec::new() };
        if reservation.generation != holding.generation {
            return Vec::new();
        }
        reservation.spares.retain(|waiting| waiting.offer.origin != origin);
        let Some(splices) = self.splices.get(&holding.token) else { return Vec::new() };
        splices.iter().filter(|splice| splice.origin == origin).copied().collect()
    }

    /// Takes a spare, whose first words are `bytes`. If a client waits, both are returned. `is_open` tells
    /// whether a client is still there, `is_waiting` whether an earlier spare is: those that have ended take
    /// no place.
    ///
    /// # Errors
    /// [`Refusal`] with the spare, which is to be closed.
    pub fn offer(
        &mut self,
        bytes: &[u8],
        spare: S,
        is_open: impl Fn(&C) -> bool,
        is_waiting: impl Fn(&S) -> bool,
    ) -> Result<Option<Match<S, C>>, Refusal> {
        let result = self.take_offer(bytes, spare, is_open, is_waiting);
        result.inspect_err(|_| self.stats.spares_refused += 1)
    }

    fn take_offer(
        &mut self,
        bytes: &[u8],
        spare: S,
        is_open: impl Fn(&C) -> bool,
        is_waiting: impl Fn(&S) -> bool,
    ) -> Result<Option<Match<S, C>>, Refusal> {
        let offer = Offer::decode(bytes).ok_or(Refusal::Forged)?;
        let reservation = self.by_token.get_mut(&offer.token).ok_or(Refusal::UnknownToken)?;
        if !offer.is_of(&reservation.key, bytes) || !reservation.used.note(offer.number) {
            return Err(Refusal::Forged);
        }
        while let Some((_, client)) = reservation.clients.pop_front() {
            self.waiting -= 1;
            if is_open(&client) {
                return Ok(Some(self.matched(Waiting { spare, offer }, client)));
            }
        }
        reservation.spares.retain(|waiting| is_waiting(&waiting.spare));
        if reservation.spares.len() >= self.limits.spares {
            return Err(Refusal::EnoughSpares);
        }
        reservation.spares.push_back(Waiting { spare, offer });
        Ok(None)
    }

    fn matched(&mut self, waiting: Waiting<S>, client: C) -> Match<S, C> {
        let Offer { token, origin, number } = waiting.offer;
        let displaced = self.displace();
        let generation = self.by_token.get(&token).map_or(0, |reservation| reservation.generation);
        let splice = Splice { token, number, origin, generation };
        if self.splices.entry(token).or_default().insert(splice) {
            self.spliced += 1;
            self.stats.spliced += 1;
        }
        Match { spare: waiting.spare, client, splice, displaced }
    }

    /// The key of a splice's reservation, to say on the spare that a client is there. `None` if either has
    /// ended.
    pub fn key(&self, splice: &Splice) -> Option<Key> {
        self.splices.get(&splice.token).filter(|splices| splices.contains(splice))?;
        self.by_token.get(&splice.token).map(|reservation| reservation.key.clone())
    }

    /// A client has come for `token`. `is_open` tells whether a spare is worth giving.
    ///
    /// # Errors
    /// [`Refusal`] when it is to be closed.
    pub fn arrive(
        &mut self,
        token: RelayToken,
        from: IpAddr,
        client: C,
        is_open: impl Fn(&S) -> bool,
        now: Instant,
    ) -> Result<Arrived<S, C>, Refusal> {
        let arrived = self.take_client(token, from, client, is_open, now);
        arrived.inspect_err(|_| self.stats.clients_refused += 1)
    }

    fn take_client(
        &mut self,
        token: RelayToken,
        from: IpAddr,
        client: C,
        is_open: impl Fn(&S) -> bool,
        now: Instant,
    ) -> Result<Arrived<S, C>, Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        // Counted first: guessing tokens is not free either.
        if !self.turns.of_address(from, now) {
            return Err(Refusal::TooMany);
        }
        if !self.by_token.contains_key(&token) {
            return Err(Refusal::UnknownToken);
        }
        let own = self.splices.get(&token).map_or(0, HashSet::len);
        if !self.turns.of_reservation(token, from, now)
            || own >= self.limits.splices_per_reservation
            || !self.has_room_to_splice(own)
        {
            return Err(Refusal::TooMany);
        }
        while let Some(waiting) =
            self.by_token.get_mut(&token).and_then(|reservation| reservation.spares.pop_front())
        {
            if is_open(&waiting.spare) {
                return Ok(Arrived::Matched(self.matched(waiting, client)));
            }
        }
        let own = self.waiting(token);
        if own >= self.limits.waiting || !self.make_room_to_wait(own) {
            return Err(Refusal::TooMany);
        }
        let reservation = self.by_token.get_mut(&token).ok_or(Refusal::UnknownToken)?;
        self.waiting += 1;
        self.clients += 1;
        reservation.clients.push_back((self.clients, client));
        Ok(Arrived::Waits(self.clients))
    }

    /// A client has waited long enough. Returns it if it still waits.
    pub fn expire(&mut self, token: RelayToken, number: u64) -> Option<C> {
        let clients = &mut self.by_token.get_mut(&token)?.clients;
        let at = clients.iter().position(|(waiting, _)| *waiting == number)?;
        self.stats.clients_refused += 1;
        self.waiting -= 1;
        clients.remove(at).map(|(_, client)| client)
    }

    /// How many clients of a reservation wait for spares.
    pub fn waiting(&self, token: RelayToken) -> usize {
        self.by_token.get(&token).map_or(0, |reservation| reservation.clients.len())
    }

    /// A splice begins, whose client came so long ago.
    pub fn began(&mut self, waited: Duration) {
        self.stats.wait_time += waited;
    }

    /// A splice is over that lasted so long.
    pub fn lasted(&mut self, time: Duration) {
        self.stats.splice_time += time;
    }

    /// A server has connected.
    pub fn connected(&mut self) {
        self.stats.servers += 1;
    }

    /// A splice has ended, after so many bytes.
    pub fn ended(&mut self, splice: &Splice, bytes: u64) {
        self.stats.bytes += bytes;
        let Some(splices) = self.splices.get_mut(&splice.token) else { return };
        if splices.remove(splice) {
            self.spliced -= 1;
        }
        if splices.is_empty() {
            self.splices.remove(&splice.token);
        }
    }

    /// From now on there are no further reservations or clients.
    pub fn drain(&mut self) {
        self.draining = true;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
