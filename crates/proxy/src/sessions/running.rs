//! One session at its gateway: a server's connection, and the device that has it.

mod ending;
mod keeping;
mod moving;

use super::frame::Frame;
use super::line::Heard;
use super::message::{Granted, Takers};
use super::seat::Seat;
use super::server::Server;
use super::table::{Claim, Listing};
use crate::gateway::{Answer, Status};
use crate::{Destination, Place};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Ready;
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// For a refusal to be taken.
const REFUSAL: Duration = Duration::from_secs(10);

/// Bounds and limits of a gateway's sessions.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct SessionSettings {
    /// The most bytes of a server that are kept because no program has taken them. Then the server waits.
    pub most_kept: usize,
    /// How long a session is kept that no device has.
    pub hold: Duration,
    /// How many such sessions of one device there are.
    pub most_held: usize,
    /// How many bytes are kept for them.
    pub most_held_bytes: u64,
    /// How many bytes all sessions of one device keep, those of programs that wait for a server among them.
    /// Then its servers wait too; each of its sessions has 64 KiB whatever the others keep.
    pub most_bytes_each: u64,
    /// How many bytes all sessions keep, likewise.
    pub most_bytes: u64,
    /// A session without a byte for so long ends.
    pub idle: Duration,
    /// A device that has a session which is to move, and says nothing for so long, is given up: its last
    /// count holds.
    pub pause: Duration,
    /// A device that does say something is waited for so long, until all that it sent is here. Then the
    /// session does not move.
    pub most_pause: Duration,
    /// For the device that takes a session to say that its program is there.
    pub confirm: Duration,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            most_kept: 1024 * 1024,
            hold: Duration::from_secs(60),
            most_held: 32,
            most_held_bytes: 16 * 1024 * 1024,
            most_bytes_each: 32 * 1024 * 1024,
            most_bytes: 512 * 1024 * 1024,
            // As long as NAT gateways must keep theirs (RFC 5382, REQ-5).
            idle: Duration::from_secs(124 * 60),
            // A slow link's round trip, a loss, and the time that a device takes to stop.
            pause: Duration::from_secs(5),
            // The device that takes a session waits for 30 s.
            most_pause: Duration::from_secs(20),
            confirm: Duration::from_secs(10),
        }
    }
}

/// What a session is told to do.
pub(super) enum Order {
    /// To go to another device.
    Take(Box<Take>),
    /// To leave this device, which may have it no more.
    Recall(EndpointId),
    /// To use a second stream to the device that has it, or is about to, after so many moves.
    Control(Stream, u32),
}

/// A device that takes a session.
pub(super) struct Take {
    pub(super) stream: Stream,
    pub(super) claim: Claim,
    pub(super) rule: Takers,
    pub(super) place: Place<EndpointId>,
}

/// One session.
pub(super) struct Session {
    to: Destination,
    server: Server,
    listing: Listing,
    orders: mpsc::Receiver<Order>,
    settings: SessionSettings,
    holder: Holder,
    taking: Option<Taking>,
    moves: u32,
    /// When bytes came or went last.
    busy: Instant,
    /// It was to move, so that its device sent on all at once: that may wait, whatever others keep.
    is_spared: bool,
    /// Counts it as its device's, also while it is held.
    _place: Option<Arc<Place<EndpointId>>>,
}

/// Whether a device has the session.
enum Holder {
    Seat(Box<Seat>),
    /// None has, until this moment.
    None(Instant),
}

/// A move that is under way.
enum Taking {
    /// The device before is asked how far it is.
    Pausing { take: Take, wait: Wait },
    /// The new device is asked whether its program is there.
    Confirming { seat: Box<Seat>, claim: Claim, rule: Takers, until: Instant },
}

/// For a device that is asked how far it is.
#[derive(Clone, Copy)]
struct Wait {
    begun: Instant,
    /// When it said something last, if it did since.
    heard: Option<Instant>,
}

/// What happened.
enum Step {
    Server(io::Result<Ready>),
    Holder(Heard),
    Taker(Heard),
    Order(Order),
    Time,
}

