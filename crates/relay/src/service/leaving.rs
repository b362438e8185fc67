//! How a relay stops in the middle of its work, so that another one goes on with it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use whimbrel_base::ConnectionId;
use whimbrel_transport::{Fronted, Leaving, PassedOn};

use super::{Order, Relay, Spliced, lock};
use crate::estate::{self, Estate, Head, Piece, millis};
use crate::reservations::{Splice, handed_over};

/// How long tasks may take to halt. What has not by then breaks.
const HALT_LIMIT: Duration = Duration::from_secs(1);
/// How often it is looked whether all have.
const LOOK: Duration = Duration::from_millis(2);

/// Has a splice halt, and given here.
#[derive(Clone)]
pub(super) struct Halt(pub(super) mpsc::UnboundedSender<Halted>);

/// A splice that has halted.
pub(super) struct Halted(pub(super) Spliced);

/// How splices are told to end, or to halt.
#[derive(Default)]
pub(super) struct Ends {
    open: HashMap<Splice, oneshot::Sender<Halt>>,
    halt: Option<Halt>,
}

impl Ends {
    /// Completes when the splice is to halt, or fails when it is to end.
    pub(super) fn begin(&mut self, at: Splice) -> oneshot::Receiver<Halt> {
        let (end, ended) = oneshot::channel();
        match &self.halt {
            // The receiver is returned below: this cannot fail.
            Some(halt) => drop(end.send(halt.clone())),
            None => drop(self.open.insert(at, end)),
        }
        ended
    }

    /// Ends one, if it has not ended.
    pub(super) fn forget(&mut self, at: &Splice) {
        self.open.remove(at);
    }

    pub(super) fn end_all(&mut self) {
        self.open.clear();
    }

    fn halt_all(&mut self, halt: &Halt) {
        self.halt = Some(halt.clone());
        // Those that end just now need not halt.
        self.open.drain().for_each(|(_, end)| drop(end.send(halt.clone())));
    }
}

/// What came when it was too late for this relay.
#[derive(Default)]
pub(super) struct Leftovers {
    /// Nothing is let into the table any more.
    pub(super) is_leaving: bool,
    /// As many as may be in their handshake at once, at most.
    pub(super) strangers: Vec<Fronted>,
}

/// What a relay leaves to another one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Left {
    /// Of its endpoint: sockets, sessions, and the connections of its servers.
    pub passed_on: PassedOn,
    /// Of the relay.
    pub estate: Estate,
}

