//! Takes what comes on connections, and gives one that a file comes on to another device that may have it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use whimbrel_transport::{Connection, Stream};

use crate::access::Guests;
use crate::failure;
use crate::halt::{Halter, Tie, Ties};
use crate::moving::{Arriving, Asked, Outcome as Moved, Session, Sessions, State};
use crate::network::log_events;
use crate::takeover::Woken;
use crate::transfer::Inbox;
use crate::transfer::receiving::{Outcome, go_on, receive};
use crate::transfer::several::Several;
use crate::transfer::underway::{Halted, Underway};
use crate::tunnel;

/// Files that are taken at once on one connection.
const STREAMS: u32 = 32;
/// Results that wait to be told.
const RESULTS: usize = 64;
/// How long files may take to halt that begin or end in the moment: a disk may be slow.
const HALT_LIMIT: Duration = Duration::from_secs(5);

/// Something on the connection is neither halted nor over.
const BUSY: &str = "a file begins or ends just now; try again";
const NOTHING: &str = "no file is on its way just now";
const OTHER: &str =
    "one file moves by itself, or several that are sent together, and not what else this sender sends";

/// What goes on at another device.
pub(super) enum Which {
    /// This file.
    File(String),
    /// So many that came together.
    Several(u64),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => f.write_str(name),
            Self::Several(files) => write!(f, "{files} files"),
        }
    }
}

/// What happens to transfers.
pub(super) enum News {
    /// One of this peer's has ended.
    Ended(String, Outcome),
    /// This goes on at the device that is called so.
    Moved { which: Which, to: String },
    /// Another device wanted what this peer sends, and does not have it.
    Stays { peer: String, why: String },
    /// The connection to the other device broke before it said whether it has this.
    Lost { which: Which, why: String },
}

/// Takes what comes on connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Taker {
    inbox: Arc<Inbox>,
    news: mpsc::Sender<News>,
    /// Halts everything.
    tie: Tie<Halted>,
    sessions: Sessions,
}

/// A device has come for a connection, whose files were halted.
struct Called {
    asked: Asked,
    halted: Vec<Halted>,
    /// Nothing runs on it any more.
    at_rest: bool,
}

/// The streams of one connection.
struct Streams {
    halter: Halter<Halted>,
    /// Those that are free.
    places: Arc<Semaphore>,
}

impl Taker {
    /// A taker, and what it tells.
    pub(super) fn new(
        inbox: Arc<Inbox>,
        tie: Tie<Halted>,
        sessions: Sessions,
    ) -> (Self, mpsc::Receiver<News>) {
        let (news, told) = mpsc::channel(RESULTS);
        (Self { inbox, news, tie, sessions }, told)
    }

    /// Goes on with what another instance, or this one, had before.
    pub(super) fn go_on(&self, connections: Vec<Connection>, woken: Woken, guests: &Guests) {
        for stream in woken.streams {
            // The sender begins this one again.
            break_off(&stream);
        }
        let mut files = woken.files;
        for connection in connections {
            guests.welcome(connection.clone());
            let is_own = |file: &Underway| file.read.stream().connection().id() == connection.id();
            let (own, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_own);
            files = others;
            self.serve(connection, own.into_iter().map(Halted::from).collect());
        }
    }

    /// Serves a connection, on which these are under way.
    pub(super) fn serve(&self, connection: Connection, under_way: Vec<Halted>) {
        tokio::spawn(FutureExt::boxed(log_events(connection.events(), connection.peer_id().short())));
        tokio::spawn(FutureExt::boxed(self.clone().serve_connection(connection, under_way)));
    }

    async fn serve_connection(self, connection: Connection, mut under_way: Vec<Halted>) {
        let mut session = self.sessions.begin(&connection, &self.inbox.who(connection.peer_id()));
        let mut streams =
            Streams { halter: Halter::new(), places: Arc::new(Semaphore::new(STREAMS as usize)) };
        while let Some(called) = self.take(&connection, &mut session, &mut streams, under_way).await {
            under_way = match self.give(&connection, called).await {
                Some(stays) => stays,
                None => return,
            };
        }
    }

    /// Goes on with these files and takes others, until a device comes for the connection. `None` when it is
    /// over, or everything is halted.
    async fn take(
        &self,
        connection: &Connection,
        session: &mut Session,
        streams: &mut Streams,
        under_way: Vec<Halted>,
    ) -> Option<Called> {
        for file in under_way {
            self.resume(file, streams);
        }
        let asked = loop {
            let next = next(connection, &streams.places);
            tokio::select! {
                asked = session.asked() => break asked,
                next = next => {
                    let (stream, place) = next?;
                    let (taker, ties) = (self.clone(), self.ties(streams));
                    tokio::spawn(FutureExt::boxed(async move {
                        let peer = stream.peer_id().short();
                        let outcome = receive(stream, &taker.inbox, &ties).await;
                        taker.tell(peer, outcome).await;
                        drop(place);
                    }));
                }
                late = streams.halter.late() => self.resume(late, streams),
                () = self.tie.is_to_halt() => return None,
            }
        };
        let places = streams.places.clone();
        let all_ended = async {
            // Nothing closes it.
            let _ = places.acquire_many(STREAMS).await;
        };
        let (halted, at_rest) = streams.halter.pause(all_ended, HALT_LIMIT).await;
        Some(Called { asked, halted, at_rest })
    }

    fn ties(&self, streams: &Streams) -> Ties<Halted> {
        Ties::new(self.tie.clone(), streams.halter.tie())
    }

