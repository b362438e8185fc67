//! One session at its gateway: a server's connection, and the device that has it.

mod ending;
mod growth;
mod keeping;
mod lasting;
mod moving;
mod settings;
mod wait;

pub use settings::SessionSettings;

use super::alarm::Alarm;
use super::frame::Frame;
use super::lasting::HaltedSession;
use super::line::{Heard, LAST};
use super::message::{Granted, Takers};
use super::seat::Seat;
use super::server::Server;
use super::table::{Claim, Listing, Order, Take};
use crate::{Answer, Destination, Place, Status};
use growth::Growth;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Ready;
use tokio::sync::mpsc;
use tokio::time::Instant;
use wait::Wait;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// For a refusal to be taken.
const REFUSAL: Duration = Duration::from_secs(10);

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
    /// Its last device did not say how far it was: what its program sent may be missing.
    is_cut: bool,
    /// There was no room for more of the server.
    is_held_up: bool,
    growth: Growth,
    alarm: Alarm,
    /// Counts it as its device's, also while it is held.
    place: Arc<Place<EndpointId>>,
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
    /// The new device is asked whether its program is there, which goes on at an offset.
    Confirming { seat: Box<Seat>, claim: Claim, rule: Takers, offset: u64, until: Instant },
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
    /// The server broke it, and a program has what it said before.
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
        place: Arc<Place<EndpointId>>,
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
            is_cut: false,
            is_held_up: false,
            growth: Growth::default(),
            alarm: Alarm::new(),
            place,
        }
    }

    /// Serves it until it is over. This device has it first. On the heap: else what waits for this held it
    /// three times, as each of its functions hands it on to the next.
    pub(super) async fn run(mut self: Box<Self>, stream: Stream, by: &str) {
        let seat = Seat::new(stream, &self.words(by, 0), 0, &self.server, self.place.clone());
        self.holder = Holder::Seat(Box::new(seat));
        self.serve().await;
    }

    /// Serves it until it is over, or is halted.
    async fn serve(mut self: Box<Self>) {
        let ending = loop {
            if let Some(ending) = self.prepare() {
                break ending;
            }
            let step = match self.next().await {
                // On the heap: few are halted, and have need of the memory.
                Step::Order(Order::Halt(to)) => return Box::pin(self.give(&to)).await,
                step => step,
            };
            if let Some(ending) = self.go_on(step) {
                break ending;
            }
        };
        tracing::debug!(to = %self.to, session = %self.listing.id(), ?ending, "a session is over");
        self.end(&ending);
    }

    async fn give(self: Box<Self>, to: &mpsc::Sender<HaltedSession>) {
        let id = self.listing.id();
        match self.halt() {
            // If nobody takes it any more the process has ended meanwhile.
            Ok(halted) => drop(to.send(halted).await),
            Err(error) => tracing::info!(session = %id, %error, "a session cannot be halted, and breaks"),
        }
    }

    /// What a device is told that has the session from an offset on.
    fn words(&self, by: &str, offset: u64) -> Vec<u8> {
        let granted = Granted {
            id: self.listing.id(),
            moves: self.moves,
            offset,
            to: self.to.clone(),
            has_ended: self.server.takes_no_more(),
            head: self.server.head(offset),
        };
        [Answer::new(Status::Connected, by).encode(), granted.encode()].concat()
    }

    /// Says what there is to say, and what is over.
    fn prepare(&mut self) -> Option<Ending> {
        if self.server.pass_end_on().is_err() {
            self.server.breaks();
        }
        if self.server.is_broken() {
            let most = self.most_kept();
            self.server.read_what_is_left(most);
        }
        if let Holder::Seat(seat) = &mut self.holder {
            seat.fill(&self.server);
        }
        if let Some(Taking::Confirming { seat, .. }) = &mut self.taking {
            seat.fill(&self.server);
        }
        self.tell_figures();
        if self.server.is_over() && !self.is_rewound() {
            return Some(if self.server.is_broken() { Ending::Server } else { Ending::Whole });
        }
        self.is_full().then_some(Ending::Full)
    }

    /// Whether a device is about to be given again what the program before has taken.
    fn is_rewound(&self) -> bool {
        let base = self.server.kept().base();
        matches!(self.taking, Some(Taking::Confirming { offset, .. }) if offset < base)
    }

    async fn next(&mut self) -> Step {
        let most = self.most_kept();
        self.measure(most);
        self.server.squeeze(most);
        // A server waits while no device takes what it says, and while the session moves.
        let reads =
            self.taking.is_none() && matches!(self.holder, Holder::Seat(_)) && self.has_room_to_read(most);
        let time = self.time();
        let Self { server, orders, holder, taking, alarm, .. } = self;
        tokio::select! {
            ready = server.ready(reads) => Step::Server(ready),
            heard = holder.next() => Step::Holder(heard),
            heard = next_of(taking, server) => Step::Taker(heard),
            Some(order) = orders.recv() => Step::Order(order),
            () = alarm.until(time) => Step::Time,
        }
    }

    /// When something is to be done if nothing else happens.
    fn time(&self) -> Instant {
        let idle = self.busy + self.settings.idle;
        match (&self.taking, &self.holder) {
            (Some(Taking::Pausing { wait, .. }), _) => idle.min(wait.until()),
            (Some(Taking::Confirming { until, .. }), _) => idle.min(*until),
            (None, Holder::None(until)) => idle.min(*until),
            (None, Holder::Seat(_)) if self.server.is_broken() => idle.min(self.busy + self.last_words()),
            (None, Holder::Seat(_)) => idle,
        }
    }

    fn go_on(&mut self, step: Step) -> Option<Ending> {
        match step {
            Step::Server(ready) => {
                self.busy = Instant::now();
                let most = self.most_kept();
                if ready.and_then(|ready| self.server.go_on(ready, most)).is_err() {
                    self.server.breaks();
                }
                None
            }
            Step::Holder(heard) => self.hear_holder(&heard),
            Step::Taker(heard) => self.hear_taker(&heard),
            Step::Order(Order::Control(stream, moves)) => {
                self.set_control(stream, moves);
                None
            }
            Step::Order(Order::Recall(device)) => self.recall(device),
            // It was halted then.
            Step::Order(Order::Halt(_)) => None,
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
                    wait.hears(self.busy);
                }
                return paused.and_then(|paused| self.paused(paused));
            }
            Heard::Frame(frame) => tracing::debug!(?frame, "a device breaks the rules of a session"),
            Heard::Gone => {}
        }
        if seat.has_gap() {
            return Some(Ending::Gap);
        }
        if seat.paused().is_none() {
            self.cut();
        }
        self.holder = self.nobody();
        match &self.taking {
            // It says nothing more: its last count holds.
            Some(Taking::Pausing { .. }) => self.attach(self.server.kept().base()),
            Some(Taking::Confirming { .. }) => None,
            None => self.hold(),
        }
    }

    /// Its device will not say any more how far it is. Nothing is missing if its program had nothing to say.
    fn cut(&mut self) {
        self.is_cut |= !self.server.has_heard_all();
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
            Some(Taking::Pausing { .. }) => self.waited(now),
            Some(Taking::Confirming { until, .. }) if now >= *until => {
                self.taking = None;
                self.go_back()
            }
            Some(_) => None,
            None => self.is_left(now).then_some(Ending::Left),
        }
    }

    /// Whether no device wants it any more.
    fn is_left(&self, now: Instant) -> bool {
        match self.holder {
            Holder::None(until) => now >= until,
            Holder::Seat(_) => self.server.is_broken() && now >= self.busy + self.last_words(),
        }
    }

    /// For a device to take something of what a server said before it broke the connection.
    fn last_words(&self) -> Duration {
        self.settings.hold.max(LAST)
    }

    fn take_holder(&mut self) -> Holder {
        let nobody = self.nobody();
        std::mem::replace(&mut self.holder, nobody)
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

/// What the new device says. Before it may say anything, bytes go ahead to it.
async fn next_of(taking: &mut Option<Taking>, server: &Server) -> Heard {
    match taking {
        Some(Taking::Confirming { seat, .. }) => return seat.next().await,
        Some(Taking::Pausing { take: Take { stream, ahead: Some(ahead), .. }, .. }) => {
            ahead.say(stream, server).await;
        }
        Some(Taking::Pausing { .. }) | None => {}
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what such a function returns.
    fn size<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_a_session_waits_in_does_not_hold_the_session_itself() {
        // Each session has one for as long as it lasts. With the session in each of its functions it had more
        // than 8 KB.
        let bytes = size(Session::serve);
        assert!(bytes <= 1536, "{bytes}");
    }
}