impl Relay {
    /// Stops, so that another relay goes on with everything: with the sockets of clients, servers and spares
    /// and the bytes between them, its reservations, flows and counts, and the connections of its servers,
    /// asleep. `leaving` is this relay's endpoint, which has stopped to listen. Until the other one begins
    /// this process may do so itself. What does not halt within a second breaks.
    pub async fn leave(mut self, leaving: Leaving) -> Left {
        let shared = self.shared.clone();
        shared.halting.send_replace(true);
        let sessions = match tokio::time::timeout(HALT_LIMIT, &mut self.accepting).await {
            Ok(sessions) => sessions.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        // What is spliced, and QUIC, goes on meanwhile.
        let connections: Vec<_> = sessions.iter().map(|session| session.connection().clone()).collect();
        let passed_on = leaving.pass_on(&connections).await;
        let places: HashMap<ConnectionId, usize> =
            passed_on.connections.iter().enumerate().map(|(place, (id, _))| (*id, place)).collect();
        let now = Instant::now();
        let (left, strangers) = {
            let mut leftovers = lock(&shared.leftovers);
            leftovers.is_leaving = true;
            (lock(&shared.table).leave(now), std::mem::take(&mut leftovers.strangers))
        };
        let handed_over::Left { mut counters, turns, reservations, spares, clients } = left;
        let spares = gather_spares(spares).await;
        let splices = self.halt_splices().await;
        // What has ended meanwhile counts here, and the rest with the other one from when it goes on with it.
        let stats = lock(&shared.table).stats();
        (counters.bytes, counters.wait_ms) = (stats.bytes, millis(stats.wait_time));
        counters.splice_ms = millis(stats.splice_time);
        counters.splice_ms += splices.iter().map(|splice| millis(splice.since.elapsed())).sum::<u64>();
        let flows = shared.ferry.hand_over(now, &mut counters);
        let mut estate = Estate::default();
        let plain = [Head::Relay(counters)].into_iter();
        let plain = plain.chain(turns.into_iter().map(Head::Turns));
        let plain = plain.chain(reservations.into_iter().map(Head::Reservation)).chain(flows);
        plain.for_each(|head| estate.push(Piece { head, body: Vec::new(), sockets: Vec::new() }));
        let controls = sessions.into_iter().filter_map(|session| session.hand_over(&places));
        controls.for_each(|piece| estate.push(piece));
        for (spare, socket) in spares {
            push(&mut estate, Head::Spare(spare), Vec::new(), [socket]);
        }
        for (token, number, client) in clients {
            let (token, ago_ms) = (*token.as_bytes(), millis(client.since.elapsed()));
            let head = estate::Client { token, number, remote: client.remote, ago_ms };
            push(&mut estate, Head::Client(head), client.first, [client.socket]);
        }
        for splice in splices {
            splice.hand_over(&mut estate);
        }
        // Those that came while the others halted, too.
        let strangers = strangers.into_iter().chain(std::mem::take(&mut lock(&shared.leftovers).strangers));
        for Fronted { socket, remote, first } in strangers {
            push(&mut estate, Head::Stranger { remote }, first, [socket]);
        }
        Left { passed_on, estate }
    }

    /// Halts what is spliced.
    async fn halt_splices(&self) -> Vec<Spliced> {
        let (gather, mut halted) = mpsc::unbounded_channel();
        lock(&self.shared.ends).halt_all(&Halt(gather));
        let mut all = Vec::new();
        let begun = Instant::now();
        // Those that ended are in the table no more.
        while (all.len() as u64) < lock(&self.shared.table).stats().splices {
            match tokio::time::timeout(LOOK, halted.recv()).await {
                Ok(Some(Halted(spliced))) => all.push(spliced),
                Ok(None) => break,
                Err(_) if begun.elapsed() < HALT_LIMIT => {}
                Err(_) => {
                    tracing::warn!("not everything was halted in time; what was not breaks");
                    break;
                }
            }
        }
        all
    }
}

/// Gathers the sockets of spares. Those that have ended are left out.
async fn gather_spares(spares: Vec<(estate::Spare, super::Spare)>) -> Vec<(estate::Spare, TcpStream)> {
    let (gather, mut gathered) = mpsc::unbounded_channel();
    for (spare, task) in spares {
        drop(task.send(Order::Leave(spare, gather.clone())));
    }
    drop(gather);
    let mut all = Vec::new();
    let gathering = async {
        while let Some(one) = gathered.recv().await {
            all.push(one);
        }
    };
    let _ = tokio::time::timeout(HALT_LIMIT, gathering).await;
    all
}

/// Adds something with its sockets, unless the system does not give one of these back.
fn push<const N: usize>(estate: &mut Estate, head: Head, body: Vec<u8>, sockets: [TcpStream; N]) {
    let sockets = sockets.into_iter().map(|socket| Ok(socket.into_std()?.into()));
    match sockets.collect::<std::io::Result<Vec<_>>>() {
        Ok(sockets) => estate.push(Piece { head, body, sockets }),
        Err(error) => tracing::warn!(%error, "a connection breaks, which could not be halted"),
    }
}

impl Spliced {
    fn hand_over(self, estate: &mut Estate) {
        let Self { at, client, spare: socket, underway, bytes, .. } = self;
        let (spare, generation) = at.hand_over();
        match (underway.there.into_parts(), underway.back.into_parts()) {
            (Ok((mut body, there_ended)), Ok((behind, back_ended))) => {
                let there = estate::Way { waiting: body.len(), ended: there_ended };
                let back = estate::Way { waiting: behind.len(), ended: back_ended };
                body.extend(behind);
                let bytes = bytes.into_inner();
                let head = estate::Splice { spare, generation, there, back, bytes };
                push(estate, Head::Splice(head), body, [client, socket]);
            }
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "a connection breaks, whose bytes could not be had back");
            }
        }
    }
}