    fn resume(&self, halted: Halted, streams: &Streams) {
        // So many were under way before at most, and nothing else has begun since.
        let place = streams.places.clone().try_acquire_owned().ok();
        let (taker, ties) = (self.clone(), self.ties(streams));
        tokio::spawn(FutureExt::boxed(async move {
            let peer = halted.peer_id().short();
            let outcome = go_on(halted, &taker.inbox, &ties).await;
            taker.tell(peer, outcome).await;
            drop(place);
        }));
    }

    /// Gives the connection to the device that has come for it. Returns what has to go on here; `None` if it
    /// is elsewhere, or over.
    async fn give(&self, connection: &Connection, called: Called) -> Option<Vec<Halted>> {
        let Called { asked, halted, at_rest } = called;
        if !at_rest {
            self.keep(connection, asked, BUSY).await;
            return Some(halted);
        }
        let mut halted = match Several::of(halted) {
            Ok(several) => return self.give_several(connection, asked, several).await,
            Err(halted) => halted,
        };
        let alone = halted.len() == 1 && halted.iter().all(Halted::is_file);
        let file = if alone { halted.pop().and_then(Halted::into_file) } else { None };
        let Some(file) = file else {
            let why = if halted.iter().all(Halted::is_silent) { NOTHING } else { OTHER };
            self.keep(connection, asked, why).await;
            return Some(halted);
        };
        self.give_file(connection, asked, file).await
    }

    async fn give_file(&self, connection: &Connection, asked: Asked, file: Underway) -> Option<Vec<Halted>> {
        let mut held = match self.inbox.hold(&file.so_far, connection).await {
            Ok(held) => held,
            Err(error) => {
                self.keep(connection, asked, &failure::line(&error)).await;
                return Some(vec![file.into()]);
            }
        };
        let arrived = (State::File(self.arriving(&file)), file.so_far.at());
        let mut read = |into: &mut [u8]| held.read(into);
        let outcome = tokio::select! {
            outcome = asked.give_file(connection, arrived, &mut read) => outcome,
            () = self.tie.is_to_halt() => overtaken(),
        };
        let which = Which::File(file.so_far.name().to_owned());
        if matches!(outcome, Moved::Moved(_)) {
            held.remove();
        } else {
            drop(held);
        }
        self.stays_after(connection, outcome, which).await.then(|| vec![file.into()])
    }

    async fn give_several(
        &self,
        connection: &Connection,
        asked: Asked,
        several: Several,
    ) -> Option<Vec<Halted>> {
        let (mut held, told) = match self.inbox.hold_together(&several, connection).await {
            Ok(held) => held,
            Err(error) => {
                self.keep(connection, asked, &failure::line(&error)).await;
                return Some(several.into_halted());
            }
        };
        let length = told.length;
        let arrived = (State::Together(told), length);
        let mut read = |into: &mut [u8]| held.read(into);
        let outcome = tokio::select! {
            outcome = asked.give_file(connection, arrived, &mut read) => outcome,
            () = self.tie.is_to_halt() => overtaken(),
        };
        if matches!(outcome, Moved::Moved(_)) {
            held.remove();
        } else {
            drop(held);
        }
        let which = Which::Several(several.entries());
        self.stays_after(connection, outcome, which).await.then(|| several.into_halted())
    }

    /// Tells what became of something. Whether it goes on here.
    async fn stays_after(&self, connection: &Connection, outcome: Moved, which: Which) -> bool {
        match outcome {
            Moved::Moved(to) => self.say(News::Moved { which, to }).await,
            Moved::Stays(why) => {
                self.stays(connection, why).await;
                return true;
            }
            Moved::Lost(why) => self.say(News::Lost { which, why }).await,
        }
        false
    }

    /// Does not give what is here, and says why.
    async fn keep(&self, connection: &Connection, asked: Asked, why: &str) {
        asked.refuse(why);
        self.stays(connection, why.to_owned()).await;
    }

    fn arriving(&self, file: &Underway) -> Arriving {
        let Underway { read, write, so_far } = file;
        Arriving {
            peer: self.inbox.who(write.stream().peer_id()),
            stream: write.stream().id(),
            name: so_far.name().to_owned(),
            size: so_far.size(),
            before: so_far.before(),
            at: so_far.at(),
            chunks: so_far.in_chunks(),
            waiting: read.unused().to_vec(),
            most: self.inbox.most(),
        }
    }

    async fn stays(&self, connection: &Connection, why: String) {
        self.say(News::Stays { peer: connection.peer_id().short(), why }).await;
    }

    /// Tells of a transfer that has ended, and then its sender.
    async fn tell(&self, peer: String, outcome: Option<Outcome>) {
        let Some(mut outcome) = outcome else { return };
        let confirmation = outcome.confirmation();
        self.say(News::Ended(peer, outcome)).await;
        confirmation.send().await;
    }

    async fn say(&self, news: News) {
        // The command may have ended meanwhile.
        let _ = self.news.send(news).await;
    }
}

/// The one that takes over goes on.
fn overtaken() -> Moved {
    Moved::Stays("a newer instance takes over just now".to_owned())
}

/// The next stream, once there is a place for it: a peer that opens more waits until some have ended. `None`
/// when the connection is over. Cancel-safe.
async fn next(connection: &Connection, places: &Arc<Semaphore>) -> Option<(Stream, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    let stream = connection.accept_stream().await.ok()?;
    Some((stream, place))
}

/// Has the sender see that nobody goes on with a stream.
pub(super) fn break_off(stream: &Stream) {
    stream.reset(tunnel::BROKEN);
    stream.stop(tunnel::BROKEN);
}
