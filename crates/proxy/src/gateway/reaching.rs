//! The client's side: destinations are reached through a gateway.

use crate::sessions::{self, Opened, SessionError, SessionsAt, explained};
use crate::whole::Whole;
use crate::{
    Answer, Destination, InSession, Reached, Reaching, Request, Streams, Takers, Upstream, UpstreamError,
};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;
use whimbrel_access::Intents;

/// For an answer. Longer than a gateway takes, because this side may be moving just then.
const LIMIT: Duration = Duration::from_secs(30);
/// A gateway that keeps no sessions is asked again after so long: it may be a newer one by then.
const OLDER: Duration = Duration::from_secs(600);

/// Reaches destinations through a gateway.
pub struct Gateway {
    streams: Arc<dyn Streams>,
    /// The devices that may take sessions without a word of this one. `None`: connections are no sessions.
    rule: Option<Mutex<Takers>>,
    older: Older,
}

/// Until when the gateway is taken for one that keeps no sessions.
#[derive(Default)]
struct Older(Mutex<Option<Instant>>);

impl Older {
    fn is_so(&self, now: Instant) -> bool {
        lock(&self.0).is_some_and(|until| now < until)
    }

    fn note(&self, now: Instant) {
        *lock(&self.0) = Some(now + OLDER);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gateway {
    /// Through the peer that these streams lead to.
    pub fn new(streams: Arc<dyn Streams>) -> Self {
        Self { streams, rule: None, older: Older::default() }
    }

    /// Connections of programs are sessions where the gateway keeps them, and can move to another device: to
    /// one of these without being asked to.
    #[must_use]
    pub fn with_sessions(self, rule: Takers) -> Self {
        Self { rule: Some(Mutex::new(rule)), ..self }
    }

    /// Lets these devices, and no others, take connections without being asked to: those that are open, and
    /// those to come. What one that may no more has taken by the rule within an hour comes back.
    ///
    /// # Errors
    /// When the gateway is not told. Connections to come have the new rule also then.
    pub async fn set_rule(&self, rule: Takers) -> Result<(), SessionError> {
        let Some(own) = &self.rule else { return Ok(()) };
        lock(own).clone_from(&rule);
        match SessionsAt::new(self.streams.clone()).set_rule(rule).await {
            Err(SessionError::Older) => Ok(()),
            told => told,
        }
    }

    async fn open(&self, to: &Destination, rule: &Mutex<Takers>) -> Result<Opened, UpstreamError> {
        let given = lock(rule).clone();
        let opened = sessions::open(&self.streams, to, &given).await?;
        let now = lock(rule).clone();
        if now != given && matches!(opened, Opened::Session(..)) {
            // The gateway may have heard of the new one first.
            let told = SessionsAt::new(self.streams.clone()).set_rule(now).await;
            let unreachable =
                |error| io::Error::other(format!("it does not hear whose sessions these are: {error}"));
            told.map_err(|error| UpstreamError::Unreachable {
                to: to.to_string(),
                source: unreachable(error),
            })?;
        }
        Ok(opened)
    }

    async fn ask(&self, to: &Destination) -> Result<Reached, UpstreamError> {
        let unreachable = |source| UpstreamError::Unreachable { to: to.to_string(), source };
        let opened = self.streams.open().await;
        let stream = opened.map_err(|why| UpstreamError::NoWay { to: to.to_string(), why })?;
        let mut stream = Whole::new(stream);
        let request = Request { to: to.clone() };
        // A gateway that is full says so before it has taken the request: its answer tells more than a failed
        // write.
        let written = stream.write_all(&request.encode()).await;
        let read = Answer::read(&mut stream).await;
        let answer = read.map_err(|error| {
            unreachable(match written {
                // A peer that took none of it and said nothing is told by that.
                Err(broken) if broken.kind() != ErrorKind::BrokenPipe => broken,
                _ => explained(error),
            })
        })?;
        let by = format!("through the gateway, to {}", answer.plain());
        match answer.error(to) {
            Some(error) => Err(error),
            None => Ok(Reached { stream: Box::new(stream), by, network: None }),
        }
    }
}

impl Upstream for Gateway {
    fn reach<'a>(&'a self, to: &'a Destination, _intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let asked = tokio::time::timeout(LIMIT, self.ask(to)).await;
            asked.unwrap_or_else(|_| {
                let why = io::Error::new(ErrorKind::TimedOut, "the gateway does not answer");
                Err(UpstreamError::Unreachable { to: to.to_string(), source: why })
            })
        })
    }

    fn session<'a>(&'a self, to: &'a Destination) -> Option<InSession<'a>> {
        let rule = self.rule.as_ref().filter(|_| !self.older.is_so(Instant::now()))?;
        Some(Box::pin(async move {
            match self.open(to, rule).await? {
                Opened::Session(session, by) => Ok(Some((*session, by))),
                Opened::Older => {
                    tracing::info!(
                        "the gateway keeps no sessions; connections through it stay on this device"
                    );
                    self.older.note(Instant::now());
                    Ok(None)
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_gateway_is_asked_again_after_a_while() {
        let (older, now) = (Older::default(), Instant::now());
        assert!(!older.is_so(now));
        older.note(now);
        assert!(older.is_so(now + OLDER / 2) && !older.is_so(now + OLDER));
    }
}
