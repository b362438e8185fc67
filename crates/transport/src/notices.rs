//! Sending and hearing notices: how a server that moved finds its clients again, without either
//! waiting for the name service [msocket §III-B3].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use whimbrel_proto::notice::{self, Notice};
use whimbrel_proto::{Assignment, PathState, Side};

use crate::carrier::quic::{Heard, QuicSocket};
use crate::cause::DownCause;
use crate::endpoint_core::EndpointCore;
use crate::locator::{Locator, canonical};
use crate::punch;
use crate::shared::Shared;
use crate::stun::{answer_to, is_stun};

/// The answer to a notice is given this long, or one and a half round trips, before the notice goes again.
const FIRST_REPEAT: Duration = Duration::from_millis(100);
const LONGEST_FIRST_REPEAT: Duration = Duration::from_secs(1);
/// 100 ms, 200 ms, …: the last waits for about 51 s.
const REPEATS: u32 = 10;
/// A connection that was read back, and that the client has not come to since, calls so often: the client may
/// have been out of reach, or may have gone on with another copy.
const CALL_AGAIN: Duration = Duration::from_secs(120);
/// How often it is looked whether a client that has joined hears this side.
const LOOK: Duration = Duration::from_millis(20);

/// Takes notices, STUN and their answers until its task is aborted.
pub(crate) async fn hear(
    endpoint: Arc<EndpointCore>,
    socket: Arc<QuicSocket>,
    mut heard: mpsc::Receiver<Heard>,
) {
    while let Some((datagram, from)) = heard.recv().await {
        if is_stun(&datagram) {
            endpoint.observed.hear(&datagram, from);
            if let Some(answer) = endpoint.stun.answer(&datagram, from, Instant::now()) {
                let _ = socket.send_to(&answer, answer_to(&datagram, from));
            }
            continue;
        }
        // An answer that is left out is asked for again.
        if let Some(answer) = take(&endpoint, &datagram, from)
            && endpoint.notice_pace.is_free(Instant::now())
        {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Takes a datagram; returns the answer to an authentic notice.
fn take(endpoint: &EndpointCore, datagram: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
    let shared = endpoint.registry.find_tag(&notice::tag(datagram)?)?;
    let (key, side) = {
        let state = shared.lock();
        (state.engine.notice_key()?, state.engine.side())
    };
    let Some(notice) = key.open(datagram) else { return take_of_before(&shared, datagram) };
    match (notice, side) {
        (Notice::Moved { sequence, addresses }, Side::Client) => {
            moved(&shared, sequence, &addresses);
            Some(key.seal(&Notice::Heard { sequence }))
        }
        (Notice::HandedOver { sequence, assignment, addresses }, Side::Client) => {
            handed_over(&shared, sequence, &assignment, &addresses);
            Some(key.seal(&Notice::Heard { sequence }))
        }
        (Notice::Heard { sequence }, Side::Server) => {
            if shared.lock().engine.is_newest_notice(sequence) {
                shared.news.notice_answered();
            }
            None
        }
        (Notice::Punch { from: sender, is_answer }, _) => {
            punch::heard(&shared, from, sender, is_answer).map(|answer| key.seal(&answer))
        }
        (Notice::Superseded { generation, nonce }, Side::Server) => {
            shared.with(|state| state.engine.hear_superseded(generation, &nonce));
            None
        }
        // Our own notice, played back to us.
        _ => None,
    }
}

/// Takes a datagram that was made with the key before a side was read back. A copy of the server that calls
/// its client, which goes on with another copy, is told so.
fn take_of_before(shared: &Shared, datagram: &[u8]) -> Option<Vec<u8>> {
    if let Some((key, superseded)) = shared.lock().engine.superseded_copy() {
        let calls = |notice: &Notice| matches!(notice, Notice::Moved { .. } | Notice::HandedOver { .. });
        return key.open(datagram).filter(calls).map(|_| key.seal(&superseded));
    }
    let key = shared.lock().engine.former_notice_key()?;
    if let Notice::Superseded { generation, nonce } = key.open(datagram)? {
        shared.with(|state| state.engine.hear_superseded(generation, &nonce));
    }
    None
}

/// The server says where it is now: paths to elsewhere are dead, and it is to be dialled at once.
fn moved(shared: &Shared, sequence: u64, addresses: &[SocketAddr]) {
    if !shared.lock().engine.hear_notice(sequence) {
        return;
    }
    tracing::debug!(connection = %shared.id, ?addresses, "the peer moved");
    let addresses: Vec<SocketAddr> = addresses.iter().copied().map(canonical).collect();
    let paths: Vec<_> = shared.lock().paths.iter().map(|p| (p.id, p.remote)).collect();
    let is_there = |remote: &Locator| {
        remote.direct().is_some_and(|at| addresses.iter().any(|address| address.ip() == at.ip()))
    };
    let elsewhere = paths.into_iter().filter(|(_, remote)| !is_there(remote));
    let elsewhere: Vec<_> = {
        let whereabouts = shared.whereabouts();
        let was_its_own = |remote: Locator| remote.direct().is_some_and(|at| whereabouts.states(at.ip()));
        elsewhere.map(|(path, remote)| (path, was_its_own(remote))).collect()
    };
    shared.set_remote(&addresses);
    shared.with(|state| {
        for (path, was_its_own) in elsewhere {
            if was_its_own {
                state.lose_path(Instant::now(), path, DownCause::PeerMoved);
            } else {
                // The outside of a gateway, which the server does not know, or a relay: it may still lead
                // there.
                state.engine.ping(Instant::now(), path);
            }
        }
    });
    shared.mover.peer_called();
}

/// Somebody else says that it has the server's end now, and where it is.
fn handed_over(shared: &Shared, sequence: u64, assignment: &Assignment, addresses: &[SocketAddr]) {
    {
        let mut state = shared.lock();
        if !state.engine.is_authentic(assignment) || !state.engine.hear_notice(sequence) {
            return;
        }
        let addresses = addresses.iter().copied().map(canonical).collect();
        state.assigned = Some(Box::new((assignment.to, addresses)));
    }
    tracing::debug!(connection = %shared.id, to = %assignment.to.short(), ?addresses, "the peer was handed over");
    // Its owner has signed that it does not go on: what is open to it leads nowhere.
    shared.with(|state| {
        for path in state.engine.paths() {
            state.engine.ping(Instant::now(), path.id);
        }
    });
    shared.mover.look();
}

/// Tells one client that this endpoint moved, again and again until it answers or is back.
pub(crate) async fn tell(endpoint: Arc<EndpointCore>, shared: Arc<Shared>) {
    let sequence = shared.lock().engine.begin_notice();
    let (key, targets, rtt, joined) = {
        let state = shared.lock();
        let joined = state.engine.stats().paths_joined;
        (state.engine.notice_key(), state.notice_targets(), state.engine.last_rtt(), joined)
    };
    let Some(key) = key else { return };
    let repeat = (rtt.unwrap_or_default() * 3 / 2).clamp(FIRST_REPEAT, LONGEST_FIRST_REPEAT);
    for attempt in 0.. {
        let pause = match attempt {
            0..REPEATS => repeat * 2u32.pow(attempt),
            _ if shared.lock().engine.is_claiming() => CALL_AGAIN,
            _ => return,
        };
        let heard = shared.news.of_notice();
        tokio::pin!(heard);
        heard.as_mut().enable();
        {
            let state = shared.lock();
            if !state.engine.is_newest_notice(sequence) || state.is_settled() {
                return;
            }
        }
        let addresses = endpoint.stated_at(whimbrel_proto::MAX_NOTICE_ADDRESSES);
        let assignment = shared.lock().engine.own_assignment().cloned();
        let datagram = key.seal(&match assignment {
            Some(assignment) => Notice::HandedOver { sequence, assignment, addresses },
            None => Notice::Moved { sequence, addresses },
        });
        let sent = async {
            for target in &targets {
                endpoint.send_notice(&datagram, *target).await;
            }
            tokio::time::sleep(pause).await;
        };
        tokio::select! {
            () = heard => return,
            () = is_back(&shared, joined) => return,
            () = sent => {}
        }
    }
}

/// Waits until the client has joined once more and hears this side, or the connection is over: no notice is
/// needed then. A JOIN alone may have been on its way to where this endpoint was before, on a path that the
/// client has given up. Cancel-safe.
async fn is_back(shared: &Shared, joined: u64) {
    loop {
        let changed = shared.news.of_paths();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let came = {
            let state = shared.lock();
            let came = state.engine.stats().paths_joined > joined;
            if state.engine.is_closed() || (came && state.engine.is_heard()) {
                return;
            }
            came && state.engine.paths().iter().any(|path| path.state == PathState::Active)
        };
        let look = async {
            match came {
                // A first acknowledgement is no news of its own.
                true => tokio::time::sleep(LOOK).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = look => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::{ConnectionId, SecretKey};
    use whimbrel_proto::{Config, Connection, FirstFlight, PathId, segment};

    use super::*;
    use crate::Endpoint;
    use crate::punch::PunchingFor;

    /// A connection that this endpoint has accepted, and the client's end of it.
    fn accepted(core: &EndpointCore) -> (Connection, Arc<Shared>) {
        let (now, peer) = (Instant::now(), SecretKey::generate().id());
        let mut client =
            Connection::client(Config::default(), ConnectionId::random(), peer, core.id, [1; 32], now);
        client.open_path(now, None, u64::MAX).unwrap();
        let mut wire = Vec::new();
        assert!(client.poll_transmit(now, PathId(0), &mut wire));
        let (body, _) = segment::split(&wire).unwrap().unwrap();
        let Ok(FirstFlight::Open(open)) = FirstFlight::decode(body) else { panic!("no OPEN") };
        let mut server = Connection::server(Config::default(), &open, core.id, peer, [2; 32], now);
        server.handle_segment(now, PathId(0), body).unwrap();
        wire.clear();
        assert!(server.poll_transmit(now, PathId(0), &mut wire));
        let (body, _) = segment::split(&wire).unwrap().unwrap();
        client.handle_segment(now, PathId(0), body).unwrap();
        let shared = core.shared(server, Vec::new());
        core.registry.add_accepted(&shared);
        (client, shared)
    }

    #[tokio::test]
    async fn where_the_peer_sees_this_host_is_a_candidate_for_that_peer_with_the_port_of_the_socket() {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let core = endpoint.inner();
        let (mut client, shared) = accepted(core);
        let (_, other) = accepted(core);
        let at: SocketAddr = "198.51.100.7:4000".parse().unwrap();
        client.state_observed(at);
        let mut wire = Vec::new();
        assert!(client.poll_transmit(Instant::now(), PathId(0), &mut wire));
        let (body, _) = segment::split(&wire).unwrap().unwrap();
        shared.with(|state| state.engine.handle_segment(Instant::now(), PathId(0), body).unwrap());
        let candidate = SocketAddr::new(at.ip(), core.port());
        assert_eq!(core.candidates(&shared).first(), Some(&candidate));
        assert!(!core.candidates(&other).contains(&candidate), "it is told to nobody else");
    }

    #[tokio::test]
    async fn punches_that_are_forged_of_our_own_or_of_no_attempt_do_nothing() {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let core = endpoint.inner();
        let (client, shared) = accepted(core);
        let from = "198.51.100.7:4000".parse().unwrap();
        let key = client.notice_key().unwrap();
        let punch = |from, is_answer| key.seal(&Notice::Punch { from, is_answer });
        let asks = punch(Side::Client, false);
        assert_eq!(take(core, &asks, from), None, "the client has not stated candidates");
        let _attempt = PunchingFor::begin(&shared);
        for bit in 0..asks.len() * 8 {
            let mut forged = asks.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(take(core, &forged, from), None, "bit {bit}");
        }
        assert_eq!(take(core, &punch(Side::Server, false), from), None, "played back");
        let (stranger, _) = accepted(core);
        let other = stranger.notice_key().unwrap();
        let of_another = other.seal(&Notice::Punch { from: Side::Client, is_answer: false });
        assert_eq!(take(core, &of_another, from), None, "of a connection without an attempt");
        assert!(shared.lock().punching.came_from().is_empty());
        assert_eq!(take(core, &punch(Side::Client, true), from), None, "answers are not answered");
        let answer = take(core, &asks, from).unwrap();
        assert!(answer.len() <= asks.len());
        assert_eq!(key.open(&answer), Some(Notice::Punch { from: Side::Server, is_answer: true }));
        assert_eq!(shared.lock().punching.came_from(), [from]);
    }
}
