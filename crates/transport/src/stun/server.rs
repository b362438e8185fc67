//! Whether, where and how often requests are answered.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Instant;

use super::observe;
use crate::pace::Pace;

/// What an endpoint that answers requests keeps: nothing of those who ask.
#[derive(Debug, Default)]
pub(crate) struct StunServer {
    answers: AtomicBool,
    /// Another port that answers too; 0 if there is none.
    beside: AtomicU16,
    pace: Pace,
}

impl StunServer {
    /// Requests are answered from now on. False if they were before.
    pub(crate) fn begin(&self) -> bool {
        !self.answers.swap(true, Ordering::Relaxed)
    }

    /// Requests are answered at another port of this host too.
    pub(crate) fn set_beside(&self, port: u16) {
        self.beside.store(port, Ordering::Relaxed);
    }

    /// The answer to a datagram that came to the endpoint's own port, if it is a request, and its turn.
    pub(crate) fn answer(&self, datagram: &[u8], from: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        if !self.answers.load(Ordering::Relaxed) {
            return None;
        }
        let beside = Some(self.beside.load(Ordering::Relaxed)).filter(|port| *port != 0);
        self.in_turn(observe(datagram, from, beside), now)
    }

    /// As [`answer`](Self::answer), for a datagram that came to the other port.
    pub(crate) fn answer_beside(&self, datagram: &[u8], from: SocketAddr, now: Instant) -> Option<Vec<u8>> {
        self.in_turn(observe(datagram, from, None), now)
    }

    fn in_turn(&self, answer: Option<Vec<u8>>, now: Instant) -> Option<Vec<u8>> {
        answer.filter(|_| self.pace.is_free(now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::request;
    use super::*;

    #[test]
    fn only_requests_are_answered_once_that_has_begun_and_no_more_than_have_their_turn() {
        let (server, now) = (StunServer::default(), Instant::now());
        let (from, asked) = (SocketAddr::from(([192, 0, 2, 1], 7)), request(&[1; 12]));
        assert!(server.answer(&asked, from, now).is_none());
        assert!(server.begin() && !server.begin());
        let alone = server.answer(&asked, from, now);
        assert!(alone.is_some() && server.answer(b"not a request", from, now).is_none());
        server.set_beside(9);
        let told = server.answer(&asked, from, now);
        assert!(told.is_some() && told != alone, "it is not told of the other port");
        assert_eq!(server.answer_beside(&asked, from, now), alone);
        let answered = (0..10_000).filter(|_| server.answer(&asked, from, now).is_some()).count();
        assert!(answered > 0 && answered < 1000, "{answered}");
    }
}
