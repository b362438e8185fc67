//! A move of a session from one device to another.

use super::wait::{Verdict, Wait};
use super::{Ending, Holder, REFUSAL, Session, Take, Taking};
use crate::sessions::ahead::Ahead;
use crate::sessions::entry::Entry;
use crate::sessions::frame::{Frame, Paused};
use crate::sessions::line::{Heard, round_trip};
use crate::sessions::message::{GOES_ON, How};
use crate::sessions::seat::{MOST_UP, Seat};
use crate::sessions::table::NoSession;
use crate::{Answer, Place, Status};
use futures_util::FutureExt;
use std::sync::Arc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// What the device is told that has a session from now on, where it may lack something.
const CUT: &str = "the device before did not say how far it was: what its program sent last may be missing";

impl Session {
    /// Begins a move.
    pub(super) fn begin(&mut self, mut take: Take) -> Option<Ending> {
        if self.server.is_tls() {
            let why = "TLS ends in the program that began it, and what is kept is under its keys";
            refuse(take, &Answer::new(Status::NotAllowed, why));
            return self.hold();
        }
        let is_lenders = take.claim.is_lenders();
        // The device that has it could keep so much waiting. What is taken back is lent no more, so that this
        // does not grow with each move.
        let most_waiting = if is_lenders { 2 * MOST_UP } else { MOST_UP };
        if self.server.waiting().len() >= most_waiting {
            refuse(take, &busy(false));
            return self.hold();
        }
        self.is_spared = true;
        let device = take.claim.device();
        tracing::debug!(session = %self.listing.id(), to = %device.short(), "a session is to move");
        take.claim.begins();
        let wait = Wait::new(take.claim.insists(), &self.settings, Instant::now());
        match &mut self.holder {
            Holder::Seat(seat) => {
                seat.pause();
                if take.how == How::Ahead {
                    take.ahead = self.ahead(&take.stream);
                }
                self.taking = Some(Taking::Pausing { take, wait });
                None
            }
            Holder::None(_) => {
                self.taking = Some(Taking::Pausing { take, wait });
                self.attach(self.server.kept().base())
            }
        }
    }

    /// What goes ahead to a device that takes the session, where the answer of the one before is far away.
    fn ahead(&self, to: &Stream) -> Option<Ahead> {
        let Holder::Seat(before) = &self.holder else { return None };
        let (near, far) = (round_trip(&to.connection().stats())?, before.round_trip()?);
        let is_worth_it = far >= near.saturating_mul(self.settings.ahead_from);
        if is_worth_it { Ahead::new(before.on_its_way(), &self.server, near) } else { None }
    }

    /// The device before has stopped.
    pub(super) fn paused(&mut self, paused: Paused) -> Option<Ending> {
        match &self.taking {
            Some(Taking::Pausing { .. }) if paused.is_whole => self.attach(paused.taken),
            Some(Taking::Pausing { wait, .. }) if wait.is_last() => self.cut_off(),
            Some(Taking::Pausing { .. }) => self.turn_down(busy),
            Some(Taking::Confirming { .. }) | None => None,
        }
    }

    /// The device before has not said yet how far it is.
    pub(super) fn waited(&mut self, now: Instant) -> Option<Ending> {
        let (Some(Taking::Pausing { wait, .. }), Holder::Seat(before)) = (&mut self.taking, &self.holder)
        else {
            return None;
        };
        match wait.judge(before.unreachable(), &self.settings, now) {
            Verdict::Wait => None,
            Verdict::Silent => self.turn_down(silent),
            Verdict::Late => self.turn_down(busy),
            // It may come back with what it announced.
            Verdict::Gone if before.has_gap() && !wait.is_last() => self.turn_down(busy),
            Verdict::Gone | Verdict::Overruled => self.cut_off(),
        }
    }

    /// The device before stays, for a reason that depends on whether the one that is to have the session has
    /// lent it.
    fn turn_down(&mut self, why: impl FnOnce(bool) -> Answer) -> Option<Ending> {
        if let Some(Taking::Pausing { take, .. }) = self.taking.take() {
            take.claim.is_kept_off();
            let answer = why(take.claim.is_lenders());
            refuse(take, &answer);
        }
        self.go_back()
    }

    /// The device before is not waited for any more: its last count holds.
    fn cut_off(&mut self) -> Option<Ending> {
        if let Holder::Seat(before) = self.take_holder() {
            before.dismiss(&Frame::Moved);
        }
        self.cut();
        self.attach(self.server.kept().base())
    }