/// How a session ended.
#[derive(Debug)]
enum Ending {
    /// Both directions did.
    Whole,
    /// The server broke it, behind what it said before.
    Server,
    /// The program broke it.
    Program,
    /// A device is gone with bytes that its program has sent.
    Gap,
    /// Nothing came for long.
    Idle,
    /// No device wanted it any more, or more were held than may be.
    Left,
    /// There is no room for what its programs sent.
    Full,
}

impl Session {
    /// One that begins, for the device of this stream.
    pub(super) fn new(
        to: Destination,
        server: Server,
        listing: Listing,
        orders: mpsc::Receiver<Order>,
        settings: SessionSettings,
    ) -> Self {
        let now = Instant::now();
        let holder = Holder::None(now + settings.hold);
        Self {
            to,
            server,
            listing,
            orders,
            settings,
            holder,
            taking: None,
            moves: 0,
            busy: now,
            is_spared: false,
            _place: None,
        }
    }

    /// Serves it until it is over. This device has it first.
    pub(super) async fn run(mut self, stream: Stream, by: &str, place: Place<EndpointId>) {
        let seat = Seat::new(stream, &self.words(by, 0), 0, &self.server, Arc::new(place));
        self._place = Some(seat.place());
        self.holder = Holder::Seat(Box::new(seat));
        let ending = loop {
            if let Some(ending) = self.prepare() {
                break ending;
            }
            let step = self.next().await;
            if let Some(ending) = self.go_on(step) {
                break ending;
            }
        };
        tracing::debug!(to = %self.to, session = %self.listing.id(), ?ending, "a session is over");
        self.end(&ending);
    }

    /// What a device is told that has the session from an offset on.
    fn words(&self, by: &str, offset: u64) -> Vec<u8> {
        let granted = Granted {
            id: self.listing.id(),
            moves: self.moves,
            offset,
            to: self.to.clone(),
            has_ended: self.server.takes_no_more(),
            head: self.server.head().to_vec(),
        };
        [Answer::new(Status::Connected, by).encode(), granted.encode()].concat()
    }

    /// Says what there is to say, and what is over.
    fn prepare(&mut self) -> Option<Ending> {
        if self.server.pass_end_on().is_err() {
            return Some(Ending::Server);
        }
        if let Holder::Seat(seat) = &mut self.holder {
            seat.fill(&self.server);
        }
        if let Some(Taking::Confirming { seat, .. }) = &mut self.taking {
            seat.fill(&self.server);
        }
        self.tell_figures();
        if self.server.is_over() {
            return Some(Ending::Whole);
        }
        self.is_full().then_some(Ending::Full)
    }

    async fn next(&mut self) -> Step {
        // A server waits while no device takes what it says, and while the session moves.
        let reads = self.taking.is_none()
            && matches!(self.holder, Holder::Seat(_))
            && self.server.kept().len() < self.most_kept();
        let time = self.time();
        let Self { server, orders, holder, taking, .. } = self;
        tokio::select! {
            ready = server.ready(reads) => Step::Server(ready),
            heard = holder.next() => Step::Holder(heard),
            heard = next_of(taking) => Step::Taker(heard),
            Some(order) = orders.recv() => Step::Order(order),
            () = tokio::time::sleep_until(time) => Step::Time,
        }
    }

    /// When something is to be done if nothing else happens.
    fn time(&self) -> Instant {
        let idle = self.busy + self.settings.idle;
        match (&self.taking, &self.holder) {
            (Some(Taking::Pausing { wait, .. }), _) => idle.min(wait.until(&self.settings)),
            (Some(Taking::Confirming { until, .. }), _) => idle.min(*until),
            (None, Holder::None(until)) => idle.min(*until),
            (None, Holder::Seat(_)) => idle,
        }
    }

    fn go_on(&mut self, step: Step) -> Option<Ending> {
        match step {
            Step::Server(ready) => {
                self.busy = Instant::now();
                let most = self.most_kept();
                let went_on = ready.and_then(|ready| self.server.go_on(ready, most));
                went_on.err().map(|_| Ending::Server)
            }
            Step::Holder(heard) => self.hear_holder(&heard),
            Step::Taker(heard) => self.hear_taker(&heard),
            Step::Order(Order::Control(stream, moves)) => {
                self.set_control(stream, moves);
                None
            }
            Step::Order(Order::Recall(device)) => self.recall(device),
            Step::Order(Order::Take(take)) => self.begin(*take),
            Step::Time => self.time_is_over(),
        }
    }

