//! Sessions that are handed over to this device, as the gateway tells of them.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::mpsc;
use whimbrel_proxy::{Hearing, Listed, May, SessionError, SessionId, SessionsAt, Word};

use super::news::News;

/// Between two looks at a gateway that tells nobody: one of before there were words.
const LOOK: Duration = Duration::from_secs(5);
/// Between two looks at one that tells.
const REST: Duration = Duration::from_secs(60);
/// Before the gateway is asked again that did not answer, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Follows what is handed over, and passes it on.
pub(super) struct Follower<'a> {
    sessions: &'a SessionsAt,
    found: mpsc::Sender<Listed>,
    news: News,
    known: Known,
    failures: u32,
}

/// What was passed on already.
#[derive(Default)]
struct Known(HashSet<(SessionId, u32)>);

impl Known {
    /// Those that this device may take by a word, and that were not passed on.
    fn fresh(&mut self, listed: Vec<Listed>) -> Vec<Listed> {
        let given: Vec<_> = listed.into_iter().filter(|session| session.may == May::Consent).collect();
        self.0.retain(|known| given.iter().any(|session| (session.id, session.moves) == *known));
        given.into_iter().filter(|session| self.0.insert((session.id, session.moves))).collect()
    }

    /// It was said again.
    fn again(&mut self, word: Word) {
        self.0.remove(&(word.id, word.moves));
    }
}

impl<'a> Follower<'a> {
    /// At a gateway.
    pub(super) fn new(sessions: &'a SessionsAt, found: mpsc::Sender<Listed>, news: News) -> Self {
        Self { sessions, found, news, known: Known::default(), failures: 0 }
    }

    /// Goes on for as long as it is polled. A gateway that is out of reach is asked again.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let ended = match self.sessions.hear().await {
                Ok(hearing) => self.hear(hearing).await,
                Err(SessionError::Older) => self.look_often().await,
                // Too many wait to be told: what there is now can be seen all the same.
                Err(error @ SessionError::Refused(_)) => self.look().await.and(Err(error)),
                Err(error) => Err(error),
            };
            let Err(error) = ended;
            self.failed(&error);
            tokio::time::sleep(pause(self.failures)).await;
        }
    }

    async fn hear(&mut self, mut hearing: Hearing) -> Result<Infallible, SessionError> {
        loop {
            self.look().await?;
            tokio::select! {
                word = hearing.next() => self.known.again(word?),
                () = tokio::time::sleep(REST) => {}
            }
        }
    }

    async fn look_often(&mut self) -> Result<Infallible, SessionError> {
        tracing::info!("the gateway is older than this program: it is asked every 5 s");
        loop {
            self.look().await?;
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self) -> Result<(), SessionError> {
        let listed = self.sessions.list().await?;
        if self.failures > 1 {
            self.news.note("back", "the gateway answers again");
        }
        self.failures = 0;
        for session in self.known.fresh(listed) {
            // An agent that is about to end has no receiver any more.
            let _ = self.found.send(session).await;
        }
        Ok(())
    }

    /// A gateway that ends the stream may only be going on in another process: it is not lost for that.
    fn failed(&mut self, error: &SessionError) {
        self.failures = self.failures.saturating_add(1);
        tracing::debug!(%error, "the gateway is asked again");
        if self.failures == 2 {
            self.news.note("lost", &format!("{error}; it is asked again"));
        }
    }
}

/// How long to wait after so many failures in a row.
fn pause(failures: u32) -> Duration {
    AGAIN.0.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(AGAIN.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_does_not_answer_is_asked_less_and_less_often_but_again() {
        let pauses: Vec<_> = [1, 2, 3, 9, u32::MAX].map(pause).into();
        assert_eq!(pauses[..3], [AGAIN.0, AGAIN.0 * 2, AGAIN.0 * 4]);
        assert_eq!(pauses[3..], [AGAIN.1; 2]);
    }
}
