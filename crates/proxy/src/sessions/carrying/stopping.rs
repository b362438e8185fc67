//! A device that stops, so that its session can move: how far its program is, is then known to the byte.

use super::super::program::Program;
use std::time::Duration;
use tokio::time::Instant;

/// It is looked at so often.
const LOOK: Duration = Duration::from_millis(5);
/// A program whose kernel has taken nothing for so long does not read. Longer than any kernel keeps an
/// acknowledgement back (200 ms): they count where the program is on another host.
const STILL: Duration = Duration::from_millis(250);
/// A program that takes longer, and goes on reading, has it all counted: it is waited for when the session
/// has moved.
const LIMIT: Duration = Duration::from_millis(750);
/// So long, also if the session breaks then.
const READ_ON: Duration = Duration::from_secs(60);

/// Whether a device goes on.
pub(super) enum Phase {
    /// It does.
    Active,
    /// Nothing more is written to the program.
    Stopping(Stopping),
    /// The gateway knows how far it is.
    Stopped(Stopped),
    /// Both directions have ended. The gateway says so until then.
    Over(Instant),
}

/// What is looked at while a device stops.
pub(super) struct Stopping {
    since: Instant,
    looked: Option<Instant>,
    undelivered: u64,
    /// Since when that has not changed.
    still: Instant,
}

/// How a program stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Its kernel has all that was written.
    All,
    /// It does not read, and so many bytes do not reach it any more: it must be let go at this moment, since
    /// a timer of this side's kernel, or the program itself, may change that.
    Still(u64),
    /// It reads slowly, and will have all that was written.
    Reading,
}

impl Stopped {
    /// What was written, and will not be the program's.
    pub(super) fn undelivered(self) -> u64 {
        match self {
            Self::All | Self::Reading => 0,
            Self::Still(undelivered) => undelivered,
        }
    }
}

impl Stopping {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, looked: None, undelivered: u64::MAX, still: now }
    }

    /// When to look next.
    pub(super) fn next(&self) -> Instant {
        self.looked.map_or(self.since, |looked| looked + LOOK)
    }

    /// How the program stopped, once it has.
    pub(super) fn has_stopped(&mut self, program: &mut Program, written: u64) -> Option<Stopped> {
        let now = Instant::now();
        if now < self.next() {
            return None;
        }
        self.looked = Some(now);
        self.look(program.undelivered(written), now)
    }

    fn look(&mut self, undelivered: u64, now: Instant) -> Option<Stopped> {
        if undelivered == 0 {
            return Some(Stopped::All);
        }
        if undelivered != self.undelivered {
            (self.undelivered, self.still) = (undelivered, now);
        }
        if now >= self.still + STILL {
            return Some(Stopped::Still(undelivered));
        }
        (now >= self.since + LIMIT).then_some(Stopped::Reading)
    }
}

impl Phase {
    pub(super) fn pause(&mut self) {
        if matches!(self, Self::Active | Self::Over(_)) {
            *self = Self::Stopping(Stopping::new());
        }
    }

    pub(super) fn resume(&mut self) {
        *self = Self::Active;
    }
}

/// Returns once the kernel of a program that is let go has all that was counted as its own.
pub(super) async fn let_go(program: &mut Program, written: u64, promised: u64) {
    let until = Instant::now() + READ_ON;
    while written.saturating_sub(program.undelivered(written)) < promised && Instant::now() < until {
        tokio::time::sleep(4 * LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_reads_slowly_is_told_from_one_that_does_not() {
        let mut stopping = Stopping::new();
        let at = |millis| stopping.since + Duration::from_millis(millis);
        let [start, early, later, end] = [at(0), at(200), at(449), at(450)];
        assert_eq!(stopping.look(10, start), None);
        assert_eq!(stopping.look(5, early), None);
        assert_eq!(stopping.look(5, later), None, "still for less than it takes to know");
        assert_eq!(stopping.look(5, end), Some(Stopped::Still(5)));
        let mut slow = Stopping::new();
        for tick in 0..74 {
            assert_eq!(slow.look(1000 - tick, slow.since + Duration::from_millis(10 * tick)), None);
        }
        assert_eq!(slow.look(1, slow.since + LIMIT), Some(Stopped::Reading));
        assert_eq!(slow.look(0, slow.since + LIMIT), Some(Stopped::All));
    }
}