    /// Gives the new device the server's bytes from an offset on; if it enters a film, from where it can.
    pub(super) fn attach(&mut self, offset: u64) -> Option<Ending> {
        let Some(Taking::Pausing { take, .. }) = self.taking.take() else { return None };
        let Take { stream, claim, rule, how, ahead, place } = take;
        let enters = how == How::Enters;
        let entry = if enters { self.server.entry(offset) } else { None };
        let offset = entry.as_ref().map_or(offset, |entry| entry.place.min(offset));
        // Before `moves` is one more: that is so once the device has confirmed.
        self.moves += 1;
        let (ahead, mut words) = ahead.map(Ahead::close).unwrap_or_default();
        words.extend(self.words(if self.is_cut { CUT } else { GOES_ON }, offset));
        if enters {
            words.extend_from_slice(&Entry::told(entry.as_ref()));
        }
        self.moves -= 1;
        let place = place.map_or_else(|| self.place_for(stream.peer_id()), Arc::new);
        let seat = Box::new(Seat::new(stream, &words, offset, &self.server, place).with_ahead(ahead));
        self.taking = Some(Taking::Confirming {
            seat,
            claim,
            rule,
            offset,
            until: Instant::now() + self.settings.confirm,
        });
        None
    }

    /// The session's own place, for a device whose own it is.
    fn place_for(&self, device: EndpointId) -> Arc<Place<EndpointId>> {
        if *self.place.peer() == device { self.place.clone() } else { Arc::new(self.place.beside(device)) }
    }

    pub(super) fn hear_taker(&mut self, heard: &Heard) -> Option<Ending> {
        match heard {
            Heard::Nothing => None,
            // The program is there.
            Heard::Frame(frame @ Frame::Count(_)) => self.confirm(frame),
            Heard::Frame(_) | Heard::Gone => {
                tracing::debug!(session = %self.listing.id(), "a device left before it had a session");
                self.taking = None;
                self.go_back()
            }
        }
    }

    /// The new device has the session.
    pub(super) fn confirm(&mut self, count: &Frame) -> Option<Ending> {
        let Some(Taking::Confirming { mut seat, mut claim, rule, offset, .. }) = self.taking.take() else {
            return None;
        };
        if !seat.hear(count, &mut self.server) {
            drop(claim);
            return self.go_back();
        }
        let Ok(moves) = claim.confirm(rule) else {
            drop(claim);
            return self.go_back();
        };
        self.moves = moves;
        self.server.goes_on_at(offset);
        if let Frame::Count(taken) = count {
            // It may have taken some already of what is there again.
            self.server.taken(*taken);
        }
        self.busy = Instant::now();
        self.place = seat.place();
        self.is_cut = false;
        self.growth.begin_anew();
        self.listing.share().go_to(seat.device());
        if let Holder::Seat(before) = std::mem::replace(&mut self.holder, Holder::Seat(seat)) {
            before.dismiss(&Frame::Moved);
        }
        drop(claim);
        self.hold()
    }

    /// A device may have the session no more, and not take it either.
    pub(super) fn recall(&mut self, device: EndpointId) -> Option<Ending> {
        match &self.taking {
            Some(Taking::Pausing { take, .. }) if take.claim.device() == device => {
                if let Some(Taking::Pausing { mut take, .. }) = self.taking.take() {
                    take.claim.withdrawn();
                    refuse(take, &Answer::new(Status::NoSession, &NoSession.to_string()));
                }
                return self.go_back();
            }
            Some(Taking::Confirming { seat, .. }) if seat.device() == device => {
                if let Some(Taking::Confirming { mut claim, .. }) = self.taking.take() {
                    claim.withdrawn();
                }
                return self.go_back();
            }
            _ => {}
        }
        if let Some(lender) = self.listing.give_back(device) {
            self.place = self.place_for(lender);
        }
        match &self.holder {
            // Its last count holds.
            Holder::Seat(seat) if seat.device() == device => self.hear_holder(&Heard::Gone),
            Holder::Seat(_) | Holder::None(_) => None,
        }
    }

    /// The device before goes on, if it is there still.
    pub(super) fn go_back(&mut self) -> Option<Ending> {
        match &mut self.holder {
            Holder::Seat(seat) => seat.resume(),
            Holder::None(_) => self.holder = self.nobody(),
        }
        self.hold()
    }
}

/// Says that the device before has not sent all yet.
fn busy(is_lenders: bool) -> Answer {
    told("what the program sent is on its way to the server; try again later", is_lenders)
}

/// Says that the device before does not answer.
fn silent(is_lenders: bool) -> Answer {
    told("the device that has it is connected and does not answer; try again later", is_lenders)
}

fn told(why: &str, is_lenders: bool) -> Answer {
    let more = if is_lenders { ": it is yours then, and what is missing is left out" } else { "" };
    Answer::new(Status::Full, &format!("{why}{more}"))
}

/// Tells a device that it may take the session in a moment.
pub(super) fn refuse_for_now(take: Take) {
    refuse(take, &Answer::new(Status::Full, "the gateway goes on in another process just now; try again"));
}

/// Tells a device why it does not get the session, meanwhile.
pub(super) fn refuse(take: Take, answer: &Answer) {
    let before = take.ahead.map(|ahead| ahead.close().1).unwrap_or_default();
    let (mut stream, words) = (take.stream, [before, answer.encode()].concat());
    tokio::spawn(FutureExt::boxed(async move {
        let telling = tokio::io::AsyncWriteExt::write_all(&mut stream, &words);
        // A device that does not listen is left.
        let _ = tokio::time::timeout(REFUSAL, telling).await;
    }));
}
