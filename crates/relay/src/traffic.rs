//! The bytes that a relay passes on: how many there were, and how many of a reservation may pass now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::RelayToken;

use crate::fair::{Client, Clients};
use crate::limits::Limits;
use crate::rates::{Rate, Rates};

/// What passes at once in any case: less would cost the line more than it spares.
const LEAST_BURST: f64 = (256 * 1024) as f64;
/// No pause is longer: what all splices of a reservation owe together passes in less.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// The part of a share that datagrams have in any case. They cannot wait as bytes of TCP do, and would hardly
/// find a moment in which these leave something.
const OF_DATAGRAMS: f64 = 0.25;

/// How much of the relay's line each reservation may take, over TCP and QUIC together.
#[derive(Clone, Debug)]
pub(crate) struct Line(Option<Arc<Mutex<Shares>>>);

/// What each reservation may pass now.
#[derive(Debug)]
struct Shares {
    all: Rates<RelayToken>,
    /// What datagrams may pass although others have taken everything. They owe that as well.
    datagrams: Rates<RelayToken>,
    /// What a client may pass although others have taken everything: no more than others of its reservation.
    clients: Clients,
}

/// When the next piece may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    /// After so long, whatever others have taken meanwhile.
    After(Duration),
    /// It is to be asked again after so long: its client has had more than others of the reservation.
    AskIn(Duration),
}

