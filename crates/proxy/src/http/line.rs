//! One connection to a server, on which requests go one after the other, or a hold on one that carries
//! several.

use super::moving::{Moving, Sent};
use super::multiplexed::{Multiplexed, to_http1};
use super::problem::Problem;
use super::speaker::{Awaited, Coming, Speaker};
use crate::Destination;
use hyper::client::conn::TrySendError;
use hyper::{Request, Response};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep};
use whimbrel_multiaccess::Candidate;

/// A connection that has just carried an answer needs a moment until it takes the next request.
const READY: Duration = Duration::from_millis(100);

/// A connection to a server.
pub(super) struct Line {
    id: u32,
    to: Destination,
    speaks: Speaks,
    source: Option<IpAddr>,
    by: Option<Candidate>,
    carried: u32,
    /// It belongs to a client that authenticated it, or is closed.
    is_private: bool,
    /// For all its answers, one after the other: to set one later takes no lock, to make one for each does.
    timer: Option<Pin<Box<Sleep>>>,
    /// How many pieces of requests' bodies have gone: a request counts from where the last one ended.
    moved: Arc<AtomicU64>,
}

/// What is spoken on it.
pub(super) enum Speaks {
    /// HTTP/1.1.
    One(Speaker),
    /// HTTP/2.
    Several(Multiplexed),
}

/// Why a request has no answer.
pub(super) enum Unsent {
    /// Nothing of it went out: here it is again.
    Returned(Box<Request<Sent>>),
    /// The connection ended before the head of an answer had come.
    Ended(hyper::Error),
    /// What came is no HTTP.
    Nonsense(hyper::Error),
    /// Nothing came in time.
    Late,
}

impl Line {
    pub(super) fn new(
        id: u32,
        to: Destination,
        speaks: Speaks,
        source: Option<IpAddr>,
        by: Option<Candidate>,
    ) -> Self {
        let (carried, is_private, timer, moved) = (0, false, None, Arc::default());
        Self { id, to, speaks, source, by, carried, is_private, timer, moved }
    }

    /// Another hold on it, if it carries several messages.
    pub(super) fn share(&self) -> Option<Self> {
        let Speaks::Several(several) = &self.speaks else { return None };
        let speaks = Speaks::Several(several.share());
        let shared = Self::new(self.id, self.to.clone(), speaks, self.source, self.by.clone());
        // Others have been carried: it may be closed by now.
        Some(Self { carried: 1, ..shared })
    }

    /// Whether it is a hold on one that carries several messages.
    pub(super) fn is_shared(&self) -> bool {
        matches!(self.speaks, Speaks::Several(_))
    }

    /// Whether it serves a message, which may need it `alone` because it becomes something else.
    pub(super) fn serves(&self, alone: bool) -> bool {
        !(alone && self.is_shared())
    }

    /// Whether it may be lent now.
    pub(super) fn has_room(&self) -> bool {
        match &self.speaks {
            Speaks::One(_) => true,
            Speaks::Several(several) => several.has_room(),
        }
    }

    /// Whether it carries a message although it was not taken out.
    pub(super) fn is_used(&self) -> bool {
        matches!(&self.speaks, Speaks::Several(several) if several.is_used())
    }

    /// Sends a request. What it returns waits for the head of its answer until nothing of the request has
    /// moved for `limit`. If that is dropped before, the connection takes no other message; one of HTTP/2
    /// loses this message alone.
    pub(super) fn send(
        &mut self,
        request: Request<Sent>,
        limit: Duration,
    ) -> impl Future<Output = Result<Response<Coming>, Unsent>> {
        // Handed over before anything waits, so that what waits does not hold a request.
        self.carried = self.carried.saturating_add(1);
        let request = request.map(|body| Moving::new(body, Arc::clone(&self.moved)));
        let sending = match &mut self.speaks {
            Speaks::One(speaker) => speaker.send(request),
            Speaks::Several(several) => Awaited::over_http2(several.send(request)),
        };
        self.wait(sending, limit)
    }

