//! What the engine knows of one path, in parts: segments on their way out, segments that came in, signs of
//! life, measured figures, and where the path stands between its opening and its end.

mod beginning;
mod datagrams;
mod figures;
mod incoming;
mod liveness;
mod outgoing;
mod succession;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::content::Content;
use crate::handover::{Agreed, Priority};
use crate::ids::PathId;
use crate::scheduler::PathSnapshot;
use crate::timeouts::Silence;
use beginning::Beginning;
use datagrams::Datagrams;
use figures::Figures;
use incoming::Incoming;
use liveness::Liveness;
use outgoing::{Acknowledged, Outgoing};
use succession::Succession;

pub(crate) use datagrams::{Flying, Leaver, Leavers};
pub(crate) use outgoing::Sent;

/// Where a path stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathState {
    /// Our OPEN or JOIN is not answered yet.
    Opening,
    /// Carries data.
    Active,
    /// No progress for too long; carries nothing new, but may come back.
    Suspect,
    /// Carries nothing new, in either direction; ends when all that was sent on it has arrived.
    Retiring,
    /// Given up; kept until both sides know what arrived on it.
    Lost,
}

/// The frame that a path starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    Open,
    Accept,
    Join,
    Joined,
    /// As `Joined`, with the claim of a server that was read back.
    Resumed,
    /// By TAKE_OVER, if there is a reason for it by then; else as `Join`.
    TakeOver,
    TakenOver,
    Done,
}

/// A path's way from its opening until both sides know what arrived on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Active,
    Suspect,
    Retiring,
    /// Retiring, and everything has arrived: our count is final, and the peer is told. The carrier stays
    /// until it knows.
    Drained,
    /// Given up: our count is final.
    Lost,
    /// The peer knows our final count.
    Told,
    /// We know the peer's final count.
    Heard,
    /// Both.
    Settled,
}

#[derive(Debug)]
pub(crate) struct Path {
    stage: Stage,
    pub(crate) beginning: Beginning,
    pub(crate) succession: Succession,
    pub(crate) priority: Agreed<Priority>,
    /// A sign of life is to be asked for.
    pub(crate) ping: bool,
    /// It may fail soon, as something below says.
    pub(crate) at_risk: bool,
    /// CLOSE_ACK is to be said here too: nobody knows which path works, and no later word will tell.
    pub(crate) last_word: bool,
    /// What the carrier is given goes on the wire at once, as far as the driver knows.
    pub(crate) takes_now: bool,
    /// Mode `redundant`: what other paths carried and this one has not.
    pub(crate) copies: VecDeque<Content>,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    pub(crate) datagrams: Datagrams,
    pub(crate) liveness: Liveness,
    pub(crate) figures: Figures,
}

impl Path {
    pub(crate) fn new(first: First, now: Instant, rtt_hint: Option<Duration>, early_limit: u64) -> Self {
        let stage = match first {
            First::Open | First::Join | First::TakeOver => Stage::Opening,
            _ => Stage::Active,
        };
        Self {
            stage,
            beginning: Beginning::new(first, early_limit),
            succession: Succession::default(),
            priority: Agreed::unsaid(Priority::Normal),
            ping: false,
            at_risk: false,
            last_word: false,
            takes_now: true,
            copies: VecDeque::new(),
            outgoing: Outgoing::new(now),
            incoming: Incoming::new(now),
            datagrams: Datagrams::new(now, rtt_hint),
            liveness: Liveness::new(now),
            figures: Figures::new(now, rtt_hint),
        }
    }

