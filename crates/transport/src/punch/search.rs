//! Searching for a port, where one side's gateway gives each flow another one and the other side's gateway
//! lets in only what a packet went to. Which side does what, in which order and how fast is
//! [decided](whimbrel_proto::punching::Search) by pure rules.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::MissedTickBehavior;
use whimbrel_proto::PathState;
use whimbrel_proto::notice::{MAX_NOTICE, Notice, NoticeKey};
use whimbrel_proto::punching::{FLOW_EVERY, FLOWS, LONGEST_SEARCH, PROBE_EVERY, Search, probes};

use super::May;
use crate::dial::{Candidate, source};
use crate::endpoint_core::{EndpointCore, lock};
use crate::locator::canonical;
use crate::monitor::LocalAddress;
use crate::path_io::PathIo;
use crate::shared::Shared;

/// The last flow that was opened may be heard of this much later.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// A socket of ours on which the peer was heard: the gateways of both sides are open.
pub(crate) struct Found {
    pub(crate) socket: std::net::UdpSocket,
    pub(crate) peer: SocketAddr,
    /// Tells the peer that it was heard.
    answer: Vec<u8>,
}

impl Found {
    /// Lets the peer in there.
    pub(super) fn listen(self, core: &Arc<EndpointCore>) {
        let Self { socket, peer, answer } = self;
        let listening = socket.try_clone().and_then(|copy| {
            lock(&core.sockets).open_beside(core, &core.quic, copy)?;
            // It dials when it hears this.
            socket.send_to(&answer, peer)
        });
        if let Err(error) = listening {
            tracing::warn!(%error, "cannot listen where the gateways are open");
        }
    }

    /// The socket, and where to dial from it. The peer is told that it was heard.
    pub(crate) fn answered(self) -> (std::net::UdpSocket, SocketAddr) {
        // If that is lost, the peer goes on sending until it is dialled.
        let _ = self.socket.send_to(&self.answer, self.peer);
        (self.socket, self.peer)
    }
}

/// One side's part in an attempt: who it is to the peer.
struct Voice {
    key: NoticeKey,
    side: whimbrel_proto::Side,
}

impl Voice {
    fn says(&self, is_answer: bool) -> Vec<u8> {
        self.key.seal(&Notice::Punch { from: self.side, is_answer })
    }

    /// Whether the peer has sent this.
    fn is_peers(&self, datagram: &[u8]) -> bool {
        matches!(self.key.open(datagram), Some(Notice::Punch { from, .. }) if from != self.side)
    }
}

/// Searches, if that may help and is allowed now. Takes [`LONGEST_SEARCH`] at most; sends nothing more when
/// dropped.
pub(super) async fn search(core: &EndpointCore, shared: &Shared, may: May<'_>) -> Option<Found> {
    let (search, voice) = plan(core, shared, may)?;
    // One at a time: what an endpoint sends in searches has a limit, however many peers name places.
    let mut allowance = core.searches.try_lock().ok()?;
    if !allowance.take(Instant::now()) {
        return None;
    }
    tracing::debug!(connection = %shared.id, ?search, "searching for a port");
    let searching = async {
        match &search {
            Search::Open { to } => open(core, &voice, *to).await,
            Search::Probe { ip, seen } => {
                let ports = probes(seen, rand::random()).into_iter();
                probe(core, shared, &voice, ports.map(|port| SocketAddr::new(*ip, port))).await;
                None
            }
        }
    };
    tokio::time::timeout(LONGEST_SEARCH, searching).await.ok().flatten()
}

/// This side's part, if there is to be a search.
fn plan(core: &EndpointCore, shared: &Shared, may: May<'_>) -> Option<(Search, Voice)> {
    let voice = {
        let state = shared.lock();
        // What is dialled meanwhile may lead nowhere.
        let is_up = |path: &Arc<PathIo>| state.engine.path_state(path.id) == Some(PathState::Active);
        let is_direct = state.paths.iter().any(|path| path.remote.direct().is_some() && is_up(path));
        if is_direct || !state.punching.came_from().is_empty() || !state.engine.can_search() {
            return None;
        }
        Voice { key: state.engine.notice_key()?, side: state.engine.side() }
    };
    let search = Search::between(&core.observed.list(), &core.worth_punching(shared))?;
    let to = match &search {
        Search::Open { to } => *to,
        Search::Probe { ip, .. } => SocketAddr::new(*ip, 1),
    };
    (may(to) && !is_metered(core, shared, to)).then_some((search, voice))
}

/// Whether what is sent there costs something.
fn is_metered(core: &EndpointCore, shared: &Shared, to: SocketAddr) -> bool {
    let Some(ip) = source(&Candidate { local: None, remote: to.into() }) else { return true };
    let set = core.addresses();
    let known = set.addresses.iter().find(|address| address.ip == ip).cloned();
    shared.policy().interface(&known.unwrap_or(LocalAddress { ip, interface: None })).metered
}

/// Opens many flows to where the peer is, and waits until it is heard on one.
async fn open(core: &EndpointCore, voice: &Voice, to: SocketAddr) -> Option<Found> {
    let at = SocketAddr::new(lock(&core.sockets).address_for(to)?, 0);
    let (asks, mut left) = (voice.says(false), FLOWS);
    let mut sockets = Vec::with_capacity(FLOWS);
    let mut turn = tokio::time::interval(FLOW_EVERY);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = hear(&sockets, voice, to) => {
                let socket = sockets.swap_remove(heard).into_std().ok()?;
                return Some(Found { socket, peer: to, answer: voice.says(true) });
            }
            _ = turn.tick(), if left > 0 => {
                left -= 1;
                core.notice_pace.turn(1).await;
                // Where the system has no more sockets, fewer flows must do.
                if let Ok(socket) = UdpSocket::bind(at).await
                    && socket.send_to(&asks, to).await.is_ok()
                {
                    sockets.push(socket);
                }
            }
        }
    }
}

/// Waits until the peer is heard on one of the sockets, and says on which. Cancel-safe.
async fn hear(sockets: &[UdpSocket], voice: &Voice, peer: SocketAddr) -> usize {
    let mut bytes = [0; MAX_NOTICE];
    poll_fn(|cx| {
        for (index, socket) in sockets.iter().enumerate() {
            loop {
                let mut datagram = ReadBuf::new(&mut bytes);
                match socket.poll_recv_from(cx, &mut datagram) {
                    Poll::Ready(Ok(from)) if canonical(from) == peer && voice.is_peers(datagram.filled()) => {
                        return Poll::Ready(index);
                    }
                    Poll::Ready(Ok(_)) => {}
                    // Such a socket is of no use; there are others.
                    Poll::Ready(Err(_)) | Poll::Pending => break,
                }
            }
        }
        Poll::Pending
    })
    .await
}

/// Sends to many places, until the peer is heard from one. What comes is answered by those who hear notices,
/// and for a while after the end.
async fn probe(
    core: &EndpointCore,
    shared: &Shared,
    voice: &Voice,
    places: impl Iterator<Item = SocketAddr>,
) {
    let asks = voice.says(false);
    let mut turn = tokio::time::interval(PROBE_EVERY);
    turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for place in places {
        turn.tick().await;
        if !shared.lock().punching.came_from().is_empty() {
            break;
        }
        core.send_notice(&asks, place).await;
    }
    tokio::time::sleep(LAST_ANSWERS).await;
}
