//! The relay's rules, without sockets: who has which token, which spares wait for clients, which clients wait for
//! spares, and how many there may be of each.
//!
//! Generic over what a spare and a client are: here they are numbers in tests, and sockets in the
//! [service](crate::service).

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use whimbrel_base::{EndpointId, RelayToken};

use crate::spare::{Key, Offer, Used};
use crate::turns::Turns;

/// What a relay gives at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Reservations.
    pub reservations: usize,
    /// Spares of one reservation that wait for clients.
    pub spares: usize,
    /// Clients of one reservation that wait for spares.
    pub waiting: usize,
    /// Clients that wait, all together: each may have sent some KiB. The reservation with the most makes room.
    pub waiting_in_all: usize,
    /// Spliced connections, all together. The reservation with the most makes room.
    pub splices: usize,
    /// Spliced connections of one reservation.
    pub splices_per_reservation: usize,
    /// New clients of one reservation in a second; ten times as many at once. Half of these are for addresses from
    /// which no more than one comes each second, and five at once.
    pub clients_per_second: f64,
    /// New clients from one address (IPv4, or /64 of IPv6) in a second; ten times as many at once.
    pub clients_per_address: f64,
    /// How long a client waits for a spare.
    pub patience: Duration,
    /// Places that clients send QUIC from, all together.
    pub flows: usize,
    /// Places that clients of one reservation send QUIC from.
    pub flows_per_reservation: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            reservations: 10_000,
            spares: 8,
            waiting: 256,
            waiting_in_all: 4096,
            splices: 50_000,
            splices_per_reservation: 4096,
            clients_per_second: 100.0,
            clients_per_address: 20.0,
            patience: Duration::from_secs(5),
            flows: 50_000,
            flows_per_reservation: 4096,
        }
    }
}

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

/// What a relay has done, and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStats {
    /// Reservations now.
    pub reservations: u64,
    /// Spares that wait for clients now.
    pub spares: u64,
    /// Clients that wait for spares now.
    pub waiting: u64,
    /// Spliced connections now.
    pub splices: u64,
    /// Spliced connections so far.
    pub spliced: u64,
    /// Clients that were turned away.
    pub clients_refused: u64,
    /// Spares that were turned away.
    pub spares_refused: u64,
    /// Reservations that were refused.
    pub reservations_refused: u64,
    /// Bytes passed on, in both directions: of splices that have ended, and of QUIC.
    pub bytes: u64,
    /// Places that clients send QUIC from now.
    pub flows: u64,
    /// Places that clients sent QUIC from so far.
    pub flowed: u64,
    /// Datagrams of QUIC that were not passed on.
    pub dropped: u64,
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

    /// Ends a reservation, unless another one took its place. What is spliced goes on: its sockets tell when its
    /// server is gone.
    pub fn release(&mut self, holding: Holding) {
        if self.by_token.get(&holding.token).is_some_and(|found| found.generation == holding.generation) {
            let ended = self.by_token.remove(&holding.token);
            self.waiting -= ended.map_or(0, |ended| ended.clients.len());
        }
    }

    /// The server has left an address: spares from there go, and the splices are returned that are dead, and are
    /// to be [ended](Self::ended).
    pub fn left(&mut self, holding: Holding, origin: u32) -> Vec<Splice> {
        let Some(reservation) = self.by_token.get_mut(&holding.token) else { return Vec::new() };
        if reservation.generation != holding.generation {
            return Vec::new();
        }
        reservation.spares.retain(|waiting| waiting.offer.origin != origin);
        let Some(splices) = self.splices.get(&holding.token) else { return Vec::new() };
        splices.iter().filter(|splice| splice.origin == origin).copied().collect()
    }

    /// Takes a spare, whose first words are `bytes`. If a client waits, both are returned. `is_open` tells whether a
    /// client is still there, `is_waiting` whether an earlier spare is: those that have ended take no place.
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

    /// The reservation with the most splices, and how many these are.
    fn most_spliced(&self) -> Option<(RelayToken, usize)> {
        let counts = self.splices.iter().map(|(token, splices)| (*token, splices.len()));
        counts.max_by_key(|(_, count)| *count)
    }

    /// The reservation for which most clients wait, and how many these are.
    fn most_awaited(&self) -> Option<(RelayToken, usize)> {
        let counts = self.by_token.iter().map(|(token, reservation)| (*token, reservation.clients.len()));
        counts.max_by_key(|(_, count)| *count)
    }

    /// Makes room for a splice, if there is none: the oldest one of the reservation with the most is forgotten.
    fn displace(&mut self) -> Option<Splice> {
        if self.spliced < self.limits.splices {
            return None;
        }
        let (crowd, _) = self.most_spliced()?;
        let oldest = self.splices.get(&crowd)?.iter().min_by_key(|splice| (splice.generation, splice.number));
        let oldest = *oldest?;
        self.ended(&oldest, 0);
        Some(oldest)
    }

    /// Makes room for a client that waits, if there is none: the oldest one of the reservation with the most is
    /// dropped, unless the newcomer's has as many, which is `own`. Returns whether there is room.
    fn make_room_to_wait(&mut self, own: usize) -> bool {
        if self.waiting < self.limits.waiting_in_all {
            return true;
        }
        let crowd = self.most_awaited().filter(|(_, most)| gives_way(*most, own));
        let crowd = crowd.and_then(|(token, _)| self.by_token.get_mut(&token));
        let is_dropped = crowd.is_some_and(|crowd| crowd.clients.pop_front().is_some());
        if is_dropped {
            self.waiting -= 1;
            self.stats.clients_refused += 1;
        }
        is_dropped
    }

    /// The key of a splice's reservation, to say on the spare that a client is there. `None` if either has ended.
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
        let has_room = |table: &Self| {
            table.spliced < table.limits.splices
                || table.most_spliced().is_some_and(|(_, most)| gives_way(most, own))
        };
        if !self.turns.of_reservation(token, from, now)
            || own >= self.limits.splices_per_reservation
            || !has_room(self)
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