    pub(crate) fn state(&self) -> PathState {
        match self.stage {
            Stage::Opening => PathState::Opening,
            Stage::Active => PathState::Active,
            Stage::Suspect => PathState::Suspect,
            Stage::Retiring | Stage::Drained => PathState::Retiring,
            Stage::Lost | Stage::Told | Stage::Heard | Stage::Settled => PathState::Lost,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.stage == Stage::Active
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.stage == Stage::Opening
    }

    /// The peer opened it, which shows that its segments arrive. Ours have not, as far as is known.
    pub(crate) fn is_unproven(&self) -> bool {
        self.beginning.is_unproven() && self.outgoing.is_unheard()
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.stage == Stage::Suspect
    }

    pub(crate) fn is_retiring(&self) -> bool {
        matches!(self.stage, Stage::Retiring | Stage::Drained)
    }

    pub(crate) fn is_live(&self) -> bool {
        self.state() != PathState::Lost
    }

    /// Live, and not about to end.
    pub(crate) fn stays(&self) -> bool {
        matches!(self.stage, Stage::Opening | Stage::Active | Stage::Suspect)
    }

    /// Our count of what was received is final, and the peer may not know it.
    pub(crate) fn owes_final(&self) -> bool {
        matches!(self.stage, Stage::Drained | Stage::Lost | Stage::Heard)
    }

    /// We know the peer's final count.
    pub(crate) fn has_heard_final(&self) -> bool {
        matches!(self.stage, Stage::Heard | Stage::Settled)
    }

    /// Both sides know everything about this lost path.
    pub(crate) fn is_settled(&self) -> bool {
        self.stage == Stage::Settled
    }

    /// The peer answered. False if it did before.
    #[must_use]
    pub(crate) fn answer(&mut self, now: Instant) -> bool {
        let waited = self.is_opening();
        if waited {
            self.stage = Stage::Active;
            self.liveness.begin(now);
        }
        waited
    }

    /// The path makes no progress. True if that is new.
    pub(crate) fn suspect(&mut self) -> bool {
        let new = self.is_active();
        if new {
            self.stage = Stage::Suspect;
            // With nothing under way, no acknowledgement could ever show that it works.
            self.ping |= self.outgoing.in_flight() == 0;
        }
        new
    }

    /// The path makes progress. True if it was suspect.
    pub(crate) fn progress(&mut self, now: Instant) -> bool {
        self.liveness.progressed(now);
        let revived = self.is_suspect();
        if revived {
            self.stage = Stage::Active;
        }
        revived
    }

    /// Carries nothing new from now on. A silence as long as [`Liveness::retire`] says makes it lost.
    pub(crate) fn retire(&mut self, now: Instant, patience: Duration, last_words: Duration) {
        self.stage = Stage::Retiring;
        self.liveness.retire(now, patience, last_words);
        self.ping = false;
        self.last_word = false;
        self.copies.clear();
        if self.incoming.has_news() {
            self.incoming.owe_now();
        }
        self.datagrams.arriving.owe_now();
    }

    /// Notes that nothing is missing any more on a path that retires. True the first time.
    pub(crate) fn drain(&mut self) -> bool {
        let whole = self.incoming.is_whole() && self.outgoing.in_flight() == 0;
        let drained = self.stage == Stage::Retiring && whole;
        if drained {
            self.stage = Stage::Drained;
        }
        drained
    }

    /// The path is given up. True if our final count has yet to be said: one that retired in order has said
    /// it.
    pub(crate) fn lose(&mut self) -> bool {
        let said = self.stage == Stage::Drained;
        self.stage = Stage::Lost;
        self.incoming.owe_nothing();
        self.datagrams.arriving.owe_nothing();
        !said
    }

    /// The peer knows our final count. True if the path only waited for that to be given up.
    pub(crate) fn final_told(&mut self) -> bool {
        self.stage = match self.stage {
            Stage::Lost => Stage::Told,
            Stage::Heard => Stage::Settled,
            other => other,
        };
        self.stage == Stage::Drained
    }

    /// The peer has told its final count of this lost path: nothing else will be acknowledged.
    pub(crate) fn final_heard(&mut self) {
        self.stage = match self.stage {
            Stage::Lost => Stage::Heard,
            Stage::Told => Stage::Settled,
            other => other,
        };
        self.outgoing.forget();
    }

    /// Bytes that may be sent before the peer answers.
    pub(crate) fn early_room(&self) -> u64 {
        self.beginning.early_room(self.outgoing.bytes())
    }

    pub(crate) fn note_sent(
        &mut self,
        now: Instant,
        size: usize,
        eliciting: bool,
        contents: SmallVec<[Content; 1]>,
    ) {
        let full = eliciting && self.figures.is_full(self.outgoing.in_flight());
        if self.outgoing.note(now, size, eliciting, full, contents) {
            self.liveness.begin(now);
        }
    }

    /// Learns from an acknowledgement that the peer held back for `delay`.
    pub(crate) fn measure(&mut self, now: Instant, acknowledged: &Acknowledged, delay: Duration) {
        if let Some(newest) = acknowledged.newest() {
            let delivery = self.outgoing.delivery(now, newest);
            self.figures.measure(now, newest, delay, &delivery);
        }
    }

    /// Takes out what shall go again on another path while this one may still deliver it.
    pub(crate) fn repeat_elsewhere(&mut self) -> Vec<Content> {
        let opening = self.is_opening();
        self.outgoing.repeat_elsewhere(opening)
    }

    pub(crate) fn snapshot(&self, id: PathId, now: Instant) -> PathSnapshot {
        let in_flight = self.outgoing.in_flight();
        let figures = &self.figures;
        PathSnapshot {
            id,
            opening: self.is_opening(),
            unproven: self.is_unproven(),
            suspect: self.is_suspect(),
            backup: self.priority.value == Priority::Backup,
            srtt: figures.srtt(),
            rttvar: figures.rtt().variation(),
            base_rtt: figures.base_rtt(),
            rate: figures.rate(),
            growing: figures.is_growing(),
            in_flight,
            room: figures.has_room(),
            silent: if in_flight > 0 { self.liveness.silent(now) } else { Duration::ZERO },
            last_used: figures.last_used(),
            delivered: self.outgoing.delivered(),
            datagram: self.datagram_arrival(now),
        }
    }

    /// How long a message in a datagram takes to arrive, losses included; `None` if none may go in one. It
    /// does not wait for what this side has not sent yet.
    fn datagram_arrival(&self, now: Instant) -> Option<Duration> {
        let leaving = &self.datagrams.leaving;
        let base = self.figures.base_rtt();
        (self.datagrams.room() > 0).then(|| {
            // The way there has all of the queue, as far as is known.
            let round_trip = leaving.round_trip(now).unwrap_or_else(|| self.figures.srtt());
            round_trip.saturating_sub(base / 2).max(base / 2) + leaving.delay_of_losses(now, round_trip * 2)
        })
    }

    /// How long a silence makes the path suspect.
    pub(crate) fn patience(&self, silence: Silence) -> Duration {
        self.figures.rtt().suspect_after(silence)
    }

    /// When it becomes suspect if it stays silent. Beside another path that works it costs little; on the
    /// `only` one others are opened then, on which handshakes stand behind what has queued.
    pub(crate) fn suspect_deadline(&self, silence: Silence, only: bool) -> Option<Instant> {
        let patience = self.patience(silence);
        (self.is_active() && self.outgoing.in_flight() > 0).then(|| match only {
            true => self.liveness.lenient_deadline(patience),
            false => self.liveness.deadline(patience),
        })
    }

    /// When to stop waiting for what is missing on a path that retires.
    pub(crate) fn retire_deadline(&self) -> Option<Instant> {
        self.is_retiring().then(|| self.liveness.retire_deadline(self.outgoing.in_flight()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> (Path, Instant) {
        let now = Instant::now();
        (Path::new(First::Accept, now, None, 0), now)
    }

    #[test]
    fn a_path_that_the_peer_opened_is_proven_by_its_carrier_or_by_an_acknowledgement() {
        let (mut path, now) = path();
        assert!(path.is_unproven() && !path.snapshot(PathId(0), now).is_sure());
        path.note_sent(now, 10, true, SmallVec::new());
        assert!(path.outgoing.acknowledge(1).is_some() && !path.is_unproven());
        let mut other = Path::new(First::Joined, now, None, 0);
        other.beginning.prove();
        assert!(!other.is_unproven() && other.snapshot(PathId(1), now).is_sure());
        assert!(!Path::new(First::Join, now, None, 0).is_unproven(), "our own is answered or still opening");
    }

    #[test]
    fn a_lost_path_is_settled_when_both_counts_are_known_in_either_order() {
        for told_first in [true, false] {
            let (mut path, _) = path();
            assert!(path.lose() && path.owes_final() && !path.is_settled());
            if told_first {
                assert!(!path.final_told() && !path.owes_final());
                path.final_heard();
            } else {
                path.final_heard();
                assert!(path.owes_final() && path.has_heard_final());
                path.final_told();
            }
            assert!(path.is_settled() && !path.owes_final());
        }
    }

    #[test]
    fn a_path_that_retires_is_drained_once_and_has_said_its_count_when_it_is_lost() {
        let (mut path, now) = path();
        path.retire(now, Duration::from_secs(1), Duration::ZERO);
        assert!(!path.drain(), "the peer has not said where it ends");
        assert!(path.incoming.ends_at(0) && path.drain() && !path.drain());
        assert!(path.is_live() && path.owes_final());
        assert!(path.final_told(), "now the carrier may go");
        assert!(!path.lose());
        assert!(!path.final_told() && !path.owes_final());
    }
}
