//! Whether all that HTTP has to say to a client is in the client's socket. Nothing tells that of itself:
//! HTTP/2 has queues of its own, and TLS another one.
//!
//! What shows it is one whole turn of the connection, begun after it was asked, in which nothing was written
//! after everything was flushed: it looks for what comes, writes and flushes, and looks again.

use futures_util::task::AtomicWaker;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Waker;

/// Nobody asks.
const IDLE: u8 = 0;
/// It was asked, or something was written since.
const ASKED: u8 = 1;
/// A turn began after that.
const TURNED: u8 = 2;
/// In which everything was flushed.
const FLUSHED: u8 = 3;
/// And nothing was written until the next turn.
const DONE: u8 = 4;

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    step: AtomicU8,
    connection: AtomicWaker,
}

impl Flushed {
    /// Asks from now on.
    pub(super) fn ask(&self) {
        self.step.store(ASKED, Ordering::SeqCst);
        self.connection.wake();
    }

    /// Whether it is so. If not, the connection has another turn.
    pub(super) fn is_so(&self) -> bool {
        let is_so = self.step.load(Ordering::SeqCst) == DONE;
        self.connection.wake();
        is_so
    }

    /// The connection waits for what comes: its turn begins, or has begun.
    pub(super) fn waits(&self, connection: &Waker) {
        self.connection.register(connection);
        self.goes_on(ASKED, TURNED);
        self.goes_on(FLUSHED, DONE);
    }

    /// Everything that it wrote is in the socket, or not yet.
    pub(super) fn flushed(&self, everything: bool) {
        if everything {
            self.goes_on(TURNED, FLUSHED);
        } else {
            self.wrote();
        }
    }

    /// It has written something, or would.
    pub(super) fn wrote(&self) {
        for step in [TURNED, FLUSHED, DONE] {
            self.goes_on(step, ASKED);
        }
    }

    fn goes_on(&self, from: u8, to: u8) {
        // Mostly nobody asks.
        if self.step.load(Ordering::Relaxed) != IDLE {
            // Another step is none of this.
            let _ = self.step.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_out_after_a_whole_turn_without_a_word_and_not_before() {
        let (flushed, waker) = (Flushed::default(), Waker::noop());
        let turn = || {
            flushed.waits(waker);
            flushed.flushed(true);
        };
        turn();
        assert!(!flushed.is_so(), "nobody asked");
        flushed.ask();
        // The rest of a turn that had begun before.
        flushed.flushed(true);
        assert!(!flushed.is_so());
        turn();
        assert!(!flushed.is_so(), "this turn may have more to say");
        flushed.wrote();
        flushed.flushed(true);
        flushed.waits(waker);
        assert!(!flushed.is_so(), "it had");
        flushed.flushed(false);
        turn();
        flushed.waits(waker);
        assert!(flushed.is_so());
        flushed.flushed(true);
        assert!(flushed.is_so(), "it stays so");
        flushed.wrote();
        assert!(!flushed.is_so());
    }
}