/// Whether one that has `most` of what is used up gives way to one that has `own`: not if the latter would then have
/// more.
fn gives_way(most: usize, own: usize) -> bool {
    most > own + 1
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    const TOKEN: RelayToken = RelayToken::from_bytes([1; 10]);
    const OTHER: RelayToken = RelayToken::from_bytes([2; 10]);

    type Table = Reservations<&'static str, &'static str>;

    fn key(n: u8) -> Key {
        Key::new(&[n; 32])
    }

    fn id(n: u8) -> EndpointId {
        SecretKey::from_bytes(&[n; 32]).id()
    }

    fn ip(n: u8) -> IpAddr {
        [192, 0, 2, n].into()
    }

    fn words(of: u8, origin: u32, number: u64) -> Vec<u8> {
        Offer { token: TOKEN, origin, number }.encode(&key(of))
    }

    fn table(limits: Limits) -> (Table, Holding) {
        let mut table = Table::new(limits);
        let holding = table.reserve(id(1), TOKEN, key(1)).unwrap();
        (table, holding)
    }

    fn offer(
        table: &mut Table,
        origin: u32,
        number: u64,
    ) -> Result<Option<Match<&'static str, &'static str>>, Refusal> {
        table.offer(&words(1, origin, number), "spare", |_| true, |_| true)
    }

    fn arrive(
        table: &mut Table,
        client: &'static str,
    ) -> Result<Arrived<&'static str, &'static str>, Refusal> {
        table.arrive(TOKEN, ip(1), client, |_| true, Instant::now())
    }

    #[test]
    fn a_client_gets_a_spare_that_waits_or_waits_for_one() {
        let (mut table, _) = table(Limits::default());
        offer(&mut table, 0, 0).unwrap();
        let Arrived::Matched(matched) = arrive(&mut table, "first").unwrap() else { panic!("a spare waits") };
        assert_eq!((matched.spare, matched.client, matched.splice.number), ("spare", "first", 0));
        let Arrived::Waits(number) = arrive(&mut table, "second").unwrap() else {
            panic!("there is no spare")
        };
        let Arrived::Waits(third) = arrive(&mut table, "third").unwrap() else { panic!("there is no spare") };
        assert_eq!(table.waiting(TOKEN), 2);
        assert_eq!(table.expire(TOKEN, third), Some("third"));
        assert_eq!(offer(&mut table, 0, 1).unwrap().unwrap().client, "second");
        assert_eq!(table.expire(TOKEN, number), None, "it was served");
        assert_eq!((table.stats().splices, table.stats().spliced, table.stats().clients_refused), (2, 2, 1));
        table.ended(&matched.splice, 10);
        table.ended(&matched.splice, 10);
        assert_eq!(table.stats().splices, 1);
    }

    #[test]
    fn forged_and_repeated_spares_are_turned_away() {
        let (mut table, _) = table(Limits::default());
        assert_eq!(table.offer(&words(2, 0, 0), "spare", |_| true, |_| true), Err(Refusal::Forged));
        assert_eq!(table.offer(b"WHR1", "spare", |_| true, |_| true), Err(Refusal::Forged));
        let bytes = words(1, 0, 0);
        assert_eq!(table.offer(&bytes, "spare", |_| true, |_| true), Ok(None));
        assert_eq!(table.offer(&bytes, "spare", |_| true, |_| true), Err(Refusal::Forged), "played again");
        let unknown = Offer { token: OTHER, origin: 0, number: 0 }.encode(&key(1));
        assert_eq!(table.offer(&unknown, "spare", |_| true, |_| true), Err(Refusal::UnknownToken));
        assert_eq!(table.stats().spares_refused, 4);
    }

    #[test]
    fn nobody_gets_the_token_of_somebody_else() {
        let (mut table, holding) = table(Limits::default());
        assert!(table.reserve(id(2), TOKEN, key(2)).is_err());
        offer(&mut table, 0, 0).unwrap();
        assert_eq!(table.stats().spares, 1, "the owner has it still");
        // The owner's next one replaces it: its own word on the old one counts no more.
        let newer = table.reserve(id(1), TOKEN, key(1)).unwrap();
        table.release(holding);
        assert_eq!(table.stats().reservations, 1);
        table.release(newer);
        assert_eq!(table.stats().reservations, 0);
    }

    #[test]
    fn spares_that_have_ended_take_no_place() {
        let (mut table, _) = table(Limits { spares: 1, ..Limits::default() });
        offer(&mut table, 0, 0).unwrap();
        assert_eq!(offer(&mut table, 0, 1), Err(Refusal::EnoughSpares));
        assert_eq!(table.offer(&words(1, 0, 2), "spare", |_| true, |_| false), Ok(None));
    }

    #[test]
    fn what_comes_from_an_address_that_the_server_left_is_dead() {
        let (mut table, holding) = table(Limits::default());
        for (origin, number) in [(0, 0), (0, 1), (1, 2)] {
            offer(&mut table, origin, number).unwrap();
        }
        arrive(&mut table, "client").unwrap();
        let dead = table.left(holding, 0);
        assert_eq!(dead.iter().map(|splice| splice.number).collect::<Vec<_>>(), [0]);
        table.ended(&dead[0], 0);
        assert_eq!((table.stats().spares, table.stats().splices), (1, 0));
        let Arrived::Matched(matched) = arrive(&mut table, "client").unwrap() else {
            panic!("a spare waits")
        };
        assert_eq!(matched.splice.number, 2);
        assert!(table.left(holding, 0).is_empty());
    }

    #[test]
    fn spares_and_clients_that_are_gone_are_passed_over() {
        let (mut table, _) = table(Limits::default());
        table.offer(&words(1, 0, 0), "gone", |_| true, |_| true).unwrap();
        offer(&mut table, 0, 1).unwrap();
        let now = Instant::now();
        let arrived = table.arrive(TOKEN, ip(1), "client", |spare| *spare != "gone", now).unwrap();
        assert!(matches!(arrived, Arrived::Matched(Match { spare: "spare", .. })));
        arrive(&mut table, "gone").unwrap();
        let offered = table.offer(&words(1, 0, 2), "spare", |client| *client != "gone", |_| true).unwrap();
        assert_eq!((offered, table.stats().spares), (None, 1));
    }

    #[test]
    fn everything_has_a_bound() {
        let limits = Limits {
            reservations: 2,
            spares: 3,
            waiting: 4,
            splices_per_reservation: 3,
            clients_per_second: 1.0,
            clients_per_address: 2.0,
            ..Limits::default()
        };
        let (mut table, _) = table(limits);
        table.reserve(id(2), OTHER, key(2)).unwrap();
        let third = RelayToken::from_bytes([3; 10]);
        assert_eq!(table.reserve(id(3), third, key(3)), Err(Refusal::Full));
        let spares = (0..10).filter(|number| offer(&mut table, 0, *number).is_ok()).count();
        assert_eq!(spares, 3);
        let arrived: Vec<_> = (0..30).map(|_| arrive(&mut table, "client")).collect();
        // Three spliced; then no more, by the number of splices.
        assert_eq!(arrived.iter().filter(|arrived| arrived.is_ok()).count(), 3);
        let now = Instant::now();
        let guesses = (0..30)
            .filter(|_| table.arrive(third, ip(9), "guess", |_| true, now) == Err(Refusal::UnknownToken));
        assert_eq!(guesses.count(), 20, "those beyond are not even looked up");
    }

    #[test]
    fn a_crowd_at_one_server_waits_within_bounds() {
        for (waiting, waiting_in_all) in [(4, 100), (100, 4)] {
            let limits = Limits { waiting, waiting_in_all, ..Limits::default() };
            let (mut table, holding) = table(limits);
            let waits = (0..10).filter(|_| arrive(&mut table, "client").is_ok()).count();
            assert_eq!((waits, table.waiting(TOKEN), table.stats().waiting), (4, 4, 4));
            offer(&mut table, 0, 0).unwrap();
            assert!(table.expire(TOKEN, 2).is_some());
            assert_eq!(table.stats().waiting, 2);
            table.release(holding);
            assert_eq!(table.stats().waiting, 0);
        }
    }

    /// A table in which server 1 holds all that a relay has to give, and server 2 nothing.
    fn crowded(limits: Limits) -> Table {
        let (mut table, _) = table(limits);
        table.reserve(id(2), OTHER, key(2)).unwrap();
        table
    }

    fn arrive_for_other(table: &mut Table) -> Result<Arrived<&'static str, &'static str>, Refusal> {
        table.arrive(OTHER, ip(2), "honest", |_| true, Instant::now())
    }

    fn offer_of_other(table: &mut Table, number: u64) -> Option<Match<&'static str, &'static str>> {
        let words = Offer { token: OTHER, origin: 0, number }.encode(&key(2));
        table.offer(&words, "spare", |_| true, |_| true).unwrap()
    }

    #[test]
    fn those_who_wait_for_a_server_that_never_comes_make_room_for_those_of_others() {
        let mut table = crowded(Limits { waiting_in_all: 4, ..Limits::default() });
        let first = arrive(&mut table, "first").unwrap();
        for _ in 0..3 {
            arrive(&mut table, "more").unwrap();
        }
        assert_eq!(arrive(&mut table, "fifth"), Err(Refusal::TooMany), "its own do not make room");
        for (waits, left) in [(1, 3), (2, 2)] {
            assert!(matches!(arrive_for_other(&mut table), Ok(Arrived::Waits(_))));
            assert_eq!((table.waiting(OTHER), table.waiting(TOKEN), table.stats().waiting), (waits, left, 4));
        }
        let Arrived::Waits(number) = first else { panic!("there is no spare") };
        assert_eq!(table.expire(TOKEN, number), None, "the oldest went first");
        assert_eq!(arrive_for_other(&mut table), Err(Refusal::TooMany), "it has its half");
        assert_eq!(offer_of_other(&mut table, 0).unwrap().client, "honest");
        assert_eq!(table.stats().clients_refused, 4);
    }

    #[test]
    fn a_server_that_holds_all_splices_makes_room_for_those_of_others() {
        let mut table = crowded(Limits { splices: 4, ..Limits::default() });
        for number in 0..4 {
            offer(&mut table, 0, number).unwrap();
            arrive(&mut table, "client").unwrap();
        }
        offer(&mut table, 0, 4).unwrap();
        assert_eq!(arrive(&mut table, "fifth"), Err(Refusal::TooMany), "its own do not make room");
        for number in 0..2 {
            assert_eq!(offer_of_other(&mut table, number), None);
            let Ok(Arrived::Matched(matched)) = arrive_for_other(&mut table) else { panic!("a spare waits") };
            assert_eq!(matched.displaced.map(|splice| splice.number), Some(number), "the oldest first");
            assert_eq!(table.stats().splices, 4);
            assert!(table.key(&matched.displaced.unwrap()).is_none(), "it has not begun, and never will");
            // Its task tells of its end too.
            table.ended(&matched.displaced.unwrap(), 9);
            assert_eq!(table.stats().splices, 4);
        }
        assert_eq!(offer_of_other(&mut table, 2), None);
        assert_eq!(arrive_for_other(&mut table), Err(Refusal::TooMany), "it has its half");
        assert_eq!(table.stats().bytes, 18);
    }

    #[test]
    fn a_relay_that_drains_takes_nobody_in() {
        let (mut table, _) = table(Limits::default());
        table.drain();
        assert_eq!(arrive(&mut table, "client"), Err(Refusal::Draining));
        assert_eq!(table.reserve(id(2), OTHER, key(2)), Err(Refusal::Draining));
    }
}
