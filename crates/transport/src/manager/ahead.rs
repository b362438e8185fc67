//! Dialling before there is a connection: who is about to be handed one has a carrier by then.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use whimbrel_base::EndpointId;
use whimbrel_proto::HandoverMode;

use super::dialling::{begin_race, dialler};
use crate::carrier::CarrierKind;
use crate::dial::{Candidate, Dialled, Race, candidates};
use crate::endpoint_core::EndpointCore;
use crate::locator::Locator;

/// Carriers that may stand without use at the same time: one of each kind.
const MOST: usize = 2;
/// Servers hang up on whoever says nothing, ours after ten seconds: what stands for longer is of no use.
const FRESH: Duration = Duration::from_secs(5);

/// A race to a peer for a connection that is not here yet.
pub(crate) struct Ahead {
    peer: EndpointId,
    ways: Vec<Candidate>,
    race: Race,
    /// The race may bring further carriers.
    is_racing: bool,
    standing: Vec<Standing>,
}

/// A carrier that stands.
struct Standing {
    dialled: Dialled,
    since: Instant,
    /// Its handshake is complete, or need not be.
    is_ready: bool,
}

impl Ahead {
    /// Begins to dial the peer, which is at these places. `None` where the connection may turn out to want
    /// other ways: a policy chooses among networks, or several are used at a time.
    pub(crate) fn begin(endpoint: &EndpointCore, peer: EndpointId, places: &[SocketAddr]) -> Option<Self> {
        let chooses = endpoint.policy.is_selective()
            || endpoint.dialled.lock().unwrap_or_else(PoisonError::into_inner).is_some()
            || endpoint.config.handover != HandoverMode::Single;
        let places: Vec<Locator> = places.iter().copied().map(Locator::from).collect();
        let (set, exclusive) = endpoint.sources();
        let ways = candidates(&set, &places, &[], exclusive);
        if chooses || ways.is_empty() {
            return None;
        }
        let mut who = dialler(endpoint, peer, endpoint.reach.rtt(&peer), None);
        // A proxy is asked for a connection once there is one.
        who.proxy = None;
        let race = begin_race(who, ways.clone());
        Some(Self { peer, ways, race, is_racing: true, standing: Vec::new() })
    }

    /// Waits until a carrier is ready, or nothing is left to try. Cancel-safe.
    pub(crate) async fn stands(&mut self) {
        while !self.standing.iter().any(|carrier| carrier.is_ready) && self.step().await {}
    }

    /// Goes on dialling for as long as `what` takes.
    pub(crate) async fn during<T>(&mut self, what: impl Future<Output = T>) -> T {
        tokio::select! {
            result = what => result,
            never = self.dial() => match never {},
        }
    }

    async fn dial(&mut self) -> Infallible {
        while self.step().await {}
        std::future::pending().await
    }

    /// Waits until another carrier stands, or one that stood is ready or has failed. False if nothing is left
    /// to do. Cancel-safe.
    async fn step(&mut self) -> bool {
        let may_dial = self.is_racing && self.standing.len() < MOST;
        let shaking = self.standing.iter().position(|carrier| !carrier.is_ready);
        let shaken = async {
            match self.standing.iter_mut().find(|carrier| !carrier.is_ready) {
                Some(carrier) => carrier.dialled.shake_hands().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            dialled = self.race.next(), if may_dial => match dialled {
                Ok(dialled) => {
                    let is_ready = dialled.kind() == CarrierKind::Quic;
                    self.standing.push(Standing { dialled, since: Instant::now(), is_ready });
                }
                Err(_) => self.is_racing = false,
            },
            shaken = shaken, if shaking.is_some() => {
                let at = shaking.unwrap_or_default();
                match shaken {
                    Ok(()) => self.standing[at].is_ready = true,
                    Err(_) => drop(self.standing.remove(at)),
                }
            }
            else => return false,
        }
        true
    }
}

/// What was dialled ahead for a connection, until its first attempt to get a path.
#[derive(Clone, Default)]
pub(crate) struct Kept(Option<Arc<Mutex<Option<Ahead>>>>);

impl Kept {
    pub(crate) fn new(ahead: Ahead) -> Self {
        Self(Some(Arc::new(Mutex::new(Some(ahead)))))
    }

    /// The race, and the carriers that stand, QUIC's first, if they lead to that peer by some of these ways.
    /// What does not is given up.
    pub(super) fn take(&self, peer: EndpointId, ways: &[Candidate]) -> Option<(Race, Vec<Dialled>)> {
        let Ahead { peer: dialled, ways: tried, race, standing, .. } =
            self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let fresh = standing.into_iter().filter(|carrier| carrier.since.elapsed() < FRESH);
        let mut standing: Vec<Dialled> = fresh.map(|carrier| carrier.dialled).collect();
        standing.sort_by_key(|carrier| carrier.kind() != CarrierKind::Quic);
        let fits = dialled == peer && tried.iter().all(|way| ways.contains(way));
        (fits && !standing.is_empty()).then_some((race, standing))
    }
}
