//! What a table leaves to another one, and how that goes on with it.

use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

use super::{Holding, Reservation, Reservations, Splice, Waiting};
use crate::estate::{self, Counters, millis};
use crate::spare::{Key, Offer, Used};

/// What was in a table, but for what is spliced.
pub(crate) struct Left<S, C> {
    pub(crate) counters: Counters,
    pub(crate) turns: Vec<estate::Turns>,
    pub(crate) reservations: Vec<estate::Reservation>,
    pub(crate) spares: Vec<(estate::Spare, S)>,
    /// With their numbers.
    pub(crate) clients: Vec<(RelayToken, u64, C)>,
}

impl Splice {
    /// What is written of it.
    pub(crate) fn hand_over(&self) -> (estate::Spare, u64) {
        let Self { token, number, origin, generation } = *self;
        (estate::Spare { token: *token.as_bytes(), origin, number }, generation)
    }
}

impl Holding {
    /// The token and the generation.
    pub(crate) fn to_parts(self) -> (RelayToken, u64) {
        (self.token, self.generation)
    }
}

impl<S, C> Reservations<S, C> {
    /// Takes out what another table goes on with. This one takes nobody in any more.
    pub(crate) fn leave(&mut self, now: Instant) -> Left<S, C> {
        self.draining = true;
        let stats = self.stats;
        let counters = Counters {
            generations: self.generations,
            clients: self.clients,
            spliced: stats.spliced,
            clients_refused: stats.clients_refused,
            spares_refused: stats.spares_refused,
            reservations_refused: stats.reservations_refused,
            bytes: stats.bytes,
            wait_ms: millis(stats.wait_time),
            splice_ms: millis(stats.splice_time),
            servers: stats.servers,
            ..Counters::default()
        };
        let turns = self.turns.hand_over(false, now);
        let (mut reservations, mut spares, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        for (token, found) in self.by_token.drain() {
            let bytes = *token.as_bytes();
            reservations.push(estate::Reservation {
                token: bytes,
                owner: found.owner,
                generation: found.generation,
                key: found.key.to_bytes(),
                used: found.used.to_parts(),
            });
            spares.extend(found.spares.into_iter().map(|Waiting { spare, offer }| {
                (estate::Spare { token: bytes, origin: offer.origin, number: offer.number }, spare)
            }));
            clients.extend(found.clients.into_iter().map(|(number, client)| (token, number, client)));
        }
        self.waiting = 0;
        Left { counters, turns, reservations, spares, clients }
    }

    /// Goes on counting.
    pub(crate) fn go_on(&mut self, counters: &Counters) {
        (self.generations, self.clients) = (counters.generations, counters.clients);
        self.stats.spliced = counters.spliced;
        self.stats.clients_refused = counters.clients_refused;
        self.stats.spares_refused = counters.spares_refused;
        self.stats.reservations_refused = counters.reservations_refused;
        self.stats.bytes = counters.bytes;
        self.stats.wait_time = Duration::from_millis(counters.wait_ms);
        self.stats.splice_time = Duration::from_millis(counters.splice_ms);
        self.stats.servers = counters.servers;
    }

    /// Goes on with turns that were used.
    pub(crate) fn go_on_with_turns(&mut self, turns: &estate::Turns, now: Instant) {
        self.turns.go_on(turns, now);
    }

    /// Goes on with a reservation. `None` if it is there already.
    pub(crate) fn go_on_with(&mut self, left: &estate::Reservation) -> Option<Holding> {
        let token = RelayToken::from_bytes(left.token);
        if self.by_token.contains_key(&token) {
            return None;
        }
        let (owner, generation, key) = (left.owner, left.generation, Key::new(&left.key));
        let (used, spares, clients) = (Used::from_parts(left.used), Default::default(), Default::default());
        self.by_token.insert(token, Reservation { owner, generation, key, used, spares, clients });
        self.generations = self.generations.max(generation);
        Some(Holding { token, generation })
    }

    /// Goes on with a spare. False if it has no reservation.
    pub(crate) fn go_on_with_spare(&mut self, left: &estate::Spare, spare: S) -> bool {
        let estate::Spare { token, origin, number } = *left;
        let offer = Offer { token: RelayToken::from_bytes(token), origin, number };
        let reservation = self.by_token.get_mut(&offer.token);
        reservation.map(|reservation| reservation.spares.push_back(Waiting { spare, offer })).is_some()
    }

    /// Goes on with a client that waits. False if it has no reservation.
    pub(crate) fn go_on_with_client(&mut self, token: RelayToken, number: u64, client: C) -> bool {
        let Some(reservation) = self.by_token.get_mut(&token) else { return false };
        reservation.clients.push_back((number, client));
        self.waiting += 1;
        self.clients = self.clients.max(number);
        true
    }

    /// Goes on with a splice, which may have outlived its reservation. `None` if it is there already.
    pub(crate) fn go_on_with_splice(&mut self, left: &estate::Splice) -> Option<Splice> {
        let estate::Spare { token, origin, number } = left.spare;
        let token = RelayToken::from_bytes(token);
        let splice = Splice { token, number, origin, generation: left.generation };
        let is_new = self.splices.entry(token).or_default().insert(splice);
        self.spliced += usize::from(is_new);
        is_new.then_some(splice)
    }
}
