//! A move of a session from one device to another.

use super::{Ending, Holder, REFUSAL, Session, Take, Taking, Wait};
use crate::gateway::{Answer, Status};
use crate::sessions::frame::{Frame, Paused};
use crate::sessions::line::Heard;
use crate::sessions::seat::{MOST_UP, Seat};
use crate::sessions::table::NoSession;
use std::sync::Arc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;

impl Session {
    /// Begins a move.
    pub(super) fn begin(&mut self, take: Take) -> Option<Ending> {
        if self.server.is_tls() {
            let why = "TLS ends in the program that began it, and what is kept is under its keys";
            refuse(take, &Answer::new(Status::NotAllowed, why));
            return self.hold();
        }
        if self.server.waiting().len() >= MOST_UP {
            refuse(take, &busy());
            return self.hold();
        }
        self.is_spared = true;
        let device = take.claim.device();
        tracing::debug!(session = %self.listing.id(), to = %device.short(), "a session is to move");
        self.taking = Some(Taking::Pausing { take, wait: Wait { begun: Instant::now(), heard: None } });
        match &mut self.holder {
            Holder::Seat(seat) => {
                seat.pause();
                None
            }
            Holder::None(_) => self.attach(self.server.kept().base()),
        }
    }

    /// The device before has stopped.
    pub(super) fn paused(&mut self, paused: Paused) -> Option<Ending> {
        if !matches!(self.taking, Some(Taking::Pausing { .. })) {
            return None;
        }
        if paused.is_whole {
            return self.attach(paused.taken);
        }
        if let Some(Taking::Pausing { take, .. }) = self.taking.take() {
            refuse(take, &busy());
        }
        self.go_back()
    }

    /// The device before was waited for long enough.
    pub(super) fn waited(&mut self, has_answered: bool) -> Option<Ending> {
        if !has_answered {
            // It does not listen: its last count holds.
            if let Holder::Seat(before) = self.take_holder() {
                if before.has_gap() {
                    before.dismiss(&Frame::Broken);
                    return Some(Ending::Gap);
                }
                before.dismiss(&Frame::Moved);
            }
            return self.attach(self.server.kept().base());
        }
        // It is there, and what its program sent is under way: without that the session must not go on.
        if let Some(Taking::Pausing { take, .. }) = self.taking.take() {
            refuse(take, &busy());
        }
        self.go_back()
    }

    /// Gives the new device the server's bytes from an offset on.
    pub(super) fn attach(&mut self, offset: u64) -> Option<Ending> {
        let Some(Taking::Pausing { take, .. }) = self.taking.take() else { return None };
        let Take { stream, mut claim, rule, place } = take;
        claim.offered();
        // Before `moves` is one more: that is so once the device has confirmed.
        self.moves += 1;
        let words = self.words("the session goes on", offset);
        self.moves -= 1;
        let seat = Box::new(Seat::new(stream, &words, offset, &self.server, Arc::new(place)));
        self.taking =
            Some(Taking::Confirming { seat, claim, rule, until: Instant::now() + self.settings.confirm });
        None
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
        let Some(Taking::Confirming { mut seat, mut claim, rule, .. }) = self.taking.take() else {
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
        self.busy = Instant::now();
        self._place = Some(seat.place());
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
                if let Some(Taking::Pausing { take, .. }) = self.taking.take() {
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
        self.listing.give_back(device);
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

fn busy() -> Answer {
    Answer::new(Status::Full, "what the program sent is on its way to the server; try again later")
}

/// Tells a device why it does not get the session, meanwhile.
pub(super) fn refuse(take: Take, answer: &Answer) {
    let (mut stream, words) = (take.stream, answer.encode());
    tokio::spawn(async move {
        let telling = tokio::io::AsyncWriteExt::write_all(&mut stream, &words);
        // A device that does not listen is left.
        let _ = tokio::time::timeout(REFUSAL, telling).await;
    });
}
