//! Several ways to one destination, tried beside each other: the first that answers wins (RFC 8305, §5).

use super::connect::target;
use super::{Candidate, Client, ClientError, Connected, REPORT};
use crate::protocol::{Report, Tried};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use whimbrel_access::Intents;

/// The next way is tried beside one that has not answered for so long (RFC 8305, §8).
const NEXT: Duration = Duration::from_millis(250);
/// A way that another one overtook may be slow. When it has not answered after so much more time, it counts
/// as failed: then a first packet that was lost has been sent again, and answered.
const OVERTAKEN: Duration = Duration::from_millis(1500);
/// When no way has answered for so long, the manager is asked for others: by then it knows that a network is
/// gone which went just when it was chosen.
const OTHERS: Duration = Duration::from_millis(1750);
/// Ways that are tried.
const MOST: usize = 8;

/// Attempts under way, and by which ways.
#[derive(Default)]
struct Race {
    trying: JoinSet<(io::Result<TcpStream>, Candidate)>,
    under_way: Vec<Candidate>,
}

impl Race {
    fn enter(&mut self, candidate: Candidate) {
        self.under_way.push(candidate.clone());
        self.trying.spawn(async move { (candidate.connect().await, candidate) });
    }

    /// The next one that ends. `None` if there is none, or not before then.
    async fn next(&mut self, until: Option<Instant>) -> Option<(io::Result<TcpStream>, Candidate)> {
        loop {
            let joined = match until {
                Some(until) => timeout_at(until, self.trying.join_next()).await.ok()?,
                None => self.trying.join_next().await,
            };
            // A task of ours that panicked is no answer; its way stays among those under way.
            let Ok(ended) = joined? else { continue };
            if let Some(at) = self.under_way.iter().position(|one| *one == ended.1) {
                self.under_way.remove(at);
            }
            return Some(ended);
        }
    }
}

/// What the manager is asked for other ways.
struct Question<'a> {
    host: &'a str,
    port: u16,
    intents: Intents,
}

impl Client {
    /// Tries these ways in order, each beside those before that have not answered. Tells the manager of those
    /// that failed, and of one that works again. `to` is what errors name. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Connect`] where none works.
    pub async fn connect_by(&self, candidates: Vec<Candidate>, to: &str) -> Result<Connected, ClientError> {
        self.race(candidates, to, None).await
    }

    /// Tries these ways to a host, as [`Client::connect_by`] does. Where all of them fail with their network,
    /// or none answers within 1.75 s, the manager is asked once for others: a policy may name one network
    /// alone, and that may go just then. Cancel-safe.
    ///
    /// # Errors
    /// [`ClientError::Connect`] where none works.
    pub async fn connect_by_these_or_others(
        &self,
        candidates: Vec<Candidate>,
        host: &str,
        port: u16,
        intents: Intents,
    ) -> Result<Connected, ClientError> {
        // The system has named all that it knows.
        let is_managed = candidates.iter().all(|by| by.interface.is_some());
        let others = is_managed.then_some(Question { host, port, intents });
        self.race(candidates, &target(host, port), others).await
    }

    async fn race(
        &self,
        candidates: Vec<Candidate>,
        to: &str,
        mut others: Option<Question<'_>>,
    ) -> Result<Connected, ClientError> {
        let mut left: VecDeque<Candidate> = candidates.into_iter().take(MOST).collect();
        let mut tried = Vec::new();
        let mut race = Race::default();
        let mut asking: Option<BoxFuture<'_, Vec<Candidate>>> = None;
        let mut last: io::Error = io::ErrorKind::NotFound.into();
        loop {
            if let Some(candidate) = left.pop_front() {
                tried.push(candidate.clone());
                race.enter(candidate);
            }
            let patience = if left.is_empty() { others.is_some().then_some(OTHERS) } else { Some(NEXT) };
            let until = patience.map(|time| Instant::now() + time);
            let is_racing = asking.is_none() || !race.trying.is_empty();
            let ended = tokio::select! {
                biased;
                ended = race.next(until), if is_racing => ended,
                // What is under way may answer meanwhile.
                found = answered(&mut asking), if asking.is_some() => {
                    left.extend(found);
                    asking = None;
                    continue;
                }
            };
            match ended {
                Some((Ok(stream), by)) => {
                    if by.failed_lately {
                        self.tell_worked(&by);
                    }
                    self.leave_behind(race);
                    return Ok(Connected { stream, by });
                }
                Some((Err(error), by)) => {
                    if !speaks_of_the_way(&error) {
                        // The host was reached, and would be as it is by any other way.
                        (others, asking) = (None, None);
                    } else if others.is_some() {
                        // Before it is asked for others, or it may name this one.
                        self.report_failed(&by).await;
                    } else {
                        self.tell_failed(&by);
                    }
                    last = error;
                }
                None if !left.is_empty() || asking.is_some() => {}
                None => match others.take() {
                    Some(question) => asking = Some(Box::pin(self.others(question, tried.clone()))),
                    None => return Err(ClientError::Connect { to: to.to_owned(), source: last }),
                },
            }
        }
    }

    /// The ways that the manager names now and that were not tried. None if it cannot be asked.
    async fn others(&self, question: Question<'_>, tried: Vec<Candidate>) -> Vec<Candidate> {
        let Question { host, port, intents } = question;
        let mut found = self.resolve(host, port, intents).await.unwrap_or_default();
        let place = |by: &Candidate| (by.interface.clone(), by.destination);
        let is_known = |by: &Candidate| tried.iter().any(|known| place(known) == place(by));
        found.retain(|by| by.interface.is_some() && !is_known(by));
        found.truncate(MOST);
        found
    }

    /// Sees what becomes of the ways that were overtaken, without holding anybody up.
    fn leave_behind(&self, mut race: Race) {
        // Nobody is told of the system's ways.
        if race.under_way.iter().all(|by| by.interface.is_none()) {
            return;
        }
        let until = Instant::now() + OVERTAKEN;
        self.beside(|client| async move {
            while let Some((result, by)) = race.next(Some(until)).await {
                if result.is_err_and(|error| speaks_of_the_way(&error)) {
                    client.tell_failed(&by);
                }
            }
            race.under_way.iter().for_each(|by| client.tell_failed(by));
        });
    }

    fn tell_failed(&self, by: &Candidate) {
        if let Some(failure) = by.failure() {
            self.tell(failure);
        }
    }

    async fn report_failed(&self, by: &Candidate) {
        if let Some(failure) = by.failure() {
            // It is asked all the same.
            let _ = tokio::time::timeout(REPORT, self.report(failure)).await;
        }
    }

    fn tell_worked(&self, by: &Candidate) {
        if let Some(interface) = by.interface.clone() {
            let worked = Some(Tried { interface, destination: by.destination });
            self.tell(Report { worked, ..Report::default() });
        }
    }
}

/// Waits for the answer to a question that was asked.
async fn answered(asking: &mut Option<BoxFuture<'_, Vec<Candidate>>>) -> Vec<Candidate> {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// Whether it is the way that failed. A host that refuses was reached: closed ports of three hosts must not
/// have the manager avoid the network that led there.
fn speaks_of_the_way(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}
