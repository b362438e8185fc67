//! What a client reads of an answer.

use super::decided::Decided;
use super::fetch::Fetching;
use super::late::Late;
use super::line::is_of_the_network;
use super::object::Object;
use super::origins::Lease;
use super::speaker::Coming;
use super::transfer::Follow;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::Sleep;

/// Why a body ends before its end.
pub(super) type Broken = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub(super) struct Body {
    kind: Kind,
    /// Where it may go on at another device.
    follow: Option<Box<Follow>>,
}

/// With less to come of what is passed on, another network is not taken in.
const LEAST_LEFT: u64 = 1 << 20;

enum Kind {
    /// Of ours, or none.
    Whole(Option<Bytes>),
    /// As the server sends it.
    Passing(Box<Passing>),
    /// Put together from ranges.
    Joined(Joined),
}

/// An answer that is passed on as it comes.
struct Passing {
    incoming: Coming,
    lease: Option<Lease>,
    /// How the rest of it can be had if the connection breaks.
    resume: Option<Resume>,
}

struct Resume {
    object: Object,
    at: u64,
    /// Nothing comes although somebody reads: then the timer runs.
    is_waiting: bool,
    /// Once it was needed: most objects come without a pause.
    timer: Option<Pin<Box<Sleep>>>,
    /// What looks for networks that may carry it too.
    late: Option<Late>,
}

/// Why an answer ends too early.
struct Cut {
    why: Broken,
    is_of_the_network: bool,
}

struct Joined {
    first: Option<Bytes>,
    /// How many bytes are still to come.
    left: u64,
    fetching: Fetching,
}

impl Body {
    fn new(kind: Kind) -> Self {
        Self { kind, follow: None }
    }

    /// The same, which may go on at another device.
    pub(super) fn followed(self, follow: Box<Follow>) -> Self {
        Self { follow: Some(follow), ..self }
    }

    pub(super) fn empty() -> Self {
        Self::new(Kind::Whole(None))
    }

    pub(super) fn of(bytes: Bytes) -> Self {
        Self::new(Kind::Whole(Some(bytes).filter(|bytes| !bytes.is_empty())))
    }

    /// Passes on what a server sends, and releases the connection behind it. If that breaks, or several
    /// networks are to carry the rest, this is how it can be had.
    pub(super) fn passing(incoming: Coming, lease: Lease, rest: Option<(Object, Option<Late>)>) -> Self {
        if incoming.is_end_stream() {
            lease.release();
            return Self::empty();
        }
        let (at, is_waiting, timer) = (0, false, None);
        let resume = rest.map(|(object, late)| Resume { object, at, is_waiting, timer, late });
        Self::new(Kind::Passing(Box::new(Passing { incoming, lease: Some(lease), resume })))
    }

    /// The first bytes of an object, if they were read, and what is being fetched of it: so many together.
    pub(super) fn joined(first: Bytes, fetching: Fetching, left: u64) -> Self {
        let first = Some(first).filter(|first| !first.is_empty());
        Self::new(Kind::Joined(Joined { first, left, fetching }))
    }
}

type Next = Poll<Option<Result<Frame<Bytes>, Broken>>>;

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Next {
        if let Some(follow) = &self.follow
            && !ready!(follow.poll_turn(cx))
        {
            return Poll::Ready(Some(Err("it goes on at another device".into())));
        }
        let next = self.poll_next(cx);
        match &mut self.follow {
            Some(follow) => next.map_ok(|frame| frame.map_data(|bytes| follow.passed(bytes))),
            None => next,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Passing(passing) => passing.incoming.is_end_stream(),
            Kind::Joined(joined) => joined.left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Passing(passing) => passing.incoming.size_hint(),
            Kind::Joined(joined) => SizeHint::with_exact(joined.left),
        }
    }
}

impl Body {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Next {
        let passing = match &mut self.kind {
            Kind::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Joined(joined) => return joined.poll(cx),
            Kind::Passing(passing) => passing,
        };
        if let Some(joined) = passing.join() {
            self.kind = Kind::Joined(joined);
            return self.poll_next(cx);
        }
        match ready!(passing.poll(cx)) {
            Ok(next) => Poll::Ready(next.map(Ok)),
            Err(cut) => {
                let Some(resume) = passing.resume.take() else { return Poll::Ready(Some(Err(cut.why))) };
                tracing::debug!(why = %cut.why, at = resume.at, "the rest of an object is asked for again");
                if let Some(mut lease) = passing.lease.take().filter(|_| cut.is_of_the_network) {
                    lease.line().leave();
                    if let Some(by) = lease.by() {
                        resume.object.path_failed(by);
                    }
                }
                self.kind = Kind::Joined(resume.fetch(None));
                self.poll_next(cx)
            }
        }
    }
}

impl Passing {
    /// The rest, if several networks are to carry it by now. The connection that brought it until now closes.
    fn join(&mut self) -> Option<Joined> {
        let resume = self.resume.as_ref()?;
        let decided = resume.late.as_ref()?.take()?;
        // Without memory it would come over one of them, and begin anew for nothing.
        if resume.left() < LEAST_LEFT || !resume.object.has_room() {
            return None;
        }
        let resume = self.resume.take()?;
        tracing::debug!(at = resume.at, "the rest of an object comes over several networks");
        self.lease = None;
        Some(resume.fetch(Some(decided)))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, Cut>> {
        loop {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers were announced to us, and not to the client.
                    let Ok(bytes) = frame.into_data() else { continue };
                    if let Some(lease) = &self.lease {
                        lease.moved();
                    }
                    if let Some(resume) = &mut self.resume {
                        resume.at += bytes.len() as u64;
                        resume.is_waiting = false;
                        if let Some(late) = &resume.late {
                            late.passed(resume.at);
                        }
                    }
                    return Poll::Ready(Ok(Some(Frame::data(bytes))));
                }
                Poll::Ready(Some(Err(error))) => {
                    let is_of_the_network = is_of_the_network(&error);
                    return Poll::Ready(Err(Cut { why: error.into(), is_of_the_network }));
                }
                Poll::Ready(None) if !self.incoming.is_whole() => {
                    let why = "the server takes the rest of it back".into();
                    return Poll::Ready(Err(Cut { why, is_of_the_network: false }));
                }
                Poll::Ready(None) => {
                    if let Some(lease) = self.lease.take() {
                        lease.release();
                    }
                    return Poll::Ready(Ok(None));
                }
                Poll::Pending => {
                    return match &mut self.resume {
                        Some(resume) => resume.poll_stalled(cx),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        // Whoever knows how much comes does not ask for the end behind it.
        if self.incoming.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.release();
        }
    }
}

impl Resume {
    fn left(&self) -> u64 {
        self.object.total().saturating_sub(self.at)
    }

    /// Fetches what has not come, as was decided.
    fn fetch(&self, decided: Option<Decided>) -> Joined {
        Joined { first: None, left: self.left(), fetching: self.object.fetch(self.at, decided) }
    }

    fn poll_stalled<T>(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, Cut>> {
        let limit = self.object.stall();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            timer.as_mut().reset(tokio::time::Instant::now() + limit);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(Cut { why: "nothing comes any more".into(), is_of_the_network: true }))
    }
}

impl Joined {
    fn poll(&mut self, cx: &mut Context<'_>) -> Next {
        let bytes = match self.first.take() {
            Some(first) => first,
            None => match ready!(self.fetching.poll_next(cx)) {
                Some(Ok(bytes)) => bytes,
                Some(Err(why)) => return Poll::Ready(Some(Err(why.into()))),
                None => return Poll::Ready(None),
            },
        };
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}
