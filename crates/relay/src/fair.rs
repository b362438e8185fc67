//! What the clients of one reservation have of its part of the line: as much each, where there are several.
//!
//! A client is an address (of IPv6, a /64), however many connections it has. Pure: no clock, no sockets.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

/// A client, as [`source`](crate::rates::source) writes it.
pub(crate) type Client = [u8; 8];

/// The part of what a reservation may pass that its clients have in equal shares. The rest is for datagrams,
/// and for those who want more.
const OF_CLIENTS: f64 = 0.75;
/// A client is counted for so long after it wanted something, and for as long as it owes something.
const PRESENT: Duration = Duration::from_secs(2);
/// What a client has had beyond its share, while others wanted less than theirs, is held against it for so
/// long.
const REMEMBERED: f64 = 8.0;
/// How often those are looked for that are gone.
const SWEEP: Duration = Duration::from_millis(500);
/// The same for reservations.
const SWEEP_ALL: Duration = Duration::from_secs(10);
/// Clients of a reservation that are kept in mind. Further ones have what is left.
const MAX_CLIENTS: usize = 4096;
/// Reservations whose clients are kept in mind. Beyond that, all begin anew.
const MAX_CROWDS: usize = 16 * 1024;

/// The clients of each reservation that may pass so much in a second.
#[derive(Debug)]
pub(crate) struct Clients {
    per_second: f64,
    crowds: HashMap<RelayToken, Crowd>,
    swept: Option<Instant>,
}

/// The present clients of one reservation.
#[derive(Debug)]
struct Crowd {
    present: HashMap<Client, Account>,
    swept: Instant,
}

/// What a client has had beyond its share, when that was so, and when it wanted something last.
#[derive(Debug)]
struct Account {
    owes: f64,
    since: Instant,
    wanted: Instant,
}

impl Account {
    /// Brings it up to date, for a client that has so much in a second.
    fn update(&mut self, share: f64, now: Instant) {
        let paid = now.saturating_duration_since(self.since).as_secs_f64() * share;
        (self.owes, self.since) = ((self.owes - paid).max(0.0), now);
    }
}

impl Crowd {
    /// What each client has in a second.
    fn share(&self, per_second: f64) -> f64 {
        match self.present.len() {
            0 | 1 => per_second,
            count => per_second * OF_CLIENTS / count as f64,
        }
    }

    fn sweep(&mut self, per_second: f64, now: Instant) {
        let share = self.share(per_second);
        self.swept = now;
        self.present.retain(|_, account| {
            account.update(share, now);
            account.owes > 0.0 || now.saturating_duration_since(account.wanted) < PRESENT
        });
    }
}

impl Clients {
    pub(crate) fn new(per_second: f64) -> Self {
        Self { per_second, crowds: HashMap::new(), swept: None }
    }

    /// A client wants to pass something: how long until it has had no more than its share. `None` if it is
    /// alone, or there is no room to keep it in mind.
    pub(crate) fn wait(&mut self, token: RelayToken, client: Client, now: Instant) -> Option<Duration> {
        let per_second = self.per_second;
        let crowd = self.crowd(token, now);
        if crowd.present.len() >= MAX_CLIENTS && !crowd.present.contains_key(&client) {
            return None;
        }
        crowd.present.entry(client).or_insert(Account { owes: 0.0, since: now, wanted: now });
        let (share, is_alone) = (crowd.share(per_second), crowd.present.len() == 1);
        let account = crowd.present.get_mut(&client)?;
        account.update(share, now);
        account.wanted = now;
        let wait = Duration::try_from_secs_f64(account.owes / share).unwrap_or(Duration::MAX);
        (!is_alone).then_some(wait)
    }

    /// A client has passed so much.
    pub(crate) fn owe(&mut self, token: RelayToken, client: Client, bytes: f64, now: Instant) {
        let per_second = self.per_second;
        let crowd = self.crowd(token, now);
        let share = crowd.share(per_second);
        if let Some(account) = crowd.present.get_mut(&client) {
            account.update(share, now);
            account.owes = (account.owes + bytes).min((share * REMEMBERED).max(bytes));
        }
    }

    fn crowd(&mut self, token: RelayToken, now: Instant) -> &mut Crowd {
        let per_second = self.per_second;
        let is_due = |swept: Instant, every: Duration| now.saturating_duration_since(swept) >= every;
        if self.swept.is_none_or(|swept| is_due(swept, SWEEP_ALL)) {
            self.swept = Some(now);
            self.crowds.retain(|_, crowd| {
                crowd.sweep(per_second, now);
                !crowd.present.is_empty()
            });
        }
        if self.crowds.len() >= MAX_CROWDS && !self.crowds.contains_key(&token) {
            self.crowds.clear();
        }
        let crowd = self.crowds.entry(token).or_insert_with(|| Crowd { present: HashMap::new(), swept: now });
        if is_due(crowd.swept, SWEEP) {
            crowd.sweep(per_second, now);
        }
        crowd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: RelayToken = RelayToken::from_bytes([1; 10]);
    const RATE: f64 = 1_000_000.0;

    fn client(number: u8) -> Client {
        [number; 8]
    }

    #[test]
    fn one_that_is_alone_has_all_and_of_several_each_waits_for_what_it_had_beyond_its_share() {
        let (mut clients, begin) = (Clients::new(RATE), Instant::now());
        assert_eq!(clients.wait(TOKEN, client(1), begin), None);
        clients.owe(TOKEN, client(1), RATE / 4.0, begin);
        assert_eq!(clients.wait(TOKEN, client(2), begin), Some(Duration::ZERO), "it has had nothing");
        // Each has three eighths in a second.
        let wait = clients.wait(TOKEN, client(1), begin).map(|wait| wait.as_millis());
        assert_eq!(wait, Some(666));
        let other = RelayToken::from_bytes([2; 10]);
        assert_eq!(clients.wait(other, client(3), begin), None, "of another reservation");
        let later = begin + Duration::from_millis(700);
        assert_eq!(clients.wait(TOKEN, client(1), later), Some(Duration::ZERO));
        // The other one has wanted nothing for long.
        assert_eq!(clients.wait(TOKEN, client(1), begin + PRESENT + SWEEP), None);
    }

    #[test]
    fn what_a_client_had_while_others_wanted_less_is_not_held_against_it_for_long() {
        let (mut clients, begin) = (Clients::new(RATE), Instant::now());
        for number in [1, 2] {
            clients.wait(TOKEN, client(number), begin);
        }
        (0..100).for_each(|_| clients.owe(TOKEN, client(1), RATE, begin));
        let wait = clients.wait(TOKEN, client(1), begin).map(|wait| wait.as_secs_f64());
        assert_eq!(wait, Some(REMEMBERED));
    }

    #[test]
    fn no_more_clients_and_reservations_are_kept_in_mind_than_there_is_room_for() {
        let (mut clients, begin) = (Clients::new(RATE), Instant::now());
        for number in 0..10_000_u64 {
            clients.wait(TOKEN, number.to_be_bytes(), begin);
        }
        assert_eq!(clients.crowds[&TOKEN].present.len(), MAX_CLIENTS);
        for number in 0..40_000_u64 {
            let mut token = [0; 10];
            token[..8].copy_from_slice(&number.to_be_bytes());
            clients.wait(RelayToken::from_bytes(token), client(1), begin);
        }
        assert!(clients.crowds.len() <= MAX_CROWDS);
        clients.wait(TOKEN, client(1), begin + Duration::from_secs(60));
        assert_eq!(clients.crowds.len(), 1, "all others are gone");
    }
}
