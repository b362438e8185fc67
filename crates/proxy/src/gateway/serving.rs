//! The gateway's side of a stream, up to its bytes.

use crate::sessions::{Asked, Awaited, HaltedSession, How, Refused, SessionPiece, Sessions};
use crate::whole::keep_alive;
use crate::{
    Answer, BadMessage, Destination, Full, Guard, NoSession, Place, Publication, Publications, Quota,
    Request, SessionId, SessionSettings, Status, Takers, Unpublished, UpstreamError,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// For a request to come, from the moment that its stream is there, and for its answer to be taken.
const LIMIT: Duration = Duration::from_secs(10);

/// Of requests that wait, of one peer and in all, beside those that have a connection's place.
const WAITING: (usize, usize) = (8, 512);

/// Answers the requests of peers that were let in. Cheap to clone.
#[derive(Clone)]
pub struct GatewayServer {
    guard: Arc<Guard>,
    quota: Arc<Quota<EndpointId>>,
    /// Of requests, where their peer has no place for a connection any more.
    waiting: Arc<Quota<EndpointId>>,
    sessions: Sessions,
    publications: Publications,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    connected: AtomicU64,
    declined: AtomicU64,
}

/// What a gateway has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayStats {
    /// Connections to hosts that are open, those in sessions and requests for more included.
    pub open: u64,
    /// Sessions, which can go on at another device.
    pub sessions: u64,
    /// Connections to hosts that were made, those in sessions included.
    pub connected: u64,
    /// Requests that were declined.
    pub declined: u64,
}

/// A stream and the connection that it is for. Their bytes are to be carried.
pub struct Joined {
    /// The connection to the ordinary host.
    pub socket: TcpStream,
    /// Where it leads.
    pub to: Destination,
    /// Counts the connection until it is dropped.
    pub place: Place<EndpointId>,
}

/// What a request has come to.
#[non_exhaustive]
pub enum Served {
    /// A connection, whose bytes are to be carried.
    Joined(Stream, Joined),
    /// A session with this destination, which goes on by itself.
    Session(Destination),
    /// It publishes this, for as long as the stream.
    Published(Publication),
    /// It was answered.
    Answered,
}

/// What is to be done about a request.
enum Next {
    Join(Joined),
    Open(Joined, Takers),
    Take((SessionId, u32), (Takers, How), Result<Place<EndpointId>, Full>),
    Control(SessionId, u32),
    Say(Vec<u8>),
    Publish(Publication),
    Tell(Awaited),
}

/// Why a request has no connection. The peer was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Declined {
    /// It did not come whole or in time, or is none.
    #[error("no request came: {0}")]
    Request(io::Error),
    /// There are too many connections.
    #[error(transparent)]
    Full(#[from] Full),
    /// It is not let through, or was not reached.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// It has no such session.
    #[error(transparent)]
    Session(#[from] NoSession),
    /// It does not publish that.
    #[error(transparent)]
    Unpublished(#[from] Unpublished),
    /// Too many devices wait to be told of sessions.
    #[error("too many devices wait to be told of sessions; try again later")]
    Deaf,
    /// The peer is gone.
    #[error("the stream broke before the answer: {0}")]
    Gone(io::Error),
}

impl From<Refused> for Declined {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::None(none) => none.into(),
            Refused::Full(full) => full.into(),
        }
    }
}

impl GatewayServer {
    /// Connects by this guard, for so many connections as the quota has.
    pub fn new(guard: Guard, quota: Quota<EndpointId>) -> Self {
        let waiting = Arc::new(Quota::new(WAITING.0, WAITING.1));
        let (sessions, publications, counts) = Default::default();
        Self { guard: Arc::new(guard), quota: Arc::new(quota), waiting, sessions, publications, counts }
    }

    /// What it has done so far.
    pub fn stats(&self) -> GatewayStats {
        GatewayStats {
            open: self.quota.in_use() as u64,
            sessions: self.sessions.count() as u64,
            connected: self.counts.connected.load(Ordering::Relaxed),
            declined: self.counts.declined.load(Ordering::Relaxed),
        }
    }

    /// With other bounds of the sessions that it keeps.
    #[must_use]
    pub fn with_sessions(self, settings: SessionSettings) -> Self {
        Self { sessions: self.sessions.with_settings(settings), ..self }
    }

    /// Halts all sessions, so that another instance goes on with them. Those that do not halt in time break.
    pub async fn halt(&self, limit: Duration) -> Vec<HaltedSession> {
        self.sessions.halt(limit).await
    }

    /// Goes on with a session that was halted, on these streams of its device. Without them it is held.
    ///
    /// # Errors
    /// When it was handed over in part. It breaks then.
    pub fn go_on(&self, piece: SessionPiece, streams: Vec<Stream>) -> io::Result<()> {
        self.sessions.go_on(piece, streams, &self.quota)
    }

    /// A place for a connection that another instance had before.
    pub fn keep_place(&self, peer: EndpointId) -> Place<EndpointId> {
        self.quota.keep(peer)
    }

    /// Lets peers publish servers of theirs, by the rules of these publications. Without them: none.
    #[must_use]
    pub fn with_publications(self, publications: Publications) -> Self {
        Self { publications, ..self }
    }