    /// Waits for the head of an answer.
    async fn wait(&mut self, mut sending: Awaited, limit: Duration) -> Result<Response<Coming>, Unsent> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        let mut before = self.moved.load(Ordering::Relaxed);
        let answer = loop {
            timer.as_mut().reset(Instant::now() + limit);
            let answer = tokio::select! {
                biased;
                answer = &mut sending => Some(answer),
                // Also where a server says so much at once that the task may do nothing else in its turn.
                () = unconstrained(timer.as_mut()) => None,
            };
            let now = self.moved.load(Ordering::Relaxed);
            // An upload may last.
            if answer.is_some() || now == before {
                break answer;
            }
            before = now;
        };
        match answer {
            Some(Ok(answer)) => Ok(match &mut self.speaks {
                Speaks::One(speaker) => speaker.coming(answer),
                Speaks::Several(_) => answer.map(Coming::over_http2),
            }),
            Some(Err(error)) => Err(self.unsent(error)),
            None => {
                self.leave();
                Err(Unsent::Late)
            }
        }
    }

    fn unsent(&self, mut error: TrySendError<Request<Moving>>) -> Unsent {
        let Some(mut request) = error.take_message() else {
            let error = error.into_error();
            return if error.is_parse() { Unsent::Nonsense(error) } else { Unsent::Ended(error) };
        };
        if self.is_shared() {
            to_http1(&mut request);
        }
        Unsent::Returned(Box::new(request.map(Moving::into_body)))
    }

    /// Whether it takes a request now, or in a moment.
    pub(super) async fn is_ready(&mut self) -> bool {
        let is_ready = match &mut self.speaks {
            Speaks::One(speaker) if speaker.is_ready() => true,
            // On the heap: mostly it does now.
            Speaks::One(speaker) => {
                let ready = Box::pin(tokio::time::timeout(READY, speaker.ready())).await;
                ready.is_ok_and(|ready| ready.is_ok())
            }
            Speaks::Several(several) => !several.is_closed(),
        };
        is_ready && !self.is_private
    }

    /// The rest of an answer is not wanted, and must not come. What carries one message closes.
    pub(super) fn cut_off(&mut self) {
        if let Speaks::One(speaker) = &self.speaks {
            speaker.hang_up();
            self.is_private = true;
        }
    }

    /// No other message is to go on it: its network is dead.
    pub(super) fn leave(&mut self) {
        self.is_private = true;
        if let Speaks::Several(several) = &self.speaks {
            several.leave();
        }
    }

    /// It must carry no message of another client.
    pub(super) fn make_private(&mut self) {
        self.leave();
    }

    /// Whether it may be kept for the next message. Mostly the last answer has told. What the server does
    /// while it is kept is looked for before it is lent ([`Self::is_ready`]).
    pub(super) fn can_rest(&self) -> bool {
        let was_ready = matches!(&self.speaks, Speaks::One(speaker) if speaker.was_ready());
        !self.is_private && (was_ready || !self.is_closed())
    }

    /// Whether it cannot be used again.
    pub(super) fn is_closed(&self) -> bool {
        self.is_private
            || match &self.speaks {
                Speaks::One(speaker) => speaker.is_closed(),
                Speaks::Several(several) => several.is_closed(),
            }
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// The server.
    pub(super) fn to(&self) -> &Destination {
        &self.to
    }

    /// Its address on this side, where the manager chose the way.
    pub(super) fn source(&self) -> Option<IpAddr> {
        self.source
    }

    /// The way that it was made by, where the manager chose it.
    pub(super) fn by(&self) -> Option<&Candidate> {
        self.by.as_ref()
    }

    /// Whether it has carried a message before.
    pub(super) fn was_used(&self) -> bool {
        self.carried > 0
    }
}

/// Whether an error is one of the network, as the kernel says, and not the server's doing: that may end what
/// it likes, and must not make a network look bad by it.
pub(super) fn is_of_the_network(error: &hyper::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        // That of a stream of HTTP/2 has no source, although it may be the kernel's.
        let of_stream = error.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
        if let Some(error) = of_stream.or_else(|| error.downcast_ref::<io::Error>()) {
            return speaks_of_the_network(error);
        }
        cause = error.source();
    }
    false
}

/// Whether what the kernel says is of the network, and not of the server.
pub(super) fn speaks_of_the_network(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::AddrNotAvailable
    )
}

impl Unsent {
    /// Whether it was the network that failed, and not the server.
    pub(super) fn is_of_the_network(&self) -> bool {
        matches!(self, Self::Ended(error) if is_of_the_network(error))
    }

    /// What the client is told.
    pub(super) fn problem(self, to: &Destination) -> Problem {
        match self {
            Self::Returned(_) => Problem::gateway(format!("{to} closed the connection")),
            Self::Ended(error) => {
                Problem::gateway(format!("{to} ended the connection without an answer: {error}"))
            }
            Self::Nonsense(error) => Problem::gateway(format!("{to} does not answer in HTTP: {error}")),
            Self::Late => Problem::late(format!("{to} did not answer in time")),
        }
    }
}