impl Line {
    /// As the limits say.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self(limits.bytes_per_second.map(|bytes| {
            let of = |part: f64| {
                let per_second = bytes.max(1.0);
                let burst = per_second.max(LEAST_BURST) * part;
                Rates::new(Rate { per_second: per_second * part, burst })
            };
            let clients = Clients::new(bytes.max(1.0));
            Arc::new(Mutex::new(Shares { all: of(1.0), datagrams: of(OF_DATAGRAMS), clients }))
        }))
    }

    /// When something may pass between a reservation and a client: once what the reservation has passed is
    /// paid for, or sooner as long as the client has had no more than others.
    pub(crate) fn turn(&self, token: RelayToken, client: Client, now: Instant) -> Turn {
        let Some(shares) = &self.0 else { return Turn::Now };
        let Shares { all, clients, .. } = &mut *lock(shares);
        let (own, wait) = (clients.wait(token, client, now), all.wait(token, now));
        let pause = |wait: Duration| wait.clamp(Duration::from_millis(1), LONGEST_PAUSE);
        match own {
            _ if wait.is_zero() => Turn::Now,
            Some(own) if own.is_zero() => Turn::Now,
            Some(own) if own < wait => Turn::AskIn(pause(own)),
            _ => Turn::After(pause(wait)),
        }
    }

    /// Bytes have passed between a reservation and a client.
    pub(crate) fn passed(&self, token: RelayToken, client: Client, bytes: usize, now: Instant) {
        if let Some(shares) = &self.0 {
            let Shares { all, clients, .. } = &mut *lock(shares);
            all.owe(token, bytes as f64, now);
            clients.owe(token, client, bytes as f64, now);
        }
    }

    /// Whether a datagram between a reservation and a client may pass. Then it is counted.
    pub(crate) fn takes(&self, token: RelayToken, client: Client, bytes: usize, now: Instant) -> bool {
        let Some(shares) = &self.0 else { return true };
        let Shares { all, datagrams, clients } = &mut *lock(shares);
        let has_less = clients.wait(token, client, now).is_some_and(|own| own.is_zero());
        if !has_less && !all.wait(token, now).is_zero() {
            if !datagrams.wait(token, now).is_zero() {
                return false;
            }
            datagrams.owe(token, bytes as f64, now);
        }
        all.owe(token, bytes as f64, now);
        clients.owe(token, client, bytes as f64, now);
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What passes over TCP.
#[derive(Debug)]
pub(crate) struct Traffic {
    /// Bytes of what is spliced now.
    running: AtomicU64,
    line: Line,
}

impl Traffic {
    pub(crate) fn new(line: Line) -> Self {
        Self { running: AtomicU64::new(0), line }
    }

    /// Bytes of what is spliced now, so far.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    /// A splice goes on that had passed so many bytes.
    pub(crate) fn begin(&self, bytes: u64) {
        self.running.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A splice has ended after so many bytes.
    pub(crate) fn end(&self, bytes: u64) {
        self.running.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// When something may pass between a reservation and a client.
    pub(crate) fn turn(&self, token: RelayToken, client: Client) -> Turn {
        // Without a limit the time is not asked for.
        if self.line.0.is_none() { Turn::Now } else { self.line.turn(token, client, Instant::now()) }
    }

    /// Bytes have passed between a reservation and a client.
    pub(crate) fn passed(&self, token: RelayToken, client: Client, bytes: usize) {
        self.running.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.line.0.is_some() {
            self.line.passed(token, client, bytes, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = (1 << 20) as f64;
    /// Of a splice.
    const PIECE: u64 = 1 << 16;
    const HERE: Client = [1; 8];

    /// A splice that has as much to pass as it may, and how much it has passed.
    struct Splice {
        client: Client,
        due: Instant,
        /// It was said that it may pass then.
        may: bool,
        passed: u64,
    }

    impl Splice {
        fn new(client: Client, begin: Instant) -> Self {
            Self { client, due: begin, may: false, passed: 0 }
        }

        /// Passes what it may by now, as splices do.
        fn run(&mut self, line: &Line, now: Instant) {
            while self.due <= now {
                if !std::mem::take(&mut self.may) {
                    match line.turn(token(1), self.client, now) {
                        Turn::Now => {}
                        Turn::After(pause) => {
                            (self.due, self.may) = (now + pause, true);
                            continue;
                        }
                        Turn::AskIn(pause) => {
                            self.due = now + pause;
                            continue;
                        }
                    }
                }
                line.passed(token(1), self.client, PIECE as usize, now);
                self.passed += PIECE;
            }
        }
    }

    fn token(number: u8) -> RelayToken {
        RelayToken::from_bytes([number; 10])
    }

    #[test]
    fn a_reservation_takes_no_more_of_the_line_than_its_share_and_others_do_not_feel_it() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let (begin, mut now, mut passed) = (Instant::now(), Instant::now(), 0_u64);
        // One that takes pieces of 64 KiB whenever it may, for a minute.
        while now < begin + Duration::from_secs(60) {
            match line.turn(token(1), HERE, now) {
                Turn::After(pause) | Turn::AskIn(pause) => now += pause,
                Turn::Now => {
                    line.passed(token(1), HERE, PIECE as usize, now);
                    passed += PIECE;
                }
            }
        }
        assert!((60 << 20..=62 << 20).contains(&passed), "{passed} bytes in a minute");
        assert!(line.takes(token(2), HERE, 1200, now), "another one has its own share");
    }

    #[test]
    fn datagrams_beyond_the_share_are_not_taken_until_there_is_some_again() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let now = Instant::now();
        let taken = (0..2000).filter(|_| line.takes(token(1), HERE, 1200, now)).count();
        assert_eq!(
            taken,
            (1 << 20) / 1200 + 1 + (1 << 18) / 1200 + 1,
            "a second's worth, and what is theirs alone"
        );
        assert!(!line.takes(token(1), HERE, 1200, now));
        assert!(line.takes(token(1), HERE, 1200, now + Duration::from_millis(10)));
    }

    #[test]
    fn downloads_over_tcp_leave_a_quarter_to_datagrams_and_each_has_its_turn() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let begin = Instant::now();
        // Two that take pieces of 64 KiB as splices do, one of which is asked after the other one each time.
        let (mut splices, mut datagrams) = ([HERE, HERE].map(|client| Splice::new(client, begin)), 0_u64);
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            splices.iter_mut().for_each(|splice| splice.run(&line, now));
            datagrams += if line.takes(token(1), HERE, 1200, now) { 1200 } else { 0 };
        }
        let passed = splices.map(|splice| splice.passed);
        let all = datagrams + passed.iter().sum::<u64>();
        assert!((60 << 20..=62 << 20).contains(&all), "{all} bytes in a minute");
        assert!((14 << 20..=30 << 20).contains(&datagrams), "{datagrams} of datagrams, {passed:?} of TCP");
        assert!(passed[0].abs_diff(passed[1]) <= 20 << 16, "the burst alone: {passed:?}");
    }

    /// One has fifty downloads at once and sends what it can in datagrams, the other one has one download.
    #[test]
    fn a_client_with_many_connections_leaves_the_others_of_its_server_their_share() {
        let line = Line::new(&Limits { bytes_per_second: Some(RATE), ..Limits::default() });
        let (begin, greedy, modest) = (Instant::now(), [1; 8], [2; 8]);
        let mut splices: Vec<Splice> = (0..50).map(|_| Splice::new(greedy, begin)).collect();
        splices.push(Splice::new(modest, begin));
        let (mut datagrams, mut few) = (0_u64, 0_u64);
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            splices.iter_mut().for_each(|splice| splice.run(&line, now));
            (0..3).for_each(|_| datagrams += if line.takes(token(1), greedy, 1200, now) { 1200 } else { 0 });
            // A third one says something now and then.
            few += u64::from(ms % 500 == 0 && line.takes(token(1), [3; 8], 100, now));
        }
        let modest: u64 = splices.pop().map_or(0, |splice| splice.passed);
        let greedy = splices.iter().map(|splice| splice.passed).sum::<u64>() + datagrams;
        // A quarter of 60 MiB each for the three, and the last quarter for whoever wants it.
        assert!(modest >= 13 << 20, "{modest} bytes of 60 MiB, {greedy} of the other one");
        assert_eq!(few, 120, "those who say little need not wait");
        // No more than that is owed at the end.
        assert!(modest + greedy <= 76 << 20, "{} bytes in a minute", modest + greedy);
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let (line, now) = (Line::new(&Limits::default()), Instant::now());
        (0..10).for_each(|_| line.passed(token(1), HERE, 1 << 30, now));
        assert_eq!(line.turn(token(1), HERE, now), Turn::Now);
        assert!(line.takes(token(1), HERE, 1 << 16, now));
    }
}