    /// Takes the request from a stream, does what it asks for, and answers.
    ///
    /// # Errors
    /// Why it does not. The stream was told, and ended.
    pub async fn serve(&self, stream: Stream) -> Result<Served, Declined> {
        let served = self.answer_request(stream).await;
        let counted = match &served {
            Ok(Served::Joined(..) | Served::Session(_)) => Some(&self.counts.connected),
            Ok(_) => None,
            Err(_) => Some(&self.counts.declined),
        };
        if let Some(counted) = counted {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        served
    }

    async fn answer_request(&self, mut stream: Stream) -> Result<Served, Declined> {
        let next = match self.next(&mut stream).await {
            Ok(next) => next,
            Err(declined) => return decline(stream, declined).await,
        };
        let given: Result<(), (Stream, Declined)> = match next {
            Next::Join(joined) => {
                let by = joined.socket.peer_addr().map(|address| address.to_string()).unwrap_or_default();
                tell(&mut stream, &Answer::new(Status::Connected, &by).encode()).await?;
                return Ok(Served::Joined(stream, joined));
            }
            Next::Open(Joined { socket, to, place }, rule) => {
                self.sessions.begin(stream, socket, to.clone(), rule, place);
                return Ok(Served::Session(to));
            }
            Next::Say(words) => {
                tell(&mut stream, &words).await?;
                stream.finish().map_err(Declined::Gone)?;
                return Ok(Served::Answered);
            }
            Next::Tell(awaited) => {
                tell(&mut stream, &Answer::new(Status::Connected, "").encode()).await?;
                awaited.tell(stream).await;
                return Ok(Served::Answered);
            }
            Next::Publish(what) => {
                return match self.publications.publish(stream, what.clone()).await {
                    Ok(()) => Ok(Served::Published(what)),
                    Err((stream, why)) => decline(stream, why.into()).await,
                };
            }
            Next::Take(session, how, place) => {
                let taken = self.sessions.take(stream, session, how, place);
                taken.map_err(|(stream, refused)| (stream, refused.into()))
            }
            Next::Control(id, moves) => {
                let given = self.sessions.control(stream, (id, moves));
                given.map_err(|(stream, none)| (stream, none.into()))
            }
        };
        match given {
            Ok(()) => Ok(Served::Answered),
            Err((stream, declined)) => decline(stream, declined).await,
        }
    }

    async fn next(&self, stream: &mut Stream) -> Result<Next, Declined> {
        // A stream takes its place before its request is there: slow ones count.
        let peer = stream.peer_id();
        let place = self.quota.take(peer);
        let _waiting = match &place {
            Ok(_) => None,
            Err(full) => Some(self.waiting.take(peer).map_err(|_| *full)?),
        };
        let read = tokio::time::timeout(LIMIT, Asked::read(stream)).await;
        let read = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match read.map_err(Declined::Request)? {
            Asked::Plain(Request { to }) => self.connect(to, peer, place?).await.map(Next::Join),
            Asked::Open { to, rule } => {
                self.connect(to, peer, place?).await.map(|joined| Next::Open(joined, rule))
            }
            Asked::Take { id, moves, rule, how } => Ok(Next::Take((id, moves), (rule, how), place)),
            Asked::Control { id, moves } => Ok(Next::Control(id, moves)),
            Asked::HandOff { id, moves, to, limit } => {
                self.sessions.permit(peer, (id, moves), to, limit)?;
                Ok(Next::Say(Answer::new(Status::Connected, "").encode()))
            }
            Asked::Rule { rule } => {
                self.sessions.set_rule(peer, &rule);
                Ok(Next::Say(Answer::new(Status::Connected, "").encode()))
            }
            Asked::List => Ok(Next::Say(self.sessions.list(peer))),
            Asked::Publish { what } => Ok(Next::Publish(what)),
            Asked::Words => self.sessions.wait(peer).map(Next::Tell).ok_or(Declined::Deaf),
        }
    }

    async fn connect(
        &self,
        to: Destination,
        peer: EndpointId,
        place: Place<EndpointId>,
    ) -> Result<Joined, Declined> {
        let socket = self.guard.connect(&to, peer).await?;
        keep_alive(&socket);
        Ok(Joined { socket, to, place })
    }
}

async fn decline(mut stream: Stream, declined: Declined) -> Result<Served, Declined> {
    tell(&mut stream, &answer(&declined).encode()).await?;
    stream.finish().map_err(Declined::Gone)?;
    Err(declined)
}

async fn tell(stream: &mut Stream, words: &[u8]) -> Result<(), Declined> {
    let told = tokio::time::timeout(LIMIT, stream.write_all(words)).await;
    told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Declined::Gone)
}

fn answer(declined: &Declined) -> Answer {
    match declined {
        Declined::Request(error) | Declined::Gone(error) => {
            // A device takes a gateway that does not understand it for an older one.
            let is_other = error.get_ref().is_some_and(|inner| inner.is::<BadMessage>());
            let status = match error.kind() {
                io::ErrorKind::UnexpectedEof => Status::NotUnderstood,
                _ if is_other => Status::NotUnderstood,
                io::ErrorKind::TimedOut => Status::TimedOut,
                _ => Status::Failed,
            };
            Answer::new(status, &error.to_string())
        }
        Declined::Full(full) => Answer::new(Status::Full, &full.to_string()),
        Declined::Upstream(error) => Answer::of_error(error),
        Declined::Deaf => Answer::new(Status::Full, &declined.to_string()),
        Declined::Session(none) => Answer::new(Status::NoSession, &none.to_string()),
        Declined::Unpublished(why) => {
            let status = match why {
                Unpublished::NotAllowed(_) => Status::NotAllowed,
                Unpublished::Full(_) => Status::Full,
                Unpublished::Port { .. } => Status::Failed,
            };
            Answer::new(status, &why.to_string())
        }
    }
}