    fn set_control(&mut self, stream: Stream, moves: u32) {
        let words = Answer::new(Status::Connected, "").encode();
        let has_moved = moves != self.moves;
        let seat = match (&mut self.holder, &mut self.taking) {
            (Holder::Seat(seat), _) if !has_moved => seat,
            (_, Some(Taking::Confirming { seat, .. })) if has_moved => seat,
            _ => return,
        };
        if seat.device() == stream.peer_id() {
            seat.set_control(stream, &words);
        }
    }

    fn hear_holder(&mut self, heard: &Heard) -> Option<Ending> {
        let Holder::Seat(seat) = &mut self.holder else { return None };
        match heard {
            Heard::Nothing => return None,
            Heard::Frame(Frame::Broken) if self.taking.is_none() => return Some(Ending::Program),
            // People close a program once its session goes on elsewhere: it is gone, and no more than that.
            Heard::Frame(Frame::Broken) => {}
            Heard::Frame(frame) if seat.hear(frame, &mut self.server) => {
                let paused = seat.paused();
                self.busy = Instant::now();
                if let Some(Taking::Pausing { wait, .. }) = &mut self.taking {
                    wait.heard = Some(self.busy);
                }
                return paused.and_then(|paused| self.paused(paused));
            }
            Heard::Frame(frame) => tracing::debug!(?frame, "a device breaks the rules of a session"),
            Heard::Gone => {}
        }
        if seat.has_gap() {
            return Some(Ending::Gap);
        }
        self.holder = self.nobody();
        match &self.taking {
            // It says nothing more: its last count holds.
            Some(Taking::Pausing { .. }) => self.attach(self.server.kept().base()),
            Some(Taking::Confirming { .. }) => None,
            None => self.hold(),
        }
    }

    /// No device has it, from now on.
    fn nobody(&self) -> Holder {
        let SessionSettings { hold, idle, .. } = self.settings;
        Holder::None(Instant::now() + if self.server.needs_no_device() { idle } else { hold })
    }

    /// Has the session be there without a device, if there is room for that.
    fn hold(&mut self) -> Option<Ending> {
        let is_live = matches!(self.holder, Holder::Seat(_)) || self.server.needs_no_device();
        if !is_live && self.server.is_tls() {
            // No other device may take it.
            return Some(Ending::Left);
        }
        let SessionSettings { most_held, most_held_bytes, .. } = self.settings;
        (!self.listing.stands(is_live, most_held, most_held_bytes)).then_some(Ending::Left)
    }

    fn time_is_over(&mut self) -> Option<Ending> {
        let now = Instant::now();
        if now >= self.busy + self.settings.idle {
            return Some(Ending::Idle);
        }
        match &self.taking {
            Some(Taking::Pausing { wait, .. }) if now >= wait.until(&self.settings) => {
                let has_answered = wait.heard.is_some();
                self.waited(has_answered)
            }
            Some(Taking::Confirming { until, .. }) if now >= *until => {
                self.taking = None;
                self.go_back()
            }
            Some(_) => None,
            None => match self.holder {
                Holder::None(until) if now >= until => Some(Ending::Left),
                Holder::None(_) | Holder::Seat(_) => None,
            },
        }
    }

    fn take_holder(&mut self) -> Holder {
        let nobody = self.nobody();
        std::mem::replace(&mut self.holder, nobody)
    }
}

impl Wait {
    fn until(&self, settings: &SessionSettings) -> Instant {
        let silent = self.heard.unwrap_or(self.begun) + settings.pause;
        silent.min(self.begun + settings.most_pause)
    }
}

impl Holder {
    async fn next(&mut self) -> Heard {
        match self {
            Self::Seat(seat) => seat.next().await,
            Self::None(_) => std::future::pending().await,
        }
    }
}

async fn next_of(taking: &mut Option<Taking>) -> Heard {
    match taking {
        Some(Taking::Confirming { seat, .. }) => seat.next().await,
        Some(Taking::Pausing { .. }) | None => std::future::pending().await,
    }
}
